//! Streams: bytes in order between two nodes, in both directions, found by the name of a service. What is written to a [`Stream`] is read from
//! the one at the other end; each direction ends by itself.
//!
//! ```
//! use doorbell::{Listener, Node, Space, Stream};
//! use std::io::{Read, Write};
//!
//! # fn main() -> std::io::Result<()> {
//! # let space = Space::heap();
//! let server = Node::builder("streams").space(space.clone()).join()?;
//! let listener = Listener::builder(&server, "echo").bind()?;
//!
//! let client = Node::builder("streams").space(space).join()?; // of this or of another process
//! let mut near = Stream::builder(&client, "echo").connect()?;
//! let (mut far, peer) = listener.accept()?;
//! assert_eq!(peer, client.id());
//!
//! near.write_all(b"hello")?;
//! near.close(std::net::Shutdown::Write)?;
//! let mut text = String::new();
//! far.read_to_string(&mut text)?;
//! assert_eq!(text, "hello");
//! # Ok(())
//! # }
//! ```
//!
//! Where the two nodes share memory, bytes go through a ring there, one for each direction: no system call is made as long as both sides are busy. Where
//! they do not, bytes go by the same lanes as everything else, 256 KiB at a time until the other side has read. Either way a writer waits when the reader is slow.

mod blocking;
mod connect;
mod end;
mod handle;
mod listen;
mod near;
pub mod reactor;
mod service;
mod table;
mod tasks;
#[cfg(test)]
mod tests;
mod wire;

pub use connect::StreamBuilder;
pub use handle::Stream;
pub use listen::{Listener, ListenerBuilder};
pub use reactor::Reactor;

/// What is wrong with the name of a service.
fn check_service(service: &str) -> std::io::Result<()> {
    if (1..=SERVICE_MAX).contains(&service.len()) {
        return Ok(());
    }
    let what = format!("a service has a name of 1 to {SERVICE_MAX} bytes, and not of {}", service.len());
    Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, what))
}

/// The longest name of a service, in bytes.
const SERVICE_MAX: usize = 255;
