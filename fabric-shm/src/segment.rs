//! A piece of memory that other processes may write. It has an address and a length, and is never a slice.

use crate::layout::PAGE;
use crate::mapping::Mapping;
use crate::space::forked;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

/// A mapping, or a share of heap memory. Page-aligned. It does not move until the value is dropped.
///
/// A forked child does not have a mapping: it must not touch the memory, and dropping the value there does nothing.
pub struct Segment {
    ptr: NonNull<u8>,
    len: usize,
    backing: ManuallyDrop<Backing>,
}

enum Backing {
    Mapped { map: Mapping },
    Heap { _block: Arc<HeapBlock> },
}

// SAFETY: a segment is an address; any thread may free the backing, and this type reads nothing through it.
unsafe impl Send for Segment {}
// SAFETY: as above; `&Segment` returns only the address and the length.
unsafe impl Sync for Segment {}

impl Segment {
    pub(crate) fn mapped(map: Mapping) -> Self {
        let (ptr, len) = (map.start(), map.len());
        Self { ptr, len, backing: ManuallyDrop::new(Backing::Mapped { map }) }
    }

    /// A part of a block; `None` if it does not lie within the block.
    pub(crate) fn heap(block: Arc<HeapBlock>, offset: usize, len: usize) -> Option<Self> {
        if offset.checked_add(len)? > block.len() {
            return None;
        }
        // SAFETY: within the block (checked).
        let ptr = unsafe { block.ptr.add(offset) };
        Some(Self { ptr, len, backing: ManuallyDrop::new(Backing::Heap { _block: block }) })
    }

    /// Lets forked children keep it. For memory that is read without checking [`forked`] first.
    pub(crate) fn keep_on_fork(&self) {
        if let Backing::Mapped { map } = &*self.backing {
            map.keep_on_fork();
        }
    }

    /// Makes all pages present and writable now.
    pub(crate) fn populate(&self) {
        if let Backing::Mapped { map } = &*self.backing {
            map.populate();
        }
    }

    /// Whether another process truncated it and this process touched a missing page, which zeros have replaced. One load.
    #[inline(always)]
    pub fn is_cut(&self) -> bool {
        match &*self.backing {
            Backing::Mapped { map } => map.is_cut(),
            Backing::Heap { .. } => false,
        }
    }

    /// The first byte. Others may write to it at any time: use atomics, or copy before checking.
    #[inline]
    pub fn ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// The number of bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // In a forked child something else may be mapped at this address.
        if matches!(*self.backing, Backing::Heap { .. }) || !forked() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.backing) };
        }
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment").field("ptr", &self.ptr).field("len", &self.len).finish()
    }
}

/// Page-aligned zeroed memory.
#[derive(Debug)]
pub(crate) struct HeapBlock {
    ptr: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the block is an address; any thread may free it.
unsafe impl Send for HeapBlock {}
// SAFETY: as above.
unsafe impl Sync for HeapBlock {}

impl HeapBlock {
    /// `None` if there is no memory, or if `bytes` is zero.
    pub fn new(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes, PAGE).ok().filter(|layout| layout.size() > 0)?;
        // SAFETY: the size is not zero.
        let ptr = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { ptr, layout })
    }

    /// The bytes, while nothing else shares them.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: initialised by `alloc_zeroed`, and exclusive by `&mut self`: only `Arc` hands out shares.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.layout.size()) }
    }

    pub fn len(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for HeapBlock {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.ptr.as_ptr(), self.layout) };
    }
}
