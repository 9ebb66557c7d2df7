//! The layout of shared memory: the header of every segment, and the lanes from one node to another.
//!
//! An inbox has one page that is used: the header, the doorbell, and a bit for each node that has lanes to the inbox's owner. The
//! lanes of one sender are a file of their own, so a stray write of one peer cannot reach the lanes of another, and a pair of nodes that
//! never talks has no file.
//!
//! The file of a pair has a fixed layout and grows from its start: first the small rings by which every pair begins, then the
//! words of transfers and loans, then the full rings. See [`crate::domain::Pair`].
//!
//! ```text
//! inbox   | header, doorbell, callers | a page that nobody touches |
//! pair    | controls, first rings | meetings | returns | full rings: normal | high | low |
//! ```

use doorbell_fabric::sync::{AtomicU64, Ordering};
use doorbell_fabric::{NodeId, PRIORITIES, Priority};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::mem::{offset_of, size_of};

/// The size of a page. Blocks and segments are multiples of it.
pub const PAGE: usize = 4096;
/// The size of the first part of an inbox: the segment header, the doorbell words and the bits of its callers.
pub const HEADER_BYTES: usize = PAGE;
/// The size of an inbox. Nobody touches its second page: if a process truncates the file and makes it long again, that page has no
/// memory, which the owner notices.
pub const INBOX_BYTES: usize = HEADER_BYTES + PAGE;
/// The size of a cell: one cache line.
pub const CELL_BYTES: usize = 64;
/// The offset of the doorbell words in the header page.
pub const DOORBELL_OFFSET: usize = 1024;
/// The offset in the header page of the words that tell how to probe the node's private memory: see [`crate::cma`].
pub const REACH_OFFSET: usize = 2048;
/// The size of a board before its injection FIFOs.
pub const BOARD_BYTES: usize = 64 * 1024;
/// The number of descriptors of an injection FIFO.
pub const FIFO_SLOTS: usize = 64;
/// The size of an injection FIFO's head: a cache line of its producer and one of the engine.
pub const FIFO_HEAD_BYTES: usize = 128;
/// The size of an injection FIFO on a board: see [`crate::board::Fifo`].
pub const FIFO_BYTES: usize = FIFO_HEAD_BYTES + FIFO_SLOTS * 64;
/// The most injection FIFOs of a node.
pub const FIFOS_MAX: usize = 1024;
/// The offset of the metrics on a board.
pub const FIGURES_OFFSET: usize = 1024;
/// The number of words reserved for metrics.
pub const FIGURE_WORDS: usize = 192;
/// The offset of the counter status register on a board: one bit for each DMA counter, set when that counter has reached zero.
pub const COUNTER_STATUS_OFFSET: usize = FIGURES_OFFSET + FIGURE_WORDS * 8;
/// The offset on a board of the bits that tell which DMA counters are in use.
pub const COUNTERS_USED_OFFSET: usize = COUNTER_STATUS_OFFSET + COUNTERS / 8;
/// The number of DMA counters of a node.
pub const COUNTERS: usize = 256;
/// The offset of the DMA counters on a board: for each one its value and its initial value.
pub const COUNTERS_OFFSET: usize = PAGE;
/// The offset of the latency histogram on a board: 64 words.
pub const LATENCIES_OFFSET: usize = COUNTERS_OFFSET + COUNTERS * 16;
/// The offset of the link rows on a board: see [`crate::board::LinkRow`].
pub const LINK_ROWS_OFFSET: usize = 3 * PAGE;
/// The number of links that a board shows.
pub const LINK_ROWS: usize = 64;
/// The offset on a board of the counts and latencies of modes.
pub const MODES_OFFSET: usize = LINK_ROWS_OFFSET + LINK_ROWS * RECORD_BYTES;
/// The number of words reserved for them.
pub const MODE_WORDS: usize = 288;
/// The offset on a board of the latest decisions about modes.
pub const DECISIONS_OFFSET: usize = MODES_OFFSET + MODE_WORDS * 8;
/// The number of decisions that a board shows.
pub const DECISIONS: usize = 32;
/// The offset of the flight recorder on a board.
pub const RECORDER_OFFSET: usize = BOARD_BYTES / 2;
/// The size of one record.
pub const RECORD_BYTES: usize = 64;
/// The number of records of the flight recorder.
pub const RECORDS: usize = (BOARD_BYTES - RECORDER_OFFSET) / RECORD_BYTES;

