//! `doorbell demo`: the story of the stack, told by real processes.
//!
//! This process is the host and the narrator; a [`cast`] of [`accelerator`]s does what the [`script`] says, in a few [`acts`]. A
//! [`trace`] of it can be kept.

pub mod accelerator;
mod acts;
mod cast;
mod say;
mod script;
mod trace;

use crate::environment::{progress, wait};
use crate::exit::Failure;
use crate::processes::take_name;
use crate::text::{DIRECTORY, counted};
use cast::Cast;
use doorbell::{Progress, Space, Wait};
use doorbell_shm::domain::files;
use say::Say;
use std::path::PathBuf;
use std::time::Instant;
use trace::Trace;

/// Watch a host and two accelerators exchange messages and memory, one of them die, and another take its place
///
/// Real processes, in a domain of their own, for a few seconds. Nothing is left behind.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  doorbell demo                      the threads that wait carry the messages
  doorbell demo --progress poller    a thread of each node carries them all: a DMA engine made of software
  doorbell demo --wait park          whoever waits sleeps at once
  doorbell demo --trace out.json     a timeline of who moved what, for https://ui.perfetto.dev

The timeline is in the Chrome trace event format: a row for each node, a track for each of its threads, and a slice for each
chunk of a long message, with its offset and the transfer it belongs to. It is made of the nodes' flight recorders, as
`doorbell autopsy` shows them, which hold the last 512 things: the first chunks of a long message may be missing. The tracks
`ends of …` show how far the two ends of a message have come, until they meet.")]
pub struct DemoArgs {
    /// Who turns the engine of each node: inline, poller or adaptive [default: adaptive]
    #[arg(long, value_name = "WHO")]
    progress: Option<Progress>,
    /// How threads wait: auto, spin, yield or park [default: auto]
    #[arg(long, value_name = "HOW")]
    wait: Option<Wait>,
    /// Write a timeline to this file
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// Plays.
pub fn run(args: &DemoArgs) -> Result<(), Failure> {
    take_name();
    let start = Instant::now();
    let mut say = Say::new();
    let mut trace = args.trace.as_deref().map(Trace::create).transpose()?;
    let mut cast = Cast::gather(progress(args.progress)?, wait(args.wait)?)?;
    let played = acts::play(&mut cast, &mut say, trace.as_mut());
    let domain = cast.domain.clone();
    // Whatever happened, it is over now: processes, segments, guard.
    drop(cast);
    // A demo that went wrong has a timeline, too.
    let written = trace.map(|trace| trace.write(&domain)).transpose();
    played?;
    if let (Some(path), Some(count)) = (&args.trace, written?) {
        say.line(format_args!("{} of it in {}: open it in https://ui.perfetto.dev", counted(count, "event"), path.display()));
    }
    close(&say, &domain, start)
}

/// Looks whether anything is left, and says so.
fn close(say: &Say, domain: &str, start: Instant) -> Result<(), Failure> {
    let left = files(&Space::posix(), domain)
        .map_err(|error| Failure::failed(format!("cannot look into {DIRECTORY}: {error}"), "see `doorbell info`"))?;
    if !left.is_empty() {
        let names: Vec<_> = left.into_iter().map(|(name, _)| name).collect();
        let what = format!("{} left in {DIRECTORY}: {}", counted(names.len(), "segment"), names.join(", "));
        return Err(Failure::failed(what, format!("`doorbell clean {domain}` removes what dead nodes left")));
    }
    say.line(format_args!("Left in {DIRECTORY} of all this: nothing. It took {:.1} s.", start.elapsed().as_secs_f64()));
    Ok(())
}
