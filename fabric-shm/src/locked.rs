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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use doorbell_fabric::{Incarnation, NodeId};
    use std::sync::atomic::AtomicBool;

    struct Someone<'a> {
        number: u32,
        dead: &'a AtomicBool,
    }

    impl Updater for Someone<'_> {
        type Stop = ();

        fn me(&self) -> OwnerId {
            OwnerId::thread(NodeId(1), Incarnation(1), self.number)
        }

        fn lives(&self, _: OwnerId) -> bool {
            !self.dead.load(Ordering::Relaxed)
        }

        fn go_on(&self) -> Result<(), ()> {
            Ok(())
        }
    }

    fn words<const N: usize>() -> [AtomicU64; N] {
        [const { AtomicU64::new(0) }; N]
    }

    fn raised(old: &[AtomicU64]) -> Option<Vec<u64>> {
        Some(read(old).into_iter().map(|word| word + 1).collect())
    }

    #[expect(clippy::ptr_arg, reason = "what is made is a Vec")]
    fn write(made: &Vec<u64>, new: &[AtomicU64]) {
        made.iter().zip(new).for_each(|(made, new)| new.store(*made, Ordering::Relaxed));
    }

    fn raise(value: Locked<'_>, updater: &Someone<'_>, attempts: Option<u32>) -> Result<bool, NoUpdate<()>> {
        value.update(updater, attempts, raised, write).map(|made| made.is_some())
    }

    fn read(words: &[AtomicU64]) -> Vec<u64> {
        words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }

    fn load(value: Locked<'_>) -> Vec<u64> {
        value.load(&Someone { number: 0, dead: &AtomicBool::new(false) }, read).unwrap()
    }

    #[test]
    fn no_update_is_lost_and_no_reader_sees_half_of_one() {
        let (words, dead) = (words::<10>(), AtomicBool::new(false));
        let value = Locked::new(&words);
        let (threads, rounds) = (3, if cfg!(miri) { 20 } else { 20_000 });
        std::thread::scope(|scope| {
            for number in 0..threads {
                let dead = &dead;
                scope.spawn(move || {
                    for _ in 0..rounds {
                        assert_eq!(raise(value, &Someone { number, dead }, None), Ok(true));
                        let seen = load(value);
                        assert!(seen.iter().all(|word| *word == seen[0]), "{seen:?}");
                    }
                });
            }
        });
        assert_eq!(load(value), [u64::from(threads) * rounds; 4]);
        assert_eq!(value.holder(), None);
    }

    #[test]
    fn the_lock_is_taken_from_the_dead_and_the_value_is_the_old_one() {
        let (words, dead) = (words::<6>(), AtomicBool::new(false));
        let value = Locked::new(&words);
        let [one, other] = [1, 2].map(|number| Someone { number, dead: &dead });
        assert_eq!(raise(value, &one, None), Ok(true));
        // As if it had died in the middle: it holds the lock, and the second copy is half written.
        words[0].store(one.me().bits(), Ordering::Relaxed);
        words[HEAD].store(77, Ordering::Relaxed);
        assert_eq!(raise(value, &other, Some(3)), Err(NoUpdate::Attempts));
        assert_eq!(load(value), [1, 1]);
        dead.store(true, Ordering::Relaxed);
        assert_eq!(raise(value, &other, None), Ok(true));
        assert_eq!((load(value), value.holder()), (vec![2, 2], None));
        // An invalid owner id counts as a dead owner.
        dead.store(false, Ordering::Relaxed);
        words[0].store(u64::MAX, Ordering::Relaxed);
        assert_eq!(raise(value, &other, None), Ok(true));
    }

    #[test]
    fn who_declines_or_panics_changes_nothing() {
        let (words, dead) = (words::<4>(), AtomicBool::new(false));
        let (value, me) = (Locked::new(&words), Someone { number: 1, dead: &dead });
        assert_eq!(value.update(&me, None, |_| None, write), Ok(None));
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            value.update(&me, None, |_| -> Option<Vec<u64>> { panic!("in the middle") }, write)
        }));
        assert!(panic.is_err());
        assert_eq!((load(value), value.holder()), (vec![0], None));
        assert_eq!(raise(value, &me, Some(0)), Err(NoUpdate::Attempts));
    }

    #[test]
    fn who_would_wait_for_itself_does_not_and_who_seems_to_waits() {
        let (words, dead) = ([words::<4>(), words::<4>()], AtomicBool::new(false));
        let ([one, other], me) = (words.each_ref().map(|words| Locked::new(words)), Someone { number: 1, dead: &dead });
        let nested =
            one.update(&me, None, |_| Some(other.update(&me, None, |_| Some(raise(one, &me, None)), |_, _| ())), |_, _| ());
        assert_eq!(nested, Ok(Some(Ok(Some(Err(NoUpdate::Nested))))));
        assert_eq!(words.each_ref().map(|words| Locked::new(words).holder()), [None; 2]);
        // Someone wrote this thread's id there. The thread holds another lock, but not this one.
        words[0][0].store(me.me().bits(), Ordering::Relaxed);
        assert_eq!(raise(one, &me, Some(5)), Err(NoUpdate::Attempts));
        assert_eq!(other.update(&me, None, |_| Some(raise(one, &me, Some(5))), |_, _| ()), Ok(Some(Err(NoUpdate::Attempts))));
    }

    #[test]
    fn who_is_late_writes_nothing_and_is_told() {
        let (words, dead) = (words::<6>(), AtomicBool::new(false));
        let value = Locked::new(&words);
        let [late, next] = [1, 2].map(|number| Someone { number, dead: &dead });
        let taken = || {
            dead.store(true, Ordering::Relaxed);
            assert_eq!(raise(value, &next, None), Ok(true));
            dead.store(false, Ordering::Relaxed);
        };
        // Its callback takes too long, so the copy that it would write is the valid one.
        let lost = value.update(
            &late,
            None,
            |old| {
                taken();
                raised(old)
            },
            |_, _| unreachable!("an updater that lost the lock writes nothing"),
        );
        assert_eq!((lost, load(value), value.holder()), (Err(NoUpdate::Lost), vec![1, 1], None));
        // The lock is taken while it writes: the words that it wrote do not become valid again.
        let lost = value.update(&late, None, raised, |_, _| taken());
        assert_eq!((lost, load(value)), (Err(NoUpdate::Lost), vec![2, 2]));
        // The late updater must not release the lock, which is no longer its own.
        let lost = value.update(
            &late,
            None,
            |_| {
                words[0].store(next.me().bits(), Ordering::Relaxed);
                None::<Vec<u64>>
            },
            write,
        );
        assert_eq!((lost, value.holder()), (Err(NoUpdate::Lost), Some(next.me())));
    }

    #[test]
    fn who_reads_what_somebody_keeps_changing_may_give_up() {
        struct Impatient(std::cell::Cell<u32>);
        impl Updater for Impatient {
            type Stop = &'static str;

            fn me(&self) -> OwnerId {
                OwnerId::thread(NodeId(1), Incarnation(1), 1)
            }

            fn lives(&self, _: OwnerId) -> bool {
                true
            }

            fn go_on(&self) -> Result<(), &'static str> {
                self.0.set(self.0.get() + 1);
                if self.0.get() < 3 { Ok(()) } else { Err("enough") }
            }
        }
        let (words, mut reads) = (words::<4>(), 0);
        let spoiled = Locked::new(&words).load(&Impatient(Default::default()), |_| {
            reads += 1;
            words[1].fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!((spoiled, reads), (Err("enough"), 3 * TRIES));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    //! Readers are spawned last: loom can move a load before a store that came first. It cannot move a store before a load that
    //! came first if the storing thread has loaded that word itself, as an update does.

    use super::*;
    use doorbell_fabric::{Incarnation, NodeId};
    use loom::thread::{self, JoinHandle};
    use std::mem::ManuallyDrop;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::Arc;

    /// Two words under a lock that are always equal, and a word that is not 0 once a thread died.
    struct Shared {
        words: [AtomicU64; HEAD + 4],
        dead: AtomicU64,
    }

    struct Someone<'a> {
        number: u32,
        dead: &'a AtomicU64,
    }

    impl Updater for Someone<'_> {
        type Stop = ();

        fn me(&self) -> OwnerId {
            OwnerId::thread(NodeId(1), Incarnation(1), self.number)
        }

        fn lives(&self, owner: OwnerId) -> bool {
            u64::from(owner.number()) != self.dead.load(Ordering::Acquire)
        }

        fn go_on(&self) -> Result<(), ()> {
            Ok(())
        }
    }

    /// The point at which an owner dies.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Point {
        Locked,
        HalfWritten,
        Written,
        Flipped,
    }

    /// The number of the thread that dies.
    const MORTAL: u32 = 9;

    impl Shared {
        fn new() -> Arc<Self> {
            Arc::new(Self { words: std::array::from_fn(|_| AtomicU64::new(0)), dead: AtomicU64::new(0) })
        }

        fn value(&self) -> Locked<'_> {
            Locked::new(&self.words)
        }

        fn someone(&self, number: u32) -> Someone<'_> {
            Someone { number, dead: &self.dead }
        }

        /// The value; all its words must be equal.
        fn read(&self) -> u64 {
            let [one, other] =
                self.value().load(&self.someone(0), |words| [0, 1].map(|at| words[at].load(Ordering::Relaxed))).unwrap();
            assert_eq!(one, other, "a mixture");
            one
        }

        /// Adds 1 and returns the new value.
        fn raise(&self, number: u32) -> u64 {
            self.value().update(&self.someone(number), None, raised, |new, words| store(*new, words)).unwrap().unwrap()
        }

        /// Begins to add 1 and stops at this point.
        fn die(&self, point: Point) {
            let die_at = |here| {
                if here == point {
                    resume_unwind(Box::new(point));
                }
            };
            let held = ManuallyDrop::new(self.value().lock(&self.someone(MORTAL), None).unwrap());
            let compute = |old: &[AtomicU64]| {
                die_at(Point::Locked);
                raised(old)
            };
            let write = |new: &u64, words: &[AtomicU64]| {
                store(*new, &words[..1]);
                die_at(Point::HalfWritten);
                store(*new, &words[1..]);
                die_at(Point::Written);
            };
            let end = catch_unwind(AssertUnwindSafe(|| self.value().change::<(), _>(&held, compute, write)));
            assert_eq!(end.is_ok(), point == Point::Flipped);
            self.dead.store(MORTAL.into(), Ordering::Release);
        }
    }

    fn raised(old: &[AtomicU64]) -> Option<u64> {
        let [one, other] = [0, 1].map(|at| old[at].load(Ordering::Relaxed));
        assert_eq!(one, other, "an update read a mixture of two values");
        Some(one + 1)
    }

    fn store(value: u64, words: &[AtomicU64]) {
        words.iter().for_each(|word| word.store(value, Ordering::Relaxed));
    }

    fn with<T: 'static>(shared: &Arc<Shared>, run: impl FnOnce(&Shared) -> T + 'static) -> JoinHandle<T> {
        let shared = shared.clone();
        thread::spawn(move || run(&shared))
    }

    #[test]
    fn no_update_is_lost_and_no_reader_sees_half_of_one() {
        loom::model(|| {
            let shared = Shared::new();
            let other = with(&shared, |shared| shared.raise(1));
            let reader = with(&shared, Shared::read);
            let mut made = [shared.raise(2), other.join().unwrap()];
            made.sort_unstable();
            assert!(reader.join().unwrap() <= 2);
            assert_eq!((made, shared.read(), shared.value().holder()), ([1, 2], 2, None));
        });
    }

    /// Wherever an owner dies, the value is the old one or the new one, and the next thread takes the lock.
    fn inherit(point: Point) {
        loom::model(move || {
            let shared = Shared::new();
            let heir = with(&shared, |shared| shared.raise(1));
            let reader = with(&shared, Shared::read);
            shared.die(point);
            let (made, seen, now) = (heir.join().unwrap(), reader.join().unwrap(), shared.read());
            let last = if point == Point::Flipped { 2 } else { 1 };
            assert!(seen <= last && made <= last, "{seen} {made}");
            assert_eq!(now, last);
            // If the heir came first, the dead owner still has the lock.
            assert_eq!((shared.raise(2), shared.read(), shared.value().holder()), (last + 1, last + 1, None));
        });
    }

    #[test]
    fn the_lock_of_who_died_with_nothing_done_is_inherited() {
        inherit(Point::Locked);
    }

    #[test]
    fn the_lock_of_who_died_with_half_a_value_written_is_inherited() {
        inherit(Point::HalfWritten);
    }

    #[test]
    fn the_lock_of_who_died_with_a_value_written_is_inherited() {
        inherit(Point::Written);
    }

    #[test]
    fn the_lock_of_who_died_with_a_new_value_is_inherited() {
        inherit(Point::Flipped);
    }

    /// Two threads find the owner dead at once: one takes the lock, and the other gets it from the first.
    #[test]
    fn one_inherits() {
        loom::model(|| {
            let shared = Shared::new();
            shared.die(Point::HalfWritten);
            let other = with(&shared, |shared| shared.raise(1));
            let mut made = [shared.raise(2), other.join().unwrap()];
            made.sort_unstable();
            assert_eq!((made, shared.read(), shared.value().holder()), ([1, 2], 2, None));
        });
    }
}
