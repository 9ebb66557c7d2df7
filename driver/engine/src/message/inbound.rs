//! Arriving messages, and their destinations: a posted receive, a waiting thread, or the pool.

use super::caches;
use super::pool::{Entry, Pool, Pooled};
use super::receive::RecvOp;
use super::service::Services;
use super::{Match, Message};
use crate::board::monitor::Monitor;
use crate::message::lending::{Lenders, Lent};
use crate::sync::op::{Op, Outcome};
use crate::transfer::LEAST_SHARE;
use crate::transfer::descriptor::{Asks, Control, TransferId};
use crate::transfer::incoming::{GivenUp, Incoming, Sink};
use crate::transfer::kept::Keepsake;
use crate::transfer::report::Reports;
use doorbell_fabric::{Envelope, NodeId, PRIORITIES, Payload};
use doorbell_shm::domain::Membership;
use std::collections::VecDeque;
use std::sync::Arc;

/// The most bytes of messages taken beyond the pool's limit because they stand before chunks that a thread waits for.
const IN_THE_WAY_MAX: usize = 256 << 20;

/// Of the waiting receives, the most that are counted.
const WAITING_MOST: usize = 64;

/// Everything that is arriving.
pub struct Inbound {
    /// Messages that no receive has asked for yet.
    pub pool: Pool,
    /// Receives without a message, in the order in which they were posted.
    pub posted: VecDeque<RecvOp>,
    /// Incomplete messages, by lane.
    pub assemblies: Vec<Assembly>,
    /// Transfers: large messages that both ends move.
    pub incoming: Vec<Incoming>,
    /// Transfers that are over, whose origins may still write to memory of this process. One for each slot at most.
    pub left: Vec<Incoming>,
    /// Which copies of large messages this node asks for.
    pub asks: Asks,
    /// Transfers that were given up before their RTS was taken.
    pub given_up: GivenUp,
    /// Packets that concern the engine, each with its sender.
    pub news: Vec<(NodeId, News)>,
    /// The mapped memory of nodes that lend messages.
    pub lenders: Lenders,
    /// The services, which get the packets that are not messages.
    pub(crate) services: Services,
    /// The latest transfers that ended.
    pub reports: Reports,
    pub(super) membership: Arc<Membership>,
    /// Counts.
    pub tally: Tally,
    /// Threads that wait for a message without a posted buffer, because they read it in place.
    pub watchers: Vec<(Match, Arc<Op>)>,
    /// A message for a watcher came into the pool.
    pub sighted: bool,
    /// A message was refused since the application last received one.
    pub turned_away: bool,
    /// The number of the latest receive.
    pub receives: u64,
    /// Bytes taken beyond the pool's limit because they stood in the way.
    in_the_way: usize,
    /// Counts turns of the transfers that pull.
    pulls: u32,
    /// Half of the cache that processors share. Everything else that is under way takes the other half.
    half_cache: usize,
}

/// A packet for the engine that is not a message.
pub enum News {
    /// A notice of another engine.
    Control(Control),
    /// The RTS of a transfer that the node had given up.
    TooLate(TransferId),
    /// The node broke the rules; the text tells how.
    Broken(&'static str),
}

/// Counts for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Messages that arrived whole.
    pub messages: u64,
    /// Of these messages, those that the poller thread handled.
    pub by_poller: u64,
    /// The bytes of the messages. They stand apart from the number of the messages, because the compiler would otherwise add to both at
    /// once, with more instructions.
    pub bytes: u64,
    /// Of these messages, those that went to the pool first because no receive had asked for them.
    pub unexpected: u64,
}

/// An incomplete message in a lane.
#[derive(Default)]
pub struct Assembly {
    /// The number of the next whole message.
    pub expected: u32,
    /// The message that has begun. In a box, since a receive reads this record for each message, and most are never in parts.
    pub active: Option<Box<Active>>,
}

impl Assembly {
    /// A whole message was taken: the next one has the next number.
    #[inline(always)]
    pub fn pass(&mut self) {
        self.expected = self.expected.wrapping_add(1);
    }
}

