//! Sending.

use super::Node;
use super::operation::Operation;
use super::owned::{self, Completion};
use crate::Result;
use crate::drive::Shared;
use crate::drive::poller::Progress;
use crate::error::Error;
use crate::links::WHOLE_MOST;
use crate::message::order::{self, Order};
use crate::message::outbound::{Far, Outbound, Plan, SendOp, Sent, WHOLE_BYTES};
use crate::mode::{ModeRequest, Receipt};
use crate::sync::baton::Token;
use crate::sync::op::{Op, Outcome};
use crate::transfer::IN_REGION_LEAST;
use doorbell_fabric::sync::Ordering;
use doorbell_fabric::world;
use doorbell_fabric::{Incarnation, NodeId, Priority, Push};
use doorbell_shm::lane::BULK_LEAST;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

/// How long a send may wait.
#[derive(Clone, Copy)]
pub(super) enum Patience {
    None,
    Until(Instant),
    Forever,
}

/// A message to be sent.
#[derive(Clone, Copy)]
pub(crate) struct ToSend<'a> {
    pub outbound: &'a Arc<Outbound>,
    /// The incarnation of the target. `None`: the present one.
    pub incarnation: Option<Incarnation>,
    pub tag: u64,
    pub bytes: &'a [u8],
}

/// The longest message that `try_send` takes: it fits an idle lane of default size.
pub(super) const TRY_BYTES: usize = 64 << 10;

impl Shared {
    /// Sends a message through a lane if there is room, and if it is one packet or an earlier plan holds for it: no lock, no system call, no
    /// allocation. False if the message has to take the slow path.
    #[inline(always)]
    pub(super) fn send_now(
        &self,
        me: Token,
        outbound: &Outbound,
        incarnation: Option<Incarnation>,
        tag: u64,
        bytes: &[u8],
        patience: Patience,
    ) -> Result<bool> {
        if self.progress() == Progress::Poller {
            return Ok(false);
        }
        if bytes.len() >= BULK_LEAST {
            self.add_bulk(me, outbound, patience);
        }
        let Some(mut state) = outbound.state.enter(me) else { return Err(Error::Reentrant { operation: "send" }) };
        if state.is_held() || incarnation.is_some_and(|incarnation| incarnation != state.incarnation) {
            return Ok(false);
        }
        if bytes.len() > WHOLE_MOST {
            let in_region = self.regions().find(bytes.as_ptr(), bytes.len()).is_some();
            return if in_region { Ok(false) } else { state.send_of_streak(tag, bytes) };
        }
        if bytes.len() > WHOLE_BYTES && !state.is_one_packet(bytes.len()) {
            return Ok(false);
        }
        // Perhaps by a transfer, for which this thread must be outside and may wait.
        if bytes.len() >= IN_REGION_LEAST
            && !matches!(patience, Patience::None)
            && self.regions().find(bytes.as_ptr(), bytes.len()).is_some()
            && state.is_idle()
            && !self.is_within(me)
        {
            return Ok(false);
        }
        match state.send_whole(tag, bytes) {
            Push::Done => {
                if bytes.len() >= BULK_LEAST && state.is_without_bulk() {
                    outbound.wants_bulk.store(true, Ordering::Relaxed);
                }
                Ok(true)
            }
            Push::Full => Ok(false),
            Push::Down(_) => Err(Error::Damaged { node: outbound.target }),
        }
    }

    /// Sends a message that `send_now` could not: waits for room, sends it in pieces, or queues it behind other sends.
    #[cold]
    pub(super) fn send_slow(&self, me: Token, message: ToSend<'_>, patience: Patience) -> Result<()> {
        self.send_asking(me, message, None, patience).map(drop)
    }

