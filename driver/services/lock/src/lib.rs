//! The lock service: locks with a name that the processes of a domain share, and that know their owner. One program calls
//! [`Lock::init`] to create a lock and [`Lock::offer`] to send it to other nodes, which call [`Lock::accept`]; a node
//! that knows the name calls [`Lock::find`] instead. Then any of them calls [`Lock::lock`], and drops the guard to
//! unlock.
//!
//! A lock stands for a resource. Its value is one of three things: unlocked, the identification of its owner, or *frozen* (no
//! thread may lock it). Locking sets the value by compare-and-swap, which changes it only if it was unlocked, and then reads it
//! back.
//!
//! ```
//! use doorbell::{Lock, Node, Resource, Space, Value};
//! use std::time::{Duration, Instant};
//!
//! # fn main() -> Result<(), doorbell::Error> {
//! let space = Space::heap();
//! let host = Node::builder("locks").space(space.clone()).join()?;
//! let accelerator = Node::builder("locks").space(space).join()?;
//! let patience = Instant::now() + Duration::from_secs(5);
//!
//! let key = Lock::init(&host, "frame", Resource::memory(0x100..0x1000))?;
//! let offer = key.offer(&[accelerator.id()])?;
//! let theirs = Lock::accept(&accelerator, patience)?;
//! assert_eq!(offer.wait(patience)?[0].node, accelerator.id());
//!
//! let guard = key.lock()?;
//! assert_eq!(theirs.get()?, Value::Owner(guard.owner()));
//! assert!(theirs.try_lock()?.guard().is_none());
//! guard.unlock()?;
//! assert!(theirs.lock_until(patience)?.inherited_from().is_none());
//! # Ok(())
//! # }
//! ```
//!
//! - `key`: the handle of a lock.
//! - `guard`: the guard of a held lock.
//! - `share`: how a lock is offered and accepted.
//! - `shared`: memory behind a lock.
//! - `wait`: how a thread waits for a lock: it spins, yields, parks, checks that the owner lives, and looks for deadlocks.
//! - `home`, `far`: locks for nodes that share no memory with the lock registry; `mail`, `wire`: their requests, replies and
//!   notices.
//!
//! **If the owner dies**, the waiters find out, within 100 ms over shared memory. The lock passes to the next waiter. That
//! waiter learns of the death from [`LockGuard::inherited_from`], and so does each later owner, until one of them reports that
//! the resource is [sound](LockGuard::mark_repaired). A node that leaves while it holds a lock counts as dead here.
//!
//! **Fair**: a thread may unlock and lock again at once while others wait. When a waiter has waited for a millisecond, and the
//! last turn of a waiter is as long ago, nobody but the first waiter gets the lock. So a lock that many threads want goes
//! round, but not every use costs a switch between processes.

mod error;
mod far;
mod guard;
mod home;
mod key;
mod mail;
mod open;
mod service;
mod share;
mod shared;
mod task;
// Over sockets, which Miri does not support.
#[cfg(all(test, not(miri)))]
mod tests;
mod wait;
mod wire;

pub use error::LockError;
pub use guard::{LockGuard, TryLock};
pub use key::Lock;
pub use share::{Accepted, Offer};
pub use shared::{Shared, SharedGuard};
pub use task::TaskGuard;
