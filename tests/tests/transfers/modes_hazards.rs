//! Hazards of messages, puts and gets that go by several links of one pair of nodes: races when nodes come and go, and policies that
//! misbehave.

use doorbell::mode::{Decision, Fabric, Mode, Policy, Protocol, Question, Reason};
use doorbell::{Event, Match, Node, NodeId, Progress, Space, testing};
use doorbell_tests::LOOPBACK;
use doorbell_tests::pair::{Pair, mode, near, near_with, serving};
use doorbell_tests::patience::{eventually, running, soon, take_back, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Turns a node for a while without taking anything.
fn turn_for(node: &Node, ms: u64) {
    let end = Instant::now() + Duration::from_millis(ms);
    while Instant::now() < end {
        let _ = node.try_recv(Match::any().tag(u64::MAX), &mut []);
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn events(node: &Node) -> Vec<String> {
    std::iter::from_fn(|| node.try_event().unwrap()).map(|event: Event| format!("{event:?}")).collect()
}

/// Puts of one origin at once, each way to its own part of a region.
fn put_at_once(ways: [(&'static str, usize); 2]) {
    let pair = Pair::new();
    let [a, b] = pair.nodes();
    let region = b.region::<u32>(400_000).unwrap();
    let _server = serving(&b);
    let putters = ways.map(|(words, at)| {
        let (a, id, key) = (a.clone(), b.id(), region.key());
        running(words, move || {
            let peer = a.peer(id).unwrap();
            for round in 0..50 {
                peer.put_as(&vec![round as u32; 200_000], key.at(at), mode(words))
                    .unwrap_or_else(|error| panic!("{words} round {round}: {error:?}"));
            }
        })
    });
    putters.into_iter().for_each(|putter| putter.join());
    let mut all = vec![0; 400_000];
    region.read(0, &mut all).unwrap();
    assert!(all.iter().all(|word| *word == 49), "a part is not as the last round put it");
}

#[test]
fn puts_by_two_links_at_once() {
    put_at_once([("udp/0", 0), ("shm/transfer", 200_000)]);
}

/// A pull drops a put that is under way by another link.
#[test]
fn a_put_and_a_pull_at_once() {
    put_at_once([("udp/0", 0), ("shm/get", 200_000)]);
}

// try_send after a message by another link was given up in the middle.
#[test]
fn try_send_keeps_to_the_link_of_what_was_given_up() {
    let pair = Pair::new();
    let [a, b] = pair.join(pair.builder(0).progress(Progress::Inline), pair.builder(1).progress(Progress::Inline));
    let peer = a.peer(b.id()).unwrap();
    let request = peer.start_send_as(1, vec![1_u8; 32 << 20], mode("udp/0/transfer")).unwrap();
    assert!(!request.test());
    take_back(request).unwrap();
    a.try_send(b.id(), 2, b"short").unwrap();
    let mut buf = [0; 8];
    let envelope = b.recv_until(Match::any(), &mut buf, soon());
    assert!(envelope.as_ref().is_ok_and(|envelope| envelope.tag == 2), "{envelope:?} {:?}", events(&b));
    a.send(b.id(), 3, b"next").unwrap();
    turn_for(&b, 200);
    let envelope = b.recv_until(Match::any(), &mut buf, Instant::now() + Duration::from_secs(3));
    assert!(envelope.as_ref().is_ok_and(|envelope| envelope.tag == 3), "{envelope:?} {:?}", events(&b));
}

/// A message of a dead node that the pool has no room for.
fn refused_of_the_dead(by: &str) {
    let pair = Pair::new();
    let [a, b] = pair.join(pair.builder(0), pair.builder(1).progress(Progress::Inline).pool_bytes(0));
    let peer = a.peer(b.id()).unwrap();
    for tag in 0..5 {
        peer.send_as(tag, &[1; 100], mode(by)).unwrap();
    }
    // It arrives, and is refused.
    turn_for(&b, 100);
    testing::kill(&a);
    turn_for(&b, 300);
    expect_all(&b, a.id(), 5);
}

/// Checks that this many messages of a node come in order.
fn expect_all(node: &Node, from: NodeId, count: u64) {
    for tag in 0..count {
        let got = node.recv_until(Match::from(from), &mut [0; 4000], soon());
        assert!(got.as_ref().is_ok_and(|envelope| envelope.tag == tag), "message {tag}: {got:?}");
    }
}

#[test]
fn what_was_refused_of_a_dead_neighbour_is_delivered() {
    refused_of_the_dead("udp/0");
}

#[test]
fn what_was_refused_in_shared_memory_is_delivered() {
    refused_of_the_dead("shm");
}

// A node that leaves in good order while its neighbour stands still.
#[test]
fn what_arrived_of_one_that_left_is_delivered() {
    let pair = Pair::new();
    let [a, b] = pair.join(pair.builder(0), pair.builder(1).progress(Progress::Inline));
    let peer = a.peer(b.id()).unwrap();
    for tag in 0..40 {
        peer.send_as(tag, &[1; 3000], mode(if tag % 2 == 0 { "udp/0" } else { "udp/1" })).unwrap();
    }
    peer.send_as(40, &[1; 3000], mode("shm")).unwrap();
    drop(peer);
    let id = a.id();
    a.leave().unwrap();
    expect_all(&b, id, 41);
}

// The same without the fabric beside: by the network alone.
#[test]
fn what_arrived_of_one_that_left_is_delivered_over_the_network_alone() {
    let pair = Pair::new();
    let [a, b] = [0, 1].map(|id| {
        let builder = pair.builder(id).space(Space::heap());
        if id == 1 { builder.progress(Progress::Inline) } else { builder }
    });
    let [a, b] = pair.join(a, b);
    let peer = a.peer(b.id()).unwrap();
    for tag in 0..40 {
        peer.send_as(tag, &[1; 3000], mode(if tag % 2 == 0 { "udp/0" } else { "udp/1" })).unwrap();
    }
    drop(peer);
    let id = a.id();
    a.leave().unwrap();
    expect_all(&b, id, 40);
}

// A restart under the same id while what the former life sent is still there.
#[test]
fn a_restart_is_no_node_of_the_network() {
    let pair = Pair::new();
    let [a, b] = pair.join(pair.builder(0), pair.builder(1).progress(Progress::Inline).pool_bytes(0));
    let peer = a.peer(b.id()).unwrap();
    peer.send_as(0, &[1; 100], mode("shm")).unwrap();
    peer.send_as(1, &[1; 100], mode("udp/0")).unwrap();
    turn_for(&b, 100);
    testing::kill(&a);
    turn_for(&b, 300);
    eprintln!("{:?}", events(&b));
    let joining = pair.builder(0);
    let joined = std::thread::spawn(move || joining.join().unwrap());
    while !joined.is_finished() {
        turn_for(&b, 5);
    }
    let again = joined.join().unwrap();
    turn_for(&b, 500);
    let mut buf = [0; 200];
    for tag in 0..2 {
        let got = b.recv_until(Match::any(), &mut buf, Instant::now() + Duration::from_secs(3));
        assert!(got.as_ref().is_ok_and(|envelope| envelope.tag == tag), "message {tag}: {got:?} {:?}", events(&b));
    }
    turn_for(&b, 1500);
    let told = events(&b);
    let incarnation = format!("{:?}", again.incarnation());
    let of_it: Vec<_> = told.iter().filter(|event| event.contains(&incarnation)).collect();
    assert!(of_it.len() == 1, "{told:?}");
    b.send_until(again.id(), 5, b"hello", soon()).unwrap();
    again.recv_until(Match::any().tag(5), &mut buf, soon()).unwrap();
}

// A request is refused for want of a look at the link.
#[test]
fn a_request_is_honoured_while_another_thread_sends() {
    let pair = Pair::new();
    let [a, b] = pair.nodes();
    let far = Node::builder("modes").space(Space::heap()).id(5).listen(LOOPBACK);
    let far = far.connect(pair.addresses[0][0]).join().unwrap();
    until("the far one", || a.peer(far.id()).ok());
    let stop = Arc::new(AtomicBool::new(false));
    let (sender, id, stopped) = (a.clone(), far.id(), stop.clone());
    let flood = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            let _ = sender.send_until(id, 1, &[0; 3000], Instant::now() + Duration::from_millis(100));
        }
    });
    let (taker, stopped) = (far.clone(), stop.clone());
    let take = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            let _ = taker.recv_until(Match::any(), &mut [0; 4000], Instant::now() + Duration::from_millis(10));
        }
    });
    let peer = a.peer(b.id()).unwrap();
    let mut wrong = Vec::new();
    for tag in 0..20_000 {
        if let Err(error) = peer.send_as(tag, b"x", mode("udp/0")) {
            wrong.push(format!("{tag}: {error:?}"));
        }
        let _ = b.try_recv(Match::any(), &mut [0; 1]);
    }
    stop.store(true, Ordering::Relaxed);
    flood.join().unwrap();
    take.join().unwrap();
    assert!(wrong.is_empty(), "{} of 20000, as {}", wrong.len(), wrong[0]);
}

