//! Processes that update a value under a lock and are killed: in the middle of an update, at chosen instructions, and at random moments.
//!
//! Every time: the value is the old one or the new one and never a mixture, and all others go on updating it. At the end the value counts every update
//! that was reported, and at most one more for each death: an update that took place and was not reported.
//!
//! `DOORBELL_KILLS` says how many die, `DOORBELL_SEED` seeds the choices.

use doorbell::atomic::RemoteCell;
use doorbell::atomic::{Atom, AtomicValue};
use doorbell::{Key, Node, ReadWrite, atomic};
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::{PATIENCE, soon};
use doorbell_tests::process::{Process, told, told_as};
use doorbell_tests::random::{Random, seed};
use doorbell_tests::words::Words;
use doorbell_tests::{Turn, number};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const PROCESSES: usize = 3;
/// The fault points at which a process dies: it has the lock; it has written the second copy; the second copy is the valid one.
const PLACES: [&str; 3] = ["value.locked", "value.written", "value.flipped"];

/// The words beside the cell: how many updates each place was told of, and whether to stop.
const STOP: usize = PROCESSES;

/// Each word follows from the first.
#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable, AtomicValue)]
#[repr(C)]
struct Large([u64; 17]);

impl Large {
    fn of(count: u64) -> Self {
        Large(std::array::from_fn(|at| count.wrapping_mul(2 * at as u64 + 1)))
    }

    #[track_caller]
    fn count(self) -> u64 {
        assert_eq!(self, Self::of(self.0[0]), "a mixture");
        self.0[0]
    }

    fn next(self) -> Self {
        Self::of(self.count() + 1)
    }
}

/// The role: updates the value until it dies or is told to stop.
pub fn update() {
    let me: usize = told_as("ME");
    let words = Words::inherited();
    let node = Node::builder(told("DOMAIN")).id(me as u16 + 1).join().unwrap();
    let key: Vec<u8> = told("KEY").split(' ').map(|byte| byte.parse().unwrap()).collect();
    let cell = RemoteCell::open(&node, Key::<Atom<Large>, ReadWrite>::from_bytes(&key).unwrap()).unwrap();
    while words[STOP].load(SeqCst) == 0 {
        atomic! { cell = cell.next() }.unwrap();
        words[me].fetch_add(1, SeqCst);
        atomic! { cell }.unwrap().count();
    }
    drop(cell);
    node.leave().unwrap();
}

#[test]
fn a_value_survives_whoever_updates_it() {
    let _turn = Turn::take();
    let (kills, seed) = (number("DOORBELL_KILLS", 24) as usize, seed());
    println!("atomic storm: DOORBELL_SEED={seed} DOORBELL_KILLS={kills}");
    let mut random = Random::new(seed);
    let domain = Domain::new("values");
    let owner = Node::builder(domain.name()).id(0).join().unwrap();
    let region = owner.region::<Atom<Large>>(1).unwrap();
    let cell = RemoteCell::open(&owner, region.key()).unwrap();
    let words = Words::new(PROCESSES + 1);
    let key = region.key().to_bytes().map(|byte| byte.to_string()).join(" ");
    let start = |place: usize, fault: Option<String>| {
        let start =
            Process::start("atomic storm: updater").words(&words).tell("DOMAIN", domain.name()).tell("ME", place.to_string());
        let start = start.tell("KEY", &key);
        match fault {
            Some(fault) => start.tell("DOORBELL_FAULT", fault).go(),
            None => start.go(),
        }
    };
    let mut updates = 0;
    let mut deaths = BTreeMap::<&str, usize>::new();
    let mut updaters: Vec<_> = (0..PROCESSES).map(|place| start(place, None)).collect();
    for kill in 0..kills {
        let place = kill % PROCESSES;
        let by_itself = (kill % 4 < 3).then(|| *random.pick(&PLACES));
        if let Some(at) = by_itself {
            // The one that was there is killed first: two can't be one node.
            updaters[place].kill();
            assert!(updaters[place].ended_by(soon()), "SIGKILL did not end place {place}");
            updaters[place] = start(place, Some(format!("{at}:{}:kill", 1 + random.below(400))));
            assert!(updaters[place].ended_by(soon()), "place {place} did not die at {at}");
        } else {
            let moment = Instant::now() + Duration::from_micros(random.below(3000) as u64);
            while Instant::now() < moment {
                std::thread::yield_now();
            }
            updaters[place].kill();
            assert!(updaters[place].ended_by(soon()), "SIGKILL did not end place {place}");
        }
        *deaths.entry(by_itself.unwrap_or("at random")).or_default() += 1;
        let before = atomic! { cell }.unwrap().count();
        let after = atomic! { new: cell = cell.next() }.unwrap().count();
        assert!(after > before, "{before}, {after}");
        updates += 1;
        updaters[place] = start(place, None);
    }
    for (place, updater) in updaters.iter().enumerate() {
        let (before, deadline) = (words[place].load(SeqCst), soon());
        while words[place].load(SeqCst) < before + 2 {
            assert!(Instant::now() < deadline && !updater.ended_by(Instant::now()), "place {place} does not go on");
            std::thread::yield_now();
        }
    }
    words[STOP].store(1, SeqCst);
    updaters.into_iter().for_each(|updater| updater.end_well(PATIENCE));
    let told = updates + (0..PROCESSES).map(|place| words[place].load(SeqCst)).sum::<u64>();
    let count = atomic! { cell }.unwrap().count();
    // Those that were replaced were killed, too.
    assert!((told..=told + 2 * kills as u64).contains(&count), "{count} updates took place, and {told} were told of");
    println!("{count} updates, of which {} were not told; died: {deaths:?}", count - told);
    drop((cell, region));
    owner.leave().unwrap();
}
