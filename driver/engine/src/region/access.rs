//! Put and get.

use super::remote::Request;
use crate::drive::Shared;
use crate::drive::poller::Progress;
use crate::error::{Error, KeyFault};
use crate::memory::cache::{Act, CACHED, GET, PUT, RegionCache, locate, whole};
use crate::memory::copy;
use crate::memory::key::Plain;
use crate::memory::key::{Access, Key, Place, ReadWrite, read_secret};
use crate::memory::table::{Miss, RegionTable};
use crate::region::remote::{AccessBy, Update};
use crate::sync::baton::{BatonGuard, Token};
use crate::sync::op::{Op, Outcome};
use crate::turn::Engine;
use crate::{Node, Peer, Result};
use doorbell_fabric::sync::{Ordering, fence};
use doorbell_shm::choice::Choice;
use doorbell_shm::error::ShmError;
use doorbell_shm::region::PeerRegion;
use std::sync::Arc;

/// The error of a key.
pub fn fault(act: Act, place: &Place, why: KeyFault) -> Error {
    Error::Key { operation: act.name, node: Some(place.node), why }
}

impl Shared {
    /// Finds the region of `place` in the table.
    fn look_up(&self, place: &Place, bytes: usize, act: Act) -> Result<Arc<PeerRegion>> {
        let membership = self.membership();
        if place.node.index() >= membership.max_nodes() {
            return Err(fault(act, place, KeyFault::Unknown));
        }
        let table: &RegionTable = self.regions();
        table
            .open(membership, place.node, place.incarnation, place.number, act.writes, bytes)
            .map_err(|miss| self.missing(place, act, miss))
    }

    /// The error for a region that can't be reached.
    #[cold]
    pub fn missing(&self, place: &Place, act: Act, miss: Miss) -> Error {
        let (node, incarnation) = (place.node, place.incarnation);
        // The engine knows best how a node ended. A callback of the engine can't ask it.
        if !matches!(miss, Miss::Withdrawn)
            && let Some(error) = self.ended(Token::current(), node, incarnation)
        {
            return error;
        }
        let live = match self.has_network().then(|| self.enter(Token::current(), act.name)) {
            // The network may reach the node, which can't be checked here.
            Some(Err(error)) if matches!(miss, Miss::OtherLife | Miss::Shm(ShmError::NoSuchNode { .. })) => return error,
            Some(Ok(mut engine)) => engine.fabric().live(node),
            _ => None,
        };
        match miss {
            // The node has another incarnation, with which this node shares no memory.
            Miss::Shm(ShmError::NoSuchNode { .. }) if live.is_some() => fault(act, place, KeyFault::Stale),
            Miss::Gone { left: true } => Error::PeerLeft { node, incarnation },
            Miss::Gone { left: false } => Error::PeerDied { node, incarnation },
            Miss::Withdrawn | Miss::OtherLife => fault(act, place, KeyFault::Stale),
            Miss::Shm(ShmError::NoSuchNode { .. }) => fault(act, place, KeyFault::Unknown),
            Miss::Shm(ShmError::NodeDead { .. }) => fault(act, place, KeyFault::Stale),
            // If another thread made this node leave meanwhile, that is the reason.
            Miss::Shm(error) => self.usable().err().unwrap_or_else(|| error.into()),
        }
    }

    /// The engine, if `place` is in a node that shares no memory with this one, as far as is known.
    pub fn elsewhere(&self, place: &Place, act: Act) -> Result<Option<(Token, BatonGuard<'_, Engine>)>> {
        if !self.has_network() {
            return Ok(None);
        }
        let me = self.check()?;
        let Place { node, incarnation, .. } = *place;
        if self.regions().knows(node, incarnation) {
            return Ok(None);
        }
        // Within a callback the engine can't be entered. Assume shared memory; a later step reports it if that is wrong.
        let Ok(mut engine) = self.enter(me, act.name) else { return Ok(None) };
        if !engine.is_remote(node, incarnation) {
            engine.refresh_peers();
        }
        if !engine.is_remote(node, incarnation) {
            return Ok(None);
        }
        // Leaving clears the flag first, and then ends pending operations under the baton. So nothing is begun after that.
        self.check()?;
        Ok(Some((me, engine)))
    }

