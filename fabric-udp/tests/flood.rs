//! A flood of datagrams from strangers over real sockets: memory does not grow, and the existing session goes on.

use aws_lc_rs::hmac;
use doorbell_fabric::{Incarnation, NodeId, PacketHead, PacketKind, Payload, Priority, Push, Sink, Verdict};
use doorbell_udp::Run;
use doorbell_udp::port::{Kind, Options, Port, Room, Sent, open};
use doorbell_udp::protocol::{
    Config, DomainKey, Endpoint, Event, LinkId, Path, Receive, SessionId, Target, Time, TransferId, Transmit,
};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use twox_hash::XxHash3_64;

/// The number of datagrams that the flooded endpoints take, one without a domain key and one with it.
const FLOOD: u64 = 1_000_000;
/// The number of sockets that they come from, each with an address and a port of its own.
const SOURCES: usize = 64;
/// Datagrams of one kind that are sent at once.
const BATCH: usize = 32;
/// The most that memory may grow by, in bytes: what allocators keep.
const SLACK: usize = 8 << 20;
const LONGEST: Duration = Duration::from_secs(120);

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.chunks_mut(8).for_each(|chunk| {
            let number = self.next().to_le_bytes();
            chunk.copy_from_slice(&number[..chunk.len()]);
        });
    }
}

#[derive(Default)]
struct Count(u64);

impl Sink for Count {
    fn packet(&mut self, _: NodeId, _: Incarnation, _: Priority, head: &PacketHead, _: Payload<'_>) -> Verdict {
        assert_eq!(head.tag, self.0, "in order, each once");
        self.0 += 1;
        Verdict::Taken
    }

    fn damaged(&mut self, node: NodeId, _: Priority, reason: &'static str) {
        panic!("{node}: {reason}");
    }
}

impl Receive for Count {
    fn place(&mut self, _: SessionId, _: TransferId, _: u64, _: &[u8]) {
        panic!("nothing was expected");
    }
}

/// An endpoint at a socket.
struct Node {
    endpoint: Endpoint,
    port: Box<dyn Port>,
    session: Option<SessionId>,
    had: Count,
    pushed: u64,
    began: Instant,
    buf: Vec<u8>,
    room: Room,
}

fn config(node: u16, key: Option<DomainKey>) -> Config {
    Config { key, ..Config::loopback("flood", NodeId(node), Incarnation(1)) }
}

fn seed(node: u16) -> [u8; 32] {
    let mut seed = [0; 32];
    Random(node.into()).fill(&mut seed);
    seed
}

impl Node {
    fn new(node: u16, key: Option<DomainKey>, kind: Kind, began: Instant) -> Self {
        let port = open(&Options { kind, ..Options::new((Ipv4Addr::LOCALHOST, 0).into()) }).unwrap();
        let endpoint = Endpoint::new(config(node, key), seed(node)).unwrap();
        Self {
            endpoint,
            port,
            session: None,
            had: Count::default(),
            pushed: 0,
            began,
            buf: vec![0; 1 << 16],
            room: Room::default(),
        }
    }

    fn address(&self) -> SocketAddr {
        self.port.direct().local()
    }

    fn turn(&mut self) {
        let now = Time::from_nanos(self.began.elapsed().as_nanos() as u64 + 1);
        let Self { endpoint, port, had, room, .. } = self;
        let each = &mut |mut run: Run<'_>| {
            let from = Path { link: LinkId(0), peer: run.peer };
            run.datagrams().for_each(|datagram| _ = endpoint.handle_datagram(now, from, datagram, had, false));
        };
        port.direct().receive(room, 64, each).unwrap();
        while let Some(event) = endpoint.poll_event() {
            match event {
                Event::Connected { session, .. } => assert!(self.session.replace(session).is_none()),
                Event::Closed { reason, .. } => panic!("the session ended: {reason:?}"),
                _ => {}
            }
        }
        while let Some(Transmit { path, len, segment, .. }) = endpoint.poll_transmit(now, &mut self.buf, &mut ()) {
            // The kernel drops datagrams that it has no room for, as any network does.
            let _ = port.direct().send(&Run { peer: path.peer, bytes: &mut self.buf[..len], segment });
        }
    }

    fn push(&mut self) {
        let now = Time::from_nanos(self.began.elapsed().as_nanos() as u64 + 1);
        let head = PacketHead { kind: PacketKind::Whole, tag: self.pushed, sequence: 0, total: 100 };
        let pushed = self.endpoint.push(now, self.session.unwrap(), Priority::Normal, &head, &[7; 100]);
        assert!(!matches!(pushed, Push::Down(_)));
        self.pushed += u64::from(pushed == Push::Done);
    }
}

