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
    let nested = one.update(&me, None, |_| Some(other.update(&me, None, |_| Some(raise(one, &me, None)), |_, _| ())), |_, _| ());
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
