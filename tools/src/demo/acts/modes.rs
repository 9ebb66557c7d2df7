//! A message goes as it is asked for, or as a policy decides.

use super::super::script::{LONGEST, answer, order};
use super::{FIRST, Stage, patience, unlike};
use crate::exit::Failure;
use doorbell::mode::{Fabric, ModeRequest, Thresholds};
use doorbell::{Error, Match, Node, Space};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

/// Bytes of each message that fills a lane.
const BYTES: usize = 1024;
/// More of them than any lane holds.
const MOST: u64 = 100_000;
/// What the node takes for whose messages nobody asks: little, so that its lane fills.
const POOL: usize = 64 << 10;

pub fn play(stage: &mut Stage<'_>) -> Result<(), Failure> {
    by_name(stage)?;
    by_policy(stage)
}

/// The host asks for modes by name.
fn by_name(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("A message goes as it is asked for");
    let region = stage.done(stage.cast.node.region::<u8>(LONGEST))?;
    stage.say.line("node 0 sends 64 KiB from a region to node 1, which sends them back: each time it asks for a mode");
    for words in ["shm/transfer", "shm/both", "shm/get"] {
        // SAFETY: nobody has a key, nobody writes, and the message is gone when `send_as` returns.
        let message = unsafe { region.as_slice() };
        let peer = stage.done(stage.cast.node.peer(FIRST))?;
        let receipt = stage.done(peer.send_as(order::PING, message, request(words)?))?;
        let (back, _) = stage.recv(Match::from(FIRST).tag(answer::PONG))?;
        // Which of the two ends moves it is not up to this one, and the receipt tells.
        if back.len != LONGEST || !receipt.requested.allows(receipt.decided) {
            return Err(unlike(format_args!("{receipt}, and {} bytes came back", back.len)));
        }
        stage.say.line(receipt);
    }
    match stage.cast.node.send_as(FIRST, order::PING, &[], request("udp")?) {
        Err(error @ Error::Invalid { .. }) => stage.say.line(format_args!("asked for udp  =>  error: {error}")),
        Err(error) => return Err(stage.cast.explain(error)),
        Ok(receipt) => return Err(unlike(format_args!("there is no network: {receipt}"))),
    }
    stage.say.word("mode", "a fabric, one of its links, and a protocol: through the lane, put, get, or both at once");
    Ok(())
}

/// Two nodes with shared memory and a network between them, and one of them has a policy.
fn by_policy(stage: &Stage<'_>) -> Result<(), Failure> {
    let (progress, wait, space) = (stage.cast.progress, stage.cast.wait, Space::heap());
    let builder = || Node::builder("modes").space(space.clone()).max_nodes(2).progress(progress).wait(wait);
    let home = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let reader = match builder().pool_bytes(POOL).listen(home).join() {
        Ok(reader) => reader,
        Err(error) => {
            stage.say.line(format_args!("a policy that leaves a full lane for a network is not to be seen here: {error}"));
            return Ok(());
        }
    };
    let there = reader.address().ok_or_else(|| unlike("a node that listens has no address"))?;
    let writer = stage.done(builder().policy(Thresholds::new()).listen(home).connect(there).join())?;
    stage.done(writer.wait_for(2, patience()))?;
    stage.say.line("");
    stage.say.line(
        "two nodes of this process, with shared memory and UDP between them; one has a policy, and the other reads nothing:",
    );
    let peer = stage.done(writer.peer(reader.id()))?;
    let mut sent = 0;
    let refused = loop {
        let receipt = stage.done(peer.send_as(sent, &[7; BYTES], ModeRequest::fabric(Fabric::Shm)))?;
        sent += 1;
        if receipt.used.fabric != Fabric::Shm {
            break receipt;
        }
        if sent == 1 {
            stage.say.line(format_args!("the first: {receipt}"));
        }
        if sent == MOST {
            return Err(unlike(format_args!("{sent} messages found room, and the last went so: {receipt}")));
        }
    };
    stage.say.line(format_args!("number {sent}: {refused}"));
    let mut into = [0; BYTES];
    for expected in 0..sent {
        let came = stage.done(reader.recv_by(Match::any(), &mut into, Instant::now() + super::PATIENCE))?;
        if came.tag != expected {
            return Err(unlike(format_args!("message {} came, and {expected} was to come", came.tag)));
        }
    }
    stage.say.line(format_args!("the other reads all {sent} in the order in which they were sent, whichever way they took"));
    stage.say.word(
        "policy",
        "decides for each message, from what is seen of the links, whether it goes as asked; its receipt says why",
    );
    stage.done(writer.leave())?;
    stage.done(reader.leave())
}

fn request(words: &str) -> Result<ModeRequest, Failure> {
    words.parse().map_err(unlike)
}
