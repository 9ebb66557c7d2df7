//! Processes that contend for one lock: the timed loop, which is the same for the driver's locks and for the floor.

use crate::clock::ticks;
use crate::floor::{Line, Patience};
use std::sync::atomic::Ordering::*;

/// A lock that lets one holder in at a time.
pub trait Exclusive {
    /// Why the lock failed.
    type Error;

    /// Runs `inside` under the lock if it is free. Returns whether it ran.
    ///
    /// # Errors
    /// The lock failed.
    fn try_with(&mut self, inside: impl FnOnce()) -> Result<bool, Self::Error>;

    /// Waits for the lock, and runs `inside` under it.
    ///
    /// # Errors
    /// The lock failed.
    fn with(&mut self, inside: impl FnOnce()) -> Result<(), Self::Error>;
}

/// Two counters on two cache lines, each with a separate read and write. Two processes that raise them at once corrupt them. All
/// zero is the initial state.
#[repr(C)]
#[derive(Debug)]
pub struct Counters([Line; 2]);

impl Counters {
    /// Raises both, but not atomically: the caller must hold the lock.
    #[inline(always)]
    pub fn raise(&self) {
        for Line(counter) in &self.0 {
            counter.store(counter.load(Relaxed) + 1, Relaxed);
        }
    }

    /// The values of both.
    pub fn get(&self) -> [u64; 2] {
        [0, 1].map(|which: usize| self.0[which].0.load(Acquire))
    }
}

/// The experience of one contending process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Contended {
    /// How often it held the lock.
    pub locks: u64,
    /// How often it found the lock held and waited.
    pub waited: u64,
    /// The ticks of all waits together.
    pub wait_ticks: u64,
    /// The ticks of the longest wait.
    pub longest_ticks: u64,
    /// The total ticks.
    pub ticks: u64,
}

impl Contended {
    /// Adds another result of the same process.
    pub fn and(self, other: Self) -> Self {
        Self {
            locks: self.locks + other.locks,
            waited: self.waited + other.waited,
            wait_ticks: self.wait_ticks + other.wait_ticks,
            longest_ticks: self.longest_ticks.max(other.longest_ticks),
            ticks: self.ticks + other.ticks,
        }
    }
}

/// Takes the lock, raises the counters and releases the lock, again and again, for `span` ticks or until told to stop. A wait
/// begins when the lock is found held, and ends when the caller holds it.
///
/// # Errors
/// Those of the lock.
pub fn contend<L: Exclusive>(lock: &mut L, counters: &Counters, span: u64, patience: &Patience) -> Result<Contended, L::Error> {
    let mut seen = Contended::default();
    let began = ticks();
    loop {
        let asked = ticks();
        seen.ticks = asked - began;
        if seen.ticks >= span || patience.stopped() {
            return Ok(seen);
        }
        if !lock.try_with(|| counters.raise())? {
            let mut came_in = 0;
            lock.with(|| {
                came_in = ticks();
                counters.raise();
            })?;
            seen.waited += 1;
            seen.wait_ticks += came_in - asked;
            seen.longest_ticks = seen.longest_ticks.max(came_in - asked);
        }
        seen.locks += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::floor::{Mapping, Shape};
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    /// Is held at every other attempt.
    struct Turnstile(u64);

    impl Exclusive for Turnstile {
        type Error = ();

        fn try_with(&mut self, inside: impl FnOnce()) -> Result<bool, ()> {
            self.0 += 1;
            let free = self.0.is_multiple_of(2);
            if free {
                inside();
            }
            Ok(free)
        }

        fn with(&mut self, inside: impl FnOnce()) -> Result<(), ()> {
            inside();
            if self.0 < 1000 { Ok(()) } else { Err(()) }
        }
    }

    fn patience() -> Patience {
        Patience::new(Arc::new(AtomicBool::new(false)), false)
    }

    #[test]
    fn waits_are_told_from_free_entries() {
        let mapping = Mapping::create(Shape { pairs: 0, bytes: 0 }).unwrap();
        let counters = &mapping.common().under_key;
        assert_eq!(contend(&mut Turnstile(0), counters, 0, &patience()).map(|seen| seen.locks), Ok(0));
        assert_eq!(contend(&mut Turnstile(0), counters, u64::MAX, &patience()), Err(()));
        assert_eq!(counters.get(), [1001, 1001]);
        let seen = contend(&mut Turnstile(0), counters, 1, &patience()).unwrap();
        assert!(seen.waited == seen.locks - seen.locks / 2 && seen.longest_ticks <= seen.wait_ticks, "{seen:?}");
    }

    #[test]
    fn what_was_seen_adds_up() {
        let one = Contended { locks: 3, waited: 2, wait_ticks: 30, longest_ticks: 20, ticks: 100 };
        let other = Contended { locks: 1, waited: 1, wait_ticks: 25, longest_ticks: 25, ticks: 90 };
        assert_eq!(one.and(other), Contended { locks: 4, waited: 3, wait_ticks: 55, longest_ticks: 25, ticks: 190 });
    }
}
