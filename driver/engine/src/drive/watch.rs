//! What tasks and event loops need of a node: operations that are polled, the reactor's sleep, and streams, which are written outside of the engine.

use super::{Shared, WITHOUT_PORT};
use crate::drive::poller::Progress;
use crate::error::Error;
use crate::sync::baton::Token;
use crate::sync::helm::REACTOR;
use crate::sync::op::Op;
use crate::sync::reactor::{ReactorWord, wake_all};
use crate::sync::wait::PARK_MOST;
use crate::turn::Engine;
use doorbell_fabric::world;
use doorbell_shm::board::Figure;
use doorbell_udp::port::{Kind, Park, Port, bell_only};
use std::io;
use std::sync::{Arc, PoisonError};
use std::task::Context;
use std::time::Duration;

/// How long an event loop has to turn its reactor when it was told to.
const LATE: Duration = Duration::from_millis(20);
/// How long leaving waits for what services still have to move.
const FLUSH_MOST: Duration = Duration::from_secs(1);

/// Something was begun that no thread may wait for: as long as this lives somebody drives.
pub struct Begun(pub Arc<Shared>);

impl Begun {
    /// From now on, until this is dropped.
    pub fn new(shared: &Arc<Shared>) -> Self {
        shared.began();
        Self(shared.clone())
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.poller.ended();
    }
}

impl Shared {
    /// A nonblocking operation began, which the poller may have to drive.
    pub fn began(&self) {
        self.poller.began();
        self.rouse();
    }

    /// Something is to be driven which perhaps nobody who sleeps looks for.
    pub(crate) fn rouse(&self) {
        if self.reactor.rouse() {
            self.bell().wake();
        }
        self.rouse_poller();
    }

    /// Has the engine do something, in its next turn if this thread is within it, and sees to it that what can't go now goes later.
    pub fn have_done(&self, me: Token, act: impl FnOnce(&mut Engine) + Send + 'static) {
        let is_left = match self.baton.enter(me) {
            Some(mut engine) => {
                act(&mut engine);
                engine.push(me);
                engine.wake_if_done();
                engine.has_left_over()
            }
            None => {
                self.later.add(Box::new(|engine, _| act(engine)));
                true
            }
        };
        self.done_within(is_left);
    }

    /// After something was done within the engine by a thread that does not stay: sees to it that `is_left`, what could not be done, is done later.
    pub(crate) fn done_within(&self, is_left: bool) {
        if is_left {
            self.poller.left_over();
            self.rouse();
        }
        self.hand_over();
    }

    /// Whether there is something that could not be done so far, and for which nobody waits.
    pub(crate) fn has_left_over(&self, me: Token) -> bool {
        self.baton.enter(me).is_some_and(|engine| engine.has_left_over())
    }

    /// Whether `op` is over; if not, whoever drives wakes this task when it is.
    pub fn poll_op(&self, op: &Op, context: &mut Context<'_>) -> bool {
        if !op.is_done()
            && let Ok(me) = self.check()
            && self.progress != Progress::Poller
        {
            self.turn(me);
        }
        if op.is_done() || !op.set_waker(context.waker()) {
            return true;
        }
        self.wake_driver_of(context);
        false
    }

    /// This task waits for what whoever drives will see.
    pub fn wake_driver_of(&self, context: &mut Context<'_>) {
        if self.reactor.is_there() {
            if self.reactor.rouse() {
                self.bell().wake();
            }
        } else if self.progress == Progress::Inline {
            // Nobody but this task.
            context.waker().wake_by_ref();
        }
    }

    /// What the reactor and others share.
    pub fn reactor(&self) -> &ReactorWord {
        &self.reactor
    }

    /// A reactor drives from now on: its number. `None` if there is one.
    pub fn attach_reactor(&self) -> Option<u32> {
        let number = self.reactor.attach(|| {
            self.helm.take_as_reactor();
            self.poller.relieve(true);
        })?;
        self.rouse_poller();
        self.bell().wake();
        Some(number)
    }

