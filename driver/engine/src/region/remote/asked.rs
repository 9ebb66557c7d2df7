//! The origin's half: puts, gets and updates by this node's threads, which wait for the answers.

use super::update::Update;
use super::wire::{IDS, OLD_BYTES, Request, Status, Step, Word};
use crate::error::{Error, KeyFault};
use crate::sync::op::{Op, Outcome};
use crate::transfer::Place;
use doorbell_fabric::{Incarnation, NodeId, PRIORITIES, Payload, Verdict};
use std::collections::VecDeque;
use std::sync::Arc;

/// The most bytes of a put that go with the request.
const WITH_REQUEST: usize = 4096;
/// Pieces begin at multiples of this, so that no aligned element is cut.
const GRAIN: usize = 64;

/// The most bytes of a piece, for packets of this size.
pub fn piece_bytes(packet: usize) -> usize {
    if packet >= GRAIN { packet - packet % GRAIN } else { packet }
}

/// A pending put, get or update of this node.
pub struct Ask {
    /// The lane to the target node, at the operation's priority.
    pub lane: usize,
    /// The incarnation of the target.
    pub incarnation: Incarnation,
    id: u64,
    operation: &'static str,
    writes: bool,
    /// The link of the send queue that carries it.
    pub by: u8,
    /// The place of its bytes, if the target fetches them.
    pulls: Option<Place>,
    request: Request,
    /// What to do to a cell, if this is an update.
    update: Option<Update>,
    /// The source of a put, or the destination of a get.
    ptr: *mut u8,
    len: usize,
    /// The bytes sent of a put, or received of a get.
    moved: usize,
    begun: bool,
    /// Completed when the operation ends.
    pub op: Arc<Op>,
}

// SAFETY: the maker of the Ask keeps its bytes there until its op ended or it was removed (Ask::new).
unsafe impl Send for Ask {}

impl Ask {
    /// A put of `len` bytes from `ptr`, or a get of `len` bytes to `ptr`.
    ///
    /// # Safety
    /// Until `op` is done or [`Asked::remove`] was called for it, the bytes of a put stay readable and unchanged; the bytes of
    /// a get stay writable, and no other code touches them.
    pub unsafe fn new(lane: usize, operation: &'static str, writes: bool, request: Request, ptr: *mut u8, op: Arc<Op>) -> Self {
        let (incarnation, len) = (request.incarnation, request.bytes as usize);
        Self {
            lane,
            incarnation,
            id: 0,
            operation,
            writes,
            by: 0,
            pulls: None,
            request,
            update: None,
            ptr,
            len,
            moved: 0,
            begun: false,
            op,
        }
    }

    /// An update of a cell. It uses no memory of the caller.
    pub fn update(lane: usize, operation: &'static str, request: Request, update: Update, op: Arc<Op>) -> Self {
        // SAFETY: it has no bytes.
        let ask = unsafe { Self::new(lane, operation, false, request, std::ptr::null_mut(), op) };
        Self { update: Some(update), len: 0, ..ask }
    }

    /// Sets the link, and for a put whose bytes the target fetches, the place of the bytes.
    pub fn routed(self, by: u8, pulls: Option<Place>) -> Self {
        Self { by, pulls, ..self }
    }

    /// The target node.
    pub fn node(&self) -> NodeId {
        NodeId((self.lane / PRIORITIES) as u16)
    }

    /// Whether the request is in the lane.
    pub fn is_begun(&self) -> bool {
        self.begun
    }

    /// Whether everything that has to be sent is in the lane.
    pub fn is_sent(&self) -> bool {
        self.begun && (!self.writes || self.moved == self.len)
    }

    fn word(&self, step: Step) -> u64 {
        Word { step, id: self.id }.tag()
    }

    fn bytes(&self, len: usize) -> &[u8] {
        if len == 0 {
            return &[];
        }
        // SAFETY: the caller takes no more than are left. They are readable and unchanged (Ask::new), because this is a put
        // that has not ended yet.
        unsafe { std::slice::from_raw_parts(self.ptr.add(self.moved), len) }
    }

    /// Gives the next packet to `push`; a packet carries `packet` bytes. True if `push` took it.
    pub fn send(&mut self, packet: usize, room: &mut Vec<u8>, push: impl FnOnce(u64, &[u8]) -> bool) -> bool {
        if !self.begun
            && let Some(place) = self.pulls
        {
            room.clear();
            room.extend_from_slice(&self.request.encode());
            place.words().iter().for_each(|word| room.extend_from_slice(&word.to_le_bytes()));
            self.begun = push(self.word(Step::Pull), room);
            self.moved = if self.begun { self.len } else { 0 };
            return self.begun;
        }
        if let Some(update) = &self.update {
            room.clear();
            room.extend_from_slice(&self.request.encode());
            room.extend_from_slice(&update.bytes);
            self.begun = room.len() <= packet && push(self.word(Step::Update), room);
            return self.begun;
        }
        if !self.begun {
            let first = if self.writes && self.len <= WITH_REQUEST.min(packet - Request::BYTES) { self.len } else { 0 };
            room.clear();
            room.extend_from_slice(&self.request.encode());
            room.extend_from_slice(self.bytes(first));
            let done = push(self.word(if self.writes { Step::Put } else { Step::Get }), room);
            if done {
                self.begun = true;
                self.moved += first;
            }
            return done;
        }
        let piece = piece_bytes(packet).min(self.len - self.moved);
        let done = push(self.word(Step::More), self.bytes(piece));
        if done {
            self.moved += piece;
        }
        done
    }

