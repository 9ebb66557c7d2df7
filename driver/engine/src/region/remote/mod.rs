//! Puts, gets and updates between nodes that share no memory. The origin's engine sends a request. The target's engine stores
//! or reads the bytes, or updates the cell, in place.
//!
//! 1. A put is a request with the key. A short put carries its bytes in the request; the bytes of a long one follow in pieces.
//!    One answer says that they are in place, or what is wrong with the key.
//! 2. The target may fetch the bytes of a put, if the origin has no DMA engine or requests it. The request then says where the
//!    bytes lie. The two nodes share memory in this case.
//! 3. A get is a request. The bytes come back in pieces, and the last piece ends the get; or an answer says what is wrong with
//!    the key.
//! 4. An update is a request with the operator and operand. The answer is the old value, or that the update took place, or what
//!    is wrong. The target does the update exactly once, when the packet comes: a session delivers a packet once, and the lane
//!    keeps a refused packet.
//!
//! On one link, the pieces of a put are not mixed with those of another put of the same priority. Over several links the pieces
//! may alternate, so each carries the number of its put. A long put has low priority, so that it delays nothing else. These
//! operations are not ordered with messages: a put has ended when its call returns.
//!
//! The target trusts nothing. It checks the key as an origin does over shared memory, and keeps at most `UNANSWERED_MAX`
//! answers for one node. It refuses more requests, and the lane keeps them. No Doorbell node sends so many requests at once.

mod asked;
mod begin;
mod served;
mod service;
mod update;
mod wire;

pub(crate) use begin::AccessBy;
pub use update::{UPDATE_BYTES, Update, Updates};
pub use wire::Request;

use crate::error::Error;
use crate::memory::table::RegionTable;
use crate::sync::op::Op;
use crate::transfer::memory::Local;
use asked::{Ask, Asked};
use doorbell_fabric::{Incarnation, NodeId, Payload, Priority, Verdict};
use doorbell_shm::domain::Membership;
use served::{Served, UNANSWERED_MAX};
use std::collections::VecDeque;
use std::sync::Arc;
use wire::{Step, Word};

/// Longer operations have low priority.
const URGENT_BYTES: usize = 16 << 10;

/// The priority of an operation with this many bytes.
pub fn priority_of(bytes: usize) -> Priority {
    if bytes <= URGENT_BYTES { Priority::High } else { Priority::Low }
}

/// Pending puts, gets and updates: this node's own, and those of other nodes to its regions.
pub struct Remote {
    asked: Asked,
    served: Served,
    /// This node's memory.
    local: Local,
    /// The buffer in which packets are put together.
    room: Vec<u8>,
}

impl Remote {
    /// An empty table for this incarnation of a node with these regions.
    pub(crate) fn new(membership: &Arc<Membership>, regions: Arc<RegionTable>) -> Self {
        let served = Served::new(regions.clone(), membership.incarnation());
        Self { asked: Asked::default(), served, local: Local::new(membership.clone(), regions), room: Vec::new() }
    }

    /// Sets how this node does updates.
    pub fn do_updates(&mut self, updates: Updates) {
        self.served.updates = Some(updates);
    }

    /// Whether anything is to be sent.
    #[inline(always)]
    pub fn has_work(&self) -> bool {
        !(self.asked.waiting.is_empty() && self.served.answers.is_empty() && self.served.pulls.is_empty())
    }

    /// Whether no answer is expected.
    pub fn is_idle(&self) -> bool {
        self.asked.sent.is_empty()
    }

    /// Whether a node has as many pending requests as it keeps.
    pub fn is_full(&self, node: NodeId) -> bool {
        self.asked.has(UNANSWERED_MAX, node)
    }

    /// Adds a put, get or update of this node.
    pub fn ask(&mut self, ask: Ask) {
        self.asked.push(ask);
    }

    /// The operations of this node with packets to send.
    pub fn waiting(&mut self) -> &mut VecDeque<Ask> {
        &mut self.asked.waiting
    }

    /// Withdraws a put, get or update. After this call its bytes are not touched. True if nothing of it was sent.
    pub fn remove(&mut self, op: &Arc<Op>) -> bool {
        self.asked.remove(op)
    }

    /// Handles a packet that came on a lane from this incarnation of a node.
    #[cold]
    pub fn take(&mut self, lane: usize, incarnation: Incarnation, tag: u64, payload: Payload<'_>) -> Verdict {
        let Some(word) = Word::from_tag(tag) else { return Verdict::Broken("a packet of a put, get or update of unknown kind") };
        match word.step {
            Step::Put => self.served.ask(lane, incarnation, word.id, true, payload),
            Step::Get => self.served.ask(lane, incarnation, word.id, false, payload),
            Step::Pull => self.served.pull(lane, incarnation, word.id, payload),
            Step::More => self.served.more(lane, word.id, payload),
            Step::Update => self.served.update(lane, incarnation, word.id, payload),
            Step::Got | Step::Old | Step::Done(_) => self.asked.answer(lane, word, payload),
        }
    }

    /// Ends all operations with an incarnation of a node.
    pub fn fail(&mut self, node: NodeId, incarnation: Incarnation, error: impl Fn() -> Error) {
        self.asked.fail(|ask| ask.node() == node && ask.incarnation == incarnation, error);
        self.served.forget(node, incarnation);
    }

    /// Ends all operations.
    pub fn end(&mut self, error: impl Fn() -> Error) {
        self.asked.fail(|_| true, error);
        self.served.clear();
    }
}

#[cfg(test)]
mod tests;
