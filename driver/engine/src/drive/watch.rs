//! What tasks and event loops need from a node: operations that are polled, the reactor's sleep, and streams, which are written
//! outside the engine.

use super::Shared;
use crate::drive::poller::Progress;
use crate::links::{AnyPort, port_of_bell, watch};
use crate::sync::baton::Token;
use crate::sync::op::Op;
use crate::sync::parking::REACTOR;
use crate::sync::reactor::{ReactorWord, wake_all};
use crate::sync::wait::PARK_MOST;
use crate::turn::Engine;
use crate::turn::later::Deed;
use doorbell_fabric::sync::Ordering;
use doorbell_fabric::{PacketKind, world};
use doorbell_shm::board::Metric;
use std::io;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

/// How long an event loop has to turn its reactor after it was asked to.
const LATE: Duration = Duration::from_millis(20);
/// How long leaving waits for data that services still have to move.
const FLUSH_MOST: Duration = Duration::from_secs(1);
/// How often it looks whether they have.
const FLUSH_STEP: Duration = Duration::from_millis(1);

/// A pending operation that perhaps no thread waits for. While this lives, some thread turns the engine.
pub struct Begun(pub Arc<Shared>);

impl Begun {
    /// Pending from now on, until this is dropped.
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
    /// Notes that a nonblocking operation began, for which the poller may have to turn the engine.
    pub fn began(&self) {
        self.poller.began();
        self.rouse_reactor();
        // While another operation is pending, the armed bell wakes the poller when one can go on. Waking it for each new one costs
        // several system calls, and an interrupt of the peer, for each message of a stream.
        if self.poller.sleeps() || self.has_network() || !self.bell().is_armed() {
            self.rouse_poller();
        }
    }

    /// Wakes a thread for work that perhaps no sleeper looks for.
    pub(crate) fn rouse(&self) {
        self.rouse_reactor();
        self.rouse_poller();
    }

    fn rouse_reactor(&self) {
        if self.reactor.rouse() {
            self.bell().wake();
        }
    }

    /// Runs `act` with the engine: in its next turn if this thread is within it. Makes sure that work which can't be done now
    /// is done later.
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

    /// Has done what was left for the next turn, if anything was.
    #[inline(always)]
    pub fn catch_up(&self) {
        if self.later.any() {
            self.have_done(Token::current(), |_| ());
        }
    }

    /// Work for a service that looks for it at each turn was published. Makes sure that there is a turn: the poller's, unless
    /// with `Progress::Inline`. Never waits.
    pub(crate) fn injected(&self, class: PacketKind) {
        if self.progress != Progress::Adaptive {
            // The thread that sleeps on the bell looks once more after it armed the bell.
            return self.bell().ring(self.fenced);
        }
        // The poller may sleep elsewhere, because nothing is pending.
        if self.later.poke(class) {
            self.done_within(true);
        }
    }

    /// Whether this process may use the node, and [`ring_for_injected`](Self::ring_for_injected) does for
    /// [`injected`](Self::injected).
    #[inline(always)]
    pub(crate) fn only_rings(&self) -> bool {
        self.rings.load(Ordering::Relaxed) && !doorbell_shm::space::forked()
    }

    /// The common case of [`injected`](Self::injected).
    #[inline(always)]
    pub(crate) fn ring_for_injected(&self) {
        if self.bell().is_to_be_woken() {
            self.wake_bell();
        }
    }

    #[cold]
    fn wake_bell(&self) {
        self.bell().wake();
    }

    /// Defers an operation to the engine's next turn, and makes sure that there is one.
    pub(crate) fn defer(&self, act: Deed) {
        self.later.add(act);
        self.done_within(true);
    }

    /// Turns the engine once, if threads of the application turn it.
    pub(crate) fn turn_unless_poller(&self, me: Token) {
        if self.progress != Progress::Poller {
            self.turn(me);
        }
    }

    /// Call after a short use of the engine. `is_left` tells whether work could not be done, which is then done later.
    pub(crate) fn done_within(&self, is_left: bool) {
        if is_left {
            self.poller.left_over();
            self.rouse();
        }
        self.hand_over();
    }

    /// Whether some work could not be done so far, and no thread waits for it.
    pub(crate) fn has_left_over(&self, me: Token) -> bool {
        self.baton.enter(me).is_some_and(|engine| engine.has_left_over())
    }

