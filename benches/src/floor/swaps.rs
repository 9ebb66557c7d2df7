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
    /// Sets it and sets it back so many times, by compare-and-swap.
    pub fn swap_there_and_back(&self, times: u64) {
        let word = black_box(&self.0.0);
        for owner in 1..=times {
            let _ = black_box(word.compare_exchange(0, owner, AcqRel, Relaxed));
            let _ = black_box(word.compare_exchange(owner, 0, AcqRel, Relaxed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_swap_succeeds() {
        let word = PrivateWord::default();
        word.swap_there_and_back(1000);
        assert_eq!(word.0.0.load(Relaxed), 0);
    }
}
