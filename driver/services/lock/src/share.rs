//! Keys are shared by message, and accepted.

use super::Locks;
use super::away::{error_of, send_answer};
use super::key::LockKey;
use super::wire::{self, Answer, Ask, WITH_MAX};
use doorbell_engine::drive::poller::Progress;
use doorbell_engine::error::Error;
use doorbell_engine::node::shared_of;
use doorbell_engine::sync::op::{Op, Outcome};
use doorbell_engine::{Node, Result};
use doorbell_fabric::{Incarnation, NodeId, Priority};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// An offer that came.
pub(crate) struct Arrived {
    pub node: NodeId,
    pub life: Incarnation,
    /// The number by which it is answered.
    pub id: u64,
    pub name: String,
    pub with: Vec<u8>,
}

/// Offers that nobody has accepted yet, and who waits for one.
#[derive(Default)]
pub(crate) struct Offers {
    arrived: VecDeque<Arrived>,
    acceptors: Vec<Arc<Op>>,
}

impl Offers {
    /// One came.
    pub fn push(&mut self, offer: Arrived) {
        self.arrived.push_back(offer);
        self.acceptors.drain(..).for_each(|op| op.finish(Outcome::Counted));
    }

    /// The oldest, or else what ends when one comes.
    fn take(&mut self) -> Result<Arrived, Arc<Op>> {
        self.arrived.pop_front().ok_or_else(|| {
            let op = Op::new();
            self.acceptors.retain(|op| Arc::strong_count(op) > 1);
            self.acceptors.push(op.clone());
            op
        })
    }

    /// Those of a life of a node that is gone.
    pub fn forget(&mut self, node: NodeId, life: Incarnation) {
        self.arrived.retain(|offer| (offer.node, offer.life) != (node, life));
    }

    /// Nobody waits any more.
    pub fn end(&mut self, error: impl Fn() -> Error) {
        self.acceptors.drain(..).for_each(|op| op.finish(Outcome::Failed(error())));
        self.arrived.clear();
    }
}

/// Who accepted a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Accepted {
    /// The node.
    pub node: NodeId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Its process, in its own pid namespace.
    pub pid: u32,
    /// Its module: the number of its inbox that no other has.
    pub module: u64,
}

/// A key that was offered to some nodes. Dropping it takes nothing back.
#[must_use = "wait for those who accept"]
pub struct Offer {
    node: Node,
    name: Arc<str>,
    asked: Vec<(NodeId, Incarnation, Arc<Op>)>,
}

impl Offer {
    /// Waits until all have accepted, and says who did, in the order in which they were named.
    ///
    /// # Errors
    /// [`Error::Timeout`] names one that has not; [`Error::PeerDied`], [`Error::PeerLeft`]: one never will; [`Error::Closed`],
    /// [`Error::Forked`], [`Error::Reentrant`].
    pub fn wait(self, deadline: Instant) -> Result<Vec<Accepted>> {
        let shared = shared_of(&self.node);
        let me = shared.check()?;
        let mut accepted = Vec::new();
        for (node, incarnation, op) in &self.asked {
            shared.drive(me, op, Some(deadline), |_| false)?;
            let (node, incarnation) = (*node, *incarnation);
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

impl LockKey {
    /// Sends the key to some nodes, which [accept](LockKey::accept) it. Waits for nobody. The source's `dacs_mutex_share`.
    ///
    /// # Errors
    /// [`Error::NoSuchNode`], [`Error::PeerDied`], [`Error::PeerLeft`]: one of them is not attached, and none was sent it after that one;
    /// [`Error::Full`]: one has very many offers that it did not accept; [`Error::Closed`], [`Error::Forked`],
    /// [`Error::Reentrant`].
    pub fn offer(&self, nodes: &[NodeId]) -> Result<Offer> {
        self.offer_with(nodes, &[])
    }

    /// The same to all other nodes that are attached now.
    ///
    /// # Errors
    /// As [`offer`](Self::offer).
    pub fn offer_all(&self) -> Result<Offer> {
        let members = self.node().members()?;
        let others: Vec<_> = members.iter().map(|member| member.id).filter(|id| *id != self.node().id()).collect();
        self.offer(&others)
    }

    /// The same with up to 256 bytes that the others get with the key: what they need to find its resource.
    ///
    /// # Errors
    /// As [`offer`](Self::offer); [`Error::Invalid`] for more bytes.
    pub fn offer_with(&self, nodes: &[NodeId], with: &[u8]) -> Result<Offer> {
        if with.len() > WITH_MAX {
            return Err(Error::Invalid { what: format!("{} bytes are too many to go with a key; {WITH_MAX} may", with.len()) });
        }
        let resource = self.resource()?.to_words();
        let shared = shared_of(self.node());
        let me = shared.check()?;
        let mut offer = Offer { node: self.node().clone(), name: self.name().into(), asked: Vec::new() };
        for &node in nodes {
            let mut engine = shared.enter(me, "offer")?;
            shared.check()?;
            engine.glance();
            let Some(life) = engine.fabric().live(node) else { return Err(engine.unreachable(node, None)) };
            let ask = Ask::Offer { name: self.name().to_owned(), resource, with: with.to_vec() };
            engine.reach(me, (node, life).into(), Priority::High)?;
            let asked = engine.service::<Locks>().mail.ask(node, life, &wire::encode(&ask), None);
            let op = asked.ok_or(Error::Full { node })?;
            offer.asked.push((node, life, op));
            if shared.progress() != Progress::Poller {
                engine.push(me);
            }
        }
        shared.hand_over();
        Ok(offer)
    }
}

impl LockKey {
    /// The next key that another node [offers](LockKey::offer); waits for it until `deadline`. The other is told that this node, its process and
    /// its module have it. The source's `dacs_mutex_accept`.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Closed`], [`Error::Forked`], [`Error::Reentrant`].
    pub fn accept(node: &Node, deadline: Instant) -> Result<LockKey> {
        Ok(Self::accept_with(node, deadline)?.0)
    }

    /// The same, with the bytes that came with it.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn accept_with(node: &Node, deadline: Instant) -> Result<(LockKey, Vec<u8>)> {
        let shared = shared_of(node);
        let me = shared.check()?;
        loop {
            let taken = shared.enter(me, "accept_key")?.service::<Locks>().registry.offers.take();
            let offer = match taken {
                Ok(offer) => offer,
                Err(op) => {
                    if !shared.drive(me, &op, Some(deadline), |_| false)? {
                        return Err(Error::Timeout { operation: "accept_key", node: None });
                    }
                    if let Some(Outcome::Failed(error)) = op.take() {
                        return Err(error);
                    }
                    continue;
                }
            };
            let (from, life, id) = (offer.node, offer.life, offer.id);
            match Self::find(node, &offer.name) {
                Ok(key) => {
                    let module = shared.membership().nonce();
                    send_answer(shared, from, life, id, &Answer::Accepted { pid: std::process::id(), module });
                    return Ok((key, offer.with));
                }
                // It was destroyed since.
                Err(Error::Lock { why, .. }) => send_answer(shared, from, life, id, &Answer::Trouble((&*why).into())),
                Err(error) => return Err(error),
            }
        }
    }
}
