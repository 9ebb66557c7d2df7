//! One lane, as its reader sees it; and the shortest way from it.

use crate::board::LatencyHistogram;
use crate::domain::PeerInbox;
use crate::lane::{Consumer, FirstWord, Peek, RawMemory, Seen, age};
use crate::region::PeerRegion;
use doorbell_fabric::{Envelope, Incarnation, NodeId, PacketKind, Payload, Priority};
use std::sync::Arc;

/// Looks for the next packet of a message before its reader lets others in: some microseconds.
const REST_LOOKS: u32 = 256;

/// A lane of this node's inbox.
pub(super) struct Lane {
    pub(super) consumer: Consumer<RawMemory>,
    pub(super) source: NodeId,
    pub(super) incarnation: Incarnation,
    pub(super) priority: Priority,
    /// The node that produces here.
    pub(super) producer: Option<Arc<PeerInbox>>,
    pub(super) idle_looks: u32,
    pub(super) busy: bool,
    /// Read no further.
    pub(super) damaged: bool,
    /// It is damaged for what its node did elsewhere: its life may never have claimed it.
    pub(super) by_association: bool,
    /// What comes before its first message is on its way by another link.
    pub(super) later: bool,
    /// Nothing came meanwhile by the network: at the next look it is found out of sequence; and that this was asked once before.
    pub(super) judged: bool,
    pub(super) asked_before: bool,
    pub(super) latencies: Arc<LatencyHistogram>,
    /// What its producer's bulk ring lies in.
    pub(super) bulk: Option<PeerRegion>,
}

impl Lane {
    #[inline(always)]
    pub(super) fn take(&mut self, seen: &Seen) {
        if self.consumer.take(seen) {
            self.ring_producer();
        }
    }

    /// A packet with a time stamp was taken.
    #[cold]
    pub(super) fn sample(&self, age: Option<u32>) {
        age.into_iter().for_each(|ns| self.latencies.add(ns));
    }

    /// The producer waits for room, and may be asleep.
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

    /// Whether what lies here comes from the life that we take it for. A later one may have claimed the lane already, if the
    /// earlier one never did. Only the first packet can tell: after that the lane stays claimed until it is reset.
    #[inline(always)]
    pub(super) fn is_of_known_life(&self) -> bool {
        self.consumer.taken() != 0 || self.consumer.owner() == self.incarnation.0 as u64
    }
}

/// The lane that was busy last, for one packet.
pub struct Hot<'a> {
    pub(super) lane: &'a mut Lane,
    pub(super) index: usize,
}

impl Hot<'_> {
    /// Which lane: node times priorities, plus priority.
    #[inline(always)]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Which life of which node sends here.
    #[inline(always)]
    pub fn source(&self) -> (NodeId, Incarnation) {
        (self.lane.source, self.lane.incarnation)
    }

    /// Looks up to `rounds` times for a packet.
    #[inline(always)]
    pub fn watch(&self, rounds: u32) -> Option<FirstWord> {
        let expected = self.lane.consumer.expected_line();
        self.lane.consumer.watch(rounds, || {
            if let Some(line) = expected {
                crate::hint::prefetch(line);
            }
            doorbell_fabric::sync::spin_hint();
        })
    }

    /// Takes the first packet if it is a whole message that `buf` holds, with this number, no time stamp, and an accepted tag.
    /// What only other messages need is left out: this is the way of most.
    #[inline(always)]
    pub fn take_whole(
        &mut self,
        first: FirstWord,
        sequence: u32,
        accepts: impl FnOnce(u64) -> bool,
        buf: &mut [u8],
    ) -> Option<Envelope> {
        let len = first.payload_bytes();
        let consumer = &mut self.lane.consumer;
        if !first.is_whole() || len > buf.len() || consumer.unstamped_sequence() != Some(sequence) {
            return None;
        }
        let tag = consumer.tag();
        let place = if accepts(tag) { consumer.place(len, false)? } else { return None };
        // SAFETY: its place, and nothing is taken before.
        unsafe { consumer.payload_at(place, len) }.copy_to(buf);
        if consumer.take_from(place, len) {
            self.lane.ring_producer();
        }
        let Lane { source, incarnation, priority, .. } = *self.lane;
        Some(Envelope { source, incarnation, tag, len, sequence, priority })
    }

    /// The first packet, whose first word was seen.
    #[inline(always)]
    pub fn examine(&self, first: FirstWord) -> Option<Seen> {
        match self.lane.consumer.examine(first) {
            Peek::Packet(seen) => Some(seen),
            _ => None,
        }
    }

    /// What it says of itself.
    #[inline(always)]
    pub fn envelope(&self, seen: &Seen) -> Envelope {
        Envelope {
            source: self.lane.source,
            incarnation: self.lane.incarnation,
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

    /// Takes it: copies as much of it as `buf` holds, and gives its place back.
    #[inline(always)]
    pub fn take_into(&mut self, seen: &Seen, buf: &mut [u8]) {
        if seen.stamp != 0 {
            self.lane.sample(age(seen.stamp));
        }
        // SAFETY: `seen` comes from `first`, and nothing was taken since, as this is the only handle to the lane.
        unsafe { self.lane.consumer.payload(seen) }.copy_to(buf);
        self.lane.take(seen);
    }

    /// Takes the packets that follow a first one, for as long as they keep coming. Returns how much of the message there
    /// is then.
    pub fn take_rest(&mut self, mut received: usize, total: usize, buf: &mut [u8]) -> usize {
        let mut looks = 0;
        while received < total && looks < REST_LOOKS {
            match self.watch(1).and_then(|first| self.examine(first)) {
                Some(seen) if seen.head.kind == PacketKind::Next && seen.len > 0 && seen.len <= total - received => {
                    self.take_into(&seen, &mut buf[received..]);
                    received += seen.len;
                    looks = 0;
                }
                // Something else: the long way will deal with it.
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
