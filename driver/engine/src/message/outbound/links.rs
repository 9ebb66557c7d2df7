//! The links of a send queue: which there are, and how much each has carried.

use super::OutState;
use super::{LOOK_EVERY, MANY};
use crate::links::AnyLink;
use crate::mode::LinkMetrics;
use doorbell_fabric::world;

impl OutState {
    /// The link with this number.
    #[inline]
    pub fn by(&mut self, by: u8) -> Option<&mut AnyLink> {
        match usize::from(by).checked_sub(1) {
            None => self.link.as_mut(),
            Some(at) => self.further.get_mut(at)?.as_mut(),
        }
    }

    /// Whether the link with this number has been opened.
    pub fn has(&self, by: u8) -> bool {
        match usize::from(by).checked_sub(1) {
            None => self.link.is_some(),
            Some(at) => self.further.get(at).is_some_and(Option::is_some),
        }
    }

    /// The link to which the next message is bound.
    pub fn bound(&self) -> Option<u8> {
        self.bound
    }

    /// Whether it is time to look for further links. Looking takes longer than everything else that a send does.
    pub fn looks(&mut self) -> bool {
        self.looked = self.looked.wrapping_add(1);
        self.looked % LOOK_EVERY == 1
    }

    /// The present figures of a link, or the latest ones if it can't be read now. `None`: there is no such link. `transfers`:
    /// how many use the link, and how many have ended.
    pub fn metrics(&mut self, by: u8, transfers: (u32, u32)) -> Option<LinkMetrics> {
        let seen = self.by(by)?.metrics();
        let at = usize::from(by);
        let (last, moved) = (self.metrics.get_mut(at)?, self.moved.get_mut(at)?);
        let Some(mut seen) = seen else { return Some(*last) };
        let (underway, ended) = transfers;
        seen.transfers = underway;
        let has_ended = std::mem::replace(&mut self.ended[at], ended) != ended;
        // A link that is half full, or has many packets or transfers, is watched more closely, which reads the clock.
        if seen.occupancy() < 500 && seen.depth < MANY && underway == 0 {
            *moved = None;
        } else {
            let now = world::now();
            let has_taken = has_ended || seen.depth < last.depth || seen.bytes < last.bytes;
            let since = *moved.get_or_insert(now);
            *moved = Some(if has_taken { now } else { since });
            seen.still = moved.map_or(0, |moved| (now - moved).as_micros().min(u32::MAX.into()) as u32);
        }
        *last = seen;
        Some(seen)
    }

    /// Adds a link beside the first.
    pub fn add(&mut self, by: u8, link: AnyLink) {
        let Some(at) = usize::from(by).checked_sub(1) else { return };
        if self.further.len() <= at {
            self.further.resize_with(at + 1, || None);
        }
        self.further[at] = Some(link);
    }

    /// Allows the target to request parts of a message over further links, and to wait for them there.
    pub fn offer_further(&mut self) {
        self.used_further = true;
    }

    /// Counts a part of a message for the link that carried it, instead of the link for which it was counted.
    pub fn part_went(&mut self, counted: u8, by: u8, bytes: u64) {
        let [less, more] = [counted, by].map(usize::from);
        self.beside[less].1 = self.beside[less].1.wrapping_sub(bytes);
        self.beside[more].1 = self.beside[more].1.wrapping_add(bytes);
    }

    /// Whether anything was sent over a further link to this incarnation of the target.
    pub fn used_further(&self) -> bool {
        self.used_further
    }

    /// Forgets the further links, over which nothing was sent.
    pub fn drop_further(&mut self) {
        self.further.clear();
    }

    /// Uses up a number of the message order.
    #[inline(always)]
    pub(super) fn used_up(&mut self, messages: u64, bytes: u64) {
        self.sequence = self.sequence.wrapping_add(1);
        self.carried.add(messages, bytes);
    }

    /// The same, for a link to which the message may have been bound.
    pub(super) fn used_up_by(&mut self, by: u8, bytes: u64) {
        debug_assert!(self.bound.is_none_or(|bound| bound == by), "its number is known to another link");
        self.used_up(1, bytes);
        if by != 0 {
            self.went_beside(by, 1, bytes);
        }
        if self.bound.take().is_some() {
            self.recount();
        }
    }

    /// Counts for another link what was counted for the first one.
    pub(super) fn went_beside(&mut self, by: u8, messages: u64, bytes: u64) {
        self.used_further |= messages + bytes > 0;
        let first = &mut self.beside[0];
        *first = (first.0.wrapping_sub(messages), first.1.wrapping_sub(bytes));
        let it = &mut self.beside[usize::from(by)];
        *it = (it.0.wrapping_add(messages), it.1.wrapping_add(bytes));
    }

    /// The messages sent over a link to this incarnation of the target, and their bytes, including those moved by DMA.
    pub fn sent_by(&self, by: u8) -> (u64, u64) {
        let (messages, bytes) = self.beside[usize::from(by)];
        let (all, all_bytes) = if by == 0 { self.carried.read() } else { (0, 0) };
        (all.wrapping_add(messages), all_bytes.wrapping_add(bytes))
    }

    /// How many messages wait in the queue for room on a link.
    pub fn queued_by(&self, by: u8) -> usize {
        self.queue.iter().filter(|send| send.far.by == by).count()
    }
}
