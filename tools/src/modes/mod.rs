//! `doorbell modes`: what a policy makes of a load, beside every mode alone.
//!
//! A [`load`] is carried out by two [`worker`]s, once by each way in turns; [`outcome`] has the figures, of which [`table`], [`lines`] and
//! [`page`] are made. What the policy saw and decided is kept by a [`watch`] around it, in a run of its own.

pub mod lines;
pub mod load;
pub mod noise;
pub mod outcome;
pub mod page;
pub mod table;
pub mod watch;
pub mod worker;

use crate::exit::{Failure, warn};
use crate::experiment::place::Place;
use crate::experiment::setting::{FREE, Setting};
use crate::experiment::workers::requested_end;
use crate::experiment::{self, Experiment, Trouble, measure};
use crate::ls::Format;
use crate::measure::args::crowded;
use crate::paths::Output;
use crate::text::{counted, print};
use clap::builder::PossibleValuesParser;
use doorbell::{Progress, Wait};
use doorbell_benches::clock::Clock;
use load::Load;
use outcome::{Outcome, Round};
use serde::{Deserialize, Serialize};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use worker::{Chooser, Found, Way};

/// The modes beside which a policy has to stand.
const FIXED: [&str; 6] = ["shm/0/transfer", "shm/0/both", "shm/0/get", "shm/0/put", "udp/0/transfer", "udp/0/put"];

/// Carry out a load under a policy and by each mode alone, and show what happened
///
/// A mode is how a message goes: a fabric (shm: memory that both processes share; udp), one of its links (from 0), and a protocol. `transfer`
/// goes through the lane in packets, which both processors copy; with `put` the writer's engine stores the bytes where the reader wants
/// them, with `get` the reader's engine fetches them, with `both` they do so from both ends until they meet. A policy chooses a mode for each message from what
/// it sees of the links at that moment. Here two processes, a writer and a reader, send a load of messages by each of these modes alone,
/// and under the policy, in turns. The reader checks that every message came, once, whole, and in order: if not, the command fails.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  doorbell modes --pin 0,1                    the three loads that are built in: a minute or two
  doorbell modes --pin 0,1 --scale 0.1        a tenth of them
  doorbell modes my.json --report page.html   a load of one's own, and a page with the timeline
  doorbell modes --generate                   a load by chance; its seed is told
  doorbell modes --generate 7 --save 7.json   the one of seed 7, kept to be changed
  doorbell modes my.json --only policy,udp/0/put
                                              two of them
  doorbell modes --check                      fails if the goals are not met, for scripts
  doorbell modes --format json | jq 'select(.what == \"verdict\")'

`total` is from the first message of a phase until the reader has the last one, all phases
together. Latencies (`p50`, `p99`, `max`) are from the moment a message was due, or handed over
if it has no fixed time, until the reader has it. Each figure is the median of the rounds;
`spread` is how far their totals are apart: where it is large, others used the processors, too.
Two ratios judge the policy: its total over that of the mode that was best alone (goal: 1.05),
and its p99 over that of the mode that was worst (goal: 0.5). A DMA mode (put, get, both) takes
`transfer` on its link for messages of up to 32 KiB, which no DMA carries faster.

Below is what the policy saw, in a run that does not count: of each link, how many packets
waited (`depth`), what part of its memory was in use (`memory`) and how many DMA transfers were
not complete; messages by the mode that was chosen; and each decision that was another than the
one before for messages as long and asked for alike, with its reason.

A load is a JSON file:
  {\"name\": \"mine\", \"about\": \"in a sentence\", \"phases\": [
    {\"name\": \"first\",         between two phases everything is read
     \"messages\": 10000,       how many
     \"sizes\": \"4KiB\",         32 to 16MiB, or [{\"size\": 64, \"weight\": 3}, {\"size\": \"1MiB\"}]
     \"burst\": 100,            so many are due at once [1]
     \"every_us\": 5000,        and again after so long; 0: when they were handed over [0]
     \"window\": 64,            so many are on their way at most [64]
     \"memory\": \"private\",     or \"region\", at both ends [private]
     \"asks\": \"any\",           what is asked for under the policy, as udp/1 or shm/put [any]
     \"reader\": {\"work_us\": 5, \"stall_ms\": 20, \"stall_every\": 1000},
                              computes after each message, does nothing after so many [0]
     \"background\": {\"mode\": \"udp/0\", \"size\": \"256KiB\", \"window\": 4}}
                              messages of low priority meanwhile: so many all the time [none]
  ]}")]
