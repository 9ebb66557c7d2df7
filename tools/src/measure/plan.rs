//! What a worker is told, and what it answers: one line of JSON each.

use doorbell_benches::exchange::Side;
use doorbell_benches::floor::Shape;
use doorbell_benches::stats::Samples;
use serde::{Deserialize, Serialize};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Test {
    /// Messages back and forth: a sample is a round trip.
    Latency,
    /// Messages one way: a sample is a section.
    Rate,
}

impl Test {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Test::Latency => "latency",
            Test::Rate => "rate",
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
    /// What is measured.
    pub test: Test,
    /// The name of the domain.
    pub domain: String,
    /// Pairs of processes.
    pub pairs: usize,
    /// One size after the other.
    pub legs: Vec<Leg>,
    /// Measure the floor, too.
    pub floor: bool,
    /// Write what is sent and read what is received.
    pub touched: bool,
    /// Through `Node`s shared by threads, not through a `Peer`.
    pub shared: bool,
    /// Who turns the engine.
    pub progress: String,
    /// How threads wait.
    pub wait: String,
    /// The processors on which workers run in turn; wherever they like if there are none.
    pub pin: Vec<usize>,
    /// There are more processes than processors.
    pub crowded: bool,
}

impl Plan {
    /// Where memory for the floor of all pairs lies.
    pub fn shape(&self) -> Shape {
        Shape { pairs: self.pairs, bytes: self.legs.iter().map(|leg| leg.bytes).max().unwrap_or(0) }
    }

    /// The processor of a node.
    pub fn processor(&self, node: usize) -> Option<usize> {
        if self.pin.is_empty() { None } else { Some(self.pin[node % self.pin.len()]) }
    }

    /// Whether the processes of a pair run on processors of their own, as far as is known.
    pub fn is_spread(&self) -> bool {
        self.pin.is_empty() || self.processor(0) != self.processor(1)
    }
}

/// What one worker is told besides.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// What all do.
    pub plan: Plan,
    /// Which of them it is: even ones hold the clock, and the odd one that follows answers.
    pub node: usize,
    /// The descriptor of the floor's memory.
    pub memory: i32,
    /// The process that started it.
    pub parent: i32,
    /// Nanoseconds in a tick.
    pub ns_per_tick: f64,
}

impl Order {
    /// Which part it plays.
    pub fn side(&self) -> Side {
        if self.node.is_multiple_of(2) { Side::Ping } else { Side::Pong }
    }
}

/// What a worker answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// Done: one finding for each leg from the side that holds the clock, none from the other.
    Done(Vec<Finding>),
    /// It was told to stop.
    Stopped,
    /// It could not begin.
    Unable(String),
    /// Something failed on the way.
    Failed(String),
}

/// What was found for messages of one size.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Finding {
    /// Ticks, and how often each was seen: over the driver.
    pub driver: Vec<(u64, u64)>,
    /// The same over the floor.
    pub floor: Vec<(u64, u64)>,
    /// How far apart the processors were, before and after, and whether they seemed to share a core.
    pub hops: Vec<(f64, bool)>,
}

/// Samples in a form that travels.
pub fn pack(samples: &Samples) -> Vec<(u64, u64)> {
    samples.recorded().collect()
}

/// Samples as they came.
pub fn unpack(recorded: &[(u64, u64)]) -> Samples {
    let mut samples = Samples::new();
    recorded.iter().for_each(|(value, count)| samples.record_many(*value, *count));
    samples
}
