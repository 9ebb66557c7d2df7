//! Memory for messages: private, or lent by whoever makes it.

use crate::touch;
use memmap2::MmapMut;
use std::any::Any;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};

/// Bytes that one process alone reads and writes, as long as nobody sends them or receives into them.
pub struct Memory {
    ptr: *mut u8,
    bytes: usize,
    _keep: Box<dyn Any + Send>,
}

// SAFETY: the bytes are this value's alone, as if it were a box.
unsafe impl Send for Memory {}

impl Memory {
    /// On pages of its own, and present.
    ///
    /// # Errors
    /// The system has no such memory.
    pub fn private(bytes: usize) -> io::Result<Self> {
        let mut map = MmapMut::map_anon(bytes.max(touch::LINE))?;
        map.fill(1);
        Ok(Self { ptr: map.as_mut_ptr(), bytes, _keep: Box::new(map) })
    }

    /// Memory of somebody else, for as long as `keep` lives.
    ///
    /// # Safety
    /// `ptr` is the start of `bytes` readable and writable bytes that stay where they are as long as `keep`, and that nobody else uses
    /// but on behalf of whoever has this value.
    pub unsafe fn lent(ptr: *mut u8, bytes: usize, keep: Box<dyn Any + Send>) -> Self {
        let mut memory = Self { ptr, bytes, _keep: keep };
        memory.fill(1);
        memory
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: readable and ours (`private`, or the caller of `lent`).
        unsafe { std::slice::from_raw_parts(self.ptr, self.bytes) }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed alone.
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