pub struct ModesArgs {
    /// A file with a load [default: three that are built in]
    load: Option<PathBuf>,
    /// Make a load by chance, the same one for the same seed
    #[arg(long, value_name = "SEED", conflicts_with = "load", num_args = 0..=1)]
    generate: Option<Option<u64>>,
    /// Also write the generated load to a file
    #[arg(long, value_name = "FILE", requires = "generate")]
    save: Option<PathBuf>,
    /// Who decides
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = Chooser::Thresholds)]
    policy: Chooser,
    /// The processors of the writer and of the reader
    #[arg(long, value_name = "CPU,CPU", value_delimiter = ',', num_args = 1..=2)]
    pin: Vec<usize>,
    /// Only these, of `policy` and the modes: for a closer look
    #[arg(long, value_name = "WAY,…", value_delimiter = ',', value_parser = only())]
    only: Vec<String>,
    /// How often each way has its turn
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// So many times the messages of each phase: 0.1 for a tenth
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor)]
    scale: f64,
    /// Fail if the goals are not met
    #[arg(long)]
    check: bool,
    /// Write a page with figures and timelines, which needs nothing else
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Form of the output
    #[arg(long, value_enum, value_name = "FORM", default_value_t = Format::Table)]
    format: Format,
}

fn only() -> PossibleValuesParser {
    PossibleValuesParser::new(["policy"].into_iter().chain(FIXED))
}

fn factor(word: &str) -> Result<f64, String> {
    let factor = word.parse::<f64>().ok().filter(|factor| (0.0001..=1000.0).contains(factor));
    factor.ok_or_else(|| "it is no factor from 0.0001 to 1000".into())
}

/// Carries out the loads, and prints what was found.
pub fn run(args: &ModesArgs) -> Result<(), Failure> {
    // A mistake is told before anything is started.
    let report = args.report.as_deref().map(output).transpose()?;
    let loads = loads(args)?;
    let crowded = crowded(&args.pin, 2)?;
    let signal = requested_end()?;
    let ways = ways(args);
    let mut bar = Bar { all: loads.len() * (usize::from(args.rounds) * ways.len() + 1), done: 0 };
    let outcomes = loads.into_iter().map(|load| {
        let load = load.scaled(args.scale);
        carry_out(args, load, &ways, crowded, &signal, &mut bar)
    });
    let outcomes = outcomes.collect::<Result<Vec<_>, _>>();
    bar.clear();
    let outcomes = outcomes?;
    print(&match args.format {
        Format::Table => outcomes.iter().map(table::render).collect::<Vec<_>>().join("\n"),
        Format::Json => outcomes.iter().map(lines::render).collect(),
    });
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
        let text = serde_json::to_string_pretty(&load).map_err(|error| Failure::failed(error, ""))?;
        write(save, &(text + "\n"))?;
    }
    Ok(vec![load])
}

fn output(path: &Path) -> Result<Output, Failure> {
    Output::at(path).map_err(|error| unwritten(path, &error))
}

fn write(output: &Output, text: &str) -> Result<(), Failure> {
    output.write(text.as_bytes()).map_err(|error| unwritten(output.path(), &error))
}

fn unwritten(path: &Path, error: &std::io::Error) -> Failure {
    let hint = "name a regular file, or a new one in a directory where files can be made";
    Failure::usage(format!("cannot write {}: {error}", path.display()), hint)
}

/// The policy, and each mode; of them what was asked for, if something was.
fn ways(args: &ModesArgs) -> Vec<Way> {
    let is_wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let policy = is_wanted("policy").then_some(Way::Policy { policy: args.policy, watched: false });
    let fixed = FIXED.into_iter().filter(|mode| is_wanted(mode)).map(|mode| Way::Fixed(mode.into()));
    policy.into_iter().chain(fixed).collect()
}

