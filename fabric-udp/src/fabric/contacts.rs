//! Addresses at which other nodes are, or may be.

use crate::protocol::{CloseReason, Endpoint, LinkId, Path, Rejection, SessionId, Target, Time};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

/// How soon an address is tried again where nobody was, or nobody is any more; twice as long each time after, up to the other.
const AGAIN_FIRST: Duration = Duration::from_millis(100);
const AGAIN_MOST: Duration = Duration::from_secs(2);
/// Addresses that are remembered because others told of them.
const TOLD_MAX: usize = 4096;

/// How an attempt went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing is known yet.
    Trying,
    /// There is a session, or was one; whether the other end has told of others.
    Met { told: bool },
    /// Nobody has that port.
    Nobody,
    /// It came to nothing.
    Failed(CloseReason),
}

/// One address.
pub struct Contact {
    pub address: SocketAddr,
    /// Tried again and again; otherwise once.
    lasting: bool,
    session: Option<SessionId>,
    next: Time,
    pause: Duration,
    tries: usize,
    pub standing: Standing,
}

/// All of them.
#[derive(Default)]
pub struct Contacts {
    /// Where this node's own links are.
    locals: Vec<SocketAddr>,
    list: Vec<Contact>,
    /// Nothing is to be done before.
    pub due: Option<Time>,
}

impl Contacts {
    /// None yet, for a node with links at these addresses.
    pub fn new(locals: Vec<SocketAddr>) -> Self {
        Self { locals, ..Self::default() }
    }

    /// The link by which an address is tried: the one that the system's routes prefer; or those of its IP version in turn, if they prefer none of
    /// them or that led nowhere `tries` times.
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
        let alike = |at: &usize| self.locals[*at].is_ipv4() == address.is_ipv4();
        let first = routed().into_iter();
        let others: Vec<_> = first.chain((0..self.locals.len()).filter(alike)).collect();
        LinkId(others.get(tries % others.len().max(1)).copied().unwrap_or(0) as u8)
    }

    /// Another address. If it is known already, nothing changes.
    pub fn add(&mut self, now: Time, address: SocketAddr, lasting: bool) {
        let is_known = self.list.iter().any(|contact| contact.address == address);
        if !is_known && (lasting || self.list.len() < TOLD_MAX) {
            let standing = Standing::Trying;
            self.list.push(Contact { address, lasting, session: None, next: now, pause: AGAIN_FIRST, tries: 0, standing });
            self.due = Some(now);
        }
    }

    /// What is known of an address.
    pub fn standing(&self, address: SocketAddr) -> Option<Standing> {
        self.list.iter().find(|contact| contact.address == address).map(|contact| contact.standing)
    }

    /// Whether no address is being tried for the first time, and all that were met have told of others.
    pub fn is_settled(&self) -> bool {
        !self.list.iter().any(|contact| matches!(contact.standing, Standing::Trying | Standing::Met { told: false }))
    }

    /// Whether some that others told of are still being tried.
    pub fn is_told(&self) -> bool {
        self.list.iter().any(|contact| !contact.lasting && contact.standing == Standing::Trying)
    }

    /// Tries those whose turn it is.
    pub fn attend(&mut self, now: Time, endpoint: &mut Endpoint) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        self.due = None;
        let mut list = std::mem::take(&mut self.list);
        for contact in &mut list {
            if contact.session.is_some() || contact.next == Time::NEVER {
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
                self.due = Some(self.due.map_or(contact.next, |due| due.min(contact.next)));
            }
        }
        self.list = list;
    }

    /// A session stands that was asked for here, or by the other end.
    pub fn connected(&mut self, session: SessionId, asked: bool) {
        if asked && let Some(contact) = self.list.iter_mut().find(|contact| contact.session == Some(session)) {
            contact.standing = Standing::Met { told: false };
            (contact.pause, contact.tries) = (AGAIN_FIRST, 0);
        }
    }

    /// The other end of a session has told of all it knows.
    pub fn told(&mut self, session: SessionId) {
        if let Some(contact) = self.list.iter_mut().find(|contact| contact.session == Some(session)) {
            contact.standing = Standing::Met { told: true };
        }
    }

    /// A session ended, or an attempt.
    pub fn closed(&mut self, now: Time, session: SessionId, reason: CloseReason) {
        let Some(at) = self.list.iter().position(|contact| contact.session == Some(session)) else { return };
        let contact = &mut self.list[at];
        contact.session = None;
        contact.standing = match reason {
            // There is a session with that node, which the other end began; or it is this very node.
            CloseReason::Duplicate | CloseReason::Rejected(Rejection::AlreadyConnected(..) | Rejection::SameNode) => {
                Standing::Met { told: true }
            }
            reason => Standing::Failed(reason),
        };
        if reason == CloseReason::Rejected(Rejection::SameNode) {
            contact.next = Time::NEVER;
        } else if contact.lasting {
            contact.next = now + contact.pause;
            self.due = Some(self.due.map_or(contact.next, |due| due.min(contact.next)));
        } else {
            self.list.swap_remove(at);
        }
    }

    /// Nobody has the port there, as the network says. A hint: it is tried on.
    pub fn nobody(&mut self, address: SocketAddr) {
        if let Some(contact) = self.list.iter_mut().find(|contact| contact.address == address)
            && contact.standing == Standing::Trying
        {
            contact.standing = Standing::Nobody;
        }
    }
}
