//! What every port does, whatever it is made of: one list, run over all of them, on real sockets.

use doorbell_udp::Run;
use doorbell_udp::port::{Kind, OpenError, Options, Park, Port, Room, Sent, Statistics, TroubleKind, Woken, open};
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longer than anything here takes. Whatever ends by it has failed, and says so.
const FOR_EVER: Duration = Duration::from_secs(20);

fn loopback() -> Options {
    Options::new("127.0.0.1:0".parse().unwrap())
}

/// Runs a test with each kind of port.
fn with_each(test: impl Fn(&dyn Fn(Options) -> Box<dyn Port>)) {
    for kind in [Kind::Uring, Kind::Plain] {
        eprintln!("with {kind}");
        test(&|mut options| {
            options.kind = kind;
            let port = open(&options).unwrap();
            assert_eq!(port.kind(), kind);
            port
        });
    }
}

fn local(port: &dyn Port) -> SocketAddr {
    port.direct().local()
}

/// Receives until so many datagrams came.
fn gather(port: &mut dyn Port, count: usize) -> Vec<(SocketAddr, Vec<u8>)> {
    let mut found = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(20);
    while found.len() < count {
        assert!(Instant::now() < deadline, "only {} of {count} datagrams came: {:?}", found.len(), port.direct().statistics());
        port.receive(4, &mut |mut run| {
            let peer = run.peer;
            found.extend(run.datagrams().map(|datagram| (peer, datagram.to_vec())));
        })
        .unwrap();
    }
    found
}

fn drain(port: &mut dyn Port) {
    while port.receive(64, &mut |_| {}).unwrap() > 0 {}
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

fn run(peer: SocketAddr, bytes: &mut [u8], segment: usize) -> Run<'_> {
    Run { peer, bytes, segment }
}

fn park(port: &mut dyn Port, bell: &AtomicU32, timeout: Duration) -> Woken {
    port.park(Park { bell, expected: bell.load(Ordering::SeqCst), timeout, writable: false }).unwrap()
}

#[test]
fn runs_arrive_intact_in_every_gear() {
    with_each(|open| {
        for offload in [true, false] {
            let options = || Options { cut: offload, gather: offload, ..loopback() };
            let (from, mut to) = (open(options()), open(options()));
            let peer = local(&*to);
            for parked in [false, true] {
                for (number, (len, segment)) in [
                    (1, 1),
                    (8, 100),
                    (64, 64),
                    (1400 * 40, 1400),
                    (1400 * 40 - 1, 1400),
                    (1400 * 40 + 1, 1400),
                    (64 * 64, 64),
                    (60_000, 60_000),
                ]
                .into_iter()
                .enumerate()
                {
                    let bytes = pattern(len, number);
                    assert_eq!(from.direct().send(&run(peer, &mut bytes.clone(), segment)), Sent::Sent);
                    if parked {
                        assert!(park(&mut *to, &AtomicU32::new(0), FOR_EVER).datagram);
                    }
                    let found = gather(&mut *to, len.div_ceil(segment));
                    assert!(found.iter().all(|(peer, _)| *peer == local(&*from)));
                    let found: Vec<_> = found.into_iter().map(|(_, datagram)| datagram).collect();
                    let sent: Vec<_> = bytes.chunks(segment).map(<[u8]>::to_vec).collect();
                    assert_eq!(found, sent, "{len} bytes in datagrams of {segment}, parked: {parked}");
                }
            }
            let (sent, received) = (from.direct().statistics().sent, to.direct().statistics().received);
            assert_eq!((sent.datagrams, sent.bytes), (received.datagrams, received.bytes));
            assert_eq!(offload, sent.calls < sent.datagrams, "{sent:?}");
            assert!(!offload || received.calls < received.datagrams / 4, "{received:?}");
        }
    });
}

