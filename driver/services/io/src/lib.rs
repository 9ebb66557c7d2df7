//! The I/O service: files for nodes that have none, which an I/O node reads and writes for compute nodes. The node with the
//! files calls [`IoServer::builder`] with one directory, then [`start`](IoServerBuilder::start). Another node calls
//! [`IoClient::connect`], and then [`IoClient::open`], [`create`](IoClient::create) or [`read_dir`](IoClient::read_dir), as
//! with [`std::fs`].
//!
//! An [`IoFile`] is [`Read`](std::io::Read), [`Write`](std::io::Write) and [`Seek`](std::io::Seek). Errors carry the errno of
//! the server's system. The server's node should have the role [`Role::Io`](doorbell_engine::Role), by which clients find it.
//!
//! - **The directory can't be left**, by `..`, absolute paths or links. Only regular files and directories are opened.
//! - **Descriptors** are small numbers of each client. They are closed when the client drops them, leaves or dies.
//! - **Small reads and writes** go in the message. Over shared memory all but the smallest go through staging memory of the
//!   server, which the client reads and writes itself ([`Peer::get`](doorbell_engine::Peer::get),
//!   [`Peer::put`](doorbell_engine::Peer::put)). Large ones go in pieces through the same memory, several at a time: while the
//!   client copies one piece, the server reads the next.
//! - **The server** does what may wait for a medium by io_uring, so that no client waits for another's medium; see [`IoEngine`].
//!
//! Neither side caches. What one client has written, the next one reads, as between processes of one machine.

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
