//! The atomic service: updates of shared values, written as ordinary expressions and made atomic in the cheapest way that the
//! platform has. A program holds a value in an [`AtomicCell`], or opens a [`RemoteCell`] on an element of any node's region
//! with [`RemoteCell::open`]. Then it writes [`atomic!`](doorbell_macros::atomic)` { cell += 1 }`.
//!
//! The macro translates the update into an **instruction** if the platform has one for the operator and the type; else into a
//! **compare-and-swap** loop around a callback; else, for values larger than 16 bytes, into a callback under a **lock**. The
//! compiler knows which of the three it is ([`Operate::TIER`]), and `doorbell atomics` prints it.
//!
//! ```
//! use doorbell::atomic;
//! use doorbell::atomic::{AtomicCell, NotPerformed};
//!
//! let count = AtomicCell::new(5_u64);
//! atomic! { count += 2 };
//! let before = atomic! { old: count -= 1 };
//! let after = atomic! { new: count = max(count, 100) };
//! let step = 3;
//! atomic! { count = (count + step) * 2 };
//! assert_eq!((before, after, atomic! { count }), (7, 100, 206));
//!
//! // A callback may decline, and attempts may be limited.
//! let declined = atomic! { old: count -= 1000 if count >= 1000 };
//! assert_eq!(declined, Err(NotPerformed::Declined));
//! assert_eq!(atomic! { attempts(3), relaxed: count += 1 }, Ok(()));
//! ```
//!
//! # What may be written
//! - `cell OP= x` with each of `+ - * / % & | ^ << >>`; `cell = x`; `cell = max(cell, x)` and `min`, as functions or methods;
//!   `cell = cell OP x`, which is the same as `cell OP= x`. The operand is evaluated once, before the update. Macro calls in
//!   the operand are not translated: in `cell = cell + mac!(cell)` the second `cell` is the cell itself, not its value.
//! - `cell = EXPRESSION`, in which the cell stands for its value. The expression is evaluated at each attempt, so it should
//!   have no other effects. It can't leave the update by `?`, `return` or `break`, bind the cell's name again, or use it in a
//!   macro call.
//! - Any of these followed by ` if CONDITION`: the update takes place if the condition holds for the value, and is declined if
//!   not.
//! - `cell` alone, which reads the value.
//! - Before a colon: `old` or `new` for the value before or after; an ordering; `attempts(n)`, which is
//!   [`NotPerformed::NoAttempt`] if `n` is 0.
//!
//! The cell can be any expression: a variable, a field, an element, a call. Use [`AtomicCell`] for private memory and for a
//! region of this node, and [`RemoteCell`] for a region of any node.
//!
//! # What an update returns
//! An update of an [`AtomicCell`] returns the requested value, or `()`. With `if` or `attempts` it returns a `Result` with
//! [`NotPerformed`]. A [`RemoteCell`] may be out of reach, so it always returns a `Result` with
//! [`Error`](doorbell_engine::Error).
//!
//! # Ordering
//! An update is `acq_rel` by default: a thread that reads its result also sees what was written before it. A read is `acquire`,
//! and `cell = x` that returns nothing is `release`. `relaxed` orders only the cell itself. All `seq_cst` updates have one
//! order. A lock orders at least like `acq_rel`.
//!
//! # Values
//! See [`AtomicValue`]. Updates of one type by different tiers see each other: an instruction and a compare-and-swap on one
//! word never miss one another, and if a type needs a lock, every update takes it.
//!
//! ```
//! use doorbell::atomic::{AtomicCell, AtomicValue, Tier, tier};
//! use doorbell::atomic;
//! use zerocopy::{FromBytes, Immutable, IntoBytes};
//!
//! #[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable, AtomicValue)]
//! #[repr(C)]
//! struct Range {
//!     low: i32,
//!     high: i32,
//! }
//!
//! let seen = AtomicCell::new(Range { low: i32::MAX, high: i32::MIN });
//! for sample in [3, -7, 5] {
//!     atomic! { seen = Range { low: seen.low.min(sample), high: seen.high.max(sample) } };
//! }
//! assert_eq!(atomic! { seen }, Range { low: -7, high: 5 });
//! const { assert!(matches!(tier::<Range>(), Tier::CompareAndSwap)) };
//! ```
//!
//! # In shared memory
//! ```
//! use doorbell::atomic::{AtomicCell, RemoteCell};
//! use doorbell::{Node, Space, atomic};
//! # fn main() -> Result<(), doorbell::Error> {
//! # let space = Space::heap();
//! # let owner = Node::builder("tally").space(space.clone()).join()?;
//! # let other = Node::builder("tally").space(space).join()?;
//! let region = owner.region::<u64>(8)?;
//! let remote = RemoteCell::open(&other, region.key().at(3))?;
//! let own = AtomicCell::at(&region, 3)?;
//! atomic! { own += 1 };
//! assert_eq!(atomic! { old: remote += 1 }?, 1);
//! assert_eq!(atomic! { own }, 2);
//! # Ok(())
//! # }
//! ```

