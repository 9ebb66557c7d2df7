//! One lane from the reader's viewpoint, and the fast path that reads the busiest lane.

use super::pace::Paces;
use crate::board::LatencyHistogram;
use crate::domain::PeerInbox;
use crate::lane::{Consumer, FirstWord, Opened, Peek, RawMemory, Seen, SeriesEnd, age};
use crate::region::PeerRegion;
use doorbell_fabric::{Envelope, Incarnation, NodeId, PacketHead, PacketKind, Payload, PeerWord, Priority, Sink};
use std::sync::Arc;

/// How often a reader looks for the next packet of a message before it lets other work in. A sender takes some microseconds to write one.
const REST_LOOKS: u32 = 1024;
/// How often a reader looks for the next piece of a payload, without a pause: some microseconds.
const PIECE_LOOKS: u32 = 2048;

/// A lane to this node.
pub(super) struct Lane {
    pub(super) consumer: Consumer<RawMemory>,
    /// The node and the incarnation that send here.
    pub(super) peer: PeerWord,
    pub(super) priority: Priority,
    /// The node that produces here.
    pub(super) producer: Option<Arc<PeerInbox>>,
    pub(super) idle_looks: u32,
    pub(super) busy: bool,
    /// The reader takes nothing more from this lane.
    pub(super) damaged: bool,
    /// The lane is damaged because its node broke the rules elsewhere, so this incarnation may never have claimed it.
    pub(super) by_association: bool,
    /// An earlier message than the lane's first one is still on its way by another link.
    pub(super) later: bool,
    /// Set once the network has had time to bring the missing message: at the next look the lane is out of sequence.
    /// `asked_before` says that [`judge_later`](super::ShmFabric::judge_later) has asked once already.
    pub(super) judged: bool,
    pub(super) asked_before: bool,
    pub(super) latencies: Arc<LatencyHistogram>,
    /// How fast a waiter looks for answers here.
    pub(super) paces: Paces,
    /// The region that holds the producer's bulk ring.
    pub(super) bulk: Option<PeerRegion>,
}

impl Lane {
    /// A lane from this node, of which no incarnation is known yet.
    pub(super) fn new(consumer: Consumer<RawMemory>, node: NodeId, priority: Priority, latencies: Arc<LatencyHistogram>) -> Self {
        Self {
            consumer,
            peer: PeerWord::new(node, Incarnation(0)),
            priority,
            producer: None,
            idle_looks: 0,
            busy: false,
            damaged: false,
            by_association: false,
            later: false,
            judged: false,
            asked_before: false,
            latencies,
            paces: Paces::default(),
            bulk: None,
        }
    }

    /// The node that sends here.
    #[inline(always)]
    pub(super) fn source(&self) -> NodeId {
        self.peer.node()
    }

    /// The incarnation of that node.
    #[inline(always)]
    pub(super) fn incarnation(&self) -> Incarnation {
        self.peer.incarnation()
    }

    #[inline(always)]
    pub(super) fn take(&mut self, seen: &Seen) {
        if self.consumer.take(seen) {
            self.ring_producer();
        }
    }

    /// Whether a message waits that its sender is still writing, and that this end has not [declined](Consumer::decline).
    #[inline(always)]
    pub(super) fn is_opened(&self) -> bool {
        self.consumer.is_opened() && !self.damaged && !self.later && self.is_of_known_life()
    }

    /// Copies the first message, which its sender is still writing, into the buffer of its receiver. `None` if it has no buffer, or if the
    /// sender does not go on. Otherwise whether the receiver takes nothing more.
    #[cold]
    #[inline(never)]
    pub(super) fn copy_opened<S: Sink>(&mut self, first: FirstWord, sink: &mut S) -> Option<bool> {
        let (source, incarnation, priority) = (self.source(), self.incarnation(), self.priority);
        let Some(opened) = self.consumer.opened(first) else {
            self.consumer.decline();
            return None;
        };
        let Opened { tag, sequence, len, .. } = opened;
        let head = PacketHead { kind: PacketKind::Whole, tag, sequence, total: len as u64 };
        let Some(buffer) = sink.buffer_for(source, incarnation, priority, &head).and_then(|buffer| buffer.get_mut(..len)) else {
            self.consumer.decline();
            return None;
        };
        if !self.consumer.copy_opened(&opened, buffer, PIECE_LOOKS) {
            return None;
        }
        // Before the sink is called: if it panics, nobody reads in place what the producer has written over.
        if self.consumer.take_from(opened.place, len) {
            self.ring_producer();
        }
        self.asked_before = false;
        Some(sink.copied(source, incarnation, priority, &head))
    }

    /// Records the latency of a packet with a time stamp.
    #[cold]
    pub(super) fn sample(&self, age: Option<u32>) {
        age.into_iter().for_each(|ns| self.latencies.add(ns));
    }

    /// Rings the producer, which waits for room and may be asleep.
    #[cold]
    pub(super) fn ring_producer(&self) {
        if let Some(inbox) = &self.producer {
            inbox.ring();
        }
    }

