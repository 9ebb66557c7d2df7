//! The device's lock, and the steps of receiving, which are done with the lock held.

use super::STORED_MOST;
use super::words::{Header, Place, View};
use crate::keys::{OwnerId, Seen};
use doorbell_fabric::sync::{Ordering, planted_bug};
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

/// The counts of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Messages received.
    pub received: u64,
    /// Messages received from the storage, where another thread had put their headers.
    pub stored: u64,
    /// Messages that were dropped since they were not fetched in time.
    pub dropped: u64,
    /// The bytes of the dropped messages.
    pub dropped_bytes: u64,
    /// How often the lock was inherited from a dead owner.
    pub inherited: u64,
    /// Lanes that were given up since they held words that no honest sender writes.
    pub broken: u64,
}

/// The longest sleep where a wake-up may be missed.
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

/// The result of one step with the lock held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A complete message for this thread, and whether its header had been stored.
    Message(Header, bool),
    /// A message for this thread that `take` declined. It waits in the storage.
    Left(Header),
    /// A header for this other thread, which is stored now.
    Others(u32),
    /// There is no message.
    Nothing,
}

/// A step of [`Held::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// (b) The shared storage was searched. The value says whether it holds a header for this thread.
    Checked(bool),
    /// (c) The rest of a message with a stored header went to the user's buffer.
    FromStorage,
    /// (d) A header for this thread id was taken from the device. `None`: there is no header.
    Header(Option<u32>),
    /// (e) The rest of that message went to the user's buffer.
    FromDevice,
    /// (f) The header is another thread's, and is in the shared storage now.
    Stored(u32),
}

/// The device's lock, held until this is dropped.
pub struct Held<'a> {
    pub(super) view: View<'a>,
    me: OwnerId,
}

impl<'a> Held<'a> {
    /// (a) Takes the lock if it is free.
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

    /// Takes the lock of a dead owner, as it was seen. `None` if it has changed since.
    #[cold]
    pub fn inherit(view: View<'a>, me: OwnerId, seen: Seen) -> Option<Self> {
        if !view.root.lock.take_from_dead(seen, me) {
            return None;
        }
        let held = Self { view, me };
        held.repair();
        Some(held)
    }

    /// Sleeps until the lock is released, for `timeout` at most. May return early.
    #[cfg(not(loom))]
    pub fn await_lock(view: View<'_>, timeout: Duration) {
        let heard = view.root.lock.arm();
        if !view.root.lock.get().is_free() {
            view.root.lock.sleep(heard, 0, timeout);
        }
    }

