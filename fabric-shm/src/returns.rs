//! Returns: the words by which readers give loans back.
//!
//! Each loan that is sent to a reader has a slot there, and a generation that tells one use of the slot from the next. The reader
//! gives the loan back by writing that generation into the slot's word with one plain store. The words lie in the inbox of the
//! loan's owner, in the reader's block. The owner accepts only the generation that it waits for. Any other value gives nothing
//! back, and a forged one can only give back a loan of the same reader.

use crate::domain::{Membership, PeerInbox};
use crate::layout::{MEETINGS_BYTES, PAGE, RETURNS_BYTES, RETURNS_OFFSET, block_offset};
use doorbell_fabric::NodeId;
use doorbell_fabric::sync::{AtomicU32, Ordering};
use std::sync::Arc;

/// The most loans of one owner that one reader can hold at a time.
pub const RETURNS: usize = RETURNS_BYTES / 4;
const _: () = assert!(RETURNS_BYTES == PAGE && MEETINGS_BYTES == PAGE);

/// One page of words in a block of an inbox: for one pair of nodes, in one direction. Mapped as long as this lives.
#[derive(Debug)]
pub(crate) struct PairWords<T> {
    first: *const T,
    _mapped: Mapped,
}

impl<T> Clone for PairWords<T> {
    fn clone(&self) -> Self {
        Self { first: self.first, _mapped: self._mapped.clone() }
    }
}

/// Keeps the words mapped.
#[derive(Clone, Debug)]
enum Mapped {
    Peer { _inbox: Arc<PeerInbox> },
    Own { _membership: Arc<Membership> },
}

// SAFETY: the address of atomics that `_mapped` keeps mapped.
unsafe impl<T: Sync> Send for PairWords<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for PairWords<T> {}

impl<T> PairWords<T> {
    /// The page at this offset of this node's block in the inbox of a peer.
    pub fn of_peer(inbox: &Arc<PeerInbox>, offset: usize) -> Self {
        // SAFETY: every block has its pages of words before its rings, and `inbox` maps a whole block.
        let first = unsafe { inbox.block().0.add(offset) }.cast_const().cast();
        Self { first, _mapped: Mapped::Peer { _inbox: inbox.clone() } }
    }

    /// The page at this offset of the block of `other`, a node of the domain, in this node's own inbox.
    pub fn own(membership: &Arc<Membership>, other: NodeId, offset: usize) -> Self {
        assert!(other.index() < membership.max_nodes(), "the node id is outside the domain");
        let block = block_offset(other, &membership.lanes());
        // SAFETY: the inbox has a block for each node of the domain.
        let first = unsafe { membership.inbox().ptr().add(block + offset) }.cast_const().cast();
        Self { first, _mapped: Mapped::Own { _membership: membership.clone() } }
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
    /// The words in the inbox of an owner, for loans that this node holds.
    pub fn to_owner(inbox: &Arc<PeerInbox>) -> Self {
        Self(PairWords::of_peer(inbox, RETURNS_OFFSET))
    }

    /// The words in this node's own inbox, for loans to `reader`, a node of the domain.
    pub fn of_reader(membership: &Arc<Membership>, reader: NodeId) -> Self {
        Self(PairWords::own(membership, reader, RETURNS_OFFSET))
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
            crate::hint::own(word.as_ptr().cast_const().cast());
        }
    }

    /// Owner: whether a loan came back.
    #[inline(always)]
    pub fn is_back(&self, slot: u16, generation: u32) -> bool {
        self.0.get(slot.into()).is_some_and(|word| word.load(Ordering::Acquire) == generation)
    }
}
