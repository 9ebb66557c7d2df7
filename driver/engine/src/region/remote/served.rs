//! The target's half: requests of other nodes to this node's regions. The target's application does nothing.

use super::update::{UPDATE_BYTES, Updates};
use super::wire::{OLD_BYTES, Request, Status, Step, Word};
use crate::memory::copy;
use crate::memory::table::{PartFault, RegionTable};
use crate::transfer::Place;
use doorbell_fabric::sync::{Ordering, fence};
use doorbell_fabric::{Incarnation, NodeId, PRIORITIES, Payload, Verdict};
use doorbell_shm::region::RegionMemory;
use std::collections::VecDeque;
use std::sync::Arc;

/// The most unanswered puts, gets and updates of one node: it may send this many, and the target keeps this many.
pub const UNANSWERED_MAX: usize = 64;

/// Requests of other nodes to this node's regions.
pub struct Served {
    /// How this node does updates, if it has atomics.
    pub updates: Option<Updates>,
    regions: Arc<RegionTable>,
    incarnation: Incarnation,
    /// Puts with bytes still to come, the oldest first. One lane may have several, where several links lead here.
    coming: Vec<Coming>,
    /// Answers to be sent, in the order of the requests.
    pub answers: VecDeque<Answer>,
    /// Puts whose bytes this node fetches.
    pub pulls: VecDeque<Pull>,
}

/// A put whose bytes this node fetches.
pub struct Pull {
    lane: usize,
    /// The incarnation of the requesting node.
    pub incarnation: Incarnation,
    id: u64,
    /// The place of the bytes.
    pub source: Place,
    /// The number of bytes.
    pub bytes: u64,
    part: Part,
}

impl Pull {
    /// The requesting node.
    pub fn node(&self) -> NodeId {
        NodeId((self.lane / PRIORITIES) as u16)
    }

    /// Lets `read` fetch at most `most` bytes. `read` gets the offset in the source, the destination, and the length. Returns
    /// how the put ended, if it has.
    pub fn step(&mut self, most: usize, read: impl FnOnce(u64, *mut u8, u64) -> bool) -> Option<Status> {
        let len = self.part.left.min(most);
        let at = self.bytes - self.part.left as u64;
        // Later puts must be seen later.
        fence(Ordering::Release);
        // SAFETY: `at + left` is within the region (Served::check), and `len` at most `left`; `memory` keeps it mapped.
        let target = unsafe { self.part.memory.ptr().add(self.part.at) };
        if len > 0 && !read(at, target, len as u64) {
            return Some(if self.part.memory.is_cut() { Status::Cut } else { Status::Unreadable });
        }
        self.part.at += len;
        self.part.left -= len;
        (self.part.left == 0).then(|| self.part.stored())
    }

    /// The answer to this put.
    pub fn answer(&self, status: Status) -> Answer {
        Answer { lane: self.lane, incarnation: self.incarnation, id: self.id, what: What::Done(status) }
    }
}

/// Bytes of a region of this node.
struct Part {
    memory: RegionMemory,
    /// The offset in the region of the next byte.
    at: usize,
    /// The number of bytes left.
    left: usize,
}

impl Part {
    /// Stores the next bytes of a put. The caller gives no more than are left.
    fn store(&mut self, payload: Payload<'_>) {
        let len = payload.len();
        debug_assert!(len <= self.left);
        // Later puts must be seen later, as with puts of one thread over shared memory.
        fence(Ordering::Release);
        // SAFETY: `at + left` is within the region (Served::check) and `len` at most `left` (caller); `memory` keeps it mapped.
        unsafe { copy::inward(payload.as_ptr(), self.memory.ptr().add(self.at), len) };
        self.at += len;
        self.left -= len;
    }

    /// The status of a put whose bytes are all stored.
    fn stored(&self) -> Status {
        if self.memory.is_cut() { Status::Cut } else { Status::Fine }
    }
}

struct Coming {
    lane: usize,
    incarnation: Incarnation,
    id: u64,
    part: Part,
}

/// An answer to be sent.
pub struct Answer {
    /// The lane of the request, and of the answer.
    pub lane: usize,
    /// The incarnation of the requesting node.
    pub incarnation: Incarnation,
    id: u64,
    what: What,
}

enum What {
    Done(Status),
    Data(Part),
    Old([u8; OLD_BYTES]),
}

