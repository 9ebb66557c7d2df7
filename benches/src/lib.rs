//! Measuring: what this machine can do at best, and how to look at samples.
//!
//! - [`clock`]: time stamps as fine as the processor gives them.
//! - [`touch`]: what it means that a program writes what it sends and reads what it receives.
//! - [`exchange`]: the loops that are timed, the same ones for the floor and for the driver.
//! - [`stream`]: the same with several messages under way.
//! - [`contention`]: many processes that want the same lock.
//! - [`floor`]: what no transport between two processes can beat, as [`exchange::Carrier`]s and [`stream::Window`]s.
//! - [`stats`]: samples, percentiles, and the text histogram's figures.
//!
//! Nothing here knows the driver: the `doorbell` command brings the two together.

pub mod clock;
pub mod contention;
pub mod exchange;
pub mod floor;
pub mod memory;
pub mod stats;
pub mod stream;
pub mod touch;
