//! Turns of channels: acquired, filled with operations, worked off, and left.
//!
//! The steps of the source's claim, as they happen here:
//!
//! 1. *determining whether any channels are available*: [`State::acquire`]. Turns go round the channels, so the next one is the one that was used longest ago.
//! 2. *if not: monitoring, and storing within a queue*: the turn stays in [`State::turns`], and each look asks again.
//! 3. *if so: acquiring, and posting the operations with a synchronisation point*: the turn's operations move from the queue to the channel.
//! 4. *determining that processing has reached the synchronisation point*: the turn has no operation left.
//! 5. *posting a background synchronisation*: [`Channel::leave`](doorbell_shm::channel::Channel::leave), one store. It completes when all members
//!    have done so, without anybody's application; the next who looks finds the channel available.

use super::apart::Apart;
use super::exchange::{Exchange, Room};
use super::memory::Memory;
use super::net::{Failure, Run};
use crate::engine::baton::Token;
use crate::engine::op::{Op, Outcome};
use crate::engine::poller::Progress;
use crate::engine::wait::Step;
use crate::error::{Error, TeamFault};
use crate::node::Shared;
use crate::{Incarnation, NodeId, Result};
use doorbell_shm::domain::PeerInbox;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

/// Looks at the words of a channel between two questions whether to wait on.
const LOOKS: u32 = 8;
/// How often somebody asks that before the engine is turned.
const TURN_EVERY: u32 = 8;
/// How often a member of a team that has more members than there are processors lets others run before it is asked.
const YIELDS: u32 = 64;

/// What became of channels, since the team was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelStats {
    /// Operations that were posted to a channel.
    pub operations: u64,
    /// Turns of channels that were acquired at once.
    pub acquired: u64,
    /// Turns that found no channel available, and were queued; they moved to the channel when it was.
    pub queued: u64,
    /// Synchronisation points that were reached, and background synchronisations that were posted.
    pub synchronised: u64,
    /// Of the acquired ones, those of which a post of the others had said already that the channel is available.
    pub foreseen: u64,
}

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

enum Tell {
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

struct Task {
    number: u64,
    body: Body,
    tell: Tell,
    /// This member has its result, but others may not have what they need of it.
    over: bool,
}

/// One use of a channel.
struct Turn {
    number: u64,
    /// Which channel, and how many turns it had before.
    channel: usize,
    before: u64,
    acquired: bool,
    /// More operations may come.
    open: bool,
    left: bool,
    task: Option<Task>,
    more: VecDeque<Task>,
}

/// What a member knows of its team's channels.
pub(super) struct State {
    turns: VecDeque<Turn>,
    made: u64,
    /// The channel of the next turn, and how many turns it has had.
    next: (usize, u64),
    operations: u64,
    /// Turns that this member has left, one after the other.
    left: u64,
    /// As many had all others left as far as their posts said.
    known: u64,
    /// The operation of the caller that has the state locked is over.
    ended: Option<(u64, Result<()>)>,
    room: Box<Room>,
    stats: ChannelStats,
}

/// A team, as one of its members has it.
pub(crate) struct Core {
    pub(super) shared: Arc<Shared>,
    pub(super) way: Way,
    pub(super) fellows: Vec<Fellow>,
    pub(super) me: usize,
    inboxes: Vec<Arc<PeerInbox>>,
    sync: Sync,
    /// There are more members than processors.
    is_crowded: bool,
    state: Mutex<State>,
    /// One more than the rank of the member that is gone, in the upper half whether it left; all bits: out of step.
    broken: AtomicU64,
}

const LEFT: u64 = 1 << 32;
const OUT_OF_STEP: u64 = u64::MAX;

impl Core {
    pub(super) fn new(
        shared: Arc<Shared>,
        way: Way,
        fellows: Vec<Fellow>,
        me: usize,
        inboxes: Vec<Arc<PeerInbox>>,
        sync: Sync,
    ) -> Self {
        let state = State {
            turns: VecDeque::with_capacity(8),
            made: 0,
            next: (0, 0),
            operations: 0,
            left: 0,
            known: 0,
            ended: None,
            room: Room::new(),
            stats: ChannelStats::default(),
        };
        let is_crowded = fellows.len() > processors();
        Self { shared, way, fellows, me, inboxes, sync, is_crowded, state: Mutex::new(state), broken: AtomicU64::new(0) }
    }

