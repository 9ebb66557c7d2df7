//! Messages that are read in place, by the path of most messages.

use super::run::Behind;
use super::{Consumer, FirstWord, Next, Place, Seen, SeriesEnd};
use crate::lane::conversation;
use crate::lane::run::{Ahead, Run};
use crate::lane::{BUNDLE, INLINE_BYTES, LaneMemory, REPORTED, RawMemory, SERIES_BYTES, check_word, word};
use doorbell_fabric::copies::Known;
use doorbell_fabric::sync::Ordering;
use doorbell_fabric::{PacketKind, Payload};

/// The longest payload that a waiting consumer prefetches.
const EXPECTED_MOST: usize = 64;
/// The same of a probable answer.
const EXPECTED_REPLY_MOST: usize = 512;

impl Consumer<RawMemory> {
    /// The number of messages that this thread has sent, if it has sent one since it left the last cell. Then the next packet is probably an
    /// answer.
    #[inline(always)]
    pub fn awaits_answer(&self) -> Option<u32> {
        let sent = conversation::messages_sent();
        (self.sent != sent).then_some(sent)
    }

    /// The bytes of the next payload whose lines are worth a prefetch at each look, or 0. Then they arrive together with the cell and not after
    /// it. A prefetch may take a line from a producer that is still writing it, so only few lines are worth it.
    #[inline(always)]
    pub fn expected_len(&self) -> usize {
        let most = if self.awaits_answer().is_some() { EXPECTED_REPLY_MOST } else { EXPECTED_MOST };
        if self.last_len <= most { self.last_len } else { 0 }
    }

    /// The place where the next payload probably lies.
    #[inline(always)]
    pub fn expected_at(&self) -> *const u8 {
        self.memory.data_at(self.data.expected() as usize)
    }

