//! `doorbell io bench`: how long reading and writing by an I/O node takes.
//!
//! Two [`worker`]s are a server and a client. The client also reads and writes the same file by itself, in turns. Its findings are the rows of the report.

pub mod worker;

use super::serve::ENGINES;
use crate::environment::Domain;
use crate::exit::{Explain, Failure, warn};
use crate::experiment::report::render;
use crate::experiment::{Experiment, FREE, Field, Fields, Outcome, Place, Setting, Trouble, measure};
use crate::join::PortArgs;
use crate::measure::{Fabric, Net, Size};
use crate::processes::EndRequest;
use crate::text::{RowArgs, WAITS, print, words};
use clap::builder::PossibleValuesParser;
use doorbell::Wait;
use doorbell_benches::Clock;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use worker::Found;

/// Measure how long reading by an I/O node takes, beside reading locally
///
/// Starts a server and a client, two processes. The client reads a file by the server, in turns with reading the same file by itself (`pread`), and times
/// each call. A change of the machine's speed affects both alike.
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../../../help/io-bench.txt"))]
pub struct BenchArgs {
    /// Sizes of calls: 4KiB, 1MiB
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', default_value = "4KiB,1MiB")]
    sizes: Vec<Size>,
    /// The calls to measure
    #[arg(long, value_enum, value_name = "OP,…", value_delimiter = ',', default_values = ["read"])]
    op: Vec<Op>,
    /// Processors: of the server and of the client
    #[arg(long, value_name = "CPU,CPU", value_delimiter = ',')]
    pin: Vec<usize>,
    /// The directory of the file [default: /dev/shm]
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
    /// How the server reads and writes: auto: by io_uring where the system has it, and cached bytes by plain calls; io_uring: by it, or not at
    /// all; plain: by plain calls
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = PossibleValuesParser::new(ENGINES))]
    engine: String,
    /// How threads wait: auto spins, then yields, then sleeps
    #[arg(long, value_name = "HOW", default_value_t = Wait::default(), value_parser = words::<Wait>(WAITS))]
    wait: Wait,
    /// The fabric of requests and data
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = Fabric::Shm)]
    fabric: Fabric,
    #[command(flatten)]
    port: PortArgs,
    #[command(flatten)]
    form: RowArgs,
    /// Measure by the I/O node of this domain, which serves the directory of --dir, instead of starting one
    #[arg(long, value_name = "NAME", requires = "dir", conflicts_with = "fabric")]
    domain: Option<Domain>,
}

/// The call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    Read,
    Write,
}

/// The measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// How both processes run.
    pub setting: Setting,
    /// The server runs already, and only the client is started.
    pub serves_already: bool,
    pub legs: Vec<(Op, usize)>,
    /// The directory of the file, which exists.
    pub directory: PathBuf,
    /// The name of the file.
    pub name: String,
    pub file: usize,
    pub rounds: usize,
    pub iterations: Option<u64>,
    pub engine: String,
}

impl Plan {
    /// Whether a process is the client; the other one is the server.
    fn is_client(&self, process: usize) -> bool {
        process == 1 || self.serves_already
    }

    fn fields(&self, found: &Found) -> Fields {
        let Found { op, bytes, io, local } = found;
        let gb_per_s = |name, ns: f64| Field::figure(name, *bytes as f64 / ns, 2);
        Fields(vec![
            Field::of("test", "io"),
            Field::of("op", op).under(""),
            Field::bytes("size_bytes", *bytes).under(">size"),
            Field::of("fabric", self.setting.fabric()),
            Field::of("rounds", self.rounds),
            Field::of("calls", io.count),
            Field::ns("p50_ns", io.p50).under(">each"),
            Field::ns("p99_ns", io.p99).under(">p99"),
            Field::ns("min_ns", io.min),
            gb_per_s("gb_per_s", io.p50).under(">GB/s"),
            Field::ns("local_p50_ns", local.p50).under(">local"),
            Field::ns("local_p99_ns", local.p99).under(">local p99"),
            Field::ns("local_min_ns", local.min),
            gb_per_s("local_gb_per_s", local.p50).under(">local GB/s"),
            Field::figure("ratio", io.p50 / local.p50, 2).under(">ratio"),
            Field::figure("share", local.p50 / io.p50, 2).under(">share"),
            Field::of("file_bytes", self.file),
            Field::of("wait", self.setting.wait.to_string()),
            Field::of("crowded", self.setting.crowded),
        ])
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

/// A directory that is removed when this is dropped.
struct Passing(PathBuf);

impl Drop for Passing {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Measures and prints.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    let Size(file) = args.file;
    if let Some(size) = args.sizes.iter().find(|size| size.0 == 0 || size.0 > file) {
        return Err(Failure::usage(format!("--sizes: {size} cannot be read from a file of {}", args.file), "say --file, too"));
    }
    let request = EndRequest::listen()?;
    let name = format!("doorbell-io-bench-{}", std::process::id());
    let parent = args.dir.clone().unwrap_or_else(|| crate::text::DIRECTORY.into());
    // A running server has a directory of its own. A server that is started gets a new one.
    let directory = if args.domain.is_some() { parent } else { parent.join(&name) };
    let _passing = match args.domain {
        Some(_) => None,
        None => {
            std::fs::create_dir(&directory).or_usage(format_args!("cannot make {}", directory.display()), "say --dir")?;
            Some(Passing(directory.clone()))
        }
    };
    let port = args.port.kind()?;
    let net = (args.fabric == Fabric::Udp).then(|| Net { port, ..Net::default() });
    let setting = Setting { net, wait: args.wait, ..Setting::new("io", args.domain.as_ref(), &args.pin, 2)? };
    let plan = Plan {
        setting,
        serves_already: args.domain.is_some(),
        legs: args.op.iter().flat_map(|op| args.sizes.iter().map(|Size(bytes)| (*op, *bytes))).collect(),
        directory,
        name,
        file,
        rounds: args.rounds as usize,
        iterations: args.iterations,
        engine: args.engine.clone(),
    };
    let found = measure(&plan, Clock::calibrate(), &request)?;
    let crowded = if plan.setting.crowded { "more processes than processors" } else { "a processor for each process" };
    let title = format!(
        "Calls by an I/O node over {}, in turns with local ones on the same file of {} ({crowded}), wait {}; {} rounds.",
        plan.setting.fabric(),
        args.file,
        args.wait,
        plan.rounds
    );
    print(&render(args.form.format, &title, &found.iter().map(|found| plan.fields(found)).collect::<Vec<_>>()));
    if plan.setting.pin.is_empty() {
        warn(FREE);
    }
    Ok(())
}
