//! `doorbell device`: what it takes that threads of one process, or of two, receive messages: by a shared device, from a dispatcher, and by a
//! reception FIFO for each.
//!
//! One process sends ([`sender`]) and one or two receive ([`receiver`]). Of each [`Leg`] there are rounds, and in a round a section by each
//! [`Scheme`] ([`scheme`]); what was seen becomes a [`report::Row`] for each leg and scheme.

mod receiver;
mod report;
mod scheme;
mod sender;
pub mod worker;

use super::args::{crowded, words};
use super::size::Size;
use crate::environment::Domain;
use crate::exit::Failure;
use crate::experiment::place::Place;
use crate::experiment::report::{Format, Report};
use crate::experiment::setting::Setting;
use crate::experiment::workers::requested_end;
use crate::experiment::{Experiment, Outcome, Trouble, measure};
use crate::text::print;
use doorbell::{Progress, Wait};
use doorbell_benches::clock::Clock;
use doorbell_benches::floor::Shape;
use report::Row;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use worker::{Found, Member, join};

/// Bytes of the longest message.
const MESSAGE_MOST: usize = 16 << 20;

/// Measure how threads of one process or of two receive: by a shared device, from a dispatcher, by a FIFO for each
///
/// One process sends messages, each of which is for one of several threads of another process (--mode smp) or of two (--mode dual). In rounds the
/// threads receive by each of three schemes, one after the other, so that a mood of the machine meets all alike:
///
/// claimed: a shared device. Each thread takes the device's lock, looks in the shared storage for a header that another thread put there for it, and else
/// takes the next header: its own message it receives straight into its buffer, another's header it stores for that thread. The source's steps.
///
/// dispatcher: one thread of each process receives everything, and hands each message over to the thread that it is for by a channel of the standard
/// library. Messages of more than 64 bytes are lent and read where they lie: what is handed over is the loan, and nothing is copied.
///
/// fifo: a reception FIFO for each thread, which is a node of its own.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  doorbell device                                   four threads of one process, wherever they run
  doorbell device --pin 0,1                         the sender on processor 0, all threads on 1
  doorbell device --pin 0,0,1 --mode dual           two threads on each, of two processes
  doorbell device --size 8 --load alone --rate 1000 also a message each millisecond: what idle threads cost
  doorbell device --format json | jq 'select(.scheme == \"claimed\") | [.load, .size_bytes, .p50_of_dispatcher]'

The loads:
  turn    a stream, each message for the next thread
  random  a stream, each message for any thread
  alone   one message at a time for any thread; the next when it has been read
  paced   with --rate: so many a second for any thread, whether or not earlier ones have been read

`each` is the time of the section over its messages, and `processor` is what the receiving processes used for each message, all their threads
together; both are medians of the rounds. `busy` is that time over the time of the section: 1.00 is a whole processor. Times from sender to thread are of all
rounds: from before the message is written, or from when it was due if it is paced, until the thread has read it, by the clock that all processes
share; each has two readings of that clock in it, some 50 ns. Streams have none: there it is a matter of how much fits in between. `of dispatcher` is the
scheme's figure over the dispatcher's: each, p50 and processor. Less than 1 is better.

When which is best (docs/device.md has figures):
  claimed     if messages come one by one, if threads come and go or belong to several processes, if one address is to serve all, or if idle threads are to cost
              little: no thread is woken but the one that a message is for. They sleep after 100 µs without a message.
  fifo        for dense streams, if each thread can be a node: nobody else is in between. Each takes an inbox, and senders must know who is where.
  dispatcher  if a message needs work before it is clear for whom it is, or messages are long and need not be copied at all.

In dual mode each process has a dispatcher of its own, as a loan is for one node.

Believe ratios rather than nanoseconds: the processors of a virtual machine move, and every time with them.")]
pub struct DeviceArgs {
    /// Threads that receive, of all processes
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
    /// Also so many messages a second, for any thread
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    rate: Option<u32>,
    /// Schemes that are compared
    #[arg(long, value_enum, value_name = "SCHEME,…", value_delimiter = ',', default_values = ["claimed", "dispatcher", "fifo"])]
    scheme: Vec<Scheme>,
    /// How long each scheme is measured for each size and load, in all rounds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Messages of a round [default: as many as the time allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000), conflicts_with = "seconds")]
    count: Option<u64>,
    /// Rounds, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Processors: of the sender, and of the threads in turn
    #[arg(long, value_name = "CPU,…", value_delimiter = ',')]
    pin: Vec<usize>,
    /// Who turns the engine: the threads that call, a thread of the node, or whoever waits
    #[arg(long, value_name = "WHO", default_value_t = Progress::default(), value_parser = words::<Progress>(&["inline", "poller", "adaptive"]))]
    progress: Progress,
    /// How threads wait: auto spins, then yields, then sleeps
    #[arg(long, value_name = "HOW", default_value_t = Wait::default(), value_parser = words::<Wait>(&["auto", "spin", "yield", "park"]))]
    wait: Wait,
    /// Form of the output
    #[arg(long, value_enum, value_name = "FORM", default_value_t = Format::Table)]
    format: Format,
    /// The domain that the processes join [default: one of their own]
    #[arg(long, value_name = "NAME")]
    domain: Option<Domain>,
}

