//! Services: each has a class of packets, which the engine carries for it.
//!
//! The engine knows no service. It gives each packet of a class to the service that registered for the class, gives that
//! service a turn when it wants one, and tells all services about each peer that is gone.

use crate::error::Error;
use crate::sync::op::{Op, Outcome};
use doorbell_fabric::{Incarnation, NodeId, PRIORITIES, PacketKind, Payload, Priority, Verdict};
use doorbell_shm::board::Metrics;
use doorbell_shm::domain::{Membership, PeerInbox};
use doorbell_shm::keys::OwnerId;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

/// One incarnation of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "(u16, u32)", into = "(u16, u32)")]
pub struct PeerId {
    /// The node.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
}

impl From<(NodeId, Incarnation)> for PeerId {
    fn from((node, incarnation): (NodeId, Incarnation)) -> Self {
        Self { node, incarnation }
    }
}

impl From<PeerId> for (NodeId, Incarnation) {
    fn from(peer: PeerId) -> Self {
        (peer.node, peer.incarnation)
    }
}

impl From<(u16, u32)> for PeerId {
    fn from((node, incarnation): (u16, u32)) -> Self {
        Self { node: NodeId(node), incarnation: Incarnation(incarnation) }
    }
}

impl From<PeerId> for (u16, u32) {
    fn from(peer: PeerId) -> Self {
        (peer.node.0, peer.incarnation.0)
    }
}

impl From<&Membership> for PeerId {
    fn from(membership: &Membership) -> Self {
        Self { node: membership.id(), incarnation: membership.incarnation() }
    }
}

impl From<OwnerId> for PeerId {
    fn from(owner: OwnerId) -> Self {
        Self { node: owner.node(), incarnation: owner.incarnation() }
    }
}

/// Why a peer is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// It left in good order.
    Left,
    /// It died.
    Died,
    /// It lives and broke the rules: the engine trusts nothing from it any more.
    Damaged,
}

impl Gone {
    /// The error of a pending operation with that peer.
    pub fn error(self, PeerId { node, incarnation }: PeerId) -> Error {
        match self {
            Gone::Left => Error::PeerLeft { node, incarnation },
            Gone::Died => Error::PeerDied { node, incarnation },
            Gone::Damaged => Error::Damaged { node },
        }
    }
}

/// Why this node ends all its pending operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The node leaves.
    Leaves,
    /// Another process truncated the node's inbox.
    Severed(NodeId),
}

impl CloseReason {
    /// The error of an operation that ends for this reason.
    pub fn error(self) -> Error {
        match self {
            CloseReason::Leaves => Error::Closed,
            CloseReason::Severed(node) => Error::Severed { node },
        }
    }
}

/// What a service wants from the threads that turn the engine. Each value includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wants {
    /// Nothing: the service is at rest.
    #[default]
    Nothing,
    /// To be called at each turn. No thread has to turn the engine for it.
    Look,
    /// Turns until it is at rest. A peer rings the bell when there is something to do. A service that has something to send wants [`Soon`](Self::Soon), since nobody
    /// rings when another thread leaves a lane.
    Turns,
    /// Turns even if no peer rings the bell.
    Soon,
}

/// How a packet is sent. The default suits most packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// The number of the link between the two nodes.
    pub link: u8,
    /// Whether it may wait in the network until the end of the turn, to be sent with others.
    pub held: bool,
}

/// The result of pushing a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// The packet is in the lane.
    Done,
    /// There is no room, or another thread has the lane. Try again in another turn.
    Full,
    /// The peer is gone, or no such node exists.
    Gone,
    /// It is longer than [`Outbox::packet_bytes`] says, and does not go.
    TooLong,
}

/// What the engine does for a service in its turn.
pub(crate) trait Post {
    fn packet_bytes(&mut self, to: PeerId, priority: Priority, link: u8) -> Result<usize, Pushed>;
    fn has_room(&mut self, to: PeerId, priority: Priority, len: usize) -> bool;
    fn push(&mut self, class: PacketKind, to: PeerId, priority: Priority, route: Route, tag: u64, bytes: &[u8]) -> Pushed;
    fn release(&mut self);
    fn condemn(&mut self, node: NodeId, reason: &'static str);
    fn apart(&self) -> Vec<PeerId>;
    fn networked(&self) -> Vec<PeerId>;
    fn is_live(&self, peer: PeerId) -> bool;
    fn inbox(&self, peer: PeerId) -> Option<Arc<PeerInbox>>;
    fn why_gone(&mut self) -> Error;
}

/// Sends the packets of one service during one turn.
///
/// A lane that had no room counts as full for the rest of the turn, so that the packets of a service keep their order.
pub struct Outbox<'a> {
    post: &'a mut dyn Post,
    class: PacketKind,
    full: Vec<(NodeId, Priority)>,
    held: bool,
}

