//! The vocabulary of Doorbell, and the contract between the driver and its fabrics.
//!
//! The modules, in the order in which a message uses them:
//!
//! 1. [`id`]: the two ends — [`NodeId`], [`Incarnation`], [`Role`], [`Priority`].
//! 2. [`envelope`]: the description of a message — [`Envelope`].
//! 3. [`packet`]: the unit of transfer — a [`PacketHead`] with its kind, and the [`Payload`] behind it.
//! 4. [`fabric`]: the transport — [`Fabric`] polls packets in, [`Link`] pushes them out.
//! 5. [`transfer`]: the two ends of bytes that a network moves apart from its packets — [`BytesOut`], [`BytesIn`].
//! 6. [`sync`]: the atomics and barriers that every crate uses. Under `cfg(loom)` they are loom's.
//! 7. [`copies`] and [`hint`]: the ways to copy many bytes, and requests for cache lines.
//!
//! This crate does no input or output and knows no particular fabric.

// Every other crate depends on this one, so this is the first error elsewhere.
#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!(
    "Doorbell needs Linux on x86-64 or AArch64: it uses futexes, membarrier and /dev/shm, and no other system has all of them"
);

pub mod copies;
pub mod envelope;
pub mod fabric;
pub mod hint;
pub mod id;
pub mod packet;
pub mod sync;
pub mod transfer;
pub mod world;

pub use envelope::{Envelope, Message};
pub use fabric::{Fabric, Link, LinkDown, Push, Sink, Verdict};
pub use id::{Incarnation, NodeId, PRIORITIES, ParseIdError, PeerWord, Priority, Role};
pub use packet::{PacketHead, PacketKind, Payload};
pub use transfer::{BytesIn, BytesOut, TransferId};