impl Answer {
    /// The length of the next packet in bytes, if a packet carries `packet` bytes.
    pub fn next_len(&self, packet: usize) -> usize {
        match &self.what {
            What::Done(_) => 0,
            What::Data(part) => part.left.min(packet),
            What::Old(_) => OLD_BYTES,
        }
    }

    /// Makes the next packet and returns its tag. `room` gets its bytes, as many as [`next_len`](Self::next_len) returned.
    pub fn next(&self, len: usize, room: &mut Vec<u8>) -> u64 {
        room.clear();
        let status = match &self.what {
            What::Done(status) => *status,
            What::Old(old) => {
                room.extend_from_slice(old);
                return Word { step: Step::Old, id: self.id }.tag();
            }
            What::Data(part) => {
                debug_assert!(len <= part.left);
                room.resize(len, 0);
                // SAFETY: `at + left` is within the region (Served::check) and `len` at most `left`; `memory` keeps it mapped.
                unsafe { copy::out(part.memory.ptr().add(part.at), room.as_mut_ptr(), len) };
                if !part.memory.is_cut() {
                    return Word { step: Step::Got, id: self.id }.tag();
                }
                room.clear();
                Status::Cut
            }
        };
        Word { step: Step::Done(status), id: self.id }.tag()
    }

    /// Notes that a packet of `len` bytes was sent. True if it was the last.
    pub fn sent(&mut self, len: usize) -> bool {
        match &mut self.what {
            // No bytes: the packet was an error.
            What::Data(part) if len > 0 => {
                part.at += len;
                part.left -= len;
                part.left == 0
            }
            _ => true,
        }
    }
}

impl Served {
    /// An empty table for this incarnation of a node with these regions.
    pub fn new(regions: Arc<RegionTable>, incarnation: Incarnation) -> Self {
        Self { regions, incarnation, updates: None, coming: Vec::new(), answers: VecDeque::new(), pulls: VecDeque::new() }
    }

    /// The part of a region that a request names, if its key is valid.
    fn check(&self, request: &Request, writes: bool) -> Result<Part, Status> {
        if request.incarnation != self.incarnation {
            return Err(Status::Stale);
        }
        let Request { number, offset, bytes, secret, .. } = *request;
        let memory = self.regions.part(number, offset, bytes, secret, writes).map_err(|fault| match fault {
            PartFault::Stale => Status::Stale,
            PartFault::Forged => Status::Forged,
            PartFault::OutOfRange => Status::OutOfRange,
            PartFault::Cut => Status::Cut,
        })?;
        Ok(Part { memory, at: request.offset as usize, left: request.bytes as usize })
    }

    /// Origins do not report puts that they gave up. If one node has too many incomplete puts, its oldest is dropped.
    fn make_room(&mut self, node: usize) {
        let is_its = |coming: &Coming| coming.lane / PRIORITIES == node;
        if self.coming.iter().filter(|coming| is_its(coming)).count() >= UNANSWERED_MAX
            && let Some(oldest) = self.coming.iter().position(is_its)
        {
            self.coming.remove(oldest);
        }
    }

    /// Whether the node of a lane has as many unsent answers as are kept.
    fn is_full(&self, lane: usize) -> bool {
        let its = || self.answers.iter().filter(|answer| answer.lane / PRIORITIES == lane / PRIORITIES);
        self.answers.len() >= UNANSWERED_MAX && its().count() >= UNANSWERED_MAX
    }

    /// Handles a request for a put or get.
    pub fn ask(&mut self, lane: usize, incarnation: Incarnation, id: u64, writes: bool, payload: Payload<'_>) -> Verdict {
        if self.is_full(lane) {
            return Verdict::Refused;
        }
        self.make_room(lane / PRIORITIES);
        let Some((request, first)) = Request::decode(payload) else {
            return Verdict::Broken("a put or get without a request");
        };
        if first.len() as u64 > if writes { request.bytes } else { 0 } {
            return Verdict::Broken("a put or get with more bytes than it says");
        }
        let what = match self.check(&request, writes) {
            Err(status) => What::Done(status),
            Ok(part) if !writes && part.left > 0 => What::Data(part),
            Ok(mut part) => {
                if !first.is_empty() {
                    part.store(first);
                }
                if part.left > 0 {
                    self.coming.push(Coming { lane, incarnation, id, part });
                    return Verdict::Taken;
                }
                What::Done(part.stored())
            }
        };
        self.answers.push_back(Answer { lane, incarnation, id, what });
        Verdict::Taken
    }

