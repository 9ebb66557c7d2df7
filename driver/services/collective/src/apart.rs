//! A team whose members do not all share memory: its operations go by packets, one after the other.

use super::exchange::{Folder, Kind, Lengths};
use super::memory::Span;
use super::net::{self, Algorithm, Boxes, Call, Failure, Operation, Run, Stage, Streams};
use doorbell_fabric::{Payload, Verdict};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What one member has of it.
pub(crate) struct Apart {
    /// The number that packets bear: the same for all members.
    pub number: u32,
    me: usize,
    /// Which of them share memory.
    pub boxes: Boxes,
    /// Where an operation can go by it.
    wanted: Option<Algorithm>,
    /// One more than the number of the algorithm that was used last.
    used: AtomicUsize,
    inner: Mutex<Inner>,
}

struct Inner {
    streams: Streams,
    /// What is under way.
    run: Option<Run>,
    /// The application's reduction did, and the run was dropped.
    has_panicked: bool,
    room: Vec<u8>,
}

impl Apart {
    pub fn new(number: u32, me: usize, boxes: Boxes, wanted: Option<Algorithm>) -> Self {
        let inner =
            Inner { streams: Streams::new(number, me, boxes.members()), run: None, has_panicked: false, room: Vec::new() };
        Self { number, me, boxes, wanted, used: AtomicUsize::new(0), inner: Mutex::new(inner) }
    }

    /// By which algorithm the latest operation goes or went.
    pub fn algorithm(&self) -> Option<Algorithm> {
        Algorithm::ALL.get(self.used.load(Ordering::Relaxed).checked_sub(1)?).copied()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing of the application's runs while it is locked (advance).
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on with what is under way; begins `next` if nothing is. True when it is over: its memory is not touched any more. Any thread that has the team's
    /// state locked calls it, so one thread at a time.
    ///
    /// The application's reduction runs with nothing locked here: it may call this node, whose engine gives and takes packets meanwhile. The
    /// engine may be what calls, too, and must not end of a panic of the reduction.
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
                Stage::Folds => {}
            }
            drop(inner);
            let folded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| under_way.fold()));
            let mut inner = self.lock();
            if folded.is_err() {
                inner.has_panicked = true;
                inner.streams.give_up();
                return Err(Failure::Panicked);
            }
            inner.run = Some(under_way);
        }
    }

    /// Drops what is under way.
    pub fn give_up(&self) {
        let Inner { streams, run, .. } = &mut *self.lock();
        if run.take().is_some() {
            streams.give_up();
        }
    }

    /// The others are to know that nothing goes on any more. An operation under way ends with its next step.
    pub fn tell_end(&self) {
        self.lock().streams.give_up();
    }

    /// A packet came from a member.
    pub fn take(&self, from: usize, tag: u64, payload: Payload<'_>) -> Verdict {
        let Inner { streams, run, .. } = &mut *self.lock();
        streams.take(run.as_mut().map(Run::memory), from, tag, payload)
    }

    /// Whether this member waits for something of that one.
    pub fn awaits(&self, from: usize) -> bool {
        self.lock().streams.awaits(from)
    }

    /// Whether there is a packet for anybody.
    pub fn wants(&self) -> bool {
        let inner = self.lock();
        (0..inner.streams.members()).any(|to| inner.streams.wants(to))
    }

    /// Gives packets for a member to `push`, as long as it takes them. Returns how many it took.
    pub fn push(&self, to: usize, packet: usize, mut push: impl FnMut(u64, &[u8]) -> bool) -> usize {
        let mut inner = self.lock();
        let mut pushed = 0;
        loop {
            let Inner { streams, run, room, .. } = &mut *inner;
            let Some(tag) = streams.next(run.as_mut().map(Run::memory), to, packet, room) else { return pushed };
            if !push(tag, room) {
                return pushed;
            }
            // What follows is up to whoever has the team's state: a reduction that ran here would hold up this node's engine.
            streams.sent(to);
            pushed += 1;
        }
    }
}

/// What a member does for an operation, over the network. `None` if lengths don't fit the team.
pub(super) fn run(
    kind: Kind,
    (input, output): (Span, Span),
    lengths: &Lengths,
    folder: Option<Box<dyn Folder>>,
    apart: &Apart,
) -> Option<Run> {
    let (me, boxes) = (apart.me, &apart.boxes);
    let members = boxes.members();
    let element = folder.as_ref().map_or(1, |folder| folder.element()).max(1);
    let commutative = folder.as_ref().is_none_or(|folder| folder.commutes());
    let all = |bytes: &dyn Fn(usize) -> usize| -> Vec<usize> { (0..members).map(|rank| bytes(rank) / element).collect() };
    let (sends, gets) = (all(&|rank| lengths.send(rank)), all(&|rank| lengths.get(rank)));
    let len = gets.get(me).copied().unwrap_or(0);
    // Who is not the root knows its own part alone.
    let root_knows = |root: usize, known: &[usize], own: usize| {
        let mut counts = if root == me { known.to_vec() } else { vec![0; members] };
        counts[me] = own;
        counts
    };
    let counts = match kind {
        Kind::Gather { root } => root_knows(root, &gets, sends[me]),
        Kind::Scatter { root } => root_knows(root, &sends, len),
        Kind::AllGather => gets.clone(),
        Kind::ReduceScatter => sends.clone(),
        _ => Vec::new(),
    };
    let total = counts.iter().sum::<usize>() * element;
    let (operation, bytes) = match kind {
        Kind::Barrier => (Operation::Barrier, 0),
        Kind::Broadcast { root } => (Operation::Broadcast { root, len }, len),
        Kind::Reduce { root } => (Operation::Reduce { root, len, commutative }, len * element),
        Kind::AllReduce => (Operation::AllReduce { len, commutative }, len * element),
        Kind::Scan => (Operation::Scan { len }, len * element),
        Kind::Gather { root } => (Operation::Gather { root, counts: &counts }, 0),
        Kind::Scatter { root } => (Operation::Scatter { root, counts: &counts }, 0),
        Kind::AllGather => (Operation::AllGather { counts: &counts }, total),
        Kind::AllToAll => {
            let bytes = if matches!(lengths, Lengths::Each(_)) { len * members } else { usize::MAX };
            (Operation::AllToAll { sends: &sends, receives: &gets }, bytes)
        }
        Kind::ReduceScatter => (Operation::ReduceScatter { counts: &counts, commutative }, total),
    };
    let wanted = apart.wanted.filter(|wanted| operation.goes_by(*wanted, boxes));
    let algorithm = wanted.unwrap_or_else(|| net::choose(operation.kind(), boxes, bytes, commutative));
    let schedule = operation.schedule(me, boxes, element, algorithm)?;
    let call = Call::new(&operation, algorithm, schedule.between);
    apart.used.store(algorithm as usize + 1, Ordering::Relaxed);
    if schedule.input * element > input.len() || schedule.output * element > output.len() {
        return None;
    }
    let fold: net::Fold = match folder {
        Some(folder) => {
            Box::new(move |into, from, left| if left { folder.fold_left(into, from) } else { folder.fold(into, from) })
        }
        None => Box::new(|_, _, _| {}),
    };
    // SAFETY: spans are of plain data, as long as the schedule says (checked), and stay until what was made of them is over or was dropped (Span::new); where both
    // are of one vector the operation allows it (broadcast has no input; reduce, allreduce and scan allow it).
    Some(unsafe { Run::new(schedule, call, element, input.ptr(), output.ptr(), fold) })
}
