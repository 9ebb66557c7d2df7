//! Cells that only the network reaches: results of updates, their order, and the end of updates under way.

use doorbell::atomic::AtomicCell;
use doorbell::atomic::{self as cells, Atom, AtomicError, AtomicValue, Nothing, Old, RemoteCell, op};
use doorbell::{Certainty, Error, FabricKind, KEY_BYTES, Key, KeyFault, Match, Node, Progress, ReadWrite, Wait, atomic};
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::{PATIENCE, block_on, eventually, soon};
use doorbell_tests::process::{Process, told};
use doorbell_tests::world::{Ground, World};
use doorbell_tests::{LOOPBACK, Turn};
use doorbell_udp::port::relay::{Badness, Relay};
use rustix::process::Signal;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::Ordering::AcqRel;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Updates under way at once.
const AT_ONCE: usize = 16;
/// Longer than other work on the machine delays a process.
const DEAD_AFTER: Duration = Duration::from_secs(20);

/// Twelve bytes, in a word of sixteen.
#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable, AtomicValue)]
#[repr(C)]
struct Triple([u32; 3]);

/// Under a lock.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, AtomicValue)]
#[repr(C)]
struct Large([u64; 9]);

impl Triple {
    /// All words follow from the first, so that half an update shows.
    fn from_word(word: u32) -> Self {
        Triple([1, 3, 5].map(|by| word.wrapping_mul(by)))
    }

    fn word(self) -> u32 {
        assert_eq!(self, Self::from_word(self.0[0]), "torn");
        self.0[0]
    }
}

/// Two nodes that share no memory.
fn two(domain: &Domain) -> [Node; 2] {
    let builder = || Node::builder(domain.name()).fabric(FabricKind::Udp).dead_after(DEAD_AFTER);
    let owner = builder().id(0).listen(LOOPBACK).join().unwrap();
    let other = builder().id(1).connect(owner.address().unwrap()).join().unwrap();
    [owner, other]
}

#[test]
fn a_cell_that_only_the_network_reaches_is_as_any_other() {
    let domain = Domain::new("apart");
    let [owner, other] = two(&domain);
    let region = owner.region::<u64>(2).unwrap();
    let (own, cell) = (AtomicCell::at(&region, 0).unwrap(), RemoteCell::open(&other, region.key()).unwrap());
    assert!(!cell.is_shared() && RemoteCell::open(&owner, region.key()).unwrap().is_shared());
    atomic! { cell = 7 }.unwrap();
    atomic! { own += 1 };
    assert_eq!(atomic! { old: cell += 2 }.unwrap(), 8);
    assert_eq!(atomic! { new: cell = max(cell, 90) }.unwrap(), 90);
    assert_eq!(atomic! { new: cell = cell.pow(2) }.unwrap(), 8100);
    assert_eq!(atomic! { old: cell -= 9000 if cell >= 9000 }.unwrap_err().to_string(), AtomicError::Declined.to_string());
    assert_eq!(atomic! { old, attempts(1): cell -= 100 if cell >= 100 }.unwrap(), 8100);
    // Somebody is faster each time.
    let mut tries = 0;
    let result = cells::attempt::<Nothing, _>(&cell, Some(3), AcqRel, |value| {
        tries += 1;
        atomic! { own += 1 };
        Some(value + 1000)
    });
    assert!(result.unwrap_err().downcast_ref() == Some(&AtomicError::Attempts) && tries == 3);
    assert_eq!((atomic! { cell }.unwrap(), atomic! { own }), (8003, 8003));
    for shared in [RemoteCell::open(&owner, region.key()).unwrap(), cell] {
        let (here, not) = (shared.start_compare_swap(8003, 1).unwrap(), shared.start_compare_swap(8003, 2).unwrap());
        assert_eq!((here.wait().unwrap(), not.wait().unwrap()), (8003, 1));
        assert_eq!(shared.start::<{ op::Set }, Old, _>(8003).unwrap().wait().unwrap(), 1);
        assert_eq!(block_on(shared.start_load().unwrap()).unwrap(), 8003);
        // They take place in turn.
        let many: Vec<_> = (0..300).map(|_| shared.start::<{ op::Add }, Old, _>(1).unwrap()).collect();
        let olds: Vec<u64> = many.into_iter().map(|update| update.wait().unwrap()).collect();
        assert!(olds.iter().copied().eq(8003..8303), "{olds:?}");
        assert_eq!(shared.start::<{ op::Set }, Old, _>(8003).unwrap().wait().unwrap(), 8303);
    }
    let cell = RemoteCell::open(&other, region.key()).unwrap();
    let by_zero = std::panic::AssertUnwindSafe(|| drop(atomic! { cell /= 0 }));
    assert!(std::panic::catch_unwind(by_zero).is_err());
    assert_eq!(atomic! { own }, 8003);
    // What does not go by the network says what to do.
    let locked = owner.region::<Atom<Large>>(1).unwrap();
    let under_lock = RemoteCell::open(&other, locked.key()).unwrap();
    let error = atomic! { under_lock = Large([1; 9]) }.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }) && error.to_string().contains("send its node a message"), "{error}");
    // A key that is stale.
    let gone = owner.region::<u64>(1).unwrap();
    let stale = RemoteCell::open(&other, gone.key()).unwrap();
    atomic! { stale += 1 }.unwrap();
    drop(gone);
    assert!(matches!(atomic! { stale += 1 }, Err(Error::Key { why: KeyFault::Stale, .. })));
    assert_eq!(atomic! { old: cell += 1 }.unwrap(), 8003);
    other.leave().unwrap();
    owner.leave().unwrap();
    assert!(matches!(atomic! { cell += 1 }, Err(Error::Closed)));
}

