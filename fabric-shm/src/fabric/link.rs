//! The sending half of one lane.

use crate::domain::{Pair, PeerInbox};
use crate::doorbell::Bell;
use crate::faults::Faults;
use crate::lane::{BulkMemory, LaneMemory, Outstanding, Producer, RawMemory, Series, packet_bytes};
use crate::region::OwnRegion;
use doorbell_fabric::{Link, PacketHead, PacketKind, Push, world};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After the lane could not grow, the time before the next attempt.
const GROW_AGAIN: Duration = Duration::from_secs(1);

/// The sending half of one lane.
pub struct ShmLink {
    pub(super) producer: Producer<RawMemory>,
    /// The region that holds its bulk ring.
    pub(super) bulk: Option<OwnRegion>,
    /// The bell of the target's inbox.
    pub(super) bell: *const Bell,
    pub(super) fenced: bool,
    pub(super) faults: Option<Faults>,
    pub(super) last_len: usize,
    pub(super) larger: Larger,
    pub(super) pair: Arc<Pair>,
    pub(super) _inbox: Arc<PeerInbox>,
}

/// The full ring of a lane.
pub(super) struct Larger {
    memory: RawMemory,
    /// The least size of the pair's file that has it.
    end: usize,
    state: Growth,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Growth {
    /// The lane uses its first ring.
    Small,
    /// The same, and there was no memory for the full ring.
    Failed(Instant),
    /// The lane uses its full ring.
    Full,
}

impl Larger {
    pub(super) fn new(memory: RawMemory, end: usize) -> Self {
        Self { memory, end, state: Growth::Small }
    }
}

// SAFETY: `bell` points into the mapping that `_inbox` keeps, and is accessed through atomics only.
unsafe impl Send for ShmLink {}

impl ShmLink {
    /// The longest message that always fits into an idle lane.
    #[inline]
    pub fn most_at_once(&self) -> usize {
        self.larger.memory.data_bytes() / 2
    }

    /// The size of the data ring, as far as the lane can have it.
    #[inline]
    fn ring_bytes(&self) -> usize {
        if matches!(self.larger.state, Growth::Failed(_)) { self.producer.data_bytes() } else { self.larger.memory.data_bytes() }
    }

    /// Goes on in the full ring, if the lane does not yet. Returns whether it is worth trying again.
    #[cold]
    fn grow(&mut self) -> bool {
        match self.larger.state {
            Growth::Full => return false,
            Growth::Failed(when) if world::since(when) < GROW_AGAIN => return false,
            _ => {}
        }
        if let Err(error) = self.pair.grow(self.larger.end) {
            // The lanes of a node that has gone have no name any more.
            if self.larger.state == Growth::Small && !error.is_os(libc::ENOENT) {
                tracing::warn!(node = self._inbox.id().0, %error, "a lane stays small, and is slow");
            }
            self.larger.state = Growth::Failed(world::now());
            self.producer.limit(usize::MAX);
            return true;
        }
        let moved = self.producer.move_to(self.larger.memory);
        if moved {
            self.larger.state = Growth::Full;
        }
        moved
    }

    /// The backlog that the target has not read yet, as far as is known, beside the room that the lane has or can have. `None` if the
    /// lane is damaged; the next push reports that.
    #[inline]
    pub fn outstanding(&mut self) -> Option<Outstanding> {
        let mut all = self.producer.outstanding().ok()?;
        if self.larger.state == Growth::Small {
            all.places = self.larger.memory.cell_count() as u64;
            all.room = all.room.max(self.ring_bytes() as u64);
        }
        Some(all)
    }

    /// Whether a whole message of `len` bytes fits now, in packets of `packet` bytes.
    pub fn has_room(&mut self, len: usize, packet: usize) -> bool {
        self.producer.has_room(len, packet) || (self.grow() && self.producer.has_room(len, packet))
    }

    /// Whether this thread's next message probably follows others in a stream: see [`Producer::is_stream`].
    pub fn is_stream(&self) -> bool {
        self.producer.is_stream()
    }

    /// Records whether messages wait for room on this link: see [`Producer::wait_for_room`].
    #[inline]
    pub fn wait_for_room(&mut self, waits: bool) {
        self.producer.wait_for_room(waits);
    }

    /// Makes the processor own the lines that a message like the last one would fill, where that pays.
    #[inline]
    pub fn own_ahead(&self) {
        self.producer.own_ahead(self.last_len);
    }
}

impl ShmLink {
    /// Offers a region as a bulk ring, once, of which a conversation uses `lap` bytes. If the target accepts it, long payloads go there
    /// from then on. Returns a region that cannot be offered.
    pub fn offer_bulk(&mut self, region: OwnRegion, lap: usize) -> Option<OwnRegion> {
        // SAFETY: the link drops the producer before the region.
        let ring = unsafe { BulkMemory::new(region.ptr(), region.len()) };
        let (Some(ring), None) = (ring, &self.bulk) else { return Some(region) };
        // SAFETY: the region is mapped as long as above and belongs to this node.
        unsafe { self.producer.offer_bulk(ring.with_lap(lap), region.number()) };
        self.bulk = Some(region);
        None
    }

    /// Ends the link and returns its bulk ring.
    pub fn into_bulk(self) -> Option<OwnRegion> {
        self.bulk
    }
}

impl ShmLink {
    /// Pushes a whole message if the link is known to have room. Then call [`ring`](Self::ring). Otherwise returns false: use
    /// `push` then.
    ///
    /// # Safety
    /// The message is at most as long as [`packet_bytes`](Link::packet_bytes).
    #[inline(always)]
    pub unsafe fn push_whole(&mut self, tag: u64, sequence: u32, bytes: &[u8]) -> bool {
        // SAFETY: the slice is readable; the caller guarantees its length.
        let done = self.faults.is_none() && unsafe { self.producer.push_whole(tag, sequence, bytes.as_ptr(), bytes.len()) };
        if done {
            self.last_len = bytes.len();
        }
        done
    }

    /// Pushes the first of several short messages: see [`Producer::push_series`]. Then call [`ring`](Self::ring).
    #[inline(always)]
    pub fn push_series<'a>(&mut self, sequence: u32, messages: impl Series<'a>) -> (usize, u64) {
        if self.faults.is_some() { (0, 0) } else { self.producer.push_series(sequence, messages) }
    }

    /// Wakes the target if it sleeps.
    #[inline(always)]
    pub fn ring(&self) {
        // SAFETY: `_inbox` keeps the header page mapped, in which the bell lies.
        unsafe { &*self.bell }.ring(self.fenced);
    }
}

impl Link for ShmLink {
    #[inline]
    unsafe fn push(&mut self, head: &PacketHead, bytes: *const u8, len: usize) -> Push {
        // A `GivenUp` packet gets no injected fault: the producer keeps room for it, and the sender does not try it twice.
        if head.kind != PacketKind::GivenUp
            && let Some(faults) = &mut self.faults
            && faults.full()
        {
            return Push::Full;
        }
        // SAFETY: caller.
        let mut push = unsafe { self.producer.push(head, bytes, len) };
        if push == Push::Full && self.grow() {
            // SAFETY: caller.
            push = unsafe { self.producer.push(head, bytes, len) };
        }
        if push == Push::Done {
            self.last_len = len;
            self.ring();
        }
        push
    }

    #[inline]
    fn packet_bytes(&self) -> usize {
        packet_bytes(self.ring_bytes())
    }

    #[inline]
    fn refused(&self) -> bool {
        self.producer.refused()
    }
}
