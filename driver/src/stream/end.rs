//! One end of a stream: what its thread and the engine share.

use super::near::Near;
use crate::engine::op::{Op, Outcome};
use doorbell_fabric::{Incarnation, NodeId};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// For bytes, or to be accepted.
    Read = 0,
    /// For room.
    Write = 1,
}

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
    /// What came, and was not read.
    pub came: VecDeque<u8>,
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
    waits: [Mutex<Option<Arc<Op>>>; 2],
}

impl End {
    pub fn new(number: u32, peer: (NodeId, Incarnation), there: u32, carrier: Carrier, state: State) -> Arc<Self> {
        let (there, state) = (AtomicU32::new(there), AtomicU32::new(state as u32));
        Arc::new(Self { number, peer, there, carrier, state, waits: Default::default() })
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
        let mut waits = self.waits[side as usize].lock().unwrap_or_else(PoisonError::into_inner);
        match &*waits {
            Some(op) if !op.is_done() => op.clone(),
            _ => waits.insert(Op::new()).clone(),
        }
    }

    /// Something changed for this side.
    pub fn wake(&self, side: Side) {
        let op = self.waits[side as usize].lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(op) = op {
            op.finish(Outcome::Sent);
        }
    }
}
