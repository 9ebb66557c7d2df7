//! The words of a device, and what they say.

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

/// What belongs to the whole device.
#[repr(C, align(128))]
pub struct Root {
    /// The device's lock.
    pub(super) lock: LockWords,
    /// Which lanes somebody sends by, or did: a bit for each. Set by senders.
    pub(super) busy: Apart<AtomicU64>,
    /// Who feeds the device from the network: a process.
    pub(super) port: Apart<AtomicU64>,
    /// Not 0: the device was removed, as nobody living was attached. Senders look at it before each message.
    pub(super) ended: Apart<AtomicU64>,
    /// When somebody last saw to what nobody fetches. Under the lock.
    pub(super) swept: AtomicU64,
    /// The lane that is looked at first. Under the lock.
    pub(super) turn: AtomicU64,
    /// Under the lock.
    pub(super) counts: [AtomicU64; 6],
    /// For which thread each slot is: one more than its id; 0 is free. Changed under the lock.
    pub(super) names: Apart<[AtomicU64; MOST]>,
    /// The processes that receive: 0 is free. Changed under the domain's lock.
    pub(super) attached: Apart<[AtomicU64; MOST]>,
}

/// In cache lines of its own.
#[repr(C, align(128))]
pub struct Apart<T>(pub T);

/// What waits for one thread: the shared storage.
#[repr(C, align(128))]
pub struct Slot {
    /// The process and the number of whoever receives as this thread, by its owner bits; 0 is nobody.
    pub(super) owner: AtomicU64,
    /// The system's number of that thread, with that of its process.
    pub(super) tid: AtomicU64,
    /// How often the slot changed hands: part of its owner's number, so that two owners are never taken for one.
    pub(super) generation: AtomicU64,
    /// How many headers were fetched. Under the lock.
    pub(super) head: AtomicU64,
    /// How many were stored. Under the lock.
    pub(super) tail: AtomicU64,
    /// Wakes the thread.
    pub(super) bell: Bell,
    /// Where they lie and when they were stored.
    pub(super) stored: [[AtomicU64; 2]; STORED_MOST],
}

/// What belongs to one lane.
#[repr(C, align(128))]
pub struct LaneWords {
    /// The process that sends by it; 0 is nobody.
    pub(super) owner: AtomicU64,
    /// On whose behalf, if that is another: a node that has only the network.
    pub(super) client: AtomicU64,
    /// Which of that node's senders.
    pub(super) stream: AtomicU64,
    /// Where the next message will be, and how many messages its client sent: in turns, so that one is whole wherever its writer dies.
    pub(super) published: [[AtomicU64; 2]; 2],
    /// Where to look for the next header. Under the lock.
    pub(super) scan: Apart<AtomicU64>,
    /// What lies before is not needed any more. Under the lock; read by the sender.
    pub(super) read: AtomicU64,
    /// When the next header was first found without room in the storage, or 0. Under the lock.
    pub(super) blocked: AtomicU64,
    /// Not 0: something in it is not as any sender writes it.
    pub(super) broken: AtomicU64,
    /// Wakes the sender when there is room.
    pub(super) room: Bell,
}

/// A layout hash of these structures.
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
    /// Where the next message will be, how many its client sent, and which of the two records says so: the one that is further.
    pub(super) fn published(&self) -> (u64, u64, usize) {
        let [one, two] = &self.published;
        // Acquire: whoever finds the position of a record finds its count.
        let [first, second] = [one, two].map(|record| record[0].load(Ordering::Acquire));
        let which = usize::from(is_behind(first, second));
        ([first, second][which], self.published[which][1].load(Ordering::Relaxed), which)
    }

    /// Writes the other record than the one that says what is.
    #[inline]
    pub(super) fn record(&self, which: usize, at: u64, sequence: u64) {
        let record = &self.published[which & 1];
        record[1].store(sequence, Ordering::Relaxed);
        record[0].store(at, Ordering::Release);
    }

    /// Where the next message will be.
    pub(super) fn written(&self) -> u64 {
        self.published().0
    }
}

