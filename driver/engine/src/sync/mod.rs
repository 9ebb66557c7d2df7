//! What threads of a node agree by: the baton, the parking leader, waits, operations, and the pool of threads for work that may wait.

pub mod baton;
pub mod helm;
pub mod op;
#[cfg(not(loom))]
pub mod pool;
#[cfg(not(loom))]
pub mod reactor;
pub mod wait;
