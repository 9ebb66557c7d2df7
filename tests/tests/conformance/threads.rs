//! Several threads on one node.

use doorbell::{Error, Match};
use doorbell_tests::in_place::read_by;
use doorbell_tests::patience::soon;
use doorbell_tests::world::World;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

const THREADS: u64 = 4;
const ROUNDS: u64 = 60;

pub fn threads_share_a_node(world: &World) {
    let [a, b] = world.nodes();
    let (a, b) = (&a, &b);
    thread::scope(|scope| {
        for tag in 0..THREADS {
            // Each pair of threads talks by a tag of its own, back and forth.
            scope.spawn(move || {
                let mut buf = [0; 64];
                for round in 0..ROUNDS {
                    a.send_until(b.id(), tag, &round.to_le_bytes(), soon()).unwrap();
                    let envelope = a.recv_until(Match::from(b.id()).tag(tag), &mut buf, soon()).unwrap();
                    assert_eq!((envelope.len, &buf[..8]), (8, &round.to_le_bytes()[..]));
                }
            });
            scope.spawn(move || {
                let mut buf = [0; 64];
                for round in 0..ROUNDS {
                    let envelope = b.recv_until(Match::any().tag(tag), &mut buf, soon()).unwrap();
                    assert_eq!((envelope.source, &buf[..8]), (a.id(), &round.to_le_bytes()[..]));
                    b.send_until(a.id(), tag, &buf[..8], soon()).unwrap();
                }
            });
        }
    });
    for node in [a, b] {
        let stats = node.stats().unwrap();
        assert_eq!((stats.messages_in, stats.messages_out, stats.pooled), (THREADS * ROUNDS, THREADS * ROUNDS, 0));
    }
}

pub fn threads_have_peers_to_one_target(world: &World) {
    const EACH: u64 = 300;
    let [target, sender] = world.nodes();
    let to = target.id();
    thread::scope(|scope| {
        for tag in 0..THREADS {
            let peer = sender.peer(to).unwrap();
            scope.spawn(move || {
                for number in 0..EACH {
                    // Some short, some in several packets, which nothing may come between.
                    let mut bytes = vec![tag as u8; if number % 16 == 15 { 6000 } else { 16 }];
                    bytes[..8].copy_from_slice(&number.to_le_bytes());
                    peer.send_until(tag, &bytes, soon()).unwrap();
                }
            });
        }
        let mut next = [0; THREADS as usize];
        let mut buf = vec![0; 6000];
        for sequence in 0..THREADS * EACH {
            let envelope = target.recv_until(Match::any(), &mut buf, soon()).unwrap();
            let next = &mut next[envelope.tag as usize];
            assert_eq!((envelope.sequence as u64, u64::from_le_bytes(buf[..8].try_into().unwrap())), (sequence, *next));
            assert!(buf[8..envelope.len].iter().all(|byte| *byte == envelope.tag as u8), "messages of two threads were mixed");
            *next += 1;
        }
    });
}

pub fn threads_wait_for_different_things_at_once(world: &World) {
    let [a, b] = world.nodes();
    let (a, b) = (&a, &b);
    thread::scope(|scope| {
        // All of them wait; then messages come in another order than that in which they began to wait.
        for tag in 0..THREADS {
            scope.spawn(move || b.recv_until(Match::any().tag(tag), &mut [0; 8], soon()).unwrap());
        }
        let waiting = scope.spawn(move || b.start_recv(Match::any().tag(100), [0; 8]).unwrap().wait_until(soon()).is_ok());
        let late = scope.spawn(move || b.recv_until(Match::any().tag(101), &mut [0; 8], doorbell_tests::patience::briefly()));
        for tag in (0..THREADS).rev() {
            thread::yield_now();
            a.send_until(b.id(), tag, b"", soon()).unwrap();
        }
        a.send_until(b.id(), 100, b"", soon()).unwrap();
        assert!(waiting.join().unwrap(), "a request is not served while other threads wait");
        assert!(matches!(late.join().unwrap(), Err(Error::Timeout { .. })));
    });
}

pub fn readers_and_receivers_share_a_node(world: &World) {
    let [a, b] = world.nodes();
    let (a, b) = (&a, &b);
    let read = AtomicU64::new(0);
    let read = &read;
    thread::scope(|scope| {
        for tag in 0..2 {
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let number = read_by(b, Match::any().tag(tag), soon(), |_, payload| payload.u64_at(0)).unwrap().unwrap();
                    read.fetch_add(number, Ordering::Relaxed);
                }
            });
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let mut buf = [0; 8];
                    b.recv_until(Match::any().tag(10 + tag), &mut buf, soon()).unwrap();
                    read.fetch_add(u64::from_le_bytes(buf), Ordering::Relaxed);
                }
            });
        }
        for number in 0..ROUNDS {
            for tag in [0, 10, 1, 11] {
                a.send_until(b.id(), tag, &number.to_le_bytes(), soon()).unwrap();
            }
        }
    });
    assert_eq!(read.load(Ordering::Relaxed), 4 * (0..ROUNDS).sum::<u64>());
}
