//! A thread's own handle to another node.

use super::Node;
use super::operation::Operation;
use super::owned::{self, Completion};
use super::send::{Patience, ToSend, check_try, gathered};
use crate::Result;
use crate::memory::cache::RegionCache;
use crate::message::Match;
use crate::message::outbound::{Outbound, WHOLE_BYTES};
use crate::mode::{ModeRequest, Receipt};
use crate::sync::baton::Token;
use crate::sync::op::Op;
use doorbell_fabric::{Envelope, Incarnation, NodeId, Payload, PeerWord, Priority};
use std::cell::RefCell;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

/// A thread's own handle to one incarnation of another node. It gives the shortest path to that node.
///
/// A peer can move to another thread, but threads cannot share it. Several threads may each have a peer to the same node. They
/// share its lane, one message at a time. As long as only one thread uses the lane, sending takes no lock and no locked
/// instruction.
///
/// ```
/// # use doorbell::{Match, Node, Space};
/// # fn main() -> Result<(), doorbell::Error> {
/// # let space = Space::heap();
/// # let a = Node::builder("peers").space(space.clone()).join()?;
/// # let b = Node::builder("peers").space(space).join()?;
/// let peer = a.peer(b.id())?;
/// peer.send(1, b"ping")?;
/// # let back = b.peer(a.id())?;
/// # back.send(2, b"pong")?;
/// let mut buf = [0; 16];
/// let envelope = peer.recv(Match::any().tag(2), &mut buf)?;
/// assert_eq!(&buf[..envelope.len], b"pong");
/// # Ok(())
/// # }
/// ```
pub struct Peer {
    node: Node,
    outbound: Arc<Outbound>,
    /// The node and the incarnation at the other end.
    other: PeerWord,
    /// A RefCell makes the type Send, but not Sync.
    regions: RefCell<RegionCache>,
}

impl Peer {
    pub(super) fn new(node: Node, outbound: Arc<Outbound>, incarnation: Incarnation) -> Self {
        let other = PeerWord::new(outbound.target, incarnation);
        Self { node, outbound, other, regions: RefCell::default() }
    }

    /// The node at the other end.
    pub fn id(&self) -> NodeId {
        self.other.node()
    }

    /// The incarnation of the node at the other end.
    #[inline]
    pub fn incarnation(&self) -> Incarnation {
        self.other.incarnation()
    }

    /// The node at this end.
    pub fn node(&self) -> &Node {
        &self.node
    }

    #[inline(always)]
    pub(crate) fn outbound(&self) -> &Arc<Outbound> {
        &self.outbound
    }

    #[inline(always)]
    pub(crate) fn region_cache(&self) -> &RefCell<RegionCache> {
        &self.regions
    }

    /// Sends a message: as [`Node::send`].
    ///
    /// # Errors
    /// As [`Node::send`].
    #[inline]
    pub fn send(&self, tag: u64, bytes: &[u8]) -> Result<()> {
        self.send_with(tag, bytes, Patience::Forever)
    }

    /// Sends a message of up to 64 KiB if there is room now: as [`Node::try_send`].
    ///
    /// # Errors
    /// As [`Node::try_send`].
    #[inline]
    pub fn try_send(&self, tag: u64, bytes: &[u8]) -> Result<()> {
        self.send_with(tag, bytes, Patience::None)
    }

    /// Sends a message, waiting until `deadline` at most: as [`Node::send_until`].
    ///
    /// # Errors
    /// As [`Node::send_until`].
    #[inline]
    pub fn send_until(&self, tag: u64, bytes: &[u8], deadline: Instant) -> Result<()> {
        self.send_with(tag, bytes, Patience::Until(deadline))
    }

    /// Sends one message made of several pieces.
    ///
    /// # Errors
    /// As [`Node::send`].
    pub fn send_vectored(&self, tag: u64, pieces: &[IoSlice<'_>]) -> Result<()> {
        self.send(tag, gathered(pieces, &mut Vec::new()))
    }

    /// Begins to send a message and returns at once: as [`Node::start_send`].
    ///
    /// # Errors
    /// As [`Node::start_send`].
    pub fn start_send<B: AsRef<[u8]> + Send + 'static>(&self, tag: u64, buffer: B) -> Result<Operation<Completion<B>>> {
        owned::send_or_begin(&self.node, &self.outbound, Some(self.incarnation()), tag, buffer, None)
    }

    /// Sends a message with the requested mode: as [`Node::send_as`].
    ///
    /// ```
    /// # use doorbell::{Match, Node, Space, mode::{Fabric, Protocol, Reason}};
    /// # fn main() -> Result<(), doorbell::Error> {
    /// # let space = Space::heap();
    /// # let a = Node::builder("modes").space(space.clone()).join()?;
    /// # let b = Node::builder("modes").space(space).join()?;
    /// let receipt = a.peer(b.id())?.send_as(1, b"by shared memory", "shm/transfer".parse().unwrap())?;
    /// assert_eq!((receipt.used.fabric, receipt.used.protocol, receipt.reason), (Fabric::Shm, Protocol::Transfer, Reason::Requested));
    /// # b.recv(Match::any(), &mut [0; 16])?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Node::send_as`].
    pub fn send_as(&self, tag: u64, bytes: &[u8], mode: ModeRequest) -> Result<Receipt> {
        let shared = &self.node.shared;
        shared.send_as(shared.check()?, self.to_send(tag, bytes), mode)
    }

