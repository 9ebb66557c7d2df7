//! Messages: matching, the pool of messages that no receive has asked for yet, and the send queues.

#[cfg(not(loom))]
pub mod bulk;
#[cfg(not(loom))]
pub mod caches;
#[cfg(not(loom))]
pub mod dispatch;
#[cfg(not(loom))]
pub mod inbound;
#[cfg(not(loom))]
pub mod lending;
#[cfg(not(loom))]
pub mod locality;
pub mod matching;
#[cfg(not(loom))]
pub mod order;
#[cfg(not(loom))]
pub mod outbound;
#[cfg(not(loom))]
pub mod pool;
#[cfg(not(loom))]
pub mod queue;
#[cfg(not(loom))]
pub mod receive;
#[cfg(not(loom))]
pub mod service;
#[cfg(not(loom))]
pub mod ways;
#[cfg(not(loom))]
pub mod words;

pub use doorbell_fabric::Message;
pub use matching::Match;
