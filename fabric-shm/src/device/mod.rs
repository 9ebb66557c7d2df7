//! A device: a reception FIFO that the threads of several processes share.
//!
//! A message is one header packet, which names the thread it is for, and data packets that follow it without packets of other
//! messages in between. Each sender has a lane of its own in the device, and a message is visible once it is complete. So a
//! sender that dies in the middle of a message blocks no other. A receiver takes the device's lock. It looks in the shared
//! storage for headers that other threads put there for it, and then at the next headers in the lanes ([`Held`]).
//!
//! ```text
//! device | header, geometry | root: lock, names, counts | a slot for each thread | words of each lane | rings |
//! ring   | header packet 64 | data packets … | header packet | …
//! packet | stamp | thread, bytes | tag | source | 32 bytes, if there are no more |
//! ```
//!
//! **After a death.** Everything under the lock is changed in an order from which the next owner can tell what was done. A
//! message is taken when its stamp is cleared. Stored headers are found again by walking a lane from where it is read to where
//! it was scanned.
//!
//! **Trust.** Any process that may attach or send can write anything here. It can lose messages of this device, and delay
//! waiting threads up to their deadlines. Every index and length is checked before it is used, and every walk is bounded.

mod cleaning;
#[cfg(not(loom))]
mod facts;
mod held;
mod lane;
#[cfg(all(test, loom))]
mod loom_tests;
mod processes;
mod receivers;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(not(loom))]
mod who;
mod words;

pub use cleaning::Dead;
#[cfg(not(loom))]
pub use facts::{DeviceFacts, LaneFacts, ThreadFacts};
#[cfg(not(loom))]
pub(crate) use facts::{facts, head_bytes_most};
pub use held::{Counts, Held, Moved, Received};
pub use lane::{Client, NoWrite, Writer};
#[cfg(not(loom))]
pub use who::{has_ended, has_no_thread, this_thread};
pub(crate) use words::LAYOUT;
pub use words::{Header, LaneWords, Line, Place, Root, Slot, View, lines};

/// The most threads that a device may serve, and the most lanes.
pub const MOST: usize = if cfg!(loom) { 2 } else { 64 };
/// The most headers that can wait for one thread.
pub const STORED_MOST: usize = if cfg!(loom) { 4 } else { 64 };
/// The length of a packet, in bytes.
pub const PACKET: usize = 64;
/// How many bytes of a message fit in the header packet itself.
pub const INLINE: usize = 32;

/// The size of a device. The process that creates the device decides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceGeometry {
    /// How many threads can receive: 1 to 64.
    pub threads: usize,
    /// How many lanes there are, one for each sender: 1 to 64.
    pub senders: usize,
    /// The length of each lane's ring, in bytes: a power of two from 4 KiB to 1 GiB.
    pub lane_bytes: usize,
}

impl Default for DeviceGeometry {
    fn default() -> Self {
        Self { threads: 16, senders: 8, lane_bytes: 512 * 1024 }
    }
}

impl DeviceGeometry {
    /// The longest message, in bytes. Two of them fit in a lane.
    pub fn message_max(&self) -> usize {
        self.lane_bytes / 2 - 2 * PACKET
    }

    /// The length of a lane for messages of up to `message` bytes.
    pub fn lane_bytes_for(message: usize) -> usize {
        message.saturating_add(2 * PACKET).saturating_mul(2).checked_next_power_of_two().unwrap_or(usize::MAX).max(4096)
    }

    /// Checks the limits. The error says what is wrong.
    pub fn validate(&self) -> Result<(), &'static str> {
        if !(1..=MOST).contains(&self.threads) {
            return Err("a device serves 1 to 64 threads");
        }
        if !(1..=MOST).contains(&self.senders) {
            return Err("a device has lanes for 1 to 64 senders");
        }
        if !self.lane_bytes.is_power_of_two() || !(4096..=1 << 30).contains(&self.lane_bytes) {
            return Err("the length of a device's lane is a power of two from 4 KiB to 1 GiB; messages have up to half of that");
        }
        Ok(())
    }
}
