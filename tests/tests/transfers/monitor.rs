//! The figures that a node shows of its links and messages, as it sees them and as others do.

use doorbell::mode::{Call, Decision, Fabric, Mode, ModeMonitor, ModeRequest, Policy, Protocol, Question, Reason, Refusal};
use doorbell::mode::{LinkShown, Receipt};
use doorbell::{Error, Match, Node, NodeBuilder, Progress, Space};
use doorbell_tests::patience::{eventually, soon, until};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const DOMAIN: &str = "monitored";
/// Longer than a cell holds.
const LEN: usize = 1024;

fn builder(space: &Space) -> NodeBuilder {
    Node::builder(DOMAIN).space(space.clone()).progress(Progress::Inline)
}

fn pair(space: &Space) -> [Node; 2] {
    [0, 1].map(|id| builder(space).id(id).join().unwrap())
}

fn link(monitor: &ModeMonitor, node: &Node) -> LinkShown {
    let found: Vec<_> = monitor.links.iter().filter(|link| link.node == node.id()).collect();
    assert_eq!(found.len(), 1, "{monitor:?}");
    *found[0]
}

fn copies(space: &Space) -> Vec<ModeMonitor> {
    ModeMonitor::of_domain(space, DOMAIN).unwrap()
}

#[test]
fn a_lane_that_nobody_reads_is_seen_to_fill() {
    let space = Space::heap();
    let [a, b] = pair(&space);
    assert_eq!(a.monitor().unwrap().links, []);
    for sent in 1..=40_u32 {
        a.send(b.id(), 1, &[7; LEN]).unwrap();
        let seen = link(&a.monitor().unwrap(), &b);
        assert_eq!((seen.fabric, seen.link, seen.incarnation), (Fabric::Shm, 0, b.incarnation()));
        assert_eq!((seen.depth, seen.queued, seen.transfers), (sent, 0, 0));
        assert_eq!((seen.messages, seen.bytes_sent), (sent.into(), u64::from(sent) * LEN as u64));
        assert!((u64::from(sent) * (LEN as u64 - 64)..=u64::from(sent) * LEN as u64).contains(&seen.bytes), "{seen:?}");
        let by_bytes = seen.bytes * 1000 / seen.room;
        assert!(u64::from(seen.occupancy) >= by_bytes && seen.occupancy <= 1000, "{seen:?}");
    }
    let mut requests = Vec::new();
    loop {
        requests.push(a.start_send(b.id(), 2, vec![8; LEN]).unwrap());
        let seen = link(&a.monitor().unwrap(), &b);
        assert_eq!(seen.depth + seen.queued, 40 + requests.len() as u32);
        assert_eq!(seen.messages, u64::from(seen.depth));
        if seen.queued == 3 {
            assert!(seen.occupancy > 900, "{seen:?}");
            break;
        }
    }
    // Not steered: nothing is counted.
    let seen = a.monitor().unwrap();
    assert_eq!((seen.counts.honoured(), seen.counts.requests(None), seen.decisions.len()), (0, 0, 0));
    // Others read the same.
    assert_eq!(copies(&space)[0], seen);
    // The queue is empty but for messages whose reading the reader has not reported yet.
    while b.try_recv(Match::any(), &mut [0; LEN]).unwrap().is_some() {}
    while a.progress().unwrap() > 0 {}
    while b.try_recv(Match::any(), &mut [0; LEN]).unwrap().is_some() {}
    let seen = link(&a.monitor().unwrap(), &b);
    assert_eq!((seen.queued, seen.messages), (0, 40 + requests.len() as u64));
    assert!(seen.occupancy <= 250, "{seen:?}");
}

#[test]
fn a_row_is_of_one_life_and_goes_with_it() {
    let space = Space::heap();
    let [a, b] = pair(&space);
    for _ in 0..5 {
        a.send(b.id(), 1, b"first life").unwrap();
    }
    assert_eq!(link(&a.monitor().unwrap(), &b).messages, 5);
    b.leave().unwrap();
    a.event(std::time::Instant::now() + Duration::from_secs(60)).unwrap();
    assert_eq!(a.monitor().unwrap().links, []);
    let b = builder(&space).id(1).join().unwrap();
    a.send(b.id(), 1, b"second life").unwrap();
    let seen = link(&a.monitor().unwrap(), &b);
    assert_eq!((seen.incarnation, seen.messages, seen.bytes_sent, seen.depth), (b.incarnation(), 1, 11, 1));
}

