//! Whether a thread replies.
//!
//! A producer that appends a message to a cell must first get back the line that the consumer has just read. In a stream, where several
//! messages share each journey of a line, that pays. In a conversation each message would wait for it, so a reply begins in the next cell,
//! which its producer owns already.
//!
//! A message is a reply if the sending thread has left a cell, of any lane, since the last message of its producer. That is a guess. Where
//! the poller or another thread receives, no message is a reply. Where threads take turns at one producer, each message may be one.

#[cfg(not(loom))]
use std::cell::Cell;

#[cfg(not(loom))]
thread_local!(static CELLS_LEFT: Cell<u32> = const { Cell::new(0) });

/// Counts a cell that this thread leaves as a consumer.
#[inline(always)]
pub(super) fn count_cell() {
    #[cfg(not(loom))]
    CELLS_LEFT.set(CELLS_LEFT.get().wrapping_add(1));
}

/// The number of cells that this thread has left so far. Loom runs all its threads on one system thread, where they would share the number:
/// no message of theirs is a reply.
#[inline(always)]
pub(super) fn cells_left() -> u32 {
    #[cfg(not(loom))]
    return CELLS_LEFT.get();
    #[cfg(loom)]
    0
}
