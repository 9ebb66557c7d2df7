//! The permission to put: which memory an origin gets, and how it is taken back.
//!
//! An origin that may put can be stopped after it has claimed a chunk and before it has written it. It writes the chunk when it
//! continues. So memory goes back to the program only when the rendezvous block shows that the origin touches it no longer, or
//! when the origin is dead:
//!
//! - A call that waits without a deadline lends its buffer, and waits as long as that takes.
//! - An operation lends its buffer. If it is cancelled, the permission is revoked. An origin that has not let go within
//!   [`SETTLE`] makes the engine keep the buffer, with its owner.
//! - The buffer of a call with a deadline can't be kept. Such a call gets a copy, out of storage of the engine.

use super::*;
use crate::transfer::kept::Keepsake;

/// How long to wait for an origin to let go of memory, before the engine keeps that memory.
const SETTLE: Duration = Duration::from_millis(100);

/// A receive that comes within this time gets a message without a copy in the pool. An origin that was asked for a mode waits twice
/// as long before it takes the memory FIFO.
pub(super) const STAGE_AFTER: Duration = Duration::from_millis(5);

impl Incoming {
    /// The answer to the origin, once there is a receive, or storage for the message. A node without an engine fetches nothing.
    /// `may_be_alone`: this end may copy the whole message without an answer.
    pub fn answer(
        &mut self,
        peer: &Arc<PeerInbox>,
        local: &Local,
        copy: CopySide,
        has_engine: bool,
        may_be_alone: bool,
    ) -> Option<RemoteGet> {
        if self.acknowledged {
            return None;
        }
        if self.due() == Some(Duration::ZERO) {
            self.stages_at = None;
            self.stage();
        }
        let may_put = copy != CopySide::Target;
        if may_put && self.put.asks.put && matches!(&self.sink, Sink::Receive(receive) if receive.holder == Holder::Caller) {
            // Private memory that the origin can't reach would serve for nothing.
            let _ = Remote::can_reach(peer) && self.stage();
        }
        let (at, is_lent) = match &mut self.sink {
            Sink::Receive(receive) => match receive.holder {
                Holder::Caller => (receive.ptr, false),
                Holder::Call => (receive.ptr, true),
                Holder::Operation => (receive.ptr, self.put.asks.put),
            },
            Sink::Kept(store, _) if self.put.asks.any() => (store.start(), self.put.asks.put),
            _ => return None,
        };
        let len = self.envelope.len;
        self.source = match copy {
            CopySide::Origin => None,
            _ if !has_engine || self.alone == Alone::Unreadable => None,
            _ => Remote::of(self.put.source, len as u64, peer, local, false),
        };
        self.peer = Some(peer.clone());
        let is_alone = may_be_alone && self.alone == Alone::NotYet && !self.put.asks.put && len as u64 <= ALONE_MOST;
        if is_alone && self.has_nothing() && self.source.is_some() && matches!(self.sink, Sink::Receive(_)) {
            (self.alone, self.acknowledged) = (Alone::Yes, true);
            return None;
        }
        // Bytes that can't be read go through the lane.
        self.source = self.source.take().filter(|source| source.is_readable(len as u64));
        let target = if may_put && is_lent { local.place(at, len) } else { Place::Nowhere };
        Some(RemoteGet { ticket: self.put.ticket, target, pulls: self.source.is_some(), beside: Names::default() })
    }

    /// How long until a message without a receive gets storage of the engine.
    pub fn due(&self) -> Option<Duration> {
        let at = self.stages_at.filter(|_| matches!(self.sink, Sink::Pool(_)))?;
        Some(at.saturating_duration_since(world::now()))
    }

    /// Gives the message storage of the engine, in which each byte has its place, if one of the two ends asked to copy there.
    /// False if there is no room for it.
    pub fn stage(&mut self) -> bool {
        let is_staged = match &self.sink {
            Sink::Pool(_) => self.put.asks.any() && !self.comes_apart(),
            Sink::Receive(_) => true,
            _ => false,
        };
        if !is_staged || self.acknowledged {
            return false;
        }
        let Some(mut store) = Store::zeroed(self.envelope.len) else { return false };
        self.sink = match std::mem::replace(&mut self.sink, Sink::Nowhere(None)) {
            Sink::Pool(pieces) => {
                pieces.copy_to(|at, bytes| store.write(at as usize, Payload::private(bytes)));
                Sink::Kept(store, None)
            }
            Sink::Receive(receive) => {
                if self.report.fifo.bytes > 0 {
                    // SAFETY: the buffer is valid (RecvOp::new) and holds the message (Sink), and so does the storage.
                    unsafe { std::ptr::copy_nonoverlapping(receive.ptr, store.start(), self.envelope.len) };
                }
                Sink::Kept(store, Some(receive))
            }
            other => other,
        };
        true
    }

    /// Whether the origin does not touch memory of this process any more, after a revocation or the end of the transfer.
    pub fn has_let_go(&self) -> bool {
        let is_confirmed = || self.meeting().is_some_and(|meeting| meeting.has_let_go(self.generation(), self.claimed));
        !self.granted || is_confirmed() || self.peer.as_ref().is_none_or(|peer| peer.is_known_dead())
    }

