//! Collectives compared with a plain computation in one process: all operations, roots, lengths and teams.

use doorbell::collective::reduction::{Max, Sum, by_ordered};
use doorbell::collective::{Algorithm, Synchronisation, Team, TeamBuilder};
use doorbell::{FabricKind, Node, NodeId, Progress, Result, Space};
use doorbell_tests::LOOPBACK;
use doorbell_tests::patience::{PATIENCE, soon};
use proptest::prelude::*;

/// The shape of a team.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    members: usize,
    channels: usize,
    slot: usize,
    sync: Synchronisation,
    progress: Progress,
    /// The number of shared-memory groups of the members.
    boxes: usize,
    /// Whether successive ranks are in the same group or the next one.
    in_order: bool,
    algorithm: Option<Algorithm>,
}

impl Shape {
    /// The group of a member.
    fn home(&self, rank: usize) -> usize {
        if self.in_order { rank * self.boxes / self.members } else { rank % self.boxes }
    }

    /// The ranks of each group.
    fn boxes(&self) -> Vec<Vec<usize>> {
        let on = |home: usize| (0..self.members).filter(|rank| self.home(*rank) == home).collect();
        (0..self.boxes).map(on).collect()
    }
}

const ONE_BOX: Shape = Shape {
    members: 5,
    channels: 2,
    slot: 4096,
    sync: Synchronisation::Background,
    progress: Progress::Adaptive,
    boxes: 1,
    in_order: true,
    algorithm: None,
};

