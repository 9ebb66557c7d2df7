//! The board: the memory in which a node displays its state. Others read it without asking the node.
//!
//! Only the owner writes it. Peers and the command line read it, whether the node lives, is stopped or is dead.
//!
//! ```text
//! board | header | figures | counter status register | DMA counters | latencies |
//!       | links | modes | decisions | flight recorder (second half) | injection FIFOs |
//! ```
//!
//! - [`Metrics`]: the metrics, written now and then. The owner counts them in [`Tallies`].
//! - [`Counters`]: the DMA counters. The words here are a display; the count that completes a transfer is private.
//! - [`Latencies`]: the delays of sampled messages.
//! - [`LinkRow`]: the links that the node sends by, and their backlog. [`ModeFigures`]: the modes that its messages took, and
//!   why. [`DecisionRing`]: the latest decisions that differ from the request.
//! - [`Recorder`]: the latest steps of the engine.
//! - [`Fifo`]: the injection FIFOs. The engine executes the descriptors that lie here, if their seals are right.
//!
//! A reader may see words of different moments, but never a torn word. It skips a record that is being written.

#[cfg(not(loom))]
mod copy;
#[cfg(not(loom))]
mod counters;
#[cfg(not(loom))]
mod fifos;
#[cfg(not(loom))]
mod latency;
mod metrics;
#[cfg(not(loom))]
mod modes;
#[cfg(not(loom))]
mod recorder;

#[cfg(not(loom))]
pub use copy::{BoardCopy, CounterShown};
#[cfg(not(loom))]
pub use counters::{COUNTER_BYTES_MAX, COUNTERS, Counters, Lowered, Standing, Status, Use};
#[cfg(not(loom))]
pub use fifos::{
    DESCRIPTOR_WORDS, DescriptorWords, FIFO_NAME_BYTES, FIFO_SLOTS, Fifo, FifoFacts, FifoShown, Injector, Next, SealedWords,
};
#[cfg(not(loom))]
pub use latency::{LATENCY_BUCKETS, Latencies, LatencyHistogram};
#[cfg(not(loom))]
pub use metrics::Tallies;
pub use metrics::{FIGURES_HASH, FigureKind, Metric, Metrics};
#[cfg(not(loom))]
pub use modes::{
    DECISIONS, Decided, DecisionRecord, DecisionRing, FABRICS, LINK_ROWS, LinkRow, ModeFigures, ModeParts, ModeTallies, ModeWord,
    PROTOCOLS, REFUSALS, SIZE_CLASSES,
};
#[cfg(not(loom))]
pub use recorder::{RECORDS, Record, RecordKind, Recorded, Recorder, thread};

#[cfg(not(loom))]
use home::Slots;
#[cfg(not(loom))]
pub use home::{Board, Home};

#[cfg(not(loom))]
mod home {
    use super::{COUNTERS, CounterShown, Counters, Latencies, LatencyHistogram, Metrics, ModeFigures, Status};
    use crate::domain::Membership;
    use crate::layout::{
        BOARD_BYTES, COUNTER_STATUS_OFFSET, COUNTERS_OFFSET, COUNTERS_USED_OFFSET, FIFO_BYTES, FIFO_HEAD_BYTES, FIFO_SLOTS,
        FIFOS_MAX, FIGURES_OFFSET, LATENCIES_OFFSET, MODES_OFFSET,
    };
    use doorbell_fabric::sync::{AtomicU64, Ordering};
    use std::marker::PhantomData;
    use std::ptr::NonNull;
    use std::sync::Arc;

