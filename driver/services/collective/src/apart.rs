//! A team whose members do not all share memory. Its operations go by packets, one after the other.

use super::lengths::Counts;
use super::net::{self, Algorithm, Boxes, Call, Failure, Operation, Run, Stage, Streams};
use super::what::What;
use doorbell_fabric::{Payload, Verdict};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Such a team, as one of its members has it.
pub(crate) struct Apart {
    /// The number in the team's packets, the same at all members.
    pub number: u32,
    me: usize,
    /// Which members share memory.
    pub boxes: Boxes,
    /// The algorithm that the program asked for, for operations that can go by it.
    wanted: Option<Algorithm>,
    /// One more than the number of the algorithm that was used last.
    used: AtomicUsize,
    inner: Mutex<Inner>,
}

struct Inner {
    streams: Streams,
    /// The operation under way.
    run: Option<Run>,
    /// The application's reduction panicked, and the run was dropped.
    has_panicked: bool,
    room: Vec<u8>,
}

impl Apart {
    pub fn new(number: u32, me: usize, boxes: Boxes, wanted: Option<Algorithm>) -> Self {
        let inner =
            Inner { streams: Streams::new(number, me, boxes.members()), run: None, has_panicked: false, room: Vec::new() };
        Self { number, me, boxes, wanted, used: AtomicUsize::new(0), inner: Mutex::new(inner) }
    }

    /// The algorithm of the latest operation.
    pub fn algorithm(&self) -> Option<Algorithm> {
        Algorithm::ALL.get(self.used.load(Ordering::Relaxed).checked_sub(1)?).copied()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No code of the application runs while it is locked (advance).
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on with the operation under way; begins `next` if there is none. True when it is over: its memory is not touched any more. The caller has the team's
    /// state locked, so one thread at a time calls this.
    ///
    /// The application's reduction runs with nothing locked here. It may call this node, whose engine gives and takes packets meanwhile. The caller may be the
    /// engine, which has to survive a panic of the reduction.
    pub fn advance(&self, next: &mut Option<Run>) -> Result<bool, Failure> {
        loop {
            let mut inner = self.lock();
            if let Some(next) = next.take() {
                inner.run = Some(next);
            }
            if inner.has_panicked {
                return Err(Failure::Panicked);
            }
            let Inner { streams, run, .. } = &mut *inner;
            let Some(mut under_way) = run.take() else { return Ok(true) };
            match under_way.step(streams)? {
                Stage::Waits => {
                    *run = Some(under_way);
                    return Ok(false);
                }
                Stage::Over => return Ok(true),
                Stage::Combines => {}
            }
            drop(inner);
            let combined = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| under_way.combine()));
            let mut inner = self.lock();
            if combined.is_err() {
                inner.has_panicked = true;
                inner.streams.give_up();
                return Err(Failure::Panicked);
            }
            inner.run = Some(under_way);
        }
    }

    /// Drops the operation under way.
    pub fn give_up(&self) {
        let Inner { streams, run, .. } = &mut *self.lock();
        if run.take().is_some() {
            streams.give_up();
        }
    }

    /// Tells the others that nothing goes on any more. An operation under way ends with its next step.
    pub fn tell_end(&self) {
        self.lock().streams.give_up();
    }

    /// A packet came from a member.
    pub fn take(&self, from: usize, tag: u64, payload: Payload<'_>) -> Verdict {
        let Inner { streams, run, .. } = &mut *self.lock();
        streams.take(run.as_mut().map(Run::memory), from, tag, payload)
    }

    /// Whether this member waits for a message from that one.
    pub fn awaits(&self, from: usize) -> bool {
        self.lock().streams.awaits(from)
    }

    /// Whether there is a packet for any member.
    pub fn wants(&self) -> bool {
        let inner = self.lock();
        (0..inner.streams.members()).any(|to| inner.streams.wants(to))
    }

    /// Gives packets for a member to `push`, as long as it accepts them. Returns how many it accepted.
    pub fn push(&self, to: usize, packet: usize, mut push: impl FnMut(u64, &[u8]) -> bool) -> usize {
        let mut inner = self.lock();
        let mut pushed = 0;
        loop {
            let Inner { streams, run, room, .. } = &mut *inner;
            let Some(tag) = streams.next(run.as_mut().map(Run::memory), to, packet, room) else { return pushed };
            if !push(tag, room) {
                return pushed;
            }
            // The owner of the team's state takes the next step: a reduction that ran here would hold up this node's engine.
            streams.sent(to);
            pushed += 1;
        }
    }

    /// Prepares an operation of this member. `None` if its lengths don't fit the team.
    pub fn run(&self, what: What) -> Option<Run> {
        let (me, members, element) = (self.me, self.boxes.members(), what.element());
        let What { kind, root, input, output, lengths, combine } = what;
        let list = |counts: &Counts, is_moved: &dyn Fn(usize) -> bool| -> Vec<usize> {
            (0..members).map(|rank| if is_moved(rank) { counts.of(rank) / element } else { 0 }).collect()
        };
        let sends = list(&lengths.send, &|to| kind.gives(root, me, to));
        let receives = list(&lengths.get, &|from| kind.gives(root, from, me));
        let commutative = combine.as_ref().is_none_or(|combine| combine.commutes());
        let len = lengths.get.of(me) / element;
        let operation = Operation { kind, root, len, sends: &sends, receives: &receives, commutative };
        // Of an alltoall with counts, each member knows only its own lengths.
        let is_known = kind != super::kind::Kind::AllToAll || !lengths.vary;
        let bytes = if is_known { operation.elements() * element } else { usize::MAX };
        let wanted = self.wanted.filter(|wanted| wanted.carries(kind, commutative, &self.boxes));
        let algorithm = wanted.unwrap_or_else(|| net::choose(kind, &self.boxes, bytes, commutative));
        let schedule = operation.schedule(me, &self.boxes, element, algorithm)?;
        let call = Call::new(&operation, algorithm, schedule.between);
        self.used.store(algorithm as usize + 1, Ordering::Relaxed);
        if schedule.input * element > input.len() || schedule.output * element > output.len() {
            return None;
        }
        Some(Run::new(schedule, call, element, (input, output), combine))
    }
}
