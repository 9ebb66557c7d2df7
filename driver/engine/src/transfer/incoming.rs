//! The target's end of a transfer. An RTS is matched to a receive, or waits in the pool. Chunks come by memory FIFO and direct
//! put, and the target pulls others itself.

mod grant;

use super::apart::Landing;
use super::descriptor::{Asks, CHUNK_MOST, DirectPut, Names, Over, RemoteGet, TransferId};
use super::kept::{Pieces, Store};
use super::memory::{Local, Remote};
use super::report::{Descriptor, Reports, Side, TransferReport};
use super::{ALONE_MOST, CopySide, Place};
use crate::board::monitor::Monitor;
use crate::error::Error;
use crate::links::BytesIn;
use crate::message::receive::{Holder, RecvOp};
use crate::sync::op::{Op, Outcome};
use doorbell_fabric::world;
use doorbell_fabric::{Envelope, NodeId, PRIORITIES, Payload};
use doorbell_shm::board::{Metric, Record, RecordKind};
use doorbell_shm::domain::{Membership, PeerInbox};
use doorbell_shm::error::ShmError;
use doorbell_shm::meeting::{Claim, End, Meetings, Moved, Refusal, RendezvousBlock};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An incoming transfer.
pub struct Incoming {
    /// Its name among the transfers of this node. Entries of the pool refer to it.
    pub id: u64,
    /// The lane that brought it.
    pub lane: usize,
    /// The message's envelope.
    pub envelope: Envelope,
    /// Dropped before `sink`, because it stores into the memory of `sink`.
    origin: Origin,
    /// The destination of the bytes.
    pub sink: Sink,
    put: DirectPut,
    /// The offset of the next packet of a chunk, unless a chunk begins.
    next: u64,
    /// How to reach the origin's bytes; determined when the RTS is acknowledged.
    source: Option<Remote>,
    /// The RTS was answered, or needs no answer.
    acknowledged: bool,
    /// Whether this end copies the whole message alone.
    alone: Alone,
    /// The origin was told where to put, so that memory can't be released before the origin lets go of it.
    granted: bool,
    /// When a message without a receive gets storage of the engine, so that it is copied as was asked for.
    stages_at: Option<Instant>,
    /// The inbox of the origin, since the RTS was answered.
    peer: Option<Arc<PeerInbox>>,
    /// Memory that no one uses any more, except that the origin may write to it.
    left: Option<Store>,
    /// Why the receive fails as soon as the origin has let go of its buffer.
    pub failure: Option<Error>,
    /// All chunks are claimed, or the transfer is over: nothing is left to copy here.
    met: bool,
    /// The chunks claimed here, copied or not.
    claimed: u64,
    report: TransferReport,
}

/// How this end keeps in step with the origin. Not boxed: only large messages make a transfer.
#[allow(clippy::large_enum_variant)]
enum Origin {
    /// By a rendezvous block that both share.
    Near(Meetings),
    /// By notices, because they share no memory.
    Apart(Landing),
}

/// Whether the target copies a message without an answer to its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alone {
    /// It has not tried.
    NotYet,
    /// It does.
    Yes,
    /// The system does not let this process read the bytes.
    Unreadable,
}

/// The destination of a transfer.
pub enum Sink {
    /// A receive with a buffer that is long enough.
    Receive(RecvOp),
    /// A receive with a buffer that is too short. The pieces are kept for the error that owns the message.
    TooLong(RecvOp, Pieces),
    /// Temporary storage: no receive has asked for the message yet.
    Pool(Pieces),
    /// Storage of the engine in which each byte has its place, so that both ends can copy there. It serves if the receive was
    /// cancelled, if an origin must not put into its buffer, or if it has none. The second field is the receive that gets the
    /// message, if there is one.
    Kept(Store, Option<RecvOp>),
    /// Nowhere: the receive was cancelled from within recv_with, and its buffer is gone. The field is the length for which the
    /// pool reserved room, if it did.
    Nowhere(Option<usize>),
}

/// Bits of a generation.
const GENERATION_MASK: u16 = (1 << 14) - 1;
/// Transfers that origins without shared memory gave up before the RTS was taken. An origin reuses a slot only after an answer,
/// so one entry for each slot suffices.
#[derive(Default)]
pub struct GivenUp(HashMap<(NodeId, u16), u16>);

impl GivenUp {
    /// Notes a notice that arrived without its RTS. The RTS comes later, or the transfer is already over by another notice on
    /// the way.
    pub fn note(&mut self, source: NodeId, ticket: TransferId) {
        let known = self.0.entry((source, ticket.slot)).or_insert(ticket.generation);
        // A notice of an earlier use may be late.
        if (ticket.generation.wrapping_sub(*known) & GENERATION_MASK) < GENERATION_MASK / 2 {
            *known = ticket.generation;
        }
    }

