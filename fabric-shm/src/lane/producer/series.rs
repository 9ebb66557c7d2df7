//! Several messages of a producer at once, in bundles.

use super::{Producer, SPARE, describe, reveal};
use crate::lane::bundle::{BYTES_MOST, ENTRY_HEAD, MESSAGE_MOST, MESSAGES_MOST, entry_bytes};
use crate::lane::{BUNDLE, LaneMemory, check_word, word};
use doorbell_fabric::copies::Copying;
use doorbell_fabric::sync::{Ordering, planted_bug};
use std::num::NonZeroUsize;

/// `push_bundle` relies on the numbers and lengths that a [`Series`] states. So only this file implements it.
mod sealed {
    pub trait Sealed {}
    impl Sealed for &[(u64, &[u8])] {}
    impl Sealed for super::Chunks<'_> {}
}

/// Messages that one call sends: a list, or [`Chunks`].
pub trait Series<'a>: sealed::Sealed + Copy {
    /// The first message: its tag and its bytes.
    fn first(self) -> Option<(u64, &'a [u8])>;

    /// The messages behind the first `count`, of which there are as many at least.
    #[must_use]
    fn behind(self, count: usize) -> Self;

    /// Calls `each` for the first `count` messages, of which there are as many at least: with the tag and the bytes.
    fn for_first(self, count: usize, each: impl FnMut(u64, &'a [u8]));

    /// How many of the first `most` messages have the tag and the length of the first one, which always counts.
    fn alike(self, most: usize) -> usize;

    /// The bytes of the first `count` messages, which are alike, if they lie in memory as in a bundle.
    fn in_one_piece(self, count: usize) -> Option<&'a [u8]>;
}

/// A list: the tag and the bytes of each message.
impl<'a> Series<'a> for &'a [(u64, &'a [u8])] {
    #[inline(always)]
    fn first(self) -> Option<(u64, &'a [u8])> {
        <[_]>::first(self).copied()
    }

    #[inline(always)]
    fn behind(self, count: usize) -> Self {
        &self[count..]
    }

    #[inline(always)]
    fn for_first(self, count: usize, mut each: impl FnMut(u64, &'a [u8])) {
        self[..count].iter().for_each(|(tag, bytes)| each(*tag, bytes));
    }

    #[inline(always)]
    fn alike(self, most: usize) -> usize {
        let Some((first, rest)) = self.split_first() else { return 0 };
        let is_same = |message: &&(u64, &[u8])| message.0 == first.0 && message.1.len() == first.1.len();
        1 + rest.iter().take(most.saturating_sub(1)).take_while(is_same).count()
    }

    #[inline(always)]
    fn in_one_piece(self, _: usize) -> Option<&'a [u8]> {
        None
    }
}

/// Messages of one tag whose bytes lie one behind the other. All have the same length, and the last one may be shorter.
#[derive(Clone, Copy, Debug)]
pub struct Chunks<'a> {
    tag: u64,
    len: NonZeroUsize,
    bytes: &'a [u8],
}

impl<'a> Chunks<'a> {
    /// Messages of `len` bytes.
    #[inline(always)]
    pub fn new(tag: u64, len: NonZeroUsize, bytes: &'a [u8]) -> Self {
        Self { tag, len, bytes }
    }
}

impl<'a> Series<'a> for Chunks<'a> {
    #[inline(always)]
    fn first(self) -> Option<(u64, &'a [u8])> {
        (!self.bytes.is_empty()).then(|| (self.tag, &self.bytes[..self.len.get().min(self.bytes.len())]))
    }

    #[inline(always)]
    fn behind(self, count: usize) -> Self {
        // The last one may be shorter.
        let sent = self.len.get().saturating_mul(count).min(self.bytes.len());
        Self { bytes: &self.bytes[sent..], ..self }
    }

    #[inline(always)]
    fn for_first(self, count: usize, mut each: impl FnMut(u64, &'a [u8])) {
        self.bytes.chunks(self.len.get()).take(count).for_each(|bytes| each(self.tag, bytes));
    }

    #[inline(always)]
    fn alike(self, most: usize) -> usize {
        let is_long_enough = |most: usize| self.len.get().checked_mul(most).is_some_and(|bytes| bytes <= self.bytes.len());
        // Most calls spare the division.
        if is_long_enough(most) { most.max(1) } else { (self.bytes.len() / self.len).max(1) }
    }

    #[inline(always)]
    fn in_one_piece(self, count: usize) -> Option<&'a [u8]> {
        if self.len.get() == entry_bytes(self.len.get()) { self.bytes.get(..self.len.get() * count) } else { None }
    }
}

/// The next bundle.
struct Plan {
    /// The number of its messages.
    count: usize,
    /// Its length in the data ring.
    bytes: usize,
    /// The length of all messages, if all have one tag and one length.
    each: Option<usize>,
}

