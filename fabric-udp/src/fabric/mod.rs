//! All peers of one node that are reached over UDP: a [`protocol`](crate::protocol) over a [`port`].
//!
//! Nodes find each other by addresses. A node connects to the address it was given, is told of all other nodes known there, and
//! connects to these too. So there is one session between any two nodes, whichever of them began it. If both have several links,
//! there is one more session for each further link ([`UdpOptions::strands`]). A node without an id asks for one at its first
//! connection: as a *guest*, in a separate session that ends with the answer.
//!
//! Another fabric may reach the same node as well; the node's greeting tells ([`About::nonce`]). This fabric lets its messages
//! through only after the driver has accepted the node here.

mod contacts;
mod gather;
mod guest;
mod link;
mod notice;
mod options;
mod receiving;
mod sending;
mod strands;
mod transfers;

pub use crate::protocol::Outstanding;
pub use guest::{Grant, ask};
pub use link::UdpLink;
pub use options::{LINKS_MAX, UdpError, UdpOptions, read_key};
pub use transfers::{BytesIn, BytesOut};

use crate::port::{self, Direct, Port, Room, TroubleKind, is_loopback_only};
use crate::protocol::{
    CloseReason, Config, ConfigError, Endpoint, Event, LinkConfig, Path, Rejection, SessionId, Time, TransferId,
};
use contacts::{Contacts, Standing};
use doorbell_fabric::{Incarnation, NodeId, PacketHead, PacketKind, Priority, Push, Role};
use gather::Gather;
use notice::{Greeting, MEMBERS_MAX, Member, NOTICE_MAX, Notice};
use receiving::{RUNS, Waste};
use sending::Way;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use strands::Further;
use transfers::Transfers;

/// The tag of control packets that are notices between fabrics and not the driver's.
const NOTICE_TAG: u64 = 1;
/// Ids from here on belong to guests.
const GUESTS: u16 = 0x8000;
/// How long an id that was given to a guest stays reserved for it.
const GIVEN_FOR: Duration = Duration::from_secs(10);
/// The close code of a node that leaves.
const CODE_LEFT: u8 = 0;
/// The close code for a node that is not admitted.
const CODE_UNWANTED: u8 = 1;
/// How long joining waits for a sought address that does not answer.
const SEEK_FOR: Duration = Duration::from_millis(250);
/// How long joining waits for a told address that does not answer.
const TOLD_FOR: Duration = Duration::from_secs(2);
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

/// One other node.
struct Peer {
    session: SessionId,
    /// The sessions with numbers from 1 on.
    further: [Further; LINKS_MAX - 1],
    /// There can be several sessions with it, so packets of one may have to wait for packets of another.
    is_several: bool,
    incarnation: Incarnation,
    about: About,
    address: SocketAddr,
    standing: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The driver has not yet said how the node is reached.
    Met,
    /// This fabric reaches it.
    Accepted,
    /// Another fabric reaches it and says whether it lives. This fabric reaches it beside that.
    Beside,
    /// The driver knows that it is gone. Its packets that had arrived are still handed over.
    Gone,
    /// Its remaining packets are discarded.
    Forgotten,
}

impl Stage {
    /// Whether its packets go to the driver.
    fn is_open(self) -> bool {
        matches!(self, Stage::Accepted | Stage::Beside | Stage::Gone)
    }

    /// Whether packets can be sent to it.
    fn is_reached(self) -> bool {
        matches!(self, Stage::Accepted | Stage::Beside)
    }
}

/// A guest that asks for an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    session: SessionId,
    /// The ids that are taken on the guest's side.
    pub avoid: Vec<NodeId>,
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

