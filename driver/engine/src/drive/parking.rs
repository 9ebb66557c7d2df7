//! How threads of a node sleep: one of them on the bell or in the port, the others on their operations.

use super::poller::{NOTHING_PENDING, Progress};
use super::{LOOK_AROUND, Shared};
use crate::Result;
use crate::sync::baton::Token;
use crate::sync::op::Op;
use crate::sync::parking::{CALLER, POLLER};
use doorbell_fabric::world;
use doorbell_shm::board::Metric;
use std::sync::Arc;
use std::time::Duration;

/// Leaves the helm when the wait is over, however it ends.
pub(crate) struct ParkingHold<'a> {
    shared: &'a Shared,
    held: bool,
    /// The number of reactors when the helm was taken.
    reactors: u32,
    /// It slept beside the helm, so it may be the thread that was woken to take it.
    slept: bool,
}

impl Drop for ParkingHold<'_> {
    fn drop(&mut self) {
        if self.held && self.reactors == self.shared.reactor.count() {
            self.shared.parking.leave();
            self.shared.poller.helm_is_left();
        } else if self.slept {
            self.shared.parking.pass_on();
        }
    }
}

impl Shared {
    /// Waits until a node may have joined or ended since the directory had this generation, for `most` at most.
    pub(crate) fn await_change(&self, me: Token, generation: u32, most: Duration) -> Result<()> {
        if self.network.is_none() {
            self.membership.wait_change(generation, most);
            return Ok(());
        }
        let seen = self.enter(me, "wait")?.changes();
        let deadline = world::now() + most.min(LOOK_AROUND);
        self.drive(me, &Op::new(), Some(deadline), |engine| {
            engine.changes() != seen || self.membership.generation() != generation
        })?;
        Ok(())
    }

    /// Sleeps on the bell, and on the network if there is one, while the bell is armed by this sleeper.
    pub(super) fn sleep(&self, sleeper: u32, timeout: Duration) {
        match &self.network {
            Some(network) => network.sleep(self.bell(), sleeper, timeout),
            None => self.bell().sleep_as(sleeper, timeout),
        }
    }

    /// Sleeps until `op` is done, something arrives, or the time is up.
    pub(crate) fn park(&self, me: Token, op: &Arc<Op>, timeout: Duration, parking: &mut ParkingHold<'_>) -> Result<()> {
        if self.progress == Progress::Poller {
            if op.will_sleep() {
                op.sleep(timeout);
            }
            return Ok(());
        }
        if parking.held && parking.reactors != self.reactor.count() {
            // The reactor took it.
            parking.held = false;
        }
        if !parking.held {
            // Read before: a reactor that takes the helm in between is counted after this.
            let reactors = self.reactor.count();
            match self.parking.take() {
                Some(from_poller) => {
                    parking.held = true;
                    parking.reactors = reactors;
                    if from_poller {
                        // The poller may sleep although the bell is disarmed, since a thread that looks by itself disarms it.
                        self.bell().rouse();
                    }
                }
                None => {
                    parking.slept = true;
                    self.parking.sleep_on(op, || op.sleep(timeout));
                    return Ok(());
                }
            }
        }
        let sleep = self.enter(me, "wait")?.park(me, CALLER, op, timeout);
        if let Some(timeout) = sleep {
            self.monitor.tallies.add(Metric::Parks, 1);
            self.sleep(CALLER, timeout);
            let mut engine = self.enter(me, "wait")?;
            engine.awake(op);
            engine.show_for_sleep();
        }
        Ok(())
    }

    /// The poller's sleep on the bell, unless a thread of the application sleeps there. Returns the number of turns before the
    /// sleep.
    pub(crate) fn park_poller(&self, me: Token, timeout: Duration) -> u64 {
        if !self.parking.take_as_poller() {
            let turns = self.turns();
            world::park(Duration::from_millis(1));
            if self.turns() == turns {
                // The leader sleeps there, and turns the engine when it wakes.
                self.poller.sleep_beside(|| self.parking.is_callers());
            }
            return turns;
        }
        let dozes = self.progress != Progress::Poller;
        let sleep = self.baton.enter(me).and_then(|mut engine| {
            if !self.parking.is_pollers() {
                // A thread of the application took the helm meanwhile, and the bell with it.
                return None;
            }
            engine.check_peers_now_and_then();
            engine.show_for_sleep();
            // Otherwise it must check for itself that the peers live for which a thread waits.
            let is_told = if dozes { !self.poller.is_needed() } else { engine.fabric().is_remote_only() };
            let timeout = engine.arm(me, POLLER, if is_told { NOTHING_PENDING } else { timeout })?;
            if !self.parking.is_pollers() {
                // A thread that took the helm before the bell was armed woke no sleeper. It can't arm the bell before the baton
                // is free.
                self.bell().disarm();
                return None;
            }
            Some(timeout)
        });
        let turns = self.turns();
        if let Some(timeout) = sleep
            && !self.poller.stopped()
        {
            self.monitor.tallies.add(Metric::Parks, 1);
            let timeout = if dozes { self.poller.doze(timeout) } else { timeout };
            self.sleep(POLLER, timeout);
            self.poller.rouse();
        }
        // A thread of the application may take the helm as soon as the poller has left it, and arm the bell for itself.
        if self.parking.leave_as_poller() {
            self.bell().disarm_as(POLLER);
        }
        turns
    }

    /// Wakes the poller from a long sleep on the bell, even if the bell was disarmed since.
    pub(super) fn rouse_poller(&self) {
        if self.poller.rouse() {
            self.bell().rouse();
        }
    }

    /// Tells the poller that there is work, if only the poller turns the engine.
    pub fn hand_over(&self) {
        if self.progress == Progress::Poller {
            self.bell().ring(true);
        }
    }

    pub(crate) fn parking_hold(&self) -> ParkingHold<'_> {
        ParkingHold { shared: self, held: false, reactors: 0, slept: false }
    }
}
