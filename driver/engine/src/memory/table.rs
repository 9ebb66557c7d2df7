//! The regions of a node, and the mapped regions of its peers.

use super::key::read_secret;
use doorbell_fabric::{Incarnation, NodeId};
use doorbell_shm::domain::{Membership, PeerInbox};
use doorbell_shm::doorbell::Bell;
use doorbell_shm::error::ShmError;
use doorbell_shm::region::{OwnRegion, PeerRegion, RegionFault, RegionMemory};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// From this many mapped regions of one incarnation of a peer on, withdrawn ones are unmapped.
const SWEEP_AT: usize = 32;

/// Why a region of a peer can't be mapped.
#[derive(Debug)]
pub enum Miss {
    /// Its node has another incarnation now.
    OtherLife,
    /// Its node is gone.
    Gone {
        /// Whether it left in good order.
        left: bool,
    },
    /// It was withdrawn.
    Withdrawn,
    /// Something else.
    Shm(ShmError),
}

/// Why another node may not use a part of a region of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartFault {
    /// The region was withdrawn, or never existed.
    Stale,
    /// The secret is not that of a key.
    Forged,
    /// The part reaches beyond the region.
    OutOfRange,
    /// The region was truncated.
    Cut,
}

/// Part of a node's `Shared`. Thread-safe.
#[derive(Default)]
pub struct RegionTable {
    /// By address: length and number.
    own: RwLock<BTreeMap<usize, (usize, u32)>>,
    /// By number: the regions that other nodes may put to and get from.
    memories: RwLock<BTreeMap<u32, RegionMemory>>,
    made: AtomicU32,
    peers: Mutex<BTreeMap<NodeId, PeerMemory>>,
}

/// The mapped memory of the latest requested incarnation of a peer.
struct PeerMemory {
    inbox: Arc<PeerInbox>,
    regions: BTreeMap<u32, Arc<PeerRegion>>,
    sweep_at: usize,
    credit: Credit,
}

/// How many bytes may be copied before the peer is checked again. A check makes system calls, which also push lines out of the caches. For
/// long copies it takes less than a hundredth of their time.
#[derive(Default)]
pub(crate) struct Credit(usize);

impl Credit {
    const WHOLE: usize = 16 << 20;
    const EACH: usize = 4 << 10;

    /// Whether it is time for a check.
    #[inline(always)]
    pub fn spend(&mut self, bytes: usize) -> bool {
        let cost = bytes.saturating_add(Self::EACH);
        let due = self.0 < cost;
        self.0 = if due { Self::WHOLE } else { self.0 - cost };
        due
    }
}

impl PeerMemory {
    fn gone(&self) -> Miss {
        // SAFETY: the peer's header page is mapped as long as `inbox`.
        Miss::Gone { left: unsafe { Bell::at(self.inbox.header()) }.departed() }
    }

    /// Unmaps withdrawn regions: their pages go back to the system with the last mapping.
    fn sweep(&mut self) {
        self.regions.retain(|_, region| region.is_live());
        self.sweep_at = SWEEP_AT.max(2 * self.regions.len());
    }
}

