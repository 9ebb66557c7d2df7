//! How a thread calls a collective. It looks at the channel itself for as long as threads do not sleep. After that it leaves the operation to the thread that
//! turns the engine.

use super::core::{Core, STARTED_MAX, Synchronisation, Way, check_outside};
use super::error::TeamError;
use super::exchange::Exchange;
use super::memory::Memory;
use super::state::{Body, Kept, Place, State, Task, Tell, result_of};
use super::table::Teams;
use super::watch::ChannelStep::{Acquired, Available, PointReached, Posted, SynchronisationPosted};
use super::what::What;
use doorbell_engine::Result;
use doorbell_engine::drive::poller::Progress;
use doorbell_engine::error::Error;
use doorbell_engine::sync::baton::Token;
use doorbell_engine::sync::op::Op;
use doorbell_engine::sync::wait::Step;
use doorbell_fabric::world;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

/// Looks at the words of a channel before the thread asks whether to wait on.
const LOOKS: u32 = 8;
/// The thread turns the engine each time that it has asked this often.
const TURN_EVERY: u32 = 8;
/// If a team has more members than there are processors, a member yields this often before it asks.
const YIELDS: u32 = 64;

/// The outcome of a thread's looks. `None` if there is none yet, and it is time to sleep. The error is boxed, as it is far from the path that matters.
type Looked = Option<std::result::Result<(), Box<Error>>>;

impl Core {
    /// The part of this member in an operation of this number, in a channel.
    #[inline]
    fn exchange(&self, what: What, memory: &Memory, number: u64) -> Exchange {
        Exchange::new(what, number, self.me, memory.layout())
    }

    fn body(&self, what: What, number: u64) -> Result<Body> {
        match &self.way {
            Way::Shared(memory) => {
                let exchange = self.exchange(what, memory, number);
                if exchange.is_too_long() { Err(too_long()) } else { Ok(Body::Exchange(exchange)) }
            }
            Way::Apart(apart) => {
                let invalid = || Error::Invalid { what: "the lengths of a collective do not fit its team".into() };
                apart.run(what).map(|run| Body::Run(Some(run))).ok_or_else(invalid)
            }
        }
    }

    /// The engine goes on with this team in each turn from now on, until nothing is under way.
    fn keep(self: &Arc<Self>, me: Token, operation: &'static str) -> Result<()> {
        self.shared.enter(me, operation)?.service::<Teams>().keep(self);
        Ok(())
    }

    /// Begins an operation. The returned [`Op`] tells when it is over. `kept` are the bytes that it works on.
    pub(super) fn start(self: &Arc<Self>, open: bool, kept: Option<Kept>, what: What) -> Result<Arc<Op>> {
        let me = self.shared.check()?;
        check_outside("start a collective")?;
        let op = Op::new();
        let mut state = self.lock();
        if state.waiting() >= STARTED_MAX {
            // Some of them may be over, and not looked at since.
            self.advance(&mut state);
            if state.waiting() >= STARTED_MAX {
                return Err(Error::cannot("start a collective", TeamError::Full { most: STARTED_MAX }));
            }
        }
        self.post(&mut state, open, Tell::Op(op.clone(), kept), |number| self.body(what, number))?;
        self.advance(&mut state);
        let is_over = state.is_idle();
        drop(state);
        if !is_over {
            self.keep(me, "start a collective")?;
            self.shared.hand_over();
        }
        Ok(op)
    }

    /// Looks for the end of a started operation, for as long as threads do not sleep.
    pub(super) fn look_for(&self, me: Token, op: &Op, deadline: Option<Instant>) {
        self.look(me, deadline, |did| {
            let mut work = 0;
            if !op.is_done() {
                self.step(&mut work);
            }
            *did |= work > 0;
            op.is_done().then_some(Ok(()))
        });
    }

