//! Which numbers there are, and what is done with two of them.

/// A number that can be added, multiplied and compared: `u8` to `u128`, `i8` to `i128`, `f32`, `f64`.
///
/// `usize` and `isize` are none, as they need not be the same in two processes: say `u64`. Nobody else implements it.
pub trait Number: sealed::Number {}

/// A number that is a row of bits, and a truth value: `u8` to `u128`, `i8` to `i128`.
///
/// Nobody else implements it.
pub trait Integer: Number + sealed::Integer {}

pub(super) mod sealed {
    pub trait Number: Copy + Send + Sync + 'static {
        fn sum(self, other: Self) -> Self;
        fn product(self, other: Self) -> Self;
        fn max(self, other: Self) -> Self;
        fn min(self, other: Self) -> Self;
        /// Whether `max` of both is this one only.
        fn above(self, other: Self) -> bool;
        /// Whether `min` of both is this one only.
        fn below(self, other: Self) -> bool;
    }

    pub trait Integer: Number {
        fn and(self, other: Self) -> Self;
        fn or(self, other: Self) -> Self;
        fn xor(self, other: Self) -> Self;
        fn is_true(self) -> bool;
        fn from_bool(value: bool) -> Self;
    }
}

macro_rules! integers {
    ($($t:ty)*) => {$(
        impl Number for $t {}
        impl Integer for $t {}

        impl sealed::Number for $t {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                Ord::max(self, other)
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                Ord::min(self, other)
            }
            #[inline(always)]
            fn above(self, other: Self) -> bool {
                self > other
            }
            #[inline(always)]
            fn below(self, other: Self) -> bool {
                self < other
            }
        }

        impl sealed::Integer for $t {
            #[inline(always)]
            fn and(self, other: Self) -> Self {
                self & other
            }
            #[inline(always)]
            fn or(self, other: Self) -> Self {
                self | other
            }
            #[inline(always)]
            fn xor(self, other: Self) -> Self {
                self ^ other
            }
            #[inline(always)]
            fn is_true(self) -> bool {
                self != 0
            }
            #[inline(always)]
            fn from_bool(value: bool) -> Self {
                value.into()
            }
        }
    )*};
}

integers!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128);

macro_rules! floats {
    ($($t:ty)*) => {$(
        impl Number for $t {}

        impl sealed::Number for $t {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self * other
            }
            // No branches, so that it becomes compares and blends. Equal numbers have equal bits but for zeros, whose signs meet here.
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                let equal = Self::from_bits(self.to_bits() & other.to_bits());
                let one = if (self > other) | other.is_nan() { self } else { other };
                let one = if self == other { equal } else { one };
                if one.is_nan() { Self::NAN } else { one }
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                let equal = Self::from_bits(self.to_bits() | other.to_bits());
                let one = if (self < other) | other.is_nan() { self } else { other };
                let one = if self == other { equal } else { one };
                if one.is_nan() { Self::NAN } else { one }
            }
            #[inline(always)]
            fn above(self, other: Self) -> bool {
                (self > other)
                    | (!self.is_nan() & other.is_nan())
                    | ((self == other) & self.is_sign_positive() & other.is_sign_negative())
            }
            #[inline(always)]
            fn below(self, other: Self) -> bool {
                (self < other)
                    | (!self.is_nan() & other.is_nan())
                    | ((self == other) & self.is_sign_negative() & other.is_sign_positive())
            }
        }
    )*};
}

floats!(f32 f64);