impl<'a> Outbox<'a> {
    pub(crate) fn new(post: &'a mut dyn Post, class: PacketKind) -> Self {
        Self { post, class, full: Vec::new(), held: false }
    }

    /// Sends one packet.
    ///
    /// `bytes` must not be longer than [`packet_bytes`](Self::packet_bytes). Never waits.
    pub fn push(&mut self, to: PeerId, priority: Priority, tag: u64, bytes: &[u8]) -> Pushed {
        self.push_by(to, priority, Route::default(), tag, bytes)
    }

    /// Sends one packet over a chosen link, or together with others.
    pub fn push_by(&mut self, to: PeerId, priority: Priority, route: Route, tag: u64, bytes: &[u8]) -> Pushed {
        if self.is_full(to.node, priority) {
            return Pushed::Full;
        }
        self.held |= route.held;
        let pushed = self.post.push(self.class, to, priority, route, tag, bytes);
        if pushed == Pushed::Full {
            self.hold(to.node, priority);
        }
        pushed
    }

    /// Sends the packets of a queue, in order for each peer. Packets without room stay in the queue; packets for peers that are
    /// gone are dropped. Returns how many left the queue.
    pub fn push_all<W>(
        &mut self,
        queue: &mut VecDeque<W>,
        priority: Priority,
        parts: impl Fn(&W) -> (PeerId, u64, &[u8]),
    ) -> usize {
        let before = queue.len();
        queue.retain(|packet| {
            let (to, tag, bytes) = parts(packet);
            self.push(to, priority, tag, bytes) == Pushed::Full
        });
        before - queue.len()
    }

    /// The most bytes of a packet to a peer.
    ///
    /// # Errors
    /// [`Pushed::Full`] if that is unknown now; [`Pushed::Gone`] if the peer is gone.
    pub fn packet_bytes(&mut self, to: PeerId, priority: Priority) -> Result<usize, Pushed> {
        self.packet_bytes_by(to, priority, 0)
    }

    /// The same for one of several links. [`Pushed::Gone`] also if that link is gone.
    pub fn packet_bytes_by(&mut self, to: PeerId, priority: Priority, link: u8) -> Result<usize, Pushed> {
        if self.is_full(to.node, priority) {
            return Err(Pushed::Full);
        }
        let bytes = self.post.packet_bytes(to, priority, link);
        if bytes == Err(Pushed::Full) {
            self.hold(to.node, priority);
        }
        bytes
    }

    /// Whether a packet of `len` bytes finds room.
    pub fn has_room(&mut self, to: PeerId, priority: Priority, len: usize) -> bool {
        let has_room = !self.is_full(to.node, priority) && self.post.has_room(to, priority, len);
        if !has_room {
            self.hold(to.node, priority);
        }
        has_room
    }

    /// The reason for the latest [`Pushed::Gone`].
    pub fn why_gone(&mut self) -> Error {
        self.post.why_gone()
    }

    /// Treats a lane as full for the rest of this turn, so that later packets do not overtake one that stays behind.
    pub fn hold(&mut self, node: NodeId, priority: Priority) {
        if !self.is_full(node, priority) {
            self.full.push((node, priority));
        }
    }

    /// Whether a lane had no room in this turn.
    pub fn is_full(&self, node: NodeId, priority: Priority) -> bool {
        self.full.contains(&(node, priority))
    }

    /// Treats no lane as full any more in this turn.
    pub fn retry(&mut self) {
        self.full.clear();
    }

    /// Ends the conversation with a peer that broke the rules. `reason` is for the log.
    pub fn condemn(&mut self, node: NodeId, reason: &'static str) {
        self.post.condemn(node, reason);
    }

    /// All peers that share no memory with this node.
    pub fn apart(&self) -> Vec<PeerId> {
        self.post.apart()
    }

    /// All peers that are reached over a network.
    pub fn networked(&self) -> Vec<PeerId> {
        self.post.networked()
    }

    /// Whether a peer is attached, as far as this node knows.
    pub fn is_live(&self, peer: PeerId) -> bool {
        self.post.is_live(peer)
    }

    /// The inbox of a peer, if it shares memory with this node.
    pub(crate) fn inbox(&self, peer: PeerId) -> Option<Arc<PeerInbox>> {
        self.post.inbox(peer)
    }
}

impl Drop for Outbox<'_> {
    fn drop(&mut self) {
        if self.held {
            self.post.release();
        }
    }
}

