//! Cells in regions of any node.

use super::cell::{check_processor, operate_at, update_at};
use super::code::{self, AtomicRequest};
use super::form::Form;
use super::operate::Operate;
use super::{AtomicValue, Element, NotPerformed, Place, Tier, Want};
use crate::engine::baton::Token;
use crate::node::Shared;
use crate::region::access::{Act, fault, whole};
use crate::region::key;
use crate::{Error, Key, KeyFault, Node, Peer, ReadWrite, Result};
use doorbell_shm::domain::PeerInbox;
use doorbell_shm::keys::OwnerId;
use doorbell_shm::locked::{NoUpdate, Updater};
use doorbell_shm::region::PeerRegion;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const UPDATE: Act = Act { name: "update a cell", writes: true };

/// Updates between two questions whether the region's owner lives: one costs half a microsecond.
const CREDIT: u32 = 256;

/// A cell in a region of any node of the domain, as one node reaches it: `Send` and `Sync`, to be kept. [`atomic!`](macro@crate::atomic) takes it as it takes an
/// [`AtomicCell`](super::AtomicCell); as the region may be gone, each update is a `Result`.
///
/// Over shared memory the caller's processor does the update, in place: a few checks and the instruction. It asks nothing of the owner's processor. Whether
/// the owner lives is asked once in 257 updates and reads by this cell: as many may succeed in memory that nobody but those who have mapped it will see.
pub struct RemoteCell<E> {
    node: Node,
    place: key::Place,
    way: Way,
    _element: PhantomData<fn() -> E>,
}

/// How it is reached.
enum Way {
    /// By memory that is shared.
    Mapped {
        region: Arc<PeerRegion>,
        /// `None` for a region of this node.
        inbox: Option<Arc<PeerInbox>>,
        credit: AtomicU32,
    },
    /// By the network alone.
    Apart,
}

impl Node {
    /// The first element that the key names, as a cell. Control path: maps the region if this node has not used it; keep the cell for as long as it is
    /// updated. It works for regions of this node, too, and for values that are updated under a lock.
    ///
    /// # Errors
    /// [`Error::Key`] if the key is bad or names no element; [`Error::PeerDied`], [`Error::PeerLeft`]; [`Error::Shm`] if the region can't be mapped;
    /// [`Error::Unsupported`] if this processor lacks what such a cell needs; [`Error::Closed`], [`Error::Forked`], [`Error::Severed`].
    pub fn cell<E: Element>(&self, key: Key<E, ReadWrite>) -> Result<RemoteCell<E>> {
        check_processor::<E::Value>()?;
        let (shared, place) = (self.shared(), key.place);
        if place.bytes < size_of::<E>() as u64 {
            return Err(fault(UPDATE, &place, KeyFault::OutOfRange));
        }
        if !place.offset.is_multiple_of(align_of::<E>() as u64) {
            return Err(fault(UPDATE, &place, KeyFault::WrongType));
        }
        let way = if shared.elsewhere(&place, UPDATE)?.is_some() {
            Way::Apart
        } else {
            let (region, _) = shared.find(&place, size_of::<E>(), UPDATE)?;
            let is_own = (place.node, place.incarnation) == (self.id(), self.incarnation());
            let inbox = || {
                let inbox = shared.regions().inbox(shared.membership(), place.node, place.incarnation);
                inbox.map_err(|miss| shared.missing(&place, UPDATE, miss))
            };
            Way::Mapped { region, inbox: if is_own { None } else { Some(inbox()?) }, credit: AtomicU32::new(CREDIT) }
        };
        Ok(RemoteCell { node: self.clone(), place, way, _element: PhantomData })
    }
}

impl Peer {
    /// As [`Node::cell`], of a key of this peer's node.
    ///
    /// # Errors
    /// As [`Node::cell`]; and [`KeyFault::OtherNode`] for a key of another node.
    pub fn cell<E: Element>(&self, key: Key<E, ReadWrite>) -> Result<RemoteCell<E>> {
        if key.node() != self.id() {
            return Err(fault(UPDATE, &key.place, KeyFault::OtherNode));
        }
        self.node().cell(key)
    }
}

/// A thread of a node, in a region.
struct Member<'a> {
    shared: &'a Shared,
    region: &'a PeerRegion,
    place: &'a key::Place,
}

impl Updater for Member<'_> {
    type Stop = Error;

    #[inline]
    fn me(&self) -> OwnerId {
        let membership = self.shared.membership();
        OwnerId::thread(membership.id(), membership.incarnation(), Token::current().number())
    }

    fn lives(&self, owner: OwnerId) -> bool {
        self.shared.membership().is_living(owner.node(), owner.life())
    }

    fn go_on(&self) -> Result<()> {
        self.shared.usable()?;
        if !self.region.is_live() {
            return Err(fault(UPDATE, self.place, KeyFault::Stale));
        }
        whole(self.region)
    }
}

/// What the caller is told: that nothing happened, if that is certain.
#[cold]
fn failed(why: NoUpdate<Error>, member: &Member<'_>) -> Error {
    match why {
        NoUpdate::Attempts => Error::NotPerformed(NotPerformed::Attempts),
        NoUpdate::Stop(error) => error,
        NoUpdate::Nested => {
            let why = "this thread is in an update of the same cell, and would wait for itself; make both of it one expression";
            Error::Unsupported { operation: UPDATE.name, why }
        }
        // If this node has left meanwhile, that is no certainty either: `Closed` would claim it.
        NoUpdate::Lost => whole(member.region).err().unwrap_or(Error::LockLost { node: member.region.node() }),
    }
}

