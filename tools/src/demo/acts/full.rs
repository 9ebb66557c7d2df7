//! A lane is full, and nothing is lost.

use super::{FIRST, Stage, patience, told, unlike};
use crate::demo::{FLOOD_BYTES, Order, tag};
use crate::exit::Failure;
use doorbell::Error;
use std::time::Instant;

const STALL_MS: u64 = 120;
/// More messages than any lane and pool of the demo hold.
const MOST: u64 = 100_000;

pub fn play(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("Full is an answer");
    stage.order(FIRST, &Order::Stall(STALL_MS))?;
    stage.line(format_args!("node 1 reads nothing for {STALL_MS} ms; node 0 sends it 1 KiB again and again with try_send"));
    let message = [7; FLOOD_BYTES];
    let mut sent = 0;
    let full = loop {
        match stage.cast.node.try_send(FIRST, tag::FLOOD, &message) {
            Ok(()) if sent < MOST => sent += 1,
            Ok(()) => return Err(unlike(format_args!("{sent} messages found room"))),
            Err(error @ Error::Full { .. }) => break error,
            Err(error) => return Err(stage.cast.explain(error)),
        }
    };
    stage.line(format_args!("{sent} found room, then: {full}"));
    let start = Instant::now();
    stage.done(stage.cast.node.send_by(FIRST, tag::FLOOD, &message, patience()))?;
    stage.line(format_args!("send_by waits for room instead: {}", told(start.elapsed())));
    stage.send(FIRST, tag::FLOOD_ENDS, &[])?;
    let (sent, counted) = (sent + 2, stage.answer::<u64>(FIRST)?);
    if counted != sent {
        return Err(unlike(format_args!("node 1 counted {counted} messages of {sent}")));
    }
    stage.line(format_args!("node 1 counts {counted} messages, with one to end them: none was lost"));
    Ok(())
}
