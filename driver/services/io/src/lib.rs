//! Files for nodes that have none: an I/O node carries out what compute nodes ship to it.
//!
//! A node of [`Role::Io`](doorbell_engine::Role) serves one directory by an [`IoServer`]. Another node becomes a client with [`IoClient::connect`], and
//! opens, reads, writes, lists and removes files in that directory as [`std::fs`] does with its own: an [`IoFile`] is
//! [`Read`](std::io::Read), [`Write`](std::io::Write) and [`Seek`](std::io::Seek), and errors have the number that the system gave at the other end.
//!
//! - **The directory can't be left**, by `..`, absolute paths or links. Only regular files and directories are opened.
//! - **Descriptors** are a client's own small numbers. They are closed when it drops them, leaves or dies.
//! - **Small reads and writes** go in the message; over shared memory all but the smallest go through staging memory of the server, which the client
//!   reads and writes by itself ([`Peer::get`](doorbell_engine::Peer::get), [`Peer::put`](doorbell_engine::Peer::put)). Large ones go in pieces through the same
//!   memory, several under way: while the client takes one the server has the next read.
//! - **The server** does what may wait for a medium by io_uring, so that no client waits for another's; see [`IoEngine`].
//!
//! What is read and written is not kept by either side: what one client wrote, the next one reads, as between processes of one machine.

mod carry;
mod client;
mod clients;
mod connection;
mod export;
mod file;
mod files;
mod introduce;
mod server;
mod way;
mod wire;
mod worker;

pub use client::{IoClient, IoClientBuilder, IoOpenOptions};
pub use file::{IoEntry, IoFile, IoMetadata};
pub use files::IoEngine;
pub use server::{IoCounts, IoServer, IoServerBuilder};
