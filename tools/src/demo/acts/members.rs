//! Members: they attach, want one lock, die, sum as a team, and leave.

use super::{FIRST, SECOND, Stage, patience, told, unlike};
use crate::demo::{Contest, FRAME, Order, Overlap, SUMMED, TEAM, TURNS, now, tag};
use crate::environment::{directory, space};
use crate::exit::Failure;
use crate::text::{Table, bytes, counted};
use doorbell::{Error, Event, Incarnation, Lock, Match, NodeId, OwnerId, Resource, Value};
use doorbell_shm::domain::files;
use std::thread;
use std::time::Duration;

/// All nodes attach, and at the end all nodes leave.
pub fn attach(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("A host and two accelerators attach");
    stage.cast.start(FIRST)?;
    stage.cast.start(SECOND)?;
    let members = stage.done(stage.cast.node.wait_for(3, patience()))?;
    let mut table = Table::new(&[">node", "role", ">process", ">incarnation"]);
    for member in &members {
        table.row([member.id.to_string(), member.role.to_string(), member.pid.to_string(), member.incarnation.to_string()]);
    }
    stage.say.table(&table);
    stage.line("");
    let mut table = Table::new(&[&format!("in {}", directory().display()), ">bytes", ""]);
    for (name, size) in files(&space(), &stage.cast.domain).unwrap_or_default() {
        let purpose = match name.rsplit('.').next() {
            Some(end) if end.contains("-from-") => "lanes from one node to one other: the sender writes only here",
            Some("inbox") => "the doorbell, and which nodes have lanes to here",
            Some("board") => "metrics: the other nodes read them here",
            Some("lock") => "held for moments while nodes join and leave",
            _ => "the directory: the nodes of the domain",
        };
        table.row([name, bytes(size), purpose.into()]);
    }
    stage.say.table(&table);
    stage.say.word("domain");
    stage.say.word("lane");
    Ok(())
}

pub fn leave(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("All nodes leave");
    stage.note();
    stage.order(FIRST, &Order::Leave)?;
    stage.cast.part_with(FIRST)?;
    stage.cast.leave()
}

/// One lock that all nodes want, and its next owner when its owner dies.
pub fn locks(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("A lock gives one node at a time the use of shared data");
    let region = stage.done(stage.cast.node.region::<u64>(2))?;
    let key = stage.done(Lock::init(&stage.cast.node, FRAME, Resource::Id(1)))?;
    let value = stage.done(key.get())?;
    stage.line(format_args!("node 0: Lock::init(\"{FRAME}\")  =>  a lock in the lock registry of the domain, {value}"));
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
    stage.say.word("lock registry");
    stage.line("the time of a lock, and its fairness: doorbell lock --pin 0,1");
    Ok(())
}

/// Lets a node lock the lock and keep it. Returns the owner.
fn hold(stage: &mut Stage<'_>, node: NodeId) -> Result<OwnerId, Failure> {
    stage.ask::<()>(node, &Order::Hold)?;
    match holder(stage)? {
        Value::Owner(owner) if owner.node() == node => Ok(owner),
        value => Err(unlike(format_args!("node {node} locked the lock, and it is {value}"))),
    }
}

fn holder(stage: &Stage<'_>) -> Result<Value, Failure> {
    stage.done(Lock::find(&stage.cast.node, FRAME).and_then(|key| key.get()))
}

/// The owner of the lock is dead. The next owner is told so, and the one after that is not.
fn inherit(stage: &mut Stage<'_>, dead: OwnerId) -> Result<(), Failure> {
    stage.say.title("The lock of a dead node goes to the next owner, which is told so");
    let value = holder(stage)?;
    stage.line(format_args!("node 0: key.get()   =>  {value}: it is still locked"));
    let heir: String = stage.ask(FIRST, &Order::Inherit)?;
    if heir != dead.to_string() {
        return Err(unlike(format_args!("node 1 inherited the lock from '{heir}', and {dead} died with it")));
    }
    stage.line(format_args!("node 1: key.lock()  =>  its own; inherited_from() says {heir}"));
    stage.line("node 1 repairs the data that the lock protects, and calls mark_repaired(): until then every owner would be told");
    let key = stage.done(Lock::find(&stage.cast.node, FRAME))?;
    let guard = stage.done(key.lock_until(patience()))?;
    if let Some(dead) = guard.inherited_from() {
        return Err(unlike(format_args!("the lock was repaired, and node 0 inherited it from {dead}")));
    }
    stage.done(guard.unlock())?;
    stage.line("node 0: key.lock()  =>  its own; inherited_from() says nothing: the data is sound");
    Ok(())
}

/// A node is killed, and the others get an error with its name. One of them gets its lock, and a new node takes its place.
pub fn death(stage: &mut Stage<'_>) -> Result<(), Failure> {
    let owner = hold(stage, SECOND)?;
    let dead = die(stage)?;
    stage.note();
    inherit(stage, owner)?;
    succeed(stage, dead)
}

