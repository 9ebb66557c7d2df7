//! The DMA engine as a service: it executes descriptors, and serves those of other nodes.

use super::descriptor::Kind;
use super::fifo::Injection;
use super::near::{Fault, Lately, Span};
use super::open::{Open, Reply, Sent};
use super::reception::Reception;
use super::run::{Core, PACKET_WORDS, PUT_WORDS, Running};
use super::wire::{Name, Status, Step, parse, put, split, tag};
use crate::board::CounterKey;
use crate::drive::install::Install;
use crate::message::service::{Class, CloseReason, Gone, Outbox, PeerId, Pushed, Service, Wants};
use doorbell_fabric::{PacketKind, Payload, Priority, Verdict};
use doorbell_shm::board::{DescriptorWords, FIFO_SLOTS, Fifo, FifoFacts, Injector, Metric, Metrics, SealedWords};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The most bytes that are moved in one turn.
const TURN_BYTES: u64 = 128 << 10;
/// The most descriptors that one node may have in a FIFO for peers.
const GETS_MAX: usize = FIFO_SLOTS / 8;
/// The most replies that wait for one node. It gets no more packets through meanwhile.
const REPLIES_MAX: usize = 256;
/// In one of this many turns, withdrawn regions are forgotten.
const FORGET_EVERY: u32 = 64;
/// In one of this many turns, the lowest priority comes first.
const LEAST_SHARE: u32 = 16;

inventory::submit!(Install {
    order: Dma::CLASS as u8,
    install: |shared| shared.register(Dma::new(Core {
        me: shared.membership().into(),
        membership: shared.membership_arc(),
        regions: shared.regions().clone(),
        monitor: shared.monitor_arc(),
        lately: Lately::default(),
        room: Vec::new(),
    }))
});

/// The DMA engine.
pub(super) struct Dma {
    core: Core,
    /// By number.
    fifos: Vec<Option<Open>>,
    receptions: BTreeMap<u16, Arc<Reception>>,
    replies: VecDeque<Reply>,
    turns: u32,
    executed: u64,
    faults: u64,
    /// Why the node has ended, if it has.
    pub closed: Option<CloseReason>,
}

impl Dma {
    fn new(core: Core) -> Self {
        let [gets, messages @ ..] = core.monitor.fifos.clone();
        let mut fifos = vec![Some(Open::new(gets))];
        // The transfers execute these.
        fifos.extend(messages.iter().map(|_| None));
        let (receptions, replies) = (BTreeMap::new(), VecDeque::new());
        Self { core, fifos, receptions, replies, turns: 0, executed: 0, faults: 0, closed: None }
    }

    /// Opens a FIFO for the program. `None`: the board has no room for another.
    pub fn open(&mut self, facts: FifoFacts) -> Option<Arc<Injection>> {
        self.close_empty();
        let built_in = self.core.monitor.fifos.len();
        let number = (built_in..self.fifos.len()).find(|at| self.fifos[*at].is_none()).unwrap_or(self.fifos.len());
        let fifo = Fifo::open(self.core.monitor.home().clone(), number, facts)?;
        let open = Open::new(fifo);
        let shared = open.shared.clone();
        if number == self.fifos.len() {
            self.fifos.push(None);
        }
        self.fifos[number] = Some(open);
        Some(shared)
    }

    /// Closes a FIFO when all that was injected is over.
    pub fn close_injection(&mut self, number: usize) {
        if let Some(Some(open)) = self.fifos.get_mut(number) {
            open.closing = true;
        }
        self.close_empty();
    }

    fn close_empty(&mut self) {
        for place in &mut self.fifos {
            if let Some(open) = place.take_if(|open| open.closing && open.shared.depth() == 0) {
                open.shared.fifo.close();
            }
        }
    }

    /// Opens a reception FIFO. `None`: that number is taken.
    pub fn open_reception(&mut self, number: Option<u16>, chosen: u16, capacity: usize) -> Option<(u16, Arc<Reception>)> {
        let number = number.or_else(|| (chosen..=u16::MAX).find(|number| !self.receptions.contains_key(number)))?;
        if self.receptions.contains_key(&number) {
            return None;
        }
        let fifo = Arc::new(Reception::new(capacity));
        self.receptions.insert(number, fifo.clone());
        Some((number, fifo))
    }

