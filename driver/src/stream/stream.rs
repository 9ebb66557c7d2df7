//! A stream, as a thread reads and writes it.

use super::end::{Carrier, End, Side, State};
use super::table::WINDOW;
use crate::engine::baton::Token;
use crate::engine::poller::Progress;
use crate::engine::wait::Step;
use crate::error::Error;
use crate::node::Shared;
use crate::{Incarnation, NodeId};
use doorbell_fabric::sync::{Reach, heavy_barrier};
use doorbell_shm::pipe::{NoRead, NoWrite, Reader, Writer};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Looks at a pipe between two questions whether to wait on.
const LOOKS: u32 = 16;
/// How often that is asked before the engine is turned.
const TURN_EVERY: u32 = 16;
/// The longest sleep, where a wake may be missed, and where none is.
const SLEEP_UNSURE: Duration = Duration::from_millis(1);
const SLEEP: Duration = Duration::from_millis(50);
/// No time-out.
const NONE: u64 = u64::MAX;

/// Bytes in order from and to another node. `Send` and `Sync`: `&Stream` reads and writes too, so one thread may read while another writes; of several that do the
/// same each has its turn.
///
/// Reading and writing block until something was read or written, and drive the node's engine meanwhile; [`set_nonblocking`](Self::set_nonblocking) and time-outs are as of
/// [`std::os::unix::net::UnixStream`], and so is what is said at the end: reading returns 0 when the other side has shut down its writing or dropped the stream, writing fails
/// with [`BrokenPipe`](ErrorKind::BrokenPipe) when nobody reads any more. If the other side's node died both fail with
/// [`ConnectionReset`](ErrorKind::ConnectionReset), once what it wrote is read.
pub struct Stream {
    shared: Arc<Shared>,
    end: Arc<End>,
    reads: Mutex<Half<Reader>>,
    writes: Mutex<Half<Writer>>,
    /// For reading and for writing, in nanoseconds.
    patience: [AtomicU64; 2],
    nonblocking: AtomicBool,
    /// A task waits for this side, so somebody has to drive.
    awaited: [AtomicBool; 2],
}

/// One direction.
#[derive(Default)]
struct Half<T> {
    pipe: T,
    /// Shut down here.
    over: bool,
}

