//! A network in virtual time: nodes, and pipes between them that lose, delay, duplicate, reorder and corrupt datagrams. The same
//! seed gives the same run.

mod pipe;
pub mod programs;

use super::{Endpoint, LinkConfig, LinkId, Middle, Path, Receive, Source, Time};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{Ipv4Addr, SocketAddr};

use pipe::Pipe;
pub use pipe::{Dice, Rules};

impl LinkConfig {
    /// A network whose interface has this MTU (bytes of an IP packet, headers included). Larger datagrams than 1200 bytes are
    /// tried first.
    pub const fn interface(mtu: usize) -> LinkConfig {
        // The headers of IPv6 and UDP. An IPv4 path carries 20 bytes more, which is not worth a second search.
        let payload = mtu.saturating_sub(48);
        let payload = if payload < 1_200 { 1_200 } else { payload };
        LinkConfig { mtu: if payload > 65_507 { 65_507 } else { payload }, start: 1_200, search: true }
    }
}

/// The rest of a node beside its endpoint.
pub trait Driver: Receive + Source {
    /// Called whenever the node is awake: after datagrams, after timers, or at the requested time. Returns when it wants to be
    /// called again.
    fn turn(&mut self, now: Time, endpoint: &mut Endpoint) -> Option<Time>;
}

/// One node of the network.
pub struct Node<D> {
    /// Its sessions. `None`: the node was killed.
    pub endpoint: Option<Endpoint>,
    /// The driver of the endpoint.
    pub driver: D,
    /// Its address.
    pub address: SocketAddr,
    /// The addresses of its further links.
    pub more: Vec<SocketAddr>,
    /// Treats all these as one link, like a socket that is bound to all addresses: a datagram leaves from the address that has a
    /// cable to its destination.
    pub one_link: bool,
    wake: Time,
}

impl<D> Node<D> {
    /// The address of one of its links.
    pub fn link(&self, link: LinkId) -> SocketAddr {
        match link.0 {
            0 => self.address,
            further => self.more[usize::from(further) - 1],
        }
    }
}

/// A datagram under way.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Flying {
    at: Time,
    /// Keeps the order of datagrams that arrive at one moment.
    order: u64,
    from: SocketAddr,
    to: SocketAddr,
    bytes: Vec<u8>,
}

/// The counts of the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkStats {
    /// Datagrams sent.
    pub sent: u64,
    /// Datagrams lost, for any reason.
    pub lost: u64,
    /// Duplicates made.
    pub duplicated: u64,
    /// Datagrams corrupted.
    pub corrupted: u64,
}

/// Nodes and the pipes between them.
pub struct Network<D> {
    /// The nodes, in the order they were added.
    pub nodes: Vec<Node<D>>,
    /// The counts of datagrams.
    pub stats: NetworkStats,
    /// Every datagram that arrived anywhere, if they are to be kept: source, target, bytes.
    pub record: Option<Vec<(SocketAddr, SocketAddr, Vec<u8>)>>,
    /// Bytes sent to addresses without a node.
    pub astray: BTreeMap<SocketAddr, u64>,
    now: Time,
    order: u64,
    flying: BinaryHeap<Reverse<Flying>>,
    pipes: Vec<Pipe>,
    /// The pipe from one node to another.
    routes: BTreeMap<(usize, usize), usize>,
    /// The pipe from one address to another, where it differs from that of the nodes.
    cables: BTreeMap<(SocketAddr, SocketAddr), usize>,
    default: Rules,
    dice: Dice,
    buf: Vec<u8>,
}

impl<D: Driver> Network<D> {
    /// A network whose pipes follow `rules` unless others are laid.
    pub fn new(seed: u64, rules: Rules) -> Self {
        Self {
            nodes: Vec::new(),
            stats: NetworkStats::default(),
            record: None,
            astray: BTreeMap::new(),
            now: Time::ZERO + 1,
            order: 0,
            flying: BinaryHeap::new(),
            pipes: Vec::new(),
            routes: BTreeMap::new(),
            cables: BTreeMap::new(),
            default: rules,
            dice: Dice::new(seed),
            buf: vec![0; 1 << 16],
        }
    }

