//! All peers of one node that are reached by UDP: a [`protocol`](crate::protocol) over a [`port`].
//!
//! Nodes find each other by addresses. A node that was told one connects there, is told of all others that are known there, and connects
//! to these, too. So there is one session between any two nodes, whichever began it; and where both have several links, one more for each
//! further link ([`UdpOptions::strands`]). A node without an id asks for one where it
//! connects first: as a *guest*, in a session of its own that ends with the answer.
//!
//! Who is met may be reached by another fabric as well; what it says of itself tells ([`About::nonce`]). Its messages are let
//! through only after the driver said that it is reached by this one.

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

/// The tag of control packets that are notices between fabrics, and none of the driver's.
const NOTICE_TAG: u64 = 1;
/// Ids from here on are those of guests.
const GUESTS: u16 = 0x8000;
/// How long an id that was given to a guest is not given to another.
const GIVEN_FOR: Duration = Duration::from_secs(10);
/// Told when a node leaves.
const CODE_LEFT: u8 = 0;
/// Told to a node that can't be one here.
const CODE_UNWANTED: u8 = 1;
/// How long an address may be silent at which a node may be before joining goes on without it.
const SEEK_FOR: Duration = Duration::from_millis(250);
/// How long one may be silent of which another node told.
const TOLD_FOR: Duration = Duration::from_secs(2);
/// Bytes of the largest run.
const RUN_ROOM: usize = 65_536;

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// What it is to the domain.
    pub role: Role,
    /// Its process, on its machine.
    pub pid: u32,
    /// A word for people.
    pub label: String,
    /// The number in its inbox: who reads it there shares memory with it.
    pub nonce: u64,
}

/// What happened to another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// There is a session with it. Say [`UdpFabric::accept`] or [`UdpFabric::beside`].
    Met(NodeId, Incarnation),
    /// One that was accepted, or is reached beside, left in good order. All it had sent was delivered.
    Left(NodeId, Incarnation),
    /// One that was accepted, or is reached beside, is dead, or can't be reached. All that had arrived was delivered.
    Died(NodeId, Incarnation),
    /// One of several sessions with a node ended alone, that of this number: what was not acknowledged there may be lost. All that had
    /// arrived by it was delivered. The others go on, and it comes about again.
    StrandLost(NodeId, Incarnation, u8),
}

/// One other node.
struct Peer {
    session: SessionId,
    /// Those of numbers from 1 on.
    further: [Further; LINKS_MAX - 1],
    /// There can be several sessions with it, and what comes by one may have to wait for what comes by another.
    is_several: bool,
    incarnation: Incarnation,
    about: About,
    address: SocketAddr,
    standing: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The driver has not said yet how it is reached.
    Met,
    /// By this fabric.
    Accepted,
    /// By another, which says whether it lives, and by this one beside it.
    Beside,
    /// The driver knows that it is no more. What it had sent is still handed over.
    Gone,
    /// What is left of it is for nobody.
    Forgotten,
}

impl Stage {
    /// Whether its packets are for the driver.
    fn is_open(self) -> bool {
        matches!(self, Stage::Accepted | Stage::Beside | Stage::Gone)
    }

    /// Whether it can be sent to.
    fn is_reached(self) -> bool {
        matches!(self, Stage::Accepted | Stage::Beside)
    }
}

/// A guest that wants to be a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    session: SessionId,
    /// What it can't be, as the ids are taken on its side.
    pub avoid: Vec<NodeId>,
}

/// All peers of one node that are reached by UDP. One thread at a time; nothing blocks but [`open`](Self::open) and
/// [`shut`](Self::shut).
pub struct UdpFabric {
    endpoint: Endpoint,
    /// The sockets; none once they were closed.
    links: Vec<Direct>,
    /// The socket that had something last, when all others were looked at, and when each had something: of each link two, the second its twin.
    busy: usize,
    looked: Time,
    had: Vec<Time>,
    /// The path that has a twin, and how often one path was used since another was.
    twin: Option<Path>,
    /// It was found empty since it was connected: nothing of others waits there.
    is_pure: bool,
    series: Option<(Path, u32)>,
    /// When it was last seen to all that follows from what arrived.
    attended: Time,
    /// Something of that was put off.
    later: bool,
    room: Room,
    /// Datagrams on their way out; and of each link those for which the kernel had no room, with a bit for each link that has some.
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
    /// By id: the node that is known, and one that has taken its place, until the end of the former is told.
    peers: Vec<Option<Peer>>,
    next: Vec<(NodeId, Peer)>,
    /// Whether there are to be several sessions with a peer, and when one is to be asked for.
    wants_strands: bool,
    strands_due: Option<Time>,
    contacts: Contacts,
    changes: VecDeque<Change>,
    asks: VecDeque<Ask>,
    /// Ids given to guests, and until when they are theirs.
    given: Vec<(NodeId, Time)>,
    /// Notices that arrived, and those that found no room yet.
    heard: Vec<(NodeId, Vec<u8>)>,
    owed: VecDeque<(SessionId, Vec<u8>)>,
    /// The last poll brought nothing for the driver.
    chatter: bool,
}

