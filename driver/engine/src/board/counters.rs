//! The DMA counters of a node, and the operations that wait for them.

use super::CounterKey;
use crate::error::Error;
use crate::sync::op::{Op, Outcome};
use doorbell_fabric::sync::{AtomicU64, Ordering};
use doorbell_fabric::{Incarnation, NodeId};
use doorbell_shm::board::{COUNTERS, Counters, Home, Lowered, Metric, Record, RecordKind, Recorder, Standing, Tallies, Use};
use rustix::event::EventfdFlags;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A counter is recorded when its value passes a multiple of this: a record takes longer than a short copy.
const RECORDED: u64 = 64 << 10;

/// All DMA counters of a node. Thread-safe; needs no baton.
#[derive(Debug)]
pub struct CounterFile {
    counters: Counters<Told>,
    recorder: Arc<Recorder>,
    tallies: Arc<Tallies>,
    me: (NodeId, Incarnation),
}

/// A use of a counter that an operation lowers as its bytes move.
#[derive(Debug)]
pub struct Counting {
    file: Arc<CounterFile>,
    index: usize,
    generation: u32,
    /// The bytes of the operation that were counted.
    counted: AtomicU64,
}

impl Counting {
    /// For the present use of a counter.
    pub(crate) fn new(file: &Arc<CounterFile>, index: usize) -> Arc<Self> {
        let generation = file.generation(index);
        Arc::new(Self { file: file.clone(), index, generation, counted: AtomicU64::new(0) })
    }

    /// Counts the bytes of the operation that have moved since the last call, given all that have moved. Fewer than before: a
    /// message was given up, and the receive waits for another. One thread at a time moves the bytes of an operation.
    pub(crate) fn moved(&self, bytes: u64) {
        let counted = self.counted.swap(bytes, Ordering::Relaxed);
        if bytes > counted {
            // A use that has ended meanwhile is not counted.
            let _ = self.file.lower(self.index, Use::Of(self.generation), bytes - counted);
        } else if bytes < counted {
            self.file.counters.give_back_bytes(self.index, self.generation, counted - bytes);
        }
    }
}

/// The waiters of a counter: operations and an interrupt.
#[derive(Debug, Default)]
pub struct Told {
    waits: Vec<Arc<Op>>,
    interrupt: Option<Arc<OwnedFd>>,
}

impl Told {
    fn zero(&mut self) -> Vec<Arc<Op>> {
        if let Some(fd) = &self.interrupt {
            raise(fd);
        }
        std::mem::take(&mut self.waits)
    }
}

impl CounterFile {
    pub(crate) fn new(home: Home, recorder: Arc<Recorder>, tallies: Arc<Tallies>, me: (NodeId, Incarnation)) -> Self {
        Self { counters: Counters::new(home), recorder, tallies, me }
    }

    /// The values and the status register.
    #[inline]
    pub(crate) fn register(&self) -> &Counters<Told> {
        &self.counters
    }

    /// Takes a free counter; `None` if there is none.
    pub(crate) fn take(&self) -> Option<usize> {
        self.counters.take()
    }

    /// Frees a counter. No thread waits for it, since a waiter borrows its handle.
    pub(crate) fn give_back(&self, index: usize) {
        finish(self.counters.give_back(index).waits);
    }

    /// Begins a use; returns its generation, or `None` if there are more bytes than a counter counts.
    pub(crate) fn set(&self, index: usize, bytes: u64) -> Option<u32> {
        let mut waits = Vec::new();
        let generation = self.counters.set(index, bytes, |told, standing| {
            if let Some(fd) = &told.interrupt {
                lay(fd);
            }
            if standing.zero {
                waits = told.zero();
            }
        });
        finish(waits);
        if bytes >= RECORDED && generation.is_some() {
            self.recorder.record(&Record::new(RecordKind::CounterSet).transfer(index as u64).bytes(bytes));
        }
        generation
    }

