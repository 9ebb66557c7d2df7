//! Messages that name the address, in shared memory, where their data is stored.

use super::{Plain, ReadWrite, Region};
use crate::mode::{ModeRequest, Receipt};
use crate::{Error, Key, Peer, Result};
use doorbell_fabric::Incarnation;
use std::ops::Range;

/// The content of such a message: where in a region of its receiver the data lies. It comes from another node, so check it with
/// [`Region::range_of`] before you read there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    number: u32,
    incarnation: Incarnation,
    offset: u64,
    bytes: u64,
}

impl Stored {
    /// The length of such a message in bytes.
    pub const BYTES: usize = 24;

    /// Decodes a received message. `None` if it has another length.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let words: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| words[8 * at + byte]));
        Some(Self { number: word(0) as u32, incarnation: Incarnation((word(0) >> 32) as u32), offset: word(1), bytes: word(2) })
    }

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let words = [u64::from(self.number) | u64::from(self.incarnation.0) << 32, self.offset, self.bytes];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

impl<T: Plain> Region<T> {
    /// The elements of this region that a [stored](Peer::send_stored) message names. `None` if they are not whole elements of
    /// this region.
    pub fn range_of(&self, stored: &Stored) -> Option<Range<usize>> {
        let (place, size) = (self.inner.place, size_of::<T>() as u64);
        let end = stored.offset.checked_add(stored.bytes)?;
        let is_its = stored.number == place.number && stored.incarnation == place.incarnation && end <= place.bytes;
        let is_whole = stored.offset.is_multiple_of(size) && stored.bytes.is_multiple_of(size);
        (is_its && is_whole).then(|| (stored.offset / size) as usize..(end / size) as usize)
    }
}

impl Peer {
    /// Stores elements in a region of the receiver and sends a short message that names where they are. The key names the
    /// region; any fabric will do. The message keeps its order among all messages, and arrives after the elements are in place.
    /// The receiver reads them there. The mode is that of the [put](Self::put_as). The message takes the same fabric and link.
    ///
    /// ```
    /// # use doorbell::{Match, Node, Space, Stored};
    /// # fn main() -> Result<(), doorbell::Error> {
    /// # let space = Space::heap();
    /// # let owner = Node::builder("stored").space(space.clone()).join()?;
    /// # let other = Node::builder("stored").space(space).join()?;
    /// let region = owner.region::<u32>(100)?;
    /// other.peer(owner.id())?.send_stored(7, &[1, 2, 3], region.key().at(10), "any".parse().unwrap())?;
    ///
    /// let mut buf = [0; Stored::BYTES];
    /// let envelope = owner.recv(Match::any().tag(7), &mut buf)?;
    /// let stored = Stored::from_bytes(&buf[..envelope.len]).unwrap();
    /// let range = region.range_of(&stored).unwrap();
    /// let mut elements = vec![0; range.len()];
    /// region.read(range.start, &mut elements)?;
    /// assert_eq!((range, elements), (10..13, vec![1, 2, 3]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`put_as`](Self::put_as): nothing was sent. Those of [`send`](Self::send): the elements may already be in
    /// place.
    pub fn send_stored<T: Plain>(&self, tag: u64, from: &[T], to: Key<T, ReadWrite>, mode: ModeRequest) -> Result<Receipt> {
        let receipt = self.put_as(from, to, mode)?;
        let place = to.place;
        let bytes = size_of_val(from) as u64;
        let stored = Stored { number: place.number, incarnation: place.incarnation, offset: place.offset, bytes };
        let by = ModeRequest::fabric(receipt.used.fabric).link(receipt.used.link);
        match self.send_as(tag, &stored.to_bytes(), by) {
            // The link went meanwhile; the elements that it carried have arrived.
            Err(Error::Invalid { .. }) => self.send(tag, &stored.to_bytes())?,
            sent => drop(sent?),
        }
        Ok(receipt)
    }
}
