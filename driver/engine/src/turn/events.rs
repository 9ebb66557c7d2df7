//! Events: nodes that joined or ended.

use doorbell_fabric::{Incarnation, NodeId};

/// An event of a node of the domain. The first event that a node gets is its own joining.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// It attached. Nodes that were there before this one joined are reported as such events, too.
    Joined {
        /// The node.
        node: NodeId,
        /// Its incarnation.
        incarnation: Incarnation,
    },
    /// It left in good order.
    Left {
        /// The node.
        node: NodeId,
        /// Its incarnation.
        incarnation: Incarnation,
    },
    /// It died: killed, crashed, or ended without leaving.
    Died {
        /// The node.
        node: NodeId,
        /// Its incarnation.
        incarnation: Incarnation,
    },
    /// It wrote something into shared memory that no correct peer writes, or its inbox was truncated: nothing more is read from
    /// it. The node may also be this one, if another process truncated its memory.
    Damaged {
        /// The node.
        node: NodeId,
        /// What happened.
        reason: &'static str,
    },
}

impl Event {
    /// The node that the event concerns.
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
