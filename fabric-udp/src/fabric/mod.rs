//! All peers of one node that are reached over UDP: a [`protocol`](crate::protocol) over a [`port`](crate::port).
//!
//! Nodes find each other by addresses. A node connects to the address it was given, is told of all other nodes known there, and
//! connects to these too. So there is one session between any two nodes, whichever of them began it. If both have several links,
//! there is one more session for each further link ([`UdpOptions::strands`]). A node without an id asks for one at its first
//! connection: as a *guest*, in a separate session that ends with the answer.
//!
//! Another fabric may reach the same node as well; the node's greeting tells ([`About::nonce`]). This fabric lets its messages
//! through only after the driver has accepted the node here.

mod address;
mod contacts;
mod events;
mod gather;
mod guest;
mod link;
mod notice;
mod open;
mod options;
mod peers;
mod places;
mod receiving;
mod sending;
mod strands;
mod transfers;

pub use crate::protocol::Outstanding;
pub use address::{Address, ParseAddressError};
pub use doorbell_fabric::{BytesIn, BytesOut};
pub use guest::{Ask, Grant, ask};
pub use link::UdpLink;
pub use options::{LINKS_MAX, UdpError, UdpOptions, read_key};
pub use places::{Places, Tried, find};

use crate::port::{Direct, Room};
use crate::protocol::{Endpoint, Path, SessionId, Time};
use contacts::Contacts;
use doorbell_fabric::{Incarnation, NodeId, Role};
use gather::Gather;
use peers::{Peer, Stage};
use sending::Way;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use transfers::Transfers;

/// The tag of control packets that are notices between fabrics and not the driver's.
const NOTICE_TAG: u64 = 1;
/// Ids from here on belong to guests.
const GUESTS: u16 = 0x8000;
/// The close code of a node that leaves.
const CODE_LEFT: u8 = 0;
/// The close code for a node that is not admitted.
const CODE_UNWANTED: u8 = 1;
/// The size of the largest run.
const RUN_ROOM: usize = 65_536;

/// A node's description of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Its role in the domain.
    pub role: Role,
    /// Its process id on its machine.
    pub pid: u32,
    /// A label for people.
    pub label: String,
    /// The nonce of its inbox. A node that can read the same number there shares memory with it.
    pub nonce: u64,
}

/// A change of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// There is a session with the node. Call [`UdpFabric::accept`] or [`UdpFabric::beside`].
    Met(NodeId, Incarnation),
    /// A node that was accepted, or is reached beside, left in good order. Everything it had sent was delivered.
    Left(NodeId, Incarnation),
    /// A node that was accepted, or is reached beside, is dead or unreachable. Everything that had arrived was delivered.
    Died(NodeId, Incarnation),
    /// The session with this number, one of several with a node, ended alone. Packets that were not acknowledged on it may be
    /// lost; everything that had arrived was delivered. The other sessions go on, and this one will be opened again.
    StrandLost(NodeId, Incarnation, u8),
}

/// All peers of one node that are reached over UDP. One thread at a time. Only [`open`](Self::open) and [`shut`](Self::shut)
/// block.
pub struct UdpFabric {
    endpoint: Endpoint,
    /// The sockets; empty once they were closed.
    links: Vec<Direct>,
    /// The socket that received last; the time of the last look at all others; and the time of the last arrival on each. Each
    /// link has two entries, the second for its twin.
    busy: usize,
    looked: Time,
    had: Vec<Time>,
    /// The path that has a twin, and the number of datagrams in a row by one path.
    twin: Option<Path>,
    /// The twin was found empty after it was connected, so it holds no datagrams of other senders.
    is_pure: bool,
    series: Option<(Path, u32)>,
    /// For how many more looks the twin waits, as its link's own socket may hold earlier datagrams of that peer.
    twin_waits: u32,
    /// The time of the last call of [`attend`](Self::attend).
    attended: Time,
    /// Some of that work was put off.
    later: bool,
    room: Room,
    /// The buffer of outgoing datagrams; for each link, the datagrams that found no room in the kernel; and one bit for each link
    /// that has some.
    out: Box<[u8]>,
    ways: Vec<Way>,
    full: u32,
    gather: Gather,
    transfers: Transfers,
    /// Called when packets begin to be gathered.
    on_gather: Option<Box<dyn Fn() + Send>>,
    epoch: Instant,
    me: (NodeId, Incarnation),
    addresses: Vec<SocketAddr>,
    /// By id: the known node, and one that has taken its place until the end of the former was reported.
    peers: Vec<Option<Peer>>,
    next: Vec<(NodeId, Peer)>,
    /// Whether to have several sessions with a peer, and when to ask for the next one.
    wants_strands: bool,
    strands_due: Option<Time>,
    contacts: Contacts,
    changes: VecDeque<Change>,
    asks: VecDeque<Ask>,
    /// Ids given to guests, and the time until which they stay reserved.
    given: Vec<(NodeId, Time)>,
    /// Notices that arrived, and notices that found no room yet.
    heard: Vec<(NodeId, Vec<u8>)>,
    owed: VecDeque<(SessionId, Vec<u8>)>,
    /// The last poll brought nothing for the driver.
    chatter: bool,
}

impl UdpFabric {
    #[inline]
    fn now(&self) -> Time {
        // Never zero, which the protocol reads as "never so far".
        Time::from_nanos(self.epoch.elapsed().as_nanos() as u64 + 1)
    }

    /// Sets a callback for the thread that begins to gather packets while no thread may come to send them. The callback must see
    /// to it that [`poll`](Self::poll) is called within [`timeout`](Self::timeout). It must neither block nor call this fabric.
    pub fn on_gather(&mut self, call: Box<dyn Fn() + Send>) {
        self.on_gather = Some(call);
    }

    /// The addresses of this node's links, at which others find it. There is at least one.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The first address.
    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// The next change of another node, oldest first.
    pub fn next_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The time until something is due here that no datagram announces; `None` if nothing is.
    pub fn timeout(&mut self) -> Option<Duration> {
        if self.later {
            return Some(Duration::ZERO);
        }
        let due =
            [self.endpoint.next_timeout(), self.contacts.due, self.strands_due, self.gather.due()].into_iter().flatten().min()?;
        Some(Duration::from_nanos(due - self.now()))
    }

    /// Whether there is anything that the driver has not been told.
    pub fn has_news(&self) -> bool {
        !self.changes.is_empty() || !self.asks.is_empty()
    }
}
