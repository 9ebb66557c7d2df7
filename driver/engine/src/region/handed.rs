//! Puts and gets in shared memory that the poller executes: with `Progress::Poller` it is the DMA engine, and a thread of the
//! application only injects.

use crate::Result;
use crate::drive::Shared;
use crate::drive::poller::Progress;
use crate::error::Error;
use crate::memory::cache::Act;
use crate::memory::copy;
use crate::sync::baton::Token;
use crate::sync::op::{Op, Outcome};
use doorbell_shm::region::PeerRegion;
use std::sync::{Arc, Mutex, PoisonError};

/// A copy that no thread has begun.
struct Job {
    /// The bytes of the thread that waits.
    own: *mut u8,
    /// The bytes of the region.
    ptr: *mut u8,
    bytes: usize,
    writes: bool,
    /// Keeps `ptr` mapped.
    _region: Arc<PeerRegion>,
}

// SAFETY: the thread that waits keeps its bytes until it has taken the job back or the job is done.
unsafe impl Send for Job {}

/// Takes the job back when the wait ends, however it ends.
struct TakeBack<'a>(&'a Mutex<Option<Job>>);

impl Drop for TakeBack<'_> {
    fn drop(&mut self) {
        // Waits for a copy that has begun.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Shared {
    /// Whether the poller executes the puts and gets of this thread.
    pub(super) fn hands_copies(&self, me: Token) -> bool {
        self.progress() == Progress::Poller && !self.is_within(me)
    }

    /// Has the poller copy between `own` and bytes of a region, and waits.
    ///
    /// # Safety
    /// `ptr` is the start of `bytes` bytes of `region`. `own` has as many: readable and initialised for a put, writable for a get.
    pub(super) unsafe fn copy_by_poller(
        &self,
        me: Token,
        act: Act,
        own: *mut u8,
        ptr: *mut u8,
        bytes: usize,
        region: Arc<PeerRegion>,
    ) -> Result<()> {
        let job = Arc::new(Mutex::new(Some(Job { own, ptr, bytes, writes: act.writes, _region: region })));
        let op = Op::new();
        let (theirs, done) = (job.clone(), op.clone());
        self.defer(Box::new(move |_, _| {
            let mut job = theirs.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(Job { own, ptr, bytes, writes, .. }) = job.take() {
                // SAFETY: the caller of `copy_by_poller` keeps both until the job is gone, which needs the lock.
                unsafe { if writes { copy::inward(own, ptr, bytes) } else { copy::out(ptr, own, bytes) } }
                done.finish(Outcome::Copied);
            }
        }));
        let guard = TakeBack(&job);
        // A node that has left has no poller any more.
        let driven = self.drive(me, &op, None, |_| self.is_closed());
        drop(guard);
        match op.take() {
            Some(_) => Ok(()),
            None => Err(driven.err().unwrap_or(Error::Closed)),
        }
    }
}
