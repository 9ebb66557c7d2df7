//! How a thread receives: the steps, and how it waits between them.

use super::attachment::Inner;
use super::envelope::DeviceEnvelope;
use super::error::DeviceError;
use super::watch::DeviceStep;
use doorbell_engine::kit::{CHECK_EVERY, Error, Moment, Payload, Progress, Result, Token, Updating, Work, world};
use doorbell_shm::clock;
use doorbell_shm::device::{Dead, Header, Held, Received, View, this_thread};
use doorbell_shm::keys::{OwnerId, Seen};
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a waiting thread looks at lanes and storage before it checks whether to wait on.
const LOOKS: u32 = 8;
/// How many of those checks pass before it turns the engine.
const TURN_EVERY: u32 = 8;
/// For how many looks another thread's header is left alone, since that thread may be awake and about to take it.
const GRACE: u32 = 64;
/// How long a thread yields on crowded processors: longer than a round of the other threads, since each of them delays the rest.
const YIELD: Duration = Duration::from_micros(100);
/// How long an answer from an awake thread may take.
const SPIN_CONVERSING: Duration = Duration::from_micros(3);
/// The longest sleep of a thread of a node whose engine no other thread may be turning.
const SLEEP_INLINE: Duration = Duration::from_millis(1);
/// The longest sleep, so that messages that are not fetched are noticed.
const SLEEP: Duration = Duration::from_millis(50);
/// The longest wait for the lock between two checks that its owner lives.
const SLEEP_LOCK: Duration = Duration::from_millis(25);
/// After how many failed attempts a thread that does not wait looks at the clock.
const CARE_EVERY: u32 = 64;
const RECEIVE: &str = "receive from";

/// One thread id of a device: receives the messages sent to it. `Send`, not `Sync`. Dropping it frees the id. Messages that
/// still wait then go to the next [`DeviceThread`] of that id, within the [limit](super::DeviceBuilder::fetch_within).
///
/// Messages of one sender arrive in the order in which they were sent. Messages of different senders arrive in any order.
pub struct DeviceThread {
    inner: Arc<Inner>,
    id: u32,
    slot: usize,
    me: OwnerId,
    tid: u64,
    /// When this thread last made the checks of a long wait.
    cared: Instant,
    /// Attempts that found nothing.
    vain: u32,
    work: Work,
    /// How long it spins at first, if that is longer than usual.
    spin: Duration,
    not_sync: PhantomData<Cell<()>>,
}

/// The result of one look.
enum Got {
    Message(DeviceEnvelope),
    TooSmall(usize),
    /// There may be more: look again at once.
    More,
    Nothing,
    Busy,
}

impl DeviceThread {
    pub(super) fn attach(inner: Arc<Inner>, id: u32) -> Result<Self> {
        inner.shared.check()?;
        let tid = this_thread();
        let (slot, me) = Self::take_slot(&inner, id, tid)?;
        let work = inner.shared.new_work();
        Ok(Self { inner, id, slot, me, tid, cared: world::now(), vain: 0, work, spin: Duration::ZERO, not_sync: PhantomData })
    }

    /// Makes waits spin for a few microseconds first. For requests and replies that take a few microseconds each: a yield or a
    /// sleep would double that.
    pub fn conversing(mut self) -> Self {
        self.spin = SPIN_CONVERSING;
        self
    }

    fn take_slot(inner: &Inner, id: u32, tid: u64) -> Result<(usize, OwnerId)> {
        const OPERATION: &str = "become a thread of";
        let caller = inner.caller();
        let dead = inner.dead(None);
        let attached = {
            let locked = inner.lock(caller, OPERATION)?;
            locked.held.sweep(clock::now_ns(), inner.limit(), &dead);
            locked.held.attach(id, (caller.node(), caller.incarnation()), tid)
        };
        match attached {
            Some(Ok(slot)) => Ok(slot),
            Some(Err(owner)) => Err(inner.fault(OPERATION, DeviceError::Taken { thread: id, owner })),
            None => {
                let threads = inner.segment.geometry().threads;
                Err(inner.fault(OPERATION, DeviceError::Crowded { threads }))
            }
        }
    }

