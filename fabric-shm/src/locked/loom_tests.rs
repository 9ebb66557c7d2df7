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
