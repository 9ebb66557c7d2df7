//! What is done with the device's lock: the steps of the source.

use super::words::{Header, Place, View, life_word};
use super::{MOST, STORED_MOST};
use crate::keys::{OwnerId, Seen};
use doorbell_fabric::sync::{AtomicU64, Ordering, planted_bug};
use doorbell_fabric::{Incarnation, NodeId};
use std::time::Duration;

/// A place where an owner of the lock may die: a fault point, and in unit tests the end of a thread that was told to die there.
macro_rules! point {
    ($name:literal) => {
        fault_point!($name);
        #[cfg(all(test, not(loom)))]
        super::tests::arrive();
        #[cfg(all(test, loom))]
        super::loom_tests::arrive();
    };
}

/// What a device counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Messages that were received.
    pub received: u64,
    /// ... of which others had stored the header.
    pub stored: u64,
    /// Messages that nobody fetched in time.
    pub dropped: u64,
    /// Their bytes.
    pub dropped_bytes: u64,
    /// Times that the lock was inherited from somebody who died with it.
    pub inherited: u64,
    /// Lanes that were given up, as something in them was not as senders write it.
    pub broken: u64,
}

/// How often somebody looks after what nobody fetches, in nanoseconds.
const SWEEP_EVERY: u64 = 25_000_000;
/// Slots change hands so often before their owners' numbers are the same again.
const GENERATIONS: u64 = (OwnerId::NUMBERS as usize / MOST) as u64;
/// The longest sleep where a wake may be missed.
const SLEEP_UNSURE: Duration = Duration::from_millis(1);

#[derive(Clone, Copy)]
enum Count {
    Received,
    Stored,
    Dropped,
    DroppedBytes,
    Inherited,
    Broken,
}

/// What a step with the lock came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A message for this thread, all of it; whether its header had been stored.
    Message(Header, bool),
    /// A message for this thread that was not wanted as it is: it waits in the storage.
    Left(Header),
    /// A header for this other thread, which is stored now.
    Others(u32),
    /// There is none.
    Nothing,
}

/// What [`Held::receive`] did, in the words of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// (b) The shared storage was looked at: whether there is a header for this thread.
    Checked(bool),
    /// (c) The rest of a message whose header was stored went to the user's buffer.
    FromStorage,
    /// (d) A header was taken from the device: for which thread. `None`: there is none.
    Header(Option<u32>),
    /// (e) The rest of it went to the user's buffer.
    FromDevice,
    /// (f) It is another's, and in the shared storage now.
    Stored(u32),
}

/// Receivers that were found dead: the slot, its owner and the thread of the system that had it.
#[derive(Debug, Default)]
pub struct Dead(Vec<(usize, u64, u64)>);

/// The device's lock, held until it is dropped.
pub struct Held<'a> {
    view: View<'a>,
    me: OwnerId,
}

impl<'a> Held<'a> {
    /// (a) Takes the lock if nobody has it.
    #[inline]
    pub fn try_lock(view: View<'a>, me: OwnerId) -> Result<Self, Seen> {
        let taken = view.root.lock.try_take(me, 0)?;
        point!("device.locked");
        let held = Self { view, me };
        if taken.damaged {
            held.repair();
        }
        Ok(held)
    }

    /// Takes the lock of one who died, as it was seen.
    #[cold]
    pub fn inherit(view: View<'a>, me: OwnerId, seen: Seen) -> Option<Self> {
        if !view.root.lock.take_from_dead(seen, me) {
            return None;
        }
        let held = Self { view, me };
        held.repair();
        Some(held)
    }

    /// Sleeps until somebody gives the lock up, for `timeout` at most. May return early.
    #[cfg(not(loom))]
    pub fn await_lock(view: View<'_>, timeout: Duration) {
        let heard = view.root.lock.arm();
        if !view.root.lock.get().is_free() {
            view.root.lock.sleep(heard, 0, timeout);
        }
    }

    /// The same where loom watches.
    #[cfg(loom)]
    pub fn await_lock(view: View<'_>, _timeout: Duration) {
        let heard = view.root.lock.arm();
        if !view.root.lock.get().is_free() {
            view.root.lock.sleep(heard);
        }
    }

