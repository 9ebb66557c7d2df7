//! Members that do not go on: they drop the team, give an operation up, call something else, or their reduction panics. The others are told by name.

use doorbell::collective::Team;
use doorbell::collective::reduction::{Sum, by};
use doorbell::error::TeamFault;
use doorbell::{Error, Node, NodeId, Progress, Space};
use std::sync::Barrier;
use std::time::{Duration, Instant};

const ALL: [Progress; 3] = [Progress::Adaptive, Progress::Inline, Progress::Poller];

/// Runs a thread for each member of a team, and gives it a barrier of all threads beside.
fn with_team(members: usize, progress: Progress, patience: Duration, act: impl Fn(Team, &Barrier) + Sync) {
    let space = Space::heap();
    let node = |at: usize| {
        let builder = Node::builder("team-faults").id(at as u16).max_nodes(members).progress(progress);
        builder.space(space.clone()).join().unwrap()
    };
    let nodes: Vec<Node> = (0..members).map(node).collect();
    let ids: Vec<NodeId> = nodes.iter().map(Node::id).collect();
    let meet = Barrier::new(members);
    std::thread::scope(|scope| {
        for node in &nodes {
            let (ids, act, meet) = (&ids, &act, &meet);
            scope.spawn(move || {
                let soon = Instant::now() + Duration::from_secs(20);
                node.wait_for(members, soon).unwrap();
                act(node.team().members(ids).patience(patience).form_by(soon).unwrap(), meet);
                // Nobody leaves before the others are through.
                meet.wait();
            });
        }
    });
}

const LONG: Duration = Duration::from_secs(20);

fn is_of(result: Result<(), Error>, node: u16) {
    let why = TeamFault::GaveUp { node: NodeId(node) };
    assert!(matches!(&result, Err(Error::Team { why: found, .. }) if *found == why), "{result:?}");
}

#[test]
fn what_a_member_did_before_it_dropped_the_team_counts() {
    for progress in ALL {
        with_team(3, progress, LONG, |team, meet| {
            let rank = team.rank();
            let mut xs = [rank as u64; 40];
            if rank == 2 {
                team.broadcast(2, &mut xs).unwrap();
                team.reduce(0, Sum, &mut xs).unwrap();
                drop(team);
                meet.wait();
                return;
            }
            // It is gone by now, and has done its part.
            meet.wait();
            team.broadcast(2, &mut xs).unwrap();
            assert_eq!(xs, [2; 40]);
            if rank == 1 {
                std::thread::sleep(Duration::from_millis(1));
            }
            team.reduce(0, Sum, &mut xs).unwrap();
            assert_eq!(xs[7], if rank == 0 { 6 } else { 2 });
            is_of(team.barrier(), 2);
        });
    }
}

#[test]
fn who_waits_no_longer_tells_the_others() {
    for progress in ALL {
        with_team(3, progress, Duration::from_millis(30), |team, meet| {
            if team.rank() == 1 {
                let late = team.barrier();
                assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
                meet.wait();
                assert!(team.barrier().is_err());
            } else {
                meet.wait();
                // It had called this one.
                team.barrier().unwrap();
                is_of(team.barrier(), 1);
            }
            let next = team.shrink().unwrap();
            assert_eq!(next.len(), 3);
            let mut xs = [1_u64];
            next.allreduce(Sum, &mut xs).unwrap();
            assert_eq!(xs, [3]);
        });
    }
}

#[test]
fn members_that_call_different_things_are_told() {
    with_team(2, Progress::Adaptive, LONG, |team, _| {
        let result = if team.rank() == 0 { team.barrier() } else { team.allreduce(Sum, &mut [1_u64]) };
        let Err(Error::Team { why, .. }) = &result else { panic!("{result:?}") };
        let other = NodeId(1 - team.rank() as u16);
        assert!([TeamFault::Mismatch { node: other }, TeamFault::GaveUp { node: other }].contains(why), "{why:?}");
    });
}

#[test]
fn a_reduction_that_panics_ends_its_operation_and_nothing_else() {
    for progress in ALL {
        for begun in [false, true] {
            with_team(3, progress, LONG, |team, _| {
                let rank = team.rank();
                let fragile = by("fragile", move |left: &u64, right: &u64| {
                    assert!(rank != 1, "it panics on purpose");
                    left + right
                });
                let result = if begun {
                    team.start_allreduce(fragile, vec![1; 500]).and_then(|sum| sum.wait()).map(|_| ())
                } else {
                    team.allreduce(fragile, &mut [1; 500])
                };
                if rank == 1 {
                    let is_told = matches!(result, Err(Error::Team { why: TeamFault::Panicked, .. }));
                    assert!(is_told, "{result:?}");
                }
                // The others have their sums, or were waiting for its part; the next operation they all can't do.
                assert!(result.is_err() || team.barrier().is_err());
                let next = team.shrink().unwrap();
                let mut xs = [1_u64];
                next.allreduce(Sum, &mut xs).unwrap();
                assert_eq!(xs, [3]);
            });
        }
    }
}
