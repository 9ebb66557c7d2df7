//! Nodes of one process, over any fabric and under any policy.

use crate::domain::Domain;
use doorbell::{Copy, Faults, LaneGeometry, Node, NodeBuilder, Progress, Space, Wait};

/// What the nodes of a world stand on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// Segments in `/dev/shm`.
    Posix,
    /// Segments in the heap.
    Heap,
    /// Segments in the heap; lanes that are full when they need not be, and packets that are seen late.
    Faulty,
}

/// A domain for nodes of this process, all under one policy.
pub struct World {
    domain: Domain,
    /// What its nodes stand on.
    pub ground: Ground,
    /// Who turns their engines.
    pub progress: Progress,
    /// How their threads wait.
    pub wait: Wait,
    seed: u64,
}

/// Of a hundred, how many pushes find a faulty lane full, and how many looks see nothing.
const FAULT_PERCENT: u8 = 30;

/// Longer than a [narrow](World::narrow) lane, and still a message that goes through it: one that nobody takes blocks the lane.
pub const BLOCKING: usize = 32 << 10;

impl World {
    /// A new world.
    pub fn new(ground: Ground, progress: Progress, wait: Wait) -> Self {
        let space = if ground == Ground::Posix { Space::posix() } else { Space::heap() };
        // One seed a run: faults are to be repeatable, and what they find differs little from seed to seed.
        let seed = crate::number("DOORBELL_SEED", 1);
        Self { domain: Domain::within("world", space), ground, progress, wait, seed }
    }

    /// The domain's name.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Whether its lanes have faults: then `Full` and "nothing there" may be said without a reason.
    pub fn is_faulty(&self) -> bool {
        self.ground == Ground::Faulty
    }

    /// A node that is about to join.
    pub fn builder(&self, id: u16) -> NodeBuilder {
        let builder = Node::builder(self.domain.name()).space(self.domain.space().clone()).id(id);
        // Not Auto: then what happens to a long message would depend on what the kernel's copy costs here.
        let builder = builder.progress(self.progress).wait(self.wait).max_nodes(8).copy(Copy::Both);
        match self.ground {
            Ground::Faulty => builder.faults(Faults::new(self.seed * 1000 + id as u64, FAULT_PERCENT, FAULT_PERCENT)),
            _ => builder,
        }
    }

    /// A node of a domain with the least lanes there may be, and a pool that takes next to nothing.
    pub fn narrow(&self, id: u16) -> NodeBuilder {
        self.builder(id).lanes(LaneGeometry { cells: [16; 3], data_bytes: [16 << 10; 3] }).pool_bytes(1 << 10)
    }

    /// A node.
    #[track_caller]
    pub fn node(&self, id: u16) -> Node {
        self.builder(id).join().unwrap()
    }

    /// Nodes with the ids 0, 1, 2, …
    #[track_caller]
    pub fn nodes<const N: usize>(&self) -> [Node; N] {
        std::array::from_fn(|id| self.node(id as u16))
    }

    /// The same with [narrow](Self::narrow) lanes.
    #[track_caller]
    pub fn narrow_nodes<const N: usize>(&self) -> [Node; N] {
        std::array::from_fn(|id| self.narrow(id as u16).join().unwrap())
    }

    /// Nodes whose pools of unexpected messages hold this many bytes.
    #[track_caller]
    pub fn nodes_with_pool<const N: usize>(&self, bytes: usize) -> [Node; N] {
        std::array::from_fn(|id| self.builder(id as u16).pool_bytes(bytes).join().unwrap())
    }
}
