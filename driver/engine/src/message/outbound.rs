//! The send queue: messages to one node, of one priority.

mod links;
mod queue;
mod streak;

use crate::error::Error;
use crate::links::AnyLink;
use crate::message::bulk::BulkRings;
use crate::message::lending::LEASE_BYTES;
use crate::message::order::Begun;
use crate::message::service::Route;
use crate::mode::{LINKS_MAX, LinkMetrics, ModeRequest};
use crate::sync::baton::{Baton, Token};
use crate::sync::op::Op;
use doorbell_fabric::sync::{AtomicBool, AtomicU64, Ordering};
use doorbell_fabric::{Incarnation, NodeId, PacketHead, PacketKind, Priority, Push};
use doorbell_shm::lane::Series;
use doorbell_shm::region::OwnRegion;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use streak::Streak;

/// The longest message that every lane carries as one packet, even in a domain with the smallest lanes.
pub const WHOLE_BYTES: usize = 4096;
/// The most queued sends to one node and priority. One more is refused as `Full`.
pub const QUEUE_MAX: usize = 4096;

/// From this many untaken packets on, the target's progress is watched.
const MANY: u32 = 128;
/// One of this many messages looks for further links.
const LOOK_EVERY: u32 = 64;

/// Everything that this node sends to one node at one priority.
pub struct Outbound {
    /// The target node.
    pub target: NodeId,
    /// The priority of its lane.
    pub priority: Priority,
    /// Whether the engine has it in its list of queues with something to send.
    pub listed: AtomicBool,
    /// Messages of 8 KiB or more take the lane, and no bulk ring has been requested yet.
    pub wants_bulk: AtomicBool,
    /// Counts of what was sent so far.
    pub carried: Arc<Carried>,
    /// The remaining state, for one thread at a time.
    pub state: Baton<OutState>,
}

/// The part of an [`Outbound`] that changes.
#[derive(Default)]
pub struct OutState {
    /// The lane, once it has been claimed.
    pub link: Option<AnyLink>,
    /// The incarnation of the target that the lane leads to.
    pub incarnation: Incarnation,
    /// That incarnation wrote something into the lane's shared words that no correct target writes, and the engine has not been
    /// told yet.
    pub damaged: bool,
    /// Links beside the first, by their number, from 1 on.
    further: Vec<Option<AnyLink>>,
    /// The link that has to carry the next message: an earlier message with the same number was given up there.
    bound: Option<u8>,
    /// A policy decides the mode of each message.
    steered: bool,
    /// The number of reasons that keep a small message from its shortest path: queued sends, a policy, a link to which the next
    /// message is bound.
    held: usize,
    /// Something was sent over a further link.
    used_further: bool,
    /// Counts the messages since the last look for further links.
    looked: u32,
    /// The latest figures of each link.
    metrics: [LinkMetrics; LINKS_MAX],
    /// The number of ended transfers at that time, by link.
    ended: [u32; LINKS_MAX],
    /// When the target was last seen to take something, while the link is half full.
    moved: [Option<Instant>; LINKS_MAX],
    /// The policy's own word for each link.
    pub words: [u64; LINKS_MAX],
    sequence: u32,
    streak: Streak,
    queue: VecDeque<SendOp>,
    carried: Arc<Carried>,
    /// Messages and bytes by link, corrected by what `carried` counts, since that counts everything for the first link.
    beside: [(u64, u64); LINKS_MAX],
    target: NodeId,
    rings: Arc<BulkRings>,
    /// A bulk ring has been requested.
    asked: bool,
}

