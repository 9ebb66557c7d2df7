//! Memory that this node can reach by an address: its own regions, and those of nodes with which it shares memory.

use super::wire::Status;
use crate::error::{Error, KeyFault};
use crate::memory::cache::{PUT, locate};
use crate::memory::copy;
use crate::memory::key::Place;
use crate::memory::table::{Miss, PartFault, RegionTable, within};
use crate::message::service::PeerId;
use doorbell_fabric::Payload;
use doorbell_shm::domain::Membership;
use doorbell_shm::error::ShmError;
use doorbell_shm::region::{PeerRegion, RegionMemory};
use std::sync::Arc;

/// Why bytes can't be moved.
#[derive(Debug)]
pub enum Fault {
    /// A check failed.
    Status(Status),
    /// The target is gone, or the system refuses.
    Error(Error),
}

impl From<Status> for Fault {
    fn from(status: Status) -> Self {
        Fault::Status(status)
    }
}

impl From<PartFault> for Status {
    fn from(fault: PartFault) -> Self {
        match fault {
            PartFault::Stale => Status::Stale,
            PartFault::Forged => Status::Forged,
            PartFault::OutOfRange => Status::OutOfRange,
            PartFault::Cut => Status::Cut,
        }
    }
}

/// Bytes of a region that stay mapped as long as this lives.
pub enum Span {
    /// Of this node.
    Own(RegionMemory, usize),
    /// Of a peer.
    Peer(Arc<PeerRegion>, usize),
}

/// The memory that descriptors used last, found without a lock.
#[derive(Default)]
pub struct Lately {
    own: Option<(u32, RegionMemory)>,
    peer: Option<Arc<PeerRegion>>,
}

impl Lately {
    /// Lets go of regions that were withdrawn, so that their pages go back to the system.
    pub fn forget_withdrawn(&mut self) {
        self.own.take_if(|(_, memory)| !memory.is_live());
        self.peer.take_if(|region| !region.is_live());
    }

    /// Whether the region that was used last belongs to this peer, which so shares memory with this node.
    pub fn has(&self, peer: PeerId) -> bool {
        self.peer.as_ref().is_some_and(|region| (region.node(), region.incarnation()) == (peer.node, peer.incarnation))
    }

    /// Copies from a region of this node into one of a peer, if both were used last, and all checks pass. False: nothing is known
    /// of the copy, and it has to be made by spans, which say why not.
    pub fn copy(&self, source: (u32, u64), place: &Place) -> bool {
        let (Some((number, memory)), Some(region), (of, at)) = (&self.own, &self.peer, source) else { return false };
        if *number != of
            || (region.node(), region.incarnation(), region.number()) != (place.node, place.incarnation, place.number)
            || !memory.is_live()
            || at.checked_add(place.bytes).is_none_or(|end| end > memory.len() as u64)
        {
            return false;
        }
        let Ok(target) = locate(region, place, place.bytes as usize, PUT) else { return false };
        // SAFETY: `bytes` fit in the source from `at` on and in the target (both checked), and both stay mapped as long as `self`
        // holds them. Both are shared memory, and may overlap.
        unsafe { copy::inward(memory.ptr().add(at as usize), target, place.bytes as usize) };
        !memory.is_cut() && !region.is_cut()
    }

    /// As [`Span::own`], without a secret.
    pub fn own(&mut self, regions: &RegionTable, number: u32, at: u64, len: u64) -> Result<Span, Status> {
        if let Some((own, memory)) = &self.own
            && *own == number
            && memory.is_live()
        {
            return Ok(Span::Own(within(memory.clone(), at, len)?, at as usize));
        }
        let span = Span::own(regions, number, at, len, None)?;
        if let Span::Own(memory, _) = &span {
            self.own = Some((number, memory.clone()));
        }
        Ok(span)
    }

    /// As [`Span::of_peer`].
    pub fn of_peer(&mut self, regions: &RegionTable, membership: &Membership, place: &Place) -> Result<Span, Fault> {
        if let Some(region) = &self.peer
            && (region.node(), region.incarnation(), region.number()) == (place.node, place.incarnation, place.number)
            && locate(region, place, place.bytes as usize, PUT).is_ok()
        {
            return Ok(Span::Peer(region.clone(), place.offset as usize));
        }
        let span = Span::of_peer(regions, membership, place)?;
        if let Span::Peer(region, _) = &span {
            self.peer = Some(region.clone());
        }
        Ok(span)
    }
}

