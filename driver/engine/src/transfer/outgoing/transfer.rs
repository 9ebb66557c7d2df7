//! One outgoing transfer.

use super::{Farewell, Route, TRY_AGAIN};
use crate::board::monitor::Monitor;
use crate::error::Error;
use crate::links::AnyLink;
use crate::message::outbound::Outbound;
use crate::mode::{Modes, MovedBytes};
use crate::sync::baton::Token;
use crate::sync::op::{Op, Outcome};
use crate::transfer::apart::Lending;
use crate::transfer::descriptor::{CHUNK_MOST, Names, RemoteGet, TransferId};
use crate::transfer::memory::Remote;
use crate::transfer::report::{Descriptor, TransferReport};
use crate::transfer::{ALONE_MOST, CopySide, Place};
use doorbell_fabric::Incarnation;
use doorbell_fabric::world;
use doorbell_shm::board::{Metric, Record, RecordKind};
use doorbell_shm::domain::PeerInbox;
use doorbell_shm::meeting::{Claim, End, Ends, Meetings, Moved, Refusal, RendezvousBlock, Run};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The length of one memory-FIFO packet.
const PIECE_BYTES: u64 = 16 << 10;
/// For a message shorter than this, the target gets a moment to answer...
const FIFO_AT_ONCE: u64 = 4 << 20;
/// ...of this length, before the first chunk goes by memory FIFO.
const ANSWER_WITHIN: Duration = Duration::from_micros(50);
/// A slow copy of a whole message by its target.
const ALONE_BYTES_PER_NANOSECOND: u64 = 4;
/// A target that has copied nothing for this long computes or sleeps, so the memory FIFO continues.
const PULLS_WITHIN: Duration = Duration::from_millis(10);
/// From this length on, the memory FIFO keeps a share of the message after the remote get has come...
const FIFO_GOES_ON: u64 = 16 << 20;
/// ...of one chunk in this many of the origin's.
const FIFO_SHARE: u32 = 4;

/// The other end, and how this one keeps in step with it.
#[derive(Clone)]
pub(super) enum Partner {
    /// By a rendezvous block that both share.
    Near(Arc<PeerInbox>, Meetings),
    /// By notices, because they share no memory.
    Apart(Incarnation, Arc<Lending>),
}

/// The part that one session puts.
pub(super) struct Part {
    /// The link that carries it.
    by: u8,
    /// The name of the message in the target's session.
    name: u64,
    /// The chunks of the part.
    run: Run,
    /// Whether the session has begun, or never will. `None`: it could not be asked yet.
    begun: Option<bool>,
}

/// An outgoing message that both ends move.
pub(super) struct Transfer {
    pub(super) out: Arc<Outbound>,
    pub(super) route: Route,
    pub(super) partner: Partner,
    /// The position of its descriptor in the injection FIFO of its priority, once it found room there.
    pub(super) fifo_slot: Option<u64>,
    /// The position of its direct put in the FIFO of high priority, once the target has answered.
    pub(super) put_slot: Option<u64>,
    pub(super) ticket: TransferId,
    pub(super) ends: Ends,
    pub(super) bytes: *const u8,
    pub(super) op: Arc<Op>,
    /// The chunk that is being sent as memory-FIFO packets: the next offset, and the bytes left.
    pub(super) piece: Option<(u64, u64)>,
    /// The target's answer, once it came.
    pub(super) get: Option<RemoteGet>,
    /// Where to put, if that is possible.
    pub(super) target: Option<Remote>,
    /// The parts that sessions put: all that was left when the target answered.
    pub(super) parts: Vec<Part>,
    /// Parts that no session can put. They go by memory FIFO when no other piece does.
    pub(super) left: Vec<(u64, u64)>,
    /// The puts as reported to the target: their bytes, and the chunks that are no longer touched, whether they were put or
    /// not.
    pub(super) put: Moved,
    /// The bytes that were not moved at the latest look at the send counter.
    pub(super) unmoved: u64,
    /// Counts turns: descriptors alternate.
    pub(super) turns: u32,
    pub(super) began: Instant,
    /// The bytes that the target had pulled at their latest change, and its time.
    pub(super) pulled: (u64, Instant),
    /// The op has ended and the bytes must not be used, but the target is not done yet.
    pub(super) drained: bool,
    /// The target broke the rules.
    pub(super) broken: bool,
    /// The target, which shares no memory, reported how the transfer ended.
    pub(super) answered: bool,
    pub(super) report: TransferReport,
    pub(super) monitor: Arc<Monitor>,
    pub(super) modes: Arc<Modes>,
}

