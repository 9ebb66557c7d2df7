//! `doorbell modes`: a load under a policy, beside every mode alone.
//!
//! Two [`worker`]s carry out a [`load`], once by each way in turns. The [`outcome`] has the figures, which [`table`], [`lines`] and [`page`] print. A
//! [`watch`] around the policy keeps what the policy saw and decided, in a run of its own.

pub mod lines;
pub mod load;
pub mod message;
pub mod noise;
pub mod outcome;
pub mod page;
pub mod reader;
pub mod table;
pub mod watch;
pub mod worker;
pub mod writer;

pub use load::{LEAST, Load, Phase};
pub use message::{Slot, slots, stamp};
pub use noise::{Noise, mix};
pub use outcome::{Metrics, Outcome, Ratio, Row};
pub use watch::{AsAsked, Change, Seen, Span, Timeline, Watch, Watched};
pub use worker::{
    BACKGROUND, Chooser, Found, LOOK, MESSAGE, OVER, Progress, READ, READER, ReadPhase, WRITER, Way, Written, WrittenPhase,
};

use crate::exit::{Explain, Failure, warn};
use crate::experiment::{self, Experiment, FREE, Place, Setting, Trouble, measure};
use crate::join::PortArgs;
use crate::paths::Output;
use crate::processes::EndRequest;
use crate::text::{FormArgs, bar, word};
use clap::builder::PossibleValuesParser;
use doorbell_benches::Clock;
use indicatif::ProgressBar;
use outcome::Round;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The modes with which a policy is compared.
const FIXED: [&str; 6] = ["shm/0/transfer", "shm/0/both", "shm/0/get", "shm/0/put", "udp/0/transfer", "udp/0/put"];

/// Carry out a load under a policy and by each mode alone, and show what happened
///
/// A mode is a fabric (shm: memory that both processes share; udp), one of its links (from 0), and a protocol. `transfer` sends a message through the
/// lane in packets, which both processors copy. With `put` the writer's engine stores the bytes in the reader's buffer. With `get` the reader's
/// engine fetches them. With `both` the two engines do so from both ends until they meet. A policy chooses a mode for each message from the state
/// of the links at that moment. Here two processes, a writer and a reader, send a load of messages by each of these modes alone and under the
/// policy, in turns. The reader checks that every message comes once, whole, and in order. If not, the command fails.
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../../help/modes.txt"))]
pub struct ModesArgs {
    /// A file with a load [default: three that are built in]
    load: Option<PathBuf>,
    /// Make a random load, the same one for the same seed
    #[arg(long, value_name = "SEED", conflicts_with = "load", num_args = 0..=1)]
    generate: Option<Option<u64>>,
    /// Also write the generated load to a file
    #[arg(long, value_name = "FILE", requires = "generate")]
    save: Option<PathBuf>,
    /// The policy that decides
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = Chooser::Thresholds)]
    policy: Chooser,
    /// The processors of the writer and of the reader
    #[arg(long, value_name = "CPU,CPU", value_delimiter = ',', num_args = 1..=2)]
    pin: Vec<usize>,
    /// Only these ways, of `policy` and the modes
    #[arg(long, value_name = "WAY,…", value_delimiter = ',', value_parser = only())]
    only: Vec<String>,
    /// How often each way has its turn
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Multiply the messages of each phase by this: 0.1 for a tenth
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor)]
    scale: f64,
    /// Fail if the goals are not met
    #[arg(long)]
    check: bool,
    /// Write an HTML page with figures and timelines, which needs no other file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    #[command(flatten)]
    port: PortArgs,
    #[command(flatten)]
    form: FormArgs,
}

fn only() -> PossibleValuesParser {
    PossibleValuesParser::new(["policy"].into_iter().chain(FIXED))
}

fn factor(word: &str) -> Result<f64, String> {
    let factor = word.parse::<f64>().ok().filter(|factor| (0.0001..=1000.0).contains(factor));
    factor.ok_or_else(|| "it is no factor from 0.0001 to 1000".into())
}

/// Carries out the loads, and prints the figures.
pub fn run(args: &ModesArgs) -> Result<(), Failure> {
    // The command reports a mistake before it starts anything.
    let report = args.report.as_deref().map(output).transpose()?;
    let loads = loads(args)?;
    let setting = Setting { port: args.port.kind()?, ..Setting::new("modes", None, &args.pin, 2)? };
    let ways = ways(args);
    let runs = loads.len() * (usize::from(args.rounds) * ways.len() + 1);
    let bar = bar(runs as u64, "[{bar:20}] {pos} of {len} runs, {msg}");
    let session = Session { args, setting, request: EndRequest::listen()?, bar };
    let outcomes = loads.into_iter().map(|load| session.carry_out(load.scaled(args.scale), &ways));
    let outcomes = outcomes.collect::<Result<Vec<_>, _>>();
    session.bar.finish_and_clear();
    let outcomes = outcomes?;
    let text = || outcomes.iter().map(table::render).collect::<Vec<_>>().join("\n");
    args.form.print(text, outcomes.iter().flat_map(lines::objects));
    if let Some(report) = &report {
        write(report, &page::render(&outcomes))?;
    }
    if args.pin.is_empty() {
        warn(FREE);
    }
    let missed: Vec<String> = outcomes.iter().flat_map(Outcome::missed).collect();
    if args.check && !missed.is_empty() {
        return Err(Failure::failed(
            format!("goals were not met: {}", missed.join("; ")),
            "see the phases above; or more --rounds",
        ));
    }
    Ok(())
}

