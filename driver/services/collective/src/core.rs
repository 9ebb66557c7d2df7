//! Turns of channels: acquired, filled with operations, worked off, and left.
//!
//! The steps of the source's claim, as they happen here:
//!
//! 1. *determining whether any channels are available*: [`Core::acquire`]. Turns go round the channels, so the next one is the one that was used longest ago. Only that
//!    one is looked at: all members take the same one, and another one that is free may not be so at all of them.
//! 2. *if not: monitoring, and storing within a queue*: the turn stays in [`State::turns`], and each look asks again.
//! 3. *if so: acquiring, and posting the operations with a synchronisation point*: the turn's operations move from the queue to the channel.
//! 4. *determining that processing has reached the synchronisation point*: the turn has no operation left.
//! 5. *posting a background synchronisation*: [`Channel::leave`](doorbell_shm::channel::Channel::leave), one store. It completes when all members
//!    have done so, without anybody's application; the next who looks finds the channel available.

use super::apart::Apart;
use super::exchange::{Exchange, Mismatch, Room};
use super::memory::{Farewell, Memory, View};
use super::net::{Failure, Run};
use super::watch::ChannelStep::{Acquired, Available, Moved, PointReached, Posted, Queued, SynchronisationPosted};
use super::watch::{ChannelStats, ChannelStep, Counts, Watch};
use doorbell_engine::drive::Shared;
use doorbell_engine::error::{Error, TeamFault};
use doorbell_engine::message::service::Gone;
use doorbell_engine::sync::op::{Op, Outcome};
use doorbell_engine::{Incarnation, NodeId, Result};
use doorbell_shm::domain::PeerInbox;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// When a channel is synchronised that was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sync {
    /// Behind the application's back: an operation ends when this member has its result.
    #[default]
    Background,
    /// An operation ends when all members have left the channel. For comparison.
    Foreground,
}

/// One who is in the team, in the order of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fellow {
    pub node: NodeId,
    pub life: Incarnation,
}

/// Bytes that a nonblocking operation reads or writes, kept until it is over.
pub(super) type Kept = Box<dyn std::any::Any + Send>;

pub(super) enum Tell {
    /// A thread has the state locked until it is over.
    Caller,
    Op(Arc<Op>, Option<Kept>),
}

/// What a member does for an operation.
pub(super) enum Body {
    Exchange(Exchange),
    /// None once it is under way.
    Run(Option<Run>),
}

/// How the members reach each other.
pub(super) enum Way {
    /// By memory that all share.
    Shared(Memory),
    /// Some by the network.
    Apart(Box<Apart>),
}

pub(super) struct Task {
    number: u64,
    body: Body,
    tell: Tell,
    /// This member has its result, but others may not have what they need of it.
    over: bool,
}

impl Task {
    pub fn new(number: u64, body: Body, tell: Tell) -> Self {
        Self { number, body, tell, over: false }
    }
}

/// Which use of which channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Of all turns, since the team was made.
    pub number: u64,
    pub channel: usize,
    /// How many turns the channel had before.
    pub before: u64,
}

/// One use of a channel.
struct Turn {
    place: Place,
    acquired: bool,
    /// More operations may come.
    open: bool,
    left: bool,
    /// What is under way; of a turn that was left, what ends when all have left it.
    task: Option<Task>,
    more: VecDeque<Task>,
}

/// What a member knows of its team's channels.
pub(super) struct State {
    turns: VecDeque<Turn>,
    pub next: Place,
    pub operations: u64,
    /// Turns that this member has left, one after the other.
    left: u64,
    /// As many had all others left as far as their posts said.
    known: u64,
    /// The operation of the caller that has the state locked is over.
    pub ended: Option<(u64, Result<()>)>,
    pub room: Box<Room>,
    stats: Arc<Counts>,
}

/// A team, as one of its members has it.
pub(crate) struct Core {
    pub(super) shared: Arc<Shared>,
    pub(super) way: Way,
    pub(super) fellows: Vec<Fellow>,
    pub(super) me: usize,
    inboxes: Vec<Arc<PeerInbox>>,
    pub(super) sync: Sync,
    /// There are more members than processors.
    pub(super) is_crowded: bool,
    watch: Option<Watch>,
    counts: Arc<Counts>,
    state: Mutex<State>,
    /// One more than the rank of the member that is gone, in the upper half whether it left or is damaged; all bits: out of step.
    broken: AtomicU64,
}

