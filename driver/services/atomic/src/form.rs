//! The layout of a value in its cell, and how a callback updates it there: by compare-and-swap in a word, or under a lock.

use super::tier::Tier;
use super::value::AtomicValue;
use super::word::{Word, is_taken, loading};
use doorbell_engine::Plain;
use doorbell_shm::locked::{HEAD, Locked, NoUpdate, Tries, Updater};
use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The bytes of a cell. Zeroed bytes are a cell with a zero value.
pub trait Form<T>: Plain {
    /// How an update by a callback is made atomic.
    const TIER: Tier;
    /// How the value is replaced by another.
    const SET: Tier;

    #[doc(hidden)]
    fn of(value: T) -> Self;

    /// # Safety
    /// As for each of these: `at` is aligned, and readable and writable for the form; it is a cell of this form to all others.
    #[doc(hidden)]
    unsafe fn load<U: Updater>(at: *mut Self, updater: &U, ordering: Ordering) -> Result<T, U::Stop>;

    /// The old value and the new one; `None` if the callback declined.
    ///
    /// # Safety
    /// As [`load`](Self::load).
    #[doc(hidden)]
    unsafe fn update<U: Updater>(
        at: *mut Self,
        updater: &U,
        attempts: Option<u32>,
        ordering: Ordering,
        callback: impl FnMut(T) -> Option<T>,
    ) -> Result<Option<(T, T)>, NoUpdate<U::Stop>>;

    /// Replaces the value by one instruction. Returns the old value if `fetch` is set, and else anything. Only if
    /// [`SET`](Self::SET) is native.
    ///
    /// # Safety
    /// As [`load`](Self::load).
    #[doc(hidden)]
    unsafe fn set(at: *mut Self, value: T, ordering: Ordering, fetch: bool) -> T;
}

macro_rules! word_form {
    ($($word:ident)+) => { $(
        impl<T: AtomicValue<Form = $word>> Form<T> for $word {
            const TIER: Tier = Tier::CompareAndSwap;
            const SET: Tier = if size_of::<$word>() < 16 { Tier::Native } else { Tier::CompareAndSwap };

            #[inline(always)]
            fn of(value: T) -> Self {
                assert!(is_taken(size_of::<$word>()), "this processor has no cmpxchg16b, without which a cell of 16 bytes can't be shared; hold the value in ByLock");
                value.into_word()
            }

            #[inline(always)]
            unsafe fn load<U: Updater>(at: *mut Self, _: &U, ordering: Ordering) -> Result<T, U::Stop> {
                // SAFETY: caller.
                Ok(T::from_word::<$word>(unsafe { Word::load(at, ordering) }))
            }

            #[inline(always)]
            unsafe fn update<U: Updater>(
                at: *mut Self,
                updater: &U,
                mut attempts: Option<u32>,
                ordering: Ordering,
                mut callback: impl FnMut(T) -> Option<T>,
            ) -> Result<Option<(T, T)>, NoUpdate<U::Stop>> {
                // SAFETY: caller.
                let mut seen: $word = unsafe { Word::load(at, loading(ordering)) };
                let mut tries = Tries::default();
                loop {
                    if let Some(left) = &mut attempts {
                        *left = left.checked_sub(1).ok_or(NoUpdate::Attempts)?;
                    }
                    let old = T::from_word(seen);
                    let Some(new) = callback(old) else { return Ok(None) };
                    // SAFETY: caller. The bytes are compared, not the value made of them: several byte patterns may make the
                    // same value.
                    match unsafe { Word::compare_exchange(at, seen, new.into_word(), ordering) } {
                        Ok(_) => return Ok(Some((old, new))),
                        Err(now) => seen = now,
                    }
                    tries.again(updater).map_err(NoUpdate::Stop)?;
                }
            }

            #[inline(always)]
            unsafe fn set(at: *mut Self, value: T, ordering: Ordering, fetch: bool) -> T {
                // SAFETY: caller.
                unsafe {
                    if fetch {
                        return T::from_word::<$word>(Word::swap(at, value.into_word(), ordering));
                    }
                    Word::store(at, value.into_word::<$word>(), ordering);
                }
                value
            }
        }
    )+ };
}

word_form!(u8 u16 u32 u64);
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
word_form!(u128);

/// A value whose updates exclude each other by a lock: `N` words, see [`doorbell_shm::locked`].
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(transparent)]
pub struct UnderLock<const N: usize>([u64; N]);

