//! Keys: names of parts of regions, with rights and an element type.

use crate::Result;
use crate::error::{Error, KeyFault};
use doorbell_fabric::{Incarnation, NodeId};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

/// The length of a key in a message: as many bytes as fit the cell of a lane, so that a message with a key takes one cache
/// line.
pub const KEY_BYTES: usize = 40;

const MAGIC: u8 = 0xdb;
const READ: u8 = 1;
const WRITE: u8 = 2;

/// Plain data: any bytes are a value, and a value has no other state. Numbers, arrays of numbers, and structures that derive
/// the three traits of [`zerocopy`].
pub trait Plain: zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable {}

impl<T: zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable> Plain for T {}

mod sealed {
    pub trait Sealed {}
}

/// The rights of a key.
pub trait Access: sealed::Sealed {
    /// Whether the key may put.
    const WRITABLE: bool;
}

/// The right to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOnly {}

/// The right to put and to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadWrite {}

impl sealed::Sealed for ReadOnly {}
impl sealed::Sealed for ReadWrite {}

impl Access for ReadOnly {
    const WRITABLE: bool = false;
}

impl Access for ReadWrite {
    const WRITABLE: bool = true;
}

/// The bytes that a key names.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// The owner of the region.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// The number of the region.
    pub number: u32,
    /// The offset from the start of the region's data, in bytes.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// The region's secret, or the one that `read_secret` derives from it.
    pub secret: u64,
}

/// The secret of keys that may only read. It can't be turned back by mistake.
#[inline(always)]
pub(crate) fn read_secret(secret: u64) -> u64 {
    let mixed = (secret ^ (secret >> 31)).wrapping_mul(0x7fb5_d329_728e_a185);
    (mixed ^ (mixed >> 27)).wrapping_mul(0x81da_def4_bc2d_d44d) ^ (mixed >> 33)
}

/// A name for elements of a region of one incarnation of a node, with the right to read or to write them. Plain data: copy it,
/// send it, keep it. A key is valid until its region is withdrawn or its node is gone. Using it after that only returns an
/// error.
///
/// In shared memory a key guards against mistakes. It does not protect from a hostile process of the same user. Over the
/// network, the owner of the region checks it at each put and get; the domain's key decides which nodes can connect at all.
pub struct Key<T, A> {
    pub(crate) place: Place,
    _means: PhantomData<fn() -> (T, A)>,
}

impl<T: Plain, A: Access> Key<T, A> {
    /// The number of the region.
    pub fn number(&self) -> u32 {
        self.place.number
    }

    pub(crate) fn new(place: Place) -> Self {
        Self { place, _means: PhantomData }
    }

    /// The node that has the memory.
    pub fn node(&self) -> NodeId {
        self.place.node
    }

    /// The incarnation of that node.
    pub fn incarnation(&self) -> Incarnation {
        self.place.incarnation
    }

    /// The number of elements that the key covers.
    pub fn len(&self) -> usize {
        (self.place.bytes / size_of::<T>() as u64) as usize
    }

    /// Whether it covers no elements.
    pub fn is_empty(&self) -> bool {
        self.place.bytes == 0
    }

    /// A key for the elements of `self` from this one on. Beyond the end it covers no elements: a put or get with it is
    /// [`KeyFault::OutOfRange`].
    #[must_use]
    pub fn at(&self, element: usize) -> Self {
        self.range(element..)
    }

