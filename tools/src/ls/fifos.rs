//! Injection FIFOs, as text for people and as fields for programs.

use super::{View, table};
use crate::nodes::{fifos, injector, next_descriptor, priority};
use crate::text::bytes;
use doorbell_shm::board::FifoShown;
use doorbell_shm::domain::NodeStatus;
use serde_json::json;

/// The injection FIFOs.
pub(super) const VIEW: View = View {
    lines: |domains| table(domains, &NAMES, "no FIFOs", |domain| domain.nodes.iter().flat_map(rows).collect()),
    notes: |_| Vec::new(),
    more: |domain| {
        let of_node = |node: &NodeStatus| json!({ "node": node.id.0, "fifos": node.board.as_ref().map(fifos) });
        Some(("fifos", domain.nodes.iter().map(of_node).collect()))
    },
};

/// The names of the columns: the domain, then those of [`used`].
pub const NAMES: [&str; 11] =
    ["DOMAIN", ">NODE", ">FIFO", "NAME", "PRIORITY", "INJECTOR", ">INJECTED", ">LEFT", ">FAULTS", ">MOVED", "NEXT"];

fn rows(node: &NodeStatus) -> Vec<Vec<String>> {
    cells(node, |_| true)
}

/// The rows of those FIFOs of a node that ever had a descriptor.
pub fn used(node: &NodeStatus) -> Vec<Vec<String>> {
    cells(node, |fifo| fifo.injected > 0)
}

fn cells(node: &NodeStatus, shown: impl Fn(&FifoShown) -> bool) -> Vec<Vec<String>> {
    let cells = |fifo: FifoShown| {
        vec![
            node.id.to_string(),
            fifo.number.to_string(),
            super::known(Some(fifo.facts.name.clone())),
            priority(fifo.facts.priority).into(),
            injector(&fifo).into(),
            fifo.injected.to_string(),
            fifo.pending.len().to_string(),
            fifo.faults.to_string(),
            bytes(fifo.bytes),
            next_descriptor(&fifo),
        ]
    };
    node.board.iter().flat_map(|board| board.board().fifos()).filter(shown).map(cells).collect()
}
