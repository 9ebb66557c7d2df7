//! Receiving.

use super::Node;
use super::operation::Operation;
use super::owned::{self, Received};
use crate::Result;
use crate::drive::poller::Progress;
use crate::drive::{SPIN_ROUNDS, Shared, TURNS_MAX};
use crate::error::Error;
use crate::message::inbound::{Direct, Nobody};
use crate::message::lending::Lent;
use crate::message::pool::Pooled;
use crate::message::receive::{Holder, RecvOp};
use crate::message::{Match, Message};
use crate::sync::baton::{AtOnce, Token};
use crate::sync::op::{Op, Outcome};
use crate::sync::wait::{Step, Wait};
use crate::turn::{Engine, HotTake, Posted};
use doorbell_fabric::world;
use doorbell_fabric::{Envelope, Payload};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After a pause of this length, an incomplete message no longer counts as still arriving.
const KEEPS_COMING: Duration = Duration::from_millis(1);

/// A receive into the caller's buffer.
struct IntoBuffer<'a> {
    accepts: Match,
    buf: &'a mut [u8],
    got: Option<Result<Envelope>>,
    /// Present while the message arrives in pieces; completed with the last piece.
    long: Option<Arc<Op>>,
    /// The holder of the buffer.
    holder: Holder,
}

/// A call with a deadline gives its buffer back before the message is whole.
fn holder(deadline: Option<Instant>) -> Holder {
    if deadline.is_none() { Holder::Call } else { Holder::Caller }
}

impl IntoBuffer<'_> {
    fn take_message(&mut self, message: Message) {
        let envelope = message.envelope;
        self.got = Some(if message.bytes.len() > self.buf.len() {
            Err(Error::Truncated { message: Box::new(message), capacity: self.buf.len() })
        } else {
            self.buf[..message.bytes.len()].copy_from_slice(&message.bytes);
            Ok(envelope)
        });
    }

    /// A posted receive into the same buffer.
    fn posted(&mut self, op: &Arc<Op>) -> RecvOp {
        // SAFETY: Shared::receive sees the op done, or withdraws it, before the caller has its buffer back.
        let receive = unsafe { RecvOp::new(self.accepts, self.buf.as_mut_ptr(), self.buf.len(), op.clone()) };
        RecvOp { holder: self.holder, ..receive }
    }
}

impl Direct for IntoBuffer<'_> {
    #[inline(always)]
    fn wants(&self, envelope: &Envelope) -> bool {
        self.accepts.matches(envelope)
    }

    #[inline(always)]
    fn take(&mut self, envelope: &Envelope, payload: Payload<'_>) {
        if payload.len() > self.buf.len() {
            self.take_message(Message { envelope: *envelope, bytes: payload.to_vec() });
        } else {
            payload.copy_to(self.buf);
            self.got = Some(Ok(*envelope));
        }
    }

    fn take_loan(&mut self, envelope: &Envelope, lent: Lent) {
        self.take(envelope, lent.payload());
        if lent.is_cut() {
            self.got = Some(Err(Error::Damaged { node: envelope.source }));
        }
    }

    fn buffer(&mut self) -> Option<&mut [u8]> {
        Some(self.buf)
    }

    fn copied(&mut self, envelope: &Envelope) {
        self.got = Some(Ok(*envelope));
    }

    fn take_long(&mut self) -> Option<RecvOp> {
        let op = Op::new();
        self.long = Some(op.clone());
        Some(self.posted(&op))
    }

    fn has(&self) -> bool {
        self.got.is_some() || self.long.is_some()
    }
}

/// The calls of a program's reader within a turn of the engine. A panic is kept until the turn is over. Unwinding through the turn would
/// leave its message half taken: a loan would be given back and come again, and a message in parts would lack its beginning.
#[derive(Default)]
pub(super) struct Reading(Option<Box<dyn Any + Send>>);

impl Reading {
    /// Calls the reader. `None` if it panics.
    pub fn run<R>(&mut self, read: impl FnOnce() -> R) -> Option<R> {
        catch_unwind(AssertUnwindSafe(read)).map_err(|panic| self.0 = Some(panic)).ok()
    }

