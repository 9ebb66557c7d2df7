//! The handle of a stream, and one attempt to read or write. Waiting is in [`blocking`](super::blocking) for threads and in
//! [`tasks`](super::tasks) for tasks.

use super::end::{Carrier, End, State};
use super::near::{Arenas, Near};
use super::table::{Streams, WINDOW};
use doorbell_engine::kit::{Error, Incarnation, Node, NodeId, Shared, Token, shared_of, world};
use doorbell_engine::sync::reactor::{Pipe, Side};
use doorbell_shm::pipe::{Moved, NoRead, NoWrite, Reader, Writer};
use std::io::{self, ErrorKind, IoSlice, Read};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Why reading or writing fails.
type Fault = (ErrorKind, &'static str);

const UNREAD: Fault = (ErrorKind::BrokenPipe, "the other side does not read any more");
const SHUT_DOWN: Fault = (ErrorKind::BrokenPipe, "this side has shut down writing");
const ABORTED: Fault = (ErrorKind::ConnectionReset, "the other side aborted it");
const DAMAGED: Fault = (ErrorKind::InvalidData, "its memory was overwritten or truncated; connect again");

/// The stored form of no timeout.
const NONE: u64 = u64::MAX;

/// Bytes in order from and to another node. `Send` and `Sync`: `&Stream` reads and writes too, so one thread may read while
/// another writes. If several threads read, or several write, each waits for its turn. While a stream or a listener exists, its
/// node does not leave by itself.
///
/// Reading and writing block until at least one byte was moved, and drive the node's engine meanwhile.
/// [`set_nonblocking`](Self::set_nonblocking), timeouts and the end work as with [`std::os::unix::net::UnixStream`]. Reading
/// returns 0 after the other side has shut down its writing or dropped the stream. Writing fails with
/// [`BrokenPipe`](ErrorKind::BrokenPipe) when the other side does not read any more. If the other side's node died, both fail
/// with [`ConnectionReset`](ErrorKind::ConnectionReset), reading only after all bytes were read. Reading also fails in this way
/// if the other side [aborted](Self::abort) the stream.
pub struct Stream {
    /// Keeps the node from leaving while the stream exists.
    _node: Node,
    pub(crate) shared: Arc<Shared>,
    pub(super) end: Arc<End>,
    pub(super) reads: Mutex<Reader>,
    pub(super) writes: Mutex<Writer>,
    /// The timeouts for reading and for writing, in nanoseconds.
    patience: [AtomicU64; 2],
    pub(super) nonblocking: AtomicBool,
    /// Whether a task waits for this side, so that some thread has to drive the engine.
    pub(super) awaited: [AtomicBool; 2],
    /// Which directions were shut down here. Not part of the halves: a thread that shuts down a direction can't lock the half
    /// while another thread waits with it.
    over: [AtomicBool; 2],
}

pub(super) fn lock<T>(half: &Mutex<T>) -> MutexGuard<'_, T> {
    half.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the wait loops need to know of a half.
pub(super) trait Half {
    /// The position of the half in the stream, in bytes.
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

    /// Enlarges the window, since the stream was accepted.
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
        self.end.peer.node
    }

    /// The incarnation of that node.
    pub fn incarnation(&self) -> Incarnation {
        self.end.peer.incarnation
    }

    /// Sets how long reading may wait before it fails with [`TimedOut`](ErrorKind::TimedOut) [default: without limit].
    ///
    /// # Errors
    /// The timeout is zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_timeout(Side::Read, timeout)
    }

    /// Sets how long writing may wait before it fails with [`TimedOut`](ErrorKind::TimedOut) [default: without limit].
    ///
    /// # Errors
    /// The timeout is zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_timeout(Side::Write, timeout)
    }

    fn set_timeout(&self, side: Side, timeout: Option<Duration>) -> io::Result<()> {
        if timeout == Some(Duration::ZERO) {
            return Err(io::Error::new(ErrorKind::InvalidInput, "the timeout is zero; call set_nonblocking to avoid waiting"));
        }
        let timeout = timeout.map_or(NONE, |timeout| u64::try_from(timeout.as_nanos()).unwrap_or(NONE - 1));
        self.patience[side as usize].store(timeout, Ordering::Relaxed);
        Ok(())
    }

    /// Sets whether reading and writing fail with [`WouldBlock`](ErrorKind::WouldBlock) instead of waiting [default: false].
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// Shuts down one direction or both. After `Write`, the other side reads what was written, and then 0. After `Read`, this
    /// side discards what arrives, and the other side can't write. Does not block.
    ///
    /// If another thread waits for the direction, its call ends: reading with 0, writing with
    /// [`BrokenPipe`](ErrorKind::BrokenPipe).
    ///
    /// # Errors
    /// The node has left, the process is a forked child, or the call is inside a callback of the node. In a callback a stream
    /// can only be dropped.
    pub fn close(&self, how: Shutdown) -> io::Result<()> {
        // Inside the engine this would deadlock with a thread that holds the half and waits for the engine.
        let me = self.begin("close a stream")?;
        if how != Shutdown::Read {
            self.end_side(me, Side::Write);
        }
        if how != Shutdown::Write {
            self.end_side(me, Side::Read);
        }
        Ok(())
    }

    /// Whether this direction was shut down here.
    #[inline(always)]
    pub(super) fn is_over(&self, side: Side) -> bool {
        self.over[side as usize].load(Ordering::Relaxed)
    }

    /// Shuts a direction down and wakes the thread that waits for it, which then releases its half. Returns whether the
    /// direction was shut down already.
    fn shut(&self, me: Token, side: Side) -> bool {
        if self.over[side as usize].swap(true, Ordering::SeqCst) {
            return true;
        }
        self.end.wake(side);
        self.shared.wake_parked(me);
        false
    }

    /// Ends a direction, and tells the other side.
    fn end_side(&self, me: Token, side: Side) {
        if self.shut(me, side) {
            return;
        }
        let wakes = match (&self.end.carrier, side) {
            (Carrier::Near(near), Side::Write) => lock(&self.writes).end(&near.writes()),
            (Carrier::Near(near), Side::Read) => lock(&self.reads).leave(&near.reads()),
            (Carrier::Far(far), _) => {
                let mut far = lock(far);
                if side == Side::Write {
                    far.ends = true;
                } else {
                    far.deaf = !far.ended;
                }
                drop(far);
                return self.activate(me);
            }
        };
        if wakes {
            self.wake_other(me);
        }
    }

    /// Drops the stream and tells the other side that more bytes were to follow. There, reading fails with
    /// [`ConnectionReset`](ErrorKind::ConnectionReset) once the bytes written so far are read, instead of returning 0. Bytes on
    /// their way over a network may be lost.
    pub fn abort(self) {
        // In a forked child, or after the node has left, no peer can be told.
        let Ok(me) = self.shared.check() else { return };
        let was_over = self.shut(me, Side::Write);
        let wakes = match &self.end.carrier {
            Carrier::Near(near) => !was_over && lock(&self.writes).cut(&near.writes()),
            Carrier::Far(far) => {
                let mut far = lock(far);
                // Nothing more is sent, not even the end of the stream.
                far.goes.clear();
                (far.said_end, far.cuts) = (true, !far.said_end);
                false
            }
        };
        if wakes {
            self.wake_other(me);
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

    /// Fails inside a callback of the engine, where the other side could not be told.
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
            nanoseconds => world::now().checked_add(Duration::from_nanos(nanoseconds)),
        }
    }

    fn error(&self, (kind, what): Fault) -> io::Error {
        io::Error::new(kind, format!("a stream with node {}: {what}", self.end.peer.node))
    }

    /// One attempt near the other side: `try_read` and `try_write` of a half moved so many bytes.
    #[inline]
    fn moved(&self, me: Token, near: &Near, moved: Moved) -> Result<usize, Fault> {
        if moved.wake {
            self.wake_other(me);
        }
        if near.is_cut() { Err(DAMAGED) } else { Ok(moved.bytes) }
    }

    /// Reads once. `None`: the caller has to wait.
    pub(super) fn try_read(&self, me: Token, half: &mut Reader, into: &mut [u8]) -> Option<io::Result<usize>> {
        if self.is_over(Side::Read) || into.is_empty() {
            return Some(Ok(0));
        }
        let done = match &self.end.carrier {
            Carrier::Near(near) => match half.try_read(&near.reads(), into) {
                Ok(moved) => self.moved(me, near, moved),
                Err(NoRead::End) => Ok(0),
                Err(NoRead::Cut) => Err(ABORTED),
                Err(NoRead::Broken) => Err(DAMAGED),
                Err(NoRead::Empty) => match self.end.state() {
                    // The other side may have written before it went.
                    _ if half.is_ready(&near.reads()) => return None,
                    State::Reset => Ok(0),
                    state => Err(lost(state, Side::Read)?),
                },
            },
            Carrier::Far(far) => {
                let mut far = lock(far);
                let len = far.came.len().min(into.len());
                if len > 0 {
                    // Each call reads one of the two contiguous parts of the queue.
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
                match (far.ended, far.was_cut) {
                    (true, _) => Ok(0),
                    (_, true) => Err(ABORTED),
                    _ => Err(lost(self.end.state(), Side::Read)?),
                }
            }
        };
        Some(done.map_err(|fault| self.error(fault)))
    }

    /// Writes once. `None`: the caller has to wait.
    pub(super) fn try_write(&self, me: Token, half: &mut Writer, from: &[u8]) -> Option<io::Result<usize>> {
        let done = if self.is_over(Side::Write) {
            Err(SHUT_DOWN)
        } else if let Some(fault) = lost(self.end.state(), Side::Write) {
            Err(fault)
        } else {
            match &self.end.carrier {
                Carrier::Near(near) => match half.try_write(&near.writes(), from) {
                    Ok(moved) => self.moved(me, near, moved),
                    Err(NoWrite::Full) => return None,
                    Err(NoWrite::Gone) => Err(UNREAD),
                    Err(NoWrite::Broken) => Err(DAMAGED),
                },
                Carrier::Far(_) if from.is_empty() => Ok(0),
                Carrier::Far(far) => {
                    let mut far = lock(far);
                    let room = usize::try_from(far.credit).unwrap_or(usize::MAX).saturating_sub(far.goes.len());
                    let len = room.min(from.len());
                    if far.ends || far.said_end {
                        // Shut down just now by another thread: no byte may follow the end.
                        Err(SHUT_DOWN)
                    } else if far.unheard {
                        Err(UNREAD)
                    } else if len == 0 {
                        return None;
                    } else {
                        far.goes.extend(&from[..len]);
                        drop(far);
                        self.activate(me);
                        Ok(len)
                    }
                }
            }
        };
        Some(done.map_err(|fault| self.error(fault)))
    }

    pub(super) fn try_write_vectored(&self, me: Token, half: &mut Writer, from: &[IoSlice<'_>]) -> Option<io::Result<usize>> {
        let mut done = 0;
        for part in from.iter().filter(|part| !part.is_empty()) {
            match self.try_write(me, half, part) {
                // A part that was written only in part ends the call: if room came up now, the next part would overtake its rest.
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

    /// Notes that no task waits for this side any more.
    pub(super) fn settle(&self, side: Side) {
        if self.awaited[side as usize].load(Ordering::Relaxed) && self.awaited[side as usize].swap(false, Ordering::Relaxed) {
            self.shared.poller().ended();
        }
    }
}

/// Why a stream in this state can't go on, if so: the other side or this node is gone.
pub(super) fn lost(state: State, side: Side) -> Option<Fault> {
    match (state, side) {
        (State::Opening | State::Open, _) | (State::Reset, Side::Read) => None,
        (State::Reset, Side::Write) => Some(UNREAD),
        (State::Died, _) => Some((ErrorKind::ConnectionReset, "the other side's node died")),
        (State::Closed, _) => Some((ErrorKind::NotConnected, "this node has left")),
        (State::NotHere | State::Busy | State::NoMemory, _) => Some((ErrorKind::NotConnected, "the other side refused it")),
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if doorbell_shm::space::forked() {
            return;
        }
        let me = Token::current();
        self.end_side(me, Side::Write);
        self.end_side(me, Side::Read);
        self.settle(Side::Read);
        self.settle(Side::Write);
        let end = self.end.clone();
        self.shared.have_done(me, move |engine| engine.service::<Streams>().let_go(&end));
        if self.end.carrier.is_near() {
            self.shared.kept::<Arenas>().tidy();
        }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("peer", &self.end.peer.node).field("state", &self.end.state()).finish_non_exhaustive()
    }
}
