//! Regions: memory of one node that its peers write and read, without any work of its owner's processor.
//!
//! Each region is a segment of its own. The first page holds its description and its state; the data begins at the second page. A
//! peer maps the first page read-only and the data as its key allows, so the peer cannot revive a withdrawn region.
//!
//! Withdrawing does not disturb a peer that is copying at that moment: its mapping keeps the pages, which are never reused. So
//! the owner need not wait for any peer, and a late write does no harm.

use crate::domain::Membership;
use crate::error::ShmError;
use crate::layout::{HeaderFault, PAGE, SegmentHeader, SegmentKind, random};
use crate::segment::Segment;
use crate::space::{DomainLock, Identity, Names, Space, forked};
use doorbell_fabric::{Incarnation, NodeId};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The offset of a region's own words in its first page: state, number, length, secret.
pub const HEAD_OFFSET: usize = 1024;
/// The offset of its data.
pub const DATA_OFFSET: usize = PAGE;
/// The timeout for the domain's lock when withdrawing.
const PATIENCE: Duration = Duration::from_secs(1);

const LIVE: u64 = 1;
const WITHDRAWN: u64 = 2;

/// A region's description beyond the common segment header. It is written before the region has a name; then only `state`
/// changes.
#[repr(C, align(128))]
struct Head {
    state: AtomicU64,
    number: AtomicU64,
    bytes: AtomicU64,
    secret: AtomicU64,
}

const _: () = assert!(HEAD_OFFSET >= size_of::<SegmentHeader>() && HEAD_OFFSET + size_of::<Head>() <= DATA_OFFSET);

impl Head {
    /// # Safety
    /// `page` is the page-aligned start of a region's first page, readable for `'a`.
    #[inline(always)]
    unsafe fn at<'a>(page: *mut u8) -> &'a Head {
        // SAFETY: inside the page and aligned; all fields are atomics, so other writers are allowed.
        unsafe { &*page.add(HEAD_OFFSET).cast() }
    }
}

/// Why a peer's region cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionFault {
    /// There is no such region. There may have been one.
    #[error("the node has no such region now; ask it for a new key")]
    Absent,
    /// The owner withdrew it.
    #[error("its owner withdrew it; ask for a new key")]
    Withdrawn,
    /// It belongs to another incarnation of the node.
    #[error("it belongs to incarnation {found} of the node; ask for a new key")]
    OtherLife {
        /// The incarnation that it belongs to.
        found: Incarnation,
    },
    /// Its header is too short or not that of a region.
    #[error("{0}; its owner should be ended")]
    Header(HeaderFault),
}

/// The regions that a node has created and not withdrawn. Lock it after the domain's lock, never before it.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    entries: Mutex<BTreeMap<u32, Entry>>,
}

#[derive(Debug)]
struct Entry {
    name: String,
    identity: Identity,
    segment: Arc<Segment>,
}

impl Entry {
    fn withdraw(&self) {
        // SAFETY: the first page of a region that this node created, mapped as long as the entry. Release: a peer that sees the
        // region withdrawn sees what its owner did before.
        unsafe { Head::at(self.segment.ptr()) }.state.store(WITHDRAWN, Ordering::Release);
    }
}

impl Registry {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<u32, Entry>> {
        // No step under the lock leaves the map half-changed, so poisoning is ignored.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Withdraws and removes all regions of a node that leaves.
    pub fn remove_all(&self, lock: &DomainLock) -> Result<(), ShmError> {
        let mut result = Ok(());
        for entry in std::mem::take(&mut *self.entries()).values() {
            entry.withdraw();
            result = result.and(lock.remove(&entry.name, Some(entry.identity)).map(drop));
            fault_point!("leave.region");
        }
        result
    }

    /// Whether any region was truncated and this process touched a missing page.
    pub fn is_cut(&self) -> bool {
        self.entries().values().any(|entry| entry.segment.is_cut())
    }

    /// Forgets all regions and leaves them in place, as if the process had been killed.
    pub fn abandon(&self) {
        self.entries().clear();
    }
}

/// The memory of one of this node's regions. `Send` and `Sync`. It stays mapped until the last clone is dropped, whether or not
/// the region is still offered.
#[derive(Clone, Debug)]
pub struct RegionMemory {
    segment: Arc<Segment>,
    bytes: usize,
    secret: u64,
}

impl RegionMemory {
    /// The first byte, page-aligned and writable. Others may write to it at any time. A forked child does not have it.
    #[inline]
    pub fn ptr(&self) -> *mut u8 {
        // SAFETY: a region is longer than its first page.
        unsafe { self.segment.ptr().add(DATA_OFFSET) }
    }

    /// The number of bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// The random number in its keys.
    pub fn secret(&self) -> u64 {
        self.secret
    }

    /// Whether peers may still use it: it was not withdrawn, and the node has not left. One load; false in a forked child.
    #[inline]
    pub fn is_live(&self) -> bool {
        is_live(&self.segment)
    }

