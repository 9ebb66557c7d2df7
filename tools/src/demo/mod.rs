//! `doorbell demo`: the story of the stack, told by real processes.
//!
//! This process is the host and the narrator. A [`cast`] of [`accelerator`]s does what the [`script`] says, in a few [`acts`]. A [`trace`] can be kept.

pub mod accelerator;
mod acts;
mod cast;
mod offers;
mod say;
mod script;
pub mod trace;

pub use cast::{Cast, PATIENCE};
pub use say::Say;
pub use script::{
    BULK_BYTES, Contest, FLOOD_BYTES, FRAME, LATE, LONGEST, Moves, Order, Overlap, PAUSE_MS, Report, SUMMED, TEAM, TURNS,
    check_bulk, decode, encode, fill_bulk, now, processor_time, tag,
};
pub use trace::Trace;

use crate::environment::{PROGRESS, WAIT, chosen, directory, space};
use crate::exit::{Explain, Failure};
use crate::processes::take_name;
use crate::text::counted;
use doorbell::{Progress, Wait};
use doorbell_shm::domain::files;
use std::path::PathBuf;
use std::time::Instant;

/// Watch a host and two accelerators exchange messages and memory; one of them dies, and a new one takes its place
///
/// Real processes, in a domain of their own, for a few seconds. Nothing is left behind.
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../../help/demo.txt"))]
pub struct DemoArgs {
    /// Which thread turns the engine of each node: inline, poller or adaptive [default: adaptive]
    #[arg(long, value_name = "WHICH")]
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
    let mut cast = Cast::gather(chosen(args.progress, PROGRESS)?, chosen(args.wait, WAIT)?)?;
    let played = acts::play(&mut cast, &mut say, trace.as_mut());
    let domain = cast.domain.clone();
    // Ends all processes, segments and the guard, also after a failure.
    drop(cast);
    // Also after a failure.
    let written = trace.map(|trace| trace.write(&domain)).transpose();
    played?;
    if let (Some(path), Some(count)) = (&args.trace, written?) {
        say.line(format_args!("{} of it in {}: open it in https://ui.perfetto.dev", counted(count, "event"), path.display()));
    }
    close(&say, &domain, start)
}

/// Checks that no segment is left, and says so.
fn close(say: &Say, domain: &str, start: Instant) -> Result<(), Failure> {
    let directory = directory().display();
    let left = files(&space(), domain).or_failed(format_args!("cannot look into {directory}"), "see `doorbell info`")?;
    if !left.is_empty() {
        let names: Vec<_> = left.into_iter().map(|(name, _)| name).collect();
        let what = format!("{} left in {directory}: {}", counted(names.len(), "segment"), names.join(", "));
        return Err(Failure::failed(what, format!("`doorbell clean {domain}` removes what dead nodes left")));
    }
    say.line(format_args!("Nothing of all this is left in {directory}. It took {:.1} s.", start.elapsed().as_secs_f64()));
    Ok(())
}