const _: () = assert!(FIGURES_OFFSET >= size_of::<SegmentHeader>());
const _: () = assert!(COUNTERS_USED_OFFSET + COUNTERS / 8 <= COUNTERS_OFFSET && LATENCIES_OFFSET + 64 * 8 <= LINK_ROWS_OFFSET);
const _: () =
    assert!(DECISIONS_OFFSET.is_multiple_of(RECORD_BYTES) && DECISIONS_OFFSET + DECISIONS * RECORD_BYTES <= RECORDER_OFFSET);

/// The offset in the header page of an inbox of the bits that tell which nodes made lanes to its owner, by node id.
pub const CALLERS_OFFSET: usize = 3072;
/// The size of the control words of one lane.
pub const CONTROL_BYTES: usize = 256;
/// The size of the first part of a pair's file: the control words and the first rings of its lanes.
pub const FIRST_BYTES: usize = 3 * PAGE;
/// The cells of the first rings, by priority, if the domain's lanes have twice as many.
const FIRST_CELLS: [u32; PRIORITIES] = [16, 64, 16];
/// The data bytes of the first rings, by priority.
const FIRST_DATA: [u32; PRIORITIES] = [1024, 4096, 256];
/// The offset in a pair's file of the rendezvous blocks of transfers: see [`crate::meeting`].
pub const MEETINGS_OFFSET: usize = FIRST_BYTES;
/// The size of the rendezvous blocks of one pair.
pub const MEETINGS_BYTES: usize = PAGE;
/// The offset in a pair's file of the words by which its sender returns loans of the target, one word for each loan.
pub const RETURNS_OFFSET: usize = MEETINGS_OFFSET + MEETINGS_BYTES;
/// The size of the return words of one pair.
pub const RETURNS_BYTES: usize = PAGE;
/// The offset in a pair's file of the full rings. The file is as long as this once the pair uses meetings or returns.
pub const RINGS_OFFSET: usize = RETURNS_OFFSET + RETURNS_BYTES;
/// The order of the full rings: the priority that most messages have comes first.
const RING_ORDER: [Priority; PRIORITIES] = [Priority::Normal, Priority::High, Priority::Low];

/// Raise this when the meaning of shared memory changes but none of the numbers hashed below do. `examples/outsider` repeats the number.
pub const LAYOUT_VERSION: u32 = 22;

/// A hash of all offsets and sizes: two builds with the same hash agree on every byte.
pub const LAYOUT_HASH: u64 = hash(&[
    LAYOUT_VERSION as u64,
    PAGE as u64,
    CELL_BYTES as u64,
    DOORBELL_OFFSET as u64,
    REACH_OFFSET as u64,
    BOARD_BYTES as u64,
    FIFO_BYTES as u64,
    FIFO_SLOTS as u64,
    FIGURES_OFFSET as u64,
    crate::board::FIGURES_HASH,
    COUNTER_STATUS_OFFSET as u64,
    COUNTERS_USED_OFFSET as u64,
    COUNTERS as u64,
    COUNTERS_OFFSET as u64,
    LATENCIES_OFFSET as u64,
    LINK_ROWS_OFFSET as u64,
    MODES_OFFSET as u64,
    DECISIONS_OFFSET as u64,
    DECISIONS as u64,
    RECORDER_OFFSET as u64,
    RECORD_BYTES as u64,
    crate::device::LAYOUT,
    INBOX_BYTES as u64,
    CALLERS_OFFSET as u64,
    FIRST_BYTES as u64,
    MEETINGS_OFFSET as u64,
    RETURNS_OFFSET as u64,
    RINGS_OFFSET as u64,
    CONTROL_BYTES as u64,
    FIRST_CELLS[0] as u64,
    FIRST_CELLS[1] as u64,
    FIRST_CELLS[2] as u64,
    FIRST_DATA[0] as u64,
    FIRST_DATA[1] as u64,
    FIRST_DATA[2] as u64,
    RING_ORDER[0] as u64,
    RING_ORDER[1] as u64,
    PRIORITIES as u64,
    size_of::<SegmentHeader>() as u64,
    offset_of!(SegmentHeader, layout_hash) as u64,
    offset_of!(SegmentHeader, incarnation) as u64,
    offset_of!(SegmentHeader, bytes) as u64,
    offset_of!(SegmentHeader, flags) as u64,
]);

