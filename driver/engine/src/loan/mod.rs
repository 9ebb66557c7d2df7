//! Loans: messages that are written in place in shared memory, and read in place. Only a lease of 32 bytes is sent, so a long
//! message takes no longer than a short one.
//!
//! [`Node::loan`] gives memory to write to. [`LoanMut::send`] hands it to one reader; [`LoanMut::share`] and [`Loan::send_to`]
//! hand it to several. [`Node::take`] receives it. A [`Taken`] is the message in place, and dropping it returns the loan. When
//! all readers have returned it, the owner lends its memory again.
//!
//! ```
//! use doorbell::{Match, Node, Space};
//!
//! # fn main() -> Result<(), doorbell::Error> {
//! # let space = Space::heap();
//! let camera = Node::builder("film").space(space.clone()).join()?;
//! let viewer = Node::builder("film").space(space).join()?;
//!
//! let mut frame = camera.loan_slice::<u16>(640 * 480)?;
//! frame.fill(7);
//! frame.send(viewer.id(), 1)?;
//!
//! let frame = viewer.take::<[u16]>(Match::any().tag(1))?;
//! let mut line = [0; 640];
//! frame.copy_to(&mut line);
//! assert_eq!((frame.len(), line), (640 * 480, [7; 640]));
//! # Ok(())
//! # }
//! ```
//!
//! Any receive takes a loan. [`Node::recv`] copies it out and [`Node::recv_with`] reads it in place; both return it at once.
//! [`Node::take`] takes any message: it copies a message that was not lent.
//!
//! The owner keeps the records privately: which reader has which block, and since when. A reader returns a block by writing one
//! word, so it can harm only nodes that share its loans. Only the owner decides that a block is free: its handles are dropped,
//! and each reader has returned it, has died or has left. A reader that forgets a loan keeps its block until then.
//!
//! A node that was sent one loan of an owner can read all that the owner lends, because a whole arena is mapped at a time.
//! Readers map it read-only.

mod send;
mod take;

pub use crate::message::lending::LoanStats;
pub use send::Recipient;
pub use take::{Lendable, Taken};

use crate::drive::Shared;
use crate::error::Error;
use crate::message::lending::BlockId;
use crate::region::Plain;
use crate::sync::baton::Token;
use crate::{Node, Result};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// A block of this node that a handle holds until it is dropped.
struct Held {
    shared: Arc<Shared>,
    block: BlockId,
    len: usize,
}

// SAFETY: `shared` keeps the memory mapped, and the handles decide how it is used.
unsafe impl Send for Held {}
// SAFETY: as above; nothing is changed through a shared reference.
unsafe impl Sync for Held {}

impl Drop for Held {
    #[inline(always)]
    fn drop(&mut self) {
        // In a forked child another thread may hold the records' lock for ever.
        if !doorbell_shm::space::forked() {
            self.shared.lender().release(Token::current(), self.block);
        }
    }
}

/// Memory of this node to be written and then lent. Derefs to its contents, and is `Send` and `Sync` if they are.
///
/// Its contents are at first whatever the memory held before, or zeros in new memory. Dropping it without sending it frees the
/// memory. Forgetting it only keeps the memory from being used again.
///
/// # Panics
/// Reading or writing it panics in a forked child, where its memory is not mapped.
pub struct LoanMut<T: ?Sized> {
    held: Held,
    ptr: NonNull<T>,
}

// SAFETY: owns its contents like a box.
unsafe impl<T: ?Sized + Send> Send for LoanMut<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Sync> Sync for LoanMut<T> {}

/// A read-only loan that can be sent to several nodes. Clones are handles to the same memory. The memory is free when all
/// handles are dropped and all readers have returned it.
///
/// # Panics
/// Reading it panics in a forked child, where its memory is not mapped.
pub struct Loan<T: ?Sized> {
    held: Held,
    ptr: NonNull<T>,
}

// SAFETY: gives out shared references to its contents.
unsafe impl<T: ?Sized + Send + Sync> Send for Loan<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send + Sync> Sync for Loan<T> {}

#[inline(always)]
fn is_there() {
    assert!(!doorbell_shm::space::forked(), "a loan was used in a forked child, where its memory is not mapped");
}

impl<T: ?Sized> Deref for LoanMut<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        is_there();
        // SAFETY: only this handle has the block, which is aligned and mapped as long as `held`; any bytes are a `T` (Plain).
        // Former readers can at most read it.
        unsafe { self.ptr.as_ref() }
    }
}

impl<T: ?Sized> DerefMut for LoanMut<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        is_there();
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { self.ptr.as_mut() }
    }
}

impl<T: ?Sized> Deref for Loan<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        is_there();
        // SAFETY: as LoanMut; no thread writes it while a handle holds it.
        unsafe { self.ptr.as_ref() }
    }
}

impl<T: ?Sized> LoanMut<T> {
    /// Makes it read-only, so that it can be sent to several nodes: see [`Loan::send_to`].
    #[inline]
    pub fn share(self) -> Loan<T> {
        Loan { ptr: self.ptr, held: self.held }
    }
}

