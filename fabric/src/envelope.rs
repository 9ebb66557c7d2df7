//! The description that travels with a message.

use crate::id::{Incarnation, NodeId, Priority};

/// A message in private memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The description of the message.
    pub envelope: Envelope,
    /// The payload.
    pub bytes: Vec<u8>,
}

/// Source, tag, length and sequence number of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The node that sent it.
    pub source: NodeId,
    /// The incarnation of that node.
    pub incarnation: Incarnation,
    /// The number that the sender gave it for matching. Any value is allowed.
    pub tag: u64,
    /// Length of the whole message in bytes.
    pub len: usize,
    /// Its position among the messages of this pair of nodes and this priority. It counts from 0 and wraps.
    pub sequence: u32,
    /// The priority of the lane that carried it.
    pub priority: Priority,
}
