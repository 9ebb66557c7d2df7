//! Doorbell's PCIe stand-in: nodes of one machine move data through POSIX shared memory.
//!
//! In the order a message meets them:
//!
//! 1. [`domain`]: a node joins a domain and finds its peers; segments are made, checked, and removed.
//! 2. [`lane`]: the single-producer ring by which one node sends to another.
//! 3. [`doorbell`]: how a producer wakes a consumer that sleeps, without a fence on the producer's path.
//! 4. [`fabric`]: all lanes of one node, as the [`doorbell_fabric::Fabric`] that the driver turns.
//! 5. [`board`]: what a node shows of itself: figures, DMA counters, latencies, and what its engine did last.
//!
//! Beside the messages: [`region`], memory that peers write and read by themselves; [`returns`], by which loans come back; [`keys`], the
//! lock registry of a domain; [`locked`], values that survive whoever updates them; [`mod@device`], what several processes receive from; and [`cma`], access to what is private.
//!
//! [`layout`] says where everything lies. [`space`] says where segments live: in `/dev/shm`, or, for tests, in the heap of
//! one process with everything above unchanged.

/// Dies, stops or waits here if a test asked for it: see [`fault`]. Nothing without the feature `fault-points`.
#[cfg(feature = "fault-points")]
macro_rules! fault_point {
    ($name:literal) => {
        $crate::fault::arrive($name)
    };
}
#[cfg(not(feature = "fault-points"))]
macro_rules! fault_point {
    ($name:literal) => {};
}

pub mod board;
#[cfg(not(loom))]
pub mod bus;
pub mod channel;
pub mod clock;
#[cfg(not(loom))]
pub mod cma;
pub mod copies;
pub mod device;
#[cfg(not(loom))]
pub mod domain;
pub mod doorbell;
#[cfg(not(loom))]
pub mod error;
#[cfg(not(loom))]
pub mod fabric;
#[cfg(not(loom))]
pub mod far_copy;
#[cfg(feature = "fault-points")]
pub mod fault;
#[cfg(not(loom))]
pub mod faults;
#[cfg_attr(loom, allow(dead_code))]
mod hint;
pub mod keys;
pub mod lane;
pub mod layout;
pub mod locked;
#[cfg(not(loom))]
mod mapping;
pub mod meeting;
pub mod pipe;
#[cfg(not(loom))]
pub mod region;
#[cfg(not(loom))]
pub mod returns;
#[cfg(not(loom))]
pub mod segment;
#[cfg(not(loom))]
pub mod space;
