//! `doorbell demo`: the story of the stack, told by real processes.
//!
//! This process is the host and the narrator; a [`cast`] of [`accelerator`]s does what the [`script`] says, in a few [`acts`].

pub mod accelerator;
mod acts;
mod cast;
mod say;
mod script;

use crate::environment::{progress, wait};
use crate::exit::Failure;
use crate::processes::take_name;
use crate::segments::{DIRECTORY, files};
use crate::text::counted;
use cast::Cast;
use doorbell::{Progress, Wait};
use say::Say;
use std::time::Instant;

/// Watch a host and two accelerators exchange messages, one of them die, and another take its place
///
/// Real processes, in a domain of their own, for a few seconds. Nothing is left behind.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  doorbell demo                      the threads that wait carry the messages
  doorbell demo --progress poller    a thread of each node carries them all: a DMA engine made of software
  doorbell demo --wait park          whoever waits sleeps at once")]
pub struct DemoArgs {
    /// Who turns the engine of each node: inline, poller or adaptive [default: adaptive]
    #[arg(long, value_name = "WHO")]
    progress: Option<Progress>,
    /// How threads wait: auto, spin, yield or park [default: auto]
    #[arg(long, value_name = "HOW")]
    wait: Option<Wait>,
}

/// Plays.
pub fn run(args: &DemoArgs) -> Result<(), Failure> {
    take_name();
    let start = Instant::now();
    let mut say = Say::new();
    let mut cast = Cast::gather(progress(args.progress)?, wait(args.wait)?)?;
    let played = acts::play(&mut cast, &mut say);
    let domain = cast.domain.clone();
    // Whatever happened, it is over now: processes, segments, guard.
    drop(cast);
    played?;
    close(&say, &domain, start)
}

/// Looks whether anything is left, and says so.
fn close(say: &Say, domain: &str, start: Instant) -> Result<(), Failure> {
    let left = files(domain)
        .map_err(|error| Failure::failed(format!("cannot look into {DIRECTORY}: {error}"), "see `doorbell info`"))?;
    if !left.is_empty() {
        let names: Vec<_> = left.into_iter().map(|(name, _)| name).collect();
        let what = format!("{} left in {DIRECTORY}: {}", counted(names.len(), "segment"), names.join(", "));
        return Err(Failure::failed(what, format!("`doorbell clean {domain}` removes what dead nodes left")));
    }
    say.line(format_args!("Left in {DIRECTORY} of all this: nothing. It took {:.1} s.", start.elapsed().as_secs_f64()));
    Ok(())
}
