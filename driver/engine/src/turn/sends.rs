//! Send queues, and transfers in both directions.

use super::Engine;
use super::modes::Planner;
use super::state::Notice;
use crate::error::Error;
use crate::message::inbound::News;
use crate::message::outbound::Outbound;
use crate::sync::baton::Token;
use crate::transfer::TransferReport;
use crate::transfer::descriptor::{Control, Over, WORD_BYTES};
use crate::transfer::incoming::Look;
use crate::transfer::outgoing::{Farewell, Outgoing};
use doorbell_fabric::sync::Ordering;
use doorbell_fabric::{Envelope, Incarnation, NodeId, Priority, Push};
use doorbell_shm::board::{Metric, Record, RecordKind};
use doorbell_shm::meeting::MEETINGS;
use std::sync::Arc;

/// The most notices that may wait for one node: one for each of its slots and each of ours.
const WORDS_MAX: usize = 4 * MEETINGS;

impl Engine {
    /// Moves what is queued into the lanes. Returns the amount of work done.
    #[inline(always)]
    pub fn push(&mut self, me: Token) -> usize {
        let has_transfers = !(self.outgoing.is_empty() && self.inbound.incoming.is_empty() && self.words.is_empty());
        let has_later = self.later.any();
        if self.sending.is_empty() && !has_transfers && !self.inbound.services.any() && !has_later {
            return 0;
        }
        self.waited = true;
        // First of all, because it makes work for the others.
        let later = if has_later { self.do_later(me) } else { 0 };
        let services = if self.inbound.services.any() { self.step_services(me) } else { 0 };
        let work = later + services + self.push_queues(me) + self.step_transfers(me);
        if self.parked.is_some() {
            self.wake_parked();
        }
        work
    }

    /// Does the operations that threads within the engine deferred.
    #[cold]
    fn do_later(&mut self, me: Token) -> usize {
        let (deeds, poked) = self.later.take();
        self.inbound.services.touch(poked);
        let count = deeds.len();
        deeds.into_iter().for_each(|deed| deed(self, me));
        count
    }

    #[cold]
    fn push_queues(&mut self, me: Token) -> usize {
        let mut work = 0;
        let mut at = 0;
        let mut depths = self.outgoing.depths();
        while let Some(outbound) = self.sending.get(at).cloned() {
            at += 1;
            // Not entered: this thread is inside already, so it handles the queue itself.
            let Some(mut state) = outbound.state.enter(me) else { continue };
            if state.link.is_none() && state.is_queued() {
                let wanted = state.incarnation;
                if let Err(error) = self.connect(&outbound, &mut state, wanted) {
                    let again = || self.unreachable(outbound.target, Some(wanted));
                    tracing::debug!(node = outbound.target.0, %error, "queued messages can't be sent");
                    state.fail(again);
                }
            }
            let (messages, bytes) = outbound.carried.read();
            if state.is_steered() && state.looks() {
                self.open_links(&outbound, &mut state);
            }
            let peer = self.fabric.peer(outbound.target);
            let mut planner = Planner { outgoing: &mut self.outgoing, peer, local: &self.local, modes: &self.settings.modes };
            work += state.push_queue(outbound.target, 16, |state, order| planner.plan(&outbound, state, order));
            let (messages_now, bytes_now) = outbound.carried.read();
            if bytes_now != bytes || messages_now != messages {
                let record = Record::new(RecordKind::MemoryFifo).peer(outbound.target).priority(outbound.priority);
                self.monitor.record(&record.at(bytes).bytes(bytes_now - bytes));
                self.monitor.tallies.add(Metric::MemoryFifos, messages_now - messages);
                self.monitor.tallies.add(Metric::BytesFifo, bytes_now - bytes);
            }
            depths[outbound.priority.index()] += state.queued();
            if !state.is_queued() {
                outbound.listed.store(false, Ordering::Relaxed);
                at -= 1;
                self.sending.swap_remove(at);
            }
            let (incarnation, broken) = (state.incarnation, std::mem::take(&mut state.damaged));
            drop(state);
            if broken && self.fabric.live(outbound.target) == Some(incarnation) {
                self.on_broken(outbound.target, "it acknowledged data that it was not sent");
            }
        }
        for priority in Priority::ALL {
            self.monitor.tallies.fifo_depth(priority, depths[priority.index()]);
        }
        work
    }

