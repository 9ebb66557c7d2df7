//! How an update is made atomic.

use std::fmt;

/// How an update is made atomic. Mostly each is cheaper than the next; `docs/atomics.md` lists exceptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// By one instruction.
    Native,
    /// By a loop: the value that was read is replaced by the callback's result if no other update came between.
    CompareAndSwap,
    /// By a callback under a lock.
    Lock,
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Tier::Native => "native",
            Tier::CompareAndSwap => "swap",
            Tier::Lock => "lock",
        })
    }
}
