//! The addresses at which other nodes are, or may be.
//!
//! This node's own options name some of them, and the node tries these again and again. Peers tell of the others, which may be
//! wrong or hostile. So the node greets told addresses a few at a time, shared out evenly among the peers that told of them. Thus
//! session slots remain for nodes that come by themselves, and no address is flooded. An address that does not answer gives way
//! to others, and is dropped after three attempts.

use crate::protocol::{ADDRESSES_MAX, CloseReason, Endpoint, LinkId, Path, Rejection, SessionId, Target, Time, is_one_place};
use doorbell_fabric::{Incarnation, NodeId};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

/// The first pause before an address is tried again after no node was there or its node has gone. The pause doubles each time, up
/// to the limit below.
const AGAIN_FIRST: Duration = Duration::from_millis(100);
const AGAIN_MOST: Duration = Duration::from_secs(2);
/// The number of told addresses that are tried at the same time.
const TOLD_AT_ONCE: usize = 16;
/// How long a told address is tried before it gives way to another, in the first and in the second attempt. The third attempt
/// lasts as long as any.
const GIVES_WAY_AFTER: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(1)];

/// The state of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing is known yet.
    Trying,
    /// There is a session, or there was one. `told` says whether the other end has told of all other nodes it knows.
    Met { told: bool },
    /// No process has that port.
    Nobody,
    /// The attempt failed.
    Failed(CloseReason),
}

/// A peer's statement about an address.
#[derive(Clone, Copy)]
struct Told {
    by: NodeId,
    node: NodeId,
    incarnation: Incarnation,
}

/// One address.
struct Contact {
    address: SocketAddr,
    /// The statement of the node that told of it. `None` if this node's options name it.
    told: Option<Told>,
    session: Option<SessionId>,
    /// The time of the next attempt. While a told address is being tried: the time at which it gives way.
    next: Time,
    pause: Duration,
    tries: usize,
    standing: Standing,
}

impl Contact {
    fn new(now: Time, address: SocketAddr, told: Option<Told>) -> Self {
        let (session, standing) = (None, Standing::Trying);
        Self { address, told, session, next: now, pause: AGAIN_FIRST, tries: 0, standing }
    }

    /// Whether it is a told address that still waits for its turn.
    fn waits(&self) -> bool {
        self.told.is_some() && self.session.is_none()
    }

    /// Whether it is a told address that is being tried.
    fn is_tried(&self) -> bool {
        self.told.is_some() && self.session.is_some() && !matches!(self.standing, Standing::Met { .. })
    }
}

/// All addresses.
#[derive(Default)]
pub struct Contacts {
    /// The addresses of this node's own links.
    locals: Vec<SocketAddr>,
    /// The most addresses that one node may tell of.
    told_max: usize,
    list: Vec<Contact>,
    /// Nothing needs to be done before this time.
    pub due: Option<Time>,
}

impl Contacts {
    /// An empty list, for a node with links at these addresses in a domain of at most `max_nodes` nodes.
    pub fn new(locals: Vec<SocketAddr>, max_nodes: usize) -> Self {
        Self { locals, told_max: ADDRESSES_MAX * max_nodes, ..Self::default() }
    }

    /// The link by which to try an address: the one that the system's routes prefer. If they prefer none of the links, or that
    /// one failed `tries` times, the links of its IP version take turns.
    pub fn link_towards(&self, address: SocketAddr, tries: usize) -> LinkId {
        if self.locals.len() < 2 {
            return LinkId(0);
        }
        let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let routed = || {
            let probe = UdpSocket::bind((any, 0)).ok()?;
            probe.connect(address).ok()?;
            let source = probe.local_addr().ok()?.ip();
            self.locals.iter().position(|local| local.ip() == source)
        };
        // A socket of all IPv6 addresses has all IPv4 addresses as well.
        let has_both = |local: SocketAddr| local.is_ipv6() && local.ip().is_unspecified();
        let alike = |at: &usize| self.locals[*at].is_ipv4() == address.is_ipv4() || has_both(self.locals[*at]);
        let first = routed().into_iter();
        let others: Vec<_> = first.chain((0..self.locals.len()).filter(alike)).collect();
        LinkId(others.get(tries % others.len().max(1)).copied().unwrap_or(0) as u8)
    }

