//! The bulk ring: a second data ring of a lane, in memory of its producer's own.
//!
//! An inbox has lanes for all nodes that may come, so that a lane's own data ring is small; and a small ring is slow for long messages.
//! Between processors that share a cache, its lines go from one core's own cache to the other's, which takes longer than from the cache
//! that they share; between others, each line that is written is one that the other side still holds. So whoever sends long messages makes a
//! larger ring, offers it with a control word of the lane, and uses it once the consumer has mapped it, to be read only.
//!
//! Positions and rules are those of the data ring; the lowest bit of a cell's place says which of the two is meant.

use super::data_room;
use crate::copies::Distance;
use doorbell_fabric::LinkDown;

/// Payloads from this length on go to the bulk ring, if there is one.
pub const BULK_LEAST: usize = 8 << 10;
/// So much of a bulk ring is used between processors that share a cache, which is to hold it.
const NEAR_BYTES: u64 = 2 << 20;
/// The consumer tells how far it has read at least so often.
const TOLD_WITHIN: u64 = 256 << 10;
/// How long a bulk ring may be: a power of two.
pub const BULK_BYTES: std::ops::RangeInclusive<usize> = 64 << 10..=1 << 30;
/// Set in a cell's place if it is one of the bulk ring. Places are multiples of a line.
pub(super) const IN_BULK: u64 = 1;

/// The memory of a bulk ring.
#[derive(Clone, Copy, Debug)]
pub struct BulkMemory {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: reached through copies whose order the lane protocol keeps; `new`'s caller keeps it mapped.
unsafe impl Send for BulkMemory {}

impl BulkMemory {
    /// `None` if no ring can have so many bytes.
    ///
    /// # Safety
    /// `bytes` bytes are mapped at `start` as long as this value or a copy is used; writable at the producer's end.
    pub unsafe fn new(start: *mut u8, bytes: usize) -> Option<Self> {
        (bytes.is_power_of_two() && BULK_BYTES.contains(&bytes)).then_some(Self { start, bytes })
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Where a position lies.
    #[inline(always)]
    pub(super) fn at(&self, position: u64) -> *mut u8 {
        self.start.wrapping_add((position & (self.bytes as u64 - 1)) as usize)
    }
}

/// The producer's side of a ring of bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filled {
    pub bytes: u64,
    /// Of them, those that are used: the others are skipped.
    pub used: u64,
    /// Position of the next byte.
    pub tail: u64,
    /// How far the consumer had read when last looked.
    pub head_seen: u64,
}

impl Filled {
    pub fn new(bytes: usize) -> Self {
        Self { bytes: bytes as u64, used: bytes as u64, tail: 0, head_seen: 0 }
    }

    /// Where the next `len` bytes go: at the tail, or at the ring's start if they would not fit in one piece. `None` if there is no room,
    /// as far as is known.
    #[inline(always)]
    pub fn place(&self, len: usize) -> Option<u64> {
        let offset = self.tail & (self.bytes - 1);
        let place = if offset + len as u64 <= self.used { self.tail } else { self.tail + (self.bytes - offset) };
        (place + data_room(len) - self.head_seen <= self.bytes).then_some(place)
    }

    /// Whether `len` bytes fit, in packets of `packet` bytes.
    pub fn fits(&self, len: usize, packet: usize) -> bool {
        // What was skipped at the end of a lap is not in use.
        let skipped = if self.tail / self.bytes == self.head_seen / self.bytes { 0 } else { self.bytes - self.used };
        (self.tail - self.head_seen).saturating_sub(skipped) + data_room(len) + packet as u64 <= self.used
    }

    /// Whether it takes payloads of this length: a quarter of it at most, so that one of them, the waste at its end and what was read but not
    /// yet told of always fit together.
    #[inline(always)]
    pub fn takes(&self, len: usize) -> bool {
        len >= BULK_LEAST && len as u64 <= self.used / 4
    }

    /// Between processors that share a cache, a part of the ring is enough.
    pub fn adapt(&mut self, distance: Distance) {
        self.used = if distance == Distance::Near { self.bytes.min(NEAR_BYTES) } else { self.bytes };
    }

    /// What the consumer says of itself: as a distance, a forged word can at worst look like a full or an empty ring, or it is found out.
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
    /// What the producer was last told.
    pub told: u64,
}

impl Drained {
    pub fn new(bytes: usize) -> Self {
        Self { bytes: bytes as u64, head: 0, told: 0 }
    }

    /// Whether `len` bytes at a place, which another process wrote, are in the ring and in one piece.
    #[inline(always)]
    pub fn holds(&self, place: u64, len: usize) -> bool {
        let (ahead, offset) = (place.wrapping_sub(self.head), place & (self.bytes - 1));
        place.is_multiple_of(64)
            && ahead <= self.bytes
            && ahead + data_room(len) <= self.bytes
            && offset + len as u64 <= self.bytes
    }

    /// After `len` bytes at `place` were read. Whether it is time to tell the producer: once a quarter lap at least.
    #[inline(always)]
    pub fn take(&mut self, place: u64, len: usize) -> bool {
        self.head = place + data_room(len);
        self.head - self.told >= (self.bytes / 4).min(TOLD_WITHIN)
    }
}
