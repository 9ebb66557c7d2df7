//! What the host and the accelerators of the demo say to each other.

use super::cast::PATIENCE;
pub use crate::clock::{now, processor_time};
use doorbell::collective::Team;
use doorbell::collective::reduction::Sum;
use doorbell::transfer::{Descriptor, Side};
use doorbell::{Error, Key, LockKey, Node, NodeId, ReadWrite, Stats, TransferReport, TryLock};
use serde::{Deserialize, Serialize};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// Orders of the host: the tags of its messages.
pub mod order {
    /// Scale a vector: a factor, then the values.
    pub const SCALE: u64 = 1;
    /// Send three messages, with the tags of [`super::answer::COLOURS`] in that order.
    pub const PAINT: u64 = 2;
    /// Send the time, after this many milliseconds.
    pub const SLEEP: u64 = 3;
    /// Read nothing for this many milliseconds; then count the messages of the flood.
    pub const STALL: u64 = 4;
    /// One of many.
    pub const FLOOD: u64 = 5;
    /// The last of many.
    pub const FLOOD_ENDS: u64 = 6;
    /// Tell who carried what.
    pub const REPORT: u64 = 7;
    /// Tell when you are told that this node died.
    pub const WATCH: u64 = 8;
    /// Say something, and then never anything again.
    pub const FAREWELL: u64 = 9;
    /// Send it back.
    pub const PING: u64 = 10;
    /// Leave the domain.
    pub const LEAVE: u64 = 11;
    /// Make a region, and send two keys to it: one to read and write, one to read.
    pub const LEND: u64 = 12;
    /// Send what is in the region.
    pub const SHOW: u64 = 13;
    /// Withdraw the region.
    pub const WITHDRAW: u64 = 14;
    /// Put your number wherever this key reaches, and lower the counter whose key follows it.
    pub const FILL: u64 = 15;
    /// Receive a long message.
    pub const TAKE: u64 = 16;
    /// The long message.
    pub const BULK: u64 = 17;
    /// Begin to send a long message, and sleep for this many milliseconds.
    pub const GIVE: u64 = 18;
    /// How many: more than a long message takes.
    pub const PAUSE_MS: u64 = 60;
    /// Lock the key of the story again and again, and raise under it the two counters to which this key of a region reaches.
    pub const CONTEND: u64 = 19;
    /// Lock the key of the story, and keep it.
    pub const HOLD: u64 = 20;
    /// Lock the key of the story, tell from whom it comes, and say that what it guards is repaired.
    pub const INHERIT: u64 = 21;
    /// Sum vectors with the others, and compute meanwhile.
    pub const SUM: u64 = 22;
}

/// Answers of the accelerators.
pub mod answer {
    /// The scaled vector.
    pub const RESULT: u64 = 101;
    /// Three of a kind.
    pub const COLOURS: [(u64, &str); 3] = [(111, "red"), (112, "green"), (113, "blue")];
    /// The time at which it was sent.
    pub const TIME: u64 = 120;
    /// How many messages the flood had.
    pub const COUNT: u64 = 130;
    /// A [`super::Report`].
    pub const REPORT: u64 = 140;
    /// Last words.
    pub const WORDS: u64 = 150;
    /// Sent back.
    pub const PONG: u64 = 160;
    /// Two keys to a region.
    pub const KEYS: u64 = 170;
    /// What was asked for is done.
    pub const DONE: u64 = 180;
    /// All is prepared for a long message.
    pub const READY: u64 = 190;
    /// The long message.
    pub const BULK: u64 = 200;
    /// What is known of the transfer of a long message: [`super::Moves`].
    pub const MOVES: u64 = 210;
    /// How it was to want what others want: a [`super::Contest`].
    pub const CONTEST: u64 = 220;
    /// Who died with a key, in words.
    pub const HEIR: u64 = 230;
    /// How it was to sum and to compute: an [`super::Overlap`].
    pub const OVERLAP: u64 = 240;
}

/// The name of the key that all want.
pub const FRAME: &str = "frame";
/// How often each of them locks it.
pub const TURNS: u64 = 50_000;

/// Bytes of a message of the flood.
pub const FLOOD_BYTES: usize = 1024;
/// Longer than any other message.
pub const LONGEST: usize = 64 << 10;

/// Numbers as bytes.
pub fn encode(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// Bytes as numbers.
pub fn decode(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks().0.iter().map(|bytes| f64::from_ne_bytes(*bytes)).collect()
}

/// Bytes as whole numbers.
pub fn decode_words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|bytes| u64::from_ne_bytes(*bytes)).collect()
}

/// Bytes of a long message.
pub const BULK_BYTES: usize = 16 << 20;

