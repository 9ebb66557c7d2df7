//! The system's clocks.

use std::time::Duration;

/// Nanoseconds on a clock that all processes of the machine share.
pub fn now() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// The processor time of all threads of this process.
pub fn processor_time() -> Duration {
    Duration::from_nanos(clock(libc::CLOCK_PROCESS_CPUTIME_ID))
}

fn clock(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the local structure, and nothing else; both clocks exist.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
