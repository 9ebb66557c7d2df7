//! The order that the processes of a measurement get, and their answers.

use doorbell_benches::stats::Samples;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Work {
    /// Messages back and forth: half a round trip.
    Latency,
    /// The same on loan: messages are written and read in place.
    Loan,
    /// Puts into the other's memory, which polls their last word: half a round trip.
    Put,
    /// Messages back and forth whose receiver has a handler, which reads them where they lie: half a round trip.
    Handler,
    /// Messages one way, one by one.
    Rate,
    /// Messages one way, several by one call or in the peer's own way of batches.
    Batch,
    /// A window of messages one way.
    OneWay,
    /// A window of messages in each direction at once.
    BothWays,
    /// Messages back and forth between two pairs of processes at once.
    Pairs,
    /// A barrier of all processes.
    Barrier,
    /// The sum of all vectors, for every process.
    Allreduce,
    /// The vector of the first process, for every process.
    Broadcast,
    /// Work of varying length in each process before an allreduce.
    Computing,
    /// A put during which its origin computes; the target sleeps.
    PutOverlap,
    /// A send during which the sender computes; the receiver waits.
    SendOverlap,
    /// A receive during which the receiver computes; the sender waits.
    ReceiveOverlap,
}

impl Work {
    /// Whether several messages are under way at once.
    pub fn is_stream(self) -> bool {
        matches!(self, Work::OneWay | Work::BothWays)
    }

    /// Whether single round trips are timed.
    pub fn is_exchange(self) -> bool {
        matches!(self, Work::Latency | Work::Handler | Work::Loan | Work::Put | Work::Pairs)
    }

    /// Whether one process computes during a transfer.
    pub fn is_overlap(self) -> bool {
        matches!(self, Work::PutOverlap | Work::SendOverlap | Work::ReceiveOverlap)
    }

    /// Whether one process puts into the other's memory.
    pub fn puts(self) -> bool {
        matches!(self, Work::Put | Work::PutOverlap)
    }

    /// Whether all processes act together.
    pub fn is_collective(self) -> bool {
        matches!(self, Work::Barrier | Work::Allreduce | Work::Broadcast | Work::Computing)
    }
}

/// The carrier of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Over {
    /// Memory that the processes share.
    Memory,
    /// Plain UDP datagrams.
    Udp,
    /// Encrypted and authenticated UDP datagrams.
    Sealed,
}

/// The transport under test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Player {
    /// Doorbell.
    Doorbell,
    /// Doorbell whose teams synchronise before a call returns.
    Foreground,
    /// The bare barrier.
    Floor,
    /// A peer with a C interface, in this library.
    Library(PathBuf),
    /// A separate program.
    Program,
}

/// Messages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leg {
    /// The length of a message.
    pub bytes: usize,
    /// The number of sections; the first one does not count.
    pub sections: usize,
    /// The messages in a section that do not count.
    pub warmup: usize,
    /// The messages in a section that count.
    pub count: usize,
}

/// The order for all processes of a measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The kind of measurement.
    pub work: Work,
    /// The carrier of the messages.
    pub over: Over,
    /// The sizes, one after another.
    pub legs: Vec<Leg>,
    /// The number of messages under way in a direction, for streams.
    pub window: usize,
    /// The number of pairs of processes.
    pub pairs: usize,
    /// The processors: the first for even processes, the second for odd ones.
    pub pin: [usize; 2],
    /// Whether a message is written just before it is sent, and read as soon as it was received.
    pub touched: bool,
    /// The directory in which the processes leave messages and answers for each other. It is removed afterwards.
    pub dir: PathBuf,
    /// The prefix of the names of everything outside that directory.
    pub prefix: String,
    /// The process that holds the memory for synchronisation, and its descriptor there.
    pub memory: (i32, i32),
    /// Seconds after which a process ends itself.
    pub limit: u32,
    /// The transport under test.
    pub player: Player,
    /// Whether a helper thread drives the library of the computing process.
    pub helped: bool,
    /// Whether messages are the library's active messages.
    pub active: bool,
}

impl Order {
    /// The length of the longest message.
    pub fn bytes(&self) -> usize {
        self.legs.iter().map(|leg| leg.bytes).max().unwrap_or(0)
    }

    /// The number of processes.
    pub fn processes(&self) -> usize {
        2 * self.pairs
    }

    /// Whether processors have more to do than one process. Helpers of a computing process run on the other's processor.
    pub fn crowded(&self) -> bool {
        self.work.is_overlap() || self.pairs > 1 || self.pin[0] == self.pin[1]
    }

    /// The file with a process's answer.
    pub fn answer(&self, node: usize) -> PathBuf {
        self.dir.join(format!("answer.{node}"))
    }
}

/// The unit of [`Seen::trips`] in nanoseconds.
pub const TRIP_UNIT: f64 = 0.1;

/// The result of one section.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Seen {
    /// Nanoseconds for each message.
    pub ns: f64,
    /// Half of each round trip, in units of [`TRIP_UNIT`]; empty where round trips are not timed.
    pub trips: Samples,
    /// The share of that time for which the process can compute, where that is measured.
    pub overlap: Option<f64>,
    /// Nanoseconds for a cache line to move from one processor to the other, before and after the section.
    pub hops: [f64; 2],
    /// Whether the processors seemed to share a core.
    pub shared: bool,
}

/// The answer of a process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    /// For each leg, the result of each section. Empty from the side without a clock.
    pub legs: Vec<Vec<Seen>>,
    /// The version that the peer reports.
    pub version: String,
    /// Why the measurement failed.
    pub error: Option<String>,
}
