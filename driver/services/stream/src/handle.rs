//! A stream, as its user has it: one attempt at a time. What is done where that waits is in [`blocking`](super::blocking) and [`tasks`](super::tasks).

use super::end::{Carrier, End, State};
use super::near::Arenas;
use super::table::{Streams, WINDOW};
use doorbell_engine::drive::Shared;
use doorbell_engine::error::Error;
use doorbell_engine::node::shared_of;
use doorbell_engine::sync::baton::Token;
use doorbell_engine::sync::reactor::{Pipe, Side};
use doorbell_engine::{Incarnation, Node, NodeId};
use doorbell_shm::pipe::{NoRead, NoWrite, Reader, Writer};
use std::io::{self, ErrorKind, IoSlice, Read};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// No time-out.
const NONE: u64 = u64::MAX;

/// Bytes in order from and to another node. `Send` and `Sync`: `&Stream` reads and writes too, so one thread may read while another writes; of several that do the
/// same each has its turn. As long as there is a stream, or a listener, their node does not leave by itself.
///
/// Reading and writing block until something was read or written, and drive the node's engine meanwhile; [`set_nonblocking`](Self::set_nonblocking) and time-outs are as of
/// [`std::os::unix::net::UnixStream`], and so is what is said at the end: reading returns 0 when the other side has shut down its writing or dropped the stream, writing fails
/// with [`BrokenPipe`](ErrorKind::BrokenPipe) when nobody reads any more. If the other side's node died both fail with
/// [`ConnectionReset`](ErrorKind::ConnectionReset), once what it wrote is read; reading does, too, if the other side [gave it up](Self::abort).
pub struct Stream {
    /// Which does not leave as long as there is a stream.
    _node: Node,
    pub(super) shared: Arc<Shared>,
    pub(super) end: Arc<End>,
    pub(super) reads: Mutex<Reader>,
    pub(super) writes: Mutex<Writer>,
    /// For reading and for writing, in nanoseconds.
    patience: [AtomicU64; 2],
    pub(super) nonblocking: AtomicBool,
    /// A task waits for this side, so somebody has to drive.
    pub(super) awaited: [AtomicBool; 2],
    /// Shut down here. Beside the halves: who shuts one down need not have it, as a thread may that waits.
    over: [AtomicBool; 2],
}

pub(super) fn lock<T>(half: &Mutex<T>) -> MutexGuard<'_, T> {
    half.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a half of a stream is to whoever waits for it.
pub(super) trait Half {
    /// How far it is.
    fn at(&self) -> u64;
}

impl Half for Reader {
    fn at(&self) -> u64 {
        Reader::at(self)
    }
}

impl Half for Writer {
    fn at(&self) -> u64 {
        Writer::at(self)
    }
}

impl Stream {
    pub(super) fn new(node: &Node, end: Arc<End>) -> Self {
        let shared = shared_of(node).clone();
        let patience = [AtomicU64::new(NONE), AtomicU64::new(NONE)];
        Self {
            _node: node.clone(),
            shared,
            end,
            reads: Mutex::default(),
            writes: Mutex::default(),
            patience,
            nonblocking: false.into(),
            awaited: Default::default(),
            over: Default::default(),
        }
    }

