//! Bulk rings for the send queues that carry messages of 8 KiB and more. They are made and withdrawn outside of every baton, since both may
//! wait. Each ring has one target, because that target can write there as long as it keeps its mapping.

use super::caches;
use crate::links::PACKET_MOST;
use doorbell_fabric::sync::{AtomicUsize, Ordering};
use doorbell_fabric::{Incarnation, NodeId};
use doorbell_shm::domain::Membership;
use doorbell_shm::region::OwnRegion;
use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The allowed lengths of a ring. It has twice the largest power of two that fits into a processor's own cache, within these limits. A
/// conversation uses only as much as fits.
const RING_RANGE: RangeInclusive<usize> = 256 << 10..=2 << 20;
const _: () = assert!(PACKET_MOST <= *RING_RANGE.start() / 4, "a packet takes at most a quarter of a ring");
/// What a conversation uses where the system does not tell the size of that cache.
const LAP_USUAL: usize = 1 << 20;
/// A ring may take one part in this many of the free memory, which other programs need more.
const SHARE: u64 = 8;

/// The bulk rings of a node. Thread-safe.
#[derive(Debug, Default)]
pub struct BulkRings {
    ended: Mutex<Vec<Ended>>,
    /// How many rings may still be made.
    left: AtomicUsize,
    /// The length of a ring.
    bytes: usize,
    /// The bytes of a ring that a conversation uses.
    lap: usize,
}

/// A ring whose connection has ended, and its target. While that lives, it may map the ring, whose memory then counts towards the limit.
#[derive(Debug)]
struct Ended {
    ring: OwnRegion,
    node: NodeId,
    incarnation: Incarnation,
}

impl BulkRings {
    /// No rings yet; at most `bytes` bytes of rings together.
    pub fn new(bytes: usize) -> Self {
        let (ring, lap) = ring_and_lap(caches::bytes(caches::OWN));
        // One shorter ring is better than none.
        let most = bytes.checked_ilog2().map_or(0, |bits| 1 << bits).max(*RING_RANGE.start());
        let (ring, lap) = (ring.min(most), lap.min(most));
        Self { ended: Mutex::default(), left: AtomicUsize::new(bytes / ring), bytes: ring, lap }
    }

    /// The bytes of a ring that a conversation uses.
    pub fn lap(&self) -> usize {
        self.lap
    }

    fn ended(&self) -> MutexGuard<'_, Vec<Ended>> {
        // No step in here leaves the list half-changed.
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new ring. Withdraws those that no living target reads. This is a slow call: it makes a file, and may wait for the domain's lock.
    /// `None` if the limit is reached, or there is no room.
    pub fn make(
        &self,
        membership: &Membership,
        number: impl FnOnce() -> u32,
        lives: impl Fn(NodeId, Incarnation) -> bool,
    ) -> Option<OwnRegion> {
        // `lives` waits for the engine, whose holder may be putting a ring here: so not while the list is locked.
        let mut ended = std::mem::take(&mut *self.ended());
        // A ring that could not be withdrawn waited for the lock. Others would wait as well.
        let mut may_withdraw = true;
        ended.retain(|ended| {
            if !may_withdraw || lives(ended.node, ended.incarnation) {
                return true;
            }
            may_withdraw = ended.ring.withdraw().is_ok();
            self.left.fetch_add(usize::from(may_withdraw), Ordering::Relaxed);
            !may_withdraw
        });
        self.ended().append(&mut ended);
        if membership.space().free_bytes().is_some_and(|free| free / SHARE < self.bytes as u64) {
            return None;
        }
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).ok()?;
        match membership.create_region(number(), self.bytes) {
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

    /// Keeps a ring whose connection to this incarnation of a node has ended, until the next one is made.
    pub fn put(&self, ring: OwnRegion, node: NodeId, incarnation: Incarnation) {
        self.ended().push(Ended { ring, node, incarnation });
    }
}

/// The length of a ring beside an own cache of that many bytes, and what of it a conversation uses.
fn ring_and_lap(own_cache: Option<usize>) -> (usize, usize) {
    let fitting = own_cache.and_then(usize::checked_ilog2).map_or(LAP_USUAL, |bits| 1 << bits);
    let ring = fitting.saturating_mul(2).clamp(*RING_RANGE.start(), *RING_RANGE.end());
    (ring, fitting.clamp(*RING_RANGE.start(), ring))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_uses_what_fits_into_the_own_cache() {
        let of = |text| {
            let (ring, lap) = ring_and_lap(caches::kibibytes(text));
            (ring >> 10, lap >> 10)
        };
        let caches = ["128K", "512K\n", "1280K", "2048K", "4096K"];
        assert_eq!(caches.map(of), [(256, 256), (1024, 512), (2048, 1024), (2048, 2048), (2048, 2048)]);
        for text in ["0K", "", "K", "512", "x512K", "99999999999999999999K", "18446744073709551615K"] {
            assert_eq!(of(text), (2048, 1024), "{text}");
        }
        let rings = BulkRings::new(16 << 20);
        assert!(RING_RANGE.contains(&rings.bytes) && rings.bytes.is_power_of_two());
        assert_eq!(rings.left.into_inner() * rings.bytes, 16 << 20);
        let few = |bytes| {
            let rings = BulkRings::new(bytes);
            (rings.left.into_inner(), rings.bytes >> 10)
        };
        assert_eq!([few(300 << 10), few(256 << 10), few(255 << 10), few(0)], [(1, 256), (1, 256), (0, 256), (0, 256)]);
    }
}
