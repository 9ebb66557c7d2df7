//! What the commands that measure have in common.
//!
//! An [`Experiment`] is a plan. [`carry_out`] starts its [`workers`], of which each has a [`Place`] and does the plan's [work](Experiment::work). What
//! they found becomes [rows](Experiment::rows), and a [`report`] shows these.

pub mod place;
pub mod report;
pub mod setting;
pub mod workers;

use crate::exit::Failure;
use crate::io::bench;
use crate::measure::{collective, device, lock, pairs};
use crate::{log, modes};
use doorbell::Error;
use doorbell_benches::clock::Clock;
use doorbell_benches::floor::{Mapping, Shape, Stopped};
use place::Place;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use setting::Setting;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tracing_subscriber::filter::LevelFilter;
use workers::Workers;

/// The name under which the command starts its workers.
pub const COMMAND: &str = "measure-worker";

/// A measurement by processes of its own. The value is the plan, which all of them are told.
pub trait Experiment: Clone + Serialize + DeserializeOwned {
    /// The word for it, by which a worker knows what its plan is of.
    const NAME: &'static str;
    /// What one process finds.
    type Found: Serialize + DeserializeOwned;
    /// The rows of all findings.
    type Row;

    /// How its processes run.
    fn setting(&self) -> &Setting;

    /// How many there are.
    fn processes(&self) -> usize;

    /// What one of them does, in words.
    fn role(&self, process: usize) -> &'static str;

    /// The processors on which one of them runs; anywhere if there are none.
    fn processors(&self, process: usize) -> Vec<usize> {
        self.setting().processor(process).into_iter().collect()
    }

    /// The memory that all share.
    fn shape(&self) -> Shape {
        Shape { pairs: 0, bytes: 0 }
    }

    /// What one of them does.
    ///
    /// # Errors
    /// It could not begin, or not go on.
    fn work(self, place: Place) -> Result<Self::Found, Trouble>;

    /// What all of them found, in the order of the processes.
    ///
    /// # Errors
    /// It contradicts itself, so no figure is worth anything.
    fn rows(&self, outcome: Outcome<Self::Found>) -> Result<Vec<Self::Row>, Failure>;
}

/// What the processes of an experiment found.
pub struct Outcome<F> {
    /// Of each process.
    pub found: Vec<F>,
    /// The memory that they shared.
    pub memory: Mapping,
    /// By which ticks are read.
    pub clock: Clock,
}

/// Starts the processes of an experiment, and waits for what they find.
pub fn carry_out<E: Experiment>(plan: &E, clock: Clock, signal: &AtomicUsize) -> Result<Outcome<E::Found>, Failure> {
    let shape = plan.shape();
    let memory = Mapping::create(shape).map_err(|error| {
        let what = format!("could not get memory that the processes share, for messages of {} bytes: {error}", shape.bytes);
        Failure::usage(what, "measure smaller sizes, or fewer processes")
    })?;
    let began_ns = crate::clock::now();
    let order = |process| Order {
        plan: plan.clone(),
        process,
        memory: memory.descriptor(),
        parent: std::process::id() as i32,
        ns_per_tick: clock.ns_per_tick,
        began_ns,
    };
    let role = |process| plan.role(process);
    let found = Workers::start(E::NAME, &plan.setting().domain, &role, plan.processes(), order)?.wait(signal)?;
    Ok(Outcome { found, memory, clock })
}

/// The rows of an experiment.
pub fn measure<E: Experiment>(plan: &E, clock: Clock, signal: &AtomicUsize) -> Result<Vec<E::Row>, Failure> {
    plan.rows(carry_out(plan, clock, signal)?)
}

/// What one process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Order<E> {
    plan: E,
    /// Which of them it is.
    process: usize,
    /// The descriptor of the memory that all share.
    memory: i32,
    /// The process that started it.
    parent: i32,
    ns_per_tick: f64,
    /// When the measurement began, by the clock that all share.
    began_ns: u64,
}

/// What a worker answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Reply<F> {
    /// Done.
    Done(F),
    /// It was told to stop.
    Stopped,
    /// It could not begin.
    Unable(Failure),
    /// Something failed on the way.
    Failed(String),
}

/// Why the work was not done.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// The process was told to stop.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The driver says why.
    #[error(transparent)]
    Driver(#[from] Error),
    /// It could not begin.
    #[error("{0}")]
    Unable(Failure),
    /// Something else failed, or went as it never should.
    #[error("{0}")]
    Wrong(String),
}

impl Trouble {
    /// What could not be had to begin with.
    pub fn unable(what: &str, error: impl std::fmt::Display) -> Self {
        Self::Unable(Failure::usage(format!("{what}: {error}"), ""))
    }

    /// What went as it never should.
    pub fn wrong(what: impl std::fmt::Display) -> Self {
        Self::Wrong(what.to_string())
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Unable(failure)
    }
}

impl<F> From<Trouble> for Reply<F> {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Stopped(_) => Self::Stopped,
            Trouble::Unable(failure) => Self::Unable(failure),
            trouble => Self::Failed(trouble.to_string()),
        }
    }
}

#[derive(Debug, clap::Args)]
pub struct WorkerArgs {
    /// The experiment it belongs to.
    name: String,
    /// What to do, in JSON.
    order: String,
}

/// Does what it was ordered to and answers on stdout.
pub fn run(args: &WorkerArgs) -> Result<(), Failure> {
    let serve = match args.name.as_str() {
        pairs::Pairs::NAME => serve::<pairs::Pairs>,
        lock::Task::NAME => serve::<lock::Task>,
        collective::Plan::NAME => serve::<collective::Plan>,
        device::Plan::NAME => serve::<device::Plan>,
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
    // What befalls one of them befalls all, and one line is enough.
    log::install(if order.process == 0 { LevelFilter::WARN } else { LevelFilter::OFF })?;
    let stop = Arc::new(AtomicBool::new(false));
    let done = Place::take(&order, &stop).and_then(|place| order.plan.work(place));
    answer::<E>(&match done {
        Ok(found) => Reply::Done(found),
        Err(Trouble::Unable(failure)) => Reply::Unable(failure),
        // The others were told as well, and one of them may have left before this one looked.
        Err(_) if stop.load(Ordering::SeqCst) => Reply::Stopped,
        Err(trouble) => trouble.into(),
    })
}

fn answer<E: Experiment>(reply: &Reply<E::Found>) -> Result<(), Failure> {
    let line = serde_json::to_string(reply).map_err(|error| Failure::failed(error, ""))?;
    // Nobody listens any more if the command is gone; then nobody misses the answer either.
    let _ = writeln!(std::io::stdout(), "{line}");
    Ok(())
}

/// Answers in place of a thread that hangs, and ends the process.
pub fn give_up<E: Experiment>(trouble: Trouble) -> ! {
    let _ = answer::<E>(&trouble.into());
    std::process::exit(1)
}