/// Opens a port by a node's options. Refuses one that would be open to strangers.
fn open_port(options: &UdpOptions) -> Result<Box<dyn Port>, UdpError> {
    if options.listen.len() > LINKS_MAX {
        return Err(ConfigError { field: "listen", expected: "at most 4 addresses" }.into());
    }
    let (address, further) = (options.address(), options.listen.iter().skip(1).copied().collect::<Vec<_>>());
    let mut others = std::iter::once(&address).chain(&further).filter(|address| !is_loopback_only(**address));
    let other = others.next();
    if options.key.is_none()
        && let Some(address) = other
    {
        return Err(UdpError::NoKey { address: *address });
    }

    // On loopback datagrams are as large as possible, so there is nothing to gather.
    let gather = other.is_some();
    Ok(port::open(&port::Options { kind: options.port, gather, further, ..port::Options::new(address) })?)
}

fn make_endpoint(
    domain: &str,
    me: (NodeId, Incarnation),
    greeting: &Greeting,
    options: &UdpOptions,
    links: &[Direct],
) -> Result<Endpoint, UdpError> {
    let is_here = |direct: &Direct| is_loopback_only(direct.local());
    let config = if links.iter().all(is_here) { Config::loopback(domain, me.0, me.1) } else { Config::new(domain, me.0, me.1) };
    let config = Config {
        key: options.key.clone(),
        greeting: greeting.encode(),
        links: links.iter().map(|link| if is_here(link) { LinkConfig::LOOPBACK } else { LinkConfig::UNKNOWN }).collect(),
        addresses: links.iter().map(Direct::local).collect(),
        dead_after: options.dead_after,
        lane_window: options.lane_bytes,
        lane_buffer: options.lane_bytes,
        // One set for each link.
        sessions_max: config.sessions_max * links.len(),
        ..config
    };
    let mut seed = [0; 32];
    aws_lc_rs::rand::fill(&mut seed).map_err(|_| UdpError::System {
        attempt: "get random numbers",
        source: std::io::Error::other("the system's random number generator failed"),
    })?;
    Ok(Endpoint::new(config, seed)?)
}

impl UdpFabric {
    /// Opens the port and meets the nodes that the options name. Blocks until all required nodes have answered and told of
    /// others, or until `deadline`.
    ///
    /// # Errors
    /// [`UdpError`]: the address cannot be used, a key is needed and missing, or a required node does not answer or refuses this
    /// one.
    pub fn open(
        domain: &str,
        me: (NodeId, Incarnation),
        about: About,
        max_nodes: usize,
        options: &UdpOptions,
        deadline: Instant,
    ) -> Result<(Self, Box<dyn Port>), UdpError> {
        let port = open_port(options)?;
        let endpoint = make_endpoint(domain, me, &Greeting { about, asks: None }, options, port.links())?;
        let mut fabric = Self::over(endpoint, port.links().to_vec(), me, max_nodes);
        fabric.wants_strands = options.strands;
        let now = fabric.now();
        options.connect.iter().for_each(|address| fabric.contacts.add(now, *address));
        let locals = fabric.addresses.clone();
        options.seek.iter().filter(|address| !locals.contains(address)).for_each(|address| {
            fabric.contacts.add(now, *address);
        });
        fabric.meet(&options.connect, deadline)?;
        Ok((fabric, port))
    }

    fn over(endpoint: Endpoint, links: Vec<Direct>, me: (NodeId, Incarnation), max_nodes: usize) -> Self {
        let addresses: Vec<_> = links.iter().map(Direct::local).collect();
        let had = vec![Time::ZERO; 2 * links.len()];
        let ways = links.iter().map(|_| Way::default()).collect();
        Self {
            endpoint,
            contacts: Contacts::new(addresses.clone(), max_nodes),
            addresses,
            links,
            busy: 0,
            looked: Time::ZERO,
            had,
            twin: None,
            is_pure: false,
            series: None,
            attended: Time::ZERO,
            later: false,
            room: Room::new(RUNS),
            out: vec![0; RUN_ROOM].into(),
            ways,
            full: 0,
            gather: Gather::default(),
            transfers: Transfers::default(),
            on_gather: None,
            epoch: Instant::now(),
            me,
            peers: (0..max_nodes).map(|_| None).collect(),
            next: Vec::new(),
            wants_strands: false,
            strands_due: None,
            changes: VecDeque::new(),
            asks: VecDeque::new(),
            given: Vec::new(),
            heard: Vec::new(),
            owed: VecDeque::new(),
            chatter: false,
        }
    }

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

