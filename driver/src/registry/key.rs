//! What a program holds of a key.

use super::guard::{KeyGuard, not_yours};
use super::{LockFault, PATIENCE, Who, fault};
use crate::engine::baton::Token;
use crate::{Error, Node, Result};
use doorbell_shm::domain::{Key, OpenKey};
use doorbell_shm::keys::{KeyFacts, KeyRef, OwnerId, Resource, Taken, Value, waiting};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A key of the registry, as one node has it. Clones are the same key. All calls are thread-safe.
#[derive(Clone)]
pub struct LockKey {
    node: Node,
    key: OpenKey,
    name: Arc<str>,
    who: Who,
    /// The identification of thread 0 of this life of this node.
    base: u64,
}

/// What an attempt to lock brought.
#[must_use]
pub enum TryLock<'a> {
    /// The key is the caller's.
    Locked(KeyGuard<'a>),
    /// This is its value. Unlocked means: it is the turn of one who has waited long.
    Busy(Value),
}

impl<'a> TryLock<'a> {
    /// The guard, if there is one.
    pub fn guard(self) -> Option<KeyGuard<'a>> {
        match self {
            TryLock::Locked(guard) => Some(guard),
            TryLock::Busy(_) => None,
        }
    }
}

impl fmt::Debug for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockKey").field("name", &self.name).field("place", &self.key.get().place()).finish_non_exhaustive()
    }
}

impl LockKey {
    /// The key in this place, from now on used by this node.
    pub(super) fn open(node: &Node, place: KeyRef, name: &str) -> Result<LockKey> {
        let key = OpenKey::new(node.shared().membership_arc(), place);
        let key = key.ok_or_else(|| fault("open", name, LockFault::Destroyed))?;
        key.get().set_user(node.id(), true);
        let base = OwnerId::thread(node.id(), node.incarnation(), 0).bits();
        Ok(LockKey { node: node.clone(), key, name: name.into(), who: Who::Thread, base })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same key, locked with a number of the program's own in place of the thread's: by whoever has this handle, from any thread. Unique in the
    /// domain together with the node and its life. Of the number the lower 19 bits count.
    ///
    /// Two threads that use one number still exclude each other: the second is told [`LockFault::AlreadyYours`].
    pub fn with_id(&self, number: u32) -> LockKey {
        LockKey { who: Who::User(number), ..self.clone() }
    }

    /// The value that the key has while the caller has it.
    #[inline(always)]
    pub fn my_id(&self) -> OwnerId {
        match self.who {
            Who::Thread => OwnerId::numbered(self.base, Token::current().number()),
            Who::User(number) => OwnerId::user(self.node.id(), self.node.incarnation(), number),
        }
    }

    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    /// The key in the registry.
    #[inline(always)]
    pub(super) fn here(&self, operation: &'static str) -> Result<Key<'_>> {
        self.node.shared().usable()?;
        let key = self.key.get();
        if key.is_current() { Ok(key) } else { Err(self.gone(operation)) }
    }

    #[cold]
    pub(super) fn gone(&self, operation: &'static str) -> Error {
        fault(operation, &self.name, LockFault::Destroyed)
    }

    /// What the registry says of it: its resource, value, users, who waits.
    ///
    /// # Errors
    /// [`Error::Lock`] if it was destroyed; [`Error::Closed`], [`Error::Forked`].
    pub fn facts(&self) -> Result<KeyFacts> {
        self.here("look at")?.facts().ok_or_else(|| self.gone("look at"))
    }

    /// What it guards.
    ///
    /// # Errors
    /// As [`facts`](Self::facts).
    pub fn resource(&self) -> Result<Resource> {
        Ok(self.facts()?.resource)
    }

    /// Its value now. The source's `dacs_registry_get`; one load.
    ///
    /// # Errors
    /// As [`facts`](Self::facts).
    #[inline]
    pub fn get(&self) -> Result<Value> {
        Ok(self.here("read")?.words().get().value())
    }

    /// Sets its value from `expected` to `new`, where `None` is unlocked. The source's `dacs_registry_set`, which is without a condition there, so that
    /// two processes can both find their own value; with one here.
    ///
    /// Who sets it to a value of its own has the key, until it sets it back: see [`unlock`](Self::unlock).
    ///
    /// # Errors
    /// [`Error::Lock`] with [`LockFault::Otherwise`]: it had another value, or it is the turn of one who has waited long, and nothing changed; with
    /// [`LockFault::NotYours`]: `new`, or what is given up, is not an identification of this life of this node. Else as
    /// [`facts`](Self::facts).
    pub fn set(&self, expected: Option<OwnerId>, new: Option<OwnerId>) -> Result<()> {
        let key = self.here("set")?;
        let me = self.my_id();
        let foreign = [expected, new].into_iter().flatten().find(|id| (id.node(), id.life()) != (me.node(), me.life()));
        if let Some(foreign) = foreign {
            return Err(fault("set", &self.name, LockFault::NotYours(Value::Owner(foreign))));
        }
        key.words().set(expected, new).map_err(|seen| fault("set", &self.name, LockFault::Otherwise(seen.value())))
    }

    /// Locks the key if nobody has it, and says its value if somebody has. Does not wait. The source's `dacs_mutex_trylock`.
    ///
    /// # Errors
    /// As [`facts`](Self::facts).
    #[inline]
    pub fn try_lock(&self) -> Result<TryLock<'_>> {
        let key = self.here("lock")?;
        let me = self.my_id();
        match waiting::try_take(key.words(), me) {
            Ok(taken) => self.taken(key, me, taken).map(TryLock::Locked),
            Err(seen) => Ok(TryLock::Busy(seen.value())),
        }
    }

    /// Locks the key; waits for it as long as it takes.
    ///
    /// Uncontended: a compare-and-swap, the load that reads it back, and some loads of lines that nobody writes. Contended: spins, yields and parks
    /// as the node waits for messages.
    ///
    /// # Errors
    /// [`Error::Lock`] with [`LockFault::Circle`]: those who hold what is waited for wait for the caller; with [`LockFault::AlreadyYours`],
    /// [`LockFault::Destroyed`]. [`Error::Closed`], [`Error::Forked`].
    #[inline]
    pub fn lock(&self) -> Result<KeyGuard<'_>> {
        self.lock_until(None)
    }

