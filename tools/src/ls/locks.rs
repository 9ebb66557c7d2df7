//! Locks, as text for people and as fields for programs.

use super::{View, known, table};
use doorbell::{LockFacts, OwnerId, Resource, Value as Held};
use doorbell_shm::domain::{DomainStatus, NodeStatus};
use serde_json::{Value, json};

/// The locks.
pub const VIEW: View = View {
    lines: |domains| table(domains, &NAMES, "no keys", |domain| domain.keys.iter().map(|key| cells(domain, key)).collect()),
    notes: |domains| {
        let is_dead =
            |domain: &DomainStatus, key: &LockFacts| key.seen.owner().map(|owner| lives(domain, owner)) == Some(Some(false));
        let is_dead = domains.iter().any(|domain| domain.keys.iter().any(|key| is_dead(domain, key)));
        let note = "a lock of a dead owner goes to its next waiter, or to the next node that locks it";
        is_dead.then(|| note.into()).into_iter().collect()
    },
    more: |domain| Some(("locks", domain.keys.iter().map(|key| key_object(domain, key)).collect())),
};

const NAMES: [&str; 9] = ["DOMAIN", "KEY", "RESOURCE", "VALUE", "ROLE", "LABEL", "STATE", "USERS", ">WAITING"];

fn cells(domain: &DomainStatus, key: &LockFacts) -> Vec<String> {
    let member = key.seen.owner().and_then(|owner| incarnation(domain, owner)?.member.as_ref());
    let users: Vec<String> = key.users.iter().map(ToString::to_string).collect();
    vec![
        key.name.clone(),
        key.resource.to_string(),
        key.seen.value().to_string(),
        known(member.map(|member| member.role.to_string())),
        known(member.map(|member| member.label.clone())),
        state(domain, key),
        known(Some(users.join(","))),
        key.waiting.len().to_string(),
    ]
}

/// The state of a lock besides its owner.
fn state(domain: &DomainStatus, key: &LockFacts) -> String {
    let mut said = Vec::new();
    match key.seen.owner().map(|owner| lives(domain, owner)) {
        Some(Some(false)) => said.push("its owner is dead".to_owned()),
        // The owner has left, or is on another machine.
        Some(None) => said.push("its owner is in no directory here".into()),
        _ => {}
    }
    if key.seen.is_frozen() && key.seen.owner().is_some() {
        said.push("the module's next".into());
    }
    match key.dead {
        Some(dead) => said.push(format!("damaged: {dead} died with it")),
        None if key.seen.is_damaged() => said.push("damaged".into()),
        None => {}
    }
    if said.is_empty() { "sound".into() } else { said.join("; ") }
}

/// The node of an owner in the same incarnation, if the directory of this machine has it.
fn incarnation(domain: &DomainStatus, owner: OwnerId) -> Option<&NodeStatus> {
    let node = domain.nodes.iter().find(|node| node.id == owner.node())?;
    node.member.as_ref().is_some_and(|member| member.incarnation == owner.incarnation()).then_some(node)
}

/// Whether an owner lives; `None` if the directory of this machine does not have its node.
fn lives(domain: &DomainStatus, owner: OwnerId) -> Option<bool> {
    let node = domain.nodes.iter().find(|node| node.id == owner.node())?;
    Some(node.alive && incarnation(domain, owner).is_some())
}

fn key_object(domain: &DomainStatus, key: &LockFacts) -> Value {
    let value = match key.seen.value() {
        Held::Unlocked => "unlocked",
        Held::Owner(_) => "owner",
        Held::Module => "module",
    };
    let (creator, incarnation) = key.creator;
    let waiting: Vec<Value> = key.waiting.iter().map(|owner| owner_object(domain, *owner)).collect();
    json!({
        "key": key.name,
        "resource": resource(&key.resource),
        "value": value,
        "owner": key.seen.owner().map(|owner| owner_object(domain, owner)),
        "frozen": key.seen.is_frozen(),
        "damaged": key.seen.is_damaged(),
        "died_with_it": key.dead.map(|dead| owner_object(domain, dead)),
        "creator": json!({ "node": creator.0, "incarnation": incarnation.0 }),
        "users": key.users.iter().map(|user| user.0).collect::<Vec<_>>(),
        "waiting": waiting,
    })
}

fn owner_object(domain: &DomainStatus, owner: OwnerId) -> Value {
    let member = incarnation(domain, owner).and_then(|node| node.member.as_ref());
    json!({
        "node": owner.node().0,
        "incarnation": owner.incarnation().0,
        "thread": (!owner.is_users()).then_some(owner.number()),
        "user": owner.is_users().then_some(owner.number()),
        "role": member.map(|member| member.role.word()),
        "label": member.map(|member| member.label.clone()),
        "alive": lives(domain, owner),
    })
}

fn resource(resource: &Resource) -> Value {
    match *resource {
        Resource::Unnamed => Value::Null,
        Resource::Memory { start, end } => json!({ "kind": "memory", "start": start, "end": end }),
        Resource::Region { node, incarnation, number, bytes } => {
            json!({ "kind": "region", "node": node.0, "incarnation": incarnation.0, "number": number, "bytes": bytes })
        }
        Resource::Device(number) => json!({ "kind": "device", "number": number }),
        Resource::Id(number) => json!({ "kind": "id", "number": number }),
        _ => json!({ "kind": resource.to_string() }),
    }
}