    /// Whether the reader panicked.
    pub fn is_broken_off(&self) -> bool {
        self.0.is_some()
    }

    /// Goes on with the panic, if there was one. Call it without the baton.
    pub fn end(self) {
        if let Some(panic) = self.0 {
            resume_unwind(panic);
        }
    }
}

/// A receive that reads the message in place.
struct InPlace<F, R> {
    accepts: Match,
    read: Option<F>,
    reading: Reading,
    got: Option<Result<R>>,
}

impl<F: FnOnce(&Envelope, Payload<'_>) -> R, R> Direct for InPlace<F, R> {
    fn wants(&self, envelope: &Envelope) -> bool {
        self.read.is_some() && self.accepts.matches(envelope)
    }

    fn take(&mut self, envelope: &Envelope, payload: Payload<'_>) {
        if let Some(read) = self.read.take() {
            self.got = self.reading.run(|| read(envelope, payload)).map(Ok);
        }
    }

    fn take_loan(&mut self, envelope: &Envelope, lent: Lent) {
        self.take(envelope, lent.payload());
        if lent.is_cut() {
            self.got = Some(Err(Error::Damaged { node: envelope.source }));
        }
    }

    fn has(&self) -> bool {
        self.read.is_none()
    }
}

impl Shared {
    #[inline]
    fn receive(&self, accepts: Match, buf: &mut [u8], deadline: Option<Instant>) -> Result<Envelope> {
        match self.receive_now(&accepts, buf) {
            Some(envelope) => Ok(envelope),
            None => self.receive_later(accepts, buf, deadline),
        }
    }

    /// Receives a whole message that is there, if it goes by the shortest path.
    #[inline(always)]
    pub(super) fn receive_now(&self, accepts: &Match, buf: &mut [u8]) -> Option<Envelope> {
        self.enter_settled()?.take_short(accepts, buf)
    }

    /// Receives a message that is not there at the first look.
    #[inline(never)]
    fn receive_later(&self, accepts: Match, buf: &mut [u8], deadline: Option<Instant>) -> Result<Envelope> {
        let rounds = if self.wait() == Wait::Park { 1 } else { SPIN_ROUNDS };
        if let Some(mut engine) = self.enter_settled()
            && let Some(envelope) = engine.wait_short(&accepts, buf, rounds)
        {
            return Ok(envelope);
        }
        self.receive_any(accepts, buf, deadline)
    }

