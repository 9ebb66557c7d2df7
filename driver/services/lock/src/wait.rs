//! How a thread waits for a lock in shared memory, for itself or for a node that has only the network.

use super::error::{LockError, fault};
use doorbell_engine::kit::{Backoff, Error, Moment, Progress, Result, Shared, Token, Wait};
use doorbell_shm::domain::Key;
use doorbell_shm::keys::{Look, OwnerId, Seen, Taken, Waiter};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest sleep between two checks that the owner lives.
const SLEEP: Duration = Duration::from_millis(25);
/// The same for a thread that has to turn the engine itself.
const SLEEP_INLINE: Duration = Duration::from_millis(1);

/// One wait for a lock.
pub struct Want<'a> {
    pub shared: &'a Shared,
    pub key: Key<'a>,
    pub name: &'a str,
    pub me: OwnerId,
    /// Set when the lock is no longer wanted; `None` for a thread that waits for itself.
    pub withdrawn: Option<&'a AtomicBool>,
}

impl Want<'_> {
    /// Waits until the caller owns the lock.
    #[cold]
    pub fn wait(&self, deadline: Option<Instant>) -> Result<Taken> {
        if self.withdrawn.is_none() && self.shared.has_network() {
            // Fails inside `recv_with`: the owner may have to unlock by a notice, and this node could not read it meanwhile.
            drop(self.shared.enter(Token::current(), "lock")?);
        }
        let (mut waiter, mut seen) = (self.key.wait(self.me), self.key.words().get());
        self.shared.wait_for(Token::current(), self.backoff(deadline), 0, |moment| match moment {
            Moment::Look => {
                seen = match waiter.look() {
                    Look::Taken(taken) => return Ok(Some(taken)),
                    Look::Not(seen) => seen,
                };
                // With `withdrawn` set, an earlier wait of the same owner may be about to give the lock back.
                if seen.owner() == Some(self.me) && self.withdrawn.is_none() {
                    return Err(fault("lock", self.name, LockError::AlreadyYours));
                }
                Ok(None)
            }
            // A short wait may never have checked the owner. Without this, a series of short waits would never inherit from a
            // dead one.
            Moment::Expired if seen.owner().is_none_or(|owner| lives(self.shared, owner)) => {
                Err(Error::Timeout { operation: "lock", node: seen.owner().map(OwnerId::node) })
            }
            Moment::Check | Moment::Expired => self.care(&mut waiter, seen),
            Moment::Sleep(most) => {
                let taken = self.care(&mut waiter, seen)?;
                if taken.is_none() {
                    waiter.sleep(most.min(self.longest_sleep()));
                }
                Ok(taken)
            }
        })
    }

    /// A pool thread sleeps at once: the processors of those it waits for are not its own.
    fn backoff(&self, deadline: Option<Instant>) -> Backoff {
        if self.withdrawn.is_some() { Backoff::new(Wait::Park, deadline) } else { self.shared.backoff(deadline).giving_way() }
    }

    /// The checks of a long wait: this node lives, the lock exists, its owner lives, and there is no deadlock.
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
            return Err(fault("lock", self.name, LockError::Deadlock { waits }));
        }
        Ok(None)
    }

    /// Waits until a frozen lock has no owner.
    pub fn wait_empty(&self, deadline: Instant) -> Result<()> {
        let words = self.key.words();
        let (mut heard, mut seen) = (words.arm(), words.get());
        self.shared.wait_for(Token::current(), self.backoff(Some(deadline)), 0, |moment| {
            if moment == Moment::Look {
                (heard, seen) = (words.arm(), words.get());
                if !seen.is_frozen() {
                    return Err(fault("lock_all", self.name, LockError::Otherwise(seen.value())));
                }
                return Ok(seen.owner().is_none().then_some(()));
            }
            let Some(owner) = seen.owner() else { return Ok(Some(())) };
            let is_dead = !lives(self.shared, owner);
            if moment == Moment::Expired && !is_dead {
                return Err(Error::Timeout { operation: "lock_all", node: Some(owner.node()) });
            }
            self.turn("lock_all")?;
            if is_dead {
                self.key.bury(seen);
            } else if let Moment::Sleep(most) = moment {
                words.sleep(heard, 0, most.min(self.longest_sleep()));
            }
            Ok(None)
        })
    }

    /// Turns the engine if no other thread does while this one waits. Fails if the wait has become pointless.
    fn turn(&self, operation: &'static str) -> Result<()> {
        let me = self.shared.check()?;
        if self.shared.progress() == Progress::Inline && self.withdrawn.is_none() {
            self.shared.turn(me);
        }
        if self.key.is_current() { Ok(()) } else { Err(fault(operation, self.name, LockError::Destroyed)) }
    }

    fn longest_sleep(&self) -> Duration {
        if self.shared.progress() == Progress::Inline { SLEEP_INLINE } else { SLEEP }
    }
}

/// Whether the incarnation that an owner belongs to lives.
pub(super) fn lives(shared: &Shared, owner: OwnerId) -> bool {
    shared.membership().is_living(owner.node(), owner.incarnation())
}
