//! The types of numbers, and what reductions do with two of them.

/// A number that can be added, multiplied and compared: `u8` to `u128`, `i8` to `i128`, `f32`, `f64`.
///
/// Not `usize` and `isize`, which need not be the same in two processes: use `u64`. No other type implements it.
pub trait Number: sealed::Number {}

/// A number that is a row of bits, and a truth value: `u8` to `u128`, `i8` to `i128`.
///
/// No other type implements it.
pub trait Integer: Number + sealed::Integer {}

pub(super) mod sealed {
    pub trait Number: Copy + Send + Sync + 'static {
        fn sum(self, other: Self) -> Self;
        fn product(self, other: Self) -> Self;
        fn max(self, other: Self) -> Self;
        fn min(self, other: Self) -> Self;
        /// Whether this one is the only greatest.
        fn above(self, other: Self) -> bool;
        /// Whether this one is the only least.
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

/// Methods of two numbers of one type, each given by a closure. They are inlined into the loop of a reduction, which becomes vector instructions.
macro_rules! of_two {
    ($($name:ident -> $out:ty: $f:expr;)*) => {$(
        #[inline(always)]
        fn $name(self, other: Self) -> $out {
            let f: fn(Self, Self) -> $out = $f;
            f(self, other)
        }
    )*};
}

macro_rules! integers {
    ($($t:ty)*) => {$(
        impl Number for $t {}
        impl Integer for $t {}

        impl sealed::Number for $t {
            of_two! {
                sum -> Self: <$t>::wrapping_add;
                product -> Self: <$t>::wrapping_mul;
                max -> Self: Ord::max;
                min -> Self: Ord::min;
                above -> bool: |a, b| a > b;
                below -> bool: |a, b| a < b;
            }
        }

        impl sealed::Integer for $t {
            of_two! {
                and -> Self: |a, b| a & b;
                or -> Self: |a, b| a | b;
                xor -> Self: |a, b| a ^ b;
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
            of_two! {
                sum -> Self: |a, b| a + b;
                product -> Self: |a, b| a * b;
                // No branches, so that it becomes compares and blends. Equal numbers have equal bits but for zeros, whose signs meet here.
                max -> Self: |a, b| {
                    let equal = Self::from_bits(a.to_bits() & b.to_bits());
                    let one = if (a > b) | b.is_nan() { a } else { b };
                    let one = if a == b { equal } else { one };
                    if one.is_nan() { Self::NAN } else { one }
                };
                min -> Self: |a, b| {
                    let equal = Self::from_bits(a.to_bits() | b.to_bits());
                    let one = if (a < b) | b.is_nan() { a } else { b };
                    let one = if a == b { equal } else { one };
                    if one.is_nan() { Self::NAN } else { one }
                };
                above -> bool: |a, b| {
                    (a > b) | (!a.is_nan() & b.is_nan()) | ((a == b) & a.is_sign_positive() & b.is_sign_negative())
                };
                below -> bool: |a, b| {
                    (a < b) | (!a.is_nan() & b.is_nan()) | ((a == b) & a.is_sign_negative() & b.is_sign_positive())
                };
            }
        }
    )*};
}

floats!(f32 f64);