    /// As `send_slow`, with an optional mode. Returns the receipt.
    fn send_asking(
        &self,
        me: Token,
        message: ToSend<'_>,
        asks: Option<ModeRequest>,
        patience: Patience,
    ) -> Result<Option<Receipt>> {
        let outbound = message.outbound;
        let node = outbound.target;
        let waits = !matches!(patience, Patience::None);
        let began = if waits && self.modes().steers(asks) { self.modes().begin_sample() } else { None };
        let op = match self.begin_send(me, message, asks, patience, Op::new())? {
            Begun::Sent(op) => return Ok(self.sent(began, &op)),
            Begun::Queued(op) => op,
        };
        // The caller owns the bytes, so the op is over or removed before this returns, however it returns.
        let mut guard = Withdraw { shared: self, me, outbound, op: &op, armed: true };
        let deadline = match patience {
            Patience::Until(deadline) => Some(deadline),
            _ => None,
        };
        let mut full = false;
        let done = self.drive(me, &op, deadline, |engine| {
            // The target refuses our messages while we refuse those of another node. Two such nodes would wait for each other
            // for ever.
            full = engine.is_refusing() && outbound.state.enter(me).is_some_and(|state| state.refused());
            full
        })?;
        if !done && !guard.withdraw() {
            guard.armed = false;
            return if full { Err(Error::Full { node }) } else { Err(Error::Timeout { operation: "send", node: Some(node) }) };
        }
        guard.armed = false;
        match op.take() {
            Some(Outcome::Failed(error)) => Err(error),
            _ => Ok(self.sent(began, &op)),
        }
    }

    /// The receipt of a message that was sent. For a sampled message, its duration is recorded.
    fn sent(&self, began: Option<Instant>, op: &Op) -> Option<Receipt> {
        let receipt = op.receipt()?.sent();
        if let Some(began) = began {
            self.modes().observe(&receipt, world::since(began));
        }
        Some(receipt)
    }

    /// Sends with a requested mode and returns the receipt.
    pub(super) fn send_as(&self, me: Token, message: ToSend<'_>, mode: ModeRequest) -> Result<Receipt> {
        let ToSend { outbound, incarnation, .. } = message;
        let receipt = self.send_asking(me, message, Some(mode), Patience::Forever)?;
        receipt.ok_or(Error::PeerLeft { node: outbound.target, incarnation: incarnation.unwrap_or_default() })
    }

    /// Sends a copy of a message that could not be lent.
    pub(crate) fn send_copy(&self, me: Token, message: ToSend<'_>, deadline: Option<Instant>) -> Result<()> {
        self.send_slow(me, message, deadline.map_or(Patience::Forever, Patience::Until))
    }

    /// Sends at once, or queues the send.
    fn begin_send(
        &self,
        me: Token,
        message: ToSend<'_>,
        asks: Option<ModeRequest>,
        patience: Patience,
        op: Arc<Op>,
    ) -> Result<Begun> {
        let ToSend { outbound, incarnation, tag, bytes } = message;
        let node = outbound.target;
        self.add_bulk(me, outbound, patience);
        let mut engine = self.enter(me, "send")?;
        // Leaving clears the flag first, and then ends queued sends under the baton. So nothing is queued after that.
        self.check()?;
        let mut state = outbound.state.enter(me).ok_or(Error::Reentrant { operation: "send" })?;
        let wanted = match incarnation {
            Some(incarnation) => incarnation,
            None => engine.fabric().live(node).ok_or_else(|| engine.unreachable(node, None))?,
        };
        engine.connect(outbound, &mut state, wanted)?;
        let now = matches!(patience, Patience::None);
        let mut far = Far::default();
        if !state.is_queued() && (now || self.progress() != Progress::Poller) {
            let order = Order { tag, bytes: bytes.as_ptr(), len: bytes.len(), op: &op, asks, waits: !now };
            match engine.plan(outbound, &mut state, &order) {
                Plan::Transfer(order::Begun::Yes) => return Ok(Begun::Queued(op)),
                Plan::Refused(error) => return Err(error),
                // No room: the send waits in the queue.
                Plan::Transfer(order::Begun::Full) => {}
                plan => {
                    if let Plan::Lane(by) = plan {
                        far.by = by;
                    }
                    if now && let Err(error) = state.check_room(far.by, node, bytes.len()) {
                        op.receipt().inspect(|receipt| self.modes().forget(receipt));
                        return Err(error);
                    }
                    // SAFETY: a slice.
                    match unsafe { state.send_some(tag, bytes.as_ptr(), bytes.len(), far) } {
                        Sent::Whole => {
                            op.moved(bytes.len() as u64);
                            return Ok(Begun::Sent(op));
                        }
                        Sent::Partly(now) => {
                            op.moved(now.sent as u64);
                            far = now;
                        }
                        Sent::Down => return Err(Error::Damaged { node }),
                    }
                }
            }
        }
        // SAFETY: send_slow removes the op, or sees it done, before the caller has its bytes back.
        let send = unsafe { SendOp::new(tag, bytes, op.clone(), asks) };
        if now || !state.enqueue(send, far) {
            if far.started {
                state.give_up(far.by);
            }
            op.receipt().inspect(|receipt| self.modes().forget(receipt));
            return Err(Error::Full { node });
        }
        drop(state);
        engine.list(outbound);
        drop(engine);
        self.hand_over();
        Ok(Begun::Queued(op))
    }