/// Of how many processes the threads are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Threads of one process
    Smp,
    /// Threads of two
    Dual,
}

impl Mode {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Smp => "smp",
            Mode::Dual => "dual",
        }
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
    /// So many a second, for threads at random
    #[value(skip)]
    Paced,
}

impl Load {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Load::Turn => "turn",
            Load::Random => "random",
            Load::Alone => "alone",
            Load::Paced => "paced",
        }
    }

    /// Whether it is measured how long a message takes.
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

impl Scheme {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Claimed => "claimed",
            Scheme::Dispatcher => "dispatcher",
            Scheme::Fifo => "fifo",
        }
    }
}

/// What is measured in rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leg {
    /// Bytes of a message.
    pub bytes: usize,
    /// How they come.
    pub load: Load,
}

/// What all processes of the measurement are told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// How the processes run: the first processor is the sender's, and the others are for the threads.
    pub setting: Setting,
    /// Threads that receive.
    pub threads: usize,
    /// Of how many processes.
    pub mode: Mode,
    /// What is measured, one after the other.
    pub legs: Vec<Leg>,
    /// Messages a second of what is paced.
    pub rate: u32,
    /// In turns.
    pub schemes: Vec<Scheme>,
    /// Rounds of each leg that count.
    pub rounds: usize,
    /// How long a section is.
    pub section_ns: u64,
    /// Messages of a section, if that is said.
    pub count: Option<u64>,
}

impl Plan {
    /// Processes that receive.
    pub fn receivers(&self) -> usize {
        if self.mode == Mode::Dual { 2 } else { 1 }
    }

    /// Which of them a thread belongs to.
    pub fn home(&self, thread: usize) -> usize {
        thread % self.receivers()
    }

    /// Nodes of the domain: of each process, and of each thread.
    pub fn nodes(&self) -> usize {
        1 + self.receivers() + self.threads
    }

    /// Processors for the threads in turn.
    pub fn of_threads(&self) -> &[usize] {
        let pin = &self.setting.pin;
        if pin.len() > 1 { &pin[1..] } else { pin }
    }

    /// The sections of each leg in their order, with the round: 0 does not count.
    pub fn sections(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (rounds, schemes) = (self.rounds, self.schemes.len());
        // Each is the first in every so many rounds.
        (0..=rounds).flat_map(move |round| (0..schemes).map(move |turn| (round, (turn + round) % schemes)))
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
        if is_sender { sender::work(&member).map(Found::Sent) } else { receiver::work(&member).map(Found::Received) }
    }

    fn rows(&self, outcome: Outcome<Found>) -> Result<Vec<Row>, Failure> {
        Row::all(self, &outcome.found)
    }
}

/// Measures and prints.
pub fn run(args: &DeviceArgs) -> Result<(), Failure> {
    let plan = plan(args, usize::from(args.threads))?;
    let (signal, clock) = (requested_end()?, Clock::calibrate());
    let rows = measure(&plan, clock, &signal)?;
    print(&plan.render(args.format, &rows));
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
    let receivers = if args.mode == Mode::Dual { 2 } else { 1 };
    let mut schemes: Vec<Scheme> = Vec::new();
    for scheme in &args.scheme {
        if !schemes.contains(scheme) {
            schemes.push(*scheme);
        }
    }
    let loads = || args.load.iter().copied().chain(args.rate.map(|_| Load::Paced));
    let rounds = args.rounds as usize;
    let setting = Setting {
        domain: args.domain.as_ref().map_or_else(|| format!("device-{}", std::process::id()), |Domain(name)| name.clone()),
        net: None,
        progress: args.progress.to_string(),
        wait: args.wait.to_string(),
        pin: args.pin.clone(),
        crowded: crowded(&args.pin, 1 + threads + receivers)?,
    };
    Ok(Plan {
        setting,
        threads,
        mode: args.mode,
        legs: args.size.iter().flat_map(|Size(bytes)| loads().map(|load| Leg { bytes: *bytes, load })).collect(),
        rate: args.rate.unwrap_or(0),
        schemes,
        rounds,
        section_ns: u64::from(args.seconds) * 1_000_000_000 / rounds as u64,
        count: args.count,
    })
}