    /// Adds an address that is tried until a node is there. A known address changes nothing.
    pub fn add(&mut self, now: Time, address: SocketAddr) {
        if !self.list.iter().any(|contact| contact.address == address) {
            self.list.push(Contact::new(now, address, None));
            self.due = Some(now);
        }
    }

    /// The peer `by` tells that an incarnation of a node is at an address. A peer may tell of as many addresses as all nodes
    /// together can have; further ones are ignored, and so are addresses at which no node can be.
    pub fn tell(&mut self, now: Time, by: NodeId, node: NodeId, incarnation: Incarnation, address: SocketAddr) {
        let is_by = |contact: &&Contact| contact.told.is_some_and(|told| told.by == by);
        // A statement of another peer about the same address does not count, because its turn may come late.
        let is_known = |contact: &Contact| {
            let is_met = matches!(contact.standing, Standing::Met { .. });
            contact.address == address && (is_met || contact.told.is_none_or(|told| told.by == by))
        };
        if is_one_place(address)
            && !self.locals.contains(&address)
            && self.list.iter().filter(is_by).count() < self.told_max
            && !self.list.iter().any(is_known)
        {
            self.list.push(Contact::new(now, address, Some(Told { by, node, incarnation })));
            self.due = Some(now);
        }
    }

    /// Records a session with this incarnation of a node at this address. Other statements about either need not be tried.
    pub fn met(&mut self, node: NodeId, incarnation: Incarnation, address: SocketAddr) {
        let is_meant = |told: Told| (told.node, told.incarnation) == (node, incarnation);
        self.list.retain(|contact| !(contact.waits() && (contact.address == address || contact.told.is_some_and(is_meant))));
    }

    /// The state of an address.
    pub fn standing(&self, address: SocketAddr) -> Option<Standing> {
        self.list.iter().find(|contact| contact.address == address).map(|contact| contact.standing)
    }

    /// Whether no address is being tried for the first time, and all nodes that were met have told of the others.
    pub fn is_settled(&self) -> bool {
        !self.list.iter().any(|contact| matches!(contact.standing, Standing::Trying | Standing::Met { told: false }))
    }

    /// Whether any told address is still being tried.
    pub fn is_told(&self) -> bool {
        self.list.iter().any(|contact| contact.told.is_some() && contact.standing == Standing::Trying)
    }

