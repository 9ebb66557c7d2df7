//! Cells in regions of any node.

use super::cell::{check_processor, operate_at, update_at};
use super::code::{AtomicRequest, OpCode, TypeCode};
use super::form::Form;
use super::operate::{Operate, bytes};
use super::pending::{Of, Pending};
use super::{AtomicValue, Element, NotPerformed, Place, Tier, Want, Word};
use doorbell_engine::drive::Shared;
use doorbell_engine::drive::poller::Progress;
use doorbell_engine::memory::cache::{Act, whole};
use doorbell_engine::memory::key;
use doorbell_engine::node::shared_of;
use doorbell_engine::region::access::fault;
use doorbell_engine::region::place_of;
use doorbell_engine::sync::baton::{BatonGuard, Token};
use doorbell_engine::sync::op::{Op, Outcome};
use doorbell_engine::turn::Engine;
use doorbell_engine::{Error, Key, KeyFault, Node, Peer, ReadWrite, Result};
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

/// A cell in a region of any node of the domain, as one node reaches it: `Send` and `Sync`, to be kept. [`atomic!`](doorbell_macros::atomic) takes it as it takes an
/// [`AtomicCell`](super::AtomicCell); as the region may be gone, each update is a `Result`.
///
/// Over shared memory the caller's processor does the update, in place: a few checks and the instruction. It asks nothing of the owner's processor. Whether
/// the owner lives is asked once in 257 updates and reads by this cell: as many may succeed in memory that nobody but those who have mapped it will see.
///
/// Where only the network reaches the node, its engine does the update, with no help of its application, and the call waits for the answer: as long as the
/// journey there and back takes. It drives this node's engine meanwhile. An operator is one question; a callback is a read and a compare-and-swap, again
/// until nobody was faster. [`start`](Self::start) does not wait, so that many are under way at once. There is no deadline: the wait ends with the
/// answer, or when the node dies or leaves. Each update takes place once, whatever the network loses or repeats.
/// After [`Error::PeerDied`], [`Error::PeerLeft`], [`Error::Damaged`], [`Error::Severed`], or [`Error::Closed`] of one that was waiting already, nobody knows
/// whether it did. Values under a lock are not updated over the network: [`Error::Unsupported`]. From within `recv_with` there is
/// [`Error::Reentrant`].
pub struct RemoteCell<E> {
    node: Node,
    place: key::Place,
    way: Way,
    _element: PhantomData<fn() -> E>,
}

/// How it is reached.
enum Way {
    /// By memory that is shared.
    Mapped(Mapped),
    /// By the network alone.
    Apart,
}

struct Mapped {
    region: Arc<PeerRegion>,
    /// `None` for a region of this node.
    inbox: Option<Arc<PeerInbox>>,
    credit: AtomicU32,
}

impl<E: Element> RemoteCell<E> {
    /// The first element that the key names, as a cell. Control path: maps the region if this node has not used it; keep the cell for as long as it is
    /// updated. It works for regions of this node, too, and for values that are updated under a lock.
    ///
    /// # Errors
    /// [`Error::Key`] if the key is bad or names no element; [`Error::PeerDied`], [`Error::PeerLeft`]; [`Error::Shm`] if the region can't be mapped;
    /// [`Error::Unsupported`] if this processor lacks what such a cell needs; [`Error::Closed`], [`Error::Forked`], [`Error::Severed`].
    pub fn open(node: &Node, key: Key<E, ReadWrite>) -> Result<Self> {
        check_processor::<E::Value>()?;
        let (shared, place) = (shared_of(node), *place_of(&key));
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
            let is_own = (place.node, place.incarnation) == (node.id(), node.incarnation());
            let inbox = || {
                let inbox = shared.regions().inbox(shared.membership(), place.node, place.incarnation);
                inbox.map_err(|miss| shared.missing(&place, UPDATE, miss))
            };
            let inbox = if is_own { None } else { Some(inbox()?) };
            Way::Mapped(Mapped { region, inbox, credit: AtomicU32::new(CREDIT) })
        };
        Ok(Self { node: node.clone(), place, way, _element: PhantomData })
    }

    /// As [`open`](Self::open), of a key of this peer's node.
    ///
    /// # Errors
    /// As [`open`](Self::open); and [`KeyFault::OtherNode`] for a key of another node.
    pub fn at(peer: &Peer, key: Key<E, ReadWrite>) -> Result<Self> {
        if key.node() != peer.id() {
            return Err(fault(UPDATE, place_of(&key), KeyFault::OtherNode));
        }
        Self::open(peer.node(), key)
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
        // If this node has left meanwhile, nobody knows either.
        NoUpdate::Lost => whole(member.region).err().unwrap_or(Error::LockLost { node: member.region.node() }),
    }
}

impl<E: Element> RemoteCell<E> {
    /// Whether its updates take a lock.
    const LOCKS: bool = matches!(super::tier::<E::Value>(), Tier::Lock);

