//! The `doorbell` command. Each subcommand is a module with its arguments and a `run`.

mod atomics;
mod autopsy;
mod bridge;
mod chart;
mod clean;
mod clock;
mod demo;
mod environment;
mod exit;
mod experiment;
mod guard;
mod info;
mod io;
mod join;
mod links_shown;
mod log;
mod ls;
mod manual;
mod measure;
mod modes;
mod nodes;
mod page;
mod paths;
mod processes;
mod report;
mod run;
mod serve;
mod text;
mod top;
mod tune;

use clap::{Parser, Subcommand};
use exit::Failure;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tracing_subscriber::filter::LevelFilter;

/// Messages between processes at the speed of a cache line.
#[derive(Debug, Parser)]
#[command(
    name = "doorbell",
    version,
    max_term_width = 110,
    after_help = include_str!("../help/cli.txt")
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// The directory of the segments [default: $DOORBELL_SPACE, or /dev/shm]
    #[arg(long, global = true, value_name = "DIR")]
    space: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::DemoArgs),
    Run(run::RunArgs),
    Latency(measure::latency::LatencyArgs),
    Rate(measure::rate::RateArgs),
    Bandwidth(measure::bandwidth::BandwidthArgs),
    Ports(measure::ports::PortsArgs),
    Lock(measure::lock::LockArgs),
    Atomics(atomics::AtomicsArgs),
    Collective(measure::collective::CollectiveArgs),
    Device(measure::device::DeviceArgs),
    Dma(measure::dma::DmaArgs),
    Io(io::IoArgs),
    Bridge(bridge::BridgeArgs),
    Modes(modes::ModesArgs),
    Top(top::TopArgs),
    Serve(serve::ServeArgs),
    Ls(ls::LsArgs),
    Autopsy(autopsy::AutopsyArgs),
    Clean(clean::CleanArgs),
    Tune(tune::TuneArgs),
    Info(info::InfoArgs),
    Report(report::ReportArgs),
    Man(manual::ManArgs),
    Completions(manual::CompletionsArgs),
    /// Prints the page docs/reference-commands.md. A test compares the page with it.
    #[command(hide = true)]
    Reference,
    /// One of the processes of a measurement, which the measuring commands start.
    #[command(name = experiment::COMMAND, hide = true)]
    Worker(experiment::WorkerArgs),
    /// Cleans up after a command that was killed. The commands that start processes start it.
    #[command(name = guard::COMMAND, hide = true)]
    Guard(guard::GuardArgs),
    /// One of the accelerators of the demo, which starts it.
    #[command(name = demo::accelerator::COMMAND, hide = true)]
    DemoAccelerator(demo::accelerator::AcceleratorArgs),
}

impl Command {
    fn run(mut self, space: Option<&Path>) -> Result<(), Failure> {
        environment::check()?;
        let of_file = if let Command::Run(args) = &mut self { args.complete()? } else { None };
        environment::choose_space(space.or(of_file.as_deref()))?;
        // Only the first worker of a measurement logs, and it installs the log itself.
        if !matches!(self, Command::Worker(_)) {
            log::install(LevelFilter::WARN)?;
        }
        match self {
            Command::Demo(args) => demo::run(&args),
            Command::Run(args) => run::run(&args),
            Command::Latency(args) => measure::latency::run(&args),
            Command::Rate(args) => measure::rate::run(&args),
            Command::Bandwidth(args) => measure::bandwidth::run(&args),
            Command::Ports(args) => measure::ports::run(&args),
            Command::Lock(args) => measure::lock::run(&args),
            Command::Atomics(args) => atomics::run(&args),
            Command::Collective(args) => measure::collective::run(&args),
            Command::Device(args) => measure::device::run(&args),
            Command::Dma(args) => measure::dma::run(&args),
            Command::Io(args) => io::run(&args),
            Command::Bridge(args) => bridge::run(&args),
            Command::Modes(args) => modes::run(&args),
            Command::Top(args) => top::run(&args),
            Command::Serve(args) => serve::run(&args),
            Command::Ls(args) => ls::run(&args),
            Command::Autopsy(args) => autopsy::run(&args),
            Command::Clean(args) => clean::run(&args),
            Command::Tune(args) => tune::run(&args),
            Command::Info(args) => info::run(&args),
            Command::Report(args) => report::run(&args),
            Command::Man(args) => manual::man(&args),
            Command::Completions(args) => manual::completions(&args),
            Command::Reference => manual::reference(),
            Command::Worker(args) => experiment::run(&args),
            Command::Guard(args) => guard::run(&args),
            Command::DemoAccelerator(args) => demo::accelerator::run(&args),
        }
    }
}

fn main() -> ExitCode {
    let Cli { command, space } = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::usage(&error),
    };
    match command.run(space.as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => exit::report(&failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use clap::builder::ValueParser;

    /// Every option that takes a path, as `command option`.
    fn paths(command: &clap::Command, of: &str, found: &mut Vec<String>) {
        let is_path = |parser: &ValueParser| {
            let types = [ValueParser::path_buf(), clap::value_parser!(io::place::Place).into()];
            types.iter().any(|path| path.type_id() == parser.type_id())
        };
        let all = command.get_arguments().filter(|arg| is_path(arg.get_value_parser()));
        found.extend(all.map(|arg| format!("{of}{}", arg.get_id())));
        command.get_subcommands().for_each(|sub| paths(sub, &format!("{of}{} ", sub.get_name()), found));
    }

    #[test]
    fn every_path_is_one_that_the_test_of_paths_knows() {
        let mut found = Vec::new();
        paths(&Cli::command(), "", &mut found);
        // One key file stands for all of them, since they are read in one place.
        found.retain(|option| !option.ends_with(" key_file"));
        let known = [
            "space",
            "demo trace",
            "run config",
            "io serve directory",
            "io cp from",
            "io cp to",
            "io bench dir",
            "bridge unix",
            "modes load",
            "modes save",
            "modes report",
            "report page",
            "man directory",
        ];
        assert_eq!(found, known, "`tests/command/paths.rs` has to try it with every kind of file");
    }
}