/// A service: a function of nodes that uses packets of a class of its own. All calls come from the thread that turns the
/// engine, and must not block.
///
/// The packets come from other processes. A service checks their contents, and bounds what it keeps for each peer.
pub trait Service: Any + Send {
    /// Handles a packet. A refused packet stays in its lane and comes again.
    fn receive(&mut self, from: PeerId, priority: Priority, tag: u64, payload: Payload<'_>) -> Verdict;

    /// Advances all operations of the service. Returns the amount of work done, 0 if there was none.
    fn progress(&mut self, out: &mut Outbox<'_>) -> usize;

    /// What the service wants from the threads that turn the engine. The engine asks after calls of this trait and of a
    /// [`ServiceHandle`](crate::node::ServiceHandle), so the answer must not change in other ways. A service with a timer wants a [`Look`](Wants::Look).
    fn wants(&self) -> Wants;

    /// Whether a thread waits for a packet of this peer and priority. Messages before it in the lane are then taken even
    /// without room for them.
    fn awaits(&self, _peer: NodeId, _priority: Priority) -> bool {
        false
    }

    /// A peer is gone: ends all operations with it. May be called several times for one peer. Packets that the peer sent before its end may arrive after
    /// the first call; the last call comes after the last packet.
    fn peer_gone(&mut self, peer: PeerId, why: Gone);

    /// Whether a peer waits for each part of what this service moves for it. The poller then looks again at once before it
    /// sleeps.
    fn is_hurried(&self) -> bool {
        false
    }

    /// Whether it still moves data that this node's program handed over. A node that leaves waits for that, for a second at
    /// most.
    fn is_flushing(&self) -> bool {
        false
    }

    /// This node leaves in good order: sends the last packets to other nodes.
    fn farewell(&mut self, _out: &mut Outbox<'_>) {}

    /// Ends all operations. May be called again.
    fn close(&mut self, why: CloseReason);

    /// Adds the service's counts to the metrics of its node.
    fn count(&self, _figures: &mut Metrics) {}
}

/// A service that handles can find by its type.
pub trait Class: Service {
    /// The class of its packets. Services of programs use [`PacketKind::User0`] to [`PacketKind::User3`]. A node has one
    /// service for each class.
    const CLASS: PacketKind;
}

/// Whether a class is one of those for services of programs.
pub(crate) fn is_of_program(class: PacketKind) -> bool {
    (PacketKind::User0 as u8..=PacketKind::User3 as u8).contains(&(class as u8))
}

/// A service and its state in the engine.
struct Slot {
    class: PacketKind,
    /// `None` while it has its turn.
    service: Option<Box<dyn Service>>,
    /// Peers that were found to be gone during its turn.
    gone: Vec<(PeerId, Gone)>,
    /// Set if everything ended during its turn.
    closed: Option<CloseReason>,
    /// Threads that wait for a change of the service.
    waiters: Vec<Arc<Op>>,
}

impl Slot {
    /// Notes that the service may have changed, and wakes its waiters.
    #[inline]
    fn changed(&mut self) {
        self.waiters.drain(..).for_each(|waiter| waiter.finish(Outcome::Sent));
    }
}

/// The services of a node, by the class of their packets.
#[derive(Default)]
pub(crate) struct Services {
    slots: Vec<Slot>,
    /// The slot of each class, from 1 on; 0 for none.
    by_class: [u8; CLASSES],
    /// One bit for each slot that may want something: it was used since it last was at rest.
    touched: u32,
}

/// One more than the greatest number of a class.
const CLASSES: usize = 32;

impl Services {
    /// Registers a service. False if its class has a service already.
    pub fn register<S: Class>(&mut self, service: S) -> bool {
        let class = S::CLASS;
        let place = &mut self.by_class[class as usize];
        if *place != 0 {
            return false;
        }
        self.slots.push(Slot { class, service: Some(Box::new(service)), gone: Vec::new(), closed: None, waiters: Vec::new() });
        *place = self.slots.len() as u8;
        true
    }

    fn place(&self, class: PacketKind) -> Option<usize> {
        usize::from(self.by_class[class as usize]).checked_sub(1)
    }

    /// The service of a type. `None`: it was not registered, or it has its turn.
    pub fn find<S: Class>(&mut self) -> Option<&mut S> {
        let place = self.place(S::CLASS)?;
        self.touched |= 1 << place;
        let service: &mut dyn Any = self.slots[place].service.as_deref_mut()?;
        service.downcast_mut()
    }

    /// The operation that ends when the service of this class may have changed.
    pub fn await_change(&mut self, class: PacketKind) -> Option<Arc<Op>> {
        let place = self.place(class)?;
        let waiters = &mut self.slots[place].waiters;
        // Drop the operations of waits that have ended.
        waiters.retain(|waiter| Arc::strong_count(waiter) > 1);
        let op = Op::new();
        waiters.push(op.clone());
        Some(op)
    }

    /// Gives a packet to its service.
    #[cold]
    pub fn receive(&mut self, class: PacketKind, from: PeerId, priority: Priority, tag: u64, payload: Payload<'_>) -> Verdict {
        // A peer may have services that this node lacks. Their packets are ignored.
        let Some(place) = self.place(class) else { return Verdict::Taken };
        self.touched |= 1 << place;
        let slot = &mut self.slots[place];
        let Some(service) = &mut slot.service else { return Verdict::Taken };
        let verdict = service.receive(from, priority, tag, payload);
        if verdict != Verdict::Refused {
            slot.changed();
        }
        verdict
    }

    /// Notes that services were poked: one bit for each of their classes.
    pub fn touch(&mut self, classes: u32) {
        let places = self.slots.iter().enumerate().filter(|(_, slot)| classes >> slot.class as u32 & 1 != 0);
        self.touched |= places.map(|(place, _)| 1 << place).sum::<u32>();
    }

    /// Whether a service may want a turn.
    #[inline(always)]
    pub fn any(&self) -> bool {
        self.touched != 0
    }

    /// The strongest wish of all services.
    pub fn wants(&self) -> Wants {
        if self.touched == 0 {
            return Wants::Nothing;
        }
        self.slots.iter().filter_map(|slot| slot.service.as_ref()).map(|service| service.wants()).max().unwrap_or_default()
    }

    /// Takes the service in a slot out for its turn, if it wants one. Call [`put_back`](Self::put_back) afterwards.
    pub fn take_out(&mut self, slot: usize) -> Option<(PacketKind, Box<dyn Service>)> {
        if self.touched & 1 << slot == 0 {
            return None;
        }
        let Slot { class, service, .. } = &mut self.slots[slot];
        if service.as_ref()?.wants() == Wants::Nothing {
            self.touched &= !(1 << slot);
            return None;
        }
        Some((*class, service.take()?))
    }

    /// Ends the turn. The service is told which peers were found to be gone meanwhile.
    pub fn put_back(&mut self, slot: usize, mut service: Box<dyn Service>, work: usize) {
        let slot = &mut self.slots[slot];
        let has_changed = work > 0 || !slot.gone.is_empty() || slot.closed.is_some();
        slot.gone.drain(..).for_each(|(peer, why)| service.peer_gone(peer, why));
        if let Some(why) = slot.closed.take() {
            service.close(why);
        }
        slot.service = Some(service);
        // Only then: a thread that waits looks again, and would do so for ever where a service wants turns and can do nothing in them.
        if has_changed {
            slot.changed();
        }
    }

    /// A thread of the program may have changed the service of this class.
    pub fn changed(&mut self, class: PacketKind) {
        if let Some(place) = self.place(class) {
            self.slots[place].changed();
        }
    }

    /// The number of slots.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether a peer waits for each part of what a service moves for it.
    pub fn is_hurried(&self) -> bool {
        self.touched != 0 && self.slots.iter().filter_map(|slot| slot.service.as_ref()).any(|service| service.is_hurried())
    }

    /// Whether a service still moves data that the program handed over.
    pub fn is_flushing(&self) -> bool {
        self.slots.iter().filter_map(|slot| slot.service.as_ref()).any(|service| service.is_flushing())
    }

    /// Whether a thread waits for a packet of a lane.
    pub fn awaits(&self, lane: usize) -> bool {
        let (node, priority) = (NodeId((lane / PRIORITIES) as u16), Priority::ALL[lane % PRIORITIES]);
        self.slots.iter().filter_map(|slot| slot.service.as_ref()).any(|service| service.awaits(node, priority))
    }

    /// Tells all services that a peer is gone.
    pub fn peer_gone(&mut self, peer: PeerId, why: Gone) {
        for (place, slot) in self.slots.iter_mut().enumerate() {
            self.touched |= 1 << place;
            match &mut slot.service {
                Some(service) => service.peer_gone(peer, why),
                None => slot.gone.push((peer, why)),
            }
            slot.changed();
        }
    }

    /// Ends the operations of all services.
    pub fn close(&mut self, why: CloseReason) {
        for slot in &mut self.slots {
            match &mut slot.service {
                Some(service) => service.close(why),
                None => slot.closed = Some(why),
            }
            slot.changed();
        }
    }

    /// Takes the service in a slot out, whatever it wants.
    pub fn take_out_anyway(&mut self, slot: usize) -> Option<(PacketKind, Box<dyn Service>)> {
        let Slot { class, service, .. } = &mut self.slots[slot];
        Some((*class, service.take()?))
    }

    /// Adds the counts of all services.
    pub fn count(&self, metrics: &mut Metrics) {
        self.slots.iter().filter_map(|slot| slot.service.as_ref()).for_each(|service| service.count(metrics));
    }
}
