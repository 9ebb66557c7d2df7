//! Protection against truncated segments. Any process that may open a segment may truncate it. A process that then touches a
//! missing page of its mapping gets SIGBUS.
//!
//! The first mapping installs a signal handler. If the faulting page belongs to a mapping in the table, the handler maps zeros
//! over that page and everything behind it, and marks the mapping as cut. The owner of the mapping finds the mark and names the
//! culprit. The handler passes every other fault on to the previous handler. With `DOORBELL_SIGBUS=off` no handler is installed,
//! and such a fault ends the process.
//!
//! The handler replaces everything behind the page for two reasons. A truncation removes all of it, and a process can have only
//! some 65000 mappings; this way a mapping splits into two at most. If the file has regained its length by then, the handler also
//! replaces pages that exist, and this process no longer sees what others write there. That does no harm, because Doorbell gives
//! up a cut mapping as a whole.
//!
//! The kernel ends a process at once if the faulting thread blocks the signal. Doorbell's own threads [unblock it](unblock). If a
//! program blocks it in a thread that calls Doorbell, a truncation ends the program.

use crate::layout::PAGE;
use crate::space::forked;
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, compiler_fence};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

/// Turns the handler off.
const VARIABLE: &str = "DOORBELL_SIGBUS";

/// Slots that are allocated at once.
const SLOTS: usize = 128;
/// Bits of a slot's word that hold its number of pages; the other bits hold the first page. Of a longer mapping only this many
/// pages are watched.
const PAGES_BITS: u32 = 28;
const PAGES_MAX: usize = (1 << PAGES_BITS) - 1;

/// One mapping. Its range is a single word, so the handler never sees half of a change.
struct Slot {
    range: AtomicU64,
    cut: AtomicBool,
    /// Whether forked children keep the mapping.
    kept: AtomicBool,
}

/// A part of the table. Parts are added and never removed, so the handler can walk them at any time.
struct Part {
    slots: [Slot; SLOTS],
    next: AtomicPtr<Part>,
}

impl Part {
    const fn new() -> Self {
        let slots =
            [const { Slot { range: AtomicU64::new(0), cut: AtomicBool::new(false), kept: AtomicBool::new(false) } }; SLOTS];
        Self { slots, next: AtomicPtr::new(null_mut()) }
    }

    fn next(&self) -> Option<&'static Part> {
        // SAFETY: null or a leaked part. Acquire: pairs with the release in `take`.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }
}

static TABLE: Part = Part::new();
/// A thread that changes the table holds this. The handler does not need it.
static CHANGING: Mutex<()> = Mutex::new(());
/// The previous handler of the signal.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// An entry of the table for one mapping. Drop it before unmapping.
#[derive(Debug)]
pub(crate) struct Watch(&'static Slot);

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("cut", &self.cut).finish_non_exhaustive()
    }
}

impl Watch {
    /// Watches the `len` bytes mapped at `ptr`, which is page-aligned.
    pub fn new(ptr: *mut u8, len: usize) -> Self {
        install();
        let pages = len.div_ceil(PAGE).min(PAGES_MAX) as u64;
        let slot = take();
        slot.cut.store(false, Ordering::Relaxed);
        slot.kept.store(false, Ordering::Relaxed);
        slot.range.store(((ptr.addr() / PAGE) as u64) << PAGES_BITS | pages, Ordering::Release);
        Self(slot)
    }

    /// Declares that forked children keep the mapping. In a child without it, something else may lie at its address.
    pub fn keep_on_fork(&self) {
        self.0.kept.store(true, Ordering::Relaxed);
    }

    /// Whether a thread touched a missing page of the mapping. One load.
    #[inline(always)]
    pub fn is_cut(&self) -> bool {
        // The load must not move before the copy that the caller asks about.
        compiler_fence(Ordering::SeqCst);
        self.0.cut.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // No thread touches the mapping any more, so the handler never looks for it.
        self.0.range.store(0, Ordering::Release);
    }
}

/// The value of a slot that is being filled in. It covers no page.
const TAKEN: u64 = 1 << PAGES_BITS;

fn take() -> &'static Slot {
    let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut part = &TABLE;
    loop {
        let is_free = |slot: &&Slot| slot.range.load(Ordering::Relaxed) == 0;
        if let Some(slot) = part.slots.iter().find(is_free) {
            slot.range.store(TAKEN, Ordering::Relaxed);
            return slot;
        }
        part = match part.next() {
            Some(next) => next,
            None => {
                let next = Box::leak(Box::new(Part::new()));
                part.next.store(next, Ordering::Release);
                next
            }
        };
    }
}

