//! The engine of Doorbell. It moves messages, transfers, loans, puts and gets between nodes, and the packets of services.
//!
//! Programs use the crate `doorbell`, which re-exports what they need. Services use this crate: they register for a class of
//! packets ([`message::service`]), and their calls enter the engine ([`node::Shared`]).
//!
//! The modules, from the bottom up:
//!
//! 1. [`mode`]: the fabric, link and protocol of each message: requested, observed, chosen. [`error`].
//! 2. [`sync`]: which thread turns the engine, which threads wait, and how.
//! 3. [`board`]: what a node publishes about itself. [`links`]: connections to other nodes. [`memory`]: keys and mapped
//!    regions.
//! 4. [`message`]: matching of receives and messages, send queues, the pool; packets of services. [`transfer`]: large messages.
//! 5. [`turn`]: the engine, which brings what arrives to its receiver.
//! 6. [`drive`]: the state that the handles of a node share, the wait loop, and the poller.
//! 7. [`node`]: [`Node`] and [`Peer`], which programs call; [`region`], [`counter`], [`dma`] and [`loan`] beside them.
//! 8. [`kit`]: the names that services use from all these.

#[cfg(not(loom))]
pub mod board;
#[cfg(not(loom))]
pub mod counter;
#[cfg(not(loom))]
pub mod dma;
#[cfg(not(loom))]
pub mod drive;
pub mod error;
#[cfg(not(loom))]
pub mod kit;
#[cfg(not(loom))]
pub mod links;
#[cfg(not(loom))]
pub mod loan;
#[cfg(not(loom))]
pub mod memory;
pub mod message;
pub mod mode;
#[cfg(not(loom))]
pub mod node;
#[cfg(not(loom))]
pub mod region;
pub mod sync;
#[cfg(not(loom))]
pub mod transfer;
pub mod tune;
#[cfg(not(loom))]
pub mod turn;

pub use doorbell_fabric::{Envelope, Incarnation, NodeId, Payload, Priority, Role};
pub use error::{Certainty, Error, KeyFault, Result};
pub use message::{Match, Message};
pub use sync::wait::Wait;

#[cfg(not(loom))]
pub use counter::{Counter, CounterKey, Lowered};
#[cfg(not(loom))]
pub use doorbell_shm::board::{Metric, Metrics};
#[cfg(not(loom))]
pub use doorbell_shm::{domain::Member, faults::Faults, layout::LaneGeometry, space::Space};
#[cfg(feature = "udp")]
pub use doorbell_udp::{UdpError, fabric::Address, port::Kind as PortKind};
#[cfg(not(loom))]
pub use drive::poller::Progress;
#[cfg(not(loom))]
pub use links::FabricKind;
#[cfg(not(loom))]
pub use loan::{Lendable, Loan, LoanMut, LoanStats, Recipient, Taken};
#[cfg(not(loom))]
pub use node::{Completion, Event, Node, NodeBuilder, NodeName, Operation, Peer, Received, Stats};
#[cfg(not(loom))]
pub use region::{Access, KEY_BYTES, Key, Plain, ReadOnly, ReadWrite, Region, Stored};
#[cfg(not(loom))]
pub use transfer::{CopySide, TransferReport};
// Services install themselves in each node of a program that links them.
#[doc(hidden)]
pub use inventory;
