//! Doorbell: messages between processes at the speed of a cache line.
//!
//! Processes on one Linux machine join a **domain** by name, each as a **node**, and send each other tagged messages
//! through shared memory, without entering the kernel.
//!
//! ```
//! use doorbell::{Match, Node, NodeId, Role, Space};
//! use std::time::{Duration, Instant};
//!
//! # fn main() -> Result<(), doorbell::Error> {
//! // Two nodes in one process here; in your program, one each in two processes, without the line about the space.
//! let space = Space::heap();
//! let host = Node::builder("grid").role(Role::Host).space(space.clone()).join()?;
//! let accelerator = Node::builder("grid").role(Role::Accelerator).space(space).join()?;
//!
//! let to_accelerator = host.peer(accelerator.id())?;
//! to_accelerator.send(7, b"scale by two")?;
//!
//! let mut buf = [0; 64];
//! let envelope = accelerator.recv(Match::any().tag(7), &mut buf)?;
//! assert_eq!((envelope.source, &buf[..envelope.len]), (host.id(), &b"scale by two"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! The rooms, in the order a message meets them:
//!
//! 1. [`node`]: [`Node`] and [`Peer`], what a program calls. `Node` is shared by threads; a `Peer` is one thread's own way
//!    to another node, and the fastest.
//! 2. [`message`]: which receive accepts which message, those that nobody has asked for yet, those on their way out.
//! 3. [`transfer`]: large messages, moved from both ends at once.
//! 4. [`engine`]: who drives, who waits, and how.
//! 5. [`region`]: memory of one node that others write and read without its help, and the keys to it.
//! 6. [`counter`]: DMA counters, which say when all bytes of a transfer have moved.
//! 7. [`loan`]: messages written in place in shared memory, and read in place.
//! 8. [`registry`]: locks that know their owner, and survive it.
//! 9. [`mode`]: by which fabric, link and protocol data goes: asked for, watched, and chosen.
//! 10. [`mod@atomic`]: updates of shared memory as ordinary expressions, made atomic in the cheapest way.
//! 11. [`device`]: one reception FIFO that the threads of several processes share.
//! 12. [`io`]: files of a node that has some, for nodes that have none.
//!
//! Beside them, [`topology`]: who is whose neighbour in a torus, and who is whose parent in a combining tree; and [`testing`]: a domain
//! in one process for the tests of your own programs.
//!
//! Below lie the fabrics: [`doorbell_shm`] for processes that share memory.

// What `atomic!` makes names this crate, in this crate too.
extern crate self as doorbell;

#[cfg(not(loom))]
pub mod atomic;
#[cfg(not(loom))]
pub mod collective;
#[cfg(not(loom))]
pub mod counter;
#[cfg(not(loom))]
pub mod device;
pub mod engine;
pub mod error;
#[cfg(not(loom))]
pub mod fabrics;
#[cfg(not(loom))]
pub mod io;
#[cfg(not(loom))]
pub mod loan;
pub mod message;
pub mod mode;
#[cfg(not(loom))]
pub mod node;
#[cfg(not(loom))]
pub mod reactor;
#[cfg(not(loom))]
pub mod region;
#[cfg(not(loom))]
pub mod registry;
#[cfg(not(loom))]
pub mod stream;
#[cfg(not(loom))]
pub mod testing;
pub mod topology;
#[cfg(not(loom))]
pub mod transfer;

pub use doorbell_fabric::{Envelope, Incarnation, NodeId, Payload, Priority, Role};
pub use engine::wait::Wait;
#[cfg(not(loom))]
pub use error::DeviceFault;
pub use error::{Certainty, Error, KeyFault, Result};
pub use message::{Match, Message};

#[cfg(not(loom))]
pub use counter::{Counter, CounterKey, Lowered};
#[cfg(not(loom))]
pub use device::{Device, DeviceBuilder, DeviceCounts, DeviceEnvelope, DeviceSender, DeviceThread};
#[cfg(not(loom))]
pub use doorbell_macros::atomic;
#[cfg(not(loom))]
pub use doorbell_shm::board::{Figure, Figures};
#[cfg(not(loom))]
pub use doorbell_shm::keys::{KeyFacts, OwnerId, Resource, Value};
#[cfg(not(loom))]
pub use doorbell_shm::{domain::Member, faults::Faults, layout::LaneGeometry, space::Space};
#[cfg(not(loom))]
pub use doorbell_udp::{UdpError, port::Kind as PortKind};
#[cfg(not(loom))]
pub use engine::poller::Progress;
#[cfg(not(loom))]
pub use fabrics::FabricKind;
#[cfg(not(loom))]
pub use loan::{Lendable, Loan, LoanMut, LoanStats, Recipient, Taken};
#[cfg(not(loom))]
pub use node::{Completion, Done, Event, Node, NodeBuilder, NodeName, Peer, Request, Stats};
#[cfg(not(loom))]
pub use reactor::Reactor;
#[cfg(not(loom))]
pub use region::{Access, KEY_BYTES, Key, Plain, ReadOnly, ReadWrite, Region, Stored};
#[cfg(not(loom))]
pub use registry::{Accepted, Circle, KeyGuard, LockFault, LockKey, Offer, Shared, SharedGuard, TaskGuard, TryLock};
#[cfg(not(loom))]
pub use stream::{Connector, Listener, ListenerBuilder, Stream};
#[cfg(not(loom))]
pub use transfer::{Copy, TransferReport};
#[cfg(not(loom))]
pub use zerocopy;

#[cfg(all(doctest, feature = "tokio", not(loom)))]
#[doc = include_str!("../../docs/guide.md")]
struct Guide;