    /// Enters the engine if this thread needs no lock for that, and if nothing is pending that the shortest path of a receive passes by.
    #[inline(always)]
    fn enter_settled(&self) -> Option<AtOnce<'_, Engine>> {
        if self.program_turns() { settled(self.enter_at_once()?) } else { None }
    }

    /// Everything but whole messages of the lane that was busy last while nothing else is pending.
    #[inline(never)]
    fn receive_any(&self, accepts: Match, buf: &mut [u8], deadline: Option<Instant>) -> Result<Envelope> {
        let me = self.check()?;
        if self.progress() != Progress::Poller {
            // The baton is released before anything else is done. One look: most calls have waited in the shorter path, and the others
            // wait in the slow one.
            let taken = self.enter(me, "recv")?.take_hot(&accepts, buf, 1);
            match taken {
                Some(HotTake::Whole(envelope)) => return Ok(envelope),
                Some(HotTake::Part(op)) => {
                    return self.receive_posted(
                        me,
                        IntoBuffer { accepts, buf, got: None, long: Some(op), holder: holder(deadline) },
                        deadline,
                        false,
                    );
                }
                None => {}
            }
        }
        self.receive_slow(me, accepts, buf, deadline)
    }

    /// Everything but the next message of the lane that was busy last.
    #[inline(never)]
    fn receive_slow(&self, me: Token, accepts: Match, buf: &mut [u8], deadline: Option<Instant>) -> Result<Envelope> {
        let mut direct = IntoBuffer { accepts, buf, got: None, long: None, holder: holder(deadline) };
        let mut backoff = self.backoff(deadline);
        let rounds = if self.wait() == Wait::Park { 0 } else { SPIN_ROUNDS };
        while self.progress() != Progress::Poller {
            {
                let mut engine = self.enter(me, "recv")?;
                self.check()?;
                if take_now(&mut engine, me, &mut direct)
                    && let Some(got) = direct.got.take()
                {
                    return got;
                }
                if direct.long.is_some() {
                    break;
                }
                if let Some(error) = engine.never(&accepts) {
                    return Err(error);
                }
                match engine.take_hot(&accepts, direct.buf, rounds) {
                    Some(HotTake::Whole(envelope)) => return Ok(envelope),
                    Some(HotTake::Part(op)) => {
                        direct.long = Some(op);
                        break;
                    }
                    None => {}
                }
            }
            match backoff.step() {
                Step::Again => {}
                Step::Check => self.check_peers(me),
                Step::Expired => return Err(Error::Timeout { operation: "recv", node: accepts.bound_to() }),
                Step::Park(_) => break,
            }
        }
        self.receive_posted(me, direct, deadline, false)
    }

    /// The slow path: posts a receive, so that any thread that turns the engine can complete it.
    #[cold]
    fn receive_posted(
        &self,
        me: Token,
        mut direct: IntoBuffer<'_>,
        deadline: Option<Instant>,
        while_it_comes: bool,
    ) -> Result<Envelope> {
        let (accepts, capacity) = (direct.accepts, direct.buf.len());
        let op = match direct.long.take() {
            Some(op) => op,
            None => {
                let op = Op::new();
                let mut engine = self.enter(me, "recv")?;
                // Leaving clears the flag first, and then ends posted receives under the baton. So nothing is posted after
                // that.
                self.check()?;
                engine.post(direct.posted(&op));
                drop(engine);
                self.hand_over();
                op
            }
        };
        let guard = Unpost { shared: self, me, op: &op };
        let mut seen = None;
        let done = loop {
            let rest = while_it_comes.then(|| world::now() + KEEPS_COMING);
            let done = self.drive(me, &op, deadline.min(rest).or(deadline), |_| false);
            let is_late = deadline.is_none_or(|deadline| world::now() >= deadline);
            let arrived = self.enter(me, "recv").ok().map(|engine| engine.arrived(&op));
            if !matches!(done, Ok(false)) || !while_it_comes || is_late || arrived == seen {
                break done;
            }
            seen = arrived;
        };
        // Whatever drive returned: after this, no thread writes to the buffer.
        drop(guard);
        match op.take() {
            Some(outcome) => received(outcome, capacity),
            None => Err(match done {
                Err(error) => error,
                Ok(_) => Error::Timeout { operation: "recv", node: accepts.bound_to() },
            }),
        }
    }

    fn receive_in_place<R>(
        &self,
        accepts: Match,
        deadline: Option<Instant>,
        read: impl FnOnce(&Envelope, Payload<'_>) -> R,
    ) -> Result<R> {
        let mut direct = InPlace { accepts, read: Some(read), reading: Reading::default(), got: None };
        self.receive_whole("recv_with", accepts, deadline, &mut direct, |_, _| {})?;
        direct.reading.end();
        direct.got.unwrap_or(Err(Error::Timeout { operation: "recv_with", node: accepts.bound_to() }))
    }

    /// Receives a whole message on the waiting thread. `hot` may try a shorter path first.
    pub(crate) fn receive_whole<D: Direct>(
        &self,
        operation: &'static str,
        accepts: Match,
        deadline: Option<Instant>,
        direct: &mut D,
        mut hot: impl FnMut(&mut Engine, &mut D),
    ) -> Result<()> {
        let me = self.check()?;
        let mut backoff = self.backoff(deadline);
        let mut parking = self.parking_hold();
        loop {
            {
                let mut engine = self.enter(me, operation)?;
                self.check()?;
                if let Some(pooled) = engine.take_whole(&accepts) {
                    // The message is no longer in a lane. It is read without the baton, so that other threads can continue.
                    drop(engine);
                    give(pooled, direct);
                } else if self.progress() != Progress::Poller || engine.is_refusing() {
                    // The receiver itself takes messages for which the poller had no room.
                    if self.progress() != Progress::Poller {
                        hot(&mut engine, direct);
                    }
                    for _ in 0..TURNS_MAX {
                        if direct.has() {
                            break;
                        }
                        // While this message is incomplete, later messages must not overtake it.
                        let coming = engine.pool().find(&accepts).is_some();
                        let work =
                            if coming { engine.poll(&mut Nobody, false) } else { engine.poll(direct, false) } + engine.push(me);
                        if direct.has() || engine.has_whole(&accepts) || (work == 0 && !engine.fabric().spin(SPIN_ROUNDS)) {
                            break;
                        }
                    }
                }
            }
            if direct.has() {
                return Ok(());
            }
            {
                let mut engine = self.enter(me, operation)?;
                if engine.has_whole(&accepts) {
                    continue;
                }
                engine.stage(&accepts);
                if let Some(error) = engine.never(&accepts) {
                    return Err(error);
                }
            }
            match backoff.step() {
                Step::Again => {}
                Step::Check => self.check_peers(me),
                Step::Expired => return Err(Error::Timeout { operation, node: accepts.bound_to() }),
                Step::Park(timeout) => {
                    let op = Op::new();
                    let watching = {
                        let mut engine = self.enter(me, operation)?;
                        engine.watch(accepts, op.clone());
                        !engine.has_whole(&accepts)
                    };
                    let parked = if watching { self.park(me, &op, timeout, &mut parking) } else { Ok(()) };
                    let mut engine = self.enter(me, operation)?;
                    engine.unwatch(&op);
                    engine.check_peers();
                    parked?;
                    backoff.woke();
                }
            }
        }
    }

    /// Withdraws a receive. True if it was still under way.
    pub(super) fn withdraw_recv(&self, me: Token, op: &Arc<Op>) -> bool {
        match self.enter(me, "cancel") {
            Ok(mut engine) => engine.unpost(op),
            Err(_) => {
                // From within recv_with this thread holds the engine, so no thread of this node writes to the buffer now. The
                // engine ignores a finished operation, and forgets it with the next turn.
                let error = op.granted().map_or(Error::Cancelled, |node| Error::BufferKept { node });
                op.finish(Outcome::Failed(error));
                self.have_done(me, Engine::forget_cancelled);
                false
            }
        }
    }

    /// Posts a receive. The caller keeps the buffer alive until the op is over.
    pub(super) fn post_recv(&self, me: Token, receive: RecvOp) -> Result<()> {
        let mut engine = self.enter(me, "start_recv")?;
        self.check()?;
        let turns = match engine.post(receive) {
            // Nobody waits for what a turn brings, so it would go to the pool, and be copied once more from there. If each receive from the
            // pool had a turn, the pool would never become empty. Once it is, a sender that was refused may go on.
            Posted::Over => engine.is_refusing() && engine.pool().is_empty(),
            Posted::Next => true,
            // The thread that waits for the others takes several messages in one turn.
            Posted::Behind => engine.is_refusing(),
        };
        if self.progress() != Progress::Poller && turns {
            engine.turn(me, false);
        }
        drop(engine);
        self.hand_over();
        Ok(())
    }
}

