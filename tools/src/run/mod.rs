//! `doorbell run`: starts the nodes of a domain, and ends them.
//!
//! [`config`] completes the options from a file. [`launch`] starts one process for each node. [`output`] passes on their output. [`watch`] waits for them and for signals, and ends them. A
//! [`Guard`] cleans up if this process itself is killed.

mod config;
mod cpus;
mod input;
mod launch;
mod output;
mod watch;

use crate::environment::{Domain, key_file, space};
use crate::exit::{Failure, warn};
use crate::guard::Guard;
use crate::join::PortArgs;
use crate::processes::adopt_orphans;
use crate::text::time;
use config::Extras;
use cpus::CpuList;
use doorbell::{Address, Node, Progress, Role, Wait};
use doorbell_shm::domain::{clean, list_domains};
use doorbell_udp::fabric::read_key;
use launch::Launch;
use output::Output;
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The usual time for nodes to end.
const GRACE: Duration = Duration::from_secs(3);

/// Start N copies of a program as the nodes of a domain
///
/// Each copy finds its place in its environment, which `Node::from_env()` reads. The command prints their output line by line, with the number of
/// the node in front. When one copy fails, it ends the others. Nothing is left behind.
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../../help/run.txt"))]
pub struct RunArgs {
    /// How many nodes
    #[arg(short = 'n', long = "nodes", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), required_unless_present = "config")]
    nodes: Option<u16>,
    /// A file in TOML with the options that the command line leaves out. The environment counts before the file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The domain's name [default: a new one, and on a network one made from the port]
    #[arg(long, value_name = "NAME")]
    domain: Option<Domain>,
    /// Roles, in the order of the nodes: host, accelerator, io or service [default: host,accelerator, and with --connect
    /// accelerator]
    #[arg(long, value_name = "ROLE,…", value_delimiter = ',')]
    role: Vec<Role>,
    /// Which thread turns the engine of each node: inline, poller or adaptive
    #[arg(long, value_name = "WHICH")]
    progress: Option<Progress>,
    /// How threads wait: auto, spin, yield or park
    #[arg(long, value_name = "HOW")]
    wait: Option<Wait>,
    /// Processors, one for each node in turn: 0,1 or 0-3
    #[arg(long, value_name = "CPU,…")]
    bind: Option<CpuList>,
    /// How long nodes may take to end before they are killed: 3s, 500ms [default: 3s]
    #[arg(long, value_name = "TIME", value_parser = time)]
    grace: Option<Duration>,
    /// If a node fails, keep its segments for `doorbell autopsy`; `doorbell clean` removes them. `--keep=false` undoes what a file says
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    keep: Option<bool>,
    /// Listen for nodes of other machines at this UDP address of node 0: HOST:PORT; 0.0.0.0 is every address of this machine. It can be
    /// given up to four times, for several network interfaces: if one is cut, its traffic goes over another
    #[arg(long, value_name = "ADDR", value_parser = Address::from_str, conflicts_with = "connect")]
    listen: Vec<Address>,
    /// Join the domain that listens at this UDP address, on another machine: HOST:PORT
    #[arg(long, value_name = "ADDR", value_parser = Address::from_str)]
    connect: Option<Address>,
    /// The file with the key of a domain on a network [env: DOORBELL_KEY_FILE=]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    #[command(flatten)]
    port: PortArgs,
    /// Let the nodes write directly, without their numbers in front. `--no-prefix=false` undoes what a file says
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    no_prefix: Option<bool>,
    /// The program and its arguments
    #[arg(required_unless_present = "config", trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
    /// The settings of the file beyond options.
    #[arg(skip)]
    extras: Extras,
}

impl RunArgs {
    /// The number of nodes, which command line, environment or file have given by now.
    fn nodes(&self) -> u16 {
        self.nodes.unwrap_or(1)
    }
}