    /// The thread id.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Whether the lane of a message now belongs to the node that the message names as its source. Another process that shares
    /// the memory can write any source into messages in its own lane.
    pub fn is_from_its_source(&self, envelope: &DeviceEnvelope) -> bool {
        self.inner.segment.view().sender(envelope.lane) == Some((envelope.source, envelope.incarnation))
    }

    /// Receives the next message for this thread id into `buf`. Waits without limit.
    ///
    /// # Errors
    /// [`DeviceError::TooSmall`]: `buf` is shorter than the message, which is kept: call again with a longer buffer. The node
    /// has left, or the device was damaged.
    pub fn receive(&mut self, buf: &mut [u8]) -> Result<DeviceEnvelope> {
        self.wait(buf, None)
    }

    /// As [`receive`](Self::receive), but fails with [`Error::Timeout`] at `deadline`.
    pub fn receive_until(&mut self, buf: &mut [u8], deadline: Instant) -> Result<DeviceEnvelope> {
        self.wait(buf, Some(deadline))
    }

    /// Receives a message that is there now. Never waits, not even for the lock: `None` if there is no message or another
    /// thread has the lock.
    pub fn try_receive(&mut self, buf: &mut [u8]) -> Result<Option<DeviceEnvelope>> {
        let me = self.inner.shared.check()?;
        self.be_here()?;
        if self.inner.shared.progress() == Progress::Inline {
            self.inner.shared.turn(me);
        }
        loop {
            match self.steps(buf)? {
                Got::Message(envelope) => return Ok(Some(envelope)),
                Got::TooSmall(len) => return Err(self.too_small(len, buf.len())),
                Got::More => {}
                Got::Nothing => {
                    self.vain = self.vain.wrapping_add(1);
                    if self.vain.is_multiple_of(CARE_EVERY) {
                        self.care_if_due(me)?;
                    }
                    return Ok(None);
                }
                Got::Busy => {
                    self.care_if_due(me)?;
                    return Ok(None);
                }
            }
        }
    }

    /// Takes note of the calling thread, which may not be the one that used this value before.
    #[inline]
    fn be_here(&mut self) -> Result<()> {
        let tid = this_thread();
        if tid == self.tid { Ok(()) } else { self.move_here(tid) }
    }

    /// The thread that used this value before may have ended, so that others took it for dead and freed its slot.
    #[cold]
    fn move_here(&mut self, tid: u64) -> Result<()> {
        let (shared, work) = (self.inner.shared.clone(), self.work.clone());
        // While this guard lives the node does not leave. Another thread could get the slot after that.
        let _working = shared.begin(&work)?;
        match self.inner.segment.view().move_to(self.slot, self.me, self.tid, tid) {
            Some(me) => self.me = me,
            None => (self.slot, self.me) = Self::take_slot(&self.inner, self.id, tid)?,
        }
        self.tid = tid;
        Ok(())
    }

    #[inline]
    fn note(&self, step: DeviceStep) {
        if let Some(watch) = &self.inner.watch {
            watch.tell(self.id, step);
        }
    }

    #[cold]
    fn too_small(&self, len: usize, capacity: usize) -> Error {
        self.inner.fault(RECEIVE, DeviceError::TooSmall { len, capacity })
    }

    /// The steps (a) to (f), once.
    #[inline]
    fn steps(&self, buf: &mut [u8]) -> Result<Got> {
        // While this guard lives the node does not leave. Others would take the lock from it after that.
        let _working = self.inner.shared.begin(&self.work)?;
        let view = self.inner.segment.view();
        match Held::try_lock(view, self.me) {
            Ok(held) => self.with(held, buf),
            Err(_) => Ok(Got::Busy),
        }
    }

