//! A pair of compare-and-swaps: the minimum for locking and unlocking.

use super::ring::Line;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// A word on a private cache line.
#[derive(Debug)]
pub struct PrivateWord(Line);

impl Default for PrivateWord {
    fn default() -> Self {
        Self(Line(AtomicU64::new(0)))
    }
}

impl PrivateWord {
    /// Sets the word and resets it this many times by compare-and-swap. Returns the number of successful swaps, which is all of
    /// them. The loop contains nothing else, and no store above all: a locked instruction waits for every earlier store, which
    /// cost a third of the pair.
    pub fn swap_there_and_back(&self, times: u64) -> u64 {
        let word = black_box(&self.0.0);
        let swap = |from, to| u64::from(word.compare_exchange(from, to, AcqRel, Relaxed).is_ok());
        (1..=times).map(|owner| swap(0, owner) + swap(owner, 0)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_swap_succeeds() {
        let word = PrivateWord::default();
        assert_eq!(word.swap_there_and_back(1000), 2000);
        assert_eq!(word.0.0.load(Relaxed), 0);
    }
}