/// An unpredictable number that no other call returns: a hash seeded by the system's random number generator.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

const fn hash(words: &[u64]) -> u64 {
    // FNV-1a over whole words: a change of any word gives another number, which is all that is needed.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut i = 0;
    while i < words.len() {
        hash = (hash ^ words[i]).wrapping_mul(0x0000_0100_0000_01b3);
        hash ^= hash >> 29;
        i += 1;
    }
    hash
}

/// Mixes the layout of another structure into numbers like [`LAYOUT_HASH`].
pub const fn extend_hash(base: u64, words: &[u64]) -> u64 {
    hash(&[base, hash(words)])
}

/// The kind of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SegmentKind {
    /// The directory of a domain.
    Domain = 1,
    /// The doorbell of one node. The node lives while it holds this segment.
    Inbox = 2,
    /// The displayed state of one node.
    Board = 3,
    /// Memory of one node that its peers may put to, get from, or read loans in.
    Region = 4,
    /// A device, which belongs to no node.
    Device = 5,
}

const MAGIC: u64 = u64::from_le_bytes(*b"doorbell");

/// The first bytes of every segment. The owner publishes the magic last, so a reader that sees the magic sees the rest.
#[repr(C, align(128))]
pub struct SegmentHeader {
    magic: AtomicU64,
    version: AtomicU64,
    layout_hash: AtomicU64,
    kind: AtomicU64,
    incarnation: AtomicU64,
    node: AtomicU64,
    bytes: AtomicU64,
    flags: AtomicU64,
    /// A random number that no other segment has. It confirms that a reader opened the very segment that it was told of.
    nonce: AtomicU64,
}

const _: () = assert!(size_of::<SegmentHeader>() == 128);
const _: () = assert!(DOORBELL_OFFSET >= size_of::<SegmentHeader>() && DOORBELL_OFFSET.is_multiple_of(128));

/// Flag of an inbox: its owner cannot issue heavy barriers, so producers must fence after they publish.
pub const FLAG_FENCE: u64 = 1;

/// A checked copy of a header in private memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderFacts {
    /// The owner of the segment; 0 for a domain.
    pub node: NodeId,
    /// The incarnation of that node; 0 for a domain.
    pub incarnation: u32,
    /// The size of the whole segment.
    pub bytes: usize,
    /// `FLAG_…` bits.
    pub flags: u64,
    /// A number that no other segment has.
    pub nonce: u64,
}

