//! One of the processes: pins itself, joins the domain, and sends, or has its threads receive.

use super::super::net;
use super::super::plan::{Recorded, Reply};
use super::super::worker::{WorkerArgs, answer, meet, obey, pin, read, unable};
use super::receiver;
use super::sender;
use super::{Mode, Plan};
use crate::exit::Failure;
use crate::log;
use doorbell::{Error, Node, NodeId};
use doorbell_benches::floor::{Mapping, Patience, Stopped};
use doorbell_fabric::ParseIdError;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tracing_subscriber::filter::LevelFilter;

/// The name under which the command runs itself.
pub const COMMAND: &str = "device-worker";
/// What the device is called.
pub const DEVICE: &str = "threads";

/// What one process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// What all are told.
    pub plan: Plan,
    /// Which of them it is: 0 sends.
    pub node: usize,
    /// The descriptor of the memory that all share.
    pub memory: i32,
    /// The process that started it.
    pub parent: i32,
    /// When the measurement began, by the clock that all share.
    pub began_ns: u64,
}

/// What a process found: for each leg, for each scheme.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Found {
    /// Of the one that sends.
    Sent(Vec<Vec<Vec<Sent>>>),
    /// Of one of which threads receive.
    Received(Vec<Vec<Seen>>),
}

/// A section, as the sender saw it.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Sent {
    /// When it began.
    pub began_ns: u64,
    /// Messages.
    pub messages: u64,
}

/// What a receiving process saw of a scheme.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Seen {
    /// Round by round.
    pub rounds: Vec<Round>,
    /// How long messages took, in nanoseconds, of all rounds.
    pub times: Recorded,
}

/// A section, as the threads of one process saw it.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Round {
    /// Messages.
    pub messages: u64,
    /// When the last thread was done.
    pub ended_ns: u64,
    /// What the process used of processors.
    pub processor_ns: u64,
}

/// Why a task was not done.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// It was told to.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The library says so.
    #[error(transparent)]
    Driver(#[from] Error),
    /// The command line says what can't be had.
    #[error("{0}")]
    Unable(String),
    /// What a scheme should not do.
    #[error("{0}")]
    Wrong(String),
}

impl<F> From<Trouble> for Reply<F> {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Stopped(_) => Reply::Stopped,
            Trouble::Unable(what) => Reply::Unable(Failure::usage(what, "")),
            trouble => Reply::Failed(trouble.to_string()),
        }
    }
}

/// What a process has at hand.
pub struct Prepared {
    /// What it was told.
    pub order: Order,
    /// The node of the process.
    pub node: Node,
    /// Where processes meet.
    pub mapping: Mapping,
    /// Says when to stop.
    pub patience: Patience,
}

/// Does what it was ordered to and answers on stdout.
pub fn run(args: &WorkerArgs) -> Result<(), Failure> {
    let order: Order = read(&args.order)?;
    // What befalls one of them befalls all, and one line is enough.
    log::install(if order.node == 0 { LevelFilter::WARN } else { LevelFilter::OFF })?;
    answer(&serve(order))
}

fn serve(order: Order) -> Reply<Found> {
    let is_sender = order.node == 0;
    let prepared = match prepare(order) {
        Ok(prepared) => Arc::new(prepared),
        Err(reply) => return reply,
    };
    let done = if is_sender { sender::work(&prepared).map(Found::Sent) } else { receiver::work(&prepared).map(Found::Received) };
    match done {
        Ok(found) => Reply::Done(found),
        // The others were told as well, and one of them has left before this one looked.
        Err(_) if prepared.patience.stopped() => Reply::Stopped,
        Err(trouble) => trouble.into(),
    }
}

/// The process has joined the domain.
fn prepare(order: Order) -> Result<Prepared, Reply<Found>> {
    let plan = &order.plan;
    let stop = Arc::new(AtomicBool::new(false));
    obey(order.parent, &stop)?;
    if order.node == 0 {
        pin(plan.pin.first().copied()).map_err(Reply::Unable)?;
    } else {
        pin_to(plan.processors()).map_err(Reply::Unable)?;
    }
    // SAFETY: the descriptor was made for this process, and nothing has used it yet.
    let mapping = unsafe { Mapping::inherit(order.memory, plan.shape()) }
        .map_err(|error| Reply::Unable(unable("could not map the memory that the processes of a measurement share", error)))?;
    let patience = Patience::new(stop, plan.crowded);
    let node = join(plan, order.node).map_err(|failure| Reply::Unable(*failure))?;
    Ok(Prepared { node, mapping, patience, order })
}

/// This thread, and those that it starts, may run on these processors; anywhere if there are none.
pub fn pin_to(processors: &[usize]) -> Result<(), Failure> {
    if processors.is_empty() {
        return Ok(());
    }
    let mut set = nix::sched::CpuSet::new();
    processors
        .iter()
        .try_for_each(|processor| set.set(*processor))
        .and_then(|()| nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set))
        .map_err(|error| unable(&format!("could not move to processors {processors:?}"), error))
}

/// Joins the domain: 0 is the sender, then come the processes that receive, and then the threads.
pub fn join(plan: &Plan, id: usize) -> Result<Node, Box<Failure>> {
    let malformed = |error: ParseIdError| Error::Invalid { what: error.to_string() };
    let joined = || -> Result<Node, Error> {
        let builder = Node::builder(&plan.domain).id(NodeId(id as u16)).label("device").max_nodes(plan.nodes());
        let builder = builder.loan_bytes((16 * plan.longest()).max(64 << 20));
        builder.progress(plan.progress.parse().map_err(malformed)?).wait(plan.wait.parse().map_err(malformed)?).join()
    };
    joined()
        .map_err(|error| Box::new(net::failure(error).of(format!("could not join the domain '{}' as node {id}", plan.domain))))
}

impl Prepared {
    /// Waits until all nodes are there.
    pub fn meet(&self) -> Result<(), Trouble> {
        if meet(&self.node, self.order.plan.nodes(), &self.patience)? { Ok(()) } else { Err(Stopped.into()) }
    }

    /// Waits until all processes are here.
    pub fn gate(&self) -> Result<(), Trouble> {
        Ok(self.mapping.gate().pass(1 + self.order.plan.receivers(), &self.patience)?)
    }

    /// Since the measurement began.
    #[inline(always)]
    pub fn now(&self) -> u64 {
        crate::clock::now() - self.order.began_ns
    }

    /// The node that a thread's messages go to, where a process receives them.
    pub fn home(&self, thread: usize) -> NodeId {
        NodeId(1 + self.order.plan.home(thread) as u16)
    }

    /// The node that a thread is itself.
    pub fn itself(&self, thread: usize) -> NodeId {
        NodeId((1 + self.order.plan.receivers() + thread) as u16)
    }

    /// The threads of this process, if it receives.
    pub fn threads(&self) -> Vec<usize> {
        let plan = &self.order.plan;
        let me = self.order.node.saturating_sub(1);
        (0..plan.threads).filter(|thread| plan.mode == Mode::Smp || plan.home(*thread) == me).collect()
    }
}