thread_local! {
    /// This thread is in a reduction, or in what watches a team: some team's state is locked, and the baton may be taken.
    static COMBINING: Cell<bool> = const { Cell::new(false) };
}

/// Does what may run code of the application.
#[inline]
fn combining<T>(act: impl FnOnce() -> T) -> T {
    /// A reduction may drive the engine, and so come to the reduction of another team: when that ends this thread is in the first one still.
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            COMBINING.set(self.0);
        }
    }
    let _before = Before(COMBINING.replace(true));
    act()
}

/// Whether the calling thread may call a team. Not in a reduction: the call would wait for what only this thread can end, be it the state of the same team, or of
/// another one whose owner waits for the baton that this thread has.
#[inline]
pub(super) fn check_outside(operation: &'static str) -> Result<()> {
    if COMBINING.get() { Err(Error::Reentrant { operation }) } else { Ok(()) }
}

/// Operations of a team that one member may have begun and that are not over.
pub const STARTED_MAX: usize = 1024;

const LEFT: u64 = 1 << 32;
const DAMAGED: u64 = 1 << 33;
const OUT_OF_STEP: u64 = u64::MAX;

impl Core {
    pub(super) fn new(
        shared: Arc<Shared>,
        way: Way,
        fellows: Vec<Fellow>,
        me: usize,
        inboxes: Vec<Arc<PeerInbox>>,
        sync: Sync,
        watch: Option<Watch>,
    ) -> Self {
        let counts = Arc::<Counts>::default();
        let state = State {
            turns: VecDeque::with_capacity(8),
            next: Place { number: 0, channel: 0, before: 0 },
            operations: 0,
            left: 0,
            known: 0,
            ended: None,
            room: Room::new(),
            stats: counts.clone(),
        };
        let is_crowded = fellows.len() > processors();
        let (state, broken) = (Mutex::new(state), AtomicU64::new(0));
        Self { shared, way, fellows, me, inboxes, sync, is_crowded, watch, counts, state, broken }
    }

    /// Nothing of a life of a node counts any more.
    pub(crate) fn gone(&self, node: NodeId, life: Incarnation, why: Gone) {
        let Some(rank) = self.rank_of(node, life) else { return };
        if let (Gone::Left, Way::Shared(memory)) = (why, &self.way) {
            // What it posted counts: only who waits for more of it is told.
            return memory.note(rank, Farewell::Left);
        }
        let flag = match why {
            Gone::Died => 0,
            Gone::Left => LEFT,
            Gone::Damaged => DAMAGED,
        };
        let _ = self.broken.compare_exchange(0, (rank as u64 + 1) | flag, Ordering::AcqRel, Ordering::Relaxed);
        if why == Gone::Damaged {
            // The others may see nothing wrong with it, and would wait for this member.
            self.break_off();
            if let Way::Apart(apart) = &self.way {
                apart.tell_end();
            }
        }
    }

    /// This member does nothing for the team any more. The others are told.
    pub(crate) fn break_off(&self) {
        self.end_with(Farewell::GaveUp);
    }

    /// The same, as its node leaves.
    pub(crate) fn leave(&self) {
        self.end_with(Farewell::Left);
    }

    fn end_with(&self, farewell: Farewell) {
        // In a child that was forked it is the parent's, and its memory is not there.
        if doorbell_shm::space::forked() {
            return;
        }
        let _ = self.broken.compare_exchange(0, OUT_OF_STEP, Ordering::AcqRel, Ordering::Relaxed);
        if let Way::Shared(memory) = &self.way {
            memory.give_up(farewell);
            self.ring();
        }
    }

    /// Whether something is to be looked into: three loads, of what nobody writes as long as all is well.
    #[inline]
    pub(super) fn may_be_over(&self, memory: &Memory) -> bool {
        self.broken.load(Ordering::Relaxed) != 0 || memory.has_anybody_given_up() || memory.is_cut()
    }

