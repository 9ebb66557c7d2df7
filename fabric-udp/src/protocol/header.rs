//! The first bytes of a datagram.

use super::wire::{Reader, Writer};

/// What a datagram is: its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Somebody wants a session.
    Hello = 0xD0,
    /// Come again with this cookie.
    Retry = 0xD1,
    /// Somebody wants a session, and has shown that they receive at their address.
    Open = 0xD2,
    /// Here it is.
    Accept = 0xD3,
    /// There will be none.
    Reject = 0xD4,
    /// Frames of a session.
    Data = 0xD8,
}

impl Kind {
    pub fn of(datagram: &[u8]) -> Option<Kind> {
        match *datagram.first()? {
            0xD0 => Some(Kind::Hello),
            0xD1 => Some(Kind::Retry),
            0xD2 => Some(Kind::Open),
            0xD3 => Some(Kind::Accept),
            0xD4 => Some(Kind::Reject),
            0xD8 => Some(Kind::Data),
            _ => None,
        }
    }
}

/// Bytes of the header of a data datagram.
pub(crate) const HEADER: usize = 16;

/// The header of a data datagram: in clear, and covered by the integrity check or as associated data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Which key it is sealed with, counted from zero, wrapping. Always zero without a key.
    pub epoch: u8,
    /// How many bytes from the start the checksum covers; zero: all. Always zero with a key.
    pub covered: u16,
    /// The session, as its receiver named it.
    pub session: u32,
    /// Never used twice in one direction of a session.
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
