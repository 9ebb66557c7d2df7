//! Memory behind a lock: only the owner of the lock reads and writes it.

use super::guard::LockGuard;
use super::key::Lock;
use super::share::Offer;
use doorbell_engine::kit::{Error, Key, Node, NodeId, Plain, ReadWrite, Region, Result};
use doorbell_shm::keys::{OwnerId, Resource};
use std::ops::{Deref, DerefMut};
use std::time::Instant;
use zerocopy::FromZeros;

/// Elements in a region of one node, guarded by a lock. [`lock`](Self::lock) reads the elements, and dropping its guard writes
/// them back if they changed and unlocks. Both go over any fabric. If an owner dies, the elements are as they were before it
/// locked; if it died while it wrote them back, some of them have their new values.
///
/// ```
/// use doorbell::{Node, Shared, Space};
/// use std::time::{Duration, Instant};
///
/// # fn main() -> Result<(), doorbell::Error> {
/// let space = Space::heap();
/// let host = Node::builder("sums").space(space.clone()).join()?;
/// let accelerator = Node::builder("sums").space(space).join()?;
///
/// let sums = Shared::new(&host, "sums", &[0_u64; 4])?;
/// let offer = sums.offer(&[accelerator.id()])?;
/// let theirs: Shared<u64> = Shared::accept(&accelerator, Instant::now() + Duration::from_secs(5))?;
/// theirs.lock()?[2] += 40;
/// sums.lock()?[2] += 2;
/// assert_eq!(sums.lock()?[..], [0, 0, 42, 0]);
/// # drop(offer);
/// # Ok(())
/// # }
/// ```
pub struct Shared<T> {
    lock: Lock,
    place: Key<T, ReadWrite>,
    /// Only in the value that created the region: dropping it withdraws the region.
    _region: Option<Region<T>>,
}

impl<T: Plain> Shared<T> {
    /// Puts elements into a new region of this node, behind a new lock of this name. The region lives until this value is
    /// dropped or the node leaves.
    ///
    /// # Errors
    /// As [`Node::region`] and [`Lock::init`].
    pub fn new(node: &Node, name: &str, elements: &[T]) -> Result<Self> {
        let region = node.region::<T>(elements.len())?;
        region.write(0, elements)?;
        let place = region.key();
        let resource = Resource::Region {
            node: node.id(),
            incarnation: node.incarnation(),
            number: place.number().into(),
            bytes: size_of_val(elements) as u64,
        };
        Ok(Self { lock: Lock::init(node, name, resource)?, place, _region: Some(region) })
    }

    /// Accepts the next shared elements that another node [offers](Self::offer); waits for them until `deadline`.
    ///
    /// # Errors
    /// As [`Lock::accept`]. [`Error::Key`](doorbell_engine::Error::Key) if the bytes sent with the lock are not the key of a
    /// region of such elements.
    pub fn accept(node: &Node, deadline: Instant) -> Result<Self> {
        let (lock, with) = Lock::accept_with(node, deadline)?;
        Ok(Self { lock, place: Key::from_bytes(&with)?, _region: None })
    }

    /// Offers the elements to some nodes, which [accept](Self::accept) them.
    ///
    /// # Errors
    /// As [`Lock::offer`].
    pub fn offer(&self, nodes: &[NodeId]) -> Result<Offer> {
        self.lock.offer_with(nodes, &self.place.to_bytes())
    }

    /// The lock that guards the elements.
    pub fn key(&self) -> &Lock {
        &self.lock
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.place.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Locks, and reads the elements into newly allocated memory. Waits for the lock as long as it takes.
    ///
    /// # Errors
    /// As [`Lock::lock`] and [`Node::get`].
    pub fn lock(&self) -> Result<SharedGuard<'_, T>> {
        self.read(self.lock.lock()?)
    }

    /// As [`lock`](Self::lock), but waits for the lock until `deadline` at most.
    ///
    /// # Errors
    /// As [`Lock::lock_until`] and [`Node::get`].
    pub fn lock_until(&self, deadline: Instant) -> Result<SharedGuard<'_, T>> {
        self.read(self.lock.lock_until(deadline)?)
    }

    fn read<'a>(&'a self, key: LockGuard<'a>) -> Result<SharedGuard<'a, T>> {
        let mut elements = <T as FromZeros>::new_vec_zeroed(self.len())
            .map_err(|_| Error::Invalid { what: format!("there is no memory for {} elements", self.len()) })?;
        self.lock.node().get(self.place, &mut elements)?;
        Ok(SharedGuard { shared: self, elements, changed: false, key })
    }
}

/// A copy of the elements of a locked [`Shared`]. Dropping it writes the copy back if it was borrowed mutably, and unlocks.
#[must_use = "dropping the guard unlocks"]
pub struct SharedGuard<'a, T: Plain> {
    shared: &'a Shared<T>,
    elements: Vec<T>,
    changed: bool,
    key: LockGuard<'a>,
}

impl<T: Plain> SharedGuard<'_, T> {
    /// As [`LockGuard::inherited_from`].
    pub fn inherited_from(&self) -> Option<OwnerId> {
        self.key.inherited_from()
    }

    /// As [`LockGuard::mark_repaired`].
    ///
    /// # Errors
    /// As [`LockGuard::mark_repaired`].
    pub fn mark_repaired(&mut self) -> Result<()> {
        self.key.mark_repaired()
    }

    /// Writes the elements back now if they were borrowed mutably, and reports a failure. The lock stays held.
    ///
    /// # Errors
    /// As [`Node::put`].
    pub fn commit(&mut self) -> Result<()> {
        if std::mem::take(&mut self.changed) {
            self.shared.lock.node().put(&self.elements, self.shared.place)?;
        }
        Ok(())
    }

    /// Unlocks without writing the elements back.
    pub fn discard(mut self) {
        self.changed = false;
    }
}

impl<T: Plain> Deref for SharedGuard<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.elements
    }
}

impl<T: Plain> DerefMut for SharedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.changed = true;
        &mut self.elements
    }
}

impl<T: Plain> Drop for SharedGuard<'_, T> {
    fn drop(&mut self) {
        if let Err(error) = self.commit() {
            tracing::warn!(%error, key = self.shared.lock.name(), "could not write back elements that changed under a lock");
        }
    }
}
