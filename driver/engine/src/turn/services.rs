//! The turns of services, and what the engine does for them meanwhile.

use super::Engine;
use crate::error::Error;
use crate::message::outbound::OutState;
use crate::message::service::{Class, Outbox, PeerId, Post, Pushed, Route, is_of_program};
use crate::sync::baton::Token;
use crate::sync::op::Op;
use doorbell_fabric::{NodeId, PacketKind, Priority, Push};
use doorbell_shm::domain::PeerInbox;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// A service's packet can have at least this many bytes.
const PACKET_MIN: usize = 64;

impl Engine {
    /// Adds a service to the node.
    ///
    /// # Errors
    /// [`Error::Invalid`]: another service has packets of its class.
    pub(crate) fn register<S: Class>(&mut self, service: S) -> Result<(), Error> {
        if self.inbound.services.register(service) {
            return Ok(());
        }
        let what =
            format!("this node has a service for packets of the class {:?} already; give the second one another class", S::CLASS);
        Err(Error::Invalid { what })
    }

    /// Whether a peer waits for each part of what this node moves for it.
    pub(crate) fn is_hurried(&self) -> bool {
        self.inbound.services.is_hurried()
    }

    /// Whether services still have something to send before this node may leave.
    pub(crate) fn is_flushing(&self) -> bool {
        self.inbound.services.is_flushing()
    }

    /// The service of a type that is [installed](crate::drive::install) in every node.
    ///
    /// # Panics
    /// A service called a handle of its own node in its turn.
    pub fn service<S: Class>(&mut self) -> &mut S {
        self.inbound.services.find().expect("it is installed in each node, and has no turn now")
    }

    /// The service of a type. `None`: this node has none, or it has its turn.
    pub(crate) fn find_service<S: Class>(&mut self) -> Option<&mut S> {
        self.inbound.services.find()
    }

    /// A thread of the program may have changed the service of a class.
    pub(crate) fn service_changed(&mut self, class: PacketKind) {
        self.inbound.services.changed(class);
    }

    /// The operation that ends when a service may have changed.
    pub(crate) fn await_service(&mut self, class: PacketKind) -> Option<Arc<Op>> {
        self.inbound.services.await_change(class)
    }

    /// Gives each service that wants one its turn. Returns the amount of work done.
    #[cold]
    pub(super) fn step_services(&mut self, me: Token) -> usize {
        let mut work = 0;
        for slot in 0..self.inbound.services.len() {
            if let Some((class, mut service)) = self.inbound.services.take_out(slot) {
                let turn = || service.progress(&mut Outbox::new(&mut Turn { engine: self, me, why: None }, class));
                let done = catch_unwind(AssertUnwindSafe(turn));
                self.inbound.services.put_back(slot, service, *done.as_ref().unwrap_or(&1));
                // A service that panics stays, so that its handles say so again, and not that it is missing.
                work += done.unwrap_or_else(|panic| resume_unwind(panic));
            }
        }
        work
    }

    /// Lets services send their last packets.
    pub(super) fn say_farewell(&mut self, me: Token) {
        for slot in 0..self.inbound.services.len() {
            if let Some((class, mut service)) = self.inbound.services.take_out_anyway(slot) {
                service.farewell(&mut Outbox::new(&mut Turn { engine: self, me, why: None }, class));
                self.inbound.services.put_back(slot, service, 1);
            }
        }
    }
}

/// The engine during the turn of a service.
struct Turn<'a> {
    engine: &'a mut Engine,
    me: Token,
    /// Why the latest peer is gone.
    why: Option<Error>,
}

impl Turn<'_> {
    /// Calls a function with the lane to a peer.
    fn on_lane<T>(
        &mut self,
        to: PeerId,
        priority: Priority,
        act: impl FnOnce(&mut OutState) -> Result<T, Pushed>,
    ) -> Result<T, Pushed> {
        let Some(outbound) = self.engine.ways.get(to.node, priority).cloned() else {
            self.why = Some(Error::NoSuchNode { node: to.node });
            return Err(Pushed::Gone);
        };
        // If another thread has the lane, that thread sends by itself.
        let mut state = outbound.state.enter(self.me).ok_or(Pushed::Full)?;
        match self.engine.connect(&outbound, &mut state, to.incarnation) {
            Ok(()) => act(&mut state),
            // This process has no memory for the lanes. The peer waits for the packet, which is tried again.
            Err(Error::Shm(_)) => Err(Pushed::Full),
            Err(error) => {
                self.why = Some(error);
                Err(Pushed::Gone)
            }
        }
    }
}

impl Post for Turn<'_> {
    fn packet_bytes(&mut self, to: PeerId, priority: Priority, link: u8) -> Result<usize, Pushed> {
        let bytes = self.on_lane(to, priority, |state| {
            if link > 0 && !state.has(link) {
                return Ok(None);
            }
            state.region_bytes(link).filter(|packet| *packet >= PACKET_MIN).map(Some).ok_or(Pushed::Full)
        });
        bytes?.ok_or_else(|| {
            // The link is gone, and so is what the node had sent over it.
            self.why = Some(Error::Damaged { node: to.node });
            Pushed::Gone
        })
    }

    fn has_room(&mut self, to: PeerId, priority: Priority, len: usize) -> bool {
        self.on_lane(to, priority, |state| Ok(state.has_region_room(len))).unwrap_or(true)
    }

    fn push(&mut self, class: PacketKind, to: PeerId, priority: Priority, route: Route, tag: u64, bytes: &[u8]) -> Pushed {
        let pushed = self.on_lane(to, priority, |state| {
            // A program may get this wrong. The services of this workspace make packets that fit.
            if is_of_program(class) && state.region_bytes(route.link).is_some_and(|most| bytes.len() > most) {
                return Ok(Pushed::TooLong);
            }
            match state.push_apart(class, route, tag, bytes) {
                Push::Done => Ok(Pushed::Done),
                Push::Full | Push::Down(_) => Err(Pushed::Full),
            }
        });
        pushed.unwrap_or_else(|other| other)
    }

    fn why_gone(&mut self) -> Error {
        self.why.take().unwrap_or(Error::Cancelled)
    }

    fn release(&mut self) {
        self.engine.fabric.release();
    }

    fn condemn(&mut self, node: NodeId, reason: &'static str) {
        self.engine.on_broken(node, reason);
    }

    fn apart(&self) -> Vec<PeerId> {
        self.engine.fabric.remote_members().into_iter().map(|member| (member.id, member.incarnation).into()).collect()
    }

    fn networked(&self) -> Vec<PeerId> {
        let membership = self.engine.fabric.membership();
        let here = membership.members().into_iter().filter(|member| member.networked && member.id != membership.id());
        here.map(|member| (member.id, member.incarnation).into()).chain(self.apart()).collect()
    }

    fn is_live(&self, peer: PeerId) -> bool {
        self.engine.fabric.live(peer.node) == Some(peer.incarnation)
    }

    fn inbox(&self, peer: PeerId) -> Option<Arc<PeerInbox>> {
        self.engine.fabric.peer(peer.node).filter(|inbox| inbox.incarnation() == peer.incarnation).cloned()
    }
}
