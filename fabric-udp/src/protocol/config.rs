//! What an endpoint is told when it is made.

use super::time::{MICRO, Nanos, nanos};
use doorbell_fabric::{Incarnation, NodeId};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// The version of the protocol this crate speaks.
pub const PROTOCOL_VERSION: u16 = 1;

/// The secret that the nodes of a domain share.
#[derive(Clone, PartialEq, Eq)]
pub struct DomainKey(pub [u8; 32]);

impl fmt::Debug for DomainKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DomainKey(..)")
    }
}

/// Which bytes the checksum of a session without a key covers. A key always protects everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Integrity {
    /// Every byte.
    #[default]
    Full,
    /// Everything but the bytes of large packets and of transfers: for a loopback interface, which does not corrupt. Used only if both ends say
    /// so.
    Header,
}

/// What a local UDP socket can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Bytes of the largest datagram that the link takes, from 1200 to 65507.
    pub mtu: usize,
    /// Bytes of a datagram to begin with, from 1200 to `mtu`.
    pub start: usize,
    /// Try larger datagrams, up to `mtu`.
    pub search: bool,
}

impl LinkConfig {
    /// A loopback interface: the largest datagrams there are, at once.
    pub const LOOPBACK: LinkConfig = LinkConfig { mtu: 65_507, start: 65_507, search: false };
    /// A network nothing is known of: small datagrams at first, and as large ones as go through later.
    pub const UNKNOWN: LinkConfig = LinkConfig { mtu: 65_507, start: 1_200, search: true };

    /// A network whose interface has this MTU (bytes of an IP packet, headers included). Larger datagrams than 1200 bytes are tried first.
    pub const fn interface(mtu: usize) -> LinkConfig {
        // IPv6 and UDP headers; an IPv4 path carries 20 bytes more, which is not worth a second search.
        let payload = mtu.saturating_sub(48);
        let payload = if payload < 1_200 { 1_200 } else { payload };
        LinkConfig { mtu: if payload > 65_507 { 65_507 } else { payload }, start: 1_200, search: true }
    }
}

/// Everything an [`Endpoint`](super::Endpoint) is told.
#[derive(Clone, Debug)]
pub struct Config {
    /// The domain's name. Endpoints of different domains refuse each other.
    pub domain: String,
    /// The domain's key. Without one nothing is secret, and nothing is safe from who can read the datagrams: for loopback.
    pub key: Option<DomainKey>,
    /// This node.
    pub node: NodeId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Bytes for the other end of each session, told when it is connected; at most 512.
    pub greeting: Vec<u8>,
    /// The local UDP links, at most 256. A [`LinkId`](super::LinkId) is a place in this list.
    pub links: Vec<LinkConfig>,
    /// Where each link is reached, told to the other end of each session if there are several. Empty: nothing is told. What only says "any
    /// address" is not told either.
    pub addresses: Vec<SocketAddr>,
    /// What the checksum covers where there is no key.
    pub integrity: Integrity,
    /// Bytes of packets that a lane keeps for its reader, from 8 KiB to 1 GiB. Packets count 64 bytes more than their payload.
    pub lane_window: u32,
    /// Bytes of packets that a lane keeps until they are acknowledged.
    pub lane_buffer: u32,
    /// An acknowledgement goes after so many datagrams at the latest.
    pub ack_every: u32,
    /// ... or after this time.
    pub ack_delay: Duration,
    /// Bytes that may be under way before the first acknowledgement.
    pub initial_window: u64,
    /// The least time before something unanswered is asked for again.
    pub patience: Duration,
    /// A peer that does not answer for so long is dead; and so is one that talks for four times as long and acknowledges nothing.
    pub dead_after: Duration,
    /// A session on which nothing was sent for so long by either driver is closed. `None`: never.
    pub idle_after: Option<Duration>,
    /// How long [`connect`](super::Endpoint::connect) tries.
    pub connect_for: Duration,
    /// Sessions, those being opened included; at most 65535.
    pub sessions_max: usize,
    /// Sessions that strangers have begun to open.
    pub offers_max: usize,
    /// How long a cookie is good.
    pub cookie_for: Duration,
    /// Datagrams sealed with one key, from 16 to 2^32. It may be some more, until the other end has shown that it follows.
    pub rekey_after_packets: u64,
    /// Bytes sealed with one key, at least 1 MiB.
    pub rekey_after_bytes: u64,
    /// Tell who is refused why. Otherwise they hear nothing.
    pub explain: bool,
    /// Versions spoken: lowest and highest. Anything but [`PROTOCOL_VERSION`] is for tests.
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
            patience: Duration::from_millis(1),
            dead_after: Duration::from_secs(1),
            idle_after: None,
            connect_for: Duration::from_secs(5),
            sessions_max: 4096,
            offers_max: 256,
            cookie_for: Duration::from_secs(10),
            rekey_after_packets: 1 << 23,
            rekey_after_bytes: 1 << 40,
            explain: true,
            versions: (PROTOCOL_VERSION, PROTOCOL_VERSION),
        }
    }

    /// Defaults for a loopback interface: large datagrams, a wide window, checksums where they are cheap.
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
        Spans {
            ack_delay: nanos(self.ack_delay),
            patience: nanos(self.patience).max(10 * MICRO),
            dead,
            keep_alive: dead / 4,
            idle: self.idle_after.map(nanos),
        }
    }
}

/// Times of a configuration, as sessions use them.
#[derive(Clone, Copy)]
pub(crate) struct Spans {
    pub ack_delay: Nanos,
    pub patience: Nanos,
    pub dead: Nanos,
    pub keep_alive: Nanos,
    pub idle: Option<Nanos>,
}

impl Spans {
    /// How long a node hears nothing before it asks. The one of the lower number asks first, and the lowest of all before the others, so that
    /// two do not ask each other at once.
    pub fn quiet_after(&self, me: NodeId, peer: NodeId, strand: u8) -> Nanos {
        // The first session says for the others whether the peer lives.
        if strand > 0 {
            return Nanos::MAX;
        }
        let sooner = if me < peer { 16 - u64::from(me.0.min(15)) } else { 0 };
        self.keep_alive - self.keep_alive / 128 * sooner
    }
}

/// Why a configuration can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is out of range: {expected}")]
pub struct ConfigError {
    /// Which part of it.
    pub field: &'static str,
    /// What would have been right.
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
            // The other end answers for each key: with fewer, answers would ask for answers.
            ((16..=1 << 32).contains(&self.rekey_after_packets), "rekey_after_packets", "from 16 to 2^32"),
            (self.rekey_after_bytes >= 1 << 20, "rekey_after_bytes", "at least 1 MiB"),
            (self.dead_after >= Duration::from_millis(1), "dead_after", "at least 1 ms"),
        ];
        match rules.into_iter().find(|rule| !rule.0) {
            Some((_, field, expected)) => Err(ConfigError { field, expected }),
            None => Ok(()),
        }
    }
}
