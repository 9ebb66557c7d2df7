//! All send queues of a node.

use crate::message::bulk::BulkRings;
use crate::message::outbound::Outbound;
use doorbell_fabric::{NodeId, PRIORITIES, Priority};
use std::sync::{Arc, OnceLock};

/// The send queues, by node and priority. Each is made when it is first needed, and stays. Thread-safe.
pub struct Ways {
    slots: Box<[OnceLock<Arc<Outbound>>]>,
    rings: Arc<BulkRings>,
    /// A policy decides how messages go.
    steered: bool,
}

impl Ways {
    /// Send queues for `nodes` nodes, with at most `bulk_bytes` bytes of bulk rings.
    pub fn new(nodes: usize, bulk_bytes: usize, steered: bool) -> Self {
        let slots = (0..nodes * PRIORITIES).map(|_| OnceLock::new()).collect();
        Self { slots, rings: Arc::new(BulkRings::new(bulk_bytes)), steered }
    }

    fn slot(&self, node: NodeId, priority: Priority) -> Option<&OnceLock<Arc<Outbound>>> {
        self.slots.get(node.index() * PRIORITIES + priority.index())
    }

    /// The send queue of a node, if it was made.
    #[inline(always)]
    pub fn known(&self, node: NodeId, priority: Priority) -> Option<&Arc<Outbound>> {
        self.slot(node, priority)?.get()
    }

    /// The send queue of a node, made if necessary. `None` if no node can have this id.
    pub fn get(&self, node: NodeId, priority: Priority) -> Option<&Arc<Outbound>> {
        Some(self.slot(node, priority)?.get_or_init(|| Arc::new(Outbound::new(node, priority, self.rings.clone(), self.steered))))
    }

    /// The send queues that were made.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Outbound>> {
        self.slots.iter().filter_map(OnceLock::get)
    }

    /// The send queues that were made, by node.
    pub fn by_node(&self) -> impl Iterator<Item = (NodeId, impl Iterator<Item = &Arc<Outbound>> + Clone)> {
        let nodes = self.slots.chunks(PRIORITIES).enumerate();
        nodes.map(|(node, slots)| (NodeId(node as u16), slots.iter().filter_map(OnceLock::get)))
    }

    /// The bulk rings of all send queues.
    pub fn rings(&self) -> &BulkRings {
        &self.rings
    }
}
