//! Puts and gets by a mode: over shared memory or a network, and by which side's engine.

use super::access::{fault, readable};
use super::remote::{Request, priority_of};
use crate::drive::Shared;
use crate::error::{Error, KeyFault};
use crate::memory::cache::{Act, GET, PUT};
use crate::memory::copy;
use crate::memory::key::{Access, Key, Place, ReadWrite};
use crate::mode::{
    Call, Decision, Fabric, LINKS_MAX, LinkMetrics, LinkView, Links, Mode, ModeRequest, MovedBytes, Protocol, Question, Reason,
    Receipt,
};
use crate::region::Plain;
use crate::region::remote::AccessBy;
use crate::sync::baton::Token;
use crate::{Peer, Result};

impl Shared {
    /// A put from `ptr`, or a get to `ptr`, by the requested or chosen mode.
    ///
    /// # Safety
    /// `ptr` has `bytes` bytes: readable and initialised for a put, writable for a get.
    #[cold]
    pub(super) unsafe fn access_by_mode(
        &self,
        place: &Place,
        bytes: usize,
        act: Act,
        ptr: *mut u8,
        asks: Option<ModeRequest>,
    ) -> Result<Receipt> {
        let me = self.check()?;
        let Place { node, incarnation, number, offset, secret, .. } = *place;
        if bytes as u64 > place.bytes {
            return Err(fault(act, place, KeyFault::OutOfRange));
        }
        let call = if act.writes { Call::Put } else { Call::Get };
        let (usual, modes) = (if act.writes { Protocol::Put } else { Protocol::Get }, self.modes());
        let asked = asks.unwrap_or_default().or(modes.asked_by(call));
        let requested = asked.or(ModeRequest::default().protocol(usual));
        let mut engine = self.enter(me, act.name)?;
        let Some(outbound) = self.ways().get(node, priority_of(bytes)).cloned() else {
            return Err(fault(act, place, KeyFault::Unknown));
        };
        let mut views = Vec::with_capacity(LINKS_MAX);
        {
            let mut state = outbound.state.enter(me).ok_or(Error::Reentrant { operation: act.name })?;
            if engine.connect(&outbound, &mut state, incarnation).is_err() {
                let error = engine.unreachable(node, Some(incarnation));
                drop((state, engine));
                // `find` knows best what is wrong with the key.
                return self.find(place, bytes, act).and(Err(error));
            }
            engine.open_links(&outbound, &mut state);
            let is_near_first = engine.fabric().peer(node).is_some();
            let is_readable = bytes > 0 && act.writes && is_near_first && engine.is_in_reach(node, ptr, bytes);
            for by in 0..LINKS_MAX as u8 {
                let word = state.words[usize::from(by)];
                let is_near = by == 0 && engine.fabric().peer(node).is_some();
                let Some(metrics) = state.metrics(by, engine.transfers_by(node, by)).or(is_near.then(LinkMetrics::default))
                else {
                    continue;
                };
                // Over a network the packets are a request and an answer. An engine with DMA calls this put and pull.
                let is_dma = !is_near && modes.has_engine;
                let mut protocols = [!is_dma, is_dma && act.writes, is_dma && !act.writes, false];
                if is_near {
                    protocols[usual as usize] = modes.has_engine;
                    protocols[Protocol::Get as usize] |= is_readable;
                }
                let advice = match () {
                    () if protocols[usual as usize] => usual,
                    () if is_near && is_readable => Protocol::Get,
                    () => Protocol::Transfer,
                };
                let (fabric, link) = if is_near { (Fabric::Shm, 0) } else { (Fabric::Udp, by - u8::from(is_near_first)) };
                views.push((by, LinkView { fabric, link, protocols, advice, large: 0, metrics, word }));
            }
            if views.is_empty() {
                // The node went meanwhile.
                let error = engine.unreachable(node, Some(incarnation));
                drop((state, engine));
                return self.find(place, bytes, act).and(Err(error));
            }
            let mut links: Vec<_> = views.iter().map(|(_, view)| *view).collect();
            let in_region = engine.is_in_region(ptr, bytes);
            let len = bytes as u64;
            let mut question = Question { to: node, call, len, in_region, asked, requested, links: &mut links };
            let decision = if question.links.is_empty() { None } else { modes.choose(&mut question) };
            for ((by, view), link) in views.iter_mut().zip(&links) {
                state.words[usize::from(*by)] = link.word;
                view.word = link.word;
            }
            let is_it = |mode: Mode| views.iter().find(|(_, view)| view.mode(mode.protocol) == Some(mode)).map(|(by, _)| *by);
            // A policy's choice that is impossible is not followed.
            let advised = || {
                let (_, first) = views.first().filter(|_| modes.policy.is_some())?;
                let reason = Reason::Unavailable("the chosen mode can't carry this operation");
                Some(Decision::new(first.mode(first.advice)?, reason))
            };
            let found = |decision: Decision| Some((decision, is_it(decision.mode)?));
            let chosen = decision.and_then(found).or_else(|| advised().and_then(found));
            let Some((decision, by)) = chosen else {
                modes.note_refused(&requested);
                return Err(unavailable(act, &asked, node, &views));
            };
            let reason = match decision.reason {
                Reason::Size { .. } => Reason::Unavailable("this node has no DMA engine"),
                reason => reason,
            };
            let (used, moved) = (decision.mode, Some(MovedBytes::all_by(decision.mode.protocol, len)));
            let beside = Links::NONE;
            let receipt = Receipt { to: node, call, len, in_region, requested, decided: used, used, moved, beside, reason };
            drop(state);
            if decision.mode.fabric == Fabric::Shm && decision.mode.protocol == usual {
                drop(engine);
                let (region, target) = self.find(place, bytes, act)?;
                // SAFETY: `target` is the start of that many bytes of a region that is mapped as long as `region`; `ptr`:
                // caller.
                unsafe {
                    match () {
                        () if self.hands_copies(me) => self.copy_by_poller(me, act, ptr, target, bytes, region.clone())?,
                        () if act.writes => copy::inward(ptr, target, bytes),
                        () => copy::out(target, ptr, bytes),
                    }
                }
                crate::memory::cache::whole(&region)?;
                return Ok(self.accessed(me, act, receipt));
            }
            // Leaving clears the flag first, and then ends pending operations under the baton. So nothing is begun after that.
            self.check()?;
            let request = Request { incarnation, number, offset, bytes: bytes as u64, secret };
            let how = AccessBy {
                operation: act.name,
                writes: act.writes,
                by,
                pulls: act.writes && decision.mode.protocol == Protocol::Get,
            };
            // SAFETY: as for this function, until the operation is done or withdrawn, before `finish_access` returns.
            let op = unsafe { engine.begin_access(me, how, node, request, ptr)? };
            self.finish_access(me, engine, &op)?;
            Ok(self.accessed(me, act, receipt))
        }
    }

