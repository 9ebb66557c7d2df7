//! The parking leader: which of the waiting threads sleeps on the doorbell. The right to be leader is called the helm.
//!
//! Any number of threads wait. One of them, the leader, sleeps on the bell, where a producer of another process can wake it,
//! and turns the engine when it wakes. The others sleep on their own operations. A leader that leaves wakes one of them, so
//! that the bell always has a sleeper while any thread sleeps.

use super::op::Op;
use doorbell_fabric::sync::{AtomicU32, Ordering, planted_bug};
#[cfg(loom)]
use loom::sync::Mutex;
use std::sync::Arc;
#[cfg(not(loom))]
use std::sync::Mutex;

const FREE: u32 = 0;
/// The helm belongs to a thread of the application. The bell stores this number while that thread sleeps on it, so that a
/// sleeper wakes if another kind of leader armed the bell.
pub const CALLER: u32 = 1;
/// The helm belongs to the poller.
pub const POLLER: u32 = 2;
/// The helm belongs to the reactor, which keeps it while it is awake, too.
pub const REACTOR: u32 = 3;

/// The leader, which sleeps on the bell, and the threads that sleep elsewhere.
#[derive(Default)]
pub struct Parking {
    word: AtomicU32,
    sleepers: Mutex<Vec<Arc<Op>>>,
}

impl Parking {
    /// Takes the helm for a thread of the application, also from the poller. `Some(true)` if the poller had it: the poller then
    /// sleeps on the bell and must be woken.
    pub fn take(&self) -> Option<bool> {
        match self.word.compare_exchange(FREE, CALLER, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => Some(false),
            Err(POLLER) => self.word.compare_exchange(POLLER, CALLER, Ordering::SeqCst, Ordering::SeqCst).is_ok().then_some(true),
            Err(_) => None,
        }
    }

