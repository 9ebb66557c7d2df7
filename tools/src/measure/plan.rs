//! The plan that a worker gets, and its findings.

use crate::experiment::{Setting, by_word};
use doorbell::{CopySide as Copier, Error, Node, Progress};
use doorbell_benches::{DATAGRAM_MOST, Samples, Shape};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// The measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Test {
    /// Messages go back and forth. A sample is a round trip.
    Latency,
    /// Messages go one way. A sample is a section.
    Rate,
    /// Messages go one way or both ways, several at once. A sample is a section.
    Bandwidth,
}

impl Test {
    /// The usual number of messages is divided by this over UDP, on this machine or between two.
    pub fn slower_over_udp(self, is_here: bool) -> u64 {
        match self {
            Test::Rate => 50,
            // A section is nearly as long as one of the floor, so that lines which the floor drove out of the caches hardly count.
            Test::Bandwidth if is_here => 1,
            Test::Latency | Test::Bandwidth => 4,
        }
    }
}

/// Where the bytes of messages lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// In a region that both processes have mapped
    Registered,
    /// In memory of one process
    Private,
}

/// Messages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leg {
    /// Bytes of a message.
    pub bytes: usize,
    /// Sections of each carrier.
    pub rounds: usize,
    /// Messages in a section that do not count.
    pub warmup: usize,
    /// Messages in a section that count.
    pub count: usize,
}

/// The work of all processes of a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The measurement.
    pub test: Test,
    /// How the processes run.
    pub setting: Setting,
    /// Pairs of processes.
    pub pairs: usize,
    /// Whether the processes put into each other's regions instead of sending messages; for a latency or a rate.
    pub put: bool,
    /// Messages under way at once in a direction, for a bandwidth.
    pub window: usize,
    /// Whether messages go in both directions at once, for a bandwidth.
    pub both_ways: bool,
    /// Where the bytes of messages lie.
    pub buffers: Place,
    /// Which process copies long messages.
    #[serde(with = "by_word")]
    pub copy: Copier,
    /// The sizes, one after the other.
    pub legs: Vec<Leg>,
    /// Whether the floor is measured, too.
    pub floor: bool,
    /// Whether messages are written before they are sent, and read after they were received.
    pub touched: bool,
    /// Whether messages are written and read in place, on loan.
    pub loan: bool,
    /// The mode by which a peer sends messages one by one; `None` asks for none.
    pub mode: Option<String>,
    /// Whether the processes use a `Node` that threads share, and not a `Peer`.
    pub shared: bool,
    /// How many messages one call sends or receives, for a rate.
    pub batch: usize,
}

/// How the puts of the other process get into this process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The other process has mapped the memory, and stores them.
    Mapped,
    /// The engine of this process stores them, and the thread that waits turns it.
    Turned,
    /// The engine of this process stores them, and its poller turns it, perhaps on the same processor.
    Polled,
}

impl Arrival {
    /// Lets puts arrive between two looks.
    #[inline(always)]
    pub fn help(self, node: &Node) -> Result<(), Error> {
        match self {
            Self::Mapped => {}
            Self::Turned => drop(node.progress()?),
            Self::Polled => std::thread::yield_now(),
        }
        Ok(())
    }
}

/// The carrier of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The driver, which is measured.
    Driver,
    /// The floor, by the cheapest way for messages of the size.
    Floor,
    /// The floor in chunks of this many bytes. One chunk is copied in while another is copied out.
    Chunked(usize),
    /// One copy by the kernel, which reads the sender's memory.
    Pulled,
}

/// Bytes of chunks that are tried in turns, because no length is best for all sizes and machines.
const CHUNKS: [usize; 4] = [4 << 10, 8 << 10, 16 << 10, 32 << 10];
/// The shortest message for which chunks are tried.
const CHUNKED_FROM: usize = 16 << 10;

