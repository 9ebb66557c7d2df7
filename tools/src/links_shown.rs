//! Links of nodes and the modes of their messages, as text for people and as fields for programs.

use crate::nodes::{nanoseconds, short};
use crate::text::{Table, bytes, counted};
use doorbell::mode::{Fabric, LatencySum, LinkShown, ModeCounts, ModeMonitor, Protocol, Refusal, SIZE_CLASSES};
use doorbell_shm::clock::now_ns;
use serde_json::{Map, Value, json};

/// Decisions that the text shows for each node.
const LATEST: usize = 5;
/// Characters of a bar.
const BAR: usize = 10;

const LINK_COLUMNS: [&str; 11] =
    ["DOMAIN", ">NODE", ">TO", "LINK", ">DEPTH", ">QUEUED", "OCCUPANCY", ">WAITING", ">TRANSFERS", ">MESSAGES", ">SENT"];

/// The nodes of a domain that have a monitor.
pub struct Domain<'a> {
    pub name: &'a str,
    pub nodes: Vec<&'a ModeMonitor>,
}

/// All lines: the links, the counts and the latest decisions of each node, and each domain as a whole.
pub fn lines(domains: &[Domain<'_>]) -> Vec<String> {
    let mut lines = links(domains);
    for Domain { name, nodes } in domains {
        for node in nodes {
            lines.extend(about(node).into_iter().map(|line| format!("'{name}' node {}: {line}", node.node)));
        }
        lines.push(format!("'{name}': {}", whole(nodes)));
    }
    lines
}

/// A line for each link below the names of the columns; empty without links.
pub fn links(domains: &[Domain<'_>]) -> Vec<String> {
    let mut table = Table::new(&LINK_COLUMNS);
    let mut is_empty = true;
    for Domain { name, nodes } in domains {
        for (node, link) in nodes.iter().flat_map(|node| node.links.iter().map(move |link| (node, link))) {
            is_empty = false;
            table.row([
                (*name).to_owned(),
                node.node.to_string(),
                link.node.to_string(),
                format!("{}/{}", link.fabric, link.link),
                link.depth.to_string(),
                link.queued.to_string(),
                bar(link.occupancy),
                format!("{} of {}", bytes(link.bytes), bytes(link.room)),
                link.transfers.to_string(),
                short(link.messages as f64),
                bytes(link.bytes_sent),
            ]);
        }
    }
    if is_empty { Vec::new() } else { table.lines() }
}

/// Thousandths, as a bar and as a percentage.
fn bar(occupancy: u16) -> String {
    let full = (usize::from(occupancy) * BAR).div_ceil(1000).min(BAR);
    format!("{}{} {:>5.1} %", "█".repeat(full), "·".repeat(BAR - full), f64::from(occupancy) / 10.0)
}

/// The counts of a node, and its latest decisions.
pub fn about(node: &ModeMonitor) -> Vec<String> {
    let counts = &node.counts;
    let asked = requests(counts);
    if asked.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![format!("asked for {asked}; as asked or usual {}; otherwise: {}", counts.honoured(), refusals(counts))];
    let modes = modes(counts).map(|(fabric, protocol, messages, latency)| {
        let mean = latency.mean_ns().map_or(String::new(), |ns| format!(" ({} each)", nanoseconds(Some(ns))));
        format!("{fabric}/{protocol} {messages}{mean}")
    });
    lines.push(format!("messages by mode: {}", modes.collect::<Vec<_>>().join(", ")));
    let latest = node.decisions.len().saturating_sub(LATEST);
    lines.extend(node.decisions[latest..].iter().rev().map(|decision| {
        let ago = now_ns().saturating_sub(decision.time_ns) as f64 / 1e9;
        format!("{ago:.3} s ago: {}", decision.receipt)
    }));
    lines
}

/// A domain in one line.
pub fn whole(nodes: &[&ModeMonitor]) -> String {
    let all = ModeMonitor::aggregate(nodes.iter().copied());
    let mut parts = vec![counted(all.nodes, "node")];
    for fabric in Fabric::ALL {
        let means = all.links(fabric);
        if means.links > 0 {
            let links = counted(means.links, &format!("{fabric} link"));
            parts.push(format!("{links}, mean depth {:.1}, mean occupancy {:.1} %", means.depth, means.occupancy / 10.0));
        }
    }
    let asked = requests(&all.counts);
    if !asked.is_empty() {
        parts.push(format!("asked for {asked}"));
    }
    let latencies = modes(&all.counts).filter_map(|(fabric, protocol, _, latency)| {
        Some(format!("{fabric}/{protocol} {}", nanoseconds(Some(latency.mean_ns()?))))
    });
    let latencies: Vec<_> = latencies.collect();
    if !latencies.is_empty() {
        parts.push(format!("mean latency {}", latencies.join(", ")));
    }
    parts.join("; ")
}

/// How often each fabric was requested; empty if none was.
fn requests(counts: &ModeCounts) -> String {
    let kinds = [(Some(Fabric::Shm), "shm"), (Some(Fabric::Udp), "udp"), (None, "none")];
    let found = kinds.into_iter().map(|(fabric, word)| (counts.requests(fabric), word)).filter(|(count, _)| *count > 0);
    found.map(|(count, word)| format!("{word} {count}")).collect::<Vec<_>>().join(", ")
}

fn refusals(counts: &ModeCounts) -> String {
    let found = Refusal::ALL.iter().map(|refusal| (counts.refused(*refusal), refusal)).filter(|(count, _)| *count > 0);
    let found: Vec<_> = found.map(|(count, refusal)| format!("{refusal} {count}")).collect();
    if found.is_empty() { "none".into() } else { found.join(", ") }
}

/// The used modes, each with its number of messages and the sampled latencies.
fn modes(counts: &ModeCounts) -> impl Iterator<Item = (Fabric, Protocol, u64, LatencySum)> + '_ {
    let all = Fabric::ALL.into_iter().flat_map(|fabric| Protocol::ALL.map(|protocol| (fabric, protocol)));
    let found =
        all.map(|(fabric, protocol)| (fabric, protocol, counts.messages(fabric, protocol), counts.latency(fabric, protocol)));
    found.filter(|(.., messages, latency)| *messages > 0 || latency.samples > 0)
}

/// The fields of a node.
pub fn object(node: &ModeMonitor) -> Value {
    let mut object = counted_object(&node.counts);
    let decisions = node.decisions.iter().map(|decision| {
        let receipt = decision.receipt;
        json!({
            "number": decision.number,
            "time_ns": decision.time_ns,
            "age_ns": now_ns().saturating_sub(decision.time_ns),
            "to": receipt.to.0,
            "call": receipt.call.to_string(),
            "bytes": receipt.len,
            "requested": receipt.requested.to_string(),
            "used": receipt.used.to_string(),
            "refusal": receipt.reason.refusal().map(Refusal::word),
            "reason": receipt.reason.to_string(),
        })
    });
    object["links"] = node.links.iter().map(link_object).collect();
    object["decisions"] = decisions.collect();
    object
}

fn link_object(link: &LinkShown) -> Value {
    json!({
        "to": link.node.0,
        "incarnation": link.incarnation.0,
        "fabric": link.fabric.to_string(),
        "link": link.link,
        "depth": link.depth,
        "queued": link.queued,
        "bytes": link.bytes,
        "room_bytes": link.room,
        "occupancy_permille": link.occupancy,
        "transfers": link.transfers,
        "messages": link.messages,
        "bytes_sent": link.bytes_sent,
    })
}

/// The fields of a domain: sums and means of its nodes.
pub fn whole_object<'a>(nodes: impl IntoIterator<Item = &'a ModeMonitor>) -> Value {
    let all = ModeMonitor::aggregate(nodes);
    let mut object = counted_object(&all.counts);
    let links = Fabric::ALL.map(|fabric| {
        let means = all.links(fabric);
        let fields = json!({
            "links": means.links,
            "mean_depth": means.depth,
            "mean_queued": means.queued,
            "mean_occupancy_permille": means.occupancy,
        });
        (fabric.to_string(), fields)
    });
    object["nodes"] = json!(all.nodes);
    object["links"] = links.into_iter().collect::<Map<_, _>>().into();
    object
}

