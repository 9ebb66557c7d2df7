//! Turns of channels: acquired, filled with operations, worked off, and left.
//!
//! The steps of the claim in `docs/provenance.md`, as they happen here:
//!
//! 1. *determining whether any channels are available*: [`Core::acquire`]. Turns go round the channels, so the next one is the one that was used longest ago. Only that
//!    one is looked at: all members take the same one, and another free channel may not be free at all of them.
//! 2. *if not: monitoring, and storing within a queue*: the turn stays in [`State::turns`], and each look asks again.
//! 3. *if so: acquiring, and posting the operations with a synchronisation point*: the turn's operations move from the queue to the channel.
//! 4. *determining that processing has reached the synchronisation point*: the turn has no operation left.
//! 5. *posting a background synchronisation*: [`Channel::leave`](doorbell_shm::channel::Channel::leave), one store. It completes when all members
//!    have done so, without the application's help; the next look finds the channel available.

use super::apart::Apart;
use super::error::TeamError;
use super::exchange::{Exchange, Room};
use super::memory::{Memory, View};
use super::net::{Failure, Run};
use super::state::{Body, Place, State, Task, Tell, Turn, all_have_left, tell};
use super::watch::ChannelStep::{Acquired, Available, Moved, PointReached, Posted, Queued, SynchronisationPosted};
use super::watch::{ChannelStats, ChannelStep, Count, Counts, Watch};
use doorbell_engine::Result;
use doorbell_engine::drive::Shared;
use doorbell_engine::error::Error;
use doorbell_engine::message::service::PeerId;
use doorbell_shm::domain::PeerInbox;
use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// When a channel is synchronised that was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Synchronisation {
    /// In the background: an operation ends when this member has its result.
    #[default]
    Background,
    /// An operation ends when all members have left the channel. For comparison.
    Foreground,
}

/// How the members reach each other.
pub(super) enum Way {
    /// By memory that all members share.
    Shared(Memory),
    /// By packets: some members share no memory.
    Apart(Box<Apart>),
}

/// A team, as one of its members has it.
pub(crate) struct Core {
    pub(super) shared: Arc<Shared>,
    pub(super) way: Way,
    /// The members, in the order of ranks.
    pub(super) members: Vec<PeerId>,
    pub(super) me: usize,
    inboxes: Vec<Arc<PeerInbox>>,
    pub(super) sync: Synchronisation,
    /// There are more members than processors.
    pub(super) is_crowded: bool,
    watch: Option<Watch>,
    counts: Arc<Counts>,
    state: Mutex<State>,
    /// One more than the rank of the member that is gone, with a flag if it left or is damaged; all bits: out of step.
    pub(super) broken: AtomicU64,
}

thread_local! {
    /// This thread runs a reduction, or code that watches a team: some team's state is locked, and the baton may be taken.
    static COMBINING: Cell<bool> = const { Cell::new(false) };
}

/// Runs code that may call the application.
#[inline]
fn combining<T>(act: impl FnOnce() -> T) -> T {
    /// A reduction may drive the engine, and so come to the reduction of another team. When that one ends, this thread is still in the first one.
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            COMBINING.set(self.0);
        }
    }
    let _before = Before(COMBINING.replace(true));
    act()
}

/// Refuses the call of a team inside a reduction: the call would wait for something that only this thread can end. That may be the state of the same team, or of
/// another team whose owner waits for the baton that this thread has.
#[inline]
pub(super) fn check_outside(operation: &'static str) -> Result<()> {
    if COMBINING.get() { Err(Error::Reentrant { operation }) } else { Ok(()) }
}

/// Operations of a team that one member may have begun and that are not over.
pub const STARTED_MAX: usize = 1024;

