//! Addresses that other nodes tell of, in virtual time.

use super::*;
use crate::protocol::{Config, Event, LinkConfig, Receive, TransferId};
use doorbell_fabric::{Incarnation, NodeId, PacketHead, Payload, Priority, Sink, Verdict};

const MS: u64 = 1_000_000;
/// The nodes of a domain, and the most addresses that one honest node tells of: four for each other node.
const NODES: usize = 62;
const TOLD: usize = 4 * NODES;
/// The node that tells of strangers, and an honest node.
const HOSTILE: u16 = 60;
const HONEST: u16 = 61;

struct Nobody;

impl Sink for Nobody {
    fn packet(&mut self, _: NodeId, _: Incarnation, _: Priority, _: &PacketHead, _: Payload<'_>) -> Verdict {
        Verdict::Taken
    }

    fn damaged(&mut self, _: NodeId, _: Priority, _: &'static str) {}
}

impl Receive for Nobody {
    fn place(&mut self, _: SessionId, _: TransferId, _: u64, _: &[u8]) {}
}

fn endpoint(node: u16) -> Endpoint {
    let mut config = Config::new("town", NodeId(node), Incarnation(100 + u32::from(node)));
    config.links = vec![LinkConfig::interface(1500)];
    Endpoint::new(config, [node as u8 + 1; 32]).unwrap()
}

fn address(node: u16) -> SocketAddr {
    ([10, 0, 0, node as u8], 7000).into()
}

fn stranger(number: u32) -> SocketAddr {
    ([198, 51 + (number >> 16) as u8, (number >> 8) as u8, number as u8], 4000).into()
}

/// A node that is told of addresses, and the nodes that really exist.
struct Town {
    now: Time,
    victim: Endpoint,
    contacts: Contacts,
    others: Vec<(u16, Endpoint)>,
    /// Datagrams to addresses without a node, and the most slots that the victim's endpoint used.
    astray: Vec<SocketAddr>,
    most: usize,
    /// The nodes that the victim has a session with.
    met: Vec<NodeId>,
    buf: Vec<u8>,
}

impl Town {
    fn new(others: impl IntoIterator<Item = u16>) -> Self {
        Self {
            now: Time::from_nanos(MS),
            victim: endpoint(0),
            contacts: Contacts::new(vec![address(0)], NODES),
            others: others.into_iter().map(|node| (node, endpoint(node))).collect(),
            astray: Vec::new(),
            most: 0,
            met: Vec::new(),
            buf: vec![0; 1 << 16],
        }
    }

    fn tell(&mut self, by: u16, node: u16, address: SocketAddr) {
        self.contacts.tell(self.now, NodeId(by), NodeId(node), Incarnation(100 + u32::from(node)), address);
    }

    /// Lets 5 ms pass. Datagrams arrive at once.
    fn tick(&mut self) {
        self.now = self.now + 5 * MS;
        let (now, buf) = (self.now, &mut self.buf);
        let by = |peer| Path { link: LinkId(0), peer };
        self.contacts.attend(now, &mut self.victim);
        loop {
            let mut moved = false;
            self.victim.handle_timeout(now);
            while let Some(transmit) = self.victim.poll_transmit(now, buf, &mut ()) {
                moved = true;
                match self.others.iter_mut().find(|(node, _)| address(*node) == transmit.path.peer) {
                    Some((_, other)) => {
                        for datagram in buf[..transmit.len].chunks_mut(transmit.segment) {
                            other.handle_datagram(now, by(address(0)), datagram, &mut Nobody, false);
                        }
                    }
                    None => self.astray.push(transmit.path.peer),
                }
            }
            for (node, other) in &mut self.others {
                other.handle_timeout(now);
                while let Some(transmit) = other.poll_transmit(now, buf, &mut ()) {
                    moved = true;
                    for datagram in buf[..transmit.len].chunks_mut(transmit.segment) {
                        self.victim.handle_datagram(now, by(address(*node)), datagram, &mut Nobody, false);
                    }
                }
                while other.poll_event().is_some() {}
            }
            while let Some(event) = self.victim.poll_event() {
                match event {
                    Event::Connected { session, peer, path, asked, .. } => {
                        self.met.push(peer.node);
                        self.contacts.connected(session, asked);
                        self.contacts.met(peer.node, peer.incarnation, path.peer);
                    }
                    Event::Closed { session, reason, .. } => self.contacts.closed(now, session, reason),
                    _ => {}
                }
            }
            self.contacts.attend(now, &mut self.victim);
            self.most = self.most.max(self.victim.occupied());
            if !moved {
                return;
            }
        }
    }

