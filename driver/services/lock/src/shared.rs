//! Memory behind a key: whoever has the key reads and writes it, and nobody else.

use super::guard::KeyGuard;
use super::key::LockKey;
use super::share::Offer;
use doorbell_engine::region::{Key, Plain, ReadWrite, Region};
use doorbell_engine::{Node, Result};
use doorbell_fabric::NodeId;
use doorbell_shm::keys::{OwnerId, Resource};
use std::ops::{Deref, DerefMut};
use std::time::Instant;
use zerocopy::FromZeros;

/// Elements in a region of one node, behind a key that all who share them have. They are read when they are locked, and written back when they are
/// unlocked, over whatever fabric leads there: so an owner that dies leaves them as they were before it locked them, or, if it
/// died while it wrote them back, in part as they were to be.
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
    lock: LockKey,
    place: Key<T, ReadWrite>,
    /// Of whoever made it: dropping it withdraws the region.
    _region: Option<Region<T>>,
}

impl<T: Plain> Shared<T> {
    /// Puts elements into a new region of this node, behind a new key of this name. They live as long as this node and this value.
    ///
    /// # Errors
    /// As [`Node::region`] and [`LockKey::init`].
    pub fn new(node: &Node, name: &str, elements: &[T]) -> Result<Self> {
        let region = node.region::<T>(elements.len())?;
        region.write(0, elements)?;
        let place = region.key();
        let resource = Resource::Region {
            node: node.id(),
            life: node.incarnation(),
            number: place.number().into(),
            bytes: size_of_val(elements) as u64,
        };
        Ok(Self { lock: LockKey::init(node, name, resource)?, place, _region: Some(region) })
    }

    /// What another node [offers](Self::offer) next; waits for it until `deadline`.
    ///
    /// # Errors
    /// As [`LockKey::accept`]; [`Error::Key`](doorbell_engine::Error::Key) if what came with the key is no key of a region of such elements.
    pub fn accept(node: &Node, deadline: Instant) -> Result<Self> {
        let (lock, with) = LockKey::accept_with(node, deadline)?;
        Ok(Self { lock, place: Key::from_bytes(&with)?, _region: None })
    }

    /// Sends it to some nodes, which [accept](Self::accept) it.
    ///
    /// # Errors
    /// As [`LockKey::offer`].
    pub fn offer(&self, nodes: &[NodeId]) -> Result<Offer> {
        self.lock.offer_with(nodes, &self.place.to_bytes())
    }

    /// The key that it is behind.
    pub fn key(&self) -> &LockKey {
        &self.lock
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.place.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Locks and reads the elements; waits for the key as long as it takes. Allocates memory for them.
    ///
    /// # Errors
    /// As [`LockKey::lock`] and [`Node::get`].
    pub fn lock(&self) -> Result<SharedGuard<'_, T>> {
        self.read(self.lock.lock()?)
    }

    /// The same, until `deadline`.
    ///
    /// # Errors
    /// As [`LockKey::lock_by`] and [`Node::get`].
    pub fn lock_by(&self, deadline: Instant) -> Result<SharedGuard<'_, T>> {
        self.read(self.lock.lock_by(deadline)?)
    }

    fn read<'a>(&'a self, key: KeyGuard<'a>) -> Result<SharedGuard<'a, T>> {
        let mut elements = <T as FromZeros>::new_vec_zeroed(self.len())
            .map_err(|_| doorbell_engine::Error::Invalid { what: format!("there is no memory for {} elements", self.len()) })?;
        self.lock.node().get(self.place, &mut elements)?;
        Ok(SharedGuard { shared: self, elements, changed: false, key })
    }
}

/// The elements, until it is dropped: then they are written back if they were borrowed mutably, and the key is given up.
#[must_use = "the key is given up again when the guard is dropped"]
pub struct SharedGuard<'a, T: Plain> {
    shared: &'a Shared<T>,
    elements: Vec<T>,
    changed: bool,
    key: KeyGuard<'a>,
}

impl<T: Plain> SharedGuard<'_, T> {
    /// As [`KeyGuard::inherited_from`].
    pub fn inherited_from(&self) -> Option<OwnerId> {
        self.key.inherited_from()
    }

    /// As [`KeyGuard::mark_repaired`].
    ///
    /// # Errors
    /// As there.
    pub fn mark_repaired(&mut self) -> Result<()> {
        self.key.mark_repaired()
    }

    /// Writes the elements back now, and says if it could not be done.
    ///
    /// # Errors
    /// As [`Node::put`].
    pub fn commit(&mut self) -> Result<()> {
        if std::mem::take(&mut self.changed) {
            self.shared.lock.node().put(&self.elements, self.shared.place)?;
        }
        Ok(())
    }

    /// Gives the key up, with the elements as they were.
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
            tracing::warn!(%error, key = self.shared.lock.name(), "what was changed under a key could not be written back");
        }
    }
}
