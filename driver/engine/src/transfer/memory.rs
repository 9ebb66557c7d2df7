//! The place of a message's bytes at both ends, and how to reach those of the other end.

use super::Place;
use crate::memory::table::RegionTable;
use doorbell_fabric::{Incarnation, NodeId};
use doorbell_shm::domain::{Membership, PeerInbox};
use doorbell_shm::region::PeerRegion;
use std::io;
use std::sync::Arc;

/// This end's memory: knows which of it lies in regions that peers can map.
#[derive(Clone)]
pub struct Local {
    membership: Arc<Membership>,
    regions: Arc<RegionTable>,
}

impl Local {
    /// The memory of a node.
    pub(crate) fn new(membership: Arc<Membership>, regions: Arc<RegionTable>) -> Self {
        Self { membership, regions }
    }

    /// The place of bytes of this process.
    pub fn place(&self, bytes: *const u8, len: usize) -> Place {
        match self.regions.find(bytes, len) {
            Some((number, offset)) => Place::Region { number, offset },
            None => Place::Private(bytes.expose_provenance() as u64),
        }
    }

    /// Unmaps regions of a peer whose incarnation is over.
    pub fn let_go(&self, node: NodeId, incarnation: Incarnation) {
        self.regions.let_go(node, incarnation);
    }

    /// Whether the bytes lie in a region.
    pub fn is_in_region(&self, bytes: *const u8, len: usize) -> bool {
        self.regions.find(bytes, len).is_some()
    }
}

/// The other end's bytes.
pub enum Remote {
    /// In the private memory of that process.
    Private(Arc<PeerInbox>, u64),
    /// In a region of the other node, mapped here: at this offset.
    Region(Arc<PeerRegion>, usize),
}

impl Remote {
    /// How to reach a place of the other end; `None` if that is impossible.
    pub fn of(place: Place, len: u64, peer: &Arc<PeerInbox>, local: &Local, writable: bool) -> Option<Self> {
        match place {
            Place::Nowhere | Place::Session(_) => None,
            Place::Private(address) => {
                (Self::can_reach(peer) && address.checked_add(len).is_some()).then(|| Self::Private(peer.clone(), address))
            }
            Place::Region { number, offset } => {
                let region = local.regions.open(&local.membership, peer.id(), peer.incarnation(), number, writable, 0).ok()?;
                let end = offset.checked_add(len)?;
                (end <= region.len() as u64).then(|| Self::Region(region, offset as usize))
            }
        }
    }

    /// Whether private memory of a peer can be reached.
    pub fn can_reach(peer: &Arc<PeerInbox>) -> bool {
        peer.reach().is_some()
    }

    /// Whether its bytes can be read, as far as reading the first and the last one tells.
    pub fn is_readable(&self, len: u64) -> bool {
        match self {
            Self::Private(peer, address) => peer.reach().is_some_and(|reach| reach.can_read(*address, len as usize)),
            Self::Region(..) => true,
        }
    }

    /// Whether only a copy tells whether the bytes can be read.
    pub fn may_be_unreadable(&self) -> bool {
        matches!(self, Self::Private(peer, _) if peer.reach().is_none_or(|reach| !reach.is_here()))
    }

    /// Whether it is a region that was truncated during the copy.
    pub fn is_cut(&self) -> bool {
        matches!(self, Self::Region(region, _) if region.is_cut())
    }

    /// Whether all `len` bytes from `at` on can be read. If so, a failed copy failed at its destination.
    pub fn can_read_all(&self, at: u64, len: u64) -> bool {
        match self {
            Self::Private(peer, address) => peer.reach().is_some_and(|reach| reach.can_read_all(address + at, len as usize)),
            Self::Region(..) => !self.is_cut(),
        }
    }

    /// Whether the other end lives. Asked after a failed copy.
    pub fn is_alive(&self) -> bool {
        match self {
            Self::Private(peer, _) => peer.is_alive(),
            Self::Region(..) => true,
        }
    }

    fn whole(&self) -> io::Result<()> {
        if self.is_cut() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    /// Copies from the other end.
    ///
    /// # Safety
    /// `len` bytes are writable at `into`, and `at + len` lies within the place.
    pub unsafe fn read(&self, at: u64, into: *mut u8, len: u64) -> io::Result<()> {
        match self {
            Self::Private(peer, address) => {
                let reach = peer.reach().ok_or(io::ErrorKind::PermissionDenied)?;
                // SAFETY: the caller owns the bytes. Within one process, the other end exposed its address and keeps its bytes.
                unsafe { reach.read(address + at, into, len as usize) }
            }
            Self::Region(region, offset) => {
                // SAFETY: within the region (`of` checked the whole place), which stays mapped; the caller owns the bytes. Two
                // regions of one process may be the same.
                unsafe { std::ptr::copy(region.ptr().add(offset + at as usize), into, len as usize) };
                self.whole()
            }
        }
    }

    /// Copies to the other end.
    ///
    /// # Safety
    /// `len` bytes are readable at `from`, `at + len` lies within the place, and the other end asked for it.
    pub unsafe fn write(&self, at: u64, from: *const u8, len: u64) -> io::Result<()> {
        match self {
            Self::Private(peer, address) => {
                let reach = peer.reach().ok_or(io::ErrorKind::PermissionDenied)?;
                // SAFETY: as above; the other end waits until the rendezvous block tells that this is done.
                unsafe { reach.write(address + at, from, len as usize) }
            }
            Self::Region(region, offset) => {
                // SAFETY: as above; mapped writable (`of`).
                unsafe { std::ptr::copy(from, region.ptr().add(offset + at as usize), len as usize) };
                self.whole()
            }
        }
    }
}