    /// Why nothing can be done with the team any more.
    #[cold]
    pub(super) fn end(&self) -> Option<Error> {
        match self.broken.load(Ordering::Acquire) {
            0 if self.memory().is_some_and(Memory::is_cut) => Some(Error::Damaged { node: self.fellows[0].node }),
            0 => None,
            OUT_OF_STEP => Some(Error::Team { operation: "go on with a team", why: TeamFault::OutOfStep }),
            word => {
                let Fellow { node, life: incarnation } = self.fellows[(word as u32 - 1) as usize];
                let why = match word {
                    word if word & LEFT != 0 => Gone::Left,
                    word if word & DAMAGED != 0 => Gone::Damaged,
                    _ => Gone::Died,
                };
                Some(why.error((node, incarnation).into()))
            }
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing of the application's panics while it is locked (go_on).
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What became of channels.
    pub(super) fn stats(&self) -> ChannelStats {
        self.counts.read()
    }

    /// Where that is counted, which stays when the team is gone.
    pub(super) fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// Tells whoever watches what happened in a turn, before others can see it.
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

    /// The number by which packets name it, if its operations go by the network.
    pub(crate) fn apart(&self) -> Option<&Apart> {
        match &self.way {
            Way::Shared(_) => None,
            Way::Apart(apart) => Some(apart),
        }
    }

    /// The rank of a node.
    pub(crate) fn rank_of(&self, node: NodeId, life: Incarnation) -> Option<usize> {
        self.fellows.iter().position(|fellow| (fellow.node, fellow.life) == (node, life))
    }

    /// The others, with their ranks.
    pub(crate) fn others(&self) -> impl Iterator<Item = (usize, NodeId, Incarnation)> {
        self.fellows
            .iter()
            .enumerate()
            .filter(|(rank, _)| *rank != self.me)
            .map(|(rank, fellow)| (rank, fellow.node, fellow.life))
    }

    /// Wakes the others who sleep.
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
            // Whoever has it goes on itself.
            Err(TryLockError::WouldBlock) => return false,
        };
        *work += usize::from(self.advance(&mut state));
        state.turns.is_empty() && !self.apart().is_some_and(Apart::wants)
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
        if state.turns.is_empty() {
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

    /// Somebody is waited for who gave up.
    fn desertion(&self, state: &State) -> Option<Error> {
        let memory = self.memory().filter(|memory| memory.has_anybody_given_up())?;
        let awaited = |turn: &Turn| {
            let words = memory.view(turn.place.channel).words;
            let others = || (0..self.fellows.len()).filter(|other| *other != self.me && memory.has_given_up(*other));
            match &turn.task {
                _ if !turn.acquired => others().find(|other| !words.has_left(*other, turn.place.before)),
                Some(_) if turn.left => others().find(|other| !words.has_left(*other, turn.place.before + 1)),
                Some(Task { body: Body::Exchange(exchange), over: true, .. }) => {
                    others().find(|other| !words.has_taken(*other, exchange.end_ticket()))
                }
                Some(Task { body: Body::Exchange(exchange), .. }) => self.deserter(memory, exchange, turn.place.channel),
                _ => None,
            }
        };
        let member = state.turns.iter().find_map(awaited)?;
        Some(self.gave_up(member))
    }

    /// Somebody gave up and has not left the channel.
    pub(super) fn lingerer(&self, memory: &Memory, Place { channel, before, .. }: Place) -> Option<Error> {
        let words = memory.view(channel).words;
        let lingers = |other: &usize| memory.has_given_up(*other) && !words.has_left(*other, before + 1);
        (0..self.fellows.len()).find(lingers).map(|member| self.gave_up(member))
    }

    /// Who gave up without what an exchange waits for.
    pub(super) fn deserter(&self, memory: &Memory, exchange: &Exchange, channel: usize) -> Option<usize> {
        let view = memory.view(channel);
        // Asked again: it may have come right before its member gave up.
        exchange.awaited(&view).filter(|member| memory.has_given_up(*member) && exchange.awaited(&view) == Some(*member))
    }

    pub(super) fn gave_up(&self, member: usize) -> Error {
        let Fellow { node, life: incarnation } = self.fellows[member];
        if self.memory().is_some_and(|memory| memory.has_left(member)) {
            return Error::PeerLeft { node, incarnation };
        }
        Error::Team { operation: "go on with a team", why: TeamFault::GaveUp { node } }
    }

    /// Posts the synchronisation point behind the operations of a turn that has its channel, if no more can come.
    fn note_posted(&self, turn: &Turn) {
        if turn.acquired && !turn.open {
            self.note(turn.place, &[Posted]);
        }
    }

    /// Acquires the channel of a turn, if it is available.
    fn acquire(&self, state: &mut State, at: usize) -> bool {
        let place = state.turns[at].place;
        let foreseen = match &self.way {
            // One after the other.
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
        state.stats.foreseen.add(foreseen.into());
        state.turns[at].acquired = true;
        true
    }

    /// Works off the operations of a turn, and leaves the channel behind the last.
    fn advance_turn(&self, state: &mut State, at: usize, said: &mut bool) -> bool {
        let State { turns, room, left, known, ended, stats, .. } = state;
        let turn = &mut turns[at];
        let memory = match &self.way {
            Way::Shared(memory) => memory,
            Way::Apart(apart) => return self.advance_apart(apart, turn, ended, stats),
        };
        let Place { channel, before, .. } = turn.place;
        let view = memory.view(channel);
        let mut did = false;
        if turn.left {
            if turn.task.is_some() && view.words.is_available(before + 1) {
                tell(turn.task.take(), ended, Ok(()));
                did = true;
            }
            return did;
        }
        while let Some(task) = &mut turn.task {
            let Body::Exchange(exchange) = &mut task.body else { return did };
            match if task.over { Ok(true) } else { self.go_on(exchange, &view, *left, room, said) } {
                Ok(false) => return did,
                Ok(true) => {}
                Err(error) => {
                    tell(turn.task.take(), ended, Err(*error));
                    self.break_off();
                    return true;
                }
            }
            let is_last = turn.more.is_empty() && !turn.open;
            if !task.over {
                (did, task.over) = (true, true);
                stats.operations.add(1);
                if !is_last {
                    view.words.take(exchange.end_ticket());
                    *said = true;
                }
            }
            if !is_last {
                // The next one writes over what others may still read.
                let end = exchange.end_ticket();
                let others = (0..view.members).filter(|other| *other != view.me);
                if !others.into_iter().all(|other| view.words.has_taken(other, end)) {
                    return did;
                }
            } else if self.sync == Sync::Foreground {
                break;
            }
            tell(turn.task.take(), ended, Ok(()));
            turn.task = turn.more.pop_front();
        }
        if turn.open {
            return did;
        }
        *known = (*known).max(all_have_left(&view));
        stats.synchronised.add(1);
        self.note(turn.place, &[PointReached, SynchronisationPosted]);
        view.words.leave(before + 1);
        *said = true;
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
            // Whoever drives comes by here, and must not end of it.
            let advance = std::panic::AssertUnwindSafe(|| exchange.advance(view, left, room, said));
            match combining(|| std::panic::catch_unwind(advance)) {
                Ok(result) => result,
                Err(_) => return Err(Box::new(Error::Team { operation: "combine vectors", why: TeamFault::Panicked })),
            }
        } else {
            exchange.advance(view, left, room, said)
        };
        result.map_err(|mismatch| self.mismatched(mismatch))
    }

    #[cold]
    fn mismatched(&self, Mismatch { member }: Mismatch) -> Box<Error> {
        let node = self.fellows[member].node;
        Box::new(Error::Team { operation: "call a collective", why: TeamFault::Mismatch { node } })
    }

    /// The same over the network.
    fn advance_apart(&self, apart: &Apart, turn: &mut Turn, ended: &mut Option<(u64, Result<()>)>, stats: &Counts) -> bool {
        let mut did = false;
        if turn.left {
            return did;
        }
        while let Some(Task { body: Body::Run(next), .. }) = &mut turn.task {
            match combining(|| apart.advance(next)) {
                Ok(false) => return did,
                Ok(true) => {}
                Err(failure) => {
                    let why = match failure {
                        Failure::Mismatch(mismatch) => TeamFault::Mismatch { node: self.fellows[mismatch.rank].node },
                        Failure::Panicked => TeamFault::Panicked,
                        Failure::GivenUp | Failure::Ended { .. } => TeamFault::OutOfStep,
                    };
                    apart.give_up();
                    // If a member is gone that is why.
                    let end = self.end().filter(|_| why == TeamFault::OutOfStep);
                    let error = end.unwrap_or(Error::Team { operation: "call a collective", why });
                    tell(turn.task.take(), ended, Err(error));
                    self.break_off();
                    return true;
                }
            }
            did = true;
            stats.operations.add(1);
            tell(turn.task.take(), ended, Ok(()));
            turn.task = turn.more.pop_front();
        }
        if !turn.open {
            stats.synchronised.add(1);
            self.note(turn.place, &[PointReached, SynchronisationPosted]);
            turn.left = true;
        }
        did
    }

    /// Ends all that is under way.
    pub(super) fn fail(&self, state: &mut State, error: Error) {
        if let Way::Apart(apart) = &self.way {
            apart.give_up();
        }
        self.break_off();
        let mut error = Some(error);
        for turn in std::mem::take(&mut state.turns) {
            for task in turn.task.into_iter().chain(turn.more) {
                let why = error.take().or_else(|| self.end()).unwrap_or(Error::Cancelled);
                tell(Some(task), &mut state.ended, Err(why));
            }
        }
    }

    /// Behind the last operation of a batch is the synchronisation point.
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
        match state.turns.back_mut() {
            Some(turn) if turn.open => {
                turn.open = open;
                if turn.task.is_none() {
                    turn.task = Some(task)
                } else {
                    turn.more.push_back(task)
                }
                self.note_posted(turn);
            }
            _ => {
                let waits = state.turns.iter().any(|turn| !turn.acquired);
                let place = state.next_place(self.memory().map_or(1, |memory| memory.layout().channels));
                let turn = Turn { place, acquired: false, open, left: false, task: Some(task), more: VecDeque::new() };
                state.turns.push_back(turn);
                let last = state.turns.len() - 1;
                if !waits && self.acquire(state, last) {
                    state.stats.acquired.add(1);
                    self.note(place, &[Available, Acquired]);
                } else {
                    state.stats.queued.add(1);
                    self.note(place, &[Queued]);
                }
                self.note_posted(&state.turns[last]);
            }
        }
        Ok(number)
    }
}

impl State {
    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.turns.is_empty()
    }

