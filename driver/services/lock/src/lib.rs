//! The lock registry: keys by name, each of a resource, whose value says who may use the resource now.
//!
//! A key is made by one node ([`LockKey::init`]), [offered](LockKey::offer) with others by message, and [accepted](LockKey::accept) by them. Its
//! value is unlocked, the identification of its owner, or *locked by the module*. Locking sets it by compare-and-swap, which in the same
//! instant determines that it was unlocked, and then reads it back.
//!
//! ```
//! use doorbell::{LockKey, Node, Resource, Space, Value};
//! use std::time::{Duration, Instant};
//!
//! # fn main() -> Result<(), doorbell::Error> {
//! let space = Space::heap();
//! let host = Node::builder("locks").space(space.clone()).join()?;
//! let accelerator = Node::builder("locks").space(space).join()?;
//! let patience = Instant::now() + Duration::from_secs(5);
//!
//! let key = LockKey::init(&host, "frame", Resource::memory(0x100..0x1000))?;
//! let offer = key.offer(&[accelerator.id()])?;
//! let theirs = LockKey::accept(&accelerator, patience)?;
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
//! - `key`: what a program holds of a key, and does with it.
//! - `guard`: a key that is locked.
//! - `share`: keys that are offered and accepted.
//! - `shared`: memory behind a key.
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
mod guard;
mod home;
mod key;
mod mail;
mod service;
mod share;
mod shared;
mod task;
// Over sockets, which Miri has not.
#[cfg(all(test, not(miri)))]
mod tests;
mod wait;
mod wire;

pub use guard::KeyGuard;
pub use key::{LockKey, TryLock};
use service::Locks;
pub use share::{Accepted, Offer};
pub use shared::{Shared, SharedGuard};
pub use task::TaskGuard;

pub use doorbell_engine::error::{Circle, LockFault};
use doorbell_engine::{Error, Node, Result};
use doorbell_shm::error::ShmError;
use doorbell_shm::keys::Resource;
use std::time::Duration;

/// How long making and destroying keys waits for the domain's lock file.
const PATIENCE: Duration = Duration::from_secs(10);

fn fault(operation: &'static str, key: &str, why: LockFault) -> Error {
    Error::Lock { operation, key: key.into(), why: Box::new(why) }
}

impl LockKey {
    /// Makes a key in the registry of the domain, unlocked. Names have 1 to 40 bytes. The source's `dacs_mutex_init`.
    ///
    /// Blocks on the domain's lock file, which is held for moments only.
    ///
    /// # Errors
    /// [`Error::Shm`]: there is a key of that name, it is no name, the registry is full (512 keys), or the lock file could not be had within ten
    /// seconds; [`Error::Closed`], [`Error::Forked`].
    pub fn init(node: &Node, name: &str, resource: Resource) -> Result<LockKey> {
        LockKey::of(node, name, away::open_key(node, "make", name, Some(resource))?)
    }

    /// The key of this name, made by whatever node. Does not block.
    ///
    /// # Errors
    /// [`Error::Lock`] with [`LockFault::Unknown`]; [`Error::Closed`], [`Error::Forked`].
    pub fn find(node: &Node, name: &str) -> Result<LockKey> {
        LockKey::of(node, name, away::open_key(node, "find", name, None)?)
    }

    /// The key of this name; made if there is none.
    ///
    /// # Errors
    /// As [`init`](Self::init).
    pub fn open(node: &Node, name: &str, resource: Resource) -> Result<LockKey> {
        loop {
            match Self::find(node, name) {
                Err(Error::Lock { why, .. }) if *why == LockFault::Unknown => {}
                found => return found,
            }
            match Self::init(node, name, resource) {
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
