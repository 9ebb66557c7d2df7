//! An endpoint that receives arbitrary datagrams from strangers and from a peer that follows no rules, while an innocent peer has
//! a session with it.

use super::tape::Tape;
use crate::protocol::handshake::{COOKIE, Exchange, Hello, Params, write_hello, write_open};
use crate::protocol::random::Random;
use crate::protocol::sim::{Dice, Driver, Network, Rules};
use crate::protocol::wire::{U32, U64};
use crate::protocol::{Config, DomainKey, Endpoint, Event, LinkConfig, Receive, SessionId, Source, Target, Time, TransferId};
use doorbell_fabric::{Incarnation, NodeId, PacketHead, PacketKind, Payload, Priority, Push, Sink, Verdict};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLI;
/// The nodes: the target, the innocent node, and the one that follows no rules.
const TARGET: usize = 0;
const INNOCENT: usize = 1;
const HOSTILE: usize = 2;
const SESSIONS_MAX: usize = 12;
const OFFERS_MAX: usize = 4;
/// The most answers to strangers that may wait.
const ANSWERS_MAX: usize = 64;
/// The most instructions of one program.
const STEPS: usize = 600;
/// The most turns in a row in which nothing happens.
const IDLE_TURNS: u32 = 100;
/// The kinds of frames, and some invalid ones.
const FRAMES: [u8; 20] =
    [0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x1a, 0x09, 0xff];

/// Runs a program that sends an endpoint datagrams of all sorts.
///
/// # Panics
/// The endpoint grows, answers strangers with more than three times what they sent, is always busy, or lets an innocent peer's
/// session suffer.
pub fn datagrams(program: &[u8]) {
    let mut siege = Siege::new(program);
    for _ in 0..STEPS {
        if siege.tape.is_empty() {
            break;
        }
        siege.step();
        siege.check();
    }
    siege.finish();
}

/// The driver of each node. It is strict with innocent peers and accepts anything from the hostile one.
#[derive(Default)]
struct Watcher {
    /// The session with the innocent node, or its own.
    innocent: Option<SessionId>,
    /// The session with the hostile node, or its own.
    hostile: Option<SessionId>,
    /// Whether the driver belongs to the hostile node.
    is_hostile: bool,
    /// The number of packets from the innocent peer.
    had: u64,
    refuse: bool,
    /// The transfers that the hostile peer may send.
    expected: BTreeMap<(SessionId, TransferId), Vec<bool>>,
    last: (u64, u64),
    idle: u32,
}

impl Sink for Watcher {
    fn packet(&mut self, source: NodeId, _: Incarnation, _: Priority, head: &PacketHead, payload: Payload<'_>) -> Verdict {
        if usize::from(source.0) == HOSTILE {
            return if self.refuse { Verdict::Refused } else { Verdict::Taken };
        }
        assert_eq!((head.tag, payload.len()), (self.had, 100), "the innocent peer's packets are in order");
        self.had += 1;
        Verdict::Taken
    }

    fn damaged(&mut self, node: NodeId, _: Priority, reason: &'static str) {
        assert!(self.is_hostile || usize::from(node.0) == HOSTILE, "the innocent session is damaged: {reason}");
    }
}

impl Receive for Watcher {
    fn place(&mut self, session: SessionId, transfer: TransferId, offset: u64, bytes: &[u8]) {
        let there = self.expected.get_mut(&(session, transfer)).expect("a transfer that was expected");
        let into = &mut there[offset as usize..offset as usize + bytes.len()];
        assert!(into.iter().all(|there| !there), "each byte once");
        into.fill(true);
    }
}

impl Source for Watcher {
    fn read(&mut self, session: SessionId, _: TransferId, _: u64, _: &mut [u8]) -> bool {
        assert_eq!(Some(session), self.hostile);
        true
    }
}

impl Driver for Watcher {
    fn turn(&mut self, now: Time, endpoint: &mut Endpoint) -> Option<Time> {
        let stats = endpoint.stats();
        let seen = (stats.datagrams_in, stats.datagrams_out);
        self.idle = if self.last == seen { self.idle + 1 } else { 0 };
        assert!(self.idle < IDLE_TURNS, "something is always due, but nothing happens");
        self.last = seen;
        while let Some(event) = endpoint.poll_event() {
            match event {
                Event::Connected { session, peer, .. } if usize::from(peer.node.0) == HOSTILE => self.hostile = Some(session),
                Event::Connected { session, peer, .. } if usize::from(peer.node.0) == INNOCENT => {
                    assert!(self.innocent.replace(session).is_none(), "the innocent node connected twice");
                }
                // The session with the target, from the viewpoint of the innocent and of the hostile node.
                Event::Connected { session, .. } => (self.innocent, self.hostile) = (Some(session), Some(session)),
                Event::Closed { session, reason, .. } => {
                    assert!(
                        self.innocent != Some(session) || self.hostile == Some(session),
                        "an innocent session ended: {reason:?}"
                    );
                    if self.hostile == Some(session) {
                        self.hostile = None;
                        self.expected.retain(|(of, _), _| *of != session);
                    }
                }
                Event::Arrived { session, transfer } | Event::Cancelled { session, transfer, outgoing: false } => {
                    self.expected.remove(&(session, transfer)).expect("a transfer ends once");
                }
                _ => {}
            }
        }
        endpoint.deliver(now, self, 64);
        None
    }
}

