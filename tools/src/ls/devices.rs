//! Shared devices, as text for people and as fields for programs.

use super::{finish, nothing, remark};
use crate::text::{Style, Table, bytes};
use doorbell_shm::device::{DeviceFacts, LaneFacts, ThreadFacts};
use doorbell_shm::domain::DomainStatus;
use serde_json::{Value, json};

/// A line for each device.
pub fn table(domains: &[DomainStatus], style: Style) -> String {
    if domains.is_empty() {
        return nothing();
    }
    let names =
        ["DOMAIN", "DEVICE", "NODES", ">THREADS", ">SENDERS", ">STORED", ">WAITING", ">RECEIVED", ">DROPPED", "PORT", ">MEMORY"];
    let mut table = Table::new(&names);
    let mut notes = Vec::new();
    for domain in domains {
        domain.devices.iter().for_each(|device| table.row(cells(domain, device)));
        if domain.devices.is_empty() {
            table.row([domain.name.clone(), "-".into(), "no devices".into()]);
        }
        notes.extend(remark(domain));
        let odd = |device: &&DeviceFacts| device.counts.inherited > 0 || device.counts.broken > 0;
        notes.extend(domain.devices.iter().filter(odd).map(|device| {
            let (inherited, broken) = (device.counts.inherited, device.counts.broken);
            format!(
                "'{}' of '{}': {inherited} times a node died with its lock, {broken} lanes were given up",
                device.name, domain.name
            )
        }));
    }
    finish(&table, notes, style)
}

fn cells(domain: &DomainStatus, device: &DeviceFacts) -> Vec<String> {
    let mut nodes: Vec<String> = device.attached.iter().map(|(node, _)| node.to_string()).collect();
    nodes.dedup();
    let received = device.threads.iter().filter(|thread| thread.receiver.is_some()).count();
    let sending = device.lanes.iter().filter(|lane| lane.owner.is_some()).count();
    vec![
        domain.name.clone(),
        device.name.clone(),
        if nodes.is_empty() { "-".into() } else { nodes.join(",") },
        format!("{received}/{}", device.geometry.threads),
        format!("{sending}/{}", device.geometry.senders),
        device.threads.iter().map(|thread| thread.stored).sum::<u64>().to_string(),
        bytes(device.lanes.iter().map(|lane| lane.waiting).sum()),
        device.counts.received.to_string(),
        device.counts.dropped.to_string(),
        device.port.map_or_else(|| "-".into(), |(node, _)| node.to_string()),
        bytes(device.bytes),
    ]
}

/// The fields of a domain, with its devices.
pub fn object(domain: &DomainStatus, mut object: Value) -> Value {
    object["devices"] = domain.devices.iter().map(device_object).collect();
    object
}

fn device_object(device: &DeviceFacts) -> Value {
    let life = |life: Option<(doorbell::NodeId, doorbell::Incarnation)>| {
        life.map(|(node, life)| json!({ "node": node.0, "incarnation": life.0 }))
    };
    let thread =
        |thread: &ThreadFacts| json!({ "thread": thread.thread, "receiver": life(thread.receiver), "stored": thread.stored });
    let lane = |lane: &LaneFacts| {
        let LaneFacts { owner, client, waiting, broken, .. } = *lane;
        json!({ "owner": life(owner), "client": life(client), "waiting_bytes": waiting, "broken": broken })
    };
    let counts = device.counts;
    json!({
        "device": device.name,
        "bytes": device.bytes,
        "threads_most": device.geometry.threads,
        "senders_most": device.geometry.senders,
        "message_max": device.geometry.message_max(),
        "attached": device.attached.iter().map(|node| life(Some(*node))).collect::<Vec<_>>(),
        "port": life(device.port),
        "threads": device.threads.iter().map(thread).collect::<Vec<_>>(),
        "lanes": device.lanes.iter().map(lane).collect::<Vec<_>>(),
        "received": counts.received,
        "stored": counts.stored,
        "dropped": counts.dropped,
        "dropped_bytes": counts.dropped_bytes,
        "inherited": counts.inherited,
        "broken": counts.broken,
    })
}