    #[cold]
    fn repair(&self) {
        self.rebuild();
        self.count(Count::Inherited, 1);
        // It is this owner's, so it can be repaired.
        let _ = self.view.root.lock.repair(self.me);
    }

    fn count(&self, count: Count, by: u64) {
        let word = &self.view.root.counts[count as usize];
        word.store(word.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }

    /// What was counted so far. Needs no lock.
    pub fn counts(view: View<'_>) -> Counts {
        let [received, stored, dropped, dropped_bytes, inherited, broken] =
            [0, 1, 2, 3, 4, 5].map(|at: usize| view.root.counts[at].load(Ordering::Relaxed));
        Counts { received, stored, dropped, dropped_bytes, inherited, broken }
    }

    /// Steps (b) to (f), once: what is stored for the thread of `slot`, else one header of the device. `take` gets a message of this thread,
    /// and says whether it has it now; if not, the message stays. `told` hears what was done. `now` says nanoseconds.
    #[inline]
    pub fn receive(
        &self,
        slot: usize,
        thread: u32,
        now: impl Fn() -> u64,
        mut take: impl FnMut(&View<'a>, &Header) -> bool,
        mut told: impl FnMut(Moved),
    ) -> Received {
        let stored = self.first_stored(slot);
        told(Moved::Checked(stored.is_some()));
        if let Some(header) = stored {
            if !take(&self.view, &header) {
                return Received::Left(header);
            }
            point!("device.copied");
            if !self.is_mine() {
                return Received::Nothing;
            }
            let was_full = self.waiting(slot) >= STORED_MOST as u64 - 1;
            self.clear(header.place);
            self.fetched(slot);
            self.count(Count::Received, 1);
            self.count(Count::Stored, 1);
            told(Moved::FromStorage);
            if was_full {
                self.unblock(now());
            }
            return Received::Message(header, true);
        }
        let next = self.next(thread);
        told(Moved::Header(next.map(|header| header.thread)));
        let Some(header) = next else { return Received::Nothing };
        if header.thread != thread {
            if !self.store(header, now()) {
                return Received::Nothing;
            }
            told(Moved::Stored(header.thread));
            return Received::Others(header.thread);
        }
        if !take(&self.view, &header) {
            // Not lost: it waits where the next call looks first.
            self.store(header, now());
            return Received::Left(header);
        }
        point!("device.copied");
        if !self.is_next(&header) {
            return Received::Nothing;
        }
        // In this order: who finds the lock of a dead owner takes a cleared packet behind this word for one that was never written.
        self.scanned(&header);
        point!("device.scanned");
        self.clear(header.place);
        self.count(Count::Received, 1);
        told(Moved::FromDevice);
        Received::Message(header, false)
    }

    /// Whether the lock is this one's still: of a node that left, another may have taken it for a dead one's.
    #[inline]
    fn is_mine(&self) -> bool {
        self.view.root.lock.get().owner() == Some(self.me)
    }

    /// Whether this message is the next of its lane, and this one's to move. Who lost the lock, or finds what no owner of it wrote, keeps its hands off.
    #[inline]
    fn is_next(&self, header: &Header) -> bool {
        self.is_mine() && self.view.lanes[header.place.lane].scan.0.load(Ordering::Relaxed) == header.place.at
    }

    /// The first header in the storage of a slot that is one still.
    fn first_stored(&self, slot: usize) -> Option<Header> {
        let words = &self.view.slots[slot];
        // As many as there can be, whatever somebody writes there meanwhile.
        for _ in 0..=STORED_MOST {
            let (head, tail) = (words.head.load(Ordering::Relaxed), words.tail.load(Ordering::Relaxed));
            if head == tail {
                return None;
            }
            if tail.wrapping_sub(head) > STORED_MOST as u64 {
                // Nobody stores so many: somebody wrote over the counts.
                words.head.store(tail, Ordering::Relaxed);
                return None;
            }
            let place = Place::from_word(words.stored[head as usize % STORED_MOST][0].load(Ordering::Relaxed));
            if place.lane < self.view.lanes.len() && self.is_within(place) {
                match self.view.header(place) {
                    Ok(Some(header)) => return Some(header),
                    Ok(None) => {}
                    Err(()) => self.give_up(place.lane),
                }
            }
            self.fetched(slot);
        }
        None
    }

    /// Whether a place lies between what was read and what was looked at.
    fn is_within(&self, place: Place) -> bool {
        let words = &self.view.lanes[place.lane];
        let (read, scan) = (words.read.load(Ordering::Relaxed), words.scan.0.load(Ordering::Relaxed));
        (read..scan).contains(&place.at)
    }

    fn fetched(&self, slot: usize) {
        let head = &self.view.slots[slot].head;
        head.store(head.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// The next header of any lane that nobody has looked at: of those for `thread` first, then of the lanes in turns.
    fn next(&self, thread: u32) -> Option<Header> {
        let (view, turn) = (&self.view, &self.view.root.turn);
        let (first, count) = (turn.load(Ordering::Relaxed) as usize % view.lanes.len(), view.lanes.len());
        let busy = view.root.busy.0.load(Ordering::Acquire);
        let mut other = None;
        for step in 0..count {
            let lane = (first + step) % count;
            if busy & 1 << lane == 0 {
                continue;
            }
            let words = &view.lanes[lane];
            if words.broken.load(Ordering::Relaxed) != 0 {
                continue;
            }
            match view.header(Place { lane, at: words.scan.0.load(Ordering::Relaxed) }) {
                Ok(None) => {}
                Err(()) => self.give_up(lane),
                Ok(Some(header)) if header.thread == thread => {
                    turn.store((lane + 1) as u64, Ordering::Relaxed);
                    return Some(header);
                }
                Ok(Some(header)) if other.is_none() && words.blocked.load(Ordering::Relaxed) == 0 => other = Some(header),
                Ok(Some(_)) => {}
            }
        }
        other
    }

    /// The lane was looked at to behind this message.
    fn scanned(&self, header: &Header) {
        let words = &self.view.lanes[header.place.lane];
        words.scan.0.store(header.place.at.wrapping_add(header.lines()), Ordering::Release);
        if words.blocked.load(Ordering::Relaxed) != 0 {
            words.blocked.store(0, Ordering::Relaxed);
            // Who waits for what lies behind may sleep, having seen the lane blocked.
            self.wake_all();
        }
    }

    #[cold]
    fn wake_all(&self) {
        self.view.slots.iter().for_each(|slot| slot.bell.wake());
    }

    /// The message at this place is taken: this is the step that counts.
    fn clear(&self, place: Place) {
        // Release: who finds it cleared finds that it was looked at.
        let order = if planted_bug("device-clear") { Ordering::Relaxed } else { Ordering::Release };
        self.view.line(place.lane, place.at).0[0].store(0, order);
        point!("device.cleared");
        self.trim(place.lane);
    }

    /// Gives back to the sender what was taken at the beginning of a lane.
    fn trim(&self, lane: usize) {
        let words = &self.view.lanes[lane];
        let (began, scan) = (words.read.load(Ordering::Relaxed), words.scan.0.load(Ordering::Relaxed));
        let (all, mut taken) = (scan.wrapping_sub(began), 0);
        if all > self.view.ring() {
            return self.give_up(lane);
        }
        while taken < all {
            let place = Place { lane, at: began.wrapping_add(taken) };
            match (self.view.header(place), self.view.extent(place)) {
                (Ok(None), Ok(header)) => taken += header.lines(),
                (Err(()), _) | (_, Err(())) => return self.give_up(lane),
                _ => break,
            }
        }
        if taken > all {
            return self.give_up(lane);
        }
        if taken > 0 {
            // Release: who writes there afterwards does so after it was read.
            words.read.store(began.wrapping_add(taken), Ordering::Release);
            words.room.ring(false);
        }
    }

    /// (f) Puts a header into the storage of its thread, and wakes that. False if there is no room: then its lane waits.
    fn store(&self, header: Header, now: u64) -> bool {
        if !self.is_next(&header) {
            return false;
        }
        let Some(slot) = self.slot_for(header.thread) else { return self.block(&header, now) };
        // One is kept free, as after a death there may be one more than there was room for.
        if !self.push(slot, header.place, now, STORED_MOST - 1) {
            return self.block(&header, now);
        }
        point!("device.stored");
        self.scanned(&header);
        self.view.ring_bell(slot);
        true
    }

    /// Headers that wait for a thread.
    fn waiting(&self, slot: usize) -> u64 {
        let words = &self.view.slots[slot];
        words.tail.load(Ordering::Relaxed).wrapping_sub(words.head.load(Ordering::Relaxed))
    }

    fn push(&self, slot: usize, place: Place, now: u64, most: usize) -> bool {
        if self.waiting(slot) >= most as u64 {
            return false;
        }
        let words = &self.view.slots[slot];
        let tail = words.tail.load(Ordering::Relaxed);
        let [at, when] = &words.stored[tail as usize % STORED_MOST];
        at.store(place.word(), Ordering::Relaxed);
        when.store(now, Ordering::Relaxed);
        let order = if planted_bug("device-store") { Ordering::Relaxed } else { Ordering::Release };
        words.tail.store(tail.wrapping_add(1), order);
        true
    }

    /// The lane of a header waits until there is room for it.
    fn block(&self, header: &Header, now: u64) -> bool {
        let blocked = &self.view.lanes[header.place.lane].blocked;
        if blocked.load(Ordering::Relaxed) == 0 {
            blocked.store(now.max(1), Ordering::Relaxed);
        }
        false
    }

    /// The slot of a thread; if it has none a free one.
    fn slot_for(&self, thread: u32) -> Option<usize> {
        self.view.slot_of(thread).or_else(|| self.name_free(thread))
    }

    /// Whether a slot is of a thread id that nobody has.
    fn is_strangers(&self, slot: usize) -> bool {
        self.view.root.names.0[slot].load(Ordering::Relaxed) != 0 && self.view.slots[slot].owner.load(Ordering::Acquire) == 0
    }

    fn name_free(&self, thread: u32) -> Option<usize> {
        let names = &self.view.root.names.0[..self.view.slots.len()];
        let slot = names.iter().position(|name| name.load(Ordering::Relaxed) == 0)?;
        names[slot].store(thread as u64 + 1, Ordering::Release);
        Some(slot)
    }

    /// Drops what waits for an id that nobody has, of several the one that waits for the longest time, so that its slot is free.
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

    fn drop_stored(&self, slot: usize, header: &Header) {
        self.clear(header.place);
        self.fetched(slot);
        self.dropped(header);
    }

    /// Nothing in a lane is used any more.
    #[cold]
    fn give_up(&self, lane: usize) {
        if self.view.lanes[lane].broken.swap(1, Ordering::AcqRel) == 0 {
            self.count(Count::Broken, 1);
            self.view.lanes[lane].room.wake();
        }
    }

    /// Finds again what the storage should hold, after an owner of the lock died.
    fn rebuild(&self) {
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
                // One was taken whose packet is cleared already.
                if let Some(header) = found
                    && !self.slot_for(header.thread).is_some_and(|slot| self.push(slot, place, 0, STORED_MOST))
                {
                    // There is no room only for what the dead one was about to drop.
                    self.view.line(lane, place.at).0[0].store(0, Ordering::Relaxed);
                    self.dropped(&header);
                }
                walked += extent.lines();
            }
            self.trim(lane);
        }
        self.wake_all();
    }

    /// Drops what nobody fetched within `limit` nanoseconds, forgets threads that were found dead, and clears lanes that nobody needs. Says how many
    /// messages were dropped.
    #[cold]
    pub fn sweep(&self, now: u64, limit: u64, dead: &Dead) -> u64 {
        self.view.root.swept.store(now, Ordering::Relaxed);
        for &(slot, owner, tid) in &dead.0 {
            let words = &self.view.slots[slot];
            // Its value may come to a living thread at this moment: whoever changes the number first wins.
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
                    // Somebody took it meanwhile, and may have said so before.
                    self.view.root.busy.0.fetch_or(bit, Ordering::AcqRel);
                }
            }
        }
        if moved {
            self.wake_all();
        }
        dropped
    }

