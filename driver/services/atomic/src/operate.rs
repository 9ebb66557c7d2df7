//! Operators: which types have them, by which tier, and what they compute.

use super::ByLock;
use super::Offset;
use super::codes::OpCode;
use super::form::Form;
use super::tier::Tier;
use super::value::AtomicValue;
use std::sync::atomic::Ordering;

/// The operators, as the first parameter of [`Operate`]. Their names are those of the traits in [`std::ops`].
#[allow(non_upper_case_globals)]
pub mod op {
    /// `cell += x`.
    pub const Add: char = '+';
    /// `cell -= x`.
    pub const Sub: char = '-';
    /// `cell *= x`.
    pub const Mul: char = '*';
    /// `cell /= x`.
    pub const Div: char = '/';
    /// `cell %= x`.
    pub const Rem: char = '%';
    /// `cell &= x`.
    pub const And: char = '&';
    /// `cell |= x`.
    pub const Or: char = '|';
    /// `cell ^= x`.
    pub const Xor: char = '^';
    /// `cell <<= x`.
    pub const Shl: char = '«';
    /// `cell >>= x`.
    pub const Shr: char = '»';
    /// `cell = max(cell, x)`.
    pub const Max: char = '↑';
    /// `cell = min(cell, x)`.
    pub const Min: char = '↓';
    /// `cell = x`.
    pub const Set: char = '=';
}

/// A value that has an operator. Integers wrap around in every build. Shift counts are taken modulo the bits of the type.
/// Division by zero panics before anything is changed.
#[diagnostic::on_unimplemented(
    message = "no atomic operator `{O}` of `{Self}` takes an operand of type `{R}`",
    label = "not an operation of `{Self}`",
    note = "convert the operand to the type of the cell (a count of shifts is u32), implement the operator of std::ops for your own type, or write `cell = f(cell)`"
)]
pub trait Operate<const O: char, R: Copy = Self>: AtomicValue {
    /// The tier if the caller wants no result.
    const TIER: Tier = <Self::Form as Form<Self>>::TIER;
    /// The tier if the caller wants the old or the new value.
    const TIER_FETCH: Tier = <Self::Form as Form<Self>>::TIER;
    /// Whether [`instruct`](Self::instruct) does it.
    #[doc(hidden)]
    const INSTRUCTED: bool = false;

    /// Applies the operator to the value.
    fn apply(self, operand: R) -> Self;

    /// Does the update with the platform's shortest instructions. Returns the old value if `fetch` is set, and else anything.
    ///
    /// # Safety
    /// As [`Form::load`]; only if it is `INSTRUCTED`.
    #[doc(hidden)]
    unsafe fn instruct(_at: *mut Self::Form, operand: R, _ordering: Ordering, _fetch: bool) -> Self {
        let _ = operand;
        unreachable!("an operator without an instruction")
    }

    /// The request for a node that does it for another; `None` if there is no code for it.
    #[doc(hidden)]
    fn code(_operand: R) -> Option<(OpCode, [u8; 16])> {
        None
    }
}

impl<T: AtomicValue> Operate<{ op::Set }, T> for T {
    const TIER: Tier = <T::Form as Form<T>>::SET;
    const TIER_FETCH: Tier = <T::Form as Form<T>>::SET;
    const INSTRUCTED: bool = matches!(<T::Form as Form<T>>::SET, Tier::Native);

    #[inline(always)]
    fn apply(self, operand: T) -> T {
        operand
    }

    #[inline(always)]
    unsafe fn instruct(at: *mut T::Form, operand: T, ordering: Ordering, fetch: bool) -> T {
        // SAFETY: caller.
        unsafe { T::Form::set(at, operand, ordering, fetch) }
    }

    fn code(operand: T) -> Option<(OpCode, [u8; 16])> {
        (size_of::<T>() <= 16).then(|| (OpCode::Set, bytes(operand)))
    }
}

