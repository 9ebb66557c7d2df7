//! `doorbell run`: starts the nodes of a domain, and ends them.
//!
//! [`launch`] starts one process a node, [`output`] passes on what they write, [`watch`] waits for them and for signals and
//! decides when all is over. A [`Guard`] finishes the work if this process itself is killed.

mod cpus;
mod input;
mod launch;
mod output;
mod watch;

use crate::environment::Domain;
use crate::exit::{Failure, warn};
use crate::guard::Guard;
use crate::processes::adopt_orphans;
use crate::text::time;
use cpus::CpuList;
use doorbell::{Progress, Role, Space, Wait};
use doorbell_shm::domain::{clean, list_domains};
use launch::Launch;
use output::Output;
use std::ffi::OsString;
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

The environment of node I:
  DOORBELL_DOMAIN    the domain's name            DOORBELL_ROLE      host, accelerator, io or service
  DOORBELL_NODE      I, from 0                    DOORBELL_PROGRESS  if --progress is given
  DOORBELL_NODES     N                            DOORBELL_WAIT      if --wait is given

Signals: INT, TERM, HUP, QUIT, USR1 and USR2 are passed on to all nodes. A second INT or TERM ends those that do not
end by themselves, a third one at once. Standard input goes to node 0.

Exit code: 0 if all nodes end with 0; otherwise that of the first that failed, 128 and the signal's number if a
signal ended it; 2 if the program cannot be started.")]
pub struct RunArgs {
    /// How many nodes
    #[arg(short = 'n', long = "nodes", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    nodes: u16,
    /// The domain's name [default: one of its own]
    #[arg(long, value_name = "NAME")]
    domain: Option<Domain>,
    /// Roles, in the order of the nodes: host, accelerator, io or service [default: host,accelerator]
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
    /// Let the nodes write for themselves, without their numbers in front
    #[arg(long)]
    no_prefix: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Starts the nodes, and returns when they are gone.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    let domain = args.domain.clone().map_or_else(|| format!("run-{}", std::process::id()), |Domain(name)| name);
    refuse_taken_places(&domain, args.nodes)?;
    let bind = args.bind.as_ref().map(CpuList::checked).transpose()?;
    // Before any thread is started: all of them are to leave these signals to `watch`.
    let signals = watch::Signals::block()?;
    adopt_orphans();
    let launch = Launch { args, domain: &domain, bind };
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
