//! The cost of an attack to nodes that have nothing to do with it, as a ratio.
//!
//! The machine may have fewer processors than there are threads that spin, and others may be at work on it. So nothing is compared
//! but neighbouring stretches of the same run, and the hostile node takes as much of a processor in one as in the other: while it
//! strikes no blows it spins for as long, does in between what any peer may do, and comes and goes as before. The difference is what the
//! blows themselves cost. They may leave something behind that costs later on, so the calm stretch is the first of a victim's life.

use crate::at;
use doorbell_tests::words::Words;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// How long a stretch takes, if that is enough for so many rounds of messages.
pub const STRETCH: Duration = Duration::from_millis(20);
pub const ROUNDS_LEAST: usize = 5;
/// The fewest pairs that allow a conclusion.
pub const ENOUGH: usize = 9;
/// The time that messages between others may take under attack, in thousandths of their time without.
pub const LIMIT: u64 = 1500;

/// The pairs of stretches so far: how long a round of messages took under attack, and how long without; in nanoseconds.
#[derive(Default)]
pub struct Toll(Vec<[u64; 2]>);

impl Toll {
    pub fn add(&mut self, struck: u64, calm: u64) {
        self.0.push([struck, calm]);
    }

    pub fn pairs(&self) -> usize {
        self.0.len()
    }

    /// In thousandths: the median of all pairs, each of which a change on the machine concerns on both sides.
    pub fn ratio(&self) -> u64 {
        median(self.0.iter().map(|[struck, calm]| struck * 1000 / calm.max(&1)).collect())
    }

    /// Tells the other processes.
    pub fn tell(&self, words: &Words) {
        let of = |which: usize| median(self.0.iter().map(|pair| pair[which]).collect());
        let told = [(at::RATIO, self.ratio()), (at::PAIRS, self.0.len() as u64), (at::STRUCK, of(0)), (at::CALM, of(1))];
        told.into_iter().for_each(|(word, value)| words[word].store(value, SeqCst));
    }
}

pub fn median(mut of: Vec<u64>) -> u64 {
    of.sort_unstable();
    of.get(of.len() / 2).copied().unwrap_or(0)
}

/// The result in words.
pub fn told(words: &Words) -> String {
    let [ratio, pairs, struck, calm] = [at::RATIO, at::PAIRS, at::STRUCK, at::CALM].map(|word| words[word].load(SeqCst) as f64);
    if pairs == 0.0 {
        return "what it costs others has no measure".into();
    }
    format!(
        "others take {:.2} times as long under attack ({:.0} µs a round, {:.0} µs without; {pairs} pairs of stretches)",
        ratio / 1e3,
        struck / 1e3,
        calm / 1e3
    )
}
