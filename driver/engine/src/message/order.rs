//! A long message that a transfer is asked to move.

use crate::mode::ModeRequest;
use crate::sync::op::Op;
use std::sync::Arc;

/// What became of an attempt to begin.
pub enum Begun {
    /// It is under way, and will end its op.
    Yes,
    /// There is no room in the lane for the RTS.
    Full,
    /// Too many transfers to this node are under way: the message goes through the lane.
    NoSlot,
    /// The lane can't be used.
    Down,
}

/// A message to be moved from both ends.
pub struct Order<'a> {
    /// Its tag.
    pub tag: u64,
    /// Its bytes, as [`SendOp::new`](crate::message::outbound::SendOp::new) asks for them.
    pub bytes: *const u8,
    /// How many.
    pub len: usize,
    /// Where its end is told.
    pub op: &'a Arc<Op>,
    /// What was asked for, if anything was.
    pub asks: Option<ModeRequest>,
    /// Whether its sender waits as long as need be: otherwise it goes at once, as a whole, or not at all.
    pub waits: bool,
}
