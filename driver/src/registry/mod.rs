//! The lock registry: keys by name, each of a resource, whose value says who may use the resource now.
//!
//! A key is made by one node ([`Node::init_key`]), [offered](LockKey::offer) with others by message, and [accepted](Node::accept_key) by them. Its
//! value is unlocked, the identification of its owner, or *locked by the module*. Locking sets it by compare-and-swap, which in the same
//! instant determines that it was unlocked, and then reads it back.
//!
//! ```
//! use doorbell::{Node, Resource, Space, Value};
//! use std::time::{Duration, Instant};
//!
//! # fn main() -> Result<(), doorbell::Error> {
//! let space = Space::heap();
//! let host = Node::builder("locks").space(space.clone()).join()?;
//! let accelerator = Node::builder("locks").space(space).join()?;
//! let patience = Instant::now() + Duration::from_secs(5);
//!
//! let key = host.init_key("frame", Resource::memory(0x100..0x1000))?;
//! let offer = key.offer(&[accelerator.id()])?;
//! let theirs = accelerator.accept_key(patience)?;
//! assert_eq!(offer.wait(patience)?[0].node, accelerator.id());
//!
//! let guard = key.lock()?;
//! assert_eq!(theirs.get()?, Value::Owner(guard.owner()));
//! assert!(theirs.try_lock()?.guard().is_none());
//! guard.unlock()?;
//! assert!(theirs.lock_by(patience)?.inherited_from().is_none());
//! # Ok(())
//! # }
//! ```
//!
//! - [`key`]: what a program holds of a key, and does with it.
//! - [`guard`]: a key that is locked.
//! - [`share`]: keys that are offered and accepted.
//! - [`shared`]: memory behind a key.
//! - `wait`: how a thread waits for a key: spin, yield, park; whether its owner lives; whether it closed a circle.
//! - `home`, `away`: keys for nodes that share no memory with where the registry is; `mail`, `wire`: the letters between them.
//!
//! **Who dies as an owner** is found out by those who wait, within 100 ms over shared memory. The key goes to the next of them, who is told
//! ([`KeyGuard::inherited_from`]), and so is every later owner until one says that the resource is [sound](KeyGuard::mark_repaired).
//! A node that leaves with a key counts as dead here.
//!
//! **Fair**: who gives a key up may take it again while others wait, for a millisecond; then it is the turn of whoever came first. So a key
//! that many want goes round, and costs no switch between processes for each use.

mod away;
pub mod guard;
mod home;
pub mod key;
mod mail;
mod service;
pub mod share;
pub mod shared;
mod task;
// Over sockets, which Miri has not.
#[cfg(all(test, not(miri)))]
mod tests;
mod wait;
pub(crate) mod wire;

pub use guard::KeyGuard;
pub use key::{LockKey, TryLock};
pub(crate) use service::Locks;
pub use share::{Accepted, Offer};
pub use shared::{Shared, SharedGuard};
pub use task::TaskGuard;

use crate::{Error, Node, Result};
use doorbell_shm::error::ShmError;
use doorbell_shm::keys::{OwnerId, Resource, Value};
use std::fmt;
use std::time::Duration;

/// How long making and destroying keys waits for the domain's lock file.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a call on a key failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockFault {
    /// Somebody destroyed it.
    #[error("it was destroyed; look it up again, or make it anew")]
    Destroyed,
    /// There is none of this name.
    #[error("there is none of this name; make it with init_key, or see `doorbell ls --locks`")]
    Unknown,
    /// The caller does not have it.
    #[error("it is not yours but {0}; who holds nothing cannot unlock")]
    NotYours(Value),
    /// The caller has it already.
    #[error("you hold it already; a key is not locked twice")]
    AlreadyYours,
    /// The value was not the expected one.
    #[error("its value is {0}, not the expected one; read it and decide again")]
    Otherwise(Value),
    /// It is locked by the module.
    #[error("it is locked by the module; wait until somebody calls unlock_all")]
    Barred,
    /// To wait for it would be for ever.
    #[error("to wait for it would never end: {0}")]
    Circle(Circle),
    /// The home of the registry could not do it.
    #[error("its home says: {0}")]
    Home(String),
    /// Others use it.
    #[error("nodes {} have not released it; wait until they have", words(.0))]
    InUse(Vec<doorbell_fabric::NodeId>),
}

fn words(nodes: &[doorbell_fabric::NodeId]) -> String {
    nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Who waits for whom, all around: each of them waits for a key that the next one has, and the last one's key is the first one's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Circle {
    /// Who waits, and the name of the key it waits for.
    pub waits: Vec<(OwnerId, String)>,
}

impl fmt::Display for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (who, key)) in self.waits.iter().enumerate() {
            let next = self.waits[(at + 1) % self.waits.len()].0;
            write!(f, "{}{who} waits for '{key}', which is held by {next}", if at > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

fn fault(operation: &'static str, key: &str, why: LockFault) -> Error {
    Error::Lock { operation, key: key.into(), why: Box::new(why) }
}

impl Node {
    /// Makes a key in the registry of the domain, unlocked. Names have 1 to 40 bytes. The source's `dacs_mutex_init`.
    ///
    /// Blocks on the domain's lock file, which is held for moments only.
    ///
    /// # Errors
    /// [`Error::Shm`]: there is a key of that name, it is no name, the registry is full (512 keys), or the lock file could not be had within ten
    /// seconds; [`Error::Closed`], [`Error::Forked`].
    pub fn init_key(&self, name: &str, resource: Resource) -> Result<LockKey> {
        LockKey::open(self, name, self.open_key("make", name, Some(resource))?)
    }

    /// The key of this name, made by whatever node. Does not block.
    ///
    /// # Errors
    /// [`Error::Lock`] with [`LockFault::Unknown`]; [`Error::Closed`], [`Error::Forked`].
    pub fn find_key(&self, name: &str) -> Result<LockKey> {
        LockKey::open(self, name, self.open_key("find", name, None)?)
    }

    /// The key of this name; made if there is none.
    ///
    /// # Errors
    /// As [`init_key`](Self::init_key).
    pub fn key(&self, name: &str, resource: Resource) -> Result<LockKey> {
        loop {
            match self.find_key(name) {
                Err(Error::Lock { why, .. }) if *why == LockFault::Unknown => {}
                found => return found,
            }
            match self.init_key(name, resource) {
                Err(Error::Shm(error)) if is_there(&error) => {}
                made => return made,
            }
        }
    }
}

/// Whether somebody was faster.
fn is_there(error: &ShmError) -> bool {
    matches!(error, ShmError::Key { fault: doorbell_shm::keys::ResourceError::Exists { .. }, .. })
}
