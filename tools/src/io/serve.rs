//! `doorbell io serve`: the daemon.

use super::JoinArgs;
use crate::exit::Failure;
use crate::processes::{EndRequest, raise_descriptors};
use crate::text::{WAITS, bytes, counted, print, words};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use doorbell::Role;
use doorbell::io::{IoEngine, IoServer};
use std::path::PathBuf;
use std::time::Duration;

/// How often the server looks for a request to end.
const LOOK: Duration = Duration::from_millis(50);

/// Serve a directory to the nodes of a domain, until interrupted
///
/// The node has the role `io`. Each client has descriptors of its own. The server closes them when the client drops them, leaves or dies. It opens only
/// regular files and directories. Paths that lead out of the directory fail with EXDEV.
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../../help/io-serve.txt"))]
pub struct ServeArgs {
    /// The directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Let all calls fail that would change something (EROFS)
    #[arg(long)]
    read_only: bool,
    /// Also serve file systems that are mounted in the directory; otherwise paths that lead there fail (EXDEV)
    #[arg(long)]
    other_file_systems: bool,
    /// Clients at a time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=64))]
    clients: u16,
    /// Files that one client may have open at a time
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..))]
    descriptors: u16,
    /// How files are read and written
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = PossibleValuesParser::new(ENGINES).map(|word| engine(&word)))]
    engine: IoEngine,
    /// How its threads wait: auto spins, then yields, then sleeps
    #[arg(long, value_name = "HOW", default_value_t = doorbell::Wait::default(), value_parser = words::<doorbell::Wait>(WAITS))]
    wait: doorbell::Wait,
    #[command(flatten)]
    join: JoinArgs,
}

/// The words for engines.
pub const ENGINES: [&str; 3] = ["auto", "io_uring", "plain"];

/// The engine of a word.
pub fn engine(word: &str) -> IoEngine {
    match word {
        "io_uring" => IoEngine::Uring,
        "plain" => IoEngine::Plain,
        _ => IoEngine::Auto,
    }
}

/// Serves.
pub fn run(args: &ServeArgs) -> Result<(), Failure> {
    let request = EndRequest::listen()?;
    raise_descriptors();
    let node = args.join.join_with(Role::Io, "io serve", |builder| builder.wait(args.wait))?;
    let directory = args.directory.display();
    let server = IoServer::builder(&node, &args.directory)
        .read_only(args.read_only)
        .other_file_systems(args.other_file_systems)
        .clients(args.clients.into())
        .descriptors(args.descriptors.into())
        .engine(args.engine)
        .start()
        .map_err(|error| {
            let hint = match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR) => "name a directory",
                Some(libc::EACCES) => "name a directory that this user may read",
                Some(libc::EPERM | libc::ENOSYS) if args.engine == IoEngine::Uring => {
                    "--engine auto does without io_uring where it can't be had"
                }
                Some(libc::ENOSYS | libc::EINVAL) => "it takes Linux 5.6 or later (`openat2`)",
                _ => "`doorbell info` shows what this machine lacks",
            };
            Failure::usage(format!("cannot serve {directory}: {error}"), hint).see(&error)
        })?;
    let at = node.address().map_or_else(String::new, |address| format!(" at {address}"));
    let rights = if args.read_only { " to read only" } else { "" };
    let (id, domain) = (node.id(), node.domain());
    print(&format!(
        "node {id} of domain '{domain}'{at} serves {directory}{rights}, by {}; interrupt it to end\n",
        server.engine()
    ));
    while request.check().is_ok() && server.is_serving() {
        std::thread::sleep(LOOK);
    }
    let counts = server.counts();
    let ended = server.stop();
    print(&format!(
        "{} done, {} read, {} written; {} lost\n",
        counted(counts.requests as usize, "request"),
        bytes(counts.bytes_read),
        bytes(counts.bytes_written),
        counted(counts.lost as usize, "client")
    ));
    ended.map_err(|error| Failure::failed(&error, "start it again").see(&error))
}