    /// The outgoing transfers.
    pub fn outgoing(&mut self) -> &mut Outgoing {
        &mut self.outgoing
    }

    /// The reports of the latest transfers, of both sides.
    pub fn reports(&mut self) -> Vec<TransferReport> {
        let mut reports = self.inbound.reports.list();
        reports.extend(self.outgoing.reports().list());
        reports
    }

    /// Handles notices of other engines: injects direct-put descriptors, and lowers counters. Also handles reports that a node
    /// broke the rules.
    #[cold]
    pub(super) fn handle_control(&mut self) {
        for (source, news) in std::mem::take(&mut self.inbound.news) {
            match news {
                News::Broken(reason) => self.on_broken(source, reason),
                News::TooLate(ticket) => {
                    if let Some(incarnation) = self.fabric.live(source) {
                        self.say((source, incarnation), Priority::High, Over::Refused.encode(ticket));
                    }
                }
                News::Control(Control::RemoteGet(get)) => match self.outgoing.acknowledge(source, get, &self.local) {
                    Ok(true) => {}
                    Ok(false) => tracing::trace!(node = source.0, "a remote get for a transfer that is over"),
                    Err(reason) => self.on_broken(source, reason),
                },
                News::Control(Control::Over(Over::GivenUp, ticket)) => {
                    match self.inbound.incoming.iter().find(|incoming| incoming.is_apart(source, ticket)) {
                        Some(incoming) => {
                            incoming.close();
                        }
                        None => self.inbound.given_up.note(source, ticket),
                    }
                }
                News::Control(Control::Over(over, ticket)) => self.outgoing.end(source, ticket, over),
                News::Control(Control::Lower(lower)) => {
                    // A stale key lowers nothing.
                    let _ = self.monitor.counters.lower_by_key(&lower.key, lower.bytes);
                }
            }
        }
    }

    /// Advances transfers: moves some chunks of one incoming and of one outgoing message.
    #[cold]
    fn step_transfers(&mut self, me: Token) -> usize {
        let mut work = self.answer_transfers(me);
        let mut over_now = Vec::new();
        let pulled = self.inbound.pull(&self.monitor);
        work += usize::from(pulled.is_some());
        let mut at = 0;
        while let Some(incoming) = self.inbound.incoming.get_mut(at) {
            let (id, Envelope { source, incarnation, .. }) = (incoming.id, incoming.envelope);
            let look = match pulled {
                Some((of, Err(reason))) if of == id => Look::Broken(reason),
                _ => incoming.look(),
            };
            if (look == Look::Complete || pulled.is_some_and(|(of, _)| of == id))
                && let Some(peer) = self.fabric.peer(source).filter(|peer| peer.incarnation() == incarnation)
            {
                peer.ring();
            }
            work += usize::from(look != Look::Underway);
            if let Some((ticket, over)) = incoming.farewell(look) {
                over_now.push(((source, incarnation), over.encode(ticket)));
            }
            match look {
                Look::Underway => at += 1,
                Look::Complete => self.inbound.complete_transfer(at, self.by_poller),
                Look::GivenUp => self.inbound.give_up_transfer(at, false),
                Look::Broken(reason) => {
                    self.inbound.give_up_transfer(at, true);
                    self.on_broken(source, reason);
                    at = 0;
                }
            }
        }
        for (to, word) in over_now {
            self.say(to, Priority::High, word);
        }
        work += self.outgoing.step(me);
        for target in self.outgoing.take_broken() {
            self.on_broken(target, "more chunks claimed than the message has, or a rendezvous block changed its name");
        }
        work + self.send_words(me)
    }