    /// Makes a bulk ring if the send queue wants one. That may take time, so only a send without a deadline does it.
    #[inline]
    fn add_bulk(&self, me: Token, outbound: &Outbound, patience: Patience) {
        if outbound.wants_bulk.load(Ordering::Relaxed) && matches!(patience, Patience::Forever) {
            self.make_bulk(me, outbound);
        }
    }

    /// Makes a bulk ring and offers it to the target. The thread holds no baton while it makes the ring. Within a callback it holds the
    /// engine, so it makes none.
    #[cold]
    fn make_bulk(&self, me: Token, outbound: &Outbound) {
        if self.is_within(me) {
            return;
        }
        let Some(mut state) = outbound.state.enter(me) else { return };
        if !outbound.wants_bulk.swap(false, Ordering::Relaxed) || !state.ask_for_bulk() {
            return;
        }
        drop(state);
        let lives =
            |node, incarnation| self.enter(me, "send").is_ok_and(|mut engine| engine.fabric().live(node) == Some(incarnation));
        let ring = self.ways().rings().make(self.membership(), || self.regions().next_number(), lives);
        if let (Some(ring), Some(mut state)) = (ring, outbound.state.enter(me)) {
            state.set_bulk(ring);
        }
    }

    /// Withdraws a queued send. False if it was no longer pending: it has ended.
    pub(super) fn withdraw_send(&self, me: Token, outbound: &Outbound, op: &Arc<Op>) -> bool {
        // From within recv_with this thread already holds the engine. Either way the lock order is kept: the engine, then the
        // send queue.
        let mut engine = self.enter(me, "cancel").ok();
        if let Some(engine) = &mut engine
            && let Some(withdrawn) = engine.outgoing().withdraw(op)
        {
            engine.send_words(me);
            return withdrawn;
        }
        let removed = outbound.state.enter(me).is_some_and(|mut state| state.remove(op));
        if !removed && engine.is_none() {
            op.cancel();
        }
        removed
    }

    /// Begins a send. The caller keeps the bytes alive until the op is over.
    ///
    /// # Safety
    /// As [`SendOp::new`].
    pub(super) unsafe fn start_send(
        &self,
        me: Token,
        message: ToSend<'_>,
        asks: Option<ModeRequest>,
        op: Arc<Op>,
    ) -> Result<Arc<Op>> {
        match self.begin_send(me, message, asks, Patience::Forever, op)? {
            Begun::Queued(op) => Ok(op),
            Begun::Sent(op) => {
                op.finish(Outcome::Sent);
                Ok(op)
            }
        }
    }
}

enum Begun {
    Sent(Arc<Op>),
    Queued(Arc<Op>),
}

/// Withdraws a send when a wait ends in a panic, so that no thread reads freed bytes.
struct Withdraw<'a> {
    shared: &'a Shared,
    me: Token,
    outbound: &'a Outbound,
    op: &'a Arc<Op>,
    armed: bool,
}

impl Withdraw<'_> {
    /// True if the op ended before it could be withdrawn.
    fn withdraw(&mut self) -> bool {
        !self.shared.withdraw_send(self.me, self.outbound, self.op)
    }
}

impl Drop for Withdraw<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.withdraw();
        }
    }
}

/// Gathers pieces. A vectored send costs a copy only if it has more than one piece.
pub(super) fn gathered<'a>(pieces: &'a [IoSlice<'a>], room: &'a mut Vec<u8>) -> &'a [u8] {
    match pieces {
        [] => &[],
        [only] => only,
        several => {
            for piece in several {
                room.extend_from_slice(piece);
            }
            room
        }
    }
}