// SAFETY: the maker of the SendOp keeps the bytes readable until its op ended or was removed. They are not touched after that.
unsafe impl Send for Transfer {}

impl Partner {
    pub(super) fn meeting(&self, ticket: TransferId) -> Option<&RendezvousBlock> {
        match self {
            Partner::Near(_, meetings) => meetings.get(usize::from(ticket.slot)),
            Partner::Apart(_, lending) => Some(&lending.meeting),
        }
    }

    /// The target's incarnation.
    pub(super) fn incarnation(&self) -> Incarnation {
        match self {
            Partner::Near(peer, _) => peer.incarnation(),
            Partner::Apart(incarnation, _) => *incarnation,
        }
    }

    /// Rings the target after a change that it can see.
    pub(super) fn ring(&self) {
        if let Partner::Near(peer, _) = self {
            peer.ring();
        }
    }

    /// Gives up. False if that is too late. Either way the sender may reuse its bytes afterwards.
    pub(super) fn close(&self, ticket: TransferId, ends: Ends) -> bool {
        match self {
            Partner::Near(peer, meetings) => {
                let meeting = meetings.get(usize::from(ticket.slot));
                meeting.is_some_and(|meeting| close_and_keep(meeting, u64::from(ticket.generation), ends, peer))
            }
            Partner::Apart(_, lending) => lending.take_back(),
        }
    }

    /// Ends the use of the bytes; the sender may reuse them afterwards.
    pub(super) fn let_go(&self) {
        if let Partner::Apart(_, lending) = self {
            lending.let_go();
        }
    }
}

impl Transfer {
    pub(super) fn meeting(&self) -> Option<&RendezvousBlock> {
        self.partner.meeting(self.ticket)
    }

    /// Gives up. False if that is too late.
    pub(super) fn close(&self) -> bool {
        self.partner.close(self.ticket, self.ends)
    }

    /// Ends the op. Before that, its receipt, if it has one, gets the moved bytes, and the readers of the bytes let go of them.
    pub(super) fn finish(&self, outcome: Outcome) {
        if matches!(outcome, Outcome::Sent)
            && let Some(receipt) = self.op.receipt()
        {
            self.op.set_receipt(self.modes.settle(&receipt, self.moved()));
        }
        self.partner.let_go();
        self.op.finish(outcome);
    }

    /// What moved the bytes, as far as this end knows. The target's figures are limited to the length of the message.
    fn moved(&self) -> MovedBytes {
        let Self { ends, report, .. } = self;
        let fifo = report.fifo.bytes.min(ends.len);
        let rest = ends.len - fifo;
        let (put, pulled) = match &self.partner {
            Partner::Near(..) => {
                let put = report.put.bytes.min(rest);
                let pulled = self.meeting().map_or(0, |meeting| meeting.pulled(u64::from(self.ticket.generation)));
                (put, pulled.min(rest - put))
            }
            Partner::Apart(..) => {
                let begun = self.parts.iter().filter(|part| part.begun == Some(true));
                (begun.map(|part| ends.place(part.run).1).sum::<u64>().min(rest), 0)
            }
        };
        MovedBytes { fifo, put, pulled }
    }

    /// Whether the transfer was closed.
    fn is_given_up(&self) -> bool {
        let progress = self.meeting().and_then(|meeting| meeting.progress(u64::from(self.ticket.generation)));
        progress.is_some_and(|progress| progress.closed)
    }