// Generated code names the crate `doorbell`, which programs use.
#[cfg(test)]
extern crate self as doorbell;
#[cfg(test)]
use crate as atomic;

mod cell;
pub mod code;
mod form;
mod operate;
mod pending;
mod remote;
mod table;
mod value;
mod word;

pub use cell::{AtomicCell, BySwap};
pub use doorbell_macros::AtomicValue;
pub use form::{Form, UnderLock};
#[doc(hidden)]
pub use form::{FormFor, Room, locked_words, word_bytes};
#[doc(hidden)]
pub use operate::OrderedWith;
pub use operate::{Add, And, Div, Max, Min, Mul, Operate, Or, Rem, Set, Shl, Shr, Sub, Xor};
pub use pending::Pending;
pub use remote::RemoteCell;
pub use table::{Row, TABLE};
pub use value::{Atom, AtomicValue, ByLock, Element, Offset};
#[doc(hidden)]
pub use value::{plain_from_word, plain_into_word, read_plain, write_plain};
pub use word::Word;

pub use doorbell_engine::error::NotPerformed;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How an update is made atomic. Mostly each is cheaper than the next; `docs/atomics.md` lists exceptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// By one instruction.
    Native,
    /// By a loop: the value that was read is replaced by the callback's result if no other update came between.
    CompareAndSwap,
    /// By a callback under a lock.
    Lock,
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Tier::Native => "native",
            Tier::CompareAndSwap => "swap",
            Tier::Lock => "lock",
        })
    }
}

/// The tier of an update by a callback.
pub const fn tier<T: AtomicValue>() -> Tier {
    <T::Form as Form<T>>::TIER
}

/// What the caller of an update wants to get.
pub trait Want<T> {
    /// The type of the result.
    type Out;
    /// Whether it needs the old value.
    const FETCH: bool;
    /// Makes the result from the old and the new value.
    fn pick(old: T, new: impl FnOnce() -> T) -> Self::Out;
}

/// The caller wants no result.
#[derive(Debug)]
pub enum Nothing {}
/// The caller wants the value before the update.
#[derive(Debug)]
pub enum Old {}
/// The caller wants the value after the update.
#[derive(Debug)]
pub enum New {}

impl<T> Want<T> for Nothing {
    type Out = ();
    const FETCH: bool = false;
    #[inline(always)]
    fn pick(_: T, _: impl FnOnce() -> T) {}
}

impl<T> Want<T> for Old {
    type Out = T;
    const FETCH: bool = true;
    #[inline(always)]
    fn pick(old: T, _: impl FnOnce() -> T) -> T {
        old
    }
}

impl<T> Want<T> for New {
    type Out = T;
    const FETCH: bool = true;
    #[inline(always)]
    fn pick(_: T, new: impl FnOnce() -> T) -> T {
        new()
    }
}

/// A place of a value that can be updated: what `atomic!` accepts as a cell.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no cell, so it can't be updated atomically",
    label = "this is what the update would change",
    note = "hold the value in an AtomicCell, take `AtomicCell::at(&region, index)?` of a region of this node, or `RemoteCell::open(&node, key)?` of memory that a key names"
)]
pub trait Place {
    /// What the cell holds.
    type Value: AtomicValue;
    /// The result of an update that can't be declined.
    type Done<V>;
    /// The result of an update that can be declined.
    type Tried<V>;

