//! `doorbell device`: how threads of one process, or of two, receive messages: by a shared device, from a dispatcher, and by a
//! reception FIFO for each thread.
//!
//! One process sends ([`sender`]) and one or two processes receive ([`receiver`]). Each [`Leg`] has rounds, and a round has a section by each
//! [`Scheme`] ([`scheme`]). The findings become a [`report::Row`] for each leg and scheme.

mod receiver;
mod report;
mod scheme;
mod sender;
pub mod worker;

pub use scheme::{COPIED, Dispatcher, Ear, Fifo, FromHand, GLANCE, Hand, end, sent_ns, tag};
pub use worker::{DEVICE, Found, Member, Round, Seen, Sent, join};

use super::Size;
use crate::exit::Failure;
use crate::experiment::{Experiment, Outcome, Place, ProcessArgs, Setting, Trouble, measure};
use crate::processes::EndRequest;
use crate::text::{RowArgs, distinct, print};
use doorbell_benches::{Clock, Shape};
use report::Row;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Bytes of the longest message.
const MESSAGE_MOST: usize = 16 << 20;

/// Measure how threads of one process or of two receive: by a shared device, from a dispatcher, by a FIFO for each
///
/// One process sends messages. Each message is for one of several threads of another process (--mode smp) or of two (--mode dual). In each round the
/// threads receive by three schemes, one after the other, so that a change of the machine's speed affects all alike:
///
/// claimed: a shared device. A thread takes the device's lock and looks in the shared storage for a header that another thread put there for it. If
/// there is none, it takes the next header. It receives its own message straight into its buffer, and stores the header of another thread for that thread.
///
/// dispatcher: one thread of each process receives all messages, and hands each message to its thread by a channel of the standard library. Messages of
/// more than 64 bytes are on loan: the dispatcher hands over the loan, and the thread reads the message in place.
///
/// fifo: a reception FIFO for each thread, which is a node of its own.
#[derive(Debug, clap::Args)]
#[command(
    after_help = include_str!("../../../help/device.txt"),
    mut_arg("pin", |pin| pin.help("Processors: the first for the sender, the others for the threads in turn"))
)]
pub struct DeviceArgs {
    /// Threads that receive, in all processes
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=16))]
    threads: u16,
    /// smp: threads of one process; dual: of two, in turn
    #[arg(long, value_enum, value_name = "MODE", default_value_t = Mode::Smp)]
    mode: Mode,
    /// Sizes of the messages: 8, 64KiB, 1MB
    #[arg(long, visible_alias = "sizes", value_name = "SIZE,…", value_delimiter = ',', default_value = "8,1KiB,16KiB")]
    size: Vec<Size>,
    /// How messages come
    #[arg(long, value_enum, value_name = "LOAD,…", value_delimiter = ',', default_values = ["turn", "random", "alone"])]
    load: Vec<Load>,
    /// Also measure this many messages a second, for random threads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    rate: Option<u32>,
    /// The schemes to compare
    #[arg(long, value_enum, value_name = "SCHEME,…", value_delimiter = ',', default_values = ["claimed", "dispatcher", "fifo"])]
    scheme: Vec<Scheme>,
    /// How long each scheme is measured for each size and load, in all rounds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Messages of a round [default: as many as the time allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000), conflicts_with = "seconds")]
    count: Option<u64>,
    /// Rounds; the median counts
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    #[command(flatten)]
    processes: ProcessArgs,
    #[command(flatten)]
    form: RowArgs,
}

/// The number of processes that receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Threads of one process
    Smp,
    /// Threads of two
    Dual,
}

impl Mode {
    fn processes(self) -> usize {
        if self == Mode::Dual { 2 } else { 1 }
    }
}

/// How messages come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Load {
    /// A stream for all threads in turn
    Turn,
    /// A stream for threads at random
    Random,
    /// One at a time, for threads at random
    Alone,
    /// A given number a second, for threads at random
    #[value(skip)]
    Paced,
}

impl Load {
    /// Whether the time of each message is measured.
    pub fn is_timed(self) -> bool {
        matches!(self, Load::Alone | Load::Paced)
    }
}

/// How a thread gets its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// By the device that all share
    Claimed,
    /// From a thread that receives everything
    Dispatcher,
    /// By a FIFO of its own
    Fifo,
}

/// A section: the indices of its leg and of its scheme, and whether it counts. The first round does not.
#[derive(Clone, Copy)]
pub struct Turn {
    pub leg: usize,
    pub scheme: usize,
    pub counts: bool,
}

/// A measurement in rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leg {
    /// Bytes of a message.
    pub bytes: usize,
    /// How messages come.
    pub load: Load,
}

