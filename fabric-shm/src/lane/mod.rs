//! The lane: a single-producer, single-consumer ring of packets in shared memory.
//!
//! A lane has **cells** of one cache line and a **data ring**. A packet takes one cell. A payload that does not fit into the cell
//! goes to the data ring, in one piece. The producer publishes a packet by the cell's first word, with release. That word carries the
//! position of the packet, so the consumer never mistakes leftovers of an earlier lap for a new packet. Payload bytes never lie
//! where the consumer expects a first word, unless the producer has written zero there since.
//!
//! ```text
//! cell   | 0 position, kind, length | 8 tag | 16 sequence, time stamp | 24 payload (40 bytes), or place and total |
//! ```
//!
//! The cost of one small message, from publishing to being seen: the polled line moves to the producer and back. No other shared
//! line is written. The consumer publishes its progress about once a quarter lap, in a small ring once half a lap, and where the producer
//! asks for it.
//!
//! One packet in 64, and at most one a millisecond, carries the time of its publication. The consumer computes the latency for the board.
//!
//! A lane begins with a small ring. When a packet finds no room there, the producer blanks a larger ring, writes a packet *moved*
//! into the small one, and goes on in the larger ring. The consumer follows when it reads that packet. Positions go on.
//!
//! Where the producer uses a few KiB again and again (`ways.rs`), it writes a payload of some KiB in pieces. It *opens* the packet after
//! the first piece: the cell's first word then has a position and a length, but no kind, so there is no packet yet. Another word counts
//! the pieces that are written. A waiting consumer may copy them while the producer writes the next piece; the message arrives only with
//! the packet.
//!
//! Several short messages that one call sends share a packet: a *bundle* (`bundle.rs`). Short messages of one
//! tag that follow each other share cells: a *run* (`run.rs`).
//!
//! The producer chooses where a payload lies in the data ring (`ring.rs`), how it writes it (`ways.rs`), and in which
//! pieces (`pieces.rs`).
//!
//! A producer that dies at any instruction has either published its packet or not. Unpublished bytes are never a message. It
//! trusts nothing in a lane: it copies a cell's words once, checks the copy, and uses that.

mod bulk;
mod bundle;
mod consumer;
mod conversation;
mod memory;
mod pieces;
mod producer;
mod ring;
mod run;
mod ways;

pub use bulk::{BULK_BYTES, BULK_LEAST, BulkMemory};
#[cfg(not(loom))]
pub(crate) use bundle::MESSAGE_MOST as SERIES_BYTES;
#[cfg(not(loom))]
pub use consumer::SeriesEnd;
pub use consumer::{Consumer, FirstWord, Opened, Peek, Place, Seen};
#[cfg(not(loom))]
pub use memory::RawMemory;
pub use memory::{Control, LaneMemory};
pub use producer::{Chunks, Outstanding, Producer, Series, packet_bytes};

/// The longest payload that fits into a cell.
pub const INLINE_BYTES: usize = 40;

/// Words of a cell, by index.
#[cfg_attr(loom, allow(dead_code))]
pub(crate) mod word {
    pub const CHECK: usize = 0;
    pub const TAG: usize = 1;
    pub const SEQUENCE: usize = 2;
    pub const PAYLOAD: usize = 3;
    pub const PLACE: usize = 3;
    pub const TOTAL: usize = 4;
    /// Of a packet in pieces, the bytes of one.
    pub const PIECE: usize = 4;
    /// Of a bundle, the length of each message plus one. 0: each message states its own.
    pub const LENGTH: usize = 4;
    /// The number of pieces that are written.
    pub const WRITTEN: usize = 5;
    pub const COUNT: usize = 8;
}

/// The first word of a cell: position in bits 0 to 31, kind in 32 to 39, length in 40 to 63. Never zero: a packet has a kind,
/// and an opened one a length.
#[inline(always)]
pub(crate) fn check_word(position: u64, kind: u8, len: usize) -> u64 {
    position as u32 as u64 | (kind as u64) << 32 | (len as u64) << 40
}

/// The kind, in the first word of a cell, of the packet behind which the producer uses the larger ring. No [`PacketKind`] has this
/// number.
///
/// [`PacketKind`]: doorbell_fabric::PacketKind
pub(crate) const MOVED: u8 = 0xff;

/// The kind of a packet of several messages, likewise. Its first word has the length of all, and the upper half of its third word their
/// number.
pub(crate) const BUNDLE: u8 = 0xfe;

/// The kind of a message that lies behind another in its cell: see `run.rs`. Its first word is not the cell's.
pub(crate) const APPENDED: u8 = 0xfd;

/// The kind of a message that continues a run in the next cell. If it is too long for the cell, its payload lies in the data ring.
pub(crate) const CONTINUED: u8 = 0xfc;

/// The kind of a packet that its producer has opened: not a packet yet.
pub(crate) const OPENED: u8 = 0;

/// The shortest payload that is written in pieces. For a shorter one, the additional journeys of the cell cost more than the
/// overlap saves.
pub const PIECES_LEAST: usize = if cfg!(loom) { 192 } else { 4 << 10 };

/// The length of a piece: long enough that the journeys of the cell, one for each piece, take a small part of the time. A payload that would
/// have more than 64 pieces has longer ones.
pub(crate) const PIECE_LEAST: usize = if cfg!(loom) { 64 } else { 2 << 10 };

/// One in this many packets of a lane may carry a time stamp. A power of two.
pub(crate) const STAMP_EVERY: u64 = 64;

/// The least time between two time stamps of a lane, in nanoseconds. A message with a stamp takes a longer way, and where messages
/// follow each other quickly, one in a hundred would be noticed.
pub(crate) const STAMP_NS: u64 = 1_000_000;

/// Whether packets carry time stamps. Loom has no clock, and under Miri time has no meaning.
pub(crate) const STAMPED: bool = cfg!(not(any(loom, miri)));

/// Nanoseconds since a packet was stamped, up to two seconds. `None` for older stamps and for stamps of another clock. It cannot
/// recognise stamps older than four seconds.
#[cfg(not(loom))]
#[cold]
#[inline(never)]
pub(crate) fn age(stamp: u32) -> Option<u32> {
    let age = (crate::clock::now_ns() as u32).wrapping_sub(stamp);
    (age <= i32::MAX as u32).then_some(age)
}

/// The bytes that a payload occupies in the data ring: whole cache lines.
#[inline(always)]
pub(crate) fn data_room(len: usize) -> u64 {
    (len as u64 + 63) & !63
}

/// Marks a place whose reading the consumer reports at once. Places are multiples of a line, so the bit is free.
pub(crate) const REPORTED: u64 = 2;

/// Marks a place in the bulk ring whose payload was [streamed](doorbell_fabric::copies::Copying::Streamed): its lines come from memory, not
/// from a cache.
pub(crate) const STREAMED: u64 = 4;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