#[test]
fn the_aggregate_is_the_mean() {
    let space = Space::heap();
    let [a, b] = pair(&space);
    let c = builder(&space).id(2).join().unwrap();
    let mode = ModeRequest::fabric(Fabric::Shm);
    for (from, to, count) in [(&a, &b, 3), (&a, &c, 4), (&b, &c, 17)] {
        for _ in 0..count {
            from.send_as(to.id(), 1, &[1; 500], mode).unwrap();
        }
    }
    a.send_as(b.id(), 1, b"", ModeRequest::default()).unwrap();
    let seen = [&a, &b, &c].map(|node| node.monitor().unwrap());
    assert_eq!(copies(&space), seen);
    let all = ModeMonitor::aggregate(&seen);
    let links: Vec<_> = seen.iter().flat_map(|node| &node.links).collect();
    let mean = |value: fn(&LinkShown) -> f64| links.iter().map(|link| value(link)).sum::<f64>() / links.len() as f64;
    let found = all.links(Fabric::Shm);
    assert_eq!((all.nodes, found.links, all.links(Fabric::Udp).links), (3, 3, 0));
    assert_eq!(found.depth, f64::from(4 + 4 + 17) / 3.0);
    assert!((found.occupancy - mean(|link| link.occupancy.into())).abs() < 1e-6 && found.occupancy > 0.0);
    assert_eq!(all.counts.requests(Some(Fabric::Shm)), 24);
    assert_eq!((all.counts.requests(None), all.counts.requests(Some(Fabric::Udp)), all.counts.honoured()), (1, 0, 25));
    assert_eq!(all.counts.messages(Fabric::Shm, Protocol::Transfer), 25);
    // Of each node's sends one in sixteen, from the first on; only `a` sent some of up to 64 bytes, and none of those was sampled.
    let latency = all.counts.latency(Fabric::Shm, Protocol::Transfer);
    assert_eq!((latency.samples, all.counts.latency_of(Fabric::Shm, Protocol::Transfer, 2).samples), (3, 3));
    let sum: u64 = seen.iter().map(|node| node.counts.latency(Fabric::Shm, Protocol::Transfer).ns).sum();
    assert_eq!((latency.ns, latency.mean_ns()), (sum, Some(sum / 3)));
}

#[test]
fn each_link_has_a_row_of_its_own() {
    let space = Space::heap();
    let process = std::process::id();
    let address = |id: u16, link: u8| SocketAddr::from(([127, 7 + link, (process >> 8) as u8, process as u8], 23_000 + id));
    let [a, b] = [0, 1].map(|id| {
        let builder = builder(&space).id(id).listen(address(id, 0)).listen(address(id, 1));
        builder.seek(address(1 - id, 0)).join().unwrap()
    });
    let mut buf = [0; LEN];
    // Until both links of the network are known.
    let mut sent = [0, 0, 0];
    eventually("all links", || {
        for (at, mode) in [(1, "udp/0"), (2, "udp/1")] {
            sent[at] += u64::from(a.send_as(b.id(), 1, &[1; LEN], mode.parse().unwrap()).is_ok());
        }
        b.progress().unwrap();
        sent[1] > 0 && sent[2] > 0
    });
    for (at, (mode, count)) in [("shm", 3), ("udp/0", 2), ("udp/1", 7)].into_iter().enumerate() {
        for _ in 0..count {
            a.send_as(b.id(), 1, &[1; LEN], mode.parse().unwrap()).unwrap();
        }
        sent[at] += count;
    }
    for _ in 0..sent.iter().sum::<u64>() {
        b.recv_until(Match::any().tag(1), &mut buf, soon()).unwrap();
    }
    // A link that cannot be asked at this instant keeps its row as it was.
    let seen = until("all rows", || {
        let seen = a.monitor().unwrap();
        let rows: Vec<_> = seen.links.iter().map(|link| (link.fabric, link.link, link.messages, link.bytes_sent)).collect();
        let row = |fabric, link, messages| (fabric, link, messages, messages * LEN as u64);
        let expected = [row(Fabric::Shm, 0, sent[0]), row(Fabric::Udp, 0, sent[1]), row(Fabric::Udp, 1, sent[2])];
        (rows == expected).then_some(seen)
    });
    assert_eq!(seen.counts.messages(Fabric::Udp, Protocol::Transfer), sent[1] + sent[2]);
    assert_eq!(ModeMonitor::aggregate([&seen]).links(Fabric::Udp).links, 2);
}

/// Goes by a DMA put if so many wait in the lane.
#[derive(Debug)]
struct Limit(u32, Arc<AtomicU64>);

