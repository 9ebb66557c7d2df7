//! Questions about sessions and the endpoint. They change nothing.

use super::Endpoint;
use crate::protocol::session::Session;
use crate::protocol::{EndpointStats, Outstanding, Path, SessionId, SessionStats};
use doorbell_fabric::Priority;
use std::net::SocketAddr;

impl Endpoint {
    /// The addresses of a session's peer, the one in use first, as far as the peer told them and links lead there.
    pub fn addresses(&self, session: SessionId) -> Vec<SocketAddr> {
        self.sessions.peek(session).map_or_else(Vec::new, Session::addresses)
    }

    /// Whether the peer of a session listens at all addresses of its machine.
    pub fn is_everywhere(&self, session: SessionId) -> bool {
        self.sessions.peek(session).is_some_and(|session| session.is_everywhere)
    }

    /// The path to the peer of a session.
    pub fn path(&self, session: SessionId) -> Option<Path> {
        self.sessions.peek(session).map(|session| session.path)
    }

    /// The traffic under way on a lane of a session, and its path. `None`: the session has ended.
    pub fn outstanding(&self, session: SessionId, priority: Priority) -> Option<Outstanding> {
        self.sessions.peek(session).map(|session| session.outstanding(priority))
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