#[test]
fn a_run_longer_than_a_call_takes_goes_in_several() {
    with_each(|open| {
        let (from, mut to) = (open(loopback()), open(loopback()));
        for (len, segment) in [(200 * 100, 100), (200_001, 1400), (200_000, 50_000)] {
            let bytes = pattern(len, segment);
            assert_eq!(from.direct().send(&run(local(&*to), &mut bytes.clone(), segment)), Sent::Sent);
            let found = gather(&mut *to, len.div_ceil(segment));
            assert!(found.iter().map(|(_, datagram)| &datagram[..]).eq(bytes.chunks(segment)));
        }
    });
}

#[test]
fn several_runs_go_together() {
    with_each(|open| {
        let (from, mut to, mut other) = (open(loopback()), open(loopback()), open(loopback()));
        let peers = [local(&*to), local(&*other)];
        let mut bytes: Vec<_> = (0..41).map(|i| pattern(100 + 50 * i, i)).collect();
        let runs: Vec<_> = bytes.iter_mut().enumerate().map(|(i, bytes)| run(peers[i % 2], bytes, 400)).collect();
        let mut told = Vec::new();
        from.direct().send_all(&runs, &mut |i, sent| {
            assert_eq!(sent, Sent::Sent);
            told.push(i);
        });
        assert_eq!(told, (0..41).collect::<Vec<_>>());
        for (port, parity) in [(&mut to, 0), (&mut other, 1)] {
            let sent: Vec<_> = (parity..41)
                .step_by(2)
                .flat_map(|i| pattern(100 + 50 * i, i).chunks(400).map(<[u8]>::to_vec).collect::<Vec<_>>())
                .collect();
            let found: Vec<_> = gather(&mut **port, sent.len()).into_iter().map(|(_, datagram)| datagram).collect();
            assert_eq!(found, sent);
        }
        let sent = from.direct().statistics().sent;
        assert!(sent.calls < 41, "{} calls for 41 runs", sent.calls);
    });
}

#[test]
fn a_lone_datagram_takes_one_call_and_many_take_few() {
    with_each(|open| {
        let (from, to) = (open(loopback()), open(loopback()));
        let send = || assert_eq!(from.direct().send(&run(local(&*to), &mut [7; 10], 10)), Sent::Sent);
        let mut room = Room::new(8);
        let mut look = |budget| to.direct().receive(&mut room, budget, &mut |_| ()).unwrap();
        for _ in 0..3 {
            assert_eq!(look(100), 0);
            (0..161).for_each(|_| send());
            let before = to.direct().statistics().received.calls;
            // Nothing was asked that could have delayed the first.
            assert_eq!([look(100), look(100), look(100), look(100)], [1, 100, 60, 0]);
            let calls = to.direct().statistics().received.calls - before;
            assert!(calls < 161 / 4, "{calls} calls");
        }
    });
}

#[test]
fn more_than_there_is_room_for_is_not_lost() {
    with_each(|open| {
        let (from, mut to) = (open(loopback()), open(loopback()));
        for round in 0..5 {
            for i in 0..200 {
                assert_eq!(from.direct().send(&run(local(&*to), &mut pattern(30, i + round), 30)), Sent::Sent);
            }
            let found = gather(&mut *to, 200);
            assert!(found.into_iter().enumerate().all(|(i, (_, datagram))| datagram == pattern(30, i + round)));
        }
        // And in the cold.
        for i in 0..200 {
            assert_eq!(from.direct().send(&run(local(&*to), &mut pattern(30, i), 30)), Sent::Sent);
        }
        assert!(park(&mut *to, &AtomicU32::new(0), FOR_EVER).datagram);
        assert_eq!(gather(&mut *to, 200).len(), 200);
        assert_eq!(to.direct().statistics().overflowed, 0);
    });
}

