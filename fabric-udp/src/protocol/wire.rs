//! Reads and writes little-endian numbers, and checks every bound.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Reads numbers and bytes off the front of a slice.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    #[inline]
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(len)?;
        self.bytes = rest;
        Some(taken)
    }

    #[inline]
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        Some(*taken)
    }

    #[inline]
    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    #[inline]
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    #[inline]
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    #[inline]
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Bytes behind their number.
    pub fn message(&mut self) -> Option<&'a [u8]> {
        let len = self.u16()?;
        self.bytes(len.into())
    }

    pub fn address(&mut self) -> Option<SocketAddr> {
        let ip = IpAddr::V6(Ipv6Addr::from(self.array::<16>()?)).to_canonical();
        Some(SocketAddr::new(ip, self.u16()?))
    }
}

/// Takes numbers and bytes one after another.
pub(crate) trait Put {
    fn bytes(&mut self, bytes: &[u8]);

    #[inline]
    fn u8(&mut self, number: u8) {
        self.bytes(&[number]);
    }

    #[inline]
    fn u16(&mut self, number: u16) {
        self.bytes(&number.to_le_bytes());
    }

    #[inline]
    fn u32(&mut self, number: u32) {
        self.bytes(&number.to_le_bytes());
    }

    #[inline]
    fn u64(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    /// Bytes behind their number.
    fn message(&mut self, bytes: &[u8]) {
        self.u16(bytes.len() as u16);
        self.bytes(bytes);
    }

    fn address(&mut self, address: SocketAddr) {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        self.bytes(&ip.octets());
        self.u16(address.port());
    }
}

impl Put for Vec<u8> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl Put for Writer<'_> {
    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        self.space(bytes.len()).copy_from_slice(bytes);
    }
}

/// Writes numbers and bytes one after another. The caller ensures that there is [`room`](Self::room).
pub(crate) struct Writer<'a> {
    buf: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    #[inline]
    pub fn new(buf: &'a mut [u8]) -> Self {
        Self { buf, at: 0 }
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
