//! A posted receive.

use super::lending::Lent;
use super::matching::Match;
use crate::error::Error;
use crate::sync::op::{Op, Outcome};
use doorbell_fabric::{Envelope, Message, Payload};
use std::sync::Arc;

/// The holder of the buffer of a receive. It decides how an origin may put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The caller, which may get it back at any time: an origin puts elsewhere.
    Caller,
    /// A call that returns when the receive has ended and the origin has let go of the buffer.
    Call,
    /// An operation, which leaves the buffer to the engine if the origin does not let go of it in time.
    Operation,
}

/// A posted receive: the destination of a message.
pub struct RecvOp {
    /// The messages it accepts.
    pub accepts: Match,
    /// The address of the buffer.
    pub ptr: *mut u8,
    /// The length of the buffer in bytes.
    pub capacity: usize,
    /// The holder of the buffer.
    pub holder: Holder,
    /// Its place among the receives of this node.
    pub number: u64,
    /// Completed when the receive ends.
    pub op: Arc<Op>,
}

// SAFETY: the maker of the RecvOp keeps the buffer writable and untouched until its op ended or was removed (RecvOp::new).
unsafe impl Send for RecvOp {}

impl RecvOp {
    /// A receive into a buffer.
    ///
    /// # Safety
    /// The buffer stays valid, and no other code touches it, until `op` is done or
    /// [`Engine::unpost`](crate::turn::Engine::unpost) returned true for it. If the op ends with
    /// [`Error::BufferKept`], until the engine drops the owner of the buffer, which it gets by
    /// [`Engine::keep`](crate::turn::Engine::keep).
    pub unsafe fn new(accepts: Match, ptr: *mut u8, capacity: usize, op: Arc<Op>) -> Self {
        Self { accepts, ptr, capacity, holder: Holder::Caller, number: 0, op }
    }
}

impl RecvOp {
    /// Ends it with a whole message.
    pub fn complete(self, envelope: Envelope, payload: Payload<'_>) {
        self.op.finish(self.take(envelope, payload));
    }

    /// Ends it with a lent message.
    pub fn complete_loan(self, envelope: Envelope, lent: &Lent) {
        let outcome = self.take(envelope, lent.payload());
        // Checked after the copy: only a read finds out.
        let is_cut = lent.is_cut();
        self.op.finish(if is_cut { Outcome::Failed(Error::Damaged { node: envelope.source }) } else { outcome });
    }

    fn take(&self, envelope: Envelope, payload: Payload<'_>) -> Outcome {
        if payload.len() > self.capacity {
            return Outcome::Truncated(Box::new(Message { envelope, bytes: payload.to_vec() }));
        }
        self.write(0, payload);
        self.op.moved(payload.len() as u64);
        Outcome::Received(envelope)
    }

    /// The buffer.
    pub fn buffer(&mut self) -> &mut [u8] {
        // SAFETY: valid and exclusive until the receive ends (RecvOp::new).
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.capacity) }
    }

    /// Copies a piece to its place. The caller checked that it ends within the capacity.
    pub fn write(&self, at: usize, payload: Payload<'_>) {
        debug_assert!(at + payload.len() <= self.capacity);
        // SAFETY: inside the buffer (checked by the caller), which is valid and exclusive (RecvOp::new).
        payload.copy_to(unsafe { std::slice::from_raw_parts_mut(self.ptr.add(at), payload.len()) });
    }
}
