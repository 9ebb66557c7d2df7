//! One end of a stream: what its thread and the engine share.

use super::near::Near;
use doorbell_engine::sync::op::{Op, Outcome};
pub use doorbell_engine::sync::reactor::{Pipe, Side};
use doorbell_fabric::{Incarnation, NodeId};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// How an end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// The other side has not answered.
    Opening = 0,
    Open = 1,
    /// The other side did not accept it: why.
    NotHere = 2,
    Busy = 3,
    NoMemory = 4,
    /// The other side is gone, and reads nothing any more.
    Reset = 5,
    /// Its node died.
    Died = 6,
    /// This node has left.
    Closed = 7,
}

const STATES: [State; 8] =
    [State::Opening, State::Open, State::NotHere, State::Busy, State::NoMemory, State::Reset, State::Died, State::Closed];

/// Bytes on their way by packets.
#[derive(Default)]
pub struct Far {
    /// What came, and was not read; and how many bytes that may be.
    pub came: VecDeque<u8>,
    pub window: u64,
    /// No more comes.
    pub ended: bool,
    /// Bytes that were read since the other side was told.
    pub owed: u64,
    /// What is to go.
    pub goes: VecDeque<u8>,
    /// Bytes that may go.
    pub credit: u64,
    /// No more will be given; that was said.
    pub ends: bool,
    pub said_end: bool,
    /// There was to be more when it was given up here; there.
    pub cuts: bool,
    pub was_cut: bool,
    /// That nobody reads here any more is to be said; the other side said so.
    pub deaf: bool,
    pub unheard: bool,
}

impl Far {
    /// With so many bytes that may go, and that may come.
    pub fn new(credit: u64, window: u64) -> Self {
        Self { credit, window, ..Self::default() }
    }
}

/// By what bytes go.
pub enum Carrier {
    Near(Near),
    Far(Box<Mutex<Far>>),
}

/// One end.
pub struct End {
    /// Its number here.
    pub number: u32,
    pub peer: (NodeId, Incarnation),
    /// The number of the other end there, once it is known.
    pub there: AtomicU32,
    pub carrier: Carrier,
    state: AtomicU32,
    /// The other side asked for it.
    pub asked_for: bool,
    /// It is among the requests that were given up and not answered. Changed by the engine.
    pub given_up: AtomicBool,
    waits: [Mutex<Waits>; 2],
    /// The reactor looks at the pipe for this side.
    hot: [AtomicBool; 2],
    /// Where this side of the pipe was when it found nothing to do. Our own word: what the other side writes over its own must not have anybody look for ever.
    at: [AtomicU64; 2],
    /// Nobody has it any more; what is on its way still goes.
    dropped: AtomicBool,
    /// It is among those that have something to send. Changed by the engine.
    pub active: AtomicBool,
    /// That the other side is to be woken is among what is to be said. Changed by the engine.
    pub wakes: AtomicBool,
}

/// Who waits for a side.
#[derive(Default)]
struct Waits {
    threads: Option<Arc<Op>>,
    task: Option<Waker>,
}

impl End {
    pub fn new(number: u32, peer: (NodeId, Incarnation), there: u32, carrier: Carrier, state: State) -> Arc<Self> {
        // Its own node's begins with a question.
        let asked_for = state != State::Opening;
        let (there, state) = (AtomicU32::new(there), AtomicU32::new(state as u32));
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
            wakes: false.into(),
        })
    }

    /// The other side does not use it, nor will.
    pub fn was_refused(&self) {
        if let Carrier::Near(near) = &self.carrier {
            near.was_refused();
        }
    }

    /// Nobody has it any more.
    pub fn drop_it(&self) {
        self.dropped.store(true, Ordering::Release);
    }

    pub fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    #[inline]
    pub fn state(&self) -> State {
        STATES[self.state.load(Ordering::Acquire) as usize % STATES.len()]
    }

    /// Becomes so, if it was opening or open.
    pub fn become_so(&self, state: State) {
        let change = |was| (was < State::NotHere as u32).then_some(state as u32);
        if self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok() {
            self.wake(Side::Read);
            self.wake(Side::Write);
        }
    }

    pub fn far(&self) -> Option<MutexGuard<'_, Far>> {
        match &self.carrier {
            Carrier::Near(_) => None,
            Carrier::Far(far) => Some(far.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// What is done when something changes for this side.
    pub fn wait_for(&self, side: Side) -> Arc<Op> {
        let threads = &mut self.waits(side).threads;
        match threads {
            Some(op) if !op.is_done() => op.clone(),
            _ => threads.insert(Op::new()).clone(),
        }
    }

    /// The task that is woken when something changes for this side, in place of the one before.
    pub fn set_waker(&self, side: Side, waker: &Waker) {
        let before = {
            let task = &mut self.waits(side).task;
            if task.as_ref().is_some_and(|task| task.will_wake(waker)) {
                return;
            }
            task.replace(waker.clone())
        };
        // Not under the lock: with it may go a task, and with that a stream.
        drop(before);
    }

    fn waits(&self, side: Side) -> MutexGuard<'_, Waits> {
        self.waits[side as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This side of the pipe found nothing to do, and is so far.
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
            (Carrier::Far(_), _) => true,
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
            // Whoever drives runs this: a waker that panics must not end it.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waker.wake()));
        }
    }
}
