//! A ring for requests that never wait.

use super::shelf::{BUFFERS, Own, Shelf};
use super::uring::UringError;
use io_uring::types::CancelBuilder;
use io_uring::{IoUring, cqueue, opcode, squeue};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// The most requests at once.
pub const ENTRIES: usize = 16;
/// How often the kernel may refuse to take requests before the ring is given up.
const REFUSALS: usize = 1000;
/// How long to wait for a request that did not end at once, before it is cancelled.
const END_MOST: Duration = Duration::from_secs(1);
/// The tag of a cancellation.
const CANCEL: u64 = u64::MAX;

/// The ring; none after the kernel has refused to serve it.
pub struct Prompt(Option<IoUring>, Own);

impl Drop for Prompt {
    fn drop(&mut self) {
        if let Some(ring) = self.0.take_if(|_| !self.1.is_own()) {
            // A forked child has no mappings of the ring, and may have others in their place. So only the descriptor is closed.
            let descriptor = ManuallyDrop::new(ring).as_raw_fd();
            // SAFETY: the ring, which owned it, is never dropped.
            drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
        }
    }
}

impl Prompt {
    /// A ring, whose requests may receive into the buffers of a shelf, by the number of their group.
    ///
    /// # Safety
    /// The shelf lives longer than this.
    pub unsafe fn new(shelf: &Shelf, group: u16) -> Result<Self, UringError> {
        let mut builder = IoUring::builder();
        builder.setup_clamp().setup_cqsize(4 * ENTRIES as u32).dontfork();
        let ring = builder.build(ENTRIES as u32).map_err(UringError::of)?;
        // SAFETY: caller.
        unsafe { ring.submitter().register_buf_ring_with_flags(shelf.ring(), BUFFERS, group, 0) }
            .map_err(|_| UringError::TooOld)?;
        Ok(Self(Some(ring), shelf.own()))
    }

    /// Performs up to [`ENTRIES`] requests, passes each completion to `each`, and returns how often it entered the kernel. None if
    /// the ring is of no use: the kernel has not begun the requests of which nothing was passed on.
    ///
    /// # Safety
    /// The memory that the requests name lives until this returns, and nobody else uses what the kernel writes to.
    pub unsafe fn perform(&mut self, requests: &[squeue::Entry], each: &mut dyn FnMut(&cqueue::Entry)) -> Option<u64> {
        let ring = self.0.as_mut()?;
        // SAFETY: the queue is empty between two calls, so all requests find room; the rest is the caller's.
        if unsafe { ring.submission().push_multiple(requests) }.is_err() {
            self.0 = None;
            return None;
        }
        let (mut left, mut enters, mut refusals, mut began) = (requests.len(), 0, 0, None);
        loop {
            // They usually end at once, so the first time nothing is waited for.
            let want = usize::from(enters > 0 && ring.submission().is_empty());
            let entered = ring.submit_and_wait(want);
            enters += 1;
            for completion in ring.completion().filter(|completion| completion.user_data() != CANCEL) {
                left -= usize::from(!cqueue::more(completion.flags()));
                each(&completion);
            }
            if left == 0 {
                return Some(enters);
            }
            if let Err(error) = entered
                && error.kind() != io::ErrorKind::Interrupted
            {
                refusals += 1;
                std::thread::yield_now();
                if refusals > REFUSALS && left == ring.submission().len() {
                    tracing::warn!(%error, "the kernel takes no more requests of io_uring; plain calls take their place");
                    // Closing the ring drops what it was not told of.
                    self.0 = None;
                    return None;
                }
            }
            // A kernel that keeps such a request is not known. The memory must not be freed below one, so its end is awaited.
            if began.get_or_insert_with(Instant::now).elapsed() > END_MOST && ring.submission().is_empty() {
                began = None;
                let cancel = opcode::AsyncCancel2::new(CancelBuilder::any()).build().user_data(CANCEL);
                // SAFETY: the request names no memory.
                let _ = unsafe { ring.submission().push(&cancel) };
            }
        }
    }
}
