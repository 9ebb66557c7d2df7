//! Memory of the caller, which a collective reads and writes.

/// Bytes of one region of memory. The spans of an operation's input and output may be of the same memory.
#[derive(Clone, Copy)]
pub struct Span {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: the maker of a span keeps the bytes in place, and lets nothing else touch them, until the operation that has it is over or was dropped (Span::new).
unsafe impl Send for Span {}

impl Span {
    pub const NONE: Self = Self { ptr: std::ptr::null_mut(), len: 0 };

    /// # Safety
    /// Until the operation that has the span is over or was dropped, there are `len` initialised bytes at `ptr`, which are writable if
    /// [`write`](Self::write) is called or the span is the target of [`copy_to`](Self::copy_to). Nothing else writes them, and nothing else reads them
    /// if they are written.
    pub unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    fn check(&self, at: usize, len: usize) {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "it lies within the memory of its operation");
    }

    /// A part of it, to be read.
    pub fn read(&self, at: usize, len: usize) -> &[u8] {
        self.check(at, len);
        if len == 0 {
            return &[];
        }
        // SAFETY: within the bytes, which are initialised and there (Span::new). Operations use one part before they ask for another.
        unsafe { std::slice::from_raw_parts(self.ptr.add(at), len) }
    }

    /// A part of it, to be written.
    #[expect(
        clippy::mut_from_ref,
        reason = "the memory is the caller's, and two spans may be of the same; operations use one part at a time"
    )]
    pub fn write(&self, at: usize, len: usize) -> &mut [u8] {
        self.check(at, len);
        if len == 0 {
            return &mut [];
        }
        // SAFETY: as in `read`, and writable.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(at), len) }
    }

    /// Copies a part of it to a part of another span, which may be of the same memory.
    pub fn copy_to(&self, at: usize, other: &Span, into: usize, len: usize) {
        self.check(at, len);
        other.check(into, len);
        if len > 0 && self.ptr.wrapping_add(at) != other.ptr.wrapping_add(into) {
            // SAFETY: within the bytes of both, which are there, and writable where they are written (Span::new). They may overlap.
            unsafe { std::ptr::copy(self.ptr.add(at), other.ptr.add(into), len) };
        }
    }
}
