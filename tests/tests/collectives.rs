//! Collectives beside a plain computation in one process: all operations, roots, lengths and teams.

use doorbell::collective::reduction::{Max, Sum, by_ordered};
use doorbell::collective::{Algorithm, Sync, Team, TeamBuilder};
use doorbell::{FabricKind, Match, Node, NodeId, Progress, Result, Space};
use doorbell_tests::Turn;
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::{PATIENCE, soon};
use doorbell_tests::process::{Process, told};
use doorbell_tests::random::seed;
use doorbell_udp::port::relay::{Badness, Relay};
use proptest::prelude::*;
use std::time::{Duration, Instant};

doorbell_tests::roles! { "member" => member }

/// What a team is like.
#[derive(Clone, Copy, Debug)]
struct Shape {
    members: usize,
    channels: usize,
    slot: usize,
    sync: Sync,
    progress: Progress,
    /// How many boxes they are on: those of different ones share no memory.
    boxes: usize,
    /// Ranks that follow each other are on the same box or the next.
    in_order: bool,
    algorithm: Option<Algorithm>,
}

impl Shape {
    /// On which box a member is.
    fn home(&self, rank: usize) -> usize {
        if self.in_order { rank * self.boxes / self.members } else { rank % self.boxes }
    }

    /// Ranks by box.
    fn boxes(&self) -> Vec<Vec<usize>> {
        let on = |home: usize| (0..self.members).filter(|rank| self.home(*rank) == home).collect();
        (0..self.boxes).map(on).collect()
    }
}

const ONE_BOX: Shape = Shape {
    members: 5,
    channels: 2,
    slot: 4096,
    sync: Sync::Background,
    progress: Progress::Adaptive,
    boxes: 1,
    in_order: true,
    algorithm: None,
};

