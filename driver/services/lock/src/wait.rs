//! How a thread waits for a key in shared memory, for itself or for a node that has only the network.

use super::{Circle, LockFault, fault};
use doorbell_engine::drive::Shared;
use doorbell_engine::drive::poller::Progress;
use doorbell_engine::sync::baton::Token;
use doorbell_engine::sync::wait::{Gear, Step, Wait};
use doorbell_engine::{Error, Result};
use doorbell_shm::domain::Key;
use doorbell_shm::keys::{Look, OwnerId, Seen, Taken, Waiter};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest sleep between two looks whether the owner lives.
const SLEEP: Duration = Duration::from_millis(25);
/// ... for who has to turn the engine itself.
const SLEEP_INLINE: Duration = Duration::from_millis(1);

/// One wait for a key.
pub struct Want<'a> {
    pub shared: &'a Shared,
    pub key: Key<'a>,
    pub name: &'a str,
    pub me: OwnerId,
    /// Set by whoever does not want it any more.
    pub withdrawn: Option<&'a AtomicBool>,
}

impl Want<'_> {
    /// Waits until the key is the caller's.
    #[cold]
    pub fn wait(&self, deadline: Option<Instant>) -> Result<Taken> {
        if self.withdrawn.is_none() && self.shared.has_network() {
            // Within recv_with: whoever has the key may have to say by a letter that it gives it up, and nobody could read that.
            drop(self.shared.enter(Token::current(), "lock")?);
        }
        let mut waiter = self.key.wait(self.me);
        let mut gear = self.gear(deadline);
        loop {
            let seen = match waiter.look() {
                Look::Taken(taken) => return Ok(taken),
                Look::Not(seen) => seen,
            };
            // For another node: its former wait is about to give back what it got too late.
            if seen.owner() == Some(self.me) && self.withdrawn.is_none() {
                return Err(fault("lock", self.name, LockFault::AlreadyYours));
            }
            let most = match gear.step() {
                Step::Again => continue,
                Step::Check => None,
                Step::Park(most) => Some(most),
                // A short wait may not have asked before; of several of them none would inherit.
                Step::Expired if seen.owner().is_some_and(|owner| !lives(self.shared, owner)) => None,
                Step::Expired => {
                    let node = seen.owner().map(OwnerId::node);
                    return Err(Error::Timeout { operation: "lock", node });
                }
            };
            if let Some(taken) = self.care(&mut waiter, seen)? {
                return Ok(taken);
            }
            if let Some(most) = most {
                waiter.sleep(most.min(self.longest_sleep()));
                gear.slept();
            }
        }
    }

    /// Who waits for others sleeps at once: their own processor is not this one.
    fn gear(&self, deadline: Option<Instant>) -> Gear {
        if self.withdrawn.is_some() { Gear::new(Wait::Park, deadline) } else { self.shared.gear(deadline).giving_way() }
    }

    /// What a long wait has to see to: that this node lives and the key exists, that the owner lives, that there is no circle.
    fn care(&self, waiter: &mut Waiter<'_>, seen: Seen) -> Result<Option<Taken>> {
        self.turn("lock")?;
        if self.withdrawn.is_some_and(|withdrawn| withdrawn.load(Ordering::Acquire)) {
            return Err(Error::Cancelled);
        }
        if let Some(owner) = seen.owner()
            && !lives(self.shared, owner)
            && let Look::Taken(taken) = self.key.inherit(waiter, seen)
        {
            return Ok(Some(taken));
        }
        let membership = self.shared.membership();
        if let Some(circle) = membership.circle(waiter) {
            let name = |waiting| membership.name_of(waiting).unwrap_or_default();
            let waits = circle.iter().map(|waiting| (waiting.who, name(waiting))).collect();
            return Err(fault("lock", self.name, LockFault::Circle(Circle { waits })));
        }
        Ok(None)
    }

    /// Waits until whoever is in has left a key that is barred.
    pub fn wait_empty(&self, deadline: Instant) -> Result<()> {
        let mut gear = self.gear(Some(deadline));
        loop {
            let heard = self.key.words().arm();
            let seen = self.key.words().get();
            if !seen.is_barred() {
                return Err(fault("lock_all", self.name, LockFault::Otherwise(seen.value())));
            }
            let Some(owner) = seen.owner() else { return Ok(()) };
            let most = match gear.step() {
                Step::Again => continue,
                Step::Check => None,
                Step::Park(most) => Some(most),
                Step::Expired if !lives(self.shared, owner) => None,
                Step::Expired => return Err(Error::Timeout { operation: "lock_all", node: Some(owner.node()) }),
            };
            self.turn("lock_all")?;
            if !lives(self.shared, owner) {
                self.key.bury(seen);
            } else if let Some(most) = most {
                self.key.words().sleep(heard, 0, most.min(self.longest_sleep()));
                gear.slept();
            }
        }
    }

    /// The node's engine goes on while this thread waits, if nobody else turns it. Fails if the wait has become pointless.
    fn turn(&self, operation: &'static str) -> Result<()> {
        let me: Token = self.shared.check()?;
        if self.shared.progress() == Progress::Inline && self.withdrawn.is_none() {
            self.shared.turn(me);
        }
        if self.key.is_current() { Ok(()) } else { Err(fault(operation, self.name, LockFault::Destroyed)) }
    }

    fn longest_sleep(&self) -> Duration {
        if self.shared.progress() == Progress::Inline { SLEEP_INLINE } else { SLEEP }
    }
}

/// Whether an owner lives.
pub(super) fn lives(shared: &Shared, owner: OwnerId) -> bool {
    shared.membership().is_living(owner.node(), owner.life())
}