    /// A put from `ptr`, or a get to `ptr`, if `place` is in a node that shares no memory with this one. If it is not, returns
    /// false and does nothing.
    ///
    /// # Safety
    /// `ptr` has `bytes` bytes: readable and initialised for a put, writable for a get.
    #[cold]
    #[inline(never)]
    unsafe fn ask(&self, place: &Place, bytes: usize, act: Act, ptr: *mut u8) -> Result<bool> {
        let Some((me, mut engine)) = self.elsewhere(place, act)? else { return Ok(false) };
        let Place { node, incarnation, number, offset, secret, .. } = *place;
        if bytes as u64 > place.bytes {
            return Err(fault(act, place, KeyFault::OutOfRange));
        }
        let request = Request { incarnation, number, offset, bytes: bytes as u64, secret };
        let how = AccessBy { operation: act.name, writes: act.writes, by: 0, pulls: false };
        // SAFETY: as for this function, until `guard` is dropped or the operation is done.
        let op = unsafe { engine.begin_access(me, how, node, request, ptr)? };
        self.finish_access(me, engine, &op)?;
        Ok(true)
    }

    /// Turns the engine until a put or get has ended. After that the engine no longer uses its bytes.
    pub(super) fn finish_access(&self, me: Token, engine: BatonGuard<'_, Engine>, op: &Arc<Op>) -> Result<()> {
        match self.finish_asked(me, engine, op)? {
            Outcome::Copied => Ok(()),
            _ => Err(Error::Cancelled),
        }
    }

    /// Begins an update of a cell in a node that shares no memory with this one. `None` if the two share memory.
    #[allow(clippy::type_complexity)]
    pub fn begin_update_apart(
        &self,
        place: &Place,
        update: Update,
        act: Act,
    ) -> Result<Option<(Token, BatonGuard<'_, Engine>, Arc<Op>)>> {
        let Some((me, mut engine)) = self.elsewhere(place, act)? else { return Ok(None) };
        let Place { node, incarnation, number, offset, secret, .. } = *place;
        let request = Request { incarnation, number, offset, bytes: update.cell as u64, secret };
        let op = engine.begin_update(me, act.name, node, request, update)?;
        Ok(Some((me, engine, op)))
    }

    /// Turns the engine until a request to a node has ended. After that the engine no longer uses its bytes.
    pub fn finish_asked(&self, me: Token, mut engine: BatonGuard<'_, Engine>, op: &Arc<Op>) -> Result<Outcome> {
        let guard = TakeBack { shared: self, me, op };
        if self.progress() != Progress::Poller {
            engine.push(me);
        }
        drop(engine);
        self.hand_over();
        let driven = self.drive(me, op, None, |_| false);
        // Whatever drive returned.
        drop(guard);
        match op.take() {
            Some(Outcome::Failed(error)) => Err(error),
            Some(outcome) => Ok(outcome),
            None => Err(driven.err().unwrap_or(Error::Cancelled)),
        }
    }

    /// The mapped region that a key names, and the address of its place, checked against the bounds of the region.
    ///
    /// # Errors
    /// [`Error::Key`], [`Error::PeerDied`], [`Error::PeerLeft`], [`Error::Shm`].
    #[inline]
    pub fn find(&self, place: &Place, bytes: usize, act: Act) -> Result<(Arc<PeerRegion>, *mut u8)> {
        self.usable()?;
        if bytes as u64 > place.bytes {
            return Err(fault(act, place, KeyFault::OutOfRange));
        }
        let region = self.look_up(place, bytes, act)?;
        whole(&region)?;
        let ptr = locate(&region, place, bytes, act).map_err(|why| fault(act, place, why))?;
        Ok((region, ptr))
    }
}

/// Withdraws a put, get or update when its wait ends, also by a panic, so that no thread uses freed bytes.
struct TakeBack<'a> {
    shared: &'a Shared,
    me: Token,
    op: &'a Arc<Op>,
}

