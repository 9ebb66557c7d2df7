//! Operations on files, at once or by io_uring.
//!
//! Operations that may wait for a medium go through the ring, so that no other client waits for them: opening, reading, writing
//! and syncing. Operations that can't wait are plain calls, which cost less: everything on files in memory, reads of cached
//! data (`RWF_NOWAIT`), and writes while there is only one client. If io_uring is not available, all operations are plain
//! calls, and all clients wait for each other's medium.

use doorbell_engine::kit::world;
use io_uring::types::{Fd, FsyncFlags, OpenHow, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode, squeue};
use std::ffi::CStr;
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// How a server reads and writes files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoEngine {
    /// By io_uring if it is available, and else by plain calls.
    #[default]
    Auto,
    /// By io_uring.
    Uring,
    /// By plain calls.
    Plain,
}

impl IoEngine {
    /// Checks whether this process can use the engine on this machine, without serving anything.
    ///
    /// # Errors
    /// For [`Uring`](Self::Uring), the system's error when a ring is set up.
    pub fn check(self) -> io::Result<()> {
        if self == Self::Uring { make_ring(1).map(drop) } else { Ok(()) }
    }
}

impl std::fmt::Display for IoEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            IoEngine::Auto => "auto",
            IoEngine::Uring => "io_uring",
            IoEngine::Plain => "plain calls",
        })
    }
}

/// What became of an operation that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It has ended with this result: a number from 0 on, or a negative errno.
    Over(i64),
    /// It is in progress. [`Files::next`] returns the number of its job when it ends.
    UnderWay,
}

/// Bytes of a file, and the memory that they go to or come from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub memory: *mut u8,
    pub len: usize,
    /// `None`: at the descriptor's cursor.
    pub offset: Option<u64>,
    /// A plain call would make no other client wait.
    pub is_plain: bool,
}

/// Executes operations. Used by one thread.
pub(super) struct Files {
    ring: Option<IoUring>,
    /// Operations not submitted yet.
    prepared: usize,
    /// Operations that were prepared and have not ended.
    under_way: usize,
}