    /// Closes a reception FIFO.
    pub fn close_reception(&mut self, number: u16, fifo: &Arc<Reception>) {
        if self.receptions.get(&number).is_some_and(|open| Arc::ptr_eq(open, fifo)) {
            self.receptions.remove(&number);
        }
    }

    fn is_full(&self, peer: PeerId) -> bool {
        self.replies.len() >= REPLIES_MAX && self.replies.iter().filter(|reply| reply.to == peer).count() >= REPLIES_MAX
    }

    fn reply(&mut self, to: PeerId, priority: Priority, name: Name, bytes: u64, status: Status) {
        match self.replies.iter_mut().find(|reply| reply.to == to && reply.name == name && reply.status == status) {
            Some(reply) => reply.bytes += bytes,
            None => self.replies.push_back(Reply { to, priority, name, bytes, status }),
        }
    }

    fn send_replies(&mut self, out: &mut Outbox<'_>) -> usize {
        let before = self.replies.len();
        let room = &mut self.core.room;
        self.replies.retain(|reply| {
            room.clear();
            put(room, &[reply.bytes, reply.status as u64]);
            out.push(reply.to, reply.priority, tag(Step::Reply, reply.name), room) == Pushed::Full
        });
        before - self.replies.len()
    }

    /// A packet for a reception FIFO.
    fn packet(&mut self, from: PeerId, priority: Priority, name: Name, payload: Payload<'_>) -> Verdict {
        let Some(([tag, at, total, fifo, secret], bytes)) = split::<PACKET_WORDS>(payload) else {
            return Verdict::Broken("a packet of a reception FIFO without a head");
        };
        if at.checked_add(bytes.len() as u64).is_none_or(|end| end > total) {
            return Verdict::Broken("a packet of a reception FIFO with more bytes than its descriptor");
        }
        let Some(reception) = self.receptions.get(&(fifo as u16)) else {
            if self.is_full(from) {
                return Verdict::Refused;
            }
            self.reply(from, priority, name, 0, Status::NoFifo);
            return Verdict::Taken;
        };
        if !reception.add(from, priority, tag, total, at, bytes) {
            return Verdict::Refused;
        }
        self.lower((fifo >> 16) as u16, secret, bytes.len() as u64);
        Verdict::Taken
    }

    /// Lowers a receive counter of this node. `index` is one more than the counter's, or 0 for none.
    fn lower(&self, index: u16, secret: u64, bytes: u64) {
        if let Some(index) = index.checked_sub(1) {
            let PeerId { node, incarnation } = self.core.me;
            // A use that has ended is not counted.
            let _ = self.core.monitor.counters.lower_by_key(&CounterKey { node, incarnation, index, secret }, bytes);
        }
    }

    /// A part of a put of a node that shares no memory with this one.
    fn store(&mut self, from: PeerId, priority: Priority, name: Name, payload: Payload<'_>) -> Verdict {
        let Some(([number, at, secret, counter], bytes)) = split::<PUT_WORDS>(payload) else {
            return Verdict::Broken("a part of a put without a head");
        };
        if self.is_full(from) {
            return Verdict::Refused;
        }
        let len = bytes.len() as u64;
        let status = match Span::own(&self.core.regions, number as u32, at, len, Some((secret, true))) {
            Ok(span) => {
                // SAFETY: the span was made with this length.
                unsafe { span.store(bytes) };
                if span.is_cut() { Status::Cut } else { Status::Fine }
            }
            Err(status) => status,
        };
        if status == Status::Fine {
            self.lower((number >> 32) as u16, counter, len);
        }
        self.reply(from, priority, name, if status == Status::Fine { len } else { 0 }, status);
        Verdict::Taken
    }

