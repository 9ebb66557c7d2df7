//! Timed steps of one kind, none of which may stall.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A step above so many times the median of its kind stalls, ...
const TIMES: u32 = 50;
/// ... unless it is shorter than this: a busy machine holds a thread up for as long as that.
const FLOOR: Duration = Duration::from_millis(500);

/// Times steps that should take about the same, in any threads of one test. Each step has a deadline of its own, so that a lost wake-up shows only as
/// a late step. The check finds it.
#[derive(Clone, Debug)]
pub struct Steps {
    what: Arc<str>,
    took: Arc<Mutex<Vec<Duration>>>,
}

impl Steps {
    /// Steps with this name.
    pub fn of(what: impl Into<Arc<str>>) -> Self {
        Self { what: what.into(), took: Arc::default() }
    }

    /// Times one step.
    pub fn step<T>(&self, run: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = run();
        self.took.lock().unwrap_or_else(PoisonError::into_inner).push(began.elapsed());
        done
    }

    /// The durations, the shortest first.
    pub fn sorted(&self) -> Vec<Duration> {
        let mut took = self.took.lock().unwrap_or_else(PoisonError::into_inner).clone();
        took.sort_unstable();
        took
    }

    /// The median duration.
    #[track_caller]
    pub fn median(&self) -> Duration {
        let took = self.sorted();
        *took.get(took.len() / 2).unwrap_or_else(|| panic!("{}: not one step", self.what))
    }

    /// Panics if a step stalled.
    #[track_caller]
    pub fn check(&self) {
        self.check_against(self.median(), TIMES, FLOOR);
    }

    /// Panics if a step took more than `times` times this median, and more than `floor`.
    #[track_caller]
    pub fn check_against(&self, median: Duration, times: u32, floor: Duration) {
        let most = (median * times).max(floor);
        let late: Vec<_> = self.sorted().into_iter().filter(|took| *took > most).collect();
        assert!(late.is_empty(), "{}: {late:?}, which is above {most:?}; the median is {median:?}", self.what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_stalls_is_seen() {
        let steps = Steps::of("steps");
        (0..9).for_each(|_| steps.step(|| ()));
        steps.check();
        steps.took.lock().unwrap().push(FLOOR * 2);
        assert!(std::panic::catch_unwind(|| steps.check()).is_err());
        steps.check_against(FLOOR, 5, FLOOR);
    }
}
