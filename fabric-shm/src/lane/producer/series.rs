//! Several messages of a producer at once, in bundles.

use super::{OWN_BEFORE, Producer, SPARE, describe, reveal};
use crate::copies::Copying;
use crate::lane::bundle::{BYTES_MOST, ENTRY_HEAD, MESSAGE_MOST, MESSAGES_MOST, entry_bytes};
use crate::lane::{BUNDLE, LaneMemory, check_word, word};
use doorbell_fabric::sync::{Ordering, planted_bug};

/// A message: its tag and its bytes.
type Message<'a> = (u64, &'a [u8]);

/// The next bundle.
struct Plan {
    /// The number of its messages.
    count: usize,
    /// Its length in the data ring.
    bytes: usize,
    /// Whether all messages have one tag and one length.
    is_uniform: bool,
}

impl Plan {
    /// The bundle of the first of these messages, of at most `most` bytes.
    #[inline(always)]
    fn of(messages: &[Message<'_>], most: usize) -> Self {
        let Some((first, rest)) = messages.split_first() else { return Self { count: 0, bytes: 0, is_uniform: true } };
        let (most, each) = (most.min(BYTES_MOST), entry_bytes(first.1.len()));
        let places = if first.1.len() <= MESSAGE_MOST { (most / each).min(MESSAGES_MOST) } else { 0 };
        let is_same = |message: &&Message<'_>| message.0 == first.0 && message.1.len() == first.1.len();
        let count = 1 + rest.iter().take(places.saturating_sub(1)).take_while(is_same).count();
        if count > 1 {
            return Self { count, bytes: count * each, is_uniform: true };
        }
        let (mut count, mut bytes) = (0, 0);
        for (_, message) in messages.iter().take(MESSAGES_MOST) {
            let more = ENTRY_HEAD + entry_bytes(message.len());
            if message.len() > MESSAGE_MOST || bytes + more > most {
                break;
            }
            (count, bytes) = (count + 1, bytes + more);
        }
        Self { count, bytes, is_uniform: false }
    }
}

impl<M: LaneMemory> Producer<M> {
    /// Pushes the first of these messages in bundles, each message a tag and its bytes, as long as at least two of them fit into a bundle,
    /// there is room, and none gets a time stamp. Returns their number and their bytes. The first one gets this sequence number.
    #[inline(always)]
    pub fn push_series(&mut self, sequence: u32, messages: &[Message<'_>]) -> (usize, u64)
    where
        M: Copy,
    {
        let (mut left, mut count, mut sum) = (messages, 0, 0);
        while left.len() > 1 && !(self.may_be_stamped() && self.is_stamp_due()) {
            let plan = Plan::of(left, self.most);
            if plan.count < 2 {
                break;
            }
            let (now, later) = left.split_at(plan.count);
            let Some(bytes) = self.push_bundle(sequence.wrapping_add(count as u32), now, &plan) else { break };
            (left, count, sum) = (later, count + plan.count, sum + bytes);
        }
        (count, sum)
    }

    /// Pushes a bundle. Returns the bytes of its messages. `None`: there is no room.
    #[inline(always)]
    fn push_bundle(&mut self, sequence: u32, messages: &[Message<'_>], plan: &Plan) -> Option<u64>
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
            self.tell_bundle(cell, sequence, messages, plan, place);
            reveal(&memory, cell, word::CHECK, check);
        }
        let ring = memory.data_bytes() - 1;
        let (mut at, mut sum) = (place as usize, 0);
        if plan.is_uniform && messages[0].1.len() == 8 {
            for (_, bytes) in messages {
                if at.is_multiple_of(64) {
                    // The lines of a later bundle come meanwhile.
                    memory.own_data((at + OWN_BEFORE as usize) & ring, 64);
                }
                // SAFETY: a slice of eight bytes; the bundle's bytes lie inside the ring and are not yet given to the consumer (place).
                unsafe { memory.write_data(at, bytes.as_ptr(), 8, Copying::Library) };
                at += 8;
            }
            sum = 8 * messages.len() as u64;
        } else {
            for (tag, bytes) in messages {
                memory.own_data((at + OWN_BEFORE as usize) & ring, bytes.len());
                // SAFETY: slices and words; as above.
                unsafe {
                    if !plan.is_uniform {
                        let head = [*tag, bytes.len() as u64];
                        memory.write_data(at, head.as_ptr().cast(), ENTRY_HEAD, Copying::Library);
                        at += ENTRY_HEAD;
                    }
                    memory.write_data(at, bytes.as_ptr(), bytes.len(), Copying::Library);
                }
                at += entry_bytes(bytes.len());
                sum += bytes.len() as u64;
            }
        }
        self.data.fill(place, plan.bytes);
        if place == 0 {
            self.ways.began();
        }
        self.tell_bundle(cell, sequence, messages, plan, place);
        reveal(&memory, cell, word::CHECK, check);
        self.tail = tail + 1;
        memory.own_cell((self.tail & mask) as usize);
        Some(sum)
    }

    /// Writes what the consumer has to know of a bundle beside its messages.
    #[inline(always)]
    fn tell_bundle(&self, cell: usize, sequence: u32, messages: &[Message<'_>], plan: &Plan, place: u64) {
        let (tag, len) = messages[0];
        let len = if plan.is_uniform { len.len() as u64 + 1 } else { 0 };
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
