//! The origin's end of a transfer: an RTS, memory-FIFO packets from the first end of the buffer, and, once the remote get has
//! come, direct puts from the last end, until the ends meet.

mod fifos;
mod transfer;

use super::apart::Lending;
use super::descriptor::{Asks, CHUNK_LEAST, CHUNK_MOST, DirectPut, Over, RemoteGet, TransferId};
use super::memory::{Local, Remote};
use super::report::{Descriptor, Reports, Side, TransferReport};
use super::slot::{Kind, message_words};
use super::way::{Choice, STREAK, Way};
use super::{APART_LEAST, CopySide, LEAST_SHARE, Place, RENDEZVOUS_BYTES};
use crate::board::monitor::Monitor;
use crate::error::Error;
use crate::message::order::{Begun, Order};
use crate::message::outbound::{OutState, Outbound};
use crate::mode::{LINKS_MAX, Links, Modes};
use crate::sync::baton::Token;
use crate::sync::op::{Op, Outcome};
use doorbell_fabric::world;
use doorbell_fabric::{Incarnation, NodeId, PRIORITIES, Push};
use doorbell_shm::board::{Metric, Record, RecordKind};
use doorbell_shm::cma::{self, Reach};
use doorbell_shm::domain::PeerInbox;
use doorbell_shm::meeting::{Ends, MEETINGS, Meetings, Moved, RendezvousBlock};
use std::sync::Arc;
use std::time::Duration;
use transfer::{Partner, Transfer};

/// When to try again after another thread held what was needed, unless something happens before.
pub(crate) const TRY_AGAIN: Duration = Duration::from_millis(1);

/// The pending transfers that this node sends.
pub struct Outgoing {
    transfers: Vec<Transfer>,
    /// Slots in use, and their latest generations, by target.
    slots: Vec<Option<Box<Slots>>>,
    copy: CopySide,
    from_high: bool,
    turns: u32,
    /// The number of transfers for which a thread waits.
    active: usize,
    /// Targets that broke the rules of a rendezvous block.
    broken: Vec<NodeId>,
    /// Targets that must be told that a message is not to be delivered, because they can't see it.
    farewells: Vec<Farewell>,
    reports: Reports,
    monitor: Arc<Monitor>,
    /// Counts the receipts.
    modes: Arc<Modes>,
}

#[derive(Clone, Default)]
struct Slots {
    used: u32,
    /// Bits of the slots whose rendezvous blocks in the target's inbox this incarnation has used.
    met: u32,
    generations: [u16; MEETINGS],
    /// The number of ended transfers, by link.
    ended: [u32; LINKS_MAX],
    way: Way,
}

const _: () = assert!(MEETINGS <= 32);

/// The notice to a target that a transfer was given up.
pub struct Farewell {
    /// The send queue that carried its RTS.
    pub out: Arc<Outbound>,
    /// The target's incarnation.
    pub incarnation: Incarnation,
    /// The id of the transfer.
    pub ticket: TransferId,
    /// Whether the target has taken its RTS.
    pub was_taken: bool,
}

/// The link and protocol by which a message is moved.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The number of the link in the send queue.
    pub by: u8,
    /// The number of the link among those of a network, if it is one of them.
    pub apart: Option<u8>,
    /// Further links of that network that may carry parts of it.
    pub beside: Links,
    /// Which side copies.
    pub copy: CopySide,
    /// Whether the memory FIFO leaves the target more time to request the message.
    pub patient: bool,
    /// Whether this node has an engine that puts.
    pub has_engine: bool,
}

impl Outgoing {
    /// No transfers yet, to any of `nodes` nodes.
    pub fn new(nodes: usize, copy: CopySide, from_high: bool, monitor: Arc<Monitor>, modes: Arc<Modes>) -> Self {
        Self {
            transfers: Vec::new(),
            slots: vec![None; nodes],
            copy,
            from_high,
            turns: 0,
            active: 0,
            broken: Vec::new(),
            farewells: Vec::new(),
            reports: Reports::default(),
            monitor,
            modes,
        }
    }

