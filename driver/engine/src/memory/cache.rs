//! The regions that one thread used lately, so that a put or get finds its memory without a lock.

use super::key::{Place, read_secret};
use super::table::Credit;
use crate::error::{Error, KeyFault, Result};
use doorbell_shm::choice::Choice;
use doorbell_shm::domain::PeerInbox;
use doorbell_shm::region::PeerRegion;
use std::sync::Arc;

/// The kind of a copy: its name, and whether it writes.
#[derive(Clone, Copy)]
pub struct Act {
    /// Its name in errors.
    pub name: &'static str,
    /// Whether it needs a key that may write.
    pub writes: bool,
}

pub(crate) const PUT: Act = Act { name: "put", writes: true };
pub(crate) const GET: Act = Act { name: "get", writes: false };

/// The number of places in a peer's cache.
pub(crate) const CACHED: usize = 8;

/// The regions that a thread's peer used lately. The thread finds them without a lock.
#[derive(Default)]
pub(crate) struct RegionCache {
    pub(crate) regions: [Option<Arc<PeerRegion>>; CACHED],
    pub(crate) inbox: Option<Arc<PeerInbox>>,
    credit: Credit,
    /// The ways of long puts.
    puts: Choice,
    /// The ways of long gets.
    gets: Choice,
}

impl RegionCache {
    /// The address of the bytes that `place` names, if the cache has the region and the key allows the access.
    #[inline(always)]
    pub(crate) fn find<const WRITES: bool>(&mut self, place: &Place, bytes: usize) -> Option<*mut u8> {
        let region = self.regions[place.number as usize % CACHED].as_ref()?;
        if region.number() != place.number
            || region.incarnation() != place.incarnation
            || (WRITES && !region.is_writable())
            || self.credit.spend(bytes)
        {
            return None;
        }
        locate(region, place, bytes, if WRITES { PUT } else { GET }).ok()
    }

    /// The region of a place that is in the cache, and the ways of long puts or gets.
    #[inline(always)]
    pub(crate) fn known<const WRITES: bool>(&mut self, place: &Place) -> Option<(&PeerRegion, &mut Choice)> {
        let ways = if WRITES { &mut self.puts } else { &mut self.gets };
        Some((self.regions[place.number as usize % CACHED].as_deref()?, ways))
    }
}

/// An error if another process truncated the region.
#[inline(always)]
pub fn whole(region: &PeerRegion) -> Result<()> {
    if region.is_cut() { Err(Error::Damaged { node: region.node() }) } else { Ok(()) }
}

/// The address of the bytes that `place` names in a region with the right number, if the key was made for this region.
#[inline(always)]
pub(crate) fn locate(region: &PeerRegion, place: &Place, bytes: usize, act: Act) -> Result<*mut u8, KeyFault> {
    if !region.is_live() {
        return Err(KeyFault::Stale);
    }
    let secret = if act.writes { region.secret() } else { read_secret(region.secret()) };
    if place.secret != secret {
        return Err(KeyFault::Forged);
    }
    let fits = place.offset.checked_add(bytes as u64).is_some_and(|end| end <= region.len() as u64);
    if !fits {
        return Err(KeyFault::OutOfRange);
    }
    // SAFETY: within the region (checked).
    Ok(unsafe { region.ptr().add(place.offset as usize) })
}
