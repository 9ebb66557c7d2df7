//! The effect of a fork on a node: the parent keeps everything, and the child has nothing.
//!
//! The child does not have the mappings (they are advised `DONTFORK`), and must not keep the parent's locks. A lock on an open
//! file lives as long as any descriptor of it, so a sleeping child would make a dead parent look alive. Therefore a table holds
//! every descriptor of this crate, and the child closes them all before `fork` returns in it.

use crate::layout::PAGE;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};

/// Is 1 in the process that called [`watch`] and 0 in its forked children. It points into a page that the kernel wipes on fork,
/// so it also works in children made by a bare `clone`.
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const PLAIN_WORD).cast_mut());
static PLAIN_WORD: AtomicU32 = AtomicU32::new(1);
/// Nobody writes it.
static REFUSED: AtomicU32 = AtomicU32::new(0);

/// Whether this process is a forked child of one that had joined a domain. Two loads; thread-safe and signal-safe.
#[inline]
pub fn forked() -> bool {
    if cfg!(miri) {
        return false;
    }
    // SAFETY: points to a static or to a page that is never unmapped; both are initialised.
    unsafe { (*WORD.load(Ordering::Acquire)).load(Ordering::Relaxed) == 0 }
}

/// The word behind [`forked`], for code that checks it often after joining a domain. It is 0 in a forked child.
pub(crate) fn word() -> &'static AtomicU32 {
    // SAFETY: points to a static or to a page that is never unmapped; both are initialised.
    unsafe { &*WORD.load(Ordering::Acquire) }
}

/// Whether something is allowed that no forked child may do. One word says both, so that a look costs two loads and one comparison.
#[derive(Debug)]
pub struct Permission(AtomicPtr<AtomicU32>);

impl Permission {
    /// Refused to every process.
    pub fn to_nobody() -> Self {
        Self(AtomicPtr::new((&raw const REFUSED).cast_mut()))
    }

    /// Granted to this process, and not to the children that it forks from now on. Call it after a node has joined: joining makes the
    /// process watch for forks.
    pub fn to_this_process() -> Self {
        Self(AtomicPtr::new(word().as_ptr().cast()))
    }

    /// Refused from now on.
    pub fn end(&self) {
        self.0.store((&raw const REFUSED).cast_mut(), Ordering::Relaxed);
    }

    /// Whether it is granted.
    #[inline(always)]
    pub fn is_granted(&self) -> bool {
        // SAFETY: points to a static or to a page that is never unmapped; both are initialised.
        unsafe { (*self.0.load(Ordering::Relaxed)).load(Ordering::Relaxed) != 0 }
    }
}

/// The number of descriptors that the table can hold. Each own node needs two, and each open peer two, or four if its regions are
/// used.
const SLOTS: usize = 8192;
const EMPTY: i32 = -1;
static OPEN: [AtomicI32; SLOTS] = [const { AtomicI32::new(EMPTY) }; SLOTS];

/// Closed while a thread does something that a child must not inherit half-done.
static GATE: AtomicBool = AtomicBool::new(false);

fn enter_gate(mut patience: u32) -> bool {
    while GATE.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
        if patience == 0 {
            return false;
        }
        patience -= 1;
        std::thread::yield_now();
    }
    true
}

/// Runs `section` while no thread forks. Keep it short, and never nest it. If the gate stays closed, it runs anyway: then only a
/// fork at this moment is at risk.
pub(super) fn gated<T>(section: impl FnOnce() -> T) -> T {
    struct Open(bool);
    impl Drop for Open {
        fn drop(&mut self) {
            if self.0 {
                GATE.store(false, Ordering::Release);
            }
        }
    }
    let _open = Open(enter_gate(1_000_000));
    section()
}

thread_local! {
    static FORK_HOLDS_GATE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

extern "C" fn before_fork() {
    // Bounded: a fork in a signal handler that interrupted a section would deadlock.
    FORK_HOLDS_GATE.set(enter_gate(100_000));
}

extern "C" fn after_fork_in_parent() {
    if FORK_HOLDS_GATE.replace(false) {
        GATE.store(false, Ordering::Release);
    }
}

extern "C" fn after_fork_in_child() {
    // Async-signal-safe: only loads, stores and close are allowed here.
    PLAIN_WORD.store(0, Ordering::Relaxed);
    // SAFETY: as in `forked`.
    unsafe { (*WORD.load(Ordering::Acquire)).store(0, Ordering::Relaxed) };
    for slot in &OPEN {
        let fd = slot.swap(EMPTY, Ordering::Relaxed);
        if fd != EMPTY {
            // SAFETY: the descriptor belongs to a `HeldFile`, which neither uses nor closes it in a forked child.
            unsafe { libc::close(fd) };
        }
    }
    FORK_HOLDS_GATE.set(false);
    GATE.store(false, Ordering::Release);
}

/// Starts to watch for forks. Works once a process; later calls are cheap.
pub(crate) fn watch() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        if cfg!(miri) {
            return;
        }
        // SAFETY: a new private page at an address of the kernel's choice. It is aligned, zeroed, and never unmapped.
        let word = unsafe {
            let page = mmap_anonymous(null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            page.and_then(|page| madvise(page, PAGE, Advice::LinuxWipeOnFork).map(|()| &*page.cast::<AtomicU32>()))
        };
        if let Ok(word) = word {
            word.store(1, Ordering::Relaxed);
            WORD.store(word.as_ptr().cast(), Ordering::Release);
        }
        // SAFETY: the handlers live as long as the program.
        let rc = unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child)) };
        if rc != 0 {
            tracing::warn!(
                rc,
                "could not install the fork handler: a forked child that lives on may hide the death of this process"
            );
        }
    });
}

/// A file that a forked child closes before it runs.
#[derive(Debug)]
pub(crate) struct HeldFile {
    file: ManuallyDrop<File>,
    slot: usize,
}

impl HeldFile {
    /// Opens a file and enters it into the table, without a fork in between.
    pub fn open(open: impl FnOnce() -> io::Result<File>) -> io::Result<Self> {
        use std::os::fd::AsRawFd;
        watch();
        gated(|| {
            let file = open()?;
            let fd = file.as_raw_fd();
            let start = usize::try_from(fd).unwrap_or(0) % SLOTS;
            for slot in (start..SLOTS).chain(0..start) {
                if OPEN[slot].compare_exchange(EMPTY, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                    return Ok(Self { file: ManuallyDrop::new(file), slot });
                }
            }
            Err(io::Error::from_raw_os_error(libc::EMFILE))
        })
    }
}

impl Deref for HeldFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl AsFd for HeldFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for HeldFile {
    fn drop(&mut self) {
        // In a forked child the number is closed and may belong to another file by now.
        if !forked() {
            gated(|| {
                OPEN[self.slot].store(EMPTY, Ordering::Relaxed);
                // SAFETY: dropped once, here.
                unsafe { ManuallyDrop::drop(&mut self.file) };
            });
        }
    }
}