#[derive(Debug)]
struct Nonsense;

impl Policy for Nonsense {
    fn choose(&self, _: &mut Question<'_>) -> Decision {
        Decision::new(Mode { fabric: Fabric::Udp, link: 9, protocol: Protocol::Both }, Reason::Default)
    }
}

// A decision for what can't be done is not followed.
#[test]
fn nonsense_is_not_followed_for_puts() {
    let [a, b] = near_with(|id, builder| if id == 0 { builder.policy(Nonsense) } else { builder });
    let region = b.region::<u8>(10).unwrap();
    a.send(b.id(), 1, b"x").unwrap();
    a.put(&[1], region.key()).unwrap();
}

#[derive(Debug)]
struct Panics;

impl Policy for Panics {
    fn choose(&self, question: &mut Question<'_>) -> Decision {
        assert!(question.len != 13, "unlucky");
        question.honoured().unwrap()
    }
}

// A policy that panics in the poller thread.
#[test]
fn a_policy_that_panics_does_not_end_the_poller() {
    let [a, b] = near_with(|id, builder| if id == 0 { builder.policy(Panics).progress(Progress::Poller) } else { builder });
    let peer = a.peer(b.id()).unwrap();
    let request = peer.start_send(1, vec![0; 13]);
    std::thread::sleep(Duration::from_millis(200));
    drop(request);
    peer.send_until(2, b"x", Instant::now() + Duration::from_secs(5)).unwrap();
}