    /// Whether an RTS came too late. Removes the entry of its slot, which is of this use or an earlier one.
    pub fn take(&mut self, source: NodeId, ticket: TransferId) -> bool {
        self.0.remove(&(source, ticket.slot)) == Some(ticket.generation)
    }

    /// Forgets a node that is gone.
    pub fn forget(&mut self, source: NodeId) {
        self.0.retain(|(node, _), _| *node != source);
    }
}

/// The state of a transfer after a look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// It continues.
    Underway,
    /// All bytes have arrived, and the origin knows.
    Complete,
    /// The origin gave it up: the message is not delivered.
    GivenUp,
    /// The origin broke the rules.
    Broken(&'static str),
}

impl Origin {
    fn meeting(&self, ticket: TransferId) -> Option<&RendezvousBlock> {
        match self {
            Origin::Near(meetings) => meetings.get(usize::from(ticket.slot)),
            Origin::Apart(landing) => Some(&landing.meeting),
        }
    }
}

impl Incoming {
    /// A transfer that an RTS announced. `asks`: what this node asks for, beside the origin. Fails if the origin has not made the
    /// words of its transfers, and this node cannot.
    pub fn new(lane: usize, envelope: Envelope, put: DirectPut, asks: Asks, membership: &Membership) -> Result<Self, ShmError> {
        let origin = match put.apart {
            Some(_) => Origin::Apart(Landing::new(put.ends.len, u64::from(put.ticket.generation))),
            None => Origin::Near(Meetings::with_origin(membership, envelope.source)?),
        };
        let report = TransferReport::new(Side::Target, envelope.source, envelope.tag, put.ends);
        let put = DirectPut { asks: put.asks.or(asks), ..put };
        Ok(Self {
            id: 0,
            lane,
            envelope,
            sink: Sink::Nowhere(None),
            put,
            origin,
            next: 0,
            source: None,
            acknowledged: false,
            alone: Alone::NotYet,
            granted: false,
            stages_at: (put.apart.is_none() && put.asks.any() && put.asks.patient).then(|| world::now() + grant::STAGE_AFTER),
            peer: None,
            left: None,
            failure: None,
            met: false,
            claimed: 0,
            report,
        })
    }

    /// The receive that gets the message, if there is one.
    pub fn receive(&self) -> Option<&RecvOp> {
        match &self.sink {
            Sink::Receive(receive) | Sink::TooLong(receive, _) | Sink::Kept(_, Some(receive)) => Some(receive),
            _ => None,
        }
    }

    /// Whether this is the transfer that a node without shared memory names.
    pub fn is_apart(&self, source: NodeId, ticket: TransferId) -> bool {
        self.envelope.source == source && self.put.ticket == ticket && self.landing().is_some()
    }

    /// Whether it comes over a network.
    pub fn comes_apart(&self) -> bool {
        self.put.apart.is_some()
    }

    /// Whether a memory-FIFO packet of this lane belongs to it.
    pub fn is(&self, lane: usize, ticket: TransferId) -> bool {
        self.lane == lane && self.put.ticket == ticket
    }

    /// Whether a transfer of this lane's node uses the same slot: one of two such transfers is over.
    pub fn shares_slot(&self, lane: usize, ticket: TransferId) -> bool {
        self.lane / PRIORITIES == lane / PRIORITIES && self.put.ticket.slot == ticket.slot
    }

    /// Whether the transfer was over before its RTS was taken: it was withdrawn while the RTS waited in a lane, and its slot
    /// may have been reused.
    pub fn came_too_late(&self) -> bool {
        let progress = self.meeting().and_then(|meeting| meeting.progress(self.generation()));
        progress.is_none_or(|progress| progress.closed)
    }

    fn meeting(&self) -> Option<&RendezvousBlock> {
        self.origin.meeting(self.put.ticket)
    }

    /// The landing, if the two nodes share no memory.
    fn landing(&self) -> Option<&Landing> {
        match &self.origin {
            Origin::Apart(landing) => Some(landing),
            Origin::Near(_) => None,
        }
    }

