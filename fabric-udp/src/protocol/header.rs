//! The first bytes of a datagram.

use super::wire::{Put, Reader, Writer};

/// The kind of a datagram, which is its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A request for a session.
    Hello = 0xD0,
    /// An answer that asks for a new request with this cookie.
    Retry = 0xD1,
    /// A request for a session whose sender has shown that it receives at its address.
    Open = 0xD2,
    /// The session is granted.
    Accept = 0xD3,
    /// The session is refused.
    Reject = 0xD4,
    /// Frames of a session.
    Data = 0xD8,
}

impl Kind {
    #[inline]
    pub fn of(datagram: &[u8]) -> Option<Kind> {
        let first = *datagram.first()?;
        let kinds = [Kind::Data, Kind::Hello, Kind::Retry, Kind::Open, Kind::Accept, Kind::Reject];
        kinds.into_iter().find(|kind| *kind as u8 == first)
    }
}

/// The length of the header of a data datagram.
pub(crate) const HEADER: usize = 16;

/// The header of a data datagram. It is sent in clear and covered by the checksum or as associated data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The number of the key that seals it, counted from zero, wrapping. Always zero without a key.
    pub epoch: u8,
    /// The number of bytes from the start that the checksum covers; zero means all. Always zero with a key.
    pub covered: u16,
    /// The receiver's name for the session.
    pub session: u32,
    /// The packet number. Never used twice in one direction of a session.
    pub number: u64,
}

impl Header {
    #[inline]
    pub fn write(&self, writer: &mut Writer) {
        let first = u64::from(Kind::Data as u8)
            | u64::from(self.epoch) << 8
            | u64::from(self.covered) << 16
            | u64::from(self.session) << 32;
        writer.u64(first);
        writer.u64(self.number);
    }

    /// The header of a datagram that is known to be of kind [`Data`](Kind::Data).
    #[inline]
    pub fn read(datagram: &[u8]) -> Option<Header> {
        let mut reader = Reader::new(datagram);
        let first = reader.u64()?;
        let number = reader.u64()?;
        Some(Header { epoch: (first >> 8) as u8, covered: (first >> 16) as u16, session: (first >> 32) as u32, number })
    }
}