    fn meet(&mut self, needed: &[SocketAddr], deadline: Instant) -> Result<(), UdpError> {
        let began = Instant::now();
        loop {
            self.hear();
            for address in needed {
                match self.contacts.standing(*address) {
                    Some(Standing::Failed(CloseReason::Rejected(why))) => {
                        return Err(UdpError::Rejected { address: *address, why });
                    }
                    Some(Standing::Failed(reason)) if !matches!(reason, CloseReason::NoAnswer | CloseReason::Silent) => {
                        return Err(UdpError::Ended { address: *address, reason });
                    }
                    _ => {}
                }
            }
            let silent =
                needed.iter().find(|address| !matches!(self.contacts.standing(**address), Some(Standing::Met { .. }) | None));
            if self.contacts.is_settled() && silent.is_none() {
                return Ok(());
            }
            let waited = began.elapsed();
            let patience = if self.contacts.is_told() { TOLD_FOR } else { SEEK_FOR };
            match silent {
                Some(address) if Instant::now() >= deadline => return Err(UdpError::NoAnswer { address: *address, waited }),
                None if waited >= patience || Instant::now() >= deadline => return Ok(()),
                _ => self.wait(Duration::from_millis(10)),
            }
        }
    }

    /// Sleeps until something arrives or is due, for `most` at most.
    fn wait(&mut self, most: Duration) {
        let timeout = self.timeout().map_or(most, |due| due.min(most));
        let timeout = rustix::event::Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        let socket = |direct| rustix::event::PollFd::new(direct, rustix::event::PollFlags::IN);
        let mut sockets: Vec<_> = self.links.iter().flat_map(Direct::sockets).map(socket).collect();
        // The result does not matter: the caller looks again.
        let _ = rustix::event::poll(&mut sockets, Some(&timeout));
    }

    /// Handles the consequences of what arrived and of time passing.
    fn attend(&mut self, now: Time) {
        (self.attended, self.later) = (now, false);
        while let Some(event) = self.endpoint.poll_event() {
            self.on_event(now, event);
        }
        for (source, bytes) in std::mem::take(&mut self.heard) {
            self.on_notice(now, source, &bytes);
        }
        while let Some(trouble) = self.links.iter().find_map(Direct::trouble) {
            if trouble.kind == TroubleKind::Refused {
                self.contacts.nobody(trouble.peer);
            }
        }
        self.contacts.attend(now, &mut self.endpoint);
        self.attend_strands(now);
        for _ in 0..self.owed.len() {
            if let Some((session, notice)) = self.owed.pop_front() {
                self.tell(now, session, notice);
            }
        }
        self.flush(now);
    }

