//! The target's end: an RTS is matched to a receive, or waits in the pool; chunks come by memory FIFO and direct put, and the target
//! pulls its own.

use super::apart::Landing;
use super::descriptor::{CHUNK_MOST, DirectPut, Names, Over, RemoteGet, Ticket};
use super::memory::{Local, Remote};
use super::report::{Descriptor, Reports, Side, TransferReport};
use super::{Copy, Place};
use crate::board::monitor::Monitor;
use crate::error::Error;
use crate::message::receive::RecvOp;
use crate::sync::op::Outcome;
use doorbell_fabric::world;
use doorbell_fabric::{Envelope, NodeId, PRIORITIES, Payload};
use doorbell_shm::board::{Figure, Record, RecordKind};
use doorbell_shm::domain::{Membership, PeerInbox};
use doorbell_shm::meeting::{Claim, End, Meeting, Meetings, Moved, Refusal};
use doorbell_udp::fabric::BytesIn;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A transfer on its way in.
pub struct Incoming {
    /// Names it among those of this node: entries of the pool refer to it.
    pub id: u64,
    /// The lane that brought it.
    pub lane: usize,
    /// What the message says of itself.
    pub envelope: Envelope,
    /// Dropped before `sink`, whose memory it stores into.
    origin: Origin,
    /// Where it goes.
    pub sink: Sink,
    put: DirectPut,
    /// Where the next piece of a chunk goes, if none begins.
    next: u64,
    /// How the origin's bytes are reached; resolved when the RTS is acknowledged.
    source: Option<Remote>,
    /// The RTS was answered.
    acknowledged: bool,
    /// The origin was told where to put, so the buffer can't be given back before it lets go.
    granted: bool,
    /// All chunks are claimed, or the transfer is over: there is nothing left to copy here.
    met: bool,
    /// Chunks claimed here, copied or not.
    claimed: u64,
    report: TransferReport,
}

/// How this end keeps in step with the origin.
// Not boxed: a transfer is made for large messages only.
#[allow(clippy::large_enum_variant)]
enum Origin {
    /// By a meeting that both have.
    Near(Meetings),
    /// By words, as they share no memory.
    Apart(Landing),
}

/// Where a transfer goes.
pub enum Sink {
    /// To a receive, whose buffer is long enough.
    Receive(RecvOp),
    /// To a receive whose buffer is too short: kept for the error that owns it.
    TooLong(RecvOp, Pieces),
    /// To temporary storage: nobody has asked for it yet.
    Pool(Pieces),
    /// To temporary storage, as it was taken back from a receive: what had arrived is in it, where it belongs. With the receive that
    /// has asked for it since, if one has.
    Kept(Vec<u8>, Option<RecvOp>),
    /// The receive that had begun to take it was cancelled from within recv_with: its buffer is gone.
    /// With the length for which room was reserved in the pool, if it was.
    Nowhere(Option<usize>),
}

/// Bits of a generation.
const GENERATION_MASK: u16 = (1 << 14) - 1;
/// How long an origin that broke the rules, or can't say so, may take to let go of a buffer.
const SETTLE: Duration = Duration::from_millis(100);
/// Memory for parts is asked for in multiples of so many bytes.
const PARTS_STEP: usize = 64 << 10;

/// Parts of a message with their offsets, in the order in which they came. Memory is taken as bytes arrive: a length that a peer
/// only spoke of costs nothing.
#[derive(Default)]
pub struct Pieces(Vec<(u64, Vec<u8>)>);

impl Pieces {
    fn push(&mut self, at: u64, payload: Payload<'_>) {
        match self.0.last_mut() {
            // What follows goes on where the last one ended, as long as that one does not have to move.
            Some((start, bytes)) if *start + bytes.len() as u64 == at && bytes.capacity() - bytes.len() >= payload.len() => {
                payload.append_to(bytes);
            }
            _ => {
                let mut bytes = Vec::with_capacity(payload.len().next_multiple_of(PARTS_STEP));
                payload.append_to(&mut bytes);
                self.0.push((at, bytes));
            }
        }
    }

    /// Copies everything to its place.
    fn copy_to(&self, mut write: impl FnMut(u64, &[u8])) {
        for (at, bytes) in &self.0 {
            write(*at, bytes);
        }
    }

    /// The whole message, which all pieces together are.
    pub fn assemble(mut self, len: usize) -> Vec<u8> {
        if let [(0, bytes)] = &mut self.0[..]
            && bytes.len() == len
        {
            return std::mem::take(bytes);
        }
        self.0.sort_by_key(|(at, _)| *at);
        let mut whole = Vec::with_capacity(len);
        self.0.into_iter().for_each(|(_, bytes)| whole.extend_from_slice(&bytes));
        // A peer that sent one place twice and left out another harms its own message only.
        whole.resize(len, 0);
        whole
    }
}

