//! The layout of shared memory: the header of every segment, and the lanes of an inbox.
//!
//! An inbox is one header page followed by one block for each node id of the domain. A block holds the lanes by which that node
//! sends to the inbox's owner. Blocks are whole pages. A peer maps only the header page and its own block, so a stray write of
//! one peer cannot reach the lanes of another.
//!
//! ```text
//! inbox   | header, doorbell | block of node 0 | block of node 1 | …
//! block   | lane controls | meetings | returns (one page each) | cells and data: high | normal | low |
//! ```

use doorbell_fabric::sync::{AtomicU64, Ordering};
use doorbell_fabric::{NodeId, PRIORITIES, Priority};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::mem::{offset_of, size_of};

/// The size of a page. Blocks and segments are multiples of it.
pub const PAGE: usize = 4096;
/// The size of the first part of an inbox: the segment header and the doorbell words.
pub const HEADER_BYTES: usize = PAGE;
/// The size of a cell: one cache line.
pub const CELL_BYTES: usize = 64;
/// The offset of the doorbell words in the header page.
pub const DOORBELL_OFFSET: usize = 1024;
/// The offset in the header page of the words that tell how to probe the node's private memory: see [`crate::cma`].
pub const REACH_OFFSET: usize = 2048;
/// The size of a board.
pub const BOARD_BYTES: usize = 64 * 1024;
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

/// The size of the part of a block that holds the control words of its lanes.
pub const CONTROLS_BYTES: usize = PAGE;
/// The offset in a block of the rendezvous blocks of transfers: see [`crate::meeting`].
pub const MEETINGS_OFFSET: usize = CONTROLS_BYTES;
/// The size of the rendezvous blocks of one block.
pub const MEETINGS_BYTES: usize = PAGE;
/// The offset in a block of the words by which its sender returns loans of the inbox's owner, one word for each loan.
pub const RETURNS_OFFSET: usize = MEETINGS_OFFSET + MEETINGS_BYTES;
/// The size of the return words of one block.
pub const RETURNS_BYTES: usize = PAGE;
/// The size of a block before its first ring.
pub const BLOCK_HEAD_BYTES: usize = RETURNS_OFFSET + RETURNS_BYTES;
/// The size of the control words of one lane.
pub const CONTROL_BYTES: usize = 256;

/// Raise this when the meaning of shared memory changes but none of the numbers hashed below do.
pub const LAYOUT_VERSION: u32 = 12;

/// A hash of all offsets and sizes: two builds with the same hash agree on every byte.
pub const LAYOUT_HASH: u64 = hash(&[
    LAYOUT_VERSION as u64,
    PAGE as u64,
    CELL_BYTES as u64,
    DOORBELL_OFFSET as u64,
    REACH_OFFSET as u64,
    BOARD_BYTES as u64,
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
    BLOCK_HEAD_BYTES as u64,
    MEETINGS_OFFSET as u64,
    RETURNS_OFFSET as u64,
    CONTROL_BYTES as u64,
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
    /// The lanes that lead to one node.
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
        Self { cells: [64, 512, 64], data_bytes: [16 << 10, 128 << 10, 16 << 10] }
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

    /// The size of one block: the lanes of all priorities from one node to another, in whole pages.
    pub fn block_bytes(&self) -> usize {
        (0..PRIORITIES).map(|p| self.ring_bytes(p)).sum::<usize>().next_multiple_of(PAGE) + BLOCK_HEAD_BYTES
    }

    fn ring_bytes(&self, priority: usize) -> usize {
        self.cells[priority] as usize * CELL_BYTES + self.data_bytes[priority] as usize
    }

    /// The place of one priority's lane in its block: its control words, its cells, its data.
    pub fn lane(&self, priority: Priority) -> LanePlace {
        let ring = BLOCK_HEAD_BYTES + (0..priority.index()).map(|p| self.ring_bytes(p)).sum::<usize>();
        let cells = self.cells[priority.index()] as usize;
        LanePlace {
            control: priority.index() * CONTROL_BYTES,
            cells: ring,
            cell_count: cells,
            data: ring + cells * CELL_BYTES,
            data_bytes: self.data_bytes[priority.index()] as usize,
        }
    }
}

/// Offsets of one lane in its block, and its sizes.
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

const _: () = assert!(PRIORITIES * CONTROL_BYTES <= CONTROLS_BYTES);

/// The size of an inbox in a domain of `max_nodes` nodes.
pub fn inbox_bytes(max_nodes: usize, lanes: &LaneGeometry) -> usize {
    HEADER_BYTES + max_nodes * lanes.block_bytes()
}

/// The offset of one sender's lanes in an inbox.
pub fn block_offset(source: NodeId, lanes: &LaneGeometry) -> usize {
    HEADER_BYTES + source.index() * lanes.block_bytes()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn lanes_lie_one_behind_the_other_within_their_block() {
        let lanes = LaneGeometry::default();
        lanes.validate().unwrap();
        let mut end = BLOCK_HEAD_BYTES;
        for priority in Priority::ALL {
            let place = lanes.lane(priority);
            assert_eq!(place.cells, end);
            assert_eq!(place.data, end + place.cell_count * CELL_BYTES);
            assert_eq!(place.cells % PAGE, 0);
            end = place.data + place.data_bytes;
        }
        assert!(end <= lanes.block_bytes());
        assert_eq!(lanes.block_bytes() % PAGE, 0);
    }

    #[test]
    fn eight_nodes_of_default_size_fit_a_container() {
        assert!(8 * (inbox_bytes(16, &LaneGeometry::default()) + BOARD_BYTES) < 60 << 20);
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