fn lock<T>(half: &Mutex<Half<T>>) -> MutexGuard<'_, Half<T>> {
    half.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stream {
    pub(super) fn new(shared: Arc<Shared>, end: Arc<End>) -> Self {
        let patience = [AtomicU64::new(NONE), AtomicU64::new(NONE)];
        Self {
            shared,
            end,
            reads: Mutex::default(),
            writes: Mutex::default(),
            patience,
            nonblocking: false.into(),
            awaited: Default::default(),
        }
    }

    /// The node at the other end.
    pub fn peer(&self) -> NodeId {
        self.end.peer.0
    }

    /// Which life of that node.
    pub fn incarnation(&self) -> Incarnation {
        self.end.peer.1
    }

    /// How long reading may wait: then it fails with [`TimedOut`](ErrorKind::TimedOut) [default: without limit].
    ///
    /// # Errors
    /// It is zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_timeout(Side::Read, timeout)
    }

    /// The same for writing.
    ///
    /// # Errors
    /// It is zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_timeout(Side::Write, timeout)
    }

    fn set_timeout(&self, side: Side, timeout: Option<Duration>) -> io::Result<()> {
        if timeout == Some(Duration::ZERO) {
            return Err(io::Error::new(ErrorKind::InvalidInput, "a time-out of zero; use set_nonblocking not to wait at all"));
        }
        let timeout = timeout.map_or(NONE, |timeout| u64::try_from(timeout.as_nanos()).unwrap_or(NONE - 1));
        self.patience[side as usize].store(timeout, Ordering::Relaxed);
        Ok(())
    }

    /// Whether to fail with [`WouldBlock`](ErrorKind::WouldBlock) where waiting would be needed [default: false].
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// Ends one direction or both: after `Write` the other side reads what was written, and then 0; after `Read` nothing that comes is read, and the other side can't write.
    ///
    /// # Errors
    /// This is a forked child.
    pub fn close(&self, how: Shutdown) -> io::Result<()> {
        let me = self.shared.check()?;
        if matches!(how, Shutdown::Write | Shutdown::Both) {
            self.end_writing(me);
        }
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            self.end_reading(me);
        }
        Ok(())
    }

    fn end_writing(&self, me: Token) {
        let mut half = lock(&self.writes);
        if std::mem::replace(&mut half.over, true) {
            return;
        }
        match &self.end.carrier {
            Carrier::Near(near) => {
                if half.pipe.end(&near.writes()) {
                    self.wake_other(me);
                }
            }
            Carrier::Far(_) => {
                if let Some(mut far) = self.end.far() {
                    far.ends = true;
                }
                self.activate(me);
            }
        }
    }

    fn end_reading(&self, me: Token) {
        let mut half = lock(&self.reads);
        if std::mem::replace(&mut half.over, true) {
            return;
        }
        if let Carrier::Near(near) = &self.end.carrier
            && half.pipe.leave(&near.reads())
        {
            self.wake_other(me);
        }
    }

    #[cold]
    fn wake_other(&self, me: Token) {
        if let Ok(mut engine) = self.shared.enter(me, "wake a stream's other end") {
            engine.streams().wake_other(&self.end);
            engine.push(me);
        }
        self.shared.hand_over();
    }

    fn activate(&self, me: Token) {
        if let Ok(mut engine) = self.shared.enter(me, "send by a stream") {
            engine.streams().activate(&self.end);
            engine.push(me);
        }
        self.shared.hand_over();
    }

    fn deadline(&self, side: Side) -> Option<Instant> {
        match self.patience[side as usize].load(Ordering::Relaxed) {
            NONE => None,
            nanoseconds => Instant::now().checked_add(Duration::from_nanos(nanoseconds)),
        }
    }

    /// Why it can't go on, if the other side is gone.
    fn lost(&self, side: Side) -> Option<io::Error> {
        let (kind, what) = match (self.end.state(), side) {
            (State::Opening | State::Open, _) => return None,
            (State::Reset, Side::Read) => return None,
            (State::Reset, Side::Write) => (ErrorKind::BrokenPipe, "the other side reads no more"),
            (State::Died, _) => (ErrorKind::ConnectionReset, "the other side's node died"),
            (State::Closed, _) => (ErrorKind::NotConnected, "this node has left"),
            (State::NotHere | State::Busy | State::NoMemory, _) => (ErrorKind::NotConnected, "it was refused"),
        };
        Some(io::Error::new(kind, format!("a stream with node {}: {what}", self.end.peer.0)))
    }

    fn damaged(&self) -> io::Error {
        let what = format!("a stream with node {}: its memory was written over or truncated; connect anew", self.end.peer.0);
        io::Error::new(ErrorKind::InvalidData, what)
    }

    /// One attempt. `None`: wait.
    fn try_read(&self, me: Token, half: &mut Half<Reader>, into: &mut [u8]) -> Option<io::Result<usize>> {
        if half.over || into.is_empty() {
            return Some(Ok(0));
        }
        match &self.end.carrier {
            Carrier::Near(near) => match half.pipe.try_read(&near.reads(), into) {
                Ok(moved) => {
                    if moved.wake {
                        self.wake_other(me);
                    }
                    if near.is_cut() { Some(Err(self.damaged())) } else { Some(Ok(moved.bytes)) }
                }
                Err(NoRead::End) => Some(Ok(0)),
                Err(NoRead::Broken) => Some(Err(self.damaged())),
                Err(NoRead::Empty) => match self.lost(Side::Read) {
                    // It may have written before it went.
                    Some(_) if half.pipe.is_ready(&near.reads()) => None,
                    Some(error) => Some(Err(error)),
                    None if self.end.state() == State::Reset && !half.pipe.is_ready(&near.reads()) => Some(Ok(0)),
                    None => None,
                },
            },
            Carrier::Far(_) => {
                let mut far = self.end.far()?;
                let len = far.came.len().min(into.len());
                if len > 0 {
                    // Each call takes one of the two halves of what came.
                    let first = far.came.read(into).unwrap_or(0);
                    let _ = far.came.read(&mut into[first..len]);
                    far.owed += len as u64;
                    let is_owed = far.owed >= WINDOW / 4;
                    drop(far);
                    if is_owed {
                        self.activate(me);
                    }
                    return Some(Ok(len));
                }
                if far.ended {
                    return Some(Ok(0));
                }
                drop(far);
                self.lost(Side::Read).map(Err)
            }
        }
    }

    /// One attempt. `None`: wait.
    fn try_write(&self, me: Token, half: &mut Half<Writer>, from: &[u8]) -> Option<io::Result<usize>> {
        if half.over {
            let what = format!("a stream with node {}: its writing was shut down", self.end.peer.0);
            return Some(Err(io::Error::new(ErrorKind::BrokenPipe, what)));
        }
        if let Some(error) = self.lost(Side::Write) {
            return Some(Err(error));
        }
        match &self.end.carrier {
            Carrier::Near(near) => match half.pipe.try_write(&near.writes(), from) {
                Ok(moved) => {
                    if moved.wake {
                        self.wake_other(me);
                    }
                    if near.is_cut() { Some(Err(self.damaged())) } else { Some(Ok(moved.bytes)) }
                }
                Err(NoWrite::Full) => None,
                Err(NoWrite::Gone) => {
                    let what = format!("a stream with node {}: the other side reads no more", self.end.peer.0);
                    Some(Err(io::Error::new(ErrorKind::BrokenPipe, what)))
                }
                Err(NoWrite::Broken) => Some(Err(self.damaged())),
            },
            Carrier::Far(_) => {
                if from.is_empty() {
                    return Some(Ok(0));
                }
                let mut far = self.end.far()?;
                let room = usize::try_from(far.credit).unwrap_or(usize::MAX).saturating_sub(far.goes.len());
                let len = room.min(from.len());
                if len == 0 {
                    return None;
                }
                far.goes.extend(&from[..len]);
                drop(far);
                self.activate(me);
                Some(Ok(len))
            }
        }
    }

    /// Tries until `attempt` comes to something. `arm` says that this side waits; whether a wake is sure then.
    fn until<T>(
        &self,
        side: Side,
        half: &mut T,
        mut attempt: impl FnMut(&Self, Token, &mut T) -> Option<io::Result<usize>>,
        arm: impl Fn(&Self, &mut T) -> bool,
        is_ready: impl Fn(&Self, &mut T) -> bool,
    ) -> io::Result<usize> {
        let me = self.shared.check()?;
        if let Some(done) = attempt(self, me, half) {
            return done;
        }
        if self.nonblocking.load(Ordering::Relaxed) {
            // Who never waits drives here.
            if self.shared.progress() != Progress::Poller {
                self.shared.turn(me);
            }
            return attempt(self, me, half).unwrap_or_else(|| Err(ErrorKind::WouldBlock.into()));
        }
        let deadline = self.deadline(side);
        let (mut gear, mut rounds) = (self.shared.gear(deadline), 0_u32);
        loop {
            for _ in 0..LOOKS {
                if is_ready(self, half)
                    && let Some(done) = attempt(self, me, half)
                {
                    return done;
                }
                std::hint::spin_loop();
            }
            rounds += 1;
            if rounds.is_multiple_of(TURN_EVERY) && self.shared.progress() != Progress::Poller {
                self.shared.turn(me);
            }
            match gear.step() {
                Step::Again => {}
                Step::Check => {
                    self.shared.check()?;
                    if self.shared.progress() != Progress::Poller {
                        self.shared.check_peers(me);
                    }
                }
                Step::Park(most) => {
                    let op = self.end.wait_for(side);
                    let most = if arm(self, half) { most.min(SLEEP) } else { most.min(SLEEP_UNSURE) };
                    if !is_ready(self, half) && self.lost(side).is_none() {
                        self.shared.drive(me, &op, Some(Instant::now() + most), |_| false)?;
                    }
                    gear.slept();
                }
                Step::Expired => {
                    let operation = if side == Side::Read { "read from a stream" } else { "write to a stream" };
                    return Err(Error::Timeout { operation, node: Some(self.end.peer.0) }.into());
                }
            }
            if let Some(done) = attempt(self, me, half) {
                return done;
            }
        }
    }

    fn read_some(&self, into: &mut [u8]) -> io::Result<usize> {
        self.until(
            Side::Read,
            &mut *lock(&self.reads),
            |this, me, half| this.try_read(me, half, into),
            |this, half| match &this.end.carrier {
                Carrier::Near(near) => half.pipe.wait(&near.reads()),
                Carrier::Far(_) => true,
            },
            |this, half| match &this.end.carrier {
                Carrier::Near(near) => half.pipe.is_ready(&near.reads()),
                Carrier::Far(_) => this.end.far().is_some_and(|far| !far.came.is_empty() || far.ended),
            },
        )
    }

    fn write_some(&self, from: &[u8]) -> io::Result<usize> {
        self.until(
            Side::Write,
            &mut *lock(&self.writes),
            |this, me, half| this.try_write(me, half, from),
            |this, half| match &this.end.carrier {
                Carrier::Near(near) => half.pipe.wait(&near.writes()),
                Carrier::Far(_) => true,
            },
            |this, half| match &this.end.carrier {
                Carrier::Near(near) => half.pipe.is_ready(&near.writes()),
                Carrier::Far(_) => this.end.far().is_some_and(|far| far.credit > far.goes.len() as u64),
            },
        )
    }
}

