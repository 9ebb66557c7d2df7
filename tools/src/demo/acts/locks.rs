//! One lock that all nodes want, and its next owner when its owner dies.

use super::{FIRST, SECOND, Stage, patience, told, unlike};
use crate::demo::{Contest, FRAME, Order, TURNS};
use crate::exit::Failure;
use crate::text::Table;
use doorbell::LockKey;
use doorbell::{NodeId, OwnerId, Resource, Value};

pub fn play(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("A lock gives one node at a time the use of shared data");
    let region = stage.done(stage.cast.node.region::<u64>(2))?;
    let key = stage.done(LockKey::init(&stage.cast.node, FRAME, Resource::Id(1)))?;
    let value = stage.done(key.get())?;
    stage.line(format_args!("node 0: LockKey::init(\"{FRAME}\")  =>  a lock in the lock registry of the domain, {value}"));
    for node in [FIRST, SECOND] {
        stage.order(node, &Order::Contend(region.key().to_bytes().into()))?;
    }
    stage.line(format_args!("all three nodes lock it {TURNS} times, and raise two counters while they hold it:"));
    let own = stage.done(Contest::play(&stage.cast.node, &key, region.key()))?;
    let contests = stage.gather(own, &[FIRST, SECOND])?;
    let mut table = Table::new(&[">node", ">locked it", ">had to wait", ">longest wait"]);
    for (node, Contest { waited, longest }) in &contests {
        table.row([node.to_string(), TURNS.to_string(), waited.to_string(), told(*longest)]);
    }
    stage.say.table(&table);
    let (mut counts, all) = ([0; 2], TURNS * contests.len() as u64);
    stage.done(region.read(0, &mut counts))?;
    if counts != [all; 2] {
        return Err(unlike(format_args!("the counters say {counts:?}, not {all}: two nodes held the lock together")));
    }
    stage.line(format_args!("both counters are {all}: no two nodes ever held the lock together"));
    stage.say.word("lock registry", "locks by name; each holds its owner or none, and is locked by compare-and-swap");
    stage.line("the time of a lock, and its fairness: doorbell lock --pin 0,1");
    Ok(())
}

/// Lets a node lock the lock and keep it. Returns the owner.
pub fn hold(stage: &mut Stage<'_>, node: NodeId) -> Result<OwnerId, Failure> {
    stage.ask::<()>(node, &Order::Hold)?;
    match holder(stage)? {
        Value::Owner(owner) if owner.node() == node => Ok(owner),
        value => Err(unlike(format_args!("node {node} locked the lock, and it is {value}"))),
    }
}

fn holder(stage: &Stage<'_>) -> Result<Value, Failure> {
    stage.done(LockKey::find(&stage.cast.node, FRAME).and_then(|key| key.get()))
}

/// The owner of the lock is dead. The next owner is told so, and the one after that is not.
pub fn inherit(stage: &mut Stage<'_>, dead: OwnerId) -> Result<(), Failure> {
    stage.say.title("The lock of a dead node goes to the next owner, which is told so");
    let value = holder(stage)?;
    stage.line(format_args!("node 0: key.get()   =>  {value}: it is still locked"));
    let heir: String = stage.ask(FIRST, &Order::Inherit)?;
    if heir != dead.to_string() {
        return Err(unlike(format_args!("node 1 inherited the lock from '{heir}', and {dead} died with it")));
    }
    stage.line(format_args!("node 1: key.lock()  =>  its own; inherited_from() says {heir}"));
    stage.line("node 1 repairs the data that the lock protects, and calls mark_repaired(): until then every owner would be told");
    let key = stage.done(LockKey::find(&stage.cast.node, FRAME))?;
    let guard = stage.done(key.lock_by(patience()))?;
    if let Some(dead) = guard.inherited_from() {
        return Err(unlike(format_args!("the lock was repaired, and node 0 inherited it from {dead}")));
    }
    stage.done(guard.unlock())?;
    stage.line("node 0: key.lock()  =>  its own; inherited_from() says nothing: the data is sound");
    Ok(())
}
