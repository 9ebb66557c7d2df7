//! The ends of a park: the time, a datagram, a ring of the bell, and room to send.

use super::{FOR_EVER, gather, local, loopback, park, pattern, run, with_each};
use doorbell_udp::Run;
use doorbell_udp::port::{Options, Park, Port, Room, Sent, Woken};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[test]
fn a_park_ends_with_the_time() {
    with_each(|open| {
        let mut port = open(loopback());
        for timeout in [Duration::ZERO, Duration::from_millis(5)] {
            let begun = Instant::now();
            assert_eq!(park(&mut *port, &AtomicU32::new(1), timeout), Woken { timeout: true, ..Woken::default() });
            assert!(begun.elapsed() >= timeout);
        }
    });
}

#[test]
fn a_park_ends_with_a_datagram_that_comes_before_or_later() {
    with_each(|open| {
        let (from, mut to) = (open(loopback()), open(loopback()));
        let bell = AtomicU32::new(1);
        for later in [false, true, true] {
            let (sender, peer) = (from.direct().clone(), local(&*to));
            let send = move || assert_eq!(sender.send(&run(peer, &mut [7; 50], 50)), Sent::Sent);
            let thread = if later {
                Some(std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(10));
                    send();
                }))
            } else {
                send();
                None
            };
            assert_eq!(park(&mut *to, &bell, FOR_EVER), Woken { datagram: true, ..Woken::default() });
            assert_eq!(gather(&mut *to, 1)[0].1, [7; 50]);
            if let Some(thread) = thread {
                thread.join().unwrap();
            }
        }
    });
}

/// Rings as a doorbell does.
fn ring(bell: &AtomicU32) {
    if bell.swap(0, Ordering::SeqCst) != 0 {
        wake(bell);
    }
}

fn wake(word: &AtomicU32) {
    // SAFETY: a live word, used as an address.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

#[test]
fn one_park_waits_for_all_sockets() {
    with_each(|open| {
        let addresses = || [1, 2, 3].map(|n| SocketAddr::from(([127, 0, 0, n], 0)));
        let mut to = open(Options { further: addresses()[1..].to_vec(), ..Options::new(addresses()[0]) });
        let from = open(loopback());
        let ends: Vec<_> = to.links().iter().map(|direct| direct.local()).collect();
        assert_eq!(ends.iter().map(SocketAddr::ip).collect::<Vec<_>>(), addresses().map(|address| address.ip()));
        assert_eq!(park(&mut *to, &AtomicU32::new(0), Duration::from_millis(5)), Woken { timeout: true, ..Woken::default() });
        for round in 0..20 {
            let at = round % ends.len();
            assert_eq!(from.direct().send(&run(ends[at], &mut pattern(30, round), 30)), Sent::Sent);
            assert!(park(&mut *to, &AtomicU32::new(0), FOR_EVER).datagram);
            // Each socket gets the datagrams sent to it, and answers from its own address.
            let mut room = Room::default();
            for (other, direct) in to.links().iter().enumerate() {
                let mut got = Vec::new();
                direct.receive(&mut room, 8, &mut |run| got.extend_from_slice(run.bytes)).unwrap();
                assert_eq!(got, if other == at { pattern(30, round) } else { Vec::new() });
            }
            assert_eq!(to.links()[at].send(&run(local(&*from), &mut [7; 5], 5)), Sent::Sent);
        }
        // A park that waits for room on no socket does not end because a socket has room.
        let bell = AtomicU32::new(0);
        let writable = Park { bell: &bell, expected: 0, timeout: Duration::from_millis(5), writable: true };
        loop {
            // It may end early for no reason.
            let woken = to.park(writable).unwrap();
            assert!(woken == Woken { timeout: woken.timeout, ..Woken::default() }, "{woken:?}");
            if woken.timeout {
                break;
            }
        }
    });
}

#[test]
fn a_park_ends_with_every_ring_of_the_bell() {
    with_each(|open| {
        let mut port = open(loopback());
        let (bell, round) = (Arc::new(AtomicU32::new(1)), Arc::new(AtomicU32::new(0)));
        let ringer = std::thread::spawn({
            let (bell, round) = (bell.clone(), round.clone());
            move || {
                for i in 1..=2000_u32 {
                    while round.load(Ordering::SeqCst) != i {
                        std::thread::yield_now();
                    }
                    // Before, while, and after the other thread falls asleep.
                    match i % 4 {
                        0 => std::thread::sleep(Duration::from_micros(60)),
                        1 => (0..i).for_each(|_| std::hint::spin_loop()),
                        _ => {}
                    }
                    ring(&bell);
                }
            }
        });
        for i in 1..=2000 {
            bell.store(1, Ordering::SeqCst);
            round.store(i, Ordering::SeqCst);
            // A park may end for no reason, and the next one follows. A park that ends with the time has lost a ring.
            while bell.load(Ordering::SeqCst) == 1 {
                let woken = port.park(Park { bell: &bell, expected: 1, timeout: FOR_EVER, writable: false }).unwrap();
                assert!(!woken.timeout, "the ring of round {i} was lost");
            }
        }
        ringer.join().unwrap();
        // An old ring does not ring again.
        bell.store(1, Ordering::SeqCst);
        let woken = park(&mut *port, &bell, Duration::from_millis(1));
        assert!(!woken.bell || !park(&mut *port, &bell, Duration::from_millis(20)).bell);
    });
}

#[test]
fn a_bell_that_rang_before_ends_a_park_at_once() {
    with_each(|open| {
        let mut port = open(loopback());
        let bell = AtomicU32::new(0);
        let woken = port.park(Park { bell: &bell, expected: 1, timeout: FOR_EVER, writable: false }).unwrap();
        assert_eq!(woken, Woken { bell: true, ..Woken::default() });
    });
}

#[test]
fn a_bell_in_shared_memory_is_heard_through_another_mapping() {
    with_each(|open| {
        let mut port = open(loopback());
        let file = rustix::fs::memfd_create("bell", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        let map = || {
            use std::os::fd::AsRawFd;
            let (read_write, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            // SAFETY: a new mapping of a page that the file has.
            let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, read_write, shared, file.as_raw_fd(), 0) };
            assert_ne!(page, libc::MAP_FAILED);
            // SAFETY: mapped, aligned, and never unmapped.
            unsafe { AtomicU32::from_ptr(page.cast()) }
        };
        let (here, there): (&AtomicU32, &AtomicU32) = (map(), map());
        assert_ne!(here.as_ptr(), there.as_ptr());
        for _ in 0..50 {
            here.store(1, Ordering::SeqCst);
            let ringer = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_micros(200));
                ring(there);
            });
            while here.load(Ordering::SeqCst) == 1 {
                assert!(!park(&mut *port, here, FOR_EVER).timeout);
            }
            ringer.join().unwrap();
        }
    });
}

