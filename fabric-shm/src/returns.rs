//! Returns: by which readers give loans back.
//!
//! A loan that is sent to a reader has a slot there, and a generation that tells one use of the slot from the next. The
//! reader gives the loan back by writing that generation into the slot's word: one plain store. The words lie in the inbox of
//! the loan's owner, in the block of the reader. Whatever else a reader writes there is no give-back, or one of its own
//! loans: the owner believes nothing but a word that is the generation it waits for.

use crate::domain::{Membership, PeerInbox};
use crate::layout::{RETURNS_BYTES, RETURNS_OFFSET, block_offset};
use doorbell_fabric::NodeId;
use doorbell_fabric::sync::{AtomicU32, Ordering};
use std::sync::Arc;

/// Loans of one owner that one reader can have at a time.
pub const RETURNS: usize = RETURNS_BYTES / 4;

/// The words of one pair of nodes, in one direction, mapped for as long as this lives. `Send` and `Sync`.
#[derive(Clone, Debug)]
pub struct Returns {
    first: *const AtomicU32,
    _mapped: Mapped,
}

/// What keeps the words mapped.
#[derive(Clone, Debug)]
enum Mapped {
    Peer { _inbox: Arc<PeerInbox> },
    Own { _membership: Arc<Membership> },
}

// SAFETY: an address of atomics, which `_mapped` keeps mapped.
unsafe impl Send for Returns {}
// SAFETY: as above.
unsafe impl Sync for Returns {}

impl Returns {
    /// Those in the inbox of an owner: for what this node has on loan from it.
    pub fn to_owner(inbox: &Arc<PeerInbox>) -> Self {
        // SAFETY: every block has its returns at this offset, and `inbox` maps a whole block.
        let first = unsafe { inbox.block().0.add(RETURNS_OFFSET) }.cast_const().cast();
        Self { first, _mapped: Mapped::Peer { _inbox: inbox.clone() } }
    }

    /// Those in this node's own inbox: for what it has lent to `reader`, a node of the domain.
    pub fn of_reader(membership: &Arc<Membership>, reader: NodeId) -> Self {
        assert!(reader.index() < membership.max_nodes(), "a node beyond the domain");
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

    /// Reader: will give this loan back. Without the hint the store would wait for its line, and all that follows it.
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