    /// A put that this node's engine is to execute.
    fn remote_get(&mut self, from: PeerId, priority: Priority, name: Name, payload: Payload<'_>) -> Verdict {
        let Some((words, _)) = split::<11>(payload) else { return Verdict::Broken("a remote get without a put") };
        let [.., source_secret, send_secret, fifo] = words;
        let mut slot: DescriptorWords = std::array::from_fn(|at| words[at]);
        if self.is_full(from) {
            return Verdict::Refused;
        }
        let status = match self.check_get(&mut slot, source_secret, send_secret) {
            Err(status) => status,
            Ok(()) => match self.fifos.get_mut(fifo as usize).and_then(Option::as_mut) {
                Some(open) if open.shared.fifo.facts().injector == Injector::Peers && !open.closing => {
                    if open.origins.iter().filter(|(_, of, _)| *of == from).count() >= GETS_MAX {
                        return Verdict::Refused;
                    }
                    let position = open.shared.fifo.next_position();
                    if !open.shared.fifo.push(&[SealedWords::new(slot)]) {
                        return Verdict::Refused;
                    }
                    open.origins.push_back((position, from, name));
                    open.busy = true;
                    return Verdict::Taken;
                }
                _ => Status::NoFifo,
            },
        };
        self.reply(from, priority, name, 0, status);
        Verdict::Taken
    }

    /// Checks that the sender of a remote get has the keys of its source and of its send counter.
    fn check_get(&self, slot: &mut DescriptorWords, source: u64, send: u64) -> Result<(), Status> {
        let task = super::descriptor::Task::decode(slot)?;
        if task.kind != Kind::DirectPut || !SealedWords::are_free(slot) {
            return Err(Status::Malformed);
        }
        let (number, at) = task.source;
        Span::own(&self.core.regions, number, at, task.len, Some((source, false)))?;
        if let Some((index, _)) = task.send
            && self.core.monitor.counters.register().named(index.into(), send).is_none()
        {
            // Only the count is refused, as with other keys of an earlier use.
            slot[0] &= !(0xffff << 32);
        }
        Ok(())
    }

    /// A reply about a descriptor of this node.
    fn answer(&mut self, from: PeerId, name: Name, payload: Payload<'_>) -> Verdict {
        let Some(([bytes, status], _)) = split::<2>(payload) else { return Verdict::Broken("a reply without words") };
        let Some(status) = Status::from_repr(status as u8) else { return Verdict::Broken("a reply of unknown kind") };
        let Some(open) = self.fifos.get_mut(usize::from(name.fifo)).and_then(Option::as_mut) else { return Verdict::Taken };
        let is_it = |running: &&Running| Name::new(0, running.position).position == name.position && running.task.to == from;
        let mut replies = Vec::new();
        match open.running.iter().position(|running| is_it(&running)) {
            Some(at) if status == Status::Fine => {
                let running = &mut open.running[at];
                running.stored = running.stored.saturating_add(bytes).min(running.task.len);
                open.busy = true;
            }
            Some(at) => {
                if let Some(running) = open.running.remove(at) {
                    open.fail(&running, status.into(), &mut replies);
                    self.faults += 1;
                }
            }
            None => {
                let is_sent = |sent: &Sent| Name::new(0, sent.position).position == name.position && sent.to == from;
                if let Some(sent) = open.sent.iter().position(is_sent).and_then(|at| open.sent.remove(at))
                    && status != Status::Fine
                {
                    let operation = if sent.is_get { "remote get" } else { "packet" };
                    open.shared.fifo.end(sent.position, 0, 0, true);
                    open.shared.fault(sent.position, status.error(operation, from, sent.fifo));
                    self.faults += 1;
                }
            }
        }
        replies.into_iter().for_each(|reply| self.reply(reply.to, reply.priority, reply.name, 0, reply.status));
        self.close_empty();
        Verdict::Taken
    }
}

impl Class for Dma {
    const CLASS: PacketKind = PacketKind::Dma;
}

impl Service for Dma {
    fn receive(&mut self, from: PeerId, priority: Priority, tag: u64, payload: Payload<'_>) -> Verdict {
        let Some((step, name)) = parse(tag) else { return Verdict::Broken("a packet of the DMA engine of unknown kind") };
        match step {
            Step::Packet => self.packet(from, priority, name, payload),
            Step::Put => self.store(from, priority, name, payload),
            Step::RemoteGet => self.remote_get(from, priority, name, payload),
            Step::Reply => self.answer(from, name, payload),
            Step::Lower => match split::<3>(payload) {
                Some(([index, secret, bytes], _)) if index < u64::from(u16::MAX) => {
                    self.lower(index as u16 + 1, secret, bytes);
                    Verdict::Taken
                }
                _ => Verdict::Broken("a counter to be lowered without a key"),
            },
        }
    }

