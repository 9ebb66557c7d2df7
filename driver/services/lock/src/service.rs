//! The lock registry as a service of the engine: it sends and handles requests, replies and notices about locks.

use super::home::Registry;
use super::mail::{Mail, Received};
use super::task::Tasks;
use super::wire::{Home, Tell};
use doorbell_engine::kit::{Class, CloseReason, Gone, Install, NodeId, Outbox, PacketKind, Payload, PeerId, Priority, Result};
use doorbell_engine::kit::{Service, Shared, Verdict, Wants};
use std::sync::Arc;

/// A node's part in the lock service.
pub struct Locks {
    /// Requests, replies and notices, to and from other nodes.
    pub mail: Mail,
    /// What this node serves to others, and what it knows of a registry elsewhere.
    pub registry: Registry,
    /// This node became the coordinator in this term, and the others do not know yet.
    pub announces: Option<u64>,
    /// Why all operations of this node ended.
    pub closed: Option<CloseReason>,
}

inventory::submit!(Install { order: Locks::CLASS as u8, install: |shared| shared.register(Locks::new(shared)) });

impl Class for Locks {
    const CLASS: PacketKind = PacketKind::Letter;
}

/// Uses the lock service of a node, and lets it send.
pub fn locks<T>(shared: &Shared, operation: &'static str, act: impl FnOnce(&mut Locks) -> T) -> Result<T> {
    shared.call(operation, act)
}

impl Locks {
    /// The state of a node that knows of no lock yet.
    pub fn new(shared: &Arc<Shared>) -> Self {
        let blocking = shared.kept::<Tasks>().blocking.clone();
        let registry = Registry::new(shared.membership_arc(), Arc::downgrade(shared), blocking);
        Self { mail: Mail::default(), registry, announces: None, closed: None }
    }

    /// Another node is the coordinator from now on.
    pub fn adopt(&mut self, home: Home) {
        self.registry.adopt(home, &mut self.mail);
    }

    /// The registry is not where it was thought to be.
    pub fn forget(&mut self, home: Home) {
        self.registry.forget(home, &mut self.mail);
    }

    /// Handles what has arrived.
    fn read(&mut self, out: &mut Outbox<'_>) -> usize {
        let mut work = 0;
        while let Some(received) = self.mail.received.pop_front() {
            work += 1;
            let node = received.from.node;
            if let Err(reason) = self.registry.deal(received, &mut self.mail, || out.networked()) {
                out.condemn(node, reason);
                // It is told at the end of this turn that the node is gone. Nothing more of that node counts in it.
                self.mail.received.retain(|received| received.from.node != node);
            }
        }
        work
    }
}

impl Service for Locks {
    fn receive(&mut self, from: PeerId, _: Priority, tag: u64, payload: Payload<'_>) -> Verdict {
        self.mail.take(from, tag, payload)
    }

    fn progress(&mut self, out: &mut Outbox<'_>) -> usize {
        let work = self.read(out);
        if std::mem::take(&mut self.registry.succeeded) {
            self.announces = self.registry.term().or(self.announces);
        }
        if let Some(term) = self.announces.take() {
            self.registry.bury_absent(|peer| out.is_live(peer));
            out.networked().into_iter().for_each(|peer| self.mail.tell(peer, &Tell::Here { term }));
        }
        // The end of a peer fails the operation that waits for its reply.
        work + self.mail.send(out)
    }

    fn wants(&self) -> Wants {
        if !self.mail.out.is_empty() || self.announces.is_some() || self.registry.succeeded {
            Wants::Soon
        } else if self.mail.has_work() {
            Wants::Turns
        } else {
            Wants::Nothing
        }
    }

    fn awaits(&self, peer: NodeId, priority: Priority) -> bool {
        self.mail.awaits(peer, priority)
    }

    fn peer_gone(&mut self, peer: PeerId, why: Gone) {
        if why != Gone::Damaged {
            // What the peer sent before its end still counts, for example that it unlocked.
            let its = |received: &Received| received.from == peer;
            let (its, others) = std::mem::take(&mut self.mail.received).into_iter().partition(its);
            self.mail.received = others;
            for received in its {
                // The peer is gone, so it can't be blamed.
                let _ = self.registry.deal(received, &mut self.mail, Vec::new);
            }
        }
        self.mail.fail(Some(peer), || why.error(peer));
        if why == Gone::Damaged {
            self.registry.shun(peer);
        } else {
            self.registry.gone(peer, &mut self.mail);
        }
    }

    fn farewell(&mut self, out: &mut Outbox<'_>) {
        let letters = self.registry.farewell();
        if letters.is_empty() {
            return;
        }
        // A node that has just taken over announces itself first: without that, nobody keeps its report.
        self.progress(out);
        for peer in out.networked() {
            letters.iter().for_each(|letter| self.mail.tell(peer, letter));
        }
        self.progress(out);
    }

    fn close(&mut self, why: CloseReason) {
        self.closed = Some(why);
        self.mail.fail(None, || why.error());
        self.registry.offers.clear();
    }
}