/// Counts of what was sent so far. The thread that has the queue writes them with plain stores; any thread reads them.
#[derive(Debug, Default)]
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

    /// The whole messages given to the lane, and their bytes.
    pub fn read(&self) -> (u64, u64) {
        (self.messages.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// A send that is queued or has begun.
pub struct SendOp {
    /// The message's tag.
    pub tag: u64,
    bytes: *const u8,
    len: usize,
    /// The requested mode, if any.
    asks: Option<ModeRequest>,
    far: Far,
    /// Completed when the send ends.
    pub op: Arc<Op>,
}

// SAFETY: the maker of the SendOp keeps the bytes readable until its op ended or was removed (SendOp::new).
unsafe impl Send for SendOp {}

impl SendOp {
    /// A message to be sent.
    ///
    /// # Safety
    /// The bytes stay readable and unchanged until `op` is done or [`OutState::remove`] returned true for it.
    pub unsafe fn new(tag: u64, bytes: &[u8], op: Arc<Op>, asks: Option<ModeRequest>) -> Self {
        Self { tag, bytes: bytes.as_ptr(), len: bytes.len(), asks, far: Far::default(), op }
    }
}

impl Outbound {
    /// A send queue without a link yet.
    pub fn new(target: NodeId, priority: Priority, rings: Arc<BulkRings>, steered: bool) -> Self {
        let carried = Arc::<Carried>::default();
        let held = usize::from(steered);
        let state = OutState { steered, held, carried: carried.clone(), target, rings, ..OutState::default() };
        let (listed, wants_bulk) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { target, priority, listed, wants_bulk, carried, state: Baton::new(state) }
    }
}

impl Outbound {
    /// Sends a message of at most [`WHOLE_BYTES`] if nothing speaks against it: the way of nearly all small messages. False: send
    /// it by another way.
    #[inline(always)]
    pub fn send_short(&self, me: Token, incarnation: Incarnation, tag: u64, bytes: &[u8]) -> bool {
        let Some(mut state) = self.state.enter_at_once(me) else { return false };
        state.held == 0 && state.incarnation == incarnation && state.push_whole(tag, bytes)
    }
}

impl Outbound {
    /// Sends the first messages of a series, as far as they are short and nothing speaks against it. Returns their number.
    #[inline(always)]
    pub fn send_series<'a>(&self, me: Token, incarnation: Incarnation, messages: impl Series<'a>) -> usize {
        let Some(mut state) = self.state.enter_at_once(me) else { return 0 };
        if state.held != 0 || state.incarnation != incarnation { 0 } else { state.push_series(messages) }
    }
}

/// How much of a message is in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Far {
    /// The link of the lane.
    pub by: u8,
    /// The number of bytes in the lane.
    pub sent: usize,
    /// The first packet is in the lane.
    pub started: bool,
}

/// The result of one attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The message is in the lane.
    Whole,
    /// There was no room for all of it.
    Partly(Far),
    /// The lane can't be used.
    Down,
}

/// How a message is to go.
pub enum Plan {
    /// Through the lane of this link.
    Lane(u8),
    /// By a transfer; the result of the attempt to begin it.
    Transfer(Begun),
    /// Not at all.
    Refused(Error),
}

impl OutState {
    /// Whether a bulk ring would help and has not been requested yet.
    pub fn is_without_bulk(&self) -> bool {
        !self.asked && self.link.as_ref().is_some_and(AnyLink::has_use_for_bulk)
    }

    /// Requests a bulk ring, once for each link. False if the link can't use one, or has requested one before.
    pub fn ask_for_bulk(&mut self) -> bool {
        self.is_without_bulk() && !std::mem::replace(&mut self.asked, true)
    }

    /// Gives the lane a bulk ring.
    pub fn set_bulk(&mut self, ring: OwnRegion) {
        let refused = match &mut self.link {
            Some(link) => link.offer_bulk(ring, self.rings.lap()),
            None => Some(ring),
        };
        refused.into_iter().for_each(|ring| self.rings.put(ring, self.target, self.incarnation));
    }

    fn cut(&mut self) {
        if let Some(ring) = self.link.take().and_then(AnyLink::into_bulk) {
            self.rings.put(ring, self.target, self.incarnation);
        }
        self.asked = false;
        self.streak = Streak::default();
        self.further.clear();
        self.bound = None;
        self.words = [0; LINKS_MAX];
        self.looked = 0;
        self.recount();
    }

    fn recount(&mut self) {
        self.held = self.queue.len() + usize::from(self.steered) + usize::from(self.bound.is_some());
    }

