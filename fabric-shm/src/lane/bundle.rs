//! Bundles: several messages in one packet.
//!
//! A bundle lies in the data ring in one piece. Its cell states the sequence number of the first message and their number. Messages of one
//! tag and one length lie there one behind the other. Others have a head each, of two words: tag and length. A message begins at a
//! multiple of eight bytes.
//!
//! So a line carries several short messages, and the line with the first word makes one journey for all of them.

/// The most messages of a bundle, and the most bytes. The consumer reads them while the producer writes the next bundle.
pub(super) const MESSAGES_MOST: usize = if cfg!(loom) { 2 } else { 32 };
pub(super) const BYTES_MOST: usize = 2 << 10;

/// The longest message of a bundle. The cell of a longer one takes little of its time.
pub(crate) const MESSAGE_MOST: usize = 1 << 10;

/// The bytes of a message's head.
pub(super) const ENTRY_HEAD: usize = 16;

/// The bytes that a message's payload takes.
#[inline(always)]
pub(super) fn entry_bytes(len: usize) -> usize {
    // An empty message takes some, too: a bundle of such messages has a length.
    len.next_multiple_of(8).max(8)
}
