//! Sending loans.

use super::{Held, Loan, LoanMut};
use crate::drive::{Shared, TURNS_MAX};
use crate::error::Error;
use crate::message::lending::Parcel;
use crate::message::outbound::Outbound;
use crate::node::ToSend;
use crate::sync::baton::Token;
use crate::sync::wait::Step;
use crate::{Peer, Result};
use doorbell_fabric::world;
use doorbell_fabric::{Incarnation, NodeId, Push};
use doorbell_shm::board::{Record, RecordKind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Loans from this length on are noted in the flight recorder. Noting one takes some 30 ns.
const RECORDED: usize = 64 << 10;

/// The target of a loan. A node is named by its id. A peer is faster, and stands for one incarnation of its node.
#[derive(Clone, Copy, Debug)]
pub enum Recipient<'a> {
    /// The present incarnation of the node with this id.
    Node(NodeId),
    /// The other end of a peer.
    Peer(&'a Peer),
}

impl From<NodeId> for Recipient<'_> {
    fn from(node: NodeId) -> Self {
        Recipient::Node(node)
    }
}

impl<'a> From<&'a Peer> for Recipient<'a> {
    fn from(peer: &'a Peer) -> Self {
        Recipient::Peer(peer)
    }
}

impl<T: ?Sized> LoanMut<T> {
    /// Sends the loan, and returns when it is in the reader's lane. From then on the reader holds it. After an error the
    /// contents are lost; to keep them, [`share`](Self::share) the loan and use [`Loan::send`].
    ///
    /// The loan keeps its order among the messages to that node. The call waits while the lane is full, or while the reader has
    /// 1024 loans of this node. The rules of [`Node::send`](crate::Node::send) apply. If this node leaves before the reader's
    /// engine has seen the message, the reader does not get it.
    ///
    /// # Errors
    /// As [`Node::send`](crate::Node::send); [`Error::Invalid`] if the peer belongs to another node than this loan.
    #[inline]
    pub fn send<'a>(self, to: impl Into<Recipient<'a>>, tag: u64) -> Result<()> {
        send(&self.held, self.ptr.cast(), to.into(), tag, false, None)?;
        // The reader now holds the block in place of this handle. Only the rest of the handle is dropped.
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: read once, from a value that is not dropped.
        drop(unsafe { std::ptr::read(&this.held.shared) });
        Ok(())
    }
}

impl<T: ?Sized> Loan<T> {
    /// Sends the loan to one node: as [`LoanMut::send`], but this handle stays and can send it again.
    ///
    /// # Errors
    /// As [`LoanMut::send`].
    #[inline]
    pub fn send<'a>(&self, to: impl Into<Recipient<'a>>, tag: u64) -> Result<()> {
        send(&self.held, self.ptr.cast(), to.into(), tag, true, None)
    }

    /// Sends the loan to one node, waiting until `deadline` at most.
    ///
    /// # Errors
    /// [`Error::Timeout`]: the loan was not sent. Otherwise as [`LoanMut::send`].
    pub fn send_until<'a>(&self, to: impl Into<Recipient<'a>>, tag: u64, deadline: Instant) -> Result<()> {
        send(&self.held, self.ptr.cast(), to.into(), tag, true, Some(deadline))
    }

    /// Sends the loan to several nodes, one after the other. All of them read the same memory. An error does not stop the call:
    /// it still sends to the remaining nodes.
    ///
    /// # Errors
    /// The first error, one of those of [`LoanMut::send`].
    pub fn send_to(&self, nodes: &[NodeId], tag: u64) -> Result<()> {
        let mut result = Ok(());
        for node in nodes {
            result = result.and(self.send(*node, tag));
        }
        result
    }
}

/// A loan to be sent.
#[derive(Clone, Copy)]
struct ToLend<'a> {
    held: &'a Held,
    contents: NonNull<u8>,
    outbound: &'a Arc<Outbound>,
    parcel: Parcel,
    deadline: Option<Instant>,
}

