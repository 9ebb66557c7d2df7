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
//! // Two nodes in one process here. In your program they are in two processes, without the line about the space.
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
//! The parts:
//!
//! - [`Node`] and [`Peer`]: messages. Threads share a `Node`; a `Peer` is one thread's own handle to another node, and the
//!   fastest way.
//! - [`Loan`] and [`Taken`]: messages that are written in place in shared memory, and read in place ([`loan`]).
//! - [`Region`] and [`Key`]: memory of one node that other nodes write and read without its help ([`region`]). [`Counter`]
//!   tells when all bytes of a transfer have moved ([`counter`]).
//! - [`mode`]: the fabric, link and protocol of each message: requested, observed, chosen.
//! - Services, each a feature of this crate: [`Lock`] ([`lock`]), [`Stream`] and [`Reactor`] ([`stream`]), [`collective`],
//!   [`mod@atomic`], [`Device`] ([`device`]), [`io`].
//! - The network, the feature `udp`: [`NodeBuilder::listen`] and [`NodeBuilder::connect`]. A program that only shares memory
//!   turns it off, and builds without code for sockets and ciphers.
//! - [`testing`]: a domain in one process for the tests of your own programs.
//!
//! The folder `docs` of the repository is a book (`mdbook build docs`): a start and a guide, then a chapter for each part: messages,
//! regions, counters, loans, locks, atomics, collectives, modes, streams, device, files, network. `errors.md` has an entry for each error,
//! `limits.md` says what Doorbell does not do, and `performance.md` how fast it is beside others.
//!
//! Each handle has a builder, `Noun::builder(&node)`. Each call that waits has the forms `try_` (never waits), `_until` (until a
//! deadline) and `start_` (owns its buffer, and is a `Future`).

pub mod testing;

pub mod region {
    //! Regions and keys: memory of one node that other nodes write and read without its processor. See [`Region`].

    pub use doorbell_engine::region::{Access, KEY_BYTES, Key, Plain, ReadOnly, ReadWrite, Region, Stored};
}

pub mod dma {
    //! The DMA engine as a program uses it: descriptors that are injected into FIFOs, and executed while the program computes.
    //! See [`InjectionFifo`].

    pub use doorbell_engine::dma::{Descriptor, FifoBuilder, FifoKey, InjectionFifo, ReceptionFifo};
}

pub mod service {
    //! Services that a program adds: functions of nodes that use packets of a class of their own.
    //!
    //! Pass a [`Service`] to [`NodeBuilder::service`](crate::NodeBuilder::service); threads reach it by a [`ServiceHandle`]. It
    //! gets the packets of its class, turns with an [`Outbox`], and one call for each peer that is gone. Its errors implement
    //! [`ServiceError`], and so convert into [`Error`](crate::Error). `examples/service` is a key-value store made of one.

    pub use doorbell_engine::error::ServiceError;
    pub use doorbell_engine::message::service::{Class, CloseReason, Gone, Outbox, PeerId, Pushed, Route, Service, Wants};
    pub use doorbell_engine::node::ServiceHandle;
    pub use doorbell_fabric::{PacketKind, Verdict};
}

pub mod transfer {
    //! Reports of large messages, which are moved from both ends at once. See [`TransferReport`].

    pub use doorbell_engine::transfer::report::thread_number;
    pub use doorbell_engine::transfer::{CopySide, Descriptor, Executed, RENDEZVOUS_BYTES, Side, TransferReport};
}

pub use doorbell_engine::{
    Access, Certainty, Completion, CopySide, Counter, CounterKey, Envelope, Error, Event, Faults, Incarnation, KEY_BYTES, Key,
    KeyFault, LaneGeometry, Lendable, Loan, LoanMut, LoanStats, Lowered, Match, Member, Message, Metric, Metrics, Node,
    NodeBuilder, NodeId, NodeName, Operation, Payload, Peer, Plain, Priority, Progress, ReadOnly, ReadWrite, Received, Recipient,
    Region, Result, Role, Space, Stats, Stored, Taken, TransferReport, Wait,
};
#[cfg(feature = "udp")]
pub use doorbell_engine::{Address, FabricKind, PortKind, UdpError};
pub use doorbell_engine::{counter, error, loan, mode};
pub use zerocopy;

#[cfg(feature = "atomic")]
pub use doorbell_atomic::{self as atomic, AtomicError};
#[cfg(feature = "collective")]
pub use doorbell_collective::{self as collective, TeamError, topology};
#[cfg(feature = "device")]
pub use doorbell_device::{
    self as device, Device, DeviceBuilder, DeviceCounts, DeviceEnvelope, DeviceError, DeviceSender, DeviceThread,
};
#[cfg(feature = "io")]
pub use doorbell_io as io;
#[cfg(feature = "lock")]
pub use doorbell_lock::{self as lock, Accepted, Lock, LockError, LockGuard, Offer, Shared, SharedGuard, TaskGuard, TryLock};
#[cfg(feature = "atomic")]
pub use doorbell_macros::atomic;
#[cfg(feature = "lock")]
pub use doorbell_shm::keys::{LockFacts, OwnerId, Resource, Value};
#[cfg(feature = "stream")]
pub use doorbell_stream::{self as stream, Listener, ListenerBuilder, Reactor, Stream, StreamBuilder, reactor};
