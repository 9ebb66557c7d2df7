//! The bulk ring: a second data ring of a lane, in memory that belongs to its producer.
//!
//! A node has lanes from many others, so a lane's own data ring is small, and a small ring is slow for messages of 8 KiB and more.
//! Between processors that share a cache, its lines move from one core's private cache to the other's, which takes longer than
//! from the shared cache. Between other processors, every written line is still held by the other side. So a sender of such
//! messages creates a larger ring, offers it with a control word of the lane, and uses it once the consumer has mapped it.
//!
//! In a conversation the consumer has read each message before the next one is written. So a lap can end early, and the part of the
//! ring that is used stays in the caches of both processors. In a stream the consumer is still reading, and the lap goes on to the ring's
//! end. By then, the lines that are written next have left the consumer's own cache. To get them back from there would take longer.
//!
//! Its rules are those of the data ring (`ring.rs`). The lowest bit of a cell's place tells the two rings apart. The second bit asks
//! for a report, as in the data ring. The third says that the payload was streamed.

/// The shortest payload that goes to the bulk ring.
pub const BULK_LEAST: usize = 8 << 10;
/// The allowed lengths of a bulk ring. The length is a power of two.
pub const BULK_BYTES: std::ops::RangeInclusive<usize> = 64 << 10..=1 << 30;
/// Marks a place in the bulk ring. Places are multiples of a line, so the bit is free.
pub(super) const IN_BULK: u64 = 1;

/// The memory of a bulk ring.
#[derive(Clone, Copy, Debug)]
pub struct BulkMemory {
    start: *mut u8,
    bytes: usize,
    /// A lap may end early behind this many bytes.
    lap: usize,
}

// SAFETY: accessed by copies in the order of the lane protocol; the caller of `new` keeps it mapped.
unsafe impl Send for BulkMemory {}

impl BulkMemory {
    /// Returns `None` if a ring cannot have this length, or does not begin with a cache line.
    ///
    /// # Safety
    /// `bytes` bytes are mapped at `start` as long as this value or a copy is used. At the producer's end they are writable.
    pub unsafe fn new(start: *mut u8, bytes: usize) -> Option<Self> {
        (bytes.is_power_of_two() && BULK_BYTES.contains(&bytes) && start.addr().is_multiple_of(64)).then_some(Self {
            start,
            bytes,
            lap: bytes,
        })
    }

    /// The same ring, of which a conversation uses the first `lap` bytes.
    pub fn with_lap(self, lap: usize) -> Self {
        Self { lap, ..self }
    }

    /// The bytes that a conversation uses.
    #[inline(always)]
    pub(super) fn lap(&self) -> u64 {
        self.lap as u64
    }

    /// The number of bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// The address of an offset.
    #[inline(always)]
    pub(super) fn at(&self, offset: u64) -> *mut u8 {
        self.start.wrapping_add((offset & (self.bytes as u64 - 1)) as usize)
    }

    /// Whether the ring takes payloads of this length: at most a quarter of it.
    #[inline(always)]
    pub(super) fn takes(&self, len: usize) -> bool {
        len >= BULK_LEAST && len <= self.bytes / 4
    }
}
