//! The Ethernet stand-in: nodes that share no memory reach each other by UDP.
//!
//! A [`fabric`] made of two halves that meet in [`Run`] alone. [`protocol`] makes an unreliable, unordered, hostile network reliable; it does no
//! input or output, reads no clock, and is driven by whoever calls it. [`port`] moves datagrams between the kernel and memory, and knows no
//! protocol.

pub mod fabric;
pub mod port;
pub mod protocol;
mod run;

pub use fabric::{UdpError, UdpFabric, UdpLink, UdpOptions};
pub use run::Run;