/// The measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// How the processes run. The sender has the first processor, and the threads have the others.
    pub setting: Setting,
    /// Threads that receive.
    pub threads: usize,
    /// The number of processes that receive.
    pub mode: Mode,
    /// The measurements, one after the other.
    pub legs: Vec<Leg>,
    /// Messages a second of the paced load.
    pub rate: u32,
    /// The schemes, in turns.
    pub schemes: Vec<Scheme>,
    /// Rounds of each leg that count.
    pub rounds: usize,
    /// How long a section is.
    pub section_ns: u64,
    /// Messages of a section, if their number is given.
    pub count: Option<u64>,
}

impl Plan {
    /// Processes that receive.
    pub fn receivers(&self) -> usize {
        self.mode.processes()
    }

    /// The receiving process of a thread.
    pub fn home(&self, thread: usize) -> usize {
        thread % self.receivers()
    }

    /// Nodes of the domain: one of each process, and one of each thread.
    pub fn nodes(&self) -> usize {
        1 + self.receivers() + self.threads
    }

    /// Processors for the threads in turn.
    pub fn of_threads(&self) -> &[usize] {
        let pin = &self.setting.pin;
        if pin.len() > 1 { &pin[1..] } else { pin }
    }

    /// Does the section of each leg, round and scheme, and returns the results of the rounds that count, by leg and scheme.
    pub fn sections<T>(&self, mut section: impl FnMut(Turn) -> Result<T, Trouble>) -> Result<Vec<Vec<Vec<T>>>, Trouble> {
        let mut found = Vec::new();
        for leg in 0..self.legs.len() {
            let mut of_leg: Vec<Vec<T>> = self.schemes.iter().map(|_| Vec::new()).collect();
            for round in 0..=self.rounds {
                for turn in 0..self.schemes.len() {
                    // The first scheme of a round changes from round to round.
                    let turn = Turn { leg, scheme: (turn + round) % self.schemes.len(), counts: round > 0 };
                    let seen = section(turn)?;
                    if turn.counts {
                        of_leg[turn.scheme].push(seen);
                    }
                }
            }
            found.push(of_leg);
        }
        Ok(found)
    }

    fn longest(&self) -> usize {
        self.legs.iter().map(|leg| leg.bytes).max().unwrap_or(0)
    }
}

impl Experiment for Plan {
    const NAME: &'static str = "device";
    type Found = Found;
    type Row = Row;

    fn setting(&self) -> &Setting {
        &self.setting
    }

    fn processes(&self) -> usize {
        1 + self.receivers()
    }

    fn role(&self, process: usize) -> &'static str {
        if process == 0 { "the process that sends" } else { "a process of which threads receive" }
    }

    fn processors(&self, process: usize) -> Vec<usize> {
        let pin = &self.setting.pin;
        if process == 0 { pin.iter().copied().take(1).collect() } else { self.of_threads().to_vec() }
    }

    fn shape(&self) -> Shape {
        Shape { pairs: self.threads, bytes: 0 }
    }

    fn work(self, place: Place) -> Result<Found, Trouble> {
        let is_sender = place.process == 0;
        let member = Arc::new(Member { node: join(&self, place.process)?, plan: self, place });
        if is_sender {
            return Ok(Found { sent: sender::work(&member)?, seen: Vec::new() });
        }
        Ok(Found { sent: Vec::new(), seen: receiver::work(&member)? })
    }

    fn rows(&self, outcome: Outcome<Found>) -> Result<Vec<Row>, Failure> {
        Row::all(self, &outcome.found)
    }
}

/// Measures and prints.
pub fn run(args: &DeviceArgs) -> Result<(), Failure> {
    let plan = plan(args, usize::from(args.threads))?;
    let (request, clock) = (EndRequest::listen()?, Clock::calibrate());
    let rows = measure(&plan, clock, &request)?;
    print(&plan.render(args.form.format, &rows));
    plan.setting.doubt("threads");
    Ok(())
}

fn plan(args: &DeviceArgs, threads: usize) -> Result<Plan, Failure> {
    if args.mode == Mode::Dual && threads < 2 {
        return Err(Failure::usage("--mode dual: one thread is not of two processes", "give --threads 2 at least"));
    }
    if let Some(size) = args.size.iter().find(|size| size.0 > MESSAGE_MOST) {
        let hint = format!("here messages have {} at most", Size(MESSAGE_MOST));
        return Err(Failure::usage(format!("--size: {size} are too long"), hint));
    }
    let receivers = args.mode.processes();
    let loads = || args.load.iter().copied().chain(args.rate.map(|_| Load::Paced));
    let rounds = args.rounds as usize;
    let setting = args.processes.setting("device", 1 + threads + receivers, None)?;
    Ok(Plan {
        setting,
        threads,
        mode: args.mode,
        legs: args.size.iter().flat_map(|Size(bytes)| loads().map(|load| Leg { bytes: *bytes, load })).collect(),
        rate: args.rate.unwrap_or(0),
        schemes: distinct(args.scheme.iter().copied()),
        rounds,
        section_ns: u64::from(args.seconds) * 1_000_000_000 / rounds as u64,
        count: args.count,
    })
}
