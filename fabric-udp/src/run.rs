//! The type that the two halves exchange.

use std::net::SocketAddr;

/// Consecutive datagrams from or to one address, each of `segment` bytes; the last one may be shorter. The kernel takes (GSO) and
/// delivers (GRO) a run in one call.
#[derive(Debug)]
pub struct Run<'a> {
    /// Their source or destination.
    pub peer: SocketAddr,
    /// All their bytes. The protocol decrypts in place.
    pub bytes: &'a mut [u8],
    /// The length of each datagram but the last.
    pub segment: usize,
}

impl Run<'_> {
    /// The datagrams, one by one.
    pub fn datagrams(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.bytes.chunks_mut(self.segment.max(1))
    }
}