impl<const N: usize> UnderLock<N> {
    /// # Safety
    /// `at` is aligned, and readable and writable for the form as long as the answer is used; all others access it by atomic
    /// instructions.
    #[inline(always)]
    unsafe fn at<'a>(at: *mut Self) -> Locked<'a> {
        // SAFETY: caller; it consists of words.
        Locked::new(unsafe { std::slice::from_raw_parts(at.cast::<AtomicU64>(), N) })
    }

    #[inline(always)]
    fn read<T: AtomicValue>(words: &[AtomicU64]) -> T {
        let mut bytes = [0_u64; N];
        for (word, shared) in bytes.iter_mut().zip(words) {
            *word = shared.load(Ordering::Relaxed);
        }
        T::from_bytes(bytes.as_bytes())
    }
}

impl<T: AtomicValue<Form = Self>, const N: usize> Form<T> for UnderLock<N> {
    const TIER: Tier = Tier::Lock;
    const SET: Tier = Tier::Lock;

    fn of(value: T) -> Self {
        let mut words = [0; N];
        value.write_bytes(words[HEAD..].as_mut_bytes());
        Self(words)
    }

    #[inline]
    unsafe fn load<U: Updater>(at: *mut Self, updater: &U, ordering: Ordering) -> Result<T, U::Stop> {
        if ordering == Ordering::SeqCst {
            std::sync::atomic::fence(Ordering::SeqCst);
        }
        // SAFETY: caller.
        unsafe { Self::at(at) }.load(updater, Self::read)
    }

    #[inline]
    unsafe fn update<U: Updater>(
        at: *mut Self,
        updater: &U,
        attempts: Option<u32>,
        ordering: Ordering,
        mut callback: impl FnMut(T) -> Option<T>,
    ) -> Result<Option<(T, T)>, NoUpdate<U::Stop>> {
        let compute = |old: &[AtomicU64]| {
            let value = Self::read(old);
            callback(value).map(|next| (value, next))
        };
        // SAFETY: caller.
        let both = unsafe { Self::at(at) }.update(updater, attempts, compute, |(_, next): &(T, T), new| {
            let mut bytes = [0_u64; N];
            T::write_bytes(*next, bytes.as_mut_bytes());
            for (shared, word) in new.iter().zip(bytes) {
                shared.store(word, Ordering::Relaxed);
            }
        })?;
        if ordering == Ordering::SeqCst {
            std::sync::atomic::fence(Ordering::SeqCst);
        }
        Ok(both)
    }

    unsafe fn set(_: *mut Self, value: T, _: Ordering, _: bool) -> T {
        debug_assert!(false, "no instruction sets a value under a lock");
        value
    }
}

/// The room of a value: a word of `WORD` bytes, or, if that is 0, `WORDS` words that include a lock.
pub enum Room<const WORD: usize, const WORDS: usize> {}

/// The form of a value that takes this room.
pub trait FormFor<T> {
    /// The form.
    type Form;
}

macro_rules! rooms {
    ($($bytes:literal $word:ident,)+) => { $(
        impl<T, const WORDS: usize> FormFor<T> for Room<$bytes, WORDS> {
            type Form = $word;
        }
    )+ };
}

rooms!(1 u8, 2 u16, 4 u32, 8 u64, 16 u128,);

impl<T, const WORDS: usize> FormFor<T> for Room<0, WORDS> {
    type Form = UnderLock<WORDS>;
}

/// The length of the word that holds a value of `size` bytes; 0 if the platform has no such word.
pub const fn word_bytes(size: usize) -> usize {
    assert!(size > 0, "a value of no bytes has nothing to update; give it a field");
    match size.next_power_of_two() {
        bytes @ 1..=8 => bytes,
        16 if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) => 16,
        _ => 0,
    }
}

/// The greatest length of a value, in bytes: an update holds several copies on its stack while it has the lock.
const MOST_BYTES: usize = 16 << 10;

/// How many words a value of `size` bytes takes that is updated under a lock.
pub const fn locked_words(size: usize) -> usize {
    assert!(
        size <= MOST_BYTES,
        "a value of more than 16 KiB is too large for a cell; hold it in a Region, and hold a Lock while it is written"
    );
    HEAD + 2 * size.div_ceil(8)
}

/// The tier of an update by a callback.
pub const fn tier<T: AtomicValue>() -> Tier {
    <T::Form as Form<T>>::TIER
}