/// For executors of any kind. Of several tasks that poll the same direction the last is woken. Who is woken need not find anything.
impl Stream {
    /// As [`read`](Read::read), but where that waits the task is woken when it is worth another try. Loses nothing if it is not tried again.
    pub fn poll_read(&self, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll(Side::Read, context, &mut *lock(&self.reads), |this, me, half| this.try_read(me, half, into))
    }

    /// As [`write`](Write::write), but where that waits the task is woken when it is worth another try. What it says is written goes to the other side,
    /// whatever becomes of the task.
    pub fn poll_write(&self, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        self.poll(Side::Write, context, &mut *lock(&self.writes), |this, me, half| this.try_write(me, half, from))
    }

    /// As [`poll_write`](Self::poll_write), of several pieces in a row.
    pub fn poll_write_vectored(&self, context: &mut Context<'_>, from: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.poll(Side::Write, context, &mut *lock(&self.writes), |this, me, half| this.try_write_vectored(me, half, from))
    }

    fn poll<T>(
        &self,
        side: Side,
        context: &mut Context<'_>,
        half: &mut T,
        mut attempt: impl FnMut(&Self, Token, &mut T) -> Option<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let me = self.shared.check()?;
        if let Some(done) = attempt(self, me, half) {
            self.settle(side);
            return Poll::Ready(done);
        }
        self.end.set_waker(side, context.waker());
        if !self.awaited[side as usize].swap(true, Ordering::Relaxed) {
            self.shared.began();
        }
        let is_watched = matches!(self.end.carrier, Carrier::Near(_)) && self.shared.reactor().look_at(&self.end, side);
        if !is_watched {
            self.end.mark(side);
            // Where barriers don't reach: somebody has to look.
            if !heavy_barrier(Reach::Machine) {
                context.waker().wake_by_ref();
            }
        }
        // What happened before the waker was there, or the mark.
        if let Some(done) = attempt(self, me, half) {
            self.settle(side);
            return Poll::Ready(done);
        }
        self.shared.wake_driver_of(context);
        Poll::Pending
    }

