//! The bytes of a domain segment.
//!
//! ```text
//! 0     header of every segment | 512  facts, written before the segment has a name
//! 1024  generation, a futex word | 1152  next incarnation, changed under the domain's lock
//! 4096  entries, one a node id, 256 bytes each
//! then, from the next page on, the lock registry: see `crate::keys`
//! ```
//!
//! Any attached process may write any of them at any time, so every field is an atomic, and readers check what they copy.

use crate::keys::{KEYS_HASH, TABLE_BYTES};
use crate::layout::{LAYOUT_HASH, LaneGeometry, PAGE, SegmentHeader, extend_hash};
use doorbell_fabric::PRIORITIES;
use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The smallest size of a domain in nodes.
pub const MIN_NODES: usize = 2;
/// The largest size of a domain in nodes.
pub const MAX_NODES: usize = 1024;
/// The most bytes of a label.
pub const MAX_LABEL: usize = 31;

/// The offset of the entries.
pub(super) const ENTRIES_OFFSET: usize = PAGE;

/// The properties of a domain. They never change.
#[repr(C, align(128))]
pub(super) struct Facts {
    /// [`DIRECTORY_HASH`] of the creator.
    hash: AtomicU64,
    max_nodes: AtomicU32,
    cells: [AtomicU32; PRIORITIES],
    data_bytes: [AtomicU32; PRIORITIES],
}

#[repr(C, align(128))]
pub(super) struct Alone(pub AtomicU32);

/// The first page of a domain segment.
#[repr(C, align(4096))]
pub(super) struct Head {
    _header: SegmentHeader,
    _unused: [u64; 48],
    pub facts: Facts,
    _unused_too: [u64; 48],
    /// Changes whenever a node joins or leaves. Nodes wait on it.
    pub generation: Alone,
    /// The next incarnation to hand out.
    pub next_incarnation: Alone,
}

/// The directory entry of one node.
#[repr(C, align(256))]
pub(super) struct Entry {
    /// 0, or the incarnation in the upper half and [`PRESENT`] in the lower half. Written last and cleared first.
    pub state: AtomicU64,
    pub pid: AtomicU32,
    pub role: AtomicU32,
    pub pid_namespace: AtomicU64,
    pub joined: AtomicU64,
    pub label_len: AtomicU64,
    pub label: [AtomicU64; 4],
    /// Not zero if the node can also be reached over a network.
    pub networked: AtomicU64,
}

pub(super) const PRESENT: u64 = 1;

const _: () = assert!(offset_of!(Head, facts) == 512);
const _: () = assert!(offset_of!(Head, generation) == 1024);
const _: () = assert!(offset_of!(Head, next_incarnation) == 1152);
const _: () = assert!(size_of::<Head>() == ENTRIES_OFFSET);
const _: () = assert!(size_of::<Entry>() == 256);
const _: () = assert!(size_of::<[AtomicU64; 4]>() > MAX_LABEL);

/// The largest size of a domain segment.
pub(super) const MAX_DOMAIN_BYTES: usize = domain_bytes(MAX_NODES);

/// Two builds with the same number agree on every byte of a domain segment.
pub(super) const DIRECTORY_HASH: u64 = extend_hash(
    LAYOUT_HASH,
    &[
        ENTRIES_OFFSET as u64,
        offset_of!(Head, facts) as u64,
        offset_of!(Head, generation) as u64,
        offset_of!(Head, next_incarnation) as u64,
        offset_of!(Facts, max_nodes) as u64,
        offset_of!(Facts, cells) as u64,
        offset_of!(Facts, data_bytes) as u64,
        size_of::<Entry>() as u64,
        offset_of!(Entry, state) as u64,
        offset_of!(Entry, pid) as u64,
        offset_of!(Entry, role) as u64,
        offset_of!(Entry, pid_namespace) as u64,
        offset_of!(Entry, joined) as u64,
        offset_of!(Entry, label_len) as u64,
        offset_of!(Entry, label) as u64,
        offset_of!(Entry, networked) as u64,
        KEYS_HASH,
    ],
);

/// The size of the segment of a domain for this many nodes.
pub(super) const fn domain_bytes(max_nodes: usize) -> usize {
    keys_offset(max_nodes) + TABLE_BYTES
}

/// The offset of the lock registry.
pub(super) const fn keys_offset(max_nodes: usize) -> usize {
    (ENTRIES_OFFSET + max_nodes * size_of::<Entry>()).next_multiple_of(PAGE)
}

/// The properties of a domain, in private memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DomainFacts {
    pub max_nodes: usize,
    pub lanes: LaneGeometry,
}

impl Facts {
    /// Writes the properties before the segment is published.
    pub fn write(&self, facts: &DomainFacts) {
        self.hash.store(DIRECTORY_HASH, Ordering::Relaxed);
        self.max_nodes.store(facts.max_nodes as u32, Ordering::Relaxed);
        for p in 0..PRIORITIES {
            self.cells[p].store(facts.lanes.cells[p], Ordering::Relaxed);
            self.data_bytes[p].store(facts.lanes.data_bytes[p], Ordering::Relaxed);
        }
    }

    pub fn hash(&self) -> u64 {
        self.hash.load(Ordering::Relaxed)
    }

    /// Copies the facts and checks the copy.
    pub fn read(&self) -> Result<DomainFacts, &'static str> {
        let max_nodes = self.max_nodes.load(Ordering::Relaxed) as usize;
        if !(MIN_NODES..=MAX_NODES).contains(&max_nodes) {
            return Err("the number of nodes is out of range");
        }
        let word = |words: &[AtomicU32; PRIORITIES]| std::array::from_fn(|p| words[p].load(Ordering::Relaxed));
        let lanes = LaneGeometry { cells: word(&self.cells), data_bytes: word(&self.data_bytes) };
        lanes.validate()?;
        Ok(DomainFacts { max_nodes, lanes })
    }
}
