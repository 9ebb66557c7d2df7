//! The ring of io_uring. All that is unsafe about it is here.
//!
//! No request that is made here names memory which the kernel writes to, so none of them can outlive what it needs.

use super::uring::UringError;
use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode, squeue};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// More than are ever prepared at once.
const ENTRIES: u32 = 16;
/// FUTEX2_SIZE_U32, without FUTEX2_PRIVATE: the word may be shared.
const FUTEX_WORD: u32 = 2;

/// A ring that threads use one after the other. A request belongs to the thread that hands it over, and is ended by it.
pub struct Ring(IoUring);

/// A request has ended.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    pub tag: u64,
    pub result: i32,
}

impl Ring {
    pub fn new() -> Result<Self, UringError> {
        let mut builder = IoUring::builder();
        // Completions are made when the thread that asked is in the kernel next, and nobody is interrupted for them: it sleeps there. Not
        // bound to one thread (SINGLE_ISSUER, DEFER_TASKRUN), which no measurement missed.
        builder.setup_coop_taskrun().setup_clamp().dontfork();
        let ring = builder.build(ENTRIES).map_err(UringError::of)?;
        let mut probe = Probe::new();
        ring.submitter()
            .register_probe(&mut probe)
            .map_err(|source| UringError::System { attempt: "ask what it can do", source })?;
        // Later than all else that is needed.
        if !probe.is_supported(opcode::FutexWait::CODE) {
            return Err(UringError::TooOld);
        }
        Ok(Self(ring))
    }

    /// Prepares to be told of the next event of a descriptor.
    pub fn arm_poll(&mut self, descriptor: BorrowedFd<'_>, events: i16, tag: u64) -> io::Result<()> {
        let entry = opcode::PollAdd::new(Fd(descriptor.as_raw_fd()), events as u32).build();
        // SAFETY: names no memory.
        unsafe { self.push(entry.user_data(tag)) }
    }

    /// Prepares to be told when somebody wakes the sleepers of a word, or at once if it does not say what is expected.
    pub fn arm_bell(&mut self, bell: &AtomicU32, expected: u32, tag: u64) -> io::Result<()> {
        let entry = opcode::FutexWait::new(bell.as_ptr(), u64::from(expected), u64::from(u32::MAX), FUTEX_WORD).build();
        // SAFETY: the kernel checks the address and only reads there, and only when the request is submitted.
        unsafe { self.push(entry.user_data(tag)) }
    }

    /// Prepares to end all requests. Each of them has a completion of its own; this has one only if it found none.
    pub fn cancel_all(&mut self, tag: u64) -> io::Result<()> {
        let entry = opcode::AsyncCancel2::new(CancelBuilder::any()).build().flags(squeue::Flags::SKIP_SUCCESS);
        // SAFETY: names no memory.
        unsafe { self.push(entry.user_data(tag)) }
    }

    /// Queues a request.
    ///
    /// # Safety
    /// The memory it names lives until the request has ended.
    unsafe fn push(&mut self, entry: squeue::Entry) -> io::Result<()> {
        // SAFETY: says the caller.
        while unsafe { self.0.submission().push(&entry) }.is_err() {
            // What an earlier call left behind.
            self.0.submit()?;
        }
        Ok(())
    }

    /// Hands over what was prepared, and waits for so many completions, until the time is over, or until a signal comes. Which of these it
    /// was the kernel does not say to those who handed something over.
    pub fn wait(&mut self, want: usize, timeout: Duration) -> io::Result<()> {
        let time = Timespec::from(timeout.min(Duration::from_secs(1 << 30)));
        match self.0.submitter().submit_with_args(want, &SubmitArgs::new().timespec(&time)) {
            Ok(_) => Ok(()),
            // EBUSY: completions have to be looked at first.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EBUSY)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Hands over what was prepared, and waits for nothing.
    pub fn submit(&mut self) -> io::Result<()> {
        match self.0.submit() {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Readable while there is a completion.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the ring, which the answer borrows.
        unsafe { BorrowedFd::borrow_raw(self.0.as_raw_fd()) }
    }

    /// The next completion. No system call.
    pub fn take(&mut self) -> Option<Completion> {
        let entry = self.0.completion().next()?;
        Some(Completion { tag: entry.user_data(), result: entry.result() })
    }
}
