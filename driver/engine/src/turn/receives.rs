//! Posting and withdrawing receives, and the messages that wait for them in the pool.

use super::Engine;
use crate::error::Error;
use crate::message::inbound::Into;
use crate::message::pool::{Entry, Pooled};
use crate::message::receive::RecvOp;
use crate::message::{Match, Message};
use crate::sync::op::{Op, Outcome};
use crate::transfer::incoming::Incoming;
use crate::transfer::kept::Keepsake;
use doorbell_fabric::Payload;
use std::sync::Arc;

/// What became of a receive that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// It is over: the pool had its message, or there can be none.
    Over,
    /// Its message may come next, or is coming.
    Next,
    /// Others wait before it.
    Behind,
}

impl Engine {
    /// Takes the first pooled message that a receive accepts. If other messages had been refused for lack of room, the thread
    /// that sleeps on the bell looks again.
    pub fn take_pooled(&mut self, accepts: &Match) -> Option<Pooled> {
        let pooled = self.inbound.pool.take(accepts)?;
        self.inbound.turned_away = false;
        self.look_again();
        Some(pooled)
    }

    /// Has packets taken that were refused for lack of room.
    pub fn look_again(&mut self) {
        if self.fabric.refusing() {
            self.fabric.bell().wake();
        }
    }

    /// The same, but only if the message is complete.
    pub fn take_whole(&mut self, accepts: &Match) -> Option<Pooled> {
        if self.has_whole(accepts) { self.take_pooled(accepts) } else { None }
    }

    /// Whether the first pooled message that a receive accepts is complete.
    pub fn has_whole(&self, accepts: &Match) -> bool {
        self.inbound.pool.find(accepts).is_some_and(Entry::is_whole)
    }

    /// Gives a message that is still coming to a receive.
    pub fn attach(&mut self, id: u64, receive: RecvOp) {
        let receive = self.inbound.number(receive);
        self.inbound.attach(id, receive);
    }

    /// Nudges `op` when a message that `accepts` accepts comes into the pool.
    pub fn watch(&mut self, accepts: Match, op: Arc<Op>) {
        self.inbound.watchers.push((accepts, op));
    }

    /// Undoes [`watch`](Self::watch).
    pub fn unwatch(&mut self, op: &Arc<Op>) {
        self.inbound.watchers.retain(|(_, other)| !Arc::ptr_eq(other, op));
    }

    /// Whether this node refuses messages because its pool is full, or has refused some since the application last received
    /// one. The sender of a refused message may have given up meanwhile.
    pub fn is_refusing(&self) -> bool {
        self.fabric.refusing() || self.inbound.turned_away
    }

    /// Posts a receive behind those posted before, after looking into the pool.
    pub fn post(&mut self, receive: RecvOp) -> Posted {
        // A receive that takes an incomplete message gets a number, too, because that message may be given up.
        let receive = self.inbound.number(receive);
        match self.take_pooled(&receive.accepts) {
            Some(Pooled::Whole(message)) => {
                receive.complete(message.envelope, Payload::private(&message.bytes));
                return Posted::Over;
            }
            Some(Pooled::Lent(envelope, lent)) => {
                receive.complete_loan(envelope, &lent);
                return Posted::Over;
            }
            Some(Pooled::Coming(id)) => {
                self.inbound.attach(id, receive);
                return Posted::Next;
            }
            None => {}
        }
        if let Some(error) = self.never(&receive.accepts) {
            receive.op.finish(Outcome::Failed(error));
            return Posted::Over;
        }
        self.inbound.posted.push_back(receive);
        if self.inbound.posted.len() == 1 { Posted::Next } else { Posted::Behind }
    }

    /// Removes posted receives that were cancelled from within recv_with.
    pub fn forget_cancelled(&mut self) {
        self.inbound.forget_cancelled();
    }

    /// Returns a message that its receiver dropped: the next receive gets it.
    pub fn give_back(&mut self, message: Message) {
        match self.inbound.posted_for(&message.envelope) {
            Some(receive) => receive.complete(message.envelope, Payload::private(&message.bytes)),
            None => {
                self.inbound.notify_probe(&message.envelope);
                self.inbound.pool.put_back(message);
            }
        }
    }

    /// Gives the message that a receive would get storage in which both ends can copy it, if they asked to.
    pub fn stage(&mut self, accepts: &Match) {
        self.inbound.stage(accepts);
    }

    /// Takes over the owner of a buffer, when its receive has ended with [`Error::BufferKept`].
    pub fn keep(&mut self, op: &Arc<Op>, owner: Keepsake) {
        self.inbound.keep(op, owner);
    }

    /// Withdraws a posted receive. True if it was pending: then its buffer is not touched any more, unless its op has ended with
    /// [`Error::BufferKept`].
    pub fn unpost(&mut self, op: &Arc<Op>) -> bool {
        if let Some(at) = self.inbound.posted.iter().position(|receive| Arc::ptr_eq(&receive.op, op)) {
            self.inbound.posted.remove(at);
            return true;
        }
        if self.inbound.detach(op) {
            return true;
        }
        for assembly in &mut self.inbound.assemblies {
            let Some(active) = &mut assembly.active else { continue };
            let kept = match &mut active.into {
                Into::Buffer(receive) if Arc::ptr_eq(&receive.op, op) => {
                    let mut bytes = vec![0; active.received];
                    // SAFETY: the buffer is valid until this returns (RecvOp::new), and holds `received` bytes.
                    unsafe { std::ptr::copy_nonoverlapping(receive.ptr, bytes.as_mut_ptr(), active.received) };
                    bytes
                }
                Into::TooLong(receive, bytes) if Arc::ptr_eq(&receive.op, op) => std::mem::take(bytes),
                _ => continue,
            };
            // The rest of it is still coming, so it continues into the pool, beyond the limit if need be: nothing is lost.
            if matches!(active.into, Into::Buffer(_)) {
                self.inbound.pool.reserve_anyway(active.envelope.len);
            }
            active.into = Into::Pool(kept);
            return true;
        }
        false
    }

    /// The bytes that have come of the message that a receive has taken.
    pub fn arrived(&self, op: &Arc<Op>) -> u64 {
        let is_its = |receive: &RecvOp| Arc::ptr_eq(&receive.op, op);
        let in_parts = self.inbound.assemblies.iter().filter_map(|assembly| assembly.active.as_ref());
        let mut in_parts = in_parts.filter(|active| matches!(&active.into, Into::Buffer(r) | Into::TooLong(r, _) if is_its(r)));
        let transfer = self.inbound.incoming.iter().find(|incoming| incoming.receive().is_some_and(is_its));
        in_parts.next().map_or(0, |active| active.received as u64) + transfer.map_or(0, Incoming::moved)
    }

    pub(super) fn fail_posted(&mut self, error: impl Fn(&RecvOp) -> Option<Error>) {
        self.inbound.posted.retain(|receive| match error(receive) {
            Some(error) => {
                receive.op.finish(Outcome::Failed(error));
                false
            }
            None => true,
        });
    }
}
