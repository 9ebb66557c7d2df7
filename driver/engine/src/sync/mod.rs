//! How a node's threads coordinate: the baton, the parking leader, waits, operations, and the blocking pool.

pub mod baton;
pub mod op;
pub mod parking;
#[cfg(not(loom))]
pub mod pool;
#[cfg(not(loom))]
pub mod reactor;
pub mod wait;