/// Why a segment cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderFault {
    /// The segment is too short.
    #[error("it has {found} bytes where at least {expected} are needed")]
    TooShort {
        /// Its size in bytes.
        found: usize,
        /// The size that is needed.
        expected: usize,
    },
    /// The magic is missing: the segment is not initialised yet, or is no segment at all.
    #[error("it is not ready, or not a Doorbell segment")]
    NotReady,
    /// A build with another memory layout made it.
    #[error("it has layout {found_version}/{found_hash:016x}, this program has {LAYOUT_VERSION}/{LAYOUT_HASH:016x}")]
    OtherLayout {
        /// The layout version of its maker.
        found_version: u64,
        /// The layout hash of its maker.
        found_hash: u64,
    },
    /// The segment is of another kind.
    #[error("it is a segment of kind {found}, but kind {expected} is needed")]
    OtherKind {
        /// The kind that its header states.
        found: u64,
        /// The kind that is needed.
        expected: u32,
    },
    /// A field holds a value that no owner writes.
    #[error("its header is damaged: {what}")]
    Damaged {
        /// The field.
        what: &'static str,
    },
}

impl SegmentHeader {
    /// Writes a header at the start of a segment, except for the magic. [`publish`](Self::publish) writes the magic.
    ///
    /// # Safety
    /// `ptr` is 128-byte aligned and the start of at least 128 writable bytes that live as long as the reference returned.
    pub unsafe fn init<'a>(
        ptr: *mut u8,
        kind: SegmentKind,
        node: NodeId,
        incarnation: u32,
        bytes: usize,
        flags: u64,
    ) -> &'a Self {
        // SAFETY: aligned and large enough (caller); atomics need no exclusive access.
        let header = unsafe { &*ptr.cast::<SegmentHeader>() };
        header.version.store(LAYOUT_VERSION as u64, Ordering::Relaxed);
        header.layout_hash.store(LAYOUT_HASH, Ordering::Relaxed);
        header.kind.store(kind as u64, Ordering::Relaxed);
        header.incarnation.store(incarnation as u64, Ordering::Relaxed);
        header.node.store(node.0 as u64, Ordering::Relaxed);
        header.bytes.store(bytes as u64, Ordering::Relaxed);
        header.flags.store(flags, Ordering::Relaxed);
        header.nonce.store(random(), Ordering::Relaxed);
        header
    }

    /// The header of a segment of this node's own.
    ///
    /// # Safety
    /// `ptr` is 128-byte aligned, and [`init`](Self::init) made a header there that stays mapped for `'a`.
    pub unsafe fn at<'a>(ptr: *const u8) -> &'a Self {
        // SAFETY: caller; atomics need no exclusive access.
        unsafe { &*ptr.cast() }
    }

    /// A number that no other segment has.
    pub fn nonce(&self) -> u64 {
        self.nonce.load(Ordering::Relaxed)
    }

    /// Makes the segment valid. Release: pairs with the acquire load in [`check`](Self::check).
    pub fn publish(&self) {
        self.magic.store(MAGIC, Ordering::Release);
    }

    /// Reads and checks the header of a segment. `len` bytes of it are mapped, and its file has `file_len` bytes.
    ///
    /// # Safety
    /// `ptr` is 128-byte aligned and the start of `len` readable bytes.
    pub unsafe fn check(ptr: *const u8, len: usize, file_len: usize, kind: SegmentKind) -> Result<HeaderFacts, HeaderFault> {
        if len < size_of::<SegmentHeader>() {
            return Err(HeaderFault::TooShort { found: len, expected: size_of::<SegmentHeader>() });
        }
        // SAFETY: aligned and large enough (checked); atomics need no exclusive access.
        let header = unsafe { &*ptr.cast::<SegmentHeader>() };
        if header.magic.load(Ordering::Acquire) != MAGIC {
            return Err(HeaderFault::NotReady);
        }
        let (version, hash) = (header.version.load(Ordering::Relaxed), header.layout_hash.load(Ordering::Relaxed));
        if version != LAYOUT_VERSION as u64 || hash != LAYOUT_HASH {
            return Err(HeaderFault::OtherLayout { found_version: version, found_hash: hash });
        }
        let found = header.kind.load(Ordering::Relaxed);
        if found != kind as u64 {
            return Err(HeaderFault::OtherKind { found, expected: kind as u32 });
        }
        let bytes = usize::try_from(header.bytes.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        if bytes > file_len {
            return Err(HeaderFault::TooShort { found: file_len, expected: bytes });
        }
        let node = header.node.load(Ordering::Relaxed);
        let incarnation = header.incarnation.load(Ordering::Relaxed);
        match (u16::try_from(node), u32::try_from(incarnation)) {
            (Ok(node), Ok(incarnation)) => {
                let (flags, nonce) = (header.flags.load(Ordering::Relaxed), header.nonce.load(Ordering::Relaxed));
                Ok(HeaderFacts { node: NodeId(node), incarnation, bytes, flags, nonce })
            }
            (Err(_), _) => Err(HeaderFault::Damaged { what: "node id" }),
            (_, Err(_)) => Err(HeaderFault::Damaged { what: "incarnation" }),
        }
    }
}