impl Files {
    /// `jobs` is the greatest number of operations in progress.
    pub(super) fn new(engine: IoEngine, jobs: usize) -> io::Result<Self> {
        let ring = match engine {
            IoEngine::Plain => None,
            _ => match make_ring(jobs as u32) {
                Ok(ring) => Some(ring),
                Err(error) if engine == IoEngine::Uring => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "io_uring is not available; files are read and written by plain calls");
                    None
                }
            },
        };
        Ok(Self { ring, prepared: 0, under_way: 0 })
    }

    pub(super) fn engine(&self) -> IoEngine {
        if self.ring.is_some() { IoEngine::Uring } else { IoEngine::Plain }
    }

    /// Reads into memory.
    ///
    /// # Safety
    /// The memory is writable for `len` bytes, and stays so until the operation is over.
    pub(super) unsafe fn read(&mut self, file: RawFd, span: Span, job: u64) -> Begun {
        let Span { memory, len, offset, is_plain } = span;
        if let (Some(offset), Some(_), false) = (offset, &self.ring, is_plain) {
            let part = libc::iovec { iov_base: memory.cast(), iov_len: len };
            // SAFETY: caller.
            let got = unsafe { libc::preadv2(file, &part, 1, offset as i64, libc::RWF_NOWAIT) };
            // A short read may mean that the rest is not cached. On some kernels, so may an empty one.
            if got == len as isize {
                return Begun::Over(got as i64);
            }
        }
        // SAFETY: caller.
        let read = || unsafe {
            match offset {
                Some(offset) => libc::pread(file, memory.cast(), len, offset as i64),
                None => libc::read(file, memory.cast(), len),
            }
        };
        let entry = opcode::Read::new(Fd(file), memory, len as u32).offset(offset.unwrap_or(u64::MAX)).build();
        // SAFETY: caller.
        unsafe { self.begin(is_plain, read, entry, job) }
    }

    /// Writes from memory.
    ///
    /// # Safety
    /// The memory is readable for `len` bytes, and stays so until the operation is over.
    pub(super) unsafe fn write(&mut self, file: RawFd, span: Span, job: u64) -> Begun {
        let Span { memory, len, offset, is_plain } = span;
        // SAFETY: caller.
        let write = || unsafe {
            match offset {
                Some(offset) => libc::pwrite(file, memory.cast(), len, offset as i64),
                None => libc::write(file, memory.cast(), len),
            }
        };
        let entry = opcode::Write::new(Fd(file), memory, len as u32).offset(offset.unwrap_or(u64::MAX)).build();
        // SAFETY: caller.
        unsafe { self.begin(is_plain, write, entry, job) }
    }

    /// Syncs a file to the medium.
    pub(super) fn sync(&mut self, file: RawFd, data_only: bool, in_memory: bool, job: u64) -> Begun {
        // SAFETY: names no memory.
        let sync = || unsafe { (if data_only { libc::fdatasync(file) } else { libc::fsync(file) }) as isize };
        let flags = if data_only { FsyncFlags::DATASYNC } else { FsyncFlags::empty() };
        // SAFETY: names no memory.
        unsafe { self.begin(in_memory, sync, opcode::Fsync::new(Fd(file)).flags(flags).build(), job) }
    }

    /// Opens a path beneath a directory.
    ///
    /// # Safety
    /// `path` and `how` stay where they are until the operation is over.
    pub(super) unsafe fn open(&mut self, root: RawFd, path: &CStr, how: &OpenHow, job: u64) -> Begun {
        let entry = opcode::OpenAt2::new(Fd(root), path.as_ptr(), how).build();
        let (how, path) = (std::ptr::from_ref(how), path.as_ptr());
        // SAFETY: a path, and a structure with its size.
        let open = || unsafe { libc::syscall(libc::SYS_openat2, root, path, how, size_of::<OpenHow>()) as isize };
        // SAFETY: caller.
        unsafe { self.begin(false, open, entry, job) }
    }

    /// Makes a plain call, if that is best or there is no ring; else queues the same operation for the ring.
    ///
    /// # Safety
    /// The memory that the entry names lives until the operation is over.
    unsafe fn begin(&mut self, is_plain: bool, call: impl FnMut() -> isize, entry: squeue::Entry, job: u64) -> Begun {
        let Some(ring) = self.ring.as_mut().filter(|_| !is_plain) else { return Begun::Over(again(call)) };
        let entry = entry.user_data(job);
        // SAFETY: caller.
        while unsafe { ring.submission().push(&entry) }.is_err() {
            match ring.submit() {
                Ok(count) => self.prepared = self.prepared.saturating_sub(count),
                Err(error) if is_passing(&error) => world::yield_now(),
                Err(error) => return Begun::Over(-i64::from(error.raw_os_error().unwrap_or(libc::EIO))),
            }
        }
        self.prepared += 1;
        self.under_way += 1;
        Begun::UnderWay
    }

    /// Submits what is prepared. Then the descriptors that it names may be closed.
    pub(super) fn submit(&mut self) {
        while self.prepared > 0 {
            self.wait(0, Duration::ZERO);
        }
    }

    /// Operations that have not ended.
    #[inline]
    pub(super) fn under_way(&self) -> usize {
        self.under_way
    }

    /// Operations not submitted yet.
    #[inline]
    pub(super) fn prepared(&self) -> usize {
        self.prepared
    }

    /// Submits what is prepared, and waits until `want` operations have ended or the time is over.
    pub(super) fn wait(&mut self, want: usize, most: Duration) {
        let Some(ring) = &mut self.ring else { return };
        let time = Timespec::from(most);
        let done = match want {
            0 => ring.submit(),
            _ => ring.submitter().submit_with_args(want, &SubmitArgs::new().timespec(&time)),
        };
        match done {
            Ok(count) => self.prepared = self.prepared.saturating_sub(count),
            // The rest of what was prepared stays in the ring. After a wait that ended early, the kernel does not say how much
            // it took.
            Err(error) => {
                self.prepared = ring.submission().len();
                if want == 0 && !is_passing(&error) {
                    tracing::warn!(%error, "io_uring accepts no operations at present");
                    world::yield_now();
                }
            }
        }
    }

    /// The job and the result of an operation that has ended. Makes no system call.
    #[inline]
    pub(super) fn next(&mut self) -> Option<(u64, i64)> {
        if self.under_way == 0 {
            return None;
        }
        let entry = self.ring.as_mut()?.completion().next()?;
        self.under_way -= 1;
        Some((entry.user_data(), entry.result().into()))
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN | libc::ETIME))
}

fn make_ring(entries: u32) -> io::Result<IoUring> {
    let ring = IoUring::builder().setup_coop_taskrun().setup_clamp().dontfork().build(entries)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [opcode::Read::CODE, opcode::Write::CODE, opcode::Fsync::CODE, opcode::OpenAt2::CODE];
    if needed.into_iter().all(|code| probe.is_supported(code)) {
        Ok(ring)
    } else {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel's io_uring can't open, read and write files"))
    }
}

/// Makes a system call, and repeats it after a signal. Returns a negative errno if it fails.
#[inline(always)]
fn again(mut call: impl FnMut() -> isize) -> i64 {
    loop {
        let result = call();
        if result >= 0 {
            return result as i64;
        }
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        if errno != libc::EINTR {
            return -i64::from(errno);
        }
    }
}
