//! Models of the lock words: every interleaving, and every order that the hardware may show.

use super::word::{LockWords, OwnerId};
use doorbell_fabric::{Incarnation, NodeId};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread::{self, JoinHandle};
use std::sync::Arc;

fn owner(number: u32) -> OwnerId {
    OwnerId::thread(NodeId(3), Incarnation(7), number)
}

/// A lock, and the resource it guards. loom reports if two threads touch it at once, or if one does not see what the former
/// owner wrote.
struct Guarded {
    words: LockWords,
    resource: UnsafeCell<u64>,
}

// SAFETY: loom watches the cell.
unsafe impl Send for Guarded {}
// SAFETY: the same.
unsafe impl Sync for Guarded {}

impl Guarded {
    fn new() -> Arc<Self> {
        Arc::new(Self { words: LockWords::new(), resource: UnsafeCell::new(0) })
    }

    /// A lock that was taken before any other thread came.
    fn held_by(me: OwnerId) -> Arc<Self> {
        let guarded = Self::new();
        guarded.words.try_take(me, 0).unwrap();
        guarded
    }

    /// An owner's use of the resource. Returns how often it was used before.
    fn use_it(&self) -> u64 {
        // SAFETY: the models check whether that is so.
        self.resource.with_mut(|resource| unsafe {
            *resource += 1;
            *resource - 1
        })
    }

    fn use_and_release(&self, me: OwnerId) {
        self.use_it();
        self.words.release(me).unwrap();
    }

    /// Takes the lock as a thread does that can't spin: it arms, looks again, and sleeps.
    fn take_asleep(&self, me: OwnerId) {
        while self.words.try_take(me, 0).is_err() {
            let heard = self.words.arm();
            if !self.words.get().is_free() {
                self.words.sleep(heard);
            }
        }
    }

    /// Waits, as the thread that froze the lock, until it has no owner.
    fn wait_empty(&self) {
        loop {
            let heard = self.words.arm();
            if self.words.get().owner().is_none() {
                return;
            }
            self.words.sleep(heard);
        }
    }
}

fn with<T: 'static>(guarded: &Arc<Guarded>, run: impl FnOnce(&Guarded) -> T + 'static) -> JoinHandle<T> {
    let guarded = guarded.clone();
    thread::spawn(move || run(&guarded))
}

/// The protocol with two steps in place of a compare-and-swap: a thread that sees *unlocked* stores its own identification, and
/// owns the lock if it reads that back. Two threads can succeed one after the other, so [`LockWords::try_take`] swaps.
#[test]
#[should_panic(expected = "two owners")]
fn storing_and_reading_back_lets_two_in() {
    fn lock(value: &AtomicU64, me: u64) -> bool {
        if value.load(Ordering::SeqCst) != 0 {
            return false;
        }
        value.store(me, Ordering::SeqCst);
        value.load(Ordering::SeqCst) == me
    }
    loom::model(|| {
        let value = Arc::new(AtomicU64::new(0));
        let theirs = value.clone();
        let other = thread::spawn(move || lock(&theirs, 2));
        let mine = lock(&value, 1);
        assert!(!(mine & other.join().unwrap()), "two owners");
    });
}

/// An owner is alone, and sees what the former owner wrote.
#[test]
fn two_never_both_own() {
    loom::model(|| {
        let guarded = Guarded::new();
        let attempt = |guarded: &Guarded, me| {
            let taken = guarded.words.try_take(me, 0);
            taken.is_ok_and(|taken| {
                assert!(!taken.damaged);
                guarded.use_and_release(me);
                true
            })
        };
        let other = with(&guarded, move |guarded| attempt(guarded, owner(1)));
        let mine = attempt(&guarded, owner(0));
        let theirs = other.join().unwrap();
        assert!(mine | theirs, "no thread got a free lock");
        assert_eq!(guarded.use_it(), mine as u64 + theirs as u64);
        assert!(guarded.words.get().is_free());
    });
}

#[test]
fn three_never_own_at_once() {
    loom::model(|| {
        let guarded = Guarded::new();
        let attempt = |guarded: &Guarded, me| {
            if guarded.words.try_take(me, 0).is_ok() {
                guarded.use_and_release(me);
            }
        };
        let others = [1, 2].map(|number| with(&guarded, move |guarded| attempt(guarded, owner(number))));
        attempt(&guarded, owner(0));
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(guarded.words.get().is_free());
    });
}