impl<T: ?Sized> Clone for Loan<T> {
    /// Another handle to the same memory.
    ///
    /// # Panics
    /// In a forked child.
    fn clone(&self) -> Self {
        is_there();
        let held = Held { shared: self.held.shared.clone(), ..self.held };
        if held.shared.lender().hold(Token::current(), held.block).is_err() {
            unreachable!("no thread enters the records twice");
        }
        Self { held, ptr: self.ptr }
    }
}

impl<T: ?Sized> fmt::Debug for LoanMut<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoanMut").field("bytes", &self.held.len).finish_non_exhaustive()
    }
}

impl<T: ?Sized> fmt::Debug for Loan<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan").field("bytes", &self.held.len).finish_non_exhaustive()
    }
}

impl Node {
    /// Memory for a message of one element, to be written in place and sent without a copy. Takes some 20 ns when memory is
    /// free. The first loan of a size, and each time more memory is needed, takes milliseconds. Never waits for readers.
    ///
    /// ```
    /// # use doorbell::{Match, Node, Space};
    /// # fn main() -> Result<(), doorbell::Error> {
    /// # let space = Space::heap();
    /// # let a = Node::builder("loans").space(space.clone()).join()?;
    /// # let b = Node::builder("loans").space(space).join()?;
    /// let mut pair = a.loan::<[u64; 2]>()?;
    /// *pair = [3, 4];
    /// pair.send(b.id(), 7)?;
    /// assert_eq!(b.take::<[u64; 2]>(Match::any())?.read(), [3, 4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::LoansOut`] if all memory for loans is in use: see [`NodeBuilder::loan_bytes`](crate::NodeBuilder::loan_bytes).
    /// [`Error::Shm`] if the machine has no room for more. [`Error::Closed`], [`Error::Forked`].
    #[inline]
    pub fn loan<T: Plain>(&self) -> Result<LoanMut<T>> {
        let (held, start) = self.hold(size_of::<T>(), align_of::<T>())?;
        let ptr = start.cast();
        Ok(LoanMut { held, ptr })
    }

    /// Memory for a message of `len` elements: as [`loan`](Self::loan).
    ///
    /// # Errors
    /// As [`loan`](Self::loan).
    #[inline]
    pub fn loan_slice<T: Plain>(&self, len: usize) -> Result<LoanMut<[T]>> {
        // A length beyond the address space saturates, and is beyond any limit.
        let (held, start) = self.hold(len.saturating_mul(size_of::<T>()), align_of::<T>())?;
        let ptr = NonNull::slice_from_raw_parts(start.cast(), len);
        Ok(LoanMut { held, ptr })
    }

    /// Memory for a message of `len` bytes: as [`loan`](Self::loan).
    ///
    /// # Errors
    /// As [`loan`](Self::loan).
    #[inline]
    pub fn loan_bytes(&self, len: usize) -> Result<LoanMut<[u8]>> {
        self.loan_slice(len)
    }

    /// How much memory this node lends now. Checks which loans readers have returned: some nanoseconds for each pending loan.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Forked`].
    pub fn loan_stats(&self) -> Result<LoanStats> {
        let me = self.shared().check()?;
        self.shared().lender().stats(me)
    }

