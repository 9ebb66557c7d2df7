//! A reactor's descriptor wakes an event loop, whether or not the network is built in.
#![cfg(feature = "stream")]

use doorbell::{Match, Node, Reactor, Space};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::{Duration, Instant};

/// So many messages that some arrive before the event loop sleeps, some while it does, and some in between.
const ROUNDS: u64 = 300;
/// A ring that is lost ends a sleep only after much longer than a wake-up takes.
const LATE: Duration = Duration::from_secs(20);

fn join(space: &Space) -> Node {
    Node::builder("reactor").space(space.clone()).join().unwrap()
}

/// Turns and sleeps until a message has arrived. Returns how often it slept.
fn receive(node: &Node, reactor: &mut Reactor, tag: u64) -> usize {
    let receive = node.start_recv(Match::any().tag(tag), vec![0; 8]).unwrap();
    let mut slept = 0;
    while !receive.test() {
        if reactor.turn() {
            continue;
        }
        if let Some(most) = reactor.arm().unwrap() {
            slept += 1;
            poll(&mut [PollFd::new(&reactor, PollFlags::IN)], Some(&Timespec::try_from(most).unwrap())).unwrap();
            reactor.disarm().unwrap();
        }
    }
    assert_eq!(receive.wait().buffer.unwrap()[..8], tag.to_le_bytes());
    slept
}

#[test]
fn no_message_is_left_to_a_sleeping_event_loop() {
    let space = Space::heap();
    let (a, b) = (join(&space), join(&space));
    let mut reactor = Reactor::new(&b).unwrap();
    let began = Instant::now();
    let mut slept = 0;
    for round in 0..ROUNDS {
        let pause = Duration::from_micros(round % 30 * 10);
        slept += std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(pause);
                a.send(b.id(), round, &round.to_le_bytes()).unwrap();
            });
            receive(&b, &mut reactor, round)
        });
    }
    assert!(slept > 0 && began.elapsed() < LATE, "{slept} sleeps in {:?}", began.elapsed());
    // A second reactor of the same node, after the first one is gone.
    drop(reactor);
    let mut reactor = Reactor::new(&b).unwrap();
    a.send(b.id(), ROUNDS, &ROUNDS.to_le_bytes()).unwrap();
    receive(&b, &mut reactor, ROUNDS);
}