struct Siege<'p> {
    tape: Tape<'p>,
    network: Network<Watcher>,
    config: Config,
    /// The bytes that each stranger sent.
    sent: BTreeMap<SocketAddr, u64>,
    lives: u32,
    pushed: [u64; 2],
    random: Random,
    /// Datagrams that the nodes exchanged before the siege.
    genuine: Vec<(SocketAddr, SocketAddr, Vec<u8>)>,
}

fn seed_of(number: u64) -> [u8; 32] {
    let mut dice = Dice::new(number);
    [0; 32].map(|_: u8| dice.number() as u8)
}

impl<'p> Siege<'p> {
    fn new(program: &'p [u8]) -> Self {
        let mut tape = Tape::new(program);
        let how = tape.byte();
        let mut config = Config::new("siege", NodeId(0), Incarnation(1));
        config.key = (how & 1 != 0).then_some(DomainKey([6; 32]));
        config.links = vec![if how & 2 != 0 { LinkConfig::LOOPBACK } else { LinkConfig::interface(1_500) }];
        config.lane_window = if how & 4 != 0 { 8 << 10 } else { 128 << 10 };
        config.explain = how & 8 == 0;
        config.idle_after = (how & 16 != 0).then_some(Duration::from_secs(1000));
        (config.sessions_max, config.offers_max) = (SESSIONS_MAX, OFFERS_MAX);
        let mut network = Network::new(u64::from(how), Rules::clean(MILLI));
        network.record = Some(Vec::new());
        for node in [TARGET, INNOCENT, HOSTILE] {
            let config = Config { node: NodeId(node as u16), ..config.clone() };
            let endpoint = Endpoint::new(config, seed_of(node as u64)).expect("a sound configuration");
            network.add(endpoint, Watcher { is_hostile: node == HOSTILE, ..Watcher::default() });
        }
        let random = Random::new(seed_of(99));
        let mut siege =
            Self { tape, network, config, sent: BTreeMap::new(), lives: 1, pushed: [0; 2], random, genuine: Vec::new() };
        siege.connect(INNOCENT);
        siege.connect(HOSTILE);
        siege.pass(SECOND / 10);
        siege.push();
        siege.pass(SECOND / 10);
        siege.genuine = siege.network.record.take().unwrap_or_default();
        siege
    }

    fn connect(&mut self, from: usize) {
        let now = self.network.now();
        let target = Target { path: Network::<Watcher>::path_to(TARGET), node: None };
        self.network.endpoint(from).connect(now, target);
        self.network.wake(from);
    }

    fn pass(&mut self, span: u64) {
        let until = self.network.now() + span;
        self.network.run(until, |_| false);
    }

    /// The innocent node and the target send each other a packet.
    fn push(&mut self) {
        let now = self.network.now();
        for (at, node) in [TARGET, INNOCENT].into_iter().enumerate() {
            let session = self.network.nodes[node].driver.innocent.expect("the innocent session stands");
            let head = PacketHead { kind: PacketKind::Whole, tag: self.pushed[at], sequence: 0, total: 100 };
            let pushed = self.network.endpoint(node).push(now, session, Priority::Normal, &head, &[7; 100]);
            assert_ne!(pushed, Push::Down(doorbell_fabric::LinkDown::Damaged), "the innocent session is down");
            self.pushed[at] += u64::from(pushed == Push::Done);
            self.network.wake(node);
        }
    }

    fn stranger(&mut self) -> SocketAddr {
        let which = self.tape.byte();
        ([172, 16, 0, which & 3], 1000 + u16::from(which >> 2 & 1)).into()
    }

    /// Sends the target a datagram from a stranger, or as if from one of the nodes.
    fn send(&mut self, from: SocketAddr, bytes: Vec<u8>) {
        if self.network.nodes.iter().all(|node| node.address != from) {
            *self.sent.entry(from).or_default() += bytes.len() as u64;
        }
        self.network.inject(from, TARGET, bytes);
    }

    fn from(&mut self) -> SocketAddr {
        match self.tape.below(4) {
            0 => self.network.nodes[INNOCENT].address,
            1 => self.network.nodes[HOSTILE].address,
            _ => self.stranger(),
        }
    }

