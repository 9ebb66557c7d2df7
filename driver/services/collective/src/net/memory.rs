//! The memory of one run: the caller's input and output, and its own scratch.

use std::ops::Range;

/// Where bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// What the caller gives: never written.
    Input,
    /// What the caller gets.
    Output,
    /// What the schedule keeps.
    Scratch,
    /// What comes to be folded.
    Coming,
}

/// Some bytes of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Of which region.
    pub region: Region,
    /// Which bytes.
    pub bytes: Range<usize>,
}

/// Bytes that are aligned for every element.
#[derive(Clone, Copy)]
#[repr(C, align(128))]
struct Line([u8; LINE]);

/// The largest alignment of an element.
pub const LINE: usize = 128;

// Whole lines lie behind each other, each as aligned as the first.
const _: () = assert!(align_of::<Line>() == LINE && size_of::<Line>() == LINE);

/// What a run reads and writes. Nobody gets at anything beyond what the caller gave.
pub struct Memory {
    input: *const u8,
    input_len: usize,
    output: *mut u8,
    output_len: usize,
    scratch: Vec<Line>,
    coming: Vec<Line>,
}

// SAFETY: whoever made the Memory keeps its bytes there, untouched, until it is dropped (Memory::new), whichever thread has it.
unsafe impl Send for Memory {}

impl Memory {
    /// The caller's bytes, and as many of scratch.
    ///
    /// # Safety
    /// Until the memory is dropped, `input_len` bytes from `input` on stay readable and nobody else writes to them, and `output_len` bytes from
    /// `output` on stay readable and writable and nobody else touches them; all are initialised. Where there are none the pointer may be
    /// anything. The two may begin at the same place, if both pointers may be used for both; else they don't overlap.
    pub unsafe fn new(input: *const u8, input_len: usize, output: *mut u8, output_len: usize, scratch: usize) -> Self {
        Self { input, input_len, output, output_len, scratch: lines(scratch), coming: Vec::new() }
    }

    /// Makes room for what comes to be folded. What was there is lost.
    pub(super) fn expect(&mut self, bytes: usize) {
        if self.coming.len() < bytes.div_ceil(LINE) {
            self.coming = lines(bytes);
        }
    }

    /// The first byte of a span, all of which is in its region.
    fn ptr(&mut self, span: &Span) -> *mut u8 {
        let (ptr, len) = match span.region {
            Region::Input => (self.input.cast_mut(), self.input_len),
            Region::Output => (self.output, self.output_len),
            Region::Scratch => (self.scratch.as_mut_ptr().cast(), self.scratch.len() * LINE),
            Region::Coming => (self.coming.as_mut_ptr().cast(), self.coming.len() * LINE),
        };
        assert!(span.bytes.start <= span.bytes.end && span.bytes.end <= len, "a step beyond the memory of its operation");
        ptr.wrapping_add(span.bytes.start)
    }

    /// The bytes of a span, to read.
    pub(super) fn bytes(&mut self, span: &Span) -> &[u8] {
        let ptr = self.ptr(span);
        if span.bytes.is_empty() {
            return &[];
        }
        // SAFETY: within its region (ptr), which is our own or readable and not written by others (Memory::new); `self` stays borrowed.
        unsafe { std::slice::from_raw_parts(ptr, span.bytes.len()) }
    }

    /// The bytes of a span, to write. Not of the input.
    pub(super) fn bytes_mut(&mut self, span: &Span) -> &mut [u8] {
        assert!(span.region != Region::Input, "nobody writes to the input");
        let ptr = self.ptr(span);
        if span.bytes.is_empty() {
            return &mut [];
        }
        // SAFETY: within its region (ptr), which is our own or nobody else's to touch (Memory::new); `self` stays borrowed.
        unsafe { std::slice::from_raw_parts_mut(ptr, span.bytes.len()) }
    }

    /// Copies as many bytes as both have.
    pub(super) fn copy(&mut self, from: &Span, into: &Span) {
        assert!(into.region != Region::Input && from.bytes.len() == into.bytes.len(), "a copy that doesn't fit");
        let (from, to) = (self.ptr(from), self.ptr(into));
        if from != to && !into.bytes.is_empty() {
            // SAFETY: both within their regions (ptr), readable and writable (Memory::new); they may overlap.
            unsafe { std::ptr::copy(from, to, into.bytes.len()) };
        }
    }

    /// Gives the bytes of two spans to `fold`, the first to write. Both are of regions that never overlap.
    pub(super) fn fold(&mut self, into: &Span, from: &Span, fold: impl FnOnce(&mut [u8], &[u8])) {
        let own = matches!(from.region, Region::Scratch | Region::Coming);
        assert!(own && from.region != into.region && into.region != Region::Input, "a fold of what may overlap");
        let (from_ptr, into_ptr) = (self.ptr(from), self.ptr(into));
        if from.bytes.is_empty() || into.bytes.is_empty() {
            return;
        }
        // SAFETY: within its region (ptr), a vector of our own that is neither the other one nor the caller's memory (checked); `self` stays
        // borrowed.
        let from = unsafe { std::slice::from_raw_parts(from_ptr, from.bytes.len()) };
        // SAFETY: as in bytes_mut; nothing of `from` lies there.
        fold(unsafe { std::slice::from_raw_parts_mut(into_ptr, into.bytes.len()) }, from);
    }
}

fn lines(bytes: usize) -> Vec<Line> {
    vec![Line([0; LINE]); bytes.div_ceil(LINE)]
}