    /// Queues a notice for another engine, to be sent as soon as there is room. An engine has at most one for each end of its
    /// transfers.
    fn say(&mut self, to: (NodeId, Incarnation), priority: Priority, word: [u8; WORD_BYTES]) {
        self.words.push_back(Notice { to, priority, word });
        if self.words.len() > WORDS_MAX && self.words.iter().filter(|word| word.to == to).count() > WORDS_MAX {
            self.words.retain(|word| word.to != to);
            self.on_broken(to.0, "it ends transfers, but takes no notices");
        }
    }

    /// Sends notices that other engines need. One without room waits, and so do those behind it to the same node and priority.
    pub fn send_words(&mut self, me: Token) -> usize {
        for Farewell { out, incarnation, ticket, was_taken } in self.outgoing.take_farewells() {
            // If the target may not have taken the RTS yet, use another lane: the RTS blocks its own lane until it is taken.
            let priority = match out.priority {
                own if was_taken => own,
                Priority::High => Priority::Normal,
                _ => Priority::High,
            };
            self.say((out.target, incarnation), priority, Over::GivenUp.encode(ticket));
        }
        let mut work = 0;
        let mut full: Vec<(NodeId, Priority)> = Vec::new();
        for _ in 0..self.words.len() {
            let Some(word) = self.words.pop_front() else { break };
            let ((node, incarnation), priority) = (word.to, word.priority);
            // A node that is gone or damaged needs no notice.
            if full.contains(&(node, priority))
                || matches!(self.send_control(me, node, priority, incarnation, &word.word), Ok(false))
            {
                full.push((node, priority));
                self.words.push_back(word);
            } else {
                work += 1;
            }
        }
        work
    }

    /// Answers matched transfers: tells the origins where to store their messages.
    fn answer_transfers(&mut self, me: Token) -> usize {
        let mut work = 0;
        let mut at = 0;
        // The origins of several transfers must know which of them this end works on.
        let is_only = self.inbound.incoming.len() == 1;
        while let Some(incoming) = self.inbound.incoming.get_mut(at) {
            at += 1;
            let (id, Envelope { source, incarnation, .. }) = (incoming.id, incoming.envelope);
            let get = if incoming.comes_apart() {
                let len = incoming.envelope.len as u64;
                incoming.answer_apart(self.settings.copy, |link, into| self.fabric.expect(source, incarnation, link, len, into))
            } else {
                let peer = self.fabric.peer(source).filter(|peer| peer.incarnation() == incarnation);
                peer.and_then(|peer| {
                    incoming.answer(peer, &self.local, self.settings.copy, self.settings.modes.has_engine, is_only)
                })
            };
            if let Some(get) = get
                // An error means that the node is gone or can't be told anything, which is handled elsewhere.
                && self.send_control(me, source, Priority::High, incarnation, &get.encode()).unwrap_or(true)
                // Sending may have revealed that the origin is gone, and its transfer with it.
                && let Some(incoming) = self.inbound.incoming.iter_mut().find(|incoming| incoming.id == id)
            {
                incoming.answered(get, &self.monitor);
                work += 1;
            }
        }
        work
    }

    /// Sends a notice to another node's engine. False if there is no room now.
    pub fn send_control(
        &mut self,
        me: Token,
        node: NodeId,
        priority: Priority,
        incarnation: Incarnation,
        word: &[u8],
    ) -> Result<bool, Error> {
        let Some(outbound) = self.ways.get(node, priority).cloned() else { return Err(Error::NoSuchNode { node }) };
        let Some(mut state) = outbound.state.enter(me) else { return Ok(false) };
        match self.connect(&outbound, &mut state, incarnation) {
            Ok(()) if state.is_started() => return Ok(false),
            Ok(()) => {}
            // This process has no memory for the lanes. The peer waits for the notice, which is tried again.
            Err(Error::Shm(_)) => return Ok(false),
            Err(error) => return Err(error),
        }
        match state.push_control(word) {
            Push::Done => Ok(true),
            Push::Full => Ok(false),
            Push::Down(_) => Err(Error::Damaged { node }),
        }
    }

    /// Lists a send queue that has something to send.
    pub fn list(&mut self, outbound: &Arc<Outbound>) {
        if !outbound.listed.swap(true, Ordering::Relaxed) {
            self.sending.push(outbound.clone());
        }
    }
}