    /// Whether `op` is over. If not, the thread that turns the engine wakes this task when it is.
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

    /// Makes sure that a thread turns the engine for this task.
    pub fn wake_driver_of(&self, context: &mut Context<'_>) {
        if self.reactor.is_there() {
            if self.reactor.rouse() {
                self.bell().wake();
            }
        } else if self.progress == Progress::Inline {
            // Only this task turns the engine.
            context.waker().wake_by_ref();
        }
    }

    /// The state shared by the reactor and the node's threads.
    pub fn reactor(&self) -> &ReactorWord {
        &self.reactor
    }

    /// Attaches a reactor, which turns the engine from now on. Returns its number, or `None` if there is one already.
    pub fn attach_reactor(&self) -> Option<u32> {
        let number = self.reactor.attach(|| {
            self.parking.take_as_reactor();
            self.poller.relieve(true);
        })?;
        self.rouse_poller();
        self.bell().wake();
        Some(number)
    }

    /// Detaches the reactor with this number.
    pub fn detach_reactor(&self, number: u32) {
        while self.reactor.turned(number) {
            if let Some(relied) = self.reactor.detach(self.reactor.generation(), || self.leave_as_reactor()) {
                return wake_all(relied);
            }
        }
    }

    fn leave_as_reactor(&self) {
        self.parking.leave_as_reactor();
        self.poller.relieve(false);
    }

    /// For the poller: the reactor has not turned since `generation` was read. It may be asleep; but if work waits for it, its event
    /// loop is blocked. The reactor is then detached until it turns again.
    pub(crate) fn stand_in(&self, me: Token, generation: u64) {
        let turned = self.turn_poller(me);
        if !self.reactor.look() && !turned.is_news {
            return;
        }
        // It may just be about to turn.
        self.rouse();
        self.poller.pause(LATE);
        let Some(mut engine) = self.baton.enter(me) else { return };
        let relied = self.reactor.detach(generation, || {
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
            "the event loop of this node's reactor is late; the poller turns the engine meanwhile"
        );
    }

    /// Prepares the reactor's sleep until `op` is done or something arrives. Returns how long it may sleep, or `None` if
    /// something has happened already; the descriptor then wakes it. Call [`leave_watch`](Self::leave_watch) afterwards.
    pub fn watch(&self, me: Token, op: &Arc<Op>, bell: &mut Option<Box<AnyPort>>) -> io::Result<Option<Duration>> {
        let Some(most) = self.enter(me, "sleep")?.park(me, REACTOR, op, PARK_MOST) else { return Ok(None) };
        let is_quiet = self.with_port(bell, |port| watch(port, self.bell(), REACTOR, most))?;
        if !is_quiet {
            self.leave_watch(me, op, bell)?;
            return Ok(None);
        }
        self.monitor.tallies.add(Metric::Parks, 1);
        Ok(Some(most))
    }

    /// Called after the sleep.
    pub fn leave_watch(&self, me: Token, op: &Arc<Op>, bell: &mut Option<Box<AnyPort>>) -> io::Result<()> {
        self.with_port(bell, |port| port.unwatch())?;
        let mut engine = self.enter(me, "wake up")?;
        engine.awake(op);
        engine.show_for_sleep();
        Ok(())
    }

    /// Uses the port of the network, or one for the bell alone.
    pub fn with_port<T>(
        &self,
        bell: &mut Option<Box<AnyPort>>,
        each: impl FnOnce(&mut AnyPort) -> io::Result<T>,
    ) -> io::Result<T> {
        match &self.network {
            Some(network) => network.with_port(each),
            None => {
                let port = match bell {
                    Some(port) => port,
                    none => none.insert(port_of_bell(&self.membership)?),
                };
                each(port.as_mut())
            }
        }
    }

    /// Waits until services have moved what the program has handed over: a second at most.
    pub(crate) fn flush(&self) {
        let me = Token::current();
        let mut is_flushing = self.baton.enter(me).is_some_and(|engine| engine.is_flushing());
        let until = world::now() + FLUSH_MOST;
        while is_flushing && world::now() < until {
            let soon = until.min(world::now() + FLUSH_STEP);
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
