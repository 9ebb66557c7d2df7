//! The first bytes of a datagram.

use super::wire::{FromBytes, Immutable, IntoBytes, KnownLayout, U16, U32, U64, Unaligned};

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
pub(crate) const HEADER: usize = size_of::<Header>();

/// The header of a data datagram. It is sent in clear and covered by the checksum or as associated data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Header {
    kind: u8,
    /// The number of the key that seals it, counted from zero, wrapping. Always zero without a key.
    pub epoch: u8,
    /// The number of bytes from the start that the checksum covers; zero means all. Always zero with a key.
    pub covered: U16,
    /// The receiver's name for the session.
    pub session: U32,
    /// The packet number. Never used twice in one direction of a session.
    pub number: U64,
}

impl Header {
    #[inline]
    pub fn new(epoch: u8, covered: u16, session: u32, number: u64) -> Self {
        let kind = Kind::Data as u8;
        Self { kind, epoch, covered: covered.into(), session: session.into(), number: number.into() }
    }

    /// The header of a datagram that is known to be of kind [`Data`](Kind::Data).
    #[inline]
    pub fn read(datagram: &[u8]) -> Option<Header> {
        Some(Self::read_from_prefix(datagram).ok()?.0)
    }
}
