//! The behaviour of every kind of port: one list of tests that runs over all kinds, on real sockets.

mod parking;

use doorbell_udp::Run;
use doorbell_udp::port::{Kind, OpenError, Options, Park, Port, Room, Sent, Statistics, Traffic, TroubleKind, Woken, open};
use std::cell::Cell;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longer than anything here takes. A wait that reaches it fails the test.
const FOR_EVER: Duration = Duration::from_secs(20);

fn loopback() -> Options {
    Options::new("127.0.0.1:0".parse().unwrap())
}

/// Runs a test with each kind of port.
fn with_each(test: impl Fn(&dyn Fn(Options) -> Box<dyn Port>)) {
    for kind in [Kind::Uring, Kind::Calls, Kind::Plain] {
        eprintln!("with {kind}");
        test(&|mut options| {
            options.kind = kind;
            let port = open(&options).unwrap();
            assert_eq!(port.kind(), kind);
            port
        });
    }
}

/// The number of system calls that moved datagrams.
fn calls(traffic: Traffic) -> u64 {
    traffic.calls + traffic.enters
}

fn local(port: &dyn Port) -> SocketAddr {
    port.direct().local()
}

/// Receives from each socket in turn.
fn receive(port: &dyn Port, room: &mut Room, budget: usize, mut each: impl FnMut(Run<'_>)) -> usize {
    let sockets = port.links().iter().flat_map(|direct| std::iter::once(direct).chain(direct.twin()));
    sockets.map(|direct| direct.receive(room, budget, &mut each).unwrap()).sum()
}

/// Receives until `count` datagrams have come.
fn gather(port: &mut dyn Port, count: usize) -> Vec<(SocketAddr, Vec<u8>)> {
    let (mut found, mut room) = (Vec::new(), Room::default());
    let deadline = Instant::now() + FOR_EVER;
    while found.len() < count {
        assert!(Instant::now() < deadline, "only {} of {count} datagrams came: {:?}", found.len(), port.direct().statistics());
        receive(port, &mut room, 4, |mut run| {
            let peer = run.peer;
            found.extend(run.datagrams().map(|datagram| (peer, datagram.to_vec())));
        });
    }
    found
}

fn drain(port: &mut dyn Port) {
    let mut room = Room::default();
    while receive(port, &mut room, 64, |_| {}) > 0 {}
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
            // A ring takes several datagrams in one call even where the kernel does not cut runs.
            assert_eq!(offload || from.kind() == Kind::Uring, calls(sent) < sent.datagrams, "{sent:?}");
            assert!(!offload || calls(received) < received.datagrams / 4, "{received:?}");
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
fn each_run_goes_in_one_call_to_its_own_peer() {
    with_each(|open| {
        let (from, mut to, mut other) = (open(loopback()), open(loopback()), open(loopback()));
        let peers = [local(&*to), local(&*other)];
        let mut bytes: Vec<_> = (0..41).map(|i| pattern(100 + 50 * i, i)).collect();
        let runs: Vec<_> = bytes.iter_mut().enumerate().map(|(i, bytes)| run(peers[i % 2], bytes, 400)).collect();
        for run in &runs {
            assert_eq!(from.direct().send(run), Sent::Sent);
        }
        for (port, parity) in [(&mut to, 0), (&mut other, 1)] {
            let sent: Vec<_> = (parity..41)
                .step_by(2)
                .flat_map(|i| pattern(100 + 50 * i, i).chunks(400).map(<[u8]>::to_vec).collect::<Vec<_>>())
                .collect();
            let found: Vec<_> = gather(&mut **port, sent.len()).into_iter().map(|(_, datagram)| datagram).collect();
            assert_eq!(found, sent);
        }
        assert_eq!(calls(from.direct().statistics().sent), 41);
    });
}

#[test]
fn a_lone_datagram_is_taken_alone_and_many_in_one_look() {
    with_each(|open| {
        let (from, to) = (open(loopback()), open(loopback()));
        let send = || assert_eq!(from.direct().send(&run(local(&*to), &mut [7; 10], 10)), Sent::Sent);
        let mut room = Room::default();
        let mut look = |budget| to.direct().receive(&mut room, budget, &mut |_| ()).unwrap();
        for _ in 0..3 {
            assert_eq!(look(100), 0);
            (0..161).for_each(|_| send());
            let before = calls(to.direct().statistics().received);
            // The first look asks for one datagram alone, so that nothing delays it.
            assert_eq!([look(100), look(100), look(100), look(100)], [1, 100, 60, 0]);
            // A ring takes up to eight runs in one call.
            let expected = if to.kind() == Kind::Uring { 1 + (96 / 8 + 4) + (56 / 8 + 1) } else { 161 };
            assert_eq!(calls(to.direct().statistics().received) - before, expected);
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
        // The same with datagrams that came before a park.
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
                // The error of the first send must not be taken for an error of the second.
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
        assert_eq!(runs.each_ref().map(|run| from.direct().send(run) == Sent::Sent), [true, false, true]);
        gather(&mut *to, 2);
        while from.direct().trouble().is_some() {}
        assert_eq!(park(&mut *from, &AtomicU32::new(0), Duration::from_millis(20)), Woken { timeout: true, ..Woken::default() });
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
            // The sender shows its own address, so that addresses compare equal, and the answer reaches it.
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
            // Two peers reach the server by different addresses, and one of them changes the address.
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
                for answer in [one, other] {
                    assert_eq!(server.direct().send(&run(peer, answer, 100)), Sent::Sent);
                }
                assert!(gather(&mut **client, 2).iter().all(|(from, _)| *from == asked));
            }
        }
    });
}

#[test]
fn each_kind_moves_datagrams_in_its_own_way_alone() {
    with_each(|open| {
        for address in ["127.0.0.1:0", "0.0.0.0:0", "[::]:0"] {
            for offload in [true, false] {
                let options = |address: &str| Options { cut: offload, gather: offload, ..Options::new(address.parse().unwrap()) };
                let (mut from, mut to) = (open(options("127.0.0.1:0")), open(options(address)));
                let peer = SocketAddr::from(([127, 0, 0, 1], local(&*to).port()));
                // Alone and in series, from a socket and from its twin, forth and back.
                for round in 0..3 {
                    for (len, segment) in [(8, 8), (100_000, 1000), (60_000, 60_000)] {
                        assert_eq!(from.direct().send(&run(peer, &mut pattern(len, 0), segment)), Sent::Sent);
                        let back = gather(&mut *to, len.div_ceil(segment))[0].0;
                        assert_eq!(to.direct().send_pieces(back, [&[1], &[2; 50], &[3; 20]]), Sent::Sent);
                        assert!(park(&mut *from, &AtomicU32::new(0), FOR_EVER).datagram);
                        assert_eq!(gather(&mut *from, 1)[0].1.len(), 71);
                    }
                    if round == 1 {
                        from.direct().connect(peer).unwrap();
                        assert_eq!(from.direct().twin().unwrap().send(&run(peer, &mut [7; 9], 9)), Sent::Sent);
                        gather(&mut *to, 1);
                    }
                }
                for Statistics { received, sent, .. } in [&from, &to].map(|port| port.direct().statistics()) {
                    for traffic in [received, sent] {
                        let (wanted, other) = match from.kind() {
                            Kind::Uring => (traffic.enters, traffic.calls),
                            _ => (traffic.calls, traffic.enters),
                        };
                        assert!(wanted > 0 && other == 0, "{traffic:?}");
                    }
                }
            }
        }
    });
}

#[test]
fn empty_datagrams_are_runs_too() {
    with_each(|open| {
        for gather in [true, false] {
            let (mut from, mut to) = (open(loopback()), open(Options { gather, ..loopback() }));
            let peer = local(&*to);
            to.direct().connect(local(&*from)).unwrap();
            let mut room = Room::default();
            let twin = to.direct().twin().unwrap().clone();
            for _ in 0..2 {
                for len in [3, 0, 0, 5, 0, 7, 0] {
                    assert_eq!(from.direct().send(&run(peer, &mut pattern(len, 1), 10)), Sent::Sent);
                }
                let mut lengths = Vec::new();
                for _ in 0..20 {
                    twin.receive(&mut room, 16, &mut |run: Run<'_>| lengths.push((run.peer, run.bytes.len()))).unwrap();
                }
                assert!(lengths.iter().all(|(peer, _)| *peer == local(&*from)));
                assert_eq!(lengths.iter().map(|(_, len)| *len).collect::<Vec<_>>(), [3, 0, 0, 5, 0, 7, 0]);
            }
            drain(&mut *to);
            drain(&mut *from);
        }
    });
}

#[test]
fn a_forked_child_sends_by_calls_and_leaves_the_ring_alone() {
    with_each(|open| {
        let (from, mut to) = (open(loopback()), open(loopback()));
        let (peer, fore) = (local(&*to), Cell::new(Some(open(loopback()))));
        let send = |byte: u8| from.direct().send(&run(peer, &mut [byte; 10], 10)) == Sent::Sent;
        assert!(send(1));
        // SAFETY: the child sends a datagram, closes a port and ends at once; it takes no memory from the heap.
        match unsafe { libc::fork() } {
            0 => {
                let sent = send(2);
                drop(fore.take());
                // SAFETY: ends the child without anything else.
                unsafe { libc::_exit(i32::from(!sent)) }
            }
            child => {
                let mut status = -1;
                // SAFETY: waits for the child, and writes its status to a local variable.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0);
            }
        }
        assert!(send(3));
        let mut fore = fore.take().unwrap();
        assert_eq!(fore.direct().send(&run(local(&*fore), &mut [4; 10], 10)), Sent::Sent);
        assert_eq!(gather(&mut *fore, 1).len(), 1);
        assert!(gather(&mut *to, 3).iter().map(|(_, bytes)| bytes[0]).eq([1, 2, 3]));
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
                        let (mut room, mut taken, deadline) = (Room::default(), 0, Instant::now() + FOR_EVER);
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
            let deadline = Instant::now() + FOR_EVER;
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
            // The second round connects the same twin to the other peer.
            to.direct().connect(local(&**peer)).unwrap();
            let twin = to.direct().twin().unwrap().clone();
            assert_eq!(twin.local(), address);
            for (from, arrives_there) in [(peer, true), (stranger, false)] {
                assert_eq!(from.direct().send(&run(address, &mut [3; 30], 30)), Sent::Sent);
                // Either socket wakes the park.
                assert!(park(&mut *to, &bell, FOR_EVER).datagram);
                let (mut room, mut from_twin) = (Room::default(), 0);
                from_twin += twin.receive(&mut room, 1, &mut |run: Run<'_>| assert_eq!(run.peer, local(&**from))).unwrap();
                assert_eq!(from_twin, usize::from(arrives_there));
                drain(&mut *to);
            }
            // A datagram from the twin shows the same address.
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
    open(&Options { bind_timeout: Duration::ZERO, ..Options::new(address) }).map(drop)
}

/// Receives until `bytes` bytes have come.
fn until_gathered(port: &dyn Port, found: &mut Vec<(SocketAddr, usize)>, bytes: usize) {
    let (mut room, deadline) = (Room::default(), Instant::now() + FOR_EVER);
    while found.iter().map(|(_, len)| len).sum::<usize>() < bytes {
        assert!(Instant::now() < deadline, "only {found:?}");
        port.direct().receive(&mut room, 16, &mut |run: Run<'_>| found.push((run.peer, run.bytes.len()))).unwrap();
    }
}