    /// A key for this range of the elements of `self`, cut at their end.
    ///
    /// ```
    /// # use doorbell::{Node, Space};
    /// # fn main() -> Result<(), doorbell::Error> {
    /// # let node = Node::builder("doc").space(Space::heap()).join()?;
    /// let region = node.region::<u16>(100)?;
    /// let middle = region.key().range(25..75);
    /// assert_eq!((middle.len(), middle.at(40).len(), middle.range(49..99).len()), (50, 10, 1));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn range(&self, elements: impl RangeBounds<usize>) -> Self {
        let len = self.len();
        let start = match elements.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match elements.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => len,
        };
        let (start, end) = (start.min(len), end.min(len));
        let size = size_of::<T>() as u64;
        let bytes = end.saturating_sub(start) as u64 * size;
        Self::new(Place { offset: self.place.offset + start as u64 * size, bytes, ..self.place })
    }

    /// Encodes the key for a message.
    pub fn to_bytes(&self) -> [u8; KEY_BYTES] {
        let Place { node, incarnation, number, offset, bytes, secret } = self.place;
        let mut out = [0; KEY_BYTES];
        out[0] = MAGIC;
        out[1] = if A::WRITABLE { WRITE } else { READ };
        out[2..4].copy_from_slice(&node.0.to_le_bytes());
        out[4..8].copy_from_slice(&incarnation.0.to_le_bytes());
        out[8..12].copy_from_slice(&number.to_le_bytes());
        out[12..14].copy_from_slice(&type_tag::<T>().to_le_bytes());
        out[16..24].copy_from_slice(&offset.to_le_bytes());
        out[24..32].copy_from_slice(&bytes.to_le_bytes());
        out[32..40].copy_from_slice(&secret.to_le_bytes());
        let sum = checksum(&out);
        out[14..16].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Decodes a key from exactly [`KEY_BYTES`] bytes. A key with write access can be decoded as [`ReadOnly`].
    ///
    /// # Errors
    /// [`Error::Key`]: [`Forged`](KeyFault::Forged) if the bytes are no key or were changed; [`ReadOnly`](KeyFault::ReadOnly)
    /// if its rights do not suffice; [`WrongType`](KeyFault::WrongType) if its elements have another size or alignment.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        const OPERATION: &str = "read a key";
        let forged = Error::Key { operation: OPERATION, node: None, why: KeyFault::Forged };
        let Ok(bytes) = <&[u8; KEY_BYTES]>::try_from(bytes) else { return Err(forged) };
        let rights = bytes[1];
        let tag = u16::from_le_bytes([bytes[12], bytes[13]]);
        if bytes[0] != MAGIC || u16::from_le_bytes([bytes[14], bytes[15]]) != checksum(bytes) || !(READ..=WRITE).contains(&rights)
        {
            return Err(forged);
        }
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let mut place = Place {
            node: NodeId(u16::from_le_bytes([bytes[2], bytes[3]])),
            incarnation: Incarnation(u32_at(4)),
            number: u32_at(8),
            offset: u64_at(16),
            bytes: u64_at(24),
            secret: u64_at(32),
        };
        let fault = |why| Err(Error::Key { operation: OPERATION, node: Some(place.node), why });
        if rights == READ && A::WRITABLE {
            return fault(KeyFault::ReadOnly);
        }
        if tag != type_tag::<T>() {
            return fault(KeyFault::WrongType);
        }
        let whole = place.bytes.is_multiple_of(size_of::<T>() as u64) && place.offset.is_multiple_of(align_of::<T>() as u64);
        if !whole || place.offset.checked_add(place.bytes).is_none_or(|end| end > isize::MAX as u64) {
            return fault(KeyFault::Forged);
        }
        if rights == WRITE && !A::WRITABLE {
            place.secret = read_secret(place.secret);
        }
        Ok(Self::new(place))
    }
}

impl<T: Plain> Key<T, ReadWrite> {
    /// A key for the same elements that may only read.
    #[must_use]
    pub fn read_only(&self) -> Key<T, ReadOnly> {
        Key::new(Place { secret: read_secret(self.place.secret), ..self.place })
    }
}

impl<T: Plain> From<Key<T, ReadWrite>> for Key<T, ReadOnly> {
    fn from(key: Key<T, ReadWrite>) -> Self {
        key.read_only()
    }
}

impl<T, A> Clone for Key<T, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, A> Copy for Key<T, A> {}

impl<T, A> PartialEq for Key<T, A> {
    fn eq(&self, other: &Self) -> bool {
        self.place == other.place
    }
}

impl<T, A> Eq for Key<T, A> {}

impl<T, A> fmt::Debug for Key<T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { node, incarnation, number, offset, bytes, .. } = self.place;
        f.debug_struct("Key")
            .field("node", &node.0)
            .field("incarnation", &incarnation.0)
            .field("region", &number)
            .field("bytes", &(offset..offset.saturating_add(bytes)))
            .finish_non_exhaustive()
    }
}

/// The alignment in the upper four bits, the size in the lower twelve.
fn type_tag<T>() -> u16 {
    (align_of::<T>().trailing_zeros().min(15) as u16) << 12 | (size_of::<T>() & 0xfff) as u16
}