/// An update follows every put that returned before it, however long the put was.
#[test]
fn whoever_sees_an_update_sees_what_was_put_before() {
    for ground in [Ground::Posix, Ground::Udp, Ground::Mixed] {
        let world = World::new(ground, Progress::Adaptive, Wait::Auto);
        let [owner, other] = world.nodes();
        const LEN: usize = 40_000;
        let (data, rounds) = (owner.region::<u64>(LEN).unwrap(), owner.region::<u64>(1).unwrap());
        let cell = RemoteCell::open(&other, rounds.key()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=60_u64 {
                    let len = [1, 500, LEN][round as usize % 3];
                    other.put(&vec![round; len], data.key()).unwrap();
                    // The next put waits until this was looked at.
                    cell.start::<{ op::Add }, Nothing, _>(1).unwrap().wait().unwrap();
                    eventually("a look", || atomic! { cell }.unwrap() == 0);
                }
            });
            for round in 1..=60_u64 {
                let own = AtomicCell::at(&rounds, 0).unwrap();
                eventually("an update", || atomic! { own } == 1);
                let mut seen = vec![0; [1, 500, LEN][round as usize % 3]];
                data.read(0, &mut seen).unwrap();
                assert!(seen.iter().all(|word| *word == round), "{ground:?}: round {round}");
                atomic! { own = 0 };
            }
        });
        other.leave().unwrap();
        drop((data, rounds));
        owner.leave().unwrap();
    }
}

/// Two threads over a network that loses, doubles and reorders, and one in place.
#[test]
fn updates_over_a_bad_network_take_place_once() {
    let _turn = Turn::take();
    let domain = Domain::new("bad");
    let updates = doorbell_tests::number("DOORBELL_REMOTE_UPDATES", 4000);
    let builder = || Node::builder(domain.name()).fabric(FabricKind::Udp).dead_after(3 * DEAD_AFTER).patience(PATIENCE);
    let owner = builder().id(0).listen(LOOPBACK).join().unwrap();
    let badness = Badness { loss: 0.3, duplication: 0.1, reordering: 0.2, ..Badness::NONE };
    let relay = Relay::start(None, owner.address().unwrap(), [badness; 2], 7).unwrap();
    let other = builder().id(1).connect(relay.front(0)).join().unwrap();
    let region = owner.region::<u64>(1).unwrap();
    let (own, cell) = (AtomicCell::at(&region, 0).unwrap(), RemoteCell::open(&other, region.key()).unwrap());
    let olds = std::thread::scope(|scope| {
        let far = [(); 2].map(|()| {
            scope.spawn(|| {
                let mut olds = Vec::new();
                for begin in (0..updates / 2).step_by(64) {
                    let many = 64.min(updates / 2 - begin);
                    let under_way: Vec<_> = (0..many).map(|_| cell.start::<{ op::Add }, Old, _>(1).unwrap()).collect();
                    olds.extend(under_way.into_iter().map(|update| update.wait().unwrap()));
                }
                olds
            })
        });
        (0..updates).for_each(|_| atomic! { own += 1 });
        far.map(|thread| thread.join().unwrap()).concat()
    });
    assert_eq!(atomic! { own }, updates / 2 * 2 + updates);
    // Nobody saw what another saw.
    let mut seen = olds.clone();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), olds.len());
    let relayed = relay.relayed();
    assert!(relayed.iter().all(|way| way.lost > 0), "{relayed:?}");
    other.leave().unwrap();
    drop(region);
    owner.leave().unwrap();
}

