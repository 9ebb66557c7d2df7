//! An operation that did not complete at once.

use crate::error::Error;
use crate::mode::Receipt;
use crate::sync::wait::PARK_MOST;
use doorbell_fabric::sync::{AtomicU32, Ordering, planted_bug};
use doorbell_fabric::{Envelope, Message, NodeId};
#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
use std::sync::Arc;
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;

/// How an operation ended.
#[derive(Debug)]
pub enum Outcome {
    /// The message is in the lanes of its target.
    Sent,
    /// The message is in the buffer.
    Received(Envelope),
    /// The message was longer than the buffer. The outcome owns it.
    Truncated(Box<Message>),
    /// The counter is at zero.
    Counted,
    /// The put or get took place.
    Copied,
    /// The update took place. The bytes are the old value, if it was requested.
    Updated([u8; 16]),
    /// This member has its result of a collective.
    Collected,
    /// The reply to a lock request.
    Answered(Vec<u8>),
    /// It did not take place, or not completely.
    Failed(Error),
}

const PENDING: u32 = 0;
/// Pending, and a thread sleeps on the word.
const SLEEPING: u32 = 1;
const DONE: u32 = 2;

/// The state of one operation, shared by the threads that wait for it and the thread that turns the engine.
#[derive(Debug, Default)]
pub struct Op {
    word: AtomicU32,
    end: Mutex<End>,
    count: Count,
}

/// What counts the bytes of an operation as they move, if anything does.
#[derive(Default)]
struct Count(Option<Box<dyn Fn(u64) + Send + Sync>>);

impl std::fmt::Debug for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Count").field(&self.0.is_some()).finish()
    }
}

/// Ends a transfer for its other end, from any thread. False if it is too late.
pub type Closer = Box<dyn Fn() -> bool + Send>;

#[derive(Default)]
struct End {
    closer: Option<Closer>,
    outcome: Option<Outcome>,
    waker: Option<Waker>,
    /// The receipt, if one was requested.
    receipt: Option<Box<Receipt>>,
    /// The node that may write to the buffer.
    granted: Option<NodeId>,
}

impl std::fmt::Debug for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("End").field("outcome", &self.outcome).finish_non_exhaustive()
    }
}

impl Op {
    /// A pending operation.
    pub fn new() -> Arc<Op> {
        Arc::default()
    }

    /// A pending operation that tells `count` how many of its bytes have moved.
    pub fn counted(count: impl Fn(u64) + Send + Sync + 'static) -> Arc<Op> {
        Arc::new(Op { count: Count(Some(Box::new(count))), ..Op::default() })
    }

    /// Tells how many bytes of the operation have moved so far, for its DMA counter.
    #[inline(always)]
    pub fn moved(&self, bytes: u64) {
        if let Count(Some(count)) = &self.count {
            count(bytes);
        }
    }

    /// Whether it has ended.
    #[inline(always)]
    pub fn is_done(&self) -> bool {
        self.word.load(Ordering::Acquire) == DONE
    }

    /// Ends the operation once, and wakes its waiters. Later calls change nothing.
    pub fn finish(&self, outcome: Outcome) {
        let (waker, slept) = {
            let mut end = self.lock();
            if self.is_done() {
                return;
            }
            end.outcome = Some(outcome);
            // Done under the lock: a waiter that can no longer store its waker finds the outcome.
            let publish = || self.word.swap(DONE, Ordering::AcqRel) == SLEEPING;
            if planted_bug("finish") {
                let waker = end.waker.take();
                drop(end);
                (waker, publish())
            } else {
                let slept = publish();
                (end.waker.take(), slept)
            }
        };
        if slept {
            wake(&self.word);
        }
        if let Some(waker) = waker {
            // Any thread that turns the engine runs this, including the poller, and a panicking waker must not end it.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waker.wake()));
        }
    }

