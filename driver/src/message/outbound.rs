//! The way out: messages to one node, of one priority.

use crate::engine::baton::Baton;
use crate::engine::op::{Op, Outcome};
use crate::error::Error;
use crate::fabrics::AnyLink;
use crate::loan::LEASE_BYTES;
use crate::message::bulk::BulkRings;
use crate::transfer::RENDEZVOUS_BYTES;
use crate::transfer::outgoing::{Begun, Order};
use doorbell_fabric::sync::{AtomicBool, AtomicU64, Ordering};
use doorbell_fabric::{Incarnation, NodeId, PacketHead, PacketKind, Priority, Push};
use doorbell_shm::region::OwnRegion;
use std::collections::VecDeque;
use std::sync::Arc;

/// The longest message that every lane carries as one packet, the least lanes that a domain may have included.
pub const WHOLE_BYTES: usize = 4096;
/// Queued sends to one node and priority; one more is refused as `Full`.
pub const QUEUE_MAX: usize = 4096;

/// Everything that this node sends to one node at one priority.
pub struct Outbound {
    /// The node it leads to.
    pub target: NodeId,
    /// The priority of its lane.
    pub priority: Priority,
    /// Whether the engine has it in its list of those with something queued.
    pub listed: AtomicBool,
    /// Long messages take the lane, and a bulk ring was not asked for yet.
    pub wants_bulk: AtomicBool,
    /// What went this way so far.
    pub carried: Arc<Carried>,
    /// The rest, for one thread at a time.
    pub state: Baton<OutState>,
}

/// The part of an [`Outbound`] that changes.
pub struct OutState {
    /// The lane, once it could be claimed.
    pub link: Option<AnyLink>,
    /// The life of the target that the lane leads to.
    pub incarnation: Incarnation,
    /// That life wrote something into the lane's shared words that no target would, and the engine was not told yet.
    pub damaged: bool,
    sequence: u32,
    queue: VecDeque<SendOp>,
    carried: Arc<Carried>,
    target: NodeId,
    rings: Arc<BulkRings>,
    /// A bulk ring was asked for.
    asked: bool,
}

