//! The lock registry in the domain segment: keys by name, each of a resource, whose value says who may use it.
//!
//! 1. [`word`]: the words of one key. Locking is a compare-and-swap of its value; the owner's identity is the value, so that whoever finds
//!    a key locked can ask whether its owner lives.
//! 2. [`waiting`]: how those wait who found it locked, none of them for ever.
//! 3. [`waits`]: who waits for what, to find circles.
//! 4. `table`: keys by name, their resources and users.
//! 5. `seat`: where the registry is, if not all nodes of a domain share memory.
//!
//! Any process that is attached may write any of these words. What is read is copied and checked; whoever breaks the rules here can take
//! keys that others hold, and no more: see ARCHITECTURE.md.

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
pub use table::{KEYS_MAX, KeyFacts, KeyRef, NAME_BYTES, Resource, ResourceError};
#[cfg(not(loom))]
pub use waiting::{Look, Waiter};
#[cfg(not(loom))]
pub use waits::{Circle, Entered, Waiting};
pub use word::{LockWords, OwnerId, Seen, Taken, Value};
