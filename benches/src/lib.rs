//! Measuring: the best that this machine can do, and statistics over samples.
//!
//! - [`clock`]: the processor's time stamps.
//! - [`touch`]: writing every line that is sent and reading every line that is received.
//! - [`exchange`]: the timed loops, which are the same for the floor and for the driver.
//! - [`stream`]: the same with several messages under way.
//! - [`contention`]: many processes that contend for one lock.
//! - [`floor`]: the best that any transport between two processes can reach, as [`exchange::Carrier`]s and [`stream::Window`]s.
//! - [`stats`]: samples, percentiles, and the numbers of the text histogram.
//!
//! This crate does not know the driver. The `doorbell` command combines the two.

pub mod clock;
pub mod contention;
pub mod exchange;
pub mod floor;
pub mod memory;
pub mod stats;
pub mod stream;
pub mod touch;

pub use clock::{Clock, ticks};
pub use contention::{Contended, Exclusive, contend};
pub use exchange::{Buffers, Carrier, Part, Section, Side};
pub use floor::{
    DATAGRAM_MOST, Datagrams, Finish, Floor, HopProbe, Mapping, Patience, PrivateWord, PullError, Shape, Stopped, UdpEnd,
    UdpError, Way,
};
pub use memory::Memory;
pub use stats::{Samples, Summary};
pub use stream::{Flow, Messages, Window};