/// Whether a packet comes before another in its lane.
pub(super) fn is_behind(one: u64, other: u64) -> bool {
    (one.wrapping_sub(other) as i64) < 0
}

/// Where a message begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which lane.
    pub lane: usize,
    /// At which of all packets that were ever in it.
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

/// What a header packet says, copied and checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Where it lies.
    pub place: Place,
    /// For which thread the message is.
    pub thread: u32,
    /// Its bytes.
    pub len: usize,
    /// Its tag.
    pub tag: u64,
    /// Who sent it, by its own word.
    pub source: NodeId,
    /// Which life of that node.
    pub incarnation: Incarnation,
}

impl Header {
    /// Packets of the message.
    pub(super) fn lines(&self) -> u64 {
        lines(self.len)
    }
}

/// Packets of a message of so many bytes.
pub fn lines(len: usize) -> u64 {
    1 + if len > INLINE { len.div_ceil(PACKET) as u64 } else { 0 }
}

/// A node's life as a word; never 0, as no life is.
pub(super) fn life_word(node: NodeId, life: Incarnation) -> u64 {
    (node.0 as u64) << 32 | life.0 as u64
}

/// The words of a device, wherever they lie.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// What belongs to all.
    pub root: &'a Root,
    /// A slot for each thread.
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
    /// At `base` begin [`bytes`](Self::bytes) readable and writable bytes, page-aligned and mapped for `'a`; the geometry is valid.
    #[cfg(not(loom))]
    pub unsafe fn at(base: *mut u8, geometry: &DeviceGeometry) -> Self {
        let [slots, lanes, rings] = offsets(geometry);
        // SAFETY: within those bytes and aligned, as offsets are multiples of 128; all is atomics, so other writers are allowed.
        unsafe {
            Self {
                root: &*base.add(ROOT).cast(),
                slots: std::slice::from_raw_parts(base.add(slots).cast(), geometry.threads),
                lanes: std::slice::from_raw_parts(base.add(lanes).cast(), geometry.senders),
                rings: std::slice::from_raw_parts(base.add(rings).cast(), geometry.senders * (geometry.lane_bytes / PACKET)),
            }
        }
    }

    /// The view of what lies before the rings, of which it has none: for who only looks.
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

    /// Bytes of a device of this geometry.
    #[cfg(not(loom))]
    pub fn bytes(geometry: &DeviceGeometry) -> usize {
        offsets(geometry)[2] + geometry.senders * geometry.lane_bytes
    }

    /// Packets of a lane.
    #[inline(always)]
    pub(super) fn ring(&self) -> u64 {
        (self.rings.len() / self.lanes.len()) as u64
    }

    /// A packet of a lane.
    #[inline(always)]
    pub(super) fn line(&self, lane: usize, at: u64) -> &'a Line {
        let ring = self.ring();
        // A power of two: the index is within the lane whatever `at` says.
        &self.rings[lane * ring as usize + (at & (ring - 1)) as usize]
    }

    /// Whose messages come by a lane now: those of the node that writes there; of another only where that node feeds the device from the network.
    pub fn sender(&self, lane: usize) -> Option<(NodeId, Incarnation)> {
        let words = self.lanes.get(lane)?;
        let (owner, client) = (words.owner.load(Ordering::Acquire), words.client.load(Ordering::Acquire));
        let is_fed = client != 0 && owner == self.root.port.0.load(Ordering::Acquire);
        let word = if is_fed { client } else { owner };
        (word != 0).then_some((NodeId((word >> 32) as u16), Incarnation(word as u32)))
    }

    /// The slot that is for this thread.
    #[inline]
    pub fn slot_of(&self, thread: u32) -> Option<usize> {
        let name = thread as u64 + 1;
        (0..self.slots.len()).find(|slot| self.root.names.0[*slot].load(Ordering::Acquire) == name)
    }

    /// Wakes the thread of a slot if it sleeps and the slot is still its.
    #[inline(always)]
    pub(super) fn ring_bell(&self, slot: usize) {
        self.slots[slot].bell.ring(false);
    }

    /// Whether somebody stored a header for the thread of a slot.
    #[inline(always)]
    pub fn has_stored(&self, slot: usize) -> bool {
        let slot = &self.slots[slot];
        slot.tail.load(Ordering::Acquire) != slot.head.load(Ordering::Acquire)
    }

    /// For which thread the first message is that nobody has looked at; of several lanes, one for `thread` before others.
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

    /// The first header of a lane that nobody has looked at, if there is one.
    #[inline]
    fn line_to_look_at(&self, lane: usize) -> Option<&'a Line> {
        let scan = &self.lanes[lane].scan.0;
        let mut at = scan.load(Ordering::Acquire);
        for _ in 0..LOOKS_BEHIND {
            let line = self.line(lane, at);
            if line.0[0].load(Ordering::Acquire) == stamp(at) {
                return Some(line);
            }
            // It may have been taken since: then there may be one behind it, of which nobody tells any more.
            let now = scan.load(Ordering::Acquire);
            if now == at {
                return None;
            }
            at = now;
        }
        None
    }

    /// The header at a place, if there is one now; an error if no sender writes such a one.
    pub(super) fn header(&self, place: Place) -> Result<Option<Header>, ()> {
        let line = self.line(place.lane, place.at);
        if line.0[0].load(Ordering::Acquire) != stamp(place.at) {
            return Ok(None);
        }
        self.extent(place).map(Some)
    }

    /// What a header packet says of a message that was there, taken or not.
    pub(super) fn extent(&self, place: Place) -> Result<Header, ()> {
        let line = self.line(place.lane, place.at);
        let [about, tag, source] = [1, 2, 3].map(|word| line.0[word].load(Ordering::Relaxed));
        let (thread, len) = ((about >> 32) as u32, about as u32 as usize);
        if lines(len) >= self.ring() || source >> 32 > u16::MAX as u64 {
            return Err(());
        }
        let (node, life) = (NodeId((source >> 32) as u16), Incarnation(source as u32));
        Ok(Header { place, thread, len, tag, source: node, incarnation: life })
    }

    /// The bytes of a message, in two pieces as it may lie at the end of its ring and go on at the beginning.
    #[cfg(not(loom))]
    #[inline]
    pub fn payload(&self, header: &Header) -> [Payload<'a>; 2] {
        let Place { lane, at } = header.place;
        if header.len <= INLINE {
            let words = &self.line(lane, at).0[4..];
            // SAFETY: four words of a packet, mapped for 'a; what changes under it is the reader's to expect (Payload).
            return [unsafe { Payload::from_raw(words.as_ptr().cast(), header.len) }, Payload::private(&[])];
        }
        let ring = self.ring();
        let first = (at.wrapping_add(1) & (ring - 1)) as usize;
        let before_end = (ring as usize - first) * PACKET;
        let one = header.len.min(before_end);
        let base = self.rings[lane * ring as usize..].as_ptr().cast::<u8>();
        // SAFETY: `one` bytes from packet `first` on end with the ring, and the rest, less than a ring (`extent`), begins with it.
        unsafe {
            let (ptr, rest) = (base.add(first * PACKET), header.len - one);
            [Payload::from_raw(ptr, one), Payload::from_raw(base, rest)]
        }
    }
}

/// How often a look goes on behind messages that others take at this moment.
const LOOKS_BEHIND: usize = 16;

/// What the header packet of a message at this place begins with.
pub(super) fn stamp(at: u64) -> u64 {
    at.wrapping_add(1)
}

/// Where the root lies.
#[cfg(not(loom))]
const ROOT: usize = crate::layout::PAGE;

/// Where slots, lanes and rings lie.
#[cfg(not(loom))]
pub(super) fn offsets(geometry: &DeviceGeometry) -> [usize; 3] {
    let slots = ROOT + size_of::<Root>();
    let lanes = slots + geometry.threads * size_of::<Slot>();
    let rings = (lanes + geometry.senders * size_of::<LaneWords>()).next_multiple_of(crate::layout::PAGE);
    [slots, lanes, rings]
}
