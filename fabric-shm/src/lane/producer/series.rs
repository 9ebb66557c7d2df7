//! Several messages of a producer at once.

use super::{OWN_BEFORE, Producer, SERIES_BYTES, describe, reveal, write_inline};
use crate::lane::{INLINE_BYTES, LaneMemory, check_word, word};
use doorbell_fabric::PacketKind;
use doorbell_fabric::sync::{Ordering, planted_bug};

/// The most messages of a series that are published together. The consumer then reads them while the producer writes others, and not
/// the line that the producer writes.
const GROUP: usize = if cfg!(loom) { 2 } else { 32 };

impl<M: LaneMemory> Producer<M> {
    /// Pushes the first of these messages, each a tag and its bytes, as long as they have at most 1 KiB, there is known
    /// room, and none gets a time stamp. Returns their number and their bytes. The first one gets this sequence number.
    #[inline(always)]
    pub fn push_series(&mut self, sequence: u32, messages: &[(u64, &[u8])]) -> (usize, u64)
    where
        M: Copy,
    {
        if self.may_be_stamped() && self.is_stamp_due() {
            return (0, 0);
        }
        // Copies, as in `push_whole`.
        let (memory, start) = (self.memory, self.tail);
        let (mut tail, mask) = (start, memory.cell_count() as u64 - 1);
        if tail - self.head_seen + messages.len() as u64 > mask {
            self.has_free_cell(mask);
        }
        let room = mask.saturating_sub(tail - self.head_seen);
        let unstamped = self.stamp_from - tail;
        let fill = |at: u64, place: u64, (tag, bytes): (u64, &[u8])| {
            let cell = (at & mask) as usize;
            if bytes.len() <= INLINE_BYTES {
                // SAFETY: a slice.
                unsafe { write_inline(&memory, cell, bytes.as_ptr(), bytes.len()) };
            } else {
                memory.cell_word(cell, word::PLACE).store(place, Ordering::Relaxed);
            }
            describe(&memory, cell, 0, tag, sequence.wrapping_add(at.wrapping_sub(start) as u32));
            check_word(at + 1, PacketKind::Whole as u8, bytes.len())
        };
        let (mut left, mut sum) = (&messages[..messages.len().min(room.min(unstamped) as usize)], 0);
        while let Some((first, rest)) = left.split_first() {
            let Some(place) = self.place_in_series(first.1) else { break };
            let (at, mut count) = (tail, 1);
            sum += first.1.len() as u64;
            // Too early: the cells behind it are written later.
            if planted_bug("group") {
                reveal(&memory, at, fill(at, place, *first));
            }
            for message in rest.iter().take(GROUP - 1) {
                let Some(place) = self.place_in_series(message.1) else { break };
                let at = at + count as u64;
                // The consumer looks there only after the first packet of the group.
                memory.cell_word((at & mask) as usize, word::CHECK).store(fill(at, place, *message), Ordering::Relaxed);
                memory.own_cell(((at + 1) & mask) as usize);
                (count, sum) = (count + 1, sum + message.1.len() as u64);
            }
            // The consumer waits for the first cell of a group. That line is written last and at once: written early, it would travel to
            // the consumer and back.
            reveal(&memory, at, fill(at, place, *first));
            tail += count as u64;
            memory.own_cell((tail & mask) as usize);
            let is_over = count < GROUP;
            left = &left[count..];
            if is_over {
                break;
            }
        }
        let count = tail - std::mem::replace(&mut self.tail, tail);
        (count as usize, sum)
    }

    /// Writes the payload of a message of a series into the data ring, unless it fits into its cell, and returns its place. `None`: it is
    /// too long, or there is no known room.
    #[inline(always)]
    fn place_in_series(&mut self, bytes: &[u8]) -> Option<u64> {
        let len = bytes.len();
        if len <= INLINE_BYTES {
            return Some(0);
        }
        if len > SERIES_BYTES {
            return None;
        }
        // SAFETY: a slice.
        let place = unsafe { self.write_short(bytes.as_ptr(), len)? };
        // The lines of a later one come meanwhile: without that a stream of 64 bytes goes at half the speed.
        let ring = self.memory.data_bytes() as u64 - 1;
        self.memory.own_data(((self.data.end() + OWN_BEFORE) & ring) as usize, len);
        Some(place)
    }
}
