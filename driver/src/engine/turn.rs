//! What one turn of the engine does.

use super::baton::Token;
use super::monitor::Monitor;
use super::op::{Op, Outcome};
use super::wait::CHECK_EVERY;
use crate::error::Error;
use crate::loan::{Lease, Lender, Lenders, Lent};
use crate::message::Match;
use crate::message::inbound::{Active, Assembly, Direct, Dispatch, Inbound, Into, Nobody, RecvOp};
use crate::message::outbound::{OutState, Outbound};
use crate::message::pool::{Entry, Pool, Pooled};
use crate::node::events::Event;
use crate::node::way_index;
use crate::region::table::RegionTable;
use crate::transfer::descriptor::Control;
use crate::transfer::incoming::{Incoming, Look};
use crate::transfer::memory::Local;
use crate::transfer::outgoing::{Begun, Order, Outgoing};
use crate::transfer::{Copy, RENDEZVOUS_BYTES, TransferReport};
use doorbell_fabric::sync::{AtomicU64, Ordering};
use doorbell_fabric::{Envelope, Fabric, Incarnation, NodeId, PRIORITIES, PacketKind, Payload, Priority, Push};
use doorbell_shm::board::{Figure, Figures, Record, RecordKind};
use doorbell_shm::domain::PeerInbox;
use doorbell_shm::fabric::{Change, Hot, ShmFabric};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Looks at the lanes between two looks at transfers.
const SPIN_TRANSFER: u32 = 4;
/// Packets handled in one turn.
const TURN_PACKETS: usize = 64;
/// Polls after which whoever drives looks at the clock.
const POLLS_PER_CLOCK: u32 = 64;
/// How often a node that never sleeps shows its figures.
const SHOW_EVERY: Duration = Duration::from_millis(50);
/// Events kept for somebody to ask for; the oldest are dropped and counted.
const EVENTS_MAX: usize = 1024;

/// What a node's engine is told when it is made.
#[derive(Clone, Copy, Debug)]
pub struct EngineSettings {
    /// Bytes of messages that nobody has asked for.
    pub pool_bytes: usize,
    /// Whether it may make system calls unasked.
    pub calls: bool,
    /// Whether threads of the application and the poller take turns.
    pub adaptive: bool,
    /// Who copies large messages.
    pub copy: Copy,
    /// Whether memory FIFOs begin at the high end of a buffer.
    pub fifo_from_high: bool,
    /// The most bytes of memory for loans.
    pub loan_bytes: usize,
}

/// The state that whoever drives may touch: behind the node's baton.
pub struct Engine {
    fabric: ShmFabric,
    inbound: Inbound,
    outgoing: Outgoing,
    local: Local,
    copy: Copy,
    /// Whether the poller thread turns it just now.
    by_poller: bool,
    sending: Vec<Arc<Outbound>>,
    events: VecDeque<Event>,
    events_dropped: u64,
    ends: Vec<Option<End>>,
    /// The life of each node that broke the rules.
    damaged: Vec<Option<Incarnation>>,
    ways: Arc<Ways>,
    /// Changes with every poll: tells the poller that somebody else drives.
    turns: Arc<AtomicU64>,
    /// What is shown of this node.
    monitor: Arc<Monitor>,
    /// What this node lends.
    lender: Arc<Lender>,
    /// What the thread waits for that sleeps on the bell.
    parked: Option<Arc<Op>>,
    polls: u32,
    /// When somebody last asked whether the peers live.
    checked: Instant,
    /// When the figures were last shown.
    shown: Instant,
    /// Whether it may make system calls unasked.
    calls: bool,
    /// Whether threads of the application and the poller take turns.
    adaptive: bool,
}

/// The ways out, by node and priority.
pub type Ways = [OnceLock<Arc<Outbound>>];

/// How the latest life of a node ended.
#[derive(Clone, Copy, Debug)]
struct End {
    incarnation: Incarnation,
    died: bool,
}

/// What the short way brought.
pub enum HotTake {
    /// A whole message.
    Whole(Envelope),
    /// The first part of one; the rest goes to the same buffer by the long way.
    Part(Arc<Op>),
}