/// The slot whose range contains an address, and the end of that range. Async-signal-safe.
fn find(address: usize) -> Option<(&'static Slot, usize)> {
    let page = (address / PAGE) as u64;
    let mut part = Some(&TABLE);
    while let Some(slots) = part {
        for slot in &slots.slots {
            let range = slot.range.load(Ordering::Acquire);
            let (first, pages) = (range >> PAGES_BITS, range & PAGES_MAX as u64);
            if page.wrapping_sub(first) < pages {
                return Some((slot, (first + pages) as usize * PAGE));
            }
        }
        part = slots.next();
    }
    None
}

/// Unblocks the signal in the calling thread, which inherited its mask from its creator.
pub fn unblock() {
    // Miri has neither signals nor mappings.
    #[cfg(not(miri))]
    // SAFETY: a structure of integers, filled in before use; changes only the calling thread's signal mask.
    unsafe {
        let mut only: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut only);
        libc::sigaddset(&raw mut only, libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const only, null_mut());
    }
}

fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        if std::env::var_os(VARIABLE).is_some_and(|word| word == "off") {
            return;
        }
        // SAFETY: structures of integers, for which zero is a value; the handler has the signature that SA_SIGINFO needs. The
        // previous handler is stored before this one can run.
        let installed = unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) == 0 && BEFORE.set(before).is_ok() {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_bus as *const () as usize;
                // Run on the thread's alternate stack if it has one, because the previous handler may need it.
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                libc::sigaction(libc::SIGBUS, &raw const action, null_mut())
            } else {
                -1
            }
        };
        if installed != 0 {
            tracing::warn!(error = %io::Error::last_os_error(), "no SIGBUS handler: a truncated segment ends this process");
        }
    });
}

/// Async-signal-safe: only loads, stores and system calls are allowed here.
extern "C" fn on_bus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel provides both structures for as long as the handler runs; errno belongs to this thread.
    let (code, address, errno) = unsafe { ((*info).si_code, (*info).si_addr().addr(), *libc::__errno_location()) };
    if code == libc::BUS_ADRERR
        && let Some((slot, end)) = find(address)
        && (!forked() || slot.kept.load(Ordering::Relaxed))
    {
        // Set the mark before another thread can read the zeros. If mapping zeros fails, the process ends anyway.
        slot.cut.store(true, Ordering::SeqCst);
        if !blank(address, end, slot.kept.load(Ordering::Relaxed)) {
            return pass_on(signal, info, context);
        }
        // SAFETY: errno belongs to this thread.
        unsafe { *libc::__errno_location() = errno };
        return;
    }
    pass_on(signal, info, context);
}

/// Maps zeros from the page of `address` up to `end`, or over that page alone if the system refuses the whole range. `kept` says
/// whether forked children keep the mapping.
fn blank(address: usize, end: usize, kept: bool) -> bool {
    let start = address & !(PAGE - 1);
    let page = std::ptr::without_provenance_mut::<libc::c_void>(start);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    [end - start, PAGE].into_iter().any(|len| {
        // SAFETY: the pages belong to a mapping in the table. The faulting thread is here, so the mapping still exists. Bytes
        // read or written through such a mapping may be anything at any time.
        unsafe {
            let blank = libc::mmap(page, len, protection, flags, -1, 0);
            if blank != libc::MAP_FAILED && !kept {
                // Treat the zeros like the rest of the mapping on fork. A failure here does not matter: the fault is repaired
                // already.
                libc::madvise(page, len, libc::MADV_DONTFORK);
            }
            blank != libc::MAP_FAILED
        }
    })
}