    /// Whether no transfer is pending.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.transfers.is_empty()
    }

    /// Whether a thread waits for a pending transfer.
    #[inline(always)]
    pub fn is_active(&self) -> bool {
        self.active > 0
    }

    /// How long until something may be done here without a bell ringing; `None` if there is no such thing.
    pub fn due(&self) -> Option<Duration> {
        let waiting = (0..self.transfers.len()).filter(|at| !self.transfers[*at].drained && !self.is_in_line(*at));
        waiting.filter_map(|at| self.transfers[at].due()).min()
    }

    /// The number of pending transfers, by priority.
    pub fn depths(&self) -> [usize; PRIORITIES] {
        let mut depths = [0; PRIORITIES];
        for transfer in &self.transfers {
            depths[transfer.out.priority.index()] += usize::from(!transfer.drained);
        }
        depths
    }

    /// The reports of the latest transfers.
    pub fn reports(&mut self) -> &mut Reports {
        &mut self.reports
    }

    /// The route of a message without a requested mode.
    pub fn usual(&self, apart: Option<u8>) -> Route {
        Route { by: 0, apart, beside: Links::NONE, copy: self.copy, patient: false, has_engine: true }
    }

    /// Which side copies by default.
    pub fn copy(&self) -> CopySide {
        self.copy
    }

    /// The number of incomplete and of ended transfers on a link, including those of which it carries only a part.
    pub fn count_by(&self, target: NodeId, by: u8) -> (u32, u32) {
        let is_its = |transfer: &&Transfer| transfer.out.target == target && transfer.goes_by(by) && !transfer.drained;
        let ended = self.slots.get(target.index()).and_then(Option::as_deref).map_or(0, |slots| slots.ended[usize::from(by)]);
        (self.transfers.iter().filter(is_its).count() as u32, ended)
    }

    /// Injects the RTS of a message. The caller holds the send queue, and no send is queued before this message. `peer`: the
    /// target, if the message goes through shared memory.
    pub fn begin(
        &mut self,
        route: Route,
        peer: Option<&Arc<PeerInbox>>,
        out: &Arc<Outbound>,
        state: &mut OutState,
        local: &Local,
        order: &Order<'_>,
    ) -> Begun {
        let Some(slots) = self.slots.get_mut(out.target.index()) else { return Begun::NoSlot };
        let slots = slots.get_or_insert_default();
        let meetings = match peer.map(|peer| Meetings::with_target(peer)).transpose() {
            Ok(meetings) => meetings,
            Err(error) => {
                tracing::debug!(node = out.target.0, %error, "a long message takes the lane");
                return Begun::NoSlot;
            }
        };
        // A block announced by an earlier incarnation of this node must stay as it is until its target has seen it.
        let is_free = |slot: &usize| {
            let is_known = slots.met & 1 << slot != 0 || peer.is_none();
            let is_over = || meetings.as_ref().and_then(|meetings| meetings.get(*slot)).is_some_and(RendezvousBlock::is_over);
            slots.used & 1 << slot == 0 && (is_known || is_over())
        };
        let Some(slot) = (0..MEETINGS).find(is_free) else { return Begun::NoSlot };
        let latest = u64::from(slots.generations[slot]);
        let generation = match &meetings {
            // An earlier incarnation of this node may have used it, and its target may still use it.
            Some(meetings) if slots.met & 1 << slot == 0 => {
                let next = RendezvousBlock::next_generation(meetings.get(slot).map_or(0, RendezvousBlock::generation));
                // The same for a transfer of this incarnation that took the network.
                if next == latest { RendezvousBlock::next_generation(next) } else { next }
            }
            _ => RendezvousBlock::next_generation(latest),
        };
        let ticket = TransferId { slot: slot as u16, generation: generation as u16 };
        let ends = Ends { len: order.len as u64, chunk: chunk_for(order.len as u64), from_high: self.from_high };
        let partner = match (peer, meetings) {
            (Some(peer), Some(meetings)) => Partner::Near(peer.clone(), meetings),
            // SAFETY: the bytes are readable until the op ends or is removed (SendOp::new), and the transfer lets go of them
            // before that (Transfer::end, close).
            _ => Partner::Apart(state.incarnation, Arc::new(unsafe { Lending::new(order.bytes, generation) })),
        };
        if let Partner::Near(_, meetings) = &partner
            && let Some(meeting) = meetings.get(slot)
        {
            // The packet publishes it.
            meeting.open(generation);
        }
        debug_assert_eq!(peer.is_none(), route.apart.is_some());
        let hides = route.copy == CopySide::Origin || route.apart.is_some();
        let source = if hides { Place::Nowhere } else { local.place(order.bytes, order.len) };
        let asks = Asks::of(route.copy);
        let asks = if peer.is_some() {
            Asks { put: asks.put && route.has_engine, patient: route.patient, ..asks }
        } else {
            Asks::default()
        };
        let rts = DirectPut { ticket, ends, source, apart: route.apart, beside: route.beside, asks }.encode();
        match state.push_rts(route.by, order.tag, order.len, &rts) {
            Push::Done => {}
            failed => {
                // The next attempt reuses the id, because ids are few.
                partner.close(ticket, ends);
                return if failed == Push::Full { Begun::Full } else { Begun::Down };
            }
        }
        if !route.beside.is_empty() {
            state.offer_further();
        }
        slots.generations[slot] = generation as u16;
        slots.used |= 1 << slot;
        slots.met |= if peer.is_some() { 1 << slot } else { 0 };
        let mut report = TransferReport::new(Side::Origin, out.target, order.tag, ends);
        report.execute(Descriptor::Rts, 0);
        let closer = partner.clone();
        order.op.set_closer(Box::new(move || closer.close(ticket, ends)));
        let words = message_words(Kind::Rts, (out.target, state.incarnation).into(), ticket.word(), ends.len);
        self.transfers.push(Transfer {
            out: out.clone(),
            route,
            partner,
            fifo_slot: self.monitor.fifos[1 + out.priority.index()].inject(words),
            put_slot: None,
            ticket,
            ends,
            bytes: order.bytes,
            op: order.op.clone(),
            piece: None,
            get: None,
            target: None,
            parts: Vec::new(),
            left: Vec::new(),
            put: Moved::default(),
            unmoved: ends.len,
            turns: 0,
            began: world::now(),
            pulled: (0, world::now()),
            drained: false,
            broken: false,
            answered: false,
            report,
            monitor: self.monitor.clone(),
            modes: self.modes.clone(),
        });
        self.active += 1;
        let record = Record::new(RecordKind::Rts).peer(out.target).priority(out.priority);
        self.monitor.record(&record.transfer(ticket.word()).bytes(order.len as u64));
        self.monitor.tallies.add(Metric::Rts, 1);
        Begun::Yes
    }

    /// A remote get came, with the direct-put descriptor. False if it belongs to no pending transfer, which may mean that it is
    /// late.
    ///
    /// # Errors
    /// It contains what no correct target sends.
    pub fn acknowledge(&mut self, source: NodeId, get: RemoteGet, local: &Local) -> Result<bool, &'static str> {
        let found = self.transfers.iter_mut().find(|transfer| transfer.out.target == source && transfer.ticket == get.ticket);
        let Some(transfer) = found.filter(|transfer| transfer.get.is_none()) else { return Ok(false) };
        let named: Links = (0..).zip(get.beside).filter(|(_, name)| name.is_some()).map(|(link, _)| link).collect();
        if named.iter().any(|link| !transfer.route.beside.has(link)) {
            return Err("a remote get with a link that was not offered");
        }
        transfer.route.beside = named;
        transfer.get = Some(get);
        if let Some(Some(slots)) = self.slots.get_mut(source.index()) {
            slots.way.refused = get.target == Place::Nowhere;
        }
        if let Partner::Near(peer, _) = &transfer.partner {
            transfer.target = Remote::of(get.target, transfer.ends.len, peer, local, true);
        }
        transfer.inject();
        Ok(true)
    }

    /// A target that shares no memory reports how a transfer ended. Ignored if no such transfer is pending.
    pub fn end(&mut self, source: NodeId, ticket: TransferId, over: Over) {
        let is_its = |transfer: &&mut Transfer| transfer.out.target == source && transfer.ticket == ticket;
        let Some(transfer) = self.transfers.iter_mut().find(is_its) else { return };
        let Partner::Apart(_, lending) = &transfer.partner else { return };
        let generation = u64::from(ticket.generation);
        match over {
            Over::Finished => lending.meeting.finish(generation),
            Over::Refused => lending.meeting.close(generation),
            Over::GivenUp => return,
        };
        transfer.answered = true;
    }

    /// Moves a chunk of one transfer, the one of the highest priority that has something to move, with a share for the lowest.
    /// Ends those that are complete. Returns the amount of work done.
    pub fn step(&mut self, me: Token) -> usize {
        let before = self.transfers.len();
        let mut at = 0;
        while let Some(transfer) = self.transfers.get_mut(at) {
            let is_over = transfer.look();
            self.farewells.extend(transfer.farewell());
            if is_over {
                let transfer = self.transfers.swap_remove(at);
                if transfer.broken && !self.broken.contains(&transfer.out.target) {
                    self.broken.push(transfer.out.target);
                }
                self.free(transfer);
            } else {
                at += 1;
            }
        }
        let ended = before - self.transfers.len();
        self.turns = self.turns.wrapping_add(1);
        // Descriptors that found no room in their FIFO.
        self.transfers.iter_mut().filter(|transfer| transfer.waits_for_slot()).for_each(Transfer::inject);
        let lowest_first = self.turns.is_multiple_of(LEAST_SHARE);
        for rank in 0..PRIORITIES {
            let priority = if lowest_first { PRIORITIES - 1 - rank } else { rank };
            let count = self.transfers.len();
            for offset in 0..count {
                // Transfers of one priority take turns.
                let at = (self.turns as usize + offset) % count;
                let next = &self.transfers[at];
                // A waker of another transfer may have cancelled this one since it was looked at.
                if next.rank() != priority || next.drained || next.op.is_done() || self.is_in_line(at) {
                    continue;
                }
                let transfer = &mut self.transfers[at];
                if transfer.advance(me) {
                    // The last chunk completes it.
                    transfer.look_at_counter();
                    self.count();
                    return ended + 1;
                }
            }
        }
        self.count();
        ended
    }

    /// Returns the targets that broke the rules of a rendezvous block, each once.
    pub fn take_broken(&mut self) -> Vec<NodeId> {
        std::mem::take(&mut self.broken)
    }

    /// Returns the targets that must be told that a message is not to be delivered, each once.
    pub fn take_farewells(&mut self) -> Vec<Farewell> {
        std::mem::take(&mut self.farewells)
    }

    /// Whether a transfer without an answer is behind one with an answer, to the same node and at the same priority. Its target
    /// is at work and will come to it, so chunks by memory FIFO would only be copied twice. A transfer of another priority has
    /// its own lane, and does not wait for this one.
    fn is_in_line(&self, at: usize) -> bool {
        let transfer = &self.transfers[at];
        // A chunk that has begun must be finished. Its target may copy the others without an answer.
        if transfer.piece.is_some() {
            return false;
        }
        let is_same_way =
            |other: &Transfer| (other.out.target, other.out.priority) == (transfer.out.target, transfer.out.priority);
        let is_before = |other: &Transfer| is_same_way(other) && other.get.is_some() && !other.drained;
        transfer.get.is_none() && self.transfers.iter().any(is_before)
    }

    fn count(&mut self) {
        self.active = self.transfers.iter().filter(|transfer| !transfer.drained).count();
    }

    fn free(&mut self, transfer: Transfer) {
        if let Some(Some(slots)) = self.slots.get_mut(transfer.out.target.index()) {
            slots.used &= !(1 << transfer.ticket.slot);
            for (_, ended) in (0..).zip(&mut slots.ended).filter(|(by, _)| transfer.goes_by(*by)) {
                *ended = ended.wrapping_add(1);
            }
        }
        self.count();
        transfer.partner.let_go();
        transfer.leave_fifos();
        self.reports.keep(transfer.report);
    }

    /// Withdraws a send. `None` if it is not a transfer. True if it was pending: then the target does not get the message.
    pub fn withdraw(&mut self, op: &Arc<Op>) -> Option<bool> {
        let at = self.transfers.iter().position(|transfer| Arc::ptr_eq(&transfer.op, op))?;
        if self.transfers[at].drained {
            return Some(false);
        }
        if !self.transfers[at].close() {
            self.transfers[at].zero();
            return Some(false);
        }
        if matches!(self.transfers[at].partner, Partner::Apart(..)) {
            // Its slot is not free before the target has answered. Until then another thread may look at it, and an operation
            // without an outcome would end as sent.
            self.farewells.extend(self.transfers[at].farewell());
            self.transfers[at].finish(Outcome::Failed(Error::Cancelled));
            self.count();
            return Some(true);
        }
        let transfer = self.transfers.swap_remove(at);
        transfer.partner.ring();
        self.free(transfer);
        Some(true)
    }

    /// A target is gone, or this node leaves: fails all transfers to that node, or all.
    pub fn fail(&mut self, target: Option<(NodeId, Incarnation)>, error: impl Fn() -> Error) {
        let mut at = 0;
        while let Some(transfer) = self.transfers.get(at) {
            let concerned = |(node, incarnation): (NodeId, Incarnation)| {
                transfer.out.target == node && transfer.partner.incarnation() == incarnation
            };
            if !target.is_none_or(concerned) {
                at += 1;
                continue;
            }
            let mut transfer = self.transfers.swap_remove(at);
            // What the target took before it went counts as sent; a message that was sent completely is the target's to finish.
            let is_near = matches!(transfer.partner, Partner::Near(..));
            if !transfer.look() && is_near && !transfer.drained && !transfer.close() {
                transfer.look();
            }
            transfer.finish(Outcome::Failed(error()));
            transfer.partner.ring();
            self.free(transfer);
        }
        if let Some((node, _)) = target
            && let Some(slots) = self.slots.get_mut(node.index())
        {
            // The next incarnation has an inbox of its own.
            *slots = None;
            self.farewells.retain(|farewell| farewell.out.target != node);
        }
    }

    /// Whether a transfer is worth it to a target that shares no memory and so copies nothing itself.
    pub fn is_worth_apart(&self, len: usize) -> bool {
        self.copy != CopySide::Auto || len >= APART_LEAST
    }

    /// Whether another transfer to a node is pending.
    pub fn has_any(&self, target: NodeId) -> bool {
        self.transfers.iter().any(|transfer| transfer.out.target == target && !transfer.drained)
    }

    /// Whether a message should be a transfer: this must be possible, and not slower than the lane. `is_idle`: no message is before it in
    /// the lane. `compares`: its time may be compared with those of others.
    pub fn is_worth(&mut self, peer: &Arc<PeerInbox>, local: &Local, order: &Order<'_>, is_idle: bool, compares: bool) -> bool {
        let in_region = local.is_in_region(order.bytes, order.len);
        let is_here = match peer.reach() {
            None if !in_region => return false,
            reach => reach.is_some_and(Reach::is_here),
        };
        if self.copy != CopySide::Auto || is_here {
            return order.len >= RENDEZVOUS_BYTES;
        }
        let is_idle = is_idle && !self.has_any(peer.id());
        let Some(slots) = self.slots.get_mut(peer.id().index()) else { return false };
        let choice = Choice { in_region, len: order.len, is_idle, compares, toll: cma::toll, now: world::now };
        slots.get_or_insert_default().way.is_transfer(&choice)
    }

    /// The number of private messages of about `len` bytes that may follow one through the lane without asking [`is_worth`](Self::is_worth).
    pub fn streak(&mut self, peer: &Arc<PeerInbox>, len: usize) -> u32 {
        match self.slots.get_mut(peer.id().index()) {
            // No end can copy from the other's private memory.
            _ if peer.reach().is_none() => STREAK,
            Some(Some(slot)) if self.copy == CopySide::Auto => slot.way.streak(len),
            _ => 0,
        }
    }

    /// Counts the messages that did not ask.
    pub fn count_streak(&mut self, peer: &Arc<PeerInbox>, len: usize, messages: u32) {
        if peer.reach().is_some()
            && let Some(Some(slot)) = self.slots.get_mut(peer.id().index())
        {
            slot.way.count(len, messages);
        }
    }
}

/// The length of a message's chunks: short enough that both ends get some, long enough that claiming costs little.
fn chunk_for(len: u64) -> u64 {
    (len / 16).next_power_of_two().clamp(CHUNK_LEAST, CHUNK_MOST)
}
