//! Members that do not go on: they drop the team, give an operation up, call another operation, or their reduction panics. The errors of the others name them.

use doorbell::collective::Team;
use doorbell::collective::TeamError;
use doorbell::collective::reduction::{Max, Sum, by};
use doorbell::{Error, FabricKind, Node, NodeId, Progress, Space};
use doorbell_tests::LOOPBACK;
use doorbell_tests::patience::{PATIENCE, soon};
use std::sync::Barrier;
use std::time::Duration;

const ALL: [Progress; 3] = [Progress::Adaptive, Progress::Inline, Progress::Poller];

/// Runs a thread for each member of a team, and gives it a barrier of all threads.
fn with_team(members: usize, progress: Progress, patience: Duration, act: impl Fn(&Node, Team, &Barrier) + Sync) {
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
                node.wait_for(members, soon()).unwrap();
                // No member leaves before the others are done. A member that panics meets the others, too.
                let _meets = Meets(meet);
                act(node, Team::builder(node).members(ids).patience(patience).form_until(soon()).unwrap(), meet);
            });
        }
    });
}

/// Meets the others when it goes out of scope.
struct Meets<'a>(&'a Barrier);

impl Drop for Meets<'_> {
    fn drop(&mut self) {
        self.0.wait();
    }
}

fn is_of(result: Result<(), Error>, node: u16) {
    assert_eq!(why(&result), Some(&TeamError::GaveUp { node: NodeId(node) }), "{result:?}");
}

/// The error of the team, if the call failed with one.
fn why(result: &Result<(), Error>) -> Option<&TeamError> {
    result.as_ref().err()?.downcast_ref()
}

