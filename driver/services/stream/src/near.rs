//! Streams between nodes that share memory. Each stream has two pipes in a region of the connecting node. A region holds
//! several streams, all to one peer.

use doorbell_engine::kit::{PeerId, Result, Shared};
use doorbell_shm::pipe::{HEAD, Reader, View, Writer};
use doorbell_shm::region::{OwnRegion, PeerRegion};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// How many streams share a region, if their rings are no longer than `SHARED_MOST`.
const SLOTS: usize = 8;
const SHARED_MOST: u64 = 64 << 10;
/// The least and the greatest length of a pipe's ring, in bytes; a power of two.
pub const RING_LEAST: usize = 4096;
pub const RING_MOST: usize = 64 << 20;

const FREE: u32 = 0;
const USED: u32 = 1;
/// This side does not use the slot any more; the other side may.
const LEFT: u32 = 2;

fn slot_bytes(ring: usize) -> usize {
    2 * (HEAD + ring)
}

/// How many streams with such rings share a region. Large ones share none, since the memory of a region is reserved at once.
fn slots(ring: usize) -> usize {
    if is_alone(ring as u64) { 1 } else { SLOTS }
}

/// Whether a stream with such rings has a region of its own.
pub fn is_alone(ring: u64) -> bool {
    ring > SHARED_MOST
}

/// Memory for some streams to one incarnation of a node.
struct Arena {
    region: OwnRegion,
    peer: PeerId,
    ring: usize,
    slots: [AtomicU32; SLOTS],
}

/// The memory of the streams that this node opened.
#[derive(Default)]
pub struct Arenas(Mutex<Vec<Arc<Arena>>>);

/// Keeps the memory of a stream mapped.
enum Keep {
    Own(Arc<Arena>, usize),
    Peer { _region: Arc<PeerRegion> },
}

/// Both pipes of a stream.
pub struct Near {
    writes: *mut u8,
    reads: *mut u8,
    ring: usize,
    keep: Keep,
}

// SAFETY: what it points to is mapped as long as `keep`, shared with another process anyway, and accessed by atomics and by
// copies that allow other writers.
unsafe impl Send for Near {}
// SAFETY: as above.
unsafe impl Sync for Near {}

impl Near {
    /// The pipe that this end writes into.
    pub fn writes(&self) -> View<'_> {
        // SAFETY: mapped as long as `keep`, aligned (a page and multiples of 128), and as long as its ring says (`make`,
        // `of_peer`).
        unsafe { View::at(self.writes, self.ring) }
    }

    /// The pipe that this end reads from.
    pub fn reads(&self) -> View<'_> {
        // SAFETY: as in `writes`.
        unsafe { View::at(self.reads, self.ring) }
    }

    /// Creates the memory of a new stream to a peer. Also returns what the peer needs to find it: the number of the region plus
    /// one, and the offset in it.
    pub fn make(shared: &Shared, peer: PeerId, ring: usize) -> Result<(Self, [u64; 2])> {
        let arenas = shared.kept::<Arenas>();
        let mut all = arenas.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |arena: &&Arc<Arena>| (arena.peer, arena.ring) == (peer, ring);
        let found = all.iter().filter(fits).find_map(|arena| Some((arena.clone(), arena.take()?)));
        let (arena, slot) = match found {
            Some(found) => found,
            None => {
                let region = shared.membership().create_region(shared.regions().next_number(), slots(ring) * slot_bytes(ring))?;
                let arena = Arc::new(Arena { region, peer, ring, slots: Default::default() });
                arena.slots[0].store(USED, Ordering::Relaxed);
                // A region for a single stream is dropped with that stream.
                if !is_alone(ring as u64) {
                    all.push(arena.clone());
                }
                (arena, 0)
            }
        };
        let (number, offset) = (arena.region.number(), slot * slot_bytes(ring));
        // SAFETY: the region has so many bytes.
        let writes = unsafe { arena.region.ptr().add(offset) };
        // SAFETY: as above.
        let reads = unsafe { writes.add(HEAD + ring) };
        let this = Self { writes, reads, ring, keep: Keep::Own(arena, slot) };
        this.writes().clear();
        this.reads().clear();
        Ok((this, [u64::from(number) + 1, offset as u64]))
    }

    /// The memory that a peer offers; `None` if it is not within the peer's region.
    pub fn of_peer(region: Arc<PeerRegion>, offset: u64, ring: u64) -> Option<Self> {
        let (offset, ring) = (usize::try_from(offset).ok()?, usize::try_from(ring).ok()?);
        if !ring.is_power_of_two() || !(RING_LEAST..=RING_MOST).contains(&ring) || !offset.is_multiple_of(128) {
            return None;
        }
        let end = offset.checked_add(slot_bytes(ring))?;
        if end > region.len() || !region.is_writable() {
            return None;
        }
        // SAFETY: within the region, as was just checked; what one side writes the other reads.
        let reads = unsafe { region.ptr().add(offset) };
        // SAFETY: as above.
        let writes = unsafe { reads.add(HEAD + ring) };
        Some(Self { writes, reads, ring, keep: Keep::Peer { _region: region } })
    }

    /// Whether the peer truncated the region, and this node touched a missing page.
    pub fn is_cut(&self) -> bool {
        matches!(&self.keep, Keep::Peer { _region } if _region.is_cut())
    }
}

impl Arenas {
    /// Frees regions without streams of this node, except the last one made. The other side keeps its own mapping as long as it
    /// needs it.
    pub fn tidy(&self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = all.pop();
        all.retain(|arena| Arc::strong_count(arena) > 1);
        all.extend(last);
    }
}

impl Near {
    /// Marks both pipes as unused by this side; for a stream that no program has accepted.
    pub fn leave(&self) {
        Writer::default().end(&self.writes());
        Reader::default().leave(&self.reads());
    }

    /// The other side has said that it does not use the memory.
    pub fn was_refused(&self) {
        for pipe in [self.writes(), self.reads()] {
            pipe.give_up();
        }
    }
}

impl Drop for Near {
    fn drop(&mut self) {
        if let Keep::Own(arena, slot) = &self.keep {
            arena.slots[*slot].store(LEFT, Ordering::Release);
        }
    }
}

impl Arena {
    /// Takes a slot that neither side uses.
    fn take(&self) -> Option<usize> {
        (0..slots(self.ring)).find(|slot| {
            let state = self.slots[*slot].load(Ordering::Acquire);
            let is_free = state == FREE || state == LEFT && self.is_over(*slot);
            is_free && self.slots[*slot].compare_exchange(state, USED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    fn is_over(&self, slot: usize) -> bool {
        let offset = slot * slot_bytes(self.ring);
        // SAFETY: both within the region, aligned, and mapped as long as it.
        let pipes = [0, HEAD + self.ring].map(|more| unsafe { View::at(self.region.ptr().add(offset + more), self.ring) });
        pipes.iter().all(View::is_over)
    }
}
