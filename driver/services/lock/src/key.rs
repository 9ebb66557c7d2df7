//! What a program holds of a key.

use super::Locks;
use super::away::{Away, Opened, error_of};
use super::guard::{KeyGuard, not_yours};
use super::home::{Done, perform};
use super::wait::{Want, lives};
use super::wire::{Answer, Deed};
use super::{LockFault, PATIENCE, fault};
use doorbell_engine::node::shared_of;
use doorbell_engine::sync::baton::Token;
use doorbell_engine::{Error, Node, Result};
use doorbell_shm::domain::Key;
use doorbell_shm::keys::{KeyFacts, OwnerId, Resource, Seen, Taken, Value, waiting};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A key of the registry, as one node has it. Clones are the same key. All calls are thread-safe.
#[derive(Clone)]
pub struct LockKey {
    node: Node,
    opened: Opened,
    name: Arc<str>,
    /// The identification of thread 0 of this life of this node, or that which the program gave.
    base: u64,
    /// Which bits of a thread's number are part of its identification: all or none.
    threads: u32,
}

/// How often one asks again for what nobody tells of.
const POLL: Duration = Duration::from_millis(1);

/// How long a thread waits for a key that is elsewhere until it looks whether somebody still wants it.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How long one asks after a deadline who has the key.
const NAMING: Duration = Duration::from_millis(20);

/// Where a key is, for one call.
#[derive(Clone, Copy)]
enum Reach<'a> {
    /// In memory that this node shares.
    Here(Key<'a>),
    /// Elsewhere.
    Away(&'a Away),
}

/// Which key it is, among those that a node knows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Which {
    /// The address of its words.
    Here(usize),
    /// Its name.
    Away(Arc<str>),
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
        f.debug_struct("LockKey").field("name", &self.name).finish_non_exhaustive()
    }
}

