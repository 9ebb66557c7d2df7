//! Questions to an endpoint that only tests and the simulator may ask.

use super::Endpoint;
use crate::protocol::handshake::{COOKIE, DomainSecret, Hello};
use crate::protocol::session::Session;
use crate::protocol::{Peer, SessionId, Time};
#[cfg(test)]
use doorbell_fabric::NodeId;
use std::net::SocketAddr;

impl Endpoint {
    /// The other end of a connected session.
    pub(crate) fn peer(&self, session: SessionId) -> Option<Peer> {
        self.sessions.peek(session).map(|session| session.peer)
    }

    /// The first session with a node, if there is one.
    #[cfg(test)]
    pub(crate) fn session_with(&self, node: NodeId) -> Option<SessionId> {
        self.sessions.with(node, 0).map(|session| session.id)
    }

    /// Whether everything pushed on a session was acknowledged and no transfer to the peer runs. `true` if the session has ended.
    pub(crate) fn is_flushed(&self, session: SessionId) -> bool {
        self.sessions.peek(session).is_none_or(|session| session.cargo.is_idle())
    }

    /// The name by which the other end knows a session.
    pub(crate) fn named_there(&self, session: SessionId) -> Option<u32> {
        self.sessions.peek(session).map(Session::named_there)
    }

    /// Whether the session with this name has ended or never existed.
    pub(crate) fn is_over(&self, name: u32) -> bool {
        self.sessions.at(usize::from(name as u16)).is_none_or(|session| session.id.0 as u32 != name || session.over.is_some())
    }

    /// The number of slots ever used.
    pub(crate) fn places(&self) -> usize {
        self.sessions.places()
    }

    /// The number of sessions and attempts.
    pub(crate) fn occupied(&self) -> usize {
        self.sessions.places() - self.sessions.vacant.len()
    }

    /// Forges a datagram of an existing session, with this body and perhaps this number, that no endpoint would send.
    pub(crate) fn forge(&mut self, now: Time, session: SessionId, number: Option<u64>, body: &[u8]) -> Vec<u8> {
        self.sessions.live(session).expect("a session").1.forge(now, number, body)
    }

    /// The number of records of sent datagrams that a session keeps, and of the items that these carried.
    #[cfg(test)]
    pub(crate) fn records(&self, session: SessionId) -> Option<(usize, usize)> {
        self.sessions.peek(session).map(Session::records)
    }

    /// The number of waiting answers, requests and events.
    pub(crate) fn waiting(&self) -> (usize, usize, usize) {
        (self.answers.len(), self.requests.len(), self.events.len())
    }

    /// The cookie that answers a Hello.
    pub(crate) fn cookie(&self, now: Time, from: SocketAddr, hello: &Hello) -> [u8; COOKIE] {
        self.cookies.bake(now.nanos(), from, hello)
    }

    /// The domain's secret, for proofs of datagrams that no endpoint would send.
    pub(crate) fn secret(&self) -> &DomainSecret {
        &self.secret
    }
}