    /// Reads the first packet if it is a whole message of at most `most` bytes with this sequence number, without a time stamp, and
    /// accepted: `read` gets its tag and its payload. The path of most messages. `seen` is its first word if the
    /// last [`watch`](Self::watch) has seen it. If `read` panics, the message stays the first one.
    #[inline(always)]
    pub fn read_next(
        &mut self,
        seen: Option<FirstWord>,
        sequence: u32,
        most: usize,
        accepts: impl FnOnce(u64) -> bool,
        read: impl FnOnce(u64, Payload<'_>),
    ) -> Option<Next> {
        let rest = match self.look_or(seen) {
            Behind::Other(rest) => rest,
            Behind::Appended(len) => {
                let tag = self.ahead.tag;
                if len > most || self.ahead.sequence != sequence || !accepts(tag) {
                    return None;
                }
                // SAFETY: `look_or` checked that the payload lies in its cell, which is mapped as long as the memory (RawMemory::new).
                // The producer does not get it back before `tell`, nor before this end has left the next cell (SPARE).
                read(tag, unsafe { self.payload_at(Place::Appended, len) });
                self.pass_appended(len);
                return Some(Next { tag, len, rings: false });
            }
            Behind::Continued(len) => {
                let tag = self.ahead.tag;
                if len > most || self.ahead.sequence != sequence || !accepts(tag) {
                    return None;
                }
                // SAFETY: as above.
                read(tag, unsafe { self.payload_at(Place::Continued, len) });
                let rings = self.leave_cell(self.continued(len)) && self.tell();
                return Some(Next { tag, len, rings });
            }
            Behind::Detached(len) => {
                let tag = self.ahead.tag;
                if len > most || self.ahead.sequence != sequence || !accepts(tag) {
                    return None;
                }
                let place = self.detached(len)?;
                // SAFETY: the payload lies in the data ring (`detached`); as above.
                read(tag, unsafe { Payload::from_raw(self.memory.data_at(place as usize), len) });
                let rings = self.leave_detached(place, len) && self.tell();
                return Some(Next { tag, len, rings });
            }
        };
        // Copies, which the compiler need not read again after `read` is called.
        let (memory, head) = (self.memory, self.head);
        let cell = self.cell();
        let len = (rest >> 40) as usize;
        // Another sequence number has a message behind one that was appended after the look.
        if rest << 24 != check_word(0, PacketKind::Whole as u8, 0) << 24
            || len > most
            || memory.cell_word(cell, word::SEQUENCE).load(Ordering::Relaxed) != u64::from(sequence)
        {
            return None;
        }
        let tag = memory.cell_word(cell, word::TAG).load(Ordering::Relaxed);
        if !accepts(tag) {
            return None;
        }
        let rings = if len <= INLINE_BYTES {
            // SAFETY: as above.
            read(tag, unsafe { Payload::from_raw(memory.word_at(cell, word::PAYLOAD), len) });
            self.leave_cell(Run::behind(head + 1, tag, sequence, word::PAYLOAD, len)) && self.tell()
        } else if len <= SERIES_BYTES {
            let told = memory.cell_word(cell, word::PLACE).load(Ordering::Relaxed);
            let place = told & !REPORTED;
            // This also refuses a place in the bulk ring.
            if !self.data.holds(place, len) {
                return None;
            }
            // SAFETY: the payload lies in the data ring (checked); as above.
            read(tag, unsafe { Payload::from_raw(memory.data_at(place as usize), len) });
            self.last_len = len;
            let run = Run::behind_data(head + 1, tag, sequence);
            let is_due = self.data.take(place, len) | (told != place) | self.leave_cell(run);
            is_due && self.tell()
        } else {
            let place = self.place(len, false)?;
            // SAFETY: `place` returned this place, and nothing was taken since.
            read(tag, unsafe { self.payload_at(place, len) });
            self.leave(place, len, Run::NONE)
        };
        Some(Next { tag, len, rings })
    }

    /// Reads whole messages of at most 1 KiB, one behind the other, up to `limit`: `read` gets tag, sequence number and
    /// payload of each. The first one must have this sequence number. Stops before a message that has another, carries a time stamp,
    /// or is not accepted, and where the producer waits for room. Returns their number. If `read` panics, its message stays the first one.
    /// `seen` is as for [`read_next`](Self::read_next).
    #[inline(always)]
    #[must_use]
    pub fn read_series(
        &mut self,
        mut seen: Option<FirstWord>,
        sequence: u32,
        limit: u64,
        accepts: impl Fn(u64) -> bool,
        mut read: impl FnMut(u64, u32, Payload<'_>),
    ) -> (u64, SeriesEnd) {
        let mut count = 0;
        loop {
            let next = sequence.wrapping_add(count as u32);
            let (more, end) = self.read_cells(seen.take(), next, limit - count, &accepts, &mut read);
            count += more;
            if end != SeriesEnd::Other || count == limit {
                return (count, end);
            }
            let check = self.first_word();
            if check << 24 != check_word(self.head + 1, BUNDLE, 0) << 24 {
                return (count, end);
            }
            let next = sequence.wrapping_add(count as u32);
            let (more, left) = self.read_bundle((check >> 40) as usize, next, limit - count, &accepts, &mut read);
            count += more;
            match left {
                Some(is_due) if is_due && self.tell() => return (count, SeriesEnd::Rings),
                Some(_) if count < limit => {}
                _ => return (count, SeriesEnd::Other),
            }
        }
    }

    /// The same for messages in cells.
    #[inline(always)]
    fn read_cells(
        &mut self,
        seen: Option<FirstWord>,
        sequence: u32,
        limit: u64,
        accepts: impl Fn(u64) -> bool,
        mut read: impl FnMut(u64, u32, Payload<'_>),
    ) -> (u64, SeriesEnd) {
        // Copies, which the compiler need not read again after each call.
        let (memory, mask) = (self.memory, self.memory.cell_count() as u64 - 1);
        let (mut count, mut behind) = (0, self.look_or(seen));
        while count < limit {
            let expected = sequence.wrapping_add(count as u32);
            let is_due = match behind {
                Behind::Appended(len) | Behind::Continued(len) => {
                    let Ahead { tag, sequence: next, .. } = self.ahead;
                    if next != expected || !accepts(tag) {
                        return (count, SeriesEnd::Other);
                    }
                    let is_appended = matches!(behind, Behind::Appended(_));
                    let place = if is_appended { Place::Appended } else { Place::Continued };
                    // SAFETY: as in `read_next`.
                    read(tag, expected, unsafe { self.payload_at(place, len) });
                    if is_appended {
                        self.pass_appended(len);
                        false
                    } else {
                        self.leave_cell(self.continued(len))
                    }
                }
                Behind::Detached(len) => {
                    let Ahead { tag, sequence: next, .. } = self.ahead;
                    let Some(place) = self.detached(len) else { return (count, SeriesEnd::Other) };
                    if next != expected || !accepts(tag) {
                        return (count, SeriesEnd::Other);
                    }
                    // SAFETY: the payload lies in the data ring (`detached`); as in `read_next`.
                    read(tag, expected, unsafe { Payload::from_raw(memory.data_at(place as usize), len) });
                    self.leave_detached(place, len)
                }
                Behind::Other(rest) => {
                    let cell = (self.head & mask) as usize;
                    let len = (rest >> 40) as usize;
                    if rest as u32 != 0 {
                        return (count, SeriesEnd::Empty);
                    }
                    let is_whole = rest << 24 == check_word(0, PacketKind::Whole as u8, 0) << 24;
                    // Another sequence number has a message behind one that was appended after the look.
                    if !is_whole
                        || len > SERIES_BYTES
                        || memory.cell_word(cell, word::SEQUENCE).load(Ordering::Relaxed) != u64::from(expected)
                    {
                        return (count, SeriesEnd::Other);
                    }
                    let tag = memory.cell_word(cell, word::TAG).load(Ordering::Relaxed);
                    if !accepts(tag) {
                        return (count, SeriesEnd::Other);
                    }
                    let (run, is_due) = if len <= INLINE_BYTES {
                        // SAFETY: the payload lies in its cell (checked), which is mapped as long as the memory (RawMemory::new). The
                        // producer does not get it back before `tell`.
                        read(tag, expected, unsafe { Payload::from_raw(memory.word_at(cell, word::PAYLOAD), len) });
                        (Run::behind(self.head + 1, tag, expected, word::PAYLOAD, len), false)
                    } else {
                        let place = memory.cell_word(cell, word::PLACE).load(Ordering::Relaxed);
                        let (place, reported) = (place & !REPORTED, place & REPORTED != 0);
                        // This also refuses a place in the bulk ring.
                        if !self.data.holds(place, len) {
                            return (count, SeriesEnd::Other);
                        }
                        // SAFETY: the payload lies in the data ring (checked); as above.
                        read(tag, expected, unsafe { Payload::from_raw(memory.data_at(place as usize), len) });
                        self.last_len = len;
                        (Run::behind_data(self.head + 1, tag, expected), self.data.take(place, len) | reported)
                    };
                    is_due | self.leave_cell(run)
                }
            };
            count += 1;
            if is_due && self.tell() {
                return (count, SeriesEnd::Rings);
            }
            if count < limit {
                behind = self.look_behind();
            }
        }
        (count, SeriesEnd::Other)
    }

    /// The payload of the first packet, in place.
    ///
    /// # Safety
    /// `seen` comes from the latest `peek`, and nothing is taken while the payload lives.
    #[inline(always)]
    pub unsafe fn payload(&self, seen: &Seen) -> Payload<'_> {
        let is_long = match seen.head.kind {
            PacketKind::First => self.begins_long(seen),
            PacketKind::Next => self.is_long,
            _ => false,
        };
        // SAFETY: caller.
        let payload = unsafe { self.payload_at(seen.place, seen.len) };
        match seen.place {
            Place::Bulk { streamed: false, .. } if is_long => payload.with(Known::Long),
            _ => payload,
        }
    }

    /// The `len` payload bytes of the first packet at `place`, in place.
    ///
    /// # Safety
    /// `place` is the [place](Self::place) of `len` bytes of the first packet, and nothing is taken while the payload lives.
    #[inline(always)]
    pub unsafe fn payload_at(&self, place: Place, len: usize) -> Payload<'_> {
        let ptr = match place {
            Place::Inline | Place::Appended | Place::Continued => self.memory.nth_word_at(self.word_of(place)),
            Place::Data(place, _) | Place::Detached(place) => self.memory.data_at(place as usize),
            Place::Bundle(entry) => self.memory.data_at(entry.offset()),
            // Without a ring there is no such place.
            Place::Bulk { at, .. } => self.bulk.as_ref().map_or(std::ptr::null(), |(memory, _)| memory.at(at)),
        };
        // SAFETY: `place` checked that the bytes lie in the lane, which is mapped as long as its memory (RawMemory::new).
        let payload = unsafe { Payload::from_raw(ptr, len) };
        if matches!(place, Place::Bulk { streamed: true, .. }) { payload.with(Known::Streamed) } else { payload }
    }
}
