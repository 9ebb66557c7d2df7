//! How a thread waits for a key.

use super::key::LockKey;
use super::{Circle, LockFault, fault};
use crate::engine::baton::Token;
use crate::engine::poller::Progress;
use crate::engine::wait::Step;
use crate::{Error, Result};
use doorbell_fabric::NodeId;
use doorbell_shm::domain::Key;
use doorbell_shm::keys::{KeyFacts, Look, OwnerId, Seen, Taken, Value, Waiter};
use std::time::{Duration, Instant};

/// The longest sleep between two looks whether the owner lives.
const SLEEP: Duration = Duration::from_millis(25);
/// ... for who has to turn the engine itself.
const SLEEP_INLINE: Duration = Duration::from_millis(1);

impl LockKey {
    /// Waits until the key is the caller's.
    #[cold]
    pub(super) fn wait_for(&self, key: Key<'_>, me: OwnerId, deadline: Option<Instant>) -> Result<Taken> {
        let shared = self.node().shared();
        let mut waiter = key.wait(me);
        let mut gear = shared.gear(deadline).giving_way();
        loop {
            let seen = match waiter.look() {
                Look::Taken(taken) => return Ok(taken),
                Look::Not(seen) => seen,
            };
            if seen.owner() == Some(me) {
                return Err(fault("lock", self.name(), LockFault::AlreadyYours));
            }
            let most = match gear.step() {
                Step::Again => continue,
                Step::Check => None,
                Step::Park(most) => Some(most),
                Step::Expired => {
                    let node = seen.owner().map(OwnerId::node);
                    return Err(Error::Timeout { operation: "lock", node });
                }
            };
            if let Some(taken) = self.care(key, &mut waiter, seen)? {
                return Ok(taken);
            }
            if let Some(most) = most {
                waiter.sleep(most.min(self.longest_sleep()));
                gear.slept();
            }
        }
    }

    /// What a long wait has to see to: that this node lives and the key exists, that the owner lives, that there is no circle.
    fn care(&self, key: Key<'_>, waiter: &mut Waiter<'_>, seen: Seen) -> Result<Option<Taken>> {
        self.turn()?;
        if !key.is_current() {
            return Err(self.gone("lock"));
        }
        if let Some(owner) = seen.owner()
            && !self.lives(owner)
            && let Look::Taken(taken) = key.inherit(waiter, seen)
        {
            return Ok(Some(taken));
        }
        if let Some(circle) = self.node().shared().membership().circle(waiter) {
            let name = |waiting| self.node().shared().membership().name_of(waiting).unwrap_or_default();
            let waits = circle.iter().map(|waiting| (waiting.who, name(waiting))).collect();
            return Err(fault("lock", self.name(), LockFault::Circle(Circle { waits })));
        }
        Ok(None)
    }

    /// Waits until whoever is in has left a key that is barred.
    pub(super) fn wait_empty(&self, key: Key<'_>, deadline: Instant) -> Result<()> {
        let mut gear = self.node().shared().gear(Some(deadline)).giving_way();
        loop {
            let heard = key.words().arm();
            let seen = key.words().get();
            if !seen.is_barred() {
                return Err(fault("lock_all", self.name(), LockFault::Otherwise(seen.value())));
            }
            let Some(owner) = seen.owner() else { return Ok(()) };
            let most = match gear.step() {
                Step::Again => continue,
                Step::Check => None,
                Step::Park(most) => Some(most),
                Step::Expired => return Err(Error::Timeout { operation: "lock_all", node: Some(owner.node()) }),
            };
            self.turn()?;
            if !key.is_current() {
                return Err(self.gone("lock_all"));
            }
            if !self.lives(owner) {
                key.bury(seen);
            } else if let Some(most) = most {
                key.words().sleep(heard, 0, most.min(self.longest_sleep()));
                gear.slept();
            }
        }
    }

    /// Waits a predefined time before the next attempt.
    #[cold]
    pub(super) fn wait_pause(&self, value: Value, pause: Duration, deadline: Instant) -> Result<()> {
        let owner = if let Value::Owner(owner) = value { Some(owner) } else { None };
        if owner == Some(self.my_id()) {
            return Err(fault("lock", self.name(), LockFault::AlreadyYours));
        }
        let key = self.here("lock")?;
        let seen = key.words().get();
        if seen.owner().is_some_and(|owner| !self.lives(owner)) {
            key.bury(seen);
            return Ok(());
        }
        let now = Instant::now();
        if now >= deadline {
            return Err(Error::Timeout { operation: "lock", node: owner.map(OwnerId::node) });
        }
        self.turn()?;
        self.pause(pause.min(deadline - now));
        Ok(())
    }

    pub(super) fn pause(&self, pause: Duration) {
        std::thread::sleep(pause);
    }

    /// The node's engine goes on while this thread waits, if nobody else turns it.
    fn turn(&self) -> Result<()> {
        let shared = self.node().shared();
        let me: Token = shared.check()?;
        if shared.progress() == Progress::Inline {
            shared.turn(me);
        }
        Ok(())
    }

    fn longest_sleep(&self) -> Duration {
        if self.node().shared().progress() == Progress::Inline { SLEEP_INLINE } else { SLEEP }
    }

    /// Whether an owner lives.
    pub(super) fn lives(&self, owner: OwnerId) -> bool {
        self.node().shared().membership().is_living(owner.node(), owner.life())
    }

    /// The other nodes that use a key, of those that live.
    pub(super) fn others(&self, facts: &KeyFacts) -> Vec<NodeId> {
        let shared = self.node().shared();
        let living = shared.living_members(Token::current());
        let lives = |node: NodeId| living.iter().any(|member| member.id == node);
        facts.users.iter().copied().filter(|node| *node != shared.membership().id() && lives(*node)).collect()
    }
}
