//! Locks are offered to other nodes by message, and accepted by them.

use super::error::LockError;
use super::far::{begin, error_of, send_answer};
use super::home::Arrived;
use super::key::Lock;
use super::service::Locks;
use super::wire::{self, Answer, Ask, Trouble, WITH_MAX};
use doorbell_engine::kit::{Error, Incarnation, Node, NodeId, Op, Outcome, PeerId, Result, shared_of};
use std::sync::Arc;
use std::time::Instant;

/// A node that accepted a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Accepted {
    /// The accepting node.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Its process, as numbered in its own pid namespace.
    pub pid: u32,
    /// Its module: the random number of its inbox, which no other inbox has.
    pub module: u64,
}

/// A lock that was offered to some nodes. Dropping this value does not withdraw the offer.
#[must_use = "wait until the nodes accept"]
pub struct Offer {
    node: Node,
    name: Arc<str>,
    asked: Vec<(PeerId, Arc<Op>)>,
}

impl Offer {
    /// Waits until all nodes have accepted, until `deadline` at most. Returns the acceptances in the order in which the nodes
    /// were named.
    ///
    /// # Errors
    /// [`Error::Timeout`] names a node that has not accepted. [`Error::PeerDied`], [`Error::PeerLeft`]: a node can't accept any
    /// more. [`Error::Closed`], [`Error::Forked`], [`Error::Reentrant`].
    pub fn wait(self, deadline: Instant) -> Result<Vec<Accepted>> {
        let shared = shared_of(&self.node);
        let me = shared.check()?;
        let mut accepted = Vec::new();
        for (PeerId { node, incarnation }, op) in self.asked {
            shared.drive(me, &op, Some(deadline), |_| false)?;
            match op.take() {
                Some(Outcome::Answered(bytes)) => match wire::decode(&bytes) {
                    Some(Answer::Accepted { pid, module }) => accepted.push(Accepted { node, incarnation, pid, module }),
                    Some(Answer::Trouble(trouble)) => return Err(error_of(shared, "offer", &self.name, trouble)),
                    _ => return Err(Error::Damaged { node }),
                },
                Some(Outcome::Failed(error)) => return Err(error),
                _ => return Err(Error::Timeout { operation: "offer", node: Some(node) }),
            }
        }
        Ok(accepted)
    }
}

impl Lock {
    /// Offers the lock to some nodes, which [accept](Lock::accept) it. Does not wait for them; [`Offer::wait`] does.
    ///
    /// # Errors
    /// [`Error::NoSuchNode`], [`Error::PeerDied`], [`Error::PeerLeft`]: a node is not attached; the nodes named after it got no
    /// offer. [`Error::Full`]: a node has too many offers that it has not accepted. [`Error::Closed`], [`Error::Forked`],
    /// [`Error::Reentrant`].
    pub fn offer(&self, nodes: &[NodeId]) -> Result<Offer> {
        self.offer_with(nodes, &[])
    }

    /// Offers the lock to all other nodes that are attached now.
    ///
    /// # Errors
    /// As [`offer`](Self::offer).
    pub fn offer_all(&self) -> Result<Offer> {
        let members = self.node().members()?;
        let others: Vec<_> = members.iter().map(|member| member.id).filter(|id| *id != self.node().id()).collect();
        self.offer(&others)
    }

    /// Offers the lock with up to 256 bytes of the program's own, for example what the others need to find the resource.
    ///
    /// # Errors
    /// As [`offer`](Self::offer). [`Error::Invalid`] if `with` is longer.
    pub fn offer_with(&self, nodes: &[NodeId], with: &[u8]) -> Result<Offer> {
        if with.len() > WITH_MAX {
            return Err(Error::Invalid {
                what: format!("{} bytes are too many to send with a lock; the limit is {WITH_MAX}", with.len()),
            });
        }
        let resource = self.resource()?.to_words();
        let shared = shared_of(self.node());
        let me = shared.check()?;
        let mut offer = Offer { node: self.node().clone(), name: self.name().into(), asked: Vec::new() };
        let ask = Ask::Offer { name: self.name().to_owned(), resource, with: with.to_vec() };
        for &node in nodes {
            let peer = {
                let mut engine = shared.enter(me, "offer")?;
                engine.refresh_peers();
                let Some(incarnation) = engine.fabric().live(node) else { return Err(engine.unreachable(node, None)) };
                PeerId { node, incarnation }
            };
            let op = begin(shared, me, "offer", peer, &ask, None)?;
            offer.asked.push((peer, op.ok_or(Error::Full { node })?));
        }
        Ok(offer)
    }

    /// Accepts the next lock that another node [offers](Lock::offer); waits for an offer until `deadline`. The offering node
    /// learns this node's id, process and module.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Closed`], [`Error::Forked`], [`Error::Reentrant`].
    pub fn accept(node: &Node, deadline: Instant) -> Result<Lock> {
        Ok(Self::accept_with(node, deadline)?.0)
    }

    /// As [`accept`](Self::accept), and also returns the bytes that were sent with the offer.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn accept_with(node: &Node, deadline: Instant) -> Result<(Lock, Vec<u8>)> {
        let shared = shared_of(node);
        let arrived = |locks: &mut Locks| {
            let closed = locks.closed.map(|why| Err(why.error()));
            closed.or_else(|| locks.registry.offers.pop_front().map(Ok))
        };
        loop {
            let offer = shared.wait_for_service("accept_key", Some(deadline), arrived)?;
            let Arrived { from, id, name, with } = offer.ok_or(Error::Timeout { operation: "accept_key", node: None })??;
            match Self::find(node, &name) {
                Ok(key) => {
                    let module = shared.membership().nonce();
                    send_answer(shared, from, id, &Answer::Accepted { pid: std::process::id(), module });
                    return Ok((key, with));
                }
                // The lock was destroyed after it was offered.
                Err(error) => {
                    let why = error.downcast_ref::<LockError>().map(Trouble::from);
                    send_answer(shared, from, id, &Answer::Trouble(why.ok_or(error)?));
                }
            }
        }
    }
}
