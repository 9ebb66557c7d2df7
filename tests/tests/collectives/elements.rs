//! Reductions of elements of every size and alignment, and reductions that do what they should not: call a team, hold their thread up, panic.

use doorbell::collective::TeamError;
use doorbell::collective::reduction::{Sum, by, by_ordered};
use doorbell::collective::{STARTED_MAX, Team, Value};
use doorbell::zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};
use doorbell::{Error, FabricKind, Match, Node, NodeId, Progress, Space, Wait};
use doorbell_tests::LOOPBACK;
use doorbell_tests::patience::{PATIENCE, briefly, finishes, soon};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, Weak};

/// How three members reach each other.
#[derive(Clone, Copy, Debug)]
enum Ground {
    Memory,
    Network,
    /// The first two share memory.
    Parts,
}

const MEMBERS: usize = 3;
const ALL: [Ground; 3] = [Ground::Memory, Ground::Network, Ground::Parts];
/// As long as four of the largest elements in a quarter.
const SLOT: usize = 64 << 10;

fn nodes(ground: Ground, (progress, wait): (Progress, Wait)) -> Vec<Node> {
    let space = Space::heap();
    let mut nodes: Vec<Node> = Vec::new();
    for at in 0..MEMBERS {
        let builder =
            Node::builder("elements").id(at as u16).max_nodes(MEMBERS).progress(progress).wait(wait).dead_after(PATIENCE);
        let shares = match ground {
            Ground::Memory => true,
            Ground::Network => false,
            Ground::Parts => at < 2,
        };
        let builder = if shares { builder.space(space.clone()) } else { builder.fabric(FabricKind::Udp) };
        let builder = match (ground, nodes.first()) {
            (Ground::Memory, _) => builder,
            (_, None) => builder.listen(LOOPBACK),
            (_, Some(first)) => builder.connect(first.address().unwrap()),
        };
        nodes.push(builder.join().unwrap());
    }
    nodes
}

/// Runs a thread for each member, and gives it a barrier of all threads.
fn with_teams(ground: Ground, who: (Progress, Wait), act: impl Fn(&Node, &Arc<Team>, &Barrier) + Send + Sync + 'static) {
    finishes(&format!("{ground:?}, {who:?}"), move || {
        let nodes = nodes(ground, who);
        let ids: Vec<NodeId> = nodes.iter().map(Node::id).collect();
        let meet = Barrier::new(MEMBERS);
        std::thread::scope(|scope| {
            for node in &nodes {
                let (ids, act, meet) = (&ids, &act, &meet);
                scope.spawn(move || {
                    node.wait_for(MEMBERS, soon()).unwrap();
                    let team = Team::builder(node).members(ids).slot_bytes(SLOT).patience(PATIENCE).form_until(soon()).unwrap();
                    act(node, &Arc::new(team), meet);
                });
            }
        });
    });
}

macro_rules! types {
    ($($name:ident $align:literal $bytes:literal)*) => {
        $(
            #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[repr(C, align($align))]
            struct $name([u8; $bytes]);
        )*

        /// All reductions, of elements of all these types.
        fn every_type(ground: Ground, team: &Arc<Team>, calls: u64) {
            $(every_reduction::<$name>(ground, team, calls);)*
        }
    };
}

types! {
    One 1 1
    Three 1 3
    Whole 1 4096
    Two 2 6
    Four 4 4
    Eight 8 24
    Sixteen 16 48
    ThirtyTwo 32 32
    SixtyFour 64 192
    Widest 128 128
    WidestWhole 128 4096
}