    #[inline]
    fn with(&self, held: Held<'_>, buf: &mut [u8]) -> Result<Got> {
        self.note(DeviceStep::Locked);
        let take = |view: &View<'_>, header: &Header| {
            let fits = header.len <= buf.len();
            if fits {
                copy(view.payload(header), buf);
            }
            fits
        };
        let received = held.receive(self.slot, self.id, clock::now_ns, take, |moved| self.note(moved.into()));
        drop(held);
        self.note(DeviceStep::Unlocked);
        if self.inner.segment.is_cut() {
            return Err(self.inner.fault(RECEIVE, DeviceError::Damaged));
        }
        Ok(match received {
            Received::Message(header, _) => Got::Message(envelope(&header)),
            Received::Left(header) => Got::TooSmall(header.len),
            Received::Others(_) => Got::More,
            Received::Nothing => Got::Nothing,
        })
    }

    /// Whether taking the lock is worth while: there is a message for this thread, or another thread's message that hides the
    /// ones behind it.
    #[inline]
    fn is_worth(&self, view: &View<'_>, others: &mut u32) -> bool {
        if view.has_stored(self.slot) {
            return true;
        }
        match view.next_for(self.id) {
            Some(thread) if thread == self.id => true,
            Some(_) => {
                *others += 1;
                *others > GRACE
            }
            None => {
                *others = 0;
                false
            }
        }
    }

    fn wait(&mut self, buf: &mut [u8], deadline: Option<Instant>) -> Result<DeviceEnvelope> {
        let me = self.inner.shared.check()?;
        self.be_here()?;
        let inner = self.inner.clone();
        let shared = &inner.shared;
        let (is_worth, is_busy, mut others) = (Cell::new(true), Cell::new(false), 0);
        let mut look = |this: &Self| {
            is_busy.set(false);
            for _ in 0..LOOKS {
                if is_worth.get() {
                    match this.steps(buf)? {
                        Got::Message(envelope) => return Ok(Some(envelope)),
                        Got::TooSmall(len) => return Err(this.too_small(len, buf.len())),
                        Got::More => others = GRACE,
                        Got::Nothing => {}
                        Got::Busy => is_busy.set(true),
                    }
                }
                std::hint::spin_loop();
                is_worth.set(this.is_worth(&this.inner.segment.view(), &mut others));
            }
            Ok(None)
        };
        // The first look needs no clock.
        if let Some(envelope) = look(self)? {
            return Ok(envelope);
        }
        if shared.has_network() && shared.is_within(me) {
            return Err(Error::Reentrant { operation: RECEIVE });
        }
        let backoff = shared.backoff(deadline).yielding_for(YIELD).spinning_for(self.spin);
        shared.wait_for(me, backoff, TURN_EVERY, |moment| {
            match moment {
                Moment::Look => return look(self),
                Moment::Check => self.care(me)?,
                Moment::Sleep(most) => {
                    self.sleep(most, is_busy.get());
                    if shared.progress() == Progress::Inline {
                        shared.turn(me);
                    }
                }
                Moment::Expired => {
                    self.care_if_due(me)?;
                    return Err(Error::Timeout { operation: "receive from a device", node: None });
                }
            }
            self.note(DeviceStep::Waited);
            is_worth.set(true);
            Ok(None)
        })
    }

    /// Sleeps until there is something to do, or, if another thread holds the lock, until it is free.
    fn sleep(&mut self, most: Duration, is_busy: bool) {
        let view = self.inner.segment.view();
        let is_inline = self.inner.shared.progress() == Progress::Inline && self.inner.shared.has_network();
        let most = most.min(if is_inline { SLEEP_INLINE } else { SLEEP });
        if is_busy {
            return Held::await_lock(view, most.min(SLEEP_LOCK));
        }
        view.await_message(self.slot, self.id, most);
    }

    /// Many short waits need the same checks as a long one.
    #[cold]
    fn care_if_due(&mut self, me: Token) -> Result<()> {
        if world::since(self.cared) >= CHECK_EVERY { self.care(me) } else { Ok(()) }
    }

    /// The checks of a long wait: the node lives, the lock's owner lives, and messages that were not fetched are dropped.
    #[cold]
    fn care(&mut self, me: Token) -> Result<()> {
        self.cared = world::now();
        let inner = &self.inner;
        inner.shared.check_long_wait(me)?;
        let view = inner.segment.view();
        if inner.segment.is_cut() {
            return Err(inner.fault(RECEIVE, DeviceError::Damaged));
        }
        // One thread of the device at a time sweeps, but any thread may take the lock of a dead owner.
        let seen = view.lock_seen();
        let is_due = view.is_sweep_due(clock::now_ns());
        let is_dead = seen.owner().is_some_and(|owner| !inner.lives(owner));
        if !is_due && !is_dead {
            return Ok(());
        }
        let dead = if is_due { inner.dead(Some(self.slot)) } else { Dead::default() };
        let _working = inner.shared.begin(&self.work)?;
        let held = if is_dead { Held::inherit(view, self.me, seen) } else { Held::try_lock(view, self.me).ok() };
        let Some(held) = held else { return Ok(()) };
        let dropped = held.sweep(clock::now_ns(), inner.limit(), &dead);
        drop(held);
        if dropped > 0 {
            tracing::warn!(device = inner.segment.name(), dropped, "dropped messages that were not fetched in time");
        }
        Ok(())
    }
}

