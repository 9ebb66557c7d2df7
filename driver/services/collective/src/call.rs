//! How a thread calls a collective: it looks at the channel itself for as long as threads do not sleep, and leaves it to whoever drives the engine after that.

use super::core::{Body, Core, Kept, Place, STARTED_MAX, State, Sync, Task, Tell, check_outside};
use super::memory::Memory;
use super::table::Teams;
use doorbell_fabric::world;

use super::watch::ChannelStep::{Acquired, Available, PointReached, Posted, SynchronisationPosted};
use super::what::{What, too_long};
use doorbell_engine::Result;
use doorbell_engine::drive::poller::Progress;
use doorbell_engine::error::{Error, TeamFault};
use doorbell_engine::sync::baton::Token;
use doorbell_engine::sync::op::{Op, Outcome};
use doorbell_engine::sync::wait::Step;
use std::sync::Arc;
use std::time::Instant;

/// Looks at the words of a channel between two questions whether to wait on.
const LOOKS: u32 = 8;
/// How often somebody asks that before the engine is turned.
const TURN_EVERY: u32 = 8;
/// How often a member of a team that has more members than there are processors lets others run before it is asked.
const YIELDS: u32 = 64;

/// What a thread saw that looked. An error is far from the path that matters: it has a place of its own.
enum Looked {
    Over,
    Failed(Box<Error>),
    /// It is time to sleep.
    NotYet,
}

impl Core {
    /// Begins an operation, and tells when it is over. `kept` are the bytes that it works on.
    pub(super) fn start(self: &Arc<Self>, open: bool, kept: Option<Kept>, what: What) -> Result<Arc<Op>> {
        let me = self.shared.check()?;
        check_outside("start a collective")?;
        let op = Op::new();
        let mut state = self.lock();
        if state.waiting() >= STARTED_MAX {
            // Unless something is over that nobody has looked at.
            self.advance(&mut state);
            if state.waiting() >= STARTED_MAX {
                return Err(Error::Team { operation: "start a collective", why: TeamFault::Full { most: STARTED_MAX } });
            }
        }
        self.post(&mut state, open, Tell::Op(op.clone(), kept), |number| what.body(self, number))?;
        self.advance(&mut state);
        let is_over = state.is_idle();
        drop(state);
        if !is_over {
            self.shared.enter(me, "start a collective")?.service::<Teams>().keep(self);
            self.shared.hand_over();
        }
        Ok(op)
    }

    /// Looks for the end of an operation that was begun, for as long as threads do not sleep.
    pub(super) fn look_for(&self, me: Token, op: &Op, deadline: Option<Instant>) {
        self.look(me, deadline, |did| {
            let mut work = 0;
            if !op.is_done() {
                self.step(&mut work);
            }
            *did |= work > 0;
            op.is_done().then_some(Looked::Over)
        });
    }

    /// Closes a batch: behind its last operation is the synchronisation point.
    pub(super) fn close_batch(&self) {
        if check_outside("close a batch").is_err() || self.shared.usable().is_err() {
            return;
        }
        let mut state = self.lock();
        self.close(&mut state);
        self.advance(&mut state);
    }

    /// Does an operation, and waits until this member has its result.
    pub(super) fn run(self: &Arc<Self>, operation: &'static str, deadline: Option<Instant>, what: What) -> Result<()> {
        let me = self.shared.check()?;
        check_outside(operation)?;
        let mut unwinds = Unwinds { core: self, over: false };
        let mut state = self.lock();
        let (number, looked) = match self.memory() {
            Some(memory) if state.is_idle() && state.foresees(state.next, memory) => {
                if self.may_be_over(memory)
                    && let Some(error) = self.end()
                {
                    return Err(error);
                }
                (state.operations, self.run_here(me, &mut state, memory, what, deadline))
            }
            memory => {
                if memory.is_none() {
                    // Its packets go with turns of the engine.
                    self.shared.enter(me, operation)?.service::<Teams>().keep(self);
                }
                state.ended = None;
                let number = self.post(&mut state, false, Tell::Caller, |number| what.body(self, number))?;
                let state = &mut *state;
                let looked = self.look(me, deadline, |did| {
                    *did |= self.advance(state);
                    let (_, result) = state.ended.take_if(|ended| ended.0 == number)?;
                    Some(result.map_or_else(|error| Looked::Failed(Box::new(error)), |()| Looked::Over))
                });
                (number, looked)
            }
        };
        unwinds.over = true;
        if !matches!(looked, Looked::NotYet) {
            let is_idle = state.is_idle();
            drop(state);
            if !is_idle {
                self.shared.enter(me, operation)?.service::<Teams>().keep(self);
            }
            if let Looked::Failed(error) = looked {
                return Err(*error);
            }
            return Ok(());
        }
        // From here on whoever drives the engine goes on with it, and this thread may sleep.
        let op = Op::new();
        state.hand(number, &op);
        drop(state);
        let guard = Withdraw { core: self, op: &op };
        self.shared.enter(me, operation)?.service::<Teams>().keep(self);
        self.shared.hand_over();
        let in_time = self.shared.drive(me, &op, deadline, |_| false)?;
        let is_over = op.is_done();
        drop(guard);
        match op.take() {
            _ if !in_time && !is_over => Err(Error::Timeout { operation, node: None }),
            Some(Outcome::Collected) => Ok(()),
            Some(Outcome::Failed(error)) => Err(error),
            _ => Err(Error::Cancelled),
        }
    }

