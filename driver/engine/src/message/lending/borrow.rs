//! The reader's side: mapped arenas of other nodes, and loans in them.

use super::lease::Lease;
use super::lender::ARENAS_MAX;
use crate::memory::table::RegionTable;
use doorbell_fabric::sync::{AtomicBool, Ordering};
use doorbell_fabric::{Incarnation, NodeId, Payload};
use doorbell_shm::domain::{Membership, PeerInbox};
use doorbell_shm::doorbell::Bell;
use doorbell_shm::error::ShmError;
use doorbell_shm::region::PeerRegion;
use doorbell_shm::returns::Returns;
use std::fmt;
use std::sync::Arc;

/// An arena of another node, mapped read-only while this or a loan from it lives.
pub(crate) struct Lending {
    region: PeerRegion,
    /// `None` if the owner was gone when the arena was mapped: then nothing has to be returned.
    returns: Option<Returns>,
    /// This node has left. The owner takes everything back by itself, and a later incarnation may use the slots.
    ended: Arc<AtomicBool>,
}

/// A message in its owner's memory. Dropping it returns it with one plain store.
pub struct Lent {
    from: Arc<Lending>,
    offset: usize,
    len: usize,
    slot: u16,
    generation: u32,
}

impl Lent {
    /// The bytes in place.
    #[inline(always)]
    pub fn payload(&self) -> Payload<'_> {
        // SAFETY: within the arena (Lenders::find), which is mapped as long as `from`.
        unsafe { Payload::from_raw(self.ptr(), self.len) }
    }

    /// The number of bytes.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the memory was truncated and a missing page was read: the bytes read may be zeros.
    #[inline]
    pub fn is_cut(&self) -> bool {
        self.from.region.is_cut()
    }

    #[inline(always)]
    pub(crate) fn ptr(&self) -> *const u8 {
        // SAFETY: within the arena (Lenders::find).
        unsafe { self.from.region.ptr().add(self.offset) }
    }
}

impl Drop for Lent {
    #[inline(always)]
    fn drop(&mut self) {
        if doorbell_shm::space::forked() || self.from.ended.load(Ordering::Relaxed) {
            return;
        }
        if let Some(returns) = &self.from.returns {
            returns.give_back(self.slot, self.generation);
        }
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").field("from", &self.from.region.node()).field("len", &self.len).finish_non_exhaustive()
    }
}

/// Why a lease can't be used.
pub(crate) enum Miss {
    /// Its owner is gone, and so is its memory.
    Lost,
    /// The system refuses to map the memory now.
    NotNow,
    /// No correct owner writes such a lease.
    Broken(&'static str),
}

/// The arenas of other nodes that this one has mapped. Used under the node's baton.
pub struct Lenders {
    sources: Vec<Option<Source>>,
    ended: Arc<AtomicBool>,
    membership: Arc<Membership>,
    regions: Arc<RegionTable>,
}

struct Source {
    incarnation: Incarnation,
    inbox: Option<Arc<PeerInbox>>,
    arenas: Vec<Arc<Lending>>,
}

impl Lenders {
    pub(crate) fn new(membership: Arc<Membership>, regions: Arc<RegionTable>) -> Self {
        let sources = (0..membership.max_nodes()).map(|_| None).collect();
        Self { sources, ended: Arc::new(AtomicBool::new(false)), membership, regions }
    }

    /// The arena of a lease, if it is mapped. Checks that the lease lies within it.
    #[inline(always)]
    pub(crate) fn known(&self, node: NodeId, incarnation: Incarnation, lease: &Lease) -> Option<Result<&Arc<Lending>, Miss>> {
        let source = self.sources.get(node.index())?.as_ref().filter(|source| source.incarnation == incarnation)?;
        let lending = source.arenas.iter().find(|lending| lending.region.number() == lease.arena)?;
        let fits = lease.offset.checked_add(lease.len).is_some_and(|end| end <= lending.region.len() as u64);
        Some(if fits { Ok(lending) } else { Err(Miss::Broken("a loan lies outside its arena")) })
    }

    /// The same, and maps the arena if necessary, which makes system calls.
    pub(crate) fn find(&mut self, node: NodeId, incarnation: Incarnation, lease: &Lease) -> Result<&Arc<Lending>, Miss> {
        if self.known(node, incarnation, lease).is_none() {
            self.map(node, incarnation, lease.arena)?;
        }
        self.known(node, incarnation, lease).unwrap_or(Err(Miss::Lost))
    }

    #[cold]
    fn map(&mut self, node: NodeId, incarnation: Incarnation, number: u32) -> Result<(), Miss> {
        let place = self.sources.get_mut(node.index()).ok_or(Miss::Broken("a loan of no node"))?;
        if place.as_ref().is_none_or(|source| source.incarnation != incarnation) {
            *place = None;
        }
        let source = place.get_or_insert_with(|| Source { incarnation, inbox: None, arenas: Vec::new() });
        if source.inbox.is_none() {
            source.inbox = self.regions.inbox(&self.membership, node, incarnation).ok();
        }
        if source.arenas.len() >= ARENAS_MAX {
            return Err(Miss::Broken("loans in more arenas than a node has"));
        }
        // A node announces its departure before it withdraws its regions, and is seen to be gone only later.
        let lives = |inbox: &Option<Arc<PeerInbox>>| {
            // SAFETY: the peer's header page is mapped as long as its inbox.
            inbox.as_ref().is_some_and(|inbox| inbox.is_alive() && !unsafe { Bell::at(inbox.header()) }.departed())
        };
        // The owner may be dead: its messages are still delivered while its memory exists.
        let region = self.membership.open_region(node, incarnation, number, false).map_err(|error| match error {
            _ if !lives(&source.inbox) => Miss::Lost,
            ShmError::Region { .. } => Miss::Broken("a loan in memory that does not exist"),
            error => {
                tracing::warn!(node = node.0, %error, "could not map the memory of a loan");
                Miss::NotNow
            }
        })?;
        let returns = match source.inbox.as_ref().map(|inbox| Returns::to_owner(inbox)).transpose() {
            Ok(returns) => returns,
            // A dead owner needs nothing back.
            Err(_) if !lives(&source.inbox) => None,
            Err(error) => {
                tracing::warn!(node = node.0, %error, "could not map the words by which loans are given back");
                return Err(Miss::NotNow);
            }
        };
        source.arenas.push(Arc::new(Lending { region, returns, ended: self.ended.clone() }));
        Ok(())
    }

    /// Forgets an incarnation that is gone, after all its messages were delivered.
    pub(crate) fn forget(&mut self, node: NodeId, incarnation: Incarnation) {
        if let Some(place) = self.sources.get_mut(node.index()) {
            place.take_if(|source| source.incarnation == incarnation);
        }
    }

    /// This node leaves: nothing is returned any more.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

impl Lending {
    /// The message of a lease. Call it once for each lease, which must have been checked against this arena.
    #[inline(always)]
    pub(crate) fn lend(self: &Arc<Self>, lease: &Lease) -> Lent {
        let Lease { slot, generation, offset, len, .. } = *lease;
        if let Some(returns) = &self.returns {
            returns.own_ahead(slot);
        }
        Lent { from: self.clone(), offset: offset as usize, len: len as usize, slot, generation }
    }
}
