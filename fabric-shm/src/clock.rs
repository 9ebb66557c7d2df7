//! The clock that all processes of a machine share.

/// Nanoseconds of `CLOCK_MONOTONIC`. All processes read the same clock, and it never goes back. Takes some 20 ns, without a
/// system call where the kernel has a vDSO.
///
/// ```
/// let began = doorbell_shm::clock::now_ns();
/// assert!(doorbell_shm::clock::now_ns() >= began);
/// ```
#[inline]
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills in a live timespec; reading this clock cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