/// What origins that share no memory gave up before its RTS was taken. They use a slot again when they were answered, so one for each will do.
#[derive(Default)]
pub struct GivenUp(HashMap<(NodeId, u16), u16>);

impl GivenUp {
    /// A word of this is here, and the RTS is not; or no more, if that is over by another word that is under way.
    pub fn note(&mut self, source: NodeId, ticket: Ticket) {
        let known = self.0.entry((source, ticket.slot)).or_insert(ticket.generation);
        // A word of an earlier use may be late.
        if (ticket.generation.wrapping_sub(*known) & GENERATION_MASK) < GENERATION_MASK / 2 {
            *known = ticket.generation;
        }
    }

    /// Whether an RTS came too late. What is known of its slot is used up: it is of this use, or of one before.
    pub fn take(&mut self, source: NodeId, ticket: Ticket) -> bool {
        self.0.remove(&(source, ticket.slot)) == Some(ticket.generation)
    }

    /// A node is gone.
    pub fn forget(&mut self, source: NodeId) {
        self.0.retain(|(node, _), _| *node != source);
    }
}

/// What a look at a transfer brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// It goes on.
    Underway,
    /// All of it is there, and the origin knows.
    Complete,
    /// The origin gave it up: it is not delivered.
    GivenUp,
    /// The origin said what can't be.
    Broken(&'static str),
}

impl Origin {
    fn meeting(&self, ticket: Ticket) -> Option<&Meeting> {
        match self {
            Origin::Near(meetings) => meetings.get(usize::from(ticket.slot)),
            Origin::Apart(landing) => Some(&landing.meeting),
        }
    }
}

impl Incoming {
    /// A transfer that an RTS announced.
    pub fn new(id: u64, lane: usize, envelope: Envelope, put: DirectPut, sink: Sink, membership: &Arc<Membership>) -> Self {
        let origin = match put.apart {
            Some(_) => Origin::Apart(Landing::new(put.ends.len, u64::from(put.ticket.generation))),
            None => Origin::Near(Meetings::with_origin(membership, envelope.source)),
        };
        let report = TransferReport::new(Side::Target, envelope.source, envelope.tag, put.ends);
        Self {
            id,
            lane,
            envelope,
            sink,
            put,
            origin,
            next: 0,
            source: None,
            acknowledged: false,
            granted: false,
            met: false,
            claimed: 0,
            report,
        }
    }

    /// The receive it goes to, if there is one.
    pub fn receive(&self) -> Option<&RecvOp> {
        match &self.sink {
            Sink::Receive(receive) | Sink::TooLong(receive, _) | Sink::Kept(_, Some(receive)) => Some(receive),
            _ => None,
        }
    }

    /// Whether a node that shares no memory means this one.
    pub fn is_apart(&self, source: NodeId, ticket: Ticket) -> bool {
        self.envelope.source == source && self.put.ticket == ticket && self.landing().is_some()
    }

    /// Whether it comes by a network.
    pub fn comes_apart(&self) -> bool {
        self.put.apart.is_some()
    }

    /// Whether a memory-FIFO packet of this lane belongs to it.
    pub fn is(&self, lane: usize, ticket: Ticket) -> bool {
        self.lane == lane && self.put.ticket == ticket
    }

    /// Whether a transfer of this lane's node uses the same slot: of two such transfers one is over.
    pub fn shares_slot(&self, lane: usize, ticket: Ticket) -> bool {
        self.lane / PRIORITIES == lane / PRIORITIES && self.put.ticket.slot == ticket.slot
    }

    /// Whether it was over before it came: its RTS waited in a lane while it was taken back, and its slot perhaps given to another.
    pub fn came_too_late(&self) -> bool {
        let progress = self.meeting().and_then(|meeting| meeting.progress(self.generation()));
        progress.is_none_or(|progress| progress.closed)
    }

    fn meeting(&self) -> Option<&Meeting> {
        self.origin.meeting(self.put.ticket)
    }

    /// The origin's other half, if the two share no memory.
    fn landing(&self) -> Option<&Landing> {
        match &self.origin {
            Origin::Apart(landing) => Some(landing),
            Origin::Near(_) => None,
        }
    }