    /// Receives the next bytes of a get. True if they were the last.
    fn got(&mut self, payload: Payload<'_>) -> Result<bool, &'static str> {
        if self.writes || payload.is_empty() || payload.len() > self.len - self.moved {
            return Err("bytes that were not requested");
        }
        // SAFETY: within the bytes that are left (checked), which belong to this operation (Ask::new).
        payload.copy_to(unsafe { std::slice::from_raw_parts_mut(self.ptr.add(self.moved), payload.len()) });
        self.moved += payload.len();
        Ok(self.moved == self.len)
    }

    /// Receives the old value.
    fn old(&self, payload: Payload<'_>) -> Result<Outcome, &'static str> {
        if payload.len() != OLD_BYTES || !self.update.is_some_and(|update| update.fetch) {
            return Err("an old value that was not requested");
        }
        let mut old = [0; OLD_BYTES];
        payload.copy_to(&mut old);
        Ok(Outcome::Updated(old))
    }

    /// The outcome of an answer, if this operation can end so.
    fn end(&self, status: Status) -> Result<Outcome, &'static str> {
        let node = self.node();
        let fault = |why| Ok(Outcome::Failed(Error::Key { operation: self.operation, node: Some(node), why }));
        match status {
            Status::Fine if self.update.is_some_and(|update| update.fetch) => Err("an answer to an update without the old value"),
            Status::Fine if self.update.is_some() => Ok(Outcome::Updated([0; OLD_BYTES])),
            Status::Fine if self.is_sent() && self.moved == self.len => Ok(Outcome::Copied),
            Status::Fine => Err("an answer before all bytes were moved"),
            Status::Stale => fault(KeyFault::Stale),
            Status::Forged => fault(KeyFault::Forged),
            Status::OutOfRange => fault(KeyFault::OutOfRange),
            Status::Cut => Ok(Outcome::Failed(Error::Damaged { node })),
            Status::Unreadable if self.pulls.is_some() => {
                let what = format!(
                    "node {node} can't fetch {} bytes at {:p} from this process: put them from a region, or use another mode",
                    self.len, self.ptr
                );
                Ok(Outcome::Failed(Error::Invalid { what }))
            }
            Status::Unreadable => Err("a failed fetch of a put that was not to be fetched"),
            Status::Unaligned | Status::Unknown if self.update.is_none() => Err("an answer for an update to a put or get"),
            Status::Unaligned => fault(KeyFault::WrongType),
            Status::Unknown => {
                let why =
                    "the node that has the cell has no such operator for this type; send it a message that requests the update";
                Ok(Outcome::Failed(Error::Unsupported { operation: self.operation, why }))
            }
        }
    }
}

/// The pending puts, gets and updates of this node.
#[derive(Default)]
pub struct Asked {
    made: u64,
    /// Operations with packets still to send, in call order. Those of one lane are sent one after the other.
    pub waiting: VecDeque<Ask>,
    /// Operations that wait for their answers.
    pub sent: VecDeque<Ask>,
}

impl Asked {
    /// Adds an operation.
    pub fn push(&mut self, mut ask: Ask) {
        self.made = (self.made + 1) % IDS;
        ask.id = self.made;
        self.waiting.push_back(ask);
    }

    /// Whether at least `many` operations of a node are pending.
    pub fn has(&self, many: usize, node: NodeId) -> bool {
        let under_way = || self.waiting.iter().filter(|ask| ask.begun).chain(&self.sent).filter(|ask| ask.node() == node);
        self.waiting.len() + self.sent.len() >= many && under_way().count() >= many
    }

    /// Whether an answer is expected on a lane.
    pub fn awaits(&self, lane: usize) -> bool {
        self.waiting.iter().filter(|ask| ask.begun).chain(&self.sent).any(|ask| ask.lane == lane)
    }

    /// Handles an answer.
    pub fn answer(&mut self, lane: usize, word: Word, payload: Payload<'_>) -> Verdict {
        let is_its = |ask: &Ask| ask.lane == lane && ask.id == word.id && ask.begun;
        let (at, was_sent) = match self.sent.iter().position(is_its) {
            Some(at) => (at, true),
            // A put may be refused while its bytes are still going out.
            None => match self.waiting.iter().position(is_its) {
                Some(at) => (at, false),
                // The operation was withdrawn.
                None => return Verdict::Taken,
            },
        };
        let ask = if was_sent { &mut self.sent[at] } else { &mut self.waiting[at] };
        let outcome = match word.step {
            Step::Done(status) => ask.end(status),
            Step::Old => ask.old(payload),
            _ => match ask.got(payload) {
                Ok(true) => Ok(Outcome::Copied),
                Ok(false) => return Verdict::Taken,
                Err(reason) => Err(reason),
            },
        };
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(reason) => return Verdict::Broken(reason),
        };
        let ask = if was_sent { self.sent.remove(at) } else { self.waiting.remove(at) };
        if let Some(ask) = ask {
            ask.op.finish(outcome);
        }
        Verdict::Taken
    }

    /// Fails the operations that `which` selects.
    pub fn fail(&mut self, which: impl Fn(&Ask) -> bool, error: impl Fn() -> Error) {
        let mut end = |ask: &mut Ask| {
            let ends = which(ask);
            if ends {
                ask.op.finish(Outcome::Failed(error()));
            }
            !ends
        };
        self.waiting.retain_mut(&mut end);
        self.sent.retain_mut(&mut end);
    }

    /// Withdraws an operation. After this call its bytes are not touched. True if nothing of it was sent.
    pub fn remove(&mut self, op: &Arc<Op>) -> bool {
        let is_it = |ask: &Ask| Arc::ptr_eq(&ask.op, op);
        if let Some(at) = self.waiting.iter().position(is_it) {
            return self.waiting.remove(at).is_some_and(|ask| !ask.begun);
        }
        if let Some(at) = self.sent.iter().position(is_it) {
            self.sent.remove(at);
        }
        false
    }
}
