//! Nodes that meet over real sockets.

use doorbell_fabric::{Incarnation, Link, NodeId, PacketHead, PacketKind, Payload, Priority, Push, Role, Sink, Verdict};
use doorbell_udp::fabric::{About, Address, BytesIn, Change, UdpError, UdpFabric, UdpLink, UdpOptions, ask, find};
use doorbell_udp::port::{Kind, Port};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const LOCAL: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn about(label: &str) -> About {
    About { role: Role::Host, pid: 1, label: label.into(), nonce: 0 }
}

fn open(node: u16, options: &UdpOptions) -> (UdpFabric, Box<dyn Port>) {
    let me = (NodeId(node), Incarnation(u32::from(node) + 100));
    UdpFabric::open("meet", me, about("a node"), 8, options, soon()).unwrap()
}

/// Runs a test with the options of each kind of port.
fn with_each(test: impl Fn(&dyn Fn() -> UdpOptions)) {
    for port in [Kind::Uring, Kind::Calls, Kind::Plain] {
        eprintln!("with {port}");
        test(&|| UdpOptions { port, ..UdpOptions::default() });
    }
}

/// Counts what comes.
#[derive(Default)]
struct Count(usize);

impl Sink for Count {
    fn packet(&mut self, _: NodeId, _: Incarnation, _: Priority, _: &PacketHead, _: Payload<'_>) -> Verdict {
        self.0 += 1;
        Verdict::Taken
    }

    fn damaged(&mut self, node: NodeId, _: Priority, reason: &'static str) {
        panic!("{node}: {reason}");
    }
}

/// A node that a thread of its own drives. It accepts every peer.
struct Driven {
    fabric: Arc<Mutex<UdpFabric>>,
    stop: Arc<AtomicBool>,
    /// Nodes that it has met.
    met: Arc<AtomicUsize>,
    thread: Option<std::thread::JoinHandle<(Vec<Change>, usize)>>,
}

impl Driven {
    fn start(fabric: UdpFabric) -> Self {
        let (fabric, stop) = (Arc::new(Mutex::new(fabric)), Arc::new(AtomicBool::new(false)));
        let met = Arc::new(AtomicUsize::new(0));
        let (driven, stopped, meeting) = (fabric.clone(), stop.clone(), met.clone());
        let thread = std::thread::spawn(move || {
            let (mut changes, mut count) = (Vec::new(), Count::default());
            while !stopped.load(Ordering::Relaxed) {
                let mut fabric = driven.lock().unwrap();
                fabric.poll(&mut count, 64);
                while let Some(change) = fabric.next_change() {
                    if let Change::Met(node, _) = change {
                        fabric.accept(node);
                        meeting.fetch_add(1, Ordering::Relaxed);
                    }
                    changes.push(change);
                }
                while let Some(ask) = fabric.next_ask() {
                    let free = (0..8).map(NodeId).find(|id| !fabric.is_taken(*id) && !ask.avoid.contains(id));
                    fabric.welcome(&ask, free);
                }
                drop(fabric);
                std::thread::yield_now();
            }
            (changes, count.0)
        });
        Self { fabric, stop, met, thread: Some(thread) }
    }

    fn address(&self) -> SocketAddr {
        self.fabric.lock().unwrap().address()
    }

