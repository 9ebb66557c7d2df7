//! A long message that a transfer is to move.

use crate::mode::ModeRequest;
use crate::sync::op::Op;
use std::sync::Arc;

/// The result of an attempt to begin.
pub enum Begun {
    /// The transfer has begun, and will end its op.
    Yes,
    /// There is no room in the lane for the RTS.
    Full,
    /// Too many transfers to this node are pending: the message goes through the lane.
    NoSlot,
    /// The lane can't be used.
    Down,
}

/// A message that a transfer is to move from both ends.
pub struct Order<'a> {
    /// The message's tag.
    pub tag: u64,
    /// The message's bytes, with the guarantees of [`SendOp::new`](crate::message::outbound::SendOp::new).
    pub bytes: *const u8,
    /// The number of bytes.
    pub len: usize,
    /// Completed when the send ends.
    pub op: &'a Arc<Op>,
    /// The requested mode, if any.
    pub asks: Option<ModeRequest>,
    /// Whether the sender waits as long as necessary. If not, the message goes at once as a whole, or not at all.
    pub waits: bool,
}
