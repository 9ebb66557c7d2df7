//! `doorbell run`: starts the nodes of a domain, and ends them.
//!
//! [`launch`] starts one process for each node. [`output`] passes on their output. [`watch`] waits for them and for signals, and ends them. A
//! [`Guard`] cleans up if this process itself is killed.

mod cpus;
mod input;
mod launch;
mod output;
mod watch;

use crate::environment::{Address, Domain, key_file};
use crate::exit::{Failure, warn};
use crate::guard::Guard;
use crate::join::PortArgs;
use crate::processes::adopt_orphans;
use crate::text::time;
use cpus::CpuList;
use doorbell::{Node, Progress, Role, Space, Wait};
use doorbell_shm::domain::{clean, list_domains};
use launch::Launch;
use output::Output;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Start N copies of a program as the nodes of a domain
///
/// Each copy finds its place in its environment, which `Node::from_env()` reads. The command prints their output line by line, with the number of
/// the node in front. When one copy fails, it ends the others. Nothing is left behind.
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../../help/run.txt"))]
pub struct RunArgs {
    /// How many nodes
    #[arg(short = 'n', long = "nodes", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    nodes: u16,
    /// The domain's name [default: a new one, and on a network one made from the address]
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
    /// How long nodes may take to end before they are killed: 3s, 500ms
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = time)]
    grace: Duration,
    /// If a node fails, keep its segments for `doorbell autopsy`; `doorbell clean` removes them
    #[arg(long)]
    keep: bool,
    /// Listen for nodes of other machines at this UDP address of node 0. It can be given up to four times, for several network interfaces:
    /// if one is cut, its traffic goes over another
    #[arg(long, value_name = "ADDR", conflicts_with = "connect")]
    listen: Vec<Address>,
    /// Join the domain that listens at this UDP address, on another machine
    #[arg(long, value_name = "ADDR")]
    connect: Option<Address>,
    /// The file with the key of a domain on a network [env: DOORBELL_KEY_FILE=]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    #[command(flatten)]
    port: PortArgs,
    /// Let the nodes write directly, without their numbers in front
    #[arg(long)]
    no_prefix: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Starts the nodes, and returns when they are gone.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    let network = Network::of(args)?;
    let usual = || network.map_or_else(|| format!("run-{}", std::process::id()), |network| network.domain());
    let domain = args.domain.clone().map_or_else(usual, |Domain(name)| name);
    if !matches!(network, Some(Network::Connects(_))) {
        refuse_taken_places(&domain, args.nodes)?;
    }
    let bind = args.bind.as_ref().map(CpuList::checked).transpose()?;
    // Before any thread starts, so that all threads leave these signals to `watch`.
    let signals = watch::Signals::block()?;
    adopt_orphans();
    let launch = Launch { args, domain: &domain, bind, network };
    let mut guard = Guard::start(&domain)?;
    let mut output = Output::new(!args.no_prefix);
    let nodes = launch.start(&mut output, &mut guard)?;
    let outcome = watch::until_all_ended(nodes, &signals, output.pass()?, args.grace);
    // All nodes have left or are dead by now.
    if args.keep && outcome.is_err() {
        warn(format_args!(
            "what dead nodes left is kept: see `doorbell autopsy --domain {domain} NODE`, then `doorbell clean {domain}`"
        ));
    } else if let Err(error) = clean(&Space::posix(), Some(&domain), false) {
        warn(format_args!("segments of domain '{domain}' may be left: {error}"));
    }
    drop(guard);
    outcome
}

/// How nodes of other machines reach these nodes.
#[derive(Clone, Copy)]
enum Network {
    /// At this address of node 0, and perhaps at further ones.
    Listens(SocketAddr),
    /// By way of the node at this address.
    Connects(SocketAddr),
}

impl Network {
    /// The network of the command line, after a check.
    fn of(args: &RunArgs) -> Result<Option<Self>, Failure> {
        let listens = args.listen.first().map(|Address(at)| Self::Listens(*at));
        let unusable = args.listen.iter().find(|Address(at)| at.port() == 0 || at.ip().is_unspecified());
        let network = listens.or(args.connect.map(|Address(to)| Self::Connects(to)));
        if let Some(Address(at)) = unusable {
            let what = format!("--listen: other nodes get this address, and cannot connect to {at}");
            return Err(Failure::usage(what, "say an address of this machine that `ip addr` lists, and a port from 1024 on"));
        }
        match network {
            None if args.key_file.is_some() => {
                return Err(Failure::usage("--key-file is for a domain on a network", "add --listen or --connect"));
            }
            Some(_) => {
                if let Some(path) = key_file(args.key_file.clone())? {
                    let hint = "--key-file wants the same file on all machines";
                    let _ = Node::builder("key").key_file(path).map_err(|error| Failure::usage(error, hint))?;
                }
            }
            None => {}
        }
        Ok(network)
    }

    /// The usual name of the domain, the same one on all machines.
    fn domain(self) -> String {
        let (Self::Listens(address) | Self::Connects(address)) = self;
        let name = |char: char| if char.is_ascii_alphanumeric() { char } else { '-' };
        format!("run-{address}").chars().map(name).collect()
    }
}

/// Fails if a living node of another program has one of the ids. Nodes with other ids may be in the domain.
fn refuse_taken_places(domain: &str, nodes: u16) -> Result<(), Failure> {
    let hint = "`doorbell info` shows what is wrong there";
    let domains = list_domains(&Space::posix()).map_err(|error| Failure::usage(error, hint))?;
    let found = domains.iter().filter(|found| found.name == domain).flat_map(|found| &found.nodes);
    match found.filter(|node| node.alive).find(|node| node.id.0 < nodes) {
        None => Ok(()),
        Some(node) => Err(Failure::usage(
            format!("node {} of domain '{domain}' lives already", node.id),
            format!("choose another name, or see what is there with `doorbell ls {domain}`"),
        )),
    }
}
