//! Groups of nodes that broadcast, reduce and synchronise.

mod apart;
mod call;
mod core;
mod exchange;
mod formation;
mod memory;
mod net;
mod pending;
pub mod reduction;
mod service;
mod table;
mod team;
pub mod topology;
mod watch;
mod what;

pub use core::{STARTED_MAX, Sync};
pub use net::Algorithm;
pub use pending::Collective;
pub use team::{Batch, CHANNELS_MAX, MEMBERS_MAX, SLOT_MAX, SLOT_MIN, Team, TeamBuilder, Value};
pub use watch::{ChannelEvent, ChannelStats, ChannelStep};

// Whole nodes that wait for each other: Miri takes minutes for them.
#[cfg(all(test, not(miri)))]
mod tests;
