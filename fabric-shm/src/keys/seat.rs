//! The place of a domain's lock registry, if its nodes do not all share memory. The registry lies in the segment of one
//! shared-memory group, and one node of that group, the **coordinator** (*home* in the code), serves the nodes that have only a
//! network. These words record which node that is, and which nodes it serves.

use crate::layout::PAGE;
use doorbell_fabric::{Incarnation, NodeId};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Two pages. All zero: the registry is not here.
#[repr(C, align(4096))]
pub(crate) struct Seat {
    /// How often the registry has moved to another group; 0 if it is not here. The greatest term is the valid one.
    term: AtomicU64,
    /// Incarnation 32 | node 16 of the coordinator.
    home: AtomicU64,
    _apart: [u64; 510],
    /// The incarnations of nodes that the coordinator serves; 0 for none.
    served: [AtomicU32; crate::domain::MAX_NODES],
}

const _: () = assert!(size_of::<Seat>() == 2 * PAGE);

impl Seat {
    /// How often the registry had moved when it came here; `None` if it is not here.
    pub fn term(&self) -> Option<u64> {
        Some(self.term.load(Ordering::Acquire)).filter(|term| *term != 0)
    }

    /// Marks the registry as being here.
    pub fn set_term(&self, term: u64) {
        self.term.store(term, Ordering::Release);
    }

    /// The coordinator; `None` if there was none yet.
    pub fn home(&self) -> Option<(NodeId, Incarnation)> {
        decode(self.home.load(Ordering::Acquire))
    }

    /// Becomes coordinator in place of `was`. False if another node was faster.
    pub fn take(&self, was: Option<(NodeId, Incarnation)>, me: (NodeId, Incarnation)) -> bool {
        self.home.compare_exchange(was.map_or(0, encode), encode(me), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Records that an incarnation has only the network, and that the coordinator serves it.
    pub fn serve(&self, node: NodeId, incarnation: Incarnation) {
        if let Some(word) = self.served.get(node.index()) {
            word.store(incarnation.0, Ordering::Release);
        }
    }

    /// All incarnations that the coordinator serves, among the first `nodes` node ids.
    pub fn all_served(&self, nodes: usize) -> Vec<(NodeId, Incarnation)> {
        let lives = self.served.iter().take(nodes).enumerate();
        let lives = lives.map(|(node, incarnation)| (NodeId(node as u16), Incarnation(incarnation.load(Ordering::Acquire))));
        lives.filter(|(_, incarnation)| incarnation.0 != 0).collect()
    }

    /// Whether the coordinator serves this incarnation, and so is the one to know when it ends.
    pub fn serves(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.served.get(node.index()).is_some_and(|word| word.load(Ordering::Acquire) == incarnation.0 && incarnation.0 != 0)
    }
}

fn encode((node, incarnation): (NodeId, Incarnation)) -> u64 {
    (incarnation.0 as u64) << 16 | node.0 as u64
}

fn decode(word: u64) -> Option<(NodeId, Incarnation)> {
    (word != 0).then_some((NodeId(word as u16), Incarnation((word >> 16) as u32)))
}
