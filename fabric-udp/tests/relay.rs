//! The relay loses, doubles and reorders as it is told, and in the same way for the same seed.

use doorbell_udp::port::relay::{Badness, Relay, Relayed};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// Fewer than the buffer of a socket holds, because they are read at the end.
const COUNT: u64 = 200;

fn end() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket
}

/// Sends numbered datagrams through a relay. Returns the numbers that came out, in their order, and the counts of the relay.
fn through(badness: Badness, seed: u64) -> (Vec<Vec<u8>>, Relayed) {
    let (first, second) = (end(), end());
    let relay = Relay::start(None, second.local_addr().unwrap(), [badness, Badness::NONE], seed).unwrap();
    let mut found = Vec::new();
    let mut room = [0; 2000];
    for number in 0..COUNT {
        let mut datagram = [0; 100];
        datagram[..8].copy_from_slice(&number.to_le_bytes());
        first.send_to(&datagram, relay.front(0)).unwrap();
        // Never more under way than the buffers of the sockets hold.
        let deadline = Instant::now() + Duration::from_secs(20);
        while relay.relayed()[0].arrived <= number {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
    }
    let all = |relayed: Relayed| relayed.passed + relayed.lost + relayed.dropped == relayed.arrived + relayed.duplicated;
    let deadline = Instant::now() + Duration::from_secs(20);
    while !all(relay.relayed()[0]) {
        assert!(Instant::now() < deadline, "{relay:?}");
        std::thread::yield_now();
    }
    let relayed = relay.relayed()[0];
    for _ in 0..relayed.passed {
        let (bytes, from) = second.recv_from(&mut room).unwrap();
        assert_eq!(from, relay.front(1));
        found.push(room[..bytes].to_vec());
    }
    (found, relayed)
}

fn number(datagram: &[u8]) -> u64 {
    u64::from_le_bytes(*datagram.first_chunk().unwrap())
}

#[test]
fn a_good_network_changes_nothing_in_either_direction() {
    let (found, relayed) = through(Badness::NONE, 1);
    assert!(found.iter().map(|datagram| number(datagram)).eq(0..COUNT));
    assert_eq!(relayed, Relayed { arrived: COUNT, passed: COUNT, ..Relayed::default() });
    let (first, second) = (end(), end());
    let relay = Relay::start(Some(first.local_addr().unwrap()), second.local_addr().unwrap(), [Badness::NONE; 2], 1).unwrap();
    second.send_to(&[5], relay.front(1)).unwrap();
    let mut room = [0; 10];
    assert_eq!(first.recv_from(&mut room).unwrap(), (1, relay.front(0)));
}

#[test]
fn every_badness_happens_and_is_counted() {
    let badness = Badness { loss: 0.1, duplication: 0.1, reordering: 0.1, corruption: 0.1, ..Badness::NONE };
    let (found, relayed) = through(badness, 7);
    assert_eq!(found.len() as u64, relayed.passed);
    for (what, count) in [
        ("lost", relayed.lost),
        ("doubled", relayed.duplicated),
        ("reordered", relayed.reordered),
        ("damaged", relayed.corrupted),
    ] {
        assert!((5..60).contains(&count), "{count} of {COUNT} were {what}");
    }
    assert!(!found.is_sorted_by_key(|datagram| number(datagram)));
    // The same seed gives the same result.
    let (_, again) = through(badness, 7);
    assert_eq!(again, relayed);
    assert_ne!(through(badness, 8).1, relayed);
}

#[test]
fn a_narrow_network_takes_its_time_and_drops_what_it_cannot_hold() {
    let begun = Instant::now();
    let (_, relayed) = through(Badness { bandwidth: 1_000_000, ..Badness::NONE }, 1);
    assert_eq!(relayed.passed, COUNT);
    assert!(begun.elapsed() >= Duration::from_millis(COUNT * 100 / 1000));
    let (_, relayed) = through(Badness { bandwidth: 10_000, queue: 1000, ..Badness::NONE }, 1);
    assert!(relayed.dropped > 0 && relayed.passed >= 10, "{relayed:?}");
}

#[test]
fn a_black_hole_swallows_all_until_it_closes() {
    let (first, second) = (end(), end());
    let relay = Relay::start(None, second.local_addr().unwrap(), [Badness::NONE; 2], 1).unwrap();
    relay.black_hole(true);
    first.send_to(&[1], relay.front(0)).unwrap();
    while relay.relayed()[0].lost == 0 {
        std::thread::yield_now();
    }
    relay.black_hole(false);
    first.send_to(&[2], relay.front(0)).unwrap();
    let mut room = [0; 10];
    assert_eq!(second.recv(&mut room).unwrap(), 1);
    assert_eq!(room[0], 2);
}