impl Core {
    pub(super) fn new(
        shared: Arc<Shared>,
        way: Way,
        members: Vec<PeerId>,
        me: usize,
        inboxes: Vec<Arc<PeerInbox>>,
        sync: Synchronisation,
        watch: Option<Watch>,
    ) -> Self {
        let counts = Arc::<Counts>::default();
        let is_crowded = members.len() > processors();
        let (state, broken) = (Mutex::new(State::new(counts.clone(), members.len())), AtomicU64::new(0));
        Self { shared, way, members, me, inboxes, sync, is_crowded, watch, counts, state, broken }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // No panic of the application leaves it locked (go_on).
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn stats(&self) -> ChannelStats {
        self.counts.read()
    }

    /// The counters, which stay when the team is gone.
    pub(super) fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// Tells the watching program about steps of a turn, before others can see them.
    #[inline]
    pub(super) fn note(&self, place: Place, steps: &[ChannelStep]) {
        if let Some(watch) = &self.watch {
            combining(|| watch.tell(place.channel, place.number, steps));
        }
    }

    pub(super) fn memory(&self) -> Option<&Memory> {
        match &self.way {
            Way::Shared(memory) => Some(memory),
            Way::Apart(_) => None,
        }
    }

    pub(crate) fn apart(&self) -> Option<&Apart> {
        match &self.way {
            Way::Shared(_) => None,
            Way::Apart(apart) => Some(apart),
        }
    }

    pub(crate) fn rank_of(&self, peer: PeerId) -> Option<usize> {
        self.members.iter().position(|member| *member == peer)
    }

    /// The other members, with their ranks.
    pub(crate) fn others(&self) -> impl Iterator<Item = (usize, PeerId)> {
        self.members.iter().copied().enumerate().filter(|(rank, _)| *rank != self.me)
    }

    /// Wakes other members that sleep.
    pub(super) fn ring(&self) {
        for inbox in &self.inboxes {
            inbox.ring();
        }
    }

    /// One look by the engine. True if there is nothing more to do.
    pub(crate) fn step(&self, work: &mut usize) -> bool {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // The thread that has it goes on itself.
            Err(TryLockError::WouldBlock) => return false,
        };
        *work += usize::from(self.advance(&mut state));
        state.is_idle() && !self.apart().is_some_and(Apart::wants)
    }

    /// Goes on as far as it can. True if it did anything.
    pub(super) fn advance(&self, state: &mut State) -> bool {
        let (mut did, mut said) = (false, false);
        let mut at = 0;
        while at < state.turns.len() {
            if !state.turns[at].acquired {
                if !self.acquire(state, at) {
                    break;
                }
                self.note(state.turns[at].place, &[Available, Acquired, Moved]);
                self.note_posted(&state.turns[at]);
                did = true;
            }
            did |= self.advance_turn(state, at, &mut said);
            at += 1;
        }
        while state.turns.front().is_some_and(|turn| turn.left && turn.task.is_none()) {
            state.turns.pop_front();
            state.left += 1;
        }
        if said {
            self.ring();
        }
        if state.is_idle() {
            return did;
        }
        if self.memory().is_none_or(|memory| self.may_be_over(memory))
            && let Some(error) = self.end().or_else(|| self.desertion(state))
        {
            self.fail(state, error);
            return true;
        }
        did
    }

    /// Notes that the synchronisation point is posted: the turn has its channel, and no more operations can come.
    fn note_posted(&self, turn: &Turn) {
        if turn.acquired && !turn.open {
            self.note(turn.place, &[Posted]);
        }
    }

    /// Acquires the channel of a turn, if it is available.
    fn acquire(&self, state: &mut State, at: usize) -> bool {
        let place = state.turns[at].place;
        let foreseen = match &self.way {
            // One operation after the other.
            Way::Apart(_) if at > 0 => return false,
            Way::Apart(_) => false,
            Way::Shared(memory) => {
                let foreseen = state.foresees(place, memory);
                if !foreseen && !memory.view(place.channel).words.is_available(place.before) {
                    return false;
                }
                foreseen
            }
        };
        state.counts.add(Count::Foreseen, foreseen.into());
        state.turns[at].acquired = true;
        true
    }

    /// Works off the operations of a turn, and leaves the channel after the last one.
    fn advance_turn(&self, state: &mut State, at: usize, said: &mut bool) -> bool {
        let State { turns, room, left, known, ended, counts, .. } = state;
        let turn = &mut turns[at];
        let Place { channel, before, .. } = turn.place;
        let view = self.memory().map(|memory| memory.view(channel));
        let mut did = false;
        if turn.left {
            if turn.task.is_some() && view.is_none_or(|view| view.words.is_available(before + 1)) {
                tell(turn.task.take(), ended, Ok(()));
                did = true;
            }
            return did;
        }
        loop {
            let is_last = turn.is_last();
            let Some(task) = &mut turn.task else { break };
            let result = match (&mut task.body, &view) {
                _ if task.over => Ok(true),
                (Body::Exchange(exchange), Some(view)) => self.go_on(exchange, view, *left, room, said),
                (Body::Exchange(_), None) => Ok(false),
                (Body::Run(next), _) => self.go_on_apart(next),
            };
            match result {
                Ok(false) => return did,
                Ok(true) => {}
                Err(error) => {
                    tell(turn.task.take(), ended, Err(*error));
                    self.break_off();
                    return true;
                }
            }
            let was_over = std::mem::replace(&mut task.over, true);
            if !was_over {
                did = true;
                counts.add(Count::Operations, 1);
            }
            if let (Body::Exchange(exchange), Some(view)) = (&task.body, &view) {
                let end = exchange.end_ticket();
                if is_last && self.sync == Synchronisation::Foreground {
                    break;
                }
                if !is_last && !was_over {
                    view.words.take(end);
                    *said = true;
                }
                // The next operation writes over bytes that others may still read.
                if !is_last && self.others().any(|(other, _)| !view.words.has_taken(other, end)) {
                    return did;
                }
            }
            tell(turn.task.take(), ended, Ok(()));
            turn.task = turn.more.pop_front();
        }
        if turn.open {
            return did;
        }
        counts.add(Count::Synchronised, 1);
        self.note(turn.place, &[PointReached, SynchronisationPosted]);
        if let Some(view) = &view {
            *known = (*known).max(all_have_left(view));
            view.words.leave(before + 1);
            *said = true;
        }
        turn.left = true;
        true
    }

