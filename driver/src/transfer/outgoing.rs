//! The origin's end: an RTS, memory-FIFO packets from the first end of the buffer, and, once the remote get has come, direct puts
//! from the last end, until the ends meet.

use super::descriptor::{CHUNK_LEAST, CHUNK_MOST, DirectPut, RemoteGet, Ticket};
use super::memory::{Local, Remote};
use super::report::{Descriptor, Reports, Side, TransferReport};
use super::way::Way;
use super::{Copy, LEAST_SHARE, Place};
use crate::engine::baton::Token;
use crate::engine::monitor::Monitor;
use crate::engine::op::{Op, Outcome};
use crate::error::Error;
use crate::message::outbound::{OutState, Outbound};
use doorbell_fabric::{Incarnation, NodeId, PRIORITIES, Push};
use doorbell_shm::board::{Figure, Record, RecordKind};
use doorbell_shm::cma;
use doorbell_shm::domain::PeerInbox;
use doorbell_shm::meeting::{Claim, End, Ends, MEETINGS, Meeting, Meetings, Moved, Refusal, Run};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of one memory-FIFO packet.
const PIECE_BYTES: u64 = 16 << 10;
/// A message shorter than this gives the target a moment to answer...
const FIFO_AT_ONCE: u64 = 4 << 20;
/// ...of so long, before its first chunk goes by memory FIFO.
const ANSWER_WITHIN: Duration = Duration::from_micros(50);
/// A target that has not copied anything for so long computes, or sleeps: the memory FIFO goes on.
const PULLS_WITHIN: Duration = Duration::from_millis(10);
/// From this length on the memory FIFO keeps a share of the message after the remote get has come...
const FIFO_GOES_ON: u64 = 16 << 20;
/// ...of one chunk in so many of the origin's.
const FIFO_SHARE: u32 = 4;

/// What this node is sending by transfers.
pub struct Outgoing {
    transfers: Vec<Transfer>,
    /// Slots in use, and their latest generations, by target.
    slots: Vec<Option<Box<Slots>>>,
    copy: Copy,
    from_high: bool,
    turns: u32,
    /// Transfers for which somebody waits.
    active: usize,
    /// Targets that broke the rules of a meeting.
    broken: Vec<NodeId>,
    reports: Reports,
    monitor: Arc<Monitor>,
}

#[derive(Clone, Default)]
struct Slots {
    used: u32,
    generations: [u16; MEETINGS],
    way: Way,
}

const _: () = assert!(MEETINGS <= 32);

struct Transfer {
    out: Arc<Outbound>,
    peer: Arc<PeerInbox>,
    meetings: Meetings,
    ticket: Ticket,
    ends: Ends,
    bytes: *const u8,
    op: Arc<Op>,
    /// The chunk that memory-FIFO packets are being made of: where it goes on, and how much is left.
    piece: Option<(u64, u64)>,
    /// What the target said, once it did.
    get: Option<RemoteGet>,
    /// Where to put, if that is possible.
    target: Option<Remote>,
    /// What the target is told of puts: their bytes, and the chunks that are not touched any more, be they put or not.
    put: Moved,
    /// Descriptors alternate.
    turns: u32,
    began: Instant,
    /// Bytes that the target had pulled when that last changed, and when that was.
    pulled: (u64, Instant),
    /// The op has ended, and the bytes are not ours any more; the target is not done yet.
    drained: bool,
    /// The target broke the rules.
    broken: bool,
    report: TransferReport,
    monitor: Arc<Monitor>,
}

// SAFETY: the bytes are kept readable by whoever made the SendOp until its op ended or was removed, and are not touched after that.
unsafe impl Send for Transfer {}

/// What became of an attempt to begin.
pub enum Begun {
    /// It is under way, and will end its op.
    Yes,
    /// There is no room in the lane for the RTS.
    Full,
    /// Too many transfers to this node are under way: the message goes through the lane.
    NoSlot,
    /// The lane can't be used.
    Down,
}

