//! Repairs by the owner of the lock: of the storage after a death, of messages that were not fetched, of dead receivers' slots.

use super::STORED_MOST;
use super::held::Held;
use super::words::{Place, View};
use crate::keys::OwnerId;
use doorbell_fabric::sync::Ordering;

/// How often messages that were not fetched are looked for, in nanoseconds.
const SWEEP_EVERY: u64 = 25_000_000;

/// Receivers that were found dead: the slot, its owner, and the system's number of its thread.
#[derive(Debug, Default)]
pub struct Dead(Vec<(usize, u64, u64)>);

impl Held<'_> {
    /// Rebuilds the storage after an owner of the lock died.
    pub(super) fn rebuild(&self) {
        for slot in self.view.slots {
            slot.head.store(slot.tail.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        for (lane, words) in self.view.lanes.iter().enumerate() {
            let (read, scan) = (words.read.load(Ordering::Relaxed), words.scan.0.load(Ordering::Relaxed));
            let (all, mut walked) = (scan.wrapping_sub(read), 0);
            if all > self.view.ring() {
                self.give_up(lane);
                continue;
            }
            while walked < all {
                let place = Place { lane, at: read.wrapping_add(walked) };
                let (Ok(found), Ok(extent)) = (self.view.header(place), self.view.extent(place)) else {
                    self.give_up(lane);
                    break;
                };
                // A taken message has a cleared packet.
                if let Some(header) = found
                    && !self.slot_for(header.thread).is_some_and(|slot| self.push(slot, place, 0, STORED_MOST))
                {
                    // Room is missing only for a message that the dead owner was about to drop.
                    self.view.line(lane, place.at).0[0].store(0, Ordering::Relaxed);
                    self.dropped(&header);
                }
                walked += extent.lines();
            }
            self.trim(lane);
        }
        self.wake_all();
    }

    /// Drops messages that were not fetched within `limit` nanoseconds, frees the slots of dead threads, and clears idle lanes.
    /// Returns how many messages were dropped.
    #[cold]
    pub fn sweep(&self, now: u64, limit: u64, dead: &Dead) -> u64 {
        self.view.root.swept.store(now, Ordering::Relaxed);
        for &(slot, owner, tid) in &dead.0 {
            let words = &self.view.slots[slot];
            // A living thread may take over the value at this moment. The first of both to change the number wins.
            if words.owner.load(Ordering::Acquire) == owner && self.view.move_tid(slot, tid, 0) {
                words.owner.store(0, Ordering::Release);
            }
        }
        let (mut dropped, mut moved) = (0, false);
        for (slot, words) in self.view.slots.iter().enumerate() {
            for _ in 0..STORED_MOST {
                let Some(header) = self.first_stored(slot) else { break };
                let when = &words.stored[words.head.load(Ordering::Relaxed) as usize % STORED_MOST][1];
                let since = when.load(Ordering::Relaxed);
                if since == 0 || since > now {
                    when.store(now, Ordering::Relaxed);
                    break;
                }
                if now - since < limit {
                    break;
                }
                self.drop_stored(slot, &header);
                dropped += 1;
            }
            if words.owner.load(Ordering::Acquire) == 0 && !self.view.has_stored(slot) {
                self.view.root.names.0[slot].store(0, Ordering::Release);
            }
        }
        for (lane, words) in self.view.lanes.iter().enumerate() {
            let at = words.scan.0.load(Ordering::Relaxed);
            let since = words.blocked.load(Ordering::Relaxed);
            if since != 0
                && let Ok(Some(header)) = self.view.header(Place { lane, at })
            {
                if since > now || now - since < limit {
                    // There may be room by now.
                    words.blocked.store(0, Ordering::Relaxed);
                    if self.store(header, since) {
                        moved = true;
                    } else {
                        words.blocked.store(since.min(now), Ordering::Relaxed);
                    }
                } else {
                    self.scanned(&header);
                    self.clear(header.place);
                    self.dropped(&header);
                    dropped += 1;
                    moved = true;
                }
            }
            let is_idle = || words.owner.load(Ordering::Acquire) == 0 && words.scan.0.load(Ordering::Relaxed) == words.written();
            let bit = 1 << lane;
            if is_idle() && self.view.root.busy.0.load(Ordering::Relaxed) & bit != 0 {
                self.view.root.busy.0.fetch_and(!bit, Ordering::AcqRel);
                if !is_idle() {
                    // A sender took the lane meanwhile, and may have set the bit before it was cleared.
                    self.view.root.busy.0.fetch_or(bit, Ordering::AcqRel);
                }
            }
        }
        if moved {
            self.wake_all();
        }
        dropped
    }
}

impl View<'_> {
    /// Receivers that are dead according to `lives`, which gets the owner and the system's number of its thread. Call it
    /// without the lock, since it makes system calls. The slot `me` is skipped.
    pub fn dead(&self, me: Option<usize>, lives: impl Fn(OwnerId, u64) -> bool) -> Dead {
        let dead = |slot: usize| {
            let words = &self.slots[slot];
            let owner = OwnerId::from_bits(words.owner.load(Ordering::Acquire))?;
            let tid = words.tid.load(Ordering::Relaxed);
            // An owner without a thread: the thread that removed the number died before it removed the owner.
            (Some(slot) != me && (tid == 0 || !lives(owner, tid))).then_some((slot, owner.bits(), tid))
        };
        Dead((0..self.slots.len()).filter_map(dead).collect())
    }

    /// Whether the last [sweep](Held::sweep) is some time ago. One load.
    pub fn is_sweep_due(&self, now: u64) -> bool {
        now.wrapping_sub(self.root.swept.load(Ordering::Relaxed)) >= SWEEP_EVERY
    }
}
