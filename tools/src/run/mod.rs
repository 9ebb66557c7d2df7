//! `doorbell run`: starts the nodes of a domain, and ends them.
//!
//! [`launch`] starts one process a node, [`output`] passes on what they write, [`watch`] waits for them and for signals and
//! decides when all is over. A [`Guard`] finishes the work if this process itself is killed.

mod cpus;
mod input;
mod launch;
mod output;
mod watch;

use crate::environment::{Address, Domain, key_file};
use crate::exit::{Failure, warn};
use crate::guard::Guard;
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
/// Each copy finds its place in its environment, where `Node::from_env()` looks for it. Their output comes line by line, with
/// the number of the node in front. When one of them fails, the others are ended. Nothing is left behind.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  doorbell run -n 4 -- ./ring 1000                       four nodes; the first is the host, the others accelerators
  doorbell run -n 2 --bind 0,1 --wait spin -- ./solver   a processor for each, never given away
  doorbell run -n 3 --role host,io,accelerator -- ./job  roles in the order of the nodes; the last counts for the rest
  doorbell run -n 2 --domain grid -- ./server &          a name that others can find:
  doorbell ls grid
  doorbell run -n 4 --keep --domain grid -- ./job        what a killed node did last: doorbell autopsy --domain grid 3
  doorbell run -n 1 -- env | grep DOORBELL_              what a program is told

One domain on two machines, with a key that both have (`head -c 32 /dev/urandom > grid.key; chmod 600 grid.key`):
  doorbell run -n 2 --listen 10.0.0.1:7000 --key-file grid.key -- ./job     on the one, which has that address
  doorbell run -n 2 --connect 10.0.0.1:7000 --key-file grid.key -- ./job    on the other
  doorbell run -n 2 --listen 10.0.0.1:7000 --listen 10.1.0.1:7000 …         on the one, if two networks join them

The environment of node I:
  DOORBELL_DOMAIN    the domain's name            DOORBELL_ROLE      host, accelerator, io or service
  DOORBELL_NODE      I, from 0                    DOORBELL_PROGRESS  if --progress is given
  DOORBELL_NODES     N                            DOORBELL_WAIT      if --wait is given
  DOORBELL_LISTEN    with --listen, of node 0     DOORBELL_CONNECT   the first address, of all other nodes
                     (of the others any ports of these addresses, if there are several)
  DOORBELL_KEY_FILE  if --key-file is given

With --connect there is no DOORBELL_NODE: the node that listens gives each its id, from the highest one down. N counts the
nodes of one run only. Nodes of one machine reach each other by shared memory all the same.

Signals: INT, TERM, HUP, QUIT, USR1 and USR2 are passed on to all nodes. A second INT or TERM ends those that do not
end by themselves, a third one at once. INT, HUP and QUIT stay ignored if they were when the command was started, as
by nohup or in the background of a script; TERM ends it there. Standard input goes to node 0.

Exit code: 0 if all nodes end with 0; otherwise that of the first that failed, 128 and the signal's number if a
signal ended it; 2 if the program cannot be started.")]
pub struct RunArgs {
    /// How many nodes
    #[arg(short = 'n', long = "nodes", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    nodes: u16,
    /// The domain's name [default: one of its own, and on a network one that follows from the address]
    #[arg(long, value_name = "NAME")]
    domain: Option<Domain>,
    /// Roles, in the order of the nodes: host, accelerator, io or service [default: host,accelerator, and with --connect
    /// accelerator]
    #[arg(long, value_name = "ROLE,…", value_delimiter = ',')]
    role: Vec<Role>,
    /// Who turns the engine of each node: inline, poller or adaptive
    #[arg(long, value_name = "WHO")]
    progress: Option<Progress>,
    /// How threads wait: auto, spin, yield or park
    #[arg(long, value_name = "HOW")]
    wait: Option<Wait>,
    /// Processors, one for each node in turn: 0,1 or 0-3
    #[arg(long, value_name = "CPU,…")]
    bind: Option<CpuList>,
    /// How long nodes that are to end may take before they are killed: 3s, 500ms
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = time)]
    grace: Duration,
    /// If a node fails, leave what it leaves, for `doorbell autopsy`; `doorbell clean` removes it
    #[arg(long)]
    keep: bool,
    /// Have nodes of other machines find the domain at this UDP address, which is node 0's; up to four times, for several
    /// network interfaces: what goes by one that is cut goes on by another
    #[arg(long, value_name = "ADDR", conflicts_with = "connect")]
    listen: Vec<Address>,
    /// Join the domain that listens at this UDP address, on another machine
    #[arg(long, value_name = "ADDR")]
    connect: Option<Address>,
    /// The file with the key of a domain on a network [env: DOORBELL_KEY_FILE=]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Let the nodes write for themselves, without their numbers in front
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
    // Before any thread is started: all of them are to leave these signals to `watch`.
    let signals = watch::Signals::block()?;
    adopt_orphans();
    let launch = Launch { args, domain: &domain, bind, network };
    let mut guard = Guard::start(&domain)?;
    let mut output = Output::new(!args.no_prefix);
    let nodes = launch.start(&mut output, &mut guard)?;
    let outcome = watch::until_all_ended(nodes, &signals, output.pass()?, args.grace);
    // Their nodes are dead now, if they have not left.
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

/// How the nodes are reached from other machines.
#[derive(Clone, Copy)]
enum Network {
    /// By this address of the first of them, and perhaps further ones.
    Listens(SocketAddr),
    /// By way of the node at this address.
    Connects(SocketAddr),
}

impl Network {
    /// As the command line says, if that makes sense.
    fn of(args: &RunArgs) -> Result<Option<Self>, Failure> {
        let listens = args.listen.first().map(|Address(at)| Self::Listens(*at));
        let untold = args.listen.iter().find(|Address(at)| at.port() == 0 || at.ip().is_unspecified());
        let network = listens.or(args.connect.map(|Address(to)| Self::Connects(to)));
        if let Some(Address(at)) = untold {
            let what = format!("--listen: others, to whom it is told, cannot connect to {at}");
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

    /// The same name on all machines.
    fn domain(self) -> String {
        let (Self::Listens(address) | Self::Connects(address)) = self;
        let name = |char: char| if char.is_ascii_alphanumeric() { char } else { '-' };
        format!("run-{address}").chars().map(name).collect()
    }
}

/// Nodes of other programs may be in the domain, as long as they have other numbers.
fn refuse_taken_places(domain: &str, nodes: u16) -> Result<(), Failure> {
    let hint = "see what is wrong there with `doorbell info`";
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