/// A port that threads share, and counts of what came to it. Each thread parks for a while and then ends.
struct Parking {
    port: Mutex<Box<dyn Port>>,
    bell: AtomicU32,
    datagrams: AtomicU32,
    rings: AtomicU32,
}

impl Parking {
    fn is_over(&self) -> bool {
        self.datagrams.load(Ordering::SeqCst) == EVENTS && self.rings.load(Ordering::SeqCst) == EVENTS
    }

    /// Parks up to `times` times, and lets other threads have the port in between.
    fn park(&self, times: usize) {
        let mut room = Room::default();
        for _ in 0..times {
            let mut port = self.port.lock().unwrap();
            if self.is_over() {
                return;
            }
            let woken = port.park(Park { bell: &self.bell, expected: 1, timeout: FOR_EVER, writable: false }).unwrap();
            assert!(!woken.timeout, "slept over something: {woken:?}");
            let mut each = |run: Run<'_>| {
                // The sender waits until each datagram has arrived.
                assert_eq!(run.bytes, self.datagrams.load(Ordering::SeqCst).to_ne_bytes());
                self.datagrams.fetch_add(1, Ordering::SeqCst);
            };
            while port.direct().receive(&mut room, 4, &mut each).unwrap() > 0 {}
            if self.bell.load(Ordering::SeqCst) == 0 {
                self.bell.store(1, Ordering::SeqCst);
                self.rings.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    /// Makes an event happen `EVENTS` times: before, while, or after a thread falls asleep.
    fn happen(&self, count: &AtomicU32, event: impl Fn(u32)) {
        for i in 0..EVENTS {
            match i % 4 {
                0 => std::thread::sleep(Duration::from_micros(60)),
                1 => (0..i).for_each(|_| std::hint::spin_loop()),
                _ => {}
            }
            event(i);
            let deadline = Instant::now() + FOR_EVER;
            while count.load(Ordering::SeqCst) == i {
                assert!(Instant::now() < deadline, "event {i} was lost");
                std::thread::yield_now();
            }
        }
    }
}

const EVENTS: u32 = 1000;

#[test]
fn threads_park_one_after_the_other_and_miss_nothing() {
    with_each(|open| {
        let (from, port) = (open(loopback()).direct().clone(), open(loopback()));
        let peer = local(&*port);
        let helm =
            Parking { port: Mutex::new(port), bell: AtomicU32::new(1), datagrams: AtomicU32::new(0), rings: AtomicU32::new(0) };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                helm.happen(&helm.datagrams, |i| {
                    assert_eq!(from.send(&run(peer, &mut i.to_ne_bytes(), 4)), Sent::Sent);
                });
            });
            scope.spawn(|| helm.happen(&helm.rings, |_| ring(&helm.bell)));
            for thread in 0..4 {
                let helm = &helm;
                scope.spawn(move || {
                    // A thread that ended while another is parked took nothing with it.
                    while !helm.is_over() {
                        std::thread::scope(|scope| drop(scope.spawn(|| helm.park(10 * thread + 1))));
                    }
                });
            }
        });
    });
}

#[test]
fn a_park_ends_when_there_is_room_to_send() {
    with_each(|open| {
        let mut port = open(loopback());
        let bell = AtomicU32::new(1);
        let woken = port.park(Park { bell: &bell, expected: 1, timeout: FOR_EVER, writable: true }).unwrap();
        assert_eq!(woken, Woken { writable: true, ..Woken::default() });
        assert!(park(&mut *port, &bell, Duration::from_millis(5)).timeout);
    });
}

#[test]
fn what_another_thread_took_wakes_nobody() {
    with_each(|open| {
        let (from, mut to) = (open(loopback()), open(loopback()));
        let (bell, peer) = (AtomicU32::new(1), local(&*to));
        let mut room = Room::default();
        for parked in [false, true] {
            if parked {
                assert!(park(&mut *to, &bell, Duration::from_millis(1)).timeout);
            }
            assert_eq!(from.direct().send(&run(peer, &mut [9; 20], 20)), Sent::Sent);
            let direct = to.direct().clone();
            let taken = std::thread::scope(|scope| {
                scope
                    .spawn(|| direct.receive(&mut room, 8, &mut |run: Run<'_>| assert_eq!(run.bytes, [9; 20])).unwrap())
                    .join()
                    .unwrap()
            });
            assert_eq!(taken, 1, "the park kept it to itself, parked: {parked}");
            assert_eq!(park(&mut *to, &bell, Duration::from_millis(20)), Woken { timeout: true, ..Woken::default() });
        }
    });
}