    /// Reads the value.
    fn load(&self, ordering: Ordering) -> Self::Done<Self::Value>;

    /// Updates the value by an operator.
    fn operate<O, R: Copy, W: Want<Self::Value>>(&self, operand: R, ordering: Ordering) -> Self::Done<W::Out>
    where
        Self::Value: Operate<O, R>;

    /// Updates the value by a callback, with as many attempts as it takes.
    fn update<W: Want<Self::Value>>(
        &self,
        ordering: Ordering,
        callback: impl FnMut(Self::Value) -> Self::Value,
    ) -> Self::Done<W::Out>;

    /// Updates the value by a callback, which declines by `None`, in at most `attempts` attempts. Never uses an instruction,
    /// since an instruction can't fail.
    fn attempt<W: Want<Self::Value>>(
        &self,
        attempts: Option<u32>,
        ordering: Ordering,
        callback: impl FnMut(Self::Value) -> Option<Self::Value>,
    ) -> Self::Tried<W::Out>;
}

macro_rules! behind {
    ($($pointer:ty,)+) => { $(
        impl<P: Place + ?Sized> Place for $pointer {
            type Value = P::Value;
            type Done<V> = P::Done<V>;
            type Tried<V> = P::Tried<V>;

            #[inline(always)]
            fn load(&self, ordering: Ordering) -> P::Done<P::Value> {
                (**self).load(ordering)
            }

            #[inline(always)]
            fn operate<O, R: Copy, W: Want<P::Value>>(&self, operand: R, ordering: Ordering) -> P::Done<W::Out>
            where
                P::Value: Operate<O, R>,
            {
                (**self).operate::<O, R, W>(operand, ordering)
            }

            #[inline(always)]
            fn update<W: Want<P::Value>>(
                &self,
                ordering: Ordering,
                callback: impl FnMut(P::Value) -> P::Value,
            ) -> P::Done<W::Out> {
                (**self).update::<W>(ordering, callback)
            }

            #[inline(always)]
            fn attempt<W: Want<P::Value>>(
                &self,
                attempts: Option<u32>,
                ordering: Ordering,
                callback: impl FnMut(P::Value) -> Option<P::Value>,
            ) -> P::Tried<W::Out> {
                (**self).attempt::<W>(attempts, ordering, callback)
            }
        }
    )+ };
}

behind!(&P, &mut P, Box<P>, Arc<P>,);

/// The translation of `atomic! { cell }`.
#[inline(always)]
pub fn load<P: Place>(place: &P, ordering: Ordering) -> P::Done<P::Value> {
    place.load(ordering)
}

/// The translation of `atomic! { cell += x }` and other operators.
#[inline(always)]
pub fn operate<O, W, P, R>(place: &P, operand: R, ordering: Ordering) -> P::Done<W::Out>
where
    P: Place,
    R: Copy,
    P::Value: Operate<O, R>,
    W: Want<P::Value>,
{
    place.operate::<O, R, W>(operand, ordering)
}

/// The translation of `atomic! { cell = f(cell) }`.
#[inline(always)]
pub fn update<W: Want<P::Value>, P: Place>(
    place: &P,
    ordering: Ordering,
    callback: impl FnMut(P::Value) -> P::Value,
) -> P::Done<W::Out> {
    place.update::<W>(ordering, callback)
}

/// The translation of an update with `if` or `attempts`.
#[inline(always)]
pub fn attempt<W: Want<P::Value>, P: Place>(
    place: &P,
    attempts: Option<u32>,
    ordering: Ordering,
    callback: impl FnMut(P::Value) -> Option<P::Value>,
) -> P::Tried<W::Out> {
    place.attempt::<W>(attempts, ordering, callback)
}

/// Applies an operator to a value.
#[doc(hidden)]
#[inline(always)]
pub fn apply<O, T: Operate<O, R>, R: Copy>(value: T, operand: R) -> T {
    value.apply(operand)
}

#[cfg(test)]
mod tests;