pub(super) fn bytes<T: AtomicValue>(value: T) -> [u8; 16] {
    let mut bytes = [0; 16];
    value.write_bytes(&mut bytes);
    bytes
}

/// The groups of operators for which some platform has instructions.
enum Kind {
    Sum,
    Bits,
    Extreme,
}

/// The tiers on this platform for a word of at most eight bytes: without a result, and with one.
const fn tiers(kind: Kind) -> (Tier, Tier) {
    use Tier::{CompareAndSwap, Native};
    // Since ARMv8.1 there is an instruction for each, with and without a result. On older processors, and if the compiler was
    // not told that the processor has them, a helper asks the processor, or a loop is used.
    if cfg!(all(target_arch = "aarch64", target_feature = "lse")) {
        return (Native, Native);
    }
    if !cfg!(target_arch = "x86_64") {
        return (CompareAndSwap, CompareAndSwap);
    }
    match kind {
        Kind::Sum => (Native, Native),
        Kind::Bits => (Native, CompareAndSwap),
        Kind::Extreme => (CompareAndSwap, CompareAndSwap),
    }
}

/// An operator for which there may be an instruction.
macro_rules! instructed {
    ($value:ident, $atomic:ident, $op:ident, $kind:ident, $fetch:ident, |$old:ident, $operand:ident| $apply:expr) => {
        impl Operate<{ op::$op }> for $value {
            const TIER: Tier = tiers(Kind::$kind).0;
            const TIER_FETCH: Tier = tiers(Kind::$kind).1;
            const INSTRUCTED: bool = true;

            #[inline(always)]
            fn apply(self, $operand: $value) -> $value {
                let $old = self;
                $apply
            }

            #[inline(always)]
            unsafe fn instruct(at: *mut Self::Form, operand: $value, ordering: Ordering, _: bool) -> $value {
                // SAFETY: caller. The form is a word of the same size.
                unsafe { std::sync::atomic::$atomic::from_ptr(at.cast()) }.$fetch(operand, ordering)
            }

            fn code(operand: $value) -> Option<(OpCode, [u8; 16])> {
                Some((OpCode::$op, bytes(operand)))
            }
        }
    };
}

/// An operator for which there is no instruction.
macro_rules! by_callback {
    ($value:ident, $op:ident, $operand_type:ty, |$old:ident, $operand:ident| $apply:expr) => {
        impl Operate<{ op::$op }, $operand_type> for $value {
            #[inline(always)]
            fn apply(self, $operand: $operand_type) -> $value {
                let $old = self;
                $apply
            }

            fn code(operand: $operand_type) -> Option<(OpCode, [u8; 16])> {
                Some((OpCode::$op, bytes(operand)))
            }
        }
    };
}

macro_rules! integers {
    ($($value:ident $atomic:ident,)+) => { $(
        instructed!($value, $atomic, Add, Sum, fetch_add, |old, x| old.wrapping_add(x));
        instructed!($value, $atomic, Sub, Sum, fetch_sub, |old, x| old.wrapping_sub(x));
        instructed!($value, $atomic, And, Bits, fetch_and, |old, x| old & x);
        instructed!($value, $atomic, Or, Bits, fetch_or, |old, x| old | x);
        instructed!($value, $atomic, Xor, Bits, fetch_xor, |old, x| old ^ x);
        instructed!($value, $atomic, Max, Extreme, fetch_max, |old, x| old.max(x));
        instructed!($value, $atomic, Min, Extreme, fetch_min, |old, x| old.min(x));
        rest!($value);
    )+ };
}

macro_rules! rest {
    ($value:ident) => {
        by_callback!($value, Mul, $value, |old, x| old.wrapping_mul(x));
        by_callback!($value, Div, $value, |old, x| old.wrapping_div(x));
        by_callback!($value, Rem, $value, |old, x| old.wrapping_rem(x));
        by_callback!($value, Shl, u32, |old, x| old.wrapping_shl(x));
        by_callback!($value, Shr, u32, |old, x| old.wrapping_shr(x));
    };
}