    fn on_event(&mut self, now: Time, event: Event) {
        match event {
            Event::Connected { session, peer, strand: strand @ 1.., .. } => {
                self.on_strand(now, session, (peer.node, peer.incarnation), strand);
            }
            Event::Connected { session, peer, path, greeting, asked, .. } => {
                self.contacts.connected(session, asked);
                let Some(Greeting { about, asks }) = Greeting::decode(&greeting) else {
                    tracing::warn!(address = %path.peer, "a node's greeting is malformed; it is not admitted");
                    return self.endpoint.close(now, session, CODE_UNWANTED);
                };
                if peer.node.0 >= GUESTS {
                    match asks {
                        Some(avoid) => self.asks.push_back(Ask { session, avoid }),
                        None => self.endpoint.close(now, session, CODE_UNWANTED),
                    }
                    return;
                }
                if peer.node.index() >= self.peers.len() || peer.node == self.me.0 {
                    tracing::warn!(address = %path.peer, node = peer.node.0, most = self.peers.len(), "a node's id is out of range for this domain; it is not admitted");
                    return self.endpoint.close(now, session, CODE_UNWANTED);
                }
                let incarnation = peer.incarnation;
                let further = Default::default();
                let is_several = self.endpoint.strands(session) > 1;
                let met = Peer { session, further, is_several, incarnation, about, address: path.peer, standing: Stage::Met };
                if !asked {
                    self.introduce(now, session, peer.node);
                }
                self.contacts.met(peer.node, incarnation, path.peer);
                self.given.retain(|(node, _)| *node != peer.node);
                let place = &mut self.peers[peer.node.index()];
                if place.is_some() {
                    self.next.push((peer.node, met));
                } else {
                    *place = Some(met);
                    self.changes.push_back(Change::Met(peer.node, incarnation));
                }
            }
            Event::Closed { session, peer, reason } => {
                self.transfers.end_session(session);
                if self.on_strand_closed(now, session, reason) {
                    return;
                }
                self.contacts.closed(now, session, reason);
                self.next.retain(|(_, peer)| peer.session != session);
                let Some(node) = peer.map(|peer| peer.node).filter(|node| node.index() < self.peers.len()) else { return };
                let place = &mut self.peers[node.index()];
                let Some(gone) = place.take_if(|peer| peer.session == session) else { return };
                if gone.standing.is_reached() {
                    tracing::debug!(node = node.0, ?reason, "a conversation ended");
                    let left = matches!(reason, CloseReason::ByPeer(CODE_LEFT));
                    let change = if left { Change::Left } else { Change::Died };
                    self.changes.push_back(change(node, gone.incarnation));
                } else {
                    // The driver never heard of the node, or not as one that this fabric reaches.
                    self.changes.retain(|change| match change {
                        Change::Met(other, life) | Change::StrandLost(other, life, _) => {
                            (*other, *life) != (node, gone.incarnation)
                        }
                        _ => true,
                    });
                }
                if let Some(at) = self.next.iter().position(|(other, _)| *other == node) {
                    let (_, met) = self.next.remove(at);
                    self.changes.push_back(Change::Met(node, met.incarnation));
                    self.peers[node.index()] = Some(met);
                }
            }
            // A peer was told two addresses of this node, or asks for a further session before the first one was used.
            Event::Refused { path, why: why @ (Rejection::AlreadyConnected(..) | Rejection::NoFirst) } => {
                tracing::debug!(address = %path.peer, ?why, "a peer asked for a second session");
            }
            Event::Refused { path, why } => {
                tracing::warn!(address = %path.peer, ?why, "refused a request for a session");
            }
            Event::Moved { session, path } => {
                let met = self.peers.iter_mut().flatten().chain(self.next.iter_mut().map(|(_, peer)| peer));
                for peer in met.filter(|peer| peer.session == session) {
                    tracing::info!(from = %peer.address, to = %path.peer, link = path.link.0, "a session moved to another path");
                    peer.address = path.peer;
                }
            }
            Event::Sent { session, transfer } => self.transfers.ended(session, transfer, true),
            Event::Cancelled { session, transfer, outgoing: true } => self.transfers.ended(session, transfer, false),
            // The caller that expects the transfer counts the bytes itself, and the peer tells it when it gives up.
            Event::Arrived { .. } | Event::Cancelled { .. } => {}
        }
    }

    /// Tells a newcomer of all other nodes.
    fn introduce(&mut self, now: Time, session: SessionId, newcomer: NodeId) {
        let known = self.peers.iter().enumerate().filter_map(|(index, peer)| Some((NodeId(index as u16), peer.as_ref()?)));
        let members: Vec<_> = known
            .filter(|(node, _)| *node != newcomer)
            .flat_map(|(node, peer)| {
                // Tell all known addresses, because the newcomer may be on another network.
                let member = move |address| Member { node, incarnation: peer.incarnation, address };
                self.endpoint.addresses(peer.session).into_iter().map(member)
            })
            .collect();
        let mut rest = &members[..];
        loop {
            let (some, more) = rest.split_at(rest.len().min(MEMBERS_MAX));
            rest = more;
            self.tell(now, session, Notice::Members { members: some.to_vec(), last: rest.is_empty() }.encode());
            if rest.is_empty() {
                return;
            }
        }
    }