    /// Looks at its progress. True if it is over for both ends.
    pub(super) fn look(&mut self) -> bool {
        if self.op.is_done() && !self.drained {
            // It was cancelled while another thread held the engine. Its bytes are gone, and the rendezvous block is closed
            // already; or everything was on its way.
            match self.partner {
                Partner::Near(..) => return true,
                Partner::Apart(..) if self.is_given_up() => {}
                Partner::Apart(..) => self.zero(),
            }
        }
        let generation = u64::from(self.ticket.generation);
        let Some(progress) = self.meeting().and_then(|meeting| meeting.progress(generation)) else {
            self.broken();
            return true;
        };
        if progress.finished {
            // The target has all that sessions were to put, whether or not the sessions know it yet.
            if let Partner::Apart(_, lending) = &self.partner {
                (0..self.parts.len()).for_each(|at| lending.set_arrived(at));
            }
        }
        self.look_at_counter();
        if progress.finished {
            self.zero();
        }
        if progress.closed && !self.op.is_done() {
            // The target's receiver took the message and does not want the rest, or can't read it.
            let refusal = self.meeting().and_then(|meeting| meeting.refusal(generation));
            self.finish(refusal.map_or(Outcome::Sent, |why| Outcome::Failed(self.refused(why))));
        }
        match self.partner {
            Partner::Near(..) => progress.finished || progress.closed,
            Partner::Apart(..) => self.answered,
        }
    }

    /// The notice to the target if the transfer was given up here; returned once.
    pub(super) fn farewell(&mut self) -> Option<Farewell> {
        let Partner::Apart(incarnation, _) = self.partner else { return None };
        if self.drained || self.answered || !self.is_given_up() {
            return None;
        }
        self.drained = true;
        Some(Farewell { out: self.out.clone(), incarnation, ticket: self.ticket, was_taken: self.get.is_some() })
    }

    #[cold]
    fn refused(&self, why: Refusal) -> Error {
        let (len, node, at) = (self.ends.len, self.out.target, self.bytes);
        let why = match why {
            Refusal::Unreadable => "the system lets no other process read a part of that memory; send a copy of it".to_owned(),
            Refusal::Unwritable => format!("the system can't write to a part of the memory into which node {node} receives it"),
        };
        Error::Invalid { what: format!("a message of {len} bytes at {at:p} can't be sent to node {node}: {why}") }
    }

    /// Looks at the send counter: the bytes still to be moved. At zero the send is complete. It continues after that, so that
    /// the report tells how often the counter came to zero, and not how often the send was completed.
    pub(super) fn look_at_counter(&mut self) {
        if self.piece.is_some() {
            return;
        }
        let generation = u64::from(self.ticket.generation);
        let Some(meeting) = self.meeting() else { return };
        let pulled = meeting.pulled(generation);
        let Some(progress) = meeting.progress(generation) else { return };
        if pulled > self.ends.len {
            // The target can't read the message, or breaks the rules.
            return;
        }
        if pulled != self.pulled.0 {
            self.pulled = (pulled, world::now());
        }
        if let Partner::Apart(_, lending) = &self.partner {
            let lending = lending.clone();
            self.count_put(|at| lending.has_arrived(at));
        } else {
            self.report.pulled = Moved { bytes: pulled, chunks: progress.last.saturating_sub(self.report.put.chunks) };
        }
        let unmoved = self.ends.len.saturating_sub(self.report.fifo.bytes + self.report.put.bytes + pulled);
        self.report.zeroes += u32::from(unmoved == 0 && self.unmoved > 0);
        self.unmoved = unmoved;
        self.op.moved(self.ends.len - unmoved);
        if unmoved == 0 {
            self.zero();
        }
    }

    /// Counts what sessions were to put, as far as it `is_there`.
    fn count_put(&mut self, is_there: impl Fn(usize) -> bool) {
        if self.parts.is_empty() {
            return;
        }
        let mut put = Moved::default();
        for (at, part) in self.parts.iter().enumerate() {
            if part.begun == Some(true) && is_there(at) {
                put.add(self.ends.place(part.run).1, part.run.count);
            }
        }
        self.report.put = put;
    }