    fn end(mut self) -> (Vec<Change>, usize) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

#[test]
fn who_leaves_is_heard_out_and_known_to_have_left() {
    with_each(|options| {
        let home = Driven::start(open(0, &UdpOptions { listen: vec![LOCAL.into()], ..options() }).0);
        let began = Instant::now();
        let (mut guest, _port) = open(1, &UdpOptions { connect: vec![home.address()], ..options() });
        while let Some(Change::Met(node, _)) = guest.next_change() {
            guest.accept(node);
        }
        let guest = Arc::new(Mutex::new(guest));
        let mut link = UdpLink::new(&guest, NodeId(0), Incarnation(100), Priority::Normal).unwrap();
        let head = PacketHead { kind: PacketKind::Whole, tag: 0, sequence: 0, total: 100 };
        for _ in 0..20 {
            // SAFETY: an array.
            assert_eq!(unsafe { link.push(&head, [7; 100].as_ptr(), 100) }, Push::Done);
        }
        guest.lock().unwrap().shut(soon());
        println!("after {:?}", began.elapsed());
        let (changes, count) = home.end();
        let (node, life) = (NodeId(1), Incarnation(101));
        assert_eq!((changes, count), (vec![Change::Met(node, life), Change::Left(node, life)], 20));
    });
}

#[test]
fn a_busy_path_gets_a_socket_of_its_own_and_nothing_is_lost_by_that() {
    with_each(|options| {
        let home = Driven::start(open(0, &UdpOptions { listen: vec![LOCAL.into()], ..options() }).0);
        let (mut guest, port) = open(1, &UdpOptions { connect: vec![home.address()], ..options() });
        while let Some(Change::Met(node, _)) = guest.next_change() {
            guest.accept(node);
        }
        let guest = Arc::new(Mutex::new(guest));
        let mut link = UdpLink::new(&guest, NodeId(0), Incarnation(100), Priority::Normal).unwrap();
        let head = PacketHead { kind: PacketKind::Whole, tag: 0, sequence: 0, total: 100 };
        let (mut sent, mut more, deadline) = (0, 50, soon());
        while more > 0 {
            assert!(Instant::now() < deadline, "no twin after {sent} packets");
            // SAFETY: an array.
            sent += usize::from(unsafe { link.push(&head, [7; 100].as_ptr(), 100) } == Push::Done);
            // Each goes in a datagram of its own, and the node receives what its twin hears.
            guest.lock().unwrap().poll(&mut Count(0), 64);
            more -= usize::from(port.direct().twin().is_some());
        }
        guest.lock().unwrap().shut(soon());
        assert_eq!(home.end().1, sent);
    });
}

#[test]
fn ids_are_given_to_guests_and_all_meet_all() {
    with_each(|options| {
        let home = Driven::start(open(0, &UdpOptions { listen: vec![LOCAL.into()], ..options() }).0);
        let options = UdpOptions { connect: vec![home.address()], ..options() };
        let mut others = Vec::new();
        for expected in 1..4 {
            let grant = ask("meet", &about("a guest"), &[], &options, soon()).unwrap();
            assert_eq!((grant.node, grant.max_nodes), (NodeId(expected), 8));
            others.push(Driven::start(open(expected, &options).0));
        }
        // All nodes stay until each has met the three others.
        let deadline = soon();
        while others.iter().any(|node| node.met.load(Ordering::Relaxed) < 3) {
            assert!(Instant::now() < deadline, "each meets the three others");
            std::thread::yield_now();
        }
        for (changes, _) in others.into_iter().map(Driven::end).collect::<Vec<_>>() {
            assert_eq!(changes.into_iter().filter(|change| matches!(change, Change::Met(..))).count(), 3);
        }
    });
}

#[test]
fn of_several_addresses_the_one_is_found_at_which_a_node_answers() {
    with_each(|options| {
        let home = Driven::start(open(0, &UdpOptions { listen: vec![LOCAL.into()], ..options() }).0);
        let port = home.address().port();
        let (nobody, no_key) = (SocketAddr::from(([127, 0, 0, 9], port)), SocketAddr::from(([203, 0, 113, 7], port)));
        // The last one is on a socket of the other IP version.
        let nobody_six = SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, port));
        let (place, candidates) = (Address::from(format!("hostx:{port}")), [no_key, nobody, nobody_six, home.address()]);
        let look = |domain: &str, candidates: &[SocketAddr], deadline| {
            find(domain, &about("a guest"), &place, candidates, &options(), deadline)
        };
        assert_eq!(look("meet", &candidates, soon()).unwrap(), home.address());
        // A refusal says more than silence.
        let refused = look("another", &candidates, Instant::now() + Duration::from_secs(2)).unwrap_err();
        assert!(matches!(refused, UdpError::Rejected { address, .. } if address == home.address()), "{refused}");
        let silent = look("meet", &candidates[..2], Instant::now() + Duration::from_millis(50)).unwrap_err().to_string();
        for part in [&format!("answers at hostx:{port} "), &format!("{nobody}: no answer"), &format!("{no_key}: other machines")]
        {
            assert!(silent.contains(part), "'{part}' is missing in {silent}");
        }
        assert!(matches!(look("meet", &[no_key, no_key], soon()), Err(UdpError::NoKey { .. })));
        // A node that listens has sockets of these IP versions alone.
        let six = UdpOptions { listen: vec![nobody_six], ..options() };
        let far = find("meet", &about("a guest"), &place, &[home.address(), nobody], &six, soon()).unwrap_err().to_string();
        assert!(far.contains("listens at no address of its IP version"), "{far}");
        // A guest that only looks is no node.
        assert_eq!(home.end().0, []);
    });
}

