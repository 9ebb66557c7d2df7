//! A value that is updated under a lock, and that survives the death of the lock's owner.
//!
//! ```text
//! owner | node 10 | incarnation 32 | number 20 |   zero: no owner
//! version                                         its lowest bit selects the valid copy
//! copy 0
//! copy 1
//! ```
//!
//! The owner of the lock writes the copy that is not valid, and makes it the valid one by one store. If an owner dies, the valid
//! copy is still whole: nothing needs repair, and the next owner takes the lock from the dead one. All zero is an unlocked value
//! of zeros.

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::keys::OwnerId;
use doorbell_fabric::sync::{AtomicU64, Ordering, fence, planted_bug, spin_hint};
use std::time::Duration;

/// The number of words before the copies.
pub const HEAD: usize = 2;
/// The number of looks at a held lock without a pause, and then the same number with a yield after each. After them the waiter
/// checks whether the owner lives.
const SPINS: u32 = if cfg!(loom) { 1 } else { 64 };
const YIELDS: u32 = if cfg!(loom) { 1 } else { 192 };
/// The longest sleep between two looks.
const SLEEP: Duration = Duration::from_millis(1);

/// A thread that updates.
pub trait Updater {
    /// Why the thread cannot wait any longer.
    type Stop;

    /// Its owner id: unique among all possible owners of the lock.
    fn me(&self) -> OwnerId;

    /// Whether an owner may still be inside the update. May make system calls. If it returns false, everything that the owner
    /// wrote is visible from then on.
    fn lives(&self, owner: OwnerId) -> bool;

    /// Whether to go on waiting.
    ///
    /// # Errors
    /// The thread must stop waiting.
    fn go_on(&self) -> Result<(), Self::Stop>;
}

/// The number of failed tries between two calls of `go_on`. A peer may spoil every try.
pub const TRIES: u32 = 256;

/// Counts failed tries.
#[derive(Debug, Default)]
pub struct Tries(u32);

impl Tries {
    /// Counts one failed try.
    ///
    /// # Errors
    /// The updater must not go on.
    #[inline]
    pub fn again<U: Updater>(&mut self, updater: &U) -> Result<(), U::Stop> {
        self.0 += 1;
        if self.0 < TRIES {
            spin_hint();
            return Ok(());
        }
        self.0 = 0;
        updater.go_on()?;
        std::thread::yield_now();
        Ok(())
    }
}

/// Why there was no update. The value is unchanged, unless the lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoUpdate<S> {
    /// Another thread had the lock at each look.
    Attempts,
    /// This thread is already in an update of the same value and would wait for itself.
    Nested,
    /// The updater must not wait any longer.
    Stop(S),
    /// Another thread took the lock from the updater, because the updater's incarnation ended or because someone overwrote the
    /// word. If that happened while the updater wrote, the value may contain some of its words.
    Lost,
}

/// Such a value in memory that others may write at any time.
#[derive(Clone, Copy)]
pub struct Locked<'a> {
    words: &'a [AtomicU64],
}

/// The locks that this thread holds. The lock's word is no proof, because others may write it, and because thread numbers that
/// are far apart can look the same.
#[cfg(not(loom))]
mod nested {
    use std::cell::Cell;

    /// The depth of nested updates that is tracked. A deeper nested update waits for itself.
    const MOST: usize = 8;

    thread_local! {
        static DEPTH: Cell<usize> = const { Cell::new(0) };
        static HELD: [Cell<usize>; MOST] = const { [const { Cell::new(0) }; MOST] };
    }

    #[inline]
    pub fn enter(place: usize) {
        let depth = DEPTH.get();
        DEPTH.set(depth + 1);
        HELD.with(|held| held.get(depth).map(|held| held.set(place)));
    }

    #[inline]
    pub fn leave() {
        DEPTH.set(DEPTH.get() - 1);
    }

    pub fn has(place: usize) -> bool {
        HELD.with(|held| held.iter().take(DEPTH.get()).any(|held| held.get() == place))
    }
}

/// Loom runs all threads of a model on one thread.
#[cfg(loom)]
mod nested {
    pub fn enter(_: usize) {}

    pub fn leave() {}

    pub fn has(_: usize) -> bool {
        false
    }
}

/// Releases the lock, also in a panic.
struct Held<'a> {
    owner: &'a AtomicU64,
    me: OwnerId,
}

impl<'a> Held<'a> {
    #[inline]
    fn new(owner: &'a AtomicU64, me: OwnerId) -> Self {
        nested::enter(std::ptr::from_ref(owner).addr());
        Self { owner, me }
    }

    fn is_mine(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == self.me.bits()
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        nested::leave();
        if self.is_mine() {
            self.owner.store(0, Ordering::Release);
        }
    }
}

impl<'a> Locked<'a> {
    /// The value in these words: [`HEAD`] words, and twice its own.
    ///
    /// # Panics
    /// There are fewer words, or an odd number of them.
    #[inline]
    pub fn new(words: &'a [AtomicU64]) -> Self {
        assert!(
            words.len() > HEAD && words.len().is_multiple_of(2),
            "a value under a lock needs two copies of at least one word each"
        );
        Self { words }
    }