/// An element of a member.
fn element<T: Value>(rank: usize, at: usize) -> T {
    let seed = (rank as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (at as u64 + 1).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    let bytes: Vec<u8> = (0..size_of::<T>() as u64).map(|byte| (seed.rotate_left(byte as u32 % 61) ^ byte) as u8).collect();
    T::read_from_bytes(&bytes).unwrap()
}

fn vector<T: Value>(rank: usize, range: std::ops::Range<usize>) -> Vec<T> {
    range.map(|at| element(rank, at)).collect()
}

fn add<T: Value>(a: &T, b: &T) -> T {
    let mut sum = *a;
    sum.as_mut_bytes().iter_mut().zip(b.as_bytes()).for_each(|(a, b)| *a = a.wrapping_add(*b));
    sum
}

/// The sums of the first members, computed in this thread.
fn sums<T: Value>(members: usize, range: std::ops::Range<usize>) -> Vec<T> {
    range.map(|at| (1..members).fold(element(0, at), |sum, rank| add(&sum, &element(rank, at)))).collect()
}

#[track_caller]
fn same<T: Value>(found: &[T], expected: &[T], what: &str) {
    let wrong = found.iter().zip(expected).position(|(found, expected)| found.as_bytes() != expected.as_bytes());
    assert_eq!((found.len(), wrong), (expected.len(), None), "{what} of {}", std::any::type_name::<T>());
}

/// Teams that reductions call.
static TEAMS: Mutex<BTreeMap<u64, Weak<Team>>> = Mutex::new(BTreeMap::new());

/// Calls teams from within a reduction, which must refuse each call.
fn call_teams(number: u64) {
    let Some(team) = TEAMS.lock().unwrap().get(&number).and_then(Weak::upgrade) else { return };
    let refused = |result: doorbell::Result<()>| assert!(matches!(result, Err(Error::Reentrant { .. })), "{result:?}");
    refused(team.start_barrier().map(drop));
    refused(team.barrier());
    refused(team.allreduce(Sum, &mut [1]));
    refused(team.shrink_until(briefly()).map(drop));
}

fn every_reduction<T: Value>(ground: Ground, team: &Arc<Team>, calls: u64) {
    let (me, members) = (team.rank(), team.len());
    // One, a few, and several chunks; over the network also what goes round a ring.
    let lens = [1, 5, 70_000 / size_of::<T>() + 1];
    for len in if calls == 0 { &lens[..] } else { &lens[..2] }.iter().copied() {
        let what = |operation: &str| format!("{operation} of {len} over {ground:?}");
        let sum = by("sum", move |a: &T, b: &T| {
            if calls != 0 {
                call_teams(calls);
            }
            add(a, b)
        });
        let mut xs = vector::<T>(me, 0..len);
        team.allreduce(sum, &mut xs).unwrap();
        same(&xs, &sums(members, 0..len), &what("allreduce"));
        let mut xs = vector::<T>(me, 0..len);
        team.scan(sum, &mut xs).unwrap();
        same(&xs, &sums(me + 1, 0..len), &what("scan"));
        let mut xs = vector::<T>(me, 0..len);
        team.reduce(1, sum, &mut xs).unwrap();
        let expected = if me == 1 { sums(members, 0..len) } else { vector(me, 0..len) };
        same(&xs, &expected, &what("reduce"));
        let mut xs = vector::<T>(0, 0..len);
        team.reduce_scatter(sum, &vector(me, 0..len * members), &mut xs).unwrap();
        same(&xs, &sums(members, me * len..(me + 1) * len), &what("reduce_scatter"));
        let mut xs = vector::<T>(me, 0..len);
        team.allreduce(by_ordered("the last", |_: &T, last: &T| *last), &mut xs).unwrap();
        same(&xs, &vector(members - 1, 0..len), &what("allreduce in order"));
        let begun = team.start_allreduce(sum, vector::<T>(me, 0..len)).unwrap();
        same(&begun.wait().unwrap(), &sums(members, 0..len), &what("start_allreduce"));
    }
}

#[test]
fn elements_of_every_size_and_alignment_are_combined_right() {
    for ground in ALL {
        with_teams(ground, (Progress::Adaptive, Wait::Auto), move |_, team, _| every_type(ground, team, 0));
    }
}

/// The caller, another thread that drives the engine, or the poller runs the reduction.
#[test]
fn a_reduction_that_calls_its_team_is_refused_and_goes_on() {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    for (ground, progress) in ALL.into_iter().flat_map(|ground| [(ground, Progress::Inline), (ground, Progress::Poller)]) {
        with_teams(ground, (progress, Wait::Auto), move |_, team, _| {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            TEAMS.lock().unwrap().insert(number, Arc::downgrade(team));
            every_reduction::<Eight>(ground, team, number);
            TEAMS.lock().unwrap().remove(&number);
        });
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(256))]
struct TooWide([u8; 256]);

#[test]
fn elements_that_can_not_be_combined_are_refused_before_anything_moves() {
    for ground in ALL {
        with_teams(ground, (Progress::Adaptive, Wait::Auto), |_, team, _| {
            let mut xs = [TooWide([team.rank() as u8; 256])];
            let result = team.allreduce(by("sum", add::<TooWide>), &mut xs);
            let Err(Error::Invalid { what }) = result else { panic!("{result:?}") };
            assert!(what.contains("256") && what.contains("128"), "{what}");
            assert_eq!(xs[0].0, [team.rank() as u8; 256]);
            // It moves as it is, and nobody waits for what was refused.
            team.broadcast(1, &mut xs).unwrap();
            assert_eq!(xs[0].0, [1; 256]);
        });
    }
}

/// A thread of the node that drives the engine while a reduction waits for it.
#[derive(Default)]
struct Driver {
    /// 1: the reduction waits; 2: the engine was driven.
    stage: Mutex<u32>,
    moved: Condvar,
}

impl Driver {
    fn set(&self, stage: u32) {
        *self.stage.lock().unwrap() = stage;
        self.moved.notify_all();
    }

    fn wait_for(&self, stage: u32) -> bool {
        let most = PATIENCE / 3;
        let held = self.stage.lock().unwrap();
        !self.moved.wait_timeout_while(held, most, |now| *now < stage).unwrap().1.timed_out()
    }
}

#[test]
fn a_reduction_that_waits_does_not_hold_up_the_engine_of_its_node() {
    for ground in ALL {
        // A thread that waits without sleep goes on with its collective by itself, and not in the middle of the engine.
        with_teams(ground, (Progress::Inline, Wait::Spin), move |node, team, _| {
            let driver: &'static Driver = Box::leak(Box::default());
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    if driver.wait_for(1) {
                        let _ = node.recv_until(Match::any(), &mut [0; 8], briefly());
                        driver.set(2);
                    }
                });
                let slow = by("slow", move |a: &u64, b: &u64| {
                    if *driver.stage.lock().unwrap() == 0 {
                        driver.set(1);
                        assert!(driver.wait_for(2), "another thread of the node can't drive its engine");
                    }
                    a + b
                });
                let mut xs = [1_u64; 100];
                team.allreduce(slow, &mut xs).unwrap_or_else(|error| panic!("{ground:?}: {error}"));
                assert_eq!(xs, [MEMBERS as u64; 100]);
                // By some algorithms a member combines nothing.
                driver.set(2);
            });
        });
    }
}