    /// It is accepted, so more bytes may be under way to it than before.
    pub(super) fn widen(&self) {
        let Some(mut far) = self.end.far() else { return };
        far.owed += WINDOW - far.window;
        far.window = WINDOW;
        drop(far);
        if self.end.is_open() {
            self.activate(Token::current());
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
    /// A call of another thread that waits for the direction ends: reading with 0, writing with [`BrokenPipe`](ErrorKind::BrokenPipe).
    ///
    /// # Errors
    /// The node has left, this is a forked child, or a callback of the node, where only dropping the stream will do.
    pub fn close(&self, how: Shutdown) -> io::Result<()> {
        // Within the engine a thread that has the half would wait for this one, and this one for it.
        let me = self.begin("close a stream")?;
        if matches!(how, Shutdown::Write | Shutdown::Both) {
            self.end_writing(me);
        }
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            self.end_reading(me);
        }
        Ok(())
    }

    /// Whether this direction was shut down here.
    #[inline(always)]
    pub(super) fn is_over(&self, side: Side) -> bool {
        self.over[side as usize].load(Ordering::Relaxed)
    }

    /// Shuts a direction down: whoever waits for it is woken, and lets go of its half. Whether it was down.
    fn shut(&self, me: Token, side: Side) -> bool {
        if self.over[side as usize].swap(true, Ordering::SeqCst) {
            return true;
        }
        self.end.wake(side);
        self.shared.wake_parked(me);
        false
    }

    fn end_writing(&self, me: Token) {
        if self.shut(me, Side::Write) {
            return;
        }
        match &self.end.carrier {
            Carrier::Near(near) => {
                if lock(&self.writes).end(&near.writes()) {
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

    /// Drops the stream, and tells the other side that this was no good end: there reading fails with [`ConnectionReset`](ErrorKind::ConnectionReset) once
    /// what was written is read, and not as at an end; what is on its way over a network may be lost.
    pub fn abort(self) {
        // Of a forked child, or of a node that has left: there is nobody to tell.
        let Ok(me) = self.shared.check() else { return };
        let wakes = {
            let was_over = self.shut(me, Side::Write);
            match &self.end.carrier {
                Carrier::Near(near) => !was_over && lock(&self.writes).cut(&near.writes()),
                Carrier::Far(far) => {
                    let mut far = far.lock().unwrap_or_else(PoisonError::into_inner);
                    // Nothing more goes, nor is it said that this was all.
                    far.goes.clear();
                    (far.said_end, far.cuts) = (true, !far.said_end);
                    false
                }
            }
        };
        if wakes {
            self.wake_other(me);
        }
    }

    fn end_reading(&self, me: Token) {
        if self.shut(me, Side::Read) {
            return;
        }
        match &self.end.carrier {
            Carrier::Near(near) => {
                if lock(&self.reads).leave(&near.reads()) {
                    self.wake_other(me);
                }
            }
            Carrier::Far(_) => {
                if let Some(mut far) = self.end.far() {
                    far.deaf = !far.ended;
                }
                self.activate(me);
            }
        }
    }

    #[cold]
    fn wake_other(&self, me: Token) {
        let end = self.end.clone();
        self.shared.have_done(me, move |engine| engine.service::<Streams>().wake_other(&end));
    }

    fn activate(&self, me: Token) {
        let end = self.end.clone();
        self.shared.have_done(me, move |engine| engine.service::<Streams>().activate(&end));
    }

    /// Before reading and writing. Not within a callback of the engine: the other side could not be told.
    #[inline]
    pub(super) fn begin(&self, operation: &'static str) -> io::Result<Token> {
        let me = self.shared.check()?;
        if self.shared.is_within(me) {
            return Err(Error::Reentrant { operation }.into());
        }
        Ok(me)
    }

    pub(super) fn deadline(&self, side: Side) -> Option<Instant> {
        match self.patience[side as usize].load(Ordering::Relaxed) {
            NONE => None,
            nanoseconds => Instant::now().checked_add(Duration::from_nanos(nanoseconds)),
        }
    }

    /// Why it can't go on, if the other side is gone.
    pub(super) fn lost(&self, side: Side) -> Option<io::Error> {
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

    fn shut_down(&self) -> io::Error {
        let what = format!("a stream with node {}: its writing was shut down", self.end.peer.0);
        io::Error::new(ErrorKind::BrokenPipe, what)
    }

    fn cut(&self) -> io::Error {
        let what = format!("a stream with node {}: the other side gave it up", self.end.peer.0);
        io::Error::new(ErrorKind::ConnectionReset, what)
    }

    fn damaged(&self) -> io::Error {
        let what = format!("a stream with node {}: its memory was written over or truncated; connect anew", self.end.peer.0);
        io::Error::new(ErrorKind::InvalidData, what)
    }

    /// One attempt. `None`: wait.
    pub(super) fn try_read(&self, me: Token, half: &mut Reader, into: &mut [u8]) -> Option<io::Result<usize>> {
        if self.is_over(Side::Read) || into.is_empty() {
            return Some(Ok(0));
        }
        match &self.end.carrier {
            Carrier::Near(near) => match half.try_read(&near.reads(), into) {
                Ok(moved) => {
                    if moved.wake {
                        self.wake_other(me);
                    }
                    if near.is_cut() { Some(Err(self.damaged())) } else { Some(Ok(moved.bytes)) }
                }
                Err(NoRead::End) => Some(Ok(0)),
                Err(NoRead::Cut) => Some(Err(self.cut())),
                Err(NoRead::Broken) => Some(Err(self.damaged())),
                Err(NoRead::Empty) => match self.lost(Side::Read) {
                    // It may have written before it went.
                    Some(_) if half.is_ready(&near.reads()) => None,
                    Some(error) => Some(Err(error)),
                    None if self.end.state() == State::Reset && !half.is_ready(&near.reads()) => Some(Ok(0)),
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
                if far.was_cut {
                    return Some(Err(self.cut()));
                }
                drop(far);
                self.lost(Side::Read).map(Err)
            }
        }
    }

    /// One attempt. `None`: wait.
    pub(super) fn try_write(&self, me: Token, half: &mut Writer, from: &[u8]) -> Option<io::Result<usize>> {
        if self.is_over(Side::Write) {
            return Some(Err(self.shut_down()));
        }
        if let Some(error) = self.lost(Side::Write) {
            return Some(Err(error));
        }
        match &self.end.carrier {
            Carrier::Near(near) => match half.try_write(&near.writes(), from) {
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
                if far.ends || far.said_end {
                    // Shut down just now: nothing may follow the end.
                    return Some(Err(self.shut_down()));
                }
                if far.unheard {
                    let what = format!("a stream with node {}: the other side reads no more", self.end.peer.0);
                    return Some(Err(io::Error::new(ErrorKind::BrokenPipe, what)));
                }
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

    pub(super) fn try_write_vectored(&self, me: Token, half: &mut Writer, from: &[IoSlice<'_>]) -> Option<io::Result<usize>> {
        let mut done = 0;
        for part in from.iter().filter(|part| !part.is_empty()) {
            match self.try_write(me, half, part) {
                // Room may come up between two slices: what follows half a slice is the other half.
                Some(Ok(put)) if put < part.len() => {
                    done += put;
                    break;
                }
                Some(Ok(put)) => done += put,
                _ if done > 0 => break,
                trouble => return trouble,
            }
        }
        Some(Ok(done))
    }

    /// No task waits for this side any more.
    pub(super) fn settle(&self, side: Side) {
        if self.awaited[side as usize].load(Ordering::Relaxed) && self.awaited[side as usize].swap(false, Ordering::Relaxed) {
            self.shared.poller().ended();
        }
    }

    pub(super) fn end(&self) -> &Arc<End> {
        &self.end
    }

    #[cfg_attr(not(feature = "tokio"), allow(dead_code))]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
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
        let end = self.end.clone();
        self.shared.have_done(me, move |engine| engine.service::<Streams>().let_go(&end));
        if matches!(self.end.carrier, Carrier::Near(_)) {
            self.shared.kept::<Arenas>().tidy();
        }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("peer", &self.end.peer.0).field("state", &self.end.state()).finish_non_exhaustive()
    }
}