    /// A life of a node is over.
    pub(crate) fn gone(&self, node: NodeId, life: Incarnation, left: bool) {
        if let Some(rank) = self.rank_of(node, life) {
            let word = (rank as u64 + 1) | if left { LEFT } else { 0 };
            let _ = self.broken.compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    pub(crate) fn break_off(&self) {
        let _ = self.broken.compare_exchange(0, OUT_OF_STEP, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Why nothing can be done with the team any more.
    fn end(&self) -> Option<Error> {
        match self.broken.load(Ordering::Acquire) {
            0 if self.memory().is_some_and(Memory::is_cut) => Some(Error::Damaged { node: self.fellows[0].node }),
            0 => None,
            OUT_OF_STEP => Some(Error::Team { operation: "go on with a team", why: TeamFault::OutOfStep }),
            word => {
                let Fellow { node, life: incarnation } = self.fellows[(word as u32 - 1) as usize];
                Some(if word & LEFT != 0 { Error::PeerLeft { node, incarnation } } else { Error::PeerDied { node, incarnation } })
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in a reduction of the application leaves the operation where it was: the members are out of step then (advance_one).
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What became of channels.
    pub(super) fn stats(&self) -> ChannelStats {
        self.lock().stats
    }

    fn memory(&self) -> Option<&Memory> {
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
    fn ring(&self) {
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
    fn advance(&self, state: &mut State) -> bool {
        let (mut did, mut said) = (false, false);
        let mut at = 0;
        while at < state.turns.len() {
            if !state.turns[at].acquired {
                if !self.acquire(state, at) {
                    break;
                }
                did = true;
            }
            did |= self.advance_turn(state, at, &mut said);
            at += 1;
        }
        while state.turns.front().is_some_and(|turn| turn.left) {
            state.turns.pop_front();
            state.left += 1;
        }
        if said {
            self.ring();
        }
        if !state.turns.is_empty()
            && let Some(error) = self.end()
        {
            self.fail(state, &error);
            return true;
        }
        did
    }

    /// Acquires the channel of a turn, if it is available.
    fn acquire(&self, state: &mut State, at: usize) -> bool {
        let Turn { number, channel, before, .. } = state.turns[at];
        let foreseen = match &self.way {
            // One after the other.
            Way::Apart(_) if at > 0 => return false,
            Way::Apart(_) => false,
            Way::Shared(memory) => {
                let foreseen = state.known + memory.layout().channels as u64 > number;
                if !foreseen && !memory.view(channel).words.is_available(before) {
                    return false;
                }
                foreseen
            }
        };
        state.stats.foreseen += u64::from(foreseen);
        state.turns[at].acquired = true;
        true
    }

    /// Works off the operations of a turn, and leaves the channel behind the last.
    fn advance_turn(&self, state: &mut State, at: usize, said: &mut bool) -> bool {
        let State { turns, room, left, known, ended, stats, .. } = state;
        let turn = &mut turns[at];
        if turn.left {
            return false;
        }
        let memory = match &self.way {
            Way::Shared(memory) => memory,
            Way::Apart(apart) => return self.advance_apart(apart, turn, ended, stats),
        };
        let before = turn.before;
        let view = memory.view(turn.channel);
        let mut did = false;
        while let Some(task) = &mut turn.task {
            let Body::Exchange(exchange) = &mut task.body else { return did };
            match if task.over { Ok(true) } else { exchange.advance(&view, *left, room, said) } {
                Ok(false) => return did,
                Ok(true) => {}
                Err(mismatch) => {
                    let node = self.fellows[mismatch.member].node;
                    let error = Error::Team { operation: "call a collective", why: TeamFault::Mismatch { node } };
                    tell(turn.task.take(), ended, Err(error));
                    self.break_off();
                    return true;
                }
            }
            let is_last = turn.more.is_empty() && !turn.open;
            if !task.over {
                (did, task.over) = (true, true);
                stats.operations += 1;
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
            }
            tell(turn.task.take(), ended, Ok(()));
            turn.task = turn.more.pop_front();
        }
        if turn.open {
            return did;
        }
        let posted = (0..view.members).filter(|other| *other != view.me).map(|other| view.words.left(other)).min();
        *known = (*known).max(posted.unwrap_or(u64::MAX >> 1));
        view.words.leave(before + 1);
        *said = true;
        turn.left = true;
        stats.synchronised += 1;
        true
    }

    /// The same over the network.
    fn advance_apart(
        &self,
        apart: &Apart,
        turn: &mut Turn,
        ended: &mut Option<(u64, Result<()>)>,
        stats: &mut ChannelStats,
    ) -> bool {
        let mut did = false;
        while let Some(Task { body: Body::Run(next), .. }) = &mut turn.task {
            match apart.advance(next) {
                Ok(false) => return did,
                Ok(true) => {}
                Err(failure) => {
                    let why = match failure {
                        Failure::Mismatch(mismatch) => TeamFault::Mismatch { node: self.fellows[mismatch.rank].node },
                        Failure::GivenUp | Failure::Ended { .. } => TeamFault::OutOfStep,
                    };
                    apart.give_up();
                    tell(turn.task.take(), ended, Err(Error::Team { operation: "call a collective", why }));
                    self.break_off();
                    return true;
                }
            }
            did = true;
            stats.operations += 1;
            tell(turn.task.take(), ended, Ok(()));
            turn.task = turn.more.pop_front();
        }
        if !turn.open {
            turn.left = true;
            stats.synchronised += 1;
        }
        did
    }

    /// Ends all that is under way.
    fn fail(&self, state: &mut State, error: &Error) {
        if let Way::Apart(apart) = &self.way {
            apart.give_up();
        }
        for mut turn in state.turns.drain(..) {
            tell(turn.task.take(), &mut state.ended, Err(self.end().unwrap_or_else(|| again(error))));
            for task in turn.more {
                tell(Some(task), &mut state.ended, Err(self.end().unwrap_or_else(|| again(error))));
            }
        }
        self.break_off();
    }

    fn post(&self, state: &mut State, open: bool, tell: Tell, make: impl FnOnce(u64) -> Result<Body>) -> Result<u64> {
        self.shared.usable()?;
        if let Some(error) = self.end() {
            return Err(error);
        }
        let number = state.operations;
        let task = Task { number, body: make(number + 1)?, tell, over: false };
        state.operations += 1;
        match state.turns.back_mut() {
            Some(turn) if turn.open => {
                turn.open = open;
                if turn.task.is_none() { turn.task = Some(task) } else { turn.more.push_back(task) }
            }
            _ => {
                let (channel, before) = state.next;
                let next = channel + 1;
                state.next = if next == self.memory().map_or(1, |memory| memory.layout().channels) {
                    (0, before + 1)
                } else {
                    (next, before)
                };
                let waits = state.turns.iter().any(|turn| !turn.acquired);
                let (number, task) = (state.made, Some(task));
                let turn = Turn { number, channel, before, acquired: false, open, left: false, task, more: VecDeque::new() };
                state.turns.push_back(turn);
                let last = state.turns.len() - 1;
                if !waits && self.acquire(state, last) {
                    state.stats.acquired += 1;
                } else {
                    state.stats.queued += 1;
                }
                state.made += 1;
            }
        }
        Ok(number)
    }

    /// Begins an operation, and tells when it is over. `kept` are the bytes that it works on.
    pub(super) fn start(
        self: &Arc<Self>,
        open: bool,
        kept: Option<Kept>,
        make: impl FnOnce(u64) -> Result<Body>,
    ) -> Result<Arc<Op>> {
        let me = self.shared.check()?;
        let op = Op::new();
        let mut state = self.lock();
        self.post(&mut state, open, Tell::Op(op.clone(), kept), make)?;
        self.advance(&mut state);
        let is_over = state.turns.is_empty();
        drop(state);
        if !is_over {
            self.shared.enter(me, "start a collective")?.keep_team(self);
            self.shared.hand_over();
        }
        Ok(op)
    }

    /// Closes a batch: behind its last operation is the synchronisation point.
    pub(super) fn close_batch(&self) {
        let mut state = self.lock();
        if let Some(turn) = state.turns.back_mut() {
            turn.open = false;
        }
        self.advance(&mut state);
    }

    /// Does an operation, and waits until this member has its result.
    pub(super) fn run(
        self: &Arc<Self>,
        operation: &'static str,
        deadline: Option<Instant>,
        make: impl FnOnce(u64) -> Result<Body>,
    ) -> Result<()> {
        let me = self.shared.check()?;
        if self.apart().is_some() {
            // Its packets go with turns of the engine.
            self.shared.enter(me, operation)?.keep_team(self);
        }
        let mut state = self.lock();
        state.ended = None;
        let number = self.post(&mut state, false, Tell::Caller, make)?;
        let op = match self.look(&mut state, me, number, deadline)? {
            Some(result) => {
                let left = state.turns.is_empty();
                drop(state);
                if !left {
                    self.shared.enter(me, operation)?.keep_team(self);
                }
                result?;
                return if self.sync == Sync::Foreground { self.synchronise(me, operation, deadline) } else { Ok(()) };
            }
            None => {
                // From here on whoever drives the engine goes on with it, and this thread may sleep.
                let op = Op::new();
                state.hand(number, &op);
                op
            }
        };
        drop(state);
        let guard = Withdraw { core: self, op: &op };
        self.shared.enter(me, operation)?.keep_team(self);
        self.shared.hand_over();
        let in_time = self.shared.drive(me, &op, deadline, |_| false)?;
        let is_over = op.is_done();
        drop(guard);
        match op.take() {
            _ if !in_time && !is_over => Err(Error::Timeout { operation, node: None }),
            Some(Outcome::Collected) if self.sync == Sync::Foreground => self.synchronise(me, operation, deadline),
            Some(Outcome::Collected) => Ok(()),
            Some(Outcome::Failed(error)) => Err(error),
            _ => Err(Error::Cancelled),
        }
    }

    /// Looks at the channel until the operation is over, with the state locked, for as long as threads do not sleep. `None`: it is time to.
    fn look(&self, state: &mut State, me: Token, number: u64, deadline: Option<Instant>) -> Result<Option<Result<()>>> {
        let mut gear = self.shared.gear(deadline);
        let mut rounds = 0_u32;
        loop {
            let looks = if self.apart().is_some() { 1 } else { LOOKS };
            for _ in 0..looks {
                self.advance(state);
                if state.ended.is_some()
                    && let Some((_, result)) = state.ended.take_if(|ended| ended.0 == number)
                {
                    return Ok(Some(result));
                }
                std::hint::spin_loop();
            }
            if self.shared.progress() == Progress::Poller {
                return Ok(None);
            }
            rounds += 1;
            if self.apart().is_some() {
                if self.shared.turn(me) > 0 {
                    gear.awake();
                }
            } else if self.is_crowded && rounds <= YIELDS {
                // Whoever is waited for may have to run here.
                std::thread::yield_now();
                if !rounds.is_multiple_of(TURN_EVERY) {
                    continue;
                }
            } else if rounds.is_multiple_of(TURN_EVERY) && self.shared.turn(me) > 0 {
                gear.awake();
            }
            match gear.step() {
                Step::Again => {}
                Step::Check => self.shared.check_peers(me),
                Step::Park(_) | Step::Expired => return Ok(None),
            }
        }
    }

    /// Waits until all have left the channel that was used last.
    fn synchronise(&self, me: Token, operation: &'static str, deadline: Option<Instant>) -> Result<()> {
        let Some(memory) = self.memory() else { return Ok(()) };
        let (channel, turns) = {
            let state = self.lock();
            let (next, before) = state.next;
            if next == 0 { (memory.layout().channels - 1, before) } else { (next - 1, before + 1) }
        };
        let mut gear = self.shared.gear(deadline);
        loop {
            for _ in 0..LOOKS {
                if memory.view(channel).words.is_available(turns) {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            if let Some(error) = self.end() {
                return Err(error);
            }
            self.shared.turn(me);
            match gear.step() {
                Step::Again => {}
                Step::Check => self.shared.check_peers(me),
                Step::Park(_) => std::thread::yield_now(),
                Step::Expired => return Err(Error::Timeout { operation, node: None }),
            }
        }
    }
}

impl State {
    /// The caller's operation is told of by this from here on.
    fn hand(&mut self, number: u64, op: &Arc<Op>) {
        for turn in &mut self.turns {
            for task in turn.task.iter_mut().chain(&mut turn.more).filter(|task| task.number == number) {
                task.tell = Tell::Op(op.clone(), None);
            }
        }
    }
}

/// Sees to it that nobody touches the caller's bytes when its call ends, however that is.
struct Withdraw<'a> {
    core: &'a Core,
    op: &'a Arc<Op>,
}

impl Drop for Withdraw<'_> {
    fn drop(&mut self) {
        if !self.op.is_done() {
            let mut state = self.core.lock();
            if !self.op.is_done() {
                // The others go on with an operation that this member gives up.
                self.core.break_off();
                let error = Error::Cancelled;
                self.core.fail(&mut state, &error);
            }
        }
    }
}

/// How many the machine has: a thread that may use one alone still has the others beside it.
fn processors() -> usize {
    // SAFETY: asks for a number, and touches no memory of ours.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(online).unwrap_or(1).max(1)
}

fn again(error: &Error) -> Error {
    match error {
        Error::PeerDied { node, incarnation } => Error::PeerDied { node: *node, incarnation: *incarnation },
        Error::PeerLeft { node, incarnation } => Error::PeerLeft { node: *node, incarnation: *incarnation },
        _ => Error::Cancelled,
    }
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
