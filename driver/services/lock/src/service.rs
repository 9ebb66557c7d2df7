//! The lock registry as a service of the engine: it sends and handles requests, replies and notices about locks.

use super::home::Registry;
use super::mail::Mail;
use super::task::Tasks;
use super::wire::{self, Home, Tell};
use doorbell_engine::drive::Shared;
use doorbell_engine::drive::install::Install;
use doorbell_engine::message::service::{Class, CloseReason, Gone, Outbox, PeerId, Pushed, Service, Wants};
use doorbell_fabric::{NodeId, PRIORITIES, PacketKind, Payload, Priority, Verdict};
use std::sync::Arc;

/// A node's part in the lock service.
pub struct Locks {
    /// Requests, replies and notices, to and from other nodes.
    pub mail: Mail,
    /// What this node serves to others, and what it knows of a registry elsewhere.
    pub registry: Registry,
    /// This node became the coordinator in this term, and the others do not know yet.
    announces: Option<u64>,
}

inventory::submit!(Install { order: Locks::CLASS as u8, install: |shared| shared.register(Locks::new(shared)) });

impl Class for Locks {
    const CLASS: PacketKind = PacketKind::Letter;
}

impl Locks {
    /// The state of a node that knows of no lock yet.
    pub fn new(shared: &Arc<Shared>) -> Self {
        let clerks = shared.kept::<Tasks>().clerks.clone();
        let registry = Registry::new(shared.membership_arc(), Arc::downgrade(shared), clerks);
        Self { mail: Mail::default(), registry, announces: None }
    }

    /// Another node is the coordinator from now on.
    pub fn adopt(&mut self, home: Home) {
        self.registry.adopt(home, &mut self.mail);
    }

    /// The registry is not where it was thought to be.
    pub fn forget(&mut self, home: Home) {
        self.registry.forget(home, &mut self.mail);
    }

    /// This node is the coordinator from now on: the next turn tells the others.
    pub fn announce(&mut self, term: u64) {
        self.announces = Some(term);
    }

    /// Handles what has arrived.
    fn read(&mut self, out: &mut Outbox<'_>) -> usize {
        let mut work = 0;
        while let Some(received) = self.mail.received.pop_front() {
            work += 1;
            let node = received.node;
            let others = || out.networked().into_iter().map(|peer| (peer.node.0, peer.incarnation.0)).collect();
            if let Err(reason) = self.registry.deal(received, &mut self.mail, others) {
                out.condemn(node, reason);
                // It is told at the end of this turn that the node is gone. Nothing more of that node counts in it.
                self.mail.received.retain(|received| received.node != node);
            }
        }
        work
    }
}

impl Service for Locks {
    fn receive(&mut self, from: PeerId, priority: Priority, tag: u64, payload: Payload<'_>) -> Verdict {
        self.mail.take(from.node.index() * PRIORITIES + priority.index(), from.incarnation, tag, payload)
    }

    fn progress(&mut self, out: &mut Outbox<'_>) -> usize {
        let mut work = self.read(out);
        if self.registry.has_succeeded() {
            self.announces = self.registry.term().or(self.announces);
        }
        if let Some(term) = self.announces.take() {
            self.registry.bury_absent(|node, life| out.is_live((node, life).into()));
            let letter = wire::encode(&Tell::Here { term });
            out.networked().into_iter().for_each(|peer| self.mail.tell(peer.node, peer.incarnation, letter.clone()));
        }
        let mut at = 0;
        while let Some(letter) = self.mail.out.get(at) {
            match out.push((letter.node, letter.life).into(), Priority::High, letter.tag, &letter.bytes) {
                Pushed::Full => at += 1,
                // The end of that peer fails the operation that waits for the reply.
                Pushed::Done | Pushed::Gone | Pushed::TooLong => {
                    self.mail.remove(at);
                    work += 1;
                }
            }
        }
        work
    }

    fn wants(&self) -> Wants {
        if !self.mail.out.is_empty() || self.announces.is_some() || self.registry.succeeded() {
            Wants::Soon
        } else if self.mail.has_work() {
            Wants::Turns
        } else {
            Wants::Nothing
        }
    }

    fn awaits(&self, peer: NodeId, priority: Priority) -> bool {
        self.mail.awaits(peer.index() * PRIORITIES + priority.index())
    }

    fn peer_gone(&mut self, peer: PeerId, why: Gone) {
        let (node, life) = peer.into();
        if why != Gone::Damaged {
            // What the peer sent before its end still counts, for example that it unlocked.
            let its = |received: &super::mail::Received| (received.node, received.life) == (node, life);
            let (its, others) = std::mem::take(&mut self.mail.received).into_iter().partition(its);
            self.mail.received = others;
            for received in its {
                // The peer is gone, so it can't be blamed.
                let _ = self.registry.deal(received, &mut self.mail, Vec::new);
            }
        }
        self.mail.fail(node, life, || why.error(peer));
        if why == Gone::Damaged {
            self.registry.shun(node, life);
        } else {
            self.registry.gone(node, life, &mut self.mail);
        }
    }

    fn farewell(&mut self, out: &mut Outbox<'_>) {
        let letters = self.registry.farewell();
        for peer in out.networked() {
            for letter in &letters {
                self.mail.tell(peer.node, peer.incarnation, wire::encode(letter));
            }
        }
        if !letters.is_empty() {
            self.progress(out);
        }
    }

    fn close(&mut self, why: CloseReason) {
        self.mail.end(|| why.error());
        self.registry.offers.end(|| why.error());
    }
}
