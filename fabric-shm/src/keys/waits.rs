//! Which owner waits for which lock, in shared memory, so that the waiter that completes a deadlock finds it.

use super::word::{OwnerId, Seen};
use crate::layout::PAGE;
use doorbell_fabric::sync::{AtomicU64, Ordering};

/// How many waiters can be entered at a time. Further ones wait as well, but their deadlocks are not found.
pub const WAITS_MAX: usize = 510;
/// The longest deadlock that is looked for.
const CIRCLE_MAX: usize = 64;
const KEY_BITS: u32 = 16;

/// All waiters. All zero means that there is none.
#[repr(C, align(4096))]
pub(crate) struct Waits {
    /// How many waiters have come. Each gets the next number.
    arrivals: AtomicU64,
    _apart: [u64; 7],
    entries: [Entry; WAITS_MAX],
}

/// One waiter, or a free place.
#[repr(C)]
struct Entry {
    /// The owner that waits; 0 for a free place.
    who: AtomicU64,
    /// The waiter's number 48 | the slot of the lock 16; 0 until both are known.
    what: AtomicU64,
    /// The waiter's ticket for that lock.
    ticket: AtomicU64,
    _unused: u64,
}

const _: () = assert!(size_of::<Waits>() == 4 * PAGE);

/// One part of a deadlock: this owner waits for a lock that the next owner holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The owner that waits.
    pub who: OwnerId,
    /// The slot of the lock that it waits for.
    pub slot: usize,
    /// The waiter's number: the greatest came last.
    number: u64,
}

/// The waiters of a deadlock, in order, beginning with the one that found it.
pub type Deadlock = Vec<Waiting>;

/// A waiter's entry. Dropping it removes the entry.
pub struct Entered<'a> {
    entry: &'a Entry,
    me: Waiting,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // The entry may have been swept, and may belong to another waiter now.
        let what = self.me.number << KEY_BITS | self.me.slot as u64;
        if self.entry.what.compare_exchange(what, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            let _ = self.entry.who.compare_exchange(self.me.who.bits(), 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

impl Waits {
    /// Enters a waiter for a lock. `None` if there is no free place.
    pub fn enter(&self, who: OwnerId, slot: usize, ticket: u64) -> Option<Entered<'_>> {
        let number = self.arrivals.fetch_add(1, Ordering::Relaxed).wrapping_add(1) & (u64::MAX >> KEY_BITS);
        let start = (who.bits().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % WAITS_MAX;
        for entry in self.entries[start..].iter().chain(&self.entries[..start]) {
            // A free place is blank before it gets an owner; see `drop`.
            if entry.who.compare_exchange(0, who.bits(), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                entry.ticket.store(ticket, Ordering::Relaxed);
                // A later waiter that looks for a deadlock sees this entry. A waiter that came at the same time looks again soon.
                entry.what.store(number << KEY_BITS | slot as u64, Ordering::SeqCst);
                return Some(Entered { entry, me: Waiting { who, slot, number } });
            }
        }
        None
    }

    /// The waiters for a lock, as far as they are entered.
    pub fn of_key(&self, slot: usize) -> impl Iterator<Item = OwnerId> {
        let all = self.entries.iter().filter_map(read);
        all.filter(move |waiting| waiting.slot == slot).map(|waiting| waiting.who)
    }

    /// The ticket of the waiter that has waited longest for a lock, among those entered.
    pub fn first(&self, slot: usize) -> Option<u64> {
        let its = |entry: &&Entry| read(entry).is_some_and(|waiting| waiting.slot == slot);
        self.entries.iter().filter(its).map(|entry| entry.ticket.load(Ordering::Relaxed)).filter(|ticket| *ticket != 0).min()
    }

    /// Takes a waiter's ticket out of the queue, since the waiter does not look at the lock. If it does after all, it can still
    /// claim its turn.
    pub fn forget_ticket(&self, ticket: u64) {
        for entry in &self.entries {
            let _ = entry.ticket.compare_exchange(ticket, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The deadlock that this wait completes, if there is one and this waiter came last.
    ///
    /// The chain of waiters is walked twice. A waiter that has the same number both times has waited in between, so it could
    /// not release its lock: the whole deadlock existed at one moment.
    pub fn circle(&self, me: &Entered<'_>, value: impl Fn(usize) -> Option<Seen>) -> Option<Deadlock> {
        let first = self.walk(me.me, &value)?;
        // A waiter for its own lock waits until an earlier wait of its own is undone.
        if first.len() < 2 {
            return None;
        }
        let is_last = first.iter().all(|other| other.number <= me.me.number);
        (is_last && self.walk(me.me, &value)? == first).then_some(first)
    }

    fn walk(&self, me: Waiting, value: &impl Fn(usize) -> Option<Seen>) -> Option<Deadlock> {
        let mut circle = vec![me];
        while circle.len() <= CIRCLE_MAX {
            let owner = value(circle.last()?.slot)?.owner()?;
            if owner == me.who {
                return Some(circle);
            }
            circle.push(self.entries.iter().filter_map(read).find(|waiting| waiting.who == owner)?);
        }
        None
    }

    /// Removes the entries of owners that are gone.
    pub fn sweep(&self, is_gone: impl Fn(OwnerId) -> bool) {
        for entry in &self.entries {
            let bits = entry.who.load(Ordering::Relaxed);
            if OwnerId::from_bits(bits).is_some_and(&is_gone) {
                entry.what.store(0, Ordering::Release);
                let _ = entry.who.compare_exchange(bits, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }
}

fn read(entry: &Entry) -> Option<Waiting> {
    let who = entry.who.load(Ordering::Acquire);
    let what = entry.what.load(Ordering::SeqCst);
    if what == 0 || entry.who.load(Ordering::Acquire) != who {
        return None;
    }
    let slot = (what & ((1 << KEY_BITS) - 1)) as usize;
    Some(Waiting { who: OwnerId::from_bits(who)?, slot, number: what >> KEY_BITS })
}
