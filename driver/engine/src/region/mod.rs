//! Regions and keys: memory of one node that others write and read, while its processor does nothing.
//!
//! A [`Region`] is memory of this node that peers may reach; a [`Key`] names a part of it, and travels in messages as
//! [`KEY_BYTES`] bytes. Who has the key says [`Peer::put`](crate::Peer::put) or [`Peer::get`](crate::Peer::get).
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
//! // The owner learns of it by a message, and sees what was put before it was sent.
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
//! A put and what the owner does at the same time are not ordered: an element may be read half old and half new, unless it
//! has four or eight bytes and is aligned to them. Messages order them, and so does whatever else the two agree on.
//!
//! A key of other rights does not compile where it does not suffice:
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
//! This does, and differs from the first in nothing but the rights:
//!
//! ```
//! # use doorbell::{Key, Peer, ReadWrite};
//! fn put(peer: &Peer, key: Key<u64, ReadWrite>) {
//!     peer.put(&[1], key).unwrap();
//! }
//! ```

pub mod access;
mod by_mode;
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

/// Memory of this node that peers write and read by its keys: `len` elements, all zero at first. Clones are handles to the
/// same memory; all calls are thread-safe. None of them blocks, other than dropping the last clone and
/// [`withdraw`](Self::withdraw).
///
/// When the last clone is dropped the region is withdrawn: its keys are stale from then on. A peer that is copying at that
/// moment copies to or from pages that nobody else ever gets; so does the engine of this node, for one that is reached by the network. Those pages are given back when the last peer has let go of
/// them: when it next finds a key of this node stale, has mapped many more of its regions, or leaves.
///
/// It takes memory of `/dev/shm`, in whole pages and one more, from the moment on that it is made.
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
    /// Makes a region of `len` elements, all of them zero. Control path: makes a file, and may block for up to a second if
    /// other nodes join or leave at this moment.
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
    /// [`Error::Invalid`] for a region without elements, or of more than fit the memory; [`Error::Shm`] if there is no room
    /// for it; [`Error::Closed`], [`Error::Forked`].
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
    /// Elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.inner.own.len() / size_of::<T>()
    }

    /// Never: a region has at least one element.
    #[inline]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// A key to all of it, for peers that may read and write.
    pub fn key(&self) -> Key<T, ReadWrite> {
        Key::new(self.inner.place)
    }

    /// A key to all of it, for peers that may only read.
    pub fn read_key(&self) -> Key<T, ReadOnly> {
        self.key().read_only()
    }

    /// Copies elements out, from element `at` on. What peers put before a message that was received is in them.
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

    /// Copies elements in, from element `at` on. A peer that receives a later message of this thread gets them.
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

    /// Makes all elements this one.
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
    /// As long as the slice lives nobody writes the region: no peer that has a key, and no thread of this process. The
    /// process is not a forked child.
    pub unsafe fn as_slice(&self) -> &[T] {
        // SAFETY: aligned to a page, initialised, and mapped as long as `inner`; not written meanwhile (caller).
        unsafe { std::slice::from_raw_parts(self.inner.own.ptr().cast(), self.len()) }
    }

    /// The elements in place, to be changed.
    ///
    /// # Safety
    /// As long as the slice lives nobody else reads or writes the region: no peer that has a key, no thread of this process,
    /// and no other slice of it exists. The process is not a forked child.
    // Clones share the memory, so `&mut self` would promise nothing: the caller has to.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn as_mut_slice(&self) -> &mut [T] {
        // SAFETY: aligned to a page, initialised, and mapped as long as `inner`; nobody else's meanwhile (caller).
        unsafe { std::slice::from_raw_parts_mut(self.inner.own.ptr().cast(), self.len()) }
    }

    /// Makes all its keys stale now, whatever clones exist. Its memory stays as it is for this process. Blocks for up to a
    /// second if other nodes join or leave at this moment; does not wait for peers. A second call does nothing.
    ///
    /// # Errors
    /// [`Error::Shm`]: its file could not be removed and goes when the node leaves; its keys are stale all the same.
    /// [`Error::Forked`].
    pub fn withdraw(&self) -> Result<()> {
        if doorbell_shm::space::forked() {
            return Err(Error::Forked);
        }
        self.inner.table.forget(self.inner.own.ptr());
        Ok(self.inner.own.withdraw()?)
    }

    /// Whether its keys are good: it was not withdrawn, and the node has not left. One load.
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

/// The place that a key names: for services, which check it before they use it.
#[inline]
pub fn place_of<T, A>(key: &Key<T, A>) -> &key::Place {
    &key.place
}

/// Where elements of a region lie, of which `operation` is done. They are mapped as long as the region.
///
/// # Errors
/// [`Error::Invalid`] if the region has no such elements; [`Error::Forked`].
#[inline]
pub fn elements_of<T: Plain>(region: &Region<T>, operation: &'static str, at: usize, count: usize) -> Result<*mut u8> {
    region.part(operation, at, count)
}