// The target fetches from memory that its origin has back.
#[test]
fn a_pull_touches_nothing_that_the_origin_has_back() {
    for round in 0..200 {
        let [a, b] = near();
        let region = b.region::<u8>(64 << 20).unwrap();
        let key = region.key();
        let server = serving(&b);
        let (putter, id) = (a.clone(), b.id());
        let put = std::thread::spawn(move || {
            // Large: freed, it is unmapped.
            let bytes = vec![1_u8; 64 << 20];
            let peer = putter.peer(id).unwrap();
            peer.put_as(&bytes, key, mode("shm/get")).map(drop)
        });
        // It has begun.
        eventually("the first bytes", || {
            let mut first = [0];
            region.read(0, &mut first).unwrap();
            first == [1]
        });
        std::thread::sleep(Duration::from_micros(round * 10));
        a.leave().unwrap();
        let _ = put.join().unwrap();
        drop(server);
    }
}

// One that broke the rules is not heard by the network either. (By a leave of the sender: see the report.)
#[test]
fn first_by_the_network_then_by_shared_memory_right_after_joining() {
    for round in 0..30 {
        let pair = Pair::new();
        let a = pair.builder(0).join().unwrap();
        let b = pair.builder(1).progress(Progress::Inline).join().unwrap();
        let peer = a.peer(b.id()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (receiver, stopped) = (b.clone(), stop.clone());
        let receiving = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let _ = receiver.recv_until(Match::any(), &mut [0; 8], Instant::now() + Duration::from_millis(1));
            }
            events(&receiver)
        });
        let end = Instant::now() + Duration::from_millis(1500);
        let mut sent = 0;
        while sent < 200 && Instant::now() < end {
            sent += u64::from(peer.send_as(1, b"x", mode("udp/0")).is_ok());
            peer.send_until(2, b"y", Instant::now() + Duration::from_secs(1)).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        let told = receiving.join().unwrap();
        assert!(sent > 0 && !told.iter().any(|event| event.contains("Damaged")), "round {round}: {sent} {told:?}");
    }
}

