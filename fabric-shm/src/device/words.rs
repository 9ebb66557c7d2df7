//! The words of a device, and what they mean.

#[cfg(not(loom))]
use super::DeviceGeometry;
use super::{INLINE, MOST, PACKET, STORED_MOST};
use crate::doorbell::Bell;
use crate::keys::LockWords;
#[cfg(not(loom))]
use doorbell_fabric::Payload;
use doorbell_fabric::sync::{AtomicU64, Ordering};
use doorbell_fabric::{Incarnation, NodeId};

/// One packet, as words.
#[repr(C, align(64))]
pub struct Line(pub(super) [AtomicU64; 8]);

/// The words of the whole device.
#[repr(C, align(128))]
pub struct Root {
    /// The device's lock.
    pub(super) lock: LockWords,
    /// The lanes with a present or former sender, one bit each. Senders set the bits.
    pub(super) busy: Apart<AtomicU64>,
    /// The process that serves the device to the network.
    pub(super) port: Apart<AtomicU64>,
    /// Not 0: the device was removed, since no living process was attached. Senders read it before each message.
    pub(super) ended: Apart<AtomicU64>,
    /// When the device was last swept. Changed under the lock.
    pub(super) swept: AtomicU64,
    /// The lane that is looked at first. Changed under the lock.
    pub(super) turn: AtomicU64,
    /// The counts. Changed under the lock.
    pub(super) counts: [AtomicU64; 6],
    /// The thread id of each slot, plus one; 0 is free. Changed under the lock.
    pub(super) names: Apart<[AtomicU64; MOST]>,
    /// The attached processes; 0 is free. Changed under the domain's lock file.
    pub(super) attached: Apart<[AtomicU64; MOST]>,
}

/// A value in cache lines of its own.
#[repr(C, align(128))]
pub struct Apart<T>(pub T);

/// The shared storage for one thread.
#[repr(C, align(128))]
pub struct Slot {
    /// The identification of the receiving thread; 0 for none.
    pub(super) owner: AtomicU64,
    /// The system's numbers of its process and of the thread.
    pub(super) tid: AtomicU64,
    /// How often the slot changed hands. Part of the owner's number, so that no two owners are mistaken for each other.
    pub(super) generation: AtomicU64,
    /// How many headers were fetched. Changed under the lock.
    pub(super) head: AtomicU64,
    /// How many headers were stored. Changed under the lock.
    pub(super) tail: AtomicU64,
    /// Wakes the thread.
    pub(super) bell: Bell,
    /// The places of the headers, and when they were stored.
    pub(super) stored: [[AtomicU64; 2]; STORED_MOST],
}

/// The words of one lane.
#[repr(C, align(128))]
pub struct LaneWords {
    /// The process that sends by the lane; 0 for none.
    pub(super) owner: AtomicU64,
    /// The node that it sends for, if that one has only the network.
    pub(super) client: AtomicU64,
    /// The number of that node's sender.
    pub(super) stream: AtomicU64,
    /// The position of the next message, and how many messages the client sent. Two records are written in turn, so that one is
    /// complete wherever the writer dies.
    pub(super) published: [[AtomicU64; 2]; 2],
    /// The scanned position: where to look for the next header. Changed under the lock.
    pub(super) scan: Apart<AtomicU64>,
    /// The read position: packets before it are free. Changed under the lock; the sender reads it.
    pub(super) read: AtomicU64,
    /// When the next header first found no room in the storage, or 0. Changed under the lock.
    pub(super) blocked: AtomicU64,
    /// Not 0: the lane held words that no honest sender writes.
    pub(super) broken: AtomicU64,
    /// Wakes the sender when there is room.
    pub(super) room: Bell,
}

/// A hash of the layout of these structures.
pub(crate) const LAYOUT: u64 = crate::layout::extend_hash(
    2,
    &[
        STORED_MOST as u64,
        size_of::<Root>() as u64,
        size_of::<Slot>() as u64,
        size_of::<LaneWords>() as u64,
        std::mem::offset_of!(Root, attached) as u64,
    ],
);

impl LaneWords {
    /// The position of the next message, the client's count, and the index of the latest of the two records.
    pub(super) fn published(&self) -> (u64, u64, usize) {
        let [one, two] = &self.published;
        // Acquire: a reader that sees a record's position sees its count.
        let [first, second] = [one, two].map(|record| record[0].load(Ordering::Acquire));
        let which = usize::from(is_behind(first, second));
        ([first, second][which], self.published[which][1].load(Ordering::Relaxed), which)
    }

    /// Writes one of the two records; `which` is the older one.
    #[inline]
    pub(super) fn record(&self, which: usize, at: u64, sequence: u64) {
        let record = &self.published[which & 1];
        record[1].store(sequence, Ordering::Relaxed);
        record[0].store(at, Ordering::Release);
    }

    /// The position of the next message.
    pub(super) fn written(&self) -> u64 {
        self.published().0
    }
}