/// The size of a domain's lanes by priority. It is the same for all nodes; the node that creates the domain fixes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneGeometry {
    /// Cells (messages or chunks under way) of one lane: powers of two from 16 to 65536.
    pub cells: [u32; PRIORITIES],
    /// Bytes of payload under way beyond the 40 that fit into a cell: powers of two from 16 KiB to 64 MiB.
    pub data_bytes: [u32; PRIORITIES],
}

impl Default for LaneGeometry {
    fn default() -> Self {
        Self { cells: [64, 512, 64], data_bytes: [16 << 10, 256 << 10, 16 << 10] }
    }
}

impl LaneGeometry {
    /// Whether lanes can have these sizes.
    pub fn validate(&self) -> Result<(), &'static str> {
        if self.cells.iter().any(|cells| !cells.is_power_of_two() || !(16..=65536).contains(cells)) {
            return Err("the cells of a lane must be a power of two from 16 to 65536");
        }
        if self.data_bytes.iter().any(|bytes| !bytes.is_power_of_two() || !(16 << 10..=64 << 20).contains(bytes)) {
            return Err("the data bytes of a lane must be a power of two from 16 KiB to 64 MiB");
        }
        Ok(())
    }

    /// The size of a pair's file with all its rings.
    pub fn pair_bytes(&self) -> usize {
        RINGS_OFFSET + (0..PRIORITIES).map(|p| self.ring_bytes(p)).sum::<usize>()
    }

    fn ring_bytes(&self, priority: usize) -> usize {
        (self.cells[priority] as usize * CELL_BYTES + self.data_bytes[priority] as usize).next_multiple_of(PAGE)
    }

    /// The sizes of the first rings. The full ring of a lane has at least twice as many cells: when a lane moves to it, all cells of
    /// its first ring may be taken, and there must be room for a packet.
    fn first(&self) -> Self {
        Self { cells: std::array::from_fn(|p| FIRST_CELLS[p].min(self.cells[p] / 2)), data_bytes: FIRST_DATA }
    }

    /// The place of one priority's first ring in the file of a pair: its control words, its cells, its data.
    pub fn first_lane(&self, priority: Priority) -> LanePlace {
        let (first, index) = (self.first(), priority.index());
        let sum = |words: &[u32]| words.iter().map(|word| *word as usize).sum::<usize>();
        let all_cells = PRIORITIES * CONTROL_BYTES + sum(&first.cells) * CELL_BYTES;
        LanePlace {
            control: index * CONTROL_BYTES,
            cells: PRIORITIES * CONTROL_BYTES + sum(&first.cells[..index]) * CELL_BYTES,
            cell_count: first.cells[index] as usize,
            data: all_cells + sum(&first.data_bytes[..index]),
            data_bytes: first.data_bytes[index] as usize,
        }
    }

    /// The place of one priority's full ring in the file of a pair.
    pub fn lane(&self, priority: Priority) -> LanePlace {
        let index = priority.index();
        let before = RING_ORDER.iter().take_while(|other| **other != priority).map(|other| self.ring_bytes(other.index()));
        let (ring, cells) = (RINGS_OFFSET + before.sum::<usize>(), self.cells[index] as usize);
        LanePlace {
            control: index * CONTROL_BYTES,
            cells: ring,
            cell_count: cells,
            data: ring + cells * CELL_BYTES,
            data_bytes: self.data_bytes[index] as usize,
        }
    }
}

