//! A part of a file in this process's memory.

use crate::bus::Watch;
use crate::layout::PAGE;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::fs::File;
use std::io;
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
        let whole = whole.ok_or(io::ErrorKind::InvalidInput)?;
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: new mappings; the second one, if there is one, lies within the first.
        unsafe {
            let (mut at, mut flags) = (null_mut(), MapFlags::SHARED);
            if GUARD != 0 {
                let nothing = MapFlags::PRIVATE | MapFlags::NORESERVE;
                let reserved = mmap_anonymous(null_mut(), whole + 2 * GUARD, ProtFlags::empty(), nothing)?;
                (at, flags) = (reserved.byte_add(GUARD), flags | MapFlags::FIXED);
            }
            let ptr = mmap(at, len, protection, flags, file, offset as u64).inspect_err(|_| {
                if GUARD != 0 {
                    let _ = munmap(at.byte_sub(GUARD), whole + 2 * GUARD);
                }
            })?;
            let mut mapping = Self { watch: None, ptr: NonNull::new_unchecked(ptr.cast()), len };
            madvise(ptr, len, Advice::LinuxDontFork)?;
            mapping.watch = Some(Watch::new(ptr.cast(), len));
            Ok(mapping)
        }
    }

    /// Lets forked children keep the mapping.
    pub fn keep_on_fork(&self) {
        self.watch.iter().for_each(Watch::keep_on_fork);
        // SAFETY: the mapping's own range. If the system refuses, nothing changes.
        let _ = unsafe { madvise(self.ptr.as_ptr().cast(), self.len, Advice::LinuxDoFork) };
    }

    /// Makes all pages present and writable now. If the system refuses, each page comes at its first use.
    pub fn populate(&self) {
        // SAFETY: the mapping's own range, which this does not change.
        let _ = unsafe { madvise(self.ptr.as_ptr().cast(), self.len, Advice::LinuxPopulateWrite) };
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
        let _ = unsafe { munmap(self.ptr.as_ptr().sub(GUARD).cast(), whole) };
    }
}