    /// As [`PeerRegion::is_cut`].
    pub fn is_cut(&self) -> bool {
        self.segment.is_cut()
    }

    /// Makes all pages present in this process now, so that its first use of a page does not wait for the system.
    pub fn populate(&self) {
        self.segment.populate();
    }
}

/// Whether a region, by its first page, is still offered.
#[inline(always)]
fn is_live(page: &Segment) -> bool {
    // SAFETY: the first page of a region, mapped as long as the segment, except in a forked child.
    !forked() && unsafe { Head::at(page.ptr()) }.state.load(Ordering::Acquire) == LIVE
}

/// A region of this node. `Send` and `Sync`. Dropping it withdraws it, which may block for up to a second if another process
/// holds the domain's lock. The memory stays mapped until the value is dropped, even if the node has left.
///
/// A forked child does not have the memory, and dropping the value there does nothing.
#[derive(Debug)]
pub struct OwnRegion {
    memory: RegionMemory,
    number: u32,
    registry: Arc<Registry>,
    space: Space,
    names: Names,
}

impl Deref for OwnRegion {
    type Target = RegionMemory;

    #[inline]
    fn deref(&self) -> &RegionMemory {
        &self.memory
    }
}

impl OwnRegion {
    /// Its memory, which can stay mapped after the region is withdrawn.
    pub fn memory(&self) -> RegionMemory {
        self.memory.clone()
    }

    /// Its number among the regions of this node.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Withdraws the region and removes its name. Does not wait for peers that are copying; their later writes do no harm. A
    /// second call does nothing.
    ///
    /// Blocks on the domain's lock for up to a second. If that fails, the region is still withdrawn, and its name goes when the
    /// node leaves.
    pub fn withdraw(&self) -> Result<(), ShmError> {
        const OPERATION: &str = "withdraw a region in";
        if forked() {
            return Err(ShmError::Forked { operation: "withdraw a region" });
        }
        match self.registry.entries().get(&self.number) {
            Some(entry) => entry.withdraw(),
            None => return Ok(()),
        }
        fault_point!("region.withdrawn");
        let Some(lock) = self.space.lock_if_any(OPERATION, &self.names, Instant::now() + PATIENCE)? else {
            // The node has left as the last one of the domain, and the name is gone. A lock file made here would stay.
            self.registry.entries().remove(&self.number);
            return Ok(());
        };
        match self.registry.entries().remove(&self.number) {
            Some(entry) => lock.remove(&entry.name, Some(entry.identity)).map(drop),
            None => Ok(()),
        }
    }
}

impl Drop for OwnRegion {
    fn drop(&mut self) {
        if !forked()
            && let Err(error) = self.withdraw()
        {
            tracing::warn!(%error, region = self.number, "a region stays in shared memory until its node leaves");
        }
    }
}

/// A region of a peer, mapped as far as it was requested. `Send` and `Sync`. It stays mapped until the value is dropped, whether
/// or not the peer lives or still offers it.
#[derive(Debug)]
pub struct PeerRegion {
    node: NodeId,
    incarnation: Incarnation,
    number: u32,
    secret: u64,
    writable: bool,
    bytes: usize,
    head: Segment,
    data: Segment,
}

impl PeerRegion {
    /// The first byte, page-aligned; writable if it was opened so. Others may write to it at any time. A forked child does not
    /// have it.
    #[inline(always)]
    pub fn ptr(&self) -> *mut u8 {
        self.data.ptr()
    }

    /// The number of bytes.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether its owner still offers it. One load. After its owner was killed, a region counts as live until it is removed: see
    /// [`PeerInbox::is_alive`](crate::domain::PeerInbox::is_alive). False in a forked child.
    #[inline(always)]
    pub fn is_live(&self) -> bool {
        is_live(&self.head)
    }

    /// Whether the region was truncated and this process touched a missing page. Then zeros were read, and written bytes are
    /// lost. Two loads.
    #[inline(always)]
    pub fn is_cut(&self) -> bool {
        self.data.is_cut() || self.head.is_cut()
    }

