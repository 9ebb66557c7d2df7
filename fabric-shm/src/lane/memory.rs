//! The interface by which lane code accesses shared words and bytes.

use super::word;
#[cfg(not(loom))]
use crate::layout::{CELL_BYTES, LanePlace};
use doorbell_fabric::copies::Copying;
#[cfg(not(loom))]
use doorbell_fabric::hint;
use doorbell_fabric::sync::AtomicU64;

/// The control words of a lane. The consumer writes the first five, the producer the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Control {
    /// Packets that were read and freed.
    Head = 0,
    /// Bytes of the data ring that were read and freed.
    DataHead = 1,
    /// Not zero while the consumer accepts no more messages from this lane because its pool is full.
    Refused = 2,
    /// Bytes of the bulk ring that were read and freed.
    BulkHead = 3,
    /// The bulk ring that the consumer has mapped: the value of the [offer](Control::Bulk).
    BulkTaken = 4,
    /// The incarnation that produces here; zero when the lane is free to be claimed.
    Owner = 16,
    /// Not zero while the producer waits for room and may be asleep. The consumer then rings the producer's bell when there is
    /// room.
    Waiting = 17,
    /// The number, plus one, of the region that the producer offers as a bulk ring.
    Bulk = 18,
}

/// The memory of a lane. Another process may write it at any time.
pub trait LaneMemory {
    /// A word of a cell. The caller's masks keep both indices in range.
    fn cell_word(&self, cell: usize, word: usize) -> &AtomicU64;
    /// The same word by its index among those of all cells.
    #[inline(always)]
    fn nth_word(&self, index: usize) -> &AtomicU64 {
        self.cell_word(index / word::COUNT, index % word::COUNT)
    }
    /// A control word.
    fn control(&self, control: Control) -> &AtomicU64;
    /// The number of cells, a power of two.
    fn cell_count(&self) -> usize;
    /// The size of the data ring in bytes, a power of two.
    fn data_bytes(&self) -> usize;
    /// Copies into the data ring.
    ///
    /// # Safety
    /// `len` bytes are readable at `src`; `offset + len` is at most `data_bytes()`, and `offset` a multiple of 64 for a
    /// [streamed](Copying::Streamed) copy; no other thread writes there.
    unsafe fn write_data(&self, offset: usize, src: *const u8, len: usize, way: Copying);
    /// Copies out of the data ring.
    ///
    /// # Safety
    /// `len` bytes are writable at `dst`; `offset + len` is at most `data_bytes()`.
    unsafe fn read_data(&self, offset: usize, dst: *mut u8, len: usize);
    /// Asks the processor to move written lines to a cache level where the consumer finds them sooner.
    #[inline(always)]
    fn offer_data(&self, _offset: usize, _len: usize) {}
    /// Prefetches the line of a cell for writing.
    #[inline(always)]
    fn own_cell(&self, _cell: usize) {}
    /// Asks the processor to own the lines that the next packet will fill, while the caller does other work.
    #[inline(always)]
    fn own_data(&self, _offset: usize, _len: usize) {}
}

/// Lane memory at raw addresses: mapped, or in the heap.
#[cfg(not(loom))]
#[derive(Clone, Copy, Debug)]
pub struct RawMemory {
    control: *mut u8,
    cells: *mut u8,
    data: *mut u8,
    cell_count: usize,
    data_bytes: usize,
}

// SAFETY: the addresses are accessed through atomics, or through copies in the order of the lane protocol; the caller of `new`
// keeps them mapped.
#[cfg(not(loom))]
unsafe impl Send for RawMemory {}

#[cfg(not(loom))]
impl RawMemory {
    /// The ring at `place` in the file of a pair, which is mapped from `start` on.
    ///
    /// # Safety
    /// The mapping is page aligned, long enough for `place`, and stays as long as this value or a copy is used.
    pub unsafe fn new(start: *mut u8, place: LanePlace) -> Self {
        debug_assert!(start.addr().is_multiple_of(CELL_BYTES));
        // SAFETY: all offsets lie in the mapping (caller).
        unsafe {
            Self {
                control: start.add(place.control),
                cells: start.add(place.cells),
                data: start.add(place.data),
                cell_count: place.cell_count,
                data_bytes: place.data_bytes,
            }
        }
    }

