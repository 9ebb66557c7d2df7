//! One key that all nodes want; and what becomes of it when its owner dies.

use super::super::script::{Contest, FRAME, TURNS, answer, order};
use super::{FIRST, HOST, SECOND, Stage, patience, told, unlike};
use crate::exit::Failure;
use crate::text::Table;
use doorbell::LockKey;
use doorbell::{Match, NodeId, OwnerId, Resource, Value};

pub fn play(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("A key says who may use what all of them share");
    let region = stage.done(stage.cast.node.region::<u64>(2))?;
    let key = stage.done(LockKey::init(&stage.cast.node, FRAME, Resource::Id(1)))?;
    let value = stage.done(key.get())?;
    stage.say.line(format_args!("node 0: init_key(\"{FRAME}\")  =>  a key in the lock registry of the domain, {value}"));
    for node in [FIRST, SECOND] {
        stage.send(node, order::CONTEND, &region.key().to_bytes())?;
    }
    stage.say.line(format_args!("all three nodes lock it {TURNS} times, and raise two counters while they have it:"));
    let own = stage.done(Contest::play(&stage.cast.node, &key, region.key()))?;
    let mut contests = vec![(HOST, own)];
    for node in [FIRST, SECOND] {
        let (_, message) = stage.recv(Match::from(node).tag(answer::CONTEST))?;
        let contest =
            serde_json::from_slice(message).map_err(|error| unlike(format_args!("the tale of node {node}: {error}")))?;
        contests.push((node, contest));
    }
    let mut table = Table::new(&[">node", ">locked it", ">had to wait", ">longest wait"]);
    for (node, Contest { waited, longest }) in &contests {
        table.row([node.to_string(), TURNS.to_string(), waited.to_string(), told(*longest)]);
    }
    table.lines().into_iter().for_each(|line| stage.say.line(line));
    let (mut counts, all) = ([0; 2], TURNS * contests.len() as u64);
    stage.done(region.read(0, &mut counts))?;
    if counts != [all; 2] {
        return Err(unlike(format_args!("the counters say {counts:?}, not {all}: somebody was in with another")));
    }
    stage.say.line(format_args!("both counters say {all}: nobody was ever in with another"));
    stage.say.word("lock registry", "keys by name; each is unlocked or says who has it, and is locked by compare-and-swap");
    stage.say.line("how long that takes, and how fair it is: doorbell lock --pin 0,1");
    Ok(())
}

/// A node locks the key and keeps it: as whom.
pub fn hold(stage: &mut Stage<'_>, node: NodeId) -> Result<OwnerId, Failure> {
    stage.send(node, order::HOLD, &[])?;
    stage.recv(Match::from(node).tag(answer::DONE))?;
    match holder(stage)? {
        Value::Owner(owner) if owner.node() == node => Ok(owner),
        value => Err(unlike(format_args!("node {node} locked the key, and it is {value}"))),
    }
}

fn holder(stage: &Stage<'_>) -> Result<Value, Failure> {
    stage.done(LockKey::find(&stage.cast.node, FRAME).and_then(|key| key.get()))
}

/// The owner of the key is dead; the next one is told so, and the one after that is not.
pub fn inherit(stage: &mut Stage<'_>, dead: OwnerId) -> Result<(), Failure> {
    stage.say.title("The key of the dead goes to the next, who is told");
    let value = holder(stage)?;
    stage.say.line(format_args!("node 0: key.get()   =>  {value}: it is still locked"));
    stage.send(FIRST, order::INHERIT, &[])?;
    let (_, message) = stage.recv(Match::from(FIRST).tag(answer::HEIR))?;
    let heir = String::from_utf8_lossy(message).into_owned();
    if heir != dead.to_string() {
        return Err(unlike(format_args!("node 1 inherited the key from '{heir}', and {dead} died with it")));
    }
    stage.say.line(format_args!("node 1: key.lock()  =>  its own; inherited_from() says {heir}"));
    stage.say.line("node 1 looks after what the key guards, and calls mark_repaired(): until then every owner would be told");
    let key = stage.done(LockKey::find(&stage.cast.node, FRAME))?;
    let guard = stage.done(key.lock_by(patience()))?;
    if let Some(dead) = guard.inherited_from() {
        return Err(unlike(format_args!("the key was repaired, and node 0 inherited it from {dead}")));
    }
    stage.done(guard.unlock())?;
    stage.say.line("node 0: key.lock()  =>  its own; inherited_from() says nothing: all is sound");
    Ok(())
}
