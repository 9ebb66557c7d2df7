//! Atomic updates, written as ordinary expressions and made atomic in the cheapest way there is.
//!
//! [`atomic!`](doorbell_macros::atomic) reads an update of a cell and translates it: into an **instruction** where the platform has one for the operator and the
//! type; else into a **compare-and-swap** loop around a callback; else, for values larger than 16 bytes, into a callback under a **lock**. Which
//! of the three it is, the compiler knows ([`Operate::TIER`]), and `doorbell atomics` prints.
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
//! - `cell OP= x` with each of `+ - * / % & | ^ << >>`; `cell = x`; `cell = max(cell, x)` and `min`, as functions or methods; `cell = cell OP x`, which is
//!   the same as `cell OP= x`. The operand is evaluated once, before the update. A macro call in it is not looked into: in `cell = cell + mac!(cell)` the second
//!   `cell` is the cell itself, not its value.
//! - `cell = EXPRESSION` in which the cell stands for its value: evaluated at each attempt, so it should have no effects besides. It can't leave the update by
//!   `?`, `return` or `break`, bind the cell's name again, or use it in a macro call.
//! - Any of these with ` if CONDITION` behind it: the update takes place if that is true of the value, and is declined if not.
//! - `cell` alone reads it.
//! - Before a colon: `old` or `new` for the value before or after; an ordering; `attempts(n)`, which is [`NotPerformed::NoAttempt`] if `n` is 0.
//!
//! The cell is any expression: a variable, a field, an element, a call. What is in a cell of private memory or of a region of this node is [`AtomicCell`]; what
//! lies in any node's region, [`RemoteCell`].
//!
//! # What it is worth
//! An update of an [`AtomicCell`] has the type of the value that was asked for, or `()`. With `if` or `attempts` it is a `Result` with [`NotPerformed`].
//! A [`RemoteCell`] may be out of reach, so everything is a `Result` with [`Error`](doorbell_engine::Error).
//!
//! # Ordering
//! An update is `acq_rel` unless something else is said: who reads what it wrote sees what was written before it. A read is `acquire`, and
//! `cell = x` of which nobody wants the old value is `release`. `relaxed` orders nothing but the cell itself; `seq_cst` has one order for all that say so.
//! A lock orders at least like `acq_rel`.
//!
//! # Values
//! See [`AtomicValue`]. All operators of one type go by tiers that see each other: an instruction and a compare-and-swap on one word never miss
//! one another, and a type that needs a lock takes it for all.
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
//! # In memory that nodes share
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

// The macros name the crate that programs use.
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

/// How an update is made atomic. Each is cheaper than the next, by and large: `docs/atomics.md` says where not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// By an instruction.
    Native,
    /// By a loop: what was read is replaced by what a callback makes of it, if nobody else was faster.
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

/// By which tier a value is updated by a callback.
pub const fn tier<T: AtomicValue>() -> Tier {
    <T::Form as Form<T>>::TIER
}

/// What the caller of an update wants to know.
pub trait Want<T> {
    /// What it gets.
    type Out;
    /// Whether it needs the old value.
    const FETCH: bool;
    /// What it gets of these.
    fn pick(old: T, new: impl FnOnce() -> T) -> Self::Out;
}

/// Nothing.
#[derive(Debug)]
pub enum Nothing {}
/// The value before.
#[derive(Debug)]
pub enum Old {}
/// The value after.
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

/// Where a value is that can be updated: what `atomic!` takes for a cell.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no cell, so it can't be updated atomically",
    label = "this is what the update would change",
    note = "hold the value in an AtomicCell, take `AtomicCell::at(&region, index)?` of a region of this node, or `RemoteCell::open(&node, key)?` of memory that a key names"
)]
pub trait Place {
    /// What the cell holds.
    type Value: AtomicValue;
    /// What an update gives that can't be declined.
    type Done<V>;
    /// What one gives that can.
    type Tried<V>;

    /// The value.
    fn load(&self, ordering: Ordering) -> Self::Done<Self::Value>;

    /// Updates it by an operator.
    fn operate<O, R: Copy, W: Want<Self::Value>>(&self, operand: R, ordering: Ordering) -> Self::Done<W::Out>
    where
        Self::Value: Operate<O, R>;

    /// Updates it by a callback, as often as it takes.
    fn update<W: Want<Self::Value>>(
        &self,
        ordering: Ordering,
        callback: impl FnMut(Self::Value) -> Self::Value,
    ) -> Self::Done<W::Out>;

    /// Updates it by a callback, which declines by `None`, in at most so many attempts. Never by an instruction, as that would not fail.
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

/// What `atomic! { cell }` is translated to.
#[inline(always)]
pub fn load<P: Place>(place: &P, ordering: Ordering) -> P::Done<P::Value> {
    place.load(ordering)
}

/// What `atomic! { cell += x }` and its like are translated to.
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

/// What `atomic! { cell = f(cell) }` is translated to.
#[inline(always)]
pub fn update<W: Want<P::Value>, P: Place>(
    place: &P,
    ordering: Ordering,
    callback: impl FnMut(P::Value) -> P::Value,
) -> P::Done<W::Out> {
    place.update::<W>(ordering, callback)
}

/// What an update with `if` or `attempts` is translated to.
#[inline(always)]
pub fn attempt<W: Want<P::Value>, P: Place>(
    place: &P,
    attempts: Option<u32>,
    ordering: Ordering,
    callback: impl FnMut(P::Value) -> Option<P::Value>,
) -> P::Tried<W::Out> {
    place.attempt::<W>(attempts, ordering, callback)
}

/// What an operator makes of a value.
#[doc(hidden)]
#[inline(always)]
pub fn apply<O, T: Operate<O, R>, R: Copy>(value: T, operand: R) -> T {
    value.apply(operand)
}

#[cfg(test)]
mod tests;
