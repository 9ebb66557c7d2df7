//! Cells in regions of any node.

use super::Element;
use super::Word;
use super::cell::{check_processor, operate_at, update_at};
use super::code::{AtomicRequest, TypeCode};
use super::codes::OpCode;
use super::error::AtomicError;
use super::form::Form;
use super::operate::{Operate, bytes};
use super::place::{Place, Want};
use super::started::Update;
use super::tier::Tier;
use super::value::AtomicValue;
use doorbell_engine::drive::Shared;
use doorbell_engine::drive::poller::Progress;
use doorbell_engine::memory::cache::{Act, whole};
use doorbell_engine::memory::key;
use doorbell_engine::node::operation::{begin, over};
use doorbell_engine::node::shared_of;
use doorbell_engine::region::access::fault;
use doorbell_engine::region::place_of;
use doorbell_engine::sync::baton::{BatonGuard, Token};
use doorbell_engine::sync::op::{Op, Outcome};
use doorbell_engine::turn::Engine;
use doorbell_engine::{Error, Key, KeyFault, Node, Operation, Peer, ReadWrite, Result};
use doorbell_shm::domain::PeerInbox;
use doorbell_shm::keys::OwnerId;
use doorbell_shm::locked::{NoUpdate, Updater};
use doorbell_shm::region::PeerRegion;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const UPDATE: Act = Act { name: "update a cell", writes: true };

/// How many updates pass between two checks that the region's owner lives. A check costs half a microsecond.
const CREDIT: u32 = 256;

/// A cell in a region of any node of the domain, as one node reaches it. `Send` and `Sync`; made to be kept.
/// [`atomic!`](doorbell_macros::atomic) takes it like an [`AtomicCell`](super::AtomicCell), but each update returns a `Result`,
/// since the region may be gone.
///
/// Over shared memory the caller's processor does the update in place, with a few checks and the instruction. The owner's
/// processor does nothing. The cell checks once in 257 updates and reads whether the owner lives. After the owner's death, as
/// many may still succeed, in memory that only nodes with an old mapping see.
///
/// Over the network the engine of the region's node does the update without its application, and the call waits for the reply,
/// which takes a round trip. The call drives this node's engine meanwhile. An operator takes one request. A callback takes a
/// read and a compare-and-swap, which are repeated if another update came between. [`start`](Self::start) does not wait, so
/// many updates can be in progress at once. There is no deadline: the wait ends with the reply, or when the node dies or
/// leaves. Each update takes place once, whatever the network loses or repeats.
///
/// It is unknown whether an update took place after [`Error::PeerDied`], [`Error::PeerLeft`], [`Error::Damaged`],
/// [`Error::Severed`], or an [`Error::Closed`] during the wait. Values under a lock can't be updated over the network:
/// [`Error::Unsupported`]. Inside `recv_with` the error is [`Error::Reentrant`].
pub struct RemoteCell<E> {
    node: Node,
    place: key::Place,
    way: Way,
    _element: PhantomData<fn() -> E>,
}

/// How the region is reached.
enum Way {
    /// In shared memory.
    Mapped(Mapped),
    /// Only by the network.
    Apart,
}

struct Mapped {
    region: Arc<PeerRegion>,
    /// `None` for a region of this node.
    inbox: Option<Arc<PeerInbox>>,
    credit: AtomicU32,
}

impl<E: Element> RemoteCell<E> {
    /// Opens the first element that the key names as a cell. Maps the region if this node has not used it yet, so keep the cell
    /// while it is in use. Also works for regions of this node, and for values that are updated under a lock.
    ///
    /// # Errors
    /// [`Error::Key`] if the key is invalid or names no element; [`Error::PeerDied`], [`Error::PeerLeft`]; [`Error::Shm`] if
    /// the region can't be mapped; [`Error::Unsupported`] if this processor lacks an instruction that the cell needs;
    /// [`Error::Closed`], [`Error::Forked`], [`Error::Severed`].
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

    /// As [`open`](Self::open), for a key of this peer's node.
    ///
    /// # Errors
    /// As [`open`](Self::open). [`KeyFault::OtherNode`] for a key of another node.
    pub fn at(peer: &Peer, key: Key<E, ReadWrite>) -> Result<Self> {
        if key.node() != peer.id() {
            return Err(fault(UPDATE, place_of(&key), KeyFault::OtherNode));
        }
        Self::open(peer.node(), key)
    }
}