/// What went one way so far. Written by whoever has the way, with plain stores; read by anybody.
#[derive(Debug)]
pub struct Carried {
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl Carried {
    #[inline(always)]
    fn add(&self, messages: u64, bytes: u64) {
        self.messages.store(self.messages.load(Ordering::Relaxed) + messages, Ordering::Relaxed);
        self.bytes.store(self.bytes.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }

    /// Messages given to the lane, whole; and bytes.
    pub fn read(&self) -> (u64, u64) {
        (self.messages.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// A send that waits in the queue, or is on its way.
pub struct SendOp {
    /// Its tag.
    pub tag: u64,
    bytes: *const u8,
    len: usize,
    sent: usize,
    started: bool,
    /// Where its end is told.
    pub op: Arc<Op>,
}

// SAFETY: whoever made the SendOp keeps the bytes readable until its op ended or was removed (SendOp::new).
unsafe impl Send for SendOp {}

impl SendOp {
    /// A message to be sent.
    ///
    /// # Safety
    /// The bytes stay readable and unchanged until `op` is done or [`OutState::remove`] returned true for it.
    pub unsafe fn new(tag: u64, bytes: &[u8], op: Arc<Op>) -> Self {
        Self { tag, bytes: bytes.as_ptr(), len: bytes.len(), sent: 0, started: false, op }
    }
}

impl Outbound {
    /// A way out that leads nowhere yet.
    pub fn new(target: NodeId, priority: Priority, rings: Arc<BulkRings>) -> Self {
        let carried = Arc::new(Carried { messages: AtomicU64::new(0), bytes: AtomicU64::new(0) });
        let state = OutState {
            link: None,
            incarnation: Incarnation(0),
            damaged: false,
            sequence: 0,
            queue: VecDeque::new(),
            carried: carried.clone(),
            target,
            rings,
            asked: false,
        };
        let (listed, wants_bulk) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { target, priority, listed, wants_bulk, carried, state: Baton::new(state) }
    }
}

/// How far one attempt to send came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The message is in the lane.
    Whole,
    /// There was no room for all of it: this many bytes are in the lane, and whether its first packet is.
    Partly(usize, bool),
    /// The lane can't be used.
    Down,
}

impl OutState {
    /// Whether a bulk ring would be of use, and was not asked for yet: its packets are as long as only a bulk ring's are.
    pub fn is_without_bulk(&self) -> bool {
        !self.asked && self.link.as_ref().is_some_and(AnyLink::has_use_for_bulk)
    }

    /// Asks for a bulk ring, once for each link. False if it is not to be had.
    pub fn ask_for_bulk(&mut self) -> bool {
        self.is_without_bulk() && !std::mem::replace(&mut self.asked, true)
    }

    /// Gives the lane a bulk ring.
    pub fn set_bulk(&mut self, ring: OwnRegion) {
        let refused = match &mut self.link {
            Some(link) => link.offer_bulk(ring),
            None => Some(ring),
        };
        refused.into_iter().for_each(|ring| self.rings.put(ring, self.target, self.incarnation));
    }

    fn cut(&mut self) {
        if let Some(ring) = self.link.take().and_then(AnyLink::into_bulk) {
            self.rings.put(ring, self.target, self.incarnation);
        }
        self.asked = false;
    }

    /// Whether it leads to a node that shares no memory with this one.
    #[inline]
    pub fn is_remote(&self) -> bool {
        self.link.as_ref().is_some_and(AnyLink::is_remote)
    }

    /// Whether messages wait in the queue: a new one must line up behind them.
    #[inline(always)]
    pub fn is_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// How many messages wait in the queue.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// A short message, directly into the lane: the path of every small send.
    #[inline(always)]
    pub fn send_whole(&mut self, tag: u64, bytes: &[u8]) -> Push {
        if let Some(AnyLink::Shm(link)) = &mut self.link
            // SAFETY: the caller keeps to WHOLE_BYTES, which every lane's packets hold (LaneGeometry's least data ring).
            && unsafe { link.push_whole(tag, self.sequence, bytes) }
        {
            self.sequence = self.sequence.wrapping_add(1);
            self.carried.add(1, bytes.len() as u64);
            link.own_ahead();
            return Push::Done;
        }
        self.push_one(tag, bytes)
    }

    /// The same, by a link that leads elsewhere, or has to look for room.
    #[inline(never)]
    fn push_one(&mut self, tag: u64, bytes: &[u8]) -> Push {
        let Some(link) = &mut self.link else { return Push::Full };
        let head = PacketHead { kind: PacketKind::Whole, tag, sequence: self.sequence, total: bytes.len() as u64 };
        // SAFETY: a slice; the caller keeps to what one packet holds.
        let push = unsafe { link.push(&head, bytes.as_ptr(), bytes.len()) };
        if push == Push::Done {
            self.sequence = self.sequence.wrapping_add(1);
            self.carried.add(1, bytes.len() as u64);
            link.own_ahead();
        }
        push
    }

    /// The RTS of a message that both ends will move: it takes the message's place in the order of all.
    pub fn push_rts(&mut self, tag: u64, len: usize, descriptor: &[u8]) -> Push {
        let head = PacketHead { kind: PacketKind::Rts, tag, sequence: self.sequence, total: len as u64 };
        let Some(link) = &mut self.link else { return Push::Full };
        // SAFETY: a slice, shorter than any packet may be.
        let push = unsafe { link.push(&head, descriptor.as_ptr(), descriptor.len()) };
        if push == Push::Done {
            self.sequence = self.sequence.wrapping_add(1);
            self.carried.add(1, 0);
        }
        push
    }

    /// The lease of a message of `len` bytes that lies in memory of this node: it takes the message's place in the order of all.
    #[inline(always)]
    pub fn push_loan(&mut self, tag: u64, lease: &[u8; LEASE_BYTES], len: usize) -> Push {
        let head = PacketHead { kind: PacketKind::Loan, tag, sequence: self.sequence, total: LEASE_BYTES as u64 };
        let Some(link) = &mut self.link else { return Push::Full };
        // SAFETY: a slice, shorter than any packet may be.
        let push = unsafe { link.push(&head, lease.as_ptr(), lease.len()) };
        if push == Push::Done {
            self.sequence = self.sequence.wrapping_add(1);
            self.carried.add(1, len as u64);
        }
        push
    }

    /// A packet of a message that both ends move. False if nothing may go between the packets that are in the lane, or there is no
    /// room: then the target rings when there is.
    ///
    /// # Safety
    /// `len` bytes are readable at `bytes`.
    pub unsafe fn push_chunk(&mut self, transfer: u64, at: u64, bytes: *const u8, len: u64) -> bool {
        if self.is_started() {
            return false;
        }
        let head = PacketHead { kind: PacketKind::Chunk, tag: transfer, sequence: 0, total: at };
        let Some(link) = &mut self.link else { return false };
        // SAFETY: caller.
        let push = unsafe { link.push(&head, bytes, len as usize) };
        match push {
            Push::Done => self.carried.add(0, len),
            Push::Full => link.wait_for_room(true),
            Push::Down(_) => {}
        }
        push == Push::Done
    }

    /// A word of this engine to the target's. It has no place in the order of messages.
    pub fn push_control(&mut self, word: &[u8]) -> Push {
        let head = PacketHead { kind: PacketKind::Control, tag: 0, sequence: 0, total: word.len() as u64 };
        let Some(link) = &mut self.link else { return Push::Full };
        // SAFETY: a slice, shorter than any packet may be.
        unsafe { link.push(&head, word.as_ptr(), word.len()) }
    }

    /// The most bytes of a packet of a put or get. `None`: there is no lane now.
    pub fn region_bytes(&self) -> Option<usize> {
        self.link.as_ref().map(AnyLink::packet_bytes)
    }

    /// Whether such a packet of `len` bytes finds room.
    pub fn has_region_room(&mut self, len: usize) -> bool {
        self.link.as_mut().is_some_and(|link| link.has_room(len, len))
    }

    /// A packet of a put or get. It has no place in the order of messages, and may go between the packets of one.
    pub fn push_region(&mut self, tag: u64, bytes: &[u8]) -> Push {
        let head = PacketHead { kind: PacketKind::Region, tag, sequence: 0, total: bytes.len() as u64 };
        let Some(link) = &mut self.link else { return Push::Full };
        // SAFETY: a slice; the caller keeps to `region_bytes`.
        unsafe { link.push(&head, bytes.as_ptr(), bytes.len()) }
    }

    /// A letter of the lock registry. It has no place in the order of messages, and may go between the packets of one.
    pub fn push_letter(&mut self, tag: u64, bytes: &[u8]) -> Push {
        let head = PacketHead { kind: PacketKind::Letter, tag, sequence: 0, total: bytes.len() as u64 };
        let Some(link) = &mut self.link else { return Push::Full };
        // SAFETY: a slice; no letter is longer than any packet may be (mail.rs).
        unsafe { link.push(&head, bytes.as_ptr(), bytes.len()) }
    }

    /// Whether a message is in the lane in part: nothing else may go between its packets.
    pub fn is_started(&self) -> bool {
        self.queue.front().is_some_and(|send| send.started)
    }

    /// Whether a message fits now, as a whole.
    pub fn check_room(&mut self, node: NodeId, len: usize) -> Result<(), Error> {
        let Some(link) = &mut self.link else { return Ok(()) };
        let most = link.most_at_once();
        if len > most {
            let what = format!("try_send takes up to {most} bytes on this lane, not {len}: use send_by or start_send");
            return Err(Error::Invalid { what });
        }
        let packet = link.packet_bytes();
        if len > WHOLE_BYTES && !link.has_room(len, packet) { Err(Error::Full { node }) } else { Ok(()) }
    }

    /// A message of any length, as far as there is room.
    ///
    /// # Safety
    /// `len` bytes are readable at `bytes`, and `sent` is at most `len`.
    pub unsafe fn send_some(&mut self, tag: u64, bytes: *const u8, len: usize, mut sent: usize, mut started: bool) -> Sent {
        if len <= WHOLE_BYTES || self.link.as_ref().is_some_and(|link| len <= link.packet_bytes()) {
            // SAFETY: readable for `len` bytes (caller).
            return match self.send_whole(tag, unsafe { std::slice::from_raw_parts(bytes, len) }) {
                Push::Done => Sent::Whole,
                Push::Full => Sent::Partly(0, false),
                Push::Down(_) => Sent::Down,
            };
        }
        let Some(link) = &mut self.link else { return Sent::Partly(sent, started) };
        let packet = link.piece_bytes(len);
        while sent < len {
            let piece = packet.min(len - sent);
            let kind = if started { PacketKind::Next } else { PacketKind::First };
            let head = PacketHead { kind, tag, sequence: self.sequence, total: len as u64 };
            // SAFETY: `sent + piece <= len` bytes are readable at `bytes`.
            match unsafe { link.push(&head, bytes.add(sent), piece) } {
                Push::Done => {
                    started = true;
                    sent += piece;
                    self.carried.add(0, piece as u64);
                }
                Push::Full => return Sent::Partly(sent, started),
                Push::Down(_) => return Sent::Down,
            }
        }
        self.sequence = self.sequence.wrapping_add(1);
        self.carried.add(1, 0);
        Sent::Whole
    }

    /// Puts a send behind the others, with what of it is in the lane already. False if the queue is full.
    pub fn enqueue(&mut self, mut send: SendOp, sent: usize, started: bool) -> bool {
        if self.queue.len() >= QUEUE_MAX {
            return false;
        }
        (send.sent, send.started) = (sent, started);
        self.queue.push_back(send);
        true
    }

    /// Moves queued messages into the lane. Returns how many packets' worth of progress it made.
    /// `transfer` begins to move a message from both ends, if that is the better way.
    pub fn push_queue(
        &mut self,
        target: NodeId,
        most: usize,
        mut transfer: impl FnMut(&mut Self, &Order<'_>) -> Option<Begun>,
    ) -> usize {
        let mut done = 0;
        while done < most
            && let Some(front) = self.queue.front()
        {
            if front.op.is_done() {
                // Cancelled where the queue was out of reach: its bytes are gone.
                if self.queue.pop_front().is_some_and(|send| send.started) {
                    self.give_up();
                }
                continue;
            }
            let (tag, bytes, len, sent, started) = (front.tag, front.bytes, front.len, front.sent, front.started);
            if !started && len >= RENDEZVOUS_BYTES {
                let op = front.op.clone();
                match transfer(self, &Order { tag, bytes, len, op: &op }) {
                    Some(Begun::Yes) => {
                        done += 1;
                        self.wait_for_room(false);
                        self.queue.pop_front();
                        continue;
                    }
                    Some(Begun::Full) => {
                        self.wait_for_room(true);
                        return done;
                    }
                    // Through the lane; if that is down, it says so itself.
                    Some(Begun::NoSlot | Begun::Down) | None => {}
                }
            }
            // SAFETY: SendOp::new's caller keeps the bytes; `sent` comes from the last attempt.
            match unsafe { self.send_some(tag, bytes, len, sent, started) } {
                Sent::Whole => {
                    done += 1;
                    self.wait_for_room(false);
                    if let Some(send) = self.queue.pop_front() {
                        send.op.finish(Outcome::Sent);
                    }
                }
                Sent::Partly(now, now_started) => {
                    let moved = now != sent || now_started != started;
                    if let Some(front) = self.queue.front_mut() {
                        (front.sent, front.started) = (now, now_started);
                    }
                    self.wait_for_room(true);
                    return done + usize::from(moved);
                }
                Sent::Down => {
                    self.damaged = true;
                    self.fail(|| Error::Damaged { node: target });
                    return done + 1;
                }
            }
        }
        done
    }

    /// Tells the target whether messages wait for room here, so that it rings when there is some.
    fn wait_for_room(&mut self, waits: bool) {
        if let Some(link) = &mut self.link {
            link.wait_for_room(waits);
        }
    }

    /// Takes a send out of the queue. True if it was there: then the target gets nothing of it, as what is in the lane
    /// already is given up.
    pub fn remove(&mut self, op: &Arc<Op>) -> bool {
        let Some(at) = self.queue.iter().position(|send| Arc::ptr_eq(&send.op, op)) else { return false };
        let Some(send) = self.queue.remove(at) else { return false };
        if send.started {
            self.give_up();
        }
        true
    }

    /// Tells the target that no more comes of the message under way, so that the receive which had taken it takes another.
    /// The next message has its number: a number is used up by a whole message only.
    #[cold]
    pub fn give_up(&mut self) {
        let head = PacketHead { kind: PacketKind::GivenUp, tag: 0, sequence: self.sequence, total: 0 };
        if let Some(link) = &mut self.link {
            // SAFETY: no bytes. A lane that is damaged fails whatever is sent next, which is the time to say so.
            let _ = unsafe { link.push(&head, std::ptr::null(), 0) };
        }
    }

    /// Ends every queued send with an error and cuts the lane.
    pub fn fail(&mut self, error: impl Fn() -> Error) {
        self.cut();
        for send in self.queue.drain(..) {
            send.op.finish(Outcome::Failed(error()));
        }
    }

    /// Leads to another life of the target: numbers begin anew.
    pub fn connect(&mut self, link: Option<AnyLink>, incarnation: Incarnation) {
        if incarnation != self.incarnation {
            self.damaged = false;
            debug_assert!(self.queue.is_empty(), "what is queued is for the life before");
            self.sequence = 0;
        }
        self.cut();
        self.link = link;
        self.incarnation = incarnation;
    }
}
