//! How a lock is created and found.

use super::error::LockError;
use super::far::open_key;
use super::key::Lock;
use doorbell_engine::kit::{Error, Node, Result};
use doorbell_shm::error::ShmError;
use doorbell_shm::keys::{Resource, ResourceError};

impl Lock {
    /// Creates a lock in the domain's lock registry, unlocked. The name has 1 to 40 bytes.
    ///
    /// Blocks on the domain's lock file, which other nodes hold for moments only, or on the reply of the coordinator. Any
    /// thread may call it.
    ///
    /// # Errors
    /// [`Error::Shm`]: a lock of this name exists, the name is not valid, the registry is full (512 locks), or the lock file
    /// was not free within ten seconds. [`Error::Timeout`]: the coordinator did not reply within ten seconds.
    /// [`Error::Closed`], [`Error::Forked`].
    pub fn init(node: &Node, name: &str, resource: Resource) -> Result<Lock> {
        Lock::of(node, name, open_key(node, "make", name, Some(resource))?)
    }

    /// Finds the lock of this name, whichever node created it. Does not block if the registry is in memory that this node
    /// shares; else it waits for the coordinator's reply.
    ///
    /// # Errors
    /// [`LockError::Unknown`]: there is no such lock. [`Error::Timeout`]: the coordinator did not reply
    /// within ten seconds. [`Error::Closed`], [`Error::Forked`].
    pub fn find(node: &Node, name: &str) -> Result<Lock> {
        Lock::of(node, name, open_key(node, "find", name, None)?)
    }

    /// Finds the lock of this name, or creates it if there is none. If several nodes call this at once, all get the same lock.
    ///
    /// # Errors
    /// As [`init`](Self::init), but an existing lock is no error.
    pub fn open(node: &Node, name: &str, resource: Resource) -> Result<Lock> {
        loop {
            match Self::find(node, name) {
                Err(error) if error.downcast_ref() == Some(&LockError::Unknown) => {}
                found => return found,
            }
            match Self::init(node, name, resource) {
                // Another node created it first.
                Err(Error::Shm(error)) if matches!(*error, ShmError::Key { fault: ResourceError::Exists { .. }, .. }) => {}
                made => return made,
            }
        }
    }
}
