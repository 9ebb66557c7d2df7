//! The messages of a run, from its reader's viewpoint.

#[cfg(not(loom))]
use super::FirstWord;
use super::{Consumer, Place, Seen};
use crate::lane::bundle::MESSAGE_MOST as SERIES_BYTES;
use crate::lane::run::{Ahead, CONTINUED_AT, CONTINUED_MOST, Run};
use crate::lane::{APPENDED, CONTINUED, LaneMemory, check_word};
use doorbell_fabric::sync::{Ordering, planted_bug};
use doorbell_fabric::{PacketHead, PacketKind};

/// What lies behind the last message.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(loom, allow(dead_code))]
pub(in crate::lane) enum Behind {
    /// An appended message of this length.
    Appended(usize),
    /// A message of this length that continues the run.
    Continued(usize),
    /// The same with a detached payload.
    Detached(usize),
    /// Something else: the first word of the first cell, XORed with the position that the next packet has. Or [`NOTHING`](Consumer::NOTHING),
    /// if an appended message has a length that no producer writes.
    Other(u64),
}

impl Behind {
    /// A message of this length that continues the run.
    #[inline(always)]
    fn in_cell(len: usize) -> Self {
        if len <= CONTINUED_MOST { Self::Continued(len) } else { Self::Detached(len) }
    }
}

impl<M: LaneMemory + Clone> Consumer<M> {
    /// The word where the next message of the run is likely to begin.
    #[inline(always)]
    pub(super) fn word_ahead(&self) -> u64 {
        // Acquire: pairs with PUBLISH.
        self.memory.nth_word(self.ahead.place()).load(Ordering::Acquire)
    }

    /// Whether a message of the run begins there.
    #[inline(always)]
    pub(super) fn is_run_ahead(&self) -> bool {
        self.ahead.len_by(self.word_ahead()).is_some()
    }

    /// The first word of a packet at this position that nobody takes. `examine` then says what is wrong with it.
    const NOTHING: u64 = 0xff << 32;

    /// Looks for the next message of the run.
    #[inline(always)]
    #[cfg_attr(loom, allow(dead_code))]
    pub(in crate::lane) fn look_behind(&self) -> Behind {
        if let Some(len) = self.ahead.len_by(self.word_ahead()) {
            return self.behind(len);
        }
        let rest = self.first_word() ^ check_word(self.head + 1, 0, 0);
        if !self.is_continued(rest) {
            return Behind::Other(rest);
        }
        // After that load: before the producer continued the run, it may have appended a message.
        if !planted_bug("run")
            && let Some(len) = self.ahead.len_by(self.word_ahead())
        {
            return self.behind(len);
        }
        Behind::in_cell((rest >> 40) as usize)
    }

    /// The same, without a look if the last [`watch`](Self::watch) has seen this word. The watch also looked for an appended message, and in
    /// the right order.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(super) fn look_or(&self, seen: Option<FirstWord>) -> Behind {
        let Some(FirstWord(check)) = seen else { return self.look_behind() };
        if let Some(len) = self.ahead.len_by(check) {
            return self.behind(len);
        }
        let rest = check ^ check_word(self.head + 1, 0, 0);
        if self.is_continued(rest) { Behind::in_cell((rest >> 40) as usize) } else { Behind::Other(rest) }
    }

    /// Whether the first packet continues the run. `rest` is its first word, XORed with the position that it has.
    #[inline(always)]
    #[cfg_attr(loom, allow(dead_code))]
    fn is_continued(&self, rest: u64) -> bool {
        rest << 24 == check_word(0, CONTINUED, 0) << 24 && self.ahead.position == self.head
    }

    /// The next message of the run, which begins at the word ahead and has this length.
    #[inline(always)]
    #[cfg_attr(loom, allow(dead_code))]
    fn behind(&self, len: usize) -> Behind {
        if self.ahead.is_in_next_cell() {
            Behind::in_cell(len)
        } else if self.ahead.has_room_for(len) {
            Behind::Appended(len)
        } else {
            Behind::Other(Self::NOTHING)
        }
    }

    /// The next message of the run, whose first word is this one, of this kind.
    pub(super) fn examine_of_run(&self, kind: u8, check: u64) -> Option<Seen> {
        let len = (check >> 40) as usize;
        let Ahead { position, tag, sequence, .. } = self.ahead;
        let place = match kind {
            // The whole word, as a cell's first word may have this kind, too: such a message would be taken without end.
            APPENDED => (self.ahead.len_by(check).is_some() && self.ahead.has_room_for(len)).then_some(Place::Appended),
            _ if len <= CONTINUED_MOST => Some(Place::Continued),
            _ => self.detached(len).map(Place::Detached),
        };
        let head = PacketHead { kind: PacketKind::Whole, tag, sequence, total: len as u64 };
        place.filter(|_| position == self.head).map(|place| Seen { head, len, stamp: 0, place })
    }

    /// The place of a detached payload of this length. `None` if no producer makes such a message.
    #[inline(always)]
    pub(super) fn detached(&self, len: usize) -> Option<u64> {
        let place = self.data.end();
        ((CONTINUED_MOST + 1..=SERIES_BYTES).contains(&len) && self.data.holds(place, len)).then_some(place)
    }

    /// Frees the payload of a detached message, and goes on behind the message. Returns true if a report is due.
    #[inline(always)]
    pub(super) fn leave_detached(&mut self, place: u64, len: usize) -> bool {
        self.last_len = len;
        let run = Run::behind_data(self.head + 1, self.ahead.tag, self.ahead.sequence);
        self.data.take(place, len) | self.leave_cell(run)
    }

    /// The run behind a message of `len` bytes that continues it.
    #[inline(always)]
    pub(super) fn continued(&self, len: usize) -> Run {
        Run::behind(self.head + 1, self.ahead.tag, self.ahead.sequence, CONTINUED_AT, len)
    }
}
