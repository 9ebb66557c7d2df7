//! One end of a stream: the state that its thread and the engine share.

use super::near::Near;
use doorbell_engine::kit::{Locality, Op, Outcome, PeerId};
pub use doorbell_engine::sync::reactor::{Pipe, Side};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use zerocopy::TryFromBytes;

/// The state of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u8)]
pub enum State {
    /// The other side has not answered yet.
    Opening = 0,
    Open = 1,
    /// The other side refused it: this is the reason.
    NotHere = 2,
    Busy = 3,
    NoMemory = 4,
    /// The other side has dropped its end, and reads no more bytes.
    Reset = 5,
    /// The other side's node died.
    Died = 6,
    /// This node has left.
    Closed = 7,
}

/// The state of a stream whose bytes go by packets.
#[derive(Default)]
pub struct Far {
    /// Bytes that have arrived and were not read; `window` is how many more the other side may send.
    pub came: VecDeque<u8>,
    pub window: u64,
    /// No more bytes will arrive.
    pub ended: bool,
    /// Bytes that were read since the other side was told.
    pub owed: u64,
    /// Bytes to be sent.
    pub goes: VecDeque<u8>,
    /// How many bytes may be sent.
    pub credit: u64,
    /// The program writes no more; `said_end`: the other side was told.
    pub ends: bool,
    pub said_end: bool,
    /// This side aborted the stream before its end; `was_cut`: the other side did.
    pub cuts: bool,
    pub was_cut: bool,
    /// The other side has to be told that this side reads no more; `unheard`: the other side said so of itself.
    pub deaf: bool,
    pub unheard: bool,
}

impl Far {
    /// `credit` is how many bytes may be sent, `window` how many may arrive.
    pub fn new(credit: u64, window: u64) -> Self {
        Self { credit, window, ..Self::default() }
    }
}

/// How the bytes move.
pub type Carrier = Locality<Near, Mutex<Far>>;

/// One end of a stream.
pub struct End {
    /// This node's number of the end.
    pub number: u32,
    pub peer: PeerId,
    /// The other node's number of its end, once it is known.
    pub there: AtomicU32,
    pub carrier: Carrier,
    state: AtomicU8,
    /// Whether the other side asked for the stream.
    pub asked_for: bool,
    /// Whether it is counted among the given-up requests without an answer. Only the engine changes it.
    pub given_up: AtomicBool,
    waits: [Mutex<Waits>; 2],
    /// Whether the reactor polls the pipe for this side.
    hot: [AtomicBool; 2],
    /// The position at which this side found nothing to do. Kept in private memory, so that a peer that overwrites its own
    /// words can't make the reactor poll for ever.
    at: [AtomicU64; 2],
    /// The program has dropped the stream; bytes on their way are still sent.
    dropped: AtomicBool,
    /// Whether it is in the table's list of ends that have something to send. Only the engine changes it.
    pub active: AtomicBool,
}

/// The thread and the task that wait for a side.
#[derive(Default)]
struct Waits {
    threads: Option<Arc<Op>>,
    task: Option<Waker>,
}

impl End {
    pub fn new(number: u32, peer: PeerId, there: u32, carrier: Carrier, state: State) -> Arc<Self> {
        // An end of this node's own begins with a request, so in `Opening`.
        let asked_for = state != State::Opening;
        let (there, state) = (AtomicU32::new(there), AtomicU8::new(state as u8));
        Arc::new(Self {
            number,
            peer,
            there,
            carrier,
            state,
            asked_for,
            given_up: false.into(),
            waits: Default::default(),
            hot: Default::default(),
            at: Default::default(),
            dropped: false.into(),
            active: false.into(),
        })
    }

    /// The other side does not use the memory, and never will.
    pub fn was_refused(&self) {
        if let Carrier::Near(near) = &self.carrier {
            near.was_refused();
        }
    }

    /// The program has dropped the stream.
    pub fn drop_it(&self) {
        self.dropped.store(true, Ordering::Release);
    }

    pub fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    #[inline]
    pub fn state(&self) -> State {
        State::try_read_from_bytes(&[self.state.load(Ordering::Acquire)]).unwrap_or(State::Closed)
    }

    /// Changes the state, if it is still `Opening` or `Open`.
    pub fn become_so(&self, state: State) {
        let change = |was| (was < State::NotHere as u8).then_some(state as u8);
        if self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok() {
            self.wake(Side::Read);
            self.wake(Side::Write);
        }
    }

    pub fn far(&self) -> Option<MutexGuard<'_, Far>> {
        self.carrier.far().map(|far| far.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The operation that ends when something changes for this side.
    pub fn wait_for(&self, side: Side) -> Arc<Op> {
        let threads = &mut self.waits(side).threads;
        match threads {
            Some(op) if !op.is_done() => op.clone(),
            _ => threads.insert(Op::new()).clone(),
        }
    }

    /// Sets the task to wake when something changes for this side, in place of the former one.
    pub fn set_waker(&self, side: Side, waker: &Waker) {
        let before = {
            let task = &mut self.waits(side).task;
            if task.as_ref().is_some_and(|task| task.will_wake(waker)) {
                return;
            }
            task.replace(waker.clone())
        };
        // Not under the lock: dropping a waker may drop a task, and with it a stream.
        drop(before);
    }

    fn waits(&self, side: Side) -> MutexGuard<'_, Waits> {
        self.waits[side as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the position at which this side of the pipe found nothing to do.
    pub fn waits_at(&self, side: Side, at: u64) {
        self.at[side as usize].store(at, Ordering::Release);
    }
}

impl Pipe for End {
    fn is_open(&self) -> bool {
        matches!(self.state(), State::Opening | State::Open)
    }

    fn becomes_hot(&self, side: Side) -> bool {
        !self.hot[side as usize].swap(true, Ordering::AcqRel)
    }

    fn cools(&self, side: Side) {
        self.hot[side as usize].store(false, Ordering::Release);
    }

    fn has_news(&self, side: Side) -> bool {
        let at = self.at[side as usize].load(Ordering::Acquire);
        match (&self.carrier, side) {
            (Carrier::Near(near), Side::Read) => near.reads().has_news(at),
            (Carrier::Near(near), Side::Write) => near.writes().has_room(at),
            (Carrier::Far(_), Side::Read) => self.far().is_some_and(|far| !far.came.is_empty() || far.ended || far.was_cut),
            (Carrier::Far(_), Side::Write) => self.far().is_some_and(|far| far.unheard || far.credit > far.goes.len() as u64),
        }
    }

    fn mark(&self, side: Side) {
        match (&self.carrier, side) {
            (Carrier::Near(near), Side::Read) => near.reads().mark_reader(),
            (Carrier::Near(near), Side::Write) => near.writes().mark_writer(),
            (Carrier::Far(_), _) => {}
        }
    }

    fn wake(&self, side: Side) {
        let Waits { threads, task } = std::mem::take(&mut *self.waits(side));
        if let Some(op) = threads {
            op.finish(Outcome::Sent);
        }
        if let Some(waker) = task {
            // A waker that panics must not end the thread that drives the engine.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waker.wake()));
        }
    }
}
