//! Waits for changes that no operation of the engine announces: of words in shared memory, and of a service.

use super::Shared;
use super::poller::Progress;
use crate::Result;
use crate::error::Error;
use crate::message::service::Class;
use crate::sync::baton::Token;
use crate::sync::op::Op;
use crate::sync::wait::{Backoff, Step};
use doorbell_fabric::world;
use std::time::{Duration, Instant};

/// The next task of a waiting thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Look whether the wait is over.
    Look,
    /// Check that the wait can still end: that peers and owners live.
    Check,
    /// Arm the word that is awaited, and sleep for this long at most.
    Sleep(Duration),
    /// Give up: the deadline has passed. A wait that got a last chance instead goes on.
    Expired,
}

impl Shared {
    /// Waits for a word in shared memory. `act` does the task of each moment, and ends the wait with a value or an error. The
    /// thread turns the engine once in `turn_every` looks, unless it is 0 or a thread does nothing else.
    pub fn wait_for<T>(
        &self,
        me: Token,
        mut backoff: Backoff,
        turn_every: u32,
        mut act: impl FnMut(Moment) -> Result<Option<T>>,
    ) -> Result<T> {
        let mut looks = 0_u32;
        loop {
            if let Some(found) = act(Moment::Look)? {
                return Ok(found);
            }
            looks += 1;
            let is_turn = turn_every > 0 && looks.is_multiple_of(turn_every) && self.progress != Progress::Poller;
            if is_turn && self.turn(me) > 0 {
                backoff.awake();
            }
            let moment = match backoff.step() {
                Step::Again => continue,
                Step::Check => Moment::Check,
                Step::Park(most) => {
                    if backoff.check_due()
                        && let Some(found) = act(Moment::Check)?
                    {
                        return Ok(found);
                    }
                    Moment::Sleep(most)
                }
                Step::Expired => Moment::Expired,
            };
            let found = act(moment)?;
            if matches!(moment, Moment::Sleep(_)) {
                backoff.woke();
            }
            if let Some(found) = found {
                return Ok(found);
            }
        }
    }

    /// The checks of a long wait: this node has not left, and its peers live.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Forked`].
    pub fn check_long_wait(&self, me: Token) -> Result<()> {
        self.usable()?;
        if self.progress != Progress::Poller {
            self.check_peers(me);
        }
        Ok(())
    }

    /// Waits until `ready` returns a value, and then lets the service send. `ready` is called at once, and again after each
    /// change of the service. `None`: the deadline has passed.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Forked`], [`Error::Reentrant`]; [`Error::Invalid`] if the node has no such service.
    pub fn wait_for_service<S: Class, T>(
        &self,
        operation: &'static str,
        deadline: Option<Instant>,
        mut ready: impl FnMut(&mut S) -> Option<T>,
    ) -> Result<Option<T>> {
        let me = self.check()?;
        let mut is_late = false;
        loop {
            let changed = {
                let mut engine = self.enter(me, operation)?;
                // Leaving closes the flag first, and then ends all waits: no wait may begin after that.
                self.usable()?;
                let found = ready(engine.find_service().ok_or_else(missing::<S>)?);
                if found.is_some() || is_late {
                    engine.push(me);
                    drop(engine);
                    self.hand_over();
                    return Ok(found);
                }
                engine.await_service(S::CLASS).ok_or_else(missing::<S>)?
            };
            self.hand_over();
            // A service that changes all the time must not hide the deadline.
            is_late =
                !self.drive(me, &changed, deadline, |_| false)? || deadline.is_some_and(|deadline| world::now() >= deadline);
        }
    }

    /// Calls a service, and then gives it a turn in which it can send. Never waits.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Forked`], [`Error::Reentrant`]; [`Error::Invalid`] if the node has no such service.
    pub fn call<S: Class, T>(&self, operation: &'static str, act: impl FnOnce(&mut S) -> T) -> Result<T> {
        let me = self.check()?;
        let mut engine = self.enter(me, operation)?;
        // Leaving sets this flag first, and then ends all operations. An operation that began later would never end.
        self.usable()?;
        let answer = act(engine.find_service().ok_or_else(missing::<S>)?);
        engine.service_changed(S::CLASS);
        engine.push(me);
        engine.wake_if_done();
        let is_left = engine.has_left_over();
        drop(engine);
        self.done_within(is_left);
        Ok(answer)
    }

    /// Turns the engine or sleeps until this time.
    ///
    /// # Errors
    /// [`Error::Reentrant`].
    pub fn pause(&self, me: Token, until: Instant) -> Result<()> {
        self.drive(me, &Op::new(), Some(until), |_| false).map(drop)
    }
}

fn missing<S>() -> Error {
    let service = std::any::type_name::<S>();
    Error::Invalid { what: format!("this node has no service {service}; give it to NodeBuilder::service before the node joins") }
}
