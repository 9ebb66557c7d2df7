//! Memory for messages: private, or lent by another owner.

use crate::touch;
use memmap2::MmapMut;
use std::any::Any;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};

/// Bytes that only one process reads and writes, except while they are being sent or received into.
pub struct Memory {
    ptr: *mut u8,
    bytes: usize,
    _keep: Box<dyn Any + Send>,
}

// SAFETY: only this value uses the bytes, as if it were a box.
unsafe impl Send for Memory {}

impl Memory {
    /// Allocates whole pages and makes them present.
    ///
    /// # Errors
    /// The system has no such memory.
    pub fn private(bytes: usize) -> io::Result<Self> {
        let mut map = MmapMut::map_anon(bytes.max(touch::LINE))?;
        map.fill(1);
        Ok(Self { ptr: map.as_mut_ptr(), bytes, _keep: Box::new(map) })
    }

    /// Memory of another owner, valid as long as `keep` lives.
    ///
    /// # Safety
    /// `ptr` is the start of `bytes` readable and writable bytes that stay in place as long as `keep`. Only the owner of this
    /// value uses them, or others on its behalf.
    pub unsafe fn lent(ptr: *mut u8, bytes: usize, keep: Box<dyn Any + Send>) -> Self {
        let mut memory = Self { ptr, bytes, _keep: keep };
        memory.fill(1);
        memory
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: readable and exclusive (`private`, or the caller of `lent`).
        unsafe { std::slice::from_raw_parts(self.ptr, self.bytes) }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.bytes) }
    }
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Memory {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes)", self.bytes)
    }
}