    fn step(&mut self) {
        match self.tape.below(16) {
            0 => {
                let (from, len) = (self.from(), self.tape.byte().into());
                let bytes = self.tape.bytes(len).to_vec();
                self.send(from, bytes);
            }
            1 | 2 => self.bent(),
            3 => self.request(),
            4..=8 => self.frames(),
            9 => {
                let len = self.tape.byte().into();
                let body = self.tape.bytes(len).to_vec();
                self.forge(&body);
            }
            10 => {
                let span = (1 + u64::from(self.tape.byte())) * MILLI / 8;
                self.pass(span);
            }
            11 => self.push(),
            12 => self.expect(),
            13 => self.begin(),
            14 => {
                let refuse = self.tape.flag();
                self.network.nodes[TARGET].driver.refuse = refuse;
                self.network.wake(TARGET);
            }
            _ => self.new_life(),
        }
    }

    /// Sends an earlier datagram with some changes.
    fn bent(&mut self) {
        let which = self.tape.below(256) % self.genuine.len();
        let mut bytes = self.genuine[which].2.clone();
        for _ in 0..self.tape.below(4) {
            let (at, with) = (usize::from(self.tape.byte()) * bytes.len() / 256, self.tape.byte());
            bytes[at] ^= with;
        }
        if self.tape.below(8) == 0 {
            bytes.truncate(self.tape.byte().into());
        }
        let from = self.from();
        self.send(from, bytes);
    }

    /// Sends a Hello or an Open of a node that knows the domain and its key, perhaps with a cookie that it was given.
    fn request(&mut self) {
        let (from, what) = (self.stranger(), self.tape.byte());
        let now = self.network.now();
        let secret = self.network.nodes[TARGET].endpoint.as_ref().expect("it lives").secret();
        let mut hello = Hello::new(secret, (1, 1), self.tape.number() as u32, self.tape.number());
        match what & 15 {
            0 => hello.versions = [2.into(), u16::MAX.into()],
            1 => hello.versions = [u16::MAX.into(), 0.into()],
            2 => hello.domain ^= U64::new(1),
            3 => hello.keyed ^= U32::new(1),
            _ => {}
        }
        let datagram = if what & 16 != 0 {
            write_hello(secret, &hello)
        } else {
            let link = LinkConfig { mtu: 1_200 + usize::from(self.tape.byte()), start: 1_200, search: false };
            let me = Config {
                node: NodeId(u16::from(self.tape.below(6) as u8)),
                incarnation: Incarnation(1 + self.tape.number() as u32 % 5),
                lane_window: (self.tape.number() as u32).max(1),
                greeting: vec![1; self.tape.number() as usize % 600],
                ack_delay: Duration::from_micros(self.tape.number() & 0x3_ffff),
                ..self.config.clone()
            };
            let params = Params::new(&me, &link, 0, &mut self.random);
            let Some((_, message)) = Exchange::begin(secret, &hello, &params, &mut self.random) else { return };
            let cookie = if what & 32 != 0 { self.cookie(now, from, &hello) } else { [self.tape.byte(); COOKIE] };
            let secret = self.network.nodes[TARGET].endpoint.as_ref().expect("it lives").secret();
            write_open(secret, &hello, &cookie, &message)
        };
        self.send(from, datagram);
    }

    /// The target's cookie for such a Hello.
    fn cookie(&mut self, now: Time, from: SocketAddr, hello: &Hello) -> [u8; COOKIE] {
        self.network.nodes[TARGET].endpoint.as_ref().expect("it lives").cookie(now, from, hello)
    }

    /// Sends a datagram of the hostile session with frames that are nearly right.
    fn frames(&mut self) {
        let mut body = Vec::new();
        for _ in 0..1 + self.tape.below(3) {
            let kind = FRAMES[self.tape.below(FRAMES.len())];
            body.push(kind);
            let mut put = |tape: &mut Tape, bytes: usize| {
                let number = tape.number();
                body.extend_from_slice(&number.to_le_bytes()[..bytes]);
                number
            };
            let tape = &mut self.tape;
            let mut rest = 0;
            match kind {
                0x02 => {
                    let ranges = put(tape, 1) & 0xff;
                    [2, 4, 8, 4].into_iter().for_each(|bytes| _ = put(tape, bytes));
                    rest = ranges as usize * 8;
                }
                0x03 => [1, 2].into_iter().for_each(|bytes| _ = put(tape, bytes)),
                0x04 | 0x05 => [3, 8].into_iter().for_each(|bytes| _ = put(tape, bytes)),
                0x06 => {
                    put(tape, 1);
                    rest = put(tape, 2) as usize & 0xffff;
                    [8, 8, 8].into_iter().for_each(|bytes| _ = put(tape, bytes));
                }
                0x07 => [3, 8, 8].into_iter().for_each(|bytes| _ = put(tape, bytes)),
                0x08 => [1, 2, 8, 8].into_iter().for_each(|bytes| _ = put(tape, bytes)),
                0x10..=0x13 => {
                    let kind = put(tape, 1) as u8;
                    rest = put(tape, 2) as usize & 0xffff;
                    [4, 8, 4].into_iter().for_each(|bytes| _ = put(tape, bytes));
                    if PacketKind::from_number(kind).is_some_and(PacketKind::has_total) {
                        put(tape, 8);
                    }
                }
                0x14..=0x17 => {
                    put(tape, 1);
                    rest = put(tape, 2) as usize & 0xffff;
                    [4, 4, 4].into_iter().for_each(|bytes| _ = put(tape, bytes));
                }
                0x18 | 0x1a => [1, 2, 4, 8].into_iter().for_each(|bytes| _ = put(tape, bytes)),
                _ => {}
            }
            let fill = self.tape.byte();
            body.resize((body.len() + rest).min(60_000), fill);
        }
        self.forge(&body);
    }

