//! Packets, the units in which messages travel over a fabric.

use crate::copies::{self, Known};
use std::marker::PhantomData;

/// The part that a packet plays in its message. The numbers are part of the shared-memory layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PacketKind {
    /// A whole message. Never zero, so that a published cell differs from a blank one.
    Whole = 1,
    /// The first packet of a longer message; `total` is the length of the message. If another message of the same lane was
    /// incomplete, its sender has given that one up.
    First = 2,
    /// A further part of the message that the latest `First` began.
    Next = 3,
    /// The sender gives up the message that the latest `First` began. It has no payload.
    GivenUp = 4,
    /// A request to send a message that both ends will move: `total` is its length, and the payload is the direct-put descriptor.
    Rts = 5,
    /// A memory-FIFO packet of such a message: `tag` names the transfer, and `total` is the offset of its bytes.
    Chunk = 6,
    /// A control word between two engines: a remote get, the end of a transfer, or a counter to lower.
    Control = 7,
    /// A loan: a whole message that lies in the sender's memory. The payload says where.
    Loan = 8,
    /// A part of a put or get, or a reply to one, between nodes that share no memory; `tag` says which. Never in shared memory.
    Region = 9,
    /// A message of the lock registry; `tag` says whether it is a request, a reply or a notice.
    Letter = 10,
    /// A part of a collective of a team whose members do not all share memory; `tag` names the team.
    Team = 11,
    /// A part of a message for a device, or a control message about one, between nodes that share no memory; `tag` says which.
    /// Never in shared memory.
    Device = 12,
    /// A control message about a stream, or bytes of a stream between nodes that share no memory; `tag` says which, and of which
    /// stream.
    Stream = 13,
    /// A packet of a service that a program adds, of the first of four classes.
    User0 = 14,
    /// A packet of the second class.
    User1 = 15,
    /// A packet of the third class.
    User2 = 16,
    /// A packet of the fourth class.
    User3 = 17,
    /// A packet of the DMA engine: for a reception FIFO, a put, a remote get, a reply or a counter to lower.
    Dma = 18,
}

impl PacketKind {
    /// The kind with this number, or `None`: the number may come from shared memory.
    #[inline]
    pub fn from_number(number: u8) -> Option<PacketKind> {
        match number {
            1 => Some(PacketKind::Whole),
            2 => Some(PacketKind::First),
            3 => Some(PacketKind::Next),
            4 => Some(PacketKind::GivenUp),
            5 => Some(PacketKind::Rts),
            6 => Some(PacketKind::Chunk),
            7 => Some(PacketKind::Control),
            8 => Some(PacketKind::Loan),
            9 => Some(PacketKind::Region),
            10 => Some(PacketKind::Letter),
            11 => Some(PacketKind::Team),
            12 => Some(PacketKind::Device),
            13 => Some(PacketKind::Stream),
            14 => Some(PacketKind::User0),
            15 => Some(PacketKind::User1),
            16 => Some(PacketKind::User2),
            17 => Some(PacketKind::User3),
            18 => Some(PacketKind::Dma),
            _ => None,
        }
    }

    /// Whether `total` of this packet differs from the packet's own length.
    #[inline]
    pub fn has_total(self) -> bool {
        matches!(self, PacketKind::First | PacketKind::Rts | PacketKind::Chunk)
    }
}

/// The header of one packet, in private memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketHead {
    /// The part that the packet plays in its message.
    pub kind: PacketKind,
    /// The message's tag.
    pub tag: u64,
    /// The message's sequence number.
    pub sequence: u32,
    /// Length of the whole message in bytes. For `Chunk` it is an offset; for a packet without a total it is the packet's own
    /// length.
    pub total: u64,
}

/// The bytes of a message at the place where they lie.
///
/// The sender may still be able to write to that memory, so there is no safe `&[u8]` over it. Copy the bytes out with
/// [`copy_to`](Self::copy_to) or [`to_vec`](Self::to_vec), or read values at offsets.
#[derive(Clone, Copy)]
pub struct Payload<'a> {
    ptr: *const u8,
    len: usize,
    known: Known,
    bytes: PhantomData<&'a [u8]>,
}

impl<'a> Payload<'a> {
    /// A view of `len` bytes at `ptr`.
    ///
    /// # Safety
    /// The bytes must be mapped and readable for `'a`. They may change at any time.
    #[inline]
    pub unsafe fn from_raw(ptr: *const u8, len: usize) -> Self {
        Self { ptr, len, known: Known::Nothing, bytes: PhantomData }
    }

    /// The receiver's knowledge of these bytes, by which it chooses how to copy them.
    #[doc(hidden)]
    #[inline]
    pub fn known(&self) -> Known {
        self.known
    }

    /// The same bytes, of which this is known.
    #[doc(hidden)]
    #[inline]
    pub fn with(self, known: Known) -> Self {
        Self { known, ..self }
    }

    /// A view of private bytes.
    #[inline]
    pub fn private(bytes: &'a [u8]) -> Self {
        Self { ptr: bytes.as_ptr(), len: bytes.len(), known: Known::Nothing, bytes: PhantomData }
    }

