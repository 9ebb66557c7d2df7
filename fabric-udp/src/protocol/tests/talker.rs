//! A driver for tests: it sends numbered packets and transfers, and checks everything that arrives.

use crate::protocol::sim::{Dice, Driver, Network, Rules};
use crate::protocol::*;
use doorbell_fabric::{Incarnation, NodeId, PRIORITIES, PacketHead, PacketKind, Payload, Priority, Push, Sink, Verdict};
use std::collections::BTreeMap;

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000 * MS;

/// Packets to be sent on one lane.
#[derive(Clone, Debug)]
pub struct Stream {
    pub priority: Priority,
    pub packets: u64,
    /// The session to use, if there are several.
    pub strand: u8,
    /// The payload of packet `n` has between these two numbers of bytes.
    pub sizes: (usize, usize),
    pub pushed: u64,
}

impl Stream {
    pub fn new(priority: Priority, packets: u64, sizes: (usize, usize)) -> Self {
        Self { priority, packets, strand: 0, sizes, pushed: 0 }
    }

    pub fn by(self, strand: u8) -> Self {
        Self { strand, ..self }
    }
}

/// Fills a payload so that no other packet's bytes would match.
pub fn fill(seed: u64, offset: u64, bytes: &mut [u8]) {
    for (at, byte) in bytes.iter_mut().enumerate() {
        let place = offset + at as u64;
        *byte = (seed.wrapping_mul(31).wrapping_add(place ^ (place >> 8).wrapping_mul(7))) as u8;
    }
}

pub fn matches(seed: u64, offset: u64, bytes: &[u8]) -> bool {
    let mut expected = vec![0; bytes.len()];
    fill(seed, offset, &mut expected);
    expected == bytes
}

/// A transfer that arrives.
pub struct Incoming {
    pub bytes: Vec<u8>,
    pub placed: u64,
    pub complete: u32,
    pub cancelled: u32,
}

#[derive(Default)]
pub struct Talker {
    pub session: Option<SessionId>,
    /// Further sessions.
    pub strands: BTreeMap<u8, SessionId>,
    pub streams: Vec<Stream>,
    pub events: Vec<Event>,
    pub received: BTreeMap<(NodeId, Incarnation), [u64; PRIORITIES]>,
    /// Packets that arrived by further sessions; each packet names its session.
    pub received_by: BTreeMap<(NodeId, Incarnation, u8), [u64; PRIORITIES]>,
    pub bytes_received: u64,
    pub refuse: bool,
    /// Puts off packets of this lane.
    pub later: Option<Priority>,
    /// Refuses this many out of a hundred packets.
    pub refuse_some: u64,
    pub stop_some: u64,
    pub break_at: Option<u64>,
    pub full: u64,
    pub incoming: BTreeMap<u64, Incoming>,
    pub outgoing: BTreeMap<u64, u64>,
    pub sent: Vec<u64>,
    pub cancelled_out: Vec<u64>,
    pub unreadable: bool,
    pub damaged: Vec<&'static str>,
    /// A node that follows no rules. It has a session apart from the others, and its packets are taken without checks.
    pub foe: Option<u16>,
    pub foe_session: Option<SessionId>,
    /// Packets still to be sent to it.
    pub to_foe: u32,
    pub damaged_by_foe: u32,
    pub dice: Option<Dice>,
    pub deliver: bool,
}

impl Talker {
    pub fn with(streams: Vec<Stream>) -> Self {
        Self { streams, deliver: true, ..Self::default() }
    }

    pub fn count_from(&self, node: u16) -> u64 {
        self.received.iter().filter(|((from, _), _)| from.0 == node).map(|(_, counts)| counts.iter().sum::<u64>()).sum()
    }

    pub fn count_by(&self, node: u16, strand: u8) -> u64 {
        let of = |key: &(NodeId, Incarnation, u8)| key.0.0 == node && key.2 == strand;
        self.received_by.iter().filter(|(key, _)| of(key)).map(|(_, counts)| counts.iter().sum::<u64>()).sum()
    }

    pub fn is_connected(&self) -> bool {
        self.session.is_some()
    }