impl Engine {
    /// An engine over the lanes of one node.
    pub(crate) fn new(
        fabric: ShmFabric,
        ways: Arc<Ways>,
        turns: Arc<AtomicU64>,
        monitor: Arc<Monitor>,
        regions: Arc<RegionTable>,
        lender: Arc<Lender>,
        settings: EngineSettings,
    ) -> Self {
        let nodes = fabric.membership().max_nodes();
        let lenders = Lenders::new(fabric.membership().clone(), regions.clone());
        Self {
            inbound: Inbound::new(settings.pool_bytes, fabric.membership().clone(), lenders),
            outgoing: Outgoing::new(nodes, settings.copy, settings.fifo_from_high, monitor.clone()),
            local: Local::new(fabric.membership().clone(), regions),
            copy: settings.copy,
            by_poller: false,
            fabric,
            sending: Vec::new(),
            events: VecDeque::new(),
            events_dropped: 0,
            ends: (0..nodes).map(|_| None).collect(),
            damaged: vec![None; nodes],
            ways,
            turns,
            monitor,
            lender,
            parked: None,
            polls: 0,
            checked: Instant::now(),
            shown: Instant::now(),
            calls: settings.calls,
            adaptive: settings.adaptive,
        }
    }

    /// The fabric it turns.
    #[inline(always)]
    pub fn fabric(&mut self) -> &mut ShmFabric {
        &mut self.fabric
    }

    /// Looks up to `rounds` times at the lanes that were busy lately; fewer times while a transfer is under way, whose other end changes
    /// words that are not in a lane. True as soon as one has something.
    pub fn spin(&self, rounds: u32) -> bool {
        let is_idle = !self.outgoing.is_active() && self.inbound.incoming.is_empty();
        self.fabric.spin(if is_idle { rounds } else { rounds.min(SPIN_TRANSFER) })
    }