#[test]
fn after_a_reduction_that_panics_a_team_is_shrunk_and_goes_on() {
    for ground in ALL {
        with_teams(ground, (Progress::Adaptive, Wait::Auto), move |_, team, meet| {
            // All members have the team: one that still forms it would meet those that shrink it. A barrier of the team would not do: over the network the
            // first member that leaves it may panic while others are in it, and the panic ends their barriers.
            meet.wait();
            let fragile = by("fragile", |a: &Widest, b: &Widest| {
                assert!((a.0[0], b.0[0]) == (0, 0), "it panics on purpose");
                *a
            });
            let mut xs = [Widest([1; 128]); 3];
            let result = team.allreduce(fragile, &mut xs);
            let why = result.as_ref().err().and_then(Error::downcast_ref);
            let told = |why: &TeamError| matches!(why, TeamError::Panicked | TeamError::OutOfStep | TeamError::GaveUp { .. });
            assert!(why.is_some_and(told), "{ground:?}: {result:?}");
            let again = team.shrink_until(soon()).unwrap();
            assert_eq!(again.len(), MEMBERS);
            let mut xs = vector::<Widest>(again.rank(), 0..3);
            again.allreduce(by("sum", add::<Widest>), &mut xs).unwrap();
            same(&xs, &sums(MEMBERS, 0..3), "allreduce after a panic");
        });
    }
}

#[test]
fn no_more_operations_are_begun_than_are_kept() {
    for (ground, progress) in [(Ground::Memory, Progress::Inline), (Ground::Parts, Progress::Adaptive)] {
        with_teams(ground, (progress, Wait::Auto), |_, team, meet| {
            let half = STARTED_MAX / 2;
            let mut begun = Vec::new();
            if team.rank() > 0 {
                meet.wait();
                for _ in 0..half {
                    team.allreduce(Sum, &mut [1_u64]).unwrap();
                }
                let batch = team.batch();
                begun.extend((half..STARTED_MAX).map(|_| batch.allreduce(Sum, vec![1_u64]).unwrap()));
            } else {
                begun.extend((0..half).map(|_| team.start_allreduce(Sum, vec![1_u64]).unwrap()));
                let batch = team.batch();
                let error = loop {
                    match batch.allreduce(Sum, vec![1_u64]) {
                        Ok(another) => begun.push(another),
                        Err(error) => break error,
                    }
                    assert!(begun.len() <= STARTED_MAX, "there is no bound");
                };
                assert_eq!(error.downcast_ref(), Some(&TeamError::Full { most: STARTED_MAX }), "{error}");
                assert!(error.is_retryable() && begun.len() == STARTED_MAX, "{}", begun.len());
                meet.wait();
            }
            for begun in begun {
                assert_eq!(begun.wait().unwrap(), [MEMBERS as u64]);
            }
            // There is room again.
            team.start_barrier().unwrap().wait().unwrap();
        });
    }
}
