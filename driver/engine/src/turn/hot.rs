//! The fast path: a message that is first in the lane that was busy last, while nothing else is pending.

use super::{Engine, POLLS_PER_CLOCK, TURN_PACKETS, count_turn};
use crate::message::Match;
use crate::message::inbound::{Active, Assembly, Inbound, Into};
use crate::message::lending::{Lease, Lent};
use crate::message::receive::RecvOp;
use crate::sync::op::Op;
use doorbell_fabric::{Envelope, PacketKind, Payload};
use doorbell_shm::fabric::Hot;
use doorbell_shm::lane::{FirstWord, PIECES_LEAST};
use std::sync::Arc;

/// A receiver of a stream that has read everything pauses so often, while the sender publishes several messages.
const LEAD: u32 = 8;

/// The result of the fast path.
pub enum HotTake {
    /// A whole message.
    Whole(Envelope),
    /// The first part of a message. The rest goes to the same buffer by the slow path.
    Part(Arc<Op>),
}

impl Engine {
    /// The shortest path from a lane to a buffer: takes a message that is first in the lane that was busy last, if nothing else
    /// is pending in this node. Looks `rounds` times. `None` says nothing about messages: call [`poll`](Self::poll) then.
    #[inline(always)]
    pub fn take_hot(&mut self, accepts: &Match, buf: &mut [u8], rounds: u32) -> Option<HotTake> {
        if !self.is_quiet() {
            return None;
        }
        let inbound = &mut self.inbound;
        let mut hot = self.fabric.hot()?;
        let assembly = &mut inbound.assemblies[hot.index()];
        // Checked before there is a message, to keep the path after it short.
        if assembly.active.is_some() || !accepts.accepts_peer(hot.source()) {
            return None;
        }
        let first = hot.watch_for(rounds, true)?;
        if first.is_opened() {
            let envelope = take_opened(&mut hot, first, inbound, accepts, buf)?;
            count_turn(&self.turns);
            return Some(HotTake::Whole(envelope));
        }
        if let Some(envelope) = hot.take_whole(None, assembly.expected, |tag| accepts.accepts_tag(tag), buf) {
            count_turn(&self.turns);
            inbound.took(hot.index(), envelope.len);
            return Some(HotTake::Whole(envelope));
        }
        let seen = hot.examine(first)?;
        let envelope = hot.envelope(&seen);
        if envelope.len > buf.len()
            || !matches!(seen.head.kind, PacketKind::Whole | PacketKind::First)
            || envelope.sequence != assembly.expected
            || !accepts.accepts_tag(envelope.tag)
        {
            return None;
        }
        hot.take_into(&seen, buf);
        count_turn(&self.turns);
        if seen.head.kind == PacketKind::First
            && let Some(op) = take_rest(&mut hot, assembly, inbound.receives, envelope, seen.len, accepts, buf)
        {
            return Some(HotTake::Part(op));
        }
        inbound.took(hot.index(), envelope.len);
        Some(HotTake::Whole(envelope))
    }

    /// Whether [`take_short`](Self::take_short) may be called, until somebody does anything else with the engine.
    pub fn may_take_short(&mut self) -> bool {
        self.is_quiet() && self.fabric.hot().is_some_and(|hot| self.inbound.assemblies[hot.index()].active.is_none())
    }

    /// As [`take_hot`](Self::take_hot) for whole messages, without asking again what [`may_take_short`](Self::may_take_short) has
    /// asked. One look.
    #[inline(always)]
    pub fn take_short(&mut self, accepts: &Match, buf: &mut [u8]) -> Option<Envelope> {
        if !self.may_look() {
            return None;
        }
        let mut hot = self.fabric.same_hot()?;
        if !accepts.accepts_peer(hot.source()) {
            return None;
        }
        let envelope = take_whole(&mut hot, None, &mut self.inbound, accepts, buf)?;
        count_turn(&self.turns);
        Some(envelope)
    }