/// The checksum of all bytes except its own two: a CRC-16, which finds each change of a single byte for certain.
fn checksum(bytes: &[u8; KEY_BYTES]) -> u16 {
    let others = bytes[..14].iter().chain(&bytes[16..]);
    others.fold(0xffff, |sum: u16, byte| {
        let mut next = (sum >> 8) ^ u16::from(*byte);
        next ^= next >> 4;
        (sum << 8) ^ (next << 12) ^ (next << 5) ^ next
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key<T: Plain>(bytes: u64) -> Key<T, ReadWrite> {
        let (node, incarnation) = (NodeId(3), Incarnation(7));
        Key::new(Place { node, incarnation, number: 9, offset: 0, bytes, secret: 0x1234_5678_9abc_def0 })
    }

    fn why(error: Error) -> KeyFault {
        match error {
            Error::Key { why, .. } => why,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn keys_are_bounded() {
        let whole = key::<u32>(400);
        assert_eq!((whole.len(), whole.at(0)), (100, whole));
        let part = whole.range(10..=19);
        assert_eq!((part.len(), part.place.offset, part.place.bytes), (10, 40, 40));
        assert_eq!((part.at(9).len(), part.at(10).len(), part.at(usize::MAX).len()), (1, 0, 0));
        assert_eq!(part.at(usize::MAX).place.offset, 80);
        assert_eq!((part.range(5..1000).len(), part.range(..3).len()), (5, 3));
        #[allow(clippy::reversed_empty_ranges)]
        let none = part.range(7..2);
        assert!(none.is_empty() && whole.range(..=usize::MAX) == whole);
    }

    #[test]
    fn rights_and_types_are_told_by_name() {
        let bytes = key::<u32>(400).to_bytes();
        assert_eq!(Key::<u32, ReadWrite>::from_bytes(&bytes).unwrap(), key(400));
        assert_eq!(Key::<f32, ReadWrite>::from_bytes(&bytes).unwrap().len(), 100);
        assert_eq!(Key::<u32, ReadOnly>::from_bytes(&bytes).unwrap(), key(400).read_only());
        let read = key::<u32>(400).read_only().to_bytes();
        assert_eq!(Key::<u32, ReadOnly>::from_bytes(&read).unwrap(), key(400).into());
        assert_eq!(why(Key::<u32, ReadWrite>::from_bytes(&read).unwrap_err()), KeyFault::ReadOnly);
        assert_eq!(why(Key::<u64, ReadWrite>::from_bytes(&bytes).unwrap_err()), KeyFault::WrongType);
        assert_eq!(why(Key::<[u8; 4], ReadWrite>::from_bytes(&bytes).unwrap_err()), KeyFault::WrongType);
        for bytes in [&bytes[..39], &[], &[0; 40], &[0xdb; 41]] {
            assert_eq!(why(Key::<u32, ReadOnly>::from_bytes(bytes).unwrap_err()), KeyFault::Forged);
        }
        for odd in [401, u64::MAX, i64::MAX as u64] {
            let mut key = key::<u32>(odd);
            key.place.offset = 4;
            assert_eq!(why(Key::<u32, ReadOnly>::from_bytes(&key.to_bytes()).unwrap_err()), KeyFault::Forged);
        }
        assert!(!format!("{:?}", key::<u32>(8)).contains("1234"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 256 }, failure_persistence: None, ..Default::default() })]

        #[test]
        fn any_bytes_are_a_bounded_key_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..60), sum in any::<bool>()) {
            let mut bytes = bytes;
            if let Ok(whole) = <&mut [u8; KEY_BYTES]>::try_from(&mut bytes[..]) && sum {
                whole[0] = MAGIC;
                whole[1] = 1 + whole[1] % 2;
                let right = checksum(whole).to_le_bytes();
                whole[14..16].copy_from_slice(&right);
            }
            if let Ok(key) = Key::<u8, ReadOnly>::from_bytes(&bytes) {
                prop_assert!(key.at(1).place.offset.checked_add(key.at(1).place.bytes).is_some());
            }
        }

        #[test]
        fn a_changed_byte_makes_no_key(at in 0..KEY_BYTES, change in 1..=u8::MAX, secret in any::<u64>()) {
            let mut whole = key::<u8>(1000);
            whole.place.secret = secret;
            let mut bytes = whole.to_bytes();
            bytes[at] ^= change;
            prop_assert_eq!(why(Key::<u8, ReadWrite>::from_bytes(&bytes).unwrap_err()), KeyFault::Forged);
        }
    }
}
