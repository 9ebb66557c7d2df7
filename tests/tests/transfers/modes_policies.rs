//! Modes that a policy selects anew: by queue, by occupancy, by size.

use super::modes::{expect, used};
use doorbell::mode::{Decision, Fabric, LinkMetrics, ModeRequest, Policy, Protocol, Question, Reason, Receipt, Thresholds};
use doorbell::{Node, Progress};
use doorbell_tests::pair::{Pair, mode, near_with};
use doorbell_tests::patience::eventually;
use std::sync::{Arc, Mutex};

/// The figures that a policy saw, and its decisions, message by message.
type Log = Arc<Mutex<Vec<(Vec<LinkMetrics>, Decision)>>>;

#[derive(Debug)]
struct Logged<P>(P, Log);

impl<P: Policy> Policy for Logged<P> {
    fn choose(&self, question: &mut Question<'_>) -> Decision {
        let decision = self.0.choose(question);
        self.1.lock().unwrap().push((question.links.iter().map(|link| link.metrics).collect(), decision));
        decision
    }
}

/// A node with a policy, and a reader that stalls and has no pool.
fn stalled() -> (Log, [Node; 2]) {
    let (pair, log) = (Pair::new(), Log::default());
    let a = pair.builder(0).progress(Progress::Inline).policy(Logged(Thresholds::new(), log.clone()));
    let nodes = pair.join(a, pair.builder(1).progress(Progress::Inline).pool_bytes(0));
    (log, nodes)
}

#[test]
fn a_stalled_reader_sends_traffic_elsewhere_and_back() {
    let (log, [a, b]) = stalled();
    let peer = a.peer(b.id()).unwrap();
    let mut sent = 0_u64;
    let mut send = |request: ModeRequest| {
        let receipt = peer.send_as(sent, &sent.to_le_bytes().repeat(64), request).unwrap();
        sent += 1;
        receipt
    };
    // Until shared memory is too full.
    let mut receipts = Vec::new();
    while receipts.last().is_none_or(|receipt: &Receipt| receipt.used.fabric == Fabric::Shm) {
        assert!(receipts.len() < 3000, "never left: {}", receipts.last().unwrap());
        receipts.push(send(mode("any")));
    }
    let left = *receipts.last().unwrap();
    let (metrics, decision) = log.lock().unwrap().last().unwrap().clone();
    let shm = metrics[0];
    match left.reason {
        Reason::Occupancy { occupancy, limit } => assert!(occupancy == shm.occupancy() && occupancy > limit, "{left}"),
        Reason::Queue { depth, limit } => assert!(depth == shm.depth && depth > limit, "{left}"),
        other => panic!("{other}"),
    }
    assert_eq!(decision, Decision::new(left.used, left.reason));
    // It does not flap while nobody reads.
    for _ in 0..50 {
        assert_eq!(send(mode("any")).used.fabric, Fabric::Udp);
    }
    // The reader goes on: all that was sent, once, in order, though it came by two fabrics.
    let sent_so_far = receipts.len() as u64 + 50;
    for number in 0..sent_so_far {
        expect(&b, number, &number.to_le_bytes().repeat(64));
    }
    let mut back = 0;
    for number in sent_so_far.. {
        let receipt = send(mode("any"));
        expect(&b, number, &number.to_le_bytes().repeat(64));
        back += u64::from(receipt.used.fabric == Fabric::Shm);
        if back == 100 {
            break;
        }
        assert!(number < sent_so_far + 5000, "never back: {receipt}");
        assert!(back == 0 || receipt.used.fabric == Fabric::Shm, "it flaps: {receipt}");
    }
}

#[test]
fn a_saturated_link_is_left_for_another_of_its_kind() {
    let (_, [a, b]) = stalled();
    let peer = a.peer(b.id()).unwrap();
    let bytes = vec![3; 2000];
    let mut receipts = Vec::new();
    while receipts.last().is_none_or(|receipt: &Receipt| receipt.used == used("udp/0/transfer")) {
        assert!(receipts.len() < 5000, "never left: {}", receipts.last().unwrap());
        receipts.push(peer.send_as(receipts.len() as u64, &bytes, mode("udp/0")).unwrap());
    }
    let left = *receipts.last().unwrap();
    assert!(matches!(left.reason, Reason::Occupancy { .. } | Reason::Queue { .. }), "{left}");
    assert_eq!(left.used.fabric, Fabric::Udp, "{left}");
    for number in 0..receipts.len() as u64 {
        expect(&b, number, &bytes);
    }
    eventually("the link that was asked for", || {
        let number = receipts.len() as u64;
        let receipt = peer.send_as(number, &bytes, mode("udp/0")).unwrap();
        expect(&b, number, &bytes);
        receipts.push(receipt);
        receipt.used == used("udp/0/transfer")
    });
}

#[test]
fn long_messages_take_another_protocol_by_their_size() {
    let [a, b] = near_with(|id, builder| if id == 0 { builder.policy(Thresholds::new()) } else { builder });
    let peer = a.peer(b.id()).unwrap();
    for (len, expected) in [(1000, Protocol::Transfer), (4 << 20, Protocol::Both)] {
        let bytes = vec![9; len];
        std::thread::scope(|threads| {
            let receiver = threads.spawn(|| expect(&b, 1, &bytes));
            let receipt = peer.send_as(1, &bytes, mode("any")).unwrap();
            receiver.join().unwrap();
            assert_eq!((receipt.decided.protocol, receipt.requested.protocol), (expected, Some(Protocol::Transfer)), "{receipt}");
            let moved = receipt.moved.unwrap();
            assert_eq!((moved.total(), moved.protocol()), (len as u64, Some(receipt.used.protocol)), "{receipt}");
            assert_eq!(matches!(receipt.reason, Reason::Size { limit } if limit <= len as u64), len > 1000, "{receipt}");
        });
    }
}
