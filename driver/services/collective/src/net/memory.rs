//! The memory of one run: the caller's input and output, and memory of the run's own.

use super::place::{How, Place, Region};
use crate::combine::{ALIGN_MAX, Combine};
use crate::span::Span;

/// Bytes that are aligned for every element.
#[derive(Clone, Copy)]
#[repr(C, align(128))]
struct Line([u8; LINE]);

/// The largest alignment of an element.
pub const LINE: usize = ALIGN_MAX;

// Whole lines lie behind each other, each as aligned as the first.
const _: () = assert!(align_of::<Line>() == LINE && size_of::<Line>() == LINE);

/// Private memory of whole lines.
struct Own {
    span: Span,
    _lines: Vec<Line>,
}

impl Own {
    fn new(bytes: usize) -> Self {
        let mut lines = vec![Line([0; LINE]); bytes.div_ceil(LINE)];
        // SAFETY: the lines are initialised, stay where they are, and are accessed only by this span, which is dropped together with them.
        let span = unsafe { Span::new(lines.as_mut_ptr().cast(), lines.len() * LINE) };
        Self { span, _lines: lines }
    }
}

/// The memory that a run reads and writes. No step can reach beyond it.
pub struct Memory {
    input: Span,
    output: Span,
    scratch: Own,
    coming: Own,
}

impl Memory {
    /// The caller's memory, and this many bytes of scratch.
    pub fn new(input: Span, output: Span, scratch: usize) -> Self {
        Self { input, output, scratch: Own::new(scratch), coming: Own::new(0) }
    }

    /// Makes room for this many bytes that come and are combined afterwards. Earlier ones are lost.
    pub(super) fn expect(&mut self, bytes: usize) {
        if self.coming.span.len() < bytes {
            self.coming = Own::new(bytes);
        }
    }

    fn span(&self, region: Region) -> &Span {
        match region {
            Region::Input => &self.input,
            Region::Output => &self.output,
            Region::Scratch => &self.scratch.span,
            Region::Coming => &self.coming.span,
        }
    }

    /// The bytes of a place, to read.
    pub(super) fn bytes(&mut self, place: &Place) -> &[u8] {
        self.span(place.region).read(place.range.start, place.len())
    }

    /// The bytes of a place, to write. Not of the input.
    pub(super) fn bytes_mut(&mut self, place: &Place) -> &mut [u8] {
        assert!(place.region != Region::Input, "nothing writes to the input");
        self.span(place.region).write(place.range.start, place.len())
    }

    /// Stores one place in another one, or combines the two. Both have the same length. Places that are combined are of regions that never overlap.
    pub(super) fn apply(&mut self, from: &Place, into: &Place, how: How, combine: Option<&dyn Combine>) {
        assert!(into.region != Region::Input && from.len() == into.len(), "a step that doesn't fit");
        let (source, target) = (self.span(from.region), self.span(into.region));
        let Some(combine) = combine.filter(|_| how != How::Store && !into.is_empty()) else {
            return source.copy_to(from.range.start, target, into.range.start, into.len());
        };
        let own = matches!(from.region, Region::Scratch | Region::Coming);
        assert!(own && from.region != into.region, "operands that may overlap");
        let operand = source.read(from.range.start, from.len());
        combine.combine(target.write(into.range.start, into.len()), operand, how == How::Before);
    }
}
