//! The board: what a node shows of itself to whoever may read its memory, without being asked.
//!
//! Peers and the command line map it read-only. The owner writes figures now and then with plain stores; a reader may see
//! figures of two moments, never a torn one. The second half is kept free for the flight recorder.

use crate::layout::{BOARD_BYTES, SegmentHeader};
use doorbell_fabric::sync::{AtomicU64, Ordering};

/// Where the figures lie on the board.
pub const FIGURES_OFFSET: usize = 1024;
/// Where the flight recorder will lie.
pub const RECORDER_OFFSET: usize = BOARD_BYTES / 2;

/// The figures of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Messages that arrived whole.
    pub messages_in: u64,
    /// Their bytes.
    pub bytes_in: u64,
    /// Messages sent.
    pub messages_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// Messages that wait in the pool of unexpected ones.
    pub pooled: u64,
    /// Bytes that they take.
    pub pooled_bytes: u64,
    /// Times a thread slept on the doorbell.
    pub parks: u64,
}

/// Words of the figures, in the order of [`Figures`].
const WORDS: usize = 7;

const _: () = assert!(FIGURES_OFFSET >= size_of::<SegmentHeader>() && FIGURES_OFFSET + WORDS * 8 <= RECORDER_OFFSET);

/// The figures on a board.
#[derive(Clone, Copy)]
pub struct Board<'a> {
    words: &'a [AtomicU64; WORDS],
}

impl Board<'_> {
    /// The figures on the board that begins at `ptr`.
    ///
    /// # Safety
    /// `ptr` is the page-aligned start of `BOARD_BYTES` bytes that stay mapped, readable, and for [`show`](Self::show)
    /// writable.
    pub unsafe fn at(ptr: *const u8) -> Self {
        // SAFETY: inside the board and aligned; atomics allow other writers.
        Self { words: unsafe { &*ptr.add(FIGURES_OFFSET).cast() } }
    }

    /// Shows figures. For the owner.
    pub fn show(&self, figures: &Figures) {
        let values = [
            figures.messages_in,
            figures.bytes_in,
            figures.messages_out,
            figures.bytes_out,
            figures.pooled,
            figures.pooled_bytes,
            figures.parks,
        ];
        for (word, value) in self.words.iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Reads the figures.
    pub fn read(&self) -> Figures {
        let word = |index: usize| self.words[index].load(Ordering::Relaxed);
        Figures {
            messages_in: word(0),
            bytes_in: word(1),
            messages_out: word(2),
            bytes_out: word(3),
            pooled: word(4),
            pooled_bytes: word(5),
            parks: word(6),
        }
    }
}