    /// Nothing in here panics while it is locked, so poison can be ignored.
    #[cfg(not(loom))]
    fn lock(&self) -> MutexGuard<'_, End> {
        self.end.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    #[cfg(loom)]
    fn lock(&self) -> MutexGuard<'_, End> {
        self.end.lock().unwrap()
    }

    /// Takes the outcome, if the operation is done.
    pub fn take(&self) -> Option<Outcome> {
        if !self.is_done() {
            return None;
        }
        self.lock().outcome.take()
    }

    /// Stores the receipt, and returns the former one.
    pub fn set_receipt(&self, receipt: Receipt) -> Option<Receipt> {
        let mut end = self.lock();
        match &mut end.receipt {
            Some(noted) => Some(std::mem::replace(&mut **noted, receipt)),
            none => {
                *none = Some(Box::new(receipt));
                None
            }
        }
    }

    /// The receipt so far, if one was requested.
    pub fn receipt(&self) -> Option<Receipt> {
        let end = self.lock();
        let receipt = end.receipt.as_deref().copied()?;
        Some(if matches!(end.outcome, Some(Outcome::Sent)) { receipt.sent() } else { receipt })
    }

    /// Sets which node may write to the buffer of the operation, for a thread that can't reach the engine.
    pub fn set_granted(&self, node: Option<NodeId>) {
        self.lock().granted = node;
    }

    /// The node that may write to the buffer.
    pub fn granted(&self) -> Option<NodeId> {
        self.lock().granted
    }

    /// Sets how a thread that can't reach the engine ends the operation's transfer.
    pub fn set_closer(&self, closer: Closer) {
        self.lock().closer = Some(closer);
    }

    /// Cancels the operation from where the engine is out of reach. A part that has not taken place by now never will.
    pub fn cancel(&self) {
        let closer = self.lock().closer.take();
        let outcome = if closer.is_none_or(|close| close()) { Outcome::Failed(Error::Cancelled) } else { Outcome::Sent };
        self.finish(outcome);
    }

    /// Sets the waker for the end of the operation. False if it has ended already.
    pub fn set_waker(&self, waker: &Waker) -> bool {
        let mut end = self.lock();
        if end.outcome.is_some() || self.is_done() {
            return false;
        }
        let before = end.waker.replace(waker.clone());
        // Dropping a waker may drop a task, which may own operations that wait here.
        drop(end);
        drop(before);
        true
    }

    /// Announces that this thread will sleep. False if the operation has ended.
    pub fn will_sleep(&self) -> bool {
        self.word.compare_exchange(PENDING, SLEEPING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Sleeps until the operation ends or another thread calls [`nudge`](Self::nudge), for at most `timeout` and at most 50 ms.
    /// Call [`will_sleep`](Self::will_sleep) before.
    pub fn sleep(&self, timeout: Duration) {
        sleep(&self.word, SLEEPING, timeout.min(PARK_MOST));
        let _ = self.word.compare_exchange(SLEEPING, PENDING, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Wakes the thread that sleeps here, although the operation has not ended. True if a thread slept or was about to.
    pub fn nudge(&self) -> bool {
        // The word changes, so that a thread between will_sleep and sleep does not fall asleep.
        let slept = self.word.compare_exchange(SLEEPING, PENDING, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if slept {
            wake(&self.word);
        }
        slept
    }
}

#[cfg(not(loom))]
fn sleep(word: &AtomicU32, expected: u32, timeout: Duration) {
    doorbell_shm::doorbell::futex_wait(word, expected, timeout);
}

#[cfg(not(loom))]
fn wake(word: &AtomicU32) {
    doorbell_shm::doorbell::futex_wake(word);
}

/// Under loom, a sleep waits for the word to change. A sleep that never ends is a lost wake-up, which loom reports.
#[cfg(loom)]
fn sleep(word: &AtomicU32, expected: u32, _timeout: Duration) {
    while word.load(Ordering::Relaxed) == expected {
        loom::thread::yield_now();
    }
}

#[cfg(loom)]
fn wake(_word: &AtomicU32) {}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    #[test]
    fn loom_who_finds_no_place_for_a_waker_finds_the_outcome() {
        loom::model(|| {
            let op = Op::new();
            let other = op.clone();
            let poll =
                loom::thread::spawn(move || other.set_waker(Waker::noop()) || matches!(other.take(), Some(Outcome::Copied)));
            op.finish(Outcome::Copied);
            assert!(poll.join().unwrap());
        });
    }
}