    #[inline]
    fn owner(self) -> &'a AtomicU64 {
        &self.words[0]
    }

    #[inline]
    fn version(self) -> &'a AtomicU64 {
        &self.words[1]
    }

    #[inline]
    fn copy(self, version: u64) -> &'a [AtomicU64] {
        let (first, second) = self.words[HEAD..].split_at((self.words.len() - HEAD) / 2);
        if version & 1 == 0 { first } else { second }
    }

    /// The owner of the lock.
    pub fn holder(self) -> Option<OwnerId> {
        OwnerId::from_bits(self.owner().load(Ordering::Relaxed))
    }

    /// Passes the valid copy to `read`, and calls it again if an update came in between. The result of the last call comes from a
    /// single value. Takes no lock.
    ///
    /// # Errors
    /// The updater must not go on. It is asked once in [`TRIES`] tries.
    #[inline]
    pub fn load<U: Updater, T>(self, updater: &U, mut read: impl FnMut(&[AtomicU64]) -> T) -> Result<T, U::Stop> {
        let mut tries = Tries::default();
        loop {
            let version = self.version().load(Ordering::Acquire);
            let value = read(self.copy(version));
            // Pairs with the fence in `change`: a reader that saw a word of the update after the next one also sees the next
            // version.
            fence(Ordering::Acquire);
            if self.version().load(Ordering::Relaxed) == version {
                return Ok(value);
            }
            tries.again(updater)?;
        }
    }

    /// Takes the lock, calls `compute` on the valid copy, lets `write` put the result into the other copy, makes that one valid,
    /// and releases the lock. Writes nothing if `compute` returns `None`. Waits as long as a living owner has the lock, or for
    /// `attempts` looks. Returns the result of `compute`.
    ///
    /// `write` may only store. An updater whose incarnation has ended is stopped before `write`, but not during it.
    ///
    /// # Errors
    /// See [`NoUpdate`].
    #[inline]
    pub fn update<U: Updater, V>(
        self,
        updater: &U,
        attempts: Option<u32>,
        compute: impl FnOnce(&[AtomicU64]) -> Option<V>,
        write: impl FnOnce(&V, &[AtomicU64]),
    ) -> Result<Option<V>, NoUpdate<U::Stop>> {
        let held = self.lock(updater, attempts)?;
        self.change(&held, compute, write)
    }

    #[inline(always)]
    fn lock<U: Updater>(self, updater: &U, attempts: Option<u32>) -> Result<Held<'a>, NoUpdate<U::Stop>> {
        let me = updater.me();
        if attempts == Some(0) {
            return Err(NoUpdate::Attempts);
        }
        if self.owner().compare_exchange(0, me.bits(), Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.wait(updater, me, attempts)?;
        }
        let held = Held::new(self.owner(), me);
        fault_point!("value.locked");
        Ok(held)
    }

    /// The part of an update that runs under the lock.
    #[inline(always)]
    fn change<S, V>(
        self,
        held: &Held<'_>,
        compute: impl FnOnce(&[AtomicU64]) -> Option<V>,
        write: impl FnOnce(&V, &[AtomicU64]),
    ) -> Result<Option<V>, NoUpdate<S>> {
        // Acquire: an owner that died may have stored the version without releasing the lock.
        let version = self.version().load(Ordering::Acquire);
        let made = compute(self.copy(version));
        // A late updater may have been taken for dead. The copy that it would write then belongs to the next owner, or is valid.
        if !held.is_mine() {
            return Err(NoUpdate::Lost);
        }
        let Some(value) = made else { return Ok(None) };
        // The words that are written next were valid before the current version. Release: pairs with the fence in `load`.
        if !planted_bug("overwrite") {
            fence(Ordering::Release);
        }
        write(&value, self.copy(version.wrapping_add(1)));
        fault_point!("value.written");
        if !held.is_mine() {
            return Err(NoUpdate::Lost);
        }
        let flip = if planted_bug("flip") { Ordering::Relaxed } else { Ordering::Release };
        self.version().store(version.wrapping_add(1), flip);
        fault_point!("value.flipped");
        Ok(Some(value))
    }

    #[cold]
    fn wait<U: Updater>(self, updater: &U, me: OwnerId, attempts: Option<u32>) -> Result<(), NoUpdate<U::Stop>> {
        let mut looks = 1;
        let mut sleep = Duration::from_micros(50);
        loop {
            if attempts.is_some_and(|most| looks >= most) {
                return Err(NoUpdate::Attempts);
            }
            looks = looks.saturating_add(1);
            let seen = self.owner().load(Ordering::Relaxed);
            if seen == me.bits() && nested::has(std::ptr::from_ref(self.owner()).addr()) {
                return Err(NoUpdate::Nested);
            }
            let take = |from| {
                if planted_bug("inherit") {
                    return self.owner().swap(me.bits(), Ordering::Acquire) != me.bits();
                }
                self.owner().compare_exchange(from, me.bits(), Ordering::Acquire, Ordering::Relaxed).is_ok()
            };
            if seen == 0 && take(0) {
                return Ok(());
            }
            if looks < SPINS {
                spin_hint();
            } else if looks < YIELDS {
                std::thread::yield_now();
            } else {
                updater.go_on().map_err(NoUpdate::Stop)?;
                // A word that is not a valid owner id counts as a dead owner.
                let lives = OwnerId::from_bits(seen).is_some_and(|owner| owner.bits() == seen && updater.lives(owner));
                if seen != 0 && !lives && take(seen) {
                    return Ok(());
                }
                #[cfg(not(loom))]
                std::thread::sleep(sleep);
                #[cfg(loom)]
                spin_hint();
                sleep = (2 * sleep).min(SLEEP);
            }
        }
    }
}
