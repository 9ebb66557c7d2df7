//! `doorbell-peers`: runs Doorbell and other transports in turns, and writes a comparison.

mod journal;
mod launch;
mod peers;
mod plan;
mod report;
mod rows;
mod session;

use clap::Parser;
use doorbell_peers::order::Player;
use doorbell_peers::{collective, foreign, native, worker};
use journal::{Journal, Terms};
use launch::{Launcher, Outcome, Stopped};
use peers::Who;
use plan::{Row, Table};
use report::{Findings, Report};
use session::{Ended, Session};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Measure Doorbell beside other transports: the same work, the same loops, in turns, on the same two processors
///
/// Pairs of processes exchange tagged messages, which are written before they are sent and read after they were received. Every
/// peer has its turn in every round, each time in new processes. The tables show the median of the rounds, with the lowest and
/// the highest. They also name what a peer cannot do and which peers are not installed.
#[derive(Debug, Parser)]
#[command(
    name = "doorbell-peers",
    after_help = "\
Before the first time: benches/peers/install, which fetches and builds the peers into target/peers.

Examples:
  doorbell-peers                                  everything, into docs/performance.md (20 minutes)
  doorbell-peers --quick                          everything, roughly, to the terminal (8 minutes)
  doorbell-peers --only ucx,mpi --rows latency    one table, to the terminal
  doorbell-peers --rows udp                       what goes over UDP, to the terminal (1 minute)
  doorbell-peers --rows overlap                   computing during transfers, to the terminal (2 minutes)
  doorbell-peers --rows collectives               teams, to the terminal (3 minutes)
  doorbell-peers --rounds 9 --output -            more rounds, to the terminal
  doorbell-peers --resume                         the rest of a run of everything that was interrupted
  doorbell-peers --rows rate,batch --journal target/peers/journal --resume
                                                  a part of it, which a later run of everything takes over
  doorbell-peers --rows latency --chart f.svg     one table, and a chart of it
  doorbell-peers --from docs/performance.md --chart docs/pictures/latency.svg
                                                  a chart of saved tables; measures nothing

Columns with × give the peer's time for a message divided by Doorbell's: above 1
Doorbell is faster. Times move by 10 to 30 % from hour to hour on virtual machines, ratios
less: compare within one run only. Run nothing else meanwhile.

Exit codes: 0 measured (failures of peers are rows of the tables), 1 Doorbell itself failed,
2 wrong arguments or environment, 3 out of time, 130 interrupted."
)]
struct Args {
    /// The number of rounds; every peer has one turn in each
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Measure only these peers beside Doorbell
    #[arg(long, value_enum, value_name = "PEER,…", value_delimiter = ',')]
    only: Vec<Who>,
    /// Measure only these tables
    #[arg(long, value_enum, value_name = "ROW,…", value_delimiter = ',')]
    rows: Vec<Row>,
    /// Send a quarter of the messages, in three rounds at most
    #[arg(long)]
    quick: bool,
    /// The file for the tables; `-` is the terminal [default: docs/performance.md if everything is measured, otherwise -]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The file for a chart of the latencies of 8 B and 64 KiB, as SVG
    #[arg(long, value_name = "FILE.svg")]
    chart: Option<PathBuf>,
    /// Measure nothing: draw the chart of this page of tables, such as docs/performance.md
    #[arg(long, value_name = "PAGE.md", requires = "chart", conflicts_with_all = ["only", "rows", "quick", "output"])]
    from: Option<PathBuf>,
    /// The two processors
    #[arg(long, value_name = "CPU,CPU", value_delimiter = ',', num_args = 1, default_value = "0,1")]
    pin: Vec<usize>,
    /// Measure only with messages that are written before they are sent and read after they were received
    #[arg(long, conflicts_with = "untouched")]
    touched: bool,
    /// Measure only with messages that are neither written nor read
    #[arg(long)]
    untouched: bool,
    /// Save the result of each turn to this file [default: target/peers/journal if everything is measured]
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
    /// Go on with the measurement in the journal: turns with a result are not repeated, those that failed are
    #[arg(long)]
    resume: bool,
    /// Minutes after which no further turn begins
    #[arg(long, value_name = "MINUTES", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    within: u64,
    /// Seconds after which a pair of processes counts as hung and is killed
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(5..=3600))]
    limit: u32,
    /// The directory in which `install` put the peers [default: target/peers of this repository]
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(worker::COMMAND) {
        return work();
    }
    match measure(&Args::parse()) {
        Ok(code) => code,
        Err(Failure { what, hint, code }) => {
            eprintln!("error: {what}");
            if !hint.is_empty() {
                eprintln!("  hint: {hint}");
            }
            ExitCode::from(code)
        }
    }
}

/// Runs as one of the processes of a measurement.
fn work() -> ExitCode {
    match worker::arguments() {
        Ok((order, node)) => match order.player {
            Player::Library(_) => worker::run::<foreign::Foreign>(&order, node),
            Player::Floor => worker::run::<collective::Floor>(&order, node),
            _ => worker::run::<native::Doorbell>(&order, node),
        },
        Err(error) => {
            eprintln!("error: {error}\n  hint: `doorbell-peers` starts this command");
            ExitCode::from(2)
        }
    }
}

/// The exit code if turns are left when time is over.
const OUT_OF_TIME: u8 = 3;

/// Why nothing was measured.
#[derive(Debug)]
struct Failure {
    what: String,
    hint: String,
    code: u8,
}

impl Failure {
    fn environment(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { what: what.into(), hint: hint.into(), code: 2 }
    }
}

fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn measure(args: &Args) -> Result<ExitCode, Failure> {
    if let (Some(page), Some(to)) = (&args.from, &args.chart) {
        let text = std::fs::read_to_string(page);
        let text = text.map_err(|error| Failure::environment(format!("cannot read {}: {error}", page.display()), ""))?;
        let chart = report::page::chart(&text);
        let chart =
            chart.map_err(|why| Failure::environment(format!("{}: {why}", page.display()), "--from docs/performance.md"))?;
        return save(&chart, to).map(|()| ExitCode::SUCCESS).map_err(|error| Failure::environment(error, "choose another file"));
    }
    let &[first, second] = args.pin.as_slice() else {
        return Err(Failure::environment("--pin: two processors are needed", "--pin 0,1"));
    };
    let rows: Vec<Row> = if args.rows.is_empty() { Row::ALL.to_vec() } else { args.rows.clone() };
    let tables = tables(args, &rows);
    if args.chart.is_some() && !rows.contains(&Row::Latency) {
        return Err(Failure::environment("--chart: there are no latencies to draw", "add latency to --rows"));
    }
    let rounds = if args.quick { args.rounds.min(3) } else { args.rounds };
    let installed = args.peers.clone().unwrap_or_else(|| repository().join("target/peers"));
    let mut peers = peers::find(&installed, &args.only);
    peers.retain(|peer| tables.iter().any(|table| peer.knows(*table)));
    for missing in peers.iter().filter_map(|peer| peer.missing.as_ref().map(|why| (peer.who, why))) {
        eprintln!("{}: {}", missing.0.name(), missing.1);
    }
    let launcher = Launcher::new([first, second], args.limit)?;
    let mut findings = Findings::default();
    let all = args.only.is_empty() && args.rows.is_empty() && !args.quick && !args.touched && !args.untouched;
    let mut journal = match args.journal.clone().or_else(|| all.then(|| installed.join("journal"))) {
        Some(path) => {
            let terms = Terms::new(args.quick, [first, second])?;
            let journal = Journal::open(&path, args.resume, &terms, &mut findings);
            Some(journal.map_err(|why| Failure::environment(why, "without --resume, the measurement begins anew"))?)
        }
        None if args.resume => {
            return Err(Failure::environment("--resume: no journal is named", "--journal FILE, as before the interruption"));
        }
        None => None,
    };
    if let Some(done) = journal.as_ref().map(|journal| journal.done().len()).filter(|done| *done > 0) {
        eprintln!("{done} turns have a result already");
    }
    let deadline = Instant::now() + Duration::from_secs(60 * args.within);
    let session = Session { launcher: &launcher, peers: &peers, tables: &tables, rounds, quick: args.quick, deadline };
    let ended = session.run(&mut findings, &mut journal).map_err(|why| Failure::environment(why, ""))?;
    let failed = findings.failed(Who::Doorbell) || findings.failed(Who::Foreground);
    let dates = journal.as_ref().map_or_else(report::machine::today, Journal::dates);
    let report = Report { peers: &peers, tables: &tables, findings: &findings, rounds, quick: args.quick, dates: &dates };
    let hint = if journal.is_some() { "the same command with --resume goes on" } else { "" };
    let unfinished = match ended {
        Ended::Well => None,
        Ended::Signal(signal) => Some((format!("interrupted by signal {signal}"), 128 + signal as u8)),
        Ended::Late(left) => Some((format!("out of time after {} minutes with {left} turns left", args.within), OUT_OF_TIME)),
    };
    if let Some((why, code)) = unfinished {
        // A partial result may be useful, but must not replace a complete one.
        print!("{report}");
        return Err(Failure { what: format!("{why}; the results until then are on stdout"), hint: hint.into(), code });
    }
    if all && !report.gaps().is_empty() {
        eprintln!("the list of rows is incomplete: the report names {} gaps", report.gaps().len());
    }
    let path = match &args.output {
        Some(path) if path.as_os_str() == "-" => None,
        Some(path) => Some(path.clone()),
        None => all.then(|| repository().join("docs/performance.md")),
    };
    write(&report.to_string(), path)?;
    if let Some(path) = &args.chart {
        let chart = report.chart();
        let chart = chart.ok_or_else(|| Failure::environment("--chart: no latency was measured", "the tables say why"))?;
        save(&chart, path).map_err(|error| Failure::environment(error, "the tables are written"))?;
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn write(text: &str, path: Option<PathBuf>) -> Result<(), Failure> {
    let Some(path) = path else {
        print!("{text}");
        return Ok(());
    };
    save(text, &path).map_err(|error| {
        print!("{text}");
        Failure::environment(error, "the tables are on stdout")
    })
}

fn save(text: &str, path: &Path) -> Result<(), String> {
    let parent = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    parent.and_then(|()| std::fs::write(path, text)).map_err(|error| format!("could not write {}: {error}", path.display()))?;
    eprintln!("written to {}", path.display());
    Ok(())
}

/// The tables of these rows. By default, those by which Doorbell is compared are measured touched and untouched.
fn tables(args: &Args, rows: &[Row]) -> Vec<Table> {
    let ways = |row: Row| {
        let touched = (!args.untouched).then(|| row.tables(true));
        let untouched = (args.untouched || !args.touched && rows::has(row)).then(|| row.tables(false));
        touched.into_iter().chain(untouched).flatten()
    };
    Row::ALL.into_iter().filter(|row| rows.contains(row)).flat_map(ways).collect()
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure::environment(error.to_string(), "")
    }
}

/// The result of a run.
type Ran = Result<Outcome, Stopped>;
