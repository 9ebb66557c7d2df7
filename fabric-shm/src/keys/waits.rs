//! Who waits for which key, in shared memory, so that a circle of waiters is found by the one who closes it.

use super::word::{OwnerId, Seen};
use crate::layout::PAGE;
use doorbell_fabric::sync::{AtomicU64, Ordering};

/// Waiters that can be entered at a time. Those that find no place wait all the same, and their circles are not found.
pub const WAITS_MAX: usize = 510;
/// The longest circle that is looked for.
const CIRCLE_MAX: usize = 64;
const KEY_BITS: u32 = 16;

/// All who wait. All zero is nobody.
#[repr(C, align(4096))]
pub(crate) struct Waits {
    /// How many have come: each has a number of its own.
    arrivals: AtomicU64,
    _apart: [u64; 7],
    entries: [Entry; WAITS_MAX],
}

/// One who waits, or nobody.
#[repr(C)]
struct Entry {
    /// Who; 0 for nobody.
    who: AtomicU64,
    /// Its number 48 | the key it waits for 16; 0 while that is not known.
    what: AtomicU64,
    /// Its ticket for that key.
    ticket: AtomicU64,
    _unused: u64,
}

const _: () = assert!(size_of::<Waits>() == 4 * PAGE);

/// One of a circle: this one waits for this key, which the next one has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Who waits.
    pub who: OwnerId,
    /// The slot of the key it waits for.
    pub slot: usize,
    /// The number of its coming: the greatest came last.
    number: u64,
}

/// Who waits for whom, all around, beginning with who looked.
pub type Circle = Vec<Waiting>;

/// A place among those who wait. Dropping it leaves.
pub struct Entered<'a> {
    entry: &'a Entry,
    me: Waiting,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // Unless it was swept, and is another's by now.
        let what = self.me.number << KEY_BITS | self.me.slot as u64;
        if self.entry.what.compare_exchange(what, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            let _ = self.entry.who.compare_exchange(self.me.who.bits(), 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

impl Waits {
    /// Says that this one waits for a key. `None` if there are too many.
    pub fn enter(&self, who: OwnerId, slot: usize, ticket: u64) -> Option<Entered<'_>> {
        let number = self.arrivals.fetch_add(1, Ordering::Relaxed).wrapping_add(1) & (u64::MAX >> KEY_BITS);
        let start = (who.bits().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % WAITS_MAX;
        for entry in self.entries[start..].iter().chain(&self.entries[..start]) {
            // Blank before it is somebody's: see `drop`.
            if entry.who.compare_exchange(0, who.bits(), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                entry.ticket.store(ticket, Ordering::Relaxed);
                // Who comes later and looks for a circle sees it; whoever came at the same time looks again soon.
                entry.what.store(number << KEY_BITS | slot as u64, Ordering::SeqCst);
                return Some(Entered { entry, me: Waiting { who, slot, number } });
            }
        }
        None
    }

    /// Who waits for a key now, as far as is known.
    pub fn of_key(&self, slot: usize) -> impl Iterator<Item = OwnerId> {
        let all = self.entries.iter().filter_map(read);
        all.filter(move |waiting| waiting.slot == slot).map(|waiting| waiting.who)
    }

    /// The ticket of whoever has waited longest for a key, as far as is known.
    pub fn first(&self, slot: usize) -> Option<u64> {
        let its = |entry: &&Entry| read(entry).is_some_and(|waiting| waiting.slot == slot);
        self.entries.iter().filter(its).map(|entry| entry.ticket.load(Ordering::Relaxed)).filter(|ticket| *ticket != 0).min()
    }

    /// Has whoever has this ticket stand in the line no more: it does not look. If it does after all it can say so itself.
    pub fn forget_ticket(&self, ticket: u64) {
        for entry in &self.entries {
            let _ = entry.ticket.compare_exchange(ticket, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The circle that this wait closes, if there is one and this one came last to it.
    ///
    /// It is walked twice. Who waited at both times with the same number has waited all the while, and so could not give up what it has: the
    /// circle was there as a whole.
    pub fn circle(&self, me: &Entered<'_>, value: impl Fn(usize) -> Option<Seen>) -> Option<Circle> {
        let first = self.walk(me.me, &value)?;
        // One who waits for what it has itself waits for a former wait of its own to be undone.
        if first.len() < 2 {
            return None;
        }
        let is_last = first.iter().all(|other| other.number <= me.me.number);
        (is_last && self.walk(me.me, &value)? == first).then_some(first)
    }

    fn walk(&self, me: Waiting, value: &impl Fn(usize) -> Option<Seen>) -> Option<Circle> {
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

    /// Forgets those of whom `is_gone` says so.
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
