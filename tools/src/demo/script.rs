//! The orders and answers between the host and the accelerators of the demo.

use super::PATIENCE;
pub use crate::clock::{now, processor_time};
use doorbell::collective::Team;
use doorbell::collective::reduction::Sum;
use doorbell::transfer::{Descriptor, Side};
use doorbell::{Error, Key, Lock, Node, NodeId, ReadWrite, Stats, TransferReport, TryLock};
use serde::{Deserialize, Serialize};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// An order of the host, in JSON. Unless it says otherwise, the accelerator answers with one message in JSON.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    /// Send three messages, with the tags of [`tag::COLOURS`] in that order. There is no other answer.
    Paint,
    /// Tell the time after this many milliseconds.
    Sleep(u64),
    /// Read nothing for this many milliseconds; then count the messages of the flood.
    Stall(u64),
    /// Tell which threads carried messages: a [`Report`].
    Report,
    /// Tell when you learn that this node died.
    Watch(u16),
    /// Send some words, and then nothing again.
    Farewell,
    /// Leave the domain, without an answer.
    Leave,
    /// Make a region, and send two keys to it: one to read and write, one to read.
    Lend,
    /// Send the content of the region.
    Show,
    /// Withdraw the region.
    Withdraw,
    /// Fill the memory of a key with your number, and count the bytes on the counter of the other key. There is no answer.
    Fill { memory: Vec<u8>, counter: Vec<u8> },
    /// Receive a long message. Answer when you are ready for it, and with its [`Moves`].
    Take,
    /// Begin to send a long message, sleep for this many milliseconds, and answer in the same way.
    Give(u64),
    /// Give keys to a long region with [`BULK_BYTES`] and to a counter: an [`Offer`](super::offers::Offer). Sleep for this many milliseconds,
    /// tell the time, and keep both until [`tag::SEEN`].
    Own(u64),
    /// Give keys to room for them, wait for the bytes, and tell whether they are right. After [`tag::SEEN`] tell the rows of all FIFOs.
    Want,
    /// Lock the lock of the story repeatedly, and raise under it the two counters in the memory of this key. The answer is a [`Contest`].
    Contend(Vec<u8>),
    /// Lock the lock of the story, and keep it.
    Hold,
    /// Lock the lock of the story, tell its dead owner, and report that the data is repaired.
    Inherit,
    /// Sum vectors with the other nodes, and compute meanwhile. The answer is an [`Overlap`].
    Sum,
}

/// Tags of messages.
pub mod tag {
    /// A vector to scale: a factor, then the values.
    pub const SCALE: u64 = 1;
    /// An [`super::Order`], and an answer to one.
    pub const ORDER: u64 = 2;
    pub const ANSWER: u64 = 3;
    /// One message of the flood, and the last one.
    pub const FLOOD: u64 = 5;
    pub const FLOOD_ENDS: u64 = 6;
    /// The host has seen the counters of a node.
    pub const SEEN: u64 = 7;
    /// A message to send back, and the one that was sent back.
    pub const PING: u64 = 10;
    pub const PONG: u64 = 160;
    /// A long message.
    pub const BULK: u64 = 17;
    /// The scaled vector.
    pub const RESULT: u64 = 101;
    /// Three messages with different tags.
    pub const COLOURS: [(u64, &str); 3] = [(111, "red"), (112, "green"), (113, "blue")];
}

/// How long the sender of a long message sleeps, in milliseconds: longer than the message takes.
pub const PAUSE_MS: u64 = 60;
/// The name of the lock that all nodes want.
pub const FRAME: &str = "frame";
/// How often each node locks it.
pub const TURNS: u64 = 50_000;

/// Bytes of a message of the flood.
pub const FLOOD_BYTES: usize = 1024;
/// The longest message besides the long ones.
pub const LONGEST: usize = 64 << 10;