/// The memory of this process, in bytes.
fn resident() -> usize {
    let words = std::fs::read_to_string("/proc/self/statm").unwrap();
    words.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// A correct Hello of a node of the domain that never answers again.
fn hello(key: Option<DomainKey>, node: u16) -> Vec<u8> {
    let mut endpoint = Endpoint::new(config(node, key), seed(node)).unwrap();
    let peer = (Ipv4Addr::LOCALHOST, 9).into();
    let target = Target { path: Path { link: LinkId(0), peer }, node: None };
    endpoint.connect(Time::from_nanos(1), target).unwrap();
    let mut buf = vec![0; 1 << 16];
    let sent = endpoint.poll_transmit(Time::from_nanos(1), &mut buf, &mut ()).unwrap();
    buf.truncate(sent.len);
    buf
}

/// Datagrams of strangers, of `segment` bytes each, one behind the other.
fn strangers(random: &mut Random, hello: &[u8], what: u64) -> (Vec<u8>, usize) {
    let segment = match what {
        // A correct Hello.
        0 => return (hello.repeat(BATCH), hello.len()),
        // Something like a Hello, an Open, or an answer.
        1 => 56,
        2 => 120,
        3 => 100,
        // Junk, and something like data.
        _ => 20 + random.next() as usize % 800,
    };
    let everybody = hmac::Key::new(hmac::HMAC_SHA256, &[0; 32]);
    let mut bytes = vec![0; segment * BATCH];
    random.fill(&mut bytes);
    for datagram in bytes.chunks_mut(segment) {
        let first = match what {
            1 => Some(0xD0),
            2 => Some(0xD2),
            3 => Some(0xD1 + datagram[1] % 4),
            4 => Some(0xD8),
            _ => None,
        };
        if let Some(first) = first {
            datagram[0] = first;
        }
        if what < 4 {
            // The bytes from the nonce on are random, so that it differs from a damaged Hello.
            datagram[1..8].copy_from_slice(&hello[1..8]);
            datagram[20..32].copy_from_slice(&hello[20..32]);
            if what == 2 {
                datagram[56..58].copy_from_slice(&[38, 0]);
            }
            let (rest, check) = datagram.split_last_chunk_mut::<8>().unwrap();
            let (body, proof) = rest.split_last_chunk_mut::<16>().unwrap();
            proof.copy_from_slice(&hmac::sign(&everybody, body).as_ref()[..16]);
            *check = XxHash3_64::oneshot(rest).to_le_bytes();
        }
        if what == 4 {
            // The lowest places are those that are taken.
            (datagram[4], datagram[5]) = (datagram[4] & 1, 0);
        }
    }
    (bytes, segment)
}

fn flood(key: Option<DomainKey>, kind: Kind) {
    let began = Instant::now();
    let soon = |what: &str| assert!(began.elapsed() < LONGEST, "{what} takes too long");
    let mut nodes = [0, 1].map(|node| Node::new(node, key.clone(), kind, began));
    let target = nodes[0].address();
    let path = Path { link: LinkId(0), peer: target };
    nodes[1].endpoint.connect(Time::from_nanos(1), Target { path, node: None }).unwrap();
    while nodes.iter().any(|node| node.session.is_none()) {
        soon("connecting");
        nodes.iter_mut().for_each(Node::turn);
    }
    let sources: Vec<_> = (0..SOURCES)
        .map(|source| {
            let address = (Ipv4Addr::new(127, 0, 1, source as u8), 0).into();
            open(&Options { receive_buffer: 4096, send_buffer: 1 << 20, ..Options::new(address) }).unwrap()
        })
        .collect();
    let hellos: Vec<_> = (0..SOURCES).map(|source| hello(key.clone(), 2 + source as u16)).collect();
    let (mut random, mut round, mut before) = (Random(1), 0, None);
    let taken_in = |nodes: &[Node; 2]| nodes[0].endpoint.stats().datagrams_in;
    while taken_in(&nodes) < FLOOD / 2 {
        soon("the flood");
        for _ in 0..8 {
            let (source, what) = (round as usize % SOURCES, random.next() % 6);
            let (mut bytes, segment) = strangers(&mut random, &hellos[source], what);
            assert_eq!(sources[source].direct().send(&Run { peer: target, bytes: &mut bytes, segment }), Sent::Sent);
            round += 1;
        }
        nodes.iter_mut().for_each(Node::turn);
        if round % 1024 == 0 {
            nodes.iter_mut().for_each(Node::push);
        }
        // By then every buffer and table has the size it needs.
        if before.is_none() && taken_in(&nodes) > FLOOD / 10 {
            before = Some(resident());
        }
    }
    let grown = resident().saturating_sub(before.unwrap());
    let stats = nodes[0].endpoint.stats();
    println!("{:?} for {} datagrams, memory {grown} bytes more: {stats:?}", began.elapsed(), stats.datagrams_in);
    assert!(grown <= SLACK, "{grown} bytes more memory");
    assert!(stats.bytes_out <= 3 * stats.bytes_in && stats.connected == 1 && stats.closed == 0, "{stats:?}");
    let asked = if key.is_some() { stats.rejected } else { stats.bad_cookies };
    assert!(stats.junk.min(stats.stray).min(stats.retries).min(asked) > 1000, "{stats:?}");
    (0..100).for_each(|_| nodes.iter_mut().for_each(Node::push));
    while nodes[0].had.0 < nodes[1].pushed || nodes[1].had.0 < nodes[0].pushed {
        soon("delivery after the flood");
        nodes.iter_mut().for_each(Node::turn);
    }
    assert!(nodes.iter().all(|node| node.pushed >= 100));
}

// One after the other: both measure the memory of this process.
#[test]
fn a_flood_leaves_memory_and_sessions_as_they_are() {
    flood(None, Kind::Calls);
    flood(Some(DomainKey([8; 32])), Kind::Uring);
}