/// A thread that does not own the lock changes nothing.
#[test]
fn only_its_owner_releases() {
    loom::model(|| {
        let guarded = Guarded::new();
        let other = with(&guarded, |guarded| {
            if guarded.words.try_take(owner(1), 0).is_ok() {
                guarded.use_and_release(owner(1));
            }
        });
        assert!(guarded.words.release(owner(0)).is_err());
        if guarded.words.try_take(owner(0), 0).is_ok() {
            guarded.use_and_release(owner(0));
        }
        other.join().unwrap();
    });
}

/// A thread arms, looks again and sleeps: the unlocking thread wakes it.
#[test]
fn a_sleeper_is_woken() {
    loom::model(|| {
        let guarded = Guarded::held_by(owner(0));
        let sleeper = with(&guarded, |guarded| {
            guarded.take_asleep(owner(1));
            assert_eq!(guarded.use_it(), 1);
        });
        guarded.use_and_release(owner(0));
        sleeper.join().unwrap();
    });
}

/// One sleeper is woken at a time, and the others are not forgotten.
#[test]
fn every_sleeper_is_woken() {
    loom::model(|| {
        let guarded = Guarded::held_by(owner(0));
        let sleepers = [1, 2].map(|number| {
            with(&guarded, move |guarded| {
                guarded.take_asleep(owner(number));
                guarded.use_and_release(owner(number));
            })
        });
        guarded.use_and_release(owner(0));
        sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
        assert_eq!(guarded.use_it(), 3);
    });
}

/// Two threads find the owner dead at once. One of them gets the lock and is told; so is the next owner.
#[test]
fn one_inherits() {
    loom::model(|| {
        let guarded = Guarded::held_by(owner(9));
        let seen = guarded.words.get();
        let inherit = move |guarded: &Guarded, me| {
            let inherited = guarded.words.take_from_dead(seen, me);
            if inherited {
                guarded.use_and_release(me);
            } else if let Ok(taken) = guarded.words.try_take(me, 0) {
                assert!(taken.damaged, "an owner came in and was not told");
                guarded.use_and_release(me);
            }
            inherited
        };
        let other = with(&guarded, move |guarded| inherit(guarded, owner(1)));
        let mine = inherit(&guarded, owner(0));
        assert!(mine ^ other.join().unwrap(), "not exactly one inherited");
        let seen = guarded.words.get();
        assert!(seen.is_damaged() && seen.is_free());
    });
}

/// A thread that froze a lock without an owner has it, and so has a thread that took it before; never both.
#[test]
fn barring_keeps_who_comes_out() {
    loom::model(|| {
        let guarded = Guarded::new();
        let other = with(&guarded, |guarded| {
            if guarded.words.try_take(owner(1), 0).is_ok() {
                guarded.use_and_release(owner(1));
            }
        });
        assert!(guarded.words.freeze().1);
        guarded.wait_empty();
        guarded.use_it();
        assert!(guarded.words.thaw());
        other.join().unwrap();
        assert!(guarded.words.get().is_free());
    });
}

/// The owner of a frozen lock unlocks: the freezing thread is woken, and later the waiters.
#[test]
fn who_barred_it_is_woken_by_who_leaves() {
    loom::model(|| {
        let guarded = Guarded::held_by(owner(1));
        let other = with(&guarded, |guarded| guarded.use_and_release(owner(1)));
        guarded.words.freeze();
        guarded.wait_empty();
        guarded.use_it();
        guarded.words.thaw();
        other.join().unwrap();
        assert!(guarded.words.get().is_free());
    });
}

/// The same with a waiter for the lock: it does not matter which of the two is woken.
#[test]
fn who_waits_for_a_barred_key_is_woken() {
    loom::model(|| {
        let guarded = Guarded::held_by(owner(1));
        let waiter = with(&guarded, |guarded| {
            guarded.take_asleep(owner(2));
            guarded.use_and_release(owner(2));
        });
        let owner_in = with(&guarded, |guarded| guarded.use_and_release(owner(1)));
        guarded.words.freeze();
        guarded.wait_empty();
        guarded.use_it();
        guarded.words.thaw();
        owner_in.join().unwrap();
        waiter.join().unwrap();
    });
}
