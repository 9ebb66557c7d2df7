//! A team: nodes that call collectives together.

use super::apart::Apart;
use super::builder::TeamBuilder;
use super::core::Core;
use super::net::Algorithm;
use super::watch::ChannelStats;
use doorbell_engine::NodeId;
use doorbell_engine::message::service::PeerId;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The origin of a team: the list of members of the first team.
#[derive(Clone)]
pub(super) struct Lineage {
    pub id: u64,
    pub list: Vec<PeerId>,
    /// As long as it lives, the node remembers its latest attempt.
    pub _used: Arc<()>,
}

/// Nodes that call collectives together. Each node is a member, with a rank.
///
/// All members call the same collectives, in the same order, with the same root, reduction and number of elements. Several threads of a node may use different
/// teams at once. One team is used by one thread at a time; others wait.
///
/// Calls without `start_` return when this member has its result, which may be before the others have theirs. They turn this node's engine meanwhile.
/// [`STARTED_MAX`](super::STARTED_MAX) operations may be under way at a member.
///
/// Elements that are combined have 4096 bytes at most, and are aligned to 128 at most.
///
/// # Errors
/// All collectives fail with these errors. After an error the vectors have unspecified, valid elements.
///
/// - [`Error::PeerDied`] and [`Error::PeerLeft`], with the member, when one is gone. Every other member gets it, at the latest from its next operation. After that the
///   team can only be [shrunk](Self::shrink).
/// - [`TeamError`] if members called different operations, if the team is out of step because a member gave up, or if too many operations are under way
///   ([`TeamError::Full`]).
/// - [`Error::Timeout`] if the team has a [timeout](TeamBuilder::patience).
/// - [`Error::Invalid`] for a root that is no rank, lengths that don't fit, or elements that can't be combined.
/// - [`Error::Damaged`] if the team's memory was truncated.
/// - [`Error::Closed`], [`Error::Forked`], [`Error::Severed`]; [`Error::Reentrant`] within a reduction, as within any callback.
///
/// [`Error::PeerDied`]: doorbell_engine::Error::PeerDied
/// [`Error::PeerLeft`]: doorbell_engine::Error::PeerLeft
/// [`TeamError`]: crate::TeamError
/// [`TeamError::Full`]: crate::TeamError::Full
/// [`Error::Timeout`]: doorbell_engine::Error::Timeout
/// [`Error::Invalid`]: doorbell_engine::Error::Invalid
/// [`Error::Damaged`]: doorbell_engine::Error::Damaged
/// [`Error::Closed`]: doorbell_engine::Error::Closed
/// [`Error::Forked`]: doorbell_engine::Error::Forked
/// [`Error::Severed`]: doorbell_engine::Error::Severed
/// [`Error::Reentrant`]: doorbell_engine::Error::Reentrant
pub struct Team {
    pub(super) core: Arc<Core>,
    pub(super) builder: TeamBuilder,
    pub(super) lineage: Lineage,
    pub(super) attempt: u32,
    /// How often it was split.
    pub(super) splits: AtomicU64,
}

impl Team {
    /// This member's rank: its place in the list, from 0.
    pub fn rank(&self) -> usize {
        self.core.me
    }

    /// The number of members.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.core.members.len()
    }

    /// The members, in the order of ranks.
    pub fn members(&self) -> Vec<NodeId> {
        self.core.members.iter().map(|member| member.node).collect()
    }

    /// The members that share memory with each other: ranks, by box. One box if all do. A box for each member if they do not agree on it.
    pub fn boxes(&self) -> Vec<Vec<usize>> {
        self.core.apart().map_or_else(|| vec![(0..self.len()).collect()], |apart| apart.boxes.ranks().to_vec())
    }

    /// The algorithm of the operation that this member began last. `None` if there was none, and if all members share memory.
    pub fn algorithm(&self) -> Option<Algorithm> {
        self.core.apart().and_then(Apart::algorithm)
    }

    /// The counters of its channels so far.
    pub fn stats(&self) -> ChannelStats {
        self.core.stats()
    }
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut team = f.debug_struct("Team");
        team.field("rank", &self.rank()).field("members", &self.members());
        team.field("boxes", &self.boxes()).field("algorithm", &self.algorithm()).finish_non_exhaustive()
    }
}