impl LockKey {
    /// A key that was opened, from now on used by this node.
    pub(super) fn of(node: &Node, name: &str, opened: Opened) -> Result<LockKey> {
        let base = OwnerId::thread(node.id(), node.incarnation(), 0).bits();
        Ok(LockKey { node: node.clone(), opened, name: name.into(), base, threads: u32::MAX })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same key, locked with a number of the program's own in place of the thread's: by whoever has this handle, from any thread. Unique in the
    /// domain together with the node and its life. Of the number the lower 19 bits count.
    ///
    /// Two threads that use one number still exclude each other: the second is told [`LockFault::AlreadyYours`].
    ///
    /// A number is an owner of its own. A circle of waits is [found](LockFault::Circle) only if each owner in it has what it holds and waits for what it wants
    /// by the same number: a thread that holds one key by its thread's number and waits for another by a number of the program is two owners.
    pub fn with_id(&self, number: u32) -> LockKey {
        let base = OwnerId::user(self.node.id(), self.node.incarnation(), number).bits();
        LockKey { base, threads: 0, ..self.clone() }
    }

    /// The value that the key has while the caller has it.
    #[inline(always)]
    pub fn my_id(&self) -> OwnerId {
        OwnerId::numbered(self.base, Token::current().number() & self.threads)
    }

    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    /// The key in the registry, if that is in memory that this node shares.
    #[inline(always)]
    fn reach(&self, operation: &'static str) -> Result<Reach<'_>> {
        shared_of(&self.node).usable()?;
        match &self.opened {
            Opened::Here(key) if key.get().is_current() => Ok(Reach::Here(key.get())),
            Opened::Here(_) => Err(self.gone(operation)),
            Opened::Away(away) => Ok(Reach::Away(away)),
        }
    }

    /// Takes the key in the shortest way, if nothing stands against it: not forked, not left, here, free. If not, nothing was done.
    #[inline(always)]
    fn take_free(&self, me: OwnerId) -> bool {
        let Opened::Here(key) = &self.opened else { return false };
        let key = key.get();
        !key.is_forked() && !shared_of(&self.node).is_closed() && key.take_free(me)
    }

    /// Gives the key up in the shortest way, if nothing stands against it. If not, nothing was done.
    #[inline(always)]
    pub(super) fn release_unmarked(&self, me: OwnerId) -> bool {
        let Opened::Here(key) = &self.opened else { return false };
        key.get().release_unmarked(me)
    }

    #[cold]
    fn gone(&self, operation: &'static str) -> Error {
        fault(operation, &self.name, LockFault::Destroyed)
    }

    /// What is done where the registry is, and told.
    fn deed(&self, operation: &'static str, deed: Deed, deadline: Option<Instant>) -> Result<Answer> {
        let shared = shared_of(&self.node);
        match self.reach(operation)? {
            Reach::Away(away) => away.do_deed(shared, operation, deed, deadline),
            Reach::Here(key) => match perform(key, (self.node.id(), self.node.incarnation()), deed) {
                Done::Answer(Answer::Trouble(trouble)) => Err(error_of(shared, operation, &self.name, trouble)),
                Done::Answer(answer) => Ok(answer),
                Done::Wait => Err(Error::Cancelled),
            },
        }
    }

    /// An answer that answers something else.
    fn odd(&self) -> Error {
        fault("use", &self.name, LockFault::Home("something that was not asked".into()))
    }

    /// What the registry says of it: its resource, value, users, who waits. Over a network up to 32 users and as many who wait.
    ///
    /// A key whose registry is with another node is asked for there: this call and those below wait for the answer then, and if its home dies for
    /// the next one.
    ///
    /// # Errors
    /// [`Error::Lock`] if it was destroyed; [`Error::Closed`], [`Error::Forked`], [`Error::Reentrant`].
    pub fn facts(&self) -> Result<KeyFacts> {
        match self.reach("look at")? {
            Reach::Here(key) => key.facts().ok_or_else(|| self.gone("look at")),
            Reach::Away(away) => match self.deed("look at", Deed::Facts, None)? {
                Answer::Facts(facts) => Ok(facts.of(away.at().place(), &self.name)),
                _ => Err(self.odd()),
            },
        }
    }

    /// What it guards.
    ///
    /// # Errors
    /// As [`facts`](Self::facts).
    pub fn resource(&self) -> Result<Resource> {
        Ok(self.facts()?.resource)
    }

    /// Its value now. The source's `dacs_registry_get`; one load, or a round trip.
    ///
    /// # Errors
    /// As [`facts`](Self::facts).
    #[inline]
    pub fn get(&self) -> Result<Value> {
        Ok(self.seen()?.value())
    }

    fn seen(&self) -> Result<Seen> {
        match self.reach("read")? {
            Reach::Here(key) => Ok(key.words().get()),
            Reach::Away(_) => match self.deed("read", Deed::Get, None)? {
                Answer::Seen(bits) => Ok(Seen::from_bits(bits)),
                _ => Err(self.odd()),
            },
        }
    }

    /// Sets its value from `expected` to `new`, where `None` is unlocked. The source's `dacs_registry_set`, which is without a condition there, so that
    /// two processes can both find their own value; with one here.
    ///
    /// A caller that sets it to a value of its own has the key, until it sets it back: see [`unlock`](Self::unlock). It may also set it to another
    /// identification of this life of this node, and so hands the key to another thread.
    ///
    /// # Errors
    /// [`Error::Lock`] with [`LockFault::Otherwise`]: it had another value, or it is the turn of one who has waited long, and nothing changed; with
    /// [`LockFault::NotYours`]: `expected` is neither the caller's own [identification](Self::my_id) nor a number that the program [gave](Self::with_id), or
    /// `new` is not an identification of this life of this node. Else as [`facts`](Self::facts).
    pub fn set(&self, expected: Option<OwnerId>, new: Option<OwnerId>) -> Result<()> {
        let me = self.my_id();
        // A thread that could set back what another thread has would let a third in beside that one. A number of the program is whoever's that names it.
        let is_of_node = |id: OwnerId| (id.node(), id.life()) == (me.node(), me.life());
        let is_mine = |id: OwnerId| id == me || id.is_users() && is_of_node(id);
        let foreign = expected.filter(|id| !is_mine(*id)).or(new.filter(|id| !is_of_node(*id)));
        if let Some(foreign) = foreign {
            return Err(fault("set", &self.name, LockFault::NotYours(Value::Owner(foreign))));
        }
        let [expected, new] = [expected, new].map(|id| id.map_or(0, OwnerId::bits));
        let Opened::Away(away) = &self.opened else {
            return self.deed("set", Deed::Set { expected, new }, None).map(drop);
        };
        // Noted first, as with every key that is given up; and taken back if it was not.
        let shared = shared_of(&self.node);
        let gives_up =
            new == 0 && shared.enter(shared.check()?, "set")?.service::<Locks>().mail.note_unlocked(&away.name, expected);
        let done = self.deed("set", Deed::Set { expected, new }, None).map(drop);
        if done.is_err() && gives_up {
            away.note(shared, |entry| entry.owner = expected)?;
        }
        done
    }

    /// Locks the key if nobody has it, and says its value if somebody has. Does not wait, but for the answer if the registry is elsewhere. The source's
    /// `dacs_mutex_trylock`.
    ///
    /// # Errors
    /// As [`facts`](Self::facts).
    #[inline(always)]
    pub fn try_lock(&self) -> Result<TryLock<'_>> {
        let me = self.my_id();
        if self.take_free(me) { Ok(TryLock::Locked(KeyGuard::new(self, me, 0))) } else { self.try_slowly(me) }
    }

    #[cold]
    #[inline(never)]
    fn try_slowly(&self, me: OwnerId) -> Result<TryLock<'_>> {
        match self.reach("lock")? {
            Reach::Here(key) => match waiting::try_take(key.words(), me) {
                Ok(taken) => self.taken(key, me, taken).map(TryLock::Locked),
                Err(seen) => Ok(TryLock::Busy(seen.value())),
            },
            Reach::Away(away) => {
                if self.has_away(away, me)? {
                    return Ok(TryLock::Busy(Value::Owner(me)));
                }
                match self.deed("lock", Deed::Try { me: me.bits() }, None)? {
                    Answer::Taken { damaged, dead } => Ok(TryLock::Locked(self.taken_away(away, me, damaged, dead)?)),
                    Answer::Busy(bits) => Ok(TryLock::Busy(Seen::from_bits(bits).value())),
                    _ => Err(self.odd()),
                }
            }
        }
    }

