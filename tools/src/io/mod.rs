//! `doorbell io`: files of an I/O node, for nodes that have none.
//!
//! [`serve`] is the server. [`copy`] and [`show`] are its clients, and name files by [`place`]. [`bench`] measures. All of them join by [`join`].

pub mod bench;
mod copy;
mod join;
pub mod place;
mod serve;
mod show;

pub use join::{ClientArgs, JoinArgs};
pub use place::{Place, There};
pub use show::failed;

use crate::exit::Failure;
use clap::Subcommand;

/// Serve files to nodes that have none, and use them
///
/// An I/O node serves one directory to its domain. Processes on other nodes open, read and write files there with the library (`doorbell::io`), or with
/// these commands. Calls that may wait for a medium go by io_uring. No path leads out of the directory, by `..`, absolute paths or links.
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../../help/io.txt"))]
pub struct IoArgs {
    #[command(subcommand)]
    command: IoCommand,
}

#[derive(Debug, Subcommand)]
enum IoCommand {
    Serve(serve::ServeArgs),
    Cp(copy::CopyArgs),
    Cat(show::CatArgs),
    Ls(show::LsArgs),
    Bench(bench::BenchArgs),
}

/// Runs the subcommand.
pub fn run(args: &IoArgs) -> Result<(), Failure> {
    match &args.command {
        IoCommand::Serve(args) => serve::run(args),
        IoCommand::Cp(args) => copy::run(args),
        IoCommand::Cat(args) => show::cat(args),
        IoCommand::Ls(args) => show::ls(args),
        IoCommand::Bench(args) => bench::run(args),
    }
}
