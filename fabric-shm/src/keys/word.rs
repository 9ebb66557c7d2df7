//! The words of one lock.
//!
//! ```text
//! value | barred 1 | damaged 1 | node 10 | life 32 | user's number 1 | number 19 |
//! turn  | when that waiter came 44 | which waiter 20 |
//! bell  | how often it rang 31 | a waiter sleeps 1 |
//! ```
//!
//! An owner part of zero means that there is no owner, since no incarnation is zero. *Barred* (frozen) keeps every thread out
//! but the present owner; without an owner, the lock is locked by the module. *Damaged* means that an owner died and the
//! resource was not repaired since. It is part of the owner's word, so that no new owner can miss it.

use doorbell_fabric::sync::{AtomicU32, AtomicU64, Ordering, fence, planted_bug};
use doorbell_fabric::{Incarnation, NodeId};
use std::fmt;
use std::num::NonZeroU32;

const FROZEN: u64 = 1 << 63;
const DAMAGED: u64 = 1 << 62;
const OWNER: u64 = DAMAGED - 1;
const LIFE_SHIFT: u32 = 20;
const NODE_SHIFT: u32 = 52;
const USERS: u32 = 1 << 19;
/// A waiter sleeps, or did when the bell was last rung.
const SLEEPERS: u32 = 1;

/// A unique identification of an owner: a thread of an incarnation of a node, or a number that the program chose there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(u64);

impl OwnerId {
    /// Numbers of threads, and numbers that programs choose, are smaller than this.
    pub const NUMBERS: u32 = USERS;

    /// The identification of a thread. Only the lower 19 bits of the number count.
    pub const fn thread(node: NodeId, incarnation: Incarnation, number: u32) -> Self {
        let node = (node.0 as u64 & 0x3ff) << NODE_SHIFT;
        Self(node | (incarnation.0 as u64) << LIFE_SHIFT | (number & (USERS - 1)) as u64)
    }

    /// The identification of another thread of the same incarnation, from the bits of thread 0.
    #[inline(always)]
    pub const fn numbered(base: u64, number: u32) -> Self {
        Self(base | (number & (USERS - 1)) as u64)
    }

    /// An identification that a program chose, unique together with the node and its incarnation. Only the lower 19 bits of the
    /// number count.
    pub const fn user(node: NodeId, incarnation: Incarnation, number: u32) -> Self {
        Self(Self::thread(node, incarnation, number).0 | USERS as u64)
    }

    /// The identification with these bits; `None` for no owner.
    pub const fn from_bits(bits: u64) -> Option<Self> {
        let bits = bits & OWNER;
        if bits == 0 { None } else { Some(Self(bits)) }
    }

    /// The bits, as they are in a lock's value.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The node.
    pub const fn node(self) -> NodeId {
        NodeId((self.0 >> NODE_SHIFT) as u16 & 0x3ff)
    }

    /// The incarnation of the node.
    pub const fn incarnation(self) -> Incarnation {
        Incarnation((self.0 >> LIFE_SHIFT) as u32)
    }

    /// The number of the thread, or the program's number.
    pub const fn number(self) -> u32 {
        self.0 as u32 & (USERS - 1)
    }

    /// Whether the program chose the number.
    pub const fn is_users(self) -> bool {
        self.0 as u32 & USERS != 0
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_users() { "user" } else { "thread" };
        write!(f, "node {} ({}), {kind} {}", self.node(), self.incarnation(), self.number())
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnerId({self})")
    }
}

/// The value of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// Any thread may lock it.
    Unlocked,
    /// This owner holds it.
    Owner(OwnerId),
    /// Frozen (locked by the module): no thread may lock it.
    Module,
}

impl Value {
    /// The value as a number: 0 for unlocked, all ones for frozen.
    pub const fn bits(self) -> u64 {
        match self {
            Value::Unlocked => 0,
            Value::Owner(owner) => owner.0,
            Value::Module => u64::MAX,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Unlocked => f.pad("unlocked"),
            Value::Owner(owner) => f.pad(&owner.to_string()),
            Value::Module => f.pad("locked by the module"),
        }
    }
}

/// A copy of the value word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen(u64);

impl Seen {
    /// A word that was read elsewhere.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The word of a value.
    pub const fn of(value: Value) -> Self {
        match value {
            Value::Unlocked => Self(0),
            Value::Owner(owner) => Self(owner.0),
            Value::Module => Self(FROZEN),
        }
    }

    /// The bits of the word.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The value in the word.
    pub const fn value(self) -> Value {
        match OwnerId::from_bits(self.0) {
            Some(owner) => Value::Owner(owner),
            None if self.0 & FROZEN != 0 => Value::Module,
            None => Value::Unlocked,
        }
    }

