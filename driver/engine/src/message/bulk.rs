//! Bulk rings for the send queues that carry messages of 8 KiB and more. They are made outside of every baton, kept when their send queue
//! loses its target, and reused.

use doorbell_fabric::sync::{AtomicUsize, Ordering};
use doorbell_fabric::{Incarnation, NodeId};
use doorbell_shm::domain::Membership;
use doorbell_shm::region::OwnRegion;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The length of a ring. Streams through a longer one were slower where it did not fit into a processor's own cache.
const RING_BYTES: usize = 2 << 20;
/// A ring may take one part in this many of the free memory, which other programs need more.
const SHARE: u64 = 8;

/// The bulk rings of a node. Thread-safe.
#[derive(Debug, Default)]
pub struct BulkRings {
    free: Mutex<Vec<Kept>>,
    /// How many rings may still be made.
    left: AtomicUsize,
}

/// A ring that is no longer used, and the target that it led to: a living target may still be reading what was written last.
#[derive(Debug)]
struct Kept {
    ring: OwnRegion,
    node: NodeId,
    incarnation: Incarnation,
}

impl BulkRings {
    /// No rings yet; at most `bytes` bytes of rings together.
    pub fn new(bytes: usize) -> Self {
        Self { free: Mutex::default(), left: AtomicUsize::new(bytes / RING_BYTES) }
    }

    fn free(&self) -> MutexGuard<'_, Vec<Kept>> {
        // No step in here leaves the list half-changed.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A ring that no target reads. This is a slow call: it may make a file, and wait for the domain's lock. `None` if the
    /// limit is reached, or there is no room.
    pub fn take(
        &self,
        membership: &Membership,
        number: impl FnOnce() -> u32,
        lives: impl Fn(NodeId, Incarnation) -> bool,
    ) -> Option<OwnRegion> {
        // `lives` waits for the engine, whose holder may be putting a ring here: so not while the list is locked.
        let kept = std::mem::take(&mut *self.free());
        let (mut found, mut others) = (None, Vec::with_capacity(kept.len()));
        for kept in kept {
            if found.is_none() && !lives(kept.node, kept.incarnation) {
                found = Some(kept.ring);
            } else {
                others.push(kept);
            }
        }
        self.free().append(&mut others);
        if found.is_some() {
            return found;
        }
        if membership.space().free_bytes().is_some_and(|free| free / SHARE < RING_BYTES as u64) {
            return None;
        }
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).ok()?;
        match membership.create_region(number(), RING_BYTES) {
            Ok(ring) => {
                ring.populate();
                Some(ring)
            }
            Err(error) => {
                tracing::debug!(%error, "no bulk ring could be made; messages use the lane's own ring");
                self.left.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// Keeps a ring whose connection to this incarnation of a node has ended.
    pub fn put(&self, ring: OwnRegion, node: NodeId, incarnation: Incarnation) {
        self.free().push(Kept { ring, node, incarnation });
    }
}
