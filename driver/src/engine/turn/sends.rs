//! What is on its way out: queues, and transfers of both directions.

use super::Engine;
use super::modes::Planner;
use crate::engine::baton::Token;
use crate::error::Error;
use crate::message::inbound::{Inbound, News};
use crate::message::outbound::{OutState, Outbound};
use crate::transfer::descriptor::{Control, Over, WORD_BYTES};
use crate::transfer::incoming::Look;
use crate::transfer::outgoing::{Farewell, Outgoing};
use crate::transfer::{Copy, TransferReport};
use doorbell_fabric::sync::Ordering;
use doorbell_fabric::{Envelope, Incarnation, NodeId, PacketKind, Priority, Push};
use doorbell_shm::board::{Figure, Record, RecordKind};
use doorbell_shm::meeting::MEETINGS;
use std::collections::VecDeque;
use std::sync::Arc;

/// The smallest packets by which anything goes that has no place in the order of messages.
const PACKET_MIN: usize = 64;
/// Words that may wait for one node: of each of its slots, and of each of ours.
const WORDS_MAX: usize = 4 * MEETINGS;

/// To whom something goes, its tag and its bytes.
type Parts<'a> = ((NodeId, Incarnation), u64, &'a [u8]);

/// What another engine is to be told, as soon as there is room for it.
pub(super) struct Word {
    to: (NodeId, Incarnation),
    priority: Priority,
    word: [u8; WORD_BYTES],
}

impl Engine {
    /// Moves what is queued into the lanes. Returns the amount of work done.
    #[inline(always)]
    pub fn push(&mut self, me: Token) -> usize {
        let has_regions = self.inbound.remote.has_work();
        let has_transfers = !(self.outgoing.is_empty() && self.inbound.incoming.is_empty() && self.words.is_empty());
        let has_letters = self.inbound.mail.has_work();
        let (has_teams, has_devices) = (self.inbound.teams.is_active(), self.inbound.devices.has_work());
        let (has_streams, has_later) = (self.inbound.streams.has_work(), self.later.any());
        let has_parts = has_regions || has_letters || has_teams || has_devices || has_streams || has_later;
        if self.sending.is_empty() && !has_transfers && !has_parts {
            return 0;
        }
        self.waited = true;
        // First of all: it makes work for the others.
        let later = if has_later { self.do_later(me) } else { 0 };
        let regions = if has_regions { self.step_regions(me) } else { 0 };
        let letters = if has_letters { self.step_letters(me) } else { 0 };
        let teams = if has_teams { self.step_teams(me) } else { 0 };
        let devices = if has_devices { self.step_devices(me) } else { 0 };
        let streams = if has_streams || has_later { self.step_streams(me) } else { 0 };
        let work = later + regions + letters + teams + devices + streams + self.push_queues(me) + self.step_transfers(me);
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

    /// Does something with the way out to a life of a node, for packets that have no place in the order of messages; `act` is told how many bytes one may have.
    /// `None`: it is gone, or there is no such way. A way that somebody else has is tried again.
    pub(super) fn by_way<T: Default>(
        &mut self,
        me: Token,
        (node, life): (NodeId, Incarnation),
        priority: Priority,
        act: impl FnOnce(&mut Inbound, &mut OutState, usize) -> T,
    ) -> Option<T> {
        let outbound = self.ways.get(node, priority).cloned()?;
        let Some(mut state) = outbound.state.enter(me) else { return Some(T::default()) };
        self.connect(&outbound, &mut state, life).ok()?;
        let Some(packet) = state.region_bytes(0).filter(|packet| *packet >= PACKET_MIN) else { return Some(T::default()) };
        Some(act(&mut self.inbound, &mut state, packet))
    }

    /// Sends what is to be said to other nodes, in its order for each of them, but to those that are `full`. Returns how much went.
    pub(super) fn push_words<W>(
        &mut self,
        me: Token,
        kind: PacketKind,
        priority: Priority,
        full: &mut Vec<NodeId>,
        queue: fn(&mut Inbound) -> &mut VecDeque<W>,
        parts: fn(&W) -> Parts<'_>,
    ) -> usize {
        let (mut kept, mut work) = (VecDeque::new(), 0);
        // All of it: whoever is found to be gone on the way takes words out of the queue.
        for word in std::mem::take(queue(&mut self.inbound)) {
            let ((node, life), tag, bytes) = parts(&word);
            let push = |_: &mut Inbound, state: &mut OutState, _| state.push_apart(kind, tag, bytes) == Push::Done;
            if !full.contains(&node) && self.by_way(me, (node, life), priority, push).unwrap_or(true) {
                work += 1;
            } else {
                full.push(node);
                kept.push_back(word);
            }
        }
        let queue = queue(&mut self.inbound);
        kept.append(queue);
        *queue = kept;
        work
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
        self.words.push_back(Word { to, priority, word });
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