fn carry_out(
    args: &ModesArgs,
    load: Load,
    ways: &[Way],
    crowded: bool,
    signal: &AtomicUsize,
    bar: &mut Bar,
) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::new(load, args.policy, args.rounds);
    let mut ways = ways.to_vec();
    for round in 0..args.rounds {
        // In turns, so that a mood of the machine meets all alike.
        let mut turns = ways.clone();
        turns.rotate_left(usize::from(round) % ways.len().max(1));
        for way in turns {
            bar.step(&format!("{}, round {} of {}: {}", outcome.load.name, round + 1, args.rounds, name(&way)));
            match once(args, &outcome.load, &way, crowded, signal)? {
                Ok(found) => outcome.add(&way, found),
                Err(why) => {
                    ways.retain(|other| *other != way);
                    outcome.missing.push((name(&way), why));
                }
            }
        }
    }
    bar.step(&format!("{}: what the policy sees", outcome.load.name));
    // A run of its own, so that to look costs the others nothing.
    if outcome.policy().is_some() {
        let watched = Way::Policy { policy: args.policy, watched: true };
        if let Ok(found) = once(args, &outcome.load, &watched, crowded, signal)? {
            outcome.watch(found);
        }
    }
    Ok(outcome)
}

/// The name of a way.
pub fn name(way: &Way) -> String {
    match way {
        Way::Policy { policy, .. } => format!("policy {}", policy.name()),
        Way::Fixed(mode) => mode.clone(),
    }
}

/// A load that is carried out by one way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    setting: Setting,
    load: Load,
    way: Way,
    /// After so many seconds something hangs.
    limit_s: u64,
}

impl Experiment for Run {
    const NAME: &'static str = "modes";
    type Found = Found;
    /// Or why the load can't go so.
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
        let round = Round::new(&self.load, outcome.found).map_err(|what| {
            let hint = "no figure of this run is worth anything; run it again, and tell who maintains Doorbell";
            Failure::failed(what, hint)
        })?;
        Ok(vec![round])
    }
}

/// One load by one way; or why it can't go so.
fn once(args: &ModesArgs, load: &Load, way: &Way, crowded: bool, signal: &AtomicUsize) -> Result<Result<Round, String>, Failure> {
    let setting = Setting {
        domain: format!("modes-{}", std::process::id()),
        net: None,
        progress: Progress::default().to_string(),
        wait: Wait::default().to_string(),
        pin: args.pin.clone(),
        crowded,
    };
    let run = Run { setting, load: load.clone(), way: way.clone(), limit_s: limit(load) };
    // No ticks are read here.
    let clock = Clock { ns_per_tick: 1.0 };
    let found = measure(&run, clock, signal).map_err(|failure| failure.of(format!("{} by {}", load.name, name(way))))?;
    // One that came while no process was there to be told.
    let signal = signal.load(Ordering::SeqCst);
    if signal != 0 {
        return Err(Failure::interrupted(signal as i32));
    }
    Ok(found.into_iter().next().unwrap_or_else(|| Err("nothing was found".into())))
}

/// After how many seconds a load hangs.
fn limit(load: &Load) -> u64 {
    /// What is slow for a link, in bytes a second.
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

/// How far it is, for who watches.
struct Bar {
    all: usize,
    done: usize,
}

impl Bar {
    const WIDTH: usize = 20;

    fn step(&mut self, what: &str) {
        if std::io::stderr().is_terminal() {
            let full = Self::WIDTH * self.done / self.all.max(1);
            let what = format!("{} of {}, {what}", self.done + 1, counted(self.all, "run"));
            eprint!("\r[{}{}] {what:<80}", "#".repeat(full), " ".repeat(Self::WIDTH - full));
            let _ = std::io::stderr().flush();
        }
        self.done += 1;
    }

    fn clear(&self) {
        if std::io::stderr().is_terminal() {
            eprint!("\r{:<104}\r", "");
        }
    }
}
