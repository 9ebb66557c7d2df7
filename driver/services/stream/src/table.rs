//! Streams as a service of the engine: listeners, all ends, and the packets to be sent.

use super::end::{Carrier, End, Far, State};
use super::near::{self, Near};
use super::wire::{self, Kind};
use doorbell_engine::kit::{
    Class, CloseReason, Gone, Install, NodeId, Op, Outbox, Outcome, PacketKind, Payload, PeerId, Priority,
};
use doorbell_engine::kit::{Pushed, RegionTable, SendQueue, Service, Verdict, Wants};
use doorbell_engine::sync::reactor::{Pipe, Side};
use doorbell_shm::domain::Membership;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The priority of all packets of streams.
pub(crate) const PRIORITY: Priority = Priority::High;
/// How many bytes may be under way in each direction without shared memory.
pub const WINDOW: u64 = 256 << 10;
/// How many of them may be under way to an end that is not accepted yet. Small, since one node may fill a backlog with such ends.
pub const WINDOW_FIRST: u64 = 8 << 10;
/// How many open streams one other node may have asked this node for.
const ENDS_OF_ONE: usize = 1 << 14;
/// How many requests to one node may be given up and unanswered. Each keeps the memory that the node was offered.
const GIVEN_UP_MOST: usize = 16;

/// How many packets may wait for one node, apart from requests. A node that takes no answers gets none to requests beyond that.
const OUT_MOST: usize = 4096;

type Context = (Arc<Membership>, Arc<RegionTable>);

const SHORT: Verdict = Verdict::Broken("a stream packet that is too short");

/// Streams that have arrived for a service and are not accepted yet.
pub struct Backlog {
    /// How many streams of one node may wait.
    most: usize,
    state: Mutex<Waiting>,
}

/// The streams that wait to be accepted, and the acceptors that wait for one.
#[derive(Default)]
struct Waiting {
    ends: VecDeque<Arc<End>>,
    /// One operation for each thread and task that waits to accept.
    ops: Vec<Arc<Op>>,
}

impl Backlog {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next stream; `None` if none waits.
    pub fn next(&self) -> Option<Arc<End>> {
        self.state().ends.pop_front()
    }

    /// The operation that ends when a stream arrives.
    pub fn wait_for(&self) -> Arc<Op> {
        let op = Op::new();
        let given_up = {
            let ops = &mut self.state().ops;
            let (waiting, given_up) = std::mem::take(ops).into_iter().partition::<Vec<_>, _>(|op| Arc::strong_count(op) > 1);
            *ops = waiting;
            ops.push(op.clone());
            given_up
        };
        // Not under the lock: dropping a waker may drop a task, and with it a listener.
        drop(given_up);
        op
    }

    /// Whether one more stream of this node may wait.
    fn has_room_for(&self, node: NodeId) -> bool {
        self.state().ends.iter().filter(|end| end.peer.node == node).count() < self.most
    }

    fn add(&self, end: Arc<End>) {
        self.state().ends.push_back(end);
        self.wake();
    }

    fn wake(&self) {
        // Wakes all of them: a single chosen one may be about to give up.
        let ops = std::mem::take(&mut self.state().ops);
        ops.iter().for_each(|op| op.finish(Outcome::Sent));
    }
}

/// All streams of a node.
#[derive(Default)]
pub struct Streams {
    services: BTreeMap<Vec<u8>, Arc<Backlog>>,
    ends: BTreeMap<u32, Arc<End>>,
    /// How many of them each node has asked for.
    asked_by: BTreeMap<NodeId, usize>,
    /// How many requests to each incarnation were given up and are not answered.
    given_up: BTreeMap<PeerId, usize>,
    numbers: u32,
    /// Ends without shared memory that have something to send.
    active: Vec<Arc<End>>,
    /// Packets to be sent, in this order for each node.
    pub(crate) out: SendQueue,
    /// Requests for streams, sent after `out`, so that a node with many requests still answers others.
    pub(crate) asks: SendQueue,
    /// Maps the memory of other nodes. Set by the first listener.
    context: Option<Context>,
    /// The node has left. Nothing is sent any more, since another thread is shutting the network down.
    ended: bool,
}

impl Streams {
    /// Starts to offer a service; false if a listener of this node offers it already.
    pub(crate) fn listen(&mut self, service: &[u8], backlog: &Arc<Backlog>, context: Context) -> bool {
        self.context = Some(context);
        let is_free = !self.services.contains_key(service);
        if is_free {
            self.services.insert(service.to_vec(), backlog.clone());
        }
        is_free
    }