impl Node {
    /// Sends a message to a node's present incarnation, and returns when `bytes` may be reused. By then a short message is in
    /// that node's lane, and all bytes of a [large one](crate::transfer) have been moved, possibly by the target. The message
    /// may have any length and any tag.
    ///
    /// Waits while the lane is full. If this node itself has no room for the messages that others send it, the call returns
    /// [`Error::Full`] instead of waiting. Otherwise nodes that all send before they receive would wait for each other for
    /// ever.
    ///
    /// # Errors
    /// [`Error::Full`]; [`Error::NoSuchNode`], [`Error::PeerDied`], [`Error::PeerLeft`], [`Error::Damaged`], [`Error::Severed`];
    /// [`Error::Forked`], [`Error::Reentrant`], [`Error::Closed`].
    #[inline]
    pub fn send(&self, node: NodeId, tag: u64, bytes: &[u8]) -> Result<()> {
        self.send_to(node, tag, bytes, Patience::Forever)
    }

    /// Sends a message of up to 64 KiB if there is room for it now. Never waits.
    ///
    /// # Errors
    /// [`Error::Full`] if there is not; [`Error::Invalid`] if it is longer; otherwise as [`send`](Self::send).
    #[inline]
    pub fn try_send(&self, node: NodeId, tag: u64, bytes: &[u8]) -> Result<()> {
        check_try(bytes.len())?;
        self.send_to(node, tag, bytes, Patience::None)
    }

    /// Sends a message, waiting until `deadline` at most.
    ///
    /// # Errors
    /// [`Error::Timeout`]: the message was not delivered, and will not be. Otherwise as [`send`](Self::send).
    #[inline]
    pub fn send_until(&self, node: NodeId, tag: u64, bytes: &[u8], deadline: Instant) -> Result<()> {
        self.send_to(node, tag, bytes, Patience::Until(deadline))
    }

    /// Sends a message by the requested fabric, link and protocol as far as possible, and returns a receipt that tells which
    /// were used: see [`mode`](crate::mode). Otherwise as [`send`](Self::send). Order is kept among all messages, whatever
    /// their modes.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the message can't take the requested mode. The error lists the possible modes: the fabrics that
    /// reach the node, and for protocols other than `transfer` whether this memory can be reached. Otherwise as
    /// [`send`](Self::send).
    pub fn send_as(&self, node: NodeId, tag: u64, bytes: &[u8], mode: ModeRequest) -> Result<Receipt> {
        let me = self.shared.check()?;
        let (outbound, _) = self.outbound(me, node)?;
        self.shared.send_as(me, ToSend { outbound, incarnation: None, tag, bytes }, mode)
    }

    /// Sends one message made of several pieces.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_vectored(&self, node: NodeId, tag: u64, pieces: &[IoSlice<'_>]) -> Result<()> {
        self.send(node, tag, gathered(pieces, &mut Vec::new()))
    }

    /// Begins to send a message and returns at once. The buffer comes back with the [`Operation`].
    ///
    /// # Errors
    /// [`Error::Full`] if 4096 sends to that node are queued already; otherwise as [`send`](Self::send).
    pub fn start_send<B: AsRef<[u8]> + Send + 'static>(
        &self,
        node: NodeId,
        tag: u64,
        buffer: B,
    ) -> Result<Operation<Completion<B>>> {
        let me = self.shared.check()?;
        let (outbound, _) = self.outbound(me, node)?;
        owned::send_or_begin(self, outbound, None, tag, buffer, None)
    }

    #[inline]
    fn send_to(&self, node: NodeId, tag: u64, bytes: &[u8], patience: Patience) -> Result<()> {
        let me = self.shared.check()?;
        if let Some(outbound) = self.shared.known(node)
            && self.shared.send_now(me, outbound, None, tag, bytes, patience)?
        {
            return Ok(());
        }
        let (outbound, _) = self.outbound(me, node)?;
        self.shared.send_slow(me, ToSend { outbound, incarnation: None, tag, bytes }, patience)
    }
}

impl Shared {
    /// The send queue of a node at normal priority, if there is one already.
    #[inline(always)]
    fn known(&self, node: NodeId) -> Option<&Arc<Outbound>> {
        self.ways().known(node, Priority::Normal)
    }
}

pub(super) fn check_try(len: usize) -> Result<()> {
    if len <= TRY_BYTES {
        return Ok(());
    }
    Err(Error::Invalid { what: format!("try_send takes up to {TRY_BYTES} bytes, not {len}: use send_by or start_send") })
}
