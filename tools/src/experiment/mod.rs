//! What the measuring commands share.
//!
//! An [`Experiment`] is a plan. [`measure`] starts its [`workers`]. Each worker has a [`Place`] and does the plan's [work](Experiment::work). Their
//! findings become [rows](Experiment::rows), and a [`report`] prints the rows.

pub mod args;
pub mod place;
pub mod report;
pub mod setting;
pub mod workers;

pub use args::ProcessArgs;
pub use place::{Place, cannot_join, leave, pin, unless_stopped};
pub use report::{Field, Fields, rounded};
pub use setting::{FREE, Setting, by_word};

use crate::exit::{Explain, Failure};
use crate::io::bench;
use crate::measure::{collective, device, dma, lock, pairs};
use crate::processes::EndRequest;
use crate::{log, modes};
use doorbell::Error;
use doorbell_benches::{Clock, Mapping, Shape, Stopped};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::sync::atomic::Ordering;
use tracing_subscriber::filter::LevelFilter;
use workers::Workers;

/// The name under which the command starts its workers.
pub const COMMAND: &str = "measure-worker";

/// A measurement by worker processes. The value is the plan, which every worker gets.
pub trait Experiment: Clone + Serialize + DeserializeOwned {
    /// The name that tells a worker the type of its plan.
    const NAME: &'static str;
    /// The findings of one process.
    type Found: Serialize + DeserializeOwned;
    /// A row of the output.
    type Row;

    /// How the processes run.
    fn setting(&self) -> &Setting;

    /// The number of processes.
    fn processes(&self) -> usize;

    /// The role of a process, in words.
    fn role(&self, process: usize) -> &'static str;

    /// The processors on which a process runs. Empty: it runs anywhere.
    fn processors(&self, process: usize) -> Vec<usize> {
        self.setting().processor(process).into_iter().collect()
    }

    /// The shape of the memory that all processes share.
    fn shape(&self) -> Shape {
        Shape { pairs: 0, bytes: 0 }
    }

    /// The work of one process.
    ///
    /// # Errors
    /// The process could not begin, or could not go on.
    fn work(self, place: Place) -> Result<Self::Found, Trouble>;

    /// The rows of all findings, which stand in the order of the processes.
    ///
    /// # Errors
    /// The findings contradict each other, so no figure can be believed.
    fn rows(&self, outcome: Outcome<Self::Found>) -> Result<Vec<Self::Row>, Failure>;
}

/// The findings of all processes.
pub struct Outcome<F> {
    /// The findings of each process.
    pub found: Vec<F>,
    /// The memory that the processes shared.
    pub memory: Mapping,
    /// The clock that turns ticks into nanoseconds.
    pub clock: Clock,
}

/// Starts the processes of an experiment, waits for their findings, and makes rows of these.
pub fn measure<E: Experiment>(plan: &E, clock: Clock, request: &EndRequest) -> Result<Vec<E::Row>, Failure> {
    let shape = plan.shape();
    let memory = Mapping::create(shape).or_usage(
        format_args!("could not get memory that the processes share, for messages of {} bytes", shape.bytes),
        "measure smaller sizes, or fewer processes",
    )?;
    let began_ns = crate::clock::now();
    let order = |process| Order {
        plan: plan.clone(),
        process,
        memory: memory.descriptor(),
        parent: std::process::id() as i32,
        ns_per_tick: clock.ns_per_tick,
        began_ns,
    };
    let found = Workers::start(plan, order)?.wait(request)?;
    plan.rows(Outcome { found, memory, clock })
}

/// The order of the command to a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Order<E> {
    plan: E,
    /// The number of the worker.
    process: usize,
    /// The descriptor of the shared memory.
    memory: i32,
    /// The process of the command.
    parent: i32,
    ns_per_tick: f64,
    /// When the measurement began, by the clock that all processes share.
    began_ns: u64,
}

/// Why a worker did not do its work.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
pub enum Trouble {
    /// The process was told to stop.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The driver returned an error.
    #[error(transparent)]
    #[serde(skip)]
    Driver(#[from] Error),
    /// The driver of another process returned an error: its text, and its place on the page of errors.
    #[error("{0}")]
    Told(String, String),
    /// The process could not begin.
    #[error("{0}")]
    Unable(Failure),
    /// Something else failed, or a check found an error.
    #[error("{0}")]
    Wrong(String),
}

impl Trouble {
    /// The place on the page of errors; empty if there is none.
    pub fn anchor(&self) -> &str {
        match self {
            Self::Driver(error) => error.anchor(),
            Self::Told(_, anchor) => anchor,
            _ => "",
        }
    }

    /// A check found an error.
    pub fn wrong(what: impl std::fmt::Display) -> Self {
        Self::Wrong(what.to_string())
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Unable(failure)
    }
}

#[derive(Debug, clap::Args)]
pub struct WorkerArgs {
    /// The name of the experiment.
    name: String,
    /// The order, in JSON.
    order: String,
}

/// Does what the order says, and answers on stdout.
pub fn run(args: &WorkerArgs) -> Result<(), Failure> {
    let serve = match args.name.as_str() {
        pairs::Pairs::NAME => serve::<pairs::Pairs>,
        lock::Task::NAME => serve::<lock::Task>,
        collective::Plan::NAME => serve::<collective::Plan>,
        device::Plan::NAME => serve::<device::Plan>,
        dma::Plan::NAME => serve::<dma::Plan>,
        bench::Plan::NAME => serve::<bench::Plan>,
        modes::Run::NAME => serve::<modes::Run>,
        name => return Err(malformed(format_args!("'{name}' is no experiment"))),
    };
    serve(&args.order)
}

fn malformed(why: impl std::fmt::Display) -> Failure {
    Failure::usage(format!("the order is malformed: {why}"), "this command is started by those that measure")
}

fn serve<E: Experiment>(order: &str) -> Result<(), Failure> {
    let order: Order<E> = serde_json::from_str(order).map_err(malformed)?;
    // All workers see the same trouble, and one line is enough.
    log::install(if order.process == 0 { LevelFilter::WARN } else { LevelFilter::OFF })?;
    let request = EndRequest::listen()?;
    let done = Place::take(&order, &request).and_then(|place| order.plan.work(place));
    answer::<E>(match done {
        // The command told all workers to stop, and another worker may have left before this one noticed the request.
        Err(Trouble::Driver(_) | Trouble::Wrong(_)) if request.stop.load(Ordering::SeqCst) => Err(Stopped.into()),
        done => done,
    })
}

fn answer<E: Experiment>(done: Result<E::Found, Trouble>) -> Result<(), Failure> {
    let done = done.map_err(|trouble| match trouble {
        Trouble::Driver(error) => Trouble::Told(error.to_string(), error.anchor().into()),
        trouble => trouble,
    });
    let line = serde_json::to_string(&done).or_failed("could not write an answer", "")?;
    // If the command is gone, the answer has no reader.
    let _ = writeln!(std::io::stdout(), "{line}");
    Ok(())
}

/// Answers for a thread that hangs, and ends the process.
pub fn give_up<E: Experiment>(trouble: Trouble) -> ! {
    let _ = answer::<E>(Err(trouble));
    std::process::exit(1)
}