#[test]
fn a_port_nobody_has_is_told_and_harms_nobody() {
    with_each(|open| {
        let (mut from, mut to) = (open(loopback()), open(loopback()));
        let nobody = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        for parked in [false, true] {
            for _ in 0..3 {
                assert_eq!(from.direct().send(&run(nobody, &mut [1; 3000], 1000)), Sent::Sent);
                // The news of the first is not taken for the fate of the second.
                assert_eq!(from.direct().send(&run(local(&*to), &mut [2; 10], 10)), Sent::Sent);
                gather(&mut *to, 1);
            }
            if parked {
                assert!(park(&mut *from, &AtomicU32::new(0), FOR_EVER).datagram);
            }
            drain(&mut *from);
            let trouble = from.direct().trouble().expect("the kernel says that the port is closed");
            assert_eq!((trouble.peer, trouble.kind), (nobody, TroubleKind::Refused));
            while from.direct().trouble().is_some() {}
            // Still alive, in both directions.
            assert_eq!(to.direct().send(&run(local(&*from), &mut [3; 10], 10)), Sent::Sent);
            gather(&mut *from, 1);
        }
        assert_eq!(park(&mut *from, &AtomicU32::new(0), Duration::from_millis(20)), Woken { timeout: true, ..Woken::default() });
    });
}

#[test]
fn what_is_too_long_is_told() {
    with_each(|open| {
        let (mut from, mut to) = (open(loopback()), open(loopback()));
        let peer = local(&*to);
        let sent = from.direct().send(&run(peer, &mut vec![0; 65_508], 65_508));
        assert!(
            matches!(sent, Sent::Failed { gone: 0, trouble } if trouble.peer == peer && matches!(trouble.kind, TroubleKind::TooLong { .. })),
            "{sent:?}"
        );
        let mut long = vec![0; 70_000];
        let mut short = [[1; 100]; 2];
        let [first, last] = &mut short;
        let runs = [run(peer, first, 100), run(peer, &mut long, 70_000), run(peer, last, 100)];
        let mut told = Vec::new();
        from.direct().send_all(&runs, &mut |i, sent| told.push((i, matches!(sent, Sent::Sent))));
        assert_eq!(told, [(0, true), (1, false), (2, true)]);
        gather(&mut *to, 2);
        while from.direct().trouble().is_some() {}
        assert_eq!(park(&mut *from, &AtomicU32::new(0), Duration::from_millis(20)), Woken { timeout: true, ..Woken::default() });
    });
}

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

/// As a doorbell does it.
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
            // Each socket has what was sent to it, and answers from its own address.
            let mut room = Room::new(1);
            for (other, direct) in to.links().iter().enumerate() {
                let mut got = Vec::new();
                direct.receive(&mut room, 8, &mut |run| got.extend_from_slice(run.bytes)).unwrap();
                assert_eq!(got, if other == at { pattern(30, round) } else { Vec::new() });
            }
            assert_eq!(to.links()[at].send(&run(local(&*from), &mut [7; 5], 5)), Sent::Sent);
        }
        // What waits for room on no socket is not woken by one that has some.
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
                    // Before, about when, and after the other one is asleep.
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
            // One that ends for no reason is followed by another; one that ends with the time lost a ring.
            while bell.load(Ordering::SeqCst) == 1 {
                let woken =
                    port.park(Park { bell: &bell, expected: 1, timeout: Duration::from_secs(20), writable: false }).unwrap();
                assert!(!woken.timeout, "the ring of round {i} was lost");
            }
        }
        ringer.join().unwrap();
        // What was rung before does not ring again.
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
                assert!(!park(&mut *port, here, Duration::from_secs(20)).timeout);
            }
            ringer.join().unwrap();
        }
    });
}

/// A port that threads share, and what has come to it. Each parks for a while and then ends.
struct Helm {
    port: Mutex<Box<dyn Port>>,
    bell: AtomicU32,
    datagrams: AtomicU32,
    rings: AtomicU32,
}

impl Helm {
    fn is_over(&self) -> bool {
        self.datagrams.load(Ordering::SeqCst) == EVENTS && self.rings.load(Ordering::SeqCst) == EVENTS
    }

