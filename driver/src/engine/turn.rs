//! What one turn of the engine does.

use super::op::{Op, Outcome};
use crate::error::Error;
use crate::message::outbound::{OutState, Outbound};
use crate::message::pool::Pool;
use crate::message::{Match, Message};
use crate::node::events::Event;
use doorbell_fabric::sync::{AtomicU64, Ordering};
use doorbell_fabric::{
    Envelope, Fabric, Incarnation, NodeId, PRIORITIES, PacketHead, PacketKind, Payload, Priority, Sink, Verdict,
};
use doorbell_shm::fabric::{Change, Hot, ShmFabric};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::baton::Token;
use super::wait::CHECK_EVERY;

/// The longest message there is: a terabyte. A peer that speaks of a longer one is lying.
const MESSAGE_MAX: usize = 1 << 40;
/// Packets handled in one turn.
const TURN_PACKETS: usize = 64;
/// Polls after which whoever drives looks at the clock.
const POLLS_PER_CLOCK: u32 = 64;
/// Events kept for somebody to ask for; the oldest are dropped and counted.
const EVENTS_MAX: usize = 1024;

/// The state that whoever drives may touch: behind the node's baton.
pub struct Engine {
    fabric: ShmFabric,
    inbound: Inbound,
    sending: Vec<Arc<Outbound>>,
    events: VecDeque<Event>,
    events_dropped: u64,
    ends: Vec<Option<End>>,
    /// The life of each node that broke the rules.
    damaged: Vec<Option<Incarnation>>,
    ways: Arc<Ways>,
    /// Changes with every poll: tells the poller that somebody else drives.
    turns: Arc<AtomicU64>,
    /// What the thread waits for that sleeps on the bell.
    parked: Option<Arc<Op>>,
    polls: u32,
    /// When somebody last asked whether the peers live.
    checked: Instant,
    /// Whether it may make system calls unasked.
    calls: bool,
}

/// The ways out, by node and priority.
pub type Ways = [OnceLock<Arc<Outbound>>];

/// How the latest life of a node ended.
#[derive(Clone, Copy, Debug)]
struct End {
    incarnation: Incarnation,
    died: bool,
}

/// Everything on its way in.
struct Inbound {
    pool: Pool,
    posted: VecDeque<RecvOp>,
    assemblies: Vec<Assembly>,
    tally: Tally,
    /// Threads that wait for a message without having posted a buffer, as they read it in place.
    watchers: Vec<(Match, Arc<Op>)>,
    /// A watcher's message came into the pool.
    sighted: bool,
    /// A message was refused since the application last received one.
    turned_away: bool,
    /// The number of the latest receive.
    receives: u64,
}

/// Counts, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Messages that arrived whole.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of them, those that the poller thread carried.
    pub by_poller: u64,
    /// Of them, those that went to the pool first, as nobody had asked for them.
    pub unexpected: u64,
}

/// A receive that was posted: where a message is to go.
pub struct RecvOp {
    /// What it accepts.
    pub accepts: Match,
    ptr: *mut u8,
    capacity: usize,
    /// Its place among the receives of this node.
    number: u64,
    /// Where its end is told.
    pub op: Arc<Op>,
}

// SAFETY: whoever made the RecvOp keeps the buffer writable and untouched until its op ended or was removed (RecvOp::new).
unsafe impl Send for RecvOp {}

impl RecvOp {
    /// A receive into a buffer.
    ///
    /// # Safety
    /// The buffer stays valid and nobody else touches it until `op` is done or [`Engine::unpost`] returned true for it.
    pub unsafe fn new(accepts: Match, ptr: *mut u8, capacity: usize, op: Arc<Op>) -> Self {
        Self { accepts, ptr, capacity, number: 0, op }
    }
}

/// A message of which packets are still missing, for one lane.
#[derive(Default)]
struct Assembly {
    /// The number that the next whole message has.
    expected: u32,
    active: Option<Active>,
}

struct Active {
    envelope: Envelope,
    received: usize,
    into: Into,
}

enum Into {
    Buffer(RecvOp),
    /// Longer than the buffer: kept whole, for the error that owns it.
    TooLong(RecvOp, Vec<u8>),
    Pool(Vec<u8>),
    /// The receive that had begun to take it was cancelled from within recv_with.
    Nowhere,
}

