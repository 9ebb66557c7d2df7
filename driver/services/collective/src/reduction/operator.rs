//! The predefined operators on numbers.

use super::contract::Reduction;
use super::number::{Integer, Number};
use super::pass;
use std::fmt;

/// The type of the predefined reductions, such as [`Sum`]. `SIGN` tells them apart.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Predefined<const SIGN: char>;

impl<const SIGN: char> fmt::Debug for Predefined<SIGN> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Predefined<{SIGN:?}>")
    }
}

macro_rules! operators {
    ($($(#[$doc:meta])* $name:ident $sign:literal, $text:literal, $bound:ident: $f:expr;)*) => {$(
        $(#[$doc])*
        // A program passes it where it would pass a unit struct of a reduction of its own.
        #[allow(non_upper_case_globals)]
        pub const $name: Predefined<$sign> = Predefined;

        impl<T: $bound> Reduction<T> for Predefined<$sign> {
            const COMMUTATIVE: bool = true;

            fn fold(&self, into: &mut [T], from: &[T]) {
                pass::fold($text, into, from, $f);
            }

            fn name(&self) -> &'static str {
                $text
            }
        }
    )*};
}

operators! {
    /// The sum. Of integers it wraps around; of floats it is rounded at each step, to nearest.
    ///
    /// ```
    /// use doorbell::collective::reduction::{Reduction, Sum};
    ///
    /// let mut into = [1u8, 200];
    /// Sum.fold(&mut into, &[2, 100]);
    /// assert_eq!(into, [3, 44]);
    /// ```
    Sum '+', "sum", Number: |a: &T, b: &T| a.sum(*b);

    /// The product. Of integers it wraps around; of floats it is rounded at each step, to nearest.
    ///
    /// ```
    /// use doorbell::collective::reduction::{Product, Reduction};
    ///
    /// let mut into = [3i8, 100];
    /// Product.fold(&mut into, &[-2, 2]);
    /// assert_eq!(into, [-6, -56]);
    /// ```
    Product '*', "product", Number: |a: &T, b: &T| a.product(*b);

    /// The greatest. Of floats a NaN is ignored, [`f64::NAN`] is the result of two, and +0.0 is greater than −0.0: the result is the
    /// same, to the bit, in any order.
    ///
    /// ```
    /// use doorbell::collective::reduction::{Max, Reduction};
    ///
    /// let mut into = [1.0, f64::NAN, -0.0];
    /// Max.fold(&mut into, &[2.0, -7.0, 0.0]);
    /// assert_eq!(into, [2.0, -7.0, 0.0]);
    /// assert!(into[2].is_sign_positive());
    /// ```
    Max '↑', "max", Number: |a: &T, b: &T| a.max(*b);

    /// The least. Of floats a NaN is ignored, [`f64::NAN`] is the result of two, and −0.0 is less than +0.0: the result is the same,
    /// to the bit, in any order.
    ///
    /// ```
    /// use doorbell::collective::reduction::{Min, Reduction};
    ///
    /// let mut into = [1.0, f64::NAN, 0.0];
    /// Min.fold(&mut into, &[2.0, -7.0, -0.0]);
    /// assert_eq!(into, [1.0, -7.0, -0.0]);
    /// assert!(into[2].is_sign_negative());
    /// ```
    Min '↓', "min", Number: |a: &T, b: &T| a.min(*b);

    /// The bits that are set in all.
    And '&', "and", Integer: |a: &T, b: &T| a.and(*b);

    /// The bits that are set in any.
    Or '|', "or", Integer: |a: &T, b: &T| a.or(*b);

    /// The bits that are set in an odd number of the operands.
    Xor '^', "xor", Integer: |a: &T, b: &T| a.xor(*b);

    /// 1 if no operand is zero, else 0.
    ///
    /// ```
    /// use doorbell::collective::reduction::{LogicalAnd, Reduction};
    ///
    /// let mut into = [1u32, 1, 0];
    /// LogicalAnd.fold(&mut into, &[2, 0, 0]);
    /// assert_eq!(into, [1, 0, 0]);
    /// ```
    LogicalAnd '∧', "logical and", Integer: |a: &T, b: &T| T::from_bool(a.is_true() & b.is_true());

    /// 1 if any is not zero, else 0.
    LogicalOr '∨', "logical or", Integer: |a: &T, b: &T| T::from_bool(a.is_true() | b.is_true());

    /// 1 if an odd number of the operands is not zero, else 0.
    LogicalXor '⊻', "logical xor", Integer: |a: &T, b: &T| T::from_bool(a.is_true() ^ b.is_true());
}
