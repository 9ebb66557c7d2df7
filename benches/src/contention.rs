//! Processes that all want the same lock: the loop that is timed, the same one for the driver's keys and for the floor.

use crate::clock::ticks;
use crate::floor::{Line, Patience};
use std::sync::atomic::Ordering::*;

/// What lets one in at a time.
pub trait Exclusive {
    /// Why it cannot go on.
    type Error;

    /// Does this while nobody else is in, if nobody is; says whether it did.
    ///
    /// # Errors
    /// It cannot go on.
    fn try_with(&mut self, inside: impl FnOnce()) -> Result<bool, Self::Error>;

    /// Waits until nobody is in, and does this.
    ///
    /// # Errors
    /// It cannot go on.
    fn with(&mut self, inside: impl FnOnce()) -> Result<(), Self::Error>;
}

/// Two counters, on two cache lines, of which each is read and written apart: whoever does that while another does it spoils them. All zero is
/// the beginning.
#[repr(C)]
#[derive(Debug)]
pub struct Counters([Line; 2]);

impl Counters {
    /// Raises both. Not in one step: that is what whoever calls this has a lock for.
    #[inline(always)]
    pub fn raise(&self) {
        for Line(counter) in &self.0 {
            counter.store(counter.load(Relaxed) + 1, Relaxed);
        }
    }

    /// What both say.
    pub fn get(&self) -> [u64; 2] {
        [0, 1].map(|which: usize| self.0[which].0.load(Acquire))
    }
}

/// What one of those who contend saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contended {
    /// How often it was in.
    pub locks: u64,
    /// How often it found somebody else in, and waited.
    pub waited: u64,
    /// Ticks of all waits together.
    pub wait_ticks: u64,
    /// Ticks of the longest one.
    pub longest_ticks: u64,
    /// Ticks that it took in all.
    pub ticks: u64,
}

impl Contended {
    /// With what it saw another time.
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

/// For so many ticks, or until told to stop, goes in, raises the counters, and comes out, again and again. A wait begins when somebody else was found
/// in and ends when the caller is.
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

    /// Finds somebody in every other time.
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