#[test]
fn who_is_beside_outlives_silence_and_is_dropped_without_a_word() {
    with_each(|options| {
        let dead_after = Duration::from_millis(50);
        let options = UdpOptions { listen: vec![LOCAL.into()], dead_after, ..options() };
        let (mut home, _port) = open(0, &options);
        let joined = UdpOptions { connect: vec![home.address()], ..options };
        let joining = std::thread::spawn(move || open(1, &joined));
        let beside = |fabric: &mut UdpFabric| {
            while let Some(Change::Met(node, _)) = fabric.next_change() {
                fabric.beside(node);
            }
        };
        while !joining.is_finished() {
            home.poll(&mut Count::default(), 64);
            beside(&mut home);
        }
        let (mut guest, _port) = joining.join().unwrap();
        beside(&mut guest);
        let guest = Arc::new(Mutex::new(guest));
        let mut link = UdpLink::new(&guest, NodeId(0), Incarnation(100), Priority::Normal).unwrap();
        let head = PacketHead { kind: PacketKind::Whole, tag: 0, sequence: 0, total: 100 };
        // SAFETY: an array.
        let mut push = || assert_eq!(unsafe { link.push(&head, [7; 100].as_ptr(), 100) }, Push::Done);
        let (mut there, mut here) = (Count::default(), Count::default());
        push();
        let deadline = soon();
        while there.0 < 1 {
            assert!(Instant::now() < deadline, "a node beside is sent to");
            guest.lock().unwrap().poll(&mut here, 64);
            home.poll(&mut there, 64);
        }
        // The other end is silent for many times the dead-peer time while data is under way to it, and then takes that data.
        push();
        let silent_until = Instant::now() + 10 * dead_after;
        while Instant::now() < silent_until {
            guest.lock().unwrap().poll(&mut here, 64);
            std::thread::yield_now();
        }
        assert_eq!(guest.lock().unwrap().next_change(), None);
        while there.0 < 2 {
            assert!(Instant::now() < deadline, "the conversation goes on");
            guest.lock().unwrap().poll(&mut here, 64);
            home.poll(&mut there, 64);
        }
        // No packet that arrived is lost when the other fabric reports that the node is gone.
        push();
        while !home.has_ready() {
            assert!(Instant::now() < deadline, "the last packet waits for the driver");
            home.look();
        }
        home.gone(NodeId(1), Incarnation(101));
        assert!(home.expect_by(NodeId(1), Incarnation(101), 0, 8, &(Arc::new(Nowhere) as Arc<dyn BytesIn>)).is_none());
        while home.about(NodeId(1)).is_some() {
            assert!(Instant::now() < deadline, "its session is dropped");
            home.poll(&mut there, 64);
        }
        assert_eq!((there.0, home.next_change()), (3, None));
    });
}

