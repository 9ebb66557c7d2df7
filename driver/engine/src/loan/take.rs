//! Taking messages in place.

use crate::drive::poller::Progress;
use crate::drive::{SPIN_ROUNDS, Shared};
use crate::error::Error;
use crate::memory::copy;
use crate::message::inbound::Direct;
use crate::message::lending::Lent;
use crate::message::{Match, Message};
use crate::region::Plain;
use crate::sync::wait::Wait;
use crate::{Node, Peer, Result};
use doorbell_fabric::world;
use doorbell_fabric::{Envelope, Payload};
use std::alloc::Layout;
use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::time::Instant;

mod sealed {
    pub trait Sealed {}
    impl<T: crate::Plain> Sealed for T {}
    impl<T: crate::Plain> Sealed for [T] {}
}

/// The types that a message can be taken as: a [`Plain`] type, or a slice of one.
pub trait Lendable: sealed::Sealed {
    /// The alignment in bytes.
    #[doc(hidden)]
    const ALIGN: usize;
    /// The size in bytes of a value, or of one element of a slice.
    #[doc(hidden)]
    const BYTES: usize;
    /// Whether a message of `len` bytes is such a value or slice.
    #[doc(hidden)]
    fn fits(len: usize) -> bool;
}

impl<T: Plain> Lendable for T {
    const ALIGN: usize = align_of::<T>();
    const BYTES: usize = size_of::<T>();

    #[inline(always)]
    fn fits(len: usize) -> bool {
        len == size_of::<T>()
    }
}

impl<T: Plain> Lendable for [T] {
    const ALIGN: usize = align_of::<T>();
    const BYTES: usize = size_of::<T>();

    #[inline(always)]
    fn fits(len: usize) -> bool {
        if size_of::<T>() == 0 { len == 0 } else { len.is_multiple_of(size_of::<T>()) }
    }
}

/// A received message. If it was lent, it lies where its owner wrote it; otherwise this is a copy. Dropping it returns the loan
/// with one plain store. `Send` and `Sync`.
///
/// It stays readable if its owner dies or leaves. If *this* node leaves, the owner takes the memory back and may write to it.
/// Forgetting it only keeps the owner from using the memory again while this node is attached.
///
/// # Panics
/// Reading it panics in a forked child, where its memory is not mapped.
pub struct Taken<T: ?Sized> {
    envelope: Envelope,
    bytes: Bytes,
    _contents: PhantomData<T>,
}

/// Location of a taken message.
enum Bytes {
    Lent(Lent),
    Own(Own),
}

/// Private bytes of any alignment.
struct Own {
    ptr: NonNull<u8>,
    layout: Layout,
    len: usize,
}

// SAFETY: owns its bytes like a box.
unsafe impl Send for Own {}
// SAFETY: as above.
unsafe impl Sync for Own {}

impl Own {
    fn copy(payload: Payload<'_>, align: usize) -> Self {
        let len = payload.len();
        let layout = Layout::from_size_align(len.max(1), align)
            .unwrap_or_else(|_| unreachable!("a received message fits the address space"));
        // SAFETY: at least one byte.
        let ptr = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(ptr) else { std::alloc::handle_alloc_error(layout) };
        // SAFETY: allocated, initialised, and not shared.
        payload.copy_to(unsafe { std::slice::from_raw_parts_mut(ptr.as_ptr(), len) });
        Self { ptr, layout, len }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // SAFETY: from `alloc_zeroed` with this layout.
        unsafe { std::alloc::dealloc(self.ptr.as_ptr(), self.layout) };
    }
}

impl Bytes {
    #[inline(always)]
    fn parts(&self) -> (*const u8, usize) {
        match self {
            Bytes::Lent(lent) => {
                assert!(!doorbell_shm::space::forked(), "a loan was used in a forked child, where its memory is not mapped");
                (lent.ptr(), lent.len())
            }
            Bytes::Own(own) => (own.ptr.as_ptr(), own.len),
        }
    }
}

impl<T: Lendable + ?Sized> Taken<T> {
    /// The message's envelope.
    #[inline]
    pub fn envelope(&self) -> Envelope {
        self.envelope
    }

    /// Whether the message lies in its owner's memory. If false, it is a copy.
    #[inline]
    pub fn is_lent(&self) -> bool {
        matches!(self.bytes, Bytes::Lent(_))
    }

