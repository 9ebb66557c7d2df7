//! What a reduction is.

use super::pass;

/// Bytes of `into` that [`Reduction::fold_many`] finishes before it goes on: they stay in the nearest cache.
const BLOCK_BYTES: usize = 4096;

/// How two vectors are combined, element by element.
///
/// The operation is written ⊕ here. Collectives take it to be associative, but for rounding. They keep the operands in the order of
/// ranks unless it is [`COMMUTATIVE`](Self::COMMUTATIVE).
///
/// The predefined reductions do not block, allocate or fail, and all their panics are bugs of the caller. If an operator of your own panics half
/// way, the elements before are combined and the others are as they were. It runs in the thread that goes on with the collective, which may
/// be turning the engine: calls of teams are refused there ([`Error::Reentrant`](doorbell_engine::Error::Reentrant)).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no reduction of elements of type `{T}`",
    note = "`Predefined<'+'>` is the type of `Sum`, and so on; those of bits are for integers alone; `by` makes a reduction of a function"
)]
pub trait Reduction<T>: Copy + Send + Sync + 'static {
    /// Whether the order of the operands may be changed.
    const COMMUTATIVE: bool;

    /// `into[i] = into[i] ⊕ from[i]`, for each element.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    fn fold(&self, into: &mut [T], from: &[T]);

    /// `into[i] = from[i] ⊕ into[i]`, for each element: `from` is of the lower rank.
    ///
    /// By default it is [`fold`](Self::fold). A reduction that is not commutative must define it, or it does not compile.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    fn fold_left(&self, into: &mut [T], from: &[T]) {
        const { assert!(Self::COMMUTATIVE, "a reduction that is not commutative has a fold_left of its own") };
        self.fold(into, from);
    }

    /// `into[i] = into[i] ⊕ from[0][i] ⊕ from[1][i] ⊕ …`, for each element, strictly from left to right.
    ///
    /// The result is that of one [`fold`](Self::fold) after the other, to the bit. But `into` is written to memory only once, and not once
    /// for each source. Without sources it stays as it is.
    ///
    /// # Panics
    ///
    /// If a source is not as long as `into`; nothing has been combined then.
    fn fold_many(&self, into: &mut [T], from: &[&[T]]) {
        for source in from {
            pass::same_length(self.name(), into.len(), source.len());
        }
        let block = (BLOCK_BYTES / size_of::<T>().max(1)).max(1);
        for (index, part) in into.chunks_mut(block).enumerate() {
            let start = index * block;
            let end = start + part.len();
            for source in from {
                self.fold(part, &source[start..end]);
            }
        }
    }

    /// The name in errors and statistics, such as `sum`.
    fn name(&self) -> &'static str;
}
