//! Reductions of vectors as bytes: no other file knows the type of the elements.

use super::reduction::Reduction;
use super::value::Value;
use doorbell_engine::Result;
use doorbell_engine::error::Error;
use std::marker::PhantomData;
use zerocopy::FromBytes;

/// The size of the largest elements that can be combined.
const ELEMENT_MAX: usize = 4096;
/// The largest alignment of elements that can be combined. All private memory in which vectors are combined is aligned to it.
pub const ALIGN_MAX: usize = 128;

/// Combines vectors of one element type, given as bytes.
pub trait Combine: Send {
    /// `into = into ⊕ from`, or `into = from ⊕ into` if `left` says that `from` stands on the left. Both have the same length, and consist of whole,
    /// aligned elements.
    fn combine(&self, into: &mut [u8], from: &[u8], left: bool);

    /// Whether the order of the operands may be changed.
    fn commutes(&self) -> bool;

    /// Bytes of an element: at most [`ELEMENT_MAX`].
    fn element(&self) -> usize;
}

/// Combines elements of type `T` by a reduction.
///
/// # Errors
/// [`Error::Invalid`] if the size or the alignment of the elements is too large.
pub(super) fn by_elements<T: Value, R: Reduction<T>>(reduction: R) -> Result<Box<dyn Combine>> {
    let (size, align) = (size_of::<T>(), align_of::<T>());
    if size > ELEMENT_MAX {
        return Err(Error::Invalid { what: format!("elements of {size} bytes can't be combined; {ELEMENT_MAX} at most") });
    }
    if align > ALIGN_MAX {
        let what = format!("elements aligned to {align} bytes can't be combined; use a type aligned to {ALIGN_MAX} at most");
        return Err(Error::Invalid { what });
    }
    Ok(Box::new(Elements(reduction, PhantomData)))
}

struct Elements<T, R>(R, PhantomData<fn() -> T>);

impl<T: Value, R: Reduction<T>> Combine for Elements<T, R> {
    fn combine(&self, into: &mut [u8], from: &[u8], left: bool) {
        // Bytes that are not whole, aligned elements were cut up or stored wrongly. A panic fails the operation; to go on would give a wrong result.
        let (Ok(into), Ok(from)) = (<[T]>::mut_from_bytes(into), <[T]>::ref_from_bytes(from)) else {
            panic!("vectors to be combined do not lie as whole, aligned elements of {} bytes", size_of::<T>())
        };
        if left { self.0.fold_left(into, from) } else { self.0.fold(into, from) }
    }

    fn commutes(&self) -> bool {
        R::COMMUTATIVE
    }

    fn element(&self) -> usize {
        size_of::<T>()
    }
}