/// Numbers as bytes.
pub fn encode(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// Bytes as numbers.
pub fn decode(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks().0.iter().map(|bytes| f64::from_ne_bytes(*bytes)).collect()
}

/// Bytes of a long message.
pub const BULK_BYTES: usize = 16 << 20;

/// How much later its receiver asks for it. Until then its first chunks wait in the lane or in the pool.
pub const LATE: Duration = Duration::from_millis(1);

/// Fills a long message with words that are all different.
pub fn fill_bulk(message: &mut [u8]) {
    for (at, word) in message.as_chunks_mut().0.iter_mut().enumerate() {
        *word = bulk_word(at);
    }
}

/// Whether a long message holds these words.
pub fn check_bulk(message: &[u8]) -> bool {
    message.as_chunks().0.iter().enumerate().all(|(at, word)| *word == bulk_word(at))
}

fn bulk_word(at: usize) -> [u8; 8] {
    (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes()
}

/// The messages that the threads of a node carried.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// Numbers and names of its threads, the first one first.
    pub threads: Vec<(u32, String)>,
    /// Messages that waiting threads took out of the lanes.
    pub by_application: u64,
    /// Messages that the poller took out of the lanes.
    pub by_poller: u64,
    /// Times a thread slept on the doorbell.
    pub parks: u64,
}

impl Report {
    /// The report of this process.
    pub fn new(stats: &Stats) -> Self {
        let mut threads: Vec<(u32, String)> = fs::read_dir("/proc/self/task")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let name = fs::read_to_string(entry.path().join("comm")).ok()?;
                Some((entry.file_name().to_str()?.parse().ok()?, name.trim_end().to_owned()))
            })
            .collect();
        threads.sort_unstable();
        let by_application = stats.messages_in - stats.by_poller;
        Self { threads, by_application, by_poller: stats.by_poller, parks: stats.parks }
    }
}

/// The part of one node in a transfer.
#[derive(Debug, Serialize, Deserialize)]
pub struct Moves {
    /// Bytes by memory FIFO, by direct put, and pulled.
    pub ways: [u64; 3],
    /// Whether these bytes add up to the message.
    pub whole: bool,
    /// How often the counter reached zero.
    pub zeroes: u32,
    /// The descriptors that its engine executed.
    pub executed: Vec<Step>,
}

/// A descriptor that was executed.
#[derive(Debug, Serialize, Deserialize)]
pub struct Step {
    /// Its place in the story of a transfer.
    pub place: usize,
    /// Its name.
    pub descriptor: String,
    /// The thread that executed it.
    pub thread: String,
    /// The bytes it moved.
    pub bytes: u64,
}

impl Moves {
    /// The latest transfer of a long message. Waits until the transfer is over for this node, too.
    pub fn of(node: &Node, side: Side, deadline: Instant) -> Result<Self, Error> {
        loop {
            let reports = node.transfers()?;
            if let Some(report) = reports.iter().rfind(|report| report.side == side && report.tag == tag::BULK) {
                return Ok(Self::new(report));
            }
            if Instant::now() > deadline {
                return Err(Error::Timeout { operation: "see the end of a transfer", node: None });
            }
            thread::sleep(Duration::from_micros(100));
        }
    }

    fn new(report: &TransferReport) -> Self {
        let ways = [report.fifo, report.put, report.pulled].map(|moved| moved.bytes);
        let executed = report.executed.iter().map(|executed| {
            let (place, descriptor) = match executed.descriptor {
                Descriptor::Rts => (0, "request to send"),
                Descriptor::RemoteGet => (1, "remote get"),
                Descriptor::MemoryFifo => (2, "memory FIFO"),
                Descriptor::DirectPut => (3, "direct put"),
                Descriptor::Pull => (4, "pull"),
                _ => (5, "another"),
            };
            let last = if executed.thread == std::process::id() as i32 { "its application" } else { "its poller" };
            let thread = match executed.threads {
                1 => last.to_owned(),
                _ => format!("its application and its poller, {} handovers", executed.threads - 1),
            };
            Step { place, descriptor: descriptor.into(), thread, bytes: executed.moved.bytes }
        });
        let whole = ways.iter().sum::<u64>() == report.len;
        Self { ways, whole, zeroes: report.zeroes, executed: executed.collect() }
    }
}

