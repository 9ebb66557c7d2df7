//! The reasons for which a request for a session is refused, and their numbers in a datagram.

use doorbell_fabric::{Incarnation, NodeId};

/// Why a request for a session is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rejection {
    /// The peer speaks the versions from `lowest` to `highest`.
    Version {
        /// The lowest version.
        lowest: u16,
        /// The highest version.
        highest: u16,
    },
    /// The peer belongs to another domain.
    OtherDomain,
    /// The peer has a key, and this end has none.
    NeedsKey,
    /// This end has a key, and the peer has none.
    HasNoKey,
    /// The peer has another key.
    WrongKey,
    /// There is a session with that node already.
    AlreadyConnected(NodeId, Incarnation),
    /// A later incarnation of this node has been there.
    Stale,
    /// The peer is this very node, or one that took its id.
    SameNode,
    /// The peer has the largest number of sessions.
    Full,
    /// The request is for a further session, but the peer has no first session with this incarnation.
    NoFirst,
}

/// The numbers of the reasons that say nothing more.
const PLAIN: [(u8, Rejection); 8] = [
    (2, Rejection::OtherDomain),
    (3, Rejection::NeedsKey),
    (4, Rejection::HasNoKey),
    (5, Rejection::WrongKey),
    (7, Rejection::Stale),
    (8, Rejection::SameNode),
    (9, Rejection::Full),
    (10, Rejection::NoFirst),
];

impl Rejection {
    /// Whether the reason is told even to a peer that may lack the key.
    pub(super) fn is_open(self) -> bool {
        use Rejection::{HasNoKey, NeedsKey, OtherDomain, Version, WrongKey};
        matches!(self, Version { .. } | OtherDomain | NeedsKey | HasNoKey | WrongKey)
    }

    pub(super) fn number(self) -> (u8, u64) {
        match self {
            Rejection::Version { lowest, highest } => (1, u64::from(lowest) | u64::from(highest) << 16),
            Rejection::AlreadyConnected(node, life) => (6, u64::from(node.0) | u64::from(life.0) << 16),
            plain => (PLAIN.into_iter().find(|(_, why)| *why == plain).map_or(0, |(number, _)| number), 0),
        }
    }

    pub(super) fn from_number(number: u8, more: u64) -> Option<Rejection> {
        match number {
            1 => Some(Rejection::Version { lowest: more as u16, highest: (more >> 16) as u16 }),
            6 => Some(Rejection::AlreadyConnected(NodeId(more as u16), Incarnation((more >> 16) as u32))),
            plain => PLAIN.into_iter().find(|(number, _)| *number == plain).map(|(_, why)| why),
        }
    }
}