/// Starts the nodes, and returns when they are gone.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    let network = Network::of(args)?;
    let domain = match (&args.domain, &network) {
        (Some(Domain(name)), _) => name.clone(),
        (None, Some(network)) => network.domain(args)?,
        (None, None) => format!("run-{}", std::process::id()),
    };
    if !matches!(network, Some(Network::Connects(_))) {
        refuse_taken_places(&domain, args.nodes())?;
    }
    let bind = args.bind.as_ref().map(CpuList::checked).transpose()?;
    // Before any thread starts, so that all threads leave these signals to `watch`.
    let signals = watch::Signals::block()?;
    adopt_orphans();
    let launch = Launch { args, domain: &domain, bind, network };
    let mut guard = Guard::start(&domain)?;
    let mut output = Output::new(args.no_prefix != Some(true));
    let nodes = launch.start(&mut output, &mut guard)?;
    let outcome = watch::until_all_ended(nodes, &signals, output.pass()?, args.grace.unwrap_or(GRACE));
    // All nodes have left or are dead by now.
    if args.keep == Some(true) && outcome.is_err() {
        warn(format_args!(
            "what dead nodes left is kept: see `doorbell autopsy --domain {domain} NODE`, then `doorbell clean {domain}`"
        ));
    } else if let Err(error) = clean(&space(), Some(&domain), false) {
        warn(format_args!("segments of domain '{domain}' may be left: {error}"));
    }
    drop(guard);
    outcome
}

const KEY_HINT: &str = "all machines need the same key file";

/// How nodes of other machines reach these nodes.
enum Network {
    /// At this address of node 0, and perhaps at further ones.
    Listens(Address),
    /// By way of the node at this address.
    Connects(Address),
}

impl Network {
    /// The network of the command line, after a check.
    fn of(args: &RunArgs) -> Result<Option<Self>, Failure> {
        let listens = args.listen.first().cloned().map(Self::Listens);
        let network = listens.or(args.connect.clone().map(Self::Connects));
        if let Some(at) = args.listen.iter().find(|at| at.port() == 0) {
            let what = format!("--listen: other nodes get this address, and cannot connect to {at}");
            return Err(Failure::usage(what, "say a port from 1024 on"));
        }
        match network {
            None if args.key_file.is_some() => {
                return Err(Failure::usage(
                    "a key file (--key-file, or key-file in the configuration) is for a domain on a network",
                    "add --listen or --connect",
                ));
            }
            Some(_) => {
                if let Some(path) = key_file(args.key_file.clone())? {
                    let _ = Node::builder("key").key_file(path).map_err(|error| Failure::usage(&error, KEY_HINT).see(&error))?;
                }
            }
            None => {}
        }
        Ok(network)
    }

    /// The usual name of the domain, the same one on all machines. They may know node 0 by different addresses, but by one port and
    /// one key. Runs with different keys must not meet in shared memory.
    fn domain(&self, args: &RunArgs) -> Result<String, Failure> {
        let (Self::Listens(address) | Self::Connects(address)) = self;
        let name = format!("run-udp-{}", address.port());
        let Some(path) = key_file(args.key_file.clone())? else { return Ok(name) };
        let key = read_key(&path).map_err(|error| Failure::usage(error, KEY_HINT))?;
        Ok(format!("{name}-{:08x}", key.fingerprint()))
    }
}

/// Fails if a living node of another program has one of the ids. Nodes with other ids may be in the domain.
fn refuse_taken_places(domain: &str, nodes: u16) -> Result<(), Failure> {
    let hint = "`doorbell info` shows what is wrong there";
    let domains = list_domains(&space()).map_err(|error| Failure::usage(&error, hint).see(&error))?;
    let found = domains.iter().filter(|found| found.name == domain).flat_map(|found| &found.nodes);
    match found.filter(|node| node.alive).find(|node| node.id.0 < nodes) {
        None => Ok(()),
        Some(node) => Err(Failure::usage(
            format!("node {} of domain '{domain}' lives already", node.id),
            format!("choose another name, or see what is there with `doorbell ls {domain}`"),
        )),
    }
}