#[test]
fn what_a_member_did_before_it_went_counts() {
    for (progress, leaves) in ALL.into_iter().flat_map(|progress| [(progress, false), (progress, true)]) {
        with_team(3, progress, PATIENCE, |node, team, meet| {
            // All have the team.
            meet.wait();
            let rank = team.rank();
            let mut xs = [rank as u64; 40];
            if rank == 2 {
                team.broadcast(2, &mut xs).unwrap();
                team.reduce(0, Sum, &mut xs).unwrap();
                // Of a team that was dropped before its node left the others may know either.
                if leaves {
                    node.clone().leave().unwrap();
                }
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
            let result = team.barrier();
            if leaves {
                assert!(matches!(result, Err(Error::PeerLeft { node: NodeId(2), .. })), "{result:?}");
            } else {
                is_of(result, 2);
            }
        });
    }
}

#[test]
fn who_waits_no_longer_tells_the_others() {
    for progress in ALL {
        with_team(3, progress, Duration::from_millis(300), |_, team, meet| {
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
    with_team(2, Progress::Adaptive, PATIENCE, |_, team, _| {
        let result = if team.rank() == 0 { team.barrier() } else { team.allreduce(Sum, &mut [1_u64]) };
        let why = why(&result).unwrap_or_else(|| panic!("{result:?}"));
        let other = NodeId(1 - team.rank() as u16);
        assert!([TeamError::Mismatch { node: other }, TeamError::GaveUp { node: other }].contains(why), "{why:?}");
    });
}

/// Operations with counts. The member `odd` expects other lengths than the others: `change` elements more from or to the next member.
fn with_counts(team: &Team, operation: usize, odd: usize, change: isize, len: usize) -> Result<(), Error> {
    let (me, members) = (team.rank(), team.len());
    let other = (odd + 1) % members;
    let wrong = |at: usize| if me == odd && at == other { len.checked_add_signed(change).unwrap() } else { len };
    let counts: Vec<usize> = (0..members).map(wrong).collect();
    let total = counts.iter().sum();
    match operation {
        // The root is wrong about the other one.
        0 => team.gather_v(odd, &vec![1; len], (me == odd).then_some((&mut vec![0; total][..], &counts[..]))),
        1 => team.scatter_v(odd, (me == odd).then_some((&vec![1; total][..], &counts[..])), &mut vec![0; len]),
        2 => team.allgather_v(&vec![1; counts[me]], &mut vec![0; total], &counts),
        3 => team.alltoall_v(&vec![1; total], &counts, &mut vec![0; len * members], &vec![len; members]),
        4 => team.alltoall_v(&vec![1; len * members], &vec![len; members], &mut vec![0; total], &counts),
        _ => team.reduce_scatter_v(Sum, &vec![1; total], &counts, &mut vec![0; counts[me]]),
    }
}

#[test]
fn lengths_that_differ_are_told() {
    for members in [2, 5, 17] {
        for (operation, odd) in (0..6).flat_map(|operation| [(operation, 0), (operation, members - 1)]) {
            for (change, len) in [(0, 3), (1, 3), (-1, 3), (1, 0), (-1, 1), (1, 20_000), (-20_000, 20_000)] {
                with_team(members, Progress::Adaptive, PATIENCE, |_, team, meet| {
                    let result = with_counts(&team, operation, odd, change, len);
                    meet.wait();
                    let next = team.barrier();
                    let why = why(&result);
                    assert_eq!(why.is_some(), result.is_err(), "operation {operation}: {result:?}");
                    if change == 0 {
                        assert_eq!(why, None);
                        return next.unwrap();
                    }
                    let (odd, other) = (NodeId(odd as u16), NodeId(((odd + 1) % members) as u16));
                    // The member that reads data of a wrong length: the odd one, or the other one.
                    let reader = if [0, 4].contains(&operation) { odd } else { other };
                    let source = if reader == odd { other } else { odd };
                    let of_all = [2, 5].contains(&operation);
                    if NodeId(team.rank() as u16) == reader && !of_all {
                        assert_eq!(why, Some(&TeamError::Mismatch { node: source }), "operation {operation}");
                    }
                    // Of what all have to say alike all are told, if by nothing else by that one gave up.
                    assert!(!of_all || why.is_some(), "operation {operation}");
                    let is_told = |why: &TeamError| matches!(why, TeamError::Mismatch { .. } | TeamError::GaveUp { .. });
                    assert!(why.is_none_or(is_told), "operation {operation}: {why:?}");
                    assert!(next.is_err(), "the next one fails at all");
                });
            }
        }
    }
}

#[test]
fn a_reduction_that_panics_ends_its_operation_and_nothing_else() {
    for progress in ALL {
        for begun in [false, true] {
            with_team(3, progress, PATIENCE, |_, team, _| {
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
                    assert_eq!(why(&result), Some(&TeamError::Panicked), "{result:?}");
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

fn is_told(result: &Result<(), Error>) -> bool {
    matches!(why(result), Some(TeamError::Mismatch { .. } | TeamError::GaveUp { .. }))
}

#[test]
fn calls_that_differ_in_root_length_or_element_are_told() {
    type Call = fn(&Team) -> Result<(), Error>;
    let calls: [(&str, Call); 6] = [
        ("roots of a reduction", |team| team.reduce(team.rank(), Sum, &mut [1_u64; 3])),
        ("roots of a gathering", |team| {
            let mut all = [0_u64; 2];
            team.gather(team.rank(), &[1], Some(&mut all))
        }),
        ("nothing and something", |team| team.allreduce(Sum, &mut vec![1_u64; team.rank()])),
        ("lengths of which one is short", |team| {
            if team.rank() == 1 {
                std::thread::sleep(Duration::from_millis(1));
            }
            team.broadcast(0, &mut vec![1_u8; if team.rank() == 0 { 256 << 10 } else { 8 }])
        }),
        (
            "a long one and none",
            |team| {
                if team.rank() == 0 { team.broadcast(0, &mut vec![1_u8; 8 << 20]) } else { team.barrier() }
            },
        ),
        ("elements of another size", |team| {
            if team.rank() == 0 { team.allreduce(Max, &mut [1_u64; 1000]) } else { team.allreduce(Max, &mut [1_u32; 2000]) }
        }),
    ];
    for (what, call) in calls {
        with_team(2, Progress::Adaptive, PATIENCE, |_, team, _| {
            // A member that completes before it hears of the difference finds out by the next operation.
            let result = call(&team).and_then(|()| team.barrier());
            assert!(is_told(&result), "{what}: {result:?}");
        });
    }
}

#[test]
fn a_reduction_may_not_call_its_team() {
    with_team(2, Progress::Adaptive, PATIENCE, |_, team, _| {
        let team = &*Box::leak(Box::new(team));
        let calls = by("calls", move |left: &u64, right: &u64| {
            assert!(matches!(team.barrier(), Err(Error::Reentrant { .. })));
            assert!(matches!(team.start_barrier(), Err(Error::Reentrant { .. })));
            let _ = team.stats();
            left + right
        });
        let mut xs = [1; 20];
        team.allreduce(calls, &mut xs).unwrap();
        assert_eq!(xs, [2; 20]);
    });
}

#[test]
fn a_reduction_that_panics_over_the_network_ends_its_operation_and_nothing_else() {
    for progress in ALL {
        let first = Node::builder("team-faults").id(0).max_nodes(2).progress(progress).fabric(FabricKind::Udp);
        let first = first.listen(LOOPBACK).join().unwrap();
        let second = Node::builder("team-faults").id(1).max_nodes(2).progress(progress).fabric(FabricKind::Udp);
        let second = second.connect(first.address().unwrap()).join().unwrap();
        std::thread::scope(|scope| {
            for node in [&first, &second] {
                scope.spawn(move || {
                    node.wait_for(2, soon()).unwrap();
                    let team =
                        Team::builder(node).members(&[NodeId(0), NodeId(1)]).patience(PATIENCE).form_until(soon()).unwrap();
                    let rank = team.rank();
                    let fragile = by("fragile", move |left: &u64, right: &u64| {
                        assert!(rank != 1, "it panics on purpose");
                        left + right
                    });
                    let result = team.allreduce(fragile, &mut [1; 500]);
                    if rank == 1 {
                        assert_eq!(why(&result), Some(&TeamError::Panicked), "{result:?}");
                    }
                    assert!(result.is_err() || team.barrier().is_err());
                    let next = team.shrink_until(soon()).unwrap();
                    let mut xs = [1_u64];
                    next.allreduce(Sum, &mut xs).unwrap();
                    assert_eq!(xs, [2]);
                    next.barrier().unwrap();
                });
            }
        });
    }
}
