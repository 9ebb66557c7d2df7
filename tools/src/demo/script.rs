//! What the host and the accelerators of the demo say to each other.

use doorbell::Stats;
use serde::{Deserialize, Serialize};
use std::fs;
use std::time::Duration;

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
}

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

/// One number, from the beginning of a message.
pub fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

/// Nanoseconds on a clock that all processes of the machine share.
pub fn now() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// How long the threads of this process have had a processor.
pub fn processor_time() -> Duration {
    Duration::from_nanos(clock(libc::CLOCK_PROCESS_CPUTIME_ID))
}

fn clock(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the local structure, and nothing else; both clocks exist.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
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
