//! The lane: a single-producer, single-consumer ring of packets in shared memory.
//!
//! A lane has **cells** of one cache line and a **data ring**. A packet takes one cell; what does not fit into the cell goes
//! to the data ring, in one piece. The cell's first word is written last, with release: it carries the position of
//! the packet, so that what an earlier lap left in the cell is never taken for news. Payload bytes never lie where a first
//! word is expected.
//!
//! ```text
//! cell   | 0 position, kind, length | 8 tag | 16 sequence, time stamp | 24 payload (40 bytes), or place and total |
//! ```
//!
//! Cost of one small message, from publish to seen: the consumer's polled line moves to the producer and back; nothing
//! else that is shared is written. The consumer publishes how far it has read once a quarter lap.
//!
//! Every 64th packet bears the time at which it was published; the consumer finds out how long it took, for the board.
//!
//! A producer that dies at any instruction has either published its packet or not; what it wrote without publishing is
//! never seen. The consumer trusts nothing in a lane: it copies a cell's words once, checks the copy, and uses that.

mod bulk;
mod consumer;
mod memory;
mod producer;

pub use bulk::{BULK_BYTES, BULK_LEAST, BulkMemory};
pub use consumer::{Consumer, FirstWord, Peek, Place, Seen};
#[cfg(not(loom))]
pub use memory::RawMemory;
pub use memory::{Control, LaneMemory};
pub use producer::{Outstanding, Producer};

#[cfg(loom)]
pub use memory::LoomMemory;

/// Payload bytes that fit into a cell.
pub const INLINE_BYTES: usize = 40;

/// Words of a cell, by index.
pub(crate) mod word {
    pub const CHECK: usize = 0;
    pub const TAG: usize = 1;
    pub const SEQUENCE: usize = 2;
    pub const PAYLOAD: usize = 3;
    pub const PLACE: usize = 3;
    pub const TOTAL: usize = 4;
    pub const COUNT: usize = 8;
}

/// The first word of a cell: position in bits 0 to 31, kind in 32 to 39, length in 40 to 63. Never zero, as no kind is.
#[inline(always)]
pub(crate) fn check_word(position: u64, kind: u8, len: usize) -> u64 {
    position as u32 as u64 | (kind as u64) << 32 | (len as u64) << 40
}

/// Of so many packets of a lane one bears a time stamp: a power of two.
pub(crate) const STAMP_EVERY: u64 = 64;

/// Whether packets bear time stamps: loom has no clock, and under Miri time means nothing.
pub(crate) const STAMPED: bool = cfg!(not(any(loom, miri)));

/// The time, as a packet bears it: never zero, which stands for none.
#[cold]
#[inline(never)]
pub(crate) fn stamp() -> u32 {
    (crate::clock::now_ns() as u32).max(1)
}

/// Nanoseconds since a packet was stamped, up to two seconds; `None` for stamps that are older or not of this clock. Of stamps
/// older than four seconds it cannot tell.
#[cfg(not(loom))]
#[cold]
#[inline(never)]
pub(crate) fn age(stamp: u32) -> Option<u32> {
    let age = (crate::clock::now_ns() as u32).wrapping_sub(stamp);
    (age <= i32::MAX as u32).then_some(age)
}

/// Bytes that a payload takes in the data ring: whole cache lines.
#[inline(always)]
pub(crate) fn data_room(len: usize) -> u64 {
    (len as u64 + 63) & !63
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