    /// As [`listen`](Self::listen), without shared memory.
    #[cfg(test)]
    pub(crate) fn serve(&mut self, service: &[u8], backlog: &Arc<Backlog>) {
        self.services.insert(service.to_vec(), backlog.clone());
    }

    /// Ends a service, and refuses the streams that wait to be accepted.
    pub fn unlisten(&mut self, service: &[u8]) {
        if let Some(backlog) = self.services.remove(service) {
            while let Some(end) = backlog.next() {
                if let Carrier::Near(near) = &end.carrier {
                    near.leave();
                }
                self.reset(&end);
            }
        }
    }

    /// A number that no end has.
    pub fn next_number(&mut self) -> u32 {
        loop {
            self.numbers = self.numbers.wrapping_add(1);
            if self.numbers != 0 && !self.ends.contains_key(&self.numbers) {
                return self.numbers;
            }
        }
    }

    /// Adds an end.
    pub fn enter(&mut self, end: &Arc<End>) {
        if self.ended {
            end.become_so(State::Closed);
            return;
        }
        if end.asked_for {
            *self.asked_by.entry(end.peer.node).or_default() += 1;
        }
        self.ends.insert(end.number, end.clone());
    }

    pub fn say(&mut self, to: PeerId, kind: Kind, number: u32, bytes: Vec<u8>) {
        if !self.ended {
            self.out.push(to, wire::tag(kind, number), bytes);
        }
    }

    /// Whether another stream may be requested from a node: not while too many given-up requests await its answer.
    pub fn may_ask(&self, peer: PeerId) -> bool {
        self.given_up.get(&peer).is_none_or(|count| *count < GIVEN_UP_MOST)
    }

    /// Removes an end.
    fn remove(&mut self, number: u32) {
        let Some(end) = self.ends.remove(&number) else { return };
        if end.asked_for {
            less(&mut self.asked_by, end.peer.node);
        }
        if end.given_up.swap(false, Ordering::Relaxed) {
            less(&mut self.given_up, end.peer);
        }
    }

    /// Queues a request for a stream.
    pub fn ask(&mut self, end: &End, offer: Vec<u8>) {
        if !self.ended {
            self.asks.push(end.peer, wire::tag(Kind::Open, end.number), offer);
        }
    }

    /// Queues a wake-up for the other side, which waits for the shared memory to change. Only one is queued at a time.
    pub fn wake_other(&mut self, end: &End) {
        let there = end.there.load(Ordering::Relaxed);
        let tag = wire::tag(Kind::Wake, there);
        if !self.out.to(end.peer).any(|packet| packet.tag == tag) {
            self.say(end.peer, Kind::Wake, there, Vec::new());
        }
    }

    /// Marks an end as having something to send. An end without an answer yet has no receiver: its answer will find that it was
    /// dropped.
    pub fn activate(&mut self, end: &Arc<End>) {
        if !self.ended && end.state() != State::Opening && !end.active.swap(true, Ordering::Relaxed) {
            self.active.push(end.clone());
        }
    }

    /// The program has dropped an end. The other side is told after all written bytes have left.
    pub fn let_go(&mut self, end: &Arc<End>) {
        end.drop_it();
        if end.state() == State::Opening {
            let tag = wire::tag(Kind::Open, end.number);
            if self.asks.retain(|packet| packet.tag != tag) > 0 {
                end.was_refused();
                self.reset(end);
            } else if self.ends.contains_key(&end.number) && !end.given_up.swap(true, Ordering::Relaxed) {
                // The answer tells whether the other side has an end, and when this end's memory is free.
                *self.given_up.entry(end.peer).or_default() += 1;
            }
            return;
        }
        let is_waiting = end.far().is_some_and(|far| !far.said_end) && end.state() == State::Open;
        if is_waiting { self.activate(end) } else { self.reset(end) }
    }

    /// Removes an end, and tells the other side.
    pub fn reset(&mut self, end: &End) {
        self.remove(end.number);
        self.active.retain(|active| active.number != end.number);
        let there = end.there.load(Ordering::Relaxed);
        if there != 0 {
            let cuts = end.far().is_some_and(|far| far.cuts);
            self.say(end.peer, if cuts { Kind::Cut } else { Kind::Reset }, there, Vec::new());
        }
    }

