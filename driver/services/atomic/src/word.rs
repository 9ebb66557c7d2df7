//! Words that the processor updates as a whole, on which all other updates are built.

use doorbell_engine::Plain;
use std::sync::atomic::Ordering;

/// A word of shared memory that has a compare-and-swap.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is updated under a lock, and a reference to its cell does not say which node would own the lock",
    label = "the value is larger than a word",
    note = "use `RemoteCell::open(&node, region.key().at(index))`: that cell knows its node, and works on any region that a key names"
)]
pub trait Word: Plain + Copy + Eq + sealed::Sealed {
    #[doc(hidden)]
    const ZERO: Self;

    /// # Safety
    /// As for each of these: `at` is aligned and readable and writable for the word; all others access it by atomic
    /// instructions, too.
    #[doc(hidden)]
    unsafe fn load(at: *mut Self, ordering: Ordering) -> Self;
    /// # Safety
    /// As [`load`](Self::load).
    #[doc(hidden)]
    unsafe fn store(at: *mut Self, value: Self, ordering: Ordering);
    /// # Safety
    /// As [`load`](Self::load).
    #[doc(hidden)]
    unsafe fn swap(at: *mut Self, value: Self, ordering: Ordering) -> Self;
    /// # Safety
    /// As [`load`](Self::load).
    #[doc(hidden)]
    unsafe fn compare_exchange(at: *mut Self, seen: Self, value: Self, ordering: Ordering) -> Result<Self, Self>;
}

mod sealed {
    pub trait Sealed {}
}

/// The ordering of the load of an update.
#[inline(always)]
pub(super) const fn loading(ordering: Ordering) -> Ordering {
    match ordering {
        Ordering::Acquire | Ordering::AcqRel => Ordering::Acquire,
        Ordering::SeqCst => Ordering::SeqCst,
        _ => Ordering::Relaxed,
    }
}

/// The ordering of the store of an update.
#[inline(always)]
const fn storing(ordering: Ordering) -> Ordering {
    match ordering {
        Ordering::Release | Ordering::AcqRel => Ordering::Release,
        Ordering::SeqCst => Ordering::SeqCst,
        _ => Ordering::Relaxed,
    }
}

macro_rules! word {
    ($($word:ident: $atomic:path,)+) => { $(
        impl sealed::Sealed for $word {}
        impl Word for $word {
            const ZERO: Self = 0;

            #[inline(always)]
            unsafe fn load(at: *mut Self, ordering: Ordering) -> Self {
                // SAFETY: caller.
                unsafe { <$atomic>::from_ptr(at) }.load(loading(ordering))
            }

            #[inline(always)]
            unsafe fn store(at: *mut Self, value: Self, ordering: Ordering) {
                // SAFETY: caller.
                unsafe { <$atomic>::from_ptr(at) }.store(value, storing(ordering));
            }

            #[inline(always)]
            unsafe fn swap(at: *mut Self, value: Self, ordering: Ordering) -> Self {
                // SAFETY: caller.
                unsafe { <$atomic>::from_ptr(at) }.swap(value, ordering)
            }

            #[inline(always)]
            unsafe fn compare_exchange(at: *mut Self, seen: Self, value: Self, ordering: Ordering) -> Result<Self, Self> {
                // SAFETY: caller.
                unsafe { <$atomic>::from_ptr(at) }.compare_exchange(seen, value, ordering, loading(ordering))
            }
        }
    )+ };
}

word! {
    u8: std::sync::atomic::AtomicU8,
    u16: std::sync::atomic::AtomicU16,
    u32: std::sync::atomic::AtomicU32,
    u64: std::sync::atomic::AtomicU64,
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
word! {
    u128: portable_atomic::AtomicU128,
}

/// A word whose first bytes are a value.
#[repr(C)]
union Both<T: Copy, W: Copy> {
    value: T,
    word: W,
}

/// Used by the output of `derive(AtomicValue)`: plain data as the first bytes of a word, followed by zeros.
#[doc(hidden)]
#[inline(always)]
pub fn plain_into_word<T: Plain + Copy, W: Word>(value: T) -> W {
    const { assert!(size_of::<T>() <= size_of::<W>(), "a value is no longer than its word") };
    let mut both = Both { word: W::ZERO };
    both.value = value;
    // SAFETY: both are plain data, so all bytes are initialised, and any are a word.
    unsafe { both.word }
}

/// Used by the output of `derive(AtomicValue)`: plain data from the first bytes of a word.
#[doc(hidden)]
#[inline(always)]
pub fn plain_from_word<T: Plain + Copy, W: Word>(word: W) -> T {
    const { assert!(size_of::<T>() <= size_of::<W>(), "a value is no longer than its word") };
    let both = Both { word };
    // SAFETY: any bytes are a `T`, and there are enough of them.
    unsafe { both.value }
}

/// Whether this processor updates words of this many bytes. Only the earliest x86-64 processors lack `cmpxchg16b`.
#[inline]
pub(super) fn is_taken(bytes: usize) -> bool {
    // Under Miri there is only one process, for which the crate's own lock suffices.
    bytes < 16 || cfg!(miri) || portable_atomic::AtomicU128::is_lock_free()
}