    pub(super) fn reset(&mut self) {
        self.consumer.reset();
        self.bulk = None;
        self.producer = None;
        self.damaged = false;
    }

    #[inline(always)]
    pub(super) fn is_news(&self) -> bool {
        self.consumer.is_news() && !self.damaged && !self.later && self.is_of_known_life()
    }

    /// Whether a packet waits in a lane that not every poll looks at.
    #[inline(always)]
    pub(super) fn is_ready_and_idle(&self) -> bool {
        !self.busy && self.consumer.is_ready() && !self.damaged && self.is_of_known_life()
    }

    /// Whether the packets here come from the incarnation that the reader expects. If that one never claimed the lane, a later
    /// one may have done so. Only the first packet can tell: after it the lane stays claimed until it is reset.
    #[inline(always)]
    pub(super) fn is_of_known_life(&self) -> bool {
        self.consumer.taken() != 0 || self.consumer.owner() == self.incarnation().0 as u64
    }
}

/// The lane that was busy last, for one packet.
pub struct Hot<'a> {
    pub(super) lane: &'a mut Lane,
    pub(super) index: usize,
}

impl Hot<'_> {
    /// The lane's index: node times priorities, plus priority.
    #[inline(always)]
    pub fn index(&self) -> usize {
        self.index
    }

    /// The node and the incarnation that send here.
    #[inline(always)]
    pub fn source(&self) -> PeerWord {
        self.lane.peer
    }

    /// Packets taken so far.
    #[inline(always)]
    pub fn taken(&self) -> u64 {
        self.lane.consumer.taken()
    }

    /// Looks for a packet for about as long as `rounds` looks with a pause take.
    #[inline(always)]
    pub fn watch(&mut self, rounds: u32) -> Option<FirstWord> {
        self.watch_for(rounds, false)
    }

    /// The same for the receiver of a message, which may begin with a packet that is only [opened](FirstWord::is_opened).
    #[inline(always)]
    pub fn watch_for(&mut self, rounds: u32, also_opened: bool) -> Option<FirstWord> {
        let Lane { ref consumer, ref mut paces, .. } = *self.lane;
        // A few of these lines may lie behind the ring's end. A prefetch changes nothing there.
        let (expected, len) = (consumer.expected_at(), consumer.expected_len());
        let prefetch = || {
            if len > 0 {
                doorbell_fabric::hint::prefetch(expected);
                (64..len).step_by(64).for_each(|at| doorbell_fabric::hint::prefetch(expected.wrapping_add(at)));
            }
        };
        let sent = consumer.awaits_answer();
        let steps = paces.steps();
        // Two loops, because each instruction between two looks counts.
        let found = if sent.is_some() && *steps > 0 {
            consumer.watch(paces.looks(rounds), also_opened, || {
                prefetch();
                doorbell_fabric::sync::between_looks(steps);
            })
        } else {
            consumer.watch(rounds, also_opened, || {
                prefetch();
                doorbell_fabric::sync::spin_hint();
            })
        };
        if let (Some(sent), Some(_)) = (sent, found) {
            paces.count(sent);
        }
        found
    }

    /// The fast path for most messages: takes the first packet if it is a whole message that fits into `buf`, has this sequence
    /// number and an accepted tag, and carries no time stamp. Leaves out everything that only other messages need. `seen` is its first word
    /// if a [watch](Self::watch) has seen it.
    #[inline(always)]
    pub fn take_whole(
        &mut self,
        seen: Option<FirstWord>,
        sequence: u32,
        accepts: impl FnOnce(u64) -> bool,
        buf: &mut [u8],
    ) -> Option<Envelope> {
        let next = self.lane.consumer.read_next(seen, sequence, buf.len(), accepts, |_, payload| {
            payload.copy_to(buf);
        })?;
        if next.rings {
            self.lane.ring_producer();
        }
        let Lane { peer, priority, .. } = *self.lane;
        let (source, incarnation) = (peer.node(), peer.incarnation());
        Some(Envelope { source, incarnation, tag: next.tag, len: next.len, sequence, priority })
    }

    /// As [`take_whole`](Self::take_whole), for a message that its sender may still be writing. If the sender stops, `buf` has bytes
    /// without meaning.
    #[inline(never)]
    pub fn take_opened(
        &mut self,
        first: FirstWord,
        sequence: u32,
        accepts: impl FnOnce(u64) -> bool,
        buf: &mut [u8],
    ) -> Option<Envelope> {
        let Lane { peer, priority, ref mut consumer, .. } = *self.lane;
        let (source, incarnation) = (peer.node(), peer.incarnation());
        let opened = consumer.opened(first)?;
        let Opened { tag, len, place, .. } = opened;
        if len > buf.len() || opened.sequence != sequence || !accepts(tag) {
            return None;
        }
        if !consumer.copy_opened(&opened, &mut buf[..len], PIECE_LOOKS) {
            return None;
        }
        if consumer.take_from(place, len) {
            self.lane.ring_producer();
        }
        Some(Envelope { source, incarnation, tag, len, sequence, priority })
    }

    /// As [`take_whole`](Self::take_whole), for a message of any length that `read` reads in place. Returns whether it did.
    #[inline(always)]
    pub fn read_whole(
        &mut self,
        sequence: u32,
        accepts: impl FnOnce(u64) -> bool,
        read: impl FnOnce(&Envelope, Payload<'_>),
    ) -> bool {
        let Lane { peer, priority, .. } = *self.lane;
        let (source, incarnation) = (peer.node(), peer.incarnation());
        let next = self.lane.consumer.read_next(None, sequence, usize::MAX, accepts, |tag, payload| {
            read(&Envelope { source, incarnation, tag, len: payload.len(), sequence, priority }, payload);
        });
        if next.is_some_and(|next| next.rings) {
            self.lane.ring_producer();
        }
        next.is_some()
    }

    /// As [`read_whole`](Self::read_whole) for up to `limit` short messages: see [`Consumer::read_series`]. Returns their number, and
    /// whether nothing more was published.
    #[inline(always)]
    pub fn read_series(
        &mut self,
        seen: Option<FirstWord>,
        sequence: u32,
        limit: u64,
        accepts: impl Fn(u64) -> bool,
        mut read: impl FnMut(&Envelope, Payload<'_>),
    ) -> (u64, bool) {
        let Lane { peer, priority, .. } = *self.lane;
        let (source, incarnation) = (peer.node(), peer.incarnation());
        let (count, end) = self.lane.consumer.read_series(seen, sequence, limit, accepts, |tag, sequence, payload| {
            read(&Envelope { source, incarnation, tag, len: payload.len(), sequence, priority }, payload);
        });
        if end == SeriesEnd::Rings {
            self.lane.ring_producer();
        }
        (count, end == SeriesEnd::Empty)
    }

    /// As [`read_whole`](Self::read_whole), for a message of at most `most` bytes that may have a time stamp, or lie in a bundle.
    #[cold]
    pub fn read_sampled(
        &mut self,
        first: FirstWord,
        sequence: u32,
        most: usize,
        accepts: impl FnOnce(u64) -> bool,
        read: impl FnOnce(&Envelope, Payload<'_>),
    ) -> Option<Envelope> {
        let seen = self.examine(first).filter(|seen| seen.head.kind == PacketKind::Whole && seen.len <= most)?;
        let envelope = self.envelope(&seen);
        if envelope.sequence != sequence || !accepts(envelope.tag) {
            return None;
        }
        // Before the message is used, because its use may take long.
        let age = if seen.stamp != 0 { age(seen.stamp) } else { None };
        read(&envelope, self.payload(&seen));
        self.lane.sample(age);
        self.lane.take(&seen);
        Some(envelope)
    }

    /// Checks the first packet, whose first word was seen.
    #[inline(always)]
    pub fn examine(&self, first: FirstWord) -> Option<Seen> {
        match self.lane.consumer.examine(first) {
            Peek::Packet(seen) => Some(seen),
            _ => None,
        }
    }

    /// The description of its message.
    #[inline(always)]
    pub fn envelope(&self, seen: &Seen) -> Envelope {
        Envelope {
            source: self.lane.source(),
            incarnation: self.lane.incarnation(),
            tag: seen.head.tag,
            len: usize::try_from(seen.head.total).unwrap_or(usize::MAX),
            sequence: seen.head.sequence,
            priority: self.lane.priority,
        }
    }

    /// Its payload, in place.
    #[inline(always)]
    pub fn payload(&self, seen: &Seen) -> Payload<'_> {
        // SAFETY: `seen` comes from `first`, and nothing is taken while `self` is borrowed.
        unsafe { self.lane.consumer.payload(seen) }
    }

    /// Takes the packet: copies as much of it as fits into `buf`, and frees its place.
    #[inline(always)]
    pub fn take_into(&mut self, seen: &Seen, buf: &mut [u8]) {
        if seen.stamp != 0 {
            self.lane.sample(age(seen.stamp));
        }
        // SAFETY: `seen` comes from `first`, and nothing was taken since, because this is the only handle on the lane.
        unsafe { self.lane.consumer.payload(seen) }.copy_to(buf);
        self.lane.take(seen);
    }

    /// Takes the packets that follow a first one as long as they keep coming. Returns how much of the message has arrived.
    pub fn take_rest(&mut self, mut received: usize, total: usize, buf: &mut [u8]) -> usize {
        let mut looks = 0;
        while received < total && looks < REST_LOOKS {
            match self.watch(1).and_then(|first| self.examine(first)) {
                Some(seen) if seen.head.kind == PacketKind::Next && seen.len > 0 && seen.len <= total - received => {
                    self.take_into(&seen, &mut buf[received..]);
                    received += seen.len;
                    looks = 0;
                }
                // A packet of another kind: the slow path handles it.
                Some(_) => break,
                None => {
                    doorbell_fabric::sync::spin_hint();
                    looks += 1;
                }
            }
        }
        received
    }
}