/// Where a message goes that no posted receive accepts.
pub trait Direct {
    /// Whether it is accepted.
    fn wants(&self, envelope: &Envelope) -> bool;
    /// Takes a whole message.
    fn take(&mut self, envelope: &Envelope, payload: Payload<'_>);
    /// Takes a message of which only the first packet has arrived, if it can: by making a posted receive of itself.
    fn take_long(&mut self) -> Option<RecvOp>;
}

/// What the short way brought.
pub enum HotTake {
    /// A whole message.
    Whole(Envelope),
    /// The first part of one; the rest goes to the same buffer by the long way.
    Part(Arc<Op>),
}

/// Nobody waits for anything in particular.
pub struct Nobody;

impl Direct for Nobody {
    fn wants(&self, _: &Envelope) -> bool {
        false
    }

    fn take(&mut self, _: &Envelope, _: Payload<'_>) {}

    fn take_long(&mut self) -> Option<RecvOp> {
        None
    }
}

impl Engine {
    /// An engine over the lanes of one node.
    pub fn new(fabric: ShmFabric, pool_bytes: usize, ways: Arc<Ways>, turns: Arc<AtomicU64>, calls: bool) -> Self {
        let nodes = fabric.membership().max_nodes();
        Self {
            fabric,
            inbound: Inbound {
                pool: Pool::new(pool_bytes),
                posted: VecDeque::new(),
                assemblies: (0..nodes * PRIORITIES).map(|_| Assembly::default()).collect(),
                tally: Tally::default(),
                watchers: Vec::new(),
                sighted: false,
                turned_away: false,
                receives: 0,
            },
            sending: Vec::new(),
            events: VecDeque::new(),
            events_dropped: 0,
            ends: (0..nodes).map(|_| None).collect(),
            damaged: vec![None; nodes],
            ways,
            turns,
            parked: None,
            polls: 0,
            checked: Instant::now(),
            calls,
        }
    }

    /// The fabric it turns.
    #[inline(always)]
    pub fn fabric(&mut self) -> &mut ShmFabric {
        &mut self.fabric
    }

    /// Messages nobody has asked for yet.
    #[inline(always)]
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.inbound.pool
    }

    /// What has arrived so far.
    pub fn tally(&self) -> Tally {
        self.inbound.tally
    }

    /// Whether nonblocking operations wait for somebody to drive.
    pub fn has_pending(&self) -> bool {
        !self.inbound.posted.is_empty() || !self.sending.is_empty() || self.inbound.assemblies.iter().any(|a| a.active.is_some())
    }

