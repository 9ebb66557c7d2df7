//! The lanes from one node to another: a file of their own, which exists once they talk and grows with what they do.
//!
//! Either end creates the file, without the domain's lock: a sender cannot wait for that. The file belongs to the node that
//! receives, and goes with it. A node that leaves removes first its inbox and then these files. A process that creates one checks
//! afterwards that the inbox is still there, and removes the file if it is not. What a killed process leaves behind goes with the
//! next node of that id.
//!
//! Each process maps the whole length at once, and touches only as much as the file has. The sender makes the file longer before
//! it tells the receiver, through the lane, that it uses the new part. A sender that lies about that harms its own lanes only: the
//! missing pages read as zeros, and the receiver gives the file up. The next incarnation of the sender gets another one.

use super::{Membership, PeerInbox};
use crate::error::ShmError;
use crate::lane::RawMemory;
use crate::layout::{CALLERS_OFFSET, FIRST_BYTES, LaneGeometry};
use crate::segment::Segment;
use crate::space::{Identity, Names, Space, forked};
use doorbell_fabric::{Incarnation, NodeId, Priority};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

/// The lanes from one node to another, and the words of their transfers and loans. `Send` and `Sync`. Mapped until the value is
/// dropped.
#[derive(Debug)]
pub struct Pair {
    segment: Segment,
    /// No descriptor is kept: a node has many pairs.
    identity: Identity,
    space: Space,
    name: String,
    lanes: LaneGeometry,
    /// The bytes of the file that this process relies on.
    bytes: AtomicUsize,
}

impl Pair {
    fn open(
        (space, names): (&Space, &Names),
        lanes: LaneGeometry,
        (target, incarnation): (NodeId, Incarnation),
        source: NodeId,
    ) -> Result<Self, ShmError> {
        let name = names.pair(target, incarnation, source);
        let most = lanes.pair_bytes();
        let file = space.open_or_create(names, &name, FIRST_BYTES, most)?;
        fault_point!("pair.named");
        let segment = file.map_ahead(most).map_err(|error| ShmError::os("map segment", name.clone(), error))?;
        Ok(Self { segment, identity: file.identity(), space: space.clone(), name, lanes, bytes: AtomicUsize::new(FIRST_BYTES) })
    }

    fn remove(&self) {
        if let Err(error) = self.space.remove(&self.name, self.identity) {
            tracing::debug!(%error, "the lanes to a node that has gone stay until the next node joins");
        }
    }

    /// The first byte, page-aligned. Only as many bytes may be touched as the file has: see [`grow`](Self::grow).
    #[inline]
    pub fn ptr(&self) -> *mut u8 {
        self.segment.ptr()
    }

    /// The ring by which a lane begins, and its full ring, which may be touched once the file has [grown](Self::grow) to it.
    ///
    /// # Safety
    /// The pair outlives both.
    pub unsafe fn rings(&self, priority: Priority) -> (RawMemory, RawMemory) {
        let (first, full) = (self.lanes.first_lane(priority), self.lanes.lane(priority));
        debug_assert!(full.end() <= self.segment.len());
        // SAFETY: both lie within the mapping, which lives as long as the pair (caller).
        unsafe { (RawMemory::new(self.ptr(), first), RawMemory::new(self.ptr(), full)) }
    }

    /// Makes the file at least `bytes` long. One load if it is; else system calls, which do not wait.
    ///
    /// # Errors
    /// [`ShmError::NoSpace`]: the file system is full. Nothing has changed.
    pub fn grow(&self, bytes: usize) -> Result<(), ShmError> {
        if self.bytes.load(Ordering::Relaxed) < bytes {
            self.space.grow(&self.name, self.identity, bytes)?;
            self.rely_on(bytes);
        }
        Ok(())
    }

