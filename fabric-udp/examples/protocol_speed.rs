//! What the protocol itself costs: two endpoints back to back in memory, without a network between them.
//!
//! `cargo run --release -p doorbell-udp --example protocol_speed`, and with `-- ciphers` behind it: what sealing a datagram costs.

use aws_lc_rs::aead;
use doorbell_fabric::{Incarnation, NodeId, PacketHead, PacketKind, Payload, Priority, Push, Sink, Verdict};
use doorbell_udp::protocol::{
    Config, DomainKey, Endpoint, Event, LinkConfig, LinkId, Path, Receive, SessionId, Source, Target, Time, TransferId,
};
use std::net::SocketAddr;
use std::time::Instant;

#[derive(Default)]
struct Counting {
    packets: u64,
    bytes: u64,
    buffer: Vec<u8>,
}

impl Sink for Counting {
    fn packet(&mut self, _: NodeId, _: Incarnation, _: Priority, _: &PacketHead, payload: Payload<'_>) -> Verdict {
        self.packets += 1;
        self.bytes += payload.len() as u64;
        payload.copy_to(&mut self.buffer);
        Verdict::Taken
    }

    fn damaged(&mut self, node: NodeId, _: Priority, reason: &'static str) {
        panic!("{node}: {reason}");
    }
}

