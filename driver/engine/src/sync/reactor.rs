//! What a reactor and the threads of its node share.

use doorbell_fabric::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, Reach, heavy_barrier};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// The direction of a pipe that somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// For bytes, or to be accepted.
    Read = 0,
    /// For room.
    Write = 1,
}

/// A pipe at which a reactor looks, in place of being told.
pub trait Pipe: Send + std::marker::Sync {
    /// The reactor looks at this side from now on. False if it did already.
    fn becomes_hot(&self, side: Side) -> bool;
    /// The reactor looks at this side no more.
    fn cools(&self, side: Side);
    /// The other end is to tell when it has changed something for this side.
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
    /// Bit 0: there is one. Above: how often it turned, so that who finds that it does not takes its place, and not a moment after it did.
    life: AtomicU64,
    /// Held by who makes one of it, or none.
    change: Mutex<()>,
    /// It waits for its descriptor, or is about to.
    asleep: AtomicBool,
    waker: Mutex<Option<Waker>>,
    /// How many there have been.
    count: AtomicU32,
    /// Pipes at which it looks, and for whom: what arrives there is then not told in another way.
    hot: Mutex<Vec<PipeSide>>,
}

/// Pipes at which it looks at most; if there are more, those who write there are asked to tell.
const HOT_MOST: usize = 64;

const THERE: u64 = 1;
const TURN: u64 = 2;

/// Wakes those for whom a reactor looks no more.
pub fn wake_all(ends: Vec<PipeSide>) {
    for (end, side) in ends {
        end.cools(side);
        end.wake(side);
    }
}

impl ReactorWord {
    /// Whether there is one.
    #[inline]
    pub fn is_there(&self) -> bool {
        self.life.load(Ordering::Relaxed) & THERE != 0
    }

    /// Whether there is one, and how often it turned.
    pub fn life(&self) -> u64 {
        self.life.load(Ordering::SeqCst)
    }

    /// The reactor of this number turns. False if it is none any more.
    pub fn turned(&self, number: u32) -> bool {
        // One that was replaced must not pass for the one that is there.
        self.count() == number && self.life.fetch_add(TURN, Ordering::SeqCst) & THERE != 0
    }

    /// Whether the reactor of this number is the one.
    pub fn is(&self, number: u32) -> bool {
        self.life() & THERE != 0 && self.count() == number
    }

    /// How many there have been: who had the helm before one came has it no more.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    /// There is one from now on, if there was none; then `take` takes the helm for it. Its number, or `None` if there was one.
    pub fn attach(&self, take: impl FnOnce()) -> Option<u32> {
        let _old;
        let _change = self.change();
        if self.life.fetch_or(THERE, Ordering::SeqCst) & THERE != 0 {
            return None;
        }
        // Of the one before.
        _old = self.waker().take();
        take();
        // After it: who takes the helm reads this before, and so does not hold it for longer than until here.
        Some(self.count.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// There is none any more, if there was one of which [`life`](Self::life) said this and that did not turn since; then `leave` leaves its helm. Whoever relied
    /// on it, to be [woken](wake_all). `None` if it did turn.
    pub fn detach(&self, life: u64, leave: impl FnOnce()) -> Option<Vec<PipeSide>> {
        let _change = self.change();
        let mut hot = self.hot();
        // While it is locked: who finds none has its pipe looked at by others.
        if life & THERE == 0 || self.life.compare_exchange(life, life & !THERE, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return None;
        }
        self.asleep.store(false, Ordering::SeqCst);
        leave();
        Some(std::mem::take(&mut *hot))
    }

    /// Has the reactor look at a pipe until there is something. False if there is none.
    pub fn look_at<P: Pipe + 'static>(&self, pipe: &Arc<P>, side: Side) -> bool {
        self.add(&**pipe, side, || pipe.clone())
    }

    fn add(&self, pipe: &dyn Pipe, side: Side, own: impl FnOnce() -> Arc<dyn Pipe>) -> bool {
        if !self.is_there() {
            return false;
        }
        let mut hot = self.hot();
        if self.life() & THERE == 0 {
            return false;
        }
        if pipe.becomes_hot(side) {
            hot.push((own(), side));
        }
        true
    }

    /// Wakes those for whom there is something. Whether there was anybody.
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

    /// Whoever writes into the pipes at which it looked is to tell from now on. A barrier follows, and [`look_last`](Self::look_last).
    pub fn mark(&self) -> Vec<PipeSide> {
        let hot = std::mem::take(&mut *self.hot());
        for (end, side) in &hot {
            end.cools(*side);
            end.mark(*side);
        }
        hot
    }

    /// After the barrier, if there was one: wakes those for whom there was something before others knew that they are to tell. Whether there was
    /// anybody. Without a barrier it goes on looking.
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

    /// The task to wake in place of ringing the bell.
    pub fn set_waker(&self, waker: &Waker) {
        let mut own = self.waker();
        match &mut *own {
            Some(own) => own.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    /// It looks once more, and then waits.
    pub fn fall_asleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
    }

    /// It is awake.
    pub fn wake_up(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Whether nobody roused it since.
    pub fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::SeqCst)
    }

    /// Ends its sleep: something was begun that it is to drive. One load if it does not sleep. True if somebody has to ring the bell for that.
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