    /// Whether the caller's processor does the updates, in memory that is shared.
    pub fn is_shared(&self) -> bool {
        matches!(self.way, Way::Mapped(_))
    }

    /// Does something in place, if nothing speaks against it.
    #[inline(always)]
    fn with<V>(
        &self,
        Mapped { region, inbox, credit }: &Mapped,
        in_place: impl FnOnce(*mut <E::Value as AtomicValue>::Form, &Member<'_>) -> Result<V, NoUpdate<Error>>,
    ) -> Result<V> {
        let shared = shared_of(&self.node);
        shared.usable()?;
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
        match shared_of(&self.node).find(&self.place, size_of::<E>(), UPDATE) {
            Err(error) => error,
            Ok(_) => fault(UPDATE, &self.place, KeyFault::Stale),
        }
    }

    /// Begins what the node is asked to do that only the network reaches.
    fn begin(&self, request: AtomicRequest) -> Result<(Token, BatonGuard<'_, Engine>, Arc<Op>)> {
        assert!(!request.divides_by_zero(), "attempt to divide a cell by zero");
        shared_of(&self.node).begin_update_apart(&self.place, request.to_update(), UPDATE)?.ok_or_else(|| self.gone())
    }

    /// Has the node do it, and waits for the old value, if that is asked for.
    fn ask_apart(&self, request: AtomicRequest) -> Result<[u8; 16]> {
        let (me, engine, op) = self.begin(request)?;
        match shared_of(&self.node).finish_asked(me, engine, &op)? {
            Outcome::Updated(old) => Ok(old),
            _ => Err(Error::Cancelled),
        }
    }

    /// The code of its type.
    fn code() -> Result<TypeCode> {
        let why = "a value of more than 16 bytes is under a lock, which does not go by the network; send its node a message that asks for the update";
        TypeCode::of::<E::Value>().ok_or(Error::Unsupported { operation: UPDATE.name, why })
    }

    #[cold]
    fn load_apart(&self) -> Result<E::Value> {
        let none = [0; 16];
        let load = AtomicRequest { op: OpCode::Load, of: Self::code()?, fetch: true, operand: none, expected: none };
        Ok(E::Value::from_bytes(&self.ask_apart(load)?))
    }

    #[cold]
    fn operate_apart<O, R: Copy, W: Want<E::Value>>(&self, operand: R) -> Result<W::Out>
    where
        E::Value: Operate<O, R>,
    {
        match AtomicRequest::operate::<O, R, E::Value>(operand, W::FETCH) {
            Some(request) => {
                let old = E::Value::from_bytes(&self.ask_apart(request)?);
                Ok(W::pick(old, || old.apply(operand)))
            }
            None => self.update_apart::<W>(None, |old| Some(old.apply(operand))),
        }
    }

    /// An update by a callback: reads the value, and swaps it for what the callback makes of it, until nobody is faster.
    #[cold]
    fn update_apart<W: Want<E::Value>>(
        &self,
        mut attempts: Option<u32>,
        mut callback: impl FnMut(E::Value) -> Option<E::Value>,
    ) -> Result<W::Out> {
        // What was seen is compared, not what the value makes of it: bytes that mean nothing are any.
        let of = Self::code()?.plain();
        let ask = |op, operand, expected| self.ask_apart(AtomicRequest { op, of, fetch: true, operand, expected });
        let mut seen = ask(OpCode::Load, [0; 16], [0; 16])?;
        loop {
            if let Some(left) = &mut attempts {
                *left = left.checked_sub(1).ok_or(Error::NotPerformed(NotPerformed::Attempts))?;
            }
            let old = E::Value::from_bytes(&seen);
            let new = callback(old).ok_or(Error::NotPerformed(NotPerformed::Declined))?;
            let now = ask(OpCode::CompareSwap, bytes(new), seen)?;
            if now[..of.bytes()] == seen[..of.bytes()] {
                return Ok(W::pick(old, || new));
            }
            seen = now;
        }
    }

    /// Begins an update by an operator and does not wait for its end. Of a node that only the network reaches up to 64 may be under way at once, puts and
    /// gets among them; more wait here, some thousand of all nodes. Several that are begun closely on another go in one datagram. Updates of one node that one thread begins take place
    /// in the order in which they were begun. Over shared memory the update has taken place when this returns.
    ///
    /// ```
    /// # use doorbell::{Node, Space};
    /// use doorbell::atomic::{Add, Old, RemoteCell};
    /// # fn main() -> Result<(), doorbell::Error> {
    /// # let space = Space::heap();
    /// # let owner = Node::builder("started").space(space.clone()).join()?;
    /// # let other = Node::builder("started").space(space).join()?;
    /// # let region = owner.region::<u64>(1)?;
    /// let cell = RemoteCell::open(&other, region.key())?;
    /// let tickets: Vec<_> = (0..3).map(|_| cell.start::<Add, Old, _>(1)).collect::<Result<_, _>>()?;
    /// let tickets: Vec<u64> = tickets.into_iter().map(|ticket| ticket.wait()).collect::<Result<_, _>>()?;
    /// assert_eq!(tickets, [0, 1, 2]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// If it divides by zero.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an operator of a type of your own, which the other node does not know, and for a value under a lock; [`Error::Full`] if a
    /// thousand wait at this node to be sent; and as an update that waits.
    pub fn start<O, W, R>(&self, operand: R) -> Result<Pending<W::Out>>
    where
        R: Copy,
        E::Value: Operate<O, R>,
        W: Want<E::Value>,
    {
        if self.is_shared() {
            return self.operate::<O, R, W>(operand, Ordering::AcqRel).map(Pending::over);
        }
        let why = "the other node has no such operator of such a type; write the update with `atomic!`, which waits for it";
        Self::code()?;
        let request = AtomicRequest::operate::<O, R, E::Value>(operand, W::FETCH);
        let request = request.ok_or(Error::Unsupported { operation: "start an update of a cell", why })?;
        self.start_apart(request, |request, old| {
            W::pick(E::Value::from_bytes(old), || E::Value::from_bytes(&request.after(*old)))
        })
    }

    /// Begins to read it: as [`start`](Self::start).
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_load(&self) -> Result<Pending<E::Value>> {
        if self.is_shared() {
            return self.load(Ordering::Acquire).map(Pending::over);
        }
        let none = [0; 16];
        let load = AtomicRequest { op: OpCode::Load, of: Self::code()?, fetch: true, operand: none, expected: none };
        self.start_apart(load, |_, old| E::Value::from_bytes(old))
    }

    /// Begins to replace the value by `new` if it is `expected`, byte by byte: as [`start`](Self::start). What it was comes back: it was replaced if
    /// that is what was expected.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_compare_swap(&self, expected: E::Value, new: E::Value) -> Result<Pending<E::Value>>
    where
        <E::Value as AtomicValue>::Form: Word,
    {
        if let Way::Mapped(mapped) = &self.way {
            let (expected, new) = (expected.into_word(), new.into_word());
            let seen = self.with(mapped, |at, _| {
                // SAFETY: `with` gives a cell of this form.
                match unsafe { Word::compare_exchange(at, expected, new, Ordering::AcqRel) } {
                    Ok(seen) | Err(seen) => Ok(seen),
                }
            })?;
            return Ok(Pending::over(E::Value::from_word(seen)));
        }
        let of = Self::code()?.plain();
        let (operand, expected) = (bytes(new), bytes(expected));
        let swap = AtomicRequest { op: OpCode::CompareSwap, of, fetch: true, operand, expected };
        self.start_apart(swap, |_, old| E::Value::from_bytes(old))
    }

    fn start_apart<V>(&self, request: AtomicRequest, of: Of<V>) -> Result<Pending<V>> {
        let shared = shared_of(&self.node);
        let (me, mut engine, op) = self.begin(request)?;
        engine.keep_update(self.place.node)?;
        if shared.progress() != Progress::Poller {
            engine.push_update(me, self.place.node);
        }
        drop(engine);
        shared.hand_over();
        Ok(Pending::under_way(self.node.clone(), op, request, of))
    }
}

impl<E: Element> Place for RemoteCell<E> {
    type Value = E::Value;
    type Done<V> = Result<V>;
    type Tried<V> = Result<V>;