/// Whether a position comes before another in its lane.
pub(super) fn is_behind(one: u64, other: u64) -> bool {
    (one.wrapping_sub(other) as i64) < 0
}

/// The place of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The lane.
    pub lane: usize,
    /// The position among all packets that were ever in the lane.
    pub at: u64,
}

impl Place {
    pub(super) fn word(self) -> u64 {
        (self.lane as u64) << 56 | self.at
    }

    pub(super) fn from_word(word: u64) -> Self {
        Self { lane: (word >> 56) as usize, at: word & ((1 << 56) - 1) }
    }
}

/// The words of a header packet, copied and checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its place.
    pub place: Place,
    /// The thread id that the message is for.
    pub thread: u32,
    /// The length of the message, in bytes.
    pub len: usize,
    /// The tag of the message.
    pub tag: u64,
    /// The sending node, as the sender states it.
    pub source: NodeId,
    /// The incarnation of that node.
    pub incarnation: Incarnation,
}

impl Header {
    /// How many packets the message takes.
    pub(super) fn lines(&self) -> u64 {
        lines(self.len)
    }
}

/// How many packets a message of `len` bytes takes.
pub fn lines(len: usize) -> u64 {
    1 + if len > INLINE { len.div_ceil(PACKET) as u64 } else { 0 }
}

/// A node and its incarnation as a word; never 0, since no incarnation is.
pub(super) fn life_word(node: NodeId, incarnation: Incarnation) -> u64 {
    (node.0 as u64) << 32 | incarnation.0 as u64
}

/// The node and the incarnation of such a word.
pub(super) fn life_of(word: u64) -> Option<(NodeId, Incarnation)> {
    (word != 0).then_some((NodeId((word >> 32) as u16), Incarnation(word as u32)))
}

/// The words of a device in memory.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// The words of the whole device.
    pub root: &'a Root,
    /// One slot for each thread.
    pub slots: &'a [Slot],
    /// The lanes.
    pub lanes: &'a [LaneWords],
    /// The rings of all lanes, one after the other.
    pub rings: &'a [Line],
}

impl<'a> View<'a> {
    /// The view of a segment.
    ///
    /// # Safety
    /// At `base` begin [`bytes`](Self::bytes) readable and writable bytes, page-aligned and mapped for `'a`; the geometry is
    /// valid.
    #[cfg(not(loom))]
    pub unsafe fn at(base: *mut u8, geometry: &DeviceGeometry) -> Self {
        let (rings, packets) = (offsets(geometry)[2], geometry.senders * (geometry.lane_bytes / PACKET));
        // SAFETY: within those bytes and aligned, as offsets are multiples of 128; all is atomics, so other writers are allowed.
        unsafe { Self { rings: std::slice::from_raw_parts(base.add(rings).cast(), packets), ..Self::head_at(base, geometry) } }
    }

    /// The view of the part before the rings, for a process that only looks at the device. It has no rings.
    ///
    /// # Safety
    /// As [`at`](Self::at), for the bytes up to the rings.
    #[cfg(not(loom))]
    pub(super) unsafe fn head_at(base: *mut u8, geometry: &DeviceGeometry) -> Self {
        let [slots, lanes, _] = offsets(geometry);
        // SAFETY: as in `at`.
        unsafe {
            Self {
                root: &*base.add(ROOT).cast(),
                slots: std::slice::from_raw_parts(base.add(slots).cast(), geometry.threads),
                lanes: std::slice::from_raw_parts(base.add(lanes).cast(), geometry.senders),
                rings: &[],
            }
        }
    }

    /// The length of a device with this geometry, in bytes.
    #[cfg(not(loom))]
    pub fn bytes(geometry: &DeviceGeometry) -> usize {
        offsets(geometry)[2] + geometry.senders * geometry.lane_bytes
    }

    /// How many packets a lane has.
    #[inline(always)]
    pub(super) fn ring(&self) -> u64 {
        (self.rings.len() / self.lanes.len()) as u64
    }

