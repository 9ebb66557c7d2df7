//! The words of one key.
//!
//! ```text
//! value | barred 1 | damaged 1 | node 10 | life 32 | user's number 1 | number 19 |
//! turn  | when that waiter came 44 | which waiter 20 |
//! bell  | how often it rang 31 | somebody sleeps 1 |
//! ```
//!
//! An owner part of zero is nobody: no life is zero. *Barred* keeps everybody out, whoever is in; with nobody in, the key is locked by the
//! module. *Damaged* says that an owner died and nobody has repaired the resource since: in the same word as the owner, so that no
//! owner can come in without being told.

use doorbell_fabric::sync::{AtomicU32, AtomicU64, Ordering, fence, planted_bug};
use doorbell_fabric::{Incarnation, NodeId};
use std::fmt;

const BARRED: u64 = 1 << 63;
const DAMAGED: u64 = 1 << 62;
const OWNER: u64 = DAMAGED - 1;
const LIFE_SHIFT: u32 = 20;
const NODE_SHIFT: u32 = 52;
const USERS: u32 = 1 << 19;
/// Somebody sleeps, or did when the bell was rung last.
const SLEEPERS: u32 = 1;

/// A unique identification: of a thread of one life of a node, or of whoever that life of a node gives a number to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(u64);

impl OwnerId {
    /// Numbers of threads, and numbers of users, are smaller.
    pub const NUMBERS: u32 = USERS;

    /// The identification of a thread. Of the number only the lower 19 bits count.
    pub const fn thread(node: NodeId, life: Incarnation, number: u32) -> Self {
        let node = (node.0 as u64 & 0x3ff) << NODE_SHIFT;
        Self(node | (life.0 as u64) << LIFE_SHIFT | (number & (USERS - 1)) as u64)
    }

    /// The identification of another thread of the same life, by the bits of that of thread 0.
    #[inline(always)]
    pub const fn numbered(base: u64, number: u32) -> Self {
        Self(base | (number & (USERS - 1)) as u64)
    }

    /// An identification that a program chose, unique with the node and its life. Of the number only the lower 19 bits count.
    pub const fn user(node: NodeId, life: Incarnation, number: u32) -> Self {
        Self(Self::thread(node, life, number).0 | USERS as u64)
    }

    /// The one with these bits; `None` for those of nobody.
    pub const fn from_bits(bits: u64) -> Option<Self> {
        let bits = bits & OWNER;
        if bits == 0 { None } else { Some(Self(bits)) }
    }

    /// As a key's value shows it.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Which node.
    pub const fn node(self) -> NodeId {
        NodeId((self.0 >> NODE_SHIFT) as u16 & 0x3ff)
    }

    /// Which life of it.
    pub const fn life(self) -> Incarnation {
        Incarnation((self.0 >> LIFE_SHIFT) as u32)
    }

    /// Which thread, or which number that a program gave.
    pub const fn number(self) -> u32 {
        self.0 as u32 & (USERS - 1)
    }

    /// Whether a program gave the number.
    pub const fn is_users(self) -> bool {
        self.0 as u32 & USERS != 0
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_users() { "user" } else { "thread" };
        write!(f, "node {} ({}), {kind} {}", self.node(), self.life(), self.number())
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnerId({self})")
    }
}

/// What a key says of its resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// Anybody may lock it.
    Unlocked,
    /// It is this one's.
    Owner(OwnerId),
    /// Locked by the module: nobody may use it.
    Module,
}

impl Value {
    /// The number that stands for it: 0 for unlocked, all ones for the module.
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

    /// A word with this value.
    pub const fn of(value: Value) -> Self {
        match value {
            Value::Unlocked => Self(0),
            Value::Owner(owner) => Self(owner.0),
            Value::Module => Self(BARRED),
        }
    }

    /// The word.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// What it says.
    pub const fn value(self) -> Value {
        match OwnerId::from_bits(self.0) {
            Some(owner) => Value::Owner(owner),
            None if self.0 & BARRED != 0 => Value::Module,
            None => Value::Unlocked,
        }
    }

    /// Who is in.
    pub const fn owner(self) -> Option<OwnerId> {
        OwnerId::from_bits(self.0)
    }

    /// Whether everybody else is kept out, as soon as whoever is in has left.
    pub const fn is_barred(self) -> bool {
        self.0 & BARRED != 0
    }

    /// Whether an owner died and nobody has repaired the resource since.
    pub const fn is_damaged(self) -> bool {
        self.0 & DAMAGED != 0
    }

    /// Whether nothing but good manners keeps anybody out.
    pub const fn is_free(self) -> bool {
        self.0 & (OWNER | BARRED) == 0
    }
}

/// How a key was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// An owner died, and nobody has repaired the resource since.
    pub damaged: bool,
}