    #[inline(always)]
    fn load(&self, ordering: Ordering) -> Result<E::Value> {
        let Way::Mapped(mapped) = &self.way else { return self.load_apart() };
        self.with(mapped, |at, member| {
            // SAFETY: `with` gives a cell of this form.
            unsafe { <E::Value as AtomicValue>::Form::load(at, member, ordering) }.map_err(NoUpdate::Stop)
        })
    }

    #[inline(always)]
    fn operate<O, R: Copy, W: Want<E::Value>>(&self, operand: R, ordering: Ordering) -> Result<W::Out>
    where
        E::Value: Operate<O, R>,
    {
        let Way::Mapped(mapped) = &self.way else { return self.operate_apart::<O, R, W>(operand) };
        // SAFETY: `with` gives a cell of this form.
        self.with(mapped, |at, member| unsafe { operate_at::<E::Value, O, R, W, _>(at, member, operand, ordering) })
    }

    #[inline(always)]
    fn update<W: Want<E::Value>>(&self, ordering: Ordering, mut callback: impl FnMut(E::Value) -> E::Value) -> Result<W::Out> {
        let Way::Mapped(mapped) = &self.way else { return self.update_apart::<W>(None, |old| Some(callback(old))) };
        // SAFETY: `with` gives a cell of this form.
        self.with(mapped, |at, member| unsafe { update_at::<E::Value, W, _>(at, member, ordering, callback) })
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
        let Way::Mapped(mapped) = &self.way else { return self.update_apart::<W>(attempts, callback) };
        let tried = self.with(mapped, |at, member| {
            // SAFETY: `with` gives a cell of this form.
            unsafe { <E::Value as AtomicValue>::Form::update(at, member, attempts, ordering, callback) }
        })?;
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
