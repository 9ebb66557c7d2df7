//! Cells in memory of this process, and in regions of this node.

use super::Element;
use super::Word;
use super::error::AtomicError;
use super::form::Form;
use super::operate::Operate;
use super::place::{Place, Want};
use super::tier::Tier;
use super::value::AtomicValue;
use super::word::is_taken;
use doorbell_engine::region::elements_of;
use doorbell_engine::sync::baton::Token;
use doorbell_engine::{Error, Incarnation, NodeId, Region, Result};
use doorbell_shm::keys::OwnerId;
use doorbell_shm::locked::{NoUpdate, Updater};
use std::cell::UnsafeCell;
use std::convert::Infallible;
use std::fmt;
use std::sync::atomic::Ordering;

/// A value that is updated atomically, by [`atomic!`](doorbell_macros::atomic) or by the functions that the macro is translated
/// to. Threads can share it; in a region, nodes can.
#[repr(transparent)]
pub struct AtomicCell<T: AtomicValue> {
    form: UnsafeCell<T::Form>,
}

// SAFETY: accessed by atomic instructions only, and a value is `Send`.
unsafe impl<T: AtomicValue> Sync for AtomicCell<T> {}
// SAFETY: bytes of a value that is `Send`.
unsafe impl<T: AtomicValue> Send for AtomicCell<T> {}
// A panic in a callback leaves the old value.
impl<T: AtomicValue> std::panic::RefUnwindSafe for AtomicCell<T> {}

impl<T: AtomicValue> AtomicCell<T> {
    /// A cell that holds this value.
    ///
    /// # Panics
    /// For a value of 9 to 16 bytes, on the earliest x86-64 processors, which lack `cmpxchg16b`; see [`ByLock`](super::ByLock).
    pub fn new(value: T) -> Self {
        Self { form: UnsafeCell::new(T::Form::of(value)) }
    }

    /// A zeroed cell, for a `static`.
    ///
    /// ```
    /// # use doorbell::atomic::AtomicCell;
    /// static COUNT: AtomicCell<u64> = AtomicCell::zeroed();
    /// doorbell::atomic! { COUNT += 1 };
    /// assert_eq!(doorbell::atomic! { COUNT }, 1);
    /// ```
    pub const fn zeroed() -> Self {
        // SAFETY: a form is plain data.
        Self { form: UnsafeCell::new(unsafe { std::mem::zeroed() }) }
    }

    /// The same cell, but updated without instructions for operators, to measure what they are worth.
    pub fn by_swap(&self) -> BySwap<'_, T>
    where
        T::Form: Word,
    {
        BySwap(self)
    }
}

impl<T: AtomicValue + Default> Default for AtomicCell<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: AtomicValue + fmt::Debug> fmt::Debug for AtomicCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AtomicCell").field(&self.load(Ordering::Relaxed)).finish()
    }
}

/// Updates a cell by an operator.
///
/// # Safety
/// As [`Form::load`].
#[inline(always)]
pub(super) unsafe fn operate_at<T, const O: char, R, W, U>(
    at: *mut T::Form,
    updater: &U,
    operand: R,
    ordering: Ordering,
) -> Result<W::Out, NoUpdate<U::Stop>>
where
    T: Operate<O, R>,
    R: Copy,
    W: Want<T>,
    U: Updater,
{
    if T::INSTRUCTED {
        // SAFETY: caller; there is an instruction.
        let old = unsafe { T::instruct(at, operand, ordering, W::FETCH) };
        return Ok(W::pick(old, || old.apply(operand)));
    }
    // SAFETY: caller.
    unsafe { update_at::<T, W, U>(at, updater, ordering, |old| old.apply(operand)) }
}

/// Updates a cell by a callback, with as many attempts as it takes.
///
/// # Safety
/// As [`Form::load`].
#[inline(always)]
pub(super) unsafe fn update_at<T: AtomicValue, W: Want<T>, U: Updater>(
    at: *mut T::Form,
    updater: &U,
    ordering: Ordering,
    mut callback: impl FnMut(T) -> T,
) -> Result<W::Out, NoUpdate<U::Stop>> {
    // SAFETY: caller.
    match unsafe { T::Form::update(at, updater, None, ordering, |old| Some(callback(old)))? } {
        Some((old, new)) => Ok(W::pick(old, || new)),
        None => unreachable!("a callback that can't decline"),
    }
}

/// The updater of private memory. No other process has access, and a thread does not die alone.
pub(super) struct Private;

impl Updater for Private {
    type Stop = Infallible;

    #[inline]
    fn me(&self) -> OwnerId {
        OwnerId::thread(NodeId(0), Incarnation(1), Token::current().number())
    }

    fn lives(&self, _: OwnerId) -> bool {
        true
    }

    fn go_on(&self) -> Result<(), Infallible> {
        Ok(())
    }
}