    /// Closes a batch: the synchronisation point follows its last operation.
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
        let looks = Cell::new(true);
        let _unwinds = FailsUnless { core: self, is_well: || !looks.get() || !std::thread::panicking() };
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
                    self.keep(me, operation)?;
                }
                state.ended = None;
                let number = self.post(&mut state, false, Tell::Caller, |number| self.body(what, number))?;
                let state = &mut *state;
                let looked = self.look(me, deadline, |did| {
                    *did |= self.advance(state);
                    let (_, result) = state.ended.take_if(|ended| ended.0 == number)?;
                    Some(result.map_err(Box::new))
                });
                (number, looked)
            }
        };
        looks.set(false);
        if let Some(result) = looked {
            let is_idle = state.is_idle();
            drop(state);
            if !is_idle {
                self.keep(me, operation)?;
            }
            return result.map_err(|error| *error);
        }
        // From here on the thread that turns the engine goes on with it, and this thread may sleep.
        let op = Op::new();
        state.hand(number, &op);
        drop(state);
        // If the call ends before its operation, no thread may touch the caller's bytes after that.
        let guard = FailsUnless { core: self, is_well: || op.is_done() };
        self.keep(me, operation)?;
        self.shared.hand_over();
        let in_time = self.shared.drive(me, &op, deadline, |_| false)?;
        let is_over = op.is_done();
        drop(guard);
        if in_time || is_over { result_of(op.take()) } else { Err(Error::Timeout { operation, node: None }) }
    }

    /// Does an operation while nothing else is under way and its channel is known to be available. Nothing of it is stored or moved as long as this thread
    /// looks.
    #[inline]
    fn run_here(&self, me: Token, state: &mut State, memory: &Memory, what: What, deadline: Option<Instant>) -> Looked {
        let number = state.operations;
        let mut exchange = self.exchange(what, memory, number + 1);
        if exchange.is_too_long() {
            return Some(Err(Box::new(too_long())));
        }
        state.operations += 1;
        let place @ Place { channel, .. } = state.next_place(memory.layout().channels);
        self.note(place, &[Available, Acquired, Posted]);
        let view = memory.view(channel);
        let left = state.left;
        let room = &mut *state.room;
        let looked = self.look(me, deadline, |did| {
            let mut said = false;
            let result = self.go_on(&mut exchange, &view, left, room, &mut said);
            if said {
                self.ring();
                *did = true;
            }
            match result {
                Ok(true) => Some(Ok(())),
                Ok(false) => self.ended(memory, || self.deserter(memory, &exchange, channel)),
                Err(error) => Some(Err(error)),
            }
        });
        let task = |exchange| Task::new(number, Body::Exchange(exchange), Tell::Caller);
        match looked {
            Some(Ok(())) => {
                self.note(place, &[PointReached, SynchronisationPosted]);
                state.leave_at_once(&view, place);
                self.ring();
                if self.sync == Synchronisation::Foreground {
                    return self.synchronise_here(me, state, memory, place, task(exchange), deadline);
                }
            }
            Some(Err(_)) => self.break_off(),
            None => state.hand_over(place, task(exchange)),
        }
        looked
    }

    /// The reason, if the team has ended, or the operation waits for a member that gave up.
    fn ended(&self, memory: &Memory, deserted: impl FnOnce() -> Option<Error>) -> Looked {
        if !self.may_be_over(memory) {
            return None;
        }
        self.end().or_else(deserted).map(|error| Err(Box::new(error)))
    }

    /// Waits until all members have left the channel.
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
            let is_over = words.is_available(place.before + 1);
            if is_over { Some(Ok(())) } else { self.ended(memory, || self.lingerer(memory, place)) }
        });
        match looked {
            Some(Ok(())) => {}
            Some(Err(_)) => self.break_off(),
            None => state.hold(place, task),
        }
        looked
    }

    /// Looks until there is an outcome, for as long as threads do not sleep. `look` also says whether it did anything.
    #[inline]
    fn look(&self, me: Token, deadline: Option<Instant>, mut look: impl FnMut(&mut bool) -> Looked) -> Looked {
        let looks = if self.apart().is_some() { 1 } else { LOOKS };
        let mut backoff = None;
        let mut rounds = 0_u32;
        loop {
            let mut did = false;
            for _ in 0..looks {
                let looked = look(&mut did);
                if looked.is_some() {
                    return looked;
                }
                std::hint::spin_loop();
            }
            let backoff = backoff.get_or_insert_with(|| self.shared.backoff(deadline));
            if did {
                // A long operation is many short waits.
                backoff.awake();
                rounds = 0;
            }
            if self.shared.progress() == Progress::Poller {
                return None;
            }
            rounds += 1;
            let is_due = rounds.is_multiple_of(TURN_EVERY);
            if self.apart().is_none() && self.is_crowded && rounds <= YIELDS {
                // The member that is waited for may need this processor.
                world::yield_now();
                if !is_due {
                    continue;
                }
            } else if (self.apart().is_some() || is_due) && self.shared.turn(me) > 0 {
                backoff.awake();
            }
            match backoff.step() {
                Step::Again => {}
                Step::Check => self.shared.check_peers(me),
                Step::Park(_) | Step::Expired => return None,
            }
        }
    }
}

/// Ends the team's operations when it is dropped, unless all is well then. The other members are told that this one gives up.
struct FailsUnless<'a, F: Fn() -> bool> {
    core: &'a Core,
    is_well: F,
}

impl<F: Fn() -> bool> Drop for FailsUnless<'_, F> {
    fn drop(&mut self) {
        if !(self.is_well)() {
            let mut state = self.core.lock();
            // Another thread may have ended the operation meanwhile.
            if !(self.is_well)() {
                self.core.fail(&mut state, Error::Cancelled);
            }
        }
    }
}

#[cold]
fn too_long() -> Error {
    Error::Invalid {
        what: "the vectors are too long for the slots of this team, or a slot has no part for each member; make larger slots"
            .into(),
    }
}
