//! How requests and replies travel: letters to a thread of a place.

use super::wire::thread_of;
use crate::error::Error;
use crate::{Incarnation, Match, Node, NodeId, Peer, Result};
use std::time::Instant;

const REQUESTS: u64 = 0x10d0 << 48;
const REPLIES: u64 = 0x10d1 << 48;
const MARK: u64 = 0xffff << 48;
const THREAD: u64 = 0xffff << 32;

/// What a letter says of itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Letter {
    pub source: NodeId,
    pub incarnation: Incarnation,
    pub tag: u64,
    pub len: usize,
}

/// What came of looking for a letter.
#[derive(Clone, Copy, Debug)]
pub(super) enum Got {
    Letter(Letter),
    /// One that is longer than any: it is gone.
    TooLong,
    Nothing,
}

/// Where a thread gets its letters.
pub(super) struct Mailbox {
    node: Node,
    accepts: Match,
}

impl Mailbox {
    /// Of a server.
    pub(super) fn of_server(node: &Node) -> Result<Self> {
        Ok(Self { node: node.clone(), accepts: Match::any().tag_mask(REQUESTS, MARK) })
    }

    /// Of a client's thread, which gets them from one server.
    pub(super) fn of_thread(node: &Node, server: NodeId, life: Incarnation, thread: u32) -> Result<Self> {
        let accepts = Match::any().life(server, life).tag_mask(REPLIES | u64::from(thread) << 32, MARK | THREAD);
        Ok(Self { node: node.clone(), accepts })
    }

    /// Waits for the next one.
    #[inline]
    pub(super) fn receive(&mut self, buf: &mut [u8], deadline: Option<Instant>) -> Result<Got> {
        let got = match deadline {
            Some(deadline) => self.node.recv_by(self.accepts, buf, deadline),
            None => self.node.recv(self.accepts, buf),
        };
        got.map(Some).or_else(expected).map(|got| got.map_or(Got::Nothing, letter)).or_else(too_long)
    }

    /// The next one, if there is one.
    #[inline]
    pub(super) fn try_receive(&mut self, buf: &mut [u8]) -> Result<Got> {
        self.node.try_recv(self.accepts, buf).map(|got| got.map_or(Got::Nothing, letter)).or_else(too_long)
    }
}

fn letter(envelope: crate::Envelope) -> Got {
    let crate::Envelope { source, incarnation, tag, len, .. } = envelope;
    Got::Letter(Letter { source, incarnation, tag: tag & !MARK, len })
}

fn expected(error: Error) -> Result<Option<crate::Envelope>> {
    if matches!(error, Error::Timeout { .. }) { Ok(None) } else { Err(error) }
}

fn too_long(error: Error) -> Result<Got> {
    if matches!(error, Error::Truncated { .. }) { Ok(Got::TooLong) } else { Err(error) }
}

/// A way to a server, or to the threads of a client.
pub(super) struct Outlet {
    peer: Peer,
    mark: u64,
}

impl Outlet {
    pub(super) fn to_server(node: &Node, server: NodeId) -> Result<Self> {
        Ok(Self { peer: node.peer(server)?, mark: REQUESTS })
    }

    /// To the threads of this life of a node.
    pub(super) fn to_client(node: &Node, client: NodeId, life: Incarnation) -> Result<Self> {
        let peer = node.peer(client)?;
        if peer.incarnation() != life {
            return Err(Error::PeerDied { node: client, incarnation: life });
        }
        Ok(Self { peer, mark: REPLIES })
    }

    pub(super) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Sends to the thread that the tag names; waits while there is no room.
    #[inline]
    pub(super) fn send(&self, tag: u64, bytes: &[u8]) -> Result<()> {
        debug_assert!(thread_of(tag) <= 0xffff);
        self.peer.send(self.mark | (tag & !MARK), bytes)
    }

    /// The same if there is room now; else [`Error::Full`].
    #[inline]
    pub(super) fn try_send(&self, tag: u64, bytes: &[u8]) -> Result<()> {
        self.peer.try_send(self.mark | (tag & !MARK), bytes)
    }
}
