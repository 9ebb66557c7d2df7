//! The io_uring ring of a port that waits.
//!
//! No request names memory that the kernel writes to, so a request cannot outlive its memory.

use super::uring::UringError;
use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode, squeue};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// More than the number of requests that are ever prepared at once.
const ENTRIES: u32 = 16;
/// FUTEX2_SIZE_U32 without FUTEX2_PRIVATE, because the word may be shared.
const FUTEX_WORD: u32 = 2;

/// A ring that threads use one after another. The thread that submits a request also ends it.
pub struct Ring(IoUring);

/// A call that ended early is no error. EBUSY: completions must be taken first.
fn unless_early(result: io::Result<usize>) -> io::Result<()> {
    match result {
        Err(error) if !matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EBUSY)) => Err(error),
        _ => Ok(()),
    }
}

impl Ring {
    pub fn new() -> Result<Self, UringError> {
        let mut builder = IoUring::builder();
        // The kernel makes completions when the submitting thread next enters the kernel, and interrupts no thread for them: that
        // thread sleeps there. The ring is not bound to one thread (SINGLE_ISSUER, DEFER_TASKRUN); measurements showed no
        // benefit.
        builder.setup_coop_taskrun().setup_clamp().dontfork();
        let ring = builder.build(ENTRIES).map_err(UringError::of)?;
        let mut probe = Probe::new();
        ring.submitter()
            .register_probe(&mut probe)
            .map_err(|source| UringError::System { attempt: "ask what it can do", source })?;
        // This operation came later than all other needed ones.
        if !probe.is_supported(opcode::FutexWait::CODE) {
            return Err(UringError::TooOld);
        }
        Ok(Self(ring))
    }

    /// Prepares a request for the next event of a descriptor.
    pub fn arm_poll(&mut self, descriptor: BorrowedFd<'_>, events: i16, tag: u64) -> io::Result<()> {
        let entry = opcode::PollAdd::new(Fd(descriptor.as_raw_fd()), events as u32).build();
        // SAFETY: the request names no memory.
        unsafe { self.push(entry.user_data(tag)) }
    }

    /// Prepares a request that completes when the sleepers of a word are woken, or at once if the word is not `expected`.
    pub fn arm_bell(&mut self, bell: &AtomicU32, expected: u32, tag: u64) -> io::Result<()> {
        let entry = opcode::FutexWait::new(bell.as_ptr(), u64::from(expected), u64::from(u32::MAX), FUTEX_WORD).build();
        // SAFETY: the kernel checks the address and only reads there, and only when the request is submitted.
        unsafe { self.push(entry.user_data(tag)) }
    }

    /// Prepares to cancel all requests. Each of them completes; this one itself completes only if it found none.
    pub fn cancel_all(&mut self, tag: u64) -> io::Result<()> {
        let entry = opcode::AsyncCancel2::new(CancelBuilder::any()).build().flags(squeue::Flags::SKIP_SUCCESS);
        // SAFETY: the request names no memory.
        unsafe { self.push(entry.user_data(tag)) }
    }

    /// Queues a request.
    ///
    /// # Safety
    /// The memory that the request names lives until the request has ended.
    unsafe fn push(&mut self, entry: squeue::Entry) -> io::Result<()> {
        // SAFETY: caller.
        while unsafe { self.0.submission().push(&entry) }.is_err() {
            // Requests of an earlier call are still in the queue.
            self.0.submit()?;
        }
        Ok(())
    }

    /// Submits the prepared requests, and waits for `want` completions, the timeout, or a signal. The kernel does not tell a
    /// caller that submitted requests which of these happened.
    pub fn wait(&mut self, want: usize, timeout: Duration) -> io::Result<()> {
        let time = Timespec::from(timeout.min(Duration::from_secs(1 << 30)));
        unless_early(self.0.submitter().submit_with_args(want, &SubmitArgs::new().timespec(&time)))
    }

    /// Submits the prepared requests without waiting.
    pub fn submit(&mut self) -> io::Result<()> {
        unless_early(self.0.submit())
    }

    /// Readable while there is a completion.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the ring, which the result borrows.
        unsafe { BorrowedFd::borrow_raw(self.0.as_raw_fd()) }
    }

    /// The tag and the result of the next request that completed. No system call.
    pub fn take(&mut self) -> Option<(u64, i32)> {
        let entry = self.0.completion().next()?;
        Some((entry.user_data(), entry.result()))
    }
}