impl Policy for Limit {
    fn choose(&self, question: &mut Question<'_>) -> Decision {
        let link = &question.links[0];
        let (mode, depth) = (|protocol| link.mode(protocol).unwrap(), link.metrics.depth);
        if depth >= self.0 {
            return Decision::new(mode(Protocol::Put), Reason::Queue { depth, limit: self.0 });
        }
        Decision::new(mode(Protocol::Transfer), Reason::Requested)
    }

    fn observe(&self, receipt: &Receipt, _took: Duration) {
        assert_eq!(receipt.call, Call::Send);
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn what_a_policy_refuses_is_counted_with_its_reason() {
    let space = Space::heap();
    let observed = Arc::new(AtomicU64::new(0));
    let a = builder(&space).id(0).policy(Limit(20, observed.clone())).join().unwrap();
    let b = builder(&space).id(1).join().unwrap();
    for _ in 0..20 {
        a.send(b.id(), 1, &[1; LEN]).unwrap();
    }
    let request = a.start_send(b.id(), 2, vec![2; 100_000]).unwrap();
    let seen = a.monitor().unwrap();
    let counts = &seen.counts;
    assert_eq!((counts.honoured(), counts.refused(Refusal::Queue), counts.requests(None)), (20, 1, 21));
    assert_eq!(Refusal::ALL.iter().map(|refusal| counts.refused(*refusal)).sum::<u64>(), 1);
    assert_eq!((counts.messages(Fabric::Shm, Protocol::Transfer), counts.messages(Fabric::Shm, Protocol::Put)), (20, 1));
    assert_eq!((counts.latency(Fabric::Shm, Protocol::Transfer).samples, observed.load(Ordering::Relaxed)), (2, 2));
    let [decision] = seen.decisions[..] else { panic!("{:?}", seen.decisions) };
    assert_eq!((decision.number, Some(decision.receipt)), (1, request.receipt()));
    assert_eq!((decision.receipt.len, decision.receipt.reason), (100_000, Reason::Queue { depth: 20, limit: 20 }));
    assert_eq!(decision.receipt.used, Mode { fabric: Fabric::Shm, link: 0, protocol: Protocol::Put });
    // The message is under way by DMA, and its request to send waits behind the others.
    let there = link(&seen, &b);
    assert_eq!((there.transfers, there.depth, there.messages, there.bytes_sent), (1, 21, 21, 20 * LEN as u64 + 100_000));
    assert_eq!(copies(&space)[0], seen);
    drop(request);
}

#[test]
fn a_message_that_has_to_wait_counts_once_and_one_that_is_not_taken_does_not() {
    let space = Space::heap();
    let [a, b] = pair(&space);
    let mode = ModeRequest::default().protocol(Protocol::Transfer);
    let peer = a.peer(b.id()).unwrap();
    let requests: Vec<_> = (0..600).map(|_| peer.start_send_as(1, vec![1; LEN], mode).unwrap()).collect();
    for _ in 0..10 {
        a.progress().unwrap();
    }
    let seen = a.monitor().unwrap();
    let there = link(&seen, &b);
    assert!(there.queued > 0 && there.depth + there.queued == 600, "{there:?}");
    // Those behind the first that waits were not decided about.
    let decided = seen.counts.honoured();
    assert!((u64::from(there.depth)..=u64::from(there.depth) + 1).contains(&decided), "{decided}: {there:?}");
    while requests.iter().any(|request| !request.test()) {
        while b.try_recv(Match::any(), &mut [0; LEN]).unwrap().is_some() {}
        a.progress().unwrap();
    }
    assert_eq!(a.monitor().unwrap().counts.messages(Fabric::Shm, Protocol::Transfer), 600);

    let c = builder(&space).id(2).policy(Limit(u32::MAX, Arc::default())).join().unwrap();
    let taken = (0..).take_while(|_| c.try_send(b.id(), 1, &[1; LEN]).is_ok()).count() as u64;
    assert!(matches!(c.try_send(b.id(), 1, &[1; LEN]), Err(Error::Full { .. })));
    let seen = c.monitor().unwrap();
    assert_eq!((seen.counts.honoured(), link(&seen, &b).messages), (taken, taken));
}

#[test]
fn what_cannot_be_done_counts_as_refused() {
    let space = Space::heap();
    let [a, b] = pair(&space);
    for _ in 0..3 {
        assert!(matches!(a.send_as(b.id(), 1, b"no", ModeRequest::fabric(Fabric::Udp)), Err(Error::Invalid { .. })));
    }
    let counts = a.monitor().unwrap().counts;
    assert_eq!((counts.requests(Some(Fabric::Udp)), counts.refused(Refusal::Unavailable), counts.honoured()), (3, 3, 0));
    assert_eq!(counts.messages(Fabric::Udp, Protocol::Transfer), 0);
}
