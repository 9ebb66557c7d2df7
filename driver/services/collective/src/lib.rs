//! Groups of nodes that broadcast, reduce and synchronise.
//!
//! From the bottom up:
//!
//! | concern | files |
//! |---|---|
//! | the operations, their lengths and vectors | `kind`, `lengths`, `value`, `span`, `combine`, `what`; `reduction/` |
//! | members that share memory | `memory` (channels), `exchange` (the bytes of one operation) |
//! | members that share none | `apart`, `net/`; `topology/` |
//! | a team under way | `state` (turns), `core` (the state machine), `ending`, `call` (a thread waits), `watch` |
//! | a team in the making | `builder`, `formation` (the agreement), `forming` |
//! | what programs call | `team`, `blocking`, `started` |
//! | what the engine calls | `table`, `service` |

mod apart;
mod blocking;
mod builder;
mod call;
mod combine;
mod core;
mod ending;
mod error;
mod exchange;
mod formation;
mod forming;
mod kind;
mod lengths;
mod memory;
mod net;
pub mod reduction;
mod service;
mod span;
mod started;
mod state;
mod table;
mod team;
pub mod topology;
mod value;
mod watch;
mod what;

pub use builder::{CHANNELS_MAX, MEMBERS_MAX, SLOT_MAX, SLOT_MIN, TeamBuilder};
pub use core::{STARTED_MAX, Synchronisation};
pub use error::TeamError;
pub use net::Algorithm;
pub use started::Batch;
pub use team::Team;
pub use value::Value;
pub use watch::{ChannelEvent, ChannelStats, ChannelStep};

// Whole nodes that wait for each other: Miri takes minutes for them.
#[cfg(all(test, not(miri)))]
mod tests;