/// Passes on a fault that is not Doorbell's: calls the previous handler, or ends the process as the default action would.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    type WithInfo = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
    type Plain = extern "C" fn(libc::c_int);
    let Some(before) = BEFORE.get() else { return };
    // SAFETY: the kernel provides the structure for as long as the handler runs.
    let was_sent = unsafe { (*info).si_code } <= 0;
    match before.sa_sigaction {
        libc::SIG_IGN if was_sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: a structure of integers, for which zero is a value; zero is the default action.
            unsafe {
                let default: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, &raw const default, null_mut());
                // A real fault recurs when the handler returns, but a sent signal must be raised again.
                if was_sent {
                    libc::raise(signal);
                }
            }
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the flags say that the handler has this signature.
            let handler = unsafe { std::mem::transmute::<usize, WithInfo>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: the flags say that the handler has this signature.
            let handler = unsafe { std::mem::transmute::<usize, Plain>(handler) };
            handler(signal);
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::mapping::Mapping;
    use std::fs::File;

    fn file(pages: usize) -> File {
        let mut options = File::options();
        std::os::unix::fs::OpenOptionsExt::custom_flags(options.read(true).write(true), libc::O_TMPFILE);
        let file = options.open("/dev/shm").unwrap();
        file.set_len((pages * PAGE) as u64).unwrap();
        file
    }

    #[test]
    fn what_is_cut_off_reads_as_zeros_and_is_known_to_be_cut() {
        let (file, other) = (file(4), file(4));
        let (mapping, whole) =
            (Mapping::new(&file, 0, 4 * PAGE, true).unwrap(), Mapping::new(&other, PAGE, PAGE, false).unwrap());
        // SAFETY: within the mapping.
        let word = |page: usize| unsafe { &*mapping.start().as_ptr().add(page * PAGE).cast::<AtomicU64>() };
        (0..4).for_each(|page| word(page).store(7, Ordering::Relaxed));
        assert!(!mapping.is_cut());
        file.set_len(2 * PAGE as u64).unwrap();
        assert_eq!([0, 1, 2, 3].map(|page| word(page).load(Ordering::Relaxed)), [7, 7, 0, 0]);
        assert!(mapping.is_cut());
        word(3).store(8, Ordering::Relaxed);
        assert_eq!(word(3).load(Ordering::Relaxed), 8);
        // A read-only mapping whose file is truncated for a moment.
        other.set_len(0).unwrap();
        // SAFETY: within the mapping.
        assert_eq!(unsafe { whole.start().cast::<AtomicU64>().as_ref() }.load(Ordering::Relaxed), 0);
        assert!(whole.is_cut());
    }

    /// The mappings of this process that lie in a range.
    fn parts(range: std::ops::Range<usize>) -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let start = |line: &str| usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
        maps.lines().filter(|line| range.contains(&start(line))).count()
    }

    /// Touches more pages than a process can have mappings, in the order that would create the most.
    #[test]
    fn a_mapping_becomes_two_at_most() {
        const PAGES: usize = 70_000;
        let file = file(PAGES);
        let mapping = Mapping::new(&file, 0, PAGES * PAGE, true).unwrap();
        let at = mapping.start().as_ptr();
        // SAFETY: within the mapping.
        let word = |page: usize| unsafe { &*at.add(page * PAGE).cast::<AtomicU64>() };
        word(0).store(7, Ordering::Relaxed);
        file.set_len(PAGE as u64).unwrap();
        // Start at the end, so that each page is missing when it is touched; then touch all pages between.
        for page in (1..PAGES).rev().step_by(2).chain(1..PAGES) {
            word(page).store(1, Ordering::Relaxed);
        }
        assert_eq!(word(0).load(Ordering::Relaxed), 7);
        assert!(mapping.is_cut());
        assert_eq!(parts(at.addr()..at.addr() + PAGES * PAGE), 2);
    }

    #[test]
    fn ranges_are_found_as_long_as_they_are_watched() {
        let base = 0x5000_0000_0000_usize;
        let at = |pages: usize| std::ptr::without_provenance_mut(base + pages * PAGE);
        let watches: Vec<_> = (0..3 * SLOTS).map(|number| Watch::new(at(number * 3), 2 * PAGE - 1)).collect();
        for (number, watch) in watches.iter().enumerate() {
            let found = |byte: usize| find(base + number * 3 * PAGE + byte).is_some_and(|(slot, _)| std::ptr::eq(slot, watch.0));
            assert_eq!([0, 2 * PAGE - 1, 2 * PAGE].map(found), [true, true, false]);
        }
        drop(watches);
        assert!((0..9 * SLOTS).all(|page| find(base + page * PAGE).is_none()));
    }

    /// A fault outside Doorbell's mappings, and a sent signal, which has no address, act as if there were no handler.
    #[test]
    fn other_faults_end_a_process_as_ever() {
        // The child must be able to recognise that it is a child.
        crate::space::watch();
        for sent in [false, true] {
            let file = file(1);
            let _watched = Mapping::new(&file, 0, PAGE, true).unwrap();
            // SAFETY: the child only makes system calls and one access, and then ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: the child's own mapping, of a page that no longer exists.
                unsafe {
                    if sent {
                        // Raise it twice: the first time, the previous handler (of Rust's runtime) uninstalls itself.
                        libc::raise(libc::SIGBUS);
                        libc::raise(libc::SIGBUS);
                        // The signal did not end the child.
                        libc::_exit(1);
                    }
                    file.set_len(0).unwrap();
                    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
                    let page = libc::mmap(null_mut(), PAGE, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
                    std::hint::black_box(page.cast::<u8>().read_volatile());
                    libc::_exit(0);
                }
            }
            let mut status = 0;
            // SAFETY: a child of this process.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS, "status {status:#x}");
        }
    }
}
