//! `doorbell collective`: what operations of a team of processes take.
//!
//! The [`worker`]s form a team, and go through the [`Leg`]s in rounds, of each leg one section by each way of synchronisation; what they saw becomes a
//! [`report::Row`] for each leg and way.

pub mod report;
pub mod worker;

use super::args::{crowded, words};
use super::size::Size;
use crate::environment::Domain;
use crate::exit::Failure;
use crate::experiment::place::Place;
use crate::experiment::setting::Setting;
use crate::experiment::workers::requested_end;
use crate::experiment::{Experiment, Outcome, Trouble, measure};
use crate::ls::Format;
use crate::text::print;
use doorbell::collective::{CHANNELS_MAX, SLOT_MAX, SLOT_MIN, Sync};
use doorbell::{Progress, Wait};
use doorbell_benches::clock::Clock;
use report::Row;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};
use worker::Found;

/// Bytes of the longest vector of a process.
const VECTOR_MOST: usize = 256 << 20;
/// Bytes of an element: an f32.
const ELEMENT: usize = size_of::<f32>();

/// Measure what collectives of a team of processes take, over shared memory
///
/// Each process is a node, and all are a team. In rounds, each operation is called many times, one call right after the other, in turns with the
/// other ways of synchronisation that are asked for and with the floor. Vectors are of f32, and what is combined is added up.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  doorbell collective --pin 0,1                                a barrier, allreduce and broadcast of four processes on two processors
  doorbell collective --pin 0,1 --nodes 2 --floor              a processor for each; the barrier beside the bare counter barrier
  doorbell collective --op allgather,alltoall --sizes 8,64KiB,16MiB
  doorbell collective --op allreduce --sync both --compute 5us  also computing while each is under way, by both ways of synchronisation
  doorbell collective --stats                                  also what became of the team's channels
  doorbell collective --floor --format json | jq 'select(.op == \"barrier\").ratio'

A round begins with a barrier, and then each process takes the time of its own calls. The time of a round is that of the
slowest process, over the calls. `each` is the median of the rounds. Who is done with a call goes on to the next one at once: a
broadcast's root is ahead of the others by as many calls as there are channels, so its figure is that of a stream of them.
Rank 0 is the root. Results are checked once for each size, before the rounds.

Sizes are of what each process contributes: a vector; for alltoall what goes to each. `GB/s` is the size over the time.

With --floor, `floor` is the bare counter barrier in memory of its own: one atomic addition to arrive, and a word that the last one raises.
Who waits spins, if there is a processor for each; else it lets others run (sched_yield) after every 64 looks. It has a section in
each round of the barrier, and `ratio` is the barrier's median over its. The other operations have none.

--compute adds rows of allreduces that are begun, computed beside and then waited for. The work of each process is another each time, from
nothing to twice what is said, in steps that take that long on one processor that has nothing else to do: members of one processor
take turns, so with 4 on 2 a call takes twice the work at least. Their times have the work in them. With --sync both, `of fg` is the median in the background over that in the foreground.

Believe ratios rather than nanoseconds: the processors of a virtual machine move, and every time with them.")]
pub struct CollectiveArgs {
    /// Operations
    #[arg(long, value_enum, value_name = "OP,…", value_delimiter = ',', default_values = ["barrier", "allreduce", "broadcast"])]
    op: Vec<Op>,
    /// Processes in the team
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=64))]
    nodes: u16,
    /// Sizes of what each contributes, multiples of 4 bytes: 8, 64KiB, 1MB
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', default_value = "8,4KiB,64KiB,1MiB")]
    sizes: Vec<Size>,
    /// Processors on which the processes run, in turn: with 0,1 every other one runs on each
    #[arg(long, value_name = "CPU,…", value_delimiter = ',')]
    pin: Vec<usize>,
    /// Also measure the bare counter barrier, in turns with the team's, which is then measured even if --op does not name it
    #[arg(long)]
    floor: bool,
    /// Channels of the team
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=CHANNELS_MAX as i64))]
    channels: u16,
    /// Bytes that each process has in each channel: a multiple of 128, from 4KiB to 64MiB
    #[arg(long, value_name = "SIZE", default_value = "512KiB")]
    slot: Size,
    /// When channels are synchronised that were used; both: in turns, by two teams
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = When::Background)]
    sync: When,
    /// Also allreduces beside each of which so much is computed in the mean: 5us, 2ms
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    compute: Option<Duration>,
    /// Rounds, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Calls of a round [default: as many as some 20 ms allow]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    iterations: Option<u64>,
    /// Who turns the engine: the threads that call, a thread of the node, or whoever waits
    #[arg(long, value_name = "WHO", default_value_t = Progress::default(), value_parser = words::<Progress>(&["inline", "poller", "adaptive"]))]
    progress: Progress,
    /// How threads wait: auto spins, then yields, then sleeps
    #[arg(long, value_name = "HOW", default_value_t = Wait::default(), value_parser = words::<Wait>(&["auto", "spin", "yield", "park"]))]
    wait: Wait,
    /// Also show what became of the team's channels (JSON always has it)
    #[arg(long)]
    stats: bool,
    /// Form of the output
    #[arg(long, value_enum, value_name = "FORM", default_value_t = Format::Table)]
    format: Format,
    /// The domain that the processes join [default: one of their own]
    #[arg(long, value_name = "NAME")]
    domain: Option<Domain>,
}