    pub(super) fn zero(&mut self) {
        if !self.drained {
            self.drained = true;
            self.op.moved(self.ends.len);
            let record = Record::new(RecordKind::Completed).peer(self.out.target).priority(self.out.priority);
            self.monitor.record(&record.transfer(self.ticket.word()).bytes(self.ends.len));
            self.monitor.tallies.add(Metric::Transfers, 1);
            self.finish(Outcome::Sent);
        }
    }

    /// Moves a chunk, or a part of one. False if there is nothing that could be moved now.
    pub(super) fn advance(&mut self, me: Token) -> bool {
        self.turns = self.turns.wrapping_add(1);
        let copy = self.route.copy;
        let Some(get) = self.get else {
            // A waiting target answers sooner than a chunk passes the lane.
            if world::since(self.began) < self.patience() {
                return false;
            }
            return self.push_piece(me);
        };
        if let (Partner::Apart(..), Place::Session(name)) = (&self.partner, get.target)
            && copy != CopySide::Target
        {
            // A chunk that has begun comes first.
            return if self.parts.is_empty() && self.piece.is_some() {
                self.push_piece(me)
            } else {
                self.put_rest(me, name, get.beside) || self.push_left(me)
            };
        }
        let puts = self.target.is_some() && copy != CopySide::Target && self.route.has_engine;
        if !puts {
            // A chunk that has begun must be finished. Beyond that, if one side can copy alone, it is faster than two with a
            // lane between them, unless the target is busy with other things.
            let is_pulled = get.pulls && self.piece.is_none() && world::since(self.pulled.1) < PULLS_WITHIN;
            return !is_pulled && self.push_piece(me);
        }
        let fifo_first = self.ends.len >= FIFO_GOES_ON && self.turns.is_multiple_of(FIFO_SHARE);
        if (fifo_first || self.piece.is_some()) && self.push_piece(me) {
            return true;
        }
        self.put_chunk() || (self.target.is_none() && self.push_piece(me))
    }

    /// How long the target is given to answer before the memory FIFO begins.
    fn patience(&self) -> Duration {
        match self.ends.len {
            _ if self.route.patient => PULLS_WITHIN,
            // The target may copy it without an answer.
            len if len <= ALONE_MOST => ANSWER_WITHIN + Duration::from_nanos(len / ALONE_BYTES_PER_NANOSECOND),
            ..FIFO_AT_ONCE => ANSWER_WITHIN,
            _ => Duration::ZERO,
        }
    }

    /// How long until the memory FIFO may take over what it left to the target, if that is still to come.
    pub(super) fn due(&self) -> Option<Duration> {
        match self.get {
            None => self.patience().checked_sub(world::since(self.began)),
            Some(get) if get.pulls && self.target.is_none() => PULLS_WITHIN.checked_sub(world::since(self.pulled.1)),
            // Another thread held what was needed.
            Some(_) if self.parts.iter().any(|part| part.begun.is_none()) => Some(TRY_AGAIN),
            _ => None,
        }
    }