    /// Parks up to so many times, and lets others have the port in between.
    fn park(&self, times: usize) {
        let mut room = Room::new(2);
        for _ in 0..times {
            let mut port = self.port.lock().unwrap();
            if self.is_over() {
                return;
            }
            let woken = port.park(Park { bell: &self.bell, expected: 1, timeout: FOR_EVER, writable: false }).unwrap();
            assert!(!woken.timeout, "slept over something: {woken:?}");
            let mut each = |run: Run<'_>| {
                // Whoever sends waits for each of them.
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

    /// Makes something happen `EVENTS` times, each time before, about when, or after somebody is asleep.
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
            Helm { port: Mutex::new(port), bell: AtomicU32::new(1), datagrams: AtomicU32::new(0), rings: AtomicU32::new(0) };
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
        let mut room = Room::new(1);
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

#[test]
fn what_the_buffer_has_no_room_for_is_counted() {
    with_each(|open| {
        let (from, mut to) = (open(loopback()), open(Options { receive_buffer: 1 << 13, ..loopback() }));
        let peer = local(&*to);
        assert!(to.direct().receive_buffer() >= 1 << 13 && to.direct().receive_buffer() < 1 << 16);
        for _ in 0..500 {
            assert_eq!(from.direct().send(&run(peer, &mut [1; 100], 100)), Sent::Sent);
        }
        drain(&mut *to);
        let Statistics { received, overflowed, .. } = to.direct().statistics();
        assert!(overflowed > 0);
        assert_eq!(received.datagrams + overflowed, 500);
    });
}

#[test]
fn ipv6_works_alone_and_beside_ipv4() {
    with_each(|open| {
        let six = |address: &str| Options::new(address.parse().unwrap());
        let (from, mut to) = (open(six("[::1]:0")), open(six("[::1]:0")));
        assert_eq!(from.direct().send(&run(local(&*to), &mut pattern(5000, 1), 1200)), Sent::Sent);
        assert_eq!(gather(&mut *to, 5).iter().map(|(_, datagram)| datagram.len()).sum::<usize>(), 5000);
        let (four, mut both) = (open(loopback()), open(six("[::]:0")));
        let port = local(&*both).port();
        for (sender, address) in
            [(&four, SocketAddr::from(([127, 0, 0, 1], port))), (&from, SocketAddr::from((Ipv6Addr::LOCALHOST, port)))]
        {
            assert_eq!(sender.direct().send(&run(address, &mut [5; 30], 10)), Sent::Sent);
            let found = gather(&mut *both, 3);
            // By its own name, so that it can be compared; and the answer finds back.
            assert_eq!(found[0].0, local(&**sender));
            assert_eq!(both.direct().send(&run(found[0].0, &mut [6; 30], 10)), Sent::Sent);
        }
    });
}

#[test]
fn an_answer_comes_from_the_address_that_was_asked() {
    with_each(|open| {
        for wildcard in ["0.0.0.0:0", "[::]:0"] {
            let mut server = open(Options::new(wildcard.parse().unwrap()));
            let mut clients = [open(loopback()), open(loopback())];
            // Two peers at once, each with another idea of where the server is, and one that changes its mind.
            for (client, octet) in [(0, 5), (1, 6), (0, 7), (0, 5)] {
                let client = &mut clients[client];
                let asked = SocketAddr::from(([127, 0, 0, octet], local(&*server).port()));
                assert_eq!(client.direct().send(&run(asked, &mut [1; 2800], 1400)), Sent::Sent);
                let peer = gather(&mut *server, 2)[0].0;
                assert_eq!(server.direct().send(&run(peer, &mut [2; 2800], 1400)), Sent::Sent);
                let found = gather(&mut **client, 2);
                assert!(found.iter().all(|(from, _)| *from == asked), "{found:?} instead of {asked}");
                let mut answers = [[3; 100], [4; 100]];
                let [one, other] = &mut answers;
                server
                    .direct()
                    .send_all(&[run(peer, one, 100), run(peer, other, 100)], &mut |_, sent| assert_eq!(sent, Sent::Sent));
                assert!(gather(&mut **client, 2).iter().all(|(from, _)| *from == asked));
            }
        }
    });
}

#[test]
fn many_threads_send_and_receive_on_one_socket() {
    with_each(|open| {
        let (from, to) = (open(loopback()), open(loopback()));
        let peer = local(&*to);
        let arrived = AtomicU32::new(0);
        let taken = std::thread::scope(|scope| {
            for thread in 0..4 {
                let direct = from.direct().clone();
                scope.spawn(move || {
                    for i in 0..500 {
                        assert_eq!(direct.send(&run(peer, &mut pattern(64, i + thread), 64)), Sent::Sent);
                    }
                });
            }
            let takers: Vec<_> = (0..2)
                .map(|_| {
                    let (direct, arrived) = (to.direct().clone(), &arrived);
                    scope.spawn(move || {
                        let (mut room, mut taken, deadline) = (Room::new(4), 0, Instant::now() + Duration::from_secs(20));
                        while arrived.load(Ordering::Relaxed) < 2000 && Instant::now() < deadline {
                            let each = &mut |mut run: Run<'_>| {
                                taken += run.bytes.len();
                                arrived.fetch_add(run.datagrams().count() as u32, Ordering::Relaxed);
                            };
                            direct.receive(&mut room, 16, each).unwrap();
                        }
                        taken
                    })
                })
                .collect();
            takers.into_iter().map(|taker| taker.join().unwrap()).sum::<usize>()
        });
        assert_eq!(taken, 2000 * 64);
    });
}

#[test]
fn the_address_is_free_after_the_port_is_gone() {
    with_each(|open| {
        for parked in [false, true] {
            let mut port = open(loopback());
            let address = local(&*port);
            if parked {
                assert!(park(&mut *port, &AtomicU32::new(1), Duration::from_millis(1)).timeout);
            }
            drop(port);
            let deadline = Instant::now() + Duration::from_secs(20);
            while UdpSocket::bind(address).is_err() {
                assert!(Instant::now() < deadline, "parked: {parked}; {address} is still in use");
                std::thread::yield_now();
            }
        }
    });
}

#[test]
fn a_twin_takes_what_one_peer_sends_and_nothing_is_lost_beside_it() {
    with_each(|open| {
        let (mut to, one, other) = (open(loopback()), open(loopback()), open(loopback()));
        let address = local(&*to);
        let bell = AtomicU32::new(1);
        for (peer, stranger) in [(&one, &other), (&other, &one)] {
            // The second time it is the same twin, for another peer.
            to.direct().connect(local(&**peer)).unwrap();
            let twin = to.direct().twin().unwrap().clone();
            assert_eq!(twin.local(), address);
            for (from, arrives_there) in [(peer, true), (stranger, false)] {
                assert_eq!(from.direct().send(&run(address, &mut [3; 30], 30)), Sent::Sent);
                // The park wakes whichever of the two it is.
                assert!(park(&mut *to, &bell, Duration::from_secs(20)).datagram);
                let (mut room, mut from_twin) = (Room::new(1), 0);
                from_twin += twin.receive(&mut room, 1, &mut |run: Run<'_>| assert_eq!(run.peer, local(&**from))).unwrap();
                assert_eq!(from_twin, usize::from(arrives_there));
                drain(&mut *to);
            }
            // Whoever is sent to by the twin sees the same address.
            assert_eq!(twin.send(&run(local(&**peer), &mut pattern(3000, 1), 1000)), Sent::Sent);
            let mut found = Vec::new();
            until_gathered(&**peer, &mut found, 3000);
            assert!(found.iter().all(|(from, _)| *from == address));
        }
        let refused = open_at(address);
        assert!(matches!(refused, Err(OpenError::AddressInUse { .. })), "{refused:?}");
        assert!(to.direct().twin().unwrap().connect(local(&*one)).is_err());
    });
}

fn open_at(address: SocketAddr) -> Result<(), OpenError> {
    open(&Options::new(address)).map(drop)
}

/// Receives until so many bytes came.
fn until_gathered(port: &dyn Port, found: &mut Vec<(SocketAddr, usize)>, bytes: usize) {
    let (mut room, deadline) = (Room::new(4), Instant::now() + Duration::from_secs(20));
    while found.iter().map(|(_, len)| len).sum::<usize>() < bytes {
        assert!(Instant::now() < deadline, "only {found:?}");
        port.direct().receive(&mut room, 16, &mut |run: Run<'_>| found.push((run.peer, run.bytes.len()))).unwrap();
    }
}
