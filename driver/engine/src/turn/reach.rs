//! Which memory and which nodes can be reached.

use super::Engine;
use crate::error::Error;
use crate::message::service::PeerId;
use crate::sync::baton::Token;
use doorbell_fabric::{Incarnation, NodeId, Priority};

impl Engine {
    /// Whether bytes of this process lie in a region of this node.
    pub(crate) fn is_in_region(&self, bytes: *const u8, len: usize) -> bool {
        self.local.is_in_region(bytes, len)
    }

    /// Whether a node that shares memory with this one can fetch bytes of this process.
    pub(crate) fn is_in_reach(&self, node: NodeId, bytes: *const u8, len: usize) -> bool {
        self.local.is_in_region(bytes, len) || self.fabric.peer(node).is_some_and(|peer| peer.reach().is_some())
    }

    /// Whether this incarnation of a node is reached by a network.
    pub fn is_remote(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.fabric.is_remote(node) && self.fabric.live(node) == Some(incarnation)
    }

    /// Makes sure that a lane leads to a peer, or will do so.
    ///
    /// # Errors
    /// The peer is gone, or no such node exists.
    pub fn reach(&mut self, me: Token, to: PeerId, priority: Priority) -> Result<(), Error> {
        let Some(outbound) = self.ways.get(to.node, priority).cloned() else { return Err(Error::NoSuchNode { node: to.node }) };
        // If this thread holds the queue, it has checked this already.
        let Some(mut state) = outbound.state.enter(me) else { return Ok(()) };
        self.connect(&outbound, &mut state, to.incarnation)
    }
}
