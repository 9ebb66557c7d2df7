//! The protocol: a state machine without sockets and clocks.
//!
//! An [`Endpoint`] holds all sessions of one node. Its caller passes datagrams in ([`Endpoint::handle_datagram`]) together with the time,
//! fetches outgoing datagrams ([`Endpoint::poll_transmit`]), and calls again at the time that [`Endpoint::poll_timeout`] returns.
//! The same calls with the same seed yield the same datagrams. One thread at a time.
//!
//! A session has a *lane* for each priority, which delivers each packet once and in order ([`Endpoint::push`], [`Sink`]). It also
//! has *transfers*, whose bytes arrive in any order, each once, at the place that the receiver chose ([`Endpoint::expect`],
//! [`Endpoint::begin_transfer`], [`Receive`]). `docs/wire.md` describes every byte.

#![forbid(unsafe_code)]

mod ack;
mod cipher;
mod config;
mod congestion;
mod endpoint;
mod frame;
mod handshake;
mod header;
mod lane;
mod lent;
mod loss;
mod mtu;
mod pacing;
mod random;
mod ranges;
mod session;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
mod stats;
mod time;
mod transfer;
pub(crate) mod wire;

#[cfg(test)]
mod tests;

use doorbell_fabric::{Incarnation, NodeId, Sink};
use std::net::SocketAddr;

pub use config::{Config, ConfigError, DomainKey, Integrity, LinkConfig, PROTOCOL_VERSION};
pub use doorbell_fabric::TransferId;
pub use endpoint::{Endpoint, Target};
pub use handshake::Rejection;
pub(crate) use handshake::{ADDRESSES_MAX, is_one_place};
pub use lent::Middle;
pub use stats::{EndpointStats, Outstanding, SessionStats};
pub use time::Time;
pub use transfer::TransferError;

/// One local UDP socket: an index into [`Config::links`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LinkId(pub u8);

/// A path to a peer: a local link and an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path {
    /// The local link.
    pub link: LinkId,
    /// The peer's address.
    pub peer: SocketAddr,
}

/// One session of an endpoint. An id is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub(crate) u64);

/// The other end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The node.
    pub node: NodeId,
    /// The incarnation of the node.
    pub incarnation: Incarnation,
}

/// Outgoing datagrams: `len` bytes of the buffer, cut into datagrams of `segment` bytes; the last one may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The link and the destination.
    pub path: Path,
    /// The total length.
    pub len: usize,
    /// The length of each datagram but the last.
    pub segment: usize,
    /// The bytes that stay where they lie: see [`Endpoint::pieces`].
    pub(crate) lent: Option<(usize, lent::Lent)>,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// This end ended it at once, and told the other end this code.
    GivenUp(u8),
    /// This end closed it. Everything sent has arrived, or the time for that was up.
    Local,
    /// The other end closed it in good order, with this code. Everything that it had sent was delivered.
    ByPeer(u8),
    /// The other end did not answer for [`Config::dead_after`], or it talked for four times as long and acknowledged nothing.
    Silent,
    /// No node answered for [`Config::connect_for`].
    NoAnswer,
    /// The other end refused the session.
    Rejected(Rejection),
    /// Another node than the requested one answered.
    WrongNode(NodeId),
    /// A new incarnation of the peer took its place.
    Replaced,
    /// Both peers opened a session at once; the other one stays.
    Duplicate,
    /// The other end broke the rules.
    Damaged(&'static str),
    /// Neither driver sent anything for [`Config::idle_after`].
    Idle,
    /// It was a further session, and the first one between the two nodes ended.
    NoFirst,
}

/// An event for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A session can be used.
    Connected {
        /// The session: the one that [`Endpoint::connect`] returned, or a new one.
        session: SessionId,
        /// The other end.
        peer: Peer,
        /// The path to the peer.
        path: Path,
        /// The greeting of the peer.
        greeting: Vec<u8>,
        /// Whether this end requested it.
        asked: bool,
        /// The index of the session among those with that incarnation. 0 is the first one, without which there is no other.
        strand: u8,
    },
    /// A session has ended, or could not be opened. Everything that arrived on it was delivered before.
    Closed {
        /// The session.
        session: SessionId,
        /// The other end, if it was ever known.
        peer: Option<Peer>,
        /// The reason.
        reason: CloseReason,
    },
    /// A session moved to another path, because the former one is silent or because the peer moved.
    Moved {
        /// The session.
        session: SessionId,
        /// The path in use from now on.
        path: Path,
    },
    /// A request for a session was refused. Reported once a second at most; [`EndpointStats`] has the count.
    Refused {
        /// The address that the request came from, which may be forged.
        path: Path,
        /// The reason.
        why: Rejection,
    },
    /// All bytes of a transfer to the peer have been stored there; or the peer's driver cancelled it while the last of them were
    /// under way.
    Sent {
        /// The session.
        session: SessionId,
        /// The transfer.
        transfer: TransferId,
    },
    /// All bytes of a transfer from the peer have been placed.
    Arrived {
        /// The session.
        session: SessionId,
        /// The transfer.
        transfer: TransferId,
    },
    /// The other end cancelled a transfer, or its source failed.
    Cancelled {
        /// The session.
        session: SessionId,
        /// The transfer.
        transfer: TransferId,
        /// Whether it was a transfer to the peer.
        outgoing: bool,
    },
}

/// The destination of everything that arrives: the [`Sink`] gets the packets of lanes, and this trait the bytes of transfers.
pub trait Receive: Sink {
    /// Stores new bytes of an expected transfer at `offset`. Must not block.
    fn place(&mut self, session: SessionId, transfer: TransferId, offset: u64, bytes: &[u8]);
}

/// The source of the bytes of transfers.
pub trait Source {
    /// Whether [`Endpoint::poll_pieces`] may leave the transfer's bytes in place. Otherwise they are [read](Self::read).
    fn lends(&mut self, _session: SessionId, _transfer: TransferId) -> bool {
        false
    }

    /// Fills `into` with the transfer's bytes from `offset`, for the first transmission and for each repetition. `false` cancels
    /// the transfer. Must not block.
    fn read(&mut self, session: SessionId, transfer: TransferId, offset: u64, into: &mut [u8]) -> bool;
}

/// For a caller without transfers.
impl Source for () {
    fn read(&mut self, _: SessionId, _: TransferId, _: u64, _: &mut [u8]) -> bool {
        false
    }
}
