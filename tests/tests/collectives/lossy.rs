//! Collectives of processes over a network that loses much.

use super::collectives::all;
use doorbell::collective::{Algorithm, Team, TeamBuilder};
use doorbell::{Match, Node, NodeId, Space};
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::{PATIENCE, soon};
use doorbell_tests::process::{Process, told, told_as};
use doorbell_tests::random::seed;
use doorbell_tests::{LOOPBACK, Turn};
use doorbell_udp::port::relay::{Badness, Relay};

/// The shared-memory group of each member.
const HOMES: [usize; 4] = [0, 0, 1, 1];

fn on_a_bad_network(node: &Node) {
    node.wait_for(HOMES.len(), soon()).unwrap();
    let ids: Vec<NodeId> = (0..HOMES.len() as u16).map(NodeId).collect();
    for algorithm in [None, Some(Algorithm::Doubling), Some(Algorithm::Ring), Some(Algorithm::Direct)] {
        let team = algorithm.into_iter().fold(Team::builder(node).members(&ids), TeamBuilder::algorithm);
        let team = team.label(format!("{algorithm:?}")).patience(4 * PATIENCE).form_until(soon()).unwrap();
        assert_eq!(team.boxes(), [[0, 1], [2, 3]]);
        for (root, len) in [3, 700, 10_000].into_iter().enumerate() {
            all(&team, len, root).unwrap();
        }
    }
}

/// The role: a member.
pub fn member() {
    let builder = Node::builder(told("DOMAIN")).id(told_as::<u16>("ME")).max_nodes(HOMES.len());
    let builder = builder.space(Space::posix_at(told("BOX"))).dead_after(2 * PATIENCE);
    let node = builder.connect(told("ADDRESS")).join().unwrap();
    on_a_bad_network(&node);
    // No member leaves before the others are done.
    node.send(NodeId(0), 1, &[]).unwrap();
    node.recv(Match::any().tag(2), &mut []).unwrap();
    node.leave().unwrap();
}

/// Processes in two shared-memory groups. Three in ten of the datagrams between the leaders of the two are lost, each way. Node 2
/// is behind a relay, so no other node can ask it for a session. It joins after node 1: node 0 then tells it of node 1, and it
/// asks node 1.
#[test]
fn results_are_the_same_over_a_network_that_loses_much() {
    let _turn = Turn::take();
    let domain = Domain::new("lossy");
    let away = Directory(format!("/dev/shm/{}", domain.name()));
    std::fs::create_dir(&away.0).unwrap();
    let builder = Node::builder(domain.name()).id(0).max_nodes(HOMES.len()).dead_after(2 * PATIENCE);
    let node = builder.listen(LOOPBACK).join().unwrap();
    let address = node.address().unwrap();
    let badness = Badness { loss: 0.3, duplication: 0.1, reordering: 0.2, ..Badness::NONE };
    let relay = Relay::start(None, address, [badness; 2], seed()).unwrap();
    let start = |me: usize| {
        let start = Process::start("collectives: member").tell("DOMAIN", domain.name()).tell("ME", me.to_string());
        let start = start.tell("BOX", if HOMES[me] == 0 { "/dev/shm" } else { &away.0 });
        start.tell("ADDRESS", if me == 2 { relay.front(0) } else { address }.to_string()).go()
    };
    let first = start(1);
    node.wait_for(2, soon()).unwrap();
    let members: Vec<Process> = std::iter::once(first).chain((2..HOMES.len()).map(start)).collect();
    on_a_bad_network(&node);
    members.iter().for_each(|_| assert_eq!(node.recv_until(Match::any().tag(1), &mut [], soon()).unwrap().tag, 1));
    (1..HOMES.len()).for_each(|me| node.send(NodeId(me as u16), 2, &[]).unwrap());
    members.into_iter().for_each(|member| member.end_well(PATIENCE));
    node.leave().unwrap();
    let relayed = relay.relayed();
    println!("{relayed:?}");
    assert!(relayed.iter().all(|way| way.lost > 0), "{relayed:?}");
    drop(away);
}

/// A directory that must be empty at the end.
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