/// Returns the engine if the shortest path of a receive can be taken.
#[inline(always)]
pub(super) fn settled(engine: AtOnce<'_, Engine>) -> Option<AtOnce<'_, Engine>> {
    if engine.is_settled() { Some(engine) } else { settle(engine) }
}

/// Finds out whether that path can be taken until somebody does anything else with the engine. It takes the guard by value, because a guard
/// whose address is taken lies in memory, and not in registers.
#[inline(never)]
fn settle(mut engine: AtOnce<'_, Engine>) -> Option<AtOnce<'_, Engine>> {
    if !engine.may_take_short() {
        return None;
    }
    engine.settle();
    Some(engine)
}

/// Takes a message that is available now: from the pool, else from the lanes. True if the message is there, whole or in part.
#[inline(always)]
fn take_now(engine: &mut Engine, me: Token, direct: &mut IntoBuffer<'_>) -> bool {
    if !engine.pool().is_empty() && take_pooled(engine, direct) {
        return true;
    }
    // The loop is bounded: a flood of other messages must not delay the check of the deadline.
    for _ in 0..TURNS_MAX {
        let work = engine.poll(direct, false) + engine.push(me);
        if direct.got.is_some() || direct.long.is_some() {
            return true;
        }
        if work == 0 {
            return false;
        }
    }
    false
}

/// Gives a whole message of the pool to a receive.
pub(super) fn give<D: Direct>(pooled: Pooled, direct: &mut D) {
    match pooled {
        Pooled::Whole(message) => direct.take(&message.envelope, Payload::private(&message.bytes)),
        Pooled::Lent(envelope, lent) => direct.take_loan(&envelope, lent),
        Pooled::Coming(_) => unreachable!("take_whole takes what is whole"),
    }
}

/// Takes a message from the pool. True if the message is there, whole or in part.
fn take_pooled(engine: &mut Engine, direct: &mut IntoBuffer<'_>) -> bool {
    match engine.take_pooled(&direct.accepts) {
        Some(Pooled::Whole(message)) => direct.take_message(message),
        Some(Pooled::Lent(envelope, lent)) => direct.take_loan(&envelope, lent),
        Some(Pooled::Coming(id)) => {
            let op = Op::new();
            engine.attach(id, direct.posted(&op));
            direct.long = Some(op);
        }
        None => return false,
    }
    true
}

pub(super) fn received(outcome: Outcome, capacity: usize) -> Result<Envelope> {
    match outcome {
        Outcome::Received(envelope) => Ok(envelope),
        Outcome::Truncated(message) => Err(Error::Truncated { message, capacity }),
        Outcome::Failed(error) => Err(error),
        Outcome::Sent | Outcome::Counted | Outcome::Copied | Outcome::Updated(_) | Outcome::Collected | Outcome::Answered(_) => {
            Err(Error::Cancelled)
        }
    }
}

/// Withdraws a receive when its wait ends, however it ends.
struct Unpost<'a> {
    shared: &'a Shared,
    me: Token,
    op: &'a Arc<Op>,
}

impl Drop for Unpost<'_> {
    fn drop(&mut self) {
        if !self.op.is_done() {
            self.shared.withdraw_recv(self.me, self.op);
        }
    }
}

