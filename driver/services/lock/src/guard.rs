//! The guard of a held lock.

use super::error::{LockError, fault};
use super::key::Lock;
use doorbell_engine::kit::{Error, Result};
use doorbell_shm::keys::{OwnerId, Value};
use std::marker::PhantomData;

/// The right to use a lock's resource. Dropping it unlocks. It can't be sent to another thread, since the lock bears this
/// thread's identification.
#[must_use = "dropping the guard unlocks"]
pub struct LockGuard<'a> {
    key: &'a Lock,
    me: OwnerId,
    /// The identification of the owner that died, or 0.
    dead: u64,
    _stays: PhantomData<*const ()>,
}

impl<'a> LockGuard<'a> {
    /// The guard of a lock that was just taken. `dead` names the former owner if it died.
    #[inline(always)]
    pub(super) fn new(key: &'a Lock, me: OwnerId, dead: u64) -> Self {
        Self { key, me, dead, _stays: PhantomData }
    }

    /// The value that the lock has now.
    pub fn owner(&self) -> OwnerId {
        self.me
    }

    /// The former owner, if it died with the lock held and may have left the resource half changed; `None` if the resource is
    /// sound. Every owner learns of it until one calls [`mark_repaired`](Self::mark_repaired).
    pub fn inherited_from(&self) -> Option<OwnerId> {
        OwnerId::from_bits(self.dead)
    }

    /// Reports that the resource is sound again. Has no effect if it was sound. May wait for the coordinator's reply.
    ///
    /// # Errors
    /// [`LockError`]: the lock was destroyed, or another process took it against the rules.
    pub fn mark_repaired(&mut self) -> Result<()> {
        self.key.repair(self.me)?;
        self.dead = 0;
        Ok(())
    }

    /// Unlocks, and reports whether the caller still owned the lock. May wait for the coordinator's reply; a drop does not.
    ///
    /// # Errors
    /// [`LockError`]: the lock was destroyed, or another process took it against the rules.
    pub fn unlock(self) -> Result<()> {
        let unlocked = self.key.release_as(self.me);
        std::mem::forget(self);
        unlocked
    }

    /// Keeps the lock beyond this guard, until the same thread calls [`Lock::unlock`].
    pub fn keep(self) -> OwnerId {
        let me = self.me;
        std::mem::forget(self);
        me
    }
}

impl Drop for LockGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.key.release_unmarked(self.me) {
            drop_slowly(self.key, self.me);
        }
    }
}

#[cold]
#[inline(never)]
pub(super) fn drop_slowly(key: &Lock, me: OwnerId) {
    match key.give_up(me) {
        // Inside `recv_with` no request can be sent.
        Err(Error::Reentrant { .. }) => key.give_up_later(me),
        Err(error) => complain(key, &error),
        Ok(()) => {}
    }
}

#[cold]
fn complain(key: &Lock, error: &Error) {
    // Leaving the domain and destroying the lock end the ownership anyway.
    if error.downcast_ref() != Some(&LockError::Destroyed) && !matches!(error, Error::Closed | Error::Forked) {
        tracing::warn!(%error, key = key.name(), "could not unlock");
    }
}

/// The error for a lock that the caller does not own.
pub(super) fn not_yours(key: &Lock, seen: doorbell_shm::keys::Seen) -> Error {
    fault("unlock", key.name(), LockError::NotYours(seen.value()))
}

/// The result of an attempt to lock.
#[must_use]
pub enum TryLock<'a> {
    /// The caller owns the lock.
    Locked(LockGuard<'a>),
    /// The lock's value. If the value is unlocked, the lock is reserved for a waiter that has waited long.
    Busy(Value),
}

impl<'a> TryLock<'a> {
    /// The guard, if the caller got the lock.
    pub fn guard(self) -> Option<LockGuard<'a>> {
        match self {
            TryLock::Locked(guard) => Some(guard),
            TryLock::Busy(_) => None,
        }
    }
}