impl Inner {
    /// How long messages may wait, in nanoseconds.
    fn limit(&self) -> u64 {
        u64::try_from(self.fetch_within.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Takes the lock, for a rare call. Waits while its owner lives, at most two seconds. Fails if the node has left.
    fn lock(&self, me: OwnerId, operation: &'static str) -> Result<Locked<'_>> {
        let _updating = self.shared.begin_update()?;
        let view = self.segment.view();
        let mut seen = view.lock_seen();
        let inherit = |seen: Seen| seen.owner().filter(|owner| !self.lives(*owner)).and_then(|_| Held::inherit(view, me, seen));
        let backoff = self.shared.backoff(Some(world::now() + Duration::from_secs(2)));
        let held = self.shared.wait_for(Token::current(), backoff, 0, |moment| match moment {
            Moment::Look => match Held::try_lock(view, me) {
                Ok(held) => Ok(Some(held)),
                Err(now) => {
                    seen = now;
                    Ok(None)
                }
            },
            Moment::Check => Ok(inherit(seen)),
            Moment::Sleep(most) => {
                Held::await_lock(view, most.min(SLEEP_LOCK));
                Ok(inherit(seen))
            }
            Moment::Expired => Err(Error::Timeout { operation, node: seen.owner().map(OwnerId::node) }),
        });
        Ok(Locked { held: held?, _updating })
    }
}

/// The lock of a device. The node does not leave while it is held.
struct Locked<'a> {
    held: Held<'a>,
    _updating: Updating<'a>,
}

#[inline]
fn copy(pieces: [Payload<'_>; 2], buf: &mut [u8]) {
    let one = pieces[0].copy_to(buf);
    if !pieces[1].is_empty() {
        pieces[1].copy_to(&mut buf[one..]);
    }
}

#[inline]
fn envelope(header: &Header) -> DeviceEnvelope {
    let Header { place, thread, len, tag, source, incarnation } = *header;
    DeviceEnvelope { source, incarnation, thread, tag, len, lane: place.lane }
}

impl Drop for DeviceThread {
    fn drop(&mut self) {
        if doorbell_shm::space::forked() {
            return;
        }
        match self.inner.lock(self.inner.caller(), "leave") {
            Ok(locked) => locked.held.detach(self.slot, self.me, self.tid),
            // Other processes find out that this incarnation has ended.
            Err(Error::Closed) => {}
            Err(error) => {
                tracing::warn!(%error, thread = self.id, "could not free a thread id of a device; it stays taken until this process ends")
            }
        }
    }
}

impl fmt::Debug for DeviceThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceThread").field("device", &self.inner.segment.name()).field("id", &self.id).finish_non_exhaustive()
    }
}