/// The words of one key that change with each use: a cache line of their own. All zero is unlocked.
#[repr(C, align(128))]
pub struct LockWords {
    value: AtomicU64,
    /// Who is next, if somebody has waited long: nobody else takes the key then. Zero if nobody has.
    turn: AtomicU64,
    /// When the one who is next looked last, in nanoseconds of the common clock.
    turn_seen: AtomicU64,
    /// When somebody last had a turn, in the same.
    turn_served: AtomicU64,
    /// How often it was taken. Written by owners.
    uses: AtomicU64,
    bell: AtomicU32,
    #[cfg(loom)]
    kernel: (loom::sync::Mutex<usize>, loom::sync::Condvar),
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<LockWords>() == 128);

/// Between a compare-and-swap and a load that must not be seen before it: the locked instruction itself, where there is one.
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

    /// What it says now.
    #[inline(always)]
    pub fn get(&self) -> Seen {
        Seen(self.value.load(Ordering::Acquire))
    }

    /// Takes the key if nobody has it and it is nobody else's turn; with the ticket of one who waits, or 0. One compare-and-swap; then
    /// it is read back. What former owners wrote is seen from here on.
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

    /// The source's second look. After a compare-and-swap it says nothing new, unless somebody breaks the rules.
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

    /// How often it was taken: equal numbers mean that nobody had it in between.
    #[inline]
    pub fn uses(&self) -> u64 {
        self.uses.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn swap(&self, from: u64, to: u64) -> bool {
        let order = if planted_bug("take") { Ordering::Relaxed } else { Ordering::AcqRel };
        self.value.compare_exchange(from, to, order, Ordering::Relaxed).is_ok()
    }

    /// Takes the key if it is free, sound and nobody's turn, as [`try_take`](Self::try_take) does.
    #[inline(always)]
    pub fn take_free(&self, me: OwnerId) -> bool {
        self.turn.load(Ordering::Relaxed) == 0 && self.swap(0, me.0) && self.read_back(me).is_ok()
    }

    /// Gives up a key that nothing but its owner is said of.
    #[inline(always)]
    pub fn release_unmarked(&self, me: OwnerId) -> bool {
        let released = self.swap(me.0, 0);
        if released {
            self.ring_if_heard();
        }
        released
    }

    /// Gives the key up. One compare-and-swap, and a load of the same line. Fails if it is not the caller's: then nothing changed.
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

    /// Says that the resource is sound again, though an owner died. Only whoever has it may.
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

    /// Gives the key of a dead owner, as it was seen, to `me`. False if it is barred, or changed meanwhile.
    ///
    /// The caller has made sure that this owner's life has ended. It never comes back, so the word is still that owner's if it is equal.
    pub fn take_from_dead(&self, seen: Seen, me: OwnerId) -> bool {
        let taken = !seen.is_barred() && self.swap(seen.0, DAMAGED | me.0);
        if taken {
            self.count_use();
        }
        taken
    }

    /// Takes the key of a dead owner, as it was seen, and gives it to nobody: it is free or barred, and damaged. False if it changed meanwhile.
    pub fn let_go_dead(&self, seen: Seen) -> bool {
        let done = self.swap(seen.0, seen.0 & BARRED | DAMAGED);
        self.ring_if_heard();
        done
    }

    /// Says that the resource is not sound, as far as anybody knows.
    #[cfg(not(loom))]
    pub(crate) fn damage(&self) {
        self.value.fetch_or(DAMAGED, Ordering::AcqRel);
    }

    /// Keeps everybody out from now on, except who is in; says who is. Says nothing of who barred it: anybody may [unbar](Self::unbar).
    pub fn bar(&self) -> (Seen, bool) {
        let before = Seen(self.value.fetch_or(BARRED, Ordering::AcqRel));
        (before, !before.is_barred())
    }

    /// Lets everybody in again. False if it was not barred.
    pub fn unbar(&self) -> bool {
        let before = Seen(self.value.fetch_and(!BARRED, Ordering::AcqRel));
        self.ring_if_heard();
        before.is_barred()
    }

    /// Sets the value as it is told if it is as expected: 0, or an owner's bits. The source's conditional set, on which all above stands.
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

    /// Whose turn it is, and when that one looked last; `None` if it is nobody's.
    #[cfg(not(loom))]
    #[inline]
    pub(super) fn turn(&self) -> Option<(u64, u64)> {
        let turn = self.turn.load(Ordering::Relaxed);
        (turn != 0).then(|| (turn, self.turn_seen.load(Ordering::Relaxed)))
    }

    /// When somebody last had a turn.
    #[cfg(not(loom))]
    pub(super) fn turn_served(&self) -> u64 {
        self.turn_served.load(Ordering::Relaxed)
    }

    /// Who has this ticket is next from now on, unless somebody is who came earlier; says whether it is.
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

    /// Is next no more, having had the key at `served` or given up.
    #[cfg(not(loom))]
    pub(super) fn end_turn(&self, ticket: u64, served: Option<u64>) -> bool {
        if let Some(now) = served
            && self.turn.load(Ordering::Relaxed) == ticket
        {
            self.turn_served.store(now, Ordering::Relaxed);
        }
        self.turn.compare_exchange(ticket, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Says that somebody is about to sleep. Look at the key after this, and then [`sleep`](Self::sleep) with what it returned.
    pub fn arm(&self) -> u32 {
        let heard = self.bell.fetch_or(SLEEPERS, Ordering::Relaxed) | SLEEPERS;
        // Pairs with the fence of whoever changes the value and then looks at the bell: one of the two sees the other's store.
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

    /// Wakes who is next; if it is nobody's turn, one of those that sleep; all if the key is barred, as who barred it sleeps among them.
    #[cold]
    pub(super) fn ring(&self) {
        loop {
            let uses = self.uses();
            // Clears the mark with the carry: whoever armed before this does not fall asleep any more.
            let rang = self
                .bell
                .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |bell| (bell & SLEEPERS != 0).then(|| bell.wrapping_add(1)));
            if rang.is_err() {
                return;
            }
            let turn = self.turn.load(Ordering::Relaxed);
            let woke = match turn {
                _ if self.get().is_barred() => self.wake(u32::MAX, i32::MAX),
                0 => self.wake(u32::MAX, 1),
                _ => self.wake(mask_of(turn), i32::MAX),
            };
            if !woke && turn == 0 {
                return;
            }
            // There may be more of them. Who was woken may have had the key meanwhile, and found no mark when it gave it up.
            self.bell.fetch_or(SLEEPERS, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if !self.get().is_free() || self.uses() == uses {
                return;
            }
        }
    }

    /// Wakes another in place of one who may have been woken, and does not take the key.
    #[cfg(not(loom))]
    pub(super) fn pass_on(&self) {
        self.bell.fetch_or(SLEEPERS, Ordering::Relaxed);
        self.ring();
    }

    /// What the bell says to who sleeps without [arming](Self::arm) it.
    #[cfg(not(loom))]
    pub(super) fn heard(&self) -> u32 {
        self.bell.load(Ordering::Relaxed)
    }

    /// Wakes who has this ticket, armed or not.
    #[cfg(not(loom))]
    pub(super) fn wake_ticket(&self, ticket: u64) {
        self.wake(mask_of(ticket), i32::MAX);
    }

    /// Wakes everybody who waits: for news that is not a free key.
    pub fn wake_all(&self) {
        self.bell.fetch_add(2, Ordering::AcqRel);
        self.wake(u32::MAX, i32::MAX);
    }

    #[cfg(not(loom))]
    fn wake(&self, mask: u32, most: i32) -> bool {
        crate::doorbell::futex_wake_some(&self.bell, mask, most) > 0
    }

    /// Sleeps until the bell rings that [`arm`](Self::arm) heard last, for `timeout` at most. May return early.
    #[cfg(not(loom))]
    pub fn sleep(&self, heard: u32, ticket: u64, timeout: std::time::Duration) {
        crate::doorbell::futex_wait_as(&self.bell, heard, mask_of(ticket), timeout);
    }

    /// As the kernel does it: wakes no more than it is told, and says whether anybody slept.
    #[cfg(loom)]
    fn wake(&self, _mask: u32, most: i32) -> bool {
        let mut sleepers = self.kernel.0.lock().unwrap();
        let woken = (most as usize).min(*sleepers);
        (0..woken).for_each(|_| self.kernel.1.notify_one());
        *sleepers -= woken;
        woken > 0
    }

    /// No time-out: a lost wake-up is a deadlock that loom reports.
    #[cfg(loom)]
    pub fn sleep(&self, heard: u32) {
        let mut sleepers = self.kernel.0.lock().unwrap();
        if self.bell.load(Ordering::Relaxed) == heard {
            *sleepers += 1;
            drop(self.kernel.1.wait(sleepers).unwrap());
        }
    }

    /// Blank again, for another key. Nobody may have it or be taking it.
    #[cfg(not(loom))]
    pub(super) fn clear(&self) {
        self.turn.store(0, Ordering::Relaxed);
        self.turn_served.store(0, Ordering::Relaxed);
        self.uses.store(0, Ordering::Relaxed);
        self.value.store(0, Ordering::Release);
    }
}

/// As which of 32 kinds of sleepers a waiter sleeps.
fn mask_of(ticket: u64) -> u32 {
    1 << (ticket & 31)
}