    fn dropped(&self, header: &Header) {
        self.count(Count::Dropped, 1);
        self.count(Count::DroppedBytes, header.len as u64);
    }

    /// Looks again at the lanes that wait for room in the storage; after a thread of which the storage was full fetched from it.
    fn unblock(&self, now: u64) {
        for (lane, words) in self.view.lanes.iter().enumerate() {
            let since = words.blocked.load(Ordering::Relaxed);
            if since == 0 {
                continue;
            }
            // What lies behind it, too. Ends when the lane does or the storage is full; who waits for what is behind that looks itself.
            let place = || Place { lane, at: words.scan.0.load(Ordering::Relaxed) };
            words.blocked.store(0, Ordering::Relaxed);
            for _ in 0..STORED_MOST {
                let Ok(Some(header)) = self.view.header(place()) else { break };
                if !self.store(header, since.min(now)) {
                    break;
                }
            }
            if words.blocked.load(Ordering::Relaxed) == 0 {
                self.wake_all();
            }
        }
    }

    /// Makes somebody the receiver for a thread id, `tid` being the system's number of it: says which slot it has, and who it is from now on. `None` if
    /// the device serves as many threads as it can; an error says who has the id.
    pub fn attach(
        &self,
        thread: u32,
        (node, life): (NodeId, Incarnation),
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
        let owner = self.view.next_owner(slot, node, life);
        words.owner.store(owner.bits(), Ordering::Release);
        Some(Ok((slot, owner)))
    }

