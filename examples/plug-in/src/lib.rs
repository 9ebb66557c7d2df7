//! Services written for sockets, over Doorbell: a gRPC service by tonic, an HTTP service by axum and hyper, and one by tarpc, each served and called over a
//! Unix socket or over a stream of Doorbell.
//!
//! Their services (`service.rs` beside each program) know nothing of either. What differs is in [`over`]: how a [`Listener`] comes by connections, and how a
//! [`Connector`] makes one. [`program`] is the rest of a program, and [`bench`](mod@bench) measures one.

pub mod bench;
pub mod over;
pub mod pattern;
pub mod program;

pub use over::{Connection, Connector, Listener};
pub use pattern::pattern;
pub use program::{Ask, Error, Kind, Program, Result, run};