/// A message that has begun.
pub struct Active {
    /// The message's envelope.
    pub envelope: Envelope,
    /// The number of bytes that have arrived.
    pub received: usize,
    /// The destination of the bytes.
    pub into: Into,
    /// Whether its bytes [leave the caches](Inbound::spills) before they are read.
    pub spills: bool,
}

/// The destination of an incomplete message.
pub enum Into {
    /// To a receive.
    Buffer(RecvOp),
    /// Longer than the buffer: kept whole, for the error that owns it.
    TooLong(RecvOp, Vec<u8>),
    /// To the pool.
    Pool(Vec<u8>),
    /// The receive that had begun to take it was cancelled from within recv_with.
    Nowhere,
}

/// The destination of a message that no posted receive accepts.
pub trait Direct {
    /// Whether the message is accepted.
    fn wants(&self, envelope: &Envelope) -> bool;
    /// Takes a whole message.
    fn take(&mut self, envelope: &Envelope, payload: Payload<'_>);
    /// Takes a lent message. Dropping `lent` returns it.
    fn take_loan(&mut self, envelope: &Envelope, lent: Lent) {
        self.take(envelope, lent.payload());
    }
    /// Takes a message of which only the first packet has arrived, by making a posted receive, if that is possible.
    /// Otherwise the message is put together in the pool.
    fn take_long(&mut self) -> Option<RecvOp> {
        None
    }
    /// Returns its buffer, if it has one, for an accepted message that the sender is still writing.
    fn buffer(&mut self) -> Option<&mut [u8]> {
        None
    }
    /// That message has arrived in the buffer.
    fn copied(&mut self, _envelope: &Envelope) {}
    /// Whether it has its message, or waits for none.
    fn has(&self) -> bool;
    /// Whether it takes no further message.
    fn is_full(&self) -> bool {
        self.has()
    }
}

/// The destination when no thread waits for a message.
pub struct Nobody;

impl Direct for Nobody {
    fn wants(&self, _: &Envelope) -> bool {
        false
    }

    fn take(&mut self, _: &Envelope, _: Payload<'_>) {}

    fn has(&self) -> bool {
        true
    }
}

impl Drop for Inbound {
    fn drop(&mut self) {
        self.incoming.drain(..).chain(self.left.drain(..)).for_each(Incoming::abandon);
    }
}

impl Inbound {
    /// An empty state for a node of a domain.
    pub fn new(pool_bytes: usize, asks: Asks, membership: Arc<Membership>, lenders: Lenders) -> Self {
        Self {
            pool: Pool::new(pool_bytes),
            posted: VecDeque::new(),
            assemblies: (0..membership.max_nodes() * PRIORITIES).map(|_| Assembly::default()).collect(),
            incoming: Vec::new(),
            left: Vec::new(),
            asks,
            given_up: GivenUp::default(),
            news: Vec::new(),
            lenders,
            services: Services::default(),
            reports: Reports::default(),
            membership,
            tally: Tally::default(),
            watchers: Vec::new(),
            sighted: false,
            turned_away: false,
            receives: 0,
            in_the_way: 0,
            pulls: 0,
            half_cache: caches::half_of(caches::bytes(caches::SHARED)),
        }
    }

    /// Whether this message, and one for each receive that waits for more like it, fill half of the shared cache. In a stream, the last of
    /// them then drives the first out before the program reads it.
    pub fn spills(&self, envelope: &Envelope) -> bool {
        // The first comparison spares most messages the count.
        envelope.len > self.half_cache / (WAITING_MOST + 1)
            && caches::fills(self.half_cache, envelope.len, waiting(&self.posted, envelope))
    }

    /// Counts a message of `len` bytes that went from a lane to a waiting thread.
    #[inline(always)]
    pub fn took(&mut self, lane: usize, len: usize) {
        self.assemblies[lane].pass();
        self.tally(len);
    }

    /// The same, but for the number that its lane expects next.
    #[inline(always)]
    pub fn tally(&mut self, len: usize) {
        self.turned_away = false;
        self.tally.messages += 1;
        self.tally.bytes += len as u64;
    }

    /// The same for several messages.
    #[inline(always)]
    pub fn took_many(&mut self, lane: usize, count: u64, bytes: u64) {
        self.turned_away = false;
        let expected = &mut self.assemblies[lane].expected;
        *expected = expected.wrapping_add(count as u32);
        self.tally.messages += count;
        self.tally.bytes += bytes;
    }