macro_rules! wide_integers {
    ($($value:ident)+) => { $(
        by_callback!($value, Add, $value, |old, x| old.wrapping_add(x));
        by_callback!($value, Sub, $value, |old, x| old.wrapping_sub(x));
        by_callback!($value, And, $value, |old, x| old & x);
        by_callback!($value, Or, $value, |old, x| old | x);
        by_callback!($value, Xor, $value, |old, x| old ^ x);
        by_callback!($value, Max, $value, |old, x| old.max(x));
        by_callback!($value, Min, $value, |old, x| old.min(x));
        rest!($value);
    )+ };
}

macro_rules! floats {
    ($($value:ident)+) => { $(
        by_callback!($value, Add, $value, |old, x| old + x);
        by_callback!($value, Sub, $value, |old, x| old - x);
        by_callback!($value, Mul, $value, |old, x| old * x);
        by_callback!($value, Div, $value, |old, x| old / x);
        by_callback!($value, Rem, $value, |old, x| old % x);
        by_callback!($value, Max, $value, |old, x| old.max(x));
        by_callback!($value, Min, $value, |old, x| old.min(x));
    )+ };
}

integers! {
    u8 AtomicU8, i8 AtomicI8, u16 AtomicU16, i16 AtomicI16, u32 AtomicU32, i32 AtomicI32, u64 AtomicU64, i64 AtomicI64,
}
wide_integers!(u128 i128);
floats!(f32 f64);

macro_rules! of_bool {
    ($($op:ident $fetch:ident |$old:ident, $operand:ident| $apply:expr;)+) => { $(
        instructed!(bool, AtomicBool, $op, Bits, $fetch, |$old, $operand| $apply);
    )+ };
}

of_bool! {
    And fetch_and |old, x| old & x;
    Or fetch_or |old, x| old | x;
    Xor fetch_xor |old, x| old ^ x;
}

/// An offset has the operators of its number.
macro_rules! of_offset {
    ($($op:ident)+) => { $(
        impl Operate<{ op::$op }, u64> for Offset {
            const TIER: Tier = <u64 as Operate<{ op::$op }>>::TIER;
            const TIER_FETCH: Tier = <u64 as Operate<{ op::$op }>>::TIER_FETCH;
            const INSTRUCTED: bool = true;

            #[inline(always)]
            fn apply(self, operand: u64) -> Self {
                Offset(Operate::<{ op::$op }>::apply(self.0, operand))
            }

            #[inline(always)]
            unsafe fn instruct(at: *mut u64, operand: u64, ordering: Ordering, fetch: bool) -> Self {
                // SAFETY: caller. The form is the number's.
                Offset(unsafe { <u64 as Operate<{ op::$op }>>::instruct(at, operand, ordering, fetch) })
            }

            fn code(operand: u64) -> Option<(OpCode, [u8; 16])> {
                <u64 as Operate<{ op::$op }>>::code(operand)
            }
        }
    )+ };
}

of_offset!(Add Sub And Or Xor);

macro_rules! by_lock {
    ($($op:ident)+) => { $(
        impl<T: Operate<{ op::$op }, R>, R: Copy> Operate<{ op::$op }, R> for ByLock<T> {
            #[inline(always)]
            fn apply(self, operand: R) -> Self {
                ByLock(self.0.apply(operand))
            }
        }
    )+ };
}

by_lock!(Add Sub Mul Div Rem And Or Xor Shl Shr Max Min);

/// Types with an order between them, for `max` and `min` of a program's own types that implement [`Ord`].
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no order with `{R}`",
    note = "implement Ord for it, or write `cell = f(cell)`"
)]
pub trait OrderedWith<R>: Sized {
    fn greater(self, other: R) -> Self;
    fn smaller(self, other: R) -> Self;
}

impl<T: Ord> OrderedWith<T> for T {
    fn greater(self, other: T) -> T {
        Ord::max(self, other)
    }

    fn smaller(self, other: T) -> T {
        Ord::min(self, other)
    }
}