    /// The same in a loom model.
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
        // The caller owns the lock, so this succeeds.
        let _ = self.view.root.lock.repair(self.me);
    }

    fn count(&self, count: Count, by: u64) {
        let word = &self.view.root.counts[count as usize];
        word.store(word.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }

    /// The counts so far. Needs no lock.
    pub fn counts(view: View<'_>) -> Counts {
        let [received, stored, dropped, dropped_bytes, inherited, broken] =
            [0, 1, 2, 3, 4, 5].map(|at: usize| view.root.counts[at].load(Ordering::Relaxed));
        Counts { received, stored, dropped, dropped_bytes, inherited, broken }
    }

    /// Does the steps (b) to (f) once: takes a stored message for the thread of `slot`, or else one header from the device.
    /// `take` gets a message for this thread, and returns whether it took it; if not, the message stays. `told` is called for
    /// each step. `now` returns nanoseconds.
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
            // The message is kept: it waits where the next call looks first.
            self.store(header, now());
            return Received::Left(header);
        }
        point!("device.copied");
        if !self.is_next(&header) {
            return Received::Nothing;
        }
        // In this order: an heir of a dead owner takes a cleared packet behind this position for one that was never written.
        self.scanned(&header);
        point!("device.scanned");
        self.clear(header.place);
        self.count(Count::Received, 1);
        told(Moved::FromDevice);
        Received::Message(header, false)
    }

    /// Whether this thread still has the lock. If its node has left, another thread may have inherited the lock.
    #[inline]
    fn is_mine(&self) -> bool {
        self.view.root.lock.get().owner() == Some(self.me)
    }

    /// Whether this message is the next of its lane and this thread may move it. A thread that lost the lock, or finds words
    /// that no owner wrote, must not touch the lane.
    #[inline]
    fn is_next(&self, header: &Header) -> bool {
        self.is_mine() && self.view.lanes[header.place.lane].scan.0.load(Ordering::Relaxed) == header.place.at
    }

    /// The first valid header in the storage of a slot.
    pub(super) fn first_stored(&self, slot: usize) -> Option<Header> {
        let words = &self.view.slots[slot];
        // Bounded, whatever another process writes there meanwhile.
        for _ in 0..=STORED_MOST {
            let (head, tail) = (words.head.load(Ordering::Relaxed), words.tail.load(Ordering::Relaxed));
            if head == tail {
                return None;
            }
            if tail.wrapping_sub(head) > STORED_MOST as u64 {
                // No thread stores that many: another process overwrote the counts.
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

    /// Whether a place lies between the read position and the scanned position of its lane.
    fn is_within(&self, place: Place) -> bool {
        let words = &self.view.lanes[place.lane];
        let (read, scan) = (words.read.load(Ordering::Relaxed), words.scan.0.load(Ordering::Relaxed));
        (read..scan).contains(&place.at)
    }

    fn fetched(&self, slot: usize) {
        let head = &self.view.slots[slot].head;
        head.store(head.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// The next header that was not scanned yet, of any lane: one for `thread` if there is one, else of the lanes in turn.
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

    /// Advances the scanned position of a lane to behind this message.
    pub(super) fn scanned(&self, header: &Header) {
        let words = &self.view.lanes[header.place.lane];
        words.scan.0.store(header.place.at.wrapping_add(header.lines()), Ordering::Release);
        if words.blocked.load(Ordering::Relaxed) != 0 {
            words.blocked.store(0, Ordering::Relaxed);
            // A thread whose message lies behind may sleep, since it saw the lane blocked.
            self.wake_all();
        }
    }

    #[cold]
    pub(super) fn wake_all(&self) {
        self.view.slots.iter().for_each(|slot| slot.bell.wake());
    }

    /// Takes the message at this place. This store decides that it was received.
    pub(super) fn clear(&self, place: Place) {
        // Release: an heir that finds it cleared also finds it scanned.
        let order = if planted_bug("device-clear") { Ordering::Relaxed } else { Ordering::Release };
        self.view.line(place.lane, place.at).0[0].store(0, order);
        point!("device.cleared");
        self.trim(place.lane);
    }

    /// Gives the room of taken messages at the beginning of a lane back to the sender.
    pub(super) fn trim(&self, lane: usize) {
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
            // Release: the sender overwrites the room only after it was read.
            words.read.store(began.wrapping_add(taken), Ordering::Release);
            words.room.ring(false);
        }
    }

    /// (f) Puts a header into the storage of its thread, and wakes the thread. False if there is no room: then the lane is
    /// blocked.
    pub(super) fn store(&self, header: Header, now: u64) -> bool {
        if !self.is_next(&header) {
            return false;
        }
        let Some(slot) = self.slot_for(header.thread) else { return self.block(&header, now) };
        // One place is kept free, since after a death one more header may have to fit.
        if !self.push(slot, header.place, now, STORED_MOST - 1) {
            return self.block(&header, now);
        }
        point!("device.stored");
        self.scanned(&header);
        self.view.ring_bell(slot);
        true
    }

    /// How many headers wait for the thread of a slot.
    fn waiting(&self, slot: usize) -> u64 {
        let words = &self.view.slots[slot];
        words.tail.load(Ordering::Relaxed).wrapping_sub(words.head.load(Ordering::Relaxed))
    }

    pub(super) fn push(&self, slot: usize, place: Place, now: u64, most: usize) -> bool {
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

    /// Marks the lane of a header as blocked until there is room for it.
    fn block(&self, header: &Header, now: u64) -> bool {
        let blocked = &self.view.lanes[header.place.lane].blocked;
        if blocked.load(Ordering::Relaxed) == 0 {
            blocked.store(now.max(1), Ordering::Relaxed);
        }
        false
    }

    pub(super) fn drop_stored(&self, slot: usize, header: &Header) {
        self.clear(header.place);
        self.fetched(slot);
        self.dropped(header);
    }

    /// Marks a lane as broken: nothing in it is used any more.
    #[cold]
    pub(super) fn give_up(&self, lane: usize) {
        if self.view.lanes[lane].broken.swap(1, Ordering::AcqRel) == 0 {
            self.count(Count::Broken, 1);
            self.view.lanes[lane].room.wake();
        }
    }

    pub(super) fn dropped(&self, header: &Header) {
        self.count(Count::Dropped, 1);
        self.count(Count::DroppedBytes, header.len as u64);
    }

    /// Tries the blocked lanes again, after a thread with a full storage has fetched a message.
    fn unblock(&self, now: u64) {
        for (lane, words) in self.view.lanes.iter().enumerate() {
            let since = words.blocked.load(Ordering::Relaxed);
            if since == 0 {
                continue;
            }
            // Also stores the headers behind it, until the lane ends or the storage is full. A thread whose message lies
            // further behind looks itself.
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
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        fault_point!("device.unlocking");
        // If others took this thread for dead and inherited the lock, there is nothing to release.
        let _ = self.view.root.lock.release(self.me);
    }
}

impl View<'_> {
    /// The value of the lock.
    pub fn lock_seen(&self) -> Seen {
        self.root.lock.get()
    }

    /// Sleeps until a thread has something to do at the device, for `timeout` at most. May return early.
    pub fn await_message(&self, slot: usize, thread: u32, timeout: Duration) {
        let bell = &self.slots[slot].bell;
        let timeout = if bell.arm() { timeout } else { timeout.min(SLEEP_UNSURE) };
        // Lanes first: a thread stores a header before it advances the scanned position.
        if self.next_for(thread).is_none() && !self.has_stored(slot) {
            bell.sleep(timeout);
        }
        bell.disarm();
    }
}
