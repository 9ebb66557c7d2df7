//! The engine: takes what arrives to where it is wanted, and pushes what could not be sent at once.
//!
//! There is one engine a node, behind one [`baton`]. Whoever waits, drives: a thread in `send`, `recv` or `wait` turns the
//! engine while it waits ([`wait`] says how it waits, [`helm`] which of several waiting threads sleeps on the doorbell); the
//! [`poller`] turns it when nobody else does and something is pending.

pub mod baton;
pub mod helm;
#[cfg(not(loom))]
pub mod later;
#[cfg(not(loom))]
pub(crate) mod monitor;
pub mod op;
#[cfg(not(loom))]
pub mod poller;
#[cfg(not(loom))]
pub(crate) mod pool;
#[cfg(not(loom))]
pub mod turn;
pub mod wait;