#[inline(always)]
fn send(held: &Held, contents: NonNull<u8>, to: Recipient<'_>, tag: u64, keep: bool, deadline: Option<Instant>) -> Result<()> {
    let parcel = Parcel { tag, block: held.block, len: held.len, keep };
    let shared = &held.shared;
    let me = shared.check()?;
    let (outbound, incarnation) = match to {
        Recipient::Peer(peer) if Arc::ptr_eq(peer.node().shared(), shared) => (peer.outbound(), Some(peer.incarnation())),
        Recipient::Peer(_) => {
            let what = "a loan can only be sent to a peer of the node that lends it; take the peer from that node".into();
            return Err(Error::Invalid { what });
        }
        Recipient::Node(node) => (shared.known_way(me, node)?.0, None),
    };
    let loan = || ToLend { held, contents, outbound, parcel, deadline };
    if let Some(mut state) = outbound.state.enter(me) {
        let leads = state.link.is_some() && incarnation.is_none_or(|incarnation| incarnation == state.incarnation);
        if leads && state.is_remote() {
            drop(state);
            return send_copy(me, loan(), incarnation);
        }
        if leads && state.is_free() {
            match shared.lender().offer(me, &mut state, outbound.target, &parcel)? {
                Some(Push::Done) => {
                    drop(state);
                    note(held, outbound);
                    return Ok(());
                }
                Some(Push::Full) => {}
                Some(Push::Down(_)) => return Err(Error::Damaged { node: outbound.target }),
                None => {
                    drop(state);
                    return send_copy(me, loan(), incarnation);
                }
            }
        }
    }
    send_slow(me, loan(), incarnation)
}

/// Sends a copy to a node that cannot read the loan in place.
#[cold]
fn send_copy(me: Token, loan: ToLend<'_>, incarnation: Option<Incarnation>) -> Result<()> {
    let ToLend { held, contents, outbound, parcel, deadline } = loan;
    let shared = &held.shared;
    // SAFETY: the block holds `len` initialised bytes, and every handle to it only reads while this one is borrowed.
    let bytes = unsafe { std::slice::from_raw_parts(contents.as_ptr(), held.len) };
    shared.send_copy(me, ToSend { outbound, incarnation, tag: parcel.tag, bytes }, deadline)?;
    if !parcel.keep {
        // Releases the block on behalf of the handle, which is not dropped.
        shared.lender().release(me, held.block);
    }
    Ok(())
}

fn note(held: &Held, outbound: &Outbound) {
    // Noted after publishing, so that noting does not delay the message.
    if held.len >= RECORDED {
        let record = Record::new(RecordKind::LoanSent).peer(outbound.target).priority(outbound.priority);
        held.shared.monitor().record(&record.bytes(held.len as u64));
    }
}

/// Turns the engine until the sends queued before this one are gone and there is room.
#[cold]
fn send_slow(me: Token, loan: ToLend<'_>, incarnation: Option<Incarnation>) -> Result<()> {
    let ToLend { held, outbound, parcel, deadline, .. } = loan;
    let (shared, node): (&Shared, _) = (&held.shared, outbound.target);
    let mut backoff = shared.backoff(deadline);
    let mut wanted = incarnation;
    loop {
        {
            let mut engine = shared.enter(me, "send")?;
            shared.check()?;
            let mut state = outbound.state.enter(me).ok_or(Error::Reentrant { operation: "send" })?;
            // The incarnation that the loan was first meant for, and no later one.
            let incarnation = match wanted {
                Some(incarnation) => incarnation,
                None => engine.fabric().live(node).ok_or_else(|| engine.unreachable(node, None))?,
            };
            wanted = Some(incarnation);
            engine.connect(outbound, &mut state, incarnation)?;
            if state.is_remote() {
                drop((state, engine));
                return send_copy(me, loan, Some(incarnation));
            }
            if state.link.is_some() && state.is_free() {
                match shared.lender().offer(me, &mut state, node, &parcel)? {
                    Some(Push::Done) => {
                        drop(state);
                        note(held, outbound);
                        return Ok(());
                    }
                    Some(Push::Full) => {}
                    Some(Push::Down(_)) => return Err(Error::Damaged { node }),
                    None => {
                        drop((state, engine));
                        return send_copy(me, loan, Some(incarnation));
                    }
                }
            }
            // The target refuses our messages while we refuse those of another node. Two such nodes would wait for each other
            // for ever.
            if engine.is_refusing() && state.refused() {
                return Err(Error::Full { node });
            }
            drop(state);
            // The loop is bounded: a flood from a peer must not delay the check of the deadline.
            (0..TURNS_MAX).any(|_| engine.turn(me, false) == 0);
        }
        match backoff.step() {
            Step::Again => {}
            Step::Check => shared.check_peers(me),
            Step::Expired => return Err(Error::Timeout { operation: "send", node: Some(node) }),
            // Neither a free slot nor an empty queue rings the bell, so sleep a little and look again.
            Step::Park(_) => {
                shared.check_peers(me);
                world::sleep(Duration::from_micros(200));
            }
        }
    }
}
