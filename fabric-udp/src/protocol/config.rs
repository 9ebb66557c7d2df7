//! The configuration of an endpoint.

use super::congestion::Cubic;
use super::mtu::PathMtu;
use super::time::{MILLI, Nanos, nanos};
use doorbell_fabric::{Incarnation, NodeId};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// The protocol version of this crate.
pub const PROTOCOL_VERSION: u16 = 1;

/// The secret that the nodes of a domain share.
#[derive(Clone, PartialEq, Eq)]
pub struct DomainKey(pub [u8; 32]);

impl DomainKey {
    /// A number that tells this key from others and says nothing else about it. It is the same on all machines.
    pub fn fingerprint(&self) -> u32 {
        let mut context = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256);
        context.update(b"fingerprint of a doorbell domain key");
        context.update(&self.0);
        let digest = context.finish();
        digest.as_ref().iter().take(4).fold(0, |number, byte| number << 8 | u32::from(*byte))
    }
}

impl fmt::Debug for DomainKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DomainKey(..)")
    }
}

/// The bytes that the checksum covers in a session without a key. A key always protects all bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Integrity {
    /// Every byte.
    #[default]
    Full,
    /// Every byte except those of large packets and of transfers. For a loopback interface, which does not corrupt data. Used
    /// only if both ends choose it.
    Header,
}

/// The capabilities of a local UDP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// The largest datagram that the link takes, from 1200 to 65507 bytes.
    pub mtu: usize,
    /// The size of the first datagrams, from 1200 to `mtu` bytes.
    pub start: usize,
    /// Whether to try larger datagrams, up to `mtu`.
    pub search: bool,
}

impl LinkConfig {
    /// A loopback interface: starts with the largest possible datagrams.
    pub const LOOPBACK: LinkConfig = LinkConfig { mtu: 65_507, start: 65_507, search: false };
    /// An unknown network: starts with small datagrams and searches for the largest that get through.
    pub const UNKNOWN: LinkConfig = LinkConfig { mtu: 65_507, start: 1_200, search: true };

    /// The search and the window with which a path by this link begins. `theirs`: the largest datagram that the other end takes.
    pub(crate) fn begin(&self, config: &Config, theirs: u16) -> (PathMtu, Cubic) {
        let mtu = PathMtu::new(self.start, self.mtu.min(theirs.into()), self.search);
        let congestion = Cubic::new(config.initial_window, mtu.current());
        (mtu, congestion)
    }
}

/// The configuration of an [`Endpoint`](super::Endpoint).
#[derive(Clone, Debug)]
pub struct Config {
    /// The domain's name. Endpoints of different domains refuse each other.
    pub domain: String,
    /// The domain's key. Without one nothing is secret, and any process that can read the datagrams can interfere: for loopback
    /// only.
    pub key: Option<DomainKey>,
    /// This node.
    pub node: NodeId,
    /// The incarnation of this node.
    pub incarnation: Incarnation,
    /// Bytes for the other end of each session, delivered when it is connected; at most 512.
    pub greeting: Vec<u8>,
    /// The local UDP links, at most 256. A [`LinkId`](super::LinkId) is an index into this list.
    pub links: Vec<LinkConfig>,
    /// The address of each link, told to the other end of each session if there are several. If the list is empty, nothing is
    /// told; wildcard addresses are not told either.
    pub addresses: Vec<SocketAddr>,
    /// The bytes that the checksum covers without a key.
    pub integrity: Integrity,
    /// The bytes of packets that a lane keeps for its reader, from 8 KiB to 1 GiB. A packet counts 64 bytes more than its
    /// payload.
    pub lane_window: u32,
    /// The bytes of packets that a lane keeps until they are acknowledged.
    pub lane_buffer: u32,
    /// The most datagrams before an acknowledgement is sent.
    pub ack_every: u32,
    /// The longest time before an acknowledgement is sent.
    pub ack_delay: Duration,
    /// The bytes that may be under way before the first acknowledgement.
    pub initial_window: u64,
    /// A peer that does not answer for this long is dead. So is a peer that talks for four times as long and acknowledges
    /// nothing.
    pub dead_after: Duration,
    /// A session is closed if neither driver sends anything on it for this long. `None`: never.
    pub idle_after: Option<Duration>,
    /// The timeout of [`connect`](super::Endpoint::connect).
    pub connect_for: Duration,
    /// The most sessions, including those being opened; at most 65535.
    pub sessions_max: usize,
    /// The most sessions that strangers have begun to open.
    pub offers_max: usize,
    /// The datagrams sealed with one key, from 16 to 2^32. There may be some more until the other end has shown that it follows.
    pub rekey_after_packets: u64,
    /// Whether to tell a refused peer the reason. Otherwise it gets no answer.
    pub explain: bool,
    /// The lowest and the highest version spoken. Anything but [`PROTOCOL_VERSION`] is for tests.
    pub versions: (u16, u16),
}

