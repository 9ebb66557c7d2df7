//! The stream service: bytes in order between two nodes, in both directions. A server calls [`Listener::builder`] with the name
//! of a service, then `bind` and [`accept`](Listener::accept). A client calls [`Stream::builder`] with the same name, then
//! `connect`; after that both sides read and write their [`Stream`] like a socket, and each direction ends by itself.
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
//! If the two nodes share memory, the bytes go through a ring in it, one for each direction. No system call is made while both
//! sides are busy. If not, the bytes go by the same lanes as all other packets, and at most 256 KiB are under way until the
//! other side reads. Either way a writer waits when the reader is slow.

mod blocking;
mod connect;
mod end;
mod handle;
mod listen;
mod near;
pub mod reactor;
mod table;
mod tasks;
#[cfg(test)]
mod tests;
mod wire;

pub use connect::StreamBuilder;
pub use handle::Stream;
pub use listen::{Listener, ListenerBuilder};
pub use reactor::Reactor;

/// Checks the length of a service name.
fn check_service(service: &str) -> std::io::Result<()> {
    if (1..=SERVICE_MAX).contains(&service.len()) {
        return Ok(());
    }
    let what = format!("the name of a service has 1 to {SERVICE_MAX} bytes, not {}", service.len());
    Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, what))
}

/// The longest name of a service, in bytes.
const SERVICE_MAX: usize = 255;
