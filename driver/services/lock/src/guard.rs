//! A key that is locked.

use super::key::LockKey;
use super::{LockFault, fault};
use doorbell_engine::{Error, Result};
use doorbell_shm::keys::OwnerId;
use std::marker::PhantomData;

/// The right to use a key's resource, until it is dropped. It stays with its thread, whose identification the key bears.
#[must_use = "the key is given up again when the guard is dropped"]
pub struct KeyGuard<'a> {
    key: &'a LockKey,
    me: OwnerId,
    /// The bits of who died, or 0.
    dead: u64,
    _stays: PhantomData<*const ()>,
}

impl<'a> KeyGuard<'a> {
    /// For who has taken the key; with the owner that died, if one did.
    #[inline(always)]
    pub(super) fn new(key: &'a LockKey, me: OwnerId, dead: u64) -> Self {
        Self { key, me, dead, _stays: PhantomData }
    }

    /// The value that the key has now.
    pub fn owner(&self) -> OwnerId {
        self.me
    }

    /// The owner that died with this key and left its resource as it was; `None` if the resource is sound. Every owner is told until one calls
    /// [`mark_repaired`](Self::mark_repaired).
    pub fn inherited_from(&self) -> Option<OwnerId> {
        OwnerId::from_bits(self.dead)
    }

    /// Says that the resource is sound again. Nothing happens if it was.
    ///
    /// # Errors
    /// [`Error::Lock`] if the key was destroyed, or taken by somebody who breaks the rules.
    pub fn mark_repaired(&mut self) -> Result<()> {
        self.key.repair(self.me)?;
        self.dead = 0;
        Ok(())
    }

    /// Gives the key up, and says if it was not the caller's any more.
    ///
    /// # Errors
    /// [`Error::Lock`]: the key was destroyed, or somebody who breaks the rules took it.
    pub fn unlock(self) -> Result<()> {
        let unlocked = self.key.release_as(self.me);
        std::mem::forget(self);
        unlocked
    }

    /// Keeps the key beyond this guard: until [`LockKey::unlock`] by the same thread.
    pub fn keep(self) -> OwnerId {
        let me = self.me;
        std::mem::forget(self);
        me
    }
}

impl Drop for KeyGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.key.release_unmarked(self.me) {
            drop_slowly(self.key, self.me);
        }
    }
}

#[cold]
#[inline(never)]
pub(super) fn drop_slowly(key: &LockKey, me: OwnerId) {
    match key.give_up(me) {
        // Within recv_with: a letter can't be sent from there.
        Err(Error::Reentrant { .. }) => key.give_up_later(me),
        Err(error) => complain(key, &error),
        Ok(()) => {}
    }
}

#[cold]
fn complain(key: &LockKey, error: &Error) {
    // Leaving and destroying end what is held.
    if !matches!(error, Error::Lock { why, .. } if **why == LockFault::Destroyed)
        && !matches!(error, Error::Closed | Error::Forked)
    {
        tracing::warn!(%error, key = key.name(), "a key could not be given up");
    }
}

/// The error for a key that is not the caller's.
pub(super) fn not_yours(key: &LockKey, seen: doorbell_shm::keys::Seen) -> Error {
    fault("unlock", key.name(), LockFault::NotYours(seen.value()))
}