    /// Tries the addresses whose turn has come.
    pub fn attend(&mut self, now: Time, endpoint: &mut Endpoint) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        self.due = None;
        let mut list = std::mem::take(&mut self.list);
        for contact in &mut list {
            if contact.told.is_some() || contact.session.is_some() || contact.next == Time::NEVER {
                continue;
            }
            if contact.next <= now {
                let link = self.link_towards(contact.address, contact.tries);
                let path = Path { link, peer: contact.address };
                contact.tries += 1;
                contact.session = endpoint.connect(now, Target { path, node: None });
                contact.next = now + contact.pause;
                contact.pause = (2 * contact.pause).min(AGAIN_MOST);
            }
            if contact.session.is_none() {
                self.due = self.due.into_iter().chain([contact.next]).min();
            }
        }
        self.list = list;
        self.attend_told(now, endpoint);
    }

    /// Tries told addresses. First come those whose teller and whose node have the fewest attempts under way.
    fn attend_told(&mut self, now: Time, endpoint: &mut Endpoint) {
        let mut tried: Vec<usize> = (0..self.list.len()).filter(|at| self.list[*at].is_tried()).collect();
        if tried.len() >= TOLD_AT_ONCE && self.list.iter().any(Contact::waits) {
            // Go backwards, because an address that gives way moves to the end of the list.
            for at in tried.into_iter().rev().filter(|at| self.list[*at].next <= now).collect::<Vec<_>>() {
                self.stop(now, at, endpoint);
            }
        }
        loop {
            tried = (0..self.list.len()).filter(|at| self.list[*at].is_tried()).collect();
            let (mut by_teller, mut by_node) = (BTreeMap::<_, usize>::new(), BTreeMap::<_, usize>::new());
            for told in tried.iter().filter_map(|at| self.list[*at].told) {
                *by_teller.entry(told.by).or_default() += 1;
                *by_node.entry(told.node).or_default() += 1;
            }
            let count = |of: &BTreeMap<NodeId, usize>, node| of.get(&node).copied().unwrap_or(0);
            // Two peers may tell of one address, but it is tried only once at a time.
            let is_free =
                |contact: &Contact| contact.waits() && !tried.iter().any(|at| self.list[*at].address == contact.address);
            let waiting = self.list.iter().enumerate().filter(|(_, contact)| is_free(contact));
            let waiting = waiting.filter_map(|(at, contact)| Some((at, contact.told?)));
            let Some((next, told)) = waiting.min_by_key(|(_, told)| (count(&by_teller, told.by), count(&by_node, told.node)))
            else {
                return;
            };
            if tried.len() >= TOLD_AT_ONCE {
                // The teller with the most attempts gives one up, until all tellers have equally many. The attempt that it gives
                // up does not count.
                let busiest = by_teller.iter().max_by_key(|(_, count)| **count).map(|(teller, count)| (*teller, *count));
                let spare = busiest.filter(|(_, most)| *most > count(&by_teller, told.by) + 1).and_then(|(teller, _)| {
                    tried.iter().copied().find(|at| self.list[*at].told.is_some_and(|told| told.by == teller))
                });
                let Some(spare) = spare else {
                    let first = tried.iter().map(|at| self.list[*at].next).min();
                    self.due = self.due.into_iter().chain(first).min();
                    return;
                };
                self.list[spare].tries -= 1;
                self.stop(now, spare, endpoint);
                continue;
            }
            let (address, tries) = (self.list[next].address, self.list[next].tries);
            let path = Path { link: self.link_towards(address, tries), peer: address };
            let Some(session) = endpoint.connect(now, Target { path, node: None }) else {
                // The endpoint has no session slot left.
                self.due = self.due.into_iter().chain([now + AGAIN_FIRST]).min();
                return;
            };
            let contact = &mut self.list[next];
            contact.next = GIVES_WAY_AFTER.get(tries).map_or(Time::NEVER, |after| now + *after);
            (contact.session, contact.tries) = (Some(session), tries + 1);
        }
    }

    /// Ends an attempt at a told address. Its next turn comes after those of all waiting addresses.
    fn stop(&mut self, now: Time, at: usize, endpoint: &mut Endpoint) {
        let mut contact = self.list.remove(at);
        if let Some(session) = contact.session.take() {
            endpoint.close(now, session, 0);
        }
        self.list.push(contact);
    }

    /// Records that a session was established, at the request of this node or of the other end.
    pub fn connected(&mut self, session: SessionId, asked: bool) {
        if asked && let Some(contact) = self.list.iter_mut().find(|contact| contact.session == Some(session)) {
            contact.standing = Standing::Met { told: false };
            (contact.pause, contact.tries) = (AGAIN_FIRST, 0);
            // A slot is free, so waiting addresses may be tried now.
            self.due = Some(Time::ZERO);
        }
    }

    /// Records that the other end of a session has told of all nodes it knows.
    pub fn told(&mut self, session: SessionId) {
        if let Some(contact) = self.list.iter_mut().find(|contact| contact.session == Some(session)) {
            contact.standing = Standing::Met { told: true };
        }
    }

    /// Records the end of a session or of an attempt.
    pub fn closed(&mut self, now: Time, session: SessionId, reason: CloseReason) {
        let Some(at) = self.list.iter().position(|contact| contact.session == Some(session)) else { return };
        let contact = &mut self.list[at];
        contact.session = None;
        contact.standing = match reason {
            // The other end began a session with this node already, or the address is this very node.
            CloseReason::Duplicate | CloseReason::Rejected(Rejection::AlreadyConnected(..) | Rejection::SameNode) => {
                Standing::Met { told: true }
            }
            reason => Standing::Failed(reason),
        };
        if contact.told.is_some() {
            // A slot is free, so waiting addresses may be tried now.
            self.list.remove(at);
            self.due = Some(now);
        } else if reason == CloseReason::Rejected(Rejection::SameNode) {
            contact.next = Time::NEVER;
        } else {
            contact.next = now + contact.pause;
            self.due = Some(self.due.map_or(contact.next, |due| due.min(contact.next)));
        }
    }

    /// The network reports that no process has the port. That is only a hint, so the attempts go on.
    pub fn nobody(&mut self, address: SocketAddr) {
        if let Some(contact) = self.list.iter_mut().find(|contact| contact.address == address)
            && contact.standing == Standing::Trying
        {
            contact.standing = Standing::Nobody;
        }
    }
}

#[cfg(test)]
mod tests;