impl Plan {
    /// A plan for one pair of processes that sends messages and nothing more.
    pub fn new(test: Test, setting: Setting, legs: Vec<Leg>) -> Self {
        let (put, both_ways, floor, loan, shared) = (false, false, false, false, false);
        let (buffers, copy, touched, mode) = (Place::Private, Copier::Auto, true, None);
        let (pairs, window, batch) = (1, 1, 1);
        Self { test, setting, pairs, put, window, both_ways, buffers, copy, legs, floor, touched, loan, mode, shared, batch }
    }

    /// The carriers of the sections of a round.
    pub fn sections(&self, leg: &Leg, round: usize) -> impl Iterator<Item = Over> + use<> {
        let chunk = CHUNKS[round % CHUNKS.len()];
        let is_shared = self.setting.net.is_none();
        let beside = match self.test {
            _ if !is_shared => None,
            Test::Latency if leg.bytes >= CHUNKED_FROM => Some(Over::Chunked(chunk)),
            Test::Bandwidth => Some(Over::Pulled),
            _ => None,
        };
        // A message over the network's floor is one datagram.
        let is_measured = self.floor && (is_shared || self.test != Test::Latency || leg.bytes <= DATAGRAM_MOST);
        let floor = [Some(Over::Floor), beside].into_iter().flatten().filter(move |_| is_measured);
        floor.chain([Over::Driver])
    }

    /// How puts arrive in this process.
    pub fn arrival(&self) -> Arrival {
        match (&self.setting.net, self.setting.progress) {
            (None, _) => Arrival::Mapped,
            (Some(_), Progress::Poller) => Arrival::Polled,
            (Some(_), _) => Arrival::Turned,
        }
    }

    /// The shape of the memory for the floor of all pairs.
    pub fn shape(&self) -> Shape {
        Shape { pairs: self.pairs, bytes: self.legs.iter().map(|leg| leg.bytes).max().unwrap_or(0) }
    }

    /// Whether the processes of a pair run on processors of their own, as far as is known.
    pub fn is_spread(&self) -> bool {
        self.setting.pin.is_empty() || self.setting.processor(0) != self.setting.processor(1)
    }
}

/// The findings for messages of one size: samples in ticks.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Finding {
    /// Over the driver.
    pub driver: Samples,
    /// Over the floor.
    pub floor: Samples,
    /// Over the floor in chunks, by the bytes of a chunk.
    pub chunked: BTreeMap<usize, Samples>,
    /// By one copy of the kernel.
    pub pulled: Samples,
    /// Why the kernel made no copy.
    pub refused: Option<String>,
    /// The processor time of both processes in the sections of the driver.
    pub busy: Duration,
    /// How far apart the processors were, before and after, and whether they seemed to share a core.
    pub hops: Vec<(f64, bool)>,
}

impl Finding {
    /// The samples of a carrier.
    pub fn over(&mut self, over: Over) -> &mut Samples {
        match over {
            Over::Driver => &mut self.driver,
            Over::Floor => &mut self.floor,
            Over::Chunked(bytes) => self.chunked.entry(bytes).or_default(),
            Over::Pulled => &mut self.pulled,
        }
    }

    /// Together with what the other side of the pair saw of the floor, and its processor time.
    pub fn joined(mut self, other: &Finding) -> Self {
        self.floor.merge(&other.floor);
        self.busy += other.busy;
        self
    }
}

/// Sections of a stream.
const STREAM_ROUNDS: usize = 20;
/// The usual bytes of a stream that count.
const STREAM_BYTES: u64 = 4 << 30;

/// The usual number of messages of a stream that count, `most` at most.
pub fn usual_stream(bytes: usize, most: u64) -> u64 {
    (STREAM_BYTES / (bytes as u64).max(1)).clamp(2 * STREAM_ROUNDS as u64, most)
}

/// The sections of a stream.
pub fn stream_leg(bytes: usize, messages: usize) -> Leg {
    let rounds = STREAM_ROUNDS.min(messages);
    Leg { bytes, rounds, count: messages.div_ceil(rounds), warmup: 0 }
}