    /// Gives up the incomplete message of a lane, as its sender did. A receive that had taken it is posted again, in its old
    /// place.
    #[cold]
    pub fn give_up(&mut self, lane: usize) {
        match self.assemblies[lane].active.take().map(|active| *active) {
            Some(Active { into: Into::Buffer(receive), .. }) => self.post_again(receive),
            Some(Active { into: Into::TooLong(receive, _), envelope, .. }) => {
                self.pool.release(envelope.len);
                self.post_again(receive);
            }
            Some(Active { into: Into::Pool(_), envelope, .. }) => self.pool.release(envelope.len),
            Some(Active { into: Into::Nowhere, .. }) | None => {}
        }
    }

    /// Copies some chunks of one transfer, by priority, with a share for the lowest. Within a priority it alternates between
    /// the oldest transfer, so that messages end in the order in which they began, and the one with the least left, so that a
    /// long one does not hold up a short one. Returns the transfer's name and the result, or `None` if there was nothing to
    /// copy.
    pub fn pull(&mut self, monitor: &Monitor) -> Option<(u64, Result<(), &'static str>)> {
        self.pulls = self.pulls.wrapping_add(1);
        let (by_rest, lowest_first) = (self.pulls.is_multiple_of(2), self.pulls.is_multiple_of(LEAST_SHARE));
        loop {
            let key = |incoming: &Incoming| {
                let rank = incoming.lane % PRIORITIES;
                let rest = incoming.envelope.len as u64 - incoming.moved().min(incoming.envelope.len as u64);
                (if lowest_first { PRIORITIES - 1 - rank } else { rank }, if by_rest { rest } else { 0 }, incoming.id)
            };
            let next = self.incoming.iter_mut().filter(|incoming| incoming.pulls()).min_by_key(|incoming| key(incoming))?;
            match next.pull(monitor) {
                Ok(true) => return Some((next.id, Ok(()))),
                Err(reason) => return Some((next.id, Err(reason))),
                // The transfer has nothing left to copy.
                Ok(false) => {}
            }
        }
    }

    /// Ends a transfer without delivering the message. Its sender gave it up or is gone, or it broke the rules and lives. In
    /// the last case, `settles`, it is given a moment to let go of the buffer.
    #[cold]
    pub fn give_up_transfer(&mut self, at: usize, settles: bool) {
        let mut incoming = self.incoming.swap_remove(at);
        let (id, source, len) = (incoming.id, incoming.envelope.source, incoming.envelope.len);
        // It is still open if its origin broke the rules. Close it: the origin must not claim more of a buffer that now belongs
        // to another message.
        incoming.close();
        if settles {
            incoming.settle();
        }
        let failure = incoming.failure.take();
        let sink = if incoming.has_let_go() {
            incoming.tell(&mut self.reports)
        } else {
            let sink = incoming.part(&mut self.reports);
            self.left.push(incoming);
            sink
        };
        match (sink, failure) {
            (Sink::Receive(receive), Some(error)) => receive.op.finish(Outcome::Failed(error)),
            (sink, _) => self.give_up_sink(sink, id, source, len),
        }
    }

    fn give_up_sink(&mut self, sink: Sink, id: u64, source: NodeId, len: usize) {
        match sink {
            Sink::Receive(receive) | Sink::Kept(_, Some(receive)) => self.post_again(receive),
            Sink::TooLong(receive, _) => {
                self.pool.release(len);
                self.post_again(receive);
            }
            Sink::Pool(_) | Sink::Kept(_, None) => self.pool.remove(source, id),
            Sink::Nowhere(reserved) => reserved.into_iter().for_each(|len| self.pool.release(len)),
        }
    }