    /// Whether it may be written through [`ptr`](Self::ptr).
    #[inline(always)]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The owner of the region.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The incarnation of that node.
    #[inline(always)]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Its number among the regions of that node.
    #[inline(always)]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The random number in its keys, as its owner wrote it when the region was opened.
    #[inline(always)]
    pub fn secret(&self) -> u64 {
        self.secret
    }
}

impl Membership {
    /// Creates a region of `bytes` zeroed bytes. No two regions of one incarnation may have the same number.
    ///
    /// This is a control path: it creates a file and blocks on the domain's lock for up to a second. Fails if there is no room,
    /// if `bytes` is zero, or if the node has left. A failed call leaves nothing behind.
    pub fn create_region(&self, number: u32, bytes: usize) -> Result<OwnRegion, ShmError> {
        const OPERATION: &str = "make a region in";
        if forked() {
            return Err(ShmError::Forked { operation: "make a region" });
        }
        let (space, names) = (self.space().clone(), self.names().clone());
        let whole = bytes.checked_next_multiple_of(PAGE).and_then(|data| data.checked_add(DATA_OFFSET));
        let Some(whole) = whole.filter(|whole| bytes > 0 && *whole <= isize::MAX as usize) else {
            let rule = "a region needs at least one byte and must fit into memory";
            return Err(ShmError::InvalidRegion { domain: self.domain().to_owned(), bytes, rule });
        };
        // A node that leaves later must find the region in the registry.
        let lock = self.lock_domain(OPERATION, "make a region", Instant::now() + PATIENCE)?;
        // The secret shows that this node made a key that carries it. It guards against mistakes, not against a process that may
        // read the region.
        let (id, incarnation, secret) = (self.id(), self.incarnation(), random());
        let name = names.region(id, number);
        let init = |segment: &Segment| {
            // SAFETY: page-aligned, longer than a page, writable, and alive as long as the references are used here.
            let (header, head) = unsafe {
                let header = SegmentHeader::init(segment.ptr(), SegmentKind::Region, id, incarnation.0, whole, 0);
                (header, Head::at(segment.ptr()))
            };
            head.number.store(number.into(), Ordering::Relaxed);
            head.bytes.store(bytes as u64, Ordering::Relaxed);
            head.secret.store(secret, Ordering::Relaxed);
            head.state.store(LIVE, Ordering::Relaxed);
            header.publish();
        };
        let created = lock.create(&name, whole, false, &init)?;
        fault_point!("region.named");
        let (segment, registry) = (Arc::new(created.segment), self.registry().clone());
        registry.entries().insert(number, Entry { name, identity: created.identity, segment: segment.clone() });
        drop(lock);
        Ok(OwnRegion { memory: RegionMemory { segment, bytes, secret }, number, registry, space, names })
    }

    /// Opens a region of this incarnation of a node for reading and, if `writable`, for writing. This is a control path: it makes
    /// system calls but takes no lock. It does not wait for the peer and does not check whether the peer lives.
    ///
    /// # Errors
    /// [`ShmError::Region`] says whether the region is absent, withdrawn, of another incarnation, or not a region at all.
    pub fn open_region(
        &self,
        node: NodeId,
        incarnation: Incarnation,
        number: u32,
        writable: bool,
    ) -> Result<PeerRegion, ShmError> {
        self.check_call("open a region")?;
        let refuse = |fault| Err(ShmError::Region { domain: self.domain().to_owned(), node, number, fault });
        let name = self.names().region(node, number);
        let Some(file) = self.space().open(&name)? else { return refuse(RegionFault::Absent) };
        let found = usize::try_from(file.len()).unwrap_or(usize::MAX);
        if found <= DATA_OFFSET {
            return refuse(RegionFault::Header(HeaderFault::TooShort { found, expected: DATA_OFFSET + 1 }));
        }
        let fault = |error| ShmError::os("map segment", name.clone(), error);
        let first = file.map_read(0, PAGE).map_err(fault)?;
        // SAFETY: page-aligned, and mapped for its length.
        let facts = match unsafe { SegmentHeader::check(first.ptr(), first.len(), found, SegmentKind::Region) } {
            Ok(facts) => facts,
            Err(fault) => return refuse(RegionFault::Header(fault)),
        };
        if facts.node != node || facts.incarnation != incarnation.0 {
            return refuse(RegionFault::OtherLife { found: Incarnation(facts.incarnation) });
        }
        // SAFETY: page-aligned, and mapped for a page.
        let head = unsafe { Head::at(first.ptr()) };
        let (state, bytes) = (head.state.load(Ordering::Acquire), head.bytes.load(Ordering::Relaxed));
        let secret = head.secret.load(Ordering::Relaxed);
        if head.number.load(Ordering::Relaxed) != u64::from(number) {
            return refuse(RegionFault::Header(HeaderFault::Damaged { what: "region number" }));
        }
        match state {
            LIVE => {}
            WITHDRAWN => return refuse(RegionFault::Withdrawn),
            _ => return refuse(RegionFault::Header(HeaderFault::Damaged { what: "region state" })),
        }
        // Use the real memory and not the stated length, which may be longer. A correct owner has reserved all of it; reading a
        // hole would allocate memory.
        let reserved = usize::try_from(file.reserved()).unwrap_or(usize::MAX);
        let room = facts.bytes.min(found).min(reserved).saturating_sub(DATA_OFFSET);
        let Some(bytes) = usize::try_from(bytes).ok().filter(|bytes| (1..=room).contains(bytes)) else {
            return refuse(RegionFault::Header(HeaderFault::Damaged { what: "region length" }));
        };
        let data = if writable { file.map(DATA_OFFSET, bytes) } else { file.map_read(DATA_OFFSET, bytes) }.map_err(fault)?;
        Ok(PeerRegion { node, incarnation, number, secret, writable, bytes, head: first, data })
    }
}
