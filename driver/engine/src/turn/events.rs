//! Who came and who went.

use doorbell_fabric::{Incarnation, NodeId};

/// Something that happened to a node of the domain. The first event of a node is that it joined itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// It attached. Every node sees those that were there when it joined as events too.
    Joined {
        /// Which node.
        node: NodeId,
        /// Which life of it.
        incarnation: Incarnation,
    },
    /// It left in good order.
    Left {
        /// Which node.
        node: NodeId,
        /// Which life of it.
        incarnation: Incarnation,
    },
    /// It died: killed, crashed, or ended without leaving.
    Died {
        /// Which node.
        node: NodeId,
        /// Which life of it.
        incarnation: Incarnation,
    },
    /// It wrote something into shared memory that no peer should, or its inbox was truncated: what it sends is read no further. Or it is
    /// this node itself, of whose memory somebody truncated a part.
    Damaged {
        /// Which node.
        node: NodeId,
        /// What it did.
        reason: &'static str,
    },
}

impl Event {
    /// The node it is about.
    pub fn node(&self) -> NodeId {
        match self {
            Event::Joined { node, .. } | Event::Left { node, .. } | Event::Died { node, .. } | Event::Damaged { node, .. } => {
                *node
            }
        }
    }
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Event::Joined { node, incarnation } => write!(f, "node {node} joined ({incarnation:?})"),
            Event::Left { node, incarnation } => write!(f, "node {node} left ({incarnation:?})"),
            Event::Died { node, incarnation } => write!(f, "node {node} died ({incarnation:?})"),
            Event::Damaged { node, reason } => write!(f, "node {node} is damaged: {reason}"),
        }
    }
}
