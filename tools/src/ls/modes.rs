//! Links of nodes and modes of messages, as text for people and as fields for programs.

use super::{finish_lines, nothing, remark};
use crate::links_shown::{Domain, lines, object as node_object, whole_object};
use crate::text::Style;
use doorbell::mode::ModeMonitor;
use doorbell_shm::domain::DomainStatus;
use serde_json::{Value, json};

fn monitors(domain: &DomainStatus) -> Vec<ModeMonitor> {
    domain.nodes.iter().filter_map(|node| node.board.as_ref()).map(ModeMonitor::of).collect()
}

/// The links, and the modes of messages.
pub fn table(domains: &[DomainStatus], style: Style) -> String {
    if domains.is_empty() {
        return nothing();
    }
    let seen: Vec<_> = domains.iter().map(|domain| (domain.name.as_str(), monitors(domain))).collect();
    let seen: Vec<_> = seen.iter().map(|(name, nodes)| Domain { name, nodes: nodes.iter().collect() }).collect();
    finish_lines(lines(&seen), domains.iter().filter_map(remark).collect(), style)
}

/// The fields of a domain, with the modes of its nodes.
pub fn object(domain: &DomainStatus, mut object: Value) -> Value {
    let seen = monitors(domain);
    let nodes = seen.iter().map(|node| {
        let mut fields = node_object(node);
        (fields["node"], fields["incarnation"]) = (json!(node.node.0), json!(node.incarnation.0));
        fields
    });
    object["modes"] = json!({ "nodes": nodes.collect::<Vec<_>>(), "domain": whole_object(&seen) });
    object
}
