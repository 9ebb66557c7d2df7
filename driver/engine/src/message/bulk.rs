//! Bulk rings for the ways out that carry long messages: made outside of every baton, kept when their way ends, and given to the next.

use doorbell_fabric::sync::{AtomicUsize, Ordering};
use doorbell_fabric::{Incarnation, NodeId};
use doorbell_shm::domain::Membership;
use doorbell_shm::region::OwnRegion;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a ring. Between distant processors more is faster, up to some MiB; between near ones a part of it is used.
const RING_BYTES: usize = 4 << 20;
/// Of the memory that is free, a ring may take one part in so many: others need it more.
const SHARE: u64 = 8;

/// The bulk rings of a node. Thread-safe.
#[derive(Debug)]
pub struct BulkRings {
    free: Mutex<Vec<Kept>>,
    /// How many may still be made.
    left: AtomicUsize,
}

/// A ring whose way has ended, and to whom it led: who lives may still be reading what was written last.
#[derive(Debug)]
struct Kept {
    ring: OwnRegion,
    node: NodeId,
    life: Incarnation,
}

impl BulkRings {
    /// None yet; of at most so many bytes together.
    pub fn new(bytes: usize) -> Self {
        Self { free: Mutex::default(), left: AtomicUsize::new(bytes / RING_BYTES) }
    }

    fn free(&self) -> MutexGuard<'_, Vec<Kept>> {
        // No step in here leaves the list half-changed.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A ring that nobody reads. Control path: may make a file, and wait for the domain's lock. `None` if there may be no more, or no room.
    pub fn take(
        &self,
        membership: &Membership,
        number: impl FnOnce() -> u32,
        lives: impl Fn(NodeId, Incarnation) -> bool,
    ) -> Option<OwnRegion> {
        let found = {
            let mut free = self.free();
            let at = free.iter().position(|kept| !lives(kept.node, kept.life));
            at.map(|at| free.swap_remove(at).ring)
        };
        if found.is_some() {
            return found;
        }
        if membership.space().free_bytes().is_some_and(|free| free / SHARE < RING_BYTES as u64) {
            return None;
        }
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).ok()?;
        match membership.create_region(number(), RING_BYTES) {
            Ok(ring) => Some(ring),
            Err(error) => {
                tracing::debug!(%error, "no ring for long messages: they take the lane's own");
                self.left.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// Its way to this life of a node has ended.
    pub fn put(&self, ring: OwnRegion, node: NodeId, life: Incarnation) {
        self.free().push(Kept { ring, node, life });
    }
}
