//! Measures the current distance between the two processors.
//!
//! A virtual machine's processors move: the same two may be neighbours in one minute, at opposite ends of the chip in the next,
//! and two threads of one core in the third. A comparison of results must take that into account.

use super::mapping::PairMemory;
use super::patience::{Patience, Stopped};
use super::ring::Line;
use crate::clock::ticks;
use crate::exchange::Side;
use std::hint::black_box;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

/// A hop below this many nanoseconds suggests two threads of one core, and triggers a closer look.
const SUSPICIOUS_NS: f64 = 35.0;
/// Two threads of one core share its load and store units: when both copy, each reaches at most this share of its speed.
const SHARED_SPEED: f64 = 0.75;
/// Hops are timed in this many batches, and their median counts: an interruption spoils only one.
const BATCHES: u64 = 9;
const BATCH: u64 = 3000;
/// The usual limit of a probe. A batch takes a millisecond, but minutes if both processes run on one processor of a busy machine.
const LONGEST: Duration = Duration::from_millis(50);

/// The words with which a pair probes. All zero is the initial state.
#[repr(C)]
#[derive(Debug)]
pub struct HopWords {
    there: Line,
    back: Line,
    /// Twice the number of the probe that ends, plus one if Pong is to copy.
    order: Line,
    /// The last probe in which Pong copied.
    copies: Line,
}

/// The result of a probe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hop {
    /// Nanoseconds for a cache line to move from one processor to the other.
    pub ns: f64,
    /// Whether the processors seem to be two threads of one core.
    pub shared_core: bool,
}

/// One side of the probe.
#[derive(Debug)]
pub struct HopProbe<'m> {
    words: &'m HopWords,
    side: Side,
    patience: &'m Patience,
    probes: u64,
    /// About the longest time of a probe.
    pub(super) longest: Duration,
}

impl<'m> HopProbe<'m> {
    /// Each side must be created once during the life of a mapping.
    pub fn new(memory: &PairMemory<'m>, side: Side, patience: &'m Patience) -> Self {
        Self { words: &memory.words.hop, side, patience, probes: 0, longest: LONGEST }
    }

    /// Measures the distance of the processors. Both processes of a pair call this at once, and Ping gets the result, unless Pong hardly
    /// ran for a while: the machine is busy.
    ///
    /// # Errors
    /// It was told to stop.
    pub fn probe(&mut self, ns_per_tick: f64) -> Result<Option<Hop>, Stopped> {
        let first = self.probes * BATCHES * BATCH + 1;
        self.probes += 1;
        let HopWords { there, back, order, copies } = self.words;
        if self.side == Side::Pong {
            let is_over = || order.0.load(Acquire) >= 2 * self.probes;
            for trip in first..first + BATCHES * BATCH {
                if !self.patience.until_or(|| there.0.load(Acquire) == trip, is_over)? {
                    break;
                }
                back.0.store(trip, Release);
            }
            self.patience.until(is_over)?;
            if order.0.load(Acquire) > 2 * self.probes {
                std::thread::sleep(Duration::from_millis(8));
                copies.0.store(self.probes, Release);
                copy_speed(Duration::from_millis(8));
            }
            return Ok(None);
        }
        let began = Instant::now();
        let mut batches = Vec::new();
        'probe: for trip in (first..first + BATCHES * BATCH).step_by(BATCH as usize) {
            let start = ticks();
            for trip in trip..trip + BATCH {
                there.0.store(trip, Release);
                if !self.patience.until_or(|| back.0.load(Acquire) == trip, || began.elapsed() > self.longest)? {
                    break 'probe;
                }
            }
            batches.push(ticks() - start);
        }
        batches.sort_unstable();
        let ns = |ticks: &u64| *ticks as f64 / BATCH as f64 / 2.0 * ns_per_tick;
        let is_enough = batches.len() as u64 > BATCHES / 2;
        let ns = batches.get(batches.len() / 2).filter(|_| is_enough).map(ns);
        let suspicious = ns.is_some_and(|ns| ns < SUSPICIOUS_NS);
        order.0.store(2 * self.probes + u64::from(suspicious), Release);
        let shared_core = suspicious && {
            std::thread::sleep(Duration::from_millis(1));
            let alone = copy_speed(Duration::from_millis(4));
            self.patience.until(|| copies.0.load(Acquire) == self.probes)?;
            copy_speed(Duration::from_millis(4)) < SHARED_SPEED * alone
        };
        Ok(ns.map(|ns| Hop { ns, shared_core }))
    }
}

/// Copies within the first-level cache. Returns pages a second.
fn copy_speed(span: Duration) -> f64 {
    let (from, mut to) = ([1_u8; 4096], [0_u8; 4096]);
    let start = std::time::Instant::now();
    let mut pages = 0_u32;
    while start.elapsed() < span {
        for _ in 0..100 {
            to.copy_from_slice(black_box(&from));
            black_box(&mut to);
        }
        pages += 100;
    }
    f64::from(pages) / start.elapsed().as_secs_f64()
}
