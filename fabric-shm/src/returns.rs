//! Returns: the words by which readers give loans back.
//!
//! Each loan that is sent to a reader has a slot there, and a generation that tells one use of the slot from the next. The reader
//! gives the loan back by writing that generation into the slot's word with one plain store. The words lie in the file of the
//! lanes from the reader to the owner. The owner accepts only the generation that it waits for. Any other value gives nothing
//! back, and a forged one can only give back a loan of the same reader.

use crate::domain::{Membership, Pair, PeerInbox};
use crate::error::ShmError;
use crate::layout::{MEETINGS_BYTES, PAGE, RETURNS_BYTES, RETURNS_OFFSET, RINGS_OFFSET};
use doorbell_fabric::NodeId;
use doorbell_fabric::sync::{AtomicU32, Ordering};
use std::sync::Arc;

/// The most loans of one owner that one reader can hold at a time.
pub const RETURNS: usize = RETURNS_BYTES / 4;
const _: () = assert!(RETURNS_BYTES == PAGE && MEETINGS_BYTES == PAGE);

/// One page of words in the file of a pair. Mapped as long as this lives.
#[derive(Debug)]
pub(crate) struct PairWords<T> {
    first: *const T,
    _pair: Arc<Pair>,
}

impl<T> Clone for PairWords<T> {
    fn clone(&self) -> Self {
        Self { first: self.first, _pair: self._pair.clone() }
    }
}

// SAFETY: the address of atomics that `_pair` keeps mapped.
unsafe impl<T: Sync> Send for PairWords<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for PairWords<T> {}

impl<T> PairWords<T> {
    /// The page at this offset, before the full rings. Makes the file as long as that.
    pub fn new(pair: &Arc<Pair>, offset: usize) -> Result<Self, ShmError> {
        pair.grow(RINGS_OFFSET)?;
        debug_assert!(offset.is_multiple_of(PAGE) && offset < RINGS_OFFSET);
        // SAFETY: the file has grown to these pages, and the pair maps them.
        let first = unsafe { pair.ptr().add(offset) }.cast_const().cast();
        Ok(Self { first, _pair: pair.clone() })
    }

    /// One of them; `None` if the index is too high.
    #[inline(always)]
    pub fn get(&self, index: usize) -> Option<&T> {
        // SAFETY: within the page, aligned (blocks are pages), mapped as long as `self`; atomics allow other writers.
        (index < PAGE / size_of::<T>()).then(|| unsafe { &*self.first.add(index) })
    }
}

/// The return words of one pair of nodes in one direction, mapped as long as this lives. `Send` and `Sync`.
#[derive(Debug)]
pub struct Returns(PairWords<AtomicU32>);

impl Returns {
    /// The words of an owner, for loans that this node holds.
    ///
    /// # Errors
    /// There is no room for them, or the owner is gone.
    pub fn to_owner(inbox: &PeerInbox) -> Result<Self, ShmError> {
        PairWords::new(inbox.pair()?, RETURNS_OFFSET).map(Self)
    }

    /// The words for loans of this node to `reader`, a node of the domain.
    ///
    /// # Errors
    /// There is no room for them, or this node has left.
    pub fn of_reader(membership: &Membership, reader: NodeId) -> Result<Self, ShmError> {
        PairWords::new(&membership.pair_from(reader)?, RETURNS_OFFSET).map(Self)
    }

    /// Reader: gives a loan back. Release: all reads of it happen before its owner writes there again.
    #[inline(always)]
    pub fn give_back(&self, slot: u16, generation: u32) {
        if let Some(word) = self.0.get(slot.into()) {
            fault_point!("loan.returning");
            word.store(generation, Ordering::Release);
            fault_point!("loan.returned");
        }
    }

    /// Reader: announces that it will give this loan back. Without the prefetch the store would wait for its line, and so would
    /// everything after it.
    #[inline(always)]
    pub fn own_ahead(&self, slot: u16) {
        if let Some(word) = self.0.get(slot.into()) {
            doorbell_fabric::hint::own(word.as_ptr().cast_const().cast());
        }
    }

    /// Owner: whether a loan came back.
    #[inline(always)]
    pub fn is_back(&self, slot: u16, generation: u32) -> bool {
        self.0.get(slot.into()).is_some_and(|word| word.load(Ordering::Acquire) == generation)
    }
}