impl Drop for TakeBack<'_> {
    fn drop(&mut self) {
        self.shared.take_back(self.me, self.op);
    }
}

impl Shared {
    /// Withdraws a pending put, get or update. After this call the engine does not use its bytes. True if it was not sent and
    /// never will be.
    pub fn take_back(&self, me: Token, op: &Arc<Op>) -> bool {
        !op.is_done() && self.enter(me, "put").is_ok_and(|mut engine| engine.take_back(op))
    }
}

impl Node {
    /// Writes elements where the key points. In shared memory this thread makes one copy, and the target's processor does
    /// nothing. When the call returns, `from` is free for reuse. Never waits for a target in shared memory. Takes a short lock,
    /// which [`Peer::put`](crate::Peer::put) does not.
    ///
    /// A thread that receives a later message of this thread sees the elements. A put may be lost without an error if at that
    /// moment the region is withdrawn, or if its node has died. The system is asked whether the node lives after some 4000 short puts, and
    /// after 16 MiB.
    ///
    /// If the node shares no memory with this one, the put takes the network. The target's engine checks the key, stores the
    /// bytes without the help of its application, and answers. The call waits for the answer and turns this node's engine
    /// meanwhile: some tens of microseconds over loopback. A long put is sent in many pieces at once. There is no deadline: the
    /// wait ends with the answer, or when the target dies or leaves. After [`Error::PeerDied`], [`Error::PeerLeft`],
    /// [`Error::Damaged`], [`Error::Severed`] or [`Error::Closed`] some of the bytes may have been stored. A put of up to 16
    /// KiB has high priority, a longer one low priority. It waits behind messages of its priority for which the target has no
    /// room.
    ///
    /// # Errors
    /// [`Error::Key`] tells what is wrong with the key. [`Error::PeerDied`] and [`Error::PeerLeft`] if the node is known to be
    /// gone, which is checked now and then. [`Error::Damaged`] if the region was truncated. [`Error::Shm`] if the region can't
    /// be mapped. [`Error::Reentrant`] over the network from within `recv_with`, unless its message had waited in the pool.
    /// [`Error::Closed`], [`Error::Forked`], [`Error::Severed`].
    pub fn put<T: Plain>(&self, from: &[T], to: Key<T, ReadWrite>) -> Result<()> {
        let bytes = size_of_val(from);
        if self.shared().modes().steers_access() {
            // SAFETY: all bytes of a `T` are initialised, and a put does not write to its source.
            return unsafe {
                self.shared().access_by_mode(&to.place, bytes, PUT, from.as_ptr().cast_mut().cast(), None).map(drop)
            };
        }
        if self.shared().has_network()
            // SAFETY: all bytes of a `T` are initialised, and a put does not write to its source.
            && unsafe { self.shared().ask(&to.place, bytes, PUT, from.as_ptr().cast_mut().cast())? }
        {
            return Ok(());
        }
        let (region, ptr) = self.shared().find(&to.place, bytes, PUT)?;
        let me = Token::current();
        if self.shared().hands_copies(me) {
            let own = from.as_ptr().cast_mut().cast();
            // SAFETY: `ptr` is the start of `bytes` writable bytes of `region`; all bytes of a `T` are initialised.
            unsafe { self.shared().copy_by_poller(me, PUT, own, ptr, bytes, region.clone())? };
            return whole(&region);
        }
        // SAFETY: `ptr` is the start of `bytes` writable bytes of `region`; all bytes of a `T` are initialised.
        unsafe { copy::inward(from.as_ptr().cast(), ptr, bytes) };
        whole(&region)
    }