    /// The memory of a board, valid for `'a`.
    #[derive(Clone, Copy, Debug)]
    pub struct Board<'a> {
        ptr: *mut u8,
        /// The number of injection FIFOs for which there is room.
        fifos: usize,
        _memory: PhantomData<&'a AtomicU64>,
    }

    impl<'a> Board<'a> {
        /// The board that begins at `ptr`.
        ///
        /// # Safety
        /// `ptr` is the page-aligned start of `len` bytes that stay readable for `'a`, `BOARD_BYTES` at least. They must be
        /// writable if the caller shows anything on the board.
        pub unsafe fn at(ptr: *mut u8, len: usize) -> Self {
            debug_assert!(ptr.addr().is_multiple_of(128));
            Self { ptr, fifos: ((len - BOARD_BYTES) / FIFO_BYTES).min(FIFOS_MAX), _memory: PhantomData }
        }

        pub(super) fn fifo_count(self) -> usize {
            self.fifos
        }

        /// The word at an offset. The offset is a constant of [`crate::layout`] plus an index in range.
        #[inline]
        pub(super) fn word(self, offset: usize) -> &'a AtomicU64 {
            debug_assert!(offset.is_multiple_of(8) && offset < BOARD_BYTES + self.fifos * FIFO_BYTES);
            // SAFETY: inside the board and aligned (`at`); atomics allow other writers.
            unsafe { &*self.ptr.add(offset).cast() }
        }

        /// Shows words, one after the other. For the owner.
        fn show_words(self, offset: usize, words: &[u64]) {
            for (index, word) in words.iter().enumerate() {
                self.word(offset + index * 8).store(*word, Ordering::Relaxed);
            }
        }

        pub(super) fn read_words<const N: usize>(self, offset: usize) -> [u64; N] {
            std::array::from_fn(|index| self.word(offset + index * 8).load(Ordering::Relaxed))
        }

        /// Shows metrics. For the owner.
        pub fn show(self, metrics: &Metrics) {
            self.show_words(FIGURES_OFFSET, &metrics.0);
        }

        /// Shows the counts of modes. For the owner.
        pub fn show_modes(self, modes: &ModeFigures) {
            self.show_words(MODES_OFFSET, &*modes.0);
        }

        /// Reads the metrics.
        pub fn metrics(self) -> Metrics {
            Metrics(self.read_words(FIGURES_OFFSET))
        }

        /// Reads the delays of sampled messages.
        pub fn latencies(self) -> Latencies {
            Latencies(self.read_words(LATENCIES_OFFSET))
        }

        /// Reads the counts of modes.
        pub fn modes(self) -> ModeFigures {
            ModeFigures(Box::new(self.read_words(MODES_OFFSET)))
        }

        /// The counter status register.
        pub fn counter_status(self) -> Status {
            self.read_words(COUNTER_STATUS_OFFSET)
        }

        /// The DMA counters in use.
        pub fn counters(self) -> Vec<CounterShown> {
            let (status, used): (Status, Status) = (self.counter_status(), self.read_words(COUNTERS_USED_OFFSET));
            let is_set = |words: &Status, index: usize| words[index / 64] >> (index % 64) & 1 != 0;
            let shown = |index| {
                let [value, size] = self.read_words(COUNTERS_OFFSET + index * 16);
                CounterShown { index, value, size, zero: is_set(&status, index) }
            };
            (0..COUNTERS).filter(|index| is_set(&used, *index)).map(shown).collect()
        }
    }

    /// A node's own counts, in private memory.
    #[derive(Debug)]
    pub(super) struct Words<const N: usize>(pub [AtomicU64; N]);

    impl<const N: usize> Default for Words<N> {
        fn default() -> Self {
            Self([const { AtomicU64::new(0) }; N])
        }
    }

    impl<const N: usize> Words<N> {
        pub fn read(&self) -> [u64; N] {
            std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed))
        }
    }

    /// A node's own board, mapped as long as this value lives. Clones are cheap. A forked child must not touch it, because the
    /// child does not have the mapping.
    #[derive(Clone, Debug)]
    pub struct Home {
        ptr: *mut u8,
        len: usize,
        _membership: Option<Arc<Membership>>,
    }

    // SAFETY: the address of memory that is accessed through atomics only and that the membership keeps mapped.
    unsafe impl Send for Home {}
    // SAFETY: as above.
    unsafe impl Sync for Home {}

    /// The slots of an injection FIFO, at an address of their own: a thread that injects looks for nothing else.
    #[derive(Clone, Copy, Debug)]
    pub(super) struct Slots(NonNull<[[AtomicU64; 8]; FIFO_SLOTS]>);

    // SAFETY: the address of memory that is accessed through atomics only and that the `Home` of its owner keeps mapped.
    unsafe impl Send for Slots {}
    // SAFETY: as above.
    unsafe impl Sync for Slots {}

    impl Slots {
        #[inline(always)]
        pub fn get(&self) -> &[[AtomicU64; 8]; FIFO_SLOTS] {
            // SAFETY: within the board (`Home::slots`), which the owner of this value keeps mapped; atomics allow other writers.
            unsafe { self.0.as_ref() }
        }

        /// The words of the FIFO's head, which lies before the slots.
        #[inline(always)]
        pub fn head(&self) -> &[AtomicU64; FIFO_HEAD_BYTES / 8] {
            // SAFETY: as above.
            unsafe { &*self.0.as_ptr().byte_sub(FIFO_HEAD_BYTES).cast() }
        }
    }

    impl Home {
        /// The slots of the injection FIFO that begin at an offset. The result must not outlive the home.
        pub(super) fn slots(&self, offset: usize) -> Slots {
            assert!(offset.is_multiple_of(64) && offset + FIFO_BYTES - FIFO_HEAD_BYTES <= self.len);
            // SAFETY: inside the board.
            let slots = unsafe { self.ptr.add(offset) };
            Slots(NonNull::new(slots.cast()).unwrap_or(NonNull::dangling()))
        }

        /// The board of a node that has joined.
        pub fn new(membership: &Arc<Membership>) -> Self {
            let board = membership.board();
            Self { ptr: board.ptr(), len: board.len(), _membership: Some(membership.clone()) }
        }

        /// A board at any address, such as in a test's heap.
        ///
        /// # Safety
        /// The same as for [`Board::at`], and the memory is writable, as long as this value or a clone lives.
        pub unsafe fn at(ptr: *mut u8, len: usize) -> Self {
            Self { ptr, len, _membership: None }
        }

        /// The number of injection FIFOs for which the board has room.
        pub fn fifos(&self) -> usize {
            self.board().fifo_count()
        }

        /// The board.
        #[inline]
        pub fn board(&self) -> Board<'_> {
            // SAFETY: the membership keeps the whole board mapped and writable, or the caller of `at` does.
            unsafe { Board::at(self.ptr, self.len) }
        }

        /// Shows the current metrics, latencies and counters.
        pub fn show<T: Default>(&self, metrics: &Metrics, latencies: &LatencyHistogram, counters: &Counters<T>) {
            self.board().show(metrics);
            self.board().show_words(LATENCIES_OFFSET, latencies.read().counts());
            counters.show();
        }
    }
}

/// A board in the heap, for tests.
#[cfg(all(test, not(loom)))]
pub(crate) mod testing {
    use super::Home;
    use crate::layout::board_bytes;

    const BYTES: usize = board_bytes(8);

    #[repr(C, align(4096))]
    struct Room([u8; BYTES]);

    pub(crate) struct HeapBoard {
        pub home: Home,
        room: *mut Room,
    }

    impl HeapBoard {
        pub fn new() -> Self {
            let room = Box::into_raw(Box::new(Room([0; BYTES])));
            // SAFETY: the box is leaked until `drop`, and tests first drop everything that uses it.
            Self { home: unsafe { Home::at(room.cast(), BYTES) }, room }
        }
    }

    impl Drop for HeapBoard {
        fn drop(&mut self) {
            // SAFETY: from Box::into_raw.
            drop(unsafe { Box::from_raw(self.room) });
        }
    }
}