    /// One memory-FIFO packet.
    fn push_piece(&mut self, me: Token) -> bool {
        let out = self.out.clone();
        // Not entered: this thread is inside already.
        let Some(mut state) = out.state.enter(me) else { return false };
        if state.incarnation != self.partner.incarnation() {
            return false;
        }
        if state.is_started() {
            return false;
        }
        let Some(link) = state.by(self.route.by) else { return false };
        let (is_remote, packet_bytes) = (link.is_remote(), link.packet_bytes() as u64);
        let (at, left) = match self.piece {
            Some(piece) => piece,
            None => match self.claim(End::First, 1) {
                Some(run) => {
                    self.set_piece(Some(self.ends.place(run)));
                    self.ends.place(run)
                }
                None => return false,
            },
        };
        // Datagrams of about the same length, since a short one costs as many calls as a long one.
        let most =
            if is_remote { left.div_ceil(left.div_ceil(packet_bytes.max(1)).max(1)) } else { PIECE_BYTES.min(packet_bytes) };
        let len = left.min(most);
        // SAFETY: `at + len` lies within the message (Ends::place), whose bytes are kept readable until the op ends.
        if !unsafe { state.push_chunk(self.route.by, self.ticket.word(), at, self.bytes.add(at as usize), len) } {
            return false;
        }
        drop(state);
        self.note(RecordKind::MemoryFifo, Metric::BytesFifo, at, len);
        self.set_piece((left > len).then_some((at + len, left - len)));
        self.report.execute(Descriptor::MemoryFifo, len);
        self.report.fifo.bytes += len;
        self.report.fifo.chunks += u64::from(self.piece.is_none());
        true
    }

    fn set_piece(&mut self, piece: Option<(u64, u64)>) {
        if let Partner::Apart(_, lending) = &self.partner
            && piece.is_some() != self.piece.is_some()
        {
            lending.set_piece(piece.is_some() || !self.left.is_empty());
        }
        self.piece = piece;
    }

    /// The send queue's number for a link of this network.
    fn by(&self, link: u8) -> u8 {
        link + self.route.by - self.route.apart.unwrap_or(self.route.by)
    }

    /// Whether it takes this link, or a part of it does.
    pub(super) fn goes_by(&self, by: u8) -> bool {
        self.route.by == by || self.route.beside.iter().any(|link| self.by(link) == by)
    }

    /// Divides all that is left among the links for which the target has a name. False if none has one.
    fn divide(&mut self, name: u64, beside: Names) -> bool {
        let Some(mut rest) = self.claim(End::Last, u64::MAX) else { return false };
        let named = (0..).zip(beside).filter_map(|(link, name)| name.map(|name| (self.by(link), name)));
        let named: Vec<_> = [(self.route.by, name)].into_iter().chain(named).collect();
        for (at, (by, name)) in named.iter().copied().enumerate() {
            let count = rest.count / (named.len() - at) as u64;
            if count > 0 {
                self.parts.push(Part { by, name, run: Run { first: rest.first, count }, begun: None });
                rest = Run { first: rest.first + count, count: rest.count - count };
            }
        }
        if let Partner::Apart(_, lending) = &self.partner {
            lending.offer(self.parts.iter().map(|part| self.ends.place(part.run)).map(|(at, len)| at..at + len));
        }
        true
    }

    /// The direct put of all that is left, by sessions. False if none can begin now, or all have begun.
    fn put_rest(&mut self, me: Token, name: u64, beside: Names) -> bool {
        if !self.parts.is_empty() && self.parts.iter().all(|part| part.begun.is_some()) {
            return false;
        }
        let out = self.out.clone();
        // Not entered: this thread is inside already.
        let Some(mut state) = out.state.enter(me) else { return false };
        if state.incarnation != self.partner.incarnation() || !state.has(self.route.by) {
            return false;
        }
        if self.parts.is_empty() && !self.divide(name, beside) {
            return false;
        }
        let Partner::Apart(_, lending) = &self.partner else { return false };
        let lending = lending.clone();
        let mut has_work = false;
        for at in 0..self.parts.len() {
            let Part { by, name, run, begun: None } = self.parts[at] else { continue };
            let (from, len) = self.ends.place(run);
            let begin = |link: &mut AnyLink| link.begin_transfer(name, from..from + len, self.ends.len, lending.part(at));
            // A link that is gone has no session.
            let begun = state.by(by).map_or(Some(false), begin);
            self.parts[at].begun = begun;
            has_work |= begun.is_some();
            match begun {
                Some(true) => {
                    state.part_went(self.route.by, by, len);
                    self.report.execute(Descriptor::DirectPut, len);
                    self.note(RecordKind::DirectPut, Metric::BytesPut, from, len);
                }
                Some(false) => {
                    // The target never requested it, or is gone.
                    lending.take_part(at);
                    self.left.push((from, len));
                }
                None => {}
            }
        }
        has_work
    }