#[test]
fn nodes_with_several_links_have_a_session_for_each() {
    with_each(|options| {
        for (home_is_beside, links) in [(false, 2), (true, 3)] {
            let options = UdpOptions { listen: vec![LOCAL.into(); links], ..options() };
            let meet = |fabric: &mut UdpFabric| {
                while let Some(Change::Met(node, _)) = fabric.next_change() {
                    if home_is_beside { fabric.beside(node) } else { fabric.accept(node) }
                }
            };
            let (mut home, _port) = open(0, &options);
            let joined = UdpOptions { connect: vec![home.address()], ..options };
            let joining = std::thread::spawn(move || open(1, &joined));
            while !joining.is_finished() {
                home.poll(&mut Count::default(), 64);
                meet(&mut home);
            }
            let (mut guest, _port) = joining.join().unwrap();
            meet(&mut guest);
            let (home, guest) = (Arc::new(Mutex::new(home)), Arc::new(Mutex::new(guest)));
            let (there, here) = ((NodeId(0), Incarnation(100)), (NodeId(1), Incarnation(101)));
            let (mut counted, mut back) = (Count::default(), Count::default());
            let deadline = soon();
            let mut until = |done: &dyn Fn(&Count, &Count) -> bool, what: &str| {
                while !done(&counted, &back) {
                    assert!(Instant::now() < deadline, "{what}");
                    home.lock().unwrap().poll(&mut counted, 64);
                    guest.lock().unwrap().poll(&mut back, 64);
                }
            };
            let all = |_: &Count, _: &Count| {
                home.lock().unwrap().strands(here.0, here.1) == links && guest.lock().unwrap().strands(there.0, there.1) == links
            };
            until(&all, "a session for each link at both ends");
            assert_eq!(home.lock().unwrap().strands(here.0, Incarnation(5)), 0);
            assert!(UdpLink::by(&guest, there.0, there.1, links as u8, Priority::Normal).is_none());
            let mut ways: Vec<_> = (0..links as u8)
                .map(|strand| UdpLink::by(&guest, there.0, there.1, strand, Priority::Normal).expect("a session"))
                .collect();
            let head = PacketHead { kind: PacketKind::Whole, tag: 0, sequence: 0, total: 100 };
            for (strand, way) in ways.iter_mut().enumerate() {
                assert_eq!(way.outstanding().map(|figures| (figures.packets, figures.link.0)), Some((0, strand as u8)));
                // SAFETY: an array.
                assert_eq!(unsafe { way.push(&head, [7; 100].as_ptr(), 100) }, Push::Done);
                assert!(way.outstanding().is_some_and(|figures| figures.packets == 1 && figures.bytes > 100));
            }
            until(&|counted, _| counted.0 == links, "a packet by each");
            until(&|_, _| ways.iter().all(|way| way.outstanding().unwrap().packets == 0), "all are acknowledged");
            for strand in 0..links as u8 {
                let into: Arc<dyn BytesIn> = Arc::new(Nowhere);
                assert!(home.lock().unwrap().expect_by(here.0, here.1, strand, 1000, &into).is_some());
            }
            // A node that leaves completes what it sent by each link, and its peer hears once that it left.
            for way in &mut ways {
                for _ in 0..20 {
                    // SAFETY: an array.
                    assert_eq!(unsafe { way.push(&head, [7; 100].as_ptr(), 100) }, Push::Done);
                }
            }
            let leaving = std::thread::spawn(move || guest.lock().unwrap().shut(soon()));
            let mut changes = Vec::new();
            while changes.is_empty() || !leaving.is_finished() {
                assert!(Instant::now() < deadline, "it has left");
                let mut home = home.lock().unwrap();
                home.poll(&mut counted, 64);
                changes.extend(std::iter::from_fn(|| home.next_change()));
            }
            assert_eq!((changes, counted.0), (vec![Change::Left(here.0, here.1)], links * 21));
        }
    });
}

struct Nowhere;

impl BytesIn for Nowhere {
    fn store(&self, _: u64, _: &[u8]) {}
}

