//! Which tier each operator of each type has on this platform.

use super::Offset;
use super::Operate;
use super::tier::Tier;

/// An operator of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The type.
    pub value: &'static str,
    /// The name of the operator's type.
    pub op: &'static str,
    /// The tier if the caller wants no result.
    pub tier: Tier,
    /// The tier if the caller wants the old or the new value.
    pub tier_fetch: Tier,
}

/// Calls a macro for each type of the table, with all its operators and their operand types: `then!(u8: Add u8, … Shl u32, …)`.
/// The result is an array of the results.
#[doc(hidden)]
#[macro_export]
macro_rules! atomic_table {
    ($then:ident) => {[
        $crate::atomic_table!(@integer $then u8),
        $crate::atomic_table!(@integer $then i8),
        $crate::atomic_table!(@integer $then u16),
        $crate::atomic_table!(@integer $then i16),
        $crate::atomic_table!(@integer $then u32),
        $crate::atomic_table!(@integer $then i32),
        $crate::atomic_table!(@integer $then u64),
        $crate::atomic_table!(@integer $then i64),
        $crate::atomic_table!(@integer $then u128),
        $crate::atomic_table!(@integer $then i128),
        $then!(f32: Add f32, Sub f32, Mul f32, Div f32, Rem f32, Max f32, Min f32, Set f32),
        $then!(f64: Add f64, Sub f64, Mul f64, Div f64, Rem f64, Max f64, Min f64, Set f64),
        $then!(bool: And bool, Or bool, Xor bool, Set bool),
        $then!(Offset: Add u64, Sub u64, And u64, Or u64, Xor u64, Set Offset),
    ]};
    (@integer $then:ident $of:ident) => {
        $then!(
            $of: Add $of, Sub $of, Mul $of, Div $of, Rem $of, And $of, Or $of, Xor $of, Shl u32, Shr u32, Max $of, Min $of, Set $of
        )
    };
}

macro_rules! rows {
    ($of:ident: $($op:ident $operand:ident),+) => {
        &[$(Row {
            value: stringify!($of),
            op: stringify!($op),
            tier: <$of as Operate<{ super::op::$op }, $operand>>::TIER,
            tier_fetch: <$of as Operate<{ super::op::$op }, $operand>>::TIER_FETCH,
        }),+] as &[Row]
    };
}

/// The table, by types. A program's own types have the operators of [`std::ops`] that they implement, and those of [`Ord`], all
/// by the tier of their size; see [`tier`](super::tier).
pub const TABLE: &[&[Row]] = &crate::atomic_table!(rows);
