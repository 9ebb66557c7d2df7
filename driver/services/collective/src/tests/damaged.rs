//! Teams are told of a member that broke the rules.

use super::why;
use crate::{Team, TeamError};
use doorbell_engine::node::shared_of;
use doorbell_engine::{Error, FabricKind, Node, NodeId, Space};
use std::time::{Duration, Instant};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// One node finds that another one broke the rules. The other one does not know.
fn finds_broken(node: &Node, other: NodeId) {
    let me = shared_of(node).check().unwrap();
    shared_of(node).enter(me, "test").unwrap().on_broken(other, "the test says so");
}

fn form(nodes: &[&Node]) -> Vec<Team> {
    let ids: Vec<NodeId> = nodes.iter().map(|node| node.id()).collect();
    for node in nodes {
        node.wait_for(nodes.len(), soon()).unwrap();
    }
    std::thread::scope(|scope| {
        let forming: Vec<_> =
            nodes.iter().map(|node| scope.spawn(|| Team::builder(node).members(&ids).form_until(soon()).unwrap())).collect();
        forming.into_iter().map(|team| team.join().unwrap()).collect()
    })
}

/// The result of an operation of a member, in time.
fn outcome(team: &Team) -> Result<(), Error> {
    let begun = team.start_barrier()?;
    begun.wait_until(soon()).expect("it ends").map(drop)
}

fn is_damaged(result: &Result<(), Error>, other: NodeId) -> bool {
    matches!(result, Err(Error::Damaged { node }) if *node == other)
}

#[test]
fn a_team_that_shares_memory_in_parts_is_told_of_a_damaged_member() {
    for is_under_way in [true, false] {
        let space = Space::heap();
        let a = Node::builder("damaged").id(0).space(space.clone()).listen(([127, 0, 0, 1], 0)).join().unwrap();
        let b = Node::builder("damaged").id(1).space(space).connect(a.address().unwrap()).join().unwrap();
        let c = Node::builder("damaged").id(2).fabric(FabricKind::Udp).connect(a.address().unwrap()).join().unwrap();
        let teams = form(&[&a, &b, &c]);
        assert_eq!(teams[0].boxes(), [vec![0, 1], vec![2]]);
        let result = if is_under_way {
            let begun = teams[0].start_barrier().unwrap();
            finds_broken(&a, b.id());
            begun.wait_until(soon()).expect("it ends").map(drop)
        } else {
            finds_broken(&a, b.id());
            outcome(&teams[0])
        };
        assert!(is_damaged(&result, b.id()), "{result:?}");
        // The third node finds nothing wrong with the second. The first one tells it that nothing goes on.
        let result = outcome(&teams[2]);
        assert!(why(&result) == Some(&TeamError::OutOfStep), "{result:?}");
    }
}

#[test]
fn a_team_that_shares_memory_is_told_of_a_damaged_member_and_goes_on_without_it() {
    let space = Space::heap();
    let nodes = [0, 1, 2].map(|id| Node::builder("damaged").id(id).space(space.clone()).join().unwrap());
    let [a, b, c] = &nodes;
    let teams = form(&[a, b, c]);
    finds_broken(a, c.id());
    let result = outcome(&teams[0]);
    assert!(is_damaged(&result, c.id()), "{result:?}");
    let result = outcome(&teams[1]);
    assert!(why(&result) == Some(&TeamError::GaveUp { node: a.id() }), "{result:?}");
    std::thread::scope(|scope| {
        for team in &teams[..2] {
            scope.spawn(|| {
                let shrunk = team.shrink_until(soon()).unwrap();
                assert_eq!(shrunk.members(), [a.id(), b.id()]);
                outcome(&shrunk).unwrap();
            });
        }
    });
}

#[test]
fn a_team_is_not_formed_with_a_damaged_member() {
    let space = Space::heap();
    let [a, b] = [0, 1].map(|id| Node::builder("damaged").id(id).space(space.clone()).join().unwrap());
    a.wait_for(2, soon()).unwrap();
    finds_broken(&a, b.id());
    let began = Instant::now();
    let result = Team::builder(&a).members(&[a.id(), b.id()]).form_until(soon()).map(drop);
    assert!(is_damaged(&result, b.id()), "{result:?} after {:?}", began.elapsed());
}
