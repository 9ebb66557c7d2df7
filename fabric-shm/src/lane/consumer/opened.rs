//! The first packet of a lane while its producer writes it.

use super::{Consumer, FirstWord, Place};
use crate::lane::pieces::Pieces;
use crate::lane::{LaneMemory, check_word, word};
use doorbell_fabric::PacketKind;
use doorbell_fabric::sync::Ordering;

/// The first packet of a lane, while its producer writes it. Checked, and in private memory.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// The message's tag.
    pub tag: u64,
    /// Its sequence number.
    pub sequence: u32,
    /// Its length.
    pub len: usize,
    /// The place of its payload.
    pub place: Place,
    pieces: Pieces,
}

impl<M: LaneMemory + Clone> Consumer<M> {
    /// Whether a message waits that its producer is still writing, and that this end has not declined.
    #[inline(always)]
    pub fn is_opened(&self) -> bool {
        self.declined != self.head + 1 && matches!(self.watch(1, true, || ()), Some(first) if first.is_opened())
    }

    /// Says that there is no buffer for the message that is opened. [`is_opened`](Self::is_opened) is false until the next message, so that
    /// a thread does not spin for this one.
    pub fn decline(&mut self) {
        self.declined = self.head + 1;
    }

    /// Examines the first packet, which its producer is still writing. `None` if it is of another kind, was given up, or has words that no
    /// producer writes.
    pub fn opened(&self, first: FirstWord) -> Option<Opened> {
        if !first.is_opened() || self.given_up == self.head + 1 {
            return None;
        }
        let len = first.payload_bytes();
        let stated = self.memory.cell_word(self.cell(), word::PIECE).load(Ordering::Relaxed);
        let (pieces, place) = (Pieces::stated(len, stated)?, self.place(len, false)?);
        Some(Opened { tag: self.tag(), sequence: self.unstamped_sequence()?, len, place, pieces })
    }

    /// Copies the payload of an [opened](Self::opened) packet, the first one, into a buffer of its length while the producer writes it.
    /// Returns true if the producer has published that message meanwhile. Returns false if it was too slow, `looks` looks for some pieces:
    /// then the buffer has bytes without meaning, and this end does not copy that packet again before it is published.
    pub fn copy_opened(&mut self, opened: &Opened, buffer: &mut [u8], looks: u32) -> bool {
        let &Opened { len, place, pieces, .. } = opened;
        debug_assert_eq!(buffer.len(), len);
        let (cell, whole) = (self.cell(), check_word(self.head + 1, PacketKind::Whole as u8, len));
        let (mut copied, mut left) = (0, looks);
        while left > 0 {
            // Acquire: pairs with PUBLISH.
            let is_whole = self.memory.cell_word(cell, word::CHECK).load(Ordering::Acquire) == whole;
            // Acquire: pairs with WRITTEN.
            let written = self.memory.cell_word(cell, word::WRITTEN).load(Ordering::Acquire);
            let written = if is_whole { pieces.count() } else { usize::try_from(written).unwrap_or(0).min(pieces.count()) };
            if written > copied {
                (copied..written).for_each(|number| self.copy_piece(place, pieces, number, buffer));
                copied = written;
                // A producer that writes each piece late does not hold this end for long, either.
                left = (left + looks / 2).min(looks);
            } else {
                // No pause: the next piece comes within a few journeys of a line, and a pause takes as long as one.
                left -= 1;
            }
            if is_whole {
                // Another process may have changed the words meanwhile.
                let is_as_before = self.tag() == opened.tag
                    && self.unstamped_sequence() == Some(opened.sequence)
                    && self.place(len, false) == Some(place);
                if is_as_before {
                    return true;
                }
                break;
            }
        }
        self.given_up = self.head + 1;
        false
    }

    /// Copies a piece of the payload at this [place](Self::place), of which `whole` is a buffer of its length.
    fn copy_piece(&self, place: Place, pieces: Pieces, number: usize, whole: &mut [u8]) {
        let from = pieces.start(number);
        let Some(dst) = whole.get_mut(from..).and_then(|rest| rest.get_mut(..pieces.len_of(number))) else {
            return;
        };
        let (dst, len) = (dst.as_mut_ptr(), dst.len());
        match (place, &self.bulk) {
            // SAFETY: `place` checked that the ring holds the payload, and no piece lies behind its end; a slice.
            (Place::Data(place, _), _) => unsafe { self.memory.read_data(place as usize + from, dst, len) },
            #[cfg(not(loom))]
            // SAFETY: as above.
            (Place::Bulk { at, .. }, Some((memory, _))) => unsafe {
                doorbell_fabric::copies::copy(memory.at(at).add(from), dst, len)
            },
            // A packet in its cell is never opened.
            _ => {}
        }
    }
}