// The node that asked for the session knows that it is open before the other one does.
#[test]
fn first_by_the_network_then_by_shared_memory_to_one_that_looks_now_and_then() {
    let mut damaged = Vec::new();
    for round in 0..20 {
        let pair = Pair::new();
        // It seeks nobody, so the other one asks.
        let a = Node::builder("modes").space(pair.space.clone()).id(0).listen(pair.addresses[0][0]).join().unwrap();
        // Nobody answers: it goes on alone.
        let mut stopped = Some(testing::stop(&a));
        let b = pair.builder(1).join().unwrap();
        let (to, from) = (a.id(), b.clone());
        let sending = std::thread::spawn(move || {
            let peer = from.peer(to).unwrap();
            // That lane is one of those that are looked at first.
            peer.send(3, b"z").unwrap();
            let end = Instant::now() + Duration::from_secs(10);
            while peer.send_as(1, b"x", mode("udp/0")).is_err() {
                if Instant::now() > end {
                    return false;
                }
                std::hint::spin_loop();
            }
            peer.send_as(2, b"y", mode("shm")).is_ok()
        });
        let end = Instant::now() + Duration::from_secs(10);
        let mut turns = 0;
        while !sending.is_finished() && Instant::now() < end {
            drop(stopped.take());
            let pause = Instant::now() + Duration::from_micros(20 + 37 * (turns % 7));
            while Instant::now() < pause {
                std::hint::spin_loop();
            }
            stopped = Some(testing::stop(&a));
            std::thread::sleep(Duration::from_millis(3));
            turns += 1;
        }
        drop(stopped);
        turn_for(&a, 100);
        let told = events(&a);
        if told.iter().any(|event| event.contains("Damaged")) {
            let high = b.peer_with_priority(a.id(), doorbell::Priority::High).unwrap();
            let sent = high.send_as(42, b"again", mode("udp/0")).map(drop);
            let heard = a.recv_until(Match::any().tag(42), &mut [0; 8], Instant::now() + Duration::from_secs(2)).is_ok();
            damaged.push(format!("round {round}: {told:?}; sent afterwards: {sent:?}, and heard: {heard}"));
        }
        assert!(sending.join().unwrap());
    }
    assert!(damaged.is_empty(), "{damaged:?}");
}

// As 4, of so much that one look does not take it.
#[test]
fn all_that_arrived_of_one_that_left_is_delivered() {
    for alone in [false, true] {
        let pair = Pair::new();
        let [a, b] = [0, 1].map(|id| {
            let builder = pair.builder(id);
            let builder = if alone { builder.space(Space::heap()) } else { builder };
            if id == 1 { builder.progress(Progress::Inline) } else { builder }
        });
        let [a, b] = pair.join(a, b);
        let peer = a.peer(b.id()).unwrap();
        let stopped = testing::stop(&b);
        for tag in 0..5 {
            peer.send_as(tag, &[1; 30_000], mode("udp/0/transfer")).unwrap();
        }
        drop(peer);
        let id = a.id();
        let began = Instant::now();
        a.leave().unwrap();
        eprintln!("left within {:?}", began.elapsed());
        drop(stopped);
        for tag in 0..5 {
            let got = b.recv_until(Match::from(id), &mut [0; 40000], soon());
            assert!(got.as_ref().is_ok_and(|envelope| envelope.tag == tag), "network alone: {alone}; message {tag}: {got:?}");
        }
    }
}