    /// The address of an offset in the data ring.
    #[inline(always)]
    pub(crate) fn data_at(&self, offset: usize) -> *const u8 {
        // An empty payload may lie at the end.
        debug_assert!(offset <= self.data_bytes);
        // SAFETY: the caller keeps it in range.
        unsafe { self.data.add(offset) }
    }

    /// The address of a word by its index among those of all cells.
    #[inline(always)]
    pub(crate) fn nth_word_at(&self, index: usize) -> *const u8 {
        // An empty payload may lie at the end.
        debug_assert!(index <= self.cell_count * word::COUNT);
        // SAFETY: the caller keeps it in range.
        unsafe { self.cells.add(index * 8) }
    }

    /// The address of a word of a cell.
    #[inline(always)]
    pub(crate) fn word_at(&self, cell: usize, word: usize) -> *const u8 {
        // An empty payload may lie at the end.
        debug_assert!(cell < self.cell_count && word <= word::COUNT);
        // SAFETY: the caller keeps it in range.
        unsafe { self.cells.add(cell * CELL_BYTES + word * 8) }
    }
}

#[cfg(not(loom))]
impl LaneMemory for RawMemory {
    #[inline(always)]
    fn cell_word(&self, cell: usize, word: usize) -> &AtomicU64 {
        debug_assert!(cell < self.cell_count && word < word::COUNT);
        // SAFETY: the caller's mask keeps it in range, `new` aligned it, and all sides access it atomically.
        unsafe { &*self.cells.add(cell * CELL_BYTES + word * 8).cast() }
    }

    #[inline(always)]
    fn nth_word(&self, index: usize) -> &AtomicU64 {
        debug_assert!(index / word::COUNT < self.cell_count);
        // SAFETY: as above; a cell is `word::COUNT` words of eight bytes.
        unsafe { &*self.cells.cast::<AtomicU64>().add(index) }
    }

    #[inline(always)]
    fn control(&self, control: Control) -> &AtomicU64 {
        // SAFETY: the largest control word lies inside CONTROL_BYTES; aligned by `new`.
        unsafe { &*self.control.add(control as usize * 8).cast() }
    }

    #[inline(always)]
    fn cell_count(&self) -> usize {
        self.cell_count
    }

    #[inline(always)]
    fn data_bytes(&self) -> usize {
        self.data_bytes
    }

    #[inline(always)]
    unsafe fn write_data(&self, offset: usize, src: *const u8, len: usize, way: Copying) {
        debug_assert!((way != Copying::Streamed || offset.is_multiple_of(64)) && offset + len <= self.data_bytes);
        // SAFETY: caller; the ring begins with a cache line.
        unsafe { doorbell_fabric::copies::copy_by(way, src, self.data.add(offset), len) }
    }

    #[inline(always)]
    unsafe fn read_data(&self, offset: usize, dst: *mut u8, len: usize) {
        debug_assert!(offset + len <= self.data_bytes);
        // SAFETY: caller.
        unsafe { doorbell_fabric::copies::copy(self.data.add(offset), dst, len) }
    }

    #[inline(always)]
    fn own_cell(&self, cell: usize) {
        debug_assert!(cell < self.cell_count);
        hint::own(self.cells.wrapping_add(cell * CELL_BYTES));
    }

    #[inline(always)]
    fn own_data(&self, offset: usize, len: usize) {
        for_lines(len, |line| hint::own(self.data.wrapping_add((offset + line) & (self.data_bytes - 1))));
    }

    #[inline(always)]
    fn offer_data(&self, offset: usize, len: usize) {
        for_lines(len, |line| hint::offer(self.data.wrapping_add(offset + line)));
    }
}

/// Calls `hint` for the offset of each line of `len` bytes. The compiler makes four times as many instructions of a range with a step,
/// and most payloads are a line or two.
#[cfg(not(loom))]
#[inline(always)]
fn for_lines(len: usize, hint: impl Fn(usize)) {
    let mut line = 0;
    while line < len {
        hint(line);
        line += 64;
    }
}

#[cfg(not(loom))]
const _: () = assert!((Control::Bulk as usize + 1) * 8 <= crate::layout::CONTROL_BYTES);