    /// Whether a channel is available as far as posts said: all others have left the turn before, and so has this member.
    #[inline]
    pub fn foresees(&self, place: Place, memory: &Memory) -> bool {
        self.known.min(self.left).saturating_add(memory.layout().channels as u64) > place.number
    }

    /// The turn that comes next.
    #[inline]
    pub fn next_place(&mut self, channels: usize) -> Place {
        let Place { number, channel, before } = self.next;
        let (channel_then, before_then) = if channel + 1 == channels { (0, before + 1) } else { (channel + 1, before) };
        self.next = Place { number: number + 1, channel: channel_then, before: before_then };
        Place { number, channel, before }
    }

    /// What a turn that was not queued was, now that it is over.
    #[inline]
    pub fn leave_at_once(&mut self, view: &View<'_>, place: Place) {
        self.known = self.known.max(all_have_left(view));
        view.words.leave(place.before + 1);
        self.left += 1;
        self.stats.operations.add(1);
        self.stats.acquired.add(1);
        self.stats.foreseen.add(1);
        self.stats.synchronised.add(1);
    }

    /// A turn that was acquired at once is to go on by whoever drives.
    pub fn hand_over(&mut self, place: Place, task: Task) {
        self.stats.acquired.add(1);
        self.stats.foreseen.add(1);
        self.turns.push_back(Turn { place, acquired: true, open: false, left: false, task: Some(task), more: VecDeque::new() });
    }