impl Receive for Counting {
    fn place(&mut self, _: SessionId, _: TransferId, offset: u64, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        let at = offset as usize % (self.buffer.len() / 2);
        self.buffer[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// A buffer that is sent again and again.
struct Repeated(Vec<u8>);

impl Source for Repeated {
    fn read(&mut self, _: SessionId, _: TransferId, offset: u64, into: &mut [u8]) -> bool {
        let at = offset as usize % (self.0.len() / 2);
        into.copy_from_slice(&self.0[at..at + into.len()]);
        true
    }
}

struct Bench {
    ends: [Endpoint; 2],
    sinks: [Counting; 2],
    source: Repeated,
    sessions: [Option<SessionId>; 2],
    buf: Vec<u8>,
    start: Instant,
}

fn address(index: usize) -> SocketAddr {
    ([127, 0, 0, 1], 4000 + index as u16).into()
}

impl Bench {
    fn new(key: bool, link: LinkConfig) -> Bench {
        let end = |index: u16| {
            let mut config = Config::loopback("speed", NodeId(index), Incarnation(1));
            config.links = vec![link];
            config.lane_window = 4 << 20;
            config.lane_buffer = 4 << 20;
            config.key = key.then_some(DomainKey([7; 32]));
            Endpoint::new(config, [index as u8; 32]).expect("a sound configuration")
        };
        let sink = || Counting { buffer: vec![0; 1 << 20], ..Counting::default() };
        let mut bench = Bench {
            ends: [end(0), end(1)],
            sinks: [sink(), sink()],
            source: Repeated(vec![5; 1 << 20]),
            sessions: [None; 2],
            buf: vec![0; 1 << 16],
            start: Instant::now(),
        };
        let target = Target { path: Path { link: LinkId(0), peer: address(1) }, node: None };
        let now = bench.now();
        bench.ends[0].connect(now, target);
        while bench.sessions.iter().any(Option::is_none) {
            bench.turn(0);
            bench.turn(1);
        }
        bench
    }

    fn now(&self) -> Time {
        Time::from_nanos(self.start.elapsed().as_nanos() as u64 + 1)
    }

    /// Moves everything one end has to the other.
    fn turn(&mut self, from: usize) -> bool {
        let mut moved = false;
        let now = self.now();
        while let Some(transmit) = self.ends[from].poll_transmit(now, &mut self.buf, &mut self.source) {
            moved = true;
            let path = Path { link: LinkId(0), peer: address(from) };
            for datagram in self.buf[..transmit.len].chunks_mut(transmit.segment) {
                self.ends[1 - from].handle_datagram(now, path, datagram, &mut self.sinks[1 - from], false);
            }
        }
        while let Some(event) = self.ends[from].poll_event() {
            if let Event::Connected { session, .. } = event {
                self.sessions[from] = Some(session);
            }
        }
        moved
    }

    fn push(&mut self, from: usize, bytes: &[u8]) -> bool {
        let (now, session) = (self.now(), self.sessions[from].expect("connected"));
        let head = PacketHead { kind: PacketKind::Whole, tag: 7, sequence: 0, total: bytes.len() as u64 };
        self.ends[from].push(now, session, Priority::Normal, &head, bytes) == Push::Done
    }

    /// Nanoseconds for a message one way, in a conversation.
    fn ping_pong(&mut self, len: usize) -> f64 {
        let payload = vec![1; len];
        let rounds = 200_000;
        let start = Instant::now();
        for _ in 0..rounds {
            for end in [0, 1] {
                assert!(self.push(end, &payload));
                let before = self.sinks[1 - end].packets;
                self.turn(end);
                assert_eq!(self.sinks[1 - end].packets, before + 1);
            }
        }
        start.elapsed().as_nanos() as f64 / (2 * rounds) as f64
    }

    /// Nanoseconds a message in a stream.
    fn stream(&mut self, len: usize, count: u64) -> f64 {
        let payload = vec![1; len];
        let before = self.sinks[1].packets;
        let start = Instant::now();
        let mut pushed = 0;
        while self.sinks[1].packets - before < count {
            while pushed < count && self.push(0, &payload) {
                pushed += 1;
            }
            self.turn(0);
            self.turn(1);
        }
        start.elapsed().as_nanos() as f64 / count as f64
    }

    /// Bytes a nanosecond of a transfer.
    fn transfer(&mut self, total: u64) -> f64 {
        let now = self.now();
        let (from, to) = (self.sessions[0].expect("connected"), self.sessions[1].expect("connected"));
        let id = self.ends[1].expect(now, to, total, total).expect("live");
        self.ends[0].begin_transfer(now, from, id, total, Priority::Normal).expect("live");
        let before = self.sinks[1].bytes;
        let start = Instant::now();
        while self.sinks[1].bytes - before < total {
            self.turn(1);
            self.turn(0);
        }
        total as f64 / start.elapsed().as_nanos() as f64
    }
}

/// What the cipher was chosen by.
fn ciphers() {
    for algorithm in [&aead::AES_256_GCM, &aead::AES_128_GCM, &aead::CHACHA20_POLY1305] {
        let key = aead::LessSafeKey::new(aead::UnboundKey::new(algorithm, &vec![1; algorithm.key_len()]).expect("a key"));
        for len in [64, 1400, 65_000] {
            let mut body = vec![0; len];
            let rounds = 200_000_000 / (len as u64 + 1000);
            let start = Instant::now();
            for number in 0..rounds {
                let mut nonce = [0; 12];
                nonce[4..].copy_from_slice(&number.to_le_bytes());
                let (nonce, head) = (aead::Nonce::assume_unique_for_key(nonce), aead::Aad::from(&[0_u8; 16]));
                let _tag = key.seal_in_place_separate_tag(nonce, head, &mut body).expect("sealed");
            }
            let each = start.elapsed().as_nanos() as f64 / rounds as f64;
            println!("{algorithm:?} {len:6} bytes: {each:6.0} ns, {:.2} GB/s", len as f64 / each);
        }
    }
}

fn main() {
    if std::env::args().nth(1).as_deref() == Some("ciphers") {
        return ciphers();
    }
    // For a profiler: conversations only.
    if std::env::args().nth(1).as_deref() == Some("turns") {
        let mut bench = Bench::new(std::env::args().nth(2).is_some(), LinkConfig::LOOPBACK);
        (0..20).for_each(|_| println!("{:.0} ns", bench.ping_pong(8)));
        return;
    }
    println!("{:34} {:>10} {:>10} {:>10} {:>10} {:>10}", "", "8 B turns", "8 B stream", "1 KiB str.", "lane GB/s", "put GB/s");
    let ethernet = LinkConfig { mtu: 1472, start: 1472, search: false };
    for (name, key, link) in [
        ("loopback", false, LinkConfig::LOOPBACK),
        ("loopback, key", true, LinkConfig::LOOPBACK),
        ("1472 bytes", false, ethernet),
        ("1472 bytes, key", true, ethernet),
    ] {
        let mut bench = Bench::new(key, link);
        bench.ping_pong(8);
        let turns = bench.ping_pong(8);
        let small = bench.stream(8, 2_000_000);
        let medium = bench.stream(1024, 500_000);
        let full = bench.ends[0].packet_bytes(bench.sessions[0].expect("connected"));
        let lane = full as f64 / bench.stream(full, (2 << 30) / full as u64);
        let put = bench.transfer(2 << 30);
        println!("{name:34} {turns:>7.0} ns {small:>7.1} ns {medium:>7.0} ns {lane:>10.2} {put:>10.2}");
    }
}