/// Panics at its first packet.
struct Frail(usize);

impl Sink for Frail {
    fn packet(&mut self, _: NodeId, _: Incarnation, _: Priority, _: &PacketHead, _: Payload<'_>) -> Verdict {
        self.0 += 1;
        if self.0 == 1 {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
        Verdict::Taken
    }

    fn damaged(&mut self, _: NodeId, _: Priority, _: &'static str) {}
}

#[test]
fn a_reader_that_panics_loses_nothing() {
    with_each(|options| {
        let (mut home, _port) = open(0, &UdpOptions { listen: vec![LOCAL.into()], ..options() });
        let address = home.address();
        let joining = {
            let joined = UdpOptions { connect: vec![address], ..options() };
            std::thread::spawn(move || open(1, &joined))
        };
        let accept = |fabric: &mut UdpFabric| {
            while let Some(Change::Met(node, _)) = fabric.next_change() {
                fabric.accept(node);
            }
        };
        while !joining.is_finished() {
            home.poll(&mut Count::default(), 64);
            accept(&mut home);
        }
        let (mut guest, _port) = joining.join().unwrap();
        accept(&mut guest);
        let guest = Arc::new(Mutex::new(guest));
        let mut link = UdpLink::new(&guest, NodeId(0), Incarnation(100), Priority::Normal).unwrap();
        let head = PacketHead { kind: PacketKind::Whole, tag: 0, sequence: 0, total: 100 };
        let mut sink = Frail(0);
        let deadline = soon();
        for number in 0..2 {
            // The first packet waits in the lane, as if it arrived while no packet was to be delivered; then its reader panics.
            if number == 1 {
                home.look();
            }
            // SAFETY: an array.
            assert_eq!(unsafe { link.push(&head, [7; 100].as_ptr(), 100) }, Push::Done);
            while sink.0 == 0 {
                let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| home.poll(&mut sink, 64)));
                assert!(Instant::now() < deadline && (number == 0 || polled.is_ok()));
            }
        }
        while sink.0 < 3 {
            assert!(Instant::now() < deadline, "the packet at which the reader panicked does not come again");
            guest.lock().unwrap().poll(&mut Count::default(), 64);
            home.poll(&mut sink, 64);
        }
    });
}

#[test]
fn a_guest_turns_a_stranger_away_and_goes_on_waiting_for_the_node_it_asked() {
    with_each(|options| {
        let asked = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = asked.local_addr().unwrap();
        let asking = UdpOptions { listen: vec![LOCAL.into()], connect: vec![address], ..options() };
        let guest =
            std::thread::spawn(move || ask("meet", &about("a guest"), &[], &asking, Instant::now() + Duration::from_secs(3)));
        let (_, port) = asked.recv_from(&mut [0; 2000]).unwrap();
        let options = UdpOptions { listen: vec![LOCAL.into()], connect: vec![port], ..options() };
        let me = (NodeId(5), Incarnation(105));
        let refused = UdpFabric::open("meet", me, about("a stranger"), 8, &options, soon()).map(|_| ());
        assert!(matches!(refused, Err(UdpError::Ended { .. })), "{refused:?}");
        let result = guest.join().unwrap();
        assert!(matches!(result, Err(UdpError::NoAnswer { .. })), "{result:?}");
    });
}

#[test]
fn a_guest_sleeps_while_the_node_it_asks_is_not_there() {
    let closed = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let ran = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
    };
    let (before, began) = (ran(), Instant::now());
    let options = UdpOptions { listen: vec![LOCAL.into()], connect: vec![closed], ..UdpOptions::default() };
    let result = ask("meet", &about("a guest"), &[], &options, Instant::now() + Duration::from_secs(1));
    assert!(matches!(result, Err(UdpError::NoAnswer { .. })), "{result:?}");
    let (ran, waited) = (ran() - before, began.elapsed());
    assert!(ran * 4 < waited, "it ran for {ran:?} of {waited:?}");
}
