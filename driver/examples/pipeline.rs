//! A pipeline: a host hands frames to a chain of accelerators, each does its part, and the host gets the frames back.
//!
//! ```text
//! cargo build --release -p doorbell --example pipeline
//! cargo run --release -- run -n 3 -- target/release/examples/pipeline 500
//! ```
//!
//! Frames are loans. Each stage reads where the one before has written, and writes where the next one reads. So handing over a
//! frame of a mebibyte costs as much as one of a byte. The host keeps some frames on their way at once, so that all stages are
//! busy.

use doorbell::{Error, Match, Node, NodeId};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The numbers in a frame: 1 MiB.
const FRAME: usize = 1 << 18;
/// The frames on their way at once.
const WINDOW: usize = 4;

const WORK: u64 = 1;
const END: u64 = 2;

fn main() -> ExitCode {
    match run() {
        Ok(told) => {
            println!("{told}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("pipeline: error: {error}");
            ExitCode::from(if matches!(error, Error::Invalid { .. }) { 2 } else { 1 })
        }
    }
}

fn run() -> Result<String, Error> {
    let frames = match std::env::args().nth(1) {
        None => 100,
        Some(text) => {
            text.parse().map_err(|_| Error::Invalid { what: format!("the number of frames must be a number, not '{text}'") })?
        }
    };
    let count = std::env::var("DOORBELL_NODES").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let node = Node::from_env()?;
    let members = node.wait_for(count, Instant::now() + Duration::from_secs(10))?;
    let ids: Vec<NodeId> = members.iter().map(|member| member.id).collect();
    let me = ids.iter().position(|id| *id == node.id()).unwrap_or_default();
    let (before, next) = (ids[(me + ids.len() - 1) % ids.len()], ids[(me + 1) % ids.len()]);
    if me == 0 { feed(&node, before, next, ids.len() - 1, frames) } else { stage(&node, before, next) }
}

/// The host: gives frames to the first stage and takes them from the last.
fn feed(node: &Node, last: NodeId, first: NodeId, stages: usize, frames: usize) -> Result<String, Error> {
    let begun = Instant::now();
    let (mut given, mut back) = (0, 0);
    while back < frames {
        while given < frames.min(back + WINDOW) {
            let mut frame = node.loan_slice::<f32>(FRAME)?;
            frame.fill(given as f32);
            frame.send(first, WORK)?;
            given += 1;
        }
        let frame = node.take::<[f32]>(Match::from(last).tag(WORK))?;
        // Each stage added one.
        let mut ends = [0.0; 1];
        frame.copy_to(&mut ends);
        let expected = (back + stages) as f32;
        if frame.len() != FRAME || ends[0] != expected {
            let what =
                format!("frame {back} came back with {} in {} numbers, and not {expected} in {FRAME}", ends[0], frame.len());
            return Err(Error::Invalid { what });
        }
        back += 1;
    }
    let time = begun.elapsed();
    node.send(first, END, &[])?;
    let rate = (frames * stages) as f64 / time.as_secs_f64().max(1e-9);
    Ok(format!("{frames} frames of 1 MiB through {stages} stages in {time:.1?}: {rate:.0} MiB/s were worked on"))
}

/// An accelerator: takes frames from the stage before it, and gives its own to the next.
fn stage(node: &Node, before: NodeId, next: NodeId) -> Result<String, Error> {
    let mut done = 0;
    loop {
        let input = node.take_bytes(Match::from(before))?;
        if input.envelope().tag == END {
            // The last stage sends to the host, which knows when all frames are back.
            if next != NodeId(0) {
                node.send(next, END, &[])?;
            }
            return Ok(format!("node {}: {done} frames", node.id()));
        }
        let mut output = node.loan_slice::<f32>(input.len() / size_of::<f32>())?;
        input.payload().copy_to(bytes_of(&mut output));
        output.iter_mut().for_each(|number| *number += 1.0);
        // The stage before may lend its memory again.
        drop(input);
        output.send(next, WORK)?;
        done += 1;
    }
}

fn bytes_of(numbers: &mut [f32]) -> &mut [u8] {
    doorbell::zerocopy::IntoBytes::as_mut_bytes(numbers)
}
