//! Letters about keys: sent, and dealt with.

use super::Engine;
use crate::engine::baton::Token;
use crate::engine::op::Op;
use crate::error::Error;
use crate::fabrics::Fabrics;
use crate::registry::{Home, Mail, Registry, wire};
use doorbell_fabric::{Incarnation, NodeId, PacketKind, Priority, Push};
use std::sync::Arc;

/// All other nodes that have a network, as far as this one knows.
fn networked(fabric: &Fabrics) -> Vec<(u16, u32)> {
    let membership = fabric.membership();
    let here = membership.members().into_iter().filter(|member| member.networked && member.id != membership.id());
    here.chain(fabric.remote_members()).map(|member| (member.id.0, member.incarnation.0)).collect()
}

impl Engine {
    /// Letters of this node.
    pub(crate) fn mail(&mut self) -> &mut Mail {
        &mut self.inbound.mail
    }

    /// What this node knows of keys.
    pub(crate) fn registry(&mut self) -> &mut Registry {
        &mut self.registry
    }

    /// The registry is with this node from now on.
    pub(crate) fn adopt(&mut self, home: Home) {
        self.registry.adopt(home, &mut self.inbound.mail);
    }

    /// The registry is not where it was thought to be.
    pub(crate) fn forget_home(&mut self, home: Home) {
        self.registry.forget(home, &mut self.inbound.mail);
    }

    /// Begins to ask a life of a node. `None`: it was asked so often that it has to answer first.
    ///
    /// # Errors
    /// It can't be reached.
    pub(crate) fn ask(
        &mut self,
        me: Token,
        node: NodeId,
        life: Incarnation,
        bytes: &[u8],
        wants: Option<(String, u64)>,
    ) -> Result<Option<Arc<Op>>, Error> {
        // If it can't be reached, that is said now.
        let Some(outbound) = self.ways.get(node, Priority::High).cloned() else { return Err(Error::NoSuchNode { node }) };
        if let Some(mut state) = outbound.state.enter(me) {
            self.connect(&outbound, &mut state, life)?;
        }
        Ok(self.inbound.mail.ask(node, life, bytes, wants))
    }

    /// If this node has become home instead of another: those are let go that are gone, and the others told.
    pub(super) fn see_to_succession(&mut self) {
        if self.registry.has_succeeded()
            && let Some((term, _)) = self.fabric.membership().seat()
        {
            self.announce_home(term);
        }
    }

    /// This node is home from now on.
    pub(crate) fn tell_home(&mut self, me: Token, term: u64) {
        self.announce_home(term);
        self.push(me);
    }

    fn announce_home(&mut self, term: u64) {
        self.registry.bury_absent(|node, life| self.fabric.live(node) == Some(life));
        let letter = wire::encode(&wire::Tell::Here { term });
        for (node, life) in networked(&self.fabric) {
            self.inbound.mail.tell(NodeId(node), Incarnation(life), letter.clone());
        }
    }

    /// Tells the others what they could ask nobody else any more.
    pub(super) fn say_farewell(&mut self, me: Token) {
        let letters = self.registry.farewell();
        for (node, life) in networked(&self.fabric) {
            for letter in &letters {
                self.inbound.mail.tell(NodeId(node), Incarnation(life), wire::encode(letter));
            }
        }
        if !letters.is_empty() {
            self.step_letters(me);
        }
    }

    /// Deals with what came. Returns the amount of work done.
    pub(super) fn read_letters(&mut self) -> usize {
        let mut work = 0;
        while let Some(received) = self.inbound.mail.received.pop_front() {
            work += 1;
            let node = received.node;
            let fabric = &self.fabric;
            if let Err(reason) = self.registry.deal(received, &mut self.inbound.mail, || networked(fabric)) {
                self.on_broken(node, reason);
            }
        }
        self.see_to_succession();
        work
    }

    /// Deals with what came, and sends what is to be sent. Returns the amount of work done.
    #[cold]
    pub(super) fn step_letters(&mut self, me: Token) -> usize {
        let mut work = self.read_letters() + self.read_notes();
        // Nodes to which nothing more can go in this turn.
        let mut full = Vec::new();
        let mut at = 0;
        while at < self.inbound.mail.out.len() {
            let (node, life) = (self.inbound.mail.out[at].node, self.inbound.mail.out[at].life);
            if full.contains(&node) {
                at += 1;
                continue;
            }
            let Some(outbound) = self.ways.get(node, Priority::High).cloned() else {
                self.inbound.mail.remove(at);
                continue;
            };
            let Some(mut state) = outbound.state.enter(me) else {
                full.push(node);
                continue;
            };
            if self.connect(&outbound, &mut state, life).is_err() {
                // Whoever waits for an answer is told so when the end of that life is noticed, as it was just now. It may have taken letters with it.
                for at in (0..self.inbound.mail.out.len()).rev() {
                    if (self.inbound.mail.out[at].node, self.inbound.mail.out[at].life) == (node, life) {
                        self.inbound.mail.remove(at);
                    }
                }
                continue;
            }
            let letter = &self.inbound.mail.out[at];
            if state.push_apart(PacketKind::Letter, letter.tag, &letter.bytes) == Push::Done {
                self.inbound.mail.remove(at);
                work += 1;
            } else {
                full.push(node);
            }
        }
        work
    }
}
