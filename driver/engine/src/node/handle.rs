//! The handle of an attached process.

use crate::drive::{Shared, Stats, poller};
use crate::error::Error;
use crate::sync::baton::Token;
use crate::sync::wait::PARK_MOST;
use crate::transfer::TransferReport;
use crate::turn::events::Event;
use crate::{Result, message::outbound::Outbound};
use doorbell_fabric::world;
use doorbell_fabric::{Incarnation, NodeId, Role};
use doorbell_shm::domain::Member;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// One attached process of a domain. [`Node::builder`] makes it; it leaves the domain when the last clone is dropped.
///
/// Clones are handles to the same node. All calls are thread-safe. For the shortest path, give each thread its own
/// [`Peer`](super::Peer).
///
/// A call that waits returns when its condition is met, when its deadline passes (`…_by`), or when the node that it concerns is
/// gone. The waiting thread turns the node's engine meanwhile.
#[derive(Clone)]
pub struct Node {
    pub(super) shared: Arc<Shared>,
    _life: Arc<Life>,
}

/// Stops the poller and leaves the domain. Dropped with the last clone of a node.
struct Life {
    shared: Arc<Shared>,
    poller: Mutex<Option<std::thread::JoinHandle<()>>>,
    left: AtomicBool,
}

impl Life {
    fn leave(&self) -> Result<()> {
        if self.left.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        if !doorbell_shm::space::forked() {
            self.shared.flush();
        }
        self.shared.close(true);
        if !doorbell_shm::space::forked() {
            self.shared.wait_for_updates();
        }
        let handle = self.poller.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(handle) = handle
            && !doorbell_shm::space::forked()
            && handle.thread().id() != std::thread::current().id()
        {
            let _ = handle.join();
        }
        self.shared.depart()
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        if let Err(error) = self.leave() {
            tracing::warn!(%error, "could not leave the domain in good order");
        }
    }
}

impl Node {
    pub(crate) fn start(shared: Arc<Shared>, with_poller: bool) -> Result<Node> {
        let handle = if with_poller {
            let shared = shared.clone();
            let spawned = world::spawn("doorbell-poller", move || {
                doorbell_shm::bus::unblock();
                poller::run(shared);
            });
            Some(spawned.map_err(|error| Error::Invalid {
                what: format!(
                    "could not start the poller thread ({error}); join with Progress::Inline, or raise the limit of threads"
                ),
            })?)
        } else {
            None
        };
        let life = Life { shared: shared.clone(), poller: Mutex::new(handle), left: AtomicBool::new(false) };
        Ok(Node { shared, _life: Arc::new(life) })
    }

    /// This node's id.
    pub fn id(&self) -> NodeId {
        self.shared.membership().id()
    }

    /// This node's incarnation. An id that is used again gets another incarnation.
    pub fn incarnation(&self) -> Incarnation {
        self.shared.membership().incarnation()
    }

    /// This node's role.
    pub fn role(&self) -> Role {
        self.shared.membership().role()
    }

    /// The name of the node's domain.
    pub fn domain(&self) -> &str {
        self.shared.membership().domain()
    }

    /// The UDP address at which other nodes reach this one; `None` if the node is on no network. Pass it to
    /// [`NodeBuilder::connect`](super::NodeBuilder::connect) of other nodes. With several addresses, this is the first one
    /// given to [`listen`](super::NodeBuilder::listen).
    pub fn address(&self) -> Option<SocketAddr> {
        self.addresses().first().copied()
    }

    /// All UDP addresses at which other nodes reach this one, in the order of the calls of
    /// [`listen`](super::NodeBuilder::listen). Empty if the node is on no network.
    pub fn addresses(&self) -> &[SocketAddr] {
        self.shared.addresses()
    }

    /// How many nodes the domain can have.
    pub fn max_nodes(&self) -> usize {
        self.shared.membership().max_nodes()
    }

