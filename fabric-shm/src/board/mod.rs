//! The board: what a node shows of itself to whoever may read its memory, without being asked.
//!
//! Only its owner writes it; peers and the command line read it, of living, stopped and dead nodes alike.
//!
//! ```text
//! board | header | figures | counter status register | DMA counters | latencies |
//!       | links | modes | decisions | flight recorder (second half) |
//! ```
//!
//! - [`Figures`]: named words, written now and then. [`Tallies`] are where the owner counts them.
//! - [`Counters`]: the DMA counters. Their words here are a display; the count that completes a transfer is private.
//! - [`Latencies`]: how long sampled messages took to arrive.
//! - [`LinkRow`]: the links by which the node sends, and what waits there. [`ModeFigures`]: how its messages went, and why;
//!   [`DecisionRing`]: the latest that went otherwise than asked.
//! - [`Recorder`]: what the engine did last.
//!
//! A reader may see words of different moments, never a torn one; a record that was being written is left out.

#[cfg(not(loom))]
mod copy;
#[cfg(not(loom))]
mod counters;
mod figures;
#[cfg(not(loom))]
mod latency;
#[cfg(not(loom))]
mod modes;
#[cfg(not(loom))]
mod recorder;

#[cfg(not(loom))]
pub use copy::{BoardCopy, CounterShown};
#[cfg(not(loom))]
pub use counters::{COUNTER_BYTES_MAX, COUNTERS, Counters, Lowered, Standing, Status};
#[cfg(not(loom))]
pub use figures::Tallies;
pub use figures::{FIGURES_HASH, Figure, FigureKind, Figures};
#[cfg(not(loom))]
pub use latency::{LATENCY_BUCKETS, Latencies, LatencyHistogram};
#[cfg(not(loom))]
pub use modes::{
    DECISIONS, Decided, DecisionRecord, DecisionRing, FABRICS, LINK_ROWS, LinkRow, ModeFigures, ModeParts, ModeTallies, ModeWord,
    PROTOCOLS, REFUSALS, SIZE_CLASSES,
};
#[cfg(not(loom))]
pub use recorder::{RECORDS, Record, RecordKind, Recorded, Recorder, thread};

#[cfg(not(loom))]
pub use home::{Board, Home};

#[cfg(not(loom))]
mod home {
    use super::{Counters, Figure, Figures, Latencies, LatencyHistogram};
    use crate::domain::Membership;
    use crate::layout::{BOARD_BYTES, FIGURES_OFFSET, LATENCIES_OFFSET};
    use doorbell_fabric::sync::{AtomicU64, Ordering};
    use std::marker::PhantomData;
    use std::sync::Arc;

    /// A board's memory, for as long as `'a`.
    #[derive(Clone, Copy, Debug)]
    pub struct Board<'a> {
        ptr: *mut u8,
        _memory: PhantomData<&'a AtomicU64>,
    }

    impl<'a> Board<'a> {
        /// The board that begins at `ptr`.
        ///
        /// # Safety
        /// `ptr` is the page-aligned start of `BOARD_BYTES` bytes that stay readable for `'a`, and writable if anything is
        /// shown on it.
        pub unsafe fn at(ptr: *mut u8) -> Self {
            debug_assert!(ptr.addr().is_multiple_of(128));
            Self { ptr, _memory: PhantomData }
        }

        /// The word at an offset; a constant of [`crate::layout`] plus an index in range.
        #[inline]
        pub(super) fn word(self, offset: usize) -> &'a AtomicU64 {
            debug_assert!(offset.is_multiple_of(8) && offset < BOARD_BYTES);
            // SAFETY: inside the board and aligned (`at`); atomics allow other writers.
            unsafe { &*self.ptr.add(offset).cast() }
        }

        /// Shows figures. For the owner.
        pub fn show(self, figures: &Figures) {
            for figure in Figure::ALL {
                self.word(FIGURES_OFFSET + *figure as usize * 8).store(figures[*figure], Ordering::Relaxed);
            }
        }

        /// Shows latencies. For the owner.
        pub fn show_latencies(self, latencies: &LatencyHistogram) {
            for (bucket, count) in latencies.read().counts().iter().enumerate() {
                self.word(LATENCIES_OFFSET + bucket * 8).store(*count, Ordering::Relaxed);
            }
        }

        /// Reads the figures.
        pub fn figures(self) -> Figures {
            Figures::collect(|figure| self.word(FIGURES_OFFSET + figure as usize * 8).load(Ordering::Relaxed))
        }

        /// Reads the latencies.
        pub fn latencies(self) -> Latencies {
            Latencies::collect(|bucket| self.word(LATENCIES_OFFSET + bucket * 8).load(Ordering::Relaxed))
        }
    }

    /// A node's own board, mapped for as long as this value lives. Clones are cheap. Not to be touched in a forked child, where
    /// the mapping is not there.
    #[derive(Clone, Debug)]
    pub struct Home {
        ptr: *mut u8,
        _membership: Option<Arc<Membership>>,
    }

    // SAFETY: an address of memory that is reached through atomics only, and kept mapped by the membership.
    unsafe impl Send for Home {}
    // SAFETY: as above.
    unsafe impl Sync for Home {}

    impl Home {
        /// The board of a node that has joined.
        pub fn new(membership: &Arc<Membership>) -> Self {
            Self { ptr: membership.board().ptr(), _membership: Some(membership.clone()) }
        }

        /// A board somewhere else.
        ///
        /// # Safety
        /// As [`Board::at`], writable, for as long as this value or a clone lives.
        pub unsafe fn at(ptr: *mut u8) -> Self {
            Self { ptr, _membership: None }
        }

        /// The board.
        #[inline]
        pub fn board(&self) -> Board<'_> {
            // SAFETY: the membership keeps BOARD_BYTES writable bytes mapped, or the caller of `at` does.
            unsafe { Board::at(self.ptr) }
        }

        /// Shows figures, latencies and counters as they are now.
        pub fn show<T: Default>(&self, figures: &Figures, latencies: &LatencyHistogram, counters: &Counters<T>) {
            self.board().show(figures);
            self.board().show_latencies(latencies);
            counters.show();
        }
    }
}

/// A board in the heap, for tests.
#[cfg(all(test, not(loom)))]
pub(crate) mod testing {
    use super::Home;
    use crate::layout::BOARD_BYTES;

    #[repr(C, align(4096))]
    struct Room([u8; BOARD_BYTES]);

    pub(crate) struct HeapBoard {
        pub home: Home,
        room: *mut Room,
    }

    impl HeapBoard {
        pub fn new() -> Self {
            let room = Box::into_raw(Box::new(Room([0; BOARD_BYTES])));
            // SAFETY: leaked until `drop`, and tests drop what uses it first.
            Self { home: unsafe { Home::at(room.cast()) }, room }
        }
    }

    impl Drop for HeapBoard {
        fn drop(&mut self) {
            // SAFETY: from Box::into_raw.
            drop(unsafe { Box::from_raw(self.room) });
        }
    }
}