    /// The reactor of this number does not any more.
    pub fn detach_reactor(&self, number: u32) {
        while self.reactor.turned(number) {
            if let Some(relied) = self.reactor.detach(self.reactor.life(), || self.leave_as_reactor()) {
                return wake_all(relied);
            }
        }
    }

    fn leave_as_reactor(&self) {
        self.helm.leave_as_reactor();
        self.poller.relieve(false);
    }

    /// For the poller: there is a reactor, of which this was said some time ago, and which did not turn since. It may sleep; but if something waits for it, its event loop
    /// is kept from it. Then it is none any more, until it turns again.
    pub(crate) fn stand_in(&self, me: Token, life: u64) {
        let turned = self.turn_poller(me);
        if !self.reactor.look() && !turned.is_news {
            return;
        }
        // It may just be about to.
        self.rouse();
        self.poller.pause(LATE);
        let Some(mut engine) = self.baton.enter(me) else { return };
        let relied = self.reactor.detach(life, || {
            // It may have slept.
            engine.forget_parked();
            if self.network.is_some() {
                let _ = self.with_port(&mut None, |port| port.unwatch());
            }
            self.leave_as_reactor();
        });
        drop(engine);
        let Some(relied) = relied else { return };
        wake_all(relied);
        tracing::debug!(
            node = self.membership.id().index(),
            "the event loop that drives this node is kept from it; its poller does meanwhile"
        );
    }

    /// The reactor is about to sleep until `op` is done or something arrives: if nothing did so far, how long it may, and the descriptor tells.
    /// [`leave_watch`](Self::leave_watch) comes after.
    pub fn watch(&self, me: Token, op: &Arc<Op>, bell: &mut Option<Box<dyn Port>>) -> io::Result<Option<Duration>> {
        let Some(most) = self.enter(me, "sleep")?.park(me, REACTOR, op, PARK_MOST) else { return Ok(None) };
        let park = Park { bell: self.bell().word(), expected: REACTOR, timeout: most, writable: false };
        let is_quiet = self.with_port(bell, |port| port.watch(park))?;
        if !is_quiet {
            self.leave_watch(me, op, bell)?;
            return Ok(None);
        }
        self.monitor.tallies.add(Figure::Parks, 1);
        Ok(Some(most))
    }

    /// After the sleep.
    pub fn leave_watch(&self, me: Token, op: &Arc<Op>, bell: &mut Option<Box<dyn Port>>) -> io::Result<()> {
        self.with_port(bell, |port| port.unwatch())?;
        let mut engine = self.enter(me, "wake up")?;
        engine.awake(op);
        engine.show_for_sleep();
        Ok(())
    }

    /// The port of the network, or one for the bell alone.
    pub fn with_port<T>(
        &self,
        bell: &mut Option<Box<dyn Port>>,
        each: impl FnOnce(&mut dyn Port) -> io::Result<T>,
    ) -> io::Result<T> {
        let Some(network) = &self.network else {
            let port = match bell {
                Some(port) => port,
                none => none.insert(bell_only(Kind::Auto)?),
            };
            return each(&mut **port);
        };
        let mut port = network.port.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(port) = &mut *port else { return Err(Error::Closed.into()) };
        each(&mut **port)
    }

    /// Waits until services have moved what the program has handed over: a second at most.
    pub(crate) fn flush(&self) {
        let me = Token::current();
        let mut is_flushing = self.baton.enter(me).is_some_and(|engine| engine.is_flushing());
        let until = world::now() + FLUSH_MOST;
        while is_flushing && world::now() < until {
            let soon = until.min(world::now() + WITHOUT_PORT);
            let driven = self.drive(me, &Op::new(), Some(soon), |engine| {
                is_flushing = engine.is_flushing();
                !is_flushing
            });
            if driven.is_err() {
                return;
            }
        }
    }
}
