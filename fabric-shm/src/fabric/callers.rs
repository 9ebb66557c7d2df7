//! Finds the lanes that other nodes make to this one.

use super::{ShmFabric, Slot};
use crate::domain::callers;
use crate::lane::{Consumer, RawMemory};
use crate::layout::{LanePlace, PAGE};
use doorbell_fabric::sync::{AtomicU64, Ordering};
use doorbell_fabric::{NodeId, PRIORITIES, Priority};
use std::sync::Arc;

/// The number of nodes for which one check looks for unannounced lanes, and for truncated ones: some microseconds each.
const PAIRS_PER_CHECK: usize = 8;

/// The memory of lanes that have no file: always empty, and shared by all of them.
#[repr(align(4096))]
pub(super) struct Blank([AtomicU64; PAGE / 8]);

impl Default for Blank {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Blank {
    /// The end of a lane that is empty as long as it has no file. Only valid while `self` lives.
    pub(super) fn consumer(self: &Arc<Self>) -> Consumer<RawMemory> {
        Consumer::new(self.memory(), None)
    }

    /// The memory of that lane. Only valid while `self` lives.
    pub(super) fn memory(&self) -> RawMemory {
        let place = LanePlace { control: 0, cells: PAGE / 2, cell_count: 8, data: PAGE / 2 + 512, data_bytes: 1024 };
        let start = self.0.as_ptr().cast::<u8>().cast_mut();
        // SAFETY: the place lies within the page, which the caller keeps; all of it are atomics.
        unsafe { RawMemory::new(start, place) }
    }
}

impl ShmFabric {
    fn callers(&self) -> &[AtomicU64] {
        // SAFETY: the inbox begins with its header page, and is mapped as long as the membership.
        unsafe { callers(self.membership.inbox().ptr(), self.membership.max_nodes()) }
    }

    /// Whether a node has announced lanes. A load for each 64 nodes of the domain.
    #[inline]
    pub(super) fn has_callers(&self) -> bool {
        self.callers().iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Opens the lanes that were announced.
    #[cold]
    pub(super) fn see_callers(&mut self) {
        for word in 0..self.callers().len() {
            // Acquire: pairs with the announcement, behind which the file exists.
            let mut bits = self.callers()[word].swap(0, Ordering::Acquire);
            while bits != 0 {
                let source = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                self.see_caller(source);
            }
        }
    }

    /// Looks for lanes of some living nodes that have not announced any. Another process may have cleared an announcement, and this
    /// one may have had no descriptor left when it saw it.
    pub(super) fn see_unannounced(&mut self) {
        let mut left = PAIRS_PER_CHECK;
        for _ in 0..self.slots.len() {
            self.next_unseen = (self.next_unseen + 1) % self.slots.len();
            if self.pairs[self.next_unseen].is_none() && matches!(self.slots[self.next_unseen], Slot::Live(_)) {
                self.see_caller(self.next_unseen);
                left -= 1;
            }
            if left == 0 {
                return;
            }
        }
    }

    /// Opens the lanes from a node if there are any. Returns whether that is known.
    pub(super) fn see_caller(&mut self, source: usize) -> bool {
        // A bit may be forged: there may be no such node, or no such file.
        if self.pairs.get(source).is_none_or(Option::is_some) {
            return true;
        }
        let pair = match self.membership.existing_pair_from(NodeId(source as u16)) {
            Ok(Some(pair)) => pair,
            Ok(None) => return true,
            Err(error) => {
                tracing::debug!(node = source, %error, "cannot read messages of a node now");
                return false;
            }
        };
        for (lane, priority) in self.lanes[source * PRIORITIES..][..PRIORITIES].iter_mut().zip(Priority::ALL) {
            // SAFETY: the fabric keeps the pair.
            let (first, full) = unsafe { pair.rings(priority) };
            lane.consumer = Consumer::new(first, Some(full));
        }
        self.pairs[source] = Some(pair);
        true
    }

    /// Gives up the lanes from a node that has gone if they were truncated. The next incarnation of the node gets others.
    pub(super) fn forget_truncated(&mut self, source: usize) {
        let Some(pair) = self.pairs[source].take_if(|pair| !pair.is_whole()) else { return };
        for lane in &mut self.lanes[source * PRIORITIES..][..PRIORITIES] {
            lane.consumer = self.blank.consumer();
        }
        self.membership.forget_pair(NodeId(source as u16), &pair);
    }

    /// The living peers, some at each call, that share truncated lanes with this node.
    pub(super) fn truncated_pairs(&mut self) -> Vec<usize> {
        let (mut found, mut left) = (Vec::new(), PAIRS_PER_CHECK);
        for _ in 0..self.slots.len() {
            self.next_checked = (self.next_checked + 1) % self.slots.len();
            let index = self.next_checked;
            let Slot::Live(inbox) = &self.slots[index] else { continue };
            let mut is_whole = inbox.has_whole_lanes();
            if let Some(pair) = &self.pairs[index] {
                for lane in self.lanes[index * PRIORITIES..][..PRIORITIES].iter().filter(|lane| lane.consumer.has_moved()) {
                    pair.rely_on(self.membership.lanes().lane(lane.priority).end());
                }
                is_whole &= pair.is_whole();
            }
            if !is_whole {
                found.push(index);
            }
            left -= 1;
            if left == 0 {
                break;
            }
        }
        found
    }
}