fn counted_object(counts: &ModeCounts) -> Value {
    let mean = |latency: LatencySum| json!({ "samples": latency.samples, "mean_ns": latency.mean_ns() });
    let modes = modes(counts).map(|(fabric, protocol, messages, latency)| {
        let sizes = (0..SIZE_CLASSES).map(|class| (class, counts.latency_of(fabric, protocol, class)));
        let sizes = sizes.filter(|(_, latency)| latency.samples > 0).map(|(class, latency)| {
            let mut fields = mean(latency);
            fields["up_to_bytes"] = json!(Some(ModeCounts::class_bytes(class)).filter(|bytes| *bytes < u64::MAX));
            fields
        });
        let (sizes, latency) = (sizes.collect::<Vec<_>>(), mean(latency));
        json!({ "fabric": fabric.to_string(), "protocol": protocol.to_string(), "messages": messages, "latency": latency, "by_size": sizes })
    });
    let refused = Refusal::ALL.iter().map(|refusal| (refusal.word().to_owned(), json!(counts.refused(*refusal))));
    let requests = |fabric| counts.requests(fabric);
    json!({
        "requests": { "shm": requests(Some(Fabric::Shm)), "udp": requests(Some(Fabric::Udp)), "none": requests(None) },
        "modes": modes.collect::<Vec<_>>(),
        "honoured": counts.honoured(),
        "refused": refused.collect::<Map<_, _>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell::mode::ModeRequest;
    use doorbell::testing::Domain as Grid;

    #[test]
    fn bars_are_as_long_as_they_say() {
        for (occupancy, bar) in [(0, "··········   0.0 %"), (1, "█·········   0.1 %"), (1000, "██████████ 100.0 %")]
        {
            assert_eq!(super::bar(occupancy), bar);
        }
    }

    #[test]
    fn nodes_are_told_in_lines_and_fields() {
        let grid = Grid::new();
        let (a, b) = (grid.join().unwrap(), grid.join().unwrap());
        // Of several tags, because messages of one tag share packets.
        for tag in 1..=3 {
            a.send_as(b.id(), tag, b"unread", ModeRequest::fabric(Fabric::Shm)).unwrap();
        }
        assert!(a.send_as(b.id(), 1, b"no", ModeRequest::fabric(Fabric::Udp)).is_err());
        let (seen, quiet) = (a.monitor().unwrap(), b.monitor().unwrap());
        let all = lines(&[Domain { name: "grid", nodes: vec![&seen, &quiet] }]);
        let expected = ["DOMAIN", "grid", "'grid' node 0: asked for shm 3, udp 1; as asked or usual 3; otherwise: unavailable 1"];
        assert!(all.iter().zip(expected).all(|(line, expected)| line.starts_with(expected)), "{all:#?}");
        assert!(all[3].starts_with("'grid' node 0: messages by mode: shm/transfer 3 ("), "{all:#?}");
        assert!(all[4].starts_with("'grid': 2 nodes; 1 shm link, mean depth 3.0, mean occupancy "), "{all:#?}");
        assert_eq!(all.len(), 5);
        let object = object(&seen);
        assert_eq!((&object["links"][0]["depth"], &object["requests"]["udp"]), (&json!(3), &json!(1)));
        assert_eq!((&object["modes"][0]["by_size"][0]["up_to_bytes"], &object["refused"]["queue"]), (&json!(64), &json!(0)));
        assert_eq!(whole_object([&seen, &quiet])["links"]["shm"]["mean_depth"], json!(3.0));
    }
}