fn loads(args: &ModesArgs) -> Result<Vec<Load>, Failure> {
    if let Some(path) = &args.load {
        return Ok(vec![Load::read(path)?]);
    }
    let Some(seed) = args.generate else { return Load::built_in() };
    let save = args.save.as_deref().map(output).transpose()?;
    let by_clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| u64::from(time.subsec_nanos()));
    let seed = seed.unwrap_or_else(by_clock);
    let load = Load::random(seed);
    eprintln!("the load of seed {seed}");
    if let Some(save) = &save {
        let text = serde_json::to_string_pretty(&load).or_failed("cannot write the load", "")?;
        write(save, &(text + "\n"))?;
    }
    Ok(vec![load])
}

/// The hint of files that cannot be written.
const UNWRITTEN: &str = "name a regular file, or a new one in a directory where files can be made";

fn output(path: &Path) -> Result<Output, Failure> {
    Output::at(path).or_usage(format_args!("cannot write {}", path.display()), UNWRITTEN)
}

fn write(output: &Output, text: &str) -> Result<(), Failure> {
    output.write(text.as_bytes()).or_usage(format_args!("cannot write {}", output.path().display()), UNWRITTEN)
}

/// The policy and each mode, or those of them that were asked for.
fn ways(args: &ModesArgs) -> Vec<Way> {
    let is_wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let policy = is_wanted("policy").then_some(Way::Policy { policy: args.policy, watched: false });
    let fixed = FIXED.into_iter().filter(|mode| is_wanted(mode)).map(|mode| Way::Fixed(mode.into()));
    policy.into_iter().chain(fixed).collect()
}

/// Everything that carrying out loads needs.
struct Session<'a> {
    args: &'a ModesArgs,
    setting: Setting,
    request: EndRequest,
    bar: ProgressBar,
}

impl Session<'_> {
    /// Carries out a load by all ways.
    fn carry_out(&self, load: Load, ways: &[Way]) -> Result<Outcome, Failure> {
        let args = self.args;
        let mut outcome = Outcome::new(load, args.policy, args.rounds);
        let mut ways = ways.to_vec();
        for round in 0..args.rounds {
            // A change of the machine's speed affects all ways alike, because they take turns.
            let mut turns = ways.clone();
            turns.rotate_left(usize::from(round) % ways.len().max(1));
            for way in turns {
                self.step(format!("{}, round {} of {}: {}", outcome.load.name, round + 1, args.rounds, name(&way)));
                match self.once(&outcome.load, &way)? {
                    Ok(found) => outcome.add(&way, found),
                    Err(why) => {
                        ways.retain(|other| *other != way);
                        outcome.missing.push((name(&way), why));
                    }
                }
            }
        }
        self.step(format!("{}: what the policy sees", outcome.load.name));
        // The policy is watched in a run of its own, because watching takes time.
        if outcome.policy().is_some() {
            let watched = Way::Policy { policy: args.policy, watched: true };
            if let Ok(found) = self.once(&outcome.load, &watched)? {
                outcome.watch(found);
            }
        }
        Ok(outcome)
    }

    fn step(&self, what: String) {
        self.bar.inc(1);
        self.bar.set_message(what);
    }

    /// One run of a load by one way; or why the load cannot go by that way.
    fn once(&self, load: &Load, way: &Way) -> Result<Result<Round, String>, Failure> {
        let run = Run { setting: self.setting.clone(), load: load.clone(), way: way.clone(), limit_s: limit(load) };
        // These workers read no ticks.
        let clock = Clock { ns_per_tick: 1.0 };
        let found =
            measure(&run, clock, &self.request).map_err(|failure| failure.of(format!("{} by {}", load.name, name(way))))?;
        // A signal may have come while no worker was running.
        self.request.check()?;
        Ok(found.into_iter().next().unwrap_or_else(|| Err("nothing was found".into())))
    }
}

/// The name of a way.
pub fn name(way: &Way) -> String {
    match way {
        Way::Policy { policy, .. } => format!("policy {}", word(policy)),
        Way::Fixed(mode) => mode.clone(),
    }
}

/// One run of a load by one way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    setting: Setting,
    load: Load,
    way: Way,
    /// A run that takes longer hangs.
    limit_s: u64,
}

impl Experiment for Run {
    const NAME: &'static str = "modes";
    type Found = Found;
    /// The figures, or why the load cannot go by this way.
    type Row = Result<Round, String>;

    fn setting(&self) -> &Setting {
        &self.setting
    }

    fn processes(&self) -> usize {
        2
    }

    fn role(&self, process: usize) -> &'static str {
        if process == 0 { "the process that writes" } else { "the process that reads" }
    }

    fn work(self, place: Place) -> Result<Found, Trouble> {
        worker::work(&self, &place)
    }

    fn rows(&self, outcome: experiment::Outcome<Found>) -> Result<Vec<Self::Row>, Failure> {
        let hint = "no figure of this run is worth anything; run it again, and report it to the maintainers of Doorbell";
        Ok(vec![Round::new(&self.load, outcome.found).map_err(|what| Failure::failed(what, hint))?])
    }
}

/// How many seconds a load may take before it counts as hanging.
fn limit(load: &Load) -> u64 {
    /// Bytes a second of a slow link.
    const SLOW: f64 = 20e6;
    let seconds = load.phases.iter().map(|phase| {
        let messages = phase.messages as f64;
        let stalls = if phase.reader.stall_every > 0 { messages / phase.reader.stall_every as f64 } else { 0.0 };
        messages / phase.burst as f64 * phase.every_us as f64 * 1e-6
            + messages * phase.reader.work_us * 1e-6
            + stalls * phase.reader.stall_ms as f64 * 1e-3
            + messages * phase.sizes.most() as f64 / SLOW
    });
    60 + (3.0 * seconds.sum::<f64>()) as u64
}
