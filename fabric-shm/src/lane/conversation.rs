//! Whether a thread replies.
//!
//! A producer that appends a message to a cell must first get back the line that the consumer has just read. In a stream, where several
//! messages share each journey of a line, that pays. In a conversation each message would wait for it, so a reply begins in the next cell,
//! which its producer owns already.
//!
//! A message is a reply if the sending thread has left a cell, of any lane, since the last message of its producer. That is a guess. Where
//! the poller or another thread receives, no message is a reply. Where threads take turns at one producer, each message may be one.
//!
//! After a reply of less than 2 KiB, the producer requests no lines of its next payload (`producer/room.rs`).
//!
//! A consumer guesses whether it waits for an answer: has the waiting thread sent a message, in any lane, since it left the last cell? Then the
//! consumer prefetches more of the next payload (`consumer/read.rs`), and looks at a pace of its own (`fabric/pace.rs`). Where threads take
//! turns at one consumer, the guess means nothing. In a stream, the producer may be writing those lines at any time.

use std::cell::Cell;

/// What a thread has done so far, in all lanes.
struct Counts {
    /// The cells that it has left as a consumer.
    left: Cell<u32>,
    /// The messages that it has sent.
    sent: Cell<u32>,
}

impl Counts {
    const fn none() -> Self {
        Self { left: Cell::new(0), sent: Cell::new(0) }
    }
}

#[cfg(not(loom))]
thread_local!(static COUNTS: Counts = const { Counts::none() });

/// Looks at the counts of this thread. Loom runs all its threads on one system thread, where they would share the numbers: there nothing is
/// counted, and no message is a reply.
#[inline(always)]
fn counts(look: impl FnOnce(&Counts) -> u32) -> u32 {
    #[cfg(not(loom))]
    return COUNTS.with(look);
    #[cfg(loom)]
    look(&Counts::none())
}

/// Counts a cell that this thread leaves as a consumer. Returns the number of messages that it has sent.
#[inline(always)]
pub(super) fn count_cell() -> u32 {
    counts(|counts| {
        counts.left.set(counts.left.get().wrapping_add(1));
        counts.sent.get()
    })
}

/// Counts a message that this thread sends, or tries to. Returns the number of cells that it has left.
#[inline(always)]
pub(super) fn count_message() -> u32 {
    counts(|counts| {
        counts.sent.set(counts.sent.get().wrapping_add(1));
        counts.left.get()
    })
}

/// The number of cells that this thread has left.
pub(super) fn cells_left() -> u32 {
    counts(|counts| counts.left.get())
}

/// The number of messages that this thread has sent.
#[cfg(not(loom))]
#[inline(always)]
pub(super) fn messages_sent() -> u32 {
    counts(|counts| counts.sent.get())
}
