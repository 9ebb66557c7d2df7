//! Steps of one kind, timed: none may stall.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A step above so many times the median of its kind stalls, ...
const TIMES: u32 = 50;
/// ... unless it is shorter than this: a busy machine holds a thread up for as long as that.
const FLOOR: Duration = Duration::from_millis(500);

/// Times steps that should take about the same, in any threads of one test. Each of them has a deadline of its own, so a step that waits for a wake-up
/// that never comes ends, late; this is what sees it.
#[derive(Clone, Debug)]
pub struct Steps {
    what: Arc<str>,
    took: Arc<Mutex<Vec<Duration>>>,
}

impl Steps {
    /// Steps that are called so.
    pub fn of(what: impl Into<Arc<str>>) -> Self {
        Self { what: what.into(), took: Arc::default() }
    }

    /// Does one.
    pub fn step<T>(&self, run: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = run();
        self.took.lock().unwrap_or_else(PoisonError::into_inner).push(began.elapsed());
        done
    }

    /// What they took, the shortest first.
    pub fn sorted(&self) -> Vec<Duration> {
        let mut took = self.took.lock().unwrap_or_else(PoisonError::into_inner).clone();
        took.sort_unstable();
        took
    }

    /// What one of them took that is as long as half of the others.
    #[track_caller]
    pub fn median(&self) -> Duration {
        let took = self.sorted();
        *took.get(took.len() / 2).unwrap_or_else(|| panic!("{}: not one step", self.what))
    }

    /// Panics if one stalled.
    #[track_caller]
    pub fn check(&self) {
        self.check_against(self.median(), TIMES, FLOOR);
    }

    /// Panics if one took more than so many times the median of these or others, and more than `floor`.
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
