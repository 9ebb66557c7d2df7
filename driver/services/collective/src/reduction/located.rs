//! The greatest and the least value, with their places.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::contract::Reduction;
use super::number::Number;
use super::operator::Predefined;
use super::pass;

/// A value and its place: a rank, a row, or another number of the application.
///
/// It is packed: eight bytes more than the value, an alignment of one, and no padding, so that it is plain data that can be sent for values
/// of any type. Rust makes no reference to a field of it: copy the field, as in `{ best.at }`.
///
/// ```
/// use doorbell::collective::reduction::Located;
///
/// let best = Located { value: 0.5f32, at: 3 };
/// assert_eq!(({ best.value }, { best.at }), (0.5, 3));
/// assert_eq!(size_of_val(&best), 12);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C, packed)]
pub struct Located<T> {
    /// The value that is compared.
    pub value: T,
    /// Its place; among equal values the smallest counts.
    pub at: u64,
}

macro_rules! located {
    ($($(#[$doc:meta])* $name:ident $sign:literal, $text:literal: $beats:ident, $best:ident;)*) => {$(
        $(#[$doc])*
        #[allow(non_upper_case_globals)]
        pub const $name: Predefined<$sign> = Predefined;

        impl<T: Number> Reduction<Located<T>> for Predefined<$sign> {
            const COMMUTATIVE: bool = true;

            fn fold(&self, into: &mut [Located<T>], from: &[Located<T>]) {
                pass::fold($text, into, from, |a: &Located<T>, b: &Located<T>| {
                    let (a, b) = (*a, *b);
                    if { a.value }.$beats(b.value) {
                        a
                    } else if { b.value }.$beats(a.value) {
                        b
                    } else {
                        Located { value: { a.value }.$best(b.value), at: { a.at }.min(b.at) }
                    }
                });
            }

            fn name(&self) -> &'static str {
                $text
            }
        }
    )*};
}

located! {
    /// The greatest value and where it is; of equal ones, the smallest place.
    ///
    /// Values are compared as by [`Max`](super::Max): a float that is NaN is ignored, with its place, unless all are, and +0.0 is
    /// greater than −0.0. The result is the same, to the bit, in any order.
    ///
    /// ```
    /// use doorbell::collective::reduction::{Located, MaxLoc, Reduction};
    ///
    /// let mut into = [Located { value: 5i64, at: 2 }, Located { value: 1, at: 2 }];
    /// MaxLoc.fold(&mut into, &[Located { value: 5, at: 1 }, Located { value: 9, at: 1 }]);
    /// assert_eq!(into, [Located { value: 5, at: 1 }, Located { value: 9, at: 1 }]);
    /// ```
    MaxLoc '⇑', "maxloc": above, max;

    /// The least value and where it is; of equal ones, the smallest place.
    ///
    /// Values are compared as by [`Min`](super::Min): a float that is NaN is ignored, with its place, unless all are, and −0.0 is
    /// less than +0.0. The result is the same, to the bit, in any order.
    MinLoc '⇓', "minloc": below, min;
}