/// The role: owns a cell and does nothing.
pub fn own() {
    let node = Node::builder(told("DOMAIN")).fabric(FabricKind::Udp).connect(told("ADDRESS")).join().unwrap();
    let region = node.region::<u64>(1).unwrap();
    node.send(doorbell::NodeId(0), 1, &region.key().to_bytes()).unwrap();
    node.recv(Match::any(), &mut []).unwrap();
}

/// A process that has a cell, which was updated once, and is stopped.
fn stopped_owner(domain: &Domain, node: &Node) -> (Process, RemoteCell<u64>) {
    let address = node.address().unwrap().to_string();
    let owner = Process::start("owner").tell("DOMAIN", domain.name()).tell("ADDRESS", address).go();
    let mut bytes = [0; KEY_BYTES];
    node.recv_until(Match::any().tag(1), &mut bytes, soon()).unwrap();
    let cell = RemoteCell::open(node, Key::<u64, ReadWrite>::from_bytes(&bytes).unwrap()).unwrap();
    assert_eq!(cell.start::<{ op::Add }, Old, _>(1).unwrap().wait().unwrap(), 0);
    owner.signal(Signal::STOP);
    (owner, cell)
}

#[test]
fn updates_under_way_end_with_the_node_that_has_the_cell() {
    let _turn = Turn::take();
    let domain = Domain::new("killed-owner");
    let node = Node::builder(domain.name()).id(0).fabric(FabricKind::Udp).listen(LOOPBACK).join().unwrap();
    let (owner, cell) = stopped_owner(&domain, &node);
    let mut under_way: Vec<_> = (0..100).map(|_| cell.start::<{ op::Add }, Old, _>(1).unwrap()).collect();
    // A deadline passes and it is still under way; those that are given up harm nobody.
    let last = under_way.pop().unwrap();
    under_way.extend(last.wait_until(Instant::now()).err());
    assert_eq!(under_way.len(), 100);
    under_way.drain(10..20);
    assert!(under_way.iter().all(|update| !update.test()));
    owner.kill();
    for update in under_way {
        let error = update.wait().unwrap_err();
        assert!(matches!(error, Error::PeerDied { .. }) && error.certainty() == Certainty::Unknown, "{error}");
    }
    assert!(matches!(atomic! { cell += 1 }, Err(Error::PeerDied { .. })));
    node.leave().unwrap();
}

#[test]
fn so_many_updates_wait_for_a_node_that_does_not_answer_and_no_more() {
    let _turn = Turn::take();
    for progress in [Progress::Adaptive, Progress::Inline, Progress::Poller] {
        let domain = Domain::new("stopped-owner");
        let builder = Node::builder(domain.name()).id(0).fabric(FabricKind::Udp).progress(progress);
        let node = builder.listen(LOOPBACK).join().unwrap();
        let (owner, cell) = stopped_owner(&domain, &node);
        let (begun, refused): (Vec<_>, Vec<_>) = (0..2000).map(|_| cell.start::<{ op::Add }, Old, _>(1)).partition(Result::is_ok);
        // A thousand wait, and 64 are under way.
        assert!((1024..=1024 + 64).contains(&begun.len()), "{progress:?}: {}", begun.len());
        for error in refused.into_iter().filter_map(Result::err) {
            assert!(matches!(error, Error::Full { .. }) && error.certainty() == Certainty::DidNotHappen, "{error}");
        }
        drop(begun);
        owner.kill();
        node.leave().unwrap();
    }
}

