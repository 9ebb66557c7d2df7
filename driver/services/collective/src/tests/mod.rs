//! Teams with a member that breaks the rules.

mod damaged;

use super::formation::{Note, Stage, lineage_number};
use super::table::Teams;
use crate::{Team, TeamError};
use doorbell_engine::node::shared_of;
use doorbell_engine::{Error, Event, Match, Node, NodeId, Space};
use std::time::{Duration, Instant};

/// The error of the team, if the call failed with one.
fn why<T>(result: &Result<T, Error>) -> Option<&TeamError> {
    result.as_ref().err()?.downcast_ref()
}

const LONG: Duration = Duration::from_secs(60);

/// Sends any note about a team.
fn say(node: &Node, to: &Node, note: &Note) {
    let me = shared_of(node).check().unwrap();
    let mut engine = shared_of(node).enter(me, "test").unwrap();
    engine.service::<Teams>().inform((to.id(), to.incarnation()).into(), note.encode());
    engine.push(me);
}

/// The attempt that a node named last.
fn heard(node: &Node, of: &Node, lineage: u64) -> Option<u32> {
    let me = shared_of(node).check().unwrap();
    let mut engine = shared_of(node).enter(me, "test").unwrap();
    engine.turn(me, false);
    engine.service::<Teams>().heard.of((of.id(), of.incarnation()).into(), lineage).map(|note| note.attempt)
}

/// The third member leaps to the last attempts that there are, and leaves itself out there. The other two find no fault with each other.
#[test]
fn a_member_that_leaps_does_not_make_the_others_condemn_each_other() {
    for attempt in [u32::MAX / 2, u32::MAX] {
        let space = Space::heap();
        let nodes = [0, 1, 2].map(|id| Node::builder("leaps").id(id).space(space.clone()).join().unwrap());
        let [a, b, hostile] = &nodes;
        let ids: Vec<NodeId> = nodes.iter().map(Node::id).collect();
        let lineage = lineage_number("", nodes.iter().map(|node| (node.id(), node.incarnation()).into()));
        let note = |set: [bool; 3]| Note {
            lineage,
            attempt,
            stage: Stage::Ready,
            layout: 4 << 32 | 512 << 10,
            region: None,
            set: set.to_vec(),
            near: vec![true; 3],
        };
        std::thread::scope(|scope| {
            let forming =
                [a, b].map(|node| scope.spawn(|| Team::builder(node).members(&ids).form_until(Instant::now() + LONG).map(drop)));
            for honest in [a, b] {
                say(hostile, honest, &note([true; 3]));
            }
            // An honest member that follows sends a note. Then it hears that a member is missing there.
            let has_followed = || heard(hostile, a, lineage) == Some(attempt) && heard(hostile, b, lineage) == Some(attempt);
            while !forming.iter().all(|thread| thread.is_finished()) && !has_followed() {
                std::thread::yield_now();
            }
            for honest in [a, b] {
                say(hostile, honest, &note([true, true, false]));
            }
            for thread in forming {
                let result = thread.join().unwrap();
                assert!(why(&result) == Some(&TeamError::OutOfStep), "{result:?}");
            }
            // Without it they form a team as usual.
            let pair = [a, b]
                .map(|node| scope.spawn(|| Team::builder(node).members(&ids[..2]).form_until(Instant::now() + LONG).map(drop)));
            pair.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
        });
        a.peer(b.id()).unwrap().send(1, b"hello").unwrap();
        b.recv_until(Match::from(a.id()), &mut [0; 8], Instant::now() + LONG).unwrap();
        for node in [a, b] {
            while let Some(event) = node.try_event().unwrap() {
                assert!(!matches!(event, Event::Damaged { .. }), "{event:?}");
            }
        }
    }
}

#[test]
fn counts_that_do_not_fit_the_vectors_are_refused() {
    let node = Node::builder("counts").space(Space::heap()).join().unwrap();
    let team = Team::builder(&node).form().unwrap();
    let is_refused = |result: doorbell_engine::Result<()>| matches!(result, Err(Error::Invalid { .. }));
    let mut two = [0; 2];
    assert!(is_refused(team.gather_v(0, &[1], Some((&mut two, &[2])))));
    assert!(is_refused(team.scatter_v(0, Some((&[1, 2], &[2])), &mut two[..1])));
    assert!(is_refused(team.gather_v(0, &[1, 2], Some((&mut two, &[1, 1])))));
    assert!(is_refused(team.gather_v(1, &[1, 2], Some((&mut two, &[2])))));
    team.gather_v(0, &[1, 2], Some((&mut two, &[2]))).unwrap();
    assert_eq!(two, [1, 2]);
}
