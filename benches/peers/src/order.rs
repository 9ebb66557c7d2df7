//! What the processes of a measurement are told, and what they answer.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Work {
    /// Messages back and forth: half a round trip.
    Latency,
    /// The same on loan: written and read in place.
    Loan,
    /// Puts into the other's memory, which polls the last word of it: half a round trip.
    Put,
    /// Messages one way, one by one.
    Rate,
    /// A window of messages one way.
    OneWay,
    /// A window of messages in each direction at once.
    BothWays,
    /// Messages back and forth between two pairs of processes at once.
    Pairs,
    /// All wait for all.
    Barrier,
    /// The sum of all vectors to all.
    Allreduce,
    /// The first one's vector to all.
    Broadcast,
    /// Work of each, not the same for all, before an allreduce.
    Computing,
}

impl Work {
    /// Several messages are under way at once.
    pub fn is_stream(self) -> bool {
        matches!(self, Work::OneWay | Work::BothWays)
    }

    /// All processes do something together.
    pub fn is_collective(self) -> bool {
        matches!(self, Work::Barrier | Work::Allreduce | Work::Broadcast | Work::Computing)
    }
}

/// What messages go over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Over {
    /// Memory that the processes share.
    Memory,
    /// UDP datagrams, as they are.
    Udp,
    /// UDP datagrams, encrypted and authenticated.
    Sealed,
}

/// Who does it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Player {
    /// Doorbell.
    Doorbell,
    /// Doorbell whose teams synchronise before a call comes back.
    Foreground,
    /// The bare barrier.
    Floor,
    /// A peer that is spoken to in C, by this library.
    Library(PathBuf),
    /// A program of its own.
    Program,
}

/// Messages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leg {
    /// Bytes of a message.
    pub bytes: usize,
    /// Sections, the first of which does not count.
    pub sections: usize,
    /// Messages in a section that do not count.
    pub warmup: usize,
    /// Messages in a section that count.
    pub count: usize,
}

/// What all processes of a measurement do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// What is measured.
    pub work: Work,
    /// What it goes over.
    pub over: Over,
    /// One size after the other.
    pub legs: Vec<Leg>,
    /// Messages under way at once in a direction, of streams.
    pub window: usize,
    /// Pairs of processes.
    pub pairs: usize,
    /// Processors, of which even processes have the first and odd ones the second.
    pub pin: [usize; 2],
    /// Whether what is sent was written just before, and what was received is read at once.
    pub touched: bool,
    /// Where the processes leave messages and answers for each other. What is in it is removed afterwards.
    pub dir: PathBuf,
    /// Begins the names of all that does not lie there.
    pub prefix: String,
    /// The process that holds the memory in which the processes keep step, and its descriptor there.
    pub memory: (i32, i32),
    /// Seconds after which a process ends itself.
    pub limit: u32,
    /// Who does it.
    pub player: Player,
}

impl Order {
    /// Bytes of the longest message.
    pub fn bytes(&self) -> usize {
        self.legs.iter().map(|leg| leg.bytes).max().unwrap_or(0)
    }

    /// How many processes there are.
    pub fn processes(&self) -> usize {
        2 * self.pairs
    }

    /// More processes than processors.
    pub fn crowded(&self) -> bool {
        self.pairs > 1 || self.pin[0] == self.pin[1]
    }

    /// The file with a process's answer.
    pub fn answer(&self, node: usize) -> PathBuf {
        self.dir.join(format!("answer.{node}"))
    }
}

/// What one section gave.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Nanoseconds a message.
    pub ns: f64,
    /// Nanoseconds for a cache line to get from one processor to the other, before and after.
    pub hops: [f64; 2],
    /// The processors seemed to share a core.
    pub shared: bool,
}

/// What a process found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    /// For each leg, what each section gave; nothing from the side that has no clock.
    pub legs: Vec<Vec<Seen>>,
    /// What the peer says its version is.
    pub version: String,
    /// Why it could not.
    pub error: Option<String>,
}