    /// Begins to send a message with the requested mode and returns at once. [`Operation::receipt`] tells which mode was used.
    ///
    /// # Errors
    /// As [`Node::send_as`] and [`Node::start_send`].
    pub fn start_send_as<B: AsRef<[u8]> + Send + 'static>(
        &self,
        tag: u64,
        buffer: B,
        mode: ModeRequest,
    ) -> Result<Operation<Completion<B>>> {
        owned::send(self.node.clone(), self.outbound.clone(), Some(self.incarnation()), tag, buffer, Some(mode), Op::new())
    }

    /// Receives a message from this incarnation of the node: as [`Node::recv`].
    ///
    /// # Errors
    /// As [`Node::recv`].
    #[inline]
    pub fn recv(&self, accepts: Match, buf: &mut [u8]) -> Result<Envelope> {
        self.node.recv(accepts.peer(self.other), buf)
    }

    /// Receives a message from this incarnation of the node, if one is there: as [`Node::try_recv`].
    ///
    /// # Errors
    /// As [`Node::try_recv`].
    #[inline]
    pub fn try_recv(&self, accepts: Match, buf: &mut [u8]) -> Result<Option<Envelope>> {
        self.node.try_recv(accepts.peer(self.other), buf)
    }

    /// Receives up to `limit` messages from this incarnation of the node in place: as [`Node::recv_many`].
    ///
    /// # Errors
    /// As [`Node::recv_many`].
    #[inline]
    pub fn recv_many(&self, accepts: Match, limit: usize, read: impl FnMut(&Envelope, Payload<'_>)) -> Result<usize> {
        self.node.recv_many(accepts.peer(self.other), limit, read)
    }

    /// As [`recv_many`](Self::recv_many), waiting for the first message until `deadline` at most.
    ///
    /// # Errors
    /// [`Error::Timeout`](crate::Error::Timeout); otherwise as [`Node::recv_many`].
    #[inline]
    pub fn recv_many_until(
        &self,
        accepts: Match,
        limit: usize,
        deadline: Instant,
        read: impl FnMut(&Envelope, Payload<'_>),
    ) -> Result<usize> {
        self.node.recv_many_until(accepts.peer(self.other), limit, deadline, read)
    }

    /// Receives up to `limit` messages from this incarnation of the node that are there now: as [`Node::try_recv_many`].
    ///
    /// # Errors
    /// As [`Node::recv_many`].
    #[inline]
    pub fn try_recv_many(&self, accepts: Match, limit: usize, read: impl FnMut(&Envelope, Payload<'_>)) -> Result<usize> {
        self.node.try_recv_many(accepts.peer(self.other), limit, read)
    }

    /// Receives a message from this incarnation of the node, waiting until `deadline` at most: as [`Node::recv_until`].
    ///
    /// # Errors
    /// As [`Node::recv_until`].
    #[inline]
    pub fn recv_until(&self, accepts: Match, buf: &mut [u8], deadline: Instant) -> Result<Envelope> {
        self.node.recv_until(accepts.peer(self.other), buf, deadline)
    }

    #[inline(always)]
    pub(super) fn send_with(&self, tag: u64, bytes: &[u8], patience: Patience) -> Result<()> {
        let is_short = bytes.len() <= WHOLE_BYTES && self.node.shared.program_turns();
        // Whatever is not short comes out of line, so that the common case needs no stack.
        if is_short && self.outbound.send_short(Token::at_hand(), self.incarnation(), tag, bytes) {
            return Ok(());
        }
        self.send_any(tag, bytes, patience)
    }

    #[inline(never)]
    fn send_any(&self, tag: u64, bytes: &[u8], patience: Patience) -> Result<()> {
        if matches!(patience, Patience::None) {
            check_try(bytes.len())?;
        }
        let shared = &self.node.shared;
        let me = shared.check()?;
        if shared.send_now(me, &self.outbound, Some(self.incarnation()), tag, bytes, patience)? {
            return Ok(());
        }
        shared.send_slow(me, self.to_send(tag, bytes), patience)
    }

    #[inline(always)]
    fn to_send<'a>(&'a self, tag: u64, bytes: &'a [u8]) -> ToSend<'a> {
        ToSend { outbound: &self.outbound, incarnation: Some(self.incarnation()), tag, bytes }
    }
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer").field("id", &self.id()).field("incarnation", &self.incarnation()).finish_non_exhaustive()
    }
}

impl Node {
    /// A handle to another node's present incarnation, at normal priority. Does not wait.
    ///
    /// # Errors
    /// [`Error::NoSuchNode`](crate::Error::NoSuchNode) if it is not attached now; [`Error::Forked`](crate::Error::Forked), [`Error::Reentrant`](crate::Error::Reentrant).
    pub fn peer(&self, node: NodeId) -> Result<Peer> {
        self.peer_with_priority(node, Priority::Normal)
    }

    /// A handle to another node whose messages have this priority. Order is kept among messages of one priority only.
    ///
    /// # Errors
    /// As [`peer`](Self::peer).
    pub fn peer_with_priority(&self, node: NodeId, priority: Priority) -> Result<Peer> {
        let me = self.shared.check()?;
        let (outbound, incarnation) = self.shared.way(me, node, priority)?;
        Ok(Peer::new(self.clone(), outbound, incarnation))
    }
}
