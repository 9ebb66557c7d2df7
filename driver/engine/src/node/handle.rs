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

/// One attached process of a domain: joins with [`Node::builder`], leaves when the last clone is dropped.
///
/// Clones are handles to the same node; all calls are thread-safe. For the shortest path, give each thread its own
/// [`Peer`](super::Peer).
///
/// Calls that wait do so until their condition comes true, a deadline passes (`…_by`), or the node they are about is gone.
/// While they wait they drive the node's engine.
#[derive(Clone)]
pub struct Node {
    pub(super) shared: Arc<Shared>,
    _life: Arc<Life>,
}

/// Dropped with the last clone of a node: stops the poller and leaves the domain.
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

    /// Which life of that id this is.
    pub fn incarnation(&self) -> Incarnation {
        self.shared.membership().incarnation()
    }

    /// This node's role.
    pub fn role(&self) -> Role {
        self.shared.membership().role()
    }

    /// The name of its domain.
    pub fn domain(&self) -> &str {
        self.shared.membership().domain()
    }

    /// The UDP address at which other nodes find this one; `None` if it is on no network. To be given to
    /// [`NodeBuilder::connect`](super::NodeBuilder::connect) of others. If there are several it is the first that it was told to [listen](super::NodeBuilder::listen) at.
    pub fn address(&self) -> Option<SocketAddr> {
        self.addresses().first().copied()
    }

    /// All UDP addresses at which other nodes find this one, in the order in which it was told them; none if it is on no network.
    pub fn addresses(&self) -> &[SocketAddr] {
        self.shared.addresses()
    }

    /// How many nodes the domain can have.
    pub fn max_nodes(&self) -> usize {
        self.shared.membership().max_nodes()
    }

    /// The nodes that are attached now, this one included, by id.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn members(&self) -> Result<Vec<Member>> {
        let me = self.shared.check()?;
        Ok(self.shared.living_members(me))
    }

    /// What the latest transfers of this node did, up to 64 received and 64 sent, each oldest first: which way how many bytes
    /// went, who copied them, which thread executed each descriptor.
    ///
    /// A send counts when its target has everything, which may be a moment after it returned.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Closed`], [`Error::Reentrant`].
    pub fn transfers(&self) -> Result<Vec<TransferReport>> {
        let me = self.shared.check()?;
        self.shared.turn(me);
        self.shared.transfers(me)
    }

    /// Waits until at least `count` nodes are attached, this one included.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Forked`].
    pub fn wait_for(&self, count: usize, deadline: Instant) -> Result<Vec<Member>> {
        let membership = self.shared.membership();
        loop {
            let me = self.shared.check()?;
            let seen = membership.generation();
            let members = self.shared.living_members(me);
            if members.len() >= count {
                return Ok(members);
            }
            let now = world::now();
            if now >= deadline {
                return Err(Error::Timeout { operation: "wait_for", node: None });
            }
            self.shared.await_change(me, seen, PARK_MOST.min(deadline - now))?;
        }
    }

    /// The next thing that happened to another node, if one did that was not yet told. Each event is told once.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Reentrant`].
    pub fn try_event(&self) -> Result<Option<Event>> {
        let me = self.shared.check()?;
        let mut engine = self.shared.enter(me, "try_event")?;
        engine.check_peers();
        Ok(engine.next_event())
    }

    /// Waits for the next thing that happens to another node. A death is told within 100 ms.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Forked`], [`Error::Reentrant`].
    pub fn event(&self, deadline: Instant) -> Result<Event> {
        loop {
            let seen = self.shared.membership().generation();
            if let Some(event) = self.try_event()? {
                return Ok(event);
            }
            let now = world::now();
            if now >= deadline {
                return Err(Error::Timeout { operation: "event", node: None });
            }
            self.shared.await_change(self.shared.check()?, seen, PARK_MOST.min(deadline - now))?;
        }
    }

    /// Turns the engine once without waiting, and returns the amount of work done. For programs that join with
    /// `Progress::Inline` and have their own loop.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Reentrant`].
    pub fn progress(&self) -> Result<usize> {
        let me = self.shared.check()?;
        let mut engine = self.shared.enter(me, "progress")?;
        Ok(engine.turn(me, false))
    }

    /// What this node has done so far.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Reentrant`].
    pub fn stats(&self) -> Result<Stats> {
        let me = self.shared.check()?;
        self.shared.stats(me)
    }

    /// Leaves the domain now, whatever clones exist: pending operations end with [`Error::Closed`], and so do later calls.
    /// Messages that were sent stay in the lanes of their targets.
    ///
    /// # Errors
    /// [`Error::Reentrant`]: then nothing happened. The segments could not be removed; `doorbell clean` will.
    pub fn leave(self) -> Result<()> {
        if !doorbell_shm::space::forked() {
            // From within recv_with this thread has the engine, and the poller, which is to end, may be waiting for it.
            drop(self.shared.enter(Token::current(), "leave")?);
        }
        self._life.leave()
    }

    /// Ends this node as if its process had been killed at this instant: nothing is told, nothing removed. For tests with
    /// [`Space::heap`](crate::Space::heap).
    pub fn abandon(self) {
        if !self._life.left.swap(true, Ordering::SeqCst) {
            self.shared.close(false);
            self.shared.abandon();
        }
    }

    /// All figures of this node by name, those on its board; shows them there, too.
    ///
    /// ```
    /// # use doorbell::{Figure, Node, Space};
    /// # fn main() -> Result<(), doorbell::Error> {
    /// # let node = Node::builder("figures").space(Space::heap()).join()?;
    /// assert_eq!(node.figures()?[Figure::MessagesIn], 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Closed`], [`Error::Reentrant`].
    pub fn figures(&self) -> Result<doorbell_shm::board::Figures> {
        let me = self.shared.check()?;
        Ok(self.shared.enter(me, "figures")?.show())
    }

    /// What is seen of this node's links now, and how its messages went so far; shows it on the board, too. For other nodes see
    /// [`ModeMonitor::of`](crate::mode::ModeMonitor::of) and [`of_domain`](crate::mode::ModeMonitor::of_domain).
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Closed`], [`Error::Reentrant`].
    pub fn monitor(&self) -> Result<crate::mode::ModeMonitor> {
        let me = self.shared.check()?;
        let mut engine = self.shared.enter(me, "monitor")?;
        engine.show();
        let board = engine.monitor().home().board();
        let (links, counts, decisions) = (board.links(), board.modes(), board.decisions());
        Ok(crate::mode::ModeMonitor::new(self.id(), self.incarnation(), links, counts, decisions))
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