    /// The address of a node.
    pub fn address(index: usize) -> SocketAddr {
        (Ipv4Addr::new(10, 0, (index >> 8) as u8, index as u8), 4000).into()
    }

    /// The path to a node by the only link.
    pub fn path_to(index: usize) -> Path {
        Path { link: LinkId(0), peer: Self::address(index) }
    }

    /// Adds a node.
    pub fn add(&mut self, endpoint: Endpoint, driver: D) -> usize {
        let address = Self::address(self.nodes.len());
        self.nodes.push(Node { endpoint: Some(endpoint), driver, address, more: Vec::new(), one_link: false, wake: Time::ZERO });
        self.nodes.len() - 1
    }

    /// Lays a pipe for one or several directions.
    pub fn lay(&mut self, rules: Rules, directions: &[(usize, usize)]) {
        self.pipes.push(Pipe::new(rules));
        for direction in directions {
            self.routes.insert(*direction, self.pipes.len() - 1);
        }
    }

    /// The address of a further link of a node.
    pub fn further(index: usize, link: u8) -> SocketAddr {
        (Ipv4Addr::new(10, link, (index >> 8) as u8, index as u8), 4000).into()
    }

    /// Adds a node with several links. The first one has the address of a node with a single link.
    pub fn add_linked(&mut self, endpoint: Endpoint, driver: D, links: u8) -> usize {
        let index = self.add(endpoint, driver);
        self.nodes[index].more = (1..links).map(|link| Self::further(index, link)).collect();
        index
    }

    /// Lays a separate pipe between two addresses, for one direction or both.
    pub fn lay_cable(&mut self, rules: Rules, from: SocketAddr, to: SocketAddr, both: bool) {
        self.pipes.push(Pipe::new(rules.clone()));
        self.cables.insert((from, to), self.pipes.len() - 1);
        if both {
            self.lay_cable(rules, to, from, false);
        }
    }

    /// The current time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The endpoint of one node, which must live. Call [`wake`](Self::wake) after using it.
    pub fn endpoint(&mut self, index: usize) -> &mut Endpoint {
        self.nodes[index].endpoint.as_mut().expect("a living node")
    }

    /// Gives a node its turn at once.
    pub fn wake(&mut self, index: usize) {
        self.nodes[index].wake = self.now;
    }

    /// Puts a datagram on the network as if `from` had sent it.
    pub fn inject(&mut self, from: SocketAddr, to: usize, bytes: Vec<u8>) {
        self.inject_to(from, Self::address(to), bytes);
    }

    /// Like [`inject`](Self::inject), to an address.
    pub fn inject_to(&mut self, from: SocketAddr, to: SocketAddr, bytes: Vec<u8>) {
        self.order += 1;
        self.flying.push(Reverse(Flying { at: self.now, order: self.order, from, to, bytes }));
    }

    /// Runs until `done` returns true, or until `until`. Returns whether it was done.
    pub fn run(&mut self, until: Time, mut done: impl FnMut(&Self) -> bool) -> bool {
        loop {
            if done(self) {
                return true;
            }
            let wake = (0..self.nodes.len()).min_by_key(|index| self.nodes[*index].wake);
            let wake_at = wake.map_or(Time::NEVER, |index| self.nodes[index].wake);
            let arrives_at = self.flying.peek().map_or(Time::NEVER, |flying| flying.0.at);
            let next = wake_at.min(arrives_at);
            if next > until || next == Time::NEVER {
                self.now = self.now.max(until);
                return done(self);
            }
            self.now = self.now.max(next);
            if arrives_at <= wake_at
                && let Some(Reverse(flying)) = self.flying.pop()
            {
                self.arrive(flying);
            } else if let Some(index) = wake {
                self.turn(index);
            }
        }
    }

