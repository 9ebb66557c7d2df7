//! The predefined reductions, and those of the application.
//!
//! A [`Reduction`] combines two vectors element by element. There are [`Sum`], [`Product`], [`Max`] and [`Min`] for all integers
//! and floats of a fixed size; [`And`], [`Or`] and [`Xor`] of bits, and [`LogicalAnd`], [`LogicalOr`] and [`LogicalXor`], for
//! integers; [`MaxLoc`] and [`MinLoc`] for values that carry their place ([`Located`]); and [`by`] and [`by_ordered`] for functions of
//! the application.
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
//! Reductions of integers give the same result in any order. So do `Max`, `Min`, `MaxLoc` and `MinLoc` of floats, to the bit: a NaN is
//! ignored, [`f64::NAN`] is the result where all were NaN, and +0.0 is greater than −0.0. Sums and products of floats are rounded at each
//! step. They are the same to the bit where the order of the steps is the same, on any processor, as a product and a sum are never joined
//! into one step. Only the sign and payload of a NaN may differ.
//!
//! With a single member nothing is combined: these rules hold from two vectors on.
//!
//! # How fast
//!
//! The loops are compiled three times on x86-64, for any processor, for AVX2, and for AVX-512 as Ice Lake has it; the best one is chosen
//! as the program runs. Numbers of 16 bytes go one by one.

#![deny(unsafe_code)]

mod contract;
mod custom;
mod located;
mod number;
mod operator;
mod pass;
#[cfg(test)]
mod tests;

pub use contract::Reduction;
pub use custom::{By, by, by_ordered};
pub use located::{Located, MaxLoc, MinLoc};
pub use number::{Integer, Number};
pub use operator::{And, LogicalAnd, LogicalOr, LogicalXor, Max, Min, Or, Predefined, Product, Sum, Xor};
