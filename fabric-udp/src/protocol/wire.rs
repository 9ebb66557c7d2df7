//! Reads and writes little-endian numbers, and checks every bound.

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

    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.space(bytes.len()).copy_from_slice(bytes);
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

    #[inline]
    pub fn u8(&mut self, number: u8) {
        self.bytes(&[number]);
    }

    #[inline]
    pub fn u16(&mut self, number: u16) {
        self.bytes(&number.to_le_bytes());
    }

    #[inline]
    pub fn u32(&mut self, number: u32) {
        self.bytes(&number.to_le_bytes());
    }

    #[inline]
    pub fn u64(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }
}