    /// The owner, if there is one.
    pub const fn owner(self) -> Option<OwnerId> {
        OwnerId::from_bits(self.0)
    }

    /// Whether the lock is frozen, so that only the present owner can use it.
    pub const fn is_frozen(self) -> bool {
        self.0 & FROZEN != 0
    }

    /// Whether an owner died and the resource was not repaired since.
    pub const fn is_damaged(self) -> bool {
        self.0 & DAMAGED != 0
    }

    /// Whether the lock is neither held nor frozen.
    pub const fn is_free(self) -> bool {
        self.0 & (OWNER | FROZEN) == 0
    }
}

/// How a lock was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// An owner died, and the resource was not repaired since.
    pub damaged: bool,
}

/// The words of one lock that change with each use, in a cache line of their own. All zero is unlocked.
#[repr(C, align(128))]
pub struct LockWords {
    value: AtomicU64,
    /// The ticket of the next waiter, if one has waited long: no other thread takes the lock then. Else zero.
    turn: AtomicU64,
    /// When the next waiter last looked, in nanoseconds of the common clock.
    turn_seen: AtomicU64,
    /// When a waiter last had a turn, in the same unit.
    turn_served: AtomicU64,
    /// How often the lock was taken. Owners write it.
    uses: AtomicU64,
    bell: AtomicU32,
    #[cfg(loom)]
    kernel: (loom::sync::Mutex<usize>, loom::sync::Condvar),
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<LockWords>() == 128);

/// Orders a compare-and-swap before a later load. On x86-64 the locked instruction does this itself.
#[inline(always)]
fn fence_after_swap() {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    if !planted_bug("unlock") {
        fence(Ordering::SeqCst);
    }
}