/// The waits of one node for the lock that all nodes want.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Contest {
    /// How often the node waited.
    pub waited: u64,
    /// Its longest wait.
    pub longest: Duration,
}

impl Contest {
    /// Locks the lock [`TURNS`] times, and raises two counters under it by a get and a put.
    pub fn play(node: &Node, key: &Lock, counters: Key<u64, ReadWrite>) -> Result<Self, Error> {
        let mut contest = Self::default();
        for _ in 0..TURNS {
            let guard = match key.try_lock()? {
                TryLock::Locked(guard) => guard,
                TryLock::Busy(_) => {
                    let asked = Instant::now();
                    let guard = key.lock_until(asked + PATIENCE)?;
                    contest.waited += 1;
                    contest.longest = contest.longest.max(asked.elapsed());
                    guard
                }
            };
            let mut counts = [0; 2];
            node.get(counters, &mut counts)?;
            node.put(&counts.map(|count| count + 1), counters)?;
            guard.unlock()?;
        }
        Ok(contest)
    }
}

/// The team that sums.
pub const TEAM: [NodeId; 4] = [NodeId(0), NodeId(1), NodeId(2), NodeId(3)];
/// How many numbers each node has.
pub const SUMMED: usize = 8 << 10;

/// How long one node took to sum vectors with the others, and to compute.
#[derive(Debug, Serialize, Deserialize)]
pub struct Overlap {
    /// Whether every sum was right.
    pub is_right: bool,
    /// Computing alone.
    pub computing: Duration,
    /// A sum, and then computing.
    pub after: Duration,
    /// Computing while a sum is under way, with the remaining wait.
    pub meanwhile: Duration,
}

impl Overlap {
    /// The rounds of each kind.
    pub const ROUNDS: usize = 24;
    /// How many times as much one node computes as the others, in turn. After each part it tests its sum, which moves the sum if no poller does.
    pub const MORE: usize = 8;

    /// Sums, computes, and does both.
    pub fn play(node: &Node) -> Result<Self, Error> {
        let team = Team::builder(node).members(&TEAM).patience(PATIENCE).form_until(Instant::now() + PATIENCE)?;
        let mine: Vec<f64> = (0..SUMMED).map(|at| ((team.rank() + 1) * (at % 1000)) as f64).collect();
        let is_sum =
            |found: &Vec<f64>| found.iter().enumerate().all(|(at, found)| *found == ((1 + 2 + 3 + 4) * (at % 1000)) as f64);
        let mut sums = Vec::with_capacity(2 * Self::ROUNDS);
        let mut time = |sum: bool, meanwhile: bool| -> Result<Duration, Error> {
            team.barrier()?;
            let begin = Instant::now();
            for round in 0..Self::ROUNDS {
                let mut under_way = if sum { Some(team.start_allreduce(Sum, mine.clone())?) } else { None };
                if !meanwhile {
                    sums.extend(under_way.take().map(|sum| sum.wait()).transpose()?);
                }
                let has_more = (round + team.rank()).is_multiple_of(TEAM.len());
                for _ in 0..if has_more { Self::MORE } else { 1 } {
                    compute();
                    under_way.as_ref().map(|sum| sum.test());
                }
                sums.extend(under_way.map(|sum| sum.wait()).transpose()?);
            }
            Ok(begin.elapsed() / Self::ROUNDS as u32)
        };
        let (computing, after, meanwhile) = (time(false, false)?, time(true, false)?, time(true, true)?);
        Ok(Self { is_right: sums.iter().all(is_sum), computing, after, meanwhile })
    }

    /// The time of a sum that comes before the computing.
    pub fn sum(&self) -> Duration {
        self.after.saturating_sub(self.computing)
    }

    /// How much of that time is saved if the sum is under way meanwhile.
    pub fn hidden(&self) -> Duration {
        self.after.saturating_sub(self.meanwhile).min(self.sum())
    }
}

/// The work of an application for a part of a millisecond.
fn compute() {
    let mut x = std::hint::black_box(0.4);
    for _ in 0..200_000 {
        x = 3.9 * x * (1.0 - x);
    }
    std::hint::black_box(x);
}
