//! Processes that die while they join or leave, and one that is only stopped.

use doorbell::{Error, Event, Incarnation, Match, Node, NodeId, Progress};
use doorbell_tests::Turn;
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::{PATIENCE, soon, until};
use doorbell_tests::process::{Process, told};
use rustix::process::Signal;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

/// The role: joins, sends a message, leaves.
pub fn visit() {
    let node = Node::builder(told("DOMAIN")).id(1).join().unwrap();
    if node.members().unwrap().iter().any(|member| member.id == NodeId(0)) {
        node.send_until(NodeId(0), 1, b"hello", soon()).unwrap();
    }
    node.leave().unwrap();
}

fn visitor(domain: &Domain) -> doorbell_tests::process::Start {
    Process::start("visitor").tell("DOMAIN", domain.name())
}

#[track_caller]
fn dies_at(domain: &Domain, place: &str) {
    let status = visitor(domain).tell("DOORBELL_FAULT", place).go().end(PATIENCE);
    assert_eq!(status.signal(), Some(libc::SIGKILL), "a visitor was to die at {place}: {status}");
}

/// Every event about node 1 so far: each life comes once and goes once.
#[track_caller]
fn lives_are_whole(node: &Node, place: &str, open: &mut Option<Incarnation>) {
    while let Some(event) = node.try_event().unwrap() {
        match event {
            Event::Joined { node: NodeId(1), incarnation } => {
                assert_eq!(open.replace(incarnation), None, "{place}: a life began before another ended");
            }
            Event::Left { node, incarnation } | Event::Died { node, incarnation } if node == NodeId(1) => {
                assert_eq!(open.take(), Some(incarnation), "{place}: the end of a life that had not begun");
            }
            Event::Damaged { .. } => panic!("{place}: {event}"),
            _ => {}
        }
    }
}

#[test]
fn a_death_while_joining_or_leaving_leaves_the_place_free() {
    let _turn = Turn::take();
    let domain = Domain::new("visited");
    // A lane that a dead visitor held is free for the next when this node has seen the end of the former: so it has to look.
    let node = Node::builder(domain.name()).id(0).progress(Progress::Poller).join().unwrap();
    let places = [
        "join.locked:1",
        "join.reaped:1",
        "segment.nameless:1",
        "join.inbox:1",
        "segment.nameless:2",
        "join.board:1",
        "join.entered:1",
        "lane.claimed:1",
        "lane.written:1",
        "lane.published:1",
        "leave.locked:1",
        "leave.cleared:1",
        "leave.removed:1",
        "leave.removed:2",
    ];
    let mut open = None;
    for place in places {
        dies_at(&domain, place);
        // The next one has its place, and is heard; the one before as well, if it came as far as to say a word.
        visitor(&domain).go().end_well(PATIENCE);
        let words = match place {
            "lane.published:1" | "leave.locked:1" | "leave.cleared:1" | "leave.removed:1" | "leave.removed:2" => 2,
            _ => 1,
        };
        let mut lives = Vec::new();
        for _ in 0..words {
            let envelope = node.recv_until(Match::any(), &mut [0; 8], soon()).unwrap_or_else(|error| panic!("{place}: {error}"));
            lives.push(envelope.incarnation);
        }
        assert!(lives.is_sorted() && lives.first() != lives.last() || words == 1, "{place}: {lives:?}");
        assert_eq!(node.try_recv(Match::any(), &mut [0; 8]).unwrap(), None, "{place}");
        lives_are_whole(&node, place, &mut open);
        let gone = node.recv_until(Match::from(NodeId(1)), &mut [0; 8], soon()).unwrap_err();
        assert!(matches!(gone, Error::PeerLeft { .. } | Error::PeerDied { .. }), "{place}: {gone}");
    }
    lives_are_whole(&node, "at the end", &mut open);
    assert_eq!(open, None, "a life that did not end");
    assert_eq!(node.members().unwrap().len(), 1);
    node.leave().unwrap();
    domain.assert_empty();
}

#[test]
fn a_death_while_founding_or_dissolving_a_domain_leaves_it_free() {
    let _turn = Turn::take();
    for place in [
        "join.locked:1",
        "domain.removed:1",
        "segment.nameless:1",
        "join.domain:1",
        "join.entered:1",
        "leave.removed:2",
        "domain.removed:2",
    ] {
        let domain = Domain::new("founded");
        dies_at(&domain, place);
        visitor(&domain).go().end_well(PATIENCE);
        domain.assert_empty();
        dies_at(&domain, place);
        let report = doorbell_shm::domain::clean(domain.space(), Some(domain.name()), false).unwrap();
        assert!(report.kept.is_empty(), "{place}: {report:?}");
        domain.assert_empty();
    }
}

const STOP: u64 = 0;

/// The role: sends back what it gets.
pub fn echo() {
    let node = Node::builder(told("DOMAIN")).id(1).pool_bytes(64 << 10).join().unwrap();
    let peer = node.peer(NodeId(0)).unwrap();
    let mut buf = vec![0; 4096];
    loop {
        let envelope = peer.recv_until(Match::any(), &mut buf, soon()).unwrap();
        if envelope.tag == STOP {
            break;
        }
        peer.send_until(envelope.tag, &buf[..envelope.len], soon()).unwrap();
    }
    node.leave().unwrap();
}

#[test]
fn a_process_that_is_stopped_is_not_dead() {
    let _turn = Turn::take();
    let domain = Domain::new("stopped");
    let node = Node::builder(domain.name()).id(0).join().unwrap();
    let process = Process::start("echo").tell("DOMAIN", domain.name()).go();
    node.wait_for(2, soon()).unwrap();
    let peer = until("a peer", || node.peer(NodeId(1)).ok());
    let mut buf = vec![0; 4096];
    peer.send_until(1, b"first", soon()).unwrap();
    assert_eq!(peer.recv_until(Match::any(), &mut buf, soon()).unwrap().len, 5);
    while node.try_event().unwrap().is_some() {}

    process.signal(Signal::STOP);
    let pending = node.start_recv(Match::from(NodeId(1)).tag(100), [0; 8]).unwrap();
    let mut sent = 0_u64;
    let full = loop {
        let mut message = [0; 1024];
        message[..8].copy_from_slice(&sent.to_le_bytes());
        match peer.try_send(2, &message) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent < 10_000, "a stopped process takes everything");
    };
    assert!(matches!(full, Error::Full { node } if node == NodeId(1)), "{full}");
    // Far longer than a death takes to be told.
    let long = Instant::now() + Duration::from_millis(400);
    assert!(matches!(peer.send_until(3, &[0; 2000], long), Err(Error::Timeout { .. })));
    assert!(matches!(
        peer.recv_until(Match::any().tag(4), &mut buf, Instant::now() + Duration::from_millis(50)),
        Err(Error::Timeout { .. })
    ));
    assert_eq!(node.try_event().unwrap(), None);
    assert!(!pending.test());

    process.signal(Signal::CONT);
    for number in 0..sent {
        let envelope = peer.recv_until(Match::any().tag(2), &mut buf, soon()).unwrap();
        assert_eq!((envelope.len, &buf[..8]), (1024, &number.to_le_bytes()[..]));
    }
    peer.send_until(100, b"last", soon()).unwrap();
    assert!(pending.wait_until(soon()).is_ok_and(|completion| completion.result.is_ok()));
    peer.send_until(STOP, b"", soon()).unwrap();
    process.end_well(PATIENCE);
    assert!(matches!(until("the end", || node.try_event().unwrap()), Event::Left { .. }));
}