/// A thread of a node that updates a region.
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
        self.shared.membership().is_living(owner.node(), owner.incarnation())
    }

    fn go_on(&self) -> Result<()> {
        self.shared.usable()?;
        if !self.region.is_live() {
            return Err(fault(UPDATE, self.place, KeyFault::Stale));
        }
        whole(self.region)
    }
}

/// The caller's error. It says that nothing happened only if that is certain.
#[cold]
fn failed(why: NoUpdate<Error>, member: &Member<'_>) -> Error {
    match why {
        NoUpdate::Attempts => AtomicError::Attempts.into(),
        NoUpdate::Stop(error) => error,
        NoUpdate::Nested => {
            let why = "this thread is already updating the same cell, and would deadlock with itself; make one expression of both updates";
            Error::Unsupported { operation: UPDATE.name, why }
        }
        // If this node has left meanwhile, the outcome is unknown, too.
        NoUpdate::Lost => {
            whole(member.region).err().unwrap_or_else(|| AtomicError::LockLost { node: member.region.node() }.into())
        }
    }
}

impl<E: Element> RemoteCell<E> {
    /// Whether its updates take a lock.
    const LOCKS: bool = matches!(super::form::tier::<E::Value>(), Tier::Lock);

    /// Whether the caller's processor does the updates, in shared memory.
    pub fn is_shared(&self) -> bool {
        matches!(self.way, Way::Mapped(_))
    }

    /// Runs an operation in place, if the region is still valid.
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
        // Threads may overwrite each other's count, but it never exceeds `CREDIT`.
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

    /// Begins a request to a node that only the network reaches.
    fn begin(&self, request: AtomicRequest) -> Result<(Token, BatonGuard<'_, Engine>, Arc<Op>)> {
        assert!(!request.divides_by_zero(), "attempt to divide a cell by zero");
        shared_of(&self.node).begin_update_apart(&self.place, request.to_update(), UPDATE)?.ok_or_else(|| self.gone())
    }

    /// Has the other node do the update, and waits for the reply with the old value, if requested.
    fn ask_apart(&self, request: AtomicRequest) -> Result<[u8; 16]> {
        let (me, engine, op) = self.begin(request)?;
        match shared_of(&self.node).finish_asked(me, engine, &op)? {
            Outcome::Updated(old) => Ok(old),
            _ => Err(Error::Cancelled),
        }
    }

    /// The code of its type.
    fn code() -> Result<TypeCode> {
        let why = "a value of more than 16 bytes is updated under a lock, which does not work over the network; send its node a message that asks for the update";
        TypeCode::of::<E::Value>().ok_or(Error::Unsupported { operation: UPDATE.name, why })
    }

    #[cold]
    fn load_apart(&self) -> Result<E::Value> {
        let none = [0; 16];
        let load = AtomicRequest { op: OpCode::Load, of: Self::code()?, fetch: true, operand: none, expected: none };
        Ok(E::Value::from_bytes(&self.ask_apart(load)?))
    }

    #[cold]
    fn operate_apart<const O: char, R: Copy, W: Want<E::Value>>(&self, operand: R) -> Result<W::Out>
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

    /// An update by a callback: reads the value, and swaps it for the callback's result until no other update comes between.
    #[cold]
    fn update_apart<W: Want<E::Value>>(
        &self,
        mut attempts: Option<u32>,
        mut callback: impl FnMut(E::Value) -> Option<E::Value>,
    ) -> Result<W::Out> {
        // The bytes are compared, not the value made of them: several byte patterns may make the same value.
        let of = Self::code()?.plain();
        let ask = |op, operand, expected| self.ask_apart(AtomicRequest { op, of, fetch: true, operand, expected });
        let mut seen = ask(OpCode::Load, [0; 16], [0; 16])?;
        loop {
            if let Some(left) = &mut attempts {
                *left = left.checked_sub(1).ok_or(AtomicError::Attempts)?;
            }
            let old = E::Value::from_bytes(&seen);
            let new = callback(old).ok_or(AtomicError::Declined)?;
            let now = ask(OpCode::CompareSwap, bytes(new), seen)?;
            if now[..of.bytes()] == seen[..of.bytes()] {
                return Ok(W::pick(old, || new));
            }
            seen = now;
        }
    }