/// A message to be moved from both ends.
pub struct Order<'a> {
    /// Its tag.
    pub tag: u64,
    /// Its bytes, as [`SendOp::new`](crate::message::outbound::SendOp::new) asks for them.
    pub bytes: *const u8,
    /// How many.
    pub len: usize,
    /// Where its end is told.
    pub op: &'a Arc<Op>,
}

impl Outgoing {
    /// Nothing, to any of `nodes` nodes.
    pub fn new(nodes: usize, copy: Copy, from_high: bool, monitor: Arc<Monitor>) -> Self {
        Self {
            transfers: Vec::new(),
            slots: vec![None; nodes],
            copy,
            from_high,
            turns: 0,
            active: 0,
            broken: Vec::new(),
            reports: Reports::default(),
            monitor,
        }
    }

    /// Whether nothing is under way.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.transfers.is_empty()
    }

    /// Whether somebody waits for what is under way.
    #[inline(always)]
    pub fn is_active(&self) -> bool {
        self.active > 0
    }

    /// How long until something may be done here that nobody rings for; `None` if there is no such thing.
    pub fn due(&self) -> Option<Duration> {
        let waiting = (0..self.transfers.len()).filter(|at| !self.transfers[*at].drained && !self.is_in_line(*at));
        waiting.filter_map(|at| self.transfers[at].due()).min()
    }

    /// How many are under way, by priority.
    pub fn depths(&self) -> [usize; PRIORITIES] {
        let mut depths = [0; PRIORITIES];
        for transfer in &self.transfers {
            depths[transfer.out.priority.index()] += usize::from(!transfer.drained);
        }
        depths
    }

    /// The latest that ended.
    pub fn reports(&mut self) -> &mut Reports {
        &mut self.reports
    }

    /// Injects the RTS of a message. The caller holds the way out, and nothing is queued before this message.
    pub fn begin(
        &mut self,
        peer: &Arc<PeerInbox>,
        out: &Arc<Outbound>,
        state: &mut OutState,
        local: &Local,
        order: &Order<'_>,
    ) -> Begun {
        let Some(slots) = self.slots.get_mut(out.target.index()) else { return Begun::NoSlot };
        let slots = slots.get_or_insert_default();
        let meetings = Meetings::with_target(peer);
        // What an earlier life of this node announced and its target has not seen yet must stay as it is.
        let is_free = |slot: &usize| {
            let is_known = slots.generations[*slot] != 0;
            slots.used & 1 << slot == 0 && (is_known || meetings.get(*slot).is_some_and(Meeting::is_over))
        };
        let Some(slot) = (0..MEETINGS).find(is_free) else { return Begun::NoSlot };
        let Some(meeting) = meetings.get(slot) else { return Begun::NoSlot };
        let latest = match slots.generations[slot] {
            // An earlier life of this node may have used it, and its target may not be done with that.
            0 => meeting.generation(),
            latest => u64::from(latest),
        };
        let generation = Meeting::next_generation(latest);
        let ticket = Ticket { slot: slot as u16, generation: generation as u16 };
        let ends = Ends { len: order.len as u64, chunk: chunk_for(order.len as u64), from_high: self.from_high };
        // The packet publishes it.
        meeting.open(generation);
        let source = if self.copy == Copy::Origin { Place::Nowhere } else { local.place(order.bytes, order.len) };
        let rts = DirectPut { ticket, ends, source }.encode();
        match state.push_rts(order.tag, order.len, &rts) {
            Push::Done => {}
            failed => {
                // The next attempt has the same name: there are not so many.
                meeting.close(generation);
                return if failed == Push::Full { Begun::Full } else { Begun::Down };
            }
        }
        slots.generations[slot] = generation as u16;
        slots.used |= 1 << slot;
        let mut report = TransferReport::new(Side::Origin, out.target, order.tag, ends);
        report.execute(Descriptor::Rts, 0);
        let (at_target, target) = (meetings.clone(), peer.clone());
        order.op.set_closer(Box::new(move || {
            at_target.get(slot).is_some_and(|meeting| close_and_keep(meeting, generation, ends, &target))
        }));
        self.transfers.push(Transfer {
            out: out.clone(),
            peer: peer.clone(),
            meetings,
            ticket,
            ends,
            bytes: order.bytes,
            op: order.op.clone(),
            piece: None,
            get: None,
            target: None,
            put: Moved::default(),
            turns: 0,
            began: Instant::now(),
            pulled: (0, Instant::now()),
            drained: false,
            broken: false,
            report,
            monitor: self.monitor.clone(),
        });
        self.active += 1;
        let record = Record::new(RecordKind::Rts).peer(out.target).priority(out.priority);
        self.monitor.record(&record.transfer(ticket.word()).bytes(order.len as u64));
        self.monitor.tallies.add(Figure::Rts, 1);
        Begun::Yes
    }

    /// A remote get came: the direct-put descriptor is back. False if it is of no transfer of ours, which is as good as late.
    pub fn acknowledge(&mut self, source: NodeId, get: RemoteGet, local: &Local) -> bool {
        let found = self.transfers.iter_mut().find(|transfer| transfer.out.target == source && transfer.ticket == get.ticket);
        let Some(transfer) = found.filter(|transfer| transfer.get.is_none()) else { return false };
        transfer.get = Some(get);
        if let Some(Some(slots)) = self.slots.get_mut(source.index()) {
            slots.way.refused = get.target == Place::Nowhere;
        }
        transfer.target = Remote::of(get.target, transfer.ends.len, &transfer.peer, local, true);
        true
    }

    /// Moves a chunk of one transfer, the one of the highest priority that has something to move; now and then of the lowest.
    /// Ends those that are through. Returns the amount of work done.
    pub fn step(&mut self, me: Token) -> usize {
        let before = self.transfers.len();
        let mut at = 0;
        while let Some(transfer) = self.transfers.get_mut(at) {
            if transfer.look() {
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
        let lowest_first = self.turns.is_multiple_of(LEAST_SHARE);
        for rank in 0..PRIORITIES {
            let priority = if lowest_first { PRIORITIES - 1 - rank } else { rank };
            let count = self.transfers.len();
            for offset in 0..count {
                // Those of one priority take turns.
                let at = (self.turns as usize + offset) % count;
                if self.transfers[at].out.priority.index() != priority || self.transfers[at].drained || self.is_in_line(at) {
                    continue;
                }
                let transfer = &mut self.transfers[at];
                if transfer.advance(me, self.copy) {
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

    /// Targets that broke the rules of a meeting, told once.
    pub fn take_broken(&mut self) -> Vec<NodeId> {
        std::mem::take(&mut self.broken)
    }

    /// Whether a transfer that was not answered stands behind one that was, to the same node: its target is at work, and will come to
    /// it. Chunks by memory FIFO would only be copied twice.
    fn is_in_line(&self, at: usize) -> bool {
        let transfer = &self.transfers[at];
        let is_before = |other: &Transfer| other.out.target == transfer.out.target && other.get.is_some() && !other.drained;
        transfer.get.is_none() && self.transfers.iter().any(is_before)
    }

    fn count(&mut self) {
        self.active = self.transfers.iter().filter(|transfer| !transfer.drained).count();
    }

    fn free(&mut self, transfer: Transfer) {
        if let Some(Some(slots)) = self.slots.get_mut(transfer.out.target.index()) {
            slots.used &= !(1 << transfer.ticket.slot);
        }
        self.count();
        self.reports.keep(transfer.report);
    }

    /// Takes a send back. `None` if it is no transfer; true if it was under way: then the target gets nothing of it.
    pub fn withdraw(&mut self, op: &Arc<Op>) -> Option<bool> {
        let at = self.transfers.iter().position(|transfer| Arc::ptr_eq(&transfer.op, op))?;
        if self.transfers[at].drained {
            return Some(false);
        }
        let transfer = self.transfers.swap_remove(at);
        let closed = transfer.close();
        if !closed {
            transfer.op.finish(Outcome::Sent);
        }
        transfer.peer.ring();
        self.free(transfer);
        Some(closed)
    }

    /// A target is gone, or this node leaves: everything to that node, or to all, fails.
    pub fn fail(&mut self, target: Option<(NodeId, Incarnation)>, error: impl Fn() -> Error) {
        let mut at = 0;
        while let Some(transfer) = self.transfers.get(at) {
            let concerned =
                |(node, life): (NodeId, Incarnation)| transfer.out.target == node && transfer.peer.incarnation() == life;
            if !target.is_none_or(concerned) {
                at += 1;
                continue;
            }
            let mut transfer = self.transfers.swap_remove(at);
            // What the target took before it went was sent; and one that was sent whole is the target's to finish.
            if !transfer.look() && !transfer.drained && !transfer.close() {
                transfer.look();
            }
            transfer.op.finish(Outcome::Failed(error()));
            transfer.peer.ring();
            self.free(transfer);
        }
        if let Some((node, _)) = target
            && let Some(slots) = self.slots.get_mut(node.index())
        {
            // The next life has an inbox of its own.
            *slots = None;
        }
    }

    /// Whether a message is to be moved from both ends: this can be done, and is not slower than its way through the lane. `first`: no
    /// other waits for that.
    pub fn is_worth(&mut self, peer: &Arc<PeerInbox>, local: &Local, bytes: *const u8, len: usize, first: bool) -> bool {
        if local.is_in_region(bytes, len) {
            return true;
        }
        let Some(reach) = peer.reach() else { return false };
        if self.copy != Copy::Auto || reach.is_here() {
            return true;
        }
        let alone = first && !self.transfers.iter().any(|transfer| transfer.out.target == peer.id() && !transfer.drained);
        let Some(slots) = self.slots.get_mut(peer.id().index()) else { return false };
        slots.get_or_insert_default().way.is_kernel(cma::toll(), len, alone)
    }
}

impl Transfer {
    fn meeting(&self) -> Option<&Meeting> {
        self.meetings.get(usize::from(self.ticket.slot))
    }

    /// Gives up. False if that is too late.
    fn close(&self) -> bool {
        let generation = u64::from(self.ticket.generation);
        self.meeting().is_some_and(|meeting| close_and_keep(meeting, generation, self.ends, &self.peer))
    }

    /// Looks how far it is. True if it is over for both ends.
    fn look(&mut self) -> bool {
        if self.op.is_done() && !self.drained {
            // Cancelled where the engine was out of reach: the bytes are gone, and the meeting is closed already.
            return true;
        }
        let generation = u64::from(self.ticket.generation);
        let Some(progress) = self.meeting().and_then(|meeting| meeting.progress(generation)) else {
            self.broken();
            return true;
        };
        self.look_at_counter();
        if progress.finished {
            self.zero();
        }
        if progress.closed {
            // From over there: its receiver took it and wants no more of it, or can't.
            let refusal = self.meeting().and_then(|meeting| meeting.refusal(generation));
            self.op.finish(refusal.map_or(Outcome::Sent, |why| Outcome::Failed(self.refused(why))));
        }
        progress.finished || progress.closed
    }

    #[cold]
    fn refused(&self, why: Refusal) -> Error {
        let (len, node, at) = (self.ends.len, self.out.target, self.bytes);
        let why = match why {
            Refusal::Unreadable => "the system lets no other process read a part of its memory; send a copy of it".to_owned(),
            Refusal::Unwritable => format!("the system can't write a part of the memory that node {node} receives it into"),
        };
        Error::Invalid { what: format!("a message of {len} bytes at {at:p} can't be sent to node {node}: {why}") }
    }

    /// The send counter: what is still to move. At zero the send is complete.
    fn look_at_counter(&mut self) {
        if self.drained || self.piece.is_some() {
            return;
        }
        let generation = u64::from(self.ticket.generation);
        let Some(meeting) = self.meeting() else { return };
        let pulled = meeting.pulled(generation);
        let Some(progress) = meeting.progress(generation) else { return };
        if pulled > self.ends.len {
            // It can't read the message, or lies.
            return;
        }
        if pulled != self.pulled.0 {
            self.pulled = (pulled, Instant::now());
        }
        self.report.pulled = Moved { bytes: pulled, chunks: progress.last.saturating_sub(self.report.put.chunks) };
        let moved = self.report.fifo.bytes + self.report.put.bytes;
        if moved + pulled >= self.ends.len {
            self.zero();
        }
    }

    fn zero(&mut self) {
        if !self.drained {
            self.drained = true;
            self.report.zeroes += 1;
            let record = Record::new(RecordKind::Completed).peer(self.out.target).priority(self.out.priority);
            self.monitor.record(&record.transfer(self.ticket.word()).bytes(self.ends.len));
            self.monitor.tallies.add(Figure::Transfers, 1);
            self.op.finish(Outcome::Sent);
        }
    }

    /// Moves a chunk, or a part of one, in one way or the other. False if there is nothing that could be moved now.
    fn advance(&mut self, me: Token, copy: Copy) -> bool {
        self.turns = self.turns.wrapping_add(1);
        let Some(get) = self.get else {
            // A target that waits answers sooner than a chunk is through the lane.
            if self.ends.len < FIFO_AT_ONCE && self.began.elapsed() < ANSWER_WITHIN {
                return false;
            }
            return self.push_piece(me);
        };
        let puts = self.target.is_some() && copy != Copy::Target;
        if !puts {
            // A chunk that was begun has to be finished; beyond that, whoever can copy alone is faster than two with a lane between: unless
            // it has turned to other things.
            let is_pulled = get.pulls && self.piece.is_none() && self.pulled.1.elapsed() < PULLS_WITHIN;
            return !is_pulled && self.push_piece(me);
        }
        let fifo_first = self.ends.len >= FIFO_GOES_ON && self.turns.is_multiple_of(FIFO_SHARE);
        if (fifo_first || self.piece.is_some()) && self.push_piece(me) {
            return true;
        }
        self.put_chunk() || (self.target.is_none() && self.push_piece(me))
    }

    /// How long until the memory FIFO may do what it left to the target, if that lies ahead.
    fn due(&self) -> Option<Duration> {
        match self.get {
            None if self.ends.len < FIFO_AT_ONCE => ANSWER_WITHIN.checked_sub(self.began.elapsed()),
            Some(get) if get.pulls && self.target.is_none() => PULLS_WITHIN.checked_sub(self.pulled.1.elapsed()),
            _ => None,
        }
    }

    /// One memory-FIFO packet.
    fn push_piece(&mut self, me: Token) -> bool {
        let out = self.out.clone();
        // Not entered: this thread is inside already.
        let Some(mut state) = out.state.enter(me) else { return false };
        if state.incarnation != self.peer.incarnation() {
            return false;
        }
        let Some(most) = state.link.as_ref().map(|link| PIECE_BYTES.min(link.packet_bytes() as u64)) else { return false };
        if state.is_started() {
            return false;
        }
        let (at, left) = match self.piece {
            Some(piece) => piece,
            None => match self.claim(End::First, 1) {
                Some(run) => *self.piece.insert(self.ends.place(run)),
                None => return false,
            },
        };
        let len = left.min(most);
        // SAFETY: `at + len` lies within the message (Ends::place), whose bytes are kept readable until the op ends.
        if !unsafe { state.push_chunk(self.ticket.word(), at, self.bytes.add(at as usize), len) } {
            return false;
        }
        drop(state);
        self.note(RecordKind::MemoryFifo, Figure::BytesFifo, at, len);
        self.piece = (left > len).then_some((at + len, left - len));
        self.report.execute(Descriptor::MemoryFifo, len);
        self.report.fifo.bytes += len;
        self.report.fifo.chunks += u64::from(self.piece.is_none());
        true
    }

    /// One direct put.
    fn put_chunk(&mut self) -> bool {
        // Where the target pulls as well, both claim chunk by chunk, so as to end at once.
        let most = if self.get.is_some_and(|get| get.pulls) { 1 } else { CHUNK_MOST / self.ends.chunk };
        let Some(run) = self.claim(End::Last, most) else { return false };
        let Some(target) = &self.target else { return false };
        let (at, len) = self.ends.place(run);
        self.put.chunks += run.count;
        // SAFETY: within the message (Ends::place), whose bytes are kept readable until the op ends.
        match unsafe { target.write(at, self.bytes.add(at as usize), len) } {
            Ok(()) => {
                self.put.bytes += len;
                self.report.put.add(len, run.count);
                self.report.execute(Descriptor::DirectPut, len);
                self.note(RecordKind::DirectPut, Figure::BytesPut, at, len);
            }
            Err(error) => {
                tracing::debug!(node = self.out.target.0, %error, "a direct put failed; the rest goes through the lane");
                self.target = None;
                self.piece = Some((at, len));
            }
        }
        // Of a chunk that could not be put, too: a target that takes its buffer back waits for all that were claimed.
        if let Some(meeting) = self.meeting() {
            meeting.set_put(self.put);
        }
        self.peer.ring();
        true
    }

    fn note(&self, kind: RecordKind, figure: Figure, at: u64, len: u64) {
        let record = Record::new(kind).peer(self.out.target).priority(self.out.priority);
        self.monitor.record(&record.transfer(self.ticket.word()).at(at).bytes(len));
        self.monitor.tallies.add(figure, len);
        if kind == RecordKind::DirectPut {
            self.monitor.tallies.add(Figure::DirectPuts, 1);
        }
    }

    fn claim(&mut self, end: End, most: u64) -> Option<Run> {
        match self.meeting()?.claim(u64::from(self.ticket.generation), self.ends.chunks(), end, most) {
            Claim::Chunks(run) => Some(run),
            Claim::Met | Claim::Over => None,
            Claim::Damaged => {
                self.close();
                self.broken();
                None
            }
        }
    }

    /// The target wrote into the meeting what no target does.
    #[cold]
    fn broken(&mut self) {
        self.broken = true;
        self.op.finish(Outcome::Failed(Error::Damaged { node: self.out.target }));
    }
}

/// Closes a meeting. After this the target does not read the message: one in another process may, to no effect, but one in this
/// process follows addresses, and so is waited for while it copies the chunk that it claimed before.
fn close_and_keep(meeting: &Meeting, generation: u64, ends: Ends, target: &PeerInbox) -> bool {
    let closed = meeting.close(generation);
    if closed && target.reach().is_some_and(|reach| reach.is_here()) {
        while let Some(progress) = meeting.progress(generation) {
            let last = progress.last.min(ends.chunks());
            let claimed = if last == 0 { 0 } else { ends.place(Run { first: ends.chunks() - last, count: last }).1 };
            if meeting.pulled(generation) + meeting.put().bytes >= claimed || !target.is_alive() {
                break;
            }
            std::thread::yield_now();
        }
    }
    closed
}

/// How long the chunks of a message are: short enough that both ends get some, long enough that claiming them costs little.
fn chunk_for(len: u64) -> u64 {
    (len / 16).next_power_of_two().clamp(CHUNK_LEAST, CHUNK_MOST)
}
