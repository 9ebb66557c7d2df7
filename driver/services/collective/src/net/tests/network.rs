//! Calls over sessions of the network's protocol, on a simulated network that loses, repeats, reorders and spoils datagrams.

use super::super::Run;
use super::super::streams::{HEAD, WINDOW};
use super::case::{Chance, ELEMENT};
use super::lanes::{Member, Net, alike};
use doorbell_fabric::{Incarnation, NodeId, PacketHead, PacketKind, Payload, Priority, Push, Sink, Verdict};
use doorbell_udp::protocol::sim::{Driver, Network, NetworkStats, Rules};
use doorbell_udp::protocol::{
    Config, DomainKey, Endpoint, Event, LinkConfig, Receive, SessionId, Source, Target, Time, TransferId,
};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// Drives a member's sessions. The calls of all members are in one place.
struct Wire {
    net: Rc<RefCell<Net>>,
    me: usize,
    sessions: Vec<Option<SessionId>>,
    chance: Chance,
    /// One packet in so many is refused; 0: none.
    refuses: usize,
    refused: usize,
    ended: Vec<String>,
}

impl Sink for Wire {
    fn packet(&mut self, node: NodeId, _: Incarnation, _: Priority, head: &PacketHead, payload: Payload<'_>) -> Verdict {
        if self.refuses > 0 && self.chance.one_in(self.refuses) {
            self.refused += 1;
            return Verdict::Refused;
        }
        let Member { streams, run, .. } = &mut self.net.borrow_mut().members[self.me];
        let verdict = streams.take(run.as_mut().map(Run::memory), node.index(), head.tag, payload);
        assert!(streams.kept(node.index()) <= WINDOW);
        verdict
    }

    fn damaged(&mut self, _: NodeId, _: Priority, reason: &'static str) {
        self.ended.push(reason.to_owned());
    }
}

impl Receive for Wire {
    fn place(&mut self, _: SessionId, _: TransferId, _: u64, _: &[u8]) {
        unreachable!("collectives have no transfers");
    }
}

impl Source for Wire {
    fn read(&mut self, _: SessionId, _: TransferId, _: u64, _: &mut [u8]) -> bool {
        false
    }
}

impl Wire {
    /// Goes on with the calls, and pushes their packets for others. True if anything moved.
    fn go_on(&mut self, now: Time, endpoint: &mut Endpoint) -> bool {
        let mut net = self.net.borrow_mut();
        let mut moved = net.advance(self.me);
        let mut room = Vec::new();
        let Member { streams, run, .. } = &mut net.members[self.me];
        for to in 0..self.sessions.len() {
            let Some(session) = self.sessions[to] else { continue };
            let packet = endpoint.packet_bytes(session);
            while packet > HEAD
                && let Some(tag) = streams.next(run.as_mut().map(Run::memory), to, packet, &mut room)
            {
                let head = PacketHead { kind: PacketKind::Whole, tag, sequence: 0, total: room.len() as u64 };
                if endpoint.push(now, session, Priority::Low, &head, &room) != Push::Done {
                    break;
                }
                streams.sent(to);
                moved = true;
            }
        }
        moved
    }
}

impl Driver for Wire {
    fn turn(&mut self, now: Time, endpoint: &mut Endpoint) -> Option<Time> {
        while let Some(event) = endpoint.poll_event() {
            match event {
                Event::Connected { session, peer, .. } => self.sessions[peer.node.index()] = Some(session),
                Event::Closed { reason, .. } => self.ended.push(format!("{reason:?}")),
                _ => (),
            }
        }
        endpoint.deliver(now, self, 64);
        while self.go_on(now, endpoint) {}
        (self.refuses > 0).then(|| now + MS)
    }
}

/// Runs calls of all members until all are over, and compares the results. Returns what the network did, and the number of refused packets.
fn over(rules: Rules, seed: u64, net: Net) -> (NetworkStats, usize) {
    let members = net.members.len();
    let net = Rc::new(RefCell::new(net));
    let mut network = Network::new(seed, rules);
    for me in 0..members {
        let mut config = Config::new("test", NodeId(me as u16), Incarnation(100 + me as u32));
        config.links = vec![LinkConfig::interface(1500)];
        config.dead_after = Duration::from_secs(60);
        config.connect_for = Duration::from_secs(60);
        config.lane_window = 8192 << (seed % 6);
        config.key = (seed % 2 == 1).then_some(DomainKey([3; 32]));
        let sessions = vec![None; members];
        let (chance, refuses) = (Chance::new(seed ^ me as u64), [0, 10, 3][seed as usize % 3]);
        let wire = Wire { net: net.clone(), me, sessions, chance, refuses, refused: 0, ended: vec![] };
        let mut words = Chance::new(!seed ^ me as u64);
        network.add(Endpoint::new(config, [(); 32].map(|()| words.word() as u8)).unwrap(), wire);
    }
    for (from, to) in (0..members).flat_map(|from| (0..from).map(move |to| (from, to))) {
        let now = network.now();
        network.endpoint(from).connect(now, Target { path: Network::<Wire>::path_to(to), node: None }).unwrap();
        network.wake(from);
    }
    let is_over = |net: &Net| (0..members).all(|rank| net.members[rank].call == net.cases[rank].len());
    let done = network.run(Time::from_nanos(3600 * SECOND), |_| is_over(&net.borrow()));
    let ended: Vec<_> = network.nodes.iter().map(|node| &node.driver.ended).collect();
    let calls: Vec<_> = net.borrow().members.iter().map(|member| (member.call, member.failed)).collect();
    assert!(done && ended.iter().all(|ended| ended.is_empty()), "{calls:?} {ended:?} {:?}", network.stats);
    net.borrow().check();
    (network.stats, network.nodes.iter().map(|node| node.driver.refused).sum())
}

fn rough(seed: u64) -> Rules {
    let loss = [0.0, 0.01, 0.1, 0.3][(seed % 4) as usize];
    let delay = [20_000, 200_000, 3 * MS][(seed / 4 % 3) as usize];
    Rules { loss, duplicate: 0.05, reorder: 0.1, reorder_by: 2 * MS, corrupt: 0.02, ..Rules::clean(delay) }
}

/// Seeds in a row, so that each loss comes with each delay, and with refusals and keys or without. `DOORBELL_SEEDS` says how many.
#[test]
#[cfg_attr(miri, ignore = "too many datagrams")]
fn results_are_the_same_whatever_the_network_does() {
    let seeds = std::env::var("DOORBELL_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(120);
    let mut all = NetworkStats::default();
    let mut refused = 0;
    for seed in 0..seeds {
        let mut chance = Chance::new(seed);
        let (members, calls) = (2 + chance.below(7), 1 + chance.below(5));
        let largest = if seed % 8 == 0 { 100_000 / ELEMENT } else { 2048 };
        let (stats, refusals) = over(rough(seed), seed, alike(chance.word(), members, calls, largest));
        all.sent += stats.sent;
        all.lost += stats.lost;
        all.duplicated += stats.duplicated;
        all.corrupted += stats.corrupted;
        refused += refusals;
    }
    println!("{seeds} seeds: {all:?}, {refused} packets refused");
    assert!(all.lost > 0 && all.duplicated > 0 && all.corrupted > 0 && refused > 0);
}