    /// Locks the key; waits for it as long as it takes.
    ///
    /// Uncontended: a compare-and-swap, the load that reads it back, and some loads of lines that nobody writes; or one round trip to the
    /// home of the registry. Contended: spins, yields and parks as the node waits for messages.
    ///
    /// # Errors
    /// [`Error::Lock`] with [`LockFault::Circle`]: those who hold what is waited for wait for the caller; with [`LockFault::AlreadyYours`],
    /// [`LockFault::Destroyed`]. [`Error::Closed`], [`Error::Forked`], [`Error::Reentrant`].
    #[inline(always)]
    pub fn lock(&self) -> Result<KeyGuard<'_>> {
        self.lock_until(None)
    }

    /// The same, until `deadline`.
    ///
    /// # Errors
    /// As [`lock`](Self::lock); [`Error::Timeout`], which names the node that has it, or the home that did not answer.
    #[inline(always)]
    pub fn lock_by(&self, deadline: Instant) -> Result<KeyGuard<'_>> {
        self.lock_until(Some(deadline))
    }

    #[inline(always)]
    fn lock_until(&self, deadline: Option<Instant>) -> Result<KeyGuard<'_>> {
        let me = self.my_id();
        if self.take_free(me) { Ok(KeyGuard::new(self, me, 0)) } else { self.lock_slowly(me, deadline) }
    }

    #[cold]
    #[inline(never)]
    fn lock_slowly(&self, me: OwnerId, deadline: Option<Instant>) -> Result<KeyGuard<'_>> {
        let key = match self.reach("lock")? {
            Reach::Here(key) => key,
            Reach::Away(away) => return self.lock_away(away, me, deadline),
        };
        let taken = match key.words().try_take(me, 0) {
            Ok(taken) => taken,
            Err(_) => Want { shared: shared_of(&self.node), key, name: &self.name, me, withdrawn: None }.wait(deadline)?,
        };
        self.taken(key, me, taken)
    }

    /// As [`lock`](Self::lock), for a thread of the node that waits in somebody's place: until nobody wants it any more (`None`). Where the registry is elsewhere
    /// that is looked at now and then, and who does so is the last in the line again.
    pub(super) fn lock_unless(&self, withdrawn: &AtomicBool) -> Result<Option<KeyGuard<'_>>> {
        let me = self.my_id();
        if self.take_free(me) {
            return Ok(Some(KeyGuard::new(self, me, 0)));
        }
        match self.reach("lock")? {
            Reach::Here(key) => {
                let want = Want { shared: shared_of(&self.node), key, name: &self.name, me, withdrawn: Some(withdrawn) };
                match want.wait(None) {
                    Err(Error::Cancelled) => Ok(None),
                    taken => self.taken(key, me, taken?).map(Some),
                }
            }
            Reach::Away(away) => loop {
                match self.lock_away(away, me, Some(Instant::now() + LOOK_AGAIN)) {
                    Err(Error::Timeout { .. }) if !withdrawn.load(Ordering::Acquire) => {}
                    Err(Error::Timeout { .. }) => return Ok(None),
                    answer => return answer.map(Some),
                }
            },
        }
    }

    /// Which key it is.
    pub(super) fn which(&self) -> Which {
        match &self.opened {
            Opened::Here(key) => Which::Here(std::ptr::from_ref(key.get().words()).addr()),
            Opened::Away(_) => Which::Away(self.name.clone()),
        }
    }

    #[cold]
    fn lock_away(&self, away: &Away, me: OwnerId, deadline: Option<Instant>) -> Result<KeyGuard<'_>> {
        if self.has_away(away, me)? {
            return Err(fault("lock", &self.name, LockFault::AlreadyYours));
        }
        let answer = match self.deed("lock", Deed::Lock { me: me.bits() }, deadline) {
            // Its home did not say so in time; who has it is worth a moment more.
            Err(Error::Timeout { operation, node }) => {
                let seen = self.deed("read", Deed::Get, Some(Instant::now() + NAMING));
                let node =
                    if let Ok(Answer::Seen(bits)) = seen { Seen::from_bits(bits).owner().map(OwnerId::node) } else { node };
                return Err(Error::Timeout { operation, node });
            }
            answer => answer?,
        };
        match answer {
            Answer::Taken { damaged, dead } => self.taken_away(away, me, damaged, dead),
            _ => Err(self.odd()),
        }
    }

    /// Whether this node noted that the caller has a key that is elsewhere.
    fn has_away(&self, away: &Away, me: OwnerId) -> Result<bool> {
        let shared = shared_of(&self.node);
        Ok(shared.enter(shared.check()?, "lock")?.service::<Locks>().mail.owner_of(&away.name) == me.bits())
    }

    /// Locks the key as the source does it: attempts again after a predefined time, until `deadline`. Stands in no line, so that it may be passed
    /// over for ever by those who do.
    ///
    /// # Errors
    /// As [`lock_by`](Self::lock_by), but for circles.
    pub fn lock_every(&self, pause: Duration, deadline: Instant) -> Result<KeyGuard<'_>> {
        loop {
            let value = match self.try_lock()? {
                TryLock::Locked(guard) => return Ok(guard),
                TryLock::Busy(value) => value,
            };
            let owner = if let Value::Owner(owner) = value { Some(owner) } else { None };
            if owner == Some(self.my_id()) {
                return Err(fault("lock", &self.name, LockFault::AlreadyYours));
            }
            if let Reach::Here(key) = self.reach("lock")? {
                let seen = key.words().get();
                if seen.owner().is_some_and(|owner| !lives(shared_of(&self.node), owner)) {
                    key.bury(seen);
                    continue;
                }
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(Error::Timeout { operation: "lock", node: owner.map(OwnerId::node) });
            }
            self.node.progress()?;
            std::thread::sleep(pause.min(deadline - now));
        }
    }

    /// A key that was just taken: unless it was destroyed in the same moment.
    fn taken(&self, key: Key<'_>, me: OwnerId, taken: Taken) -> Result<KeyGuard<'_>> {
        if !key.is_current() {
            let _ = key.words().release(me);
            return Err(self.gone("lock"));
        }
        let dead = if taken.damaged { key.dead().map_or(0, OwnerId::bits) } else { 0 };
        Ok(KeyGuard::new(self, me, dead))
    }

    fn taken_away(&self, away: &Away, me: OwnerId, damaged: bool, dead: u64) -> Result<KeyGuard<'_>> {
        // It is so already if an answer brought it.
        let noted = if damaged { dead } else { 0 };
        away.note(shared_of(&self.node), |entry| (entry.owner, entry.dead) = (me.bits(), noted))?;
        Ok(KeyGuard::new(self, me, if damaged { dead } else { 0 }))
    }

    /// Gives up a key that the caller's identification has, locked with [`set`](Self::set) or [kept](KeyGuard::keep).
    ///
    /// # Errors
    /// [`Error::Lock`] with [`LockFault::NotYours`]: it has another value, and nothing changed.
    pub fn unlock(&self) -> Result<()> {
        self.release_as(self.my_id())
    }

    /// Gives a key up, and says if it was not the caller's.
    pub(super) fn release_as(&self, me: OwnerId) -> Result<()> {
        match &self.opened {
            Opened::Here(key) => self.release_here(key.get(), me),
            Opened::Away(away) => away.unlock(shared_of(&self.node), me),
        }
    }

    /// The same at the end of a guard: where the registry is elsewhere, waits for nobody.
    pub(super) fn give_up(&self, me: OwnerId) -> Result<()> {
        match &self.opened {
            Opened::Here(key) => self.release_here(key.get(), me),
            Opened::Away(away) => away.give_up(shared_of(&self.node), me),
        }
    }

    /// Gives a key up as soon as this thread is out of the engine.
    pub(super) fn give_up_later(&self, me: OwnerId) {
        let key = self.clone();
        // Not by those who wait for keys, of whom there may be none left before this is done.
        shared_of(&self.node).movers().submit(Box::new(move || drop(key.give_up(me))));
    }

    fn release_here(&self, key: Key<'_>, me: OwnerId) -> Result<()> {
        // After a fork it is still the parent's.
        if key.is_forked() {
            return Err(Error::Forked);
        }
        // Its words may be another key's by now, that the same thread has.
        if !key.is_current() {
            return Err(self.gone("unlock"));
        }
        key.words().release(me).map_err(|seen| if key.is_current() { not_yours(self, seen) } else { self.gone("unlock") })
    }

    pub(super) fn repair(&self, me: OwnerId) -> Result<()> {
        self.deed("repair", Deed::Repair { me: me.bits() }, None)?;
        if let Opened::Away(away) = &self.opened {
            away.note(shared_of(&self.node), |entry| entry.dead = 0)?;
        }
        Ok(())
    }

    /// Locks the key for everybody, by setting it to a value that is nobody's. From the call on nobody else comes in; whoever is in stays until it
    /// unlocks, dies, or leaves, and the call waits for that, until `deadline`. It stays locked when this node is gone: until
    /// somebody calls [`unlock_all`](Self::unlock_all).
    ///
    /// # Errors
    /// [`Error::Timeout`] names the node that is in; the key is as before. [`Error::Lock`] with [`LockFault::Barred`]: it was locked so already; with
    /// [`LockFault::Otherwise`]: somebody called `unlock_all` before this call was through.
    pub fn lock_all(&self, deadline: Instant) -> Result<()> {
        let Answer::Barred { first } = self.deed("lock_all", Deed::Bar, Some(deadline))? else { return Err(self.odd()) };
        if !first {
            return Err(fault("lock_all", &self.name, LockFault::Barred));
        }
        self.note_barred(true)?;
        let waited = match self.reach("lock_all")? {
            Reach::Here(key) => {
                let want = Want { shared: shared_of(&self.node), key, name: &self.name, me: self.my_id(), withdrawn: None };
                want.wait_empty(deadline)
            }
            Reach::Away(_) => self.poll_empty(deadline),
        };
        // Who was told that somebody ended it meanwhile does not end what may be another's by now.
        let is_over = matches!(&waited, Err(Error::Lock { .. }));
        if waited.is_err() && !is_over {
            let _ = self.unlock_all();
        }
        waited
    }

    /// Waits until whoever is in has left, asking now and then.
    fn poll_empty(&self, deadline: Instant) -> Result<()> {
        loop {
            let seen = self.seen()?;
            if !seen.is_barred() {
                return Err(fault("lock_all", &self.name, LockFault::Otherwise(seen.value())));
            }
            let Some(owner) = seen.owner() else { return Ok(()) };
            if Instant::now() >= deadline {
                return Err(Error::Timeout { operation: "lock_all", node: Some(owner.node()) });
            }
            std::thread::sleep(POLL);
        }
    }

    /// Ends what [`lock_all`](Self::lock_all) began, whoever called it.
    ///
    /// # Errors
    /// [`Error::Lock`] with [`LockFault::NotYours`]: it was not locked so, and nothing changed.
    pub fn unlock_all(&self) -> Result<()> {
        self.deed("unlock_all", Deed::Unbar, None)?;
        self.note_barred(false)
    }

    /// For the next home.
    fn note_barred(&self, barred: bool) -> Result<()> {
        match &self.opened {
            Opened::Away(away) => away.note(shared_of(&self.node), |entry| entry.barred = barred),
            Opened::Here(_) => Ok(()),
        }
    }

    /// Says that this node uses the key no more: then it may be [destroyed](Self::destroy). The other handles of this node stay as good as
    /// they are.
    ///
    /// # Errors
    /// As [`facts`](Self::facts).
    pub fn release(self) -> Result<()> {
        self.deed("release", Deed::Release, None)?;
        if let Opened::Away(away) = &self.opened {
            let shared = shared_of(&self.node);
            shared.enter(shared.check()?, "release")?.service::<Locks>().mail.close(&away.name);
        }
        Ok(())
    }

    /// Ends the key for everybody, once the other nodes that use it have [released](Self::release) it, or died; waits for that until `deadline`. Who waits
    /// for it, or has a handle of it still, is told [`LockFault::Destroyed`].
    ///
    /// # Errors
    /// [`Error::Lock`] with [`LockFault::InUse`]: by whom, at the deadline; with [`LockFault::Otherwise`]: somebody holds it.
    pub fn destroy(self, deadline: Instant) -> Result<()> {
        let shared = shared_of(&self.node);
        loop {
            let facts = self.facts()?;
            let living = shared.living_members(shared.check()?);
            let lives = |node| living.iter().any(|member| member.id == node);
            let others: Vec<_> = facts.users.iter().copied().filter(|node| *node != self.node.id() && lives(*node)).collect();
            if others.is_empty() {
                let owner = facts.seen.owner().filter(|owner| *owner != self.my_id() && lives(owner.node()));
                if let Some(owner) = owner {
                    return Err(fault("destroy", &self.name, LockFault::Otherwise(Value::Owner(owner))));
                }
                let until = Instant::now() + PATIENCE;
                return match self.reach("destroy")? {
                    Reach::Here(key) => match key.destroy(Some(self.my_id()), until)? {
                        None => Ok(()),
                        Some(owner) => Err(fault("destroy", &self.name, LockFault::Otherwise(Value::Owner(owner)))),
                    },
                    Reach::Away(away) => {
                        self.deed("destroy", Deed::Destroy { me: self.my_id().bits() }, Some(until))?;
                        shared.enter(shared.check()?, "destroy")?.service::<Locks>().mail.close(&away.name);
                        Ok(())
                    }
                };
            }
            if Instant::now() >= deadline {
                return Err(fault("destroy", &self.name, LockFault::InUse(others)));
            }
            self.node.progress()?;
            std::thread::sleep(POLL);
        }
    }
}