    /// Counts a put or get that took place. A refused one moves nothing and is not counted.
    fn accessed(&self, me: Token, act: Act, receipt: Receipt) -> Receipt {
        // The counts are exact while the engine is held. A node that has left meanwhile shows none.
        if let Ok(_engine) = self.enter(me, act.name) {
            self.modes().note(&receipt);
        }
        receipt
    }
}

#[cold]
fn unavailable(act: Act, asked: &ModeRequest, node: doorbell_fabric::NodeId, views: &[(u8, LinkView)]) -> Error {
    let modes = views.iter().flat_map(|(_, view)| Protocol::ALL.into_iter().filter_map(|protocol| view.mode(protocol)));
    let modes: Vec<_> = modes.map(|mode| mode.to_string()).collect();
    let what = format!(
        "the mode {asked} was requested, but this {} at node {node} can't use it; it can use {}",
        act.name,
        modes.join(", ")
    );
    Error::Invalid { what }
}

impl Peer {
    /// Writes elements where the key points, by the requested mode, and returns a receipt: see [`mode`](crate::mode). In shared
    /// memory, this thread copies the bytes (`put`), the target's engine fetches them (`get`), or they go through the lane and
    /// the target's engine stores them (`transfer`). Over a network they go as with [`put`](Self::put). Waits until the bytes
    /// are in place, and turns the engine meanwhile. Only `shm/put` needs nothing from the target. Every other mode waits for
    /// the target's engine, without a deadline.
    ///
    /// ```
    /// # use doorbell::{Node, Space, mode::Protocol};
    /// # fn main() -> Result<(), doorbell::Error> {
    /// # let space = Space::heap();
    /// # let owner = Node::builder("putas").space(space.clone()).join()?;
    /// # let other = Node::builder("putas").space(space).join()?;
    /// let region = owner.region::<u64>(8)?;
    /// let receipt = other.peer(owner.id())?.put_as(&[7, 8], region.key().at(2), "shm/put".parse().unwrap())?;
    /// assert_eq!(receipt.used.protocol, Protocol::Put);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if the put can't use the requested mode; the error lists the possible modes. Otherwise as
    /// [`put`](Self::put).
    pub fn put_as<T: Plain>(&self, from: &[T], to: Key<T, ReadWrite>, mode: ModeRequest) -> Result<Receipt> {
        self.is_its(&to.place, PUT)?;
        let ptr = from.as_ptr().cast_mut().cast();
        // SAFETY: all bytes of a `T` are initialised, and a put does not write to its source.
        unsafe { self.node().shared().access_by_mode(&to.place, size_of_val(from), PUT, ptr, Some(mode)) }
    }

    /// Reads elements from where the key points, by the requested mode: as [`put_as`](Self::put_as), in the other direction. In
    /// shared memory, this thread copies the bytes (`get`), or the target's engine sends them through the lane (`transfer`).
    ///
    /// # Errors
    /// As [`put_as`](Self::put_as) and [`get`](Self::get).
    pub fn get_as<T: Plain, A: Access>(&self, from: Key<T, A>, into: &mut [T], mode: ModeRequest) -> Result<Receipt> {
        let place = readable(from);
        self.is_its(&place, GET)?;
        let (ptr, bytes) = (into.as_mut_ptr().cast(), size_of_val(into));
        // SAFETY: a slice that no other code has; any bytes are a `T`.
        unsafe { self.node().shared().access_by_mode(&place, bytes, GET, ptr, Some(mode)) }
    }

    fn is_its(&self, place: &Place, act: Act) -> Result<()> {
        if place.node == self.id() { Ok(()) } else { Err(fault(act, place, KeyFault::OtherNode)) }
    }
}
