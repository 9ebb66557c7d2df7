//! The channels of a team, as one member knows them: the turns that are under way, and the operations in them.

use super::exchange::{Exchange, Room};
use super::memory::{Memory, View};
use super::net::Run;
use super::watch::{Count, Counts};
use doorbell_engine::Result;
use doorbell_engine::error::Error;
use doorbell_engine::sync::op::{Op, Outcome};
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes that a nonblocking operation reads or writes, kept until it is over.
pub(super) type Kept = Box<dyn std::any::Any + Send>;

/// How the end of an operation is told.
pub(super) enum Tell {
    /// A thread has the state locked until the operation is over.
    Caller,
    Op(Arc<Op>, Option<Kept>),
}

/// The part of a member in an operation.
pub(super) enum Body {
    /// By shared memory.
    Exchange(Exchange),
    /// By packets. `None` once it is under way.
    Run(Option<Run>),
}

/// An operation of this member.
pub(super) struct Task {
    number: u64,
    pub body: Body,
    tell: Tell,
    /// This member has its result, but others may still read its slot.
    pub over: bool,
}

impl Task {
    pub fn new(number: u64, body: Body, tell: Tell) -> Self {
        Self { number, body, tell, over: false }
    }
}

/// One use of one channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The number of the turn among all turns since the team was made.
    pub number: u64,
    pub channel: usize,
    /// The number of turns that the channel had before.
    pub before: u64,
}

/// A turn of a channel.
pub(super) struct Turn {
    pub place: Place,
    pub acquired: bool,
    /// More operations may come.
    pub open: bool,
    /// This member has left the channel.
    pub left: bool,
    /// The operation under way. After the turn was left, the operation that ends when all members have left it.
    pub task: Option<Task>,
    pub more: VecDeque<Task>,
}

impl Turn {
    /// A turn of one operation.
    pub fn new(place: Place, acquired: bool, task: Task) -> Self {
        Self { place, acquired, open: false, left: false, task: Some(task), more: VecDeque::new() }
    }

    /// No operation of it can follow the one under way.
    pub fn is_last(&self) -> bool {
        self.more.is_empty() && !self.open
    }
}

/// The channels of a team, as one member knows them.
pub(super) struct State {
    pub turns: VecDeque<Turn>,
    pub next: Place,
    /// Operations so far.
    pub operations: u64,
    /// The number of turns that this member has left, one after the other.
    pub left: u64,
    /// The number of turns that all others had left at their latest posts.
    pub known: u64,
    /// The result of the caller that has the state locked.
    pub ended: Option<(u64, Result<()>)>,
    pub room: Box<Room>,
    pub counts: Arc<Counts>,
}

impl State {
    pub fn new(counts: Arc<Counts>, members: usize) -> Self {
        Self {
            turns: VecDeque::with_capacity(8),
            next: Place { number: 0, channel: 0, before: 0 },
            operations: 0,
            left: 0,
            known: 0,
            ended: None,
            room: Room::new(members),
            counts,
        }
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.turns.is_empty()
    }

    /// Whether posts have said already that a channel is available: this member and all others have left its turn before.
    #[inline]
    pub fn foresees(&self, place: Place, memory: &Memory) -> bool {
        self.known.min(self.left).saturating_add(memory.layout().channels as u64) > place.number
    }

    /// The next turn.
    #[inline]
    pub fn next_place(&mut self, channels: usize) -> Place {
        let Place { number, channel, before } = self.next;
        let (channel_then, before_then) = if channel + 1 == channels { (0, before + 1) } else { (channel + 1, before) };
        self.next = Place { number: number + 1, channel: channel_then, before: before_then };
        Place { number, channel, before }
    }

    /// Leaves a turn that was never queued.
    #[inline]
    pub fn leave_at_once(&mut self, view: &View<'_>, place: Place) {
        self.known = self.known.max(all_have_left(view));
        view.words.leave(place.before + 1);
        self.left += 1;
        for count in [Count::Operations, Count::Acquired, Count::Foreseen, Count::Synchronised] {
            self.counts.add(count, 1);
        }
    }

    /// Queues a turn that was acquired at once: the thread that turns the engine goes on with it.
    pub fn hand_over(&mut self, place: Place, task: Task) {
        self.counts.add(Count::Acquired, 1);
        self.counts.add(Count::Foreseen, 1);
        self.turns.push_back(Turn::new(place, true, task));
    }

    /// Queues a turn that this member has left, and other members have not.
    pub fn hold(&mut self, place: Place, task: Task) {
        // Counted again when it is over.
        self.left -= 1;
        self.turns.push_back(Turn { left: true, ..Turn::new(place, true, Task { over: true, ..task }) });
    }

    /// The number of operations that are not over at this member.
    pub fn waiting(&self) -> usize {
        self.turns.iter().map(|turn| usize::from(turn.task.is_some()) + turn.more.len()).sum()
    }

    /// From here on the end of the caller's operation is told by `op`.
    pub fn hand(&mut self, number: u64, op: &Arc<Op>) {
        for turn in &mut self.turns {
            for task in turn.task.iter_mut().chain(&mut turn.more).filter(|task| task.number == number) {
                task.tell = Tell::Op(op.clone(), None);
            }
        }
    }
}

/// The number of turns that all other members had left at their latest posts.
#[inline]
pub(super) fn all_have_left(view: &View<'_>) -> u64 {
    let posted = (0..view.members).filter(|other| *other != view.me).map(|other| view.words.left(other)).min();
    posted.unwrap_or(u64::MAX >> 1)
}

/// Tells the end of an operation.
pub(super) fn tell(task: Option<Task>, ended: &mut Option<(u64, Result<()>)>, result: Result<()>) {
    let Some(Task { number, tell, body, .. }) = task else { return };
    drop(body);
    match tell {
        Tell::Caller => *ended = Some((number, result)),
        Tell::Op(op, kept) => {
            // Before the end is told: the waiter then takes the vector.
            drop(kept);
            op.finish(result.map_or_else(Outcome::Failed, |()| Outcome::Collected));
        }
    }
}

/// The result of an operation whose end was told by `op`.
pub(super) fn result_of(outcome: Option<Outcome>) -> Result<()> {
    match outcome {
        Some(Outcome::Collected) => Ok(()),
        Some(Outcome::Failed(error)) => Err(error),
        _ => Err(Error::Cancelled),
    }
}