    /// Handles a request for an update, which is done at once.
    pub fn update(&mut self, lane: usize, incarnation: Incarnation, id: u64, payload: Payload<'_>) -> Verdict {
        if self.is_full(lane) {
            return Verdict::Refused;
        }
        let mut bytes = [0; UPDATE_BYTES];
        let Some((request, rest)) = Request::decode(payload).filter(|(_, rest)| rest.len() == UPDATE_BYTES) else {
            return Verdict::Broken("an update without a request");
        };
        rest.copy_to(&mut bytes);
        let what = self.perform(&request, &bytes).unwrap_or_else(What::Done);
        self.answers.push_back(Answer { lane, incarnation, id, what });
        Verdict::Taken
    }

    fn perform(&self, request: &Request, bytes: &[u8; UPDATE_BYTES]) -> Result<What, Status> {
        let Part { memory, at, left } = self.check(request, true)?;
        let updates = self.updates.ok_or(Status::Unknown)?;
        let update = (updates.read)(bytes).ok_or(Status::Unknown)?;
        if left != update.cell {
            return Err(Status::Unknown);
        }
        if !at.is_multiple_of(left) {
            return Err(Status::Unaligned);
        }
        // SAFETY: within the region (check), which `memory` keeps mapped and which begins at a page. Correct nodes access a
        // cell only by atomic instructions; a peer that does not is like any other that writes into shared memory.
        let old = unsafe { (updates.perform)(bytes, memory.ptr().add(at)) };
        if memory.is_cut() {
            return Err(Status::Cut);
        }
        Ok(if update.fetch { What::Old(old) } else { What::Done(Status::Fine) })
    }

    /// Handles a request to fetch the bytes of a put.
    pub fn pull(&mut self, lane: usize, incarnation: Incarnation, id: u64, payload: Payload<'_>) -> Verdict {
        let node = lane / PRIORITIES;
        let answers = self.answers.iter().filter(|answer| answer.lane / PRIORITIES == node).count();
        let pulls = self.pulls.iter().filter(|pull| pull.lane / PRIORITIES == node).count();
        if answers + pulls >= UNANSWERED_MAX {
            return Verdict::Refused;
        }
        let decoded = Request::decode(payload).and_then(|(request, rest)| {
            let words = [rest.u64_at(0).map(u64::from_le)?, rest.u64_at(8).map(u64::from_le)?];
            Some((request, Place::from_words(words).filter(|_| rest.len() == 16)?))
        });
        let Some((request, source)) = decoded else {
            return Verdict::Broken("a put to be fetched without the place of its bytes");
        };
        match self.check(&request, true) {
            Err(status) => self.answers.push_back(Answer { lane, incarnation, id, what: What::Done(status) }),
            Ok(part) => self.pulls.push_back(Pull { lane, incarnation, id, source, bytes: request.bytes, part }),
        }
        Verdict::Taken
    }

    /// Handles further bytes of a put.
    pub fn more(&mut self, lane: usize, id: u64, payload: Payload<'_>) -> Verdict {
        // An unknown put was answered with an error before its origin had sent everything.
        let is_its = |coming: &Coming| coming.lane == lane && coming.id == id;
        let Some(at) = self.coming.iter().position(is_its) else { return Verdict::Taken };
        let coming = &mut self.coming[at];
        if payload.is_empty() || payload.len() > coming.part.left {
            return Verdict::Broken("more bytes than the put has");
        }
        coming.part.store(payload);
        if coming.part.left == 0 {
            let Coming { lane, incarnation, id, part } = self.coming.remove(at);
            self.answers.push_back(Answer { lane, incarnation, id, what: What::Done(part.stored()) });
        }
        Verdict::Taken
    }

    /// Forgets the requests of an incarnation of a node.
    pub fn forget(&mut self, node: NodeId, incarnation: Incarnation) {
        let is_its = |lane: usize, of: Incarnation| lane / PRIORITIES == node.index() && of == incarnation;
        self.coming.retain(|coming| !is_its(coming.lane, coming.incarnation));
        self.answers.retain(|answer| !is_its(answer.lane, answer.incarnation));
        self.pulls.retain(|pull| !is_its(pull.lane, pull.incarnation));
    }

    /// Forgets all requests.
    pub fn clear(&mut self) {
        self.coming.clear();
        self.answers.clear();
        self.pulls.clear();
    }
}
