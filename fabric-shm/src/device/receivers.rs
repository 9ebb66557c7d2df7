//! The receiving threads: which thread has which slot.

use super::held::Held;
use super::words::View;
use super::{MOST, STORED_MOST};
use crate::keys::OwnerId;
use doorbell_fabric::sync::Ordering;
use doorbell_fabric::{Incarnation, NodeId};

/// How often a slot changes hands before its owners' numbers repeat.
const GENERATIONS: u64 = (OwnerId::NUMBERS as usize / MOST) as u64;

impl Held<'_> {
    /// Makes a thread the receiver for a thread id. `tid` is the system's number of the thread. Returns its slot and its new
    /// identification. `None` if the device serves as many threads as it can; the inner error is the owner that has the id.
    pub fn attach(
        &self,
        thread: u32,
        (node, incarnation): (NodeId, Incarnation),
        tid: u64,
    ) -> Option<Result<(usize, OwnerId), OwnerId>> {
        let slot = self.slot_for(thread).or_else(|| {
            self.evict();
            self.name_free(thread)
        })?;
        let words = &self.view.slots[slot];
        if let Some(other) = OwnerId::from_bits(words.owner.load(Ordering::Acquire)) {
            return Some(Err(other));
        }
        words.tid.store(tid, Ordering::Relaxed);
        let owner = self.view.next_owner(slot, node, incarnation);
        words.owner.store(owner.bits(), Ordering::Release);
        Some(Ok((slot, owner)))
    }

    /// Ends receiving by a slot, if `owner` still has it with this system thread. Stored messages wait for the next thread of
    /// the id, up to the limit.
    pub fn detach(&self, slot: usize, owner: OwnerId, tid: u64) {
        let words = &self.view.slots[slot];
        if words.owner.load(Ordering::Relaxed) == owner.bits() && self.view.move_tid(slot, tid, 0) {
            words.owner.store(0, Ordering::Release);
            if !self.view.has_stored(slot) {
                self.view.root.names.0[slot].store(0, Ordering::Release);
            }
        }
    }

    /// The slot of a thread, or a free one if it has none.
    pub(super) fn slot_for(&self, thread: u32) -> Option<usize> {
        self.view.slot_of(thread).or_else(|| self.name_free(thread))
    }

    /// Whether a slot is for a thread id that no thread has.
    fn is_strangers(&self, slot: usize) -> bool {
        self.view.root.names.0[slot].load(Ordering::Relaxed) != 0 && self.view.slots[slot].owner.load(Ordering::Acquire) == 0
    }

    fn name_free(&self, thread: u32) -> Option<usize> {
        let names = &self.view.root.names.0[..self.view.slots.len()];
        let slot = names.iter().position(|name| name.load(Ordering::Relaxed) == 0)?;
        names[slot].store(thread as u64 + 1, Ordering::Release);
        Some(slot)
    }

    /// Frees a slot by dropping the messages for a thread id that no thread has. If there are several, those that have waited
    /// longest.
    fn evict(&self) {
        let since = |slot: &usize| {
            let words = &self.view.slots[*slot];
            words.stored[words.head.load(Ordering::Relaxed) as usize % STORED_MOST][1].load(Ordering::Relaxed)
        };
        let Some(slot) = (0..self.view.slots.len()).filter(|slot| self.is_strangers(*slot)).min_by_key(since) else { return };
        for _ in 0..STORED_MOST {
            let Some(header) = self.first_stored(slot) else { break };
            self.drop_stored(slot, &header);
        }
        self.view.root.names.0[slot].store(0, Ordering::Release);
    }
}

impl View<'_> {
    /// The system's number of the thread that has the lock by a slot. 0 if it has the lock without a slot, since its
    /// identification contains the number, or if the slot has another owner by now.
    pub fn tid_of(&self, owner: OwnerId) -> u64 {
        let slot = if owner.is_users() { None } else { self.slots.get(owner.number() as usize % MOST) };
        let slot = slot.filter(|slot| slot.owner.load(Ordering::Acquire) == owner.bits());
        slot.map_or(0, |slot| slot.tid.load(Ordering::Relaxed))
    }

    /// The next owner's identification for a slot. It differs from those of former owners.
    fn next_owner(&self, slot: usize, node: NodeId, incarnation: Incarnation) -> OwnerId {
        let generation = &self.slots[slot].generation;
        let next = generation.load(Ordering::Relaxed).wrapping_add(1) % GENERATIONS;
        generation.store(next, Ordering::Relaxed);
        OwnerId::thread(node, incarnation, (next as usize * MOST + slot) as u32)
    }

    /// Has the system thread `tid` receive by the slot of `me` from now on, in place of `former`. Returns its new
    /// identification. `None` if the former thread was taken for dead meanwhile: then the slot may be another's.
    pub fn move_to(&self, slot: usize, me: OwnerId, former: u64, tid: u64) -> Option<OwnerId> {
        if self.slots[slot].owner.load(Ordering::Acquire) != me.bits() || !self.move_tid(slot, former, tid) {
            return None;
        }
        let owner = self.next_owner(slot, me.node(), me.incarnation());
        self.slots[slot].owner.store(owner.bits(), Ordering::Release);
        Some(owner)
    }

    pub(super) fn move_tid(&self, slot: usize, former: u64, tid: u64) -> bool {
        self.slots[slot].tid.compare_exchange(former, tid, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