// Nobody asked for any mode: the policy balances.
#[test]
fn puts_of_two_threads_under_the_policy_that_there_is() {
    let pair = Pair::new();
    let [a, b] = [0, 1].map(|id| {
        let builder = pair.builder(id).space(Space::heap());
        if id == 0 { builder.policy(doorbell::mode::Thresholds::new()) } else { builder }
    });
    let [a, b] = pair.join(a, b);
    let region = b.region::<u32>(400_000).unwrap();
    let _server = serving(&b);
    let threads: Vec<_> = [0, 200_000]
        .into_iter()
        .map(|at| {
            let (a, id, key) = (a.clone(), b.id(), region.key());
            std::thread::spawn(move || {
                let peer = a.peer(id).unwrap();
                for round in 0..50 {
                    if let Err(error) = peer.put(&vec![round as u32; 200_000], key.at(at)) {
                        return Err(format!("{at} round {round}: {error:?}"));
                    }
                }
                Ok(())
            })
        })
        .collect();
    let end = Instant::now() + Duration::from_secs(20);
    while threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    let hung = threads.iter().filter(|thread| !thread.is_finished()).count();
    let results: Vec<_> = threads.into_iter().filter(|t| t.is_finished()).map(|t| t.join().unwrap()).collect();
    assert!(hung == 0 && results.iter().all(Result::is_ok), "{hung} hang; {results:?}; b: {:?}", events(&b));
}

// A put by a policy while the lane is still that of the life before.
#[test]
fn a_put_under_a_policy_waits_for_no_lane() {
    for policed in [false, true] {
        let space = Space::heap();
        let b = Node::builder("busy").space(space.clone()).id(1).progress(Progress::Inline).pool_bytes(0).join().unwrap();
        let region = b.region::<u8>(10).unwrap();
        let builder = || Node::builder("busy").space(space.clone()).id(0);
        let a = builder().join().unwrap();
        a.peer(1.into()).unwrap().send(1, b"unread").unwrap();
        a.peer_with_priority(1.into(), doorbell::Priority::High).unwrap().send(1, b"unread").unwrap();
        testing::kill(&a);
        let again = if policed { builder().policy(doorbell::mode::Thresholds::new()) } else { builder() }.join().unwrap();
        let put = again.put(&[1], region.key());
        assert!(put.is_ok(), "policed: {policed}; {put:?}");
    }
}

// The next life uses a lane that the former never did, while something of the former waits for what was lost.
#[test]
fn the_next_life_does_not_keep_the_former_from_its_end() {
    for early in [false, true] {
        let pair = Pair::new();
        let [a, b] = pair.nodes();
        let peer = a.peer(b.id()).unwrap();
        let stopped = testing::stop(&b);
        let sent = (0..5).filter(|tag| peer.send_as(*tag, &[1; 30_000], mode("udp/0/transfer")).is_ok()).count();
        eprintln!("{sent} sent");
        let mut last = None;
        eventually("the second link", || {
            last = peer.start_send_as(100, vec![1; 10], mode("udp/1")).ok();
            last.is_some()
        });
        std::thread::sleep(Duration::from_millis(50));
        testing::kill(&a);
        let again = Node::builder("modes").space(pair.space.clone()).id(0).join().unwrap();
        let high = again.peer_with_priority(b.id(), doorbell::Priority::High).unwrap();
        if early {
            high.send(7, b"first").unwrap();
        }
        drop(stopped);
        turn_for(&b, 1000);
        if !early {
            high.send(7, b"first").unwrap();
        }
        let got = b.recv_until(Match::any().tag(7), &mut [0; 8], Instant::now() + Duration::from_secs(10));
        let mut others = Vec::new();
        while let Ok(Some(envelope)) = b.try_recv(Match::any(), &mut [0; 40_000]) {
            others.push(envelope.tag);
        }
        eprintln!("{others:?} {:?}", events(&b));
        assert!(got.is_ok(), "early: {early}; {got:?}");
    }
}
