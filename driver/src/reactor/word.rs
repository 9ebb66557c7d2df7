//! What a reactor and the threads of its node share.

use crate::stream::end::{End, Side};
use doorbell_fabric::sync::{AtomicBool, AtomicU32, Ordering, Reach, heavy_barrier};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// Whether there is a reactor, and whether it sleeps.
#[derive(Default)]
pub struct ReactorWord {
    is_there: AtomicBool,
    /// It waits for its descriptor, or is about to.
    asleep: AtomicBool,
    waker: Mutex<Option<Waker>>,
    /// How many there have been.
    count: AtomicU32,
    /// Pipes at which it looks, and for whom: what arrives there is then not told in another way.
    hot: Mutex<Vec<(Arc<End>, Side)>>,
}

/// Pipes at which it looks at most; if there are more, those who write there are asked to tell.
const HOT_MOST: usize = 64;

impl ReactorWord {
    /// Whether there is one.
    #[inline]
    pub fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Relaxed)
    }

    /// How many there have been: who had the helm before one came has it no more.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    /// There is one from now on. False if there was.
    pub fn attach(&self) -> bool {
        let is_first = !self.is_there.swap(true, Ordering::SeqCst);
        if is_first {
            self.count.fetch_add(1, Ordering::SeqCst);
        }
        is_first
    }

    /// There is none any more.
    pub fn detach(&self) {
        self.asleep.store(false, Ordering::SeqCst);
        *self.waker() = None;
        let hot = {
            let mut hot = self.hot();
            // While it is locked: who finds none has its pipe looked at by others.
            self.is_there.store(false, Ordering::SeqCst);
            std::mem::take(&mut *hot)
        };
        for (end, side) in hot {
            end.cools(side);
            end.wake(side);
        }
    }

    /// Has the reactor look at a pipe until there is something. False if there is none.
    pub fn look_at(&self, end: &Arc<End>, side: Side) -> bool {
        if !self.is_there() {
            return false;
        }
        let mut hot = self.hot();
        if !self.is_there.load(Ordering::SeqCst) {
            return false;
        }
        if end.becomes_hot(side) {
            hot.push((end.clone(), side));
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
        for (end, side) in &found {
            end.wake(*side);
        }
        !found.is_empty()
    }

    /// Whoever writes into the pipes at which it looked is to tell from now on. A barrier follows, and [`look_last`](Self::look_last).
    pub fn mark(&self) -> Vec<(Arc<End>, Side)> {
        let hot = std::mem::take(&mut *self.hot());
        for (end, side) in &hot {
            end.cools(*side);
            end.mark(*side);
        }
        hot
    }

    /// After the barrier, if there was one: wakes those for whom there was something before others knew that they are to tell. Whether there was
    /// anybody. Without a barrier it goes on looking.
    pub fn look_last(&self, marked: Vec<(Arc<End>, Side)>, was_barrier: bool) -> bool {
        let mut any = false;
        for (end, side) in marked {
            if end.has_news(side) || !end.is_open() {
                end.wake(side);
                any = true;
            } else if !was_barrier {
                self.look_at(&end, side);
            }
        }
        any
    }

    fn hot(&self) -> MutexGuard<'_, Vec<(Arc<End>, Side)>> {
        self.hot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(feature = "tokio")]
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
