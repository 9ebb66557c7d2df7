//! The `doorbell` command. Each command is a module that has its arguments and a `run`.

mod exit;
mod measure;

use clap::{Parser, Subcommand};
use exit::Failure;
use std::process::ExitCode;

/// Messages between processes at the speed of a cache line.
#[derive(Debug, Parser)]
#[command(name = "doorbell", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Latency(measure::latency::LatencyArgs),
    Rate(measure::rate::RateArgs),
    /// One of the processes of a measurement; started by the commands that measure.
    #[command(name = measure::worker::COMMAND, hide = true)]
    MeasureWorker(measure::worker::WorkerArgs),
}

impl Command {
    fn run(self) -> Result<(), Failure> {
        match self {
            Command::Latency(args) => measure::latency::run(&args),
            Command::Rate(args) => measure::rate::run(&args),
            Command::MeasureWorker(args) => measure::worker::run(&args),
        }
    }
}

fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return exit::usage(&error),
    };
    match command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => exit::report(&failure),
    }
}
