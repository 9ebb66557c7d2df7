//! How a thread receives: the steps of the source, and how it waits between them.

use super::watch::DeviceStep;
use super::{DeviceEnvelope, Inner};
use doorbell_engine::Result;
use doorbell_engine::drive::poller::Progress;
use doorbell_engine::drive::{Updating, Work};
use doorbell_engine::error::{DeviceFault, Error};
use doorbell_engine::sync::baton::Token;
use doorbell_engine::sync::wait::{CHECK_EVERY, Step};
use doorbell_fabric::Payload;
use doorbell_shm::clock;
use doorbell_shm::device::{Dead, Header, Held, Received, View, this_thread};
use doorbell_shm::keys::OwnerId;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Looks at lanes and storage between two questions whether to wait on.
const LOOKS: u32 = 8;
/// How often somebody asks that before the engine is turned.
const TURN_EVERY: u32 = 8;
/// For how many looks another's header is left to that other, who may be awake and about to take it.
const GRACE: u32 = 64;
/// For how long a thread yields where processors are crowded: longer than its turn among others takes, as each of them stands in the way of the rest.
const YIELD: Duration = Duration::from_micros(100);
/// How long an answer may take of somebody who is awake.
const SPIN_CONVERSING: Duration = Duration::from_micros(3);
/// The longest sleep of a node whose engine nobody else may be turning.
const SLEEP_INLINE: Duration = Duration::from_millis(1);
/// The longest sleep, so that what nobody fetches is noticed.
const SLEEP: Duration = Duration::from_millis(50);
/// The longest wait for the lock between two questions whether its owner lives.
const SLEEP_LOCK: Duration = Duration::from_millis(25);
/// After how many attempts in vain somebody who does not wait asks for the time.
const CARE_EVERY: u32 = 64;
const RECEIVE: &str = "receive from";

/// One thread id of a device: receives what is sent to it. `Send`, not `Sync`. Dropping it gives the id up; what waits for it then is the next
/// one's who takes the id, up to the limit.
///
/// Messages of one sender come in the order in which it sent them; those of different senders in any order.
pub struct DeviceThread {
    inner: Arc<Inner>,
    id: u32,
    slot: usize,
    me: OwnerId,
    tid: u64,
    /// When this thread last saw to what a long wait has to see to.
    cared: Instant,
    /// Attempts that found nothing.
    vain: u32,
    work: Work,
    /// How long it spins at first, if that is longer than others do.
    spin: Duration,
    not_sync: PhantomData<Cell<()>>,
}

