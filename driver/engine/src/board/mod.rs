//! What a node publishes on its board: metrics, the flight recorder, and its DMA counters.

mod counters;
mod key;
pub(crate) mod monitor;

pub use counters::CounterFile;
pub(crate) use counters::Counting;
pub(crate) use counters::eventfd;
pub use key::CounterKey;
