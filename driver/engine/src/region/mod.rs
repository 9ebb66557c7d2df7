//! Regions and keys: memory of one node that other nodes write and read without its processor.
//!
//! A [`Region`] is memory of this node that peers may reach. A [`Key`] names a part of it, and travels in messages as
//! [`KEY_BYTES`] bytes. A node that has the key can call [`Peer::put`](crate::Peer::put) or [`Peer::get`](crate::Peer::get).
//!
//! ```
//! use doorbell::{Key, Match, Node, ReadWrite, Space};
//!
//! # fn main() -> Result<(), doorbell::Error> {
//! # let space = Space::heap();
//! let owner = Node::builder("shelf").space(space.clone()).join()?;
//! let other = Node::builder("shelf").space(space).join()?;
//!
//! let region = owner.region::<f32>(1024)?;
//! owner.send(other.id(), 1, &region.key().to_bytes())?;
//!
//! let mut buf = [0; doorbell::KEY_BYTES];
//! other.recv(Match::any().tag(1), &mut buf)?;
//! let key = Key::<f32, ReadWrite>::from_bytes(&buf)?;
//! let peer = other.peer(owner.id())?;
//! peer.put(&[1.0, 2.0], key.at(16))?;
//! // A message tells the owner, which then sees everything put before the message was sent.
//! peer.send(2, b"done")?;
//!
//! owner.recv(Match::any().tag(2), &mut buf)?;
//! let mut two = [0.0; 2];
//! region.read(16, &mut two)?;
//! assert_eq!(two, [1.0, 2.0]);
//! # Ok(())
//! # }
//! ```
//!
//! A put is not ordered with what the owner does at the same time. The owner may read an element that is half old and half new,
//! unless the element has four or eight bytes and is aligned to its size. Messages order puts, and so does any other
//! synchronisation between the two.
//!
//! A key whose rights do not suffice does not compile:
//!
//! ```compile_fail
//! # use doorbell::{Key, Peer, ReadOnly};
//! fn put(peer: &Peer, key: Key<u64, ReadOnly>) {
//!     peer.put(&[1], key).unwrap();
//! }
//! ```
//!
//! Nor does a key of other elements:
//!
//! ```compile_fail
//! # use doorbell::{Key, Peer, ReadWrite};
//! fn put(peer: &Peer, key: Key<u64, ReadWrite>) {
//!     peer.put(&[1_u32], key).unwrap();
//! }
//! ```
//!
//! This compiles, and differs from the first only in the rights:
//!
//! ```
//! # use doorbell::{Key, Peer, ReadWrite};
//! fn put(peer: &Peer, key: Key<u64, ReadWrite>) {
//!     peer.put(&[1], key).unwrap();
//! }
//! ```

pub mod access;
mod by_mode;
mod handed;
pub mod remote;
mod stored;

pub use crate::memory::key::{Access, KEY_BYTES, Key, Plain, ReadOnly, ReadWrite};

pub use stored::Stored;

use crate::error::Error;
use crate::memory::copy;
use crate::memory::key::{self, Place};
use crate::memory::table::RegionTable;
use crate::{Node, Result};
use doorbell_shm::region::OwnRegion;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// Memory of this node that peers write and read with its keys: `len` elements, all zero at first. Clones are handles to the
/// same memory. All calls are thread-safe. Only dropping the last clone and [`withdraw`](Self::withdraw) may block.
///
/// When the last clone is dropped, the region is withdrawn and its keys are stale. A peer that is copying at that moment copies
/// to or from pages that are not used for anything else. The same holds for this node's engine when it serves a peer on the
/// network. The pages are freed when the last peer has unmapped them: when it next finds a key of this node stale, when it has
/// mapped many more of its regions, or when it leaves.
///
/// A region takes memory of `/dev/shm` as soon as it is made: whole pages, and one page more.
pub struct Region<T> {
    inner: Arc<Inner>,
    _elements: PhantomData<fn() -> T>,
}

struct Inner {
    own: OwnRegion,
    table: Arc<RegionTable>,
    place: Place,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.table.forget(self.own.ptr());
    }
}

impl Node {
    /// Makes a region of `len` elements, all of them zero. This is a slow call: it makes a file, and may block for up to a
    /// second while other nodes join or leave.
    ///
    /// ```
    /// # use doorbell::{Node, Space};
    /// # fn main() -> Result<(), doorbell::Error> {
    /// # let node = Node::builder("doc").space(Space::heap()).join()?;
    /// let region = node.region::<u64>(512)?;
    /// region.write(0, &[1, 2, 3])?;
    /// let mut third = [0];
    /// node.get(region.read_key().at(2), &mut third)?;
    /// assert_eq!(third, [3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if `len` is zero or too large for the address space; [`Error::Shm`] if there is no room for the
    /// region; [`Error::Closed`], [`Error::Forked`].
    pub fn region<T: Plain>(&self, len: usize) -> Result<Region<T>> {
        const { assert!(size_of::<T>() > 0, "elements of a region have at least one byte") };
        const { assert!(align_of::<T>() <= doorbell_shm::layout::PAGE, "elements of a region are aligned to a page at most") };
        self.shared().usable()?;
        let bytes = len.checked_mul(size_of::<T>()).filter(|bytes| (1..isize::MAX as usize / 2).contains(bytes));
        let Some(bytes) = bytes else {
            let what =
                format!("a region of {len} elements of {} bytes is impossible; ask for one element or more", size_of::<T>());
            return Err(Error::Invalid { what });
        };
        let (membership, table) = (self.shared().membership(), self.shared().regions());
        let own = membership.create_region(table.next_number(), bytes)?;
        table.offer(&own);
        let place = Place {
            node: membership.id(),
            incarnation: membership.incarnation(),
            number: own.number(),
            offset: 0,
            bytes: bytes as u64,
            secret: own.secret(),
        };
        Ok(Region { inner: Arc::new(Inner { own, table: table.clone(), place }), _elements: PhantomData })
    }
}

