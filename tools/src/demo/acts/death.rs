//! A node is killed, and the others get an error with its name. One of them gets its lock, and a new node takes its place.

use super::{FIRST, SECOND, Stage, locks, patience, told, unlike};
use crate::demo::{Order, now, tag};
use crate::exit::Failure;
use crate::text::bytes;
use doorbell::{Error, Event, Incarnation, Match, Space};
use doorbell_shm::domain::files;
use std::thread;
use std::time::Duration;

pub fn play(stage: &mut Stage<'_>) -> Result<(), Failure> {
    let owner = locks::hold(stage, SECOND)?;
    let dead = die(stage)?;
    stage.note();
    locks::inherit(stage, owner)?;
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
    let envelope = stage.done(peer.recv_by(Match::any(), &mut buf, patience()))?;
    let words = String::from_utf8_lossy(&buf[..envelope.len]).into_owned();
    stage
        .line(format_args!("node 0: recv(from(2))  =>  {words}: messages that were sent before a death arrive before the error"));
    let (error, life) = match peer.recv_by(Match::any(), &mut buf, patience()) {
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
    let left: Vec<(String, u64)> = files(&Space::posix(), &stage.cast.domain).unwrap_or_default();
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