    /// Ticks up to `count` times, or until a condition holds; returns whether it held.
    fn ticks(&mut self, count: usize, mut until: impl FnMut(&Self) -> bool) -> bool {
        (0..count).any(|_| {
            self.tick();
            until(self)
        })
    }
}

#[test]
fn a_teller_of_strangers_gets_few_greeted_and_an_honest_node_joins_meanwhile() {
    // `DOORBELL_NOTICES` says another number, such as a million.
    let told = std::env::var("DOORBELL_NOTICES").ok().and_then(|number| number.parse().ok()).unwrap_or(8192);
    let mut town = Town::new([HONEST]);
    for number in 0..told {
        town.tell(HOSTILE, (number % 60) as u16, stranger(number));
    }
    assert!(town.contacts.list.len() <= TOLD, "{} addresses are remembered for one teller", town.contacts.list.len());
    // The honest node asks for a session itself, while the hostile one goes on telling.
    for tick in 0..1000 {
        for number in 0..32 {
            town.tell(HOSTILE, number as u16, stranger(told + tick * 32 + number));
        }
        if tick == 100 {
            let (now, target) = (town.now, Target { path: Path { link: LinkId(0), peer: address(0) }, node: None });
            town.others[0].1.connect(now, target);
        }
        town.tick();
        assert!(tick < 110 || town.met == [NodeId(HONEST)], "the honest node is let in at once");
    }
    assert!(town.most <= 16 + 2, "{} places for sessions are in use at a time", town.most);
    assert!(town.contacts.list.len() <= TOLD);
    // Sixteen addresses at a time get at least a quarter of a second each, which is time for three Hellos.
    assert!(town.astray.len() <= 5 * 4 * 16 * 3, "{} datagrams to strangers", town.astray.len());
    // Addresses that never answer are dropped.
    town.ticks(40_000, |town| town.contacts.list.is_empty());
    assert!(town.contacts.list.is_empty(), "{} strangers are still being tried", town.contacts.list.len());
    assert_eq!(town.met, [NodeId(HONEST)]);
}

#[test]
fn a_teller_of_strangers_does_not_keep_others_from_being_heard() {
    let mut town = Town::new([HONEST]);
    for number in 0..8192 {
        town.tell(HOSTILE, (number % 60) as u16, stranger(number));
    }
    town.ticks(20, |_| false);
    town.tell(1, HONEST, address(HONEST));
    assert!(town.ticks(20, |town| town.met == [NodeId(HONEST)]), "an address told by another node is tried at once");
}

#[test]
fn addresses_that_are_no_nodes_are_never_greeted() {
    let mut town = Town::new([]);
    let none: [SocketAddr; 7] = [
        ([0, 0, 0, 0], 4000).into(),
        ([224, 0, 0, 1], 4000).into(),
        ([255, 255, 255, 255], 4000).into(),
        ([10, 0, 0, 9], 0).into(),
        ([0u16; 8], 4000).into(),
        ([0xff02, 0, 0, 0, 0, 0, 0, 1], 4000).into(),
        // The node's own address.
        address(0),
    ];
    none.into_iter().zip(1..).for_each(|(address, node)| town.tell(HOSTILE, node, address));
    town.ticks(200, |_| false);
    assert_eq!((town.astray.len(), town.contacts.list.len(), town.victim.stats().datagrams_out), (0, 0, 0));
}

#[test]
fn all_nodes_of_a_large_domain_are_met_soon_though_most_addresses_lead_nowhere() {
    let others = 1..NODES as u16;
    let mut town = Town::new(others.clone());
    // Three addresses of each node are on networks that this node cannot reach.
    for node in others.clone() {
        for dead in 0..3 {
            town.tell(1, node, stranger(u32::from(node) * 4 + dead));
        }
        town.tell(1, node, address(node));
    }
    let all = usize::from(others.end - 1);
    // 61 nodes, 16 at a time, each after three addresses with a quarter of a second each, take 3 s. The test allows twice that in
    // virtual time.
    let met = town.ticks(1200, |town| town.met.len() == all);
    assert!(met, "{} of {all} nodes were met", town.met.len());
    assert!(town.most <= all + 16, "{} places", town.most);
}

#[test]
fn a_link_at_all_ipv6_addresses_leads_to_ipv4_addresses_too() {
    let links = |locals: [&str; 2]| Contacts::new(locals.map(|local| local.parse().unwrap()).to_vec(), NODES);
    let to = |contacts: &Contacts, address: &str| [0, 1].map(|tries| contacts.link_towards(address.parse().unwrap(), tries).0);
    // The system's routes prefer neither of them.
    let both = links(["[::]:7000", "127.9.9.9:7001"]);
    assert_eq!((to(&both, "127.0.0.1:9"), to(&both, "[::1]:9")), ([0, 1], [0, 0]));
    let apart = links(["[fd00::99]:7000", "127.9.9.9:7001"]);
    assert_eq!(to(&apart, "127.0.0.1:9"), [1, 1]);
}
