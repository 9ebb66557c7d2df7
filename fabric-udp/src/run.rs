//! What the two halves give each other.

use std::net::SocketAddr;

/// Datagrams from or to one address, one behind the other: each of `segment` bytes but the last, which may be shorter. What the
/// kernel takes (GSO) and gives (GRO) in one call.
#[derive(Debug)]
pub struct Run<'a> {
    /// Where they came from, or go to.
    pub peer: SocketAddr,
    /// All their bytes. The protocol decrypts in place.
    pub bytes: &'a mut [u8],
    /// Bytes of each but the last.
    pub segment: usize,
}

impl Run<'_> {
    /// The datagrams, one by one.
    pub fn datagrams(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.bytes.chunks_mut(self.segment.max(1))
    }
}
