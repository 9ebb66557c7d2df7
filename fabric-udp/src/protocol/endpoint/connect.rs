//! The requests of this end for sessions.

use super::open::Attempt;
use super::sessions::Entry;
use super::{Endpoint, Target};
use crate::protocol::handshake::{self, Hello};
use crate::protocol::{Path, SessionId, Time};
use std::net::SocketAddr;

impl Endpoint {
    /// Requests a session. [`Connected`](crate::protocol::Event::Connected) or [`Closed`](crate::protocol::Event::Closed) with
    /// this id reports the result. `None`: there is no free slot, or no such link.
    pub fn connect(&mut self, now: Time, target: Target) -> Option<SessionId> {
        self.config.links.get(usize::from(target.path.link.0))?;
        self.attempt(now, target, 0)
    }

    /// The number of sessions that are possible with the peer of a first one, including that one: one for each link if both ends
    /// told of several.
    pub fn strands(&self, first: SessionId) -> usize {
        let ours = handshake::reaches(&self.config).count();
        self.sessions.peek(first).map_or(0, |session| ours.min(session.far.len()).max(1))
    }

    /// Requests a further session with the peer of a first one. It begins by a link and at an address that the sessions with
    /// lower numbers do not use: if possible by the link with its number, at the peer's address with that number. `tries` is the
    /// number of such paths that failed before; the next one is taken. As with [`connect`](Self::connect), an event reports the
    /// result. `None`: there is no such path, no first session, or no free slot.
    pub fn connect_further(&mut self, now: Time, first: SessionId, strand: u8, tries: usize) -> Option<SessionId> {
        let session = self.sessions.peek(first).filter(|session| session.over.is_none() && session.strand == 0)?;
        if strand == 0 || usize::from(strand) >= self.strands(first) {
            return None;
        }
        let (node, place) = (session.peer.node, usize::from(strand));
        let used: Vec<_> = (0..strand).filter_map(|lower| Some(self.sessions.with(node, lower)?.path)).collect();
        let mut ways: Vec<_> = handshake::reaches(&self.config)
            .enumerate()
            .flat_map(|(at, (link, near))| {
                let is_alike = move |far: &&SocketAddr| near.address.get().is_ipv4() == far.is_ipv4();
                let ways = session.far.iter().enumerate().filter(move |(_, far)| is_alike(far));
                ways.map(move |(to, far)| ((at, to) != (place, place), Path { link, peer: *far }))
            })
            .filter(|(_, path)| !used.iter().any(|used| used.link == path.link || used.peer == path.peer))
            .collect();
        ways.sort_by_key(|(is_other, path)| (*is_other, !session.is_valid(*path)));
        let (_, path) = *ways.get(tries % ways.len().max(1))?;
        self.attempt(now, Target { path, node: Some(node) }, strand)
    }

    fn attempt(&mut self, now: Time, target: Target, strand: u8) -> Option<SessionId> {
        let nonce = self.random.u64();
        let give_up = now + self.config.connect_for;
        let id = self.sessions.insert(|id| {
            let hello = Hello::new(&self.secret, self.config.versions, id.0 as u32, nonce);
            Entry::Attempt(Box::new(Attempt::new(id, now, target, strand, hello, give_up)))
        })?;
        self.earliest = self.earliest.min(now);
        Some(id)
    }
}