    /// Goes on with an exchange. True when it is over.
    #[inline]
    pub(super) fn go_on(
        &self,
        exchange: &mut Exchange,
        view: &View<'_>,
        left: u64,
        room: &mut Room,
        said: &mut bool,
    ) -> std::result::Result<bool, Box<Error>> {
        let result = if exchange.calls_the_application() {
            // The thread that turns the engine may be here, and has to survive a panic of the application.
            let advance = std::panic::AssertUnwindSafe(|| exchange.advance(view, left, room, said));
            match combining(|| std::panic::catch_unwind(advance)) {
                Ok(result) => result,
                Err(_) => return Err(Box::new(Error::cannot("combine vectors", TeamError::Panicked))),
            }
        } else {
            exchange.advance(view, left, room, said)
        };
        result.map_err(|mismatch| self.mismatched(mismatch.member))
    }

    /// Goes on with an operation that goes by packets. True when it is over.
    fn go_on_apart(&self, next: &mut Option<Run>) -> std::result::Result<bool, Box<Error>> {
        let Some(apart) = self.apart() else { return Ok(false) };
        combining(|| apart.advance(next)).map_err(|failure| {
            apart.give_up();
            let operation = "call a collective";
            match failure {
                Failure::Mismatch(mismatch) => self.mismatched(mismatch.rank),
                Failure::Panicked => Box::new(Error::cannot(operation, TeamError::Panicked)),
                // If a member is gone, that is the reason.
                Failure::GivenUp | Failure::Ended { .. } => {
                    Box::new(self.end().unwrap_or_else(|| Error::cannot(operation, TeamError::OutOfStep)))
                }
            }
        })
    }

    #[cold]
    fn mismatched(&self, member: usize) -> Box<Error> {
        let node = self.members[member].node;
        Box::new(Error::cannot("call a collective", TeamError::Mismatch { node }))
    }

    /// Closes a batch: the synchronisation point follows its last operation.
    pub(super) fn close(&self, state: &mut State) {
        if let Some(turn) = state.turns.back_mut().filter(|turn| turn.open) {
            turn.open = false;
            self.note_posted(turn);
        }
    }

    /// Queues an operation, and acquires a channel for it if one is available.
    pub(super) fn post(&self, state: &mut State, open: bool, tell: Tell, make: impl FnOnce(u64) -> Result<Body>) -> Result<u64> {
        self.shared.usable()?;
        if let Some(error) = self.end() {
            return Err(error);
        }
        let number = state.operations;
        let task = Task::new(number, make(number + 1)?, tell);
        state.operations += 1;
        if let Some(turn) = state.turns.back_mut().filter(|turn| turn.open) {
            turn.open = open;
            if turn.task.is_none() {
                turn.task = Some(task)
            } else {
                turn.more.push_back(task)
            }
            self.note_posted(turn);
            return Ok(number);
        }
        let waits = state.turns.iter().any(|turn| !turn.acquired);
        let place = state.next_place(self.memory().map_or(1, |memory| memory.layout().channels));
        state.turns.push_back(Turn { open, ..Turn::new(place, false, task) });
        let last = state.turns.len() - 1;
        if !waits && self.acquire(state, last) {
            state.counts.add(Count::Acquired, 1);
            self.note(place, &[Available, Acquired]);
        } else {
            state.counts.add(Count::Queued, 1);
            self.note(place, &[Queued]);
        }
        self.note_posted(&state.turns[last]);
        Ok(number)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.break_off();
    }
}

/// The number of processors of the machine. A thread that is bound to one processor still has the other members beside it.
fn processors() -> usize {
    // SAFETY: asks for a number, and touches no memory of ours.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(online).unwrap_or(1).max(1)
}