impl<E: Element> RemoteCell<E> {
    /// Whether its updates take a lock.
    const LOCKS: bool = matches!(super::tier::<E::Value>(), Tier::Lock);

    /// Whether the caller's processor does the updates, in memory that is shared.
    pub fn is_shared(&self) -> bool {
        matches!(self.way, Way::Mapped { .. })
    }

    /// Does something in place, if the memory is shared and nothing speaks against it; else asks the node that has it.
    #[inline(always)]
    fn with<V>(
        &self,
        in_place: impl FnOnce(*mut <E::Value as AtomicValue>::Form, &Member<'_>) -> Result<V, NoUpdate<Error>>,
        apart: impl FnOnce() -> Result<V>,
    ) -> Result<V> {
        let shared = self.node.shared();
        shared.usable()?;
        let Way::Mapped { region, inbox, credit } = &self.way else { return apart() };
        if !region.is_live() {
            return Err(self.gone());
        }
        let left = credit.load(Ordering::Relaxed);
        // Not exact among threads, which need not be, but never more than `CREDIT`.
        credit.store(if left == 0 { CREDIT } else { left - 1 }, Ordering::Relaxed);
        if left == 0 {
            self.ask(inbox.as_deref())?;
        }
        let _updating = if Self::LOCKS { Some(shared.begin_update()?) } else { None };
        // SAFETY: `find` saw that the element lies within the region, which is mapped as long as `region`.
        let at = unsafe { region.ptr().add(self.place.offset as usize) };
        let member = Member { shared, region, place: &self.place };
        let value = in_place(at.cast(), &member).map_err(|why| failed(why, &member))?;
        whole(region)?;
        Ok(value)
    }

    #[cold]
    fn ask(&self, inbox: Option<&PeerInbox>) -> Result<()> {
        match inbox {
            Some(inbox) if !inbox.is_alive() => Err(self.gone()),
            _ => Ok(()),
        }
    }

    #[cold]
    fn gone(&self) -> Error {
        match self.node.shared().find(&self.place, size_of::<E>(), UPDATE) {
            Err(error) => error,
            Ok(_) => fault(UPDATE, &self.place, KeyFault::Stale),
        }
    }

    /// An update by an operator, of a node with which no memory is shared.
    #[cold]
    fn operate_apart<V>(&self, request: Option<AtomicRequest>) -> Result<V> {
        Err(code::unsupported(request.as_ref()))
    }

    /// An update by a callback there: reads the value, and swaps it for what the callback makes of it, until nobody is faster.
    #[cold]
    fn update_apart<V>(&self) -> Result<V> {
        Err(code::unsupported(None))
    }
}

impl<E: Element> Place for RemoteCell<E> {
    type Value = E::Value;
    type Done<V> = Result<V>;
    type Tried<V> = Result<V>;

    #[inline(always)]
    fn load(&self, ordering: Ordering) -> Result<E::Value> {
        self.with(
            // SAFETY: `with` gives a cell of this form.
            |at, member| unsafe { <E::Value as AtomicValue>::Form::load(at, member, ordering) }.map_err(NoUpdate::Stop),
            || self.operate_apart(None),
        )
    }

    #[inline(always)]
    fn operate<O, R: Copy, W: Want<E::Value>>(&self, operand: R, ordering: Ordering) -> Result<W::Out>
    where
        E::Value: Operate<O, R>,
    {
        self.with(
            // SAFETY: `with` gives a cell of this form.
            |at, member| unsafe { operate_at::<E::Value, O, R, W, _>(at, member, operand, ordering) },
            || self.operate_apart(AtomicRequest::operate::<O, R, E::Value>(operand, W::FETCH)),
        )
    }

    #[inline(always)]
    fn update<W: Want<E::Value>>(&self, ordering: Ordering, callback: impl FnMut(E::Value) -> E::Value) -> Result<W::Out> {
        // SAFETY: `with` gives a cell of this form.
        self.with(|at, member| unsafe { update_at::<E::Value, W, _>(at, member, ordering, callback) }, || self.update_apart())
    }

    #[inline(always)]
    fn attempt<W: Want<E::Value>>(
        &self,
        attempts: Option<u32>,
        ordering: Ordering,
        callback: impl FnMut(E::Value) -> Option<E::Value>,
    ) -> Result<W::Out> {
        if attempts == Some(0) {
            return Err(Error::NotPerformed(NotPerformed::NoAttempt));
        }
        let tried = self.with(
            // SAFETY: `with` gives a cell of this form.
            |at, member| unsafe { <E::Value as AtomicValue>::Form::update(at, member, attempts, ordering, callback) },
            || self.update_apart(),
        )?;
        tried.map(|(old, new)| W::pick(old, || new)).ok_or(Error::NotPerformed(NotPerformed::Declined))
    }
}

impl<E> fmt::Debug for RemoteCell<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key::Place { node, number, offset, .. } = self.place;
        f.debug_struct("RemoteCell")
            .field("node", &node.0)
            .field("region", &number)
            .field("offset", &offset)
            .finish_non_exhaustive()
    }
}