    /// The nodes that are attached now, in the order of their ids, including this one.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn members(&self) -> Result<Vec<Member>> {
        let me = self.shared.check()?;
        Ok(self.shared.living_members(me))
    }

    /// Reports of the latest transfers of this node: up to 64 received and up to 64 sent, each list oldest first. A report
    /// tells how many bytes took which way, which side copied them, and which thread executed each descriptor.
    ///
    /// A send appears when its target has all bytes, which may be a moment after the call returned.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Closed`], [`Error::Reentrant`].
    pub fn transfers(&self) -> Result<Vec<TransferReport>> {
        let me = self.shared.check()?;
        self.shared.turn(me);
        self.shared.transfers(me)
    }

    /// Waits until at least `count` nodes are attached, including this one, and returns them.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Forked`].
    pub fn wait_for(&self, count: usize, deadline: Instant) -> Result<Vec<Member>> {
        self.await_nodes("wait_for", deadline, || Ok(Some(self.members()?).filter(|members| members.len() >= count)))
    }

    /// Waits until `look` finds something. It is called at once, and again after each change of the nodes.
    fn await_nodes<T>(&self, operation: &'static str, deadline: Instant, look: impl Fn() -> Result<Option<T>>) -> Result<T> {
        loop {
            let seen = self.shared.membership().generation();
            if let Some(found) = look()? {
                return Ok(found);
            }
            let now = world::now();
            if now >= deadline {
                return Err(Error::Timeout { operation, node: None });
            }
            self.shared.await_change(self.shared.check()?, seen, PARK_MOST.min(deadline - now))?;
        }
    }

    /// The next event of another node, such as its death, if there is one. Each event is returned once. Never waits.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Reentrant`].
    pub fn try_event(&self) -> Result<Option<Event>> {
        let me = self.shared.check()?;
        let mut engine = self.shared.enter(me, "try_event")?;
        engine.check_peers();
        Ok(engine.next_event())
    }

    /// Waits for the next event of another node. A death is reported within 100 ms.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Forked`], [`Error::Reentrant`].
    pub fn event(&self, deadline: Instant) -> Result<Event> {
        self.await_nodes("event", deadline, || self.try_event())
    }

    /// Turns the engine once without waiting, and returns the amount of work done. For programs that join with
    /// `Progress::Inline` and have a loop of their own.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Reentrant`].
    pub fn progress(&self) -> Result<usize> {
        let me = self.shared.check()?;
        let mut engine = self.shared.enter(me, "progress")?;
        Ok(engine.turn(me, false))
    }

    /// Counts of the work that this node has done so far.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Reentrant`].
    pub fn stats(&self) -> Result<Stats> {
        let me = self.shared.check()?;
        self.shared.stats(me)
    }

    /// Leaves the domain now, even if clones exist. Pending operations end with [`Error::Closed`], and so do later calls.
    /// Messages that were sent stay in the lanes of their targets.
    ///
    /// # Errors
    /// [`Error::Reentrant`]: nothing happened. Another error: the node left, but its segments could not be removed; `doorbell
    /// clean` removes them.
    pub fn leave(self) -> Result<()> {
        if !doorbell_shm::space::forked() {
            // Within recv_with this thread holds the engine. Stopping the poller there could deadlock, since the poller may
            // wait for the engine.
            drop(self.shared.enter(Token::current(), "leave")?);
        }
        self._life.leave()
    }

    /// Ends this node as if its process had been killed at this instant: it tells no peer and removes nothing. For tests with
    /// [`Space::heap`](crate::Space::heap).
    pub fn abandon(self) {
        if !self._life.left.swap(true, Ordering::SeqCst) {
            self.shared.close(false);
            self.shared.abandon();
        }
    }

    /// All metrics of this node by name. Also updates them on the node's board.
    ///
    /// ```
    /// # use doorbell::{Metric, Node, Space};
    /// # fn main() -> Result<(), doorbell::Error> {
    /// # let node = Node::builder("figures").space(Space::heap()).join()?;
    /// assert_eq!(node.metrics()?[Metric::MessagesIn], 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Closed`], [`Error::Reentrant`].
    pub fn metrics(&self) -> Result<doorbell_shm::board::Metrics> {
        let me = self.shared.check()?;
        Ok(self.shared.enter(me, "metrics")?.show())
    }

    /// The present state of this node's links and the counts of its messages by mode. Also updates them on the board. For other
    /// nodes see [`ModeMonitor::of`](crate::mode::ModeMonitor::of) and [`of_domain`](crate::mode::ModeMonitor::of_domain).
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Closed`], [`Error::Reentrant`].
    pub fn monitor(&self) -> Result<crate::mode::ModeMonitor> {
        let me = self.shared.check()?;
        let mut engine = self.shared.enter(me, "monitor")?;
        engine.show();
        Ok(crate::mode::ModeMonitor::new(self.id(), self.incarnation(), engine.monitor().home().board()))
    }

    #[inline(always)]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn outbound(&self, me: Token, node: NodeId) -> Result<(&Arc<Outbound>, Incarnation)> {
        self.shared.known_way(me, node)
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("domain", &self.domain()).field("id", &self.id()).finish_non_exhaustive()
    }
}