    /// A transfer is complete.
    pub fn complete_transfer(&mut self, at: usize, by_poller: bool) {
        let incoming = self.incoming.swap_remove(at);
        let (id, envelope) = (incoming.id, incoming.envelope);
        self.tally.messages += 1;
        self.tally.bytes += envelope.len as u64;
        self.tally.by_poller += u64::from(by_poller);
        match incoming.tell(&mut self.reports) {
            Sink::Receive(receive) => {
                self.turned_away = false;
                receive.op.finish(Outcome::Received(envelope));
            }
            Sink::TooLong(receive, pieces) => {
                self.pool.release(envelope.len);
                let message = Box::new(Message { envelope, bytes: pieces.assemble(envelope.len) });
                receive.op.finish(Outcome::Truncated(message));
            }
            Sink::Kept(store, Some(receive)) => receive.complete(envelope, Payload::private(store.bytes())),
            Sink::Pool(pieces) => {
                self.tally.unexpected += 1;
                self.pool.complete(envelope.source, id, pieces.assemble(envelope.len));
                self.notify_probe(&envelope);
            }
            Sink::Kept(store, None) => {
                self.pool.complete(envelope.source, id, store.into_bytes());
                self.notify_probe(&envelope);
            }
            Sink::Nowhere(reserved) => reserved.into_iter().for_each(|len| self.pool.release(len)),
        }
    }

    /// Gives a receive its place in the order of this node's receives.
    pub fn number(&mut self, receive: RecvOp) -> RecvOp {
        self.receives += 1;
        RecvOp { number: self.receives, ..receive }
    }

    /// Gives a message that is still coming to a receive, which already has its number.
    pub fn attach(&mut self, id: u64, receive: RecvOp) {
        match self.incoming.iter_mut().find(|incoming| incoming.id == id) {
            Some(incoming) => {
                if !matches!(incoming.sink, Sink::Kept(..)) && incoming.envelope.len > receive.capacity {
                    self.pool.reserve_anyway(incoming.envelope.len);
                }
                incoming.attach(receive);
            }
            None => self.post_again(receive),
        }
    }

    /// Takes the receive of a transfer away. True if the transfer had that receive.
    pub fn detach(&mut self, op: &Arc<Op>) -> bool {
        let has = |incoming: &Incoming| incoming.receive().is_some_and(|receive| Arc::ptr_eq(&receive.op, op));
        let Some(at) = self.incoming.iter().position(has) else { return false };
        let incoming = &mut self.incoming[at];
        let (id, envelope) = (incoming.id, incoming.envelope);
        let was_too_long = matches!(incoming.sink, Sink::TooLong(..));
        if incoming.detach().is_none() {
            return false;
        }
        // Nothing may be lost, so the pool's limit is exceeded if need be.
        if !was_too_long {
            self.pool.reserve_anyway(envelope.len);
        }
        self.pool.insert_coming(envelope, id);
        true
    }

    /// Gives the message that a receive would get storage in which both ends can copy it, if they asked to.
    pub fn stage(&mut self, accepts: &Match) {
        let Some(number) = self.pool.find(accepts).filter(|entry| !entry.is_whole()).map(Entry::number) else { return };
        if let Some(incoming) = self.incoming.iter_mut().find(|incoming| incoming.id == number) {
            incoming.stage();
        }
    }

    /// Takes over the owner of a buffer that a receive left here. If its origin has let go of it since, drops it.
    pub fn keep(&mut self, op: &Arc<Op>, owner: Keepsake) {
        // A receive that was cancelled within a callback has not left its buffer to the transfer yet.
        let is_its = |incoming: &&mut Incoming| incoming.receive().is_some_and(|receive| Arc::ptr_eq(&receive.op, op));
        if let Some(incoming) = self.incoming.iter_mut().find(is_its) {
            incoming.give_up_cancelled();
        }
        let mut all = self.incoming.iter_mut().chain(&mut self.left);
        drop(all.try_fold(owner, |owner, incoming| incoming.keep(op, owner).ok_or(())));
    }

    /// Frees the memory that origins have let go of.
    pub fn sweep(&mut self) {
        self.left.retain(|incoming| !incoming.has_let_go());
    }

    /// Posts a receive again in its old place, because its message was given up. Another message may have come meanwhile.
    pub fn post_again(&mut self, receive: RecvOp) {
        if receive.op.is_done() {
            return;
        }
        receive.op.set_granted(None);
        // The bytes of that message do not count.
        receive.op.moved(0);
        match self.pool.take(&receive.accepts) {
            Some(Pooled::Whole(message)) => receive.complete(message.envelope, Payload::private(&message.bytes)),
            Some(Pooled::Lent(envelope, lent)) => receive.complete_loan(envelope, &lent),
            Some(Pooled::Coming(id)) => self.attach(id, receive),
            None => {
                let at = self.posted.partition_point(|other| other.number < receive.number);
                self.posted.insert(at, receive);
            }
        }
    }

