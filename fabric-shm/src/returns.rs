//! Returns: the words by which readers give loans back.
//!
//! Each loan that is sent to a reader has a slot there, and a generation that tells one use of the slot from the next. The reader
//! gives the loan back by writing that generation into the slot's word with one plain store. The words lie in the inbox of the
//! loan's owner, in the reader's block. The owner accepts only the generation that it waits for. Any other value gives nothing
//! back, and a forged one can only give back a loan of the same reader.

use crate::domain::{Membership, PeerInbox};
use crate::layout::{RETURNS_BYTES, RETURNS_OFFSET, block_offset};
use doorbell_fabric::NodeId;
use doorbell_fabric::sync::{AtomicU32, Ordering};
use std::sync::Arc;

/// The most loans of one owner that one reader can hold at a time.
pub const RETURNS: usize = RETURNS_BYTES / 4;

/// The words of one pair of nodes in one direction, mapped as long as this lives. `Send` and `Sync`.
#[derive(Clone, Debug)]
pub struct Returns {
    first: *const AtomicU32,
    _mapped: Mapped,
}

/// Keeps the words mapped.
#[derive(Clone, Debug)]
enum Mapped {
    Peer { _inbox: Arc<PeerInbox> },
    Own { _membership: Arc<Membership> },
}

// SAFETY: the address of atomics that `_mapped` keeps mapped.
unsafe impl Send for Returns {}
// SAFETY: as above.
unsafe impl Sync for Returns {}

impl Returns {
    /// The words in the inbox of an owner, for loans that this node holds.
    pub fn to_owner(inbox: &Arc<PeerInbox>) -> Self {
        // SAFETY: every block has its return words at this offset, and `inbox` maps a whole block.
        let first = unsafe { inbox.block().0.add(RETURNS_OFFSET) }.cast_const().cast();
        Self { first, _mapped: Mapped::Peer { _inbox: inbox.clone() } }
    }

    /// The words in this node's own inbox, for loans to `reader`, a node of the domain.
    pub fn of_reader(membership: &Arc<Membership>, reader: NodeId) -> Self {
        assert!(reader.index() < membership.max_nodes(), "the node id is outside the domain");
        let block = block_offset(reader, &membership.lanes());
        // SAFETY: the inbox has a block for each node of the domain.
        let first = unsafe { membership.inbox().ptr().add(block + RETURNS_OFFSET) }.cast_const().cast();
        Self { first, _mapped: Mapped::Own { _membership: membership.clone() } }
    }

    #[inline(always)]
    fn word(&self, slot: u16) -> Option<&AtomicU32> {
        // SAFETY: in range, aligned (blocks are pages), mapped as long as `self`; atomics allow other writers.
        (usize::from(slot) < RETURNS).then(|| unsafe { &*self.first.add(usize::from(slot)) })
    }

    /// Reader: gives a loan back. Release: all reads of it happen before its owner writes there again.
    #[inline(always)]
    pub fn give_back(&self, slot: u16, generation: u32) {
        if let Some(word) = self.word(slot) {
            fault_point!("loan.returning");
            word.store(generation, Ordering::Release);
            fault_point!("loan.returned");
        }
    }

    /// Reader: announces that it will give this loan back. Without the prefetch the store would wait for its line, and so would
    /// everything after it.
    #[inline(always)]
    pub fn own_ahead(&self, slot: u16) {
        if let Some(word) = self.word(slot) {
            crate::hint::own(word.as_ptr().cast_const().cast());
        }
    }

    /// Owner: whether a loan came back.
    #[inline(always)]
    pub fn is_back(&self, slot: u16, generation: u32) -> bool {
        self.word(slot).is_some_and(|word| word.load(Ordering::Acquire) == generation)
    }
}