    /// The generation of the present use.
    pub(crate) fn generation(&self, index: usize) -> u32 {
        self.counters.with(index, |_, standing| standing.generation).unwrap_or(0)
    }

    /// The secret of the present use, which its key has.
    pub(crate) fn secret(&self, index: usize) -> u64 {
        self.counters.with(index, |_, standing| standing.secret).unwrap_or(0)
    }

    /// Lowers a use of a counter by `bytes` bytes that were moved. The holder of the baton needs nothing else: at the end of
    /// its turn it wakes the thread that sleeps on the bell. Other threads call `Shared::lower_counter`. All arguments may come
    /// from outside.
    pub(crate) fn lower(&self, index: usize, which: Use, bytes: u64) -> Lowered {
        let mut zero = None;
        let lowered = self.counters.lower(index, which, bytes, |told, standing| zero = Some((told.zero(), standing)));
        if lowered.reached_zero() {
            self.tallies.add(Metric::CounterZeros, 1);
        }
        // Nobody is told if the owner has seen zero, and begun another use, before this thread could tell.
        if let Some((waits, Standing { generation, size, .. })) = zero {
            let record = Record::new(RecordKind::CounterZero).transfer(index as u64).at(u64::from(generation)).bytes(size);
            self.recorder.record(&record);
            finish(waits);
        } else if let Lowered::Left(left) = lowered
            && left / RECORDED != left.saturating_add(bytes) / RECORDED
        {
            self.recorder.record(&Record::new(RecordKind::CounterLowered).transfer(index as u64).at(left).bytes(bytes));
        }
        lowered
    }

    /// As [`lower`](Self::lower), with a key from any origin. A key of another node, incarnation or use lowers nothing, and
    /// neither does a guess.
    pub(crate) fn lower_by_key(&self, key: &CounterKey, bytes: u64) -> Lowered {
        let is_ours = (key.node, key.incarnation) == self.me;
        match self.counters.named(key.index.into(), key.secret).filter(|_| is_ours) {
            Some(generation) => self.lower(key.index.into(), Use::Of(generation), bytes),
            None => Lowered::Stale,
        }
    }

    /// An operation that ends when the counter is at zero; `None` if it is.
    pub(crate) fn watch(&self, index: usize) -> Option<Arc<Op>> {
        let watch = |told: &mut Told, standing: Standing| {
            (!standing.zero).then(|| {
                let op = Op::new();
                told.waits.push(op.clone());
                op
            })
        };
        self.counters.with(index, watch).flatten()
    }

    /// Undoes [`watch`](Self::watch).
    pub(crate) fn unwatch(&self, index: usize, op: &Arc<Op>) {
        self.counters.with(index, |told, _| told.waits.retain(|other| !Arc::ptr_eq(other, op)));
    }

    /// Makes a descriptor readable at zero, or at once if the present use has already reached zero.
    pub(crate) fn interrupt(&self, index: usize, fd: Arc<OwnedFd>) {
        self.counters.with(index, |told, standing| {
            if standing.zero && standing.set {
                raise(&fd);
            }
            told.interrupt = Some(fd);
        });
    }

    /// Ends all waits: the node leaves, or was cut off from the nodes that would lower its counters. After leaving, no new wait
    /// begins.
    pub(crate) fn end_waits(&self, error: impl Fn() -> Error) {
        for index in 0..COUNTERS {
            let waits = self.counters.with(index, |told, _| std::mem::take(&mut told.waits));
            waits.into_iter().flatten().for_each(|op| op.finish(Outcome::Failed(error())));
        }
    }
}

/// Outside the counter's lock, because a waker may do anything.
fn finish(waits: Vec<Arc<Op>>) {
    waits.into_iter().for_each(|op| op.finish(Outcome::Counted));
}

/// A descriptor that can be made readable.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Makes the descriptor readable. It does not block, and can only fail if it is readable already.
fn raise(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

/// Makes the descriptor unreadable.
fn lay(fd: &OwnedFd) {
    let _ = rustix::io::read(fd, &mut [0; 8]);
}
