//! Places that can be updated, and the functions that `atomic!` is translated to.

use super::operate::Operate;
use super::value::AtomicValue;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
    fn operate<const O: char, R: Copy, W: Want<Self::Value>>(&self, operand: R, ordering: Ordering) -> Self::Done<W::Out>
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
            fn operate<const O: char, R: Copy, W: Want<P::Value>>(&self, operand: R, ordering: Ordering) -> P::Done<W::Out>
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
pub fn operate<const O: char, W, P, R>(place: &P, operand: R, ordering: Ordering) -> P::Done<W::Out>
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
pub fn apply<const O: char, T: Operate<O, R>, R: Copy>(value: T, operand: R) -> T {
    value.apply(operand)
}