    /// The notice that tells the origin of the end, if the origin can't see it.
    pub fn farewell(&self, look: Look) -> Option<(TransferId, Over)> {
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

    /// The same for an origin that shares no memory. `name` asks a link of the network to store the message, and returns the
    /// session's name for it.
    pub fn answer_apart(&mut self, copy: CopySide, name: impl FnMut(u8, &Arc<dyn BytesIn>) -> Option<u64>) -> Option<RemoteGet> {
        let (Sink::Receive(receive), Origin::Apart(landing)) = (&self.sink, &mut self.origin) else { return None };
        let link = self.put.apart?;
        if self.acknowledged || receive.op.is_done() || self.report.fifo.bytes == self.put.ends.len {
            return None;
        }
        let mut beside = match copy {
            CopySide::Target => Names::default(),
            // SAFETY: the message fits (Sink). `detach` and the drop of this make the landing let go before other code uses the
            // receive's buffer.
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

    fn note(&self, monitor: &Monitor, kind: RecordKind, at: u64, len: u64) {
        let record = Record::new(kind).peer(self.envelope.source).priority(self.envelope.priority);
        monitor.record(&record.transfer(self.put.ticket.word()).at(at).bytes(len));
    }

    /// Notes that the answer was sent.
    pub fn answered(&mut self, get: RemoteGet, monitor: &Monitor) {
        self.note(monitor, RecordKind::RemoteGet, 0, self.put.ends.len);
        monitor.tallies.add(Metric::RemoteGets, 1);
        self.acknowledged = true;
        self.granted = !matches!(get.target, Place::Nowhere | Place::Session(_));
        if let (true, Sink::Receive(receive)) = (self.granted, &self.sink) {
            receive.op.set_granted(Some(self.envelope.source));
        }
        self.report.execute(Descriptor::RemoteGet, 0);
    }

    /// Stores a memory-FIFO packet.
    pub fn store(&mut self, at: u64, payload: Payload<'_>) -> Result<(), &'static str> {
        let len = payload.len() as u64;
        if len == 0 || at.checked_add(len).is_none_or(|end| end > self.put.ends.len) {
            return Err("a chunk outside its message");
        }
        let end = at + len;
        let ends_chunk = end.is_multiple_of(self.put.ends.chunk) || end == self.put.ends.len;
        if at != self.next && !at.is_multiple_of(self.put.ends.chunk) {
            // Each place where something begins takes memory of its own.
            return Err("a chunk in pieces that are too small");
        }
        self.next = end;
        if self.report.fifo.bytes + len > self.put.ends.len {
            return Err("more bytes than the message has");
        }
        if ends_chunk && self.report.fifo.chunks >= self.put.ends.chunks() {
            // The ends of chunks may be short: without a bound, a peer could send too many small ones.
            return Err("more chunks than the message has");
        }
        self.give_up_cancelled();
        match &mut self.sink {
            Sink::Receive(receive) => receive.write(at as usize, payload),
            Sink::TooLong(_, pieces) | Sink::Pool(pieces) => pieces.push(at, payload),
            Sink::Kept(store, _) => store.write(at as usize, payload),
            Sink::Nowhere(_) => {}
        }
        self.report.fifo.bytes += len;
        // A chunk consists of several packets; its last one counts.
        self.report.fifo.chunks += u64::from(ends_chunk);
        Ok(())
    }

    /// Gives up, for both ends.
    pub fn close(&self) -> bool {
        self.meeting().is_some_and(|meeting| meeting.close(self.generation()))
    }

    /// Whether there may be something to copy here.
    pub fn pulls(&self) -> bool {
        self.source.is_some() && !self.met
    }

    /// Whether no byte of it has come or was claimed here. Otherwise the origin may be done with its bytes, and a copy of the whole message
    /// could write over what has come.
    fn has_nothing(&self) -> bool {
        self.claimed == 0 && self.report.fifo.bytes == 0
    }

    /// Copies some chunks. False if there are none, and none will come.
    pub fn pull(&mut self, monitor: &Monitor) -> Result<bool, &'static str> {
        self.give_up_cancelled();
        let pulled = self.pull_run(monitor)?;
        self.met = !pulled && self.source.is_some();
        Ok(pulled)
    }

    fn pull_run(&mut self, monitor: &Monitor) -> Result<bool, &'static str> {
        let Some(source) = &self.source else { return Ok(false) };
        let base = match &mut self.sink {
            Sink::Receive(receive) => receive.ptr,
            Sink::Kept(store, _) => store.start(),
            _ => return Ok(false),
        };
        let Some(meeting) = self.origin.meeting(self.put.ticket) else { return Ok(false) };
        let is_alone = self.alone == Alone::Yes;
        // A chunk that is claimed and can't be read fails the message. A message of which nothing is claimed can still go through the lane.
        // So its bytes are read first. They count only if the claim succeeds: then the origin has kept them until after the copy.
        let reads_first = is_alone && source.may_be_unreadable() && self.has_nothing();
        let (generation, chunks) = (u64::from(self.put.ticket.generation), self.put.ends.chunks());
        // SAFETY: the buffer is long enough for the whole message (Sink), and exclusive until the op ends.
        if reads_first && let Err(error) = unsafe { source.read(0, base, self.put.ends.len) } {
            tracing::debug!(node = self.envelope.source.0, %error, "a message can't be read");
            let is_ours = source.is_alive() && source.can_read_all(0, self.put.ends.len);
            self.source = None;
            if !is_ours {
                (self.alone, self.acknowledged) = (Alone::Unreadable, false);
            } else if let Claim::Chunks(run) = meeting.claim(generation, chunks, End::Last, chunks) {
                // The origin has kept its bytes until after both looks, so the buffer is the cause. Without the claim, the origin may have
                // sent everything by memory FIFO and unmapped its bytes.
                self.claimed += run.count;
                if meeting.refuse(generation, Refusal::Unwritable) {
                    self.fail_unwritable();
                }
            }
            return Ok(false);
        }
        // If the origin puts as well, both claim one chunk at a time, so that they end together.
        let most = match self.granted {
            _ if is_alone => chunks,
            true => 1,
            false => CHUNK_MOST / self.put.ends.chunk,
        };
        let run = match meeting.claim(generation, chunks, End::Last, most) {
            Claim::Chunks(run) => run,
            Claim::Met | Claim::Over | Claim::Revoked => return Ok(false),
            Claim::Damaged => return Err("more chunks claimed than the message has"),
        };
        self.claimed += run.count;
        let (at, len) = self.put.ends.place(run);
        // SAFETY: `at + len` lies within the message, for which the buffer is long enough (Sink), and the buffer is exclusive
        // until the op ends.
        if !reads_first && let Err(error) = unsafe { source.read(at, base.add(at as usize), len) } {
            tracing::debug!(node = self.envelope.source.0, %error, "a chunk of a message can't be read");
            // The death of the origin is reported elsewhere. An origin that withdrew the message has closed already. Otherwise
            // no one can move this chunk: the origin is told, and the receive waits for another message, unless its buffer is
            // the cause.
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
        if is_alone {
            self.source = None;
        }
        self.report.pulled.add(len, run.count);
        self.report.execute(Descriptor::Pull, len);
        meeting.set_pulled(u64::from(self.put.ticket.generation), self.report.pulled.bytes);
        self.note(monitor, RecordKind::Pull, at, len);
        monitor.tallies.add(Metric::BytesPulled, len);
        Ok(true)
    }

    /// Fails a receive whose buffer the system can't write, after closing.
    #[cold]
    fn fail_unwritable(&mut self) {
        let Sink::Receive(receive) = &self.sink else { return };
        let (len, node, at) = (self.envelope.len, self.envelope.source, receive.ptr);
        let what = format!(
            "a message of {len} bytes from node {node} can't be received at {at:p}: the system can't write to a part of that memory; receive into other memory"
        );
        self.failure = Some(Error::Invalid { what });
    }

    /// Looks at the receive counter: the bytes still to come. At zero the message is complete.
    pub fn look(&mut self) -> Look {
        self.give_up_cancelled();
        let Some(meeting) = self.origin.meeting(self.put.ticket) else { return Look::GivenUp };
        let Some(progress) = meeting.progress(self.generation()) else { return Look::GivenUp };
        if progress.closed {
            return if self.has_let_go() { Look::GivenUp } else { Look::Underway };
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
        if let Sink::Receive(receive) = &self.sink {
            // The last byte counts when the message is certain.
            receive.op.moved(moved.min(self.put.ends.len - 1));
        }
        match moved.cmp(&self.put.ends.len) {
            std::cmp::Ordering::Less => Look::Underway,
            std::cmp::Ordering::Greater => Look::Broken("more bytes than the message has"),
            std::cmp::Ordering::Equal if meeting.finish(self.generation()) => {
                self.report.zeroes += 1;
                if let Sink::Receive(receive) = &self.sink {
                    receive.op.moved(self.put.ends.len);
                }
                Look::Complete
            }
            std::cmp::Ordering::Equal => Look::GivenUp,
        }
    }

    /// Gives the stored bytes to a receive, and the rest when it comes.
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

    /// The bytes that have come so far.
    pub fn moved(&self) -> u64 {
        self.report.fifo.bytes + self.report.put.bytes + self.report.pulled.bytes
    }

    /// Ends the transfer and reports it. The network stores nothing for it any more.
    pub fn tell(self, reports: &mut Reports) -> Sink {
        reports.keep(self.report);
        drop(self.origin);
        self.sink
    }
}
