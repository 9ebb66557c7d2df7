//! Whether a thread answers.
//!
//! A message that is appended to a cell waits until its producer owns a line that the consumer has just read. In a stream, where several
//! messages share each journey of a line, that pays. In a conversation each message would wait, so an answer begins in the next cell, which its
//! producer has owned ahead. A thread answers if it has left a cell of any lane since its last message here.

#[cfg(not(loom))]
use std::cell::Cell;

#[cfg(not(loom))]
thread_local!(static CELLS_READ: Cell<u32> = const { Cell::new(0) });

/// Counts a cell that this thread has left as a consumer.
#[inline(always)]
pub(super) fn count_cell() {
    #[cfg(not(loom))]
    CELLS_READ.set(CELLS_READ.get().wrapping_add(1));
}

/// The cells that this thread has left so far. Loom's threads are one thread, and do not answer.
#[inline(always)]
pub(super) fn cells_read() -> u32 {
    #[cfg(not(loom))]
    return CELLS_READ.get();
    #[cfg(loom)]
    0
}
