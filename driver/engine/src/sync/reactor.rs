//! The state that a reactor shares with the threads of its node.

use doorbell_fabric::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, Reach, heavy_barrier};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// The side of a pipe for which a thread or task waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Waits for bytes, or for being accepted.
    Read = 0,
    /// Waits for room.
    Write = 1,
}

/// A pipe that a reactor polls, so that the other end need not notify.
pub trait Pipe: Send + std::marker::Sync {
    /// Marks this side as polled by the reactor. False if it was already.
    fn becomes_hot(&self, side: Side) -> bool;
    /// Ends the polling of this side.
    fn cools(&self, side: Side);
    /// Requests a notification from the other end when it changes something for this side.
    fn mark(&self, side: Side);
    /// Whether there is something for this side.
    fn has_news(&self, side: Side) -> bool;
    /// Whether something may still come.
    fn is_open(&self) -> bool;
    /// Wakes the threads and tasks that wait for this side.
    fn wake(&self, side: Side);
}

/// One side of a pipe.
pub type PipeSide = (Arc<dyn Pipe>, Side);

/// Whether there is a reactor, and whether it sleeps.
#[derive(Default)]
pub struct ReactorWord {
    /// Bit 0: there is a reactor. Above: its number of turns. A poller that replaces a reactor because it does not turn must
    /// not do so just after it turned.
    generation: AtomicU64,
    /// Held while a reactor is attached or detached.
    change: Mutex<()>,
    /// The reactor waits for its descriptor, or is about to.
    asleep: AtomicBool,
    waker: Mutex<Option<Waker>>,
    /// The number of reactors so far.
    count: AtomicU32,
    /// The pipes that the reactor polls. The other end sends no notification for them.
    hot: Mutex<Vec<PipeSide>>,
}

/// The most pipes that the reactor polls. Beyond that, their writers are asked to notify.
const HOT_MOST: usize = 64;

const THERE: u64 = 1;
const TURN: u64 = 2;

/// Wakes the waiters of pipes that a reactor no longer polls.
pub fn wake_all(ends: Vec<PipeSide>) {
    for (end, side) in ends {
        end.cools(side);
        end.wake(side);
    }
}

impl ReactorWord {
    /// Whether there is a reactor.
    #[inline]
    pub fn is_there(&self) -> bool {
        self.generation.load(Ordering::Relaxed) & THERE != 0
    }

    /// Whether there is a reactor, and its number of turns, in one word.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Counts a turn of the reactor with this number. False if it is no longer attached.
    pub fn turned(&self, number: u32) -> bool {
        // A reactor that was replaced must not count for its successor.
        self.count() == number && self.generation.fetch_add(TURN, Ordering::SeqCst) & THERE != 0
    }

    /// Whether the reactor with this number is attached.
    pub fn is(&self, number: u32) -> bool {
        self.generation() & THERE != 0 && self.count() == number
    }

    /// The number of reactors so far. A thread that had the helm before a reactor was attached does not have it any more.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    /// Attaches a reactor if there is none. `take` takes the helm for it. Returns its number, or `None` if there is one
    /// already.
    pub fn attach(&self, take: impl FnOnce()) -> Option<u32> {
        let _old;
        let _change = self.change();
        if self.generation.fetch_or(THERE, Ordering::SeqCst) & THERE != 0 {
            return None;
        }
        // The waker of the former reactor.
        _old = self.waker().take();
        take();
        // Counted after `take`: a thread that takes the helm reads the count before, and so notices that it lost the helm.
        Some(self.count.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// Detaches the reactor, provided that it has not turned since [`generation`](Self::generation) returned `generation`. `leave` leaves its
    /// helm. Returns the pipes whose waiters must be [woken](wake_all), or `None` if it did turn.
    pub fn detach(&self, generation: u64, leave: impl FnOnce()) -> Option<Vec<PipeSide>> {
        let _change = self.change();
        let mut hot = self.hot();
        // Done with `hot` locked: a thread that finds no reactor has its pipe polled otherwise.
        if generation & THERE == 0
            || self.generation.compare_exchange(generation, generation & !THERE, Ordering::SeqCst, Ordering::SeqCst).is_err()
        {
            return None;
        }
        self.asleep.store(false, Ordering::SeqCst);
        leave();
        Some(std::mem::take(&mut *hot))
    }

    /// Lets the reactor poll a pipe until there is something. False if there is no reactor.
    pub fn look_at<P: Pipe + 'static>(&self, pipe: &Arc<P>, side: Side) -> bool {
        self.add(&**pipe, side, || pipe.clone())
    }

    fn add(&self, pipe: &dyn Pipe, side: Side, own: impl FnOnce() -> Arc<dyn Pipe>) -> bool {
        if !self.is_there() {
            return false;
        }
        let mut hot = self.hot();
        if self.generation() & THERE == 0 {
            return false;
        }
        if pipe.becomes_hot(side) {
            hot.push((own(), side));
        }
        true
    }

    /// Wakes the waiters of pipes with something to do. Returns whether there were any.
    pub fn look(&self) -> bool {
        let mut found = Vec::new();
        {
            let mut hot = self.hot();
            hot.retain(|(end, side)| {
                let has_news = end.has_news(*side) || !end.is_open();
                if has_news {
                    end.cools(*side);
                    found.push((end.clone(), *side));
                }
                !has_news
            });
            if hot.len() > HOT_MOST {
                drop(hot);
                let marked = self.mark();
                self.look_last(marked, heavy_barrier(Reach::Machine));
            }
        }
        let any = !found.is_empty();
        found.into_iter().for_each(|(end, side)| end.wake(side));
        any
    }

    /// Asks the writers of all polled pipes to notify from now on. Call a barrier and then [`look_last`](Self::look_last).
    pub fn mark(&self) -> Vec<PipeSide> {
        let hot = std::mem::take(&mut *self.hot());
        for (end, side) in &hot {
            end.cools(*side);
            end.mark(*side);
        }
        hot
    }

    /// After the barrier: wakes the waiters of pipes that changed before the writers saw the request. Returns whether there
    /// were any. Without a barrier, the reactor continues to poll the pipes.
    pub fn look_last(&self, marked: Vec<PipeSide>, was_barrier: bool) -> bool {
        let mut any = false;
        for (end, side) in marked {
            if end.has_news(side) || !end.is_open() {
                end.wake(side);
                any = true;
            } else if !was_barrier {
                self.add(&*end, side, || end.clone());
            }
        }
        any
    }

    fn change(&self) -> MutexGuard<'_, ()> {
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hot(&self) -> MutexGuard<'_, Vec<PipeSide>> {
        self.hot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the task to be woken instead of ringing the bell.
    pub fn set_waker(&self, waker: &Waker) {
        let mut own = self.waker();
        match &mut *own {
            Some(own) => own.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    /// The reactor looks once more, and then waits.
    pub fn fall_asleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
    }

    /// The reactor is awake.
    pub fn wake_up(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Whether the reactor still sleeps and was not roused.
    pub fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::SeqCst)
    }

    /// Ends the reactor's sleep, because a new operation needs its turns. One load if it does not sleep. True if the caller has
    /// to ring the bell.
    #[inline]
    pub fn rouse(&self) -> bool {
        self.asleep.load(Ordering::SeqCst) && self.rouse_sleeper()
    }

    #[cold]
    fn rouse_sleeper(&self) -> bool {
        if !self.asleep.swap(false, Ordering::SeqCst) {
            return false;
        }
        let waker = self.waker().clone();
        match waker {
            Some(waker) => {
                waker.wake();
                false
            }
            None => true,
        }
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