/// The result of an update with unlimited attempts, in memory that can't go away.
#[inline(always)]
pub(super) fn done<V>(result: Result<V, NoUpdate<Infallible>>) -> V {
    match result {
        Ok(value) => value,
        Err(NoUpdate::Stop(never)) => match never {},
        Err(NoUpdate::Nested) => panic!("an update of a cell within an update of the same cell would deadlock with itself"),
        Err(NoUpdate::Attempts | NoUpdate::Lost) => unreachable!("nobody takes a lock from a thread that lives"),
    }
}

impl<T: AtomicValue> Place for AtomicCell<T> {
    type Value = T;
    type Done<V> = V;
    type Tried<V> = Result<V, AtomicError>;

    #[inline(always)]
    fn load(&self, ordering: Ordering) -> T {
        // SAFETY: its own memory.
        done(unsafe { T::Form::load(self.form.get(), &Private, ordering) }.map_err(NoUpdate::Stop))
    }

    #[inline(always)]
    fn operate<const O: char, R: Copy, W: Want<T>>(&self, operand: R, ordering: Ordering) -> W::Out
    where
        T: Operate<O, R>,
    {
        // SAFETY: its own memory.
        done(unsafe { operate_at::<T, O, R, W, _>(self.form.get(), &Private, operand, ordering) })
    }

    #[inline(always)]
    fn update<W: Want<T>>(&self, ordering: Ordering, callback: impl FnMut(T) -> T) -> W::Out {
        // SAFETY: its own memory.
        done(unsafe { update_at::<T, W, _>(self.form.get(), &Private, ordering, callback) })
    }

    #[inline(always)]
    fn attempt<W: Want<T>>(
        &self,
        attempts: Option<u32>,
        ordering: Ordering,
        callback: impl FnMut(T) -> Option<T>,
    ) -> Result<W::Out, AtomicError> {
        if attempts == Some(0) {
            return Err(AtomicError::NoAttempt);
        }
        // SAFETY: its own memory.
        let tried = unsafe { T::Form::update(self.form.get(), &Private, attempts, ordering, callback) };
        if let Err(NoUpdate::Attempts) = tried {
            return Err(AtomicError::Attempts);
        }
        done(tried).map(|(old, new)| W::pick(old, || new)).ok_or(AtomicError::Declined)
    }
}

/// An [`AtomicCell`] that is updated by compare-and-swap only; see [`AtomicCell::by_swap`].
#[derive(Clone, Copy, Debug)]
pub struct BySwap<'a, T: AtomicValue>(&'a AtomicCell<T>);

impl<T: AtomicValue> Place for BySwap<'_, T> {
    type Value = T;
    type Done<V> = V;
    type Tried<V> = Result<V, AtomicError>;

    #[inline(always)]
    fn load(&self, ordering: Ordering) -> T {
        self.0.load(ordering)
    }

    #[inline(always)]
    fn operate<const O: char, R: Copy, W: Want<T>>(&self, operand: R, ordering: Ordering) -> W::Out
    where
        T: Operate<O, R>,
    {
        self.0.update::<W>(ordering, |old| old.apply(operand))
    }

    #[inline(always)]
    fn update<W: Want<T>>(&self, ordering: Ordering, callback: impl FnMut(T) -> T) -> W::Out {
        self.0.update::<W>(ordering, callback)
    }

    #[inline(always)]
    fn attempt<W: Want<T>>(
        &self,
        attempts: Option<u32>,
        ordering: Ordering,
        callback: impl FnMut(T) -> Option<T>,
    ) -> Result<W::Out, AtomicError> {
        self.0.attempt::<W>(attempts, ordering, callback)
    }
}

/// Fails if this processor lacks an instruction that the cell needs.
pub(super) fn check_processor<T: AtomicValue>() -> Result<()> {
    if matches!(super::form::tier::<T>(), Tier::Lock) || is_taken(size_of::<T::Form>()) {
        return Ok(());
    }
    let why = "this processor has no cmpxchg16b; hold the value in ByLock";
    Err(Error::Unsupported { operation: "share a cell of 16 bytes", why })
}

impl<T: AtomicValue> AtomicCell<T>
where
    T::Form: Word,
{
    /// The element `index` of a region as a cell. Updates are as cheap as in private memory, and see those of peers that have a
    /// key. A put that overlaps an update is not atomic, and one of the two may be lost.
    ///
    /// Not for values that are updated under a lock; see [`RemoteCell::open`](super::RemoteCell::open). Like the region itself,
    /// the cell must not be used in a forked child, where its memory is missing.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the region has no such element; [`Error::Unsupported`] if this processor lacks an instruction that
    /// the cell needs; [`Error::Forked`].
    #[inline]
    pub fn at<E: Element<Value = T>>(region: &Region<E>, index: usize) -> Result<&Self> {
        check_processor::<T>()?;
        let at = elements_of(region, "use as a cell", index, 1)?;
        // SAFETY: an element of the region, which is mapped as long as it; it has the layout of the form (`Element`), and
        // regions begin at pages.
        Ok(unsafe { &*at.cast() })
    }
}