/// Opens a port as a node's options say, and refuses what would be open to strangers.
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

    // On loopback datagrams are as large as can be, so that there is nothing to gather.
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
        // One for each link.
        sessions_max: config.sessions_max * links.len(),
        ..config
    };
    let mut seed = [0; 32];
    aws_lc_rs::rand::fill(&mut seed).map_err(|_| UdpError::System {
        attempt: "get random numbers",
        source: std::io::Error::other("the system's generator fails"),
    })?;
    Ok(Endpoint::new(config, seed)?)
}

impl UdpFabric {
    /// Opens the port, and meets the nodes that the options name. Blocks until all that have to answer have, and have told of others;
    /// until `deadline` at most.
    ///
    /// # Errors
    /// [`UdpError`]: the address can't be had, there is no key where one is needed, a node that has to answer does not or refuses this one.
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
        // Not zero, which the protocol takes for "never so far".
        Time::from_nanos(self.epoch.elapsed().as_nanos() as u64 + 1)
    }

    /// What is called, by whoever pushes, when packets begin to be gathered and nobody may come who sends them: it should see to it
    /// that [`poll`](Self::poll) is called within [`timeout`](Self::timeout). It must neither block nor call this fabric.
    pub fn on_gather(&mut self, call: Box<dyn Fn() + Send>) {
        self.on_gather = Some(call);
    }

    /// Where others find this node: the addresses of its links, of which there is always one.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The first of them.
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

    /// Sleeps until something arrives, or is due, for `most` at most.
    fn wait(&mut self, most: Duration) {
        let timeout = self.timeout().map_or(most, |due| due.min(most));
        let timeout = rustix::event::Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        let socket = |direct| rustix::event::PollFd::new(direct, rustix::event::PollFlags::IN);
        let mut sockets: Vec<_> = self.links.iter().flat_map(Direct::sockets).map(socket).collect();
        // Whatever it says, the caller looks again.
        let _ = rustix::event::poll(&mut sockets, Some(&timeout));
    }

    /// What follows from what arrived, and from the time.
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
                    tracing::warn!(address = %path.peer, "a node says nothing of itself that could be understood; it is not let in");
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
                    tracing::warn!(address = %path.peer, node = peer.node.0, most = self.peers.len(), "a node of an id that this domain does not have is not let in");
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
                    // The driver never heard of it, or not as of one that is reached from here.
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
            // Somebody was told two addresses of this node; or asks for a further session before the first was used.
            Event::Refused { path, why: why @ (Rejection::AlreadyConnected(..) | Rejection::NoFirst) } => {
                tracing::debug!(address = %path.peer, ?why, "somebody asked for a second conversation");
            }
            Event::Refused { path, why } => {
                tracing::warn!(address = %path.peer, ?why, "somebody asked for a conversation and was refused");
            }
            Event::Moved { session, path } => {
                let met = self.peers.iter_mut().flatten().chain(self.next.iter_mut().map(|(_, peer)| peer));
                for peer in met.filter(|peer| peer.session == session) {
                    tracing::info!(from = %peer.address, to = %path.peer, link = path.link.0, "a conversation goes on by another path");
                    peer.address = path.peer;
                }
            }
            Event::Sent { session, transfer } => self.transfers.ended(session, transfer, true),
            Event::Cancelled { session, transfer, outgoing: true } => self.transfers.ended(session, transfer, false),
            // Whoever expects it counts, and hears from the peer that it is given up.
            Event::Arrived { .. } | Event::Cancelled { .. } => {}
        }
    }

    /// Tells who has come whom else there is.
    fn introduce(&mut self, now: Time, session: SessionId, newcomer: NodeId) {
        let known = self.peers.iter().enumerate().filter_map(|(index, peer)| Some((NodeId(index as u16), peer.as_ref()?)));
        let members: Vec<_> = known
            .filter(|(node, _)| *node != newcomer)
            .flat_map(|(node, peer)| {
                // All addresses that are known: the newcomer may be on another network.
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

    /// Sends a notice, now or when there is room.
    fn tell(&mut self, now: Time, session: SessionId, notice: Vec<u8>) {
        let head = PacketHead { kind: PacketKind::Control, tag: NOTICE_TAG, sequence: 0, total: notice.len() as u64 };
        if self.endpoint.push(now, session, Priority::High, &head, &notice) == Push::Full {
            self.owed.push_back((session, notice));
        }
    }

    fn on_notice(&mut self, now: Time, source: NodeId, bytes: &[u8]) {
        let Some(Notice::Members { members, last }) = Notice::decode(bytes) else { return };
        // A guest is told of members, and tells of none.
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

    /// What happened to other nodes, oldest first.
    pub fn next_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// A guest that wants an id. Answer by [`welcome`](Self::welcome).
    pub fn next_ask(&mut self) -> Option<Ask> {
        self.asks.pop_front()
    }

    /// Whether an id is that of a node met here, or given to one that is about to come.
    pub fn is_taken(&mut self, node: NodeId) -> bool {
        let now = self.now();
        self.given.retain(|(_, until)| *until > now);
        let is_met = self.peers.get(node.index()).is_some_and(Option::is_some);
        is_met || node == self.me.0 || self.given.iter().any(|(given, _)| *given == node)
    }

    /// Gives a guest an id, or none.
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

    /// What a node that was met says of itself.
    pub fn about(&self, node: NodeId) -> Option<&About> {
        self.peers.get(node.index())?.as_ref().map(|peer| &peer.about)
    }

    /// Which node that was accepted, or is reached beside, is at this address.
    pub fn node_at(&self, address: SocketAddr) -> Option<NodeId> {
        let is_there = |peer: &Peer| {
            peer.standing.is_reached() && (peer.address == address || self.endpoint.addresses(peer.session).contains(&address))
        };
        let at = self.peers.iter().position(|peer| peer.as_ref().is_some_and(is_there))?;
        Some(NodeId(at as u16))
    }

    /// A node that was met is reached by this fabric.
    pub fn accept(&mut self, node: NodeId) {
        self.settle(node, Stage::Accepted);
        self.want_strands(node);
    }

    /// A node that was met is reached by another fabric, and by this one, too. That other fabric says whether it lives: here its silence ends
    /// nothing, and what is under way is asked for once in a quarter of the dead-peer time, for ever. Say [`gone`](Self::gone) when it is
    /// no more.
    pub fn beside(&mut self, node: NodeId) {
        self.settle(node, Stage::Beside);
        if let Some(Some(peer)) = self.peers.get(node.index()) {
            peer.sessions().for_each(|session| self.endpoint.vouch(session));
        }
        self.want_strands(node);
    }

    /// This life of a node that was accepted, or is reached beside, is no more, as another fabric says. What arrived from it is still handed
    /// over by [`poll`](Self::poll); no [`Change`] tells of its end. Nothing if there is no such life any more.
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

    /// Whether this life of a node is known here, or something of it is still to be handed over.
    pub fn has(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.peers.get(node.index()).and_then(Option::as_ref).is_some_and(|peer| peer.incarnation == incarnation)
    }

    /// Whether all that waits of a node was put off: nothing of it was refused, or not asked about.
    pub fn is_put_off(&self, node: NodeId) -> bool {
        let peer = self.peers.get(node.index()).and_then(Option::as_ref);
        peer.is_none_or(|peer| peer.sessions().all(|session| self.endpoint.is_put_off(session)))
    }

    /// What is left of a life that is [gone](Self::gone) is not handed over any more.
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

    /// Talks with a node no more: it broke the rules, or its id is another's.
    pub fn expel(&mut self, node: NodeId) {
        let now = self.now();
        if let Some(Some(peer)) = self.peers.get(node.index()) {
            self.endpoint.close(now, peer.session, CODE_UNWANTED);
            self.flush(now);
        }
    }

    /// Expects `len` bytes of a life of a node that was accepted, or is reached beside, and names what comes: the peer has to be told. They come as long as `into` lives. `None`:
    /// there is no such life now.
    pub fn expect(&mut self, node: NodeId, incarnation: Incarnation, len: u64, into: &Arc<dyn BytesIn>) -> Option<TransferId> {
        self.expect_by(node, incarnation, 0, len, into)
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// How long until something is due here that no datagram brings; `None` if there is no such thing.
    pub fn timeout(&mut self) -> Option<Duration> {
        if self.later {
            return Some(Duration::ZERO);
        }
        let due =
            [self.endpoint.next_timeout(), self.contacts.due, self.strands_due, self.gather.due()].into_iter().flatten().min()?;
        Some(Duration::from_nanos(due - self.now()))
    }

    /// Whether there is something that the driver has not been told.
    pub fn has_news(&self) -> bool {
        !self.changes.is_empty() || !self.asks.is_empty()
    }

    /// Closes the socket and says nothing to anybody, as if the process had been killed.
    pub fn abandon(&mut self) {
        self.links.clear();
    }

    /// Ends all sessions in good order, and closes the socket: what was sent is brought to its end, as long as its targets take it, until `deadline` at most.
    pub fn shut(&mut self, deadline: Instant) {
        let now = self.now();
        let sessions: Vec<_> = self.peers.iter().flatten().map(|peer| peer.session).collect();
        for session in sessions {
            self.endpoint.close(now, session, CODE_LEFT);
        }
        // Nobody is looked for any more.
        self.contacts = Contacts::default();
        (self.wants_strands, self.strands_due) = (false, None);
        loop {
            self.look();
            // What still comes is for nobody; as long as it waits, the end of its sender would not be told.
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
