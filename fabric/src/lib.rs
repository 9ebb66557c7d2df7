//! The vocabulary of Doorbell, and the contract between the driver and its fabrics.
//!
//! A message meets the modules of this crate in this order:
//!
//! 1. [`id`]: who talks — [`NodeId`], [`Incarnation`], [`Role`], [`Priority`].
//! 2. [`envelope`]: what a message says of itself — [`Envelope`].
//! 3. [`packet`]: what travels — a [`PacketHead`] with its kind, and the [`Payload`] behind it.
//! 4. [`fabric`]: how it travels — [`Fabric`] polls packets in, [`Link`] pushes them out.
//! 5. [`sync`]: the atomics and barriers every room uses, exchanged for loom's under `cfg(loom)`.
//!
//! Nothing here does input or output, and nothing here knows which fabric it serves.

pub mod envelope;
pub mod fabric;
pub mod id;
pub mod packet;
pub mod sync;

pub use envelope::{Envelope, Message};
pub use fabric::{Fabric, Link, LinkDown, Push, Sink, Verdict};
pub use id::{Incarnation, NodeId, PRIORITIES, ParseIdError, Priority, Role};
pub use packet::{PacketHead, PacketKind, Payload};
