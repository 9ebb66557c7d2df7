//! One turn of the engine.

pub mod events;
mod hot;
pub mod later;
mod links;
mod modes;
mod peers;
mod reach;
mod receives;
mod sends;
mod services;
mod state;

pub use hot::HotTake;
pub use receives::Posted;

use crate::board::monitor::Monitor;
use crate::links::Fabrics;
use crate::memory::table::RegionTable;
use crate::message::dispatch::Dispatch;
use crate::message::inbound::{Direct, Inbound, Nobody};
use crate::message::lending::{Lender, Lenders};
use crate::message::outbound::Outbound;
use crate::message::pool::Pool;
use crate::message::service::{CloseReason, Wants};
use crate::message::ways::Ways;
use crate::mode::Modes;
use crate::sync::baton::Token;
use crate::sync::op::{Op, Outcome};
use crate::sync::wait::{CHECK_EVERY, PARK_MOST};
use crate::transfer::CopySide;
use crate::transfer::descriptor::Asks;
use crate::transfer::incoming::Incoming;
use crate::transfer::memory::Local;
use crate::transfer::outgoing::{Outgoing, TRY_AGAIN};
use crate::turn::later::Later;
use crossbeam_utils::CachePadded;
use doorbell_fabric::Incarnation;
use doorbell_fabric::sync::{AtomicU64, Ordering};
use doorbell_fabric::world;
use doorbell_shm::board::{Metric, Metrics};
use events::Event;
use links::LinksShown;
use state::{End, Notice};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Looks at the lanes between two looks at transfers.
const SPIN_TRANSFER: u32 = 4;
/// The most packets handled in one turn.
pub const TURN_PACKETS: usize = 64;
/// After this many polls, the thread that turns the engine reads the clock.
const POLLS_PER_CLOCK: u32 = 64;
/// How often a node that never sleeps publishes its metrics.
const SHOW_EVERY: Duration = Duration::from_millis(50);

/// The settings of a node's engine.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// The most bytes of unmatched messages.
    pub pool_bytes: usize,
    /// Whether the engine may make system calls of its own accord.
    pub calls: bool,
    /// Whether threads of the application and the poller take turns.
    pub adaptive: bool,
    /// Which side copies large messages.
    pub copy: CopySide,
    /// Whether memory FIFOs begin at the high end of a buffer.
    pub fifo_from_high: bool,
    /// The most bytes of memory for loans.
    pub loan_bytes: usize,
    /// The most bytes of bulk rings.
    pub bulk_bytes: usize,
    /// Settings for modes, by which messages choose links and protocols.
    pub modes: Arc<Modes>,
}

/// The engine's state, which only the holder of the node's baton may touch.
pub struct Engine {
    fabric: Fabrics,
    inbound: Inbound,
    outgoing: Outgoing,
    /// Notices for engines of nodes that share no memory.
    words: VecDeque<Notice>,
    /// Operations deferred by closures that the engine calls.
    later: Arc<Later>,
    local: Local,
    settings: EngineSettings,
    /// Whether the poller thread turns the engine just now.
    by_poller: bool,
    /// The last call for several messages took several, and there were no more.
    caught_up: bool,
    sending: Vec<Arc<Outbound>>,
    events: VecDeque<Event>,
    events_dropped: u64,
    /// The number of joins and ends so far.
    changes: u64,
    ends: Vec<Option<End>>,
    /// By node: the incarnation that broke the rules.
    damaged: Vec<Option<Incarnation>>,
    /// This node's inbox was truncated: nothing can be done any more.
    severed: bool,
    ways: Arc<Ways>,
    /// Changes with every poll. It tells the poller that another thread turns the engine.
    turns: Arc<CachePadded<AtomicU64>>,
    /// The published state of this node.
    monitor: Arc<Monitor>,
    /// The loans of this node.
    lender: Arc<Lender>,
    /// The operation of the thread that sleeps on the bell.
    parked: Option<Arc<Op>>,
    /// A target may have been told that a send waits for room.
    waited: bool,
    polls: u32,
    /// When the peers were last checked.
    checked: Instant,
    /// When the metrics were last published.
    shown: Instant,
    /// The published links.
    links: LinksShown,
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            pool_bytes: 64 << 20,
            calls: true,
            adaptive: true,
            copy: CopySide::default(),
            fifo_from_high: false,
            loan_bytes: 64 << 20,
            bulk_bytes: 16 << 20,
            modes: Arc::default(),
        }
    }
}

