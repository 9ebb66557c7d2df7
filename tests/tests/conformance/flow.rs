//! Too much at once: lanes and pools that are full, and nodes that send before they receive.

use doorbell::{Error, Match, Node, NodeId, Peer, Progress};
use doorbell_tests::in_place::read_by;
use doorbell_tests::patience::{briefly, eventually, finishes, running, soon, take_back, until};
use doorbell_tests::pattern;
use doorbell_tests::world::{BLOCKING, Ground, World};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A message of 1 KiB.
fn numbered(number: u64) -> [u8; 1024] {
    let mut bytes = [0; 1024];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Sends numbered messages of 1 KiB until none has been taken for a while, and returns how many were.
fn fill(peer: &Peer) -> u64 {
    let (mut sent, mut refused) = (0_u64, 0);
    // Faulty lanes are full for no reason now and then, and pollers make room; a lane that is full in earnest stays so.
    while refused < 200 {
        match peer.try_send(1, &numbered(sent)) {
            Ok(()) => (sent, refused) = (sent + 1, 0),
            Err(Error::Full { node }) => {
                assert_eq!(node, peer.id());
                refused += 1;
                std::thread::yield_now();
            }
            Err(error) => panic!("{error}"),
        }
        assert!(sent < 100_000, "a node that does not receive takes everything");
    }
    sent
}

/// Receives numbered messages and checks the numbers.
#[track_caller]
fn drain(node: &Node, numbers: std::ops::Range<u64>) {
    let mut buf = [0; 1024];
    for number in numbers {
        let envelope = node.recv_until(Match::any().tag(1), &mut buf, soon()).unwrap();
        assert_eq!((u64::from_le_bytes(buf[..8].try_into().unwrap()), envelope.sequence as u64), (number, number));
    }
}

/// The most messages of 1 KiB that a lane of default size and a pool of this size hold.
fn most(world: &World, pool: usize) -> u64 {
    let lane = if world.is_networked() { 1024 + 256 } else { 256 };
    // Two links of a network, beside shared memory.
    let lanes = if world.ground == Ground::Lots { 2 } else { 1 };
    lanes * lane + (pool / 1024) as u64
}

pub fn full_is_an_ordinary_result(world: &World) {
    let [a, b] = world.nodes_with_pool(32 << 10);
    let peer = a.peer(b.id()).unwrap();
    let mut first = fill(&peer);
    // A poller that had no processor for a while may still make room.
    let late = until("a send that runs out of time", || {
        let result = peer.send_until(1, &numbered(first), briefly());
        first += u64::from(result.is_ok());
        result.err()
    });
    assert!(matches!(late, Error::Timeout { operation: "send", node } if node == Some(b.id())), "{late:?}");
    assert!((90..=most(world, 32 << 10)).contains(&first), "{first} messages of 1 KiB fit a lane and a pool of 32 KiB");
    let full = peer.try_send(1, &[0; 1024]).unwrap_err();
    assert!(full.is_retryable() && full.certainty() == doorbell::Certainty::DidNotHappen, "{full:?}");
    drain(&b, 0..first);
    // Nothing was lost, nothing else arrived, and it goes on.
    assert_eq!(b.try_recv(Match::any(), &mut [0; 1024]).unwrap(), None);
    for number in first..first + 10 {
        until("a try that succeeds", || peer.try_send(1, &numbered(number)).ok());
    }
    drain(&b, first..first + 10);
}

pub fn a_full_pool_holds_senders_back_and_lets_them_go_on(world: &World) {
    const POOL: usize = 64 << 10;
    let [target, one, two] = world.nodes_with_pool(POOL);
    let peers = [one.peer(target.id()).unwrap(), two.peer(target.id()).unwrap()];
    // The target waits for something else and so takes what comes meanwhile into its pool.
    let mut sent = [0, 0];
    for _ in 0..3 {
        let late = target.recv_until(Match::any().tag(2), &mut [0; 8], briefly());
        assert!(matches!(late, Err(Error::Timeout { .. })));
        for (peer, sent) in peers.iter().zip(&mut sent) {
            for _ in 0..200 {
                *sent += u64::from(peer.try_send(1, &numbered(*sent)).is_ok());
            }
        }
    }
    let stats = target.stats().unwrap();
    assert!(stats.pooled_bytes_most <= POOL, "the pool of {POOL} bytes held {}", stats.pooled_bytes_most);
    assert!(stats.pooled > 30, "the pool was used: {stats:?}");
    assert!(sent.iter().sum::<u64>() <= 2 * most(world, POOL), "{sent:?} messages of 1 KiB were taken");
    // A message that a receive waits for gets through if its lane has room; the others when the pool has.
    let mut buf = [0; 1024];
    for (sender, sent) in [&one, &two].into_iter().zip(sent) {
        for number in 0..sent {
            let envelope = target.recv_until(Match::from(sender.id()), &mut buf, soon()).unwrap();
            assert_eq!((u64::from_le_bytes(buf[..8].try_into().unwrap()), envelope.sequence as u64), (number, number));
        }
        sender.send_until(target.id(), 2, b"on", soon()).unwrap();
        assert_eq!(target.recv_until(Match::any().tag(2), &mut buf, soon()).unwrap().source, sender.id());
    }
}

pub fn a_send_waits_for_room(world: &World) {
    let [a, b] = world.nodes_with_pool(32 << 10);
    let peer = a.peer(b.id()).unwrap();
    let first = fill(&peer);
    let (node, to) = (a.clone(), b.id());
    let sending = running("a send to a full lane", move || {
        for number in first..first + 300 {
            node.send(to, 1, &numbered(number)).unwrap();
        }
    });
    let sending = sending.started();
    drain(&b, 0..first + 300);
    sending.join();
}

/// Sends messages until `bytes` bytes are sent, or until `Full`. Returns the number of messages.
fn send_much(node: &Node, to: NodeId, len: usize, bytes: usize) -> (u64, bool) {
    let message = pattern::bytes(len, node.id().0 as u64);
    for number in 0..(bytes / len) as u64 {
        match node.send(to, number, &message) {
            Ok(()) => {}
            Err(Error::Full { node }) => {
                assert_eq!(node, to);
                return (number, true);
            }
            Err(error) => panic!("{error}"),
        }
    }
    ((bytes / len) as u64, false)
}

/// Every node sends `bytes` to the next before any receives; then all receive. Returns whether each got `Full`.
fn all_send_first<const N: usize>(nodes: [Node; N], len: usize, bytes: usize) -> [bool; N] {
    let ready = Arc::new(AtomicUsize::new(0));
    let counts: Vec<_> = nodes
        .iter()
        .map(|node| {
            let (node, to, ready) = (node.clone(), nodes[(node.id().index() + 1) % N].id(), ready.clone());
            running("a node that sends before it receives", move || {
                let count = send_much(&node, to, len, bytes);
                // A node that has sent all turns its engine now and then.
                ready.fetch_add(1, Ordering::SeqCst);
                eventually("all have sent or got Full", || {
                    node.progress().unwrap();
                    ready.load(Ordering::SeqCst) == N
                });
                count
            })
        })
        .collect();
    let counts: Vec<_> = counts.into_iter().map(|running| running.join()).collect();
    for (node, (sent, _)) in nodes.iter().zip(&counts) {
        let to = &nodes[(node.id().index() + 1) % N];
        let mut buf = vec![0; len];
        for number in 0..*sent {
            let envelope = to.recv_until(Match::from(node.id()), &mut buf, soon()).unwrap();
            assert_eq!((envelope.tag, envelope.sequence as u64, envelope.len), (number, number, len));
            pattern::check(&buf, node.id().0 as u64);
        }
        // A refused message is not delivered, and the next one is.
        to.send_until(to.id(), 1, b"to myself", soon()).unwrap();
        assert_eq!(to.recv_until(Match::any(), &mut buf, soon()).unwrap().source, to.id());
        // It refuses others itself, and may not have heard yet that there is room again.
        until("room for what comes next", || match node.send_until(to.id(), 2, b"next", soon()) {
            Err(Error::Full { .. }) => None,
            sent => {
                sent.unwrap();
                Some(())
            }
        });
        assert_eq!(to.recv_until(Match::any(), &mut buf, soon()).unwrap().source, node.id());
    }
    std::array::from_fn(|index| counts[index].1)
}

/// Less than a gigabyte unless the environment asks for it, to save time. Either is far more than pools of 1 MiB hold.
fn much() -> usize {
    (doorbell_tests::number("DOORBELL_BULK_MIB", 64) as usize) << 20
}

pub fn two_nodes_that_send_before_they_receive_get_full(world: &World) {
    for len in [1000, 60_000] {
        let full = all_send_first(world.nodes_with_pool::<2>(1 << 20), len, much());
        assert_eq!(full, [true; 2]);
    }
}

pub fn two_nodes_that_send_before_they_receive_finish_if_there_is_room(world: &World) {
    let full = all_send_first(world.nodes_with_pool::<2>(8 << 20), 100_000, 4 << 20);
    assert_eq!(full, [false; 2]);
}

pub fn one_message_larger_than_the_pools_of_two_nodes(world: &World) {
    const PENDING: usize = 0;
    const SENT: usize = 1;
    const FULL: usize = 2;
    let nodes = world.nodes_with_pool::<2>(1 << 20);
    let len = much().min(8 << 20);
    let ends: Arc<[AtomicUsize; 2]> = Arc::default();
    let exchange = |me: usize| {
        let (node, other, ends) = (nodes[me].clone(), nodes[1 - me].id(), ends.clone());
        running("a node that sends before it receives", move || {
            let end = match node.send(other, me as u64, &pattern::bytes(len, me as u64)) {
                Ok(()) => SENT,
                Err(Error::Full { .. }) => FULL,
                Err(error) => panic!("{error}"),
            };
            ends[me].store(end, Ordering::SeqCst);
            // Only then it receives what the other sends, if the other does.
            let receive = node.start_recv(Match::from(other), vec![0; len]).unwrap();
            eventually("the other has sent or got Full", || {
                receive.test();
                ends[1 - me].load(Ordering::SeqCst) != PENDING
            });
            if ends[1 - me].load(Ordering::SeqCst) == SENT {
                let Ok(completion) = receive.wait_until(soon()) else { panic!("a message that was sent does not arrive") };
                assert!(completion.result.is_ok(), "{:?}", completion.result);
                pattern::check(&completion.buffer.unwrap(), 1 - me as u64);
            } else {
                assert!(take_back(receive).is_ok(), "a message that was refused arrived");
            }
            end
        })
    };
    let ends = [exchange(0), exchange(1)].map(|running| running.join());
    assert!(ends.contains(&FULL), "two messages of {len} bytes fit pools of 1 MiB");
}

pub fn three_in_a_ring_that_send_before_they_receive_get_full(world: &World) {
    let full = all_send_first(world.nodes_with_pool::<3>(1 << 20), 20_000, much());
    assert_eq!(full, [true; 3]);
}

pub fn a_flood_to_oneself_gets_full(world: &World) {
    let node = world.builder(0).pool_bytes(256 << 10).join().unwrap();
    let sender = node.clone();
    let (sent, full) = finishes("a node that sends to itself", move || send_much(&sender, sender.id(), 10_000, 8 << 20));
    assert!(full);
    let mut buf = vec![0; 10_000];
    for number in 0..sent {
        assert_eq!(node.recv_until(Match::any(), &mut buf, soon()).unwrap().tag, number);
    }
    assert_eq!(node.try_recv(Match::any(), &mut buf).unwrap(), None);
}

pub fn a_send_that_ran_out_of_time_is_not_delivered(world: &World) {
    // The pools take nothing, so a long message stays in the lane with its first part.
    let [a, b] = world.narrow_nodes();
    let error = a.send_until(b.id(), 1, &vec![1; BLOCKING], briefly()).unwrap_err();
    assert!(matches!(error, Error::Timeout { operation: "send", node } if node == Some(b.id())), "{error:?}");
    assert_eq!(error.certainty(), doorbell::Certainty::DidNotHappen);
    a.send_until(b.id(), 2, b"after", soon()).unwrap();
    let envelope = b.recv_until(Match::any(), &mut [0; 8], soon()).unwrap();
    assert_eq!((envelope.tag, envelope.sequence), (2, 0));
    if world.progress == Progress::Inline {
        // Nobody else turns the engines, so there is nothing to wait for.
        return;
    }
    let late = b.recv_until(Match::any(), &mut vec![0; BLOCKING], std::time::Instant::now() + Duration::from_millis(5));
    assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
}

pub fn a_transfer_that_ran_out_of_time_is_not_delivered(world: &World) {
    // The pools take nothing, so nobody answers.
    let [a, b] = world.nodes_with_pool(1 << 10);
    let error = a.send_until(b.id(), 1, &vec![1; 1 << 20], briefly()).unwrap_err();
    assert!(matches!(error, Error::Timeout { operation: "send", node } if node == Some(b.id())), "{error:?}");
    assert_eq!(error.certainty(), doorbell::Certainty::DidNotHappen);
    a.send_until(b.id(), 2, b"after", soon()).unwrap();
    let envelope = b.recv_until(Match::any(), &mut [0; 8], soon()).unwrap();
    // Its place in the order is used up.
    assert_eq!((envelope.tag, envelope.sequence), (2, 1));
    if world.progress == Progress::Inline {
        // Nobody else turns the engines, so there is nothing to wait for.
        return;
    }
    let late = b.recv_until(Match::any(), &mut vec![0; 1 << 20], std::time::Instant::now() + Duration::from_millis(5));
    assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
}

pub fn a_message_larger_than_the_pool_is_received_in_every_form(world: &World) {
    const LEN: usize = 300_000;
    let [a, b] = world.nodes_with_pool(32 << 10);
    let (from, to) = (a.id(), b.id());
    let sending = running("sends of messages larger than the pool", move || {
        for tag in 0..4 {
            a.send(to, tag, &pattern::bytes(LEN, tag)).unwrap();
        }
        a
    });
    let mut buf = vec![0; LEN];
    assert_eq!(b.recv_until(Match::any(), &mut buf, soon()).unwrap().tag, 0);
    pattern::check(&buf, 0);
    let bytes = read_by(&b, Match::from(from), soon(), |_, payload| payload.to_vec()).unwrap();
    pattern::check(&bytes, 1);
    let completion = b.start_recv(Match::any(), vec![0; LEN]).unwrap().wait_until(soon());
    let Ok(completion) = completion else { panic!("a receive of a message larger than the pool does not end") };
    pattern::check(&completion.buffer.unwrap(), 2);
    let envelope = until("a try that finds", || b.try_recv(Match::any(), &mut buf).unwrap());
    assert_eq!((envelope.tag, envelope.len), (3, LEN));
    pattern::check(&buf, 3);
    drop(sending.join());
}

pub fn a_busy_lane_does_not_keep_others_waiting(world: &World) {
    let [target, busy, other] = world.nodes();
    let to = target.id();
    let stop = Arc::new(AtomicUsize::new(0));
    let flood = {
        let stop = stop.clone();
        running("a flood", move || {
            while stop.load(Ordering::Relaxed) == 0 {
                let _ = busy.try_send(to, 1, b"");
            }
        })
    };
    let mut buf = [0; 8];
    for _ in 0..1000 {
        assert_eq!(target.recv_until(Match::any(), &mut buf, soon()).unwrap().tag, 1);
    }
    other.send_until(to, 2, b"also", soon()).unwrap();
    // It comes after some of the flood, but not after all of it.
    let found = (0..1_000_000).find(|_| target.recv_until(Match::any(), &mut buf, soon()).unwrap().tag == 2);
    stop.store(1, Ordering::Relaxed);
    flood.join();
    assert!(found.is_some(), "a million messages of a busy lane came before the one of another");
}
