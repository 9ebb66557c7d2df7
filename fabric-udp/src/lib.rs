//! The Ethernet stand-in: nodes that share no memory reach each other by UDP.
//!
//! Two halves that meet in [`Run`] alone. [`protocol`] makes an unreliable, unordered, hostile network reliable; it does no
//! input or output, reads no clock, and is driven by whoever calls it. [`port`] moves datagrams between the kernel and memory, and knows no
//! protocol.

pub mod port;
pub mod protocol;
mod run;

pub use run::Run;