    /// Records that the other end has made the file this long.
    pub(crate) fn rely_on(&self, bytes: usize) {
        self.bytes.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Whether another process truncated it and this process touched a missing page. One load.
    #[inline]
    pub fn is_cut(&self) -> bool {
        self.segment.is_cut()
    }

    /// Whether it has all its memory, so that no process truncated it, not even for a moment. One or two system calls.
    pub fn is_whole(&self) -> bool {
        !self.is_cut() && !self.space.lacks(&self.name, self.identity, self.bytes.load(Ordering::Relaxed) as u64)
    }
}

/// One bit for each node that made lanes to the owner of an inbox.
///
/// # Safety
/// `header` is the page-aligned start of an inbox that stays mapped for `'a`.
pub(crate) unsafe fn callers<'a>(header: *mut u8, max_nodes: usize) -> &'a [AtomicU64] {
    // SAFETY: the words of 1024 nodes lie in the page, aligned; atomics allow other writers.
    unsafe { std::slice::from_raw_parts(header.add(CALLERS_OFFSET).cast(), max_nodes.div_ceil(64)) }
}

const _: () = assert!(CALLERS_OFFSET + super::MAX_NODES / 8 <= crate::layout::HEADER_BYTES && CALLERS_OFFSET.is_multiple_of(64));

/// All that is needed to open the lanes from this node to a peer.
#[derive(Debug)]
pub(super) struct Way {
    space: Space,
    names: Names,
    lanes: LaneGeometry,
    source: NodeId,
    max_nodes: usize,
}

impl Way {
    pub fn from(membership: &Membership) -> Self {
        Self {
            space: membership.space().clone(),
            names: membership.names().clone(),
            lanes: membership.lanes(),
            source: membership.id(),
            max_nodes: membership.max_nodes(),
        }
    }

    /// Opens or creates the lanes, and tells their target.
    pub fn open(&self, peer: &PeerInbox) -> Result<Pair, ShmError> {
        const OPERATION: &str = "open lanes";
        if forked() {
            return Err(ShmError::Forked { operation: OPERATION });
        }
        let Self { space, names, lanes, source, max_nodes } = self;
        let (id, incarnation) = (peer.id(), peer.incarnation());
        let pair = Pair::open((space, names), *lanes, (id, incarnation), *source)?;
        // A node that leaves removes first its inbox and then the lanes to it. If the inbox is still there, it will find this file.
        if !peer.is_alive() || space.identity(&names.inbox(id)) != Some(peer.identity()) {
            pair.remove();
            return Err(ShmError::NodeDead { operation: OPERATION, domain: names.domain_name().to_owned(), id, incarnation });
        }
        // SAFETY: the header page is mapped as long as the peer's inbox.
        if let Some(word) = unsafe { callers(peer.header(), *max_nodes) }.get(source.index() / 64) {
            // Release: the file exists before its target looks for it.
            word.fetch_or(1 << (source.index() % 64), Ordering::Release);
        }
        Ok(pair)
    }
}

impl Membership {
    /// The lanes from a node of the domain to this one. The first call for a node opens or creates them; it makes system calls, and
    /// does not wait. Thread-safe.
    pub fn pair_from(&self, source: NodeId) -> Result<Arc<Pair>, ShmError> {
        const OPERATION: &str = "open lanes";
        assert!(source.index() < self.max_nodes(), "the node id is outside the domain");
        self.check_call(OPERATION)?;
        let mut pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pair) = pairs.get(&source) {
            return Ok(pair.clone());
        }
        let ours = (self.id(), self.incarnation());
        let pair = Arc::new(Pair::open((self.space(), self.names()), self.lanes(), ours, source)?);
        // If this node left meanwhile, it may have removed its files before this one was there.
        self.check_call(OPERATION).inspect_err(|_| pair.remove())?;
        pairs.insert(source, pair.clone());
        Ok(pair)
    }

    /// The lanes from a node to this one if one of the two has made them, without making them.
    pub(crate) fn existing_pair_from(&self, source: NodeId) -> Result<Option<Arc<Pair>>, ShmError> {
        let exists = || self.space().identity(&self.names().pair(self.id(), self.incarnation(), source)).is_some();
        (source.index() < self.max_nodes() && exists()).then(|| self.pair_from(source)).transpose()
    }

    /// Removes lanes that nobody uses any more.
    pub(crate) fn forget_pair(&self, source: NodeId, pair: &Arc<Pair>) {
        let mut pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        if pairs.get(&source).is_some_and(|known| Arc::ptr_eq(known, pair)) {
            pairs.remove(&source);
        }
        pair.remove();
    }
}