impl Span {
    /// `len` bytes of a region of this node. A `secret` must be that of a key, which writes or only reads.
    pub fn own(regions: &RegionTable, number: u32, at: u64, len: u64, secret: Option<(u64, bool)>) -> Result<Self, Status> {
        let memory = match secret {
            Some((secret, writes)) => regions.part(number, at, len, secret, writes)?,
            None => within(regions.memory(number).filter(RegionMemory::is_live).ok_or(Status::Stale)?, at, len)?,
        };
        Ok(Self::Own(memory, at as usize))
    }

    /// The bytes of a region of a peer that a key for writing names.
    pub fn of_peer(regions: &RegionTable, membership: &Membership, place: &Place) -> Result<Self, Fault> {
        let PeerId { node, incarnation } = (place.node, place.incarnation).into();
        if node.index() >= membership.max_nodes() {
            return Err(Fault::Error(Error::NoSuchNode { node }));
        }
        let len = place.bytes as usize;
        let region = regions.open(membership, node, incarnation, place.number, true, len).map_err(|miss| match miss {
            Miss::Gone { left: true } => Fault::Error(Error::PeerLeft { node, incarnation }),
            Miss::Gone { left: false } | Miss::Shm(ShmError::NodeDead { .. }) => {
                Fault::Error(Error::PeerDied { node, incarnation })
            }
            Miss::Withdrawn | Miss::OtherLife => Status::Stale.into(),
            Miss::Shm(ShmError::NoSuchNode { .. }) => Fault::Error(Error::NoSuchNode { node }),
            Miss::Shm(error) => Fault::Error(error.into()),
        })?;
        let status = |fault| match fault {
            KeyFault::Stale => Status::Stale,
            KeyFault::OutOfRange => Status::OutOfRange,
            _ => Status::Forged,
        };
        locate(&region, place, len, PUT).map_err(status)?;
        Ok(Self::Peer(region, place.offset as usize))
    }

    /// Whether another process truncated the region.
    pub fn is_cut(&self) -> bool {
        match self {
            Self::Own(memory, _) => memory.is_cut(),
            Self::Peer(region, _) => region.is_cut(),
        }
    }

    /// Whether keys of the region are still valid.
    pub fn is_live(&self) -> bool {
        match self {
            Self::Own(memory, _) => memory.is_live(),
            Self::Peer(region, _) => region.is_live(),
        }
    }

    fn ptr(&self, at: u64) -> *mut u8 {
        let (base, offset) = match self {
            Self::Own(memory, offset) => (memory.ptr(), offset),
            Self::Peer(region, offset) => (region.ptr(), offset),
        };
        base.wrapping_add(offset + at as usize)
    }

    /// Copies to another span of at least as many bytes.
    ///
    /// # Safety
    /// `at + len` is at most the length with which each of the two was made.
    pub unsafe fn copy_to(&self, target: &Span, at: u64, len: u64) {
        // SAFETY: both lie within their regions (checked when they were made; caller), which stay mapped. Both are shared memory,
        // and may overlap.
        unsafe { copy::inward(self.ptr(at), target.ptr(at), len as usize) };
    }

    /// Stores a payload at the beginning.
    ///
    /// # Safety
    /// The span was made with at least as many bytes.
    pub unsafe fn store(&self, payload: Payload<'_>) {
        // SAFETY: within the region (caller), which stays mapped; the payload is readable.
        unsafe { copy::inward(payload.as_ptr(), self.ptr(0), payload.len()) };
    }

    /// Appends bytes to a packet.
    ///
    /// # Safety
    /// `at + len` is at most the length with which it was made.
    pub unsafe fn append_to(&self, room: &mut Vec<u8>, at: u64, len: usize) {
        let start = room.len();
        room.resize(start + len, 0);
        // SAFETY: within the region (caller), which stays mapped; the packet has `len` bytes from `start` on.
        unsafe { copy::out(self.ptr(at), room.as_mut_ptr().add(start), len) };
    }
}