/// Offsets of one ring of a lane in the file of its pair, and its sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LanePlace {
    /// Offset of the control words.
    pub control: usize,
    /// Offset of the cells.
    pub cells: usize,
    /// The number of cells.
    pub cell_count: usize,
    /// Offset of the data ring.
    pub data: usize,
    /// The size of the data ring.
    pub data_bytes: usize,
}

impl LanePlace {
    /// The least size of the file that has this ring.
    pub fn end(&self) -> usize {
        (self.data + self.data_bytes).next_multiple_of(PAGE)
    }
}

/// The size of a board with this many injection FIFOs.
pub const fn board_bytes(fifos: usize) -> usize {
    (BOARD_BYTES + fifos * FIFO_BYTES).next_multiple_of(PAGE)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_pair_do_not_overlap() {
        for lanes in [LaneGeometry::default(), LaneGeometry { cells: [16; PRIORITIES], data_bytes: [16 << 10; PRIORITIES] }] {
            lanes.validate().unwrap();
            let mut parts = vec![(0, PRIORITIES * CONTROL_BYTES), (MEETINGS_OFFSET, PAGE), (RETURNS_OFFSET, PAGE)];
            for priority in Priority::ALL {
                let (first, full) = (lanes.first_lane(priority), lanes.lane(priority));
                assert!(first.end() <= FIRST_BYTES && full.end() <= lanes.pair_bytes());
                assert!(2 * first.cell_count <= full.cell_count && first.data_bytes <= full.data_bytes);
                for place in [first, full] {
                    assert!(place.cells.is_multiple_of(CELL_BYTES) && place.data.is_multiple_of(CELL_BYTES));
                    parts.push((place.cells, place.cell_count * CELL_BYTES));
                    parts.push((place.data, place.data_bytes));
                }
            }
            parts.sort_unstable();
            assert!(parts.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "{parts:?}");
            assert_eq!(lanes.pair_bytes() % PAGE, 0);
        }
    }

    #[test]
    fn pairs_that_exchange_small_messages_fit_a_container() {
        assert!(64 * (63 * FIRST_BYTES + INBOX_BYTES + board_bytes(32)) < 63 << 20);
    }

    #[test]
    fn a_header_tells_what_is_wrong_with_it() {
        #[repr(align(128))]
        struct Room([u8; 256]);
        let mut room = Room([0; 256]);
        let ptr = room.0.as_mut_ptr();
        // SAFETY: 256 aligned bytes that outlive all uses.
        unsafe {
            assert_eq!(SegmentHeader::check(ptr, 256, 256, SegmentKind::Inbox), Err(HeaderFault::NotReady));
            SegmentHeader::init(ptr, SegmentKind::Inbox, NodeId(3), 7, 256, FLAG_FENCE).publish();
            let facts = SegmentHeader::check(ptr, 256, 256, SegmentKind::Inbox).unwrap();
            let nonce = facts.nonce;
            assert_eq!(facts, HeaderFacts { node: NodeId(3), incarnation: 7, bytes: 256, flags: FLAG_FENCE, nonce });
            assert_eq!(
                SegmentHeader::check(ptr, 256, 255, SegmentKind::Inbox),
                Err(HeaderFault::TooShort { found: 255, expected: 256 })
            );
            assert_eq!(
                SegmentHeader::check(ptr, 256, 256, SegmentKind::Board),
                Err(HeaderFault::OtherKind { found: 2, expected: 3 })
            );
            *ptr.add(offset_of!(SegmentHeader, layout_hash)) ^= 1;
            assert!(matches!(SegmentHeader::check(ptr, 256, 256, SegmentKind::Inbox), Err(HeaderFault::OtherLayout { .. })));
        }
    }
}