    fn roll(&mut self, percent: u64) -> bool {
        percent > 0 && self.dice.get_or_insert_with(|| Dice::new(7)).below(100) < percent
    }

    pub fn closed(&self) -> Option<CloseReason> {
        self.events.iter().find_map(|event| if let Event::Closed { reason, .. } = event { Some(*reason) } else { None })
    }
}

impl Sink for Talker {
    fn packet(
        &mut self,
        source: NodeId,
        incarnation: Incarnation,
        priority: Priority,
        head: &PacketHead,
        payload: Payload<'_>,
    ) -> Verdict {
        if Some(source.0) == self.foe {
            return Verdict::Taken;
        }
        let strand = (head.tag >> 56) as u8;
        if strand > 0 {
            let next = &mut self.received_by.entry((source, incarnation, strand)).or_default()[priority.index()];
            assert_eq!(head.tag & 0xFF_FFFF, *next, "in order, each once: {source:?} {priority:?} by {strand}");
            assert!(matches(head.tag, 0, &payload.to_vec()));
            if self.refuse {
                return Verdict::Refused;
            }
            *next += 1;
            return Verdict::Taken;
        }
        let next = self.received.entry((source, incarnation)).or_default()[priority.index()];
        assert_eq!((head.tag, head.sequence), (next, next as u32), "in order, each once: {source:?} {priority:?}");
        assert!(matches(next, 0, &payload.to_vec()), "packet {next} of {} bytes", payload.len());
        if self.break_at == Some(next) {
            return Verdict::Broken("as the test wants it");
        }
        if self.later == Some(priority) {
            return Verdict::Later;
        }
        let some = self.refuse_some;
        if self.refuse || self.roll(some) {
            return Verdict::Refused;
        }
        self.received.entry((source, incarnation)).or_default()[priority.index()] += 1;
        self.bytes_received += payload.len() as u64;
        let some = self.stop_some;
        if self.roll(some) { Verdict::TakenAndStop } else { Verdict::Taken }
    }

    fn damaged(&mut self, node: NodeId, _: Priority, reason: &'static str) {
        if Some(node.0) == self.foe {
            self.damaged_by_foe += 1;
        } else {
            self.damaged.push(reason);
        }
    }
}

impl Receive for Talker {
    fn place(&mut self, _: SessionId, transfer: TransferId, offset: u64, bytes: &[u8]) {
        let incoming = self.incoming.get_mut(&transfer.0).expect("a transfer that was expected");
        assert_eq!(incoming.complete + incoming.cancelled, 0, "nothing after the end");
        assert!(matches(transfer.0 + 1000, offset, bytes));
        let into = &mut incoming.bytes[offset as usize..offset as usize + bytes.len()];
        assert!(into.iter().all(|byte| *byte == 0), "each byte once");
        into.fill(1);
        incoming.placed += bytes.len() as u64;
    }
}

impl Source for Talker {
    fn lends(&mut self, _: SessionId, _: TransferId) -> bool {
        !self.unreadable
    }

    fn read(&mut self, _: SessionId, transfer: TransferId, offset: u64, into: &mut [u8]) -> bool {
        assert!(self.outgoing.contains_key(&transfer.0), "not after the end");
        fill(transfer.0 + 1000, offset, into);
        !self.unreadable
    }
}

