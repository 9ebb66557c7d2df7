//! Locks that other nodes offered to this node.

use doorbell_engine::error::Error;
use doorbell_engine::sync::op::{Op, Outcome};
use doorbell_fabric::{Incarnation, NodeId};
use std::collections::VecDeque;
use std::sync::Arc;

/// An offer that has arrived.
pub(crate) struct Arrived {
    pub node: NodeId,
    pub life: Incarnation,
    /// The number by which it is answered.
    pub id: u64,
    pub name: String,
    pub with: Vec<u8>,
}

/// Offers that are not accepted yet, and the threads that wait for one.
#[derive(Default)]
pub(crate) struct Offers {
    arrived: VecDeque<Arrived>,
    acceptors: Vec<Arc<Op>>,
}

impl Offers {
    /// Adds an offer and wakes the threads that wait.
    pub fn push(&mut self, offer: Arrived) {
        self.arrived.push_back(offer);
        self.acceptors.drain(..).for_each(|op| op.finish(Outcome::Counted));
    }

    /// The oldest offer, or an operation that ends when the next one arrives.
    pub fn take(&mut self) -> Result<Arrived, Arc<Op>> {
        self.arrived.pop_front().ok_or_else(|| {
            let op = Op::new();
            self.acceptors.retain(|op| Arc::strong_count(op) > 1);
            self.acceptors.push(op.clone());
            op
        })
    }

    /// Drops the offers of an incarnation that is gone.
    pub fn forget(&mut self, node: NodeId, life: Incarnation) {
        self.arrived.retain(|offer| (offer.node, offer.life) != (node, life));
    }

    /// Fails all waits and drops all offers.
    pub fn end(&mut self, error: impl Fn() -> Error) {
        self.acceptors.drain(..).for_each(|op| op.finish(Outcome::Failed(error())));
        self.arrived.clear();
    }
}