impl Node {
    /// Receives the next message that `accepts` accepts into `buf`, and returns its envelope. The message is
    /// `buf[..envelope.len]`. Messages of one sender and priority arrive in the order in which they were sent.
    ///
    /// Waits until there is such a message. The sender of a large message may copy it into `buf` itself meanwhile. If its process
    /// is stopped in the middle of that, this call waits until the process continues or ends.
    ///
    /// After an error, and behind the message, the contents of `buf` are unspecified: a part of a message that was not received may be
    /// there.
    ///
    /// A receive that is bound to one node ends with an error when that node is gone and
    /// all its messages have been received.
    ///
    /// # Errors
    /// [`Error::Truncated`] if the message is longer than `buf`: the error owns the message. [`Error::PeerDied`],
    /// [`Error::PeerLeft`], [`Error::NoSuchNode`], [`Error::Damaged`], [`Error::Severed`]; [`Error::Forked`],
    /// [`Error::Reentrant`], [`Error::Closed`].
    #[inline]
    pub fn recv(&self, accepts: Match, buf: &mut [u8]) -> Result<Envelope> {
        self.shared.receive(accepts, buf, None)
    }

    /// Receives a message, waiting until `deadline` at most. After a timeout no other node writes to `buf`, and the message is
    /// not lost. For that, a sender that asks to put a large message puts it into memory of the engine, which copies it to `buf`
    /// at the end.
    ///
    /// # Errors
    /// [`Error::Timeout`]; otherwise as [`recv`](Self::recv).
    #[inline]
    pub fn recv_until(&self, accepts: Match, buf: &mut [u8], deadline: Instant) -> Result<Envelope> {
        self.shared.receive(accepts, buf, Some(deadline))
    }

