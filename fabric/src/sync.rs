//! Atomics and the asymmetric barrier.
//!
//! A producer publishes a packet and then checks whether its consumer sleeps. Textbook code needs a full fence between the two,
//! so that the load does not overtake the store. Here only the rare side pays for the fence. The frequent side calls
//! [`light_barrier`], which only stops the compiler. The rare side calls [`heavy_barrier`], which makes every processor that runs
//! a registered process execute a full fence (`membarrier(2)`). Together the two order like two full fences.

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Whether a planted bug is active. Planted bugs are deliberate errors that the loom models must find; without loom there are
/// none.
#[cfg(not(loom))]
#[inline(always)]
pub const fn planted_bug(_name: &str) -> bool {
    false
}

/// Whether the environment variable `PLANTED_BUG` selects this planted bug. Planted bugs are deliberate errors that the models
/// must find.
#[cfg(loom)]
pub fn planted_bug(name: &str) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var("PLANTED_BUG").ok()).as_deref() == Some(name)
}

/// Tells the processor that this is a spin loop. Under loom it lets another thread run.
#[inline(always)]
pub fn spin_hint() {
    #[cfg(not(loom))]
    std::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// What a waiter does between two looks at a word that another processor is about to write, if a [`spin_hint`] is too long. It takes some
/// cycles for each of `steps`, at least one. The next look begins only when the earlier one is over: a processor that looks ahead disturbs the
/// writer, and has to look again. On other processors than x86-64 it is a `spin_hint`.
#[inline(always)]
pub fn between_looks(steps: &u32) {
    #[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
    {
        let mut step = 0;
        loop {
            // SAFETY: every x86-64 processor has this instruction. Newer compilers know that.
            #[allow(unused_unsafe)]
            unsafe {
                std::arch::x86_64::_mm_lfence();
            }
            step += 1;
            // The number comes from memory each time, so that the branch behind the fence waits for a load. Messages are faster by that.
            // SAFETY: `steps` is a reference.
            if step >= unsafe { std::ptr::read_volatile(steps) } {
                break;
            }
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(loom, miri)))))]
    {
        let _ = steps;
        spin_hint();
    }
}

/// The frequent side of the asymmetric barrier. It compiles to no instruction. It is not enough where [`Barriers::join`] found no
/// `membarrier`.
#[inline(always)]
pub fn light_barrier() {
    #[cfg(all(not(loom), not(miri)))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(any(loom, miri))]
    if !planted_bug("light_barrier") {
        fence(Ordering::SeqCst);
    }
}

/// The processes that a heavy barrier reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The threads of this process.
    Process,
    /// All processes that called [`Barriers::join`].
    Machine,
}

/// The parts of `membarrier(2)` that work for this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barriers {
    /// Heavy barriers reach the threads of this process, and none has failed so far.
    pub process: bool,
    /// Heavy barriers of this process reach other processes, and theirs reach this one.
    pub machine: bool,
}

#[cfg(all(not(loom), not(miri)))]
mod membarrier {
    pub const GLOBAL_EXPEDITED: i32 = 1 << 1;
    pub const REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;
    pub const PRIVATE_EXPEDITED: i32 = 1 << 3;
    pub const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

    /// A barrier among the threads of this process failed.
    pub static FAILED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

    pub fn call(command: i32) -> bool {
        // SAFETY: membarrier takes three integers and touches no memory of this process.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }
}

impl Barriers {
    /// Registers this process once, so that heavy barriers of other processes reach it, and returns what works. Thread-safe.
    #[cfg(all(not(loom), not(miri)))]
    pub fn join() -> Barriers {
        use std::sync::OnceLock;
        static FOUND: OnceLock<Barriers> = OnceLock::new();
        let found = *FOUND.get_or_init(|| Barriers {
            process: membarrier::call(membarrier::REGISTER_PRIVATE_EXPEDITED),
            machine: membarrier::call(membarrier::REGISTER_GLOBAL_EXPEDITED),
        });
        // The other field stays: this process is registered, so barriers of other processes reach it even if its own fail.
        Barriers { process: found.process && !membarrier::FAILED.load(Ordering::Relaxed), ..found }
    }

    /// Under a model checker both sides are full fences, so every barrier works.
    #[cfg(any(loom, miri))]
    pub fn join() -> Barriers {
        Barriers { process: true, machine: true }
    }
}

/// The rare side of the asymmetric barrier; it takes microseconds. Returns whether it worked. If it did not, the caller must not
/// rely on the pairing. It may fail at any time, even after it worked: the kernel lacks memory, or a filter forbids the call.
#[must_use]
pub fn heavy_barrier(reach: Reach) -> bool {
    #[cfg(all(not(loom), not(miri)))]
    {
        fence(Ordering::SeqCst);
        match reach {
            Reach::Machine => membarrier::call(membarrier::GLOBAL_EXPEDITED),
            Reach::Process => {
                let worked = membarrier::call(membarrier::PRIVATE_EXPEDITED);
                if !worked {
                    membarrier::FAILED.store(true, Ordering::Relaxed);
                }
                worked
            }
        }
    }
    #[cfg(any(loom, miri))]
    {
        let _ = reach;
        if !planted_bug("heavy_barrier") {
            fence(Ordering::SeqCst);
        }
        true
    }
}

/// How long [`sure_barrier`] waits where a heavy barrier fails: some thousand times longer than any processor delays a store.
#[cfg(all(not(loom), not(miri)))]
const SETTLED: std::time::Duration = std::time::Duration::from_millis(2);

/// The rare side of the asymmetric barrier among the threads of this process, for a caller that always needs it. Where
/// `membarrier` fails, it waits instead.
///
/// The wait suffices for this reason. A thread on the frequent side stores A and then loads B. It misses our store to B only if
/// its load was done before that store was visible to all threads, as it is after the fence below. From then on its store to A,
/// which is earlier in the program, is at most in the store buffer of its processor. A processor empties that buffer as fast as
/// its cache takes lines, whatever it does next. An interrupt, a thread switch and a halt of a virtual processor come after the
/// store, or undo the load. So after `SETTLED`, our load of A sees that store.
pub fn sure_barrier() {
    if heavy_barrier(Reach::Process) {
        return;
    }
    #[cfg(all(not(loom), not(miri)))]
    {
        // Not a sleep: the filter that forbids the barrier may forbid sleeping, too.
        let began = std::time::Instant::now();
        while began.elapsed() < SETTLED {
            std::thread::yield_now();
        }
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_of_this_machine_has_barriers() {
        let found = Barriers::join();
        assert_eq!(found.process, heavy_barrier(Reach::Process));
        assert_eq!(found.machine, heavy_barrier(Reach::Machine));
    }
}
