//! Shared devices, as text for people and as fields for programs.

use super::{View, known, table};
use crate::text::bytes;
use doorbell_shm::device::{DeviceFacts, LaneFacts, ThreadFacts};
use doorbell_shm::domain::DomainStatus;
use serde_json::{Value, json};

/// The shared devices.
pub const VIEW: View = View {
    lines: |domains| table(domains, &NAMES, "no devices", |domain| domain.devices.iter().map(cells).collect()),
    notes: |domains| domains.iter().flat_map(notes).collect(),
    more: |domain| Some(("devices", domain.devices.iter().map(device_object).collect())),
};

const NAMES: [&str; 11] =
    ["DOMAIN", "DEVICE", "NODES", ">THREADS", ">SENDERS", ">STORED", ">WAITING", ">RECEIVED", ">DROPPED", "PORT", ">MEMORY"];

fn notes(domain: &DomainStatus) -> Vec<String> {
    let odd = |device: &&DeviceFacts| device.counts.inherited > 0 || device.counts.broken > 0;
    let note = |device: &DeviceFacts| {
        let (name, inherited, broken) = (&device.name, device.counts.inherited, device.counts.broken);
        format!("'{name}' of '{}': {inherited} times a node died with its lock, {broken} lanes were given up", domain.name)
    };
    domain.devices.iter().filter(odd).map(note).collect()
}

fn cells(device: &DeviceFacts) -> Vec<String> {
    let mut nodes: Vec<String> = device.attached.iter().map(|(node, _)| node.to_string()).collect();
    nodes.dedup();
    let received = device.threads.iter().filter(|thread| thread.receiver.is_some()).count();
    let sending = device.lanes.iter().filter(|lane| lane.owner.is_some()).count();
    vec![
        device.name.clone(),
        known(Some(nodes.join(","))),
        format!("{received}/{}", device.geometry.threads),
        format!("{sending}/{}", device.geometry.senders),
        device.threads.iter().map(|thread| thread.stored).sum::<u64>().to_string(),
        bytes(device.lanes.iter().map(|lane| lane.waiting).sum()),
        device.counts.received.to_string(),
        device.counts.dropped.to_string(),
        known(device.port.map(|(node, _)| node.to_string())),
        bytes(device.bytes),
    ]
}

fn device_object(device: &DeviceFacts) -> Value {
    let incarnation = |incarnation: Option<(doorbell::NodeId, doorbell::Incarnation)>| {
        incarnation.map(|(node, incarnation)| json!({ "node": node.0, "incarnation": incarnation.0 }))
    };
    let thread = |thread: &ThreadFacts| json!({ "thread": thread.thread, "receiver": incarnation(thread.receiver), "stored": thread.stored });
    let lane = |lane: &LaneFacts| {
        let LaneFacts { owner, client, waiting, broken, .. } = *lane;
        json!({ "owner": incarnation(owner), "client": incarnation(client), "waiting_bytes": waiting, "broken": broken })
    };
    let counts = device.counts;
    json!({
        "device": device.name,
        "bytes": device.bytes,
        "threads_most": device.geometry.threads,
        "senders_most": device.geometry.senders,
        "message_max": device.geometry.message_max(),
        "attached": device.attached.iter().map(|node| incarnation(Some(*node))).collect::<Vec<_>>(),
        "port": incarnation(device.port),
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