/// Counts a turn of the engine, or a message that took a shorter path. Only the holder of the baton counts, so a plain load and a store
/// are enough.
#[inline(always)]
fn count_turn(turns: &AtomicU64) {
    turns.store(turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

impl Engine {
    /// An engine over the lanes of one node.
    pub(crate) fn new(
        fabric: Fabrics,
        ways: Arc<Ways>,
        turns: Arc<CachePadded<AtomicU64>>,
        monitor: Arc<Monitor>,
        regions: Arc<RegionTable>,
        lender: Arc<Lender>,
        settings: EngineSettings,
    ) -> Self {
        let nodes = fabric.membership().max_nodes();
        let lenders = Lenders::new(fabric.membership().clone(), regions.clone());
        Self {
            inbound: Inbound::new(settings.pool_bytes, Asks::of(settings.copy), fabric.membership().clone(), lenders),
            words: VecDeque::new(),
            later: Arc::default(),
            outgoing: Outgoing::new(nodes, settings.copy, settings.fifo_from_high, monitor.clone(), settings.modes.clone()),
            local: Local::new(fabric.membership().clone(), regions),
            settings,
            by_poller: false,
            caught_up: false,
            fabric,
            sending: Vec::new(),
            events: VecDeque::new(),
            events_dropped: 0,
            changes: 0,
            ends: (0..nodes).map(|_| None).collect(),
            damaged: vec![None; nodes],
            severed: false,
            ways,
            turns,
            monitor,
            lender,
            parked: None,
            waited: false,
            polls: 0,
            checked: world::now(),
            shown: world::now(),
            links: LinksShown::new(nodes),
        }
    }

    /// The fabrics of the node.
    #[inline(always)]
    pub fn fabric(&mut self) -> &mut Fabrics {
        &mut self.fabric
    }

    /// Looks up to `rounds` times at the lanes that were busy lately; fewer times while a transfer is pending, because its
    /// other end changes words outside the lanes. True as soon as a lane has something.
    pub fn spin(&self, rounds: u32) -> bool {
        let is_idle = !self.outgoing.is_active() && self.inbound.incoming.is_empty();
        self.fabric.spin(if is_idle { rounds } else { rounds.min(SPIN_TRANSFER) })
    }

    /// Messages that no receive has asked for yet.
    #[inline(always)]
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.inbound.pool
    }

    /// Operations deferred by threads within the engine.
    pub(crate) fn later(&self) -> &Arc<Later> {
        &self.later
    }

    /// Whether some work could not be done so far, and no thread waits for it.
    pub(crate) fn has_left_over(&self) -> bool {
        self.inbound.services.wants() == Wants::Soon || self.later.any()
    }

    /// Metrics, flight recorder and DMA counters.
    #[inline]
    pub(crate) fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    /// Publishes everything on the board, and returns the metrics.
    pub fn show(&mut self) -> Metrics {
        self.show_now(world::now(), true)
    }

    /// Publishes what has changed. Cheap compared with the sleep that follows.
    pub fn show_for_sleep(&mut self) {
        let now = world::now();
        self.show_now(now, self.links.is_due(now));
    }

    fn show_now(&mut self, now: Instant, all: bool) -> Metrics {
        let (tally, pool) = (self.inbound.tally, &self.inbound.pool);
        let (pooled_bytes, pooled_bytes_most) = pool.bytes();
        let mut metrics = self.monitor.tallies.read();
        for way in self.ways.iter() {
            let (messages, bytes) = way.carried.read();
            metrics[Metric::MessagesOut] += messages;
            metrics[Metric::BytesOut] += bytes;
        }
        for (metric, value) in [
            (Metric::MessagesIn, tally.messages),
            (Metric::BytesIn, tally.bytes),
            (Metric::ByPoller, tally.by_poller),
            (Metric::Unexpected, tally.unexpected),
            (Metric::Pooled, pool.len() as u64),
            (Metric::PooledBytes, pooled_bytes as u64),
            (Metric::PooledBytesMost, pooled_bytes_most as u64),
            (Metric::BytesLoaned, self.lender.lent()),
            (Metric::Turns, self.turns.load(Ordering::Relaxed)),
            (Metric::CountersUsed, self.monitor.counters.register().used() as u64),
        ] {
            metrics[metric] = value;
        }
        self.inbound.services.count(&mut metrics);
        self.monitor.show(&metrics, self.fabric.latencies());
        self.show_links(now, all);
        self.settings.modes.show();
        self.shown = now;
        metrics
    }

    /// Wakes the thread that sleeps on the bell if its operation is done.
    pub fn wake_if_done(&mut self) {
        if self.parked.is_some() {
            self.wake_parked();
        }
    }

    /// Whether nothing is pending but receives without a message.
    fn is_at_rest(&self) -> bool {
        self.sending.is_empty()
            && !self.outgoing.is_active()
            && self.inbound.incoming.is_empty()
            && self.words.is_empty()
            && self.inbound.services.wants() < Wants::Turns
            && !self.later.any()
            && !self.inbound.assemblies.iter().any(|a| a.active.is_some())
    }

    /// Takes what arrived. Messages that no posted receive accepts go to `direct` first. Returns how many packets it took.
    #[inline(always)]
    pub fn poll<D: Direct>(&mut self, direct: &mut D, poller: bool) -> usize {
        let mut dispatch = Dispatch { inbound: &mut self.inbound, direct, poller, satisfied: false };
        let taken = self.fabric.poll(&mut dispatch, TURN_PACKETS);
        self.by_poller = poller;
        if self.settings.adaptive && !poller && self.parked.is_none() && self.fabric.bell().is_armed() {
            // The poller sleeps on the bell, and this thread now looks by itself, so no sender needs to ring.
            self.fabric.bell().disarm();
        }
        if !self.inbound.news.is_empty() {
            self.handle_control();
        }
        while let Some(change) = self.fabric.next_change() {
            self.on_change(change);
        }
        if self.parked.is_some() {
            self.wake_parked();
        }
        count_turn(&self.turns);
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(POLLS_PER_CLOCK) {
            self.now_and_then();
        }
        taken
    }

    /// Does what waiting threads do before they sleep: checks the peers and publishes the metrics. A thread that always finds
    /// work never waits.
    #[cold]
    fn now_and_then(&mut self) {
        let now = world::now();
        if self.settings.calls && now - self.checked >= CHECK_EVERY {
            self.check_peers();
        }
        if now - self.shown >= SHOW_EVERY {
            self.show();
        }
    }

    /// Wakes the thread that sleeps on the bell if this thread just completed its operation.
    #[cold]
    fn wake_parked(&mut self) {
        if self.inbound.sighted || self.parked.as_ref().is_some_and(|op| op.is_done()) {
            self.fabric.bell().wake();
        }
    }

    /// Prepares a sleep on the bell until `op` is done, for at most `timeout`. `None` if the thread should look again instead.
    /// Call [`awake`](Self::awake) after the sleep.
    pub fn park(&mut self, me: Token, sleeper: u32, op: &Arc<Op>, timeout: Duration) -> Option<Duration> {
        if op.is_done() {
            return None;
        }
        // All peers are on the network, which tells when one must be checked.
        let is_told = self.fabric.is_remote_only() && self.is_at_rest() && !self.fabric.refusing();
        let timeout = self.arm(me, sleeper, if is_told { timeout } else { timeout.min(PARK_MOST) })?;
        // The last look may have ended it, though it did nothing else.
        if op.is_done() {
            self.fabric.bell().disarm();
            return None;
        }
        self.inbound.sighted = false;
        self.parked = Some(op.clone());
        Some(timeout)
    }

    /// Arms the bell for the present leader, and looks once more at everything that might ring it: the lanes, and room for
    /// queued sends. Returns how long to sleep, or `None` if there was something.
    pub fn arm(&mut self, me: Token, sleeper: u32, timeout: Duration) -> Option<Duration> {
        // Before the barrier: a send without room tells its target so, and is tried once more after the barrier. Either the
        // target sees that, or this thread sees the room.
        if self.push(me) > 0 {
            return None;
        }
        if self.waited && self.is_at_rest() {
            // Otherwise a target would ring for ever for a packet that was sent long ago.
            self.waited = false;
            for way in self.ways.iter() {
                // A queue that another thread holds is left for the next time.
                let state = if way.state.is_anothers(me) { None } else { way.state.enter(me) };
                state.map_or_else(|| self.waited = true, |mut state| state.rest());
            }
        }
        let timeout = self.fabric.arm(sleeper, timeout)?;
        // Refused messages may have room, or a receive, by now.
        let refused = if self.fabric.refusing() { self.poll(&mut Nobody, false) } else { 0 };
        if refused + self.push(me) > 0 {
            self.fabric.bell().disarm();
            return None;
        }
        // Nothing rings when a silent target is given up, or when another thread lets go of the network.
        let is_quiet = self.words.is_empty() && !self.has_left_over();
        let timeout = if is_quiet { timeout } else { timeout.min(TRY_AGAIN) };
        let due = self.inbound.incoming.iter().filter_map(Incoming::due).chain(self.outgoing.due()).min();
        Some(due.map_or(timeout, |due| timeout.min(due)))
    }

    /// Called after the sleep for `op`.
    pub fn awake(&mut self, op: &Arc<Op>) {
        // A reactor may have taken over the bell and sleep by now.
        if self.parked.as_ref().is_some_and(|parked| Arc::ptr_eq(parked, op)) {
            self.parked = None;
            self.fabric.bell().disarm();
        }
    }

    /// Forgets the sleeper on the bell.
    pub fn forget_parked(&mut self) {
        self.parked = None;
        self.fabric.bell().disarm();
    }

    /// One turn: polls, and moves what is queued. Returns the amount of work done; 0 means that there was none.
    pub fn turn(&mut self, me: Token, poller: bool) -> usize {
        self.poll(&mut Nobody, poller) + self.push(me)
    }

    /// Whether a turn with this much work is a sign of more to come. Packets that only keep idle nodes known to each other are
    /// not: the nodes would spin after each of them.
    #[inline(always)]
    pub fn is_news(&self, work: usize) -> bool {
        work > 1 || work == 1 && !self.fabric.was_chatter()
    }

    /// Ends everything, because the node leaves.
    pub fn close(&mut self, me: Token, in_good_order: bool) {
        if in_good_order {
            self.say_farewell(me);
        }
        self.end_all(me, CloseReason::Leaves);
        self.sending.clear();
        self.fabric.end_network();
    }

    /// Ends everything that is pending, and cuts all send queues. False if this thread holds one of them, which is unchanged.
    pub(super) fn end_all(&mut self, me: Token, why: CloseReason) -> bool {
        let error = || why.error();
        self.inbound.lenders.end();
        self.fail_posted(|_| Some(error()));
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
            // Nothing writes into its buffer after this.
            self.unpost(&op);
            op.finish(Outcome::Failed(error()));
        }
        self.outgoing.fail(None, error);
        self.inbound.services.close(why);
        self.fail_posted(|_| Some(error()));
        // All of them: a thread that was stopped on its way to a lane must not write there when the lane belongs to another
        // node.
        let mut all = true;
        for way in self.ways.iter() {
            match way.state.enter(me) {
                Some(mut state) => state.fail(error),
                None => all = false,
            }
        }
        for (_, op) in &self.inbound.watchers {
            op.nudge();
        }
        all
    }
}
