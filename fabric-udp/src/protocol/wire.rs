//! Layouts of little-endian numbers: read off the front of a slice, and written one after another. Every bound is checked.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
pub(crate) use zerocopy::little_endian::{U16, U32, U64};
pub(crate) use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Takes a value of fixed layout off the front of a slice.
#[inline]
pub(crate) fn take<'a, T: FromBytes + KnownLayout + Immutable + Unaligned>(bytes: &mut &'a [u8]) -> Option<&'a T> {
    let (value, rest) = T::ref_from_prefix(bytes).ok()?;
    *bytes = rest;
    Some(value)
}

/// Takes bytes behind their number.
pub(crate) fn take_message<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = take::<U16>(bytes)?.get();
    bytes.split_off(..usize::from(len))
}

/// An address. One of IPv4 is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Address {
    ip: [u8; 16],
    port: U16,
}

impl Address {
    pub fn get(self) -> SocketAddr {
        SocketAddr::new(IpAddr::V6(Ipv6Addr::from(self.ip)).to_canonical(), self.port.get())
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        Self { ip: ip.octets(), port: address.port().into() }
    }
}

/// Writes values one after another. The caller ensures that there is [`room`](Self::room).
pub(crate) struct Writer<'a> {
    buf: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    #[inline]
    pub fn new(buf: &'a mut [u8]) -> Self {
        Self { buf, at: 0 }
    }

    /// Writes a value of fixed layout, or bytes.
    #[inline]
    pub fn put<T: IntoBytes + Immutable + ?Sized>(&mut self, value: &T) {
        let bytes = value.as_bytes();
        self.space(bytes.len()).copy_from_slice(bytes);
    }

    /// The number of bytes written.
    #[inline]
    pub fn len(&self) -> usize {
        self.at
    }

    /// The number of bytes that still fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.buf.len() - self.at
    }

    /// The next `len` bytes, for the caller to write.
    #[inline]
    pub fn space(&mut self, len: usize) -> &mut [u8] {
        let space = &mut self.buf[self.at..self.at + len];
        self.at += len;
        space
    }

    /// Removes everything behind the first `len` bytes.
    #[inline]
    pub fn back_to(&mut self, len: usize) {
        debug_assert!(len <= self.at);
        self.at = len;
    }
}