    /// Reads elements from where the key points, with one copy by this thread in shared memory. As [`put`](Self::put), in the
    /// other direction, also over the network.
    ///
    /// # Errors
    /// As [`put`](Self::put). After [`Error::Key`] and [`Error::Reentrant`], `into` is unchanged. After [`Error::Damaged`], or
    /// if the node died or left while the network brought the bytes, `into` may hold some of them.
    pub fn get<T: Plain, A: Access>(&self, from: Key<T, A>, into: &mut [T]) -> Result<()> {
        let bytes = size_of_val(into);
        let place = readable(from);
        if self.shared().modes().steers_access() {
            // SAFETY: a slice that no other code has; any bytes are a `T`.
            return unsafe { self.shared().access_by_mode(&place, bytes, GET, into.as_mut_ptr().cast(), None).map(drop) };
        }
        if self.shared().has_network()
            // SAFETY: a slice that no other code has; any bytes are a `T`.
            && unsafe { self.shared().ask(&place, bytes, GET, into.as_mut_ptr().cast())? }
        {
            return Ok(());
        }
        let (region, ptr) = self.shared().find(&place, bytes, GET)?;
        let me = Token::current();
        if self.shared().hands_copies(me) {
            // SAFETY: `ptr` is the start of `bytes` readable bytes of `region`; a slice that no other code has; any bytes are a `T`.
            unsafe { self.shared().copy_by_poller(me, GET, into.as_mut_ptr().cast(), ptr, bytes, region.clone())? };
            return whole(&region);
        }
        // SAFETY: `ptr` is the start of `bytes` readable bytes of `region`; any bytes are a `T`.
        unsafe { copy::out(ptr, into.as_mut_ptr().cast(), bytes) };
        whole(&region)
    }

    /// As [`Peer::flush`], for puts of this thread to any node.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Forked`].
    pub fn flush(&self) -> Result<()> {
        self.shared().usable()?;
        // A later put is a store too, so a release fence orders it; the cache lines of earlier puts need not arrive first.
        fence(Ordering::Release);
        Ok(())
    }
}

/// Every key allows reading. Converts a key to the read-only place.
#[inline(always)]
pub(super) fn readable<T: Plain, A: Access>(key: Key<T, A>) -> Place {
    if A::WRITABLE { Place { secret: read_secret(key.place.secret), ..key.place } } else { key.place }
}

impl Peer {
    /// Writes elements where the key points, as [`Node::put`]. Once the region was used, it takes no lock and no system call: a
    /// put of eight bytes is a few checks and one store. Over the network it is the same as [`Node::put`].
    ///
    /// ```
    /// # use doorbell::{Node, Space};
    /// # fn main() -> Result<(), doorbell::Error> {
    /// # let space = Space::heap();
    /// # let owner = Node::builder("puts").space(space.clone()).join()?;
    /// # let other = Node::builder("puts").space(space).join()?;
    /// let region = owner.region::<u64>(8)?;
    /// let peer = other.peer(owner.id())?;
    /// peer.put(&[7, 8], region.key().at(2))?;
    /// let mut all = [0; 8];
    /// peer.get(region.read_key(), &mut all)?;
    /// assert_eq!(all, [0, 0, 7, 8, 0, 0, 0, 0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Node::put`]; and [`KeyFault::OtherNode`] if the key belongs to another node than this peer.
    #[inline]
    pub fn put<T: Plain>(&self, from: &[T], to: Key<T, ReadWrite>) -> Result<()> {
        let bytes = size_of_val(from);
        let mut cache = self.region_cache().borrow_mut();
        // SAFETY: all bytes of a `T` are initialised, and a put does not write to its source.
        let found = unsafe { self.find::<true>(&mut cache, &to.place, bytes, from.as_ptr().cast_mut().cast())? };
        let Some((region, ways, ptr)) = found else { return Ok(()) };
        // SAFETY: `ptr` is the start of `bytes` writable bytes of a region that is in the cache, and so mapped; all bytes of a
        // `T` are initialised.
        unsafe { copy::inward_by(ways, from.as_ptr().cast(), ptr, bytes) };
        whole(region)
    }

    /// Reads elements from where the key points, as [`Node::get`]. Once the region was used, it takes no lock and no system
    /// call.
    ///
    /// # Errors
    /// As [`Node::get`]; and [`KeyFault::OtherNode`] if the key belongs to another node than this peer.
    #[inline]
    pub fn get<T: Plain, A: Access>(&self, from: Key<T, A>, into: &mut [T]) -> Result<()> {
        let bytes = size_of_val(into);
        let mut cache = self.region_cache().borrow_mut();
        let place = readable(from);
        // SAFETY: a slice that no other code has; any bytes are a `T`.
        let found = unsafe { self.find::<false>(&mut cache, &place, bytes, into.as_mut_ptr().cast())? };
        let Some((region, ways, ptr)) = found else { return Ok(()) };
        // SAFETY: `ptr` is the start of `bytes` readable bytes of a region that is in the cache, and so mapped; any bytes are a
        // `T`, and no other code has the slice.
        unsafe { copy::out_by(ways, ptr, into.as_mut_ptr().cast(), bytes) };
        whole(region)
    }

