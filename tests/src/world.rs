//! Nodes of one process, over any fabric and under any policy.

use crate::domain::Domain;
use doorbell::mode::{Decision, Fabric, LinkView, Links, Policy, Protocol, Question, Reason};
use doorbell::{CopySide, FabricKind, Faults, LaneGeometry, Node, NodeBuilder, PortKind, Progress, Space, Wait};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The fabric under the nodes of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// Segments in `/dev/shm`.
    Posix,
    /// Segments in the heap.
    Heap,
    /// Segments in the heap; lanes that are full when they need not be, and packets that are seen late.
    Faulty,
    /// No memory in common: UDP by way of the loopback interface.
    Udp,
    /// The same, by a port of plain calls.
    UdpPlain,
    /// The same, by a port whose datagrams move by io_uring.
    UdpUring,
    /// The same, with a domain key.
    UdpKey,
    /// Nodes with even ids share memory, and so do those with odd ids. Between the two groups there is UDP.
    Mixed,
    /// All share memory and are on a network, and a policy draws by lot by which link each message goes.
    Lots,
}

/// A domain for nodes of this process, all under one policy.
pub struct World {
    domain: Domain,
    /// The space of nodes with odd ids where they share no memory with those of even ids.
    across: Space,
    /// Selects addresses of the loopback interface that no other world has.
    number: u32,
    /// The fabric under its nodes.
    pub ground: Ground,
    /// The progress policy of its nodes.
    pub progress: Progress,
    /// How their threads wait.
    pub wait: Wait,
    seed: u64,
}

/// The most nodes of a world.
const NODES: u16 = 8;
/// The percentage of pushes that find a faulty lane full, and of looks that see nothing.
const FAULT_PERCENT: u8 = 30;

/// Selects links at random: for each message, and for the parts of a long one.
#[derive(Debug)]
pub struct Lots(AtomicU64);

impl Lots {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    fn below(&self, most: usize) -> usize {
        let drawn = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mixed = (drawn ^ drawn >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed >> 33) % most as u64) as usize
    }
}

impl Policy for Lots {
    fn choose(&self, question: &mut Question<'_>) -> Decision {
        // The protocol stays that of the node's settings, which the suite checks.
        let modes: Vec<_> = question.links.iter().filter_map(|link| link.mode(link.advice)).collect();
        let mode = modes[self.below(modes.len())];
        let is_drawn = |link: &&LinkView| link.fabric == Fabric::Udp && self.below(2) == 0;
        let links: Links = question.links.iter().filter(is_drawn).map(|link| link.link).collect();
        let decision = Decision::new(mode, Reason::Unavailable("the lot fell so"));
        if mode.protocol == Protocol::Put { decision.also_by(links) } else { decision }
    }
}

/// Longer than a [narrow](World::narrow) lane, and still a message that goes through it: one that nobody takes blocks the lane.
pub const BLOCKING: usize = 32 << 10;

impl World {
    /// A new world.
    pub fn new(ground: Ground, progress: Progress, wait: Wait) -> Self {
        let space = if ground == Ground::Posix { Space::posix() } else { Space::heap() };
        // One seed a run, so that faults are repeatable. The results differ little from seed to seed.
        let seed = crate::number("DOORBELL_SEED", 1);
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let across = Space::heap();
        Self { domain: Domain::within("world", space), across, number, ground, progress, wait, seed }
    }

    /// The domain's name.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Whether messages go by a network, all or some.
    pub fn is_networked(&self) -> bool {
        matches!(self.ground, Ground::Udp | Ground::UdpPlain | Ground::UdpUring | Ground::UdpKey | Ground::Mixed | Ground::Lots)
    }

    /// Whether nodes 0 and 1 read loans of each other in place. Over a network a loan is copied.
    pub fn lends(&self) -> bool {
        !self.is_networked() || self.ground == Ground::Lots
    }

    /// The address of a node. Each process and world has its own, so that no two disturb each other.
    fn address(&self, id: u16) -> SocketAddr {
        let process = std::process::id();
        let ip = [127, 1 + (process >> 8) as u8 % 250, process as u8, 1 + (self.number % 250) as u8];
        // A node keeps its address until its last request is dropped, so that a test that forgets one never frees it.
        let port = 20_000 + 16 * (self.number / 250) as u16 + id;
        (ip, port).into()
    }

    /// Whether its lanes have faults: then a call may return `Full` or nothing without a reason.
    pub fn is_faulty(&self) -> bool {
        self.ground == Ground::Faulty
    }

    /// A node that is about to join.
    pub fn builder(&self, id: u16) -> NodeBuilder {
        let builder = Node::builder(self.domain.name()).space(self.domain.space().clone()).id(id);
        // Not Auto: that selects the protocol of a long message by what the kernel's copy costs on this machine.
        let builder = builder.progress(self.progress).wait(self.wait).max_nodes(NODES.into()).copy(CopySide::Both);
        match self.ground {
            Ground::Faulty => builder.faults(Faults::new(self.seed * 1000 + id as u64, FAULT_PERCENT, FAULT_PERCENT)),
            Ground::Posix | Ground::Heap => builder,
            Ground::Udp => self.networked(builder.fabric(FabricKind::Udp), id),
            Ground::UdpPlain => self.networked(builder.fabric(FabricKind::Udp).udp_port(PortKind::Plain), id),
            Ground::UdpUring => self.networked(builder.fabric(FabricKind::Udp).udp_port(PortKind::Uring), id),
            Ground::UdpKey => self.networked(builder.fabric(FabricKind::Udp).key([7; 32]), id),
            Ground::Mixed if id % 2 == 1 => self.networked(builder.space(self.across.clone()), id),
            Ground::Mixed => self.networked(builder, id),
            Ground::Lots => {
                // Two links to each.
                let builder = self.networked(builder.policy(Lots::new(self.seed * 1000 + u64::from(id))), id);
                builder.listen(self.address(id + NODES))
            }
        }
    }

    fn networked(&self, builder: NodeBuilder, id: u16) -> NodeBuilder {
        let others = (0..NODES).filter(|other| *other != id);
        others.fold(builder.listen(self.address(id)), |builder, other| builder.seek(self.address(other)))
    }

    /// A node with the smallest lanes possible and a pool of 1 KiB.
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