    /// The same, until `deadline`.
    ///
    /// # Errors
    /// As [`lock`](Self::lock); [`Error::Timeout`], which names the node that has it.
    #[inline]
    pub fn lock_by(&self, deadline: Instant) -> Result<KeyGuard<'_>> {
        self.lock_until(Some(deadline))
    }

    #[inline]
    fn lock_until(&self, deadline: Option<Instant>) -> Result<KeyGuard<'_>> {
        let key = self.here("lock")?;
        let me = self.my_id();
        let taken = match key.words().try_take(me, 0) {
            Ok(taken) => taken,
            Err(_) => self.wait_for(key, me, deadline)?,
        };
        self.taken(key, me, taken)
    }

    /// Locks the key as the source does it: attempts again after a predefined time, until `deadline`. Stands in no line, so that it may be passed
    /// over for ever by those who do.
    ///
    /// # Errors
    /// As [`lock_by`](Self::lock_by), but for circles.
    pub fn lock_every(&self, pause: Duration, deadline: Instant) -> Result<KeyGuard<'_>> {
        loop {
            match self.try_lock()? {
                TryLock::Locked(guard) => return Ok(guard),
                TryLock::Busy(value) => self.wait_pause(value, pause, deadline)?,
            }
        }
    }

    /// A key that was just taken: unless it was destroyed in the same moment.
    #[inline(always)]
    fn taken<'a>(&'a self, key: Key<'_>, me: OwnerId, taken: Taken) -> Result<KeyGuard<'a>> {
        if !key.is_current() {
            let _ = key.words().release(me);
            return Err(self.gone("lock"));
        }
        let dead = if taken.damaged { key.dead() } else { None };
        Ok(KeyGuard::new(self, me, dead))
    }

    /// Gives up a key that the caller's identification has, locked with [`set`](Self::set) or [kept](KeyGuard::keep).
    ///
    /// # Errors
    /// [`Error::Lock`] with [`LockFault::NotYours`]: it has another value, and nothing changed.
    pub fn unlock(&self) -> Result<()> {
        self.release_as(self.my_id())
    }

    #[inline(always)]
    pub(super) fn release_as(&self, me: OwnerId) -> Result<()> {
        // After a fork it is still the parent's.
        if doorbell_shm::space::forked() {
            return Err(Error::Forked);
        }
        let key = self.key.get();
        // Its words may be another key's by now, that the same thread has.
        if !key.is_current() {
            return Err(self.gone("unlock"));
        }
        key.words().release(me).map_err(|seen| if key.is_current() { not_yours(self, seen) } else { self.gone("unlock") })
    }

    pub(super) fn repair(&self, me: OwnerId) -> Result<()> {
        self.here("repair")?.words().repair(me).map_err(|seen| not_yours(self, seen))
    }

    /// Locks the key for everybody, by setting it to a value that is nobody's. From the call on nobody else comes in; whoever is in stays until it
    /// unlocks, dies, or leaves, and the call waits for that, until `deadline`. It stays locked when this node is gone: until
    /// somebody calls [`unlock_all`](Self::unlock_all).
    ///
    /// # Errors
    /// [`Error::Timeout`] names the node that is in; the key is as before. [`Error::Lock`] with [`LockFault::Barred`]: it was locked so already; with
    /// [`LockFault::Otherwise`]: somebody called `unlock_all` before this call was through.
    pub fn lock_all(&self, deadline: Instant) -> Result<()> {
        let key = self.here("lock_all")?;
        let (_, first) = key.words().bar();
        if !first {
            return Err(fault("lock_all", &self.name, LockFault::Barred));
        }
        let waited = self.wait_empty(key, deadline);
        // Who was told that somebody ended it meanwhile does not end what may be another's by now.
        let is_over = matches!(&waited, Err(Error::Lock { .. }));
        if waited.is_err() && !is_over {
            key.words().unbar();
        }
        waited
    }

    /// Ends what [`lock_all`](Self::lock_all) began, whoever called it.
    ///
    /// # Errors
    /// [`Error::Lock`] with [`LockFault::NotYours`]: it was not locked so, and nothing changed.
    pub fn unlock_all(&self) -> Result<()> {
        let words = self.here("unlock_all")?.words();
        if words.unbar() { Ok(()) } else { Err(not_yours(self, words.get())) }
    }

    /// Says that this node uses the key no more: then it may be [destroyed](Self::destroy). The other handles of this node stay as good as
    /// they are.
    ///
    /// # Errors
    /// As [`facts`](Self::facts).
    pub fn release(self) -> Result<()> {
        self.here("release")?.set_user(self.node.id(), false);
        Ok(())
    }

    /// Ends the key for everybody, once the other nodes that use it have [released](Self::release) it, or died; waits for that until `deadline`. Who waits
    /// for it, or has a handle of it still, is told [`LockFault::Destroyed`].
    ///
    /// # Errors
    /// [`Error::Lock`] with [`LockFault::InUse`]: by whom, at the deadline; with [`LockFault::Otherwise`]: somebody holds it.
    pub fn destroy(self, deadline: Instant) -> Result<()> {
        let key = self.here("destroy")?;
        loop {
            let facts = key.facts().ok_or_else(|| self.gone("destroy"))?;
            let users = self.others(&facts);
            if users.is_empty() {
                let held = facts.seen.owner().filter(|owner| *owner != self.my_id() && self.lives(*owner));
                if let Some(owner) = held {
                    return Err(fault("destroy", &self.name, LockFault::Otherwise(Value::Owner(owner))));
                }
                key.destroy(Instant::now() + PATIENCE)?;
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(fault("destroy", &self.name, LockFault::InUse(users)));
            }
            self.pause(Duration::from_millis(1));
        }
    }
}
