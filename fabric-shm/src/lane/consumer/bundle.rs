//! The messages of a bundle, from its reader's viewpoint.

use super::{Consumer, Place, Seen};
use crate::lane::bundle::{BYTES_MOST, ENTRY_HEAD, MESSAGES_MOST, entry_bytes};
use crate::lane::run::Run;
use crate::lane::{LaneMemory, word};
use doorbell_fabric::sync::Ordering;
use doorbell_fabric::{PacketHead, PacketKind};

/// The progress within the bundle in the first cell.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Begun {
    /// The messages that were taken.
    pub taken: u32,
    /// Where the next one begins in the bundle.
    pub at: u16,
}

/// The place of a message of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The bundle's offset in the data ring, and its length. The types are small, because each look at a packet returns a place.
    place: u32,
    bytes: u16,
    /// Where the payload begins in the bundle, and where the next message does.
    from: u16,
    next: u16,
    is_last: bool,
}

impl Entry {
    /// The payload's offset in the data ring.
    pub(in crate::lane) fn offset(&self) -> usize {
        self.place as usize + self.from as usize
    }
}

/// The words of a bundle's cell, in private memory and checked.
#[derive(Clone, Copy)]
pub(super) struct Bundle {
    place: u32,
    bytes: u16,
    tag: u64,
    /// The sequence number of the first message.
    sequence: u32,
    count: u32,
    /// The length of all messages. `None`: each states its tag and its length.
    len: Option<usize>,
}

impl<M: LaneMemory + Clone> Consumer<M> {
    /// The bundle in the first cell, whose first word has this length. `None` if no producer writes it so.
    #[inline(always)]
    pub(super) fn bundle(&self, bytes: usize) -> Option<Bundle> {
        let load = |index| self.memory.cell_word(self.cell(), index).load(Ordering::Relaxed);
        let (place, sequence, len) = (load(word::PLACE), load(word::SEQUENCE), load(word::LENGTH));
        let count = (sequence >> 32) as u32;
        let is_sound = bytes <= BYTES_MOST
            && self.data.holds(place, bytes)
            && (1..=MESSAGES_MOST as u32).contains(&count)
            && len <= bytes as u64 + 1;
        let bundle = Bundle {
            place: u32::try_from(place).ok()?,
            bytes: bytes as u16,
            tag: load(word::TAG),
            sequence: sequence as u32,
            count,
            len: (len as usize).checked_sub(1),
        };
        is_sound.then_some(bundle)
    }

    /// The next message of a bundle that is begun: its tag, its sequence number, its length and its place. `None` if the bundle has no such
    /// message.
    #[inline(always)]
    pub(super) fn next_in(&self, bundle: &Bundle, begun: Begun) -> Option<(u64, u32, usize, Entry)> {
        let Bundle { place, bytes, count, .. } = *bundle;
        let whole = bytes as usize;
        let (tag, len, from) = match bundle.len {
            Some(len) => (bundle.tag, len, begun.at as usize),
            None => {
                let from = begun.at as usize + ENTRY_HEAD;
                if from > whole {
                    return None;
                }
                let mut head = [0_u64; 2];
                // SAFETY: the ring has the bundle's bytes (`bundle`), of which these are.
                unsafe { self.memory.read_data(place as usize + begun.at as usize, head.as_mut_ptr().cast(), ENTRY_HEAD) };
                (head[0], usize::try_from(head[1]).ok()?, from)
            }
        };
        if begun.taken >= count || from > whole || len > whole - from {
            return None;
        }
        let next = (from + entry_bytes(len)) as u16;
        let entry = Entry { place, bytes, from: from as u16, next, is_last: begun.taken + 1 == count };
        Some((tag, bundle.sequence.wrapping_add(begun.taken), len, entry))
    }