/// Runs a thread for each member of a team.
pub fn with_team<V: Send>(shape: Shape, act: impl Fn(&Team) -> Result<V> + Send + Sync) -> Vec<V> {
    let spaces: Vec<Space> = (0..shape.boxes).map(|_| Space::heap()).collect();
    let mut address = None;
    let mut node = |at: usize| {
        let builder = Node::builder("collectives").id(at as u16).max_nodes(shape.members.max(2)).progress(shape.progress);
        let home = shape.home(at);
        if shape.boxes == 1 {
            return builder.space(spaces[home].clone()).join().unwrap();
        }
        let is_alone = shape.boxes()[home].len() == 1;
        let builder = if is_alone { builder.fabric(FabricKind::Udp) } else { builder.space(spaces[home].clone()) };
        let builder = builder.dead_after(PATIENCE);
        let node = match address {
            None => builder.listen(LOOPBACK).join().unwrap(),
            Some(address) => builder.connect(address).join().unwrap(),
        };
        address = address.or(node.address());
        node
    };
    let nodes: Vec<Node> = (0..shape.members).map(&mut node).collect();
    for node in &nodes {
        node.wait_for(shape.members, soon()).unwrap();
    }
    let ids: Vec<NodeId> = nodes.iter().map(Node::id).collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> = nodes
            .iter()
            .map(|node| {
                let (ids, act) = (&ids, &act);
                scope.spawn(move || {
                    let team = Team::builder(node).members(ids).channels(shape.channels).slot_bytes(shape.slot).sync(shape.sync);
                    let team = shape.algorithm.into_iter().fold(team, TeamBuilder::algorithm);
                    let team = team.patience(PATIENCE).form_until(soon()).unwrap();
                    assert_eq!(team.boxes(), shape.boxes(), "{team:?}");
                    act(&team).unwrap_or_else(|error| panic!("rank {} of {shape:?}: {error}: {:?}", team.rank(), team.stats()))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The elements of a member at the beginning of an operation.
fn vector(rank: usize, operation: usize, len: usize) -> Vec<u64> {
    (0..len as u64)
        .map(|at| (rank as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(operation as u32) ^ at.wrapping_mul(31))
        .collect()
}

fn sum(vectors: impl IntoIterator<Item = Vec<u64>>) -> Vec<u64> {
    vectors.into_iter().reduce(|a, b| a.iter().zip(&b).map(|(a, b)| a.wrapping_add(*b)).collect()).unwrap()
}

/// `x -> a x + b`, one after the other: the order matters.
pub fn after(first: &[u32; 2], second: &[u32; 2]) -> [u32; 2] {
    [second[0].wrapping_mul(first[0]), second[0].wrapping_mul(first[1]).wrapping_add(second[1])]
}

fn maps(rank: usize, len: usize) -> Vec<[u32; 2]> {
    (0..len as u32).map(|at| [2 * at + rank as u32 * 7 + 3, at ^ rank as u32]).collect()
}

/// Runs all operations.
pub fn all(team: &Team, len: usize, root: usize) -> Result<()> {
    let (me, members) = (team.rank(), team.len());
    let root = root % members;
    let of = |operation: usize, len: usize| (0..members).map(move |rank| vector(rank, operation, len));
    let counts: Vec<usize> = (0..members).map(|rank| (len + rank * 37) % (len + 2)).collect();
    let total: usize = counts.iter().sum();

    team.barrier()?;
    let mut xs = vector(me, 1, len);
    team.broadcast(root, &mut xs)?;
    assert_eq!(xs, vector(root, 1, len), "broadcast");

    let mut xs = vector(me, 2, len);
    team.reduce(root, Sum, &mut xs)?;
    assert_eq!(xs, if me == root { sum(of(2, len)) } else { vector(me, 2, len) }, "reduce");

    let mut xs = vector(me, 3, len);
    team.allreduce(Sum, &mut xs)?;
    assert_eq!(xs, sum(of(3, len)), "allreduce");

    let mut xs = maps(me, len);
    team.allreduce(by_ordered("after", after), &mut xs)?;
    let expected: Vec<[u32; 2]> =
        (0..members).map(|rank| maps(rank, len)).reduce(|a, b| a.iter().zip(&b).map(|(a, b)| after(a, b)).collect()).unwrap();
    assert_eq!(xs, expected, "allreduce in order");

    let mut xs = vector(me, 4, len);
    team.scan(Sum, &mut xs)?;
    assert_eq!(xs, sum(of(4, len).take(me + 1)), "scan");

    let mut everything = vec![0; len * members];
    team.gather(root, &vector(me, 5, len), (me == root).then_some(&mut everything[..]))?;
    assert_eq!(everything, if me == root { of(5, len).flatten().collect() } else { vec![0; len * members] }, "gather");

    let mut everything = vec![0; total];
    let own = vector(me, 6, counts[me]);
    team.gather_v(root, &own, (me == root).then_some((&mut everything[..], &counts[..])))?;
    let expected: Vec<u64> = (0..members).flat_map(|rank| vector(rank, 6, counts[rank])).collect();
    assert_eq!(everything, if me == root { expected.clone() } else { vec![0; total] }, "gather_v");

    let (all, mut mine) = (vector(root, 7, len * members), vec![0; len]);
    team.scatter(root, (me == root).then_some(&all[..]), &mut mine)?;
    assert_eq!(mine, all[len * me..][..len], "scatter");

    let (all, mut mine) = (vector(root, 8, total), vec![0; counts[me]]);
    team.scatter_v(root, (me == root).then_some((&all[..], &counts[..])), &mut mine)?;
    assert_eq!(mine, all[counts[..me].iter().sum()..][..counts[me]], "scatter_v");

    let mut everything = vec![0; len * members];
    team.allgather(&vector(me, 9, len), &mut everything)?;
    assert_eq!(everything, of(9, len).flatten().collect::<Vec<_>>(), "allgather");

    let mut everything = vec![0; total];
    team.allgather_v(&own, &mut everything, &counts)?;
    assert_eq!(everything, expected, "allgather_v");

    let mut into = vec![0; len * members];
    team.alltoall(&vector(me, 10, len * members), &mut into)?;
    let expected: Vec<u64> = (0..members).flat_map(|rank| vector(rank, 10, len * members)[len * me..][..len].to_vec()).collect();
    assert_eq!(into, expected, "alltoall");

    // From a to b go (a + 2 b) mod 5 times as many.
    let many = |from: usize, to: usize| (from + 2 * to) % 5 * len / 4;
    let send: Vec<usize> = (0..members).map(|to| many(me, to)).collect();
    let get: Vec<usize> = (0..members).map(|from| many(from, me)).collect();
    let mut into = vec![0; get.iter().sum()];
    team.alltoall_v(&vector(me, 11, send.iter().sum()), &send, &mut into, &get)?;
    let part = |from: usize| {
        let begin: usize = (0..me).map(|to| many(from, to)).sum();
        let whole: usize = (0..members).map(|to| many(from, to)).sum();
        vector(from, 11, whole)[begin..][..many(from, me)].to_vec()
    };
    assert_eq!(into, (0..members).flat_map(part).collect::<Vec<_>>(), "alltoall_v");

    let mut mine = vec![0; len];
    team.reduce_scatter(Sum, &vector(me, 12, len * members), &mut mine)?;
    assert_eq!(mine, sum(of(12, len * members))[len * me..][..len], "reduce_scatter");

    let mut mine = vec![0; counts[me]];
    team.reduce_scatter_v(Sum, &vector(me, 13, total), &counts, &mut mine)?;
    assert_eq!(mine, sum(of(13, total))[counts[..me].iter().sum()..][..counts[me]], "reduce_scatter_v");

    // Several under way, and several in one channel.
    let begun: Vec<_> = (0..6).map(|n| team.start_allreduce(Max, vector(me, n, len))).collect::<Result<_>>()?;
    let shared = team.start_broadcast(root, vector(me, 14, len))?;
    let batch = team.batch();
    let together = [batch.allreduce(Sum, vector(me, 15, len))?, batch.broadcast(root, vector(me, 16, len))?];
    let last = batch.reduce(root, Sum, vector(me, 17, len))?;
    drop(batch);
    let largest = |n| of(n, len).reduce(|a, b| a.iter().zip(&b).map(|(a, b)| *a.max(b)).collect()).unwrap();
    for (n, begun) in begun.into_iter().enumerate() {
        assert_eq!(begun.wait()?, largest(n), "start_allreduce");
    }
    assert_eq!(shared.wait()?, vector(root, 14, len));
    let [first, second] = together;
    assert_eq!((first.wait()?, second.wait()?), (sum(of(15, len)), vector(root, 16, len)), "batch");
    assert_eq!(last.wait()?, if me == root { sum(of(17, len)) } else { vector(me, 17, len) });
    team.barrier()
}

/// After so many bytes the pattern of a long vector begins again: a prime, so that bytes which are out of place do not match.
const PERIOD: usize = 65_521;

/// A part of a long vector: at each place the largest of what these ranks have there.
fn largest(ranks: std::ops::Range<usize>, places: std::ops::Range<usize>) -> Vec<u8> {
    let byte = |rank: usize, at: usize| ((at as u32).wrapping_mul(0x9E37_79B9) >> 24) as u8 ^ rank as u8;
    let pattern: Vec<u8> = (0..PERIOD).map(|at| ranks.clone().map(|rank| byte(rank, at)).max().unwrap()).collect();
    let mut bytes = Vec::with_capacity(places.len());
    while bytes.len() < places.len() {
        let rest = &pattern[(places.start + bytes.len()) % PERIOD..];
        bytes.extend_from_slice(&rest[..rest.len().min(places.len() - bytes.len())]);
    }
    bytes
}

/// One operation with vectors of `bytes` bytes in all, which need not be a multiple of anything.
fn long(team: &Team, operation: usize, bytes: usize, root: usize) -> Result<()> {
    let (me, members) = (team.rank(), team.len());
    let (root, part) = (root % members, bytes / members);
    let vector = |rank: usize, places: std::ops::Range<usize>| largest(rank..rank + 1, places);
    let is = |found: &[u8], what: &str, expected: &[u8]| {
        assert_eq!(found.len(), expected.len(), "{what} of {bytes} bytes");
        if found != expected {
            let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
            panic!("{what} of {bytes} bytes: byte {wrong:?} is wrong");
        }
    };
    // Of each the part at the same place, and of each its first one.
    let counts: Vec<usize> = (0..members).map(|rank| if rank % 3 == 1 { 0 } else { part }).collect();
    let mine = part * me..part * (me + 1);
    let mut xs = vector(me, 0..bytes);
    match operation {
        0 => team.broadcast(root, &mut xs).map(|()| is(&xs, "broadcast", &vector(root, 0..bytes))),
        1 => team.reduce(root, Max, &mut xs).map(|()| {
            is(&xs, "reduce", &if me == root { largest(0..members, 0..bytes) } else { vector(me, 0..bytes) });
        }),
        2 => team.allreduce(Max, &mut xs).map(|()| is(&xs, "allreduce", &largest(0..members, 0..bytes))),
        SCAN => team.scan(Max, &mut xs).map(|()| is(&xs, "scan", &largest(0..me + 1, 0..bytes))),
        4 => {
            let mut all = vec![0; if me == root { part * members } else { 0 }];
            team.gather(root, &xs[..part], (me == root).then_some(&mut all[..]))?;
            for (rank, found) in all.chunks(part.max(1)).enumerate() {
                is(found, "gather", &vector(rank, 0..part));
            }
            Ok(())
        }
        5 => {
            let mut own = vec![0; part];
            team.scatter(root, (me == root).then_some(&xs[..part * members]), &mut own)?;
            is(&own, "scatter", &vector(root, mine));
            Ok(())
        }
        6 => {
            let mut all = vec![0; part * members];
            team.allgather(&xs[..part], &mut all)?;
            for (rank, found) in all.chunks(part.max(1)).enumerate() {
                is(found, "allgather", &vector(rank, 0..part));
            }
            Ok(())
        }
        7 => {
            let mut into = vec![0; part * members];
            team.alltoall(&xs[..part * members], &mut into)?;
            for (rank, found) in into.chunks(part.max(1)).enumerate() {
                is(found, "alltoall", &vector(rank, mine.clone()));
            }
            Ok(())
        }
        8 => {
            let mut own = vec![0; part];
            team.reduce_scatter(Max, &xs[..part * members], &mut own)?;
            is(&own, "reduce_scatter", &largest(0..members, mine));
            Ok(())
        }
        9 => {
            let mut all = vec![0; counts.iter().sum()];
            team.allgather_v(&xs[..counts[me]], &mut all, &counts)?;
            let mut rest = &all[..];
            for (rank, count) in counts.iter().enumerate() {
                let (of, others) = rest.split_at(*count);
                is(of, "allgather_v", &vector(rank, 0..*count));
                rest = others;
            }
            Ok(())
        }
        10 => {
            let ys = team.start_allreduce(Max, xs)?;
            let zs = team.start_broadcast(root, vector(me, 0..bytes))?;
            is(&ys.wait()?, "start_allreduce", &largest(0..members, 0..bytes));
            is(&zs.wait()?, "start_broadcast", &vector(root, 0..bytes));
            Ok(())
        }
        _ => {
            let xs = team.start_reduce(root, Max, xs)?.wait()?;
            is(&xs, "start_reduce", &if me == root { largest(0..members, 0..bytes) } else { vector(me, 0..bytes) });
            Ok(())
        }
    }
}

const LONG_OPERATIONS: usize = 12;
/// The number of the scan among them.
const SCAN: usize = 3;
const LONGEST: usize = 64 << 20;

pub fn shape() -> impl Strategy<Value = Shape> {
    let sync = prop_oneof![Just(Synchronisation::Background), Just(Synchronisation::Foreground)];
    let progress = prop_oneof![Just(Progress::Adaptive), Just(Progress::Inline), Just(Progress::Poller)];
    // Most share memory; the others are on several boxes, in some order: on one each if there are as many.
    let boxes = prop_oneof![2 => Just(1_usize), 1 => 2..17_usize];
    let algorithm = proptest::option::of(proptest::sample::select(&Algorithm::ALL[..]));
    let members = prop_oneof![3 => 1..7_usize, 1 => 7..17_usize];
    let channels = prop_oneof![3 => 1..5_usize, 1 => 5..17_usize];
    let slot = prop_oneof![Just(4096_usize), Just(4096 + 128), Just(16 << 10), Just(256 << 10), Just(1 << 20)];
    (members, channels, slot, sync, progress, (boxes, any::<bool>(), algorithm)).prop_map(
        |(members, channels, slot, sync, progress, (boxes, in_order, algorithm))| Shape {
            members,
            channels,
            slot,
            sync,
            progress,
            boxes: boxes.min(members),
            in_order,
            algorithm,
        },
    )
}

/// As likely between 2 and 4 as between 2 and 4 millions; a half are odd, some are 0.
pub fn length(bits: u32) -> impl Strategy<Value = usize> {
    (0..=bits, any::<usize>()).prop_map(|(bits, random)| random & ((1 << bits) - 1) | (1 << bits) >> 1)
}

pub fn cases(otherwise: u64, share: u64) -> ProptestConfig {
    let cases = doorbell_tests::number("DOORBELL_CASES", otherwise * share).div_ceil(share);
    ProptestConfig { cases: cases as u32, failure_persistence: None, max_shrink_iters: 20, ..Default::default() }
}

#[test]
fn teams_are_split_and_work_side_by_side() {
    for (boxes, in_order) in [(1, true), (3, true), (2, false)] {
        with_team(Shape { boxes, in_order, ..ONE_BOX }, |team| {
            for _ in 0..3 {
                // Backwards, and without the third.
                let (color, order) = ((team.rank() != 2).then_some(team.rank() as u64 % 2), 9 - team.rank() as u64);
                let Some(part) = team.split(color, order)? else { continue };
                let expected: Vec<u16> = if team.rank() % 2 == 0 { vec![4, 0] } else { vec![3, 1] };
                assert_eq!(part.members().iter().map(|node| node.0).collect::<Vec<_>>(), expected);
                let mut sum = [team.rank() as u64];
                part.allreduce(Sum, &mut sum)?;
                assert_eq!(sum, [4]);
            }
            team.barrier()
        });
    }
}

#[test]
fn a_slot_that_has_no_part_for_each_member_is_told_by_all() {
    with_team(Shape { members: 20, channels: 1, ..ONE_BOX }, |team| {
        let refused = team.alltoall(&[1_u64; 20], &mut [0; 20]);
        assert!(matches!(refused, Err(doorbell::Error::Invalid { .. })), "{refused:?}");
        team.barrier()
    });
}

/// Two shared-memory groups with several members each: the algorithm has two levels, unless the team names another or the order of ranks forbids it.
#[test]
fn who_shares_memory_goes_by_it() {
    let after_it = |team: &Team, begin: &dyn Fn(&Team) -> Result<()>| {
        begin(team)?;
        Ok::<_, doorbell::Error>(team.algorithm().unwrap())
    };
    for in_order in [true, false] {
        for members in [4, 5, 7] {
            let shape = Shape { members, boxes: 2, in_order, ..ONE_BOX };
            with_team(shape, |team| {
                assert_eq!(team.algorithm(), None);
                assert_eq!(after_it(team, &|team| team.barrier())?, Algorithm::Hierarchical);
                for len in [1, 1000, 40_000] {
                    all(team, len, members / 2)?;
                    assert_eq!(after_it(team, &|team| team.broadcast(1, &mut vec![1; len]))?, Algorithm::Hierarchical);
                    assert_eq!(after_it(team, &|team| team.reduce(1, Sum, &mut vec![1; len]))?, Algorithm::Hierarchical);
                    assert_eq!(after_it(team, &|team| team.allreduce(Sum, &mut vec![1; len]))?, Algorithm::Hierarchical);
                    let used = after_it(team, &|team| team.allreduce(by_ordered("after", after), &mut maps(0, len)))?;
                    assert_eq!(used, if in_order { Algorithm::Hierarchical } else { Algorithm::Doubling });
                }
                team.barrier()
            });
            with_team(Shape { algorithm: Some(Algorithm::Doubling), ..shape }, |team| {
                assert_eq!(after_it(team, &|team| team.allreduce(Sum, &mut [1]))?, Algorithm::Doubling);
                // Not by that one.
                assert_eq!(after_it(team, &|team| team.broadcast(0, &mut [1]))?, Algorithm::Hierarchical);
                team.barrier()
            });
        }
    }
}

#[test]
fn the_longest_vectors() {
    with_team(Shape { members: 2, ..ONE_BOX }, |team| {
        [0, 2].into_iter().try_for_each(|operation| long(team, operation, LONGEST - 1, 1))
    });
}

proptest! {
    #![proptest_config(cases(30, 1))]

    #[test]
    fn results_are_those_of_a_plain_computation(
        shape in shape(), lens in proptest::collection::vec(length(14), 1..4), root in 0..16_usize,
    ) {
        with_team(shape, |team| lens.iter().try_for_each(|len| all(team, *len, root)));
    }
}

proptest! {
    #![proptest_config(cases(30, 1))]

    #[test]
    fn long_vectors_are_those_of_a_plain_computation(
        shape in shape(), operation in 0..LONG_OPERATIONS, bytes in length(26), root in 0..16_usize,
    ) {
        // All members together: what the machine holds, and what the network carries in a second or two.
        let most = if shape.boxes == 1 { 8 * LONGEST } else { LONGEST } / shape.members;
        // Each part that passes through a slot may wake every member.
        let parts = shape.slot * (16_384 / shape.members);
        // In a scan, a member may reduce the vectors of all members before it, by code that is not optimised here.
        let most = if operation == SCAN { 2 * most / shape.members } else { most };
        with_team(shape, |team| long(team, operation, bytes.min(most).min(parts), root));
    }
}