    /// A pointer to the first byte. [`len`](Self::len) bytes are readable for `'a`; they may change at any time.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// The number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies as many bytes as fit into `buf`, and returns their number.
    #[inline]
    pub fn copy_to(&self, buf: &mut [u8]) -> usize {
        let len = self.len.min(buf.len());
        // For the most common lengths a call of memcpy takes longer than the rest of a receive.
        match len {
            // SAFETY: `len` bytes are readable at `ptr` (from_raw's caller) and writable in `buf`, and `len` is at least `N`.
            8 => unsafe { self.copy_ends::<8>(buf, len) },
            // SAFETY: as above.
            32..=64 => unsafe { self.copy_ends::<32>(buf, len) },
            // SAFETY: `len` bytes are readable at `ptr` (from_raw's caller) and writable in `buf`; `buf` is exclusive, so the two
            // do not overlap.
            _ => unsafe { Self { len, ..*self }.copy_all(buf.as_mut_ptr()) },
        }
        len
    }

    /// Copies all bytes.
    ///
    /// # Safety
    /// [`len`](Self::len) bytes are writable at `to`, and none of them are bytes of this payload.
    #[inline(always)]
    unsafe fn copy_all(&self, to: *mut u8) {
        // SAFETY: the bytes are readable at `ptr` (from_raw's caller) and writable at `to` (caller).
        unsafe { copies::out(self.known, self.ptr, to, self.len) }
    }

    /// Copies the first `N` and the last `N` of `len` bytes. Those are all of them, because `len` is at most twice `N`.
    ///
    /// # Safety
    /// `len` bytes are readable at `ptr` and writable in `buf`, and `len` is at least `N`.
    #[inline(always)]
    unsafe fn copy_ends<const N: usize>(&self, buf: &mut [u8], len: usize) {
        for at in [0, len - N] {
            // SAFETY: `at + N <= len` (caller). Arrays of bytes need no alignment.
            unsafe { buf.as_mut_ptr().add(at).cast::<[u8; N]>().write(self.ptr.add(at).cast::<[u8; N]>().read()) };
        }
    }

    /// Copies the bytes into a vector.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append_to(&mut bytes);
        bytes
    }

    /// Appends the bytes to a vector.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        bytes.reserve(self.len);
        let end = bytes.len();
        // SAFETY: `len` bytes are readable at `ptr` (from_raw's caller) and writable behind `end` (reserve), and the copy
        // initialises them. A vector owns its memory, so the two do not overlap.
        unsafe {
            self.copy_all(bytes.as_mut_ptr().add(end));
            bytes.set_len(end + self.len);
        }
    }

    /// The native-endian `u64` at `offset`, or `None` if it reaches beyond the end.
    #[inline]
    pub fn u64_at(&self, offset: usize) -> Option<u64> {
        let mut word = [0; 8];
        self.slice(offset, 8)?.copy_to(&mut word);
        Some(u64::from_ne_bytes(word))
    }

    /// The `len` bytes at `offset`, or `None` if they reach beyond the end.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Option<Payload<'a>> {
        let end = offset.checked_add(len)?;
        // SAFETY: the range lies inside this payload.
        (end <= self.len).then(|| Payload { ptr: unsafe { self.ptr.add(offset) }, len, ..*self })
    }

    /// The bytes in place.
    ///
    /// # Safety
    /// The caller guarantees that the sender does not write to the bytes while the slice lives. A sender that runs Doorbell keeps
    /// to that; a compromised sender, or one with a stray pointer, does not.
    #[inline]
    pub unsafe fn as_slice(&self) -> &'a [u8] {
        // SAFETY: readable for 'a (from_raw's caller); unchanging (this function's caller).
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }
}

impl std::fmt::Debug for Payload<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Payload({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_read_within_its_bounds_only() {
        let bytes: Vec<u8> = (0..20).collect();
        let payload = Payload::private(&bytes);
        assert_eq!(payload.u64_at(12), Some(u64::from_ne_bytes([12, 13, 14, 15, 16, 17, 18, 19])));
        assert_eq!(payload.u64_at(13), None);
        assert_eq!(payload.u64_at(usize::MAX), None);
        assert_eq!(payload.slice(18, 2).unwrap().to_vec(), [18, 19]);
        assert!(payload.slice(18, 3).is_none());
        let mut short = [0; 4];
        assert_eq!(payload.copy_to(&mut short), 4);
        assert_eq!(short, [0, 1, 2, 3]);
    }

    #[test]
    fn payloads_are_copied_whole_whatever_is_known_about_them() {
        const LONG: usize = 64 << 10;
        let source: Vec<u8> = (0..LONG + 300).map(|at| (at * 7 / 5) as u8).collect();
        for len in [8191, 8192, 8192 + 255, 8192 + 256, LONG - 1, LONG, source.len() - 3] {
            let payload = Payload::private(&source[3..3 + len]);
            for known in [Known::Nothing, Known::Streamed, Known::Long, Known::Spilled] {
                for payload in [payload.with(known), payload.with(known).slice(0, len).unwrap()] {
                    let mut copy = vec![0; len + 1];
                    assert_eq!(payload.copy_to(&mut copy), len);
                    assert!(copy[..len] == source[3..3 + len] && copy[len] == 0, "{len} {known:?}");
                }
            }
        }
    }
}