impl LockWords {
    /// Words that loom watches.
    #[cfg(loom)]
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self {
            value: AtomicU64::new(0),
            turn: AtomicU64::new(0),
            turn_seen: AtomicU64::new(0),
            turn_served: AtomicU64::new(0),
            uses: AtomicU64::new(0),
            bell: AtomicU32::new(0),
            kernel: Default::default(),
        }
    }

    /// The value now.
    #[inline(always)]
    pub fn get(&self) -> Seen {
        Seen(self.value.load(Ordering::Acquire))
    }

    /// Takes the lock if it is free and no other waiter is next. `ticket` is the caller's, or 0. Costs one compare-and-swap,
    /// and a load that reads the value back. The caller sees everything that former owners wrote.
    #[inline(always)]
    pub fn try_take(&self, me: OwnerId, ticket: u64) -> Result<Taken, Seen> {
        let turn = self.turn.load(Ordering::Relaxed);
        if turn != 0 && turn != ticket {
            return Err(self.get());
        }
        if self.swap(0, me.0) {
            return self.read_back(me);
        }
        if self.swap(DAMAGED, me.0 | DAMAGED) {
            return self.read_back(me);
        }
        Err(self.get())
    }

    /// Reads the value back. After a compare-and-swap this finds nothing new, unless a process breaks the rules.
    #[inline(always)]
    fn read_back(&self, me: OwnerId) -> Result<Taken, Seen> {
        fault_point!("key.taken");
        let seen = Seen(self.value.load(Ordering::Relaxed));
        if seen.0 & OWNER != me.0 {
            return Err(seen);
        }
        self.count_use();
        Ok(Taken { damaged: seen.is_damaged() })
    }

    #[inline(always)]
    fn count_use(&self) {
        self.uses.store(self.uses.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// How often the lock was taken. If two calls return the same number, it was not taken in between.
    #[inline]
    pub fn uses(&self) -> u64 {
        self.uses.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn swap(&self, from: u64, to: u64) -> bool {
        let order = if planted_bug("take") { Ordering::Relaxed } else { Ordering::AcqRel };
        self.value.compare_exchange(from, to, order, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock if it is free and undamaged and no waiter is next, as [`try_take`](Self::try_take) does.
    #[inline(always)]
    pub fn take_free(&self, me: OwnerId) -> bool {
        self.turn.load(Ordering::Relaxed) == 0 && self.swap(0, me.0) && self.read_back(me).is_ok()
    }

    /// Unlocks if the value is only the owner, neither frozen nor damaged. False if not.
    #[inline(always)]
    pub fn release_unmarked(&self, me: OwnerId) -> bool {
        let released = self.swap(me.0, 0);
        if released {
            self.ring_if_heard();
        }
        released
    }

    /// Unlocks, with one compare-and-swap and a load of the same cache line. Fails and changes nothing if the caller is not the
    /// owner.
    #[inline(always)]
    pub fn release(&self, me: OwnerId) -> Result<(), Seen> {
        if !self.swap(me.0, 0) {
            self.release_marked(me)?;
        }
        fault_point!("key.released");
        self.ring_if_heard();
        Ok(())
    }

    #[cold]
    fn release_marked(&self, me: OwnerId) -> Result<(), Seen> {
        loop {
            let seen = self.get();
            if seen.owner() != Some(me) {
                return Err(seen);
            }
            if self.swap(seen.0, seen.0 & !OWNER) {
                return Ok(());
            }
        }
    }

    /// Marks the resource as repaired. Only the owner may.
    pub fn repair(&self, me: OwnerId) -> Result<(), Seen> {
        loop {
            let seen = self.get();
            if seen.owner() != Some(me) {
                return Err(seen);
            }
            if self.swap(seen.0, seen.0 & !DAMAGED) {
                return Ok(());
            }
        }
    }

    /// Gives the lock of a dead owner, as it was seen, to `me`. False if the lock is frozen or has changed meanwhile.
    ///
    /// The caller has made sure that the owner's incarnation has ended. It never comes back, so an equal word still means that
    /// owner.
    pub fn take_from_dead(&self, seen: Seen, me: OwnerId) -> bool {
        let taken = !seen.is_frozen() && self.swap(seen.0, DAMAGED | me.0);
        if taken {
            self.count_use();
        }
        taken
    }

    /// Releases the lock of a dead owner, as it was seen. Then the lock is free or frozen, and damaged. False if it has changed
    /// meanwhile.
    pub fn let_go_dead(&self, seen: Seen) -> bool {
        let done = self.swap(seen.0, seen.0 & FROZEN | DAMAGED);
        self.ring_if_heard();
        done
    }

    /// Marks the resource as damaged.
    #[cfg(not(loom))]
    pub(crate) fn damage(&self) {
        self.value.fetch_or(DAMAGED, Ordering::AcqRel);
    }

    /// Freezes the lock: no thread can take it from now on. Returns the former value, and whether this call froze it. It is not
    /// recorded which thread did; any thread may [unfreeze](Self::thaw) it.
    pub fn freeze(&self) -> (Seen, bool) {
        let before = Seen(self.value.fetch_or(FROZEN, Ordering::AcqRel));
        (before, !before.is_frozen())
    }

    /// Unfreezes the lock. False if it was not frozen.
    pub fn thaw(&self) -> bool {
        let before = Seen(self.value.fetch_and(!FROZEN, Ordering::AcqRel));
        self.ring_if_heard();
        before.is_frozen()
    }

    /// Changes the value from `expected` to `new`, where `None` is unlocked. Fails if it has another value.
    pub fn set(&self, expected: Option<OwnerId>, new: Option<OwnerId>) -> Result<(), Seen> {
        match (expected, new) {
            (None, Some(new)) => self.try_take(new, 0).map(drop),
            (Some(old), None) => self.release(old),
            (Some(old), Some(new)) => loop {
                let seen = self.get();
                if seen.owner() != Some(old) {
                    return Err(seen);
                }
                if self.swap(seen.0, seen.0 & !OWNER | new.0) {
                    return Ok(());
                }
            },
            (None, None) => match self.get() {
                seen if seen.value() == Value::Unlocked => Ok(()),
                seen => Err(seen),
            },
        }
    }

    /// The ticket of the next waiter, and when it last looked; `None` if no waiter is next.
    #[cfg(not(loom))]
    #[inline]
    pub(super) fn turn(&self) -> Option<(u64, u64)> {
        let turn = self.turn.load(Ordering::Relaxed);
        (turn != 0).then(|| (turn, self.turn_seen.load(Ordering::Relaxed)))
    }

    /// When a waiter last had a turn.
    #[cfg(not(loom))]
    pub(super) fn turn_served(&self) -> u64 {
        self.turn_served.load(Ordering::Relaxed)
    }

    /// Makes the waiter with this ticket next, unless an earlier waiter is. Returns whether it is next now.
    #[cfg(not(loom))]
    pub(super) fn claim_turn(&self, ticket: u64, now: u64) -> bool {
        let mut turn = self.turn.load(Ordering::Relaxed);
        while turn == 0 || ticket < turn {
            match self.turn.compare_exchange_weak(turn, ticket, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => turn = ticket,
                Err(found) => turn = found,
            }
        }
        if turn == ticket {
            self.turn_seen.store(now, Ordering::Relaxed);
        }
        turn == ticket
    }

    /// Ends the turn of a waiter, which had the lock at `served` or has given up.
    #[cfg(not(loom))]
    pub(super) fn end_turn(&self, ticket: u64, served: Option<u64>) -> bool {
        if let Some(now) = served
            && self.turn.load(Ordering::Relaxed) == ticket
        {
            self.turn_served.store(now, Ordering::Relaxed);
        }
        self.turn.compare_exchange(ticket, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Announces that the caller is about to sleep. Look at the lock after this call, and then [`sleep`](Self::sleep) with its
    /// result.
    pub fn arm(&self) -> u32 {
        let heard = self.bell.fetch_or(SLEEPERS, Ordering::Relaxed) | SLEEPERS;
        // Pairs with the fence of a thread that changes the value and then reads the bell: one of the two sees the other's store.
        fence(Ordering::SeqCst);
        heard
    }

    #[inline(always)]
    fn ring_if_heard(&self) {
        fence_after_swap();
        if self.bell.load(Ordering::Relaxed) & SLEEPERS != 0 {
            self.ring();
        }
    }

    /// Wakes the next waiter. If there is none, wakes one of the sleepers. If the lock is frozen, wakes all of them, since the
    /// freezing thread is among them.
    #[cold]
    pub(super) fn ring(&self) {
        loop {
            let uses = self.uses();
            // The carry clears the mark: a thread that armed before this does not fall asleep any more.
            let rang = self
                .bell
                .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |bell| (bell & SLEEPERS != 0).then(|| bell.wrapping_add(1)));
            if rang.is_err() {
                return;
            }
            let turn = self.turn.load(Ordering::Relaxed);
            let woke = match turn {
                _ if self.get().is_frozen() => self.wake(NonZeroU32::MAX, i32::MAX),
                0 => self.wake(NonZeroU32::MAX, 1),
                _ => self.wake(mask_of(turn), i32::MAX),
            };
            if !woke && turn == 0 {
                return;
            }
            // More threads may sleep. The woken one may have taken and released the lock meanwhile without seeing a mark.
            self.bell.fetch_or(SLEEPERS, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if !self.get().is_free() || self.uses() == uses {
                return;
            }
        }
    }

    /// Wakes another sleeper, in place of one that may have been woken and does not take the lock.
    #[cfg(not(loom))]
    pub(super) fn pass_on(&self) {
        self.bell.fetch_or(SLEEPERS, Ordering::Relaxed);
        self.ring();
    }

    /// The bell's word, for a waiter that sleeps without [arming](Self::arm) it.
    #[cfg(not(loom))]
    pub(super) fn heard(&self) -> u32 {
        self.bell.load(Ordering::Relaxed)
    }

    /// Wakes the waiter with this ticket, armed or not.
    #[cfg(not(loom))]
    pub(super) fn wake_ticket(&self, ticket: u64) {
        self.wake(mask_of(ticket), i32::MAX);
    }

    /// Wakes all waiters, for news other than a free lock.
    pub fn wake_all(&self) {
        self.bell.fetch_add(2, Ordering::AcqRel);
        self.wake(NonZeroU32::MAX, i32::MAX);
    }

    #[cfg(not(loom))]
    fn wake(&self, mask: NonZeroU32, most: i32) -> bool {
        crate::doorbell::futex_wake_some(&self.bell, mask, most) > 0
    }

    /// Sleeps until the bell rings after `heard`, for `timeout` at most. May return early.
    #[cfg(not(loom))]
    pub fn sleep(&self, heard: u32, ticket: u64, timeout: std::time::Duration) {
        crate::doorbell::futex_wait_as(&self.bell, heard, mask_of(ticket), timeout);
    }

    /// Like the kernel: wakes at most as many as asked for, and says whether any thread slept.
    #[cfg(loom)]
    fn wake(&self, _mask: NonZeroU32, most: i32) -> bool {
        let mut sleepers = self.kernel.0.lock().unwrap();
        let woken = (most as usize).min(*sleepers);
        (0..woken).for_each(|_| self.kernel.1.notify_one());
        *sleepers -= woken;
        woken > 0
    }

    /// No timeout: a lost wake-up is a deadlock, which loom reports.
    #[cfg(loom)]
    pub fn sleep(&self, heard: u32) {
        let mut sleepers = self.kernel.0.lock().unwrap();
        if self.bell.load(Ordering::Relaxed) == heard {
            *sleepers += 1;
            drop(self.kernel.1.wait(sleepers).unwrap());
        }
    }

    /// Clears the words for another lock. No thread may hold or take it now.
    #[cfg(not(loom))]
    pub(super) fn clear(&self) {
        self.turn.store(0, Ordering::Relaxed);
        self.turn_served.store(0, Ordering::Relaxed);
        self.uses.store(0, Ordering::Relaxed);
        self.value.store(0, Ordering::Release);
    }
}

/// The class of sleepers, out of 32, that a waiter belongs to.
fn mask_of(ticket: u64) -> NonZeroU32 {
    NonZeroU32::new(1 << (ticket & 31)).unwrap_or(NonZeroU32::MAX)
}
