//! `doorbell io bench`: what reading and writing by an I/O node takes.
//!
//! Two [`worker`]s, a server and a client; the client also reads and writes the same file by itself, in turns. What it saw becomes rows in a [`report`].

mod report;
pub mod worker;

use crate::environment::Domain;
use crate::exit::{Failure, warn};
use crate::experiment::place::Place;
use crate::experiment::report::{Format, Report};
use crate::experiment::setting::{FREE, Setting};
use crate::experiment::workers::requested_end;
use crate::experiment::{Experiment, Outcome, Trouble, measure};
use crate::measure::args::{crowded, words};
use crate::measure::net::{Fabric, Net};
use crate::measure::size::Size;
use crate::text::print;
use doorbell::{PortKind, Progress, Wait};
use doorbell_benches::clock::Clock;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use worker::Found;

/// Measure what reading by an I/O node takes, beside reading locally
///
/// Starts a server and a client, two processes. The client reads a file by the server, in turns with reading the same file by itself (`pread`), each call
/// timed for itself; so both see the same moods of the machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  doorbell io bench --pin 0,1                           4 KiB and 1 MiB, on tmpfs
  doorbell io bench --pin 0,1 --op read,write --sizes 512,4KiB,64KiB,1MiB,16MiB
  doorbell io bench --pin 0,1 --fabric udp              over UDP, by the loopback interface
  doorbell io bench --pin 0,1 --dir /var/tmp --engine io_uring
  doorbell io bench --domain files --dir /srv/data      by a server that runs already, which serves that directory
  doorbell io bench --pin 0,1 --format json | jq 'select(.size_bytes == 4096).ratio'

`ratio` is the median time of a call over that of the local call: 3 means three times as long. `share` is the other way round, which is the share of
the local bandwidth that large calls reach. The file lies in /dev/shm if nothing is said, and is read over and over: all of it is cached, and no medium
takes part. What is read is compared once with what was written.

Believe ratios rather than nanoseconds: the processors of a virtual machine move, and every time with them.")]
pub struct BenchArgs {
    /// Sizes of calls: 4KiB, 1MiB
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', default_value = "4KiB,1MiB")]
    sizes: Vec<Size>,
    /// What is measured
    #[arg(long, value_enum, value_name = "OP,…", value_delimiter = ',', default_values = ["read"])]
    op: Vec<Op>,
    /// Processors: of the server and of the client
    #[arg(long, value_name = "CPU,CPU", value_delimiter = ',')]
    pin: Vec<usize>,
    /// Where the file is made [default: in /dev/shm]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Bytes of the file
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    file: Size,
    /// Rounds, in each of which both have a turn
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Calls of a turn [default: as many as some 10 ms allow]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    iterations: Option<u64>,
    /// How the server reads and writes
    #[arg(long, value_enum, value_name = "HOW", default_value = "auto")]
    engine: Engine,
    /// How threads wait: auto spins, then yields, then sleeps
    #[arg(long, value_name = "HOW", default_value_t = Wait::default(), value_parser = words::<Wait>(&["auto", "spin", "yield", "park"]))]
    wait: Wait,
    /// What requests and data go over
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = Fabric::Shm)]
    fabric: Fabric,
    /// Form of the output
    #[arg(long, value_enum, value_name = "FORM", default_value_t = Format::Table)]
    format: Format,
    /// Measure by the I/O node of this domain, which serves the directory that --dir names, instead of one started for it
    #[arg(long, value_name = "NAME", requires = "dir", conflicts_with = "fabric")]
    domain: Option<Domain>,
}

/// The measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    Read,
    Write,
}

impl Op {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Op::Read => "read",
            Op::Write => "write",
        }
    }
}

/// How the server reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
pub enum Engine {
    /// By io_uring where it can be had, and cached bytes by plain calls
    Auto,
    /// The same, or not at all
    #[value(name = "io_uring")]
    Uring,
    /// By plain calls
    Plain,
}

/// The measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// How both processes run.
    pub setting: Setting,
    /// The client is the only one that is started.
    pub serves_already: bool,
    pub legs: Vec<(Op, usize)>,
    /// Where the file is, as this machine calls it: a directory that is there.
    pub directory: PathBuf,
    /// Its name.
    pub name: String,
    pub file: usize,
    pub rounds: usize,
    pub iterations: Option<u64>,
    pub engine: Engine,
}

impl Plan {
    /// Whether a process is the client, or else the server.
    fn is_client(&self, process: usize) -> bool {
        process == 1 || self.serves_already
    }
}

impl Experiment for Plan {
    const NAME: &'static str = "io";
    type Found = Vec<Found>;
    type Row = Found;

    fn setting(&self) -> &Setting {
        &self.setting
    }

    fn processes(&self) -> usize {
        if self.serves_already { 1 } else { 2 }
    }

    fn role(&self, process: usize) -> &'static str {
        if self.is_client(process) { "the client" } else { "the I/O node" }
    }

    fn processors(&self, process: usize) -> Vec<usize> {
        self.setting.processor(usize::from(self.is_client(process))).into_iter().collect()
    }

    fn work(self, place: Place) -> Result<Vec<Found>, Trouble> {
        worker::work(&self, &place)
    }

    fn rows(&self, outcome: Outcome<Vec<Found>>) -> Result<Vec<Found>, Failure> {
        Ok(outcome.found.into_iter().flatten().collect())
    }
}

/// A directory that goes when this does.
struct Passing(PathBuf);

impl Drop for Passing {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Measures and prints.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    let crowded = crowded(&args.pin, 2)?;
    let Size(file) = args.file;
    if let Some(size) = args.sizes.iter().find(|size| size.0 == 0 || size.0 > file) {
        return Err(Failure::usage(format!("--sizes: {size} cannot be read from a file of {}", args.file), "say --file, too"));
    }
    let signal = requested_end()?;
    let name = format!("doorbell-io-bench-{}", std::process::id());
    let parent = args.dir.clone().unwrap_or_else(|| crate::text::DIRECTORY.into());
    // A server that runs already serves what it serves; else it is a directory for this alone.
    let directory = if args.domain.is_some() { parent } else { parent.join(&name) };
    let _passing = match args.domain {
        Some(_) => None,
        None => {
            let unable = |error| Failure::usage(format!("cannot make {}: {error}", directory.display()), "say --dir");
            std::fs::create_dir(&directory).map_err(unable)?;
            Some(Passing(directory.clone()))
        }
    };
    let is_udp = args.fabric == Fabric::Udp;
    let setting = Setting {
        domain: args.domain.as_ref().map_or_else(|| format!("io-{}", std::process::id()), |Domain(name)| name.clone()),
        net: is_udp.then(|| Net { port: PortKind::Auto.to_string(), ..Net::default() }),
        progress: Progress::default().to_string(),
        wait: args.wait.to_string(),
        pin: args.pin.clone(),
        crowded,
    };
    let plan = Plan {
        setting,
        serves_already: args.domain.is_some(),
        legs: args.op.iter().flat_map(|op| args.sizes.iter().map(|Size(bytes)| (*op, *bytes))).collect(),
        directory,
        name,
        file,
        rounds: args.rounds as usize,
        iterations: args.iterations,
        engine: args.engine,
    };
    let found = measure(&plan, Clock::calibrate(), &signal)?;
    print(&plan.render(args.format, &found));
    if plan.setting.pin.is_empty() {
        warn(FREE);
    }
    Ok(())
}