    /// What the origin has to be told of the end, as it can't see it.
    pub fn farewell(&self, look: Look) -> Option<(Ticket, Over)> {
        self.landing()?;
        match look {
            Look::Complete => Some((self.put.ticket, Over::Finished)),
            Look::GivenUp => Some((self.put.ticket, Over::Refused)),
            Look::Underway | Look::Broken(_) => None,
        }
    }

    fn generation(&self) -> u64 {
        u64::from(self.put.ticket.generation)
    }

    /// The same for an origin that shares no memory: `name` asks a link of the network to store the message, and how it calls it.
    pub fn answer_apart(&mut self, copy: Copy, name: impl FnMut(u8, &Arc<dyn BytesIn>) -> Option<u64>) -> Option<RemoteGet> {
        let (Sink::Receive(receive), Origin::Apart(landing)) = (&self.sink, &mut self.origin) else { return None };
        let link = self.put.apart?;
        if self.acknowledged || receive.op.is_done() || self.report.fifo.bytes == self.put.ends.len {
            return None;
        }
        let mut beside = match copy {
            Copy::Target => Names::default(),
            // SAFETY: the message fits (Sink), and `detach` and the drop of this make the landing let go before the receive's buffer is
            // somebody else's.
            _ => unsafe { landing.open(receive.ptr, &receive.op, self.put.beside.with(link), name) },
        };
        let target = match beside[usize::from(link)].take() {
            Some(name) => Place::Session(name),
            None => {
                beside = Names::default();
                Place::Nowhere
            }
        };
        Some(RemoteGet { ticket: self.put.ticket, target, pulls: false, beside })
    }

    /// What is to be said to the origin, once there is a receive to say it of.
    pub fn answer(&mut self, peer: &Arc<PeerInbox>, local: &Local, copy: Copy) -> Option<RemoteGet> {
        let Sink::Receive(receive) = &self.sink else { return None };
        if self.acknowledged {
            return None;
        }
        let len = self.envelope.len;
        self.source = match copy {
            Copy::Origin => None,
            // What can't be read goes through the lane.
            _ => Remote::of(self.put.source, len as u64, peer, local, false).filter(|source| source.is_readable(len as u64)),
        };
        let target = match copy {
            Copy::Target => Place::Nowhere,
            _ if receive.patient => local.place(receive.ptr, len),
            _ => Place::Nowhere,
        };
        Some(RemoteGet { ticket: self.put.ticket, target, pulls: self.source.is_some(), beside: Names::default() })
    }

    fn note(&self, monitor: &Monitor, kind: RecordKind, at: u64, len: u64) {
        let record = Record::new(kind).peer(self.envelope.source).priority(self.envelope.priority);
        monitor.record(&record.transfer(self.put.ticket.word()).at(at).bytes(len));
    }

    /// The answer is on its way.
    pub fn answered(&mut self, get: RemoteGet, monitor: &Monitor) {
        self.note(monitor, RecordKind::RemoteGet, 0, self.put.ends.len);
        monitor.tallies.add(Figure::RemoteGets, 1);
        self.acknowledged = true;
        self.granted = !matches!(get.target, Place::Nowhere | Place::Session(_));
        self.report.execute(Descriptor::RemoteGet, 0);
    }

    /// A memory-FIFO packet.
    pub fn store(&mut self, at: u64, payload: Payload<'_>) -> Result<(), &'static str> {
        let len = payload.len() as u64;
        if len == 0 || at.checked_add(len).is_none_or(|end| end > self.put.ends.len) {
            return Err("a chunk outside of its message");
        }
        let end = at + len;
        let ends_chunk = end.is_multiple_of(self.put.ends.chunk) || end == self.put.ends.len;
        if at != self.next && !at.is_multiple_of(self.put.ends.chunk) {
            // Each place where something begins takes memory of its own.
            return Err("a chunk in crumbs");
        }
        self.next = end;
        if self.report.fifo.bytes + len > self.put.ends.len {
            return Err("more bytes than the message has");
        }
        if ends_chunk && self.report.fifo.chunks >= self.put.ends.chunks() {
            // Ends of chunks may be short: without a bound they would be crumbs, too.
            return Err("more chunks than the message has");
        }
        self.give_up_cancelled();
        match &mut self.sink {
            Sink::Receive(receive) => receive.write(at as usize, payload),
            Sink::TooLong(_, pieces) | Sink::Pool(pieces) => pieces.push(at, payload),
            Sink::Kept(bytes, _) => {
                payload.copy_to(&mut bytes[at as usize..][..payload.len()]);
            }
            Sink::Nowhere(_) => {}
        }
        self.report.fifo.bytes += len;
        // A chunk is several packets: the one that ends it counts.
        self.report.fifo.chunks += u64::from(ends_chunk);
        Ok(())
    }

    /// A receive that was cancelled from within recv_with: its buffer is gone.
    fn give_up_cancelled(&mut self) {
        if let Sink::Receive(receive) | Sink::TooLong(receive, _) | Sink::Kept(_, Some(receive)) = &self.sink
            && receive.op.is_done()
        {
            self.sink = Sink::Nowhere(matches!(self.sink, Sink::TooLong(..)).then_some(self.envelope.len));
            self.close();
        }
    }

    /// Gives up, for both ends.
    pub fn close(&self) -> bool {
        self.meeting().is_some_and(|meeting| meeting.close(self.generation()))
    }

    /// Whether there may be something to copy here.
    pub fn pulls(&self) -> bool {
        self.source.is_some() && !self.met
    }

    /// Copies some chunks. False if there are none, and none will be.
    pub fn pull(&mut self, monitor: &Monitor) -> Result<bool, &'static str> {
        self.give_up_cancelled();
        let pulled = self.pull_run(monitor)?;
        self.met = !pulled;
        Ok(pulled)
    }