/// Kills a node. Returns the incarnation that ended.
fn die(stage: &mut Stage<'_>) -> Result<Incarnation, Failure> {
    stage.say.title("A node is killed, and the others get an error that names it");
    let mut buf = [0; 64];
    let peer = stage.done(stage.cast.node.peer(SECOND))?;
    stage.order(FIRST, &Order::Watch(SECOND.0))?;
    stage.order(SECOND, &Order::Farewell)?;
    // Time for node 2 to send, and for node 1 to begin to watch.
    thread::sleep(Duration::from_millis(60));
    let killed = now();
    stage.cast.kill(SECOND);
    stage.line(
        "node 2 gets SIGKILL while nodes 0 and 1 have something to do with it, and while it holds the lock of the last act",
    );
    let since = |told_at: u64| told(Duration::from_nanos(told_at.saturating_sub(killed)));
    let envelope = stage.done(peer.recv_until(Match::any(), &mut buf, patience()))?;
    let words = String::from_utf8_lossy(&buf[..envelope.len]).into_owned();
    stage
        .line(format_args!("node 0: recv(from(2))  =>  {words}: messages that were sent before a death arrive before the error"));
    let (error, life) = match peer.recv_until(Match::any(), &mut buf, patience()) {
        Err(error @ Error::PeerDied { incarnation, .. }) => (error, incarnation),
        Err(error) => return Err(stage.cast.explain(error)),
        Ok(_) => return Err(unlike("a dead node sent a message")),
    };
    stage.line(format_args!("node 0: recv(from(2))  =>  error, {} after the kill: {error}", since(now())));
    let at = stage.answer(FIRST)?;
    stage.line(format_args!("node 1: event()        =>  the same, {} after the kill", since(at)));
    Ok(life)
}

fn succeed(stage: &mut Stage<'_>, before: Incarnation) -> Result<(), Failure> {
    stage.say.title("A new node takes its place");
    let left: Vec<(String, u64)> = files(&space(), &stage.cast.domain).unwrap_or_default();
    let dead = format!(".{}.{SECOND}.", stage.cast.domain);
    let left: u64 = left.iter().filter(|(name, _)| name.contains(&dead)).map(|(_, size)| size).sum();
    stage.line(format_args!("the dead node left {} of segments; the next node that joins removes them", bytes(left)));
    stage.cast.start(SECOND)?;
    let life = loop {
        match stage.done(stage.cast.node.event(patience()))? {
            Event::Joined { node: SECOND, incarnation } if incarnation != before => break incarnation,
            _ => {}
        }
    };
    stage.line(format_args!("a new node 2 has joined: incarnation {life}, where the dead one was incarnation {before}"));
    stage.send(SECOND, tag::PING, b"are you there?")?;
    let (envelope, _) = stage.recv(Match::from(SECOND).tag(tag::PONG))?;
    if envelope.incarnation != life {
        return Err(unlike(format_args!("incarnation {} answered", envelope.incarnation)));
    }
    stage.note();
    stage.line("it answers, and is never taken for the dead node");
    stage.order(SECOND, &Order::Leave)?;
    stage.cast.part_with(SECOND)?;
    loop {
        if let event @ Event::Left { node: SECOND, .. } = stage.done(stage.cast.node.event(patience()))? {
            stage.line(format_args!("then it leaves normally, which is another event: {event}"));
            return Ok(());
        }
    }
}

const THIRD: NodeId = NodeId(3);

/// Four nodes sum a vector, and compute meanwhile.
pub fn team(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("Four nodes sum a vector, and compute meanwhile");
    stage.cast.start(SECOND)?;
    stage.cast.start(THIRD)?;
    let others = [FIRST, SECOND, THIRD];
    for node in others {
        stage.order(node, &Order::Sum)?;
    }
    let team: Vec<u16> = TEAM.iter().map(|node| node.0).collect();
    stage.line(format_args!("all four: Team::builder(&node).members({team:?}).form(): they share a few channels from now on"));
    stage.line(format_args!(
        "team.start_allreduce(Sum, {} of numbers); compute; wait, {} times. In each round another node computes {} times as much:",
        bytes((SUMMED * size_of::<f64>()) as u64),
        Overlap::ROUNDS,
        Overlap::MORE
    ));
    let own = stage.done(Overlap::play(&stage.cast.node))?;
    let all = stage.gather(own, &others)?;
    let mut table = Table::new(&[">node", ">computing alone", ">sum, then computing", ">sum meanwhile", ">hidden"]);
    for (node, overlap @ Overlap { computing, after, meanwhile, .. }) in &all {
        table.row([node.to_string()].into_iter().chain([*computing, *after, *meanwhile, overlap.hidden()].map(told)));
    }
    stage.say.table(&table);
    if let Some((node, _)) = all.iter().find(|(_, overlap)| !overlap.is_right) {
        return Err(unlike(format_args!("a sum of node {node} differs from a plain computation")));
    }
    stage.line("each node has the sum of all four vectors, and every one of its numbers is right");
    let sum = |time: fn(&Overlap) -> Duration| all.iter().map(|(_, overlap)| time(overlap)).sum::<Duration>().as_secs_f64();
    let percent = 100.0 * sum(Overlap::hidden) / sum(Overlap::sum).max(f64::MIN_POSITIVE);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let why = if processors < TEAM.len() { "; four nodes share them, so little of that time is waiting" } else { "" };
    stage.line(format_args!(
        "{percent:.0} % of the time of the sums was hidden behind the computing, on {}{why}",
        counted(processors, "processor")
    ));
    stage.say.word("channel");
    stage.line("the time of collectives, beside the bare barrier: doorbell collective --nodes 4 --floor");
    for node in [SECOND, THIRD] {
        stage.order(node, &Order::Leave)?;
        stage.cast.part_with(node)?;
    }
    Ok(())
}