    /// Does an operation of which the channel is known to be available while nothing else is under way: nothing of it is stored or moved as long as this
    /// thread looks.
    #[inline]
    fn run_here(&self, me: Token, state: &mut State, memory: &Memory, what: What, deadline: Option<Instant>) -> Looked {
        let number = state.operations;
        let mut exchange = what.exchange(self, memory, number + 1);
        if exchange.is_too_long() {
            return Looked::Failed(Box::new(too_long()));
        }
        state.operations += 1;
        let place @ Place { channel, .. } = state.next_place(memory.layout().channels);
        self.note(place, &[Available, Acquired, Posted]);
        let view = memory.view(channel);
        let left = state.left();
        let room = &mut *state.room;
        let looked = self.look(me, deadline, |did| {
            let mut said = false;
            let result = self.go_on(&mut exchange, &view, left, room, &mut said);
            if said {
                self.ring();
                *did = true;
            }
            match result {
                Ok(true) => Some(Looked::Over),
                Ok(false) if !self.may_be_over(memory) => None,
                Ok(false) => {
                    let deserted = || self.deserter(memory, &exchange, channel).map(|member| self.gave_up(member));
                    self.end().or_else(deserted).map(|error| Looked::Failed(Box::new(error)))
                }
                Err(error) => Some(Looked::Failed(error)),
            }
        });
        match looked {
            Looked::Over => {
                self.note(place, &[PointReached, SynchronisationPosted]);
                state.leave_at_once(&view, place);
                self.ring();
                if self.sync == Sync::Foreground {
                    return self.synchronise_here(
                        me,
                        state,
                        memory,
                        place,
                        Task::new(number, Body::Exchange(exchange), Tell::Caller),
                        deadline,
                    );
                }
            }
            Looked::Failed(_) => self.break_off(),
            Looked::NotYet => state.hand_over(place, Task::new(number, Body::Exchange(exchange), Tell::Caller)),
        }
        looked
    }

    /// Waits until all have left the channel as well.
    fn synchronise_here(
        &self,
        me: Token,
        state: &mut State,
        memory: &Memory,
        place: Place,
        task: Task,
        deadline: Option<Instant>,
    ) -> Looked {
        let words = memory.view(place.channel).words;
        let looked = self.look(me, deadline, |_| {
            if words.is_available(place.before + 1) {
                return Some(Looked::Over);
            }
            let error = if self.may_be_over(memory) { self.end().or_else(|| self.lingerer(memory, place)) } else { None };
            error.map(|error| Looked::Failed(Box::new(error)))
        });
        match looked {
            Looked::Over => {}
            Looked::Failed(_) => self.break_off(),
            Looked::NotYet => state.hold(place, task),
        }
        looked
    }

    /// Looks until there is something to tell, for as long as threads do not sleep. `look` says whether it went on.
    #[inline]
    fn look(&self, me: Token, deadline: Option<Instant>, mut look: impl FnMut(&mut bool) -> Option<Looked>) -> Looked {
        let looks = if self.apart().is_some() { 1 } else { LOOKS };
        let mut gear = None;
        let mut rounds = 0_u32;
        loop {
            let mut did = false;
            for _ in 0..looks {
                if let Some(looked) = look(&mut did) {
                    return looked;
                }
                std::hint::spin_loop();
            }
            let gear = gear.get_or_insert_with(|| self.shared.gear(deadline));
            if did {
                // A long operation is many short waits.
                gear.awake();
                rounds = 0;
            }
            if self.shared.progress() == Progress::Poller {
                return Looked::NotYet;
            }
            rounds += 1;
            let is_due = rounds.is_multiple_of(TURN_EVERY);
            if self.apart().is_none() && self.is_crowded && rounds <= YIELDS {
                // Whoever is waited for may have to run here.
                world::yield_now();
                if !is_due {
                    continue;
                }
            } else if (self.apart().is_some() || is_due) && self.shared.turn(me) > 0 {
                gear.awake();
            }
            match gear.step() {
                Step::Again => {}
                Step::Check => self.shared.check_peers(me),
                Step::Park(_) | Step::Expired => return Looked::NotYet,
            }
        }
    }
}

/// Sees to the same when something panics while a thread looks by itself.
struct Unwinds<'a> {
    core: &'a Core,
    over: bool,
}

impl Drop for Unwinds<'_> {
    fn drop(&mut self) {
        if !self.over && std::thread::panicking() {
            let mut state = self.core.lock();
            self.core.fail(&mut state, Error::Cancelled);
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
                // The others are told that this member gives it up.
                self.core.fail(&mut state, Error::Cancelled);
            }
        }
    }
}