    /// The same of a turn that this member has left, and others have not.
    pub fn hold(&mut self, place: Place, task: Task) {
        // Counted again when it is over.
        self.left -= 1;
        let task = Some(Task { over: true, ..task });
        self.turns.push_back(Turn { place, acquired: true, open: false, left: true, task, more: VecDeque::new() });
    }

    /// Operations that are not over here.
    pub fn waiting(&self) -> usize {
        self.turns.iter().map(|turn| usize::from(turn.task.is_some()) + turn.more.len()).sum()
    }

    /// Turns that this member has left.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// The caller's operation is told of by this from here on.
    pub fn hand(&mut self, number: u64, op: &Arc<Op>) {
        for turn in &mut self.turns {
            for task in turn.task.iter_mut().chain(&mut turn.more).filter(|task| task.number == number) {
                task.tell = Tell::Op(op.clone(), None);
            }
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.break_off();
    }
}

/// As many turns had all others left when they posted.
#[inline]
fn all_have_left(view: &View<'_>) -> u64 {
    let posted = (0..view.members).filter(|other| *other != view.me).map(|other| view.words.left(other)).min();
    posted.unwrap_or(u64::MAX >> 1)
}

/// How many the machine has: a thread that may use one alone still has the others beside it.
fn processors() -> usize {
    // SAFETY: asks for a number, and touches no memory of ours.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(online).unwrap_or(1).max(1)
}

fn tell(task: Option<Task>, ended: &mut Option<(u64, Result<()>)>, result: Result<()>) {
    let Some(Task { number, tell, body, .. }) = task else { return };
    drop(body);
    match tell {
        Tell::Caller => *ended = Some((number, result)),
        Tell::Op(op, kept) => {
            // First: whoever is told takes the vector.
            drop(kept);
            op.finish(match result {
                Ok(()) => Outcome::Collected,
                Err(error) => Outcome::Failed(error),
            });
        }
    }
}