    /// Whether the target shares no memory with this node.
    #[inline]
    pub fn is_remote(&self) -> bool {
        self.link.as_ref().is_some_and(AnyLink::is_remote)
    }

    /// Whether messages are queued: a new one must go behind them.
    #[inline(always)]
    pub fn is_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether something keeps a small message from its shortest path.
    #[inline(always)]
    pub fn is_held(&self) -> bool {
        self.held != 0
    }

    /// Whether a message of `len` bytes goes through the lane in one packet.
    #[inline]
    pub fn is_one_packet(&self, len: usize) -> bool {
        self.link.as_ref().is_some_and(|link| len <= link.whole_bytes()) && !self.is_remote()
    }

    /// Whether the target refuses messages on any link. All messages numbered after a refused one wait for it, too.
    pub fn refused(&self) -> bool {
        self.link.iter().chain(self.further.iter().flatten()).any(AnyLink::refused)
    }

    /// Whether messages may take further links: a policy decides, or a queued message requests a mode.
    pub fn is_steered(&self) -> bool {
        self.steered || self.queue.iter().any(|send| send.asks.is_some())
    }

    /// Whether a message may take the first link at once.
    #[inline]
    pub fn is_free(&self) -> bool {
        self.queue.is_empty() && self.bound.is_none_or(|by| by == 0)
    }

    /// How many messages wait in the queue.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Whether the next message has the lane for itself: nothing is queued, and the target has taken everything before, apart
    /// from what it may have read without notice.
    pub fn is_idle(&mut self) -> bool {
        let metrics = self.link.as_mut().and_then(AnyLink::metrics);
        self.queue.len() <= 1 && metrics.is_some_and(|seen| seen.bytes <= seen.room / 4)
    }

    /// Sends a message of one packet directly into the lane: the path of every small send.
    #[inline(always)]
    pub fn send_whole(&mut self, tag: u64, bytes: &[u8]) -> Push {
        if self.push_whole(tag, bytes) { Push::Done } else { self.push_one(0, tag, bytes) }
    }

    /// The same. False: the link has no room as far as is known, or is of another kind.
    #[inline(always)]
    fn push_whole(&mut self, tag: u64, bytes: &[u8]) -> bool {
        let Self { link: Some(AnyLink::Shm(link)), sequence, carried, .. } = self else { return false };
        // SAFETY: the caller keeps to WHOLE_BYTES or asked `is_one_packet`. The link refuses what its ring cannot hold.
        if !unsafe { link.push_whole(tag, *sequence, bytes) } {
            return false;
        }
        link.own_ahead();
        *sequence = sequence.wrapping_add(1);
        carried.add(1, bytes.len() as u64);
        // The last thing, so that nothing is kept for later where nobody sleeps.
        link.ring();
        true
    }

