//! The lock registry in the domain segment: locks with a name, each for a resource, whose value says which owner may use the
//! resource. (The types here call a lock a *key*.)
//!
//! 1. [`word`]: the words of one lock. Locking is a compare-and-swap of its value. The value is the owner's identification, so
//!    a waiter can check whether the owner lives.
//! 2. [`waiting`]: how a waiter waits, so that none waits for ever.
//! 3. [`waits`]: which owner waits for which lock, to find deadlocks.
//! 4. `table`: locks by name, their resources and users.
//! 5. `seat`: the place of the registry, if not all nodes of a domain share memory.
//!
//! Any attached process can write any of these words. Values are copied and checked when they are read. A process that breaks
//! the rules can take locks that others hold, but can do no other harm; see ARCHITECTURE.md.

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(not(loom))]
mod seat;
#[cfg(not(loom))]
mod table;
// Not under Miri, which takes minutes for a full table.
#[cfg(all(test, not(loom), not(miri)))]
mod tests;
#[cfg(not(loom))]
pub mod waiting;
#[cfg(not(loom))]
pub mod waits;
pub mod word;

#[cfg(not(loom))]
pub(crate) use table::{KEYS_HASH, KeyTable, Slot, TABLE_BYTES};
#[cfg(not(loom))]
pub use table::{KEYS_MAX, KeyRef, LockFacts, NAME_BYTES, Resource, ResourceError};
#[cfg(not(loom))]
pub use waiting::{Look, Waiter};
#[cfg(not(loom))]
pub use waits::{Deadlock, Entered, Waiting};
pub use word::{LockWords, OwnerId, Seen, Taken, Value};