    fn take_far(&mut self, end: &Arc<End>, kind: Kind, payload: Payload<'_>) -> Verdict {
        let Some(mut far) = end.far() else { return Verdict::Broken("a data packet for a stream in shared memory") };
        match kind {
            Kind::Data => {
                if far.ended || (far.came.len() + payload.len()) as u64 > far.window {
                    return Verdict::Broken("more bytes for a stream than its window allows");
                }
                far.came.extend(payload.to_vec());
                drop(far);
                end.wake(Side::Read);
            }
            Kind::Credit => {
                let Some([bytes]) = wire::read(&payload) else { return SHORT };
                far.credit = far.credit.saturating_add(bytes).min(WINDOW);
                let has_more = !far.goes.is_empty();
                drop(far);
                if has_more {
                    self.activate(end);
                }
                end.wake(Side::Write);
            }
            Kind::Deaf => {
                far.unheard = true;
                far.goes.clear();
                drop(far);
                // Its end may be the next packet.
                self.activate(end);
                end.wake(Side::Write);
            }
            _ => {
                far.ended = true;
                drop(far);
                end.wake(Side::Read);
            }
        }
        Verdict::Taken
    }

    /// Handles a request for a stream.
    fn open(&mut self, from: PeerId, there: u32, payload: &Payload<'_>) -> Verdict {
        let (Some([region, offset, ring]), Some(name)) =
            (wire::read(payload), payload.slice(24, payload.len().saturating_sub(24)))
        else {
            return Verdict::Broken("a request for a stream that is too short");
        };
        if self.out.to(from).count() >= OUT_MOST {
            // Drops the request. If it stayed in the lane, it would hold up the answers that the sender waits for.
            return Verdict::Taken;
        }
        let has_place = |backlog: &Backlog| {
            let streams = self.asked_by.get(&from.node).copied().unwrap_or(0);
            streams < ENDS_OF_ONE && backlog.has_room_for(from.node)
        };
        let answer = match self.services.get(&name.to_vec()).cloned() {
            None => Err(wire::NOT_HERE),
            Some(backlog) if !has_place(&backlog) => Err(wire::BUSY),
            Some(backlog) => {
                let carrier = match (region.checked_sub(1).map(u32::try_from), &self.context) {
                    (None, _) => Some(Carrier::Far(Mutex::new(Far::new(ring.min(WINDOW), WINDOW_FIRST)))),
                    (Some(Ok(region)), Some((membership, regions))) => {
                        // A region that several streams share stays mapped for a while after the last of them.
                        let region = if near::is_alone(ring) {
                            membership.open_region(from.node, from.incarnation, region, true).ok().map(Arc::new)
                        } else {
                            regions.open(membership, from.node, from.incarnation, region, true, 0).ok()
                        };
                        region.and_then(|region| Near::of_peer(region, offset, ring)).map(Carrier::Near)
                    }
                    _ => None,
                };
                carrier.map(|carrier| (backlog, carrier)).ok_or(wire::NO_MEMORY)
            }
        };
        match answer {
            Ok((backlog, carrier)) => {
                let end = End::new(self.next_number(), from, there, carrier, State::Open);
                self.enter(&end);
                self.say(from, Kind::Accepted, there, wire::words(&[end.number.into()]));
                backlog.add(end);
            }
            Err(reason) => self.say(from, Kind::Refused, there, wire::words(&[reason])),
        }
        Verdict::Taken
    }

    /// Gives packets of an end, of at most `most` bytes, to `push` until it takes no more. Returns how many it took.
    pub(crate) fn push(&mut self, end: &Arc<End>, most: usize, mut push: impl FnMut(u64, &[u8]) -> bool) -> usize {
        let there = end.there.load(Ordering::Relaxed);
        let (mut pushed, mut is_over) = (0, false);
        if let Some(mut far) = end.far() {
            loop {
                let len = far.goes.as_slices().0.len().min(most).min(usize::try_from(far.credit).unwrap_or(usize::MAX));
                let went = if far.owed >= WINDOW / 4 {
                    let went = push(wire::tag(Kind::Credit, there), &far.owed.to_le_bytes());
                    far.owed *= u64::from(!went);
                    went
                } else if len > 0 {
                    let went = push(wire::tag(Kind::Data, there), &far.goes.as_slices().0[..len]);
                    if went {
                        far.goes.drain(..len);
                        far.credit -= len as u64;
                    }
                    went
                } else if far.deaf {
                    far.deaf = !push(wire::tag(Kind::Deaf, there), &[]);
                    !far.deaf
                } else if far.ends && far.goes.is_empty() && !far.said_end {
                    far.said_end = push(wire::tag(Kind::Fin, there), &[]);
                    far.said_end
                } else {
                    is_over = true;
                    break;
                };
                if !went {
                    break;
                }
                pushed += 1;
            }
            if is_over && end.is_dropped() && far.said_end {
                drop(far);
                self.reset(end);
            }
        }
        if is_over {
            end.active.store(false, Ordering::Relaxed);
            self.active.retain(|active| active.number != end.number);
        }
        if pushed > 0 {
            end.wake(Side::Write);
        }
        pushed
    }
}

