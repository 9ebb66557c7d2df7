//! Work that the end of a node waits for: updates under a lock, and calls that read and write shared memory.

use super::Shared;
use crate::Result;
use crate::error::Error;
use crossbeam_utils::CachePadded;
use doorbell_fabric::sync::{AtomicBool, AtomicUsize, Ordering, light_barrier, sure_barrier};
use doorbell_fabric::world;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// One handle that uses something that other nodes take over when this node leaves: a lane or the lock of a device.
#[derive(Clone)]
pub struct Work(Arc<CachePadded<AtomicBool>>);

/// A use in progress.
pub struct Working<'a>(&'a AtomicBool);

impl Drop for Working<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: a thread that sees the end of the use sees its effects.
        self.0.store(false, Ordering::Release);
    }
}

/// An update under a lock, in progress.
pub struct Updating<'a>(&'a AtomicUsize);

impl Drop for Updating<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Shared {
    /// Begins an update of a value under a lock. Until the result is dropped, this node does not leave, because others would
    /// take the lock from it.
    #[inline]
    pub fn begin_update(&self) -> Result<Updating<'_>> {
        self.updating.fetch_add(1, Ordering::SeqCst);
        let updating = Updating(&self.updating);
        // In one order with the count here, and with the flag and the count in a leaving thread: one of the two sees the other.
        if self.closed.load(Ordering::SeqCst) { Err(Error::Closed) } else { Ok(updating) }
    }

    /// A handle that is used by one thread at a time.
    pub fn new_work(&self) -> Work {
        let work = Arc::default();
        let mut works = self.works.lock().unwrap_or_else(PoisonError::into_inner);
        works.retain(|work| work.strong_count() > 0);
        works.push(Arc::downgrade(&work));
        Work(work)
    }

    /// Begins a use of a handle. Until the result is dropped, this node does not leave. As
    /// [`begin_update`](Self::begin_update), but costs only two stores to a cache line of its own, for frequent uses.
    #[inline(always)]
    pub fn begin<'a>(&self, work: &'a Work) -> Result<Working<'a>> {
        work.0.store(true, Ordering::Relaxed);
        let working = Working(&work.0);
        // Pairs with the heavy barrier of the leaving thread: one of the two sees the other.
        light_barrier();
        if self.closed.load(Ordering::Relaxed) { Err(Error::Closed) } else { Ok(working) }
    }

    /// Waits until no update and no use is in progress in a closed node: a second at most, since this thread may be in one.
    pub(crate) fn wait_for_updates(&self) {
        // Between the leaving thread's flag and its look at the uses: pairs with `begin`.
        sure_barrier();
        let deadline = world::now() + Duration::from_secs(1);
        let works = self.works.lock().unwrap_or_else(PoisonError::into_inner);
        let is_at_work = || works.iter().any(|work| work.upgrade().is_some_and(|work| work.load(Ordering::Acquire)));
        while (self.updating.load(Ordering::SeqCst) > 0 || is_at_work()) && world::now() < deadline {
            world::yield_now();
        }
    }
}
