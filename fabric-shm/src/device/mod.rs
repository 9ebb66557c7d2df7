//! A device: a reception FIFO of its own that the threads of several processes share, after the source "shared network devices".
//!
//! A message is one header packet, which says for which thread it is, and data packets that follow it with none of another message in
//! between. Each sender has a lane of its own in the device, so that one that dies in the middle of a message blocks nobody: a message can
//! be seen once it is whole. Who receives takes the device's lock and looks in the shared storage for headers that others put there for it,
//! then at what is next in the lanes ([`Held`]).
//!
//! ```text
//! device | header, geometry | root: lock, names, counts | a slot for each thread | words of each lane | rings |
//! ring   | header packet 64 | data packets … | header packet | …
//! packet | stamp | thread, bytes | tag | source | 32 bytes, if there are no more |
//! ```
//!
//! **What survives a death.** All that is changed under the lock is changed in an order in which the next owner can tell what was done: a
//! message is taken when its stamp is cleared, and stored headers are found again by walking a lane from where it is read to where it was
//! looked at.
//!
//! **Trust.** Whoever may attach or send may write anything here. It can lose messages of this device and delay who waits, up to the
//! deadline; every index and length is checked before it is used, and every walk is bounded.

#[cfg(not(loom))]
mod facts;
mod held;
mod lane;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(not(loom))]
mod who;
mod words;

#[cfg(not(loom))]
pub use facts::{DeviceFacts, LaneFacts, ThreadFacts};
#[cfg(not(loom))]
pub(crate) use facts::{facts, head_bytes_most};
pub use held::{Counts, Dead, Held, Moved, Received};
pub use lane::{Client, NoWrite, Writer};
#[cfg(not(loom))]
pub use who::{has_ended, has_no_thread, this_thread};
pub(crate) use words::LAYOUT;
pub use words::{Header, LaneWords, Line, Place, Root, Slot, View, lines};

/// Threads that a device may serve, and lanes that it may have.
pub const MOST: usize = if cfg!(loom) { 2 } else { 64 };
/// Headers that wait for one thread.
pub const STORED_MOST: usize = if cfg!(loom) { 4 } else { 64 };
/// Bytes of a packet.
pub const PACKET: usize = 64;
/// Bytes that lie in the header packet of a message that has no more.
pub const INLINE: usize = 32;

/// How large a device is. Fixed by whoever makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceGeometry {
    /// Threads that can receive: 1 to 64.
    pub threads: usize,
    /// Lanes, of which each sender has one: 1 to 64.
    pub senders: usize,
    /// Bytes of the ring of each lane: a power of two from 4 KiB to 1 GiB.
    pub lane_bytes: usize,
}

impl Default for DeviceGeometry {
    fn default() -> Self {
        Self { threads: 16, senders: 8, lane_bytes: 512 * 1024 }
    }
}

impl DeviceGeometry {
    /// The longest message, in bytes: two of them fit a lane.
    pub fn message_max(&self) -> usize {
        self.lane_bytes / 2 - 2 * PACKET
    }

    /// The bytes of a lane that takes messages of so many bytes.
    pub fn lane_bytes_for(message: usize) -> usize {
        message.saturating_add(2 * PACKET).saturating_mul(2).checked_next_power_of_two().unwrap_or(usize::MAX).max(4096)
    }

    /// What is wrong with it.
    pub fn validate(&self) -> Result<(), &'static str> {
        if !(1..=MOST).contains(&self.threads) {
            return Err("a device serves 1 to 64 threads");
        }
        if !(1..=MOST).contains(&self.senders) {
            return Err("a device has lanes for 1 to 64 senders");
        }
        if !self.lane_bytes.is_power_of_two() || !(4096..=1 << 30).contains(&self.lane_bytes) {
            return Err("a lane of a device has a power of two of bytes, from 4 KiB to 1 GiB: messages of up to half of that");
        }
        Ok(())
    }
}