    /// The same for the first of several messages. Returns their number.
    #[inline(always)]
    fn push_series<'a>(&mut self, messages: impl Series<'a>) -> usize {
        let Self { link: Some(AnyLink::Shm(link)), sequence, carried, .. } = self else { return 0 };
        let (count, bytes) = link.push_series(*sequence, messages);
        if count > 0 {
            *sequence = sequence.wrapping_add(count as u32);
            carried.add(count as u64, bytes);
            link.ring();
        }
        count
    }

    /// The same, over a further link or a network, or when room must be looked for.
    #[inline(never)]
    fn push_one(&mut self, by: u8, tag: u64, bytes: &[u8]) -> Push {
        let head = PacketHead { kind: PacketKind::Whole, tag, sequence: self.sequence, total: bytes.len() as u64 };
        let Some(link) = self.by(by) else { return Push::Full };
        // SAFETY: a slice; the caller keeps to the length of one packet.
        let push = unsafe { link.push(&head, bytes.as_ptr(), bytes.len()) };
        if push == Push::Done {
            link.own_ahead();
            self.used_up_by(by, bytes.len() as u64);
        }
        push
    }

    /// Sends the RTS of a transfer, which takes the message's place in the order.
    pub fn push_rts(&mut self, by: u8, tag: u64, len: usize, descriptor: &[u8]) -> Push {
        let head = PacketHead { kind: PacketKind::Rts, tag, sequence: self.sequence, total: len as u64 };
        let Some(link) = self.by(by) else { return Push::Full };
        // SAFETY: a slice, shorter than any packet may be.
        let push = unsafe { link.push(&head, descriptor.as_ptr(), descriptor.len()) };
        if push == Push::Done {
            self.used_up_by(by, 0);
            let bytes = &mut self.beside[usize::from(by)].1;
            *bytes = bytes.wrapping_add(len as u64);
        }
        push
    }

    /// Sends the lease of a message of `len` bytes in memory of this node, which takes the message's place in the order.
    #[inline(always)]
    pub fn push_loan(&mut self, tag: u64, lease: &[u8; LEASE_BYTES], len: usize) -> Push {
        let head = PacketHead { kind: PacketKind::Loan, tag, sequence: self.sequence, total: LEASE_BYTES as u64 };
        let Some(link) = &mut self.link else { return Push::Full };
        // SAFETY: a slice, shorter than any packet may be.
        let push = unsafe { link.push(&head, lease.as_ptr(), lease.len()) };
        if push == Push::Done {
            self.used_up_by(0, len as u64);
        }
        push
    }

    /// Sends a packet of a transfer over the link of its RTS. False if an incomplete message is in the lane, or there is no
    /// room; then the target rings when there is some.
    ///
    /// # Safety
    /// `len` bytes are readable at `bytes`.
    pub unsafe fn push_chunk(&mut self, by: u8, transfer: u64, at: u64, bytes: *const u8, len: u64) -> bool {
        if self.is_started() {
            return false;
        }
        let head = PacketHead { kind: PacketKind::Chunk, tag: transfer, sequence: 0, total: at };
        let Some(link) = self.by(by) else { return false };
        // SAFETY: caller.
        let push = unsafe { link.push(&head, bytes, len as usize) };
        if push == Push::Done {
            self.carried.add(0, len);
            // The bytes were counted with the RTS.
            self.beside[0].1 = self.beside[0].1.wrapping_sub(len);
        }
        self.tried(by, push) == Push::Done
    }

    /// Sends a notice to the target's engine. It has no place in the message order.
    pub fn push_control(&mut self, word: &[u8]) -> Push {
        let head = PacketHead { kind: PacketKind::Control, tag: 0, sequence: 0, total: word.len() as u64 };
        let Some(link) = &mut self.link else { return Push::Full };
        // SAFETY: a slice, shorter than any packet may be.
        let push = unsafe { link.push(&head, word.as_ptr(), word.len()) };
        self.tried(0, push)
    }

    /// The most bytes of a service's packet. `None`: there is no lane now.
    pub fn region_bytes(&mut self, by: u8) -> Option<usize> {
        self.by(by).map(|link| link.packet_bytes())
    }

    /// Whether a service's packet of `len` bytes finds room. If not, the target rings when there is some.
    pub fn has_region_room(&mut self, len: usize) -> bool {
        let has_room = self.link.as_mut().is_some_and(|link| link.has_room(len, len));
        if !has_room {
            self.wait_for_room(0);
        }
        has_room
    }

    /// Sends a packet of a service. It has no place in the message order, and may go between the packets of a message. A held
    /// packet may wait for others until [`Fabrics::release`](crate::links::Fabrics::release).
    pub fn push_apart(&mut self, kind: PacketKind, Route { link: by, held }: Route, tag: u64, bytes: &[u8]) -> Push {
        let head = PacketHead { kind, tag, sequence: 0, total: bytes.len() as u64 };
        self.used_further |= by > 0;
        let Some(link) = self.by(by) else { return Push::Full };
        let push = if held {
            link.push_held(&head, bytes)
        } else {
            // SAFETY: a slice; services keep to `packet_bytes` of their outbox.
            unsafe { link.push(&head, bytes.as_ptr(), bytes.len()) }
        };
        self.tried(by, push)
    }

    /// Called after an attempt to push a packet that will be repeated: if it found no room, the target rings when there is
    /// some.
    fn tried(&mut self, by: u8, push: Push) -> Push {
        if push == Push::Full {
            self.wait_for_room(by);
        }
        push
    }

    /// Whether an incomplete message is in the lane: nothing else may go between its packets.
    pub fn is_started(&self) -> bool {
        self.queue.front().is_some_and(|send| send.far.started)
    }

    /// Whether a message fits now as a whole.
    pub fn check_room(&mut self, by: u8, node: NodeId, len: usize) -> Result<(), Error> {
        let Some(link) = self.by(by) else { return Ok(()) };
        let most = link.most_at_once();
        if len > most {
            let what = format!("try_send takes up to {most} bytes on this lane, not {len}: use send_by or start_send");
            return Err(Error::Invalid { what });
        }
        let packet = if len <= link.whole_bytes() { len.max(1) } else { link.piece_bytes(len) };
        if (len > WHOLE_BYTES || len > packet) && !link.has_room(len, packet) { Err(Error::Full { node }) } else { Ok(()) }
    }

    /// Sends a message of any length over one link, as far as there is room.
    ///
    /// # Safety
    /// `len` bytes are readable at `bytes`, and `far.sent` is at most `len`.
    pub unsafe fn send_some(&mut self, tag: u64, bytes: *const u8, len: usize, mut far: Far) -> Sent {
        let by = far.by;
        // A lane that could not grow has shorter packets than others.
        let is_one = |link: &mut AnyLink| len <= link.whole_bytes() || (len <= WHOLE_BYTES && link.is_remote());
        // A message that was begun in packets ends in packets, even if the lane has grown meanwhile.
        if !far.started && self.by(by).is_none_or(is_one) {
            // SAFETY: readable for `len` bytes (caller).
            let bytes = unsafe { std::slice::from_raw_parts(bytes, len) };
            return match if by == 0 && self.bound.is_none() { self.send_whole(tag, bytes) } else { self.push_one(by, tag, bytes) }
            {
                Push::Done => Sent::Whole,
                Push::Full => Sent::Partly(Far { by, ..Far::default() }),
                Push::Down(_) => Sent::Down,
            };
        }
        let sequence = self.sequence;
        let Some(link) = self.by(by) else { return Sent::Partly(far) };
        let packet = link.piece_bytes(len);
        let mut pushed = 0;
        let mut ended = None;
        while far.sent < len {
            let piece = packet.min(len - far.sent);
            let kind = if far.started { PacketKind::Next } else { PacketKind::First };
            let head = PacketHead { kind, tag, sequence, total: len as u64 };
            // SAFETY: `sent + piece <= len` bytes are readable at `bytes`.
            match unsafe { link.push(&head, bytes.add(far.sent), piece) } {
                Push::Done => {
                    (far.started, far.sent) = (true, far.sent + piece);
                    pushed += piece as u64;
                }
                Push::Full => {
                    ended = Some(Sent::Partly(far));
                    break;
                }
                Push::Down(_) => {
                    ended = Some(Sent::Down);
                    break;
                }
            }
        }
        self.carried.add(0, pushed);
        if by != 0 {
            self.went_beside(by, 0, pushed);
        }
        if let Some(sent) = ended {
            return sent;
        }
        self.used_up_by(by, 0);
        Sent::Whole
    }

    /// Connects to another incarnation of the target: numbers begin again.
    pub fn connect(&mut self, link: Option<AnyLink>, incarnation: Incarnation) {
        if incarnation == self.incarnation && self.link.is_none() {
            // In addition to any further links.
            self.link = link;
            return;
        }
        if incarnation != self.incarnation {
            self.used_further = false;
            self.damaged = false;
            debug_assert!(self.queue.is_empty(), "queued sends are for the earlier incarnation");
            self.sequence = 0;
            let (messages, bytes) = self.carried.read();
            self.beside = [(0, 0); LINKS_MAX];
            self.beside[0] = (messages.wrapping_neg(), bytes.wrapping_neg());
        }
        self.cut();
        self.link = link;
        self.incarnation = incarnation;
    }
}
