//! Messages: matching, the pool of those nobody has asked for yet, and the queues of those on their way out.

pub mod matching;
#[cfg(not(loom))]
pub mod outbound;
pub mod pool;

pub use matching::Match;
pub use pool::Message;