    /// Messages nobody has asked for yet.
    #[inline(always)]
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.inbound.pool
    }

    /// Figures, flight recorder and DMA counters.
    #[inline]
    pub(crate) fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    /// Shows the figures on the board, and returns them. Cheap beside the sleep or the call that it comes with.
    pub fn show(&mut self) -> Figures {
        let (tally, pool) = (self.inbound.tally, &self.inbound.pool);
        let (pooled_bytes, pooled_bytes_most) = pool.bytes();
        let mut figures = self.monitor.tallies.read();
        for way in self.ways.iter().filter_map(OnceLock::get) {
            let (messages, bytes) = way.carried.read();
            figures[Figure::MessagesOut] += messages;
            figures[Figure::BytesOut] += bytes;
        }
        for (figure, value) in [
            (Figure::MessagesIn, tally.messages),
            (Figure::BytesIn, tally.bytes),
            (Figure::ByPoller, tally.by_poller),
            (Figure::Unexpected, tally.unexpected),
            (Figure::Pooled, pool.len() as u64),
            (Figure::PooledBytes, pooled_bytes as u64),
            (Figure::PooledBytesMost, pooled_bytes_most as u64),
            (Figure::BytesLoaned, self.lender.lent()),
            (Figure::Turns, self.turns.load(Ordering::Relaxed)),
            (Figure::CountersUsed, self.monitor.counters.register().used() as u64),
        ] {
            figures[figure] = value;
        }
        self.monitor.show(&figures, self.fabric.latencies());
        self.shown = Instant::now();
        figures
    }

    /// Wakes the thread that sleeps on the bell if what it waits for is done.
    pub fn wake_if_done(&mut self) {
        if self.parked.is_some() {
            self.wake_parked();
        }
    }

    /// Whether nonblocking operations wait for somebody to drive.
    pub fn has_pending(&self) -> bool {
        !self.inbound.posted.is_empty()
            || !self.sending.is_empty()
            || self.outgoing.is_active()
            || !self.inbound.incoming.is_empty()
            || self.inbound.assemblies.iter().any(|a| a.active.is_some())
    }

    /// Takes what arrived, for `direct` first of all that no posted receive accepts. Returns how many packets it took.
    #[inline(always)]
    pub fn poll<D: Direct>(&mut self, direct: &mut D, poller: bool) -> usize {
        let mut dispatch = Dispatch { inbound: &mut self.inbound, direct, poller, satisfied: false, broken: None };
        let taken = self.fabric.poll(&mut dispatch, TURN_PACKETS);
        self.by_poller = poller;
        if self.adaptive && !poller && self.parked.is_none() && self.fabric.bell().is_armed() {
            // The poller sleeps on the bell, and this thread looks by itself now: no sender need ring.
            self.fabric.bell().disarm();
        }
        if let Some((node, reason)) = dispatch.broken {
            self.on_broken(node, reason);
        }
        if !self.inbound.controls.is_empty() {
            self.obey();
        }
        while let Some(change) = self.fabric.next_change() {
            self.on_change(change);
        }
        if self.parked.is_some() {
            self.wake_parked();
        }
        // Only one thread is in here, and nobody needs the exact number: a plain load and store.
        self.turns.store(self.turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(POLLS_PER_CLOCK) {
            self.now_and_then();
        }
        taken
    }

    /// Whoever always finds something to do never waits, and those who wait ask whether the peers live and show their figures. So do
    /// it here too.
    #[cold]
    fn now_and_then(&mut self) {
        let now = Instant::now();
        if self.calls && now - self.checked >= CHECK_EVERY {
            self.check_peers();
        }
        if now - self.shown >= SHOW_EVERY {
            self.show();
        }
    }

    /// Wakes the thread that sleeps on the bell if this thread just did for it what it waits for.
    #[cold]
    fn wake_parked(&mut self) {
        if self.inbound.sighted || self.parked.as_ref().is_some_and(|op| op.is_done()) {
            self.fabric.bell().wake();
        }
    }

    /// Says that a thread is about to sleep on the bell until `op` is done, `timeout` at most. `None` if it should look again
    /// instead. Call [`awake`](Self::awake) after the sleep.
    pub fn park(&mut self, me: Token, op: &Arc<Op>, timeout: Duration) -> Option<Duration> {
        if op.is_done() {
            return None;
        }
        let timeout = self.arm(me, timeout)?;
        self.inbound.sighted = false;
        self.parked = Some(op.clone());
        Some(timeout)
    }

    /// Arms the bell and looks once more at everything that might ring it: the lanes, and room for what is queued. If that
    /// found nothing: how long to sleep.
    pub fn arm(&mut self, me: Token, timeout: Duration) -> Option<Duration> {
        let timeout = self.fabric.arm(timeout)?;
        // What was refused may have room, or a taker, by now.
        let refused = if self.fabric.refusing() { self.poll(&mut Nobody, false) } else { 0 };
        if refused + self.push(me) > 0 {
            self.fabric.bell().disarm();
            return None;
        }
        Some(timeout)
    }

    /// After the sleep.
    pub fn awake(&mut self) {
        self.parked = None;
        self.fabric.bell().disarm();
    }

    /// Takes the first pooled message that a receive accepts. If others had been refused for want of room, whoever sleeps on
    /// the bell looks again.
    pub fn take_pooled(&mut self, accepts: &Match) -> Option<Pooled> {
        let pooled = self.inbound.pool.take(accepts)?;
        self.inbound.turned_away = false;
        if self.fabric.refusing() {
            self.fabric.bell().wake();
        }
        Some(pooled)
    }

    /// The same, but only if all of it is there.
    pub fn take_whole(&mut self, accepts: &Match) -> Option<Pooled> {
        if self.has_whole(accepts) { self.take_pooled(accepts) } else { None }
    }

    /// Whether the first pooled message that a receive accepts is there, all of it.
    pub fn has_whole(&self, accepts: &Match) -> bool {
        self.inbound.pool.find(accepts).is_some_and(Entry::is_whole)
    }

    /// Gives a message that is still coming to a receive.
    pub fn attach(&mut self, id: u64, receive: RecvOp) {
        let receive = self.inbound.number(receive);
        self.inbound.attach(id, receive);
    }

    /// Has `op` nudged when a message comes into the pool that a receive accepts.
    pub fn watch(&mut self, accepts: Match, op: Arc<Op>) {
        self.inbound.watchers.push((accepts, op));
    }

    /// Takes [`watch`](Self::watch) back.
    pub fn unwatch(&mut self, op: &Arc<Op>) {
        self.inbound.watchers.retain(|(_, other)| !Arc::ptr_eq(other, op));
    }

    /// Whether this node turns messages away: some are refused because the pool is full, or were since the application last
    /// received one. (Their sender may have given up meanwhile, and nothing is refused any more.)
    pub fn is_refusing(&self) -> bool {
        self.fabric.refusing() || self.inbound.turned_away
    }

    /// Asks whether the peers live, and tells whoever waits for one that does not.
    pub fn check_peers(&mut self) {
        self.checked = Instant::now();
        self.fabric.check_peers();
        self.on_changes();
    }

    /// Looks who came and went, if the directory changed.
    pub fn glance(&mut self) {
        self.fabric.glance();
        self.on_changes();
    }

    fn on_changes(&mut self) {
        while let Some(change) = self.fabric.next_change() {
            self.on_change(change);
        }
        if self.parked.is_some() {
            self.wake_parked();
        }
    }

    /// Makes sure that a way out leads to the wanted life of its target. An error if that life has ended. Without one the
    /// way may still have no lane: its former owner's messages have not been read yet.
    pub fn connect(&mut self, outbound: &Outbound, state: &mut OutState, wanted: Incarnation) -> Result<(), Error> {
        if state.link.is_some() && state.incarnation == wanted {
            return Ok(());
        }
        self.glance();
        let life = state.incarnation;
        if self.fabric.live(outbound.target) != Some(life) {
            // The caller holds this way out, so what is queued here was passed over when the end of its life was noticed.
            state.fail(|| self.unreachable(outbound.target, Some(life)));
        }
        if self.fabric.live(outbound.target) != Some(wanted) {
            return Err(self.unreachable(outbound.target, Some(wanted)));
        }
        if state.damaged && life == wanted {
            return Err(Error::Damaged { node: outbound.target });
        }
        match self.fabric.connect(outbound.target, wanted, outbound.priority) {
            Ok(link) => state.connect(Some(link), wanted),
            Err(error) if error.is_retryable() => state.connect(None, wanted),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// The shortest way from a lane to a buffer: a message that is first in the lane that was busy last, while nothing else
    /// is under way in this node. Looks `rounds` times. `None` says nothing: then [`poll`](Self::poll).
    #[inline(always)]
    pub fn take_hot(&mut self, accepts: &Match, buf: &mut [u8], rounds: u32) -> Option<HotTake> {
        if !self.is_quiet() {
            return None;
        }
        let inbound = &mut self.inbound;
        let mut hot = self.fabric.hot(rounds)?;
        let seen = hot.first()?;
        let envelope = hot.envelope(&seen);
        let assembly = &mut inbound.assemblies[hot.index()];
        if envelope.len > buf.len()
            || assembly.active.is_some()
            || !matches!(seen.head.kind, PacketKind::Whole | PacketKind::First)
            || envelope.sequence != assembly.expected
            || !accepts.matches(&envelope)
        {
            return None;
        }
        hot.take_into(&seen, buf);
        self.turns.store(self.turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if seen.head.kind == PacketKind::First
            && let Some(op) = take_rest(&mut hot, assembly, inbound.receives, envelope, seen.len, accepts, buf)
        {
            return Some(HotTake::Part(op));
        }
        inbound.turned_away = false;
        assembly.expected = assembly.expected.wrapping_add(1);
        inbound.tally.messages += 1;
        inbound.tally.bytes += envelope.len as u64;
        Some(HotTake::Whole(envelope))
    }

    /// Whether nothing is under way in this node that a message could concern.
    #[inline(always)]
    fn is_quiet(&self) -> bool {
        let inbound = &self.inbound;
        inbound.pool.is_empty()
            && inbound.posted.is_empty()
            && self.sending.is_empty()
            && self.parked.is_none()
            && !self.outgoing.is_active()
            && inbound.incoming.is_empty()
    }

    /// The same as [`take_hot`](Self::take_hot), for a message that is lent and whose arena is mapped.
    #[inline(always)]
    pub fn take_hot_loan(&mut self, accepts: &Match, rounds: u32) -> Option<(Envelope, Lent)> {
        if !self.is_quiet() {
            return None;
        }
        let inbound = &mut self.inbound;
        let mut hot = self.fabric.hot(rounds)?;
        let seen = hot.first()?;
        let envelope = hot.envelope(&seen);
        let assembly = &mut inbound.assemblies[hot.index()];
        if seen.head.kind != PacketKind::Loan
            || assembly.active.is_some()
            || envelope.sequence != assembly.expected
            || !accepts.matches(&envelope)
        {
            return None;
        }
        let lease = Lease::decode(hot.payload(&seen))?;
        // Whatever is wrong with it, the long way finds out.
        let lending = inbound.lenders.known(envelope.source, envelope.incarnation, &lease)?.ok()?;
        let lent = lending.lend(&lease);
        hot.take_into(&seen, &mut []);
        self.turns.store(self.turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        inbound.turned_away = false;
        assembly.expected = assembly.expected.wrapping_add(1);
        inbound.tally.messages += 1;
        inbound.tally.bytes += lease.len;
        Some((Envelope { len: lease.len as usize, ..envelope }, lent))
    }

    /// One turn: polls, and moves what is queued. Returns the amount of work done; 0 means that there was none.
    pub fn turn(&mut self, me: Token, poller: bool) -> usize {
        self.poll(&mut Nobody, poller) + self.push(me)
    }

    /// Moves what is queued into the lanes. Returns the amount of work done.
    #[inline(always)]
    pub fn push(&mut self, me: Token) -> usize {
        if self.sending.is_empty() && self.outgoing.is_empty() && self.inbound.incoming.is_empty() {
            return 0;
        }
        let work = self.push_queues(me) + self.step_transfers(me);
        if self.parked.is_some() {
            self.wake_parked();
        }
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
            let peer = self.fabric.peer(outbound.target);
            work += state.push_queue(outbound.target, 16, |state, order| {
                begin(&mut self.outgoing, peer, &self.local, &outbound, state, order)
            });
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
        }
        for priority in Priority::ALL {
            self.monitor.tallies.fifo_depth(priority, depths[priority.index()]);
        }
        work
    }

    /// Begins to move a message from both ends, if that can be done. The caller holds the way out, in which nothing waits.
    pub fn begin_transfer(&mut self, outbound: &Arc<Outbound>, state: &mut OutState, order: &Order<'_>) -> Option<Begun> {
        begin(&mut self.outgoing, self.fabric.peer(outbound.target), &self.local, outbound, state, order)
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

    /// Words of other engines came: direct-put descriptors are injected, counters lowered.
    #[cold]
    fn obey(&mut self) {
        for (source, word) in std::mem::take(&mut self.inbound.controls) {
            match word {
                Control::RemoteGet(get) => {
                    if !self.outgoing.acknowledge(source, get, &self.local) {
                        tracing::trace!(node = source.0, "a remote get for a transfer that is over");
                    }
                }
                Control::Lower(lower) => {
                    // A stale key lowers nothing.
                    let _ = self.monitor.counters.lower_by_key(&lower.key, lower.bytes);
                }
            }
        }
    }

    /// Moves what both ends move: a chunk for each message on its way in, and one of those on their way out.
    #[cold]
    fn step_transfers(&mut self, me: Token) -> usize {
        let mut work = 0;
        let mut at = 0;
        while at < self.inbound.incoming.len() {
            let incoming = &mut self.inbound.incoming[at];
            let (id, Envelope { source, incarnation, .. }) = (incoming.id, incoming.envelope);
            let peer = self.fabric.peer(source).filter(|peer| peer.incarnation() == incarnation).cloned();
            if let Some(peer) = &peer
                && let Some(get) = incoming.answer(peer, &self.local, self.copy)
                && self.send_control(me, source, incarnation, &get.encode())
            {
                // On the way there it may have been seen that the origin is gone, and with it what it was sending.
                let Some(incoming) = self.inbound.incoming.get_mut(at).filter(|incoming| incoming.id == id) else { continue };
                incoming.answered(get, &self.monitor);
                work += 1;
            }
            if at >= self.inbound.incoming.len() {
                break;
            }
            let (pulled, look) = self.inbound.incoming[at].step(peer.as_ref(), &self.monitor);
            work += usize::from(pulled || look != Look::Underway);
            match look {
                Look::Underway => at += 1,
                Look::Complete => self.inbound.complete_transfer(at, self.by_poller),
                Look::GivenUp => self.inbound.give_up_transfer(at),
                Look::Broken(reason) => {
                    self.inbound.give_up_transfer(at);
                    self.on_broken(source, reason);
                    at = 0;
                }
            }
        }
        work + self.outgoing.step(me)
    }

    /// A word to another node's engine, at high priority. False if there is no room now.
    pub fn send_control(&mut self, me: Token, node: NodeId, life: Incarnation, word: &[u8]) -> bool {
        let Some(slot) = self.ways.get(way_index(node, Priority::High)) else { return true };
        let outbound = slot.get_or_init(|| Arc::new(Outbound::new(node, Priority::High))).clone();
        let Some(mut state) = outbound.state.enter(me) else { return false };
        if self.connect(&outbound, &mut state, life).is_err() {
            // It is gone, which ends what this is about.
            return true;
        }
        !state.is_started() && state.push_control(word) == Push::Done
    }

    /// Lists a way out that has something queued.
    pub fn list(&mut self, outbound: &Arc<Outbound>) {
        if !outbound.listed.swap(true, Ordering::Relaxed) {
            self.sending.push(outbound.clone());
        }
    }

    /// Posts a receive behind those that were posted before, after looking into the pool.
    pub fn post(&mut self, receive: RecvOp) {
        // One that takes a message that is still coming has its place, too: that message may be given up.
        let receive = self.inbound.number(receive);
        match self.take_pooled(&receive.accepts) {
            Some(Pooled::Whole(message)) => {
                receive.complete(message.envelope, Payload::private(&message.bytes));
                return;
            }
            Some(Pooled::Lent(envelope, lent)) => return receive.complete(envelope, lent.payload()),
            Some(Pooled::Coming(id)) => return self.inbound.attach(id, receive),
            None => {}
        }
        if let Some(error) = self.never(&receive.accepts) {
            receive.op.finish(Outcome::Failed(error));
            return;
        }
        self.inbound.posted.push_back(receive);
    }

    /// Withdraws a posted receive. True if it was still under way: then its buffer is not touched any more.
    pub fn unpost(&mut self, op: &Arc<Op>) -> bool {
        if let Some(at) = self.inbound.posted.iter().position(|receive| Arc::ptr_eq(&receive.op, op)) {
            self.inbound.posted.remove(at);
            return true;
        }
        let fabric = &self.fabric;
        if self.inbound.detach(op, |node, life| fabric.peer(node).filter(|peer| peer.incarnation() == life).cloned()) {
            return true;
        }
        for assembly in &mut self.inbound.assemblies {
            let Some(active) = &mut assembly.active else { continue };
            let kept = match &mut active.into {
                Into::Buffer(receive) if Arc::ptr_eq(&receive.op, op) => {
                    let mut bytes = vec![0; active.received];
                    // SAFETY: the buffer is valid until this returns (RecvOp::new), and holds `received` bytes.
                    unsafe { std::ptr::copy_nonoverlapping(receive.ptr, bytes.as_mut_ptr(), active.received) };
                    bytes
                }
                Into::TooLong(receive, bytes) if Arc::ptr_eq(&receive.op, op) => std::mem::take(bytes),
                _ => continue,
            };
            // The rest of it is still coming, so it goes on into the pool, past its limit if it must: nothing is lost.
            if matches!(active.into, Into::Buffer(_)) {
                self.inbound.pool.reserve_anyway(active.envelope.len);
            }
            active.into = Into::Pool(kept);
            return true;
        }
        false
    }

    /// Bytes that have come of the message that a receive has taken.
    pub fn arrived(&self, op: &Arc<Op>) -> u64 {
        let is_its = |receive: &RecvOp| Arc::ptr_eq(&receive.op, op);
        let in_parts = self.inbound.assemblies.iter().filter_map(|assembly| assembly.active.as_ref());
        let mut in_parts = in_parts.filter(|active| matches!(&active.into, Into::Buffer(r) | Into::TooLong(r, _) if is_its(r)));
        let transfer = self.inbound.incoming.iter().find(|incoming| incoming.receive().is_some_and(is_its));
        in_parts.next().map_or(0, |active| active.received as u64) + transfer.map_or(0, Incoming::moved)
    }

    /// Why a receive bound to one node will never complete, if so: that node is gone and all it sent was delivered.
    pub fn never(&mut self, accepts: &Match) -> Option<Error> {
        self.never_as_seen(accepts)?;
        // Unless it came just now.
        self.glance();
        self.never_as_seen(accepts)
    }

    fn never_as_seen(&self, accepts: &Match) -> Option<Error> {
        let node = accepts.bound_to()?;
        let incarnation = accepts.bound_to_life();
        if node.index() >= self.ends.len() {
            return Some(Error::NoSuchNode { node });
        }
        if let Some(live) = self.fabric.live(node)
            && incarnation.is_none_or(|wanted| wanted == live)
        {
            if self.damaged[node.index()] == Some(live) {
                return Some(Error::Damaged { node });
            }
            return None;
        }
        match self.ends[node.index()] {
            Some(end) if incarnation.is_none_or(|wanted| wanted == end.incarnation) => {
                self.fabric.drained(node, end.incarnation).then(|| end.error(node))
            }
            // An earlier life than the latest that ended.
            Some(end) if incarnation.is_some_and(|wanted| wanted < end.incarnation) => {
                Some(Error::PeerDied { node, incarnation: incarnation.unwrap_or_default() })
            }
            _ if self.fabric.live(node).is_some() => Some(Error::PeerDied { node, incarnation: incarnation.unwrap_or_default() }),
            _ => Some(Error::NoSuchNode { node }),
        }
    }

    /// Whether this life of a node is known to have ended.
    pub fn has_ended(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.ends.get(node.index()).copied().flatten().is_some_and(|end| end.incarnation == incarnation)
    }

    /// The error for a node that can't be reached.
    pub fn unreachable(&self, node: NodeId, incarnation: Option<Incarnation>) -> Error {
        match self.ends.get(node.index()).copied().flatten() {
            Some(end) if incarnation.is_none_or(|wanted| wanted == end.incarnation) => end.error(node),
            _ => match incarnation {
                Some(incarnation) => Error::PeerDied { node, incarnation },
                None => Error::NoSuchNode { node },
            },
        }
    }

    /// What happened to other nodes, oldest first.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn tell(&mut self, event: Event) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
            self.events_dropped += 1;
        }
        self.events.push_back(event);
    }

    #[cold]
    fn on_broken(&mut self, node: NodeId, reason: &'static str) {
        tracing::warn!(node = node.0, reason, "a peer broke the rules of the shared memory");
        self.monitor.record_peer(RecordKind::Damaged, node, self.fabric.live(node).unwrap_or_default());
        self.damaged[node.index()] = self.fabric.live(node);
        self.tell(Event::Damaged { node, reason });
        self.drop_inbound_of(node);
        self.fail_posted(|receive| (receive.accepts.bound_to() == Some(node)).then_some(Error::Damaged { node }));
    }

    #[cold]
    fn on_change(&mut self, change: Change) {
        match change {
            Change::Joined(node, incarnation) => {
                self.monitor.record_peer(RecordKind::Joined, node, incarnation);
                self.tell(Event::Joined { node, incarnation });
            }
            Change::Left(node, incarnation) | Change::Died(node, incarnation) => {
                let died = matches!(change, Change::Died(..));
                let end = End { incarnation, died };
                self.monitor.record_peer(if died { RecordKind::PeerDied } else { RecordKind::Left }, node, incarnation);
                self.monitor.tallies.add(Figure::PeersDied, died.into());
                self.ends[node.index()] = Some(end);
                self.outgoing.fail(Some((node, incarnation)), || end.error(node));
                for way in self.ways[node.index() * PRIORITIES..][..PRIORITIES].iter().filter_map(OnceLock::get) {
                    if let Some(mut state) = way.state.enter(Token::current())
                        && state.incarnation == incarnation
                    {
                        state.fail(|| end.error(node));
                    }
                }
                // After its ways out were cut: nothing can be lent to it from here on.
                let (loans, bytes) = self.lender.drop_holds(node, incarnation);
                if loans > 0 {
                    let record = Record::new(RecordKind::LoanReturned).peer(node).incarnation(incarnation);
                    self.monitor.record(&record.bytes(bytes));
                }
                self.tell(if died { Event::Died { node, incarnation } } else { Event::Left { node, incarnation } });
            }
            Change::Drained(node, incarnation) => {
                self.drop_inbound_of(node);
                self.inbound.lenders.forget(node, incarnation);
                for assembly in &mut self.inbound.assemblies[node.index() * PRIORITIES..][..PRIORITIES] {
                    assembly.expected = 0;
                }
                let end = self.ends[node.index()];
                // The next life may have joined already: whoever waits for any life waits for that one.
                self.fabric.glance();
                let is_succeeded = self.fabric.live(node).is_some();
                self.fail_posted(|receive| {
                    let ended = receive.accepts.bound_to_life().map_or(!is_succeeded, |wanted| wanted == incarnation);
                    let bound = receive.accepts.bound_to() == Some(node) && ended;
                    bound.then(|| end.map_or(Error::NoSuchNode { node }, |end| end.error(node)))
                });
            }
        }
    }

    /// Drops what a node that is gone had begun to send; a receive that had taken it waits for another message.
    fn drop_inbound_of(&mut self, node: NodeId) {
        for priority in 0..PRIORITIES {
            self.inbound.give_up(node.index() * PRIORITIES + priority);
        }
        let mut at = 0;
        while let Some(incoming) = self.inbound.incoming.get_mut(at) {
            if incoming.envelope.source != node {
                at += 1;
            } else if incoming.step(None, &self.monitor).1 == Look::Complete {
                self.inbound.complete_transfer(at, self.by_poller);
            } else {
                self.inbound.give_up_transfer(at);
            }
        }
    }

    fn fail_posted(&mut self, error: impl Fn(&RecvOp) -> Option<Error>) {
        self.inbound.posted.retain(|receive| match error(receive) {
            Some(error) => {
                receive.op.finish(Outcome::Failed(error));
                false
            }
            None => true,
        });
    }

    /// Ends everything: the node leaves.
    pub fn close(&mut self, me: Token) {
        self.inbound.lenders.end();
        self.fail_posted(|_| Some(Error::Closed));
        for lane in 0..self.inbound.assemblies.len() {
            self.inbound.give_up(lane);
        }
        for op in self
            .inbound
            .incoming
            .iter()
            .filter_map(|incoming| incoming.receive())
            .map(|receive| receive.op.clone())
            .collect::<Vec<_>>()
        {
            // Nobody writes into its buffer after this.
            self.unpost(&op);
            op.finish(Outcome::Failed(Error::Closed));
        }
        self.outgoing.fail(None, || Error::Closed);
        self.fail_posted(|_| Some(Error::Closed));
        self.sending.clear();
        // All of them: a thread that was stopped on its way to a lane must not write there when the lane is another's.
        for way in self.ways.iter().filter_map(OnceLock::get) {
            if let Some(mut state) = way.state.enter(me) {
                state.fail(|| Error::Closed);
            }
        }
        for (_, op) in &self.inbound.watchers {
            op.nudge();
        }
    }
}

fn begin(
    outgoing: &mut Outgoing,
    peer: Option<&Arc<PeerInbox>>,
    local: &Local,
    outbound: &Arc<Outbound>,
    state: &mut OutState,
    order: &Order<'_>,
) -> Option<Begun> {
    let peer = peer.filter(|peer| peer.incarnation() == state.incarnation)?;
    let worth = order.len >= RENDEZVOUS_BYTES && outgoing.can_reach(peer, local, order.bytes, order.len);
    worth.then(|| outgoing.begin(peer, outbound, state, local, order))
}

/// The rest of a message whose first part is in `buf`. What does not come at once goes there by the long way.
#[cold]
#[inline(never)]
fn take_rest(
    hot: &mut Hot<'_>,
    assembly: &mut Assembly,
    number: u64,
    envelope: Envelope,
    received: usize,
    accepts: &Match,
    buf: &mut [u8],
) -> Option<Arc<Op>> {
    let received = hot.take_rest(received, envelope.len, buf);
    if received == envelope.len {
        return None;
    }
    let op = Op::new();
    // SAFETY: Shared::receive sees the op done, or withdraws it, before the caller has its buffer back.
    let receive = unsafe { RecvOp::new(*accepts, buf.as_mut_ptr(), buf.len(), op.clone()) };
    let receive = RecvOp { number, ..receive };
    assembly.active = Some(Active { envelope, received, into: Into::Buffer(receive) });
    Some(op)
}

impl End {
    fn error(self, node: NodeId) -> Error {
        let incarnation = self.incarnation;
        if self.died { Error::PeerDied { node, incarnation } } else { Error::PeerLeft { node, incarnation } }
    }
}
