//! The protocol: a state machine without sockets and clocks.
//!
//! An [`Endpoint`] holds all sessions of one node. Its caller brings datagrams ([`Endpoint::handle`]), says what time it is, fetches what is to
//! be sent ([`Endpoint::poll_transmit`]) and calls again when [`Endpoint::poll_timeout`] says so. The same calls with the same seed give the
//! same datagrams. One thread at a time.
//!
//! A session has a *lane* for each priority, on which packets arrive in order, each once ([`Endpoint::push`], [`Sink`]), and *transfers*, whose bytes
//! arrive in any order, each once, where the receiver wants them ([`Endpoint::expect`], [`Endpoint::begin_transfer`], [`Receive`]). `docs/wire.md`
//! describes every byte.

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
mod wire;

#[cfg(test)]
mod tests;

use doorbell_fabric::{Incarnation, NodeId, Sink};
use std::net::SocketAddr;

pub use config::{Config, ConfigError, DomainKey, Integrity, LinkConfig, PROTOCOL_VERSION};
pub use endpoint::{Endpoint, Target};
pub use handshake::Rejection;
pub(crate) use handshake::{ADDRESSES_MAX, is_one_place};
pub use lent::Middle;
pub use stats::{EndpointStats, Outstanding, SessionStats};
pub use time::Time;
pub use transfer::{TransferError, TransferId};

/// One local UDP socket: a place in [`Config::links`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LinkId(pub u8);

/// A way to a peer: by which local link, and to which address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path {
    /// The local link.
    pub link: LinkId,
    /// The peer's address.
    pub peer: SocketAddr,
}

/// One session of an endpoint. Never used again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub(crate) u64);

/// The other end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The node.
    pub node: NodeId,
    /// Which life of it.
    pub incarnation: Incarnation,
}

/// Datagrams to be sent: `len` bytes of the buffer, in datagrams of `segment` bytes each but the last, which may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// By which link, and to whom.
    pub path: Path,
    /// Bytes in all.
    pub len: usize,
    /// Bytes of each datagram but the last.
    pub segment: usize,
    /// What was left where it lies: [`Endpoint::pieces`].
    pub(crate) lent: Option<(usize, lent::Lent)>,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// This end gave it up at once, and told the other end this code.
    GivenUp(u8),
    /// This end closed it, and everything sent arrived, or the time for that was up.
    Local,
    /// The other end closed it in good order, with this code. Everything it had sent was delivered.
    ByPeer(u8),
    /// The other end did not answer for [`Config::dead_after`], or it talked for four times as long and acknowledged nothing.
    Silent,
    /// Nobody answered for [`Config::connect_for`].
    NoAnswer,
    /// The other end gives no session.
    Rejected(Rejection),
    /// Another node than was asked for answered.
    WrongNode(NodeId),
    /// A new life of the peer took its place.
    Replaced,
    /// The peers opened two sessions at once; the other one stays.
    Duplicate,
    /// The other end broke the rules.
    Damaged(&'static str),
    /// Nothing was sent for [`Config::idle_after`].
    Idle,
    /// It was a further session, and the first one between the two nodes ended.
    NoFirst,
}

/// What a driver should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A session can be used.
    Connected {
        /// The session: the one that [`Endpoint::connect`] named, or a new one.
        session: SessionId,
        /// The other end.
        peer: Peer,
        /// How it is reached.
        path: Path,
        /// What it wanted to be told.
        greeting: Vec<u8>,
        /// This end asked for it.
        asked: bool,
        /// Which of the sessions with that life it is: 0 is the first one, without which there is no other.
        strand: u8,
    },
    /// A session is over, or could not be opened. All that arrived on it was delivered before.
    Closed {
        /// The session.
        session: SessionId,
        /// The other end, if it ever was known.
        peer: Option<Peer>,
        /// Why.
        reason: CloseReason,
    },
    /// A session goes on by another path, as the former one is silent, or as the peer does.
    Moved {
        /// The session.
        session: SessionId,
        /// The path in use from now on.
        path: Path,
    },
    /// Somebody asked for a session and got none. Told once a second at most; [`EndpointStats`] has the number.
    Refused {
        /// Where they are, or say they are.
        path: Path,
        /// Why.
        why: Rejection,
    },
    /// All bytes of a transfer to the peer have been stored there; or the peer's driver gave it up as the last of them were under way.
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
    /// The other end gave a transfer up, or its source failed.
    Cancelled {
        /// The session.
        session: SessionId,
        /// The transfer.
        transfer: TransferId,
        /// It was one to the peer.
        outgoing: bool,
    },
}

/// Where everything that arrives goes: packets of lanes to the [`Sink`], bytes of transfers to their places.
pub trait Receive: Sink {
    /// Bytes of an expected transfer that were not there before, to be stored at `offset`. Must not block.
    fn place(&mut self, session: SessionId, transfer: TransferId, offset: u64, bytes: &[u8]);
}

/// Where the bytes of transfers come from.
pub trait Source {
    /// Whether [`Endpoint::poll_pieces`] may leave the transfer's bytes where they are now. Otherwise they are [read](Self::read).
    fn lends(&mut self, _session: SessionId, _transfer: TransferId) -> bool {
        false
    }

    /// Fills `into` with the transfer's bytes from `offset`: when they are sent, and when they are sent again. `false` cancels
    /// the transfer. Must not block.
    fn read(&mut self, session: SessionId, transfer: TransferId, offset: u64, into: &mut [u8]) -> bool;
}

/// For who has no transfers.
impl Source for () {
    fn read(&mut self, _: SessionId, _: TransferId, _: u64, _: &mut [u8]) -> bool {
        false
    }
}
