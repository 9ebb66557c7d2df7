//! The predefined reductions, and those of the application.
//!
//! A [`Reduction`] combines two vectors element by element. There are [`Sum`], [`Product`], [`Max`] and [`Min`] for all integers
//! and floats of a fixed size; [`And`], [`Or`] and [`Xor`] of bits, and [`LogicalAnd`], [`LogicalOr`] and [`LogicalXor`], for
//! integers; [`MaxLoc`] and [`MinLoc`] for values that carry their place ([`Located`]); and, for whatever an application needs,
//! [`by`] and [`by_ordered`].
//!
//! ```
//! use doorbell::collective::reduction::{Max, Reduction, Sum};
//!
//! let mut into = [1.0, 2.0, 3.0];
//! Sum.fold(&mut into, &[10.0, 20.0, 30.0]);
//! assert_eq!(into, [11.0, 22.0, 33.0]);
//!
//! Max.fold_many(&mut into, &[&[0.0, 50.0, 0.0], &[12.0, 0.0, 0.0]]);
//! assert_eq!(into, [12.0, 50.0, 33.0]);
//! ```
//!
//! # The same result from run to run
//!
//! Of integers every reduction here gives the same result in whatever order it is done. So do `Max`, `Min`, `MaxLoc` and `MinLoc` of
//! floats, to the bit: a NaN is ignored, [`f64::NAN`] is the result where all were NaN, and +0.0 is greater than −0.0. Sums and
//! products of floats are rounded at each step: they are the same to the bit where the order of the steps is the same, on whatever
//! processor, as nothing here ever joins a product and a sum into one step. Only the sign and payload of a NaN may differ.
//!
//! Whoever reduces the vector of a single member folds nothing: what is said of results holds from two vectors on.
//!
//! # How fast
//!
//! The loops are compiled three times on x86-64, for any processor, for AVX2, and for AVX-512 as Ice Lake has it; the best one is chosen
//! as the program runs. Numbers of 16 bytes go one by one.

#![deny(unsafe_code)]

mod custom;
mod located;
mod number;
mod operator;
mod pass;
#[cfg(test)]
mod tests;

pub use custom::{By, ByOrdered, by, by_ordered};
pub use located::{Located, MaxLoc, MinLoc};
pub use number::{Integer, Number};
pub use operator::{And, LogicalAnd, LogicalOr, LogicalXor, Max, Min, Or, Product, Sum, Xor};

/// Bytes of `into` that [`Reduction::fold_many`] finishes before it goes on: they stay in the nearest cache.
const BLOCK_BYTES: usize = 4096;

/// How two vectors are combined, element by element.
///
/// Written ⊕ here. It is taken to be associative, but for rounding: collectives put the brackets where it suits them. They keep the
/// operands in the order of ranks unless it is [`COMMUTATIVE`](Self::COMMUTATIVE).
///
/// Nothing here blocks, allocates or fails, and all panics are the caller's bugs. An operator of your own that panics half way leaves
/// the elements before it combined and the others as they were. It runs in whatever thread goes on with the collective, maybe in the middle of the
/// engine: calls of teams are refused there ([`Error::Reentrant`](doorbell_engine::Error::Reentrant)).
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
    /// As it stands it is [`fold`](Self::fold), and does not compile for a reduction that is not commutative: that one says itself
    /// what it does.
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
    /// The result is that of one [`fold`](Self::fold) after the other, to the bit. But `into` is written to memory once instead of once a
    /// source. Without sources it stays as it is.
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

    /// What errors and statistics call it, such as `sum`.
    fn name(&self) -> &'static str;
}