    /// Orders puts. A thread that sees a later put of this thread, by [`Region::read`](crate::Region::read) or `get`, also sees
    /// all its earlier puts. So a program can put a flag after the data that the flag announces. Messages need no flush: the
    /// receiver of a message sees all that its sender put before.
    ///
    /// A flush takes almost no time and waits for nothing. A put is complete when its call has returned.
    ///
    /// # Errors
    /// [`Error::PeerDied`] or [`Error::PeerLeft`] if the peer is known to be gone; [`Error::Closed`], [`Error::Forked`].
    #[inline]
    pub fn flush(&self) -> Result<()> {
        self.node().shared().usable()?;
        // A later put is a store too, so a release fence orders it; the cache lines of earlier puts need not arrive first.
        fence(Ordering::Release);
        let lives = self.region_cache().borrow().inbox.as_ref().is_some_and(|inbox| !inbox.is_known_dead());
        if lives { Ok(()) } else { self.flush_apart() }
    }

    /// A flush to a peer that this thread has not put to through shared memory, or that is gone.
    #[cold]
    fn flush_apart(&self) -> Result<()> {
        let (shared, node, incarnation) = (self.node().shared(), self.id(), self.incarnation());
        if self.region_cache().borrow().inbox.is_some() {
            let ended = shared.ended(Token::current(), node, incarnation);
            return Err(ended.unwrap_or(Error::PeerDied { node, incarnation }));
        }
        if !shared.has_network() {
            return Ok(());
        }
        // Every put over the network is already in place. Within a callback the peer's state can't be asked for.
        let engine = shared.enter(Token::current(), "flush").ok();
        match engine.filter(|engine| engine.has_ended(node, incarnation)) {
            Some(engine) => Err(engine.unreachable(node, Some(incarnation))),
            None => Ok(()),
        }
    }

