//! Doorbell's PCIe stand-in: nodes of one machine move data through POSIX shared memory.
//!
//! The modules, in the order in which a message uses them:
//!
//! 1. [`domain`]: a node joins a domain and finds its peers; segments are created, checked, and removed.
//! 2. [`lane`]: the single-producer ring by which one node sends to another.
//! 3. [`doorbell`]: wakes a sleeping consumer, without a fence on the producer's path.
//! 4. [`fabric`]: all lanes of one node. It is the [`doorbell_fabric::Fabric`] that the driver polls.
//! 5. [`board`]: the displayed state of a node: metrics, DMA counters, latencies, and the latest steps of its engine.
//!
//! Modules beside the path of messages: [`region`], memory that peers write and read by themselves; [`returns`], which gives
//! loans back; [`keys`], the lock registry of a domain; [`locked`], values that survive the death of an updater; [`mod@device`],
//! shared receiving by several processes; and [`cma`], access to private memory.
//!
//! [`layout`] defines where everything lies. [`space`] chooses where segments live: in `/dev/shm`, or, for tests, in the heap of
//! one process with everything above unchanged.

/// Dies, stops or waits here if a test asked for it: see [`fault`]. Compiles to nothing without the feature `fault-points`.
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
pub mod choice;
pub mod clock;
#[cfg(not(loom))]
pub mod cma;
pub mod device;
#[cfg(not(loom))]
pub mod domain;
pub mod doorbell;
#[cfg(not(loom))]
pub mod error;
#[cfg(not(loom))]
pub mod fabric;
#[cfg(feature = "fault-points")]
pub mod fault;
#[cfg(not(loom))]
pub mod faults;
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
