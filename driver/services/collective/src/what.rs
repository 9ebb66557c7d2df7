//! What a member asks for, before it is known how the members reach each other.

use super::combine::{Combine, by_elements};
use super::kind::Kind;
use super::lengths::Lengths;
use super::reduction::Reduction;
use super::span::Span;
use super::value::Value;
use doorbell_engine::Result;
use doorbell_engine::error::Error;

/// One collective of this member.
pub(super) struct What {
    pub kind: Kind,
    /// The root, or 0 if the operation has none.
    pub root: usize,
    pub input: Span,
    pub output: Span,
    pub lengths: Lengths,
    pub combine: Option<Box<dyn Combine>>,
}

impl What {
    pub fn barrier() -> Self {
        let lengths = Lengths::each(0);
        Self { kind: Kind::Barrier, root: 0, input: Span::NONE, output: Span::NONE, lengths, combine: None }
    }

    /// An operation whose input and output are the same vector.
    pub fn in_place<T: Value>(kind: Kind, root: usize, xs: &mut [T]) -> Self {
        let span = whole(xs);
        Self { kind, root, input: span, output: span, lengths: Lengths::each(span.len()), combine: None }
    }

    /// An operation of member `me` of a team, from one vector to another. A vector that only the root has is ignored elsewhere.
    ///
    /// # Errors
    /// [`Error::Invalid`] for vectors that the lengths don't fit.
    pub fn between<T: Value>(
        kind: Kind,
        root: usize,
        (from, into): (&[T], &mut [T]),
        lengths: Lengths,
        (me, members): (usize, usize),
    ) -> Result<Self> {
        let from = if kind == Kind::Scatter && me != root { &[] } else { from };
        let into = if kind == Kind::Gather && me != root { &mut [] } else { into };
        let fits = |found: usize, expected: usize| {
            if found == expected {
                return Ok(());
            }
            let (found, expected) = (found / size_of::<T>().max(1), expected / size_of::<T>().max(1));
            let what = format!("a vector of {expected} elements is needed here, for a team of {members}, not one of {found}");
            Err(Error::Invalid { what })
        };
        let expected = match kind {
            Kind::Scatter if me != root => 0,
            kind if kind.divides() => lengths.send.before(members),
            _ => lengths.send.of(me),
        };
        fits(size_of_val(from), expected)?;
        let expected = match kind {
            Kind::Gather if me != root => 0,
            kind if kind.collects() => lengths.get.before(members),
            _ => lengths.get.of(me),
        };
        fits(size_of_val(into), expected)?;
        if kind.gives(root, me, me) {
            fits(lengths.send.of(me), lengths.get.of(me))?;
        }
        Ok(Self { kind, root, input: part(from), output: whole(into), lengths, combine: None })
    }

    /// The same, combined by a reduction.
    pub fn combined<T: Value, R: Reduction<T>>(self, reduction: R) -> Result<Self> {
        Ok(Self { combine: Some(by_elements(reduction)?), ..self })
    }

    /// Bytes of an element, if elements are combined. Else vectors are cut up by bytes.
    pub fn element(&self) -> usize {
        self.combine.as_ref().map_or(1, |combine| combine.element()).max(1)
    }

    /// Whether one member needs something of another one.
    pub fn reads(&self, reader: usize, source: usize) -> bool {
        reader != source && self.kind.gives(self.root, source, reader)
    }
}

/// Memory of the caller that is written.
fn whole<T: Value>(xs: &mut [T]) -> Span {
    // SAFETY: plain data. The caller of the collective lends it until the call returns, and by then the operation is over or was dropped (Core::run). A
    // started operation keeps its vector in its task (Core::start).
    unsafe { Span::new(xs.as_mut_ptr().cast(), size_of_val(xs)) }
}

/// Memory of the caller that is only read.
fn part<T: Value>(xs: &[T]) -> Span {
    // SAFETY: as in `whole`; it is an input, which no operation writes.
    unsafe { Span::new(xs.as_ptr().cast_mut().cast(), size_of_val(xs)) }
}