impl Driver for Talker {
    fn turn(&mut self, now: Time, endpoint: &mut Endpoint) -> Option<Time> {
        while let Some(event) = endpoint.poll_event() {
            match &event {
                Event::Connected { session, peer, .. } if Some(peer.node.0) == self.foe => self.foe_session = Some(*session),
                Event::Connected { session, strand: strand @ 1.., .. } => drop(self.strands.insert(*strand, *session)),
                Event::Connected { session, .. } => {
                    self.session = Some(*session);
                    self.streams.iter_mut().for_each(|stream| stream.pushed = 0);
                }
                Event::Closed { session, .. } if self.strands.values().any(|one| one == session) => {
                    self.strands.retain(|_, one| one != session);
                }
                Event::Closed { session, .. } if self.session == Some(*session) => self.session = None,
                Event::Arrived { transfer, .. } => self.incoming.get_mut(&transfer.0).expect("expected").complete += 1,
                Event::Sent { transfer, .. } => {
                    self.outgoing.remove(&transfer.0).expect("told once");
                    self.sent.push(transfer.0);
                }
                Event::Cancelled { transfer, outgoing: true, .. } => {
                    self.outgoing.remove(&transfer.0).expect("told once");
                    self.cancelled_out.push(transfer.0);
                }
                Event::Cancelled { transfer, outgoing: false, .. } => {
                    self.incoming.get_mut(&transfer.0).expect("expected").cancelled += 1;
                }
                _ => {}
            }
            self.events.push(event);
        }
        if self.deliver && !self.refuse {
            endpoint.deliver(now, self, 64);
        }
        while self.to_foe > 0
            && let Some(session) = self.foe_session
        {
            self.to_foe -= 1;
            let head = PacketHead { kind: PacketKind::Whole, tag: 0, sequence: 0, total: 8 };
            endpoint.push(now, session, Priority::Normal, &head, &[7; 8]);
        }
        if let Some(first) = self.session {
            let mut payload = Vec::new();
            for index in 0..self.streams.len() {
                let stream = &mut self.streams[index];
                let further = self.strands.get(&stream.strand).copied();
                let Some(session) = (if stream.strand == 0 { Some(first) } else { further }) else { continue };
                while stream.pushed < stream.packets {
                    let number = stream.pushed | u64::from(stream.strand) << 56;
                    let (low, high) = stream.sizes;
                    let len = (low + (number as usize * 37) % (high - low + 1)).min(endpoint.packet_bytes(session));
                    payload.resize(len, 0);
                    fill(number, 0, &mut payload);
                    let head = PacketHead { kind: PacketKind::Whole, tag: number, sequence: number as u32, total: len as u64 };
                    match endpoint.push(now, session, stream.priority, &head, &payload) {
                        Push::Done => stream.pushed += 1,
                        Push::Full => {
                            self.full += 1;
                            break;
                        }
                        Push::Down(_) => break,
                    }
                }
            }
        }
        (self.refuse_some > 0 || self.stop_some > 0).then(|| now + MS)
    }
}

pub fn config(node: u16) -> Config {
    let mut config = Config::new("test", NodeId(node), Incarnation(100 + u32::from(node)));
    config.links = vec![LinkConfig::interface(1500)];
    config
}

pub fn seed_of(seed: u64, node: u64) -> [u8; 32] {
    let mut dice = Dice::new(seed ^ (node << 40));
    let mut bytes = [0; 32];
    bytes.iter_mut().for_each(|byte| *byte = dice.number() as u8);
    bytes
}

pub type Net = Network<Talker>;

/// Two nodes; node 0 requests a session with node 1.
pub fn pair(seed: u64, rules: Rules, change: impl Fn(&mut Config), talkers: [Talker; 2]) -> Net {
    let mut network = Net::new(seed, rules);
    for (index, talker) in talkers.into_iter().enumerate() {
        let mut config = config(index as u16);
        change(&mut config);
        network.add(Endpoint::new(config, seed_of(seed, index as u64)).unwrap(), talker);
    }
    connect(&mut network, 0, 1);
    network
}

pub fn connect(network: &mut Net, from: usize, to: usize) -> SessionId {
    let now = network.now();
    let target = Target { path: Net::path_to(to), node: None };
    let session = network.endpoint(from).connect(now, target).unwrap();
    network.wake(from);
    session
}

/// Starts a transfer between two connected nodes.
pub fn transfer(network: &mut Net, from: usize, to: usize, total: u64, limit: u64, priority: Priority) -> TransferId {
    let now = network.now();
    let (theirs, ours) = (network.nodes[to].driver.session.unwrap(), network.nodes[from].driver.session.unwrap());
    let id = network.endpoint(to).expect(now, theirs, total, limit).unwrap();
    let incoming = Incoming { bytes: vec![0; total as usize], placed: 0, complete: 0, cancelled: 0 };
    network.nodes[to].driver.incoming.insert(id.0, incoming);
    network.nodes[from].driver.outgoing.insert(id.0, total);
    network.endpoint(from).begin_transfer(now, ours, id, total, priority).unwrap();
    network.wake(from);
    network.wake(to);
    id
}