impl RegionTable {
    /// A number that no region of this node had before.
    pub fn next_number(&self) -> u32 {
        self.made.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds a region of this node.
    pub fn enter(&self, ptr: *const u8, len: usize, number: u32) {
        self.own.write().unwrap_or_else(PoisonError::into_inner).insert(ptr.addr(), (len, number));
    }

    /// Adds a region of this node for which others may have keys.
    pub fn offer(&self, own: &OwnRegion) {
        self.memories.write().unwrap_or_else(PoisonError::into_inner).insert(own.number(), own.memory());
        self.enter(own.ptr(), own.len(), own.number());
    }

    /// Removes a region of this node.
    pub fn forget(&self, ptr: *const u8) {
        if let Some((_, number)) = self.own.write().unwrap_or_else(PoisonError::into_inner).remove(&ptr.addr()) {
            self.memories.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
        }
    }

    /// The memory of a region of this node for which others may have keys. It stays mapped as long as the result is kept.
    pub fn memory(&self, number: u32) -> Option<RegionMemory> {
        self.memories.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    /// A region of this node, if a key with this secret names `bytes` bytes there. A key that `writes` has the secret of the
    /// region, and another the one derived from it.
    pub(crate) fn part(
        &self,
        number: u32,
        offset: u64,
        bytes: u64,
        secret: u64,
        writes: bool,
    ) -> Result<RegionMemory, PartFault> {
        let memory = self.memory(number).filter(RegionMemory::is_live).ok_or(PartFault::Stale)?;
        if secret != if writes { memory.secret() } else { read_secret(memory.secret()) } {
            return Err(PartFault::Forged);
        }
        within(memory, offset, bytes)
    }

    /// The region of this node that contains these bytes, and their offset in it; `None` if they are private. The answer is
    /// valid as long as the caller keeps the region, by a clone or a slice of it.
    pub fn find(&self, ptr: *const u8, len: usize) -> Option<(u32, u64)> {
        let own = self.own.read().unwrap_or_else(PoisonError::into_inner);
        let (start, (bytes, number)) = own.range(..=ptr.addr()).next_back()?;
        let offset = ptr.addr() - start;
        (offset.checked_add(len)? <= *bytes).then_some((*number, offset as u64))
    }

    /// The inbox of this incarnation of a peer, for its [`reach`](PeerInbox::reach) and to check that it lives.
    pub fn inbox(&self, membership: &Membership, node: NodeId, incarnation: Incarnation) -> Result<Arc<PeerInbox>, Miss> {
        Ok(self.peer(&mut self.peers(), membership, node, incarnation)?.inbox.clone())
    }

    /// Whether the inbox of this incarnation of a peer is mapped, which means that it shares memory with this node.
    pub fn knows(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.peers().get(&node).is_some_and(|peer| peer.inbox.incarnation() == incarnation)
    }

    /// Unmaps everything of this incarnation of a peer, which is over.
    pub fn let_go(&self, node: NodeId, incarnation: Incarnation) {
        if let Entry::Occupied(peer) = self.peers().entry(node)
            && peer.get().inbox.incarnation() == incarnation
        {
            // The caches of other threads have the same inbox, and see that it is dead.
            peer.get().inbox.is_alive();
            peer.remove();
        }
    }

    /// A region of a peer, mapped with at least the requested access, for a copy of `bytes` bytes. The first call for a region is
    /// slow; later ones take a short lock.
    ///
    /// # Errors
    /// It was withdrawn, belongs to another incarnation, or the system refuses.
    pub fn open(
        &self,
        membership: &Membership,
        node: NodeId,
        incarnation: Incarnation,
        number: u32,
        writable: bool,
        bytes: usize,
    ) -> Result<Arc<PeerRegion>, Miss> {
        let mut peers = self.peers();
        let peer = self.peer(&mut peers, membership, node, incarnation)?;
        if peer.credit.spend(bytes) {
            peer.inbox.is_alive();
        }
        if peer.inbox.is_known_dead() {
            peer.regions.clear();
            return Err(peer.gone());
        }
        if let Some(region) = peer.regions.get(&number) {
            if !region.is_live() {
                // A node that leaves withdraws its regions, too.
                let is_alive = peer.inbox.is_alive();
                peer.sweep();
                return Err(if is_alive { Miss::Withdrawn } else { peer.gone() });
            }
            if region.is_writable() || !writable {
                return Ok(region.clone());
            }
        }
        let region = membership.open_region(node, incarnation, number, writable).map_err(|error| match error {
            ShmError::Region { fault: RegionFault::Absent | RegionFault::Withdrawn, .. } if peer.inbox.is_alive() => {
                Miss::Withdrawn
            }
            ShmError::Region { .. } if !peer.inbox.is_alive() => peer.gone(),
            error => Miss::Shm(error),
        })?;
        let region = Arc::new(region);
        if peer.regions.len() >= peer.sweep_at {
            peer.sweep();
        }
        peer.regions.insert(number, region.clone());
        Ok(region)
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<NodeId, PeerMemory>> {
        // No step in here leaves the map half-changed.
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peer<'a>(
        &self,
        peers: &'a mut BTreeMap<NodeId, PeerMemory>,
        membership: &Membership,
        node: NodeId,
        incarnation: Incarnation,
    ) -> Result<&'a mut PeerMemory, Miss> {
        let open = |inbox| PeerMemory {
            inbox: Arc::new(inbox),
            regions: BTreeMap::new(),
            sweep_at: SWEEP_AT,
            credit: Credit::default(),
        };
        let find = || match membership.open_peer(node) {
            Ok(inbox) if inbox.incarnation() == incarnation => Ok(open(inbox)),
            Ok(_) => Err(Miss::OtherLife),
            Err(ShmError::NodeDead { incarnation: dead, .. }) if dead == incarnation => Err(Miss::Gone { left: false }),
            Err(error) => Err(Miss::Shm(error)),
        };
        match peers.entry(node) {
            Entry::Vacant(entry) => Ok(entry.insert(find()?)),
            Entry::Occupied(entry) if entry.get().inbox.incarnation() == incarnation => Ok(entry.into_mut()),
            Entry::Occupied(mut entry) => {
                // An earlier incarnation must not take the place of the present one.
                entry.insert(find()?);
                Ok(entry.into_mut())
            }
        }
    }
}

/// A region, if it has these bytes and was not truncated.
pub(crate) fn within(memory: RegionMemory, offset: u64, bytes: u64) -> Result<RegionMemory, PartFault> {
    if offset.checked_add(bytes).is_none_or(|end| end > memory.len() as u64) {
        return Err(PartFault::OutOfRange);
    }
    if memory.is_cut() { Err(PartFault::Cut) } else { Ok(memory) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_shm::domain::JoinOptions;
    use doorbell_shm::space::Space;

    #[test]
    fn slices_are_found_in_the_region_where_they_lie() {
        let table = RegionTable::default();
        let memory = [0_u8; 300];
        let at = |offset: usize| memory.as_ptr().wrapping_add(offset);
        table.enter(at(100), 50, 7);
        table.enter(at(200), 100, 8);
        assert_eq!(table.find(at(100), 50), Some((7, 0)));
        assert_eq!(table.find(at(149), 1), Some((7, 49)));
        assert_eq!(table.find(at(250), 50), Some((8, 50)));
        for (offset, len) in [(99, 1), (99, 2), (149, 2), (151, 1), (199, 1), (250, 51), (250, usize::MAX)] {
            assert_eq!(table.find(at(offset), len), None, "{offset} {len}");
        }
        table.forget(at(100));
        assert_eq!((table.find(at(100), 1), table.find(at(200), 1)), (None, Some((8, 0))));
    }

    #[test]
    fn a_check_is_due_after_some_thousand_short_copies_and_after_some_long_ones() {
        for (bytes, least, most) in [(8, 4000, 4096), (256 << 10, 48, 64), (8 << 20, 1, 2), (usize::MAX, 0, 1)] {
            let mut credit = Credit::default();
            assert!(credit.spend(bytes), "the first copy");
            let free = (0..9000).take_while(|_| !credit.spend(bytes)).count();
            assert!((least..=most).contains(&free), "{bytes} bytes: {free} copies without a check");
        }
    }

    #[test]
    fn regions_are_mapped_once_and_let_go() {
        let space = Space::heap();
        let join = || Membership::join(JoinOptions::new("table", space.clone())).unwrap();
        let (a, b) = (join(), join());
        let table = RegionTable::default();
        let map = |number, writable| table.open(&a, b.id(), b.incarnation(), number, writable, 0).ok();
        let many = if cfg!(miri) { 3 } else { 50 };
        let own: Vec<_> = (0..many).map(|number| b.create_region(number, 64).unwrap()).collect();
        let read = map(0, false).unwrap();
        assert!(!read.is_writable() && Arc::ptr_eq(&read, &map(0, false).unwrap()));
        let write = map(0, true).unwrap();
        assert!(write.is_writable() && Arc::ptr_eq(&write, &map(0, false).unwrap()));
        let last: Vec<_> = (0..many).map(|number| Arc::downgrade(&map(number, true).unwrap())).collect();
        assert!(last.iter().all(|region| region.upgrade().is_some()) && map(many, true).is_none());
        drop((own, read, write));
        assert!(map(0, true).is_none());
        assert!(last.iter().all(|region| region.upgrade().is_none()));
        assert!(table.open(&a, b.id(), Incarnation(99), 0, true, 0).is_err());
        assert!(table.inbox(&a, b.id(), b.incarnation()).unwrap().reach().is_some());
        let kept = b.create_region(60, 64).unwrap();
        let one = Arc::downgrade(&map(60, true).unwrap());
        table.let_go(b.id(), Incarnation(99));
        assert!(one.upgrade().is_some());
        table.let_go(b.id(), b.incarnation());
        assert!(one.upgrade().is_none());
        drop(kept);
        b.abandon();
        assert!(matches!(table.open(&a, b.id(), b.incarnation(), 1, true, usize::MAX), Err(Miss::Gone { left: false })));
        let c = join();
        let inbox = table.inbox(&a, c.id(), c.incarnation()).unwrap();
        c.abandon();
        assert!(!inbox.is_known_dead());
        table.let_go(c.id(), c.incarnation());
        assert!(inbox.is_known_dead(), "another thread's flush would succeed");
    }
}
