//! What a worker is told, and what it finds.

use crate::experiment::setting::Setting;
use doorbell::{Error, Node};
use doorbell_benches::floor::{DATAGRAM_MOST, Shape};
use doorbell_benches::stats::Samples;
use serde::{Deserialize, Serialize};

/// The measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Test {
    /// Messages back and forth: a sample is a round trip.
    Latency,
    /// Messages one way: a sample is a section.
    Rate,
    /// Messages one way or both, several under way at once: a sample is a section.
    Bandwidth,
}

impl Test {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Test::Latency => "latency",
            Test::Rate => "rate",
            Test::Bandwidth => "bandwidth",
        }
    }
}

impl Test {
    /// How many times fewer messages there are over UDP, where nothing is said.
    pub fn slower_over_udp(self) -> u64 {
        if self == Test::Rate { 50 } else { 4 }
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

/// Who copies the bytes of a long message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Copier {
    /// The process that sends
    Origin,
    /// The process that receives
    Target,
    /// Both, each from its end
    Both,
    /// Whoever the driver thinks best
    Auto,
}

/// By what name a driver learns who copies.
pub const COPIER_VARIABLE: &str = "DOORBELL_COPY";

impl Copier {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Copier::Origin => "origin",
            Copier::Target => "target",
            Copier::Both => "both",
            Copier::Auto => "auto",
        }
    }
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

/// What all workers of a measurement do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The measurement.
    pub test: Test,
    /// How the processes run.
    pub setting: Setting,
    /// Pairs of processes.
    pub pairs: usize,
    /// By puts into the other's region instead of messages, for a latency or a rate.
    pub put: bool,
    /// Messages under way at once in a direction, for a bandwidth.
    pub window: usize,
    /// In both directions at once, for a bandwidth.
    pub both_ways: bool,
    /// Where the bytes of messages lie.
    pub buffers: Place,
    /// Who copies long ones.
    pub copy: Copier,
    /// One size after the other.
    pub legs: Vec<Leg>,
    /// Measure the floor, too.
    pub floor: bool,
    /// Write what is sent and read what is received.
    pub touched: bool,
    /// Messages are written and read where they lie, on loan.
    pub loan: bool,
    /// The mode by which they are sent, one by one through a peer: as usual if nothing is said.
    pub mode: Option<String>,
    /// Through `Node`s shared by threads, not through a `Peer`.
    pub shared: bool,
}

/// Who stores what the other process puts into this one's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The other process, which has mapped it.
    Mapped,
    /// The engine of this process, which the thread that waits turns.
    Turned,
    /// The engine of this process, which its poller turns, perhaps on the same processor.
    Polled,
}

impl Arrival {
    /// Does what has to be done for it between two looks.
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

/// What a section goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The measurement.
    Driver,
    /// The floor, in the cheapest way for messages of the size.
    Floor,
    /// The floor in chunks of so many bytes, copied in while others are copied out.
    Chunked(usize),
    /// One copy by the kernel.
    Pulled,
}

/// Chunks that are tried, in turns, as none is best for all sizes and machines.
const CHUNKS: [usize; 4] = [4 << 10, 8 << 10, 16 << 10, 32 << 10];
/// The shortest message for which chunks are tried.
const CHUNKED_FROM: usize = 16 << 10;

impl Plan {
    /// What the sections of a round go over.
    pub fn sections(&self, leg: &Leg, round: usize) -> impl Iterator<Item = Over> + use<> {
        let chunk = CHUNKS[round % CHUNKS.len()];
        let is_shared = self.setting.net.is_none();
        let beside = match self.test {
            _ if !is_shared => None,
            Test::Latency if leg.bytes >= CHUNKED_FROM => Some(Over::Chunked(chunk)),
            Test::Bandwidth => Some(Over::Pulled),
            _ => None,
        };
        // What goes back and forth over the network's floor is one datagram.
        let is_measured = self.floor && (is_shared || self.test != Test::Latency || leg.bytes <= DATAGRAM_MOST);
        let floor = [Some(Over::Floor), beside].into_iter().flatten().filter(move |_| is_measured);
        floor.chain([Over::Driver])
    }

    /// How puts arrive here.
    pub fn arrival(&self) -> Arrival {
        match (&self.setting.net, self.setting.progress.as_str()) {
            (None, _) => Arrival::Mapped,
            (Some(_), "poller") => Arrival::Polled,
            (Some(_), _) => Arrival::Turned,
        }
    }

    /// Where memory for the floor of all pairs lies.
    pub fn shape(&self) -> Shape {
        Shape { pairs: self.pairs, bytes: self.legs.iter().map(|leg| leg.bytes).max().unwrap_or(0) }
    }

    /// Whether the processes of a pair run on processors of their own, as far as is known.
    pub fn is_spread(&self) -> bool {
        self.setting.pin.is_empty() || self.setting.processor(0) != self.setting.processor(1)
    }
}

/// Ticks, and how often each was seen.
pub type Recorded = Vec<(u64, u64)>;

/// What was found for messages of one size.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Finding {
    /// Over the driver.
    pub driver: Recorded,
    /// Over the floor.
    pub floor: Recorded,
    /// Over the floor in chunks: of how many bytes, and what was seen.
    pub chunked: Vec<(usize, Recorded)>,
    /// With one copy by the kernel.
    pub pulled: Recorded,
    /// Why there was no such copy.
    pub refused: Option<String>,
    /// How far apart the processors were, before and after, and whether they seemed to share a core.
    pub hops: Vec<(f64, bool)>,
}

impl Finding {
    /// With what the other side of the pair saw.
    pub fn joined(self, other: Finding) -> Self {
        Self { floor: [self.floor, other.floor].concat(), ..self }
    }
}

/// Samples in a form that travels.
pub fn pack(samples: &Samples) -> Recorded {
    samples.recorded().collect()
}

/// Samples as they came.
pub fn unpack(recorded: &[(u64, u64)]) -> Samples {
    let mut samples = Samples::new();
    recorded.iter().for_each(|(value, count)| samples.record_many(*value, *count));
    samples
}

/// Sections of a stream.
const STREAM_ROUNDS: usize = 20;
/// Bytes of a stream that count, where nothing is said.
const STREAM_BYTES: u64 = 4 << 30;

/// How many messages of a stream count, where nothing is said: `most` at most.
pub fn usual_stream(bytes: usize, most: u64) -> u64 {
    (STREAM_BYTES / (bytes as u64).max(1)).clamp(2 * STREAM_ROUNDS as u64, most)
}

/// The sections of a stream.
pub fn stream_leg(bytes: usize, messages: usize) -> Leg {
    let rounds = STREAM_ROUNDS.min(messages);
    Leg { bytes, rounds, count: messages.div_ceil(rounds), warmup: 0 }
}