    /// Whether everything read so far was what the owner wrote. False if the owner's memory was truncated and a read hit the
    /// missing part, which reads as zeros. Call it after reading.
    pub fn is_whole(&self) -> bool {
        !matches!(&self.bytes, Bytes::Lent(lent) if lent.is_cut())
    }

    /// The bytes in place. The owner may still change them, so read them without relying on them staying as they are.
    #[inline]
    pub fn payload(&self) -> Payload<'_> {
        let (ptr, len) = self.bytes.parts();
        // SAFETY: mapped and readable as long as `self`.
        unsafe { Payload::from_raw(ptr, len) }
    }

    fn new(envelope: Envelope, bytes: Bytes) -> Result<Self> {
        let mut taken = Self { envelope, bytes, _contents: PhantomData };
        if !T::fits(envelope.len) {
            let message = Box::new(Message { envelope, bytes: taken.payload().to_vec() });
            return Err(Error::WrongSize { message, expected: T::BYTES });
        }
        // A Doorbell owner aligns what it lends as this type, but another program may have sent it as bytes.
        if !taken.bytes.parts().0.addr().is_multiple_of(T::ALIGN) {
            taken.bytes = Bytes::Own(Own::copy(taken.payload(), T::ALIGN));
        }
        Ok(taken)
    }
}

impl<T: Plain> Taken<T> {
    /// A copy of the value.
    #[inline]
    pub fn read(&self) -> T {
        let mut value = MaybeUninit::<T>::uninit();
        // SAFETY: as many bytes as a `T` has (`new`) are readable in place, and any bytes are a `T` (Plain).
        unsafe {
            copy::out(self.bytes.parts().0, value.as_mut_ptr().cast(), size_of::<T>());
            value.assume_init()
        }
    }

    /// A reference to the value in place.
    ///
    /// # Safety
    /// The owner must not write to the message while the reference lives, which no owner that runs Doorbell does. This node
    /// must not leave meanwhile.
    #[inline]
    pub unsafe fn as_ref(&self) -> &T {
        // SAFETY: long enough and aligned (`new`); any bytes are a `T`; mapped as long as `self`; unchanging (caller).
        unsafe { &*self.bytes.parts().0.cast() }
    }
}

impl<T: Plain> Taken<[T]> {
    /// The number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.envelope.len.checked_div(size_of::<T>()).unwrap_or(0)
    }

    /// Whether there are no elements.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies as many elements as fit into `into`, and returns how many it copied.
    #[inline]
    pub fn copy_to(&self, into: &mut [T]) -> usize {
        let count = self.len().min(into.len());
        // SAFETY: that many bytes are readable in place and writable in `into`; any bytes are a `T` (Plain).
        unsafe { copy::out(self.bytes.parts().0, into.as_mut_ptr().cast(), count * size_of::<T>()) };
        count
    }

    /// A copy of all elements.
    pub fn to_vec(&self) -> Vec<T> {
        let count = self.len();
        let mut elements = Vec::<T>::with_capacity(count);
        // SAFETY: as `copy_to`; the vector has room for `count` elements, and the copy initialises them.
        unsafe {
            copy::out(self.bytes.parts().0, elements.as_mut_ptr().cast(), count * size_of::<T>());
            elements.set_len(count);
        }
        elements
    }

    /// All elements in place.
    ///
    /// # Safety
    /// As [`Taken::as_ref`].
    #[inline]
    pub unsafe fn as_slice(&self) -> &[T] {
        // SAFETY: as `as_ref`; the length is a multiple of the element's (`new`).
        unsafe { std::slice::from_raw_parts(self.bytes.parts().0.cast(), self.len()) }
    }
}

impl<T: ?Sized> fmt::Debug for Taken<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Taken").field("envelope", &self.envelope).finish_non_exhaustive()
    }
}

/// A receive that leaves the message where it lies.
struct Taking {
    accepts: Match,
    align: usize,
    got: Option<(Envelope, Bytes)>,
}

impl Direct for Taking {
    fn wants(&self, envelope: &Envelope) -> bool {
        self.got.is_none() && self.accepts.matches(envelope)
    }

    fn take(&mut self, envelope: &Envelope, payload: Payload<'_>) {
        self.got = Some((*envelope, Bytes::Own(Own::copy(payload, self.align))));
    }

