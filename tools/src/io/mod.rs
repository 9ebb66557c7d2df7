//! `doorbell io`: files of an I/O node, for nodes that have none.
//!
//! [`serve`] is the daemon; [`copy`] and [`show`] are its clients, with [`place`] as the notation of what they name; [`bench`] measures. All join by [`join`].

pub mod bench;
mod copy;
mod join;
pub mod place;
mod serve;
mod show;

use crate::exit::Failure;
use clap::Subcommand;

/// Serve files to nodes that have none, and use them
///
/// An I/O node serves one directory to its domain: processes on other nodes open, read and write files there with the library (`doorbell::io`), or with
/// these commands. What may wait for a medium is done by io_uring. Nothing outside of the directory can be reached, by `..`, absolute paths or links.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  doorbell io serve /srv/data                    serve a directory to the domain `files` of this machine, until interrupted
  doorbell io ls io:                             what is in it
  doorbell io cp result.bin io:run1.bin          copy there; `doorbell io cp io:run1.bin .` copies back
  doorbell io cat io:log | tail                  read a file
  doorbell io bench --pin 0,1                    what reading by an I/O node takes beside reading locally

Places: `io:PATH` is PATH in the directory of the only I/O node of the domain, `3:PATH` in that of node 3. Anything else is a file of this machine; write
`./3:x` for one whose name looks like a place. Paths are relative to the directory that is served: `io:a/b`.

Two machines, with a key that both have (`head -c 32 /dev/urandom > grid.key; chmod 600 grid.key`):
  doorbell io serve /srv/data --listen 10.0.0.1:7000 --key-file grid.key           on the one, which has that address
  doorbell io ls io: --connect 10.0.0.1:7000 --key-file grid.key                   on the other")]
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

/// Does what is asked for.
pub fn run(args: &IoArgs) -> Result<(), Failure> {
    match &args.command {
        IoCommand::Serve(args) => serve::run(args),
        IoCommand::Cp(args) => copy::run(args),
        IoCommand::Cat(args) => show::cat(args),
        IoCommand::Ls(args) => show::ls(args),
        IoCommand::Bench(args) => bench::run(args),
    }
}
