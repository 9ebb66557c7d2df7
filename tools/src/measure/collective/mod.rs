//! `doorbell collective`: how long the operations of a team of processes take.
//!
//! The [`worker`]s form a team, and go through the [`Leg`]s in rounds. A round has one section for each way of synchronisation. The findings become a
//! [`report::Row`] for each leg and way.

pub mod report;
pub mod worker;

pub use worker::{Found, Sections, Stats};

use super::Size;
use crate::exit::Failure;
use crate::experiment::{Experiment, Outcome, Place, ProcessArgs, Setting, Trouble, measure};
use crate::processes::EndRequest;
use crate::text::{RowArgs, distinct, print, span, word};
use doorbell::collective::{CHANNELS_MAX, SLOT_MAX, SLOT_MIN, Synchronisation};
use doorbell_benches::Clock;
use report::Row;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Bytes of the longest vector of a process.
const VECTOR_MOST: usize = 256 << 20;
/// Bytes of an element: an f32.
const ELEMENT: usize = size_of::<f32>();

/// Measure how long collectives of a team of processes take, over shared memory
///
/// Each process is a node, and all nodes are one team. In each round every operation is called many times, one call right after the other, in turns
/// with the other way of synchronisation and with the floor, if they are asked for. Vectors are of f32, and reductions add them up.
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../../../help/collective.txt"))]
pub struct CollectiveArgs {
    /// Operations
    #[arg(long, value_enum, value_name = "OP,…", value_delimiter = ',', default_values = ["barrier", "allreduce", "broadcast"])]
    op: Vec<Op>,
    /// Processes in the team
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=64))]
    nodes: u16,
    /// Sizes of the vector that each process contributes, multiples of 4 bytes: 8, 64KiB, 1MB
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', default_value = "8,4KiB,64KiB,1MiB")]
    sizes: Vec<Size>,
    /// Also measure the bare counter barrier, in turns with the team's barrier, which is measured even if --op does not name it
    #[arg(long)]
    floor: bool,
    /// Channels of the team
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=CHANNELS_MAX as i64))]
    channels: u16,
    /// Bytes that each process has in each channel: a multiple of 128, from 4KiB to 64MiB
    #[arg(long, value_name = "SIZE", default_value = "512KiB")]
    slot: Size,
    /// When used channels are synchronised; both: in turns, by two teams
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = When::Background)]
    sync: When,
    /// Also measure allreduces beside which each process computes for this time in the mean: 5us, 2ms
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    compute: Option<Duration>,
    /// Rounds; the median counts
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Calls of a round [default: as many as some 20 ms allow]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    iterations: Option<u64>,
    #[command(flatten)]
    processes: ProcessArgs,
    /// Also show the counts of the team's channels (JSON always has them)
    #[arg(long)]
    stats: bool,
    #[command(flatten)]
    form: RowArgs,
}

/// An operation of a team.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// All processes wait for all others
    Barrier,
    /// The root's vector goes to all processes
    Broadcast,
    /// The sum of all vectors goes to the root
    Reduce,
    /// The sum of all vectors goes to all processes
    Allreduce,
    /// All vectors go to all processes
    Allgather,
    /// A vector goes from each process to each other
    Alltoall,
}

impl Op {
    /// The most vectors of a size that a process holds in one piece.
    fn vectors(self, nodes: usize) -> usize {
        if matches!(self, Op::Allgather | Op::Alltoall) { nodes } else { 1 }
    }
}

/// When channels are synchronised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum When {
    /// After a call has returned
    Background,
    /// Before a call returns
    Foreground,
    /// Both, in turns
    Both,
}

/// One way of synchronisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// After a call has returned.
    Background,
    /// Before a call returns.
    Foreground,
}

impl Way {
    /// The same as a type of the library.
    pub fn sync(self) -> Synchronisation {
        match self {
            Way::Background => Synchronisation::Background,
            Way::Foreground => Synchronisation::Foreground,
        }
    }
}

/// A measurement in rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leg {
    /// The operation.
    pub op: Op,
    /// The bytes that each process contributes; 0 for a barrier.
    pub bytes: usize,
    /// Work before each call.
    pub work: Option<Work>,
}

/// Work of a program between collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// How long the work is meant to take.
    pub ns: u64,
    /// Steps of [`worker::compute`].
    pub steps: u64,
}

/// The measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// How the processes run.
    pub setting: Setting,
    /// Processes in the team.
    pub nodes: usize,
    /// The measurements, one after the other.
    pub legs: Vec<Leg>,
    /// The ways of synchronisation, each with a team of its own, in turns.
    pub ways: Vec<Way>,
    /// Whether the floor of the barrier is measured, too.
    pub floor: bool,
    /// Channels of a team.
    pub channels: usize,
    /// Bytes that a process has in a channel.
    pub slot: usize,
    /// Rounds of each leg.
    pub rounds: usize,
    /// Calls of a round; `None`: as many as fit in a time.
    pub iterations: Option<u64>,
}

impl Experiment for Plan {
    const NAME: &'static str = "collective";
    type Found = Vec<Found>;
    type Row = Row;