    /// A packet of a lane.
    #[inline(always)]
    pub(super) fn line(&self, lane: usize, at: u64) -> &'a Line {
        let ring = self.ring();
        // A power of two: the index is within the lane for any `at`.
        &self.rings[lane * ring as usize + (at & (ring - 1)) as usize]
    }

    /// The node whose messages come by a lane now: the node that writes there, or, if that one holds the port, the node that it
    /// serves.
    pub fn sender(&self, lane: usize) -> Option<(NodeId, Incarnation)> {
        let words = self.lanes.get(lane)?;
        let (owner, client) = (words.owner.load(Ordering::Acquire), words.client.load(Ordering::Acquire));
        let is_fed = client != 0 && owner == self.root.port.0.load(Ordering::Acquire);
        life_of(if is_fed { client } else { owner })
    }

    /// The slot for this thread id.
    #[inline]
    pub fn slot_of(&self, thread: u32) -> Option<usize> {
        let name = thread as u64 + 1;
        (0..self.slots.len()).find(|slot| self.root.names.0[*slot].load(Ordering::Acquire) == name)
    }

    /// Wakes the thread of a slot, if it sleeps.
    #[inline(always)]
    pub(super) fn ring_bell(&self, slot: usize) {
        self.slots[slot].bell.ring(false);
    }

    /// Whether there is a stored header for the thread of a slot.
    #[inline(always)]
    pub fn has_stored(&self, slot: usize) -> bool {
        let slot = &self.slots[slot];
        slot.tail.load(Ordering::Acquire) != slot.head.load(Ordering::Acquire)
    }

    /// The thread id of the first header that was not scanned yet. If there are several lanes, a header for `thread` comes
    /// before others.
    #[inline]
    pub fn next_for(&self, thread: u32) -> Option<u32> {
        let mut busy = self.root.busy.0.load(Ordering::Acquire);
        let mut other = None;
        while busy != 0 {
            let lane = busy.trailing_zeros() as usize;
            busy &= busy - 1;
            let Some(words) = self.lanes.get(lane) else { break };
            let Some(line) = self.line_to_look_at(lane) else { continue };
            if words.broken.load(Ordering::Relaxed) == 0 {
                let next = (line.0[1].load(Ordering::Relaxed) >> 32) as u32;
                if next == thread {
                    return Some(next);
                }
                if words.blocked.load(Ordering::Relaxed) == 0 {
                    other = Some(next);
                }
            }
        }
        other
    }

    /// The first header of a lane that was not scanned yet, if there is one.
    #[inline]
    fn line_to_look_at(&self, lane: usize) -> Option<&'a Line> {
        let scan = &self.lanes[lane].scan.0;
        let mut at = scan.load(Ordering::Acquire);
        for _ in 0..LOOKS_BEHIND {
            let line = self.line(lane, at);
            if line.0[0].load(Ordering::Acquire) == stamp(at) {
                return Some(line);
            }
            // The message may have been taken since. Then another one may lie behind it, and no bell will ring for that one.
            let now = scan.load(Ordering::Acquire);
            if now == at {
                return None;
            }
            at = now;
        }
        None
    }

    /// The header at a place, if there is one now. An error if no honest sender writes such a header.
    pub(super) fn header(&self, place: Place) -> Result<Option<Header>, ()> {
        let line = self.line(place.lane, place.at);
        if line.0[0].load(Ordering::Acquire) != stamp(place.at) {
            return Ok(None);
        }
        self.extent(place).map(Some)
    }

    /// The header words of a message that is or was at this place.
    pub(super) fn extent(&self, place: Place) -> Result<Header, ()> {
        let line = self.line(place.lane, place.at);
        let [about, tag, source] = [1, 2, 3].map(|word| line.0[word].load(Ordering::Relaxed));
        let (thread, len) = ((about >> 32) as u32, about as u32 as usize);
        if lines(len) >= self.ring() || source >> 32 > u16::MAX as u64 {
            return Err(());
        }
        let (node, incarnation) = (NodeId((source >> 32) as u16), Incarnation(source as u32));
        Ok(Header { place, thread, len, tag, source: node, incarnation })
    }

    /// The bytes of a message, in two pieces, since it may wrap around the end of the ring.
    #[cfg(not(loom))]
    #[inline]
    pub fn payload(&self, header: &Header) -> [Payload<'a>; 2] {
        let Place { lane, at } = header.place;
        if header.len <= INLINE {
            let words = &self.line(lane, at).0[4..];
            // SAFETY: four words of a packet, mapped for 'a; the reader of a `Payload` expects changes.
            return [unsafe { Payload::from_raw(words.as_ptr().cast(), header.len) }, Payload::private(&[])];
        }
        let ring = self.ring();
        let first = (at.wrapping_add(1) & (ring - 1)) as usize;
        let before_end = (ring as usize - first) * PACKET;
        let one = header.len.min(before_end);
        let base = self.rings[lane * ring as usize..].as_ptr().cast::<u8>();
        // SAFETY: `one` bytes from packet `first` on end with the ring, and the rest, less than a ring (`extent`), begins with
        // it.
        unsafe {
            let (ptr, rest) = (base.add(first * PACKET), header.len - one);
            [Payload::from_raw(ptr, one), Payload::from_raw(base, rest)]
        }
    }
}

/// How often a look goes on behind messages that other threads are just taking.
const LOOKS_BEHIND: usize = 16;

/// The first word of the header packet of a message at this position.
pub(super) fn stamp(at: u64) -> u64 {
    at.wrapping_add(1)
}

/// The offset of the root.
#[cfg(not(loom))]
const ROOT: usize = crate::layout::PAGE;

/// The offsets of slots, lanes and rings.
#[cfg(not(loom))]
pub(super) fn offsets(geometry: &DeviceGeometry) -> [usize; 3] {
    let slots = ROOT + size_of::<Root>();
    let lanes = slots + geometry.threads * size_of::<Slot>();
    let rings = (lanes + geometry.senders * size_of::<LaneWords>()).next_multiple_of(crate::layout::PAGE);
    [slots, lanes, rings]
}
