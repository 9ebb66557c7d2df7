//! One operation that did not complete at once.

use crate::error::Error;
use crate::mode::Receipt;
use crate::sync::wait::PARK_MOST;
use doorbell_fabric::sync::{AtomicU32, Ordering, planted_bug};
use doorbell_fabric::{Envelope, Message};
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
    /// The message was longer than the buffer; here it is.
    Truncated(Box<Message>),
    /// The counter is at zero.
    Counted,
    /// The put or get took place.
    Copied,
    /// The update took place: the old value, if that was asked for.
    Updated([u8; 16]),
    /// This member has its result of a collective.
    Collected,
    /// The answer to a letter.
    Answered(Vec<u8>),
    /// It did not take place, or not wholly.
    Failed(Error),
}

const PENDING: u32 = 0;
/// Pending, and a thread sleeps on the word.
const SLEEPING: u32 = 1;
const DONE: u32 = 2;

/// The state of one operation, shared by whoever waits for it and whoever drives.
#[derive(Debug, Default)]
pub struct Op {
    word: AtomicU32,
    end: Mutex<End>,
}

/// Ends a transfer for its other end, from any thread. False if it is too late.
pub type Closer = Box<dyn Fn() -> bool + Send>;

#[derive(Default)]
struct End {
    closer: Option<Closer>,
    outcome: Option<Outcome>,
    waker: Option<Waker>,
    /// How it goes, if that was asked.
    receipt: Option<Box<Receipt>>,
}

impl std::fmt::Debug for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("End").field("outcome", &self.outcome).finish_non_exhaustive()
    }
}

impl Op {
    /// An operation under way.
    pub fn new() -> Arc<Op> {
        Arc::default()
    }

    /// Whether it has ended.
    #[inline(always)]
    pub fn is_done(&self) -> bool {
        self.word.load(Ordering::Acquire) == DONE
    }

    /// Ends it, once; wakes whoever waits. Later calls change nothing.
    pub fn finish(&self, outcome: Outcome) {
        let (waker, slept) = {
            let mut end = self.lock();
            if self.is_done() {
                return;
            }
            end.outcome = Some(outcome);
            // While it is locked: who finds no place for its waker finds the outcome.
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
            // Whoever drives runs this, the poller too: a waker that panics must not end it.
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

    /// Takes the outcome, once it is done.
    pub fn take(&self) -> Option<Outcome> {
        if !self.is_done() {
            return None;
        }
        self.lock().outcome.take()
    }

    /// Notes how its message goes, and returns what was noted before.
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

    /// How its message goes, or went, if that was asked.
    pub fn receipt(&self) -> Option<Receipt> {
        let end = self.lock();
        let receipt = end.receipt.as_deref().copied()?;
        Some(if matches!(end.outcome, Some(Outcome::Sent)) { receipt.sent() } else { receipt })
    }

    /// Says how its transfer is ended by whoever can't reach the engine.
    pub fn set_closer(&self, closer: Closer) {
        self.lock().closer = Some(closer);
    }

    /// Cancels it from where the engine is out of reach: what has not taken place by now never will.
    pub fn cancel(&self) {
        let closer = self.lock().closer.take();
        let outcome = if closer.is_none_or(|close| close()) { Outcome::Failed(Error::Cancelled) } else { Outcome::Sent };
        self.finish(outcome);
    }

    /// Names who is to be told when it ends. False if it has ended already.
    pub fn set_waker(&self, waker: &Waker) -> bool {
        let mut end = self.lock();
        if end.outcome.is_some() || self.is_done() {
            return false;
        }
        let before = end.waker.replace(waker.clone());
        // With it may go a task, and with that what waits here.
        drop(end);
        drop(before);
        true
    }

    /// Says that this thread will sleep. False if the operation has ended.
    pub fn will_sleep(&self) -> bool {
        self.word.compare_exchange(PENDING, SLEEPING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Sleeps until the operation ends or somebody [`nudge`](Self::nudge)s, `timeout` and 50 ms at most. After
    /// [`will_sleep`](Self::will_sleep).
    pub fn sleep(&self, timeout: Duration) {
        sleep(&self.word, SLEEPING, timeout.min(PARK_MOST));
        let _ = self.word.compare_exchange(SLEEPING, PENDING, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Wakes the thread that sleeps here, though the operation has not ended. True if one did or was about to.
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

/// Under loom a sleep is a wait for the word to change: one that never ends is a lost wake-up, which loom reports.
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