    /// Waits until the origin has let go. False if it has not by the deadline.
    fn wait_until_let_go(&self, deadline: Option<Instant>) -> bool {
        let began = world::now();
        while !self.has_let_go() && self.peer.as_ref().is_some_and(|peer| peer.is_alive()) {
            // Another process overwrote or cut the rendezvous block, so it will never tell.
            let is_lost = self.meeting().is_none_or(|meeting| meeting.progress(self.generation()).is_none());
            let deadline = if is_lost { Some(began + SETTLE) } else { deadline };
            if deadline.is_some_and(|deadline| world::now() >= deadline) {
                return false;
            }
            world::sleep(Duration::from_micros(100));
        }
        true
    }

    /// Waits after closing for an origin that broke the rules, which may be in the middle of a copy. The wait is short, because
    /// such an origin may never report the end.
    pub fn settle(&self) {
        self.wait_until_let_go(Some(world::now() + SETTLE));
    }

    /// Takes its receive away. The bytes that have arrived are kept, and the buffer is not touched after this, unless the op of
    /// the receive ends with [`Error::BufferKept`]: then the origin may still write there, and the message stays in the buffer.
    pub fn detach(&mut self) -> Option<RecvOp> {
        match std::mem::replace(&mut self.sink, Sink::Nowhere(None)) {
            Sink::Receive(receive) => {
                if self.granted {
                    self.meeting().map(|meeting| meeting.revoke(self.generation()));
                    // A call waits until no one writes to its buffer, since it can't leave it to the engine.
                    let deadline = (receive.holder == Holder::Operation).then(|| world::now() + SETTLE);
                    if !self.wait_until_let_go(deadline) && receive.holder == Holder::Operation {
                        self.sink = Sink::Kept(self.leave(&receive), None);
                        return Some(receive);
                    }
                    receive.op.set_granted(None);
                }
                let mut bytes = vec![0; self.envelope.len];
                match &self.origin {
                    // SAFETY: the same, and the kept buffer is dropped after the landing (tell).
                    Origin::Apart(landing) => unsafe { landing.move_to(receive.ptr, bytes.as_mut_ptr()) },
                    // SAFETY: the buffer is valid until this returns (RecvOp::new), and holds the message (Sink).
                    Origin::Near(_) => unsafe {
                        std::ptr::copy_nonoverlapping(receive.ptr, bytes.as_mut_ptr(), self.envelope.len);
                    },
                }
                self.sink = Sink::Kept(Store::Own(bytes), None);
                Some(receive)
            }
            Sink::Kept(store, Some(receive)) => {
                self.sink = Sink::Kept(store, None);
                Some(receive)
            }
            Sink::TooLong(receive, pieces) => {
                self.sink = Sink::Pool(pieces);
                Some(receive)
            }
            other => {
                self.sink = other;
                None
            }
        }
    }

    /// Leaves the buffer of an operation to the engine. Its op ends with an error that says so.
    fn leave(&self, receive: &RecvOp) -> Store {
        // Before the op ends: its owner comes to `keep` after that.
        // SAFETY: the buffer is valid and holds the message (RecvOp::new, Sink). After this error the operation does not drop
        // the owner of the buffer, but hands it to `keep`.
        let store = unsafe { Store::left(receive.ptr, self.envelope.len, receive.op.clone()) };
        receive.op.finish(Outcome::Failed(Error::BufferKept { node: self.envelope.source }));
        store
    }

    /// Gives up if the receive was cancelled from within recv_with: its buffer is gone, or the engine keeps it.
    pub fn give_up_cancelled(&mut self) {
        if !self.receive().is_some_and(|receive| receive.op.is_done()) {
            return;
        }
        let nowhere = Sink::Nowhere(matches!(self.sink, Sink::TooLong(..)).then_some(self.envelope.len));
        let sink = std::mem::replace(&mut self.sink, nowhere);
        self.close();
        match sink {
            Sink::Receive(receive) if self.granted => self.left = Some(self.leave(&receive)),
            Sink::Kept(store, _) => self.left = Some(store),
            _ => {}
        }
    }

    /// Ends a transfer whose origin has not let go of memory of this process. That memory stays here. Returns the rest.
    pub fn part(&mut self, reports: &mut Reports) -> Sink {
        reports.keep(self.report.clone());
        self.source = None;
        match std::mem::replace(&mut self.sink, Sink::Nowhere(None)) {
            Sink::Receive(receive) if receive.holder == Holder::Operation => {
                self.left = Some(self.leave(&receive));
                Sink::Nowhere(None)
            }
            Sink::Kept(store, receive) => {
                self.left = Some(store);
                receive.map_or(Sink::Pool(Pieces::default()), Sink::Receive)
            }
            other => other,
        }
    }

    /// Takes over the owner of the buffer of a receive that left it here. Otherwise returns the owner.
    pub fn keep(&mut self, op: &Arc<Op>, owner: Keepsake) -> Option<Keepsake> {
        let stores = match &mut self.sink {
            Sink::Kept(store, _) => [Some(store), self.left.as_mut()],
            _ => [None, self.left.as_mut()],
        };
        stores.into_iter().flatten().try_fold(owner, |owner, store| store.keep(op, owner).ok_or(())).ok()
    }

    /// The node ends. Memory to which the origin may still write is never freed.
    pub fn abandon(self) {
        if !self.granted || self.has_let_go() || self.peer.as_ref().is_none_or(|peer| !peer.is_alive()) {
            return;
        }
        tracing::warn!(node = self.envelope.source.0, "a node that ends leaks a buffer to which another node may still write");
        std::mem::forget((self.sink, self.left));
    }
}
