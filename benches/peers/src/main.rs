//! `doorbell-peers`: runs Doorbell and other transports in turns, and writes a comparison.

mod launch;
mod peers;
mod plan;
mod report;

use clap::Parser;
use doorbell_peers::order::Player;
use doorbell_peers::{collective, foreign, native, worker};
use launch::{Launcher, Outcome, Stopped};
use peers::{Peer, Who};
use plan::{Row, Table};
use report::{Findings, Report};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

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
  doorbell-peers                                  everything, into docs/performance.md (15 minutes)
  doorbell-peers --quick                          everything, roughly, to the terminal (3 minutes)
  doorbell-peers --only ucx,mpi --rows latency    one table, to the terminal
  doorbell-peers --rows udp                       what goes over UDP, to the terminal (1 minute)
  doorbell-peers --rows overlap                   computing during transfers, to the terminal (2 minutes)
  doorbell-peers --rows collectives               teams, to the terminal (3 minutes)
  doorbell-peers --rounds 9 --output -            more rounds, to the terminal
  doorbell-peers --rows latency --chart f.svg     one table, and a chart of it

Columns with × give the peer's time for a message divided by Doorbell's: above 1
Doorbell is faster. Times move by 10 to 30 % from hour to hour on virtual machines, ratios
less: compare within one run only. Run nothing else meanwhile.

Exit codes: 0 measured (failures of peers are rows of the tables), 1 Doorbell itself failed,
2 wrong arguments or environment, 130 interrupted."
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
    /// The two processors
    #[arg(long, value_name = "CPU,CPU", value_delimiter = ',', num_args = 1, default_value = "0,1")]
    pin: Vec<usize>,
    /// Neither write sent messages nor read received ones
    #[arg(long)]
    untouched: bool,
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

/// Why nothing was measured.
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
    let &[first, second] = args.pin.as_slice() else {
        return Err(Failure::environment("--pin: two processors are needed", "--pin 0,1"));
    };
    let rows: Vec<Row> = if args.rows.is_empty() { Row::ALL.to_vec() } else { args.rows.clone() };
    let tables: Vec<Table> = Row::ALL.iter().filter(|row| rows.contains(row)).flat_map(|row| row.tables()).collect();
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
    let launcher = Launcher::new([first, second], !args.untouched, args.limit)?;
    let mut findings = Findings::default();
    let mut stopped = None;
    'rounds: for round in 0..usize::from(rounds) {
        for table in &tables {
            for turn in 0..peers.len() {
                // Shift the order, so that no peer always follows the same one.
                let peer = &peers[(turn + round) % peers.len()];
                if peer.can(*table) && findings.is_worth_a_try(peer.who, *table) {
                    say(round, rounds, *table, peer);
                    match launcher.run(peer, *table, args.quick) {
                        Ok(outcome) => findings.add(peer.who, *table, round, outcome),
                        Err(Stopped(signal)) => {
                            stopped = Some(signal);
                            break 'rounds;
                        }
                    }
                }
            }
        }
    }
    say_no_more();
    let failed = findings.failed(Who::Doorbell) || findings.failed(Who::Foreground);
    let report =
        Report { peers: &peers, tables: &tables, findings: &findings, rounds, quick: args.quick, touched: !args.untouched };
    if let Some(signal) = stopped {
        // A partial result may be useful, but must not replace a complete one.
        print!("{report}");
        let what = format!("interrupted by signal {signal}; the results until then are on stdout");
        return Err(Failure { what, hint: String::new(), code: 128 + signal as u8 });
    }
    let all = args.only.is_empty() && args.rows.is_empty() && !args.quick && !args.untouched;
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

fn say(round: usize, rounds: u16, table: Table, peer: &Peer) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[Kround {} of {rounds}: {} over {}", round + 1, plan::title(table), peer.who.name());
    }
}

fn say_no_more() {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure::environment(error.to_string(), "")
    }
}

/// The result of a run.
type Ran = Result<Outcome, Stopped>;