    /// Whether a message must be taken although the pool is full. That is so if a thread waits for exactly this message. It is
    /// also so if the lane holds, behind it, chunks of a transfer or an answer that a thread waits for: these would never come
    /// otherwise.
    #[cold]
    pub(super) fn must_take(&mut self, lane: usize, envelope: &Envelope, bytes: usize) -> bool {
        if self.is_watched(envelope) {
            return true;
        }
        let is_awaited = |incoming: &Incoming| incoming.receive().is_some() || self.is_watched(&incoming.envelope);
        let is_in_the_way =
            self.services.awaits(lane) || self.incoming.iter().any(|incoming| incoming.lane == lane && is_awaited(incoming));
        if !is_in_the_way {
            self.in_the_way = 0;
            return false;
        }
        let taken = self.in_the_way.saturating_add(bytes);
        if taken <= IN_THE_WAY_MAX {
            self.in_the_way = taken;
        }
        taken <= IN_THE_WAY_MAX
    }

    pub(super) fn is_watched(&self, envelope: &Envelope) -> bool {
        self.watchers.iter().any(|(accepts, _)| accepts.matches(envelope))
    }

    /// A message came into the pool: wakes the threads that watch for it.
    #[inline]
    pub fn notify_probe(&mut self, envelope: &Envelope) {
        for (accepts, op) in &self.watchers {
            if accepts.matches(envelope) {
                self.sighted = true;
                op.nudge();
            }
        }
    }

    /// Takes the first posted receive that accepts a message.
    pub fn posted_for(&mut self, envelope: &Envelope) -> Option<RecvOp> {
        let at = self.posted_at(envelope)?;
        self.posted.remove(at)
    }

    /// Removes posted receives that were cancelled from within recv_with.
    pub fn forget_cancelled(&mut self) {
        self.posted.retain(|receive| !receive.op.is_done());
    }

    /// Finds the first posted receive that accepts a message.
    pub fn posted_at(&mut self, envelope: &Envelope) -> Option<usize> {
        loop {
            let at = self.posted.iter().position(|receive| receive.accepts.matches(envelope))?;
            if !self.posted[at].op.is_done() {
                return Some(at);
            }
            // It was cancelled from within recv_with: its buffer is gone.
            self.posted.remove(at);
        }
    }
}

/// How many of the first receives wait for a message like this one: they accept it, and have room for it.
fn waiting(posted: &VecDeque<RecvOp>, envelope: &Envelope) -> usize {
    let waits =
        |receive: &&RecvOp| receive.capacity >= envelope.len && receive.accepts.matches(envelope) && !receive.op.is_done();
    posted.iter().take(WAITING_MOST).filter(waits).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Match;
    use doorbell_fabric::{Incarnation, Priority};

    #[test]
    fn receives_wait_for_a_message_that_they_accept_and_have_room_for() {
        let envelope = Envelope {
            source: NodeId(1),
            incarnation: Incarnation(1),
            tag: 7,
            len: 100,
            sequence: 0,
            priority: Priority::Normal,
        };
        let mut buffer = [0; 100];
        let mut receive = |accepts, capacity| {
            // SAFETY: nothing is received, so the buffer is not used.
            unsafe { RecvOp::new(accepts, buffer.as_mut_ptr(), capacity, Op::new()) }
        };
        let any = Match::any();
        let mut posted =
            VecDeque::from([receive(any, 100), receive(any.tag(7), 100), receive(any.tag(8), 100), receive(any, 99)]);
        assert_eq!(waiting(&posted, &envelope), 2);
        posted[0].op.finish(Outcome::Received(envelope));
        assert_eq!(waiting(&posted, &envelope), 1);
        posted.extend((0..100).map(|_| receive(any, 100)));
        assert_eq!(waiting(&posted, &envelope), WAITING_MOST - 3);
    }
}