impl<T: Plain> Region<T> {
    /// The number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.inner.own.len() / size_of::<T>()
    }

    /// Always false: a region has at least one element.
    #[inline]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// A key to the whole region, for peers that may read and write.
    pub fn key(&self) -> Key<T, ReadWrite> {
        Key::new(self.inner.place)
    }

    /// A key to the whole region, for peers that may only read.
    pub fn read_key(&self) -> Key<T, ReadOnly> {
        self.key().read_only()
    }

    /// Copies elements out, beginning with element `at`. They include what peers put before they sent a message that was
    /// received.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the region has no such elements; [`Error::Forked`].
    #[inline]
    pub fn read(&self, at: usize, into: &mut [T]) -> Result<()> {
        let from = self.part("read", at, into.len())?;
        // SAFETY: `part` lies within the region, which is mapped as long as `inner`; any bytes are a `T`.
        unsafe { copy::out(from, into.as_mut_ptr().cast(), size_of_val(into)) };
        Ok(())
    }

    /// Copies elements in, beginning with element `at`. A peer that receives a later message of this thread sees them.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    #[inline]
    pub fn write(&self, at: usize, from: &[T]) -> Result<()> {
        let to = self.part("write", at, from.len())?;
        // SAFETY: `part` lies within the region, which is mapped as long as `inner`; all bytes of a `T` are initialised.
        unsafe { copy::inward(from.as_ptr().cast(), to, size_of_val(from)) };
        Ok(())
    }

    /// Sets all elements to `element`.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn fill(&self, element: T) -> Result<()> {
        for at in 0..self.len() {
            self.write(at, std::slice::from_ref(&element))?;
        }
        Ok(())
    }

    /// The elements in place.
    ///
    /// # Safety
    /// While the slice lives, no peer with a key and no thread of this process may write to the region. The process must not be
    /// a forked child.
    pub unsafe fn as_slice(&self) -> &[T] {
        // SAFETY: aligned to a page, initialised, and mapped as long as `inner`; not written meanwhile (caller).
        unsafe { std::slice::from_raw_parts(self.inner.own.ptr().cast(), self.len()) }
    }

    /// The elements in place, mutable.
    ///
    /// # Safety
    /// While the slice lives, no peer with a key and no thread of this process may read or write the region, and no other slice
    /// of it may exist. The process must not be a forked child. Clones share the memory, so `&mut self` would guarantee
    /// nothing.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn as_mut_slice(&self) -> &mut [T] {
        // SAFETY: aligned to a page, initialised, mapped as long as `inner`, and not shared meanwhile (caller).
        unsafe { std::slice::from_raw_parts_mut(self.inner.own.ptr().cast(), self.len()) }
    }

    /// Makes all keys of the region stale now, even if clones exist. This process can still use the memory. Blocks for up to a
    /// second while other nodes join or leave; does not wait for peers. A second call does nothing.
    ///
    /// # Errors
    /// [`Error::Shm`]: the file could not be removed, and will go when the node leaves; the keys are stale all the same.
    /// [`Error::Forked`].
    pub fn withdraw(&self) -> Result<()> {
        if doorbell_shm::space::forked() {
            return Err(Error::Forked);
        }
        self.inner.table.forget(self.inner.own.ptr());
        Ok(self.inner.own.withdraw()?)
    }

    /// Whether the region's keys are valid: it was not withdrawn, and the node has not left. Takes one load.
    pub fn is_live(&self) -> bool {
        self.inner.own.is_live()
    }

    #[inline]
    pub(crate) fn part(&self, operation: &'static str, at: usize, count: usize) -> Result<*mut u8> {
        if doorbell_shm::space::forked() {
            return Err(Error::Forked);
        }
        if at.checked_add(count).is_none_or(|end| end > self.len()) {
            let len = self.len();
            let what = format!("cannot {operation} {count} elements at element {at} of a region that has {len}");
            return Err(Error::Invalid { what });
        }
        // SAFETY: within the region (checked).
        Ok(unsafe { self.inner.own.ptr().add(at * size_of::<T>()) })
    }
}

impl<T> Clone for Region<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), _elements: PhantomData }
    }
}

impl<T> fmt::Debug for Region<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = &self.inner.own;
        f.debug_struct("Region").field("number", &own.number()).field("bytes", &own.len()).finish_non_exhaustive()
    }
}

/// The place that a key names. For services, which check it before they use it.
#[inline]
pub fn place_of<T, A>(key: &Key<T, A>) -> &key::Place {
    &key.place
}

/// The address of elements of a region for `operation`. They stay mapped as long as the region.
///
/// # Errors
/// [`Error::Invalid`] if the region has no such elements; [`Error::Forked`].
#[inline]
pub fn elements_of<T: Plain>(region: &Region<T>, operation: &'static str, at: usize, count: usize) -> Result<*mut u8> {
    region.part(operation, at, count)
}