    /// Nobody receives by this slot any more, if `owner` did with this thread of the system. What is stored there waits for the next, up to the limit.
    pub fn detach(&self, slot: usize, owner: OwnerId, tid: u64) {
        let words = &self.view.slots[slot];
        if words.owner.load(Ordering::Relaxed) == owner.bits() && self.view.move_tid(slot, tid, 0) {
            words.owner.store(0, Ordering::Release);
            if !self.view.has_stored(slot) {
                self.view.root.names.0[slot].store(0, Ordering::Release);
            }
        }
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        fault_point!("device.unlocking");
        // If somebody took it for dead and inherited the lock, it is not this one's to give up.
        let _ = self.view.root.lock.release(self.me);
    }
}

impl View<'_> {
    /// What the lock says.
    pub fn lock_seen(&self) -> Seen {
        self.root.lock.get()
    }

    /// The system's number of the thread that has the lock by a slot; 0 for one without, whose own number says who it is, and for one whose slot is
    /// another's by now.
    pub fn tid_of(&self, owner: OwnerId) -> u64 {
        let slot = if owner.is_users() { None } else { self.slots.get(owner.number() as usize % MOST) };
        let slot = slot.filter(|slot| slot.owner.load(Ordering::Acquire) == owner.bits());
        slot.map_or(0, |slot| slot.tid.load(Ordering::Relaxed))
    }

    /// Who has a slot next: no former owner's number.
    fn next_owner(&self, slot: usize, node: NodeId, life: Incarnation) -> OwnerId {
        let generation = &self.slots[slot].generation;
        let next = generation.load(Ordering::Relaxed).wrapping_add(1) % GENERATIONS;
        generation.store(next, Ordering::Relaxed);
        OwnerId::thread(node, life, (next as usize * MOST + slot) as u32)
    }

    /// Receivers that do not live, as far as `lives` knows: of each the owner and the system's number of its thread. Without the lock, as it takes
    /// system calls; `me` is not asked for.
    pub fn dead(&self, me: Option<usize>, lives: impl Fn(OwnerId, u64) -> bool) -> Dead {
        let dead = |slot: usize| {
            let words = &self.slots[slot];
            let owner = OwnerId::from_bits(words.owner.load(Ordering::Acquire))?;
            let tid = words.tid.load(Ordering::Relaxed);
            // Who has an owner has a thread: whoever took that away died before it took the owner, too.
            (Some(slot) != me && (tid == 0 || !lives(owner, tid))).then_some((slot, owner.bits(), tid))
        };
        Dead((0..self.slots.len()).filter_map(dead).collect())
    }

    /// Whether nobody has [swept](Held::sweep) for a while. One load.
    pub fn is_sweep_due(&self, now: u64) -> bool {
        now.wrapping_sub(self.root.swept.load(Ordering::Relaxed)) >= SWEEP_EVERY
    }

    /// Whether the device was removed. One load.
    pub fn has_ended(&self) -> bool {
        self.root.ended.0.load(Ordering::Relaxed) != 0
    }

    /// Senders are told that the device is removed. Under the domain's lock.
    pub fn end(&self) {
        self.root.ended.0.store(1, Ordering::Release);
    }

    /// Another thread of the system receives by the slot of `me` from now on, in place of `former`: says who it is then. `None` if that was taken for dead
    /// meanwhile: then the slot may be another's.
    pub fn move_to(&self, slot: usize, me: OwnerId, former: u64, tid: u64) -> Option<OwnerId> {
        if self.slots[slot].owner.load(Ordering::Acquire) != me.bits() || !self.move_tid(slot, former, tid) {
            return None;
        }
        let owner = self.next_owner(slot, me.node(), me.life());
        self.slots[slot].owner.store(owner.bits(), Ordering::Release);
        Some(owner)
    }

    fn move_tid(&self, slot: usize, former: u64, tid: u64) -> bool {
        self.slots[slot].tid.compare_exchange(former, tid, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Sleeps until there is something for a thread to do at the device, for `timeout` at most. May return early.
    pub fn await_message(&self, slot: usize, thread: u32, timeout: Duration) {
        let bell = &self.slots[slot].bell;
        let timeout = if bell.arm() { timeout } else { timeout.min(SLEEP_UNSURE) };
        // Lanes first: who stores a header does so before it says that it has looked at it.
        if self.next_for(thread).is_none() && !self.has_stored(slot) {
            bell.sleep(timeout);
        }
        bell.disarm();
    }

    /// Who holds the port: which node's engine feeds the device from the network.
    pub fn port(&self) -> Option<(NodeId, Incarnation)> {
        let word = self.root.port.0.load(Ordering::Acquire);
        (word != 0).then_some((NodeId((word >> 32) as u16), Incarnation(word as u32)))
    }

    /// Takes the port from `former`, who died or left, or from nobody. Says whether it is the caller's.
    pub fn take_port(&self, former: Option<(NodeId, Incarnation)>, me: (NodeId, Incarnation)) -> bool {
        let [former, me] = [former, Some(me)].map(|who| who.map_or(0, |(node, life)| life_word(node, life)));
        self.root.port.0.compare_exchange(former, me, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Gives the port up, if it is the caller's.
    pub fn leave_port(&self, me: (NodeId, Incarnation)) {
        let _ = self.root.port.0.compare_exchange(life_word(me.0, me.1), 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The processes that receive.
    pub fn attached(&self) -> impl Iterator<Item = (NodeId, Incarnation)> + '_ {
        let words = self.root.attached.0.iter().map(|word| word.load(Ordering::Acquire));
        words.filter(|word| *word != 0).map(|word| (NodeId((word >> 32) as u16), Incarnation(word as u32)))
    }

    /// Enters a process among those that receive, in place of one that does not live; false if there is no room. Under the domain's lock.
    pub fn enter(&self, me: (NodeId, Incarnation), lives: impl Fn(NodeId, Incarnation) -> bool) -> bool {
        let free = |word: &&AtomicU64| {
            let was = word.load(Ordering::Acquire);
            was == 0 || !lives(NodeId((was >> 32) as u16), Incarnation(was as u32))
        };
        let entry = self.root.attached.0.iter().find(free);
        entry.map(|word| word.store(life_word(me.0, me.1), Ordering::Release)).is_some()
    }

    /// Takes one entry of a process out. Under the domain's lock.
    pub fn quit(&self, me: (NodeId, Incarnation)) {
        let word = life_word(me.0, me.1);
        if let Some(entry) = self.root.attached.0.iter().find(|entry| entry.load(Ordering::Relaxed) == word) {
            entry.store(0, Ordering::Release);
        }
    }
}
