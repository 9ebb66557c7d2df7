//! The blocking pool: threads for work that may wait, on behalf of other nodes or of the engine.

use doorbell_fabric::world;
use doorbell_fabric::{Incarnation, NodeId};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a thread without work stays.
const IDLE: Duration = Duration::from_secs(1);

/// The most threads of one other node that may wait for locks at a time.
pub const WAITS_MAX: usize = 256;

type Job = Box<dyn FnOnce() + Send>;

/// The node for which a job is done. Each has a limit of its own, so that no node can keep the threads from others. A job
/// beyond the limit waits until one of the customer's jobs ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Customer {
    /// This node.
    Own,
    /// Another node, for which locks are made and destroyed.
    Chores(NodeId, Incarnation),
    /// Another node, whose threads wait for locks.
    Waits(NodeId, Incarnation),
}

impl Customer {
    fn threads_most(self) -> usize {
        match self {
            Customer::Own => 512,
            Customer::Chores(..) => 1,
            // As many as the node may have unanswered requests. A wait without a thread would not stand in its lock's queue,
            // and the lock would pass to others.
            Customer::Waits(..) => WAITS_MAX,
        }
    }
}

/// The blocking pool. Threads start when there is work, and end after a while without any.
#[derive(Default)]
pub struct BlockingPool {
    state: Mutex<State>,
    bell: Condvar,
}

#[derive(Default)]
struct State {
    /// Jobs that a thread may begin at once. Each is counted in `busy` already.
    ready: VecDeque<(Customer, Job)>,
    /// Jobs that wait until others of their customer end.
    held: VecDeque<(Customer, Job)>,
    /// For each customer, the number of its jobs that are ready or running. Customers without jobs are not listed.
    busy: Vec<(Customer, usize)>,
    idle: usize,
    all: usize,
}

impl State {
    /// Counts one more job of a customer; false if it has reached its limit.
    fn begin(&mut self, customer: Customer) -> bool {
        match self.busy.iter_mut().find(|(whose, _)| *whose == customer) {
            Some((_, count)) if *count >= customer.threads_most() => return false,
            Some((_, count)) => *count += 1,
            None => self.busy.push((customer, 1)),
        }
        true
    }

    /// Notes that a job has ended: the next one of its customer is ready.
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

impl BlockingPool {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands over a job of this node. Never waits. If no thread can be started and none runs, the job is dropped.
    pub fn submit(self: &Arc<Self>, job: Job) {
        self.submit_for(Customer::Own, job);
    }

    /// The same for any customer.
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
        let blocking = self.clone();
        let spawned = world::spawn("doorbell-clerk", move || blocking.work());
        if let Err(error) = spawned {
            tracing::warn!(%error, "could not start a thread of the blocking pool; the job waits for a running one");
            let mut state = self.state();
            state.all -= 1;
            // If no thread runs, the jobs are never done. Dropping them tells their waiters.
            let lost = if state.all == 0 { std::mem::take(&mut *state) } else { State::default() };
            drop(state);
            drop(lost);
        }
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.state().all
    }

    fn work(&self) {
        doorbell_shm::bus::unblock();
        let mut state = self.state();
        loop {
            if let Some((customer, job)) = state.ready.pop_front() {
                drop(state);
                // A job that panics must not end its thread.
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
        let (blocking, gate) = (Arc::<BlockingPool>::default(), Arc::new((Mutex::new(false), Condvar::new())));
        let (began, begins) = mpsc::channel();
        let waits = |customer: Customer| {
            let (gate, began) = (gate.clone(), began.clone());
            let job = move || {
                began.send(customer).unwrap();
                let open = gate.0.lock().unwrap();
                drop(gate.1.wait_while(open, |open| !*open).unwrap());
            };
            blocking.submit_for(customer, Box::new(job));
        };
        let greedy = Customer::Waits(NodeId(5), Incarnation(1));
        (0..JOBS).for_each(|_| waits(greedy));
        for _ in 0..MOST {
            assert_eq!(begins.recv_timeout(PATIENCE), Ok(greedy));
        }
        // All threads of a customer wait and it gets no more, but other customers still get theirs.
        for customer in [Customer::Waits(NodeId(6), Incarnation(1)), Customer::Chores(NodeId(5), Incarnation(1)), Customer::Own] {
            waits(customer);
            assert_eq!(begins.recv_timeout(PATIENCE), Ok(customer));
        }
        assert_eq!(blocking.threads(), MOST + 3);
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        for _ in MOST..JOBS {
            assert_eq!(begins.recv_timeout(PATIENCE), Ok(greedy));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "too many threads")]
    fn what_one_node_wants_done_is_done_one_after_the_other() {
        let blocking = Arc::<BlockingPool>::default();
        let (under_way, (told, tells)) = (Arc::new(AtomicBool::new(false)), mpsc::channel());
        for job in 0..100 {
            let (under_way, told) = (under_way.clone(), told.clone());
            let job = move || {
                let is_alone = !under_way.swap(true, Ordering::SeqCst);
                std::thread::yield_now();
                under_way.store(false, Ordering::SeqCst);
                told.send((job, is_alone)).unwrap();
                // The next job is done all the same.
                std::panic::resume_unwind(Box::new("on purpose"));
            };
            blocking.submit_for(Customer::Chores(NodeId(1), Incarnation(1)), Box::new(job));
        }
        for job in 0..100 {
            assert_eq!(tells.recv_timeout(PATIENCE), Ok((job, true)));
        }
    }
}