/// Runs a thread for each member of a team.
fn with_team<V: Send>(shape: Shape, act: impl Fn(&Team) -> Result<V> + Send + std::marker::Sync) -> Vec<V> {
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
        let builder = builder.dead_after(Duration::from_secs(10));
        let node = match address {
            None => builder.listen(([127, 0, 0, 1], 0).into()).join().unwrap(),
            Some(address) => builder.connect(address).join().unwrap(),
        };
        address = address.or(node.address());
        node
    };
    let nodes: Vec<Node> = (0..shape.members).map(&mut node).collect();
    for node in &nodes {
        node.wait_for(shape.members, Instant::now() + Duration::from_secs(10)).unwrap();
    }
    let ids: Vec<NodeId> = nodes.iter().map(Node::id).collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> = nodes
            .iter()
            .map(|node| {
                let (ids, act) = (&ids, &act);
                scope.spawn(move || {
                    let team = node.team().members(ids).channels(shape.channels).slot_bytes(shape.slot).sync(shape.sync);
                    let team = shape.algorithm.into_iter().fold(team, TeamBuilder::algorithm);
                    let team = team.patience(Duration::from_secs(10)).form_by(Instant::now() + Duration::from_secs(10)).unwrap();
                    assert_eq!(team.boxes(), shape.boxes(), "{team:?}");
                    act(&team).unwrap_or_else(|error| panic!("rank {} of {shape:?}: {error}: {:?}", team.rank(), team.stats()))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// What a member has at the beginning of an operation.
fn vector(rank: usize, operation: usize, len: usize) -> Vec<u64> {
    (0..len as u64)
        .map(|at| (rank as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(operation as u32) ^ at.wrapping_mul(31))
        .collect()
}

fn sum(vectors: impl IntoIterator<Item = Vec<u64>>) -> Vec<u64> {
    vectors.into_iter().reduce(|a, b| a.iter().zip(&b).map(|(a, b)| a.wrapping_add(*b)).collect()).unwrap()
}

/// `x -> a x + b`, one after the other: the order matters.
fn after(first: &[u32; 2], second: &[u32; 2]) -> [u32; 2] {
    [second[0].wrapping_mul(first[0]), second[0].wrapping_mul(first[1]).wrapping_add(second[1])]
}

fn maps(rank: usize, len: usize) -> Vec<[u32; 2]> {
    (0..len as u32).map(|at| [2 * at + rank as u32 * 7 + 3, at ^ rank as u32]).collect()
}

/// Runs all operations.
fn all(team: &Team, len: usize, root: usize) -> Result<()> {
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

fn shape() -> impl Strategy<Value = Shape> {
    let sync = prop_oneof![Just(Sync::Background), Just(Sync::Foreground)];
    let progress = prop_oneof![Just(Progress::Adaptive), Just(Progress::Inline), Just(Progress::Poller)];
    let boxes = prop_oneof![2 => Just(1_usize), 1 => 2..9_usize];
    let algorithm = proptest::option::of(proptest::sample::select(&Algorithm::ALL[..]));
    let network = (boxes, any::<bool>(), algorithm);
    (1..9_usize, 1..5_usize, prop_oneof![Just(4096_usize), Just(16 << 10), Just(256 << 10)], sync, progress, network).prop_map(
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

/// Two boxes with several members each: by two levels, unless something else is asked for, or the order of ranks forbids it.
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

/// Members of two boxes, by rank.
const HOMES: [usize; 4] = [0, 0, 1, 1];

fn on_a_bad_network(node: &Node) {
    node.wait_for(HOMES.len(), soon()).unwrap();
    let ids: Vec<NodeId> = (0..HOMES.len() as u16).map(NodeId).collect();
    for algorithm in [None, Some(Algorithm::Doubling), Some(Algorithm::Ring), Some(Algorithm::Direct)] {
        let team = algorithm.into_iter().fold(node.team().members(&ids), TeamBuilder::algorithm);
        let team = team.label(format!("{algorithm:?}")).patience(4 * PATIENCE).form_by(soon()).unwrap();
        assert_eq!(team.boxes(), [[0, 1], [2, 3]]);
        for (root, len) in [3, 700, 10_000].into_iter().enumerate() {
            all(&team, len, root).unwrap();
        }
    }
}

/// The role: a member.
fn member() {
    let builder = Node::builder(told("DOMAIN")).id(told("ME").parse::<u16>().unwrap()).max_nodes(HOMES.len());
    let builder = builder.space(Space::posix_at(told("BOX"))).dead_after(2 * PATIENCE);
    let node = builder.connect(told("ADDRESS").parse().unwrap()).join().unwrap();
    on_a_bad_network(&node);
    // Nobody leaves before the others are through.
    node.send(NodeId(0), 1, &[]).unwrap();
    node.recv(Match::any().tag(2), &mut []).unwrap();
    node.leave().unwrap();
}

/// Processes on two boxes. Of the datagrams between the leaders of the two three in ten are lost, each way. (Others can't be behind a relay: nobody but the first would
/// find them.)
#[test]
fn results_are_the_same_over_a_network_that_loses_much() {
    let _turn = Turn::take();
    let domain = Domain::new("lossy");
    let away = Directory(format!("/dev/shm/{}", domain.name()));
    std::fs::create_dir(&away.0).unwrap();
    let builder = Node::builder(domain.name()).id(0).max_nodes(HOMES.len()).dead_after(2 * PATIENCE);
    let node = builder.listen(([127, 0, 0, 1], 0).into()).join().unwrap();
    let address = node.address().unwrap();
    let badness = Badness { loss: 0.3, duplication: 0.1, reordering: 0.2, ..Badness::NONE };
    let relay = Relay::start(None, address, [badness; 2], seed()).unwrap();
    let start = |me: usize| {
        let start = Process::start("member").tell("DOMAIN", domain.name()).tell("ME", me.to_string());
        let start = start.tell("BOX", if HOMES[me] == 0 { "/dev/shm" } else { &away.0 });
        start.tell("ADDRESS", if me == 2 { relay.front(0) } else { address }.to_string()).go()
    };
    let members: Vec<Process> = (1..HOMES.len()).map(start).collect();
    on_a_bad_network(&node);
    members.iter().for_each(|_| assert_eq!(node.recv_by(Match::any().tag(1), &mut [], soon()).unwrap().tag, 1));
    (1..HOMES.len()).for_each(|me| node.send(NodeId(me as u16), 2, &[]).unwrap());
    members.into_iter().for_each(|member| member.end_well(PATIENCE));
    node.leave().unwrap();
    let relayed = relay.relayed();
    println!("{relayed:?}");
    assert!(relayed.iter().all(|way| way.lost > 0), "{relayed:?}");
    drop(away);
}

/// Nothing is left in it at the end.
struct Directory(String);

impl Drop for Directory {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.0);
        } else {
            std::fs::remove_dir(&self.0).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: doorbell_tests::number("DOORBELL_CASES", 40) as u32, failure_persistence: None, max_shrink_iters: 20, ..Default::default() })]

    #[test]
    fn results_are_those_of_a_plain_computation(
        shape in shape(), lens in proptest::collection::vec(prop_oneof![0..20_usize, 0..700_usize, 0..20_000_usize], 1..4), root in 0..7_usize,
    ) {
        with_team(shape, |team| lens.iter().try_for_each(|len| all(team, *len, root)));
    }
}