    fn pull_run(&mut self, monitor: &Monitor) -> Result<bool, &'static str> {
        let Some(source) = &self.source else { return Ok(false) };
        let base = match &mut self.sink {
            Sink::Receive(receive) => receive.ptr,
            Sink::Kept(bytes, _) => bytes.as_mut_ptr(),
            _ => return Ok(false),
        };
        let Some(meeting) = self.origin.meeting(self.put.ticket) else { return Ok(false) };
        // Where the origin puts as well, both claim chunk by chunk, so as to end at once.
        let most = if self.granted { 1 } else { CHUNK_MOST / self.put.ends.chunk };
        let run = match meeting.claim(u64::from(self.put.ticket.generation), self.put.ends.chunks(), End::Last, most) {
            Claim::Chunks(run) => run,
            Claim::Met | Claim::Over => return Ok(false),
            Claim::Damaged => return Err("more chunks claimed than the message has"),
        };
        self.claimed += run.count;
        let (at, len) = self.put.ends.place(run);
        // SAFETY: `at + len` lies within the message, for which the buffer is long enough (Sink), and it is ours until the op ends.
        if let Err(error) = unsafe { source.read(at, base.add(at as usize), len) } {
            tracing::debug!(node = self.envelope.source.0, %error, "a chunk of a message can't be read");
            // An origin that is dead will be told of; one that took the message back since has closed already. Otherwise nobody can move
            // this chunk any more: its origin learns that, and the receive waits for another message, unless it was the buffer.
            if source.is_alive() {
                let is_ours = source.can_read_all(at, len);
                let why = if is_ours { Refusal::Unwritable } else { Refusal::Unreadable };
                if meeting.refuse(u64::from(self.put.ticket.generation), why) && is_ours {
                    self.fail_unwritable();
                }
            }
            self.source = None;
            return Ok(false);
        }
        self.report.pulled.add(len, run.count);
        self.report.execute(Descriptor::Pull, len);
        meeting.set_pulled(u64::from(self.put.ticket.generation), self.report.pulled.bytes);
        self.note(monitor, RecordKind::Pull, at, len);
        monitor.tallies.add(Figure::BytesPulled, len);
        Ok(true)
    }

    /// The system can't write a part of the receive's buffer: it waits for nothing any more. After closing.
    #[cold]
    fn fail_unwritable(&self) {
        let Sink::Receive(receive) = &self.sink else { return };
        if let Some(Remote::Private(peer, _)) = self.source.as_ref().filter(|_| self.granted) {
            self.wait_until_let_go(Some(peer), None);
        }
        let (len, node, at) = (self.envelope.len, self.envelope.source, receive.ptr);
        let what = format!(
            "a message of {len} bytes from node {node} can't be received at {at:p}: the system can't write a part of that memory; receive into other memory"
        );
        receive.op.finish(Outcome::Failed(Error::Invalid { what }));
    }

    /// The receive counter: what is still to come. At zero the message is complete.
    pub fn look(&mut self) -> Look {
        self.give_up_cancelled();
        let Some(meeting) = self.origin.meeting(self.put.ticket) else { return Look::GivenUp };
        let Some(progress) = meeting.progress(self.generation()) else { return Look::GivenUp };
        if progress.closed {
            return Look::GivenUp;
        }
        if self.granted {
            let put = meeting.put();
            if put.bytes > self.put.ends.len {
                return Look::Broken("more bytes put than the message has");
            }
            self.report.put = put;
        } else if let Origin::Apart(landing) = &self.origin {
            let bytes = landing.stored();
            let chunks = if bytes > 0 { self.put.ends.chunks().saturating_sub(self.report.fifo.chunks) } else { 0 };
            self.report.put = Moved { bytes, chunks };
        }
        let moved = self.report.fifo.bytes + self.report.pulled.bytes + self.report.put.bytes;
        match moved.cmp(&self.put.ends.len) {
            std::cmp::Ordering::Less => Look::Underway,
            std::cmp::Ordering::Greater => Look::Broken("more bytes than the message has"),
            std::cmp::Ordering::Equal if meeting.finish(self.generation()) => {
                self.report.zeroes += 1;
                Look::Complete
            }
            std::cmp::Ordering::Equal => Look::GivenUp,
        }
    }

    /// Gives what is in temporary storage to a receive, and the rest when it comes.
    pub fn attach(&mut self, receive: RecvOp) {
        let fits = self.envelope.len <= receive.capacity;
        self.sink = match std::mem::replace(&mut self.sink, Sink::Nowhere(None)) {
            Sink::Pool(pieces) if fits => {
                pieces.copy_to(|at, bytes| receive.write(at as usize, Payload::private(bytes)));
                Sink::Receive(receive)
            }
            Sink::Pool(pieces) => Sink::TooLong(receive, pieces),
            Sink::Kept(bytes, _) => Sink::Kept(bytes, Some(receive)),
            other => other,
        };
    }

    /// Takes its receive away: what has arrived is kept, and nobody touches the buffer after this. Waits for an origin that may be
    /// putting into it just now.
    pub fn detach(&mut self, peer: Option<&Arc<PeerInbox>>) -> Option<RecvOp> {
        match std::mem::replace(&mut self.sink, Sink::Nowhere(None)) {
            Sink::Receive(receive) => {
                if self.granted {
                    self.close();
                    self.wait_until_let_go(peer, None);
                    return Some(receive);
                }
                let mut bytes = vec![0; self.envelope.len];
                match &self.origin {
                    // SAFETY: the same, and what is kept is dropped after the landing (tell).
                    Origin::Apart(landing) => unsafe { landing.move_to(receive.ptr, bytes.as_mut_ptr()) },
                    // SAFETY: the buffer is valid until this returns (RecvOp::new), and holds the message (Sink).
                    Origin::Near(_) => unsafe {
                        std::ptr::copy_nonoverlapping(receive.ptr, bytes.as_mut_ptr(), self.envelope.len);
                    },
                }
                self.sink = Sink::Kept(bytes, None);
                Some(receive)
            }
            Sink::Kept(bytes, Some(receive)) => {
                self.sink = Sink::Kept(bytes, None);
                Some(receive)
            }
            Sink::TooLong(receive, pieces) => {
                self.sink = Sink::Pool(pieces);
                Some(receive)
            }
            other => {
                self.sink = other;
                None
            }
        }
    }

    /// After closing: an origin that claimed a chunk before may still be copying it. One that was stopped keeps us waiting until it
    /// goes on or dies, for the buffer is its to write until then.
    fn wait_until_let_go(&self, peer: Option<&Arc<PeerInbox>>, deadline: Option<Instant>) {
        let Some(meeting) = self.meeting() else { return };
        let began = world::now();
        while deadline.is_none_or(|deadline| world::now() < deadline) {
            let has_let_go = match meeting.progress(self.generation()) {
                Some(progress) => meeting.put().chunks >= progress.last.saturating_sub(self.claimed),
                // Somebody wrote over it, or truncated it: nobody will say so any more.
                None => world::since(began) >= SETTLE,
            };
            if has_let_go || !peer.is_some_and(|peer| peer.is_alive()) {
                return;
            }
            world::sleep(Duration::from_micros(100));
        }
    }

    /// After closing, for an origin that broke the rules: it may be in the middle of a copy, and is given a moment to end it. Not
    /// longer, as it may never say so.
    pub fn settle(&self, peer: &Arc<PeerInbox>) {
        if self.granted {
            self.wait_until_let_go(Some(peer), Some(world::now() + SETTLE));
        }
    }

    /// Bytes that have come so far.
    pub fn moved(&self) -> u64 {
        self.report.fifo.bytes + self.report.put.bytes + self.report.pulled.bytes
    }

    /// It is over: what there is to tell of it. The network stores nothing for it any more.
    pub fn tell(self, reports: &mut Reports) -> Sink {
        reports.keep(self.report);
        drop(self.origin);
        self.sink
    }
}