    /// The address of the bytes of `place`, with their region and the ways of long copies. `None` if this node can't reach them by an address;
    /// then the network has already put them from `own`, or got them into `own`.
    ///
    /// # Safety
    /// As [`Shared::ask`].
    #[inline(always)]
    unsafe fn find<'c, const WRITES: bool>(
        &self,
        cache: &'c mut RegionCache,
        place: &Place,
        bytes: usize,
        own: *mut u8,
    ) -> Result<Option<(&'c PeerRegion, &'c mut Choice, *mut u8)>> {
        // The cache compares the incarnation of the region; only this check compares the node. A forked child finds no region.
        let is_known = !self.node().shared().is_closed() && bytes as u64 <= place.bytes && place.node == self.id();
        let mut ptr = if is_known { cache.find::<WRITES>(place, bytes) } else { None };
        if ptr.is_none() {
            // SAFETY: caller.
            ptr = unsafe { self.find_slow(cache, place, bytes, if WRITES { PUT } else { GET }, own)? };
        }
        let Some(ptr) = ptr else { return Ok(None) };
        match cache.known::<WRITES>(place) {
            Some((region, ways)) => Ok(Some((region, ways, ptr))),
            None => Err(fault(if WRITES { PUT } else { GET }, place, KeyFault::Stale)),
        }
    }

    /// The slow path: the region is not in the cache, the key is wrong, or it is time to check that the peer lives.
    ///
    /// # Safety
    /// As [`Shared::ask`].
    #[cold]
    unsafe fn find_slow(
        &self,
        cache: &mut RegionCache,
        place: &Place,
        bytes: usize,
        act: Act,
        own: *mut u8,
    ) -> Result<Option<*mut u8>> {
        let shared = self.node().shared();
        shared.usable()?;
        if place.node != self.id() {
            return Err(fault(act, place, KeyFault::OtherNode));
        }
        if shared.modes().steers_access() {
            // SAFETY: caller.
            unsafe { shared.access_by_mode(place, bytes, act, own, None)? };
            return Ok(None);
        }
        if cache.inbox.as_ref().is_none_or(|inbox| inbox.incarnation() != place.incarnation) {
            // SAFETY: caller.
            if shared.has_network() && unsafe { shared.ask(place, bytes, act, own)? } {
                return Ok(None);
            }
            cache.inbox = shared.regions().inbox(shared.membership(), place.node, place.incarnation).ok();
        }
        if let Some(inbox) = &cache.inbox {
            // Checked here too, because other threads share the table's own check.
            inbox.is_alive();
        }
        let (region, ptr) = shared.find(place, bytes, act).inspect_err(|_| {
            // Stale regions do not stay mapped.
            for slot in &mut cache.regions {
                slot.take_if(|region| !region.is_live() || cache.inbox.as_ref().is_none_or(|inbox| inbox.is_known_dead()));
            }
        })?;
        let me = Token::current();
        if shared.hands_copies(me) {
            // Not cached, so that each put and get comes here.
            // SAFETY: `ptr` is the start of `bytes` bytes of `region`; `own`: caller.
            unsafe { shared.copy_by_poller(me, act, own, ptr, bytes, region.clone())? };
            return whole(&region).map(|()| None);
        }
        cache.regions[place.number as usize % CACHED] = Some(region);
        Ok(Some(ptr))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Incarnation, NodeId, ReadOnly, Region, Space};

    fn why<T>(result: Result<T>) -> Option<KeyFault> {
        match result {
            Err(Error::Key { why, .. }) => Some(why),
            _ => None,
        }
    }

    #[test]
    fn keys_that_no_owner_made_are_refused_by_name() {
        let space = Space::heap();
        let [a, b] = [(); 2].map(|()| Node::builder("forged").space(space.clone()).join().unwrap());
        let region: Region<u32> = b.region(10).unwrap();
        let peer = a.peer(b.id()).unwrap();
        let good = region.key().place;
        let cases = [
            (Place { secret: good.secret ^ 1, ..good }, KeyFault::Forged),
            (Place { secret: read_secret(good.secret), ..good }, KeyFault::Forged),
            (Place { offset: 4, ..good }, KeyFault::OutOfRange),
            (Place { offset: 40, bytes: 4, ..good }, KeyFault::OutOfRange),
            (Place { offset: u64::MAX - 3, ..good }, KeyFault::OutOfRange),
            (Place { bytes: 36, ..good }, KeyFault::OutOfRange),
            (Place { number: good.number + 1, ..good }, KeyFault::Stale),
            (Place { incarnation: Incarnation(77), ..good }, KeyFault::Stale),
            (Place { node: NodeId(9), ..good }, KeyFault::Unknown),
            (Place { node: NodeId(u16::MAX), ..good }, KeyFault::Unknown),
        ];
        // From the second round on, the region is in the cache.
        for _ in 0..3 {
            for (place, expected) in cases {
                let (ones, key) = ([1; 10], Key::<u32, ReadWrite>::new(place));
                assert_eq!(why(a.put(&ones, key)), Some(expected), "{key:?}");
                let expected_of_peer = if place.node == b.id() { expected } else { KeyFault::OtherNode };
                let n = if place.offset == 40 { 1 } else { 10 };
                assert_eq!(why(peer.put(&ones[..n], key)), Some(expected_of_peer), "{key:?}");
                let mut into = [5; 10];
                let got = why(peer.get(Key::<u32, ReadOnly>::new(place), &mut into[..n]));
                // For a get, the secret of a read-only key is right.
                let right = place.secret == read_secret(good.secret);
                assert_eq!((got.is_none(), into[0]), (right, if right { 0 } else { 5 }), "{key:?}");
            }
            let mut all = [9; 10];
            region.read(0, &mut all).unwrap();
            assert_eq!(all, [0; 10]);
            peer.put(&[0; 10], region.key()).unwrap();
        }
    }
}