    /// Takes the helm for the poller, if it is free.
    pub fn take_as_poller(&self) -> bool {
        self.word.compare_exchange(FREE, POLLER, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Takes the helm for the reactor from any leader. The caller must wake a thread that sleeps on the bell.
    pub fn take_as_reactor(&self) {
        self.word.store(REACTOR, Ordering::SeqCst);
    }

    /// Leaves the helm and wakes one sleeper, which will take it.
    pub fn leave(&self) {
        self.leave_as(CALLER);
    }

    /// Leaves the helm for the reactor.
    pub fn leave_as_reactor(&self) {
        self.leave_as(REACTOR);
    }

    fn leave_as(&self, who: u32) -> bool {
        let had = self.word.compare_exchange(who, FREE, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if had {
            self.call_a_sleeper();
        }
        had
    }

    /// Whether the poller has the helm.
    pub fn is_pollers(&self) -> bool {
        self.word.load(Ordering::SeqCst) == POLLER
    }

    /// Whether a thread of the application that waits has the helm.
    pub fn is_callers(&self) -> bool {
        self.word.load(Ordering::SeqCst) == CALLER
    }

    /// Called by a thread that was woken to take the helm and does not need it: wakes another.
    pub fn pass_on(&self) {
        if self.word.load(Ordering::SeqCst) == FREE {
            self.call_a_sleeper();
        }
    }

    /// Leaves the helm, if the poller still has it. Returns whether it had.
    pub fn leave_as_poller(&self) -> bool {
        self.leave_as(POLLER)
    }

    /// Sleeps on `op` while another thread has the helm. `sleep` does the sleeping. It is not called if the helm is free, so
    /// that the caller takes the helm.
    pub fn sleep_on(&self, op: &Arc<Op>, sleep: impl FnOnce()) {
        // First listed, then SLEEPING, then a look at the helm. A leader that leaves frees the helm, and then looks at the
        // list: one of the two sees the other.
        self.lock().push(op.clone());
        if op.will_sleep() {
            let free = !planted_bug("parking") && self.word.load(Ordering::SeqCst) == FREE;
            if free {
                op.nudge();
            } else {
                sleep();
            }
        }
        self.lock().retain(|other| !Arc::ptr_eq(other, op));
    }

    fn call_a_sleeper(&self) {
        for op in self.lock().iter() {
            if op.nudge() {
                return;
            }
        }
    }

    #[cfg(not(loom))]
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Op>>> {
        self.sleepers.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    #[cfg(loom)]
    fn lock(&self) -> loom::sync::MutexGuard<'_, Vec<Arc<Op>>> {
        self.sleepers.lock().unwrap()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::op::Outcome;
    use doorbell_shm::doorbell::Bell;
    use std::time::Duration;

    /// A model of a node: the bell, the helm, and a count of arrivals in place of the lanes.
    struct Small {
        bell: Bell,
        parking: Parking,
        arrived: AtomicU32,
        ops: [Arc<Op>; 2],
    }

    impl Small {
        fn new() -> Arc<Small> {
            let ops = [Op::new(), Op::new()];
            Arc::new(Small { bell: Bell::new(), parking: Parking::default(), arrived: AtomicU32::new(0), ops })
        }

        /// A turn of the engine: completes the operations whose messages arrived.
        fn turn(&self) {
            let arrived = self.arrived.load(Ordering::Acquire);
            for op in self.ops.iter().take(arrived as usize) {
                op.finish(Outcome::Sent);
            }
        }

        /// Models `Shared::drive` for a thread that parks at once.
        fn wait(&self, op: &Arc<Op>) {
            let mut held = false;
            loop {
                self.turn();
                if op.is_done() {
                    break;
                }
                if !held && self.parking.take().is_none() {
                    self.parking.sleep_on(op, || op.sleep(Duration::MAX));
                    continue;
                }
                held = true;
                let _ = self.bell.arm();
                if self.arrived.load(Ordering::Acquire) == 0 {
                    self.bell.sleep(Duration::MAX);
                }
                self.bell.disarm();
                loom::thread::yield_now();
            }
            if held {
                self.parking.leave();
            }
        }
    }

    /// A model of a node on a network: a sleeper has the port, and others wait for it. The baton is a lock here.
    struct Networked {
        bell: Bell,
        parking: Parking,
        baton: Mutex<()>,
        port: Mutex<()>,
        stopped: AtomicU32,
    }

    impl Networked {
        /// Models `Shared::park_poller`.
        fn poller(&self) {
            if !self.parking.take_as_poller() {
                return;
            }
            let sleeper = if planted_bug("sleeper") { CALLER } else { POLLER };
            let baton = self.baton.lock().unwrap();
            let mut is_armed = self.parking.is_pollers();
            if is_armed {
                let _ = self.bell.arm_as(sleeper);
                if !planted_bug("second-look") && !self.parking.is_pollers() {
                    self.bell.disarm();
                    is_armed = false;
                }
            }
            drop(baton);
            // One of the two sees the other: the thread that ends the poller sets `stopped`, and then rouses it.
            if is_armed && self.stopped.load(Ordering::SeqCst) == 0 {
                let _port = self.port.lock().unwrap();
                self.bell.sleep_as(sleeper, Duration::MAX);
            }
            if self.parking.leave_as_poller() {
                self.bell.disarm_as(sleeper);
            }
        }

        /// Models `Shared::drive` for a thread whose timeout passes as soon as it sleeps, so that nothing has to ring for it.
        fn caller(&self) {
            if let baton = self.baton.lock().unwrap()
                && self.bell.is_armed()
            {
                // The thread looks by itself (`Engine::poll`).
                self.bell.disarm();
                drop(baton);
            }
            let Some(from_poller) = self.parking.take() else { return };
            if from_poller {
                if planted_bug("rouse") { self.bell.wake() } else { self.bell.rouse() }
            }
            let baton = self.baton.lock().unwrap();
            let _ = self.bell.arm_as(CALLER);
            drop(baton);
            // This waits while another thread sleeps there.
            drop(self.port.lock().unwrap());
            let baton = self.baton.lock().unwrap();
            self.bell.disarm();
            drop(baton);
            self.parking.leave();
        }
    }

    /// A thread of the application takes the helm from the poller at any point on the poller's way to sleep. The poller must
    /// let go of the port, although nothing rings.
    #[test]
    fn the_poller_makes_room() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.max_branches = 20_000;
        builder.check(|| {
            let node = Arc::new(Networked {
                bell: Bell::new(),
                parking: Parking::default(),
                baton: Mutex::new(()),
                port: Mutex::new(()),
                stopped: AtomicU32::new(0),
            });
            let poller = {
                let node = node.clone();
                loom::thread::spawn(move || node.poller())
            };
            (0..2).for_each(|_| node.caller());
            node.stopped.store(1, Ordering::SeqCst);
            node.bell.rouse();
            poller.join().unwrap();
        });
    }

    /// Two threads wait, each for its own operation; one message completes both. The thread that does not become the parking
    /// leader is woken, too.
    #[test]
    fn nobody_sleeps_on() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.max_branches = 20_000;
        builder.check(|| {
            let small = Small::new();
            let waiter = {
                let small = small.clone();
                loom::thread::spawn(move || small.wait(&small.ops[1]))
            };
            small.arrived.store(2, Ordering::Release);
            small.bell.ring(false);
            small.wait(&small.ops[0]);
            waiter.join().unwrap();
        });
    }

    /// The parking leader leaves while another thread is about to fall asleep beside it: the other takes over.
    #[test]
    fn the_helm_is_handed_over() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.max_branches = 20_000;
        builder.check(|| {
            let small = Small::new();
            assert_eq!(small.parking.take(), Some(false));
            let other = {
                let small = small.clone();
                loom::thread::spawn(move || {
                    // Sleeps beside the helm until it is handed over and free.
                    while small.parking.take().is_none() {
                        small.parking.sleep_on(&small.ops[1], || small.ops[1].sleep(Duration::MAX));
                    }
                })
            };
            small.parking.leave();
            other.join().unwrap();
        });
    }
}