    /// The same for a message that is not there at the first look. Looks `rounds` times, and takes a message that its sender is still
    /// writing.
    #[inline(always)]
    pub fn wait_short(&mut self, accepts: &Match, buf: &mut [u8], rounds: u32) -> Option<Envelope> {
        if !self.may_look() {
            return None;
        }
        let mut hot = self.fabric.same_hot()?;
        if !accepts.accepts_peer(hot.source()) {
            return None;
        }
        // Into a short buffer goes no message that its sender is still writing.
        let first = hot.watch_for(rounds, buf.len() >= PIECES_LEAST)?;
        if first.is_opened() {
            let envelope = take_opened(&mut hot, first, &mut self.inbound, accepts, buf)?;
            count_turn(&self.turns);
            return Some(envelope);
        }
        let envelope = match take_whole(&mut hot, Some(first), &mut self.inbound, accepts, buf) {
            Some(envelope) => envelope,
            None => take_stamped(&mut hot, &mut self.inbound, accepts, buf)?,
        };
        count_turn(&self.turns);
        Some(envelope)
    }

    /// As [`take_short`](Self::take_short) for up to `limit` messages that `read` reads in place. Looks `rounds` times for the
    /// first one. Returns their number. If `read` panics, its message stays in the lane.
    #[inline(always)]
    pub fn take_many(
        &mut self,
        accepts: &Match,
        limit: usize,
        rounds: u32,
        mut read: impl FnMut(&Envelope, Payload<'_>),
    ) -> usize {
        if !self.may_look() {
            return 0;
        }
        let inbound = &mut self.inbound;
        let Some(mut hot) = self.fabric.same_hot() else { return 0 };
        if !accepts.accepts_peer(hot.source()) {
            return 0;
        }
        let mut seen = hot.watch(1);
        if seen.is_none() {
            if rounds > 1 && std::mem::take(&mut self.caught_up) {
                // Each look at a cell that the sender is about to write takes the line from it.
                (0..LEAD).for_each(|_| doorbell_fabric::sync::spin_hint());
            }
            seen = hot.watch(rounds.saturating_sub(1));
            if seen.is_none() {
                return 0;
            }
        }
        let limit = limit.min(TURN_PACKETS) as u64;
        let expected = inbound.assemblies[hot.index()].expected;
        let mut taking = Taking { hot, inbound, count: 0, bytes: 0 };
        let accepts = |tag| accepts.accepts_tag(tag);
        loop {
            let Taking { hot, count, bytes, .. } = &mut taking;
            let before = *count;
            let mut read = |envelope: &Envelope, payload: Payload<'_>| {
                let len = payload.len() as u64;
                read(envelope, payload);
                (*count, *bytes) = (*count + 1, *bytes + len);
            };
            let (more, is_empty) =
                hot.read_series(seen.take(), expected.wrapping_add(before as u32), limit - before, accepts, &mut read);
            let taken = before + more;
            if is_empty {
                self.caught_up = taken > 1;
                break;
            }
            // It ended at a longer message, at one with a time stamp, or at another packet, if at any.
            let next = expected.wrapping_add(taken as u32);
            let Some(first) = (taken < limit).then(|| hot.watch(1)).flatten() else { break };
            if !hot.read_whole(next, accepts, &mut read)
                && hot.read_sampled(first, next, usize::MAX, accepts, &mut read).is_none()
            {
                break;
            }
        }
        count_turn(&self.turns);
        let taken = taking.count as usize;
        drop(taking);
        self.fabric.took(taken);
        taken
    }

    /// Counts a look at the busy lane. Looks at the idle lanes first if that is due. False if there is something that only
    /// [`poll`](Self::poll) does.
    #[inline(always)]
    fn may_look(&mut self) -> bool {
        self.fabric.count_look() || self.look_around()
    }

    /// Looks at the idle lanes, as is due after some looks at the busy one. False if there is something that only [`poll`](Self::poll)
    /// does.
    #[cold]
    #[inline(never)]
    fn look_around(&mut self) -> bool {
        // A poll also looks at the clock now and then, and disarms a bell that an idle poller has armed.
        if (self.polls.wrapping_add(1)).is_multiple_of(POLLS_PER_CLOCK)
            || self.fabric.bell().is_armed()
            || !self.fabric.look_around()
        {
            return false;
        }
        self.polls = self.polls.wrapping_add(1);
        true
    }