    /// No task waits for this side any more.
    fn settle(&self, side: Side) {
        if self.awaited[side as usize].load(Ordering::Relaxed) && self.awaited[side as usize].swap(false, Ordering::Relaxed) {
            self.shared.poller().ended();
        }
    }

    /// Whether the other side has answered; if not, the task is woken when it does.
    #[cfg(feature = "tokio")]
    pub(super) fn poll_answered(&self, context: &mut Context<'_>) -> Poll<()> {
        self.end.set_waker(Side::Read, context.waker());
        if self.end.state() != State::Opening {
            return Poll::Ready(());
        }
        self.shared.wake_driver_of(context);
        Poll::Pending
    }

    pub(super) fn end(&self) -> &Arc<End> {
        &self.end
    }

    #[cfg_attr(not(feature = "tokio"), allow(dead_code))]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn try_write_vectored(&self, me: Token, half: &mut Half<Writer>, from: &[IoSlice<'_>]) -> Option<io::Result<usize>> {
        let mut done = 0;
        for part in from.iter().filter(|part| !part.is_empty()) {
            match self.try_write(me, half, part) {
                Some(Ok(put)) => done += put,
                _ if done > 0 => break,
                trouble => return trouble,
            }
        }
        Some(Ok(done))
    }
}

impl Read for &Stream {
    #[inline]
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.read_some(into)
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut done = 0;
        for part in into.iter_mut().filter(|part| !part.is_empty()) {
            // Only the first may wait.
            let got = if done == 0 {
                self.read_some(part)?
            } else {
                let me = self.shared.check()?;
                match self.try_read(me, &mut lock(&self.reads), part) {
                    Some(Ok(got)) => got,
                    _ => break,
                }
            };
            done += got;
            if got < part.len() {
                break;
            }
        }
        Ok(done)
    }
}

impl Write for &Stream {
    #[inline]
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.write_some(from)
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut done = 0;
        for part in from.iter().filter(|part| !part.is_empty()) {
            let put = if done == 0 {
                self.write_some(part)?
            } else {
                let me = self.shared.check()?;
                match self.try_write(me, &mut lock(&self.writes), part) {
                    Some(Ok(put)) => put,
                    _ => break,
                }
            };
            done += put;
            if put < part.len() {
                break;
            }
        }
        Ok(done)
    }

    /// Nothing waits here to be written.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    #[inline]
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (&*self).read(into)
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(into)
    }
}

impl Write for Stream {
    #[inline]
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        (&*self).write(from)
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if doorbell_shm::space::forked() {
            return;
        }
        let me = Token::current();
        self.end_writing(me);
        self.end_reading(me);
        self.settle(Side::Read);
        self.settle(Side::Write);
        if let Ok(mut engine) = self.shared.enter(me, "close a stream") {
            engine.streams().let_go(&self.end);
            engine.push(me);
        }
        self.shared.hand_over();
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("peer", &self.end.peer.0).field("state", &self.end.state()).finish_non_exhaustive()
    }
}
