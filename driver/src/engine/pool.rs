//! Threads that do for other nodes, or for the engine, what may have to wait.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How long one stays that has nothing to do.
const IDLE: Duration = Duration::from_secs(1);
/// The most of them. What comes beyond waits for one to be free.
const CLERKS_MAX: usize = 512;

type Job = Box<dyn FnOnce() + Send>;

/// They come when there is something to do, and go after a while.
#[derive(Default)]
pub struct Clerks {
    state: Mutex<State>,
    bell: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
    all: usize,
}

impl Clerks {
    /// Has something done soon. Never waits. Where no thread can be had it is dropped.
    pub fn submit(self: &Arc<Self>, job: Job) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.jobs.push_back(job);
        if state.jobs.len() <= state.idle {
            self.bell.notify_one();
            return;
        }
        if state.all >= CLERKS_MAX {
            return;
        }
        state.all += 1;
        drop(state);
        let clerks = self.clone();
        let spawned = std::thread::Builder::new().name("doorbell-clerk".into()).spawn(move || clerks.work());
        if let Err(error) = spawned {
            tracing::warn!(%error, "no thread can be had to do what may have to wait; that waits for one that is there");
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.all -= 1;
            // If there is none it is not done at all: dropping it says so to whoever waits.
            let lost = if state.all == 0 { std::mem::take(&mut state.jobs) } else { VecDeque::new() };
            drop(state);
            drop(lost);
        }
    }

    fn work(&self) {
        doorbell_shm::bus::unblock();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                // A job that panics must not take a clerk's place with it.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
                state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.idle += 1;
            let (woken, waited) = self.bell.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if waited.timed_out() && state.jobs.is_empty() {
                state.all -= 1;
                return;
            }
        }
    }
}