    fn setting(&self) -> &Setting {
        &self.setting
    }

    fn processes(&self) -> usize {
        self.nodes
    }

    fn role(&self, _: usize) -> &'static str {
        "one of the processes of the team"
    }

    fn work(self, place: Place) -> Result<Vec<Found>, Trouble> {
        worker::work(&self, &place)
    }

    fn rows(&self, outcome: Outcome<Vec<Found>>) -> Result<Vec<Row>, Failure> {
        Ok((0..self.legs.len()).flat_map(|leg| Row::all(self, leg, &outcome.found, outcome.clock)).collect())
    }
}

/// Measures and prints.
pub fn run(args: &CollectiveArgs) -> Result<(), Failure> {
    let nodes = usize::from(args.nodes);
    check(args, nodes)?;
    let setting = args.processes.setting("collective", nodes, None)?;
    let (request, clock) = (EndRequest::listen()?, Clock::calibrate());
    let ways = match args.sync {
        When::Background => vec![Way::Background],
        When::Foreground => vec![Way::Foreground],
        When::Both => vec![Way::Background, Way::Foreground],
    };
    let plan = Plan {
        setting,
        nodes,
        legs: legs(args),
        ways,
        floor: args.floor,
        channels: usize::from(args.channels),
        slot: args.slot.0,
        rounds: args.rounds as usize,
        iterations: args.iterations,
    };
    let rows = measure(&plan, clock, &request)?;
    print(&report::render(args.form.format, args.stats, &plan, &rows));
    plan.setting.doubt("processes");
    Ok(())
}

fn check(args: &CollectiveArgs, nodes: usize) -> Result<(), Failure> {
    let Size(slot) = args.slot;
    if !(SLOT_MIN..=SLOT_MAX).contains(&slot) || !slot.is_multiple_of(128) {
        let what = format!("--slot: a slot cannot have {slot} bytes");
        return Err(Failure::usage(what, "a multiple of 128, from 4KiB to 64MiB"));
    }
    for size in &args.sizes {
        if size.0 == 0 || !size.0.is_multiple_of(ELEMENT) {
            let what = format!("--sizes: {size} are no vector of f32");
            return Err(Failure::usage(what, format!("multiples of {ELEMENT} bytes, and not 0")));
        }
        for op in &args.op {
            let vectors = op.vectors(nodes);
            if size.0 > VECTOR_MOST / vectors {
                let what = format!("--sizes: {size} are too long for {} of {nodes} processes", word(op));
                let hint = format!("here it has {} B at most", VECTOR_MOST / vectors / ELEMENT * ELEMENT);
                return Err(Failure::usage(what, hint));
            }
        }
    }
    Ok(())
}

/// The measurements: every operation once for each size, and then the allreduces beside which the processes compute.
fn legs(args: &CollectiveArgs) -> Vec<Leg> {
    let barrier = (args.floor && !args.op.contains(&Op::Barrier)).then_some(Op::Barrier);
    let ops = distinct(barrier.into_iter().chain(args.op.iter().copied()));
    let of_sizes = |op: Op, work| args.sizes.iter().map(move |Size(bytes)| Leg { op, bytes: *bytes, work });
    let work = args.compute.map(|time| Work { ns: time.as_nanos() as u64, steps: steps(time) });
    let mut legs = Vec::new();
    for op in ops {
        match op {
            Op::Barrier => legs.push(Leg { op, bytes: 0, work: None }),
            op => legs.extend(of_sizes(op, None)),
        }
    }
    legs.extend(work.into_iter().flat_map(|work| of_sizes(Op::Allreduce, Some(work))));
    legs
}

/// How many steps of work take this time, by the fastest of several tries: other processes may have interrupted the slower ones.
fn steps(time: Duration) -> u64 {
    const STEPS: u64 = 100_000;
    let tries = (0..20).map(|_| {
        let began = Instant::now();
        worker::compute(STEPS);
        began.elapsed()
    });
    let fastest = tries.min().unwrap_or_default().as_nanos().max(1) as f64;
    (time.as_nanos() as f64 / fastest * STEPS as f64).round().max(1.0) as u64
}

/// A time of work: `50us`, `2ms`.
fn duration(text: &str) -> Result<Duration, String> {
    let units = [("ns", 1), ("us", 1_000), ("µs", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
    let found = span(text, &units).filter(|time| (Duration::from_nanos(1)..=Duration::from_secs(10)).contains(time));
    found.ok_or_else(|| "it is not a time of up to 10 s; hint: times look like 500ns, 50us or 2ms".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_work_that_people_write() {
        for (word, ns) in [
            ("500ns", Some(500)),
            ("50us", Some(50_000)),
            ("50µs", Some(50_000)),
            ("2ms", Some(2_000_000)),
            ("10s", Some(10_000_000_000)),
        ] {
            assert_eq!(duration(word).ok(), ns.map(Duration::from_nanos), "{word}");
        }
        for word in ["", "50", "us", "0us", "1.5ms", "11s", "99999999999999999999s", "18446744074s"] {
            assert!(duration(word).is_err(), "{word}");
        }
    }
}