    /// Begins an update by an operator, without waiting for its end. Up to 64 operations to a node may be in progress over the
    /// network, puts and gets among them; about a thousand more for all nodes may wait here. Updates begun close together go in
    /// one datagram. Updates that one thread begins on one node take place in that order. Over shared memory the update has
    /// taken place when this returns.
    ///
    /// ```
    /// # use doorbell::{Node, Space};
    /// use doorbell::atomic::{Old, RemoteCell, op};
    /// # fn main() -> Result<(), doorbell::Error> {
    /// # let space = Space::heap();
    /// # let owner = Node::builder("started").space(space.clone()).join()?;
    /// # let other = Node::builder("started").space(space).join()?;
    /// # let region = owner.region::<u64>(1)?;
    /// let cell = RemoteCell::open(&other, region.key())?;
    /// let tickets: Vec<_> = (0..3).map(|_| cell.start::<{ op::Add }, Old, _>(1)).collect::<Result<_, _>>()?;
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
    /// [`Error::Unsupported`] for an operator of the program's own type, which the other node does not know, and for a value
    /// under a lock; [`Error::Full`] if a thousand updates wait at this node to be sent. Otherwise as for an update that waits.
    pub fn start<const O: char, W, R>(&self, operand: R) -> Result<Operation<Result<W::Out>>>
    where
        R: Copy,
        E::Value: Operate<O, R>,
        W: Want<E::Value>,
        W::Out: 'static,
    {
        if self.is_shared() {
            return self.operate::<O, R, W>(operand, Ordering::AcqRel).map(|value| over(Ok(value)));
        }
        let why = "the other node does not know this operator of this type; write the update with `atomic!`, which waits for it";
        Self::code()?;
        let request = AtomicRequest::operate::<O, R, E::Value>(operand, W::FETCH);
        let request = request.ok_or(Error::Unsupported { operation: "start an update of a cell", why })?;
        self.start_apart(request, |request, old| {
            W::pick(E::Value::from_bytes(old), || E::Value::from_bytes(&request.after(*old)))
        })
    }

    /// Begins to read the value, without waiting; see [`start`](Self::start).
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_load(&self) -> Result<Operation<Result<E::Value>>> {
        if self.is_shared() {
            return self.load(Ordering::Acquire).map(|value| over(Ok(value)));
        }
        let none = [0; 16];
        let load = AtomicRequest { op: OpCode::Load, of: Self::code()?, fetch: true, operand: none, expected: none };
        self.start_apart(load, |_, old| E::Value::from_bytes(old))
    }

    /// Begins to replace the value by `new` if its bytes are those of `expected`, without waiting; see [`start`](Self::start).
    /// The result is the old value: it was replaced if it equals `expected`.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_compare_swap(&self, expected: E::Value, new: E::Value) -> Result<Operation<Result<E::Value>>>
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
            return Ok(over(Ok(E::Value::from_word(seen))));
        }
        let of = Self::code()?.plain();
        let (operand, expected) = (bytes(new), bytes(expected));
        let swap = AtomicRequest { op: OpCode::CompareSwap, of, fetch: true, operand, expected };
        self.start_apart(swap, |_, old| E::Value::from_bytes(old))
    }

    fn start_apart<V: 'static>(
        &self,
        request: AtomicRequest,
        of: fn(&AtomicRequest, &[u8; 16]) -> V,
    ) -> Result<Operation<Result<V>>> {
        let shared = shared_of(&self.node);
        let (me, mut engine, op) = self.begin(request)?;
        engine.keep_update(self.place.node)?;
        if shared.progress() != Progress::Poller {
            engine.push_update(me, self.place.node);
        }
        drop(engine);
        shared.hand_over();
        begin(self.node.clone(), Update { request, of }, |_, _| Ok(op))
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
    fn operate<const O: char, R: Copy, W: Want<E::Value>>(&self, operand: R, ordering: Ordering) -> Result<W::Out>
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
            return Err(AtomicError::NoAttempt.into());
        }
        let Way::Mapped(mapped) = &self.way else { return self.update_apart::<W>(attempts, callback) };
        let tried = self.with(mapped, |at, member| {
            // SAFETY: `with` gives a cell of this form.
            unsafe { <E::Value as AtomicValue>::Form::update(at, member, attempts, ordering, callback) }
        })?;
        tried.map(|(old, new)| W::pick(old, || new)).ok_or_else(|| AtomicError::Declined.into())
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
