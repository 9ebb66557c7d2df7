//! Bulk rings for the ways out that carry long messages: made outside of every baton, kept when their way ends, and given to the next.

use doorbell_fabric::sync::{AtomicUsize, Ordering};
use doorbell_shm::domain::Membership;
use doorbell_shm::region::OwnRegion;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a ring. More is faster between distant processors and slower between near ones; from 512 KiB to 4 MiB the difference is small.
const RING_BYTES: usize = 2 << 20;

/// The bulk rings of a node. Thread-safe.
#[derive(Debug)]
pub struct BulkRings {
    free: Mutex<Vec<OwnRegion>>,
    /// How many may still be made.
    left: AtomicUsize,
}

impl BulkRings {
    /// None yet; of at most so many bytes together.
    pub fn new(bytes: usize) -> Self {
        Self { free: Mutex::default(), left: AtomicUsize::new(bytes / RING_BYTES) }
    }

    fn free(&self) -> MutexGuard<'_, Vec<OwnRegion>> {
        // No step in here leaves the list half-changed.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A ring that nobody uses. Control path: may make a file, and wait for the domain's lock. `None` if there may be no more, or no room.
    pub fn take(&self, membership: &Membership, number: impl FnOnce() -> u32) -> Option<OwnRegion> {
        if let Some(ring) = self.free().pop() {
            return Some(ring);
        }
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        left.ok()?;
        match membership.create_region(number(), RING_BYTES) {
            Ok(ring) => Some(ring),
            Err(error) => {
                tracing::debug!(%error, "no memory for a ring of long messages: they take the lane's own");
                None
            }
        }
    }

    /// Its way has ended, and nobody writes into it any more.
    pub fn put(&self, ring: OwnRegion) {
        self.free().push(ring);
    }
}