impl Config {
    /// Defaults for a node with one link over a network.
    pub fn new(domain: &str, node: NodeId, incarnation: Incarnation) -> Config {
        Config {
            domain: domain.into(),
            key: None,
            node,
            incarnation,
            greeting: Vec::new(),
            links: vec![LinkConfig::UNKNOWN],
            addresses: Vec::new(),
            integrity: Integrity::Full,
            lane_window: 1 << 20,
            lane_buffer: 1 << 20,
            ack_every: 2,
            ack_delay: Duration::from_micros(500),
            initial_window: 64 * 1024,
            dead_after: Duration::from_secs(1),
            idle_after: None,
            connect_for: Duration::from_secs(5),
            sessions_max: 4096,
            offers_max: 256,
            rekey_after_packets: 1 << 23,
            explain: true,
            versions: (PROTOCOL_VERSION, PROTOCOL_VERSION),
        }
    }

    /// Defaults for a loopback interface: large datagrams, a wide window, and cheap checksums.
    pub fn loopback(domain: &str, node: NodeId, incarnation: Incarnation) -> Config {
        Config {
            links: vec![LinkConfig::LOOPBACK],
            integrity: Integrity::Header,
            initial_window: 4 << 20,
            ack_every: 8,
            ..Config::new(domain, node, incarnation)
        }
    }

    pub(crate) fn spans(&self) -> Spans {
        let dead = nanos(self.dead_after).max(1);
        Spans { ack_delay: nanos(self.ack_delay), patience: MILLI, dead, keep_alive: dead / 4, idle: self.idle_after.map(nanos) }
    }
}

/// The times of a configuration, as sessions use them.
#[derive(Clone, Copy)]
pub(crate) struct Spans {
    pub ack_delay: Nanos,
    /// The shortest time before an unanswered datagram is asked about.
    pub patience: Nanos,
    pub dead: Nanos,
    pub keep_alive: Nanos,
    pub idle: Option<Nanos>,
}

impl Spans {
    /// How long a node hears nothing from a peer before it pings the peer. The node with the lower number pings first, and the
    /// lowest of all before the others, so that two nodes do not ping each other at once.
    pub fn quiet_after(&self, me: NodeId, peer: NodeId, strand: u8) -> Nanos {
        // The first session tells the others whether the peer lives.
        if strand > 0 {
            return Nanos::MAX;
        }
        let sooner = if me < peer { 16 - u64::from(me.0.min(15)) } else { 0 };
        self.keep_alive - self.keep_alive / 128 * sooner
    }
}

/// Why a configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is out of range: {expected}")]
pub struct ConfigError {
    /// The field.
    pub field: &'static str,
    /// The rule for valid values.
    pub expected: &'static str,
}

impl Config {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let links_fit = self.links.iter().all(|link| link.start >= 1_200 && link.start <= link.mtu && link.mtu <= 65_507);
        let rules = [
            (self.greeting.len() <= 512, "greeting", "at most 512 bytes"),
            (!self.links.is_empty() && self.links.len() <= 256, "links", "from 1 to 256"),
            (links_fit, "links", "1200 <= start <= mtu <= 65507"),
            (self.addresses.is_empty() || self.addresses.len() == self.links.len(), "addresses", "none, or one for each link"),
            ((8 << 10..=1 << 30).contains(&self.lane_window), "lane_window", "from 8 KiB to 1 GiB"),
            ((8 << 10..=1 << 30).contains(&self.lane_buffer), "lane_buffer", "from 8 KiB to 1 GiB"),
            (self.incarnation.0 != 0, "incarnation", "not zero"),
            (self.ack_every > 0, "ack_every", "at least 1"),
            (self.ack_delay <= Duration::from_millis(100), "ack_delay", "at most 100 ms"),
            (self.initial_window >= 2_400, "initial_window", "at least 2400 bytes"),
            ((1..=65_535).contains(&self.sessions_max), "sessions_max", "from 1 to 65535"),
            // The other end answers for each key: with a lower limit, answers would cause further answers.
            ((16..=1 << 32).contains(&self.rekey_after_packets), "rekey_after_packets", "from 16 to 2^32"),
            (self.dead_after >= Duration::from_millis(1), "dead_after", "at least 1 ms"),
        ];
        match rules.into_iter().find(|rule| !rule.0) {
            Some((_, field, expected)) => Err(ConfigError { field, expected }),
            None => Ok(()),
        }
    }
}
