//! The engine of Doorbell: what carries messages, transfers, loans, puts and gets between nodes, and the packets of services.
//!
//! Programs use the crate `doorbell`, which shows what is for them. This crate shows services what they need beside that: they register for a class
//! of packets ([`message::service`]), and their calls enter the engine ([`node::Shared`]).
//!
//! The rooms, from the bottom up:
//!
//! 1. [`mode`]: by which fabric, link and protocol data goes: asked for, watched, and chosen. [`error`].
//! 2. [`sync`]: which thread turns the engine, which waits, and how.
//! 3. [`board`]: what a node shows of itself. [`links`]: what leads to other nodes. [`memory`]: keys and mapped regions.
//! 4. [`message`]: which receive accepts which message, send queues, the pool; packets of services. [`transfer`]: large messages.
//! 5. [`turn`]: the engine, which takes what arrives to where it is wanted.
//! 6. [`drive`]: what the handles of a node share, the wait loop, and the poller.
//! 7. [`node`]: [`Node`] and [`Peer`], what a program calls; [`region`], [`counter`] and [`loan`] beside them.

#[cfg(not(loom))]
pub mod board;
#[cfg(not(loom))]
pub mod counter;
#[cfg(not(loom))]
pub mod drive;
pub mod error;
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
#[cfg(not(loom))]
pub mod turn;

pub use doorbell_fabric::{Envelope, Incarnation, NodeId, Payload, Priority, Role};
pub use error::{Certainty, Error, KeyFault, Result};
pub use message::{Match, Message};
pub use sync::wait::Wait;

#[cfg(not(loom))]
pub use counter::{Counter, CounterKey, Lowered};
#[cfg(not(loom))]
pub use doorbell_shm::board::{Figure, Figures};
#[cfg(not(loom))]
pub use doorbell_shm::{domain::Member, faults::Faults, layout::LaneGeometry, space::Space};
#[cfg(not(loom))]
pub use doorbell_udp::{UdpError, port::Kind as PortKind};
#[cfg(not(loom))]
pub use drive::poller::Progress;
#[cfg(not(loom))]
pub use links::FabricKind;
#[cfg(not(loom))]
pub use loan::{Lendable, Loan, LoanMut, LoanStats, Recipient, Taken};
#[cfg(not(loom))]
pub use node::{Completion, Done, Event, Node, NodeBuilder, NodeName, Peer, Request, Stats};
#[cfg(not(loom))]
pub use region::{Access, KEY_BYTES, Key, Plain, ReadOnly, ReadWrite, Region, Stored};
#[cfg(not(loom))]
pub use transfer::{Copy, TransferReport};
// Services install themselves in each node of a program that links them.
#[doc(hidden)]
pub use inventory;
