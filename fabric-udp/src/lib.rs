//! The Ethernet stand-in: nodes that share no memory reach each other by UDP.
//!
//! The [`fabric`] consists of two halves that share only [`Run`]. [`protocol`] makes a reliable connection out of an unreliable,
//! unordered, hostile network. It does no input or output and reads no clock; its caller drives it. [`port`] moves datagrams
//! between the kernel and memory, and knows no protocol.

pub mod fabric;
pub mod port;
pub mod protocol;
mod run;

pub use fabric::{UdpError, UdpFabric, UdpLink, UdpOptions};
pub use run::Run;
