//! What a message says of itself, and what a device counts.

use doorbell_fabric::{Incarnation, NodeId};
use doorbell_shm::device::Counts;

/// What all processes counted on a device since it was created.
pub type DeviceCounts = Counts;

/// The description of a message that was received from a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceEnvelope {
    /// The sending node, as the sender states it.
    pub source: NodeId,
    /// The incarnation of that node, as the sender states it.
    pub incarnation: Incarnation,
    /// The thread id that the message was sent to.
    pub thread: u32,
    /// The sender's tag.
    pub tag: u64,
    /// The length of the message, in bytes.
    pub len: usize,
    /// The device's lane that it came by.
    pub(super) lane: usize,
}

impl DeviceEnvelope {
    /// The device's lane that the message came by. Each sender has a lane of its own. When a sender is gone, another one may
    /// get its lane.
    pub fn lane(&self) -> usize {
        self.lane
    }
}

/// A message: thread id, tag, and its bytes in several pieces.
pub(super) type Parts<'a> = (u32, u64, &'a [&'a [u8]]);

/// The length of a message that lies in several pieces.
pub(super) fn length(parts: &[&[u8]]) -> usize {
    parts.iter().map(|part| part.len()).fold(0, usize::saturating_add)
}