    /// Whether nothing is pending in this node that a message could concern.
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

    /// As [`take_hot`](Self::take_hot), for a lent message whose arena is mapped.
    #[inline(always)]
    pub fn take_hot_loan(&mut self, accepts: &Match, rounds: u32) -> Option<(Envelope, Lent)> {
        if !self.is_quiet() {
            return None;
        }
        let inbound = &mut self.inbound;
        let mut hot = self.fabric.hot()?;
        let assembly = &mut inbound.assemblies[hot.index()];
        if assembly.active.is_some() || !accepts.accepts_peer(hot.source()) {
            return None;
        }
        let seen = hot.watch(rounds).and_then(|first| hot.examine(first))?;
        let envelope = hot.envelope(&seen);
        if seen.head.kind != PacketKind::Loan || envelope.sequence != assembly.expected || !accepts.accepts_tag(envelope.tag) {
            return None;
        }
        let lease = Lease::decode(hot.payload(&seen))?;
        // If anything is wrong with it, the slow path finds out.
        let lending = inbound.lenders.known(envelope.source, envelope.incarnation, &lease)?.ok()?;
        let lent = lending.lend(&lease);
        hot.take_into(&seen, &mut []);
        count_turn(&self.turns);
        inbound.took(hot.index(), lease.len as usize);
        Some((Envelope { len: lease.len as usize, ..envelope }, lent))
    }
}

/// Messages of one lane that are being taken. They are counted at the end, also when their reader panics.
struct Taking<'a> {
    hot: Hot<'a>,
    inbound: &'a mut Inbound,
    count: u64,
    bytes: u64,
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.inbound.took_many(self.hot.index(), self.count, self.bytes);
    }
}

/// Takes the first message of a lane, whose first word may have been seen.
#[inline(always)]
fn take_whole(
    hot: &mut Hot<'_>,
    seen: Option<FirstWord>,
    inbound: &mut Inbound,
    accepts: &Match,
    buf: &mut [u8],
) -> Option<Envelope> {
    // Each lane has an assembly. This look only spares the code of a panic.
    let assembly = inbound.assemblies.get_mut(hot.index())?;
    let envelope = hot.take_whole(seen, assembly.expected, |tag| accepts.accepts_tag(tag), buf)?;
    assembly.pass();
    inbound.tally(envelope.len);
    Some(envelope)
}

/// The same for a message with a time stamp, or in a bundle.
#[cold]
#[inline(never)]
fn take_stamped(hot: &mut Hot<'_>, inbound: &mut Inbound, accepts: &Match, buf: &mut [u8]) -> Option<Envelope> {
    let (first, most) = (hot.watch(1)?, buf.len());
    let copy = |_: &Envelope, payload: Payload<'_>| _ = payload.copy_to(buf);
    let expected = inbound.assemblies[hot.index()].expected;
    let envelope = hot.read_sampled(first, expected, most, |tag| accepts.accepts_tag(tag), copy)?;
    inbound.took(hot.index(), envelope.len);
    Some(envelope)
}

/// Takes a message that its sender is still writing.
#[cold]
#[inline(never)]
fn take_opened(hot: &mut Hot<'_>, first: FirstWord, inbound: &mut Inbound, accepts: &Match, buf: &mut [u8]) -> Option<Envelope> {
    let expected = inbound.assemblies[hot.index()].expected;
    let Some(envelope) = hot.take_opened(first, expected, |tag| accepts.accepts_tag(tag), buf) else {
        // It may stay as it is for long.
        doorbell_fabric::sync::spin_hint();
        return None;
    };
    inbound.took(hot.index(), envelope.len);
    Some(envelope)
}

/// Takes the rest of a message whose first part is in `buf`. What does not come at once goes there by the slow path.
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
    // The caller waits for this message alone, so it does not spill.
    assembly.active = Some(Box::new(Active { envelope, received, into: Into::Buffer(receive), spills: false }));
    Some(op)
}
