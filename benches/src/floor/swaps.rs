//! A pair of compare-and-swaps: what locking and unlocking cannot do without.

use super::ring::Line;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// A word on a cache line that nobody else touches.
#[derive(Debug)]
pub struct PrivateWord(Line);

impl Default for PrivateWord {
    fn default() -> Self {
        Self(Line(AtomicU64::new(0)))
    }
}

impl PrivateWord {
    /// Sets it and sets it back so many times, by compare-and-swap; says how many swaps succeeded, which is all of them. Nothing else is in the loop,
    /// no store above all: a locked instruction waits for every store before it, which was seen to cost a third of the pair.
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
