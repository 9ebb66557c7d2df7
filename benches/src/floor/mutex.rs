//! The C library's robust mutex between processes. It tells the next locker that the former owner died.

use crate::contention::Exclusive;
use nix::errno::Errno;
use std::cell::UnsafeCell;
use std::fmt;
use std::mem::MaybeUninit;

/// A robust mutex in memory that processes share. It exists only in a mapping.
#[repr(C, align(128))]
pub struct RobustMutex(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: only the C library touches the content, and it supports any number of threads and processes.
unsafe impl Sync for RobustMutex {}

impl fmt::Debug for RobustMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RobustMutex").finish_non_exhaustive()
    }
}

/// The lock held. Dropping it unlocks.
struct Held<'m>(&'m RobustMutex);

impl Drop for Held<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: initialised, and locked by this thread. Nothing else could go wrong.
        unsafe { libc::pthread_mutex_unlock(self.0.0.get()) };
    }
}

impl RobustMutex {
    /// Initialises it, unlocked, before any other process has the memory.
    pub(super) fn init(&self) -> Result<(), Errno> {
        let mut attributes = MaybeUninit::uninit();
        let attributes = attributes.as_mut_ptr();
        // SAFETY: the attributes live until the end of this block and are initialised first; the memory has the size and
        // alignment of a mutex, and nothing uses it yet.
        unsafe {
            check(libc::pthread_mutexattr_init(attributes))?;
            check(libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED))?;
            check(libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST))?;
            check(libc::pthread_mutex_init(self.0.get(), attributes))?;
            check(libc::pthread_mutexattr_destroy(attributes))
        }
    }

    #[inline(always)]
    fn try_lock(&self) -> Result<Option<Held<'_>>, Errno> {
        // SAFETY: initialised when the mapping was made.
        match unsafe { libc::pthread_mutex_trylock(self.0.get()) } {
            libc::EBUSY => Ok(None),
            code => self.locked(code).map(Some),
        }
    }

    #[inline(always)]
    fn lock(&self) -> Result<Held<'_>, Errno> {
        // SAFETY: as above.
        self.locked(unsafe { libc::pthread_mutex_lock(self.0.get()) })
    }

    #[inline(always)]
    fn locked(&self, code: i32) -> Result<Held<'_>, Errno> {
        match code {
            0 => Ok(Held(self)),
            libc::EOWNERDEAD => self.inherited(),
            code => Err(Errno::from_raw(code)),
        }
    }

    /// Nothing needs repair: the dead owner may have left the two counters different, and the measurement ends with that.
    #[cold]
    fn inherited(&self) -> Result<Held<'_>, Errno> {
        let held = Held(self);
        // SAFETY: locked by this thread, and its former owner died.
        check(unsafe { libc::pthread_mutex_consistent(self.0.get()) })?;
        Ok(held)
    }
}

impl Exclusive for &RobustMutex {
    type Error = Errno;

    #[inline(always)]
    fn try_with(&mut self, inside: impl FnOnce()) -> Result<bool, Errno> {
        let held = self.try_lock()?;
        if held.is_some() {
            inside();
        }
        Ok(held.is_some())
    }

    #[inline(always)]
    fn with(&mut self, inside: impl FnOnce()) -> Result<(), Errno> {
        let _held = self.lock()?;
        inside();
        Ok(())
    }
}

fn check(code: i32) -> Result<(), Errno> {
    if code == 0 { Ok(()) } else { Err(Errno::from_raw(code)) }
}

#[cfg(test)]
mod tests {
    use super::super::{Mapping, Shape};
    use super::*;
    use crate::contention::contend;
    use crate::floor::Patience;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    fn mapping() -> Mapping {
        Mapping::create(Shape { pairs: 0, bytes: 0 }).unwrap()
    }

    #[test]
    fn one_at_a_time() {
        let mapping = mapping();
        let common = mapping.common();
        let patience = Patience::new(Arc::new(AtomicBool::new(false)), true);
        let contends = || contend(&mut &common.mutex, &common.under_mutex, 10_000_000, &patience).unwrap().locks;
        let locks: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(contends)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(common.under_mutex.get(), [locks; 2]);
        assert!(locks > 0);
    }

    #[test]
    fn who_is_in_is_found_and_whoever_died_with_it_hands_it_on() {
        let mapping = mapping();
        let mutex = &mapping.common().mutex;
        let held = mutex.lock().unwrap();
        std::thread::scope(|scope| scope.spawn(|| assert!(mutex.try_lock().unwrap().is_none())).join().unwrap());
        drop(held);
        std::thread::scope(|scope| scope.spawn(|| std::mem::forget(mutex.lock().unwrap())).join().unwrap());
        for _ in 0..2 {
            let mut inside = false;
            let mut mutex = mutex;
            assert!(mutex.try_with(|| inside = true).unwrap() && inside);
        }
    }
}