    /// The next message of the bundle in the first cell.
    #[cold]
    pub(super) fn examine_bundle(&self, bytes: usize) -> Option<Seen> {
        let bundle = self.bundle(bytes)?;
        let (tag, sequence, len, entry) = self.next_in(&bundle, self.begun)?;
        let head = PacketHead { kind: PacketKind::Whole, tag, sequence, total: len as u64 };
        Some(Seen { head, len, stamp: 0, place: Place::Bundle(entry) })
    }

    /// Goes on behind a message. Returns true if a report is due.
    #[inline(always)]
    pub(super) fn leave_entry(&mut self, entry: Entry) -> bool {
        if !entry.is_last {
            self.begun = Begun { taken: self.begun.taken + 1, at: entry.next };
            return false;
        }
        self.begun = Begun::default();
        self.last_len = usize::MAX;
        self.data.take(u64::from(entry.place), entry.bytes.into()) | self.leave_cell(Run::NONE)
    }
}

#[cfg(not(loom))]
impl Consumer<crate::lane::RawMemory> {
    /// Reads messages of the bundle in the first cell, as [`read_series`](Self::read_series) does: up to `limit`. Returns how many, and
    /// whether that is all of it. Then it is left, and a report may be due.
    #[inline(never)]
    pub(super) fn read_bundle(
        &mut self,
        bytes: usize,
        sequence: u32,
        limit: u64,
        accepts: impl Fn(u64) -> bool,
        mut read: impl FnMut(u64, u32, doorbell_fabric::Payload<'_>),
    ) -> (u64, Option<bool>) {
        let Some(bundle) = self.bundle(bytes) else { return (0, None) };
        let memory = self.memory;
        let mut count = 0;
        if let Some(len) = bundle.len {
            let each = entry_bytes(len);
            let end = bundle.count.min(self.begun.taken.saturating_add(u32::try_from(limit).unwrap_or(u32::MAX)));
            let first = self.begun.taken;
            let fits = (end as usize * each).saturating_sub(each) + len <= bytes;
            if !fits || !accepts(bundle.tag) || sequence != bundle.sequence.wrapping_add(first) {
                return (0, None);
            }
            let mut begun = Progress(&mut self.begun, first, each);
            while begun.1 < end {
                let offset = bundle.place as usize + begun.1 as usize * each;
                // SAFETY: all messages of the bundle up to `end` lie in it (checked), and it in the data ring (`bundle`), which is mapped as
                // long as the memory (RawMemory::new). The producer does not get it back before `tell`.
                let payload = unsafe { doorbell_fabric::Payload::from_raw(memory.data_at(offset), len) };
                read(bundle.tag, bundle.sequence.wrapping_add(begun.1), payload);
                begun.1 += 1;
            }
            drop(begun);
            count = u64::from(end.saturating_sub(first));
            if end < bundle.count {
                return (count, None);
            }
            let last = Entry { place: bundle.place, bytes: bundle.bytes, from: 0, next: 0, is_last: true };
            return (count, Some(self.leave_entry(last)));
        }
        while count < limit {
            let Some((tag, number, len, entry)) = self.next_in(&bundle, self.begun) else { return (count, None) };
            if number != sequence.wrapping_add(count as u32) || !accepts(tag) {
                return (count, None);
            }
            // SAFETY: the payload lies in the data ring (`next_in`), which is mapped as long as the memory (RawMemory::new). The producer
            // does not get it back before `tell`.
            read(tag, number, unsafe { doorbell_fabric::Payload::from_raw(memory.data_at(entry.offset()), len) });
            count += 1;
            let is_due = self.leave_entry(entry);
            if entry.is_last {
                return (count, Some(is_due));
            }
        }
        (count, None)
    }
}

/// Writes the progress within a bundle of equal messages back, also when their reader panics: their number, and the bytes of each.
#[cfg(not(loom))]
struct Progress<'a>(&'a mut Begun, u32, usize);

#[cfg(not(loom))]
impl Drop for Progress<'_> {
    fn drop(&mut self) {
        *self.0 = Begun { taken: self.1, at: (self.1 as usize * self.2) as u16 };
    }
}
