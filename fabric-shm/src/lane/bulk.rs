//! The bulk ring: a second data ring of a lane, in memory that belongs to its producer.
//!
//! A node has lanes from many others, so a lane's own data ring is small, and a small ring is slow for long messages.
//! Between processors that share a cache, its lines move from one core's private cache to the other's, which takes longer than
//! from the shared cache. Between other processors, every written line is still held by the other side. So a sender of long
//! messages creates a larger ring, offers it with a control word of the lane, and uses it once the consumer has mapped it
//! read-only.
//!
//! Positions and rules are those of the data ring. The lowest bit of a cell's place tells the two rings apart.

use super::data_room;
use doorbell_fabric::LinkDown;

/// The shortest payload that goes to the bulk ring.
pub const BULK_LEAST: usize = 8 << 10;
/// The consumer reports its progress at least once for this many bytes.
const TOLD_WITHIN: u64 = 256 << 10;
/// The allowed lengths of a bulk ring. The length is a power of two.
pub const BULK_BYTES: std::ops::RangeInclusive<usize> = 64 << 10..=1 << 30;
/// Marks a place in the bulk ring. Places are multiples of a line, so the bit is free.
pub(super) const IN_BULK: u64 = 1;

/// The memory of a bulk ring.
#[derive(Clone, Copy, Debug)]
pub struct BulkMemory {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: accessed by copies in the order of the lane protocol; the caller of `new` keeps it mapped.
unsafe impl Send for BulkMemory {}

impl BulkMemory {
    /// Returns `None` if a ring cannot have this length.
    ///
    /// # Safety
    /// `bytes` bytes are mapped at `start` as long as this value or a copy is used. At the producer's end they are writable.
    pub unsafe fn new(start: *mut u8, bytes: usize) -> Option<Self> {
        (bytes.is_power_of_two() && BULK_BYTES.contains(&bytes)).then_some(Self { start, bytes })
    }

    /// The number of bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// The address of a position.
    #[inline(always)]
    pub(super) fn at(&self, position: u64) -> *mut u8 {
        self.start.wrapping_add((position & (self.bytes as u64 - 1)) as usize)
    }
}

/// The producer's side of a ring of bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filled {
    pub bytes: u64,
    /// Position of the next byte.
    pub tail: u64,
    /// The consumer's position when last read.
    pub head_seen: u64,
}

impl Filled {
    pub fn new(bytes: usize) -> Self {
        Self { bytes: bytes as u64, tail: 0, head_seen: 0 }
    }

    /// The place of the next `len` bytes: at the tail, or at the ring's start if they would not fit in one piece. `None` if there
    /// is no known room.
    #[inline(always)]
    pub fn place(&self, len: usize) -> Option<u64> {
        let offset = self.tail & (self.bytes - 1);
        let place = if offset + len as u64 <= self.bytes { self.tail } else { self.tail + (self.bytes - offset) };
        (place + data_room(len) - self.head_seen <= self.bytes).then_some(place)
    }

    /// Whether `len` bytes fit, in packets of `packet` bytes.
    pub fn fits(&self, len: usize, packet: usize) -> bool {
        self.tail - self.head_seen + data_room(len) + packet as u64 <= self.bytes
    }

    /// Whether the ring accepts payloads of this length: at most a quarter of the ring. Then one payload, the waste at the ring's
    /// end, and the bytes that were read but not yet reported always fit together.
    #[inline(always)]
    pub fn takes(&self, len: usize) -> bool {
        len >= BULK_LEAST && len as u64 <= self.bytes / 4
    }

    /// Takes the consumer's reported position. It is compared as a distance, so a forged word looks like a full or an empty ring
    /// at worst, or is detected.
    pub fn see(&mut self, head: u64) -> Result<(), LinkDown> {
        if head.wrapping_sub(self.head_seen) > self.tail - self.head_seen {
            return Err(LinkDown::Damaged);
        }
        self.head_seen = head;
        Ok(())
    }
}

/// The consumer's side of a ring of bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drained {
    pub bytes: u64,
    /// Position of the next byte.
    pub head: u64,
    /// The position that was last reported to the producer.
    pub told: u64,
}

impl Drained {
    pub fn new(bytes: usize) -> Self {
        Self { bytes: bytes as u64, head: 0, told: 0 }
    }

    /// Whether `len` bytes at a place, which another process wrote, lie in the ring in one piece.
    #[inline(always)]
    pub fn holds(&self, place: u64, len: usize) -> bool {
        let (ahead, offset) = (place.wrapping_sub(self.head), place & (self.bytes - 1));
        place.is_multiple_of(64)
            && ahead <= self.bytes
            && ahead + data_room(len) <= self.bytes
            && offset + len as u64 <= self.bytes
    }

    /// Records that `len` bytes at `place` were read. Returns whether to report that to the producer, at least once a quarter
    /// lap.
    #[inline(always)]
    pub fn take(&mut self, place: u64, len: usize) -> bool {
        self.head = place + data_room(len);
        self.head - self.told >= (self.bytes / 4).min(TOLD_WITHIN)
    }
}
