//! A message takes the requested mode, or the mode that a policy chooses.

use super::{FIRST, Stage, patience, unlike};
use crate::demo::{LONGEST, tag};
use crate::exit::Failure;
use doorbell::mode::{Fabric, ModeRequest, Thresholds};
use doorbell::{Error, Match, Node, Space};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

/// Bytes of each message that fills a lane.
const BYTES: usize = 1024;
/// More messages than any lane holds.
const MOST: u64 = 100_000;
/// The pool of the node that reads nothing: small, so that its lane fills.
const POOL: usize = 64 << 10;

pub fn play(stage: &mut Stage<'_>) -> Result<(), Failure> {
    by_name(stage)?;
    by_policy(stage)
}

/// The host requests modes by name.
fn by_name(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("A message takes the requested mode");
    let region = stage.done(stage.cast.node.region::<u8>(LONGEST))?;
    stage.line("node 0 sends 64 KiB from a region to node 1, which sends them back: each time it requests a mode");
    for words in ["shm/transfer", "shm/both", "shm/get"] {
        // SAFETY: no other node has a key, no thread writes, and the message is gone when `send_as` returns.
        let message = unsafe { region.as_slice() };
        let peer = stage.done(stage.cast.node.peer(FIRST))?;
        let receipt = stage.done(peer.send_as(tag::PING, message, request(words)?))?;
        let (back, _) = stage.recv(Match::from(FIRST).tag(tag::PONG))?;
        // The receiver may choose the end that moves the message, and the receipt tells which one did.
        if back.len != LONGEST || !receipt.requested.allows(receipt.decided) {
            return Err(unlike(format_args!("{receipt}, and {} bytes came back", back.len)));
        }
        stage.line(receipt);
    }
    match stage.cast.node.send_as(FIRST, tag::PING, &[], request("udp")?) {
        Err(error @ Error::Invalid { .. }) => stage.line(format_args!("asked for udp  =>  error: {error}")),
        Err(error) => return Err(stage.cast.explain(error)),
        Ok(receipt) => return Err(unlike(format_args!("there is no network: {receipt}"))),
    }
    stage.say.word("mode");
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
            stage.line(format_args!("this machine cannot show a policy that leaves a full lane for a network: {error}"));
            return Ok(());
        }
    };
    let there = reader.address().ok_or_else(|| unlike("a node that listens has no address"))?;
    let writer = stage.done(builder().policy(Thresholds::new()).listen(home).connect(there).join())?;
    stage.done(writer.wait_for(2, patience()))?;
    stage.line("");
    stage.line(
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
            stage.line(format_args!("the first: {receipt}"));
        }
        if sent == MOST {
            return Err(unlike(format_args!("{sent} messages found room, and the last receipt is: {receipt}")));
        }
    };
    stage.line(format_args!("number {sent}: {refused}"));
    let mut into = [0; BYTES];
    for expected in 0..sent {
        let came = stage.done(reader.recv_until(Match::any(), &mut into, Instant::now() + super::PATIENCE))?;
        if came.tag != expected {
            return Err(unlike(format_args!("message {} came, and {expected} was expected", came.tag)));
        }
    }
    stage.line(format_args!("the other node reads all {sent} in the order in which they were sent, by either fabric"));
    stage.say.word("policy");
    stage.done(writer.leave())?;
    stage.done(reader.leave())
}

fn request(words: &str) -> Result<ModeRequest, Failure> {
    words.parse().map_err(unlike)
}
