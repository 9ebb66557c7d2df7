//! Links of nodes and modes of messages, as text for people and as fields for programs.

use super::View;
use crate::links_shown::{Domain, lines, object, whole_object};
use doorbell::mode::ModeMonitor;
use doorbell_shm::domain::DomainStatus;
use serde_json::json;

/// The links, and the modes of messages.
pub const VIEW: View = View {
    lines: |domains| {
        let seen: Vec<_> = domains.iter().map(|domain| (domain.name.as_str(), monitors(domain))).collect();
        let seen: Vec<_> = seen.iter().map(|(name, nodes)| Domain { name, nodes: nodes.iter().collect() }).collect();
        lines(&seen)
    },
    notes: |_| Vec::new(),
    more: |domain| {
        let seen = monitors(domain);
        let nodes = seen.iter().map(|node| {
            let mut fields = object(node);
            (fields["node"], fields["incarnation"]) = (json!(node.node.0), json!(node.incarnation.0));
            fields
        });
        Some(("modes", json!({ "nodes": nodes.collect::<Vec<_>>(), "domain": whole_object(&seen) })))
    },
};

fn monitors(domain: &DomainStatus) -> Vec<ModeMonitor> {
    domain.nodes.iter().filter_map(|node| node.board.as_ref()).map(ModeMonitor::of).collect()
}
