//! Words that several processes share outside Doorbell, to compare results. They survive the process that wrote them.

use std::ops::Deref;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicU64;

/// Names the descriptor of the shared words to a child.
pub const VARIABLE: &str = "DOORBELL_TESTS_WORDS";

/// Shared words, zero at first.
pub struct Words {
    ptr: *const AtomicU64,
    count: usize,
    file: OwnedFd,
}

// SAFETY: the words are atomics in a mapping that lives as long as the value.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// New words.
    pub fn new(count: usize) -> Self {
        let file = nix::sys::memfd::memfd_create("doorbell-tests", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap();
        nix::unistd::ftruncate(&file, (count * 8) as i64).unwrap();
        Self::map(file, count)
    }

    /// The words that the parent gave to this process.
    pub fn inherited() -> Self {
        let fd = crate::number(VARIABLE, u64::MAX);
        let fd = i32::try_from(fd).unwrap_or_else(|_| panic!("{VARIABLE} is not set"));
        // SAFETY: the parent left this descriptor open for this process, and nothing else here uses it.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        let bytes = nix::sys::stat::fstat(&file).unwrap().st_size;
        Self::map(file, bytes as usize / 8)
    }

    fn map(file: OwnedFd, count: usize) -> Self {
        // SAFETY: a new mapping of a file that is that long.
        let ptr = unsafe {
            let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            libc::mmap(std::ptr::null_mut(), count * 8, protection, flags, file.as_raw_fd(), 0)
        };
        assert_ne!(ptr, libc::MAP_FAILED, "no memory for {count} shared words");
        Self { ptr: ptr.cast(), count, file }
    }

    pub(crate) fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: mapped for `count` words, aligned, and only ever accessed as atomics.
        unsafe { std::slice::from_raw_parts(self.ptr, self.count) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`; no reference outlives the value.
        unsafe { libc::munmap(self.ptr.cast_mut().cast(), self.count * 8) };
    }
}

/// Nanoseconds on the clock that all processes share.
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
