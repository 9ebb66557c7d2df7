//! The helm: which of the waiting threads sleeps on the doorbell.
//!
//! Any number of threads wait; one of them sleeps where a producer of another process can wake it, on the bell, and drives
//! the engine when it wakes. The others sleep on their own operations. Whoever leaves the helm wakes one of them, so that
//! the bell is never left alone while somebody sleeps.

use super::op::Op;
use doorbell_fabric::sync::{AtomicU32, Ordering};
#[cfg(loom)]
use loom::sync::Mutex;
use std::sync::Arc;
#[cfg(not(loom))]
use std::sync::Mutex;

const FREE: u32 = 0;
const CALLER: u32 = 1;
const POLLER: u32 = 2;

/// Who sleeps on the bell, and who sleeps elsewhere.
#[derive(Default)]
pub struct Helm {
    word: AtomicU32,
    sleepers: Mutex<Vec<Arc<Op>>>,
}

impl Helm {
    /// Takes the helm for a thread of the application, from the poller too. Says whether the poller had it: then it sleeps
    /// on the bell and has to be woken.
    pub fn take(&self) -> Option<bool> {
        match self.word.compare_exchange(FREE, CALLER, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => Some(false),
            Err(POLLER) => self.word.compare_exchange(POLLER, CALLER, Ordering::SeqCst, Ordering::SeqCst).is_ok().then_some(true),
            Err(_) => None,
        }
    }

    /// Takes the helm for the poller, if nobody has it.
    pub fn take_as_poller(&self) -> bool {
        self.word.compare_exchange(FREE, POLLER, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Leaves the helm and wakes one sleeper, who will take it.
    pub fn leave(&self) {
        if self.word.compare_exchange(CALLER, FREE, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.call_a_sleeper();
        }
    }

    /// Leaves the helm, if the poller still has it. Says whether it had.
    pub fn leave_as_poller(&self) -> bool {
        let had = self.word.compare_exchange(POLLER, FREE, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if had {
            self.call_a_sleeper();
        }
        had
    }

    /// Sleeps on `op` for as long as somebody else has the helm. `sleep` does the sleeping; it is not called if the helm is
    /// free, so that the caller takes it.
    pub fn sleep_on(&self, op: &Arc<Op>, sleep: impl FnOnce()) {
        // Listed, then SLEEPING, then a look at the helm. Whoever leaves frees the helm, then looks at the list: one of
        // the two sees the other.
        self.lock().push(op.clone());
        if op.will_sleep() {
            #[cfg(not(all(loom, planted_bug = "helm")))]
            let free = self.word.load(Ordering::SeqCst) == FREE;
            #[cfg(all(loom, planted_bug = "helm"))]
            let free = false;
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