/// So much later its receiver asks for it: until then its first chunks wait in the lane, or in the pool.
pub const LATE: Duration = Duration::from_millis(1);

/// What a long message holds: each word is another.
pub fn fill_bulk(message: &mut [u8]) {
    for (at, word) in message.as_chunks_mut().0.iter_mut().enumerate() {
        *word = bulk_word(at);
    }
}

/// Whether it holds that.
pub fn check_bulk(message: &[u8]) -> bool {
    message.as_chunks().0.iter().enumerate().all(|(at, word)| *word == bulk_word(at))
}

fn bulk_word(at: usize) -> [u8; 8] {
    (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes()
}

/// One number, from the beginning of a message.
pub fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

/// Who of a node carried what.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// Numbers and names of its threads, the first one first.
    pub threads: Vec<(u32, String)>,
    /// Messages that the threads which wait took out of the lanes.
    pub by_application: u64,
    /// Messages that the poller took out of the lanes.
    pub by_poller: u64,
    /// Times a thread slept on the doorbell.
    pub parks: u64,
}

impl Report {
    /// Of this process.
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

/// What one node did in a transfer, and what it knows of it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Moves {
    /// Bytes by memory FIFO, by direct put, and pulled.
    pub ways: [u64; 3],
    /// Together they are the message.
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
    /// Which thread of its node did so.
    pub who: String,
    /// The bytes it moved.
    pub bytes: u64,
}

impl Moves {
    /// Of the latest transfer of messages with this tag. It may take a moment until it is over for this node, too.
    pub fn of(node: &Node, side: Side, tag: u64, deadline: Instant) -> Result<Self, Error> {
        loop {
            let reports = node.transfers()?;
            if let Some(report) = reports.iter().rfind(|report| report.side == side && report.tag == tag) {
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
            let who = match executed.threads {
                1 => last.to_owned(),
                _ => format!("its application and its poller, {} handovers", executed.threads - 1),
            };
            Step { place, descriptor: descriptor.into(), who, bytes: executed.moved.bytes }
        });
        let whole = ways.iter().sum::<u64>() == report.len;
        Self { ways, whole, zeroes: report.zeroes, executed: executed.collect() }
    }
}

/// How often one node found a key locked that others want, too.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Contest {
    /// How often it waited.
    pub waited: u64,
    /// Its longest wait.
    pub longest: Duration,
}

impl Contest {
    /// Locks the key [`TURNS`] times, and raises two counters under it: read there, and written there, by whoever is in.
    pub fn play(node: &Node, key: &LockKey, counters: Key<u64, ReadWrite>) -> Result<Self, Error> {
        let mut contest = Self::default();
        for _ in 0..TURNS {
            let guard = match key.try_lock()? {
                TryLock::Locked(guard) => guard,
                TryLock::Busy(_) => {
                    let asked = Instant::now();
                    let guard = key.lock_by(asked + PATIENCE)?;
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

/// Who sums.
pub const TEAM: [NodeId; 4] = [NodeId(0), NodeId(1), NodeId(2), NodeId(3)];
/// How many numbers each of them has.
pub const SUMMED: usize = 8 << 10;

/// How long it took one node to sum vectors with others, and to compute.
#[derive(Debug, Serialize, Deserialize)]
pub struct Overlap {
    /// Every sum was right.
    pub is_right: bool,
    /// Computing alone.
    pub computing: Duration,
    /// A sum, and then computing.
    pub after: Duration,
    /// Computing while a sum is under way, and what was left to wait for.
    pub meanwhile: Duration,
}

impl Overlap {
    /// How often each is done.
    pub const ROUNDS: usize = 24;
    /// How much more one of them computes than the others, in turn. After each part of it a node looks at its sum: that carries it on where
    /// no poller does.
    pub const MORE: usize = 8;

    /// Sums, computes, and does both.
    pub fn play(node: &Node) -> Result<Self, Error> {
        let team = Team::builder(node).members(&TEAM).patience(PATIENCE).form_by(Instant::now() + PATIENCE)?;
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

    /// What a sum takes of a round, if it comes before the computing.
    pub fn sum(&self) -> Duration {
        self.after.saturating_sub(self.computing)
    }

    /// How much less it takes if it is under way meanwhile.
    pub fn hidden(&self) -> Duration {
        self.after.saturating_sub(self.meanwhile).min(self.sum())
    }
}

/// A part of a millisecond of what an application does.
fn compute() {
    let mut x = std::hint::black_box(0.4);
    for _ in 0..200_000 {
        x = 3.9 * x * (1.0 - x);
    }
    std::hint::black_box(x);
}