/// What came of looking.
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
        Ok(Self { inner, id, slot, me, tid, cared: Instant::now(), vain: 0, work, spin: Duration::ZERO, not_sync: PhantomData })
    }

    /// It is used for questions and answers, which take some microseconds: to yield or sleep in one would double it.
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
            locked.held.attach(id, (caller.node(), caller.life()), tid)
        };
        match attached {
            Some(Ok(slot)) => Ok(slot),
            Some(Err(owner)) => Err(inner.fault(OPERATION, DeviceFault::Taken { thread: id, owner })),
            None => {
                let threads = inner.segment.geometry().threads;
                Err(inner.fault(OPERATION, DeviceFault::Crowded { threads }))
            }
        }
    }

    /// Its thread id.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Whether the lane of a message belongs now to the node that the message names as its source. Another process that shares the memory may write any
    /// source into the envelopes of its own lane.
    pub fn is_from_its_source(&self, envelope: &DeviceEnvelope) -> bool {
        self.inner.segment.view().sender(envelope.lane) == Some((envelope.source, envelope.incarnation))
    }

    /// Receives the next message for this thread straight into `buf`, waiting for it without limit.
    ///
    /// # Errors
    /// [`DeviceFault::TooSmall`]: `buf` is shorter than the message, which is not lost: call again with a longer one. The node has left; or the
    /// device was damaged.
    pub fn receive(&mut self, buf: &mut [u8]) -> Result<DeviceEnvelope> {
        self.wait(buf, None)
    }

    /// As [`receive`](Self::receive), until `deadline` at most: then [`Error::Timeout`].
    pub fn receive_by(&mut self, buf: &mut [u8], deadline: Instant) -> Result<DeviceEnvelope> {
        self.wait(buf, Some(deadline))
    }

    /// Receives what is there now, if anything is. Does not wait, not even for the lock: `None` if somebody else has it.
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

    /// Another thread of the system may use it than before.
    #[inline]
    fn be_here(&mut self) -> Result<()> {
        let tid = this_thread();
        if tid == self.tid { Ok(()) } else { self.move_here(tid) }
    }

    /// The thread that used it before may have ended, and been taken for dead with its id.
    #[cold]
    fn move_here(&mut self, tid: u64) -> Result<()> {
        let (shared, work) = (self.inner.shared.clone(), self.work.clone());
        // Until it is dropped the node does not leave: the slot would be another's.
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
        self.inner.fault(RECEIVE, DeviceFault::TooSmall { len, capacity })
    }

    /// Steps (a) to (f), once.
    #[inline]
    fn steps(&self, buf: &mut [u8]) -> Result<Got> {
        // Until it is dropped the node does not leave: others would take the lock from it.
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
            return Err(self.inner.fault(RECEIVE, DeviceFault::Damaged));
        }
        Ok(match received {
            Received::Message(header, _) => Got::Message(envelope(&header)),
            Received::Left(header) => Got::TooSmall(header.len),
            Received::Others(_) => Got::More,
            Received::Nothing => Got::Nothing,
        })
    }

    /// Whether it is worth to take the lock: there is something for this thread, or something of another that hides what is behind it.
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
        let (spin, mut gear, mut rounds, mut others) = (self.spin, None, 0_u32, 0);
        let mut worth = true;
        loop {
            let mut is_busy = false;
            for _ in 0..LOOKS {
                if worth {
                    match self.steps(buf)? {
                        Got::Message(envelope) => return Ok(envelope),
                        Got::TooSmall(len) => return Err(self.too_small(len, buf.len())),
                        Got::More => others = GRACE,
                        Got::Nothing => {}
                        Got::Busy => is_busy = true,
                    }
                }
                std::hint::spin_loop();
                worth = self.is_worth(&inner.segment.view(), &mut others);
            }
            let gear = match &mut gear {
                Some(gear) => gear,
                None if shared.has_network() && shared.is_within(me) => return Err(Error::Reentrant { operation: RECEIVE }),
                None => gear.insert(shared.gear(deadline).yielding_for(YIELD).spinning_for(spin)),
            };
            rounds += 1;
            if rounds.is_multiple_of(TURN_EVERY) && shared.progress() != Progress::Poller && shared.turn(me) > 0 {
                gear.awake();
            }
            match gear.step() {
                Step::Again => continue,
                Step::Check => self.care(me)?,
                Step::Park(most) => {
                    self.sleep(most, is_busy);
                    gear.slept();
                    if shared.progress() == Progress::Inline {
                        shared.turn(me);
                    }
                    if gear.check_due() {
                        self.care(me)?;
                    }
                }
                Step::Expired => {
                    self.care_if_due(me)?;
                    return Err(Error::Timeout { operation: "receive from a device", node: None });
                }
            }
            self.note(DeviceStep::Waited);
            worth = true;
        }
    }

    /// Sleeps until there is something to do, or the lock is free if that is what is missing.
    fn sleep(&mut self, most: Duration, is_busy: bool) {
        let view = self.inner.segment.view();
        let is_inline = self.inner.shared.progress() == Progress::Inline && self.inner.shared.has_network();
        let most = most.min(if is_inline { SLEEP_INLINE } else { SLEEP });
        if is_busy {
            return Held::await_lock(view, most.min(SLEEP_LOCK));
        }
        view.await_message(self.slot, self.id, most);
    }

    /// Many short waits see to the same as a long one.
    #[cold]
    fn care_if_due(&mut self, me: Token) -> Result<()> {
        if self.cared.elapsed() >= CHECK_EVERY { self.care(me) } else { Ok(()) }
    }

    /// What a long wait has to see to: that the node lives, that the lock's owner does, and that what nobody fetches is dropped.
    #[cold]
    fn care(&mut self, me: Token) -> Result<()> {
        self.cared = Instant::now();
        let inner = &self.inner;
        inner.shared.check()?;
        if inner.shared.progress() != Progress::Poller {
            inner.shared.check_peers(me);
        }
        let view = inner.segment.view();
        if inner.segment.is_cut() {
            return Err(inner.fault(RECEIVE, DeviceFault::Damaged));
        }
        // One of all threads of the device does it at a time; the lock of a dead one is everybody's business.
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
            tracing::warn!(device = inner.segment.name(), dropped, "messages that nobody fetched were dropped");
        }
        Ok(())
    }
}

impl Inner {
    /// How long messages may wait, in nanoseconds.
    fn limit(&self) -> u64 {
        u64::try_from(self.fetch_within.as_nanos()).unwrap_or(u64::MAX)
    }

    /// The lock, for a call that is rare. Waits for it as long as its owner lives, two seconds at most. An error if the node has left.
    fn lock(&self, me: OwnerId, operation: &'static str) -> Result<Locked<'_>> {
        let _updating = self.shared.begin_update()?;
        let view = self.segment.view();
        let mut gear = self.shared.gear(Some(Instant::now() + Duration::from_secs(2)));
        loop {
            let seen = match Held::try_lock(view, me) {
                Ok(held) => return Ok(Locked { held, _updating }),
                Err(seen) => seen,
            };
            let is_dead = |owner| !self.lives(owner);
            match gear.step() {
                Step::Again => continue,
                Step::Park(most) => Held::await_lock(view, most.min(SLEEP_LOCK)),
                Step::Check => {}
                Step::Expired => return Err(Error::Timeout { operation, node: seen.owner().map(OwnerId::node) }),
            }
            if seen.owner().is_some_and(is_dead)
                && let Some(held) = Held::inherit(view, me, seen)
            {
                return Ok(Locked { held, _updating });
            }
        }
    }
}

/// The lock of a device; while it is held the node does not leave.
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
            // Others find out that this life of the node is over.
            Err(Error::Closed) => {}
            Err(error) => tracing::warn!(%error, thread = self.id, "a thread id of a device stays taken until its process ends"),
        }
    }
}

impl fmt::Debug for DeviceThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceThread").field("device", &self.inner.segment.name()).field("id", &self.id).finish_non_exhaustive()
    }
}
