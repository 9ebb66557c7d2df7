//! How a team is to be.

use super::core::Synchronisation;
use super::net::Algorithm;
use super::watch::{ChannelEvent, Watch};
use doorbell_engine::error::Error;
use doorbell_engine::{Node, NodeId, Result};
use std::time::Duration;

/// The most members of a team.
pub const MEMBERS_MAX: usize = 256;
/// The most channels of a team.
pub const CHANNELS_MAX: usize = 64;
/// The smallest slot of a member in a channel, and the largest; bytes.
pub const SLOT_MIN: usize = 4096;
/// See [`SLOT_MIN`].
pub const SLOT_MAX: usize = 64 << 20;

/// How a team is to be: see [`Team::builder`](super::Team::builder).
#[derive(Clone, Debug)]
pub struct TeamBuilder {
    pub(super) node: Node,
    pub(super) members: Option<Vec<NodeId>>,
    pub(super) label: String,
    pub(super) channels: usize,
    pub(super) slot: usize,
    pub(super) sync: Synchronisation,
    pub(super) patience: Option<Duration>,
    pub(super) algorithm: Option<Algorithm>,
    pub(super) watch: Option<Watch>,
}

impl TeamBuilder {
    pub(super) fn new(node: &Node) -> Self {
        Self {
            node: node.clone(),
            members: None,
            label: String::new(),
            channels: 4,
            slot: 512 << 10,
            sync: Synchronisation::Background,
            patience: None,
            algorithm: None,
            watch: None,
        }
    }

    /// The members, in the order of ranks. All members say the same.
    pub fn members(mut self, members: &[NodeId]) -> Self {
        self.members = Some(members.to_vec());
        self
    }

    /// Distinguishes teams of the same members that different threads form at the same time.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// The number of channels: 1 to [`CHANNELS_MAX`], 4 by default. This many operations can be under way, and a member can be this many operations ahead of the
    /// slowest one.
    pub fn channels(mut self, channels: usize) -> Self {
        self.channels = channels;
        self
    }

    /// Bytes that each member has in each channel: from [`SLOT_MIN`] to [`SLOT_MAX`], a multiple of 128; 512 KiB by default. The team takes slot × channels × members
    /// bytes of shared memory.
    pub fn slot_bytes(mut self, bytes: usize) -> Self {
        self.slot = bytes;
        self
    }

    /// How channels are synchronised: in the background by default.
    pub fn sync(mut self, sync: Synchronisation) -> Self {
        self.sync = sync;
        self
    }

    /// The timeout of each operation of the team; none by default. An operation that takes longer fails with [`Error::Timeout`], and after that the team can only be
    /// shrunk.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// The algorithm of operations where some members share no memory. Operations that can't go by it, and all operations by default, go by an algorithm chosen by
    /// operation, length and team. All members say the same. A team whose members all share memory ignores it.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = Some(algorithm);
        self
    }

    /// Calls `watch` at each step of this member with a turn of a channel, for tests and for curious programs. Teams that are split off or shrunk are watched by the
    /// same function.
    ///
    /// It is called right before others can see the step, in the order of this member's steps. The thread that takes a step calls it: a thread that calls a collective,
    /// or one that turns the engine. The whole team waits meanwhile. It may not block. Of its node it may call only [`Team::stats`](super::Team::stats): calls of teams
    /// are refused ([`Error::Reentrant`]), and other calls may wait for themselves. A panic in it is dropped.
    ///
    /// ```
    /// # use doorbell::{Node, Space};
    /// # use std::sync::{Arc, Mutex};
    /// use doorbell::collective::{ChannelStep, Team};
    /// # fn main() -> Result<(), doorbell::Error> {
    /// # let node = Node::builder("watch").space(Space::heap()).join()?;
    /// let seen = Arc::new(Mutex::new(Vec::new()));
    /// let sees = seen.clone();
    /// let team = Team::builder(&node).watch(move |event| sees.lock().unwrap().push(event.step)).form()?;
    /// team.barrier()?;
    /// let last = seen.lock().unwrap().last().copied();
    /// assert_eq!(last, Some(ChannelStep::SynchronisationPosted));
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch(mut self, watch: impl Fn(ChannelEvent) + Send + Sync + 'static) -> Self {
        self.watch = Some(Watch::new(watch));
        self
    }

    pub(super) fn check(&self) -> Result<()> {
        let invalid = |what: String| Err(Error::Invalid { what });
        if !(1..=CHANNELS_MAX).contains(&self.channels) {
            return invalid(format!("a team has 1 to {CHANNELS_MAX} channels, not {}", self.channels));
        }
        if !(SLOT_MIN..=SLOT_MAX).contains(&self.slot) || !self.slot.is_multiple_of(128) {
            return invalid(format!("a slot has {SLOT_MIN} to {SLOT_MAX} bytes, a multiple of 128, not {}", self.slot));
        }
        Ok(())
    }
}