impl Plan {
    /// The bundle of the first of these messages, of at most `most` bytes.
    #[inline(always)]
    fn of<'a>(messages: impl Series<'a>, most: usize) -> Self {
        let Some((_, first)) = messages.first() else { return Self { count: 0, bytes: 0, each: None } };
        let (most, entry) = (most.min(BYTES_MOST), entry_bytes(first.len()));
        let places = if first.len() <= MESSAGE_MOST { (most / entry).min(MESSAGES_MOST) } else { 0 };
        let count = messages.alike(places);
        if count > 1 {
            return Self { count, bytes: count * entry, each: Some(first.len()) };
        }
        let (mut count, mut bytes, mut rest) = (0, 0, messages);
        while let Some((_, message)) = rest.first() {
            let more = ENTRY_HEAD + entry_bytes(message.len());
            if count == MESSAGES_MOST || message.len() > MESSAGE_MOST || bytes + more > most {
                break;
            }
            (count, bytes, rest) = (count + 1, bytes + more, rest.behind(1));
        }
        Self { count, bytes, each: None }
    }
}

impl<M: LaneMemory> Producer<M> {
    /// Pushes the first of these messages in bundles, as long as at least two of them fit into a bundle, there is room, and none gets a
    /// time stamp. Returns their number and their bytes. The first one gets this sequence number.
    #[inline(always)]
    pub fn push_series<'a>(&mut self, sequence: u32, messages: impl Series<'a>) -> (usize, u64)
    where
        M: Copy,
    {
        let (mut left, mut count, mut sum) = (messages, 0, 0);
        while let Some((tag, _)) = left.first() {
            let plan = Plan::of(left, self.most);
            if plan.count < 2 || self.may_be_stamped() && self.is_stamp_due() {
                break;
            }
            let Some(bytes) = self.push_bundle(sequence.wrapping_add(count as u32), tag, left, &plan) else { break };
            (left, count, sum) = (left.behind(plan.count), count + plan.count, sum + bytes);
        }
        (count, sum)
    }

    /// Pushes a bundle of the first of these messages. The first one has this tag. Returns the bytes of its messages. `None`: there is no
    /// room.
    #[inline(always)]
    fn push_bundle<'a>(&mut self, sequence: u32, tag: u64, messages: impl Series<'a>, plan: &Plan) -> Option<u64>
    where
        M: Copy,
    {
        // Copies, as in `push_next`.
        let (memory, tail) = (self.memory, self.tail);
        let mask = memory.cell_count() as u64 - 1;
        let room = mask + 1 - SPARE;
        if tail - self.head_seen >= room && !self.has_free_cell(room) {
            return None;
        }
        let place = self.data.place(plan.bytes).or_else(|| self.place_after_look(plan.bytes))?;
        let (cell, check) = ((tail & mask) as usize, check_word(tail + 1, BUNDLE, plan.bytes));
        // Too early: the consumer may read what is not written.
        if planted_bug("bundle") {
            self.tell_bundle(cell, sequence, tag, plan, place);
            reveal(&memory, cell, word::CHECK, check);
        }
        let (mut at, mut sum) = (place as usize, 0);
        if let Some(bytes) = plan.each.and_then(|_| messages.in_one_piece(plan.count)) {
            debug_assert_eq!(bytes.len(), plan.bytes);
            // SAFETY: a slice as long as the bundle, whose bytes lie inside the ring and are not yet given to the consumer (place).
            unsafe { memory.write_data(at, bytes.as_ptr(), bytes.len(), Copying::Library) };
            sum = bytes.len() as u64;
        } else if plan.each == Some(8) {
            messages.for_first(plan.count, |_, bytes| {
                // SAFETY: a slice of eight bytes (`Series::alike`); as above.
                unsafe { memory.write_data(at, bytes.as_ptr(), 8, Copying::Library) };
                at += 8;
            });
            sum = 8 * plan.count as u64;
        } else {
            messages.for_first(plan.count, |tag, bytes| {
                // SAFETY: slices and words; as above.
                unsafe {
                    if plan.each.is_none() {
                        let head = [tag, bytes.len() as u64];
                        memory.write_data(at, head.as_ptr().cast(), ENTRY_HEAD, Copying::Library);
                        at += ENTRY_HEAD;
                    }
                    memory.write_data(at, bytes.as_ptr(), bytes.len(), Copying::Library);
                }
                at += entry_bytes(bytes.len());
                sum += bytes.len() as u64;
            });
        }
        self.data.fill(place, plan.bytes);
        if place == 0 {
            self.ways.began();
        }
        self.tell_bundle(cell, sequence, tag, plan, place);
        reveal(&memory, cell, word::CHECK, check);
        self.tail = tail + 1;
        self.own_at(self.data.end(), plan.bytes);
        Some(sum)
    }

    /// Writes what the consumer has to know of a bundle beside its messages.
    #[inline(always)]
    fn tell_bundle(&self, cell: usize, sequence: u32, tag: u64, plan: &Plan, place: u64) {
        let len = plan.each.map_or(0, |len| len as u64 + 1);
        self.memory.cell_word(cell, word::PLACE).store(place, Ordering::Relaxed);
        self.memory.cell_word(cell, word::LENGTH).store(len, Ordering::Relaxed);
        describe(&self.memory, cell, plan.count as u32, tag, sequence);
    }

    /// The place of so many bytes, if the consumer has made room since the last look.
    #[cold]
    #[inline(never)]
    fn place_after_look(&mut self, bytes: usize) -> Option<u64> {
        self.see_head().ok()?;
        self.data.place(bytes)
    }
}