    /// Sends a notice now, or once there is room.
    fn tell(&mut self, now: Time, session: SessionId, notice: Vec<u8>) {
        let head = PacketHead { kind: PacketKind::Control, tag: NOTICE_TAG, sequence: 0, total: notice.len() as u64 };
        if self.endpoint.push(now, session, Priority::High, &head, &notice) == Push::Full {
            self.owed.push_back((session, notice));
        }
    }

    fn on_notice(&mut self, now: Time, source: NodeId, bytes: &[u8]) {
        let Some(Notice::Members { members, last }) = Notice::decode(bytes) else { return };
        // A guest is told of members but may not tell of any.
        if source.index() >= self.peers.len() {
            return;
        }
        for Member { node, incarnation, address } in members {
            let Some(place) = self.peers.get(node.index()) else { continue };
            let is_known = place.as_ref().is_some_and(|peer| peer.incarnation == incarnation);
            if !is_known && node != self.me.0 {
                self.contacts.tell(now, source, node, incarnation, address);
            }
        }
        if last && let Some(session) = self.peers.get(source.index()).and_then(Option::as_ref).map(|peer| peer.session) {
            self.contacts.told(session);
        }
    }

    /// The next change of another node, oldest first.
    pub fn next_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// The next guest that asks for an id. Answer it by [`welcome`](Self::welcome).
    pub fn next_ask(&mut self) -> Option<Ask> {
        self.asks.pop_front()
    }

    /// Whether a node with this id was met here, or the id is reserved for a guest.
    pub fn is_taken(&mut self, node: NodeId) -> bool {
        let now = self.now();
        self.given.retain(|(_, until)| *until > now);
        let is_met = self.peers.get(node.index()).is_some_and(Option::is_some);
        is_met || node == self.me.0 || self.given.iter().any(|(given, _)| *given == node)
    }

    /// Gives a guest an id, or tells it that there is none.
    pub fn welcome(&mut self, ask: &Ask, node: Option<NodeId>) {
        let now = self.now();
        let notice = match node {
            Some(node) => {
                self.given.push((node, now + GIVEN_FOR));
                Notice::Welcome { node, max_nodes: self.peers.len() as u16 }
            }
            None => Notice::NoRoom,
        };
        self.tell(now, ask.session, notice.encode());
        self.flush(now);
    }

    /// A node's description of itself.
    pub fn about(&self, node: NodeId) -> Option<&About> {
        self.peers.get(node.index())?.as_ref().map(|peer| &peer.about)
    }

    /// The node at this address that was accepted, or is reached beside.
    pub fn node_at(&self, address: SocketAddr) -> Option<NodeId> {
        let is_there = |peer: &Peer| {
            peer.standing.is_reached() && (peer.address == address || self.endpoint.addresses(peer.session).contains(&address))
        };
        let at = self.peers.iter().position(|peer| peer.as_ref().is_some_and(is_there))?;
        Some(NodeId(at as u16))
    }

    /// Declares that this fabric reaches a node that was met.
    pub fn accept(&mut self, node: NodeId) {
        self.settle(node, Stage::Accepted);
        self.want_strands(node);
    }

    /// Declares that another fabric reaches a node that was met, and that this one reaches it too. The other fabric says whether
    /// the node lives. Silence here ends nothing: unanswered data is asked about once every quarter of the dead-peer time,
    /// forever. Call [`gone`](Self::gone) when the node is gone.
    pub fn beside(&mut self, node: NodeId) {
        self.settle(node, Stage::Beside);
        if let Some(Some(peer)) = self.peers.get(node.index()) {
            peer.sessions().for_each(|session| self.endpoint.vouch(session));
        }
        self.want_strands(node);
    }