    fn take_loan(&mut self, envelope: &Envelope, lent: Lent) {
        self.got = Some((*envelope, Bytes::Lent(lent)));
    }

    fn has(&self) -> bool {
        self.got.is_some()
    }
}

impl Shared {
    #[inline]
    fn take<T: Lendable + ?Sized>(&self, accepts: Match, deadline: Option<Instant>) -> Result<Taken<T>> {
        if self.progress() != Progress::Poller {
            let me = self.check()?;
            // The baton is released before anything else is done.
            let rounds = if self.wait() == Wait::Park { 1 } else { SPIN_ROUNDS };
            let taken = self.enter(me, "take")?.take_hot_loan(&accepts, rounds);
            if let Some((envelope, lent)) = taken {
                return Taken::new(envelope, Bytes::Lent(lent));
            }
        }
        self.take_slow(accepts, deadline)
    }

    #[inline(never)]
    fn take_slow<T: Lendable + ?Sized>(&self, accepts: Match, deadline: Option<Instant>) -> Result<Taken<T>> {
        let mut taking = Taking { accepts, align: T::ALIGN, got: None };
        let hot = |engine: &mut crate::turn::Engine, taking: &mut Taking| {
            taking.got = engine.take_hot_loan(&accepts, SPIN_ROUNDS).map(|(envelope, lent)| (envelope, Bytes::Lent(lent)));
        };
        self.receive_whole("take", accepts, deadline, &mut taking, hot)?;
        match taking.got {
            Some((envelope, bytes)) => Taken::new(envelope, bytes),
            None => Err(Error::Timeout { operation: "take", node: accepts.bound_to() }),
        }
    }
}

impl Node {
    /// Receives the next message that `accepts` accepts. A lent message stays where it lies; any other is copied. `T` is a
    /// [`Plain`] type or a slice of one. Waits until there is such a message, as [`recv`](Self::recv) does.
    ///
    /// ```
    /// # use doorbell::{Match, Node, Space};
    /// # fn main() -> Result<(), doorbell::Error> {
    /// # let space = Space::heap();
    /// # let a = Node::builder("takes").space(space.clone()).join()?;
    /// # let b = Node::builder("takes").space(space).join()?;
    /// a.send(b.id(), 1, &5_u32.to_ne_bytes())?;
    /// let taken = b.take::<u32>(Match::any())?;
    /// assert_eq!((taken.read(), taken.is_lent()), (5, false));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::WrongSize`] if the message's length does not fit `T`: the error owns the message. [`Error::PeerDied`],
    /// [`Error::PeerLeft`], [`Error::NoSuchNode`], [`Error::Damaged`], [`Error::Severed`]; [`Error::Forked`],
    /// [`Error::Reentrant`], [`Error::Closed`].
    #[inline]
    pub fn take<T: Lendable + ?Sized>(&self, accepts: Match) -> Result<Taken<T>> {
        self.shared().take(accepts, None)
    }

    /// Takes a message, waiting until `deadline` at most.
    ///
    /// # Errors
    /// [`Error::Timeout`]; otherwise as [`take`](Self::take).
    #[inline]
    pub fn take_until<T: Lendable + ?Sized>(&self, accepts: Match, deadline: Instant) -> Result<Taken<T>> {
        self.shared().take(accepts, Some(deadline))
    }

    /// Takes a message if a whole one is there now; otherwise as [`try_recv`](Self::try_recv).
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn try_take<T: Lendable + ?Sized>(&self, accepts: Match) -> Result<Option<Taken<T>>> {
        match self.shared().take_slow(accepts, Some(world::now())) {
            Ok(taken) => Ok(Some(taken)),
            Err(Error::Timeout { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes a message as bytes: as [`take`](Self::take).
    ///
    /// # Errors
    /// As [`take`](Self::take).
    #[inline]
    pub fn take_bytes(&self, accepts: Match) -> Result<Taken<[u8]>> {
        self.take(accepts)
    }
}

impl Peer {
    /// Takes a message from this incarnation of the node: as [`Node::take`].
    ///
    /// # Errors
    /// As [`Node::take`].
    #[inline]
    pub fn take<T: Lendable + ?Sized>(&self, accepts: Match) -> Result<Taken<T>> {
        self.node().take(accepts.incarnation(self.id(), self.incarnation()))
    }
}
