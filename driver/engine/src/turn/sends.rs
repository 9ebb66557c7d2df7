//! What is on its way out: queues, and transfers of both directions.

use super::Engine;
use super::modes::Planner;
use super::state::Notice;
use crate::error::Error;
use crate::message::inbound::News;
use crate::message::outbound::Outbound;
use crate::sync::baton::Token;
use crate::transfer::descriptor::{Control, Over, WORD_BYTES};
use crate::transfer::incoming::Look;
use crate::transfer::outgoing::{Farewell, Outgoing};
use crate::transfer::{Copy, TransferReport};
use doorbell_fabric::sync::Ordering;
use doorbell_fabric::{Envelope, Incarnation, NodeId, Priority, Push};
use doorbell_shm::board::{Figure, Record, RecordKind};
use doorbell_shm::meeting::MEETINGS;
use std::sync::Arc;

/// Words that may wait for one node: of each of its slots, and of each of ours.
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
        // First of all: it makes work for the others.
        let later = if has_later { self.do_later(me) } else { 0 };
        let services = if self.inbound.services.any() { self.step_services(me) } else { 0 };
        let work = later + services + self.push_queues(me) + self.step_transfers(me);
        if self.parked.is_some() {
            self.wake_parked();
        }
        work
    }

    /// Does what was wanted by threads that were within the engine.
    #[cold]
    fn do_later(&mut self, me: Token) -> usize {
        let deeds = self.later.take();
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
            // Not entered: this thread is inside already, so it will see to the queue itself.
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
            let mut planner = Planner { outgoing: &mut self.outgoing, peer, local: &self.local, modes: &self.modes };
            work += state.push_queue(outbound.target, 16, |state, order| planner.plan(&outbound, state, order));
            let (messages_now, bytes_now) = outbound.carried.read();
            if bytes_now != bytes || messages_now != messages {
                let record = Record::new(RecordKind::MemoryFifo).peer(outbound.target).priority(outbound.priority);
                self.monitor.record(&record.at(bytes).bytes(bytes_now - bytes));
                self.monitor.tallies.add(Figure::MemoryFifos, messages_now - messages);
                self.monitor.tallies.add(Figure::BytesFifo, bytes_now - bytes);
            }
            depths[outbound.priority.index()] += state.queued();
            if !state.is_queued() {
                outbound.listed.store(false, Ordering::Relaxed);
                at -= 1;
                self.sending.swap_remove(at);
            }
            let (life, broken) = (state.incarnation, std::mem::take(&mut state.damaged));
            drop(state);
            if broken && self.fabric.live(outbound.target) == Some(life) {
                self.on_broken(outbound.target, "it says that it has read what it was not sent");
            }
        }
        for priority in Priority::ALL {
            self.monitor.tallies.fifo_depth(priority, depths[priority.index()]);
        }
        work
    }

    /// What this node moves from both ends.
    pub fn outgoing(&mut self) -> &mut Outgoing {
        &mut self.outgoing
    }

    /// The latest transfers that ended, of both sides.
    pub fn reports(&mut self) -> Vec<TransferReport> {
        let mut reports = self.inbound.reports.list();
        reports.extend(self.outgoing.reports().list());
        reports
    }

    /// Words of other engines came: direct-put descriptors are injected, counters lowered. Or somebody broke the rules.
    #[cold]
    pub(super) fn obey(&mut self) {
        for (source, news) in std::mem::take(&mut self.inbound.news) {
            match news {
                News::Broken(reason) => self.on_broken(source, reason),
                News::TooLate(ticket) => {
                    if let Some(life) = self.fabric.live(source) {
                        self.say((source, life), Priority::High, Over::Refused.encode(ticket));
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

    /// Moves what both ends move: some chunks of one message on its way in, and of one on its way out.
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
                Look::GivenUp => self.inbound.give_up_transfer(at, None),
                Look::Broken(reason) => {
                    self.inbound.give_up_transfer(at, self.fabric.peer(source));
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
            self.on_broken(target, "more chunks claimed than the message has, or a meeting named anew");
        }
        work + self.send_words(me)
    }

    /// Another engine is to be told this, as soon as there is room. There is no more to tell it than it has transfers, one end of each.
    fn say(&mut self, to: (NodeId, Incarnation), priority: Priority, word: [u8; WORD_BYTES]) {
        self.words.push_back(Notice { to, priority, word });
        if self.words.len() > WORDS_MAX && self.words.iter().filter(|word| word.to == to).count() > WORDS_MAX {
            self.words.retain(|word| word.to != to);
            self.on_broken(to.0, "it ends transfers, and takes no answers");
        }
    }

    /// Tells other engines what they can't see. What finds no room waits, and what follows it on the same way waits as well.
    pub fn send_words(&mut self, me: Token) -> usize {
        for Farewell { out, life, ticket, was_taken } in self.outgoing.take_farewells() {
            // If its RTS may still be there, not on its own way, which it blocks as long as nobody takes it.
            let priority = match out.priority {
                own if was_taken => own,
                Priority::High => Priority::Normal,
                _ => Priority::High,
            };
            self.say((out.target, life), priority, Over::GivenUp.encode(ticket));
        }
        let mut work = 0;
        let mut full: Vec<(NodeId, Priority)> = Vec::new();
        for _ in 0..self.words.len() {
            let Some(word) = self.words.pop_front() else { break };
            let ((node, life), priority) = (word.to, word.priority);
            // Who is gone, or damaged, need not be told.
            if full.contains(&(node, priority)) || matches!(self.send_control(me, node, priority, life, &word.word), Ok(false)) {
                full.push((node, priority));
                self.words.push_back(word);
            } else {
                work += 1;
            }
        }
        work
    }

    /// Tells the origins of what was matched where it is to be stored.
    fn answer_transfers(&mut self, me: Token) -> usize {
        let mut work = 0;
        let mut at = 0;
        while let Some(incoming) = self.inbound.incoming.get_mut(at) {
            at += 1;
            let (id, Envelope { source, incarnation, .. }) = (incoming.id, incoming.envelope);
            let get = if incoming.comes_apart() {
                let len = incoming.envelope.len as u64;
                incoming.answer_apart(self.copy, |link, into| self.fabric.expect(source, incarnation, link, len, into))
            } else {
                let peer = self.fabric.peer(source).filter(|peer| peer.incarnation() == incarnation);
                // A node without an engine fetches nothing.
                let copy = if self.modes.has_engine { self.copy } else { Copy::Origin };
                peer.and_then(|peer| incoming.answer(peer, &self.local, copy))
            };
            if let Some(get) = get
                // An error says that it is gone, or can't be told anything: then others notice.
                && self.send_control(me, source, Priority::High, incarnation, &get.encode()).unwrap_or(true)
                // On the way there it may have been seen that the origin is gone, and with it what it was sending.
                && let Some(incoming) = self.inbound.incoming.iter_mut().find(|incoming| incoming.id == id)
            {
                incoming.answered(get, &self.monitor);
                work += 1;
            }
        }
        work
    }

    /// A word to another node's engine. False if there is no room now.
    pub fn send_control(
        &mut self,
        me: Token,
        node: NodeId,
        priority: Priority,
        life: Incarnation,
        word: &[u8],
    ) -> Result<bool, Error> {
        let Some(outbound) = self.ways.get(node, priority).cloned() else { return Err(Error::NoSuchNode { node }) };
        let Some(mut state) = outbound.state.enter(me) else { return Ok(false) };
        self.connect(&outbound, &mut state, life)?;
        if state.is_started() {
            return Ok(false);
        }
        match state.push_control(word) {
            Push::Done => Ok(true),
            Push::Full => Ok(false),
            Push::Down(_) => Err(Error::Damaged { node }),
        }
    }

    /// Lists a way out that has something queued.
    pub fn list(&mut self, outbound: &Arc<Outbound>) {
        if !outbound.listed.swap(true, Ordering::Relaxed) {
            self.sending.push(outbound.clone());
        }
    }
}
