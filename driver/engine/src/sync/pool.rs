//! Threads that do for other nodes, or for the engine, what may have to wait.

use doorbell_fabric::world;
use doorbell_fabric::{Incarnation, NodeId};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long one stays that has nothing to do.
const IDLE: Duration = Duration::from_secs(1);

/// Threads of one other node that may wait for keys at a time.
pub const WAITS_MAX: usize = 256;

type Job = Box<dyn FnOnce() + Send>;

/// The node that a job is done for. Each has a number of threads of its own, so that none can keep them from the others. A job beyond them waits for one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Customer {
    /// This node.
    Own,
    /// Another node, for which keys are made and destroyed.
    Chores(NodeId, Incarnation),
    /// Another node, whose threads wait for keys.
    Waits(NodeId, Incarnation),
}

impl Customer {
    fn threads_most(self) -> usize {
        match self {
            Customer::Own => 512,
            Customer::Chores(..) => 1,
            // As many as the node may have asked and not been answered: a wait that has no thread stands in no key's line, and the key it would get
            // goes to others.
            Customer::Waits(..) => WAITS_MAX,
        }
    }
}

/// They come when there is something to do, and go after a while.
#[derive(Default)]
pub struct Clerks {
    state: Mutex<State>,
    bell: Condvar,
}

#[derive(Default)]
struct State {
    /// What a thread may begin at once. Each is counted in `busy` already.
    ready: VecDeque<(Customer, Job)>,
    /// Jobs that wait for others of their customer to end.
    held: VecDeque<(Customer, Job)>,
    /// How many jobs of each customer are ready or under way; of those that have any.
    busy: Vec<(Customer, usize)>,
    idle: usize,
    all: usize,
}

impl State {
    /// Counts one more job of a customer; false if it has as many as it may.
    fn begin(&mut self, customer: Customer) -> bool {
        match self.busy.iter_mut().find(|(whose, _)| *whose == customer) {
            Some((_, count)) if *count >= customer.threads_most() => return false,
            Some((_, count)) => *count += 1,
            None => self.busy.push((customer, 1)),
        }
        true
    }

    /// A job has ended: the next one of its customer is ready.
    fn end(&mut self, customer: Customer) {
        if let Some(at) = self.held.iter().position(|(whose, _)| *whose == customer) {
            let next = self.held.remove(at);
            self.ready.extend(next);
            return;
        }
        if let Some(at) = self.busy.iter().position(|(whose, _)| *whose == customer) {
            self.busy[at].1 -= 1;
            if self.busy[at].1 == 0 {
                self.busy.swap_remove(at);
            }
        }
    }
}

impl Clerks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has something done soon for this node. Never waits. Where no thread can be had it is dropped.
    pub fn submit(self: &Arc<Self>, job: Job) {
        self.submit_for(Customer::Own, job);
    }

    /// The same for whichever customer.
    pub fn submit_for(self: &Arc<Self>, customer: Customer, job: Job) {
        let mut state = self.state();
        if !state.begin(customer) {
            state.held.push_back((customer, job));
            return;
        }
        state.ready.push_back((customer, job));
        if state.ready.len() <= state.idle {
            self.bell.notify_one();
            return;
        }
        state.all += 1;
        drop(state);
        let clerks = self.clone();
        let spawned = world::spawn("doorbell-clerk", move || clerks.work());
        if let Err(error) = spawned {
            tracing::warn!(%error, "no thread can be had to do what may have to wait; that waits for one that is there");
            let mut state = self.state();
            state.all -= 1;
            // If there is none it is not done at all: dropping it says so to whoever waits.
            let lost = if state.all == 0 { std::mem::take(&mut *state) } else { State::default() };
            drop(state);
            drop(lost);
        }
    }

    /// How many there are.
    pub fn threads(&self) -> usize {
        self.state().all
    }

    fn work(&self) {
        doorbell_shm::bus::unblock();
        let mut state = self.state();
        loop {
            if let Some((customer, job)) = state.ready.pop_front() {
                drop(state);
                // A job that panics must not take a clerk's place with it.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
                state = self.state();
                state.end(customer);
                continue;
            }
            state.idle += 1;
            let (woken, waited) = self.bell.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if waited.timed_out() && state.ready.is_empty() {
                state.all -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    #[cfg_attr(miri, ignore = "too many threads")]
    fn one_node_has_so_many_threads_and_keeps_none_from_others() {
        const JOBS: usize = 600;
        const MOST: usize = WAITS_MAX;
        let (clerks, gate) = (Arc::<Clerks>::default(), Arc::new((Mutex::new(false), Condvar::new())));
        let (began, begins) = mpsc::channel();
        let waits = |customer: Customer| {
            let (gate, began) = (gate.clone(), began.clone());
            let job = move || {
                began.send(customer).unwrap();
                let open = gate.0.lock().unwrap();
                drop(gate.1.wait_while(open, |open| !*open).unwrap());
            };
            clerks.submit_for(customer, Box::new(job));
        };
        let greedy = Customer::Waits(NodeId(5), Incarnation(1));
        (0..JOBS).for_each(|_| waits(greedy));
        for _ in 0..MOST {
            assert_eq!(begins.recv_timeout(PATIENCE), Ok(greedy));
        }
        // All threads wait. There are no more of them, and others have their own.
        for customer in [Customer::Waits(NodeId(6), Incarnation(1)), Customer::Chores(NodeId(5), Incarnation(1)), Customer::Own] {
            waits(customer);
            assert_eq!(begins.recv_timeout(PATIENCE), Ok(customer));
        }
        assert_eq!(clerks.threads(), MOST + 3);
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        for _ in MOST..JOBS {
            assert_eq!(begins.recv_timeout(PATIENCE), Ok(greedy));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "too many threads")]
    fn what_one_node_wants_done_is_done_one_after_the_other() {
        let clerks = Arc::<Clerks>::default();
        let (under_way, (told, tells)) = (Arc::new(AtomicBool::new(false)), mpsc::channel());
        for job in 0..100 {
            let (under_way, told) = (under_way.clone(), told.clone());
            let job = move || {
                let is_alone = !under_way.swap(true, Ordering::SeqCst);
                std::thread::yield_now();
                under_way.store(false, Ordering::SeqCst);
                told.send((job, is_alone)).unwrap();
                // The next one is done all the same.
                std::panic::resume_unwind(Box::new("on purpose"));
            };
            clerks.submit_for(Customer::Chores(NodeId(1), Incarnation(1)), Box::new(job));
        }
        for job in 0..100 {
            assert_eq!(tells.recv_timeout(PATIENCE), Ok((job, true)));
        }
    }
}