    /// Another fabric says that this incarnation of a node, which was accepted or is reached beside, is gone.
    /// [`poll`](Self::poll) still hands over what had arrived from it; no [`Change`] reports its end. Does nothing if there is no
    /// such incarnation any more.
    pub fn gone(&mut self, node: NodeId, incarnation: Incarnation) {
        let now = self.now();
        if let Some(Some(peer)) = self.peers.get_mut(node.index())
            && peer.incarnation == incarnation
            && peer.standing.is_reached()
        {
            peer.standing = Stage::Gone;
            self.endpoint.give_up(now, peer.session, CODE_LEFT);
            self.attend(now);
        }
    }

    /// Whether this incarnation of a node is known here, or has packets that are still to be handed over.
    pub fn has(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.peers.get(node.index()).and_then(Option::as_ref).is_some_and(|peer| peer.incarnation == incarnation)
    }

    /// Whether the driver put off everything that waits of a node, so that it refused nothing and was asked about all.
    pub fn is_put_off(&self, node: NodeId) -> bool {
        let peer = self.peers.get(node.index()).and_then(Option::as_ref);
        peer.is_none_or(|peer| peer.sessions().all(|session| self.endpoint.is_put_off(session)))
    }

    /// Discards the remaining packets of an incarnation that is [gone](Self::gone).
    pub fn forget(&mut self, node: NodeId, incarnation: Incarnation) {
        if let Some(Some(peer)) = self.peers.get_mut(node.index())
            && peer.incarnation == incarnation
            && peer.standing == Stage::Gone
        {
            peer.standing = Stage::Forgotten;
        }
    }

    fn settle(&mut self, node: NodeId, stage: Stage) {
        if let Some(Some(peer)) = self.peers.get_mut(node.index()) {
            peer.standing = stage;
        }
    }

    /// Ends the session with a node that broke the rules, or whose id belongs to another node.
    pub fn expel(&mut self, node: NodeId) {
        let now = self.now();
        if let Some(Some(peer)) = self.peers.get(node.index()) {
            self.endpoint.close(now, peer.session, CODE_UNWANTED);
            self.flush(now);
        }
    }

    /// Expects `len` bytes from an incarnation of a node that was accepted, or is reached beside, and returns the transfer's id.
    /// The caller must tell the peer that id. Bytes are stored as long as `into` lives. `None`: there is no such incarnation now.
    pub fn expect(&mut self, node: NodeId, incarnation: Incarnation, len: u64, into: &Arc<dyn BytesIn>) -> Option<TransferId> {
        self.expect_by(node, incarnation, 0, len, into)
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

    /// Closes the socket without a word to the peers, as if the process had been killed.
    pub fn abandon(&mut self) {
        self.links.clear();
    }

    /// Ends all sessions in good order and closes the socket. Sends everything that was pushed as long as the targets take it,
    /// until `deadline` at most.
    pub fn shut(&mut self, deadline: Instant) {
        let now = self.now();
        let sessions: Vec<_> = self.peers.iter().flatten().map(|peer| peer.session).collect();
        for session in sessions {
            self.endpoint.close(now, session, CODE_LEFT);
        }
        // Stop looking for other nodes.
        self.contacts = Contacts::default();
        (self.wants_strands, self.strands_due) = (false, None);
        loop {
            self.look();
            // Discard everything that still arrives. While it waits, the end of its sender would not be reported.
            let now = self.now();
            self.endpoint.deliver(now, &mut Waste, usize::MAX);
            self.attend(now);
            self.changes.clear();
            if (self.peers.iter().all(Option::is_none) && self.next.is_empty()) || Instant::now() >= deadline {
                self.links.clear();
                return;
            }
            self.wait(Duration::from_millis(5));
        }
    }
}