    /// Receives a message if a whole one is there now. Returns `None` without waiting if there is none. If the first part of a
    /// message is there, waits for the rest while more of it keeps arriving, up to 100 ms. If it returns `None`, the contents of `buf` are
    /// unspecified, too.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    #[inline]
    pub fn try_recv(&self, accepts: Match, buf: &mut [u8]) -> Result<Option<Envelope>> {
        let me = self.shared.check()?;
        let mut direct = IntoBuffer { accepts, buf, got: None, long: None, holder: Holder::Caller };
        {
            let mut engine = self.shared.enter(me, "try_recv")?;
            // The receiver itself takes messages for which the poller had no room.
            let found = if self.shared.progress() == Progress::Poller && !engine.is_refusing() {
                take_pooled(&mut engine, &mut direct)
            } else {
                // One turn looks at a few idle lanes only. Continue while any lane has something.
                (0..TURNS_MAX).any(|_| take_now(&mut engine, me, &mut direct) || !engine.fabric().has_news())
                    && (direct.got.is_some() || direct.long.is_some())
            };
            if let Some(got) = direct.got.take() {
                return got.map(Some);
            }
            if !found {
                return engine.never(&accepts).map_or(Ok(None), Err);
            }
        }
        match self.shared.receive_posted(me, direct, Some(world::now() + Duration::from_millis(100)), true) {
            Err(Error::Timeout { .. }) => Ok(None),
            got => got.map(Some),
        }
    }

    /// Receives a message and reads it in place, without copying it: `read` gets its envelope and its bytes. A message that is
    /// longer than a packet, or that arrived before the call, is read from private memory.
    ///
    /// `read` runs while this thread holds the node's engine. Other threads of the node wait for it meanwhile, and calls of the
    /// same node within `read` return [`Error::Reentrant`], but a send that finds room may succeed. If `read` panics, its message counts as received.
    ///
    /// # Errors
    /// As [`recv`](Self::recv), except [`Error::Truncated`].
    pub fn recv_with<R>(&self, accepts: Match, read: impl FnOnce(&Envelope, Payload<'_>) -> R) -> Result<R> {
        self.shared.receive_in_place(accepts, None, read)
    }

    /// Receives a message in place, waiting until `deadline` at most.
    ///
    /// # Errors
    /// [`Error::Timeout`]; otherwise as [`recv_with`](Self::recv_with).
    pub fn recv_with_until<R>(
        &self,
        accepts: Match,
        deadline: Instant,
        read: impl FnOnce(&Envelope, Payload<'_>) -> R,
    ) -> Result<R> {
        self.shared.receive_in_place(accepts, Some(deadline), read)
    }

    /// Begins to receive a message into an owned buffer and returns at once. Receives match in the order in which they were
    /// begun. The contents of the buffer behind the message are unspecified, and all of them if no message was received. If other receives
    /// of this node wait already, the call does not turn the engine: wait for an operation, [test](Operation::test) or poll it.
    ///
    /// The sender of a large message may copy it into the buffer itself, if it asks for that. A receive that is cancelled or
    /// dropped meanwhile takes the permission back, and waits up to 100 ms until the sender has let go. A sender whose process is
    /// stopped does not let go. Then the receive ends with [`Error::BufferKept`] and returns no buffer: the engine keeps it until
    /// the sender continues or is dead, and drops it on a thread of its own.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Reentrant`], [`Error::Closed`].
    pub fn start_recv<B: AsMut<[u8]> + Send + 'static>(&self, accepts: Match, buffer: B) -> Result<Operation<Received<B>>> {
        owned::receive_or_begin(self, accepts, buffer)
    }

    /// Returns the envelope of the first message that `accepts` would accept, without receiving the message. Does not wait.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Reentrant`], [`Error::Closed`].
    pub fn probe(&self, accepts: Match) -> Result<Option<Envelope>> {
        let me = self.shared.check()?;
        let mut engine = self.shared.enter(me, "probe")?;
        if self.shared.progress() != Progress::Poller {
            for _ in 0..TURNS_MAX {
                let found = engine.pool().find(&accepts).is_some();
                if found || (engine.turn(me, false) == 0 && !engine.fabric().has_news()) {
                    break;
                }
            }
        }
        Ok(engine.pool().find(&accepts).map(|message| message.envelope))
    }
}