    fn forge(&mut self, body: &[u8]) {
        let how = self.tape.byte();
        let number = (how & 3 == 3).then(|| self.tape.number());
        let now = self.network.now();
        let Some(session) = self.network.nodes[HOSTILE].driver.hostile else { return };
        let datagram = self.network.endpoint(HOSTILE).forge(now, session, number, body);
        let from = if how & 12 == 12 { self.stranger() } else { self.network.nodes[HOSTILE].address };
        self.send(from, datagram);
    }

    /// Makes the target expect a transfer from the hostile peer.
    fn expect(&mut self) {
        let now = self.network.now();
        let (total, limit) = (self.tape.number() & 0xffff, self.tape.number());
        let Some(session) = self.network.nodes[TARGET].driver.hostile else { return };
        if let Ok(transfer) = self.network.endpoint(TARGET).expect(now, session, total, limit) {
            self.network.nodes[TARGET].driver.expected.insert((session, transfer), vec![false; total as usize]);
        }
        self.network.wake(TARGET);
    }

    /// Makes the target send the hostile peer a transfer that it named.
    fn begin(&mut self) {
        let now = self.network.now();
        let (name, total) = (self.tape.number(), self.tape.number() & 0xff_ffff);
        let Some(session) = self.network.nodes[TARGET].driver.hostile else { return };
        let _ = self.network.endpoint(TARGET).begin_transfer(now, session, TransferId(name), total, Priority::Normal);
        self.network.wake(TARGET);
    }

    /// Restarts the hostile node in a new incarnation.
    fn new_life(&mut self) {
        if self.lives > 6 {
            return;
        }
        self.lives += 1;
        let config = Config { node: NodeId(HOSTILE as u16), incarnation: Incarnation(self.lives + 10), ..self.config.clone() };
        let endpoint = Endpoint::new(config, seed_of(u64::from(self.lives) << 32)).expect("a sound configuration");
        self.network.nodes[HOSTILE].endpoint = Some(endpoint);
        self.network.nodes[HOSTILE].driver = Watcher { is_hostile: true, ..Watcher::default() };
        self.connect(HOSTILE);
        self.pass(20 * MILLI);
    }

    fn check(&mut self) {
        let endpoint = self.network.endpoint(TARGET);
        assert!(endpoint.places() <= SESSIONS_MAX);
        let (answers, requests, events) = endpoint.waiting();
        // The target's driver may have caused an event at each step.
        assert!(answers <= ANSWERS_MAX && requests == 0 && events < STEPS + 100, "{answers}, {requests}, {events}");
        let innocent = self.network.nodes[TARGET].driver.innocent.expect("the innocent session stands");
        let stands = self.network.endpoint(TARGET).peer(innocent).is_some();
        assert!(stands, "the innocent session is gone");
    }

    fn finish(&mut self) {
        self.pass(SECOND / 10);
        for (stranger, answered) in &self.network.astray {
            let sent = self.sent.get(stranger).copied().unwrap_or(0);
            assert!(*answered <= 3 * sent, "{stranger} sent {sent} bytes and was answered with {answered}");
        }
        let now = self.network.now();
        (0..10).for_each(|_| self.push());
        let pushed = self.pushed;
        let all = |network: &Network<Watcher>| {
            (network.nodes[INNOCENT].driver.had, network.nodes[TARGET].driver.had) == (pushed[0], pushed[1])
        };
        assert!(self.network.run(now + SECOND, all), "the innocent session delivers no more");
        // State that strangers caused is forgotten; the hostile peer's session may stay.
        let now = self.network.now();
        self.network.run(now + 3 * SECOND, |_| false);
        assert!(self.network.endpoint(TARGET).occupied() <= 2 + self.lives as usize);
        self.check();
    }
}