    fn progress(&mut self, out: &mut Outbox<'_>) -> usize {
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(FORGET_EVERY) {
            self.core.lately.forget_withdrawn();
        }
        let mut work = self.send_replies(out);
        // One look at each FIFO: bits of the priorities of those with something to do, and a bit for those that close.
        let look =
            |open: &Open| u8::from(open.is_busy()) << open.shared.fifo.facts().priority.index() | u8::from(open.closing) << 7;
        let busy = self.fifos.iter().flatten().fold(0, |busy, open| busy | look(open));
        if busy == 0 {
            return work;
        }
        let mut budget = TURN_BYTES;
        let mut replies = Vec::new();
        let lowest_first = self.turns.is_multiple_of(LEAST_SHARE);
        let (count, first) = (self.fifos.len(), self.turns as usize % self.fifos.len());
        for rank in 0..Priority::ALL.len() {
            let priority = Priority::ALL[if lowest_first { Priority::ALL.len() - 1 - rank } else { rank }];
            if busy >> priority.index() & 1 == 0 {
                continue;
            }
            // FIFOs of one priority take turns.
            for at in (first..count).chain(0..first) {
                let Some(open) = &mut self.fifos[at] else { continue };
                if open.shared.fifo.facts().priority != priority || !open.is_busy() {
                    continue;
                }
                let (done, executed, faults) = open.run(&mut self.core, out, &mut budget, &mut replies);
                work += done;
                self.executed += executed;
                self.faults += faults;
            }
        }
        replies.into_iter().for_each(|reply| self.reply(reply.to, reply.priority, reply.name, 0, reply.status));
        self.close_empty();
        work
    }

    fn wants(&self) -> Wants {
        if !self.replies.is_empty() {
            return Wants::Soon;
        }
        self.fifos.iter().flatten().map(Open::wants).max().unwrap_or_default()
    }

    fn is_hurried(&self) -> bool {
        !self.replies.is_empty() || self.fifos.iter().flatten().any(|open| open.busy)
    }

    fn is_flushing(&self) -> bool {
        self.fifos.iter().flatten().any(|open| !open.running.is_empty() || open.shared.fifo.has(open.loaded))
    }

    fn peer_gone(&mut self, peer: PeerId, why: Gone) {
        self.core.lately = Lately::default();
        self.replies.retain(|reply| reply.to != peer);
        let mut replies = Vec::new();
        for open in self.fifos.iter_mut().flatten() {
            let (gone, left): (VecDeque<_>, _) =
                std::mem::take(&mut open.running).into_iter().partition(|running| running.task.to == peer);
            open.running = left;
            self.faults += gone.len() as u64;
            for running in gone {
                open.fail(&running, Fault::Error(why.error(peer)), &mut replies);
            }
            let sent = std::mem::take(&mut open.sent);
            for sent in sent {
                match sent.to == peer {
                    // It may have been executed.
                    true if sent.is_get => {
                        self.faults += 1;
                        open.shared.fault(sent.position, why.error(peer));
                    }
                    true => {}
                    false => open.sent.push_back(sent),
                }
            }
        }
        self.close_empty();
        replies.retain(|reply| reply.to != peer);
        replies.into_iter().for_each(|reply| self.reply(reply.to, reply.priority, reply.name, 0, reply.status));
    }

    fn close(&mut self, why: CloseReason) {
        self.closed = Some(why);
        self.replies.clear();
        for open in self.fifos.iter_mut().flatten() {
            for running in std::mem::take(&mut open.running) {
                open.end(&running, true);
                open.shared.fault(running.position, why.error());
            }
            let end = open.shared.fifo.pending().end;
            for position in open.loaded..end {
                open.shared.fifo.end(position, 1, 0, true);
                open.shared.fault(position, why.error());
            }
            open.loaded = end;
        }
    }

    fn count(&self, metrics: &mut Metrics) {
        metrics[Metric::Descriptors] += self.executed;
        metrics[Metric::DescriptorFaults] += self.faults;
    }
}
