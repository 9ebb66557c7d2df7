//! Questions about sessions and the endpoint. They change nothing.

use super::Endpoint;
use crate::protocol::session::Session;
use crate::protocol::{EndpointStats, Outstanding, Path, Peer, SessionId, SessionStats};
use doorbell_fabric::{NodeId, Priority};
use std::net::SocketAddr;

impl Endpoint {
    /// The other end of a connected session.
    pub fn peer(&self, session: SessionId) -> Option<Peer> {
        self.sessions.peek(session).map(|session| session.peer)
    }

    /// The addresses of a session's peer, the one in use first, as far as the peer told them and links lead there.
    pub fn addresses(&self, session: SessionId) -> Vec<SocketAddr> {
        self.sessions.peek(session).map_or_else(Vec::new, Session::addresses)
    }

    /// The path to the peer of a session.
    pub fn path(&self, session: SessionId) -> Option<Path> {
        self.sessions.peek(session).map(|session| session.path)
    }

    /// The first session with a node, if there is one.
    pub fn session_with(&self, node: NodeId) -> Option<SessionId> {
        self.sessions.with(node, 0).map(|session| session.id)
    }

    /// The traffic under way on a lane of a session, and its path. `None`: the session has ended.
    pub fn outstanding(&self, session: SessionId, priority: Priority) -> Option<Outstanding> {
        self.sessions.peek(session).map(|session| session.outstanding(priority))
    }

    /// Whether everything pushed on a session was acknowledged and no transfer to the peer runs. `true` if the session has ended.
    pub fn is_flushed(&self, session: SessionId) -> bool {
        self.sessions.peek(session).is_none_or(|session| session.cargo.is_idle())
    }

    /// The counts of a session.
    pub fn session_stats(&self, session: SessionId) -> Option<SessionStats> {
        self.sessions.peek(session).map(Session::stats)
    }

    /// The counts of the endpoint.
    pub fn stats(&self) -> EndpointStats {
        self.stats
    }
}
