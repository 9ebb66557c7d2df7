//! What a message says of itself.

use crate::id::{Incarnation, NodeId, Priority};

/// A message in private memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it says of itself.
    pub envelope: Envelope,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Source, tag, length and place in the order of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The node that sent it.
    pub source: NodeId,
    /// Which life of that node.
    pub incarnation: Incarnation,
    /// The number its sender gave it for matching. Any value is allowed.
    pub tag: u64,
    /// Bytes of the whole message.
    pub len: usize,
    /// Its place among the messages of this pair of nodes and priority, from 0, wrapping.
    pub sequence: u32,
    /// The lane it came by.
    pub priority: Priority,
}