inventory::submit!(Install { order: Streams::CLASS as u8, install: |shared| shared.register(Streams::default()) });

impl Class for Streams {
    const CLASS: PacketKind = PacketKind::Stream;
}

impl Service for Streams {
    fn receive(&mut self, from: PeerId, _: Priority, tag: u64, payload: Payload<'_>) -> Verdict {
        let Some((kind, number)) = wire::parse(tag) else { return Verdict::Broken("a stream packet with an unknown tag") };
        if kind == Kind::Open {
            return self.open(from, number, &payload);
        }
        // The end may have been dropped meanwhile.
        let Some(end) = self.ends.get(&number).filter(|end| end.peer == from).cloned() else {
            return Verdict::Taken;
        };
        match kind {
            // A refusal of an open stream is nonsense; the stream's memory is in use.
            Kind::Open | Kind::Refused if end.state() != State::Opening => return Verdict::Taken,
            Kind::Open | Kind::Refused => {
                let Some([reason]) = wire::read(&payload) else { return SHORT };
                end.become_so(match reason {
                    wire::NOT_HERE => State::NotHere,
                    wire::NO_MEMORY => State::NoMemory,
                    _ => State::Busy,
                });
                end.was_refused();
            }
            Kind::Accepted => {
                let Some([there]) = wire::read(&payload) else { return SHORT };
                end.there.store(there as u32, Ordering::Release);
                end.become_so(State::Open);
            }
            Kind::Wake => {
                end.wake(Side::Read);
                end.wake(Side::Write);
                return Verdict::Taken;
            }
            Kind::Data | Kind::Credit | Kind::Fin | Kind::Deaf => return self.take_far(&end, kind, payload),
            Kind::Reset | Kind::Cut => {
                if let Some(mut far) = end.far() {
                    far.was_cut = kind == Kind::Cut && !far.ended;
                    far.ended |= kind == Kind::Reset;
                }
                end.become_so(State::Reset);
            }
        }
        if end.is_dropped() {
            // No caller waits for the stream any more, and a node that accepted it must not wait in vain.
            self.reset(&end);
        }
        Verdict::Taken
    }

    fn progress(&mut self, out: &mut Outbox<'_>) -> usize {
        let mut work = self.out.send(out, PRIORITY, |_| ()) + self.asks.send(out, PRIORITY, |_| ());
        for end in self.active.clone() {
            if let Ok(packet) = out.packet_bytes(end.peer, PRIORITY) {
                work += self.push(&end, packet, |tag, bytes| out.push(end.peer, PRIORITY, tag, bytes) == Pushed::Done);
            }
        }
        work
    }

    fn wants(&self) -> Wants {
        let is_at_rest = self.out.is_empty() && self.active.is_empty() && self.asks.is_empty();
        if is_at_rest { Wants::Nothing } else { Wants::Soon }
    }

    /// Whether dropped ends still have bytes to send.
    fn is_flushing(&self) -> bool {
        self.ends.values().any(|end| end.is_dropped() && end.state() == State::Open)
    }

    fn peer_gone(&mut self, gone: PeerId, why: Gone) {
        let died = why != Gone::Left;
        self.out.retain(|packet| packet.to != gone);
        self.asks.retain(|packet| packet.to != gone);
        self.active.retain(|end| end.peer != gone);
        let ends: Vec<_> = self.ends.values().filter(|end| end.peer == gone).cloned().collect();
        for end in ends {
            if let Some(mut far) = end.far() {
                far.ended |= !died;
            }
            end.become_so(if died { State::Died } else { State::Reset });
            self.remove(end.number);
        }
    }

    fn close(&mut self, _: CloseReason) {
        self.ends.values().for_each(|end| end.become_so(State::Closed));
        self.services.values().for_each(|backlog| backlog.wake());
        *self = Self { ended: true, ..Self::default() };
    }
}

/// Counts one less, and removes the entry at zero.
fn less<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}