/// What a team does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// All wait for all
    Barrier,
    /// The root's vector to all
    Broadcast,
    /// The sum of all vectors to the root
    Reduce,
    /// The sum of all vectors to all
    Allreduce,
    /// All vectors to all
    Allgather,
    /// A vector from each to each
    Alltoall,
}

impl Op {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Op::Barrier => "barrier",
            Op::Broadcast => "broadcast",
            Op::Reduce => "reduce",
            Op::Allreduce => "allreduce",
            Op::Allgather => "allgather",
            Op::Alltoall => "alltoall",
        }
    }

    /// How many vectors of that size a process has in one piece, at most.
    fn vectors(self, nodes: usize) -> usize {
        if matches!(self, Op::Allgather | Op::Alltoall) { nodes } else { 1 }
    }
}

/// When channels are synchronised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum When {
    /// Behind the back of who calls
    Background,
    /// Before a call comes back
    Foreground,
    /// One and the other in turns
    Both,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// Behind the back of who calls.
    Background,
    /// Before a call comes back.
    Foreground,
}

impl Way {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Way::Background => "background",
            Way::Foreground => "foreground",
        }
    }

    /// As the library has it.
    pub fn sync(self) -> Sync {
        match self {
            Way::Background => Sync::Background,
            Way::Foreground => Sync::Foreground,
        }
    }
}

/// What is measured in rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leg {
    /// The operation.
    pub op: Op,
    /// What each process contributes; 0 of a barrier.
    pub bytes: usize,
    /// Work before each call.
    pub work: Option<Work>,
}

/// Work of a program between collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// How long it is meant to take.
    pub ns: u64,
    /// Steps of [`worker::compute`].
    pub steps: u64,
}

/// What all processes of the measurement are told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// How the processes run.
    pub setting: Setting,
    /// Processes in the team.
    pub nodes: usize,
    /// What is measured, one after the other.
    pub legs: Vec<Leg>,
    /// By a team each, in turns.
    pub ways: Vec<Way>,
    /// Measure the floor of the barrier, too.
    pub floor: bool,
    /// Channels of a team.
    pub channels: usize,
    /// Bytes that a process has in a channel.
    pub slot: usize,
    /// Rounds of each leg.
    pub rounds: usize,
    /// Calls of a round; as many as fit in a time if nothing is said.
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
    let setting = Setting {
        domain: args.domain.as_ref().map_or_else(|| format!("collective-{}", std::process::id()), |Domain(name)| name.clone()),
        net: None,
        progress: args.progress.to_string(),
        wait: args.wait.to_string(),
        pin: args.pin.clone(),
        crowded: crowded(&args.pin, nodes)?,
    };
    let (signal, clock) = (requested_end()?, Clock::calibrate());
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
    let rows = measure(&plan, clock, &signal)?;
    print(&report::render(args.format, args.stats, &plan, &rows));
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
                let what = format!("--sizes: {size} are too long for {} of {nodes} processes", op.name());
                let hint = format!("here it has {} B at most", VECTOR_MOST / vectors / ELEMENT * ELEMENT);
                return Err(Failure::usage(what, hint));
            }
        }
    }
    Ok(())
}

/// What is measured: every operation once for each size, and what is computed in between last.
fn legs(args: &CollectiveArgs) -> Vec<Leg> {
    let mut ops: Vec<Op> = Vec::new();
    if args.floor && !args.op.contains(&Op::Barrier) {
        ops.push(Op::Barrier);
    }
    for op in &args.op {
        if !ops.contains(op) {
            ops.push(*op);
        }
    }
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

/// How many steps of work take so long: by the fastest of several tries, which nobody has interrupted.
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

/// A time of work as people write it: `50us`, `2ms`.
fn duration(word: &str) -> Result<Duration, String> {
    let digits = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
    let (number, unit) = word.split_at(digits);
    let unit = match unit {
        "ns" => Some(1),
        "us" | "µs" => Some(1_000),
        "ms" => Some(1_000_000),
        "s" => Some(1_000_000_000),
        _ => None,
    };
    let ns = number.parse::<u64>().ok().zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
    let ns = ns.filter(|ns| (1..=10_000_000_000).contains(ns));
    ns.map(Duration::from_nanos).ok_or_else(|| "it is not a time of up to 10 s; hint: times look like 500ns, 50us or 2ms".into())
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