#[test]
fn a_future_that_is_polled_while_its_update_ends_has_the_result() {
    let _turn = Turn::take();
    let domain = Domain::new("polled");
    let builder = || Node::builder(domain.name()).fabric(FabricKind::Udp).progress(Progress::Poller).dead_after(DEAD_AFTER);
    let owner = builder().id(0).listen(LOOPBACK).join().unwrap();
    let other = builder().id(1).connect(owner.address().unwrap()).join().unwrap();
    let region = owner.region::<u64>(1).unwrap();
    let cell = RemoteCell::open(&other, region.key()).unwrap();
    for count in 0..500 {
        let mut update = cell.start::<{ op::Add }, Old, _>(1).unwrap();
        let mut context = Context::from_waker(Waker::noop());
        let result = loop {
            if let Poll::Ready(result) = Pin::new(&mut update).poll(&mut context) {
                break result;
            }
        };
        assert_eq!(result.unwrap(), count);
        if count == 0 {
            // Its result was given out.
            assert!(catch_unwind(AssertUnwindSafe(|| Pin::new(&mut update).poll(&mut context))).is_err());
            assert!(catch_unwind(AssertUnwindSafe(|| update.wait())).is_err());
        }
    }
}

#[test]
fn who_cannot_wait_for_an_update_is_not_told_that_it_did_not_take_place() {
    let _turn = Turn::take();
    let domain = Domain::new("abandoned");
    let [owner, other] = two(&domain);
    let region = owner.region::<u64>(1).unwrap();
    let cell = RemoteCell::open(&other, region.key()).unwrap();
    let mut expected = 0;
    for _ in 0..20 {
        owner.send(other.id(), 1, &[1]).unwrap();
        let update = cell.start::<{ op::Add }, Old, _>(1).unwrap();
        expected += 1;
        // Unless it is over by then.
        if let Err(error) = other.recv_with(Match::any(), |_, _| update.wait()).unwrap() {
            assert!(matches!(error, Error::Abandoned { .. }) && error.certainty() == Certainty::Unknown, "{error}");
        }
    }
    assert_eq!(cell.start_load().unwrap().wait().unwrap(), expected);
}

/// The role: updates a cell as long as it lives.
pub fn update_without_end() {
    let builder = Node::builder(told("DOMAIN")).id(1).fabric(FabricKind::Udp);
    let node = builder.connect(told("ADDRESS")).join().unwrap();
    node.send(doorbell::NodeId(0), 1, &[]).unwrap();
    let mut bytes = [0; KEY_BYTES];
    node.recv(Match::any(), &mut bytes).unwrap();
    let cell = RemoteCell::open(&node, Key::<Atom<Triple>, ReadWrite>::from_bytes(&bytes).unwrap()).unwrap();
    loop {
        let some: Vec<_> =
            (0..AT_ONCE).map(|at| cell.start::<{ op::Set }, Old, _>(Triple::from_word(at as u32)).unwrap()).collect();
        some.into_iter().for_each(|update| _ = update.wait().unwrap());
        atomic! { cell = Triple::from_word(cell.word() + 1000) }.unwrap();
    }
}

#[test]
fn a_killed_updater_leaves_a_cell_that_is_whole() {
    let _turn = Turn::take();
    let domain = Domain::new("killed-updater");
    let owner = Node::builder(domain.name()).id(0).fabric(FabricKind::Udp).listen(LOOPBACK).join().unwrap();
    let address = owner.address().unwrap().to_string();
    let updater = Process::start("endless").tell("DOMAIN", domain.name()).tell("ADDRESS", &address).go();
    let region = owner.region::<Atom<Triple>>(1).unwrap();
    owner.recv_until(Match::any().tag(1), &mut [], soon()).unwrap();
    owner.send(doorbell::NodeId(1), 1, &region.key().to_bytes()).unwrap();
    let own = AtomicCell::at(&region, 0).unwrap();
    eventually("an update", || atomic! { own }.0[0] >= 1000);
    updater.kill();
    assert!(updater.ended_by(soon()));
    let other = Node::builder(domain.name()).id(2).fabric(FabricKind::Udp).connect(address).join().unwrap();
    let cell = RemoteCell::open(&other, region.key()).unwrap();
    // Updates that were under way may still arrive, but each value is whole.
    for at in 0..100 {
        atomic! { old: cell = Triple::from_word(at) }.unwrap().word();
        atomic! { own }.word();
    }
    other.leave().unwrap();
    drop(region);
    owner.leave().unwrap();
}