    fn find(&self, address: SocketAddr) -> Option<(usize, LinkId)> {
        self.nodes.iter().enumerate().find_map(|(index, node)| {
            let mut all = std::iter::once(&node.address).chain(&node.more);
            let link = all.position(|one| *one == address)? as u8;
            Some((index, LinkId(if node.one_link { 0 } else { link })))
        })
    }

    fn arrive(&mut self, mut flying: Flying) {
        if let Some(record) = &mut self.record {
            record.push((flying.from, flying.to, flying.bytes.clone()));
        }
        let Some((index, link)) = self.find(flying.to) else { return };
        let Node { endpoint: Some(endpoint), driver, .. } = &mut self.nodes[index] else { return };
        let from = Path { link, peer: flying.from };
        endpoint.handle_datagram(self.now, from, &mut flying.bytes, driver, false);
        self.turn(index);
    }

    fn turn(&mut self, index: usize) {
        let Node { endpoint: Some(endpoint), driver, wake, .. } = &mut self.nodes[index] else {
            self.nodes[index].wake = Time::NEVER;
            return;
        };
        endpoint.handle_timeout(self.now);
        let again = driver.turn(self.now, endpoint);
        let mut sent = Vec::new();
        // Every other node leaves long packets in place.
        let lends = index.is_multiple_of(2);
        loop {
            let transmit = if lends {
                endpoint.poll_pieces(self.now, &mut self.buf, 0, driver)
            } else {
                endpoint.poll_transmit(self.now, &mut self.buf, driver)
            };
            let Some(transmit) = transmit else { break };
            assert!(transmit.len > 0 && transmit.segment > 0);
            let pieces = match endpoint.pieces(&transmit, &self.buf) {
                Some((front, Middle::Lane(bytes), tag)) => Some([front, bytes, tag].concat()),
                _ => None,
            };
            let Some(transmit) = endpoint.joined(transmit, &mut self.buf, driver) else { continue };
            assert!(pieces.is_none_or(|pieces| pieces == self.buf[..transmit.len]), "the pieces differ from the whole datagram");
            for datagram in self.buf[..transmit.len].chunks(transmit.segment) {
                sent.push((transmit.path, datagram.to_vec()));
            }
        }
        // Nothing may be due in the past, or virtual time would stand still.
        *wake = endpoint.poll_timeout().unwrap_or(Time::NEVER).min(again.unwrap_or(Time::NEVER)).max(self.now + 1);
        for (path, bytes) in sent {
            let node = &self.nodes[index];
            let laid = |from: &&SocketAddr| node.one_link && self.cables.contains_key(&(**from, path.peer));
            let from = std::iter::once(&node.address).chain(&node.more).find(laid).copied();
            let from = from.unwrap_or_else(|| node.link(path.link));
            self.send(index, from, path.peer, bytes);
        }
    }

    fn send(&mut self, index: usize, from: SocketAddr, to: SocketAddr, bytes: Vec<u8>) {
        self.stats.sent += 1;
        let Some((target, _)) = self.find(to) else {
            self.stats.lost += 1;
            *self.astray.entry(to).or_default() += bytes.len() as u64;
            return;
        };
        let default = &self.default;
        let pipes = &mut self.pipes;
        let route = || {
            *self.routes.entry((index, target)).or_insert_with(|| {
                pipes.push(Pipe::new(default.clone()));
                pipes.len() - 1
            })
        };
        let pipe = self.cables.get(&(from, to)).copied().unwrap_or_else(route);
        let copies = self.pipes[pipe].carry(self.now, bytes, &mut self.dice, &mut self.stats);
        for (at, bytes) in copies {
            self.order += 1;
            self.flying.push(Reverse(Flying { at, order: self.order, from, to, bytes }));
        }
    }
}
