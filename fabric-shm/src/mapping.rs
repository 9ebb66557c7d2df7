//! A part of a file in this process's memory.

use crate::bus::Watch;
use crate::layout::PAGE;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::{NonNull, null_mut};

/// Inaccessible pages before and behind every mapping. With them a stray access just outside the mapping faults and does not hit
/// a neighbour.
const GUARD: usize = if cfg!(feature = "guard-pages") { PAGE } else { 0 };

/// A mapping that is unmapped when it is dropped. Forked children do not have it, unless [`keep_on_fork`](Self::keep_on_fork) was
/// called.
#[derive(Debug)]
pub(crate) struct Mapping {
    // Dropped by hand, before the memory is unmapped.
    watch: Option<Watch>,
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: an address; any thread may unmap it.
unsafe impl Send for Mapping {}
// SAFETY: as above; this type reads nothing through it.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes from `offset` on, in whole pages. The mapping is read-only unless `writable`.
    pub fn new(file: &File, offset: usize, len: usize, writable: bool) -> io::Result<Self> {
        let whole = len.checked_next_multiple_of(PAGE).filter(|whole| *whole > 0 && *whole <= isize::MAX as usize - 2 * GUARD);
        let (Some(whole), Ok(offset)) = (whole, libc::off_t::try_from(offset)) else {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        };
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: new mappings; the second one, if there is one, lies within the first.
        unsafe {
            let (mut at, mut flags) = (null_mut(), libc::MAP_SHARED);
            if GUARD != 0 {
                let nothing = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                let reserved = mapped(libc::mmap(null_mut(), whole + 2 * GUARD, libc::PROT_NONE, nothing, -1, 0))?;
                (at, flags) = (reserved.as_ptr().add(GUARD).cast(), flags | libc::MAP_FIXED);
            }
            let ptr = match mapped(libc::mmap(at, len, protection, flags, file.as_raw_fd(), offset)) {
                Ok(ptr) => ptr,
                Err(error) => {
                    if GUARD != 0 {
                        libc::munmap(at.byte_sub(GUARD), whole + 2 * GUARD);
                    }
                    return Err(error);
                }
            };
            let mut mapping = Self { watch: None, ptr, len };
            if libc::madvise(ptr.as_ptr().cast(), len, libc::MADV_DONTFORK) != 0 {
                return Err(io::Error::last_os_error());
            }
            mapping.watch = Some(Watch::new(ptr.as_ptr(), len));
            Ok(mapping)
        }
    }

    /// Lets forked children keep the mapping.
    pub fn keep_on_fork(&self) {
        self.watch.iter().for_each(Watch::keep_on_fork);
        // SAFETY: the mapping's own range. If the system refuses, nothing changes.
        unsafe { libc::madvise(self.ptr.as_ptr().cast(), self.len, libc::MADV_DOFORK) };
    }

    /// The first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.ptr
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether a part of it was truncated: see [`crate::bus`].
    #[inline(always)]
    pub fn is_cut(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::is_cut)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.watch = None;
        let whole = self.len.next_multiple_of(PAGE) + 2 * GUARD;
        // SAFETY: mapped in `new`, with as many guards.
        unsafe { libc::munmap(self.ptr.as_ptr().sub(GUARD).cast(), whole) };
    }
}

fn mapped(address: *mut libc::c_void) -> io::Result<NonNull<u8>> {
    match NonNull::new(address.cast()) {
        Some(ptr) if address != libc::MAP_FAILED => Ok(ptr),
        _ => Err(io::Error::last_os_error()),
    }
}