    /// Sends a packet of a part that could not be put.
    fn push_left(&mut self, me: Token) -> bool {
        if self.piece.is_none() {
            let Some(next) = self.left.pop() else { return false };
            self.set_piece(Some(next));
        }
        self.push_piece(me)
    }

    /// Puts one chunk.
    fn put_chunk(&mut self) -> bool {
        // If the target pulls as well, both claim one chunk at a time, so that they end together.
        let most = if self.get.is_some_and(|get| get.pulls) { 1 } else { CHUNK_MOST / self.ends.chunk };
        let generation = u64::from(self.ticket.generation);
        let Some(claim) = self.meeting().map(|meeting| meeting.claim_put(generation, self.ends.chunks(), most)) else {
            return false;
        };
        if claim == Claim::Revoked {
            self.target = None;
            return false;
        }
        let Some(run) = self.claimed(claim) else { return false };
        let Some(target) = &self.target else { return false };
        let (at, len) = self.ends.place(run);
        self.put.chunks += run.count;
        // SAFETY: within the message (Ends::place), whose bytes are kept readable until the op ends.
        match unsafe { target.write(at, self.bytes.add(at as usize), len) } {
            Ok(()) => {
                self.put.bytes += len;
                self.report.put.add(len, run.count);
                self.report.execute(Descriptor::DirectPut, len);
                self.note(RecordKind::DirectPut, Metric::BytesPut, at, len);
            }
            Err(error) => {
                tracing::debug!(node = self.out.target.0, %error, "a direct put failed; the rest goes through the lane");
                self.target = None;
                self.piece = Some((at, len));
            }
        }
        // Also for a chunk that could not be put: a target that takes its buffer back waits for all chunks that were claimed.
        if let Some(meeting) = self.meeting() {
            meeting.set_put(self.put);
        }
        self.partner.ring();
        true
    }

    fn note(&self, kind: RecordKind, metric: Metric, at: u64, len: u64) {
        let record = Record::new(kind).peer(self.out.target).priority(self.out.priority);
        self.monitor.record(&record.transfer(self.ticket.word()).at(at).bytes(len));
        self.monitor.tallies.add(metric, len);
        if kind == RecordKind::DirectPut {
            self.monitor.tallies.add(Metric::DirectPuts, 1);
        }
    }

    fn claim(&mut self, end: End, most: u64) -> Option<Run> {
        let claim = self.meeting()?.claim(u64::from(self.ticket.generation), self.ends.chunks(), end, most);
        self.claimed(claim)
    }

    fn claimed(&mut self, claim: Claim) -> Option<Run> {
        match claim {
            Claim::Chunks(run) => Some(run),
            Claim::Met | Claim::Over | Claim::Revoked => None,
            Claim::Damaged => {
                self.close();
                self.broken();
                None
            }
        }
    }

    /// The target wrote something into the rendezvous block that no correct target writes.
    #[cold]
    fn broken(&mut self) {
        self.broken = true;
        self.finish(Outcome::Failed(Error::Damaged { node: self.out.target }));
    }
}

/// Closes a rendezvous block. After this the target does not read the message. A target in another process may still read,
/// without effect. A target in this process uses plain addresses, so this waits while it copies a chunk that it claimed before.
fn close_and_keep(meeting: &RendezvousBlock, generation: u64, ends: Ends, target: &PeerInbox) -> bool {
    let closed = meeting.close(generation);
    if closed && target.reach().is_some_and(|reach| reach.is_here()) {
        while let Some(progress) = meeting.progress(generation) {
            let last = progress.last.min(ends.chunks());
            let claimed = if last == 0 { 0 } else { ends.place(Run { first: ends.chunks() - last, count: last }).1 };
            if meeting.pulled(generation) + meeting.put().bytes >= claimed || !target.is_alive() {
                break;
            }
            world::yield_now();
        }
    }
    closed
}