    #[inline]
    fn hold(&self, len: usize, align: usize) -> Result<(Held, NonNull<u8>)> {
        let me = self.shared().check()?;
        if align > doorbell_shm::layout::PAGE {
            return Err(Error::Invalid {
                what: format!("the elements of a loan can be aligned to a page at most, not to {align}"),
            });
        }
        // Blocks are aligned to their size, up to a page.
        let (block, start) = self.shared().lender().grant(me, len.max(align))?;
        Ok((Held { shared: self.shared().clone(), block, len }, start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::lending::{LEASE_BYTES, Lease};
    use crate::{Match, NodeId, Space};
    use doorbell_fabric::Push;
    use std::time::{Duration, Instant};

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    /// Sends a lease that no owner granted.
    fn forge(from: &Node, to: NodeId, lease: &[u8; LEASE_BYTES]) {
        let me = Token::current();
        let (outbound, _) = from.shared().known_way(me, to).unwrap();
        let mut state = outbound.state.enter(me).unwrap();
        assert_eq!(state.push_loan(1, lease, 8), Push::Done);
    }

    #[test]
    fn forged_leases_damage_their_sender_alone() {
        let space = Space::heap();
        let join = |id: u16| Node::builder("forged-loans").id(id).space(space.clone()).join().unwrap();
        let (b, c) = (join(1), join(2));
        let good = Lease { arena: 0, slot: 0, generation: 1, offset: 0, len: 8 };
        let forgeries = [
            Lease { arena: 77, ..good },
            Lease { slot: 1024, ..good },
            Lease { slot: u16::MAX, ..good },
            Lease { generation: 0, ..good },
            Lease { offset: 8, ..good },
            Lease { offset: 1 << 20, ..good },
            Lease { offset: 1 << 63, ..good },
            Lease { offset: u64::MAX - 63, ..good },
            Lease { len: (1 << 20) + 1, ..good },
            Lease { offset: 64, len: 1 << 20, ..good },
            Lease { len: 1 << 40, ..good },
            Lease { len: u64::MAX, ..good },
        ];
        // Each round takes half a minute under Miri.
        for (round, forged) in forgeries.iter().enumerate().take(if cfg!(miri) { 2 } else { forgeries.len() }) {
            let a = join(0);
            while a.peer(b.id()).is_err() || b.peer(a.id()).map(|peer| peer.incarnation()).ok() != Some(a.incarnation()) {
                b.progress().unwrap();
            }
            // In one of the cases, the forger's arena is mapped beforehand.
            let loan = a.loan::<u64>().unwrap().share();
            if round % 2 == 0 {
                loan.send(b.id(), 1).unwrap();
                assert_eq!(b.take_until::<u64>(Match::from(a.id()), soon()).unwrap().read(), 0);
            }
            forge(&a, b.id(), &forged.encode());
            let error = b.take_until::<u64>(Match::from(a.id()), soon()).unwrap_err();
            assert!(matches!(error, Error::Damaged { node } if node == a.id()), "{forged:?}: {error:?}");
            // Other nodes are not disturbed.
            c.loan::<u64>().unwrap().send(b.id(), 2).unwrap();
            assert_eq!(b.take_until::<u64>(Match::any(), soon()).unwrap().envelope().source, c.id());
            a.leave().unwrap();
            while !matches!(b.try_event().unwrap(), Some(crate::Event::Left { .. })) {}
        }
        assert_eq!(c.loan_stats().unwrap().blocks, 0);
    }

    #[test]
    #[cfg_attr(miri, ignore = "too slow")]
    fn a_size_in_use_has_enough_blocks_where_there_is_room() {
        const LONG: usize = 1 << 20;
        for (limit, enough) in [(64 << 20, true), (6 << 20, false)] {
            let space = Space::heap();
            let [a, b] = [(); 2].map(|()| Node::builder("enough").space(space.clone()).loan_bytes(limit).join().unwrap());
            let mut kept = Vec::new();
            for _ in 0..40 {
                a.loan_bytes(LONG).unwrap().send(b.id(), 1).unwrap();
                kept.push(b.take_bytes(Match::any()).unwrap());
                kept.drain(..kept.len().saturating_sub(3));
            }
            let reserved = a.loan_stats().unwrap().reserved;
            assert_eq!(reserved >= 8 * LONG, enough, "{reserved} bytes of {limit}");
            assert!(reserved <= limit);
        }
    }

    /// A node that could not get a large arena does not try again at every loan: each try takes the domain's lock and makes a
    /// file.
    #[test]
    #[cfg_attr(miri, ignore = "too slow")]
    fn room_that_was_not_there_is_not_looked_for_again() {
        const LONG: usize = 1 << 20;
        let space = Space::heap();
        let [a, b] = [(); 2].map(|()| Node::builder("cramped").space(space.clone()).join().unwrap());
        drop(a.loan_bytes(LONG).unwrap());
        let one = a.loan_stats().unwrap().reserved;
        let next = a.shared().regions().next_number();
        // No further arena can be made, because their names are taken.
        let _taken: Vec<_> =
            (next..next + 100).map(|number| a.shared().membership().create_region(number + 1, 1).unwrap()).collect();
        let mut kept = Vec::new();
        for _ in 0..40 {
            a.loan_bytes(LONG).unwrap().send(b.id(), 1).unwrap();
            kept.push(b.take_bytes(Match::any()).unwrap());
            kept.drain(..kept.len().saturating_sub(3));
        }
        assert_eq!(a.loan_stats().unwrap().reserved, one);
        // Two attempts: the preferred size, and the smallest size that suffices.
        assert_eq!(a.shared().regions().next_number(), next + 1 + 2);
    }

    #[test]
    fn what_a_reader_writes_gives_nothing_back_but_its_own() {
        let space = Space::heap();
        let [a, b, c] = [(); 3].map(|()| Node::builder("hostile").space(space.clone()).join().unwrap());
        let loan = a.loan::<u64>().unwrap().share();
        loan.send_to(&[b.id(), c.id(), b.id()], 1).unwrap();
        drop(loan);
        let inbox = b.shared().regions().inbox(b.shared().membership(), a.id(), a.incarnation()).unwrap();
        let returns = doorbell_shm::returns::Returns::to_owner(&inbox).unwrap();
        let slots = if cfg!(miri) { 16 } else { u16::MAX };
        for generation in [0, 2, u32::MAX] {
            (0..slots).for_each(|slot| returns.give_back(slot, generation));
            assert_eq!(a.loan_stats().unwrap().out, 3);
        }
        // The reader returns both of its own loans, and slots that it does not have.
        (0..slots).for_each(|slot| returns.give_back(slot, 1));
        let stats = a.loan_stats().unwrap();
        assert_eq!((stats.out, stats.blocks), (1, 1));
        drop(c.take_until::<u64>(Match::any(), soon()).unwrap());
        assert_eq!(a.loan_stats().unwrap().blocks, 0);
    }
}