    /// Takes what arrived, for `direct` first of all that no posted receive accepts. Returns how many packets it took.
    #[inline(always)]
    pub fn poll<D: Direct>(&mut self, direct: &mut D, poller: bool) -> usize {
        let mut dispatch = Dispatch { inbound: &mut self.inbound, direct, poller, satisfied: false, broken: None };
        let taken = self.fabric.poll(&mut dispatch, TURN_PACKETS);
        if let Some((node, reason)) = dispatch.broken {
            self.on_broken(node, reason);
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
        if self.polls.is_multiple_of(POLLS_PER_CLOCK) && self.calls {
            self.check_now_and_then();
        }
        taken
    }

    /// Whoever always finds something to do never waits, and those who wait ask whether the peers live. So ask here too.
    #[cold]
    fn check_now_and_then(&mut self) {
        if self.checked.elapsed() >= CHECK_EVERY {
            self.check_peers();
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
    pub fn take_pooled(&mut self, accepts: &Match) -> Option<Message> {
        let message = self.inbound.pool.take(accepts)?;
        self.inbound.turned_away = false;
        if self.fabric.refusing() {
            self.fabric.bell().wake();
        }
        Some(message)
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
        let inbound = &mut self.inbound;
        if !inbound.pool.is_empty() || !inbound.posted.is_empty() || !self.sending.is_empty() || self.parked.is_some() {
            return None;
        }
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

    /// One turn: polls, and moves what is queued. Returns the amount of work done; 0 means that there was none.
    pub fn turn(&mut self, me: Token, poller: bool) -> usize {
        self.poll(&mut Nobody, poller) + self.push(me)
    }

    /// Moves what is queued into the lanes. Returns the amount of work done.
    #[inline(always)]
    pub fn push(&mut self, me: Token) -> usize {
        if self.sending.is_empty() {
            return 0;
        }
        let work = self.push_queues(me);
        if self.parked.is_some() {
            self.wake_parked();
        }
        work
    }

    #[cold]
    fn push_queues(&mut self, me: Token) -> usize {
        let mut work = 0;
        let mut at = 0;
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
            work += state.push_queue(outbound.target, 16);
            if !state.is_queued() {
                outbound.listed.store(false, Ordering::Relaxed);
                at -= 1;
                self.sending.swap_remove(at);
            }
        }
        work
    }

    /// Lists a way out that has something queued.
    pub fn list(&mut self, outbound: &Arc<Outbound>) {
        if !outbound.listed.swap(true, Ordering::Relaxed) {
            self.sending.push(outbound.clone());
        }
    }

    /// Posts a receive behind those that were posted before, after looking into the pool.
    pub fn post(&mut self, receive: RecvOp) {
        if let Some(message) = self.take_pooled(&receive.accepts) {
            receive.complete(message.envelope, Payload::private(&message.bytes));
            return;
        }
        if let Some(error) = self.never(&receive.accepts) {
            receive.op.finish(Outcome::Failed(error));
            return;
        }
        self.inbound.receives += 1;
        self.inbound.posted.push_back(RecvOp { number: self.inbound.receives, ..receive });
    }

    /// Withdraws a posted receive. True if it was still under way: then its buffer is not touched any more.
    pub fn unpost(&mut self, op: &Arc<Op>) -> bool {
        if let Some(at) = self.inbound.posted.iter().position(|receive| Arc::ptr_eq(&receive.op, op)) {
            self.inbound.posted.remove(at);
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
        self.damaged[node.index()] = self.fabric.live(node);
        self.tell(Event::Damaged { node, reason });
        self.drop_inbound_of(node);
        self.fail_posted(|receive| (receive.accepts.bound_to() == Some(node)).then_some(Error::Damaged { node }));
    }

    #[cold]
    fn on_change(&mut self, change: Change) {
        match change {
            Change::Joined(node, incarnation) => self.tell(Event::Joined { node, incarnation }),
            Change::Left(node, incarnation) | Change::Died(node, incarnation) => {
                let died = matches!(change, Change::Died(..));
                let end = End { incarnation, died };
                self.ends[node.index()] = Some(end);
                for way in self.ways[node.index() * PRIORITIES..][..PRIORITIES].iter().filter_map(OnceLock::get) {
                    if let Some(mut state) = way.state.enter(Token::current())
                        && state.incarnation == incarnation
                    {
                        state.fail(|| end.error(node));
                    }
                }
                self.tell(if died { Event::Died { node, incarnation } } else { Event::Left { node, incarnation } });
            }
            Change::Drained(node, incarnation) => {
                self.drop_inbound_of(node);
                for assembly in &mut self.inbound.assemblies[node.index() * PRIORITIES..][..PRIORITIES] {
                    assembly.expected = 0;
                }
                let end = self.ends[node.index()];
                self.fail_posted(|receive| {
                    let life = receive.accepts.bound_to_life();
                    let bound = receive.accepts.bound_to() == Some(node) && life.is_none_or(|wanted| wanted == incarnation);
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
        self.fail_posted(|_| Some(Error::Closed));
        for lane in 0..self.inbound.assemblies.len() {
            self.inbound.give_up(lane);
        }
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

impl RecvOp {
    fn complete(self, envelope: Envelope, payload: Payload<'_>) {
        if payload.len() > self.capacity {
            let message = Box::new(Message { envelope, bytes: payload.to_vec() });
            self.op.finish(Outcome::Truncated(message));
        } else {
            self.write(0, payload);
            self.op.finish(Outcome::Received(envelope));
        }
    }

    /// Copies a piece to its place. The caller checked that it ends within the capacity.
    fn write(&self, at: usize, payload: Payload<'_>) {
        debug_assert!(at + payload.len() <= self.capacity);
        // SAFETY: inside the buffer (checked by the caller), which is valid and ours (RecvOp::new).
        payload.copy_to(unsafe { std::slice::from_raw_parts_mut(self.ptr.add(at), payload.len()) });
    }
}

impl Inbound {
    /// Gives up the message under way in a lane: its sender did. The receive that had taken it is posted again, first.
    #[cold]
    fn give_up(&mut self, lane: usize) {
        match self.assemblies[lane].active.take() {
            Some(Active { into: Into::Buffer(receive), .. }) => self.post_again(receive),
            Some(Active { into: Into::TooLong(receive, _), envelope, .. }) => {
                self.pool.release(envelope.len);
                self.post_again(receive);
            }
            Some(Active { into: Into::Pool(_), envelope, .. }) => self.pool.release(envelope.len),
            Some(Active { into: Into::Nowhere, .. }) | None => {}
        }
    }

    /// Posts a receive again, at its old place: its message was given up. Another may have come meanwhile.
    fn post_again(&mut self, receive: RecvOp) {
        if receive.op.is_done() {
            return;
        }
        match self.pool.take(&receive.accepts) {
            Some(message) => receive.complete(message.envelope, Payload::private(&message.bytes)),
            None => {
                let at = self.posted.partition_point(|other| other.number < receive.number);
                self.posted.insert(at, receive);
            }
        }
    }

    fn is_watched(&self, envelope: &Envelope) -> bool {
        self.watchers.iter().any(|(accepts, _)| accepts.matches(envelope))
    }

    /// A message came into the pool: tells those who watch for it.
    #[inline]
    fn sight(&mut self, envelope: &Envelope) {
        for (accepts, op) in &self.watchers {
            if accepts.matches(envelope) {
                self.sighted = true;
                op.nudge();
            }
        }
    }

    /// The first posted receive that accepts a message.
    fn posted_for(&mut self, envelope: &Envelope) -> Option<RecvOp> {
        // Those that are over were cancelled from within recv_with: their buffers are gone.
        self.posted.retain(|receive| !receive.op.is_done());
        let at = self.posted.iter().position(|receive| receive.accepts.matches(envelope))?;
        self.posted.remove(at)
    }
}

struct Dispatch<'a, D> {
    inbound: &'a mut Inbound,
    direct: &'a mut D,
    poller: bool,
    /// `direct` has its message.
    satisfied: bool,
    broken: Option<(NodeId, &'static str)>,
}

impl<D: Direct> Sink for Dispatch<'_, D> {
    #[inline(always)]
    fn packet(
        &mut self,
        source: NodeId,
        incarnation: Incarnation,
        priority: Priority,
        head: &PacketHead,
        payload: Payload<'_>,
    ) -> Verdict {
        let lane = source.index() * PRIORITIES + priority.index();
        match head.kind {
            PacketKind::Next => return self.next(lane, payload),
            PacketKind::GivenUp => {
                self.inbound.give_up(lane);
                return Verdict::Taken;
            }
            PacketKind::Whole | PacketKind::First => {}
        }
        let assembly = &mut self.inbound.assemblies[lane];
        if head.sequence != assembly.expected {
            return Verdict::Broken("a message out of sequence");
        }
        if assembly.active.is_some() {
            self.inbound.give_up(lane);
        }
        let Some(len) = usize::try_from(head.total).ok().filter(|len| *len <= MESSAGE_MAX) else {
            return Verdict::Broken("a message longer than any");
        };
        let envelope = Envelope { source, incarnation, tag: head.tag, len, sequence: head.sequence, priority };
        if head.kind == PacketKind::First {
            return self.first(lane, envelope, payload);
        }
        if !self.inbound.posted.is_empty()
            && let Some(receive) = self.inbound.posted_for(&envelope)
        {
            receive.complete(envelope, payload);
            self.count(lane, len);
            self.inbound.turned_away = false;
            return Verdict::Taken;
        }
        if !self.satisfied && self.direct.wants(&envelope) {
            self.direct.take(&envelope, payload);
            self.count(lane, len);
            self.inbound.turned_away = false;
            self.satisfied = true;
            return Verdict::TakenAndStop;
        }
        if !self.inbound.pool.push(envelope, payload) {
            if !self.inbound.is_watched(&envelope) {
                self.inbound.turned_away = true;
                return Verdict::Refused;
            }
            // Somebody waits for just this one.
            self.inbound.pool.reserve_anyway(len);
            self.inbound.pool.push_reserved(Message { envelope, bytes: payload.to_vec() });
        }
        self.count(lane, len);
        self.inbound.tally.unexpected += 1;
        self.inbound.sight(&envelope);
        Verdict::Taken
    }

    fn damaged(&mut self, source: NodeId, _priority: Priority, reason: &'static str) {
        self.broken = Some((source, reason));
    }
}

impl<D: Direct> Dispatch<'_, D> {
    #[inline(always)]
    fn count(&mut self, lane: usize, len: usize) {
        let expected = &mut self.inbound.assemblies[lane].expected;
        *expected = expected.wrapping_add(1);
        self.inbound.tally.messages += 1;
        self.inbound.tally.bytes += len as u64;
        self.inbound.tally.by_poller += self.poller as u64;
    }

    fn first(&mut self, lane: usize, envelope: Envelope, payload: Payload<'_>) -> Verdict {
        let receive = match self.inbound.posted_for(&envelope) {
            Some(receive) => Some(receive),
            None if !self.satisfied && self.direct.wants(&envelope) => {
                let receive = self.direct.take_long();
                self.satisfied |= receive.is_some();
                self.inbound.receives += 1;
                receive.map(|receive| RecvOp { number: self.inbound.receives, ..receive })
            }
            None => None,
        };
        let into = match receive {
            Some(receive) if envelope.len <= receive.capacity => Into::Buffer(receive),
            Some(receive) => {
                self.inbound.pool.reserve_anyway(envelope.len);
                Into::TooLong(receive, Vec::new())
            }
            None if self.inbound.pool.reserve(envelope.len) => {
                self.inbound.tally.unexpected += 1;
                Into::Pool(Vec::new())
            }
            // Somebody waits for just this one, and can't take it in parts: however long it is, it has to be put together.
            None if (!self.satisfied && self.direct.wants(&envelope)) || self.inbound.is_watched(&envelope) => {
                self.inbound.pool.reserve_anyway(envelope.len);
                Into::Pool(Vec::new())
            }
            None => {
                self.inbound.turned_away = true;
                return Verdict::Refused;
            }
        };
        self.inbound.assemblies[lane].active = Some(Active { envelope, received: 0, into });
        self.next(lane, payload)
    }

    fn next(&mut self, lane: usize, payload: Payload<'_>) -> Verdict {
        if payload.is_empty() {
            return Verdict::Broken("an empty part of a message");
        }
        let Some(active) = &mut self.inbound.assemblies[lane].active else {
            return Verdict::Broken("a packet of a message that was not begun");
        };
        if payload.len() > active.envelope.len - active.received {
            return Verdict::Broken("more bytes than the message has");
        }
        if let Into::Buffer(receive) | Into::TooLong(receive, _) = &active.into
            && receive.op.is_done()
        {
            // Cancelled from within recv_with: the buffer is gone, and with it what had arrived.
            if matches!(active.into, Into::TooLong(..)) {
                self.inbound.pool.release(active.envelope.len);
            }
            self.inbound.assemblies[lane].active =
                Some(Active { envelope: active.envelope, received: active.received, into: Into::Nowhere });
            return self.next(lane, payload);
        }
        match &mut active.into {
            Into::Nowhere => {}
            Into::Buffer(receive) => receive.write(active.received, payload),
            Into::TooLong(_, bytes) | Into::Pool(bytes) => append(bytes, payload),
        }
        active.received += payload.len();
        if active.received == active.envelope.len
            && let Some(active) = self.inbound.assemblies[lane].active.take()
        {
            let envelope = active.envelope;
            self.count(lane, envelope.len);
            match active.into {
                Into::Nowhere => {}
                Into::Buffer(receive) => {
                    self.inbound.turned_away = false;
                    receive.op.finish(Outcome::Received(envelope));
                }
                Into::TooLong(receive, bytes) => {
                    self.inbound.pool.release(envelope.len);
                    receive.op.finish(Outcome::Truncated(Box::new(Message { envelope, bytes })));
                }
                Into::Pool(bytes) => {
                    let message = Message { envelope, bytes };
                    // A receive may have been posted since the message began.
                    match self.inbound.posted_for(&envelope) {
                        Some(receive) => {
                            self.inbound.pool.release(envelope.len);
                            receive.complete(envelope, Payload::private(&message.bytes));
                        }
                        None if !self.satisfied && self.direct.wants(&envelope) => {
                            // Not by way of the pool: what follows in this lane would overtake it.
                            self.inbound.pool.release(envelope.len);
                            self.direct.take(&envelope, Payload::private(&message.bytes));
                            self.satisfied = true;
                            return Verdict::TakenAndStop;
                        }
                        None => {
                            self.inbound.pool.push_reserved(message);
                            self.inbound.sight(&envelope);
                        }
                    }
                }
            }
        }
        Verdict::Taken
    }
}

/// Appends without trusting the length that the message said of itself: memory is taken as bytes arrive.
fn append(bytes: &mut Vec<u8>, payload: Payload<'_>) {
    let at = bytes.len();
    bytes.resize(at + payload.len(), 0);
    payload.copy_to(&mut bytes[at..]);
}
