//! Bulk rings for the ways out that carry long messages: made outside of every baton, kept when their way ends, and given to the next.

use doorbell_fabric::sync::{AtomicUsize, Ordering};
use doorbell_shm::copies::Distance;
use doorbell_shm::domain::Membership;
use doorbell_shm::region::OwnRegion;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a ring between processors that share a cache, which is to hold it.
const NEAR_BYTES: usize = 2 << 20;
/// Bytes of a ring between others: the more, the likelier that the other side's cache no longer holds a line that is written anew.
const FAR_BYTES: usize = 16 << 20;

/// The bulk rings of a node. Thread-safe.
#[derive(Debug)]
pub struct BulkRings {
    free: Mutex<Vec<OwnRegion>>,
    /// Bytes of those that may still be made.
    left: AtomicUsize,
}

impl BulkRings {
    /// None yet; of at most so many bytes together.
    pub fn new(bytes: usize) -> Self {
        Self { free: Mutex::default(), left: AtomicUsize::new(bytes) }
    }

    fn free(&self) -> MutexGuard<'_, Vec<OwnRegion>> {
        // No step in here leaves the list half-changed.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A ring that nobody uses. Control path: may make a file, and wait for the domain's lock. `None` if there may be no more, or no room.
    pub fn take(&self, membership: &Membership, distance: Distance, number: impl Fn() -> u32) -> Option<OwnRegion> {
        if let Some(ring) = self.free().pop() {
            return Some(ring);
        }
        let wished = if distance == Distance::Far { FAR_BYTES } else { NEAR_BYTES };
        let make = |bytes| {
            self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).ok()?;
            match membership.create_region(number(), bytes) {
                Ok(ring) => Some(ring),
                Err(error) => {
                    tracing::debug!(%error, "no memory for a ring of {bytes} bytes for long messages");
                    self.left.fetch_add(bytes, Ordering::Relaxed);
                    None
                }
            }
        };
        make(wished).or_else(|| if wished > NEAR_BYTES { make(NEAR_BYTES) } else { None })
    }

    /// Its way has ended, and nobody writes into it any more.
    pub fn put(&self, ring: OwnRegion) {
        self.free().push(ring);
    }
}
