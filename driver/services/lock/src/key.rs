//! The handle of a lock.

use super::error::{LockError, PATIENCE, fault, odd};
use super::far::{FarKey, Opened, error_of};
use super::guard::{LockGuard, TryLock, not_yours};
use super::home::{destroy, perform};
use super::service::locks;
use super::wait::{Want, lives};
use super::wire::{Answer, Deed, Entry};
use doorbell_engine::kit::{Error, Locality, Node, NodeId, PeerId, Result, Shared, Token, shared_of, world};
use doorbell_shm::domain::Key;
use doorbell_shm::keys::{LockFacts, OwnerId, Resource, Seen, Taken, Value, waiting};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A lock of the domain, as one node uses it. Clones refer to the same lock. Any thread may call any method.
#[derive(Clone)]
pub struct Lock {
    node: Node,
    opened: Opened,
    name: Arc<str>,
    /// The identification of thread 0 of this incarnation of this node, or the one made from the program's number.
    base: u64,
    /// Which bits of the thread's number become part of the identification: all, or none if the program chose a number.
    threads: u32,
}

/// How often a condition is checked again if nothing signals its change.
const POLL: Duration = Duration::from_millis(1);

/// How long a pool thread waits for a lock on another node before it checks whether a task still wants the lock.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How much time after the deadline a caller spends to learn which node owns the lock.
const NAMING: Duration = Duration::from_millis(20);

/// Tells the locks that a node knows apart: by the address of the lock's words, or by its name.
pub(super) type Which = Locality<usize, Arc<str>>;

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Lock {
    /// The handle of an opened lock, for use by this node.
    pub(super) fn of(node: &Node, name: &str, opened: Opened) -> Result<Lock> {
        let base = OwnerId::thread(node.id(), node.incarnation(), 0).bits();
        Ok(Lock { node: node.clone(), opened, name: name.into(), base, threads: u32::MAX })
    }

    /// The lock's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same lock, but owned under a number of the program in place of the calling thread's number. Any thread that uses
    /// this handle is the same owner. The number, the node and its incarnation together are unique in the domain. Only the
    /// lower 19 bits of the number count.
    ///
    /// Two threads that use one number still exclude each other: the second gets [`LockError::AlreadyYours`].
    ///
    /// Each number is an owner of its own, which limits the search for [deadlocks](LockError::Deadlock). A deadlock is found only
    /// if each owner in it holds a lock and waits for the next one under the same number. A thread that holds one lock under
    /// its thread's number and waits for another under a number of the program counts as two owners.
    pub fn with_id(&self, number: u32) -> Lock {
        let base = OwnerId::user(self.node.id(), self.node.incarnation(), number).bits();
        Lock { base, threads: 0, ..self.clone() }
    }

    /// The value that the lock has while the calling thread owns it.
    #[inline(always)]
    pub fn my_id(&self) -> OwnerId {
        OwnerId::numbered(self.base, Token::current().number() & self.threads)
    }

    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    /// The state that the handles of the node share.
    #[inline(always)]
    pub(super) fn shared(&self) -> &Arc<Shared> {
        shared_of(&self.node)
    }

    /// The lock's words if they are in memory that this node shares, or the handle for requests if not.
    #[inline(always)]
    fn reach(&self, operation: &'static str) -> Result<Locality<Key<'_>, &FarKey>> {
        self.shared().usable()?;
        match &self.opened {
            Locality::Near(key) if key.get().is_current() => Ok(Locality::Near(key.get())),
            Locality::Near(_) => Err(self.gone(operation)),
            Locality::Far(far) => Ok(Locality::Far(far)),
        }
    }

    /// Locks by the shortest path. False, and nothing changed, if the process was forked, the node has left, the lock is on
    /// another node, or it is not free.
    #[inline(always)]
    fn take_free(&self, me: OwnerId) -> bool {
        let Locality::Near(key) = &self.opened else { return false };
        let key = key.get();
        !key.is_forked() && !self.shared().is_closed() && key.take_free(me)
    }

    /// Unlocks by the shortest path. False, and nothing changed, if the lock is on another node, or is frozen or damaged.
    #[inline(always)]
    pub(super) fn release_unmarked(&self, me: OwnerId) -> bool {
        let Locality::Near(key) = &self.opened else { return false };
        key.get().release_unmarked(me)
    }

    #[cold]
    fn gone(&self, operation: &'static str) -> Error {
        fault(operation, &self.name, LockError::Destroyed)
    }

    /// Executes an operation where the registry is, and returns the answer.
    fn deed(&self, operation: &'static str, deed: Deed, deadline: Option<Instant>) -> Result<Answer> {
        match self.reach(operation)? {
            Locality::Far(far) => far.do_deed(self.shared(), operation, deed, deadline),
            Locality::Near(key) => match perform(key, PeerId::from(self.shared().membership()), deed) {
                Ok(Answer::Trouble(trouble)) => Err(error_of(self.shared(), operation, &self.name, trouble)),
                answer => answer.map_err(|_| Error::Cancelled),
            },
        }
    }

    /// Changes this node's note of a lock elsewhere, for the case that another node becomes coordinator.
    fn note(&self, note: impl FnOnce(&mut Entry)) -> Result<()> {
        self.opened.far().map_or(Ok(()), |far| far.note(self.shared(), note))
    }

    /// Removes that note.
    fn close(&self, operation: &'static str) -> Result<()> {
        let Locality::Far(far) = &self.opened else { return Ok(()) };
        locks(self.shared(), operation, |locks| locks.mail.close(&far.name))
    }

    /// What the registry records of the lock: its resource, value, users and waiters. Over the network at most 32 users and 32
    /// waiters are listed.
    ///
    /// If the registry is on another node, this call and the ones below wait for the reply of its coordinator. If the
    /// coordinator dies meanwhile, they ask the next one.
    ///
    /// # Errors
    /// [`LockError::Destroyed`], [`Error::Closed`], [`Error::Forked`], [`Error::Reentrant`].
    pub fn facts(&self) -> Result<LockFacts> {
        match self.reach("look at")? {
            Locality::Near(key) => key.facts().ok_or_else(|| self.gone("look at")),
            Locality::Far(far) => match self.deed("look at", Deed::Facts, None)? {
                Answer::Facts(facts) => Ok(facts.of(far.at().place(), &self.name)),
                _ => Err(odd(&self.name)),
            },
        }
    }

    /// The resource that the lock guards.
    ///
    /// # Errors
    /// As [`facts`](Self::facts).
    pub fn resource(&self) -> Result<Resource> {
        Ok(self.facts()?.resource)
    }

    /// The value of the lock now. Costs one load, or one round trip if the registry is on another node.
    ///
    /// # Errors
    /// As [`facts`](Self::facts).
    #[inline]
    pub fn get(&self) -> Result<Value> {
        Ok(self.seen()?.value())
    }

    fn seen(&self) -> Result<Seen> {
        match self.reach("read")? {
            Locality::Near(key) => Ok(key.words().get()),
            Locality::Far(_) => match self.deed("read", Deed::Get, None)? {
                Answer::Seen(bits) => Ok(Seen::from_bits(bits)),
                _ => Err(odd(&self.name)),
            },
        }
    }

    /// Changes the value from `expected` to `new` by compare-and-swap. `None` means unlocked.
    ///
    /// A caller that sets the value to its own identification owns the lock until it sets the value back or calls
    /// [`unlock`](Self::unlock). It may also set the value to another identification of the same incarnation of this node,
    /// which hands the lock to another thread.
    ///
    /// # Errors
    /// [`LockError::Otherwise`]: the lock had another value, or is reserved for a waiter that has waited long; nothing changed.
    /// [`LockError::NotYours`]: `expected` is neither the caller's own [identification](Self::my_id) nor a
    /// [number](Self::with_id) of this program, or `new` is not an identification of this incarnation of this node. Else as [`facts`](Self::facts).
    pub fn set(&self, expected: Option<OwnerId>, new: Option<OwnerId>) -> Result<()> {
        let me = self.my_id();
        // A thread that could reset another thread's lock would let a third thread in beside the second. A number of the
        // program belongs to any thread that names it.
        let is_of_node = |id: OwnerId| (id.node(), id.incarnation()) == (me.node(), me.incarnation());
        let is_mine = |id: OwnerId| id == me || id.is_users() && is_of_node(id);
        let foreign = expected.filter(|id| !is_mine(*id)).or(new.filter(|id| !is_of_node(*id)));
        if let Some(foreign) = foreign {
            return Err(fault("set", &self.name, LockError::NotYours(Value::Owner(foreign))));
        }
        let [expected, new] = [expected, new].map(|id| id.map_or(0, OwnerId::bits));
        // The note is removed before the request goes out, as with every unlock, and restored if the request failed.
        let mut gave_up = false;
        if new == 0 {
            self.note(|entry| {
                gave_up = entry.owner == expected && expected != 0;
                if gave_up {
                    (entry.owner, entry.dead) = (0, 0);
                }
            })?;
        }
        let done = self.deed("set", Deed::Set { expected, new }, None).map(drop);
        if done.is_err() && gave_up {
            self.note(|entry| entry.owner = expected)?;
        }
        done
    }

    /// Locks if the lock is free, and returns its value if not. Never waits for the lock. If the registry is on another node,
    /// it waits for the coordinator's reply.
    ///
    /// # Errors
    /// As [`facts`](Self::facts).
    #[inline(always)]
    pub fn try_lock(&self) -> Result<TryLock<'_>> {
        let me = self.my_id();
        if self.take_free(me) { Ok(TryLock::Locked(LockGuard::new(self, me, 0))) } else { self.try_slowly(me) }
    }

    #[cold]
    #[inline(never)]
    fn try_slowly(&self, me: OwnerId) -> Result<TryLock<'_>> {
        match self.reach("lock")? {
            Locality::Near(key) => match waiting::try_take(key.words(), me) {
                Ok(taken) => self.taken(key, me, taken).map(TryLock::Locked),
                Err(seen) => Ok(TryLock::Busy(seen.value())),
            },
            Locality::Far(far) if self.has_far(far, me)? => Ok(TryLock::Busy(Value::Owner(me))),
            Locality::Far(_) => match self.deed("lock", Deed::Try { me: me.bits() }, None)? {
                Answer::Busy(bits) => Ok(TryLock::Busy(Seen::from_bits(bits).value())),
                answer => self.taken_far(me, answer).map(TryLock::Locked),
            },
        }
    }

    /// Locks; waits as long as it takes.
    ///
    /// An uncontended lock costs a compare-and-swap, the load that reads the value back, and some loads of lines that are not
    /// written meanwhile; or one round trip to the coordinator. A contended lock makes the thread spin, yield and park, like a
    /// wait for a message.
    ///
    /// # Errors
    /// [`LockError::Deadlock`]: the owners that this caller would wait for wait for this caller. [`LockError::AlreadyYours`],
    /// [`LockError::Destroyed`], [`Error::Closed`], [`Error::Forked`], [`Error::Reentrant`].
    #[inline(always)]
    pub fn lock(&self) -> Result<LockGuard<'_>> {
        self.lock_at_most(None)
    }

    /// As [`lock`](Self::lock), but waits until `deadline` at most.
    ///
    /// # Errors
    /// As [`lock`](Self::lock). [`Error::Timeout`] names the node that owns the lock, or the coordinator that did not reply.
    #[inline(always)]
    pub fn lock_until(&self, deadline: Instant) -> Result<LockGuard<'_>> {
        self.lock_at_most(Some(deadline))
    }

    #[inline(always)]
    fn lock_at_most(&self, deadline: Option<Instant>) -> Result<LockGuard<'_>> {
        let me = self.my_id();
        if self.take_free(me) { Ok(LockGuard::new(self, me, 0)) } else { self.lock_slowly(me, deadline) }
    }

    #[cold]
    #[inline(never)]
    fn lock_slowly(&self, me: OwnerId, deadline: Option<Instant>) -> Result<LockGuard<'_>> {
        let key = match self.reach("lock")? {
            Locality::Near(key) => key,
            Locality::Far(far) => return self.lock_far(far, me, deadline),
        };
        let taken = match key.words().try_take(me, 0) {
            Ok(taken) => taken,
            Err(_) => self.want(key, me, None).wait(deadline)?,
        };
        self.taken(key, me, taken)
    }

    fn want<'a>(&'a self, key: Key<'a>, me: OwnerId, withdrawn: Option<&'a AtomicBool>) -> Want<'a> {
        Want { shared: self.shared(), key, name: &self.name, me, withdrawn }
    }

    /// As [`lock`](Self::lock), for a pool thread that waits on behalf of tasks. Returns `None` once `withdrawn` says that no
    /// task wants the lock. If the registry is on another node, the thread checks this from time to time, and goes to the end
    /// of the queue each time.
    pub(super) fn lock_unless(&self, withdrawn: &AtomicBool) -> Result<Option<LockGuard<'_>>> {
        let me = self.my_id();
        if self.take_free(me) {
            return Ok(Some(LockGuard::new(self, me, 0)));
        }
        match self.reach("lock")? {
            Locality::Near(key) => match self.want(key, me, Some(withdrawn)).wait(None) {
                Err(Error::Cancelled) => Ok(None),
                taken => self.taken(key, me, taken?).map(Some),
            },
            Locality::Far(far) => loop {
                match self.lock_far(far, me, Some(world::now() + LOOK_AGAIN)) {
                    Err(Error::Timeout { .. }) if !withdrawn.load(Ordering::Acquire) => {}
                    Err(Error::Timeout { .. }) => return Ok(None),
                    answer => return answer.map(Some),
                }
            },
        }
    }

    /// Tells this lock apart from the others that the node knows.
    pub(super) fn which(&self) -> Which {
        match &self.opened {
            Locality::Near(key) => Locality::Near(std::ptr::from_ref(key.get().words()).addr()),
            Locality::Far(_) => Locality::Far(self.name.clone()),
        }
    }

    #[cold]
    fn lock_far(&self, far: &FarKey, me: OwnerId, deadline: Option<Instant>) -> Result<LockGuard<'_>> {
        if self.has_far(far, me)? {
            return Err(fault("lock", &self.name, LockError::AlreadyYours));
        }
        match self.deed("lock", Deed::Lock { me: me.bits() }, deadline) {
            // The coordinator did not reply in time. A little more time is spent to name the owner in the error.
            Err(Error::Timeout { operation, node }) => {
                let node = match self.deed("read", Deed::Get, Some(world::now() + NAMING)) {
                    Ok(Answer::Seen(bits)) => Seen::from_bits(bits).owner().map(OwnerId::node),
                    _ => node,
                };
                Err(Error::Timeout { operation, node })
            }
            answer => self.taken_far(me, answer?),
        }
    }

    /// Whether this node has noted that the caller owns a lock of another node's registry.
    fn has_far(&self, far: &FarKey, me: OwnerId) -> Result<bool> {
        locks(self.shared(), "lock", |locks| locks.mail.entry(&far.name).is_some_and(|entry| entry.owner == me.bits()))
    }

    /// Locks by polling: tries again after each `pause`, until `deadline`. The caller does not stand in the queue, so waiters
    /// that do can pass it for ever.
    ///
    /// # Errors
    /// As [`lock_until`](Self::lock_until), but deadlocks are not found.
    pub fn lock_every(&self, pause: Duration, deadline: Instant) -> Result<LockGuard<'_>> {
        self.poll(pause, deadline, || {
            let value = match self.try_lock()? {
                TryLock::Locked(guard) => return Ok(Ok(guard)),
                TryLock::Busy(value) => value,
            };
            let owner = if let Value::Owner(owner) = value { Some(owner) } else { None };
            let (me, place) = (self.my_id(), self.reach("lock")?);
            let is_noted = match place {
                Locality::Near(_) => true,
                // Without the note, a wait of this owner that is over may be about to give the lock back.
                Locality::Far(far) => self.has_far(far, me)?,
            };
            if owner == Some(me) && is_noted {
                return Err(fault("lock", &self.name, LockError::AlreadyYours));
            }
            if let Locality::Near(key) = place {
                let seen = key.words().get();
                if seen.owner().is_some_and(|owner| !lives(self.shared(), owner)) {
                    key.bury(seen);
                    if let TryLock::Locked(guard) = self.try_lock()? {
                        return Ok(Ok(guard));
                    }
                }
            }
            Ok(Err(Error::Timeout { operation: "lock", node: owner.map(OwnerId::node) }))
        })
    }

    /// Looks again after each `pause`, and turns the engine before. A look returns a value, or the error for the case that the
    /// deadline has passed.
    fn poll<T>(&self, pause: Duration, deadline: Instant, mut look: impl FnMut() -> Result<Result<T>>) -> Result<T> {
        loop {
            let found = look()?;
            let now = world::now();
            if found.is_ok() || now >= deadline {
                return found;
            }
            self.node.progress()?;
            world::sleep(pause.min(deadline - now));
        }
    }

    /// The guard of a lock that was just taken, or an error if the lock was destroyed at the same moment.
    fn taken(&self, key: Key<'_>, me: OwnerId, taken: Taken) -> Result<LockGuard<'_>> {
        if !key.is_current() {
            let _ = key.words().release(me);
            return Err(self.gone("lock"));
        }
        let dead = if taken.damaged { key.dead().map_or(0, OwnerId::bits) } else { 0 };
        Ok(LockGuard::new(self, me, dead))
    }

    /// The guard of a lock of another node's registry, if that is the answer.
    fn taken_far(&self, me: OwnerId, answer: Answer) -> Result<LockGuard<'_>> {
        let Answer::Taken { damaged, dead } = answer else { return Err(odd(&self.name)) };
        let dead = if damaged { dead } else { 0 };
        // The note may exist already: the answer's arrival writes it too.
        self.note(|entry| (entry.owner, entry.dead) = (me.bits(), dead))?;
        Ok(LockGuard::new(self, me, dead))
    }

    /// Releases a lock that the caller's identification owns, by [`set`](Self::set) or [`keep`](LockGuard::keep).
    ///
    /// # Errors
    /// [`LockError::NotYours`]: the lock has another value, and nothing changed.
    pub fn unlock(&self) -> Result<()> {
        self.release_as(self.my_id())
    }

    /// Releases a lock, and fails if the caller did not own it.
    pub(super) fn release_as(&self, me: OwnerId) -> Result<()> {
        match &self.opened {
            Locality::Near(key) => self.release_near(key.get(), me),
            Locality::Far(far) => far.unlock(self.shared(), me),
        }
    }

    /// Releases a lock at the end of a guard. Does not wait for another node.
    pub(super) fn give_up(&self, me: OwnerId) -> Result<()> {
        match &self.opened {
            Locality::Near(key) => self.release_near(key.get(), me),
            Locality::Far(far) => far.give_up(self.shared(), me),
        }
    }

    /// Releases a lock on a pool thread, for a caller inside the engine.
    pub(super) fn give_up_later(&self, me: OwnerId) {
        let key = self.clone();
        // Not on the threads that wait for locks: all of them may be busy until this is done.
        self.shared().copiers().submit(Box::new(move || drop(key.give_up(me))));
    }

    fn release_near(&self, key: Key<'_>, me: OwnerId) -> Result<()> {
        // A child process does not own the lock: the parent does.
        if key.is_forked() {
            return Err(Error::Forked);
        }
        // The words may belong to another lock by now, which the same thread owns.
        if !key.is_current() {
            return Err(self.gone("unlock"));
        }
        key.words().release(me).map_err(|seen| if key.is_current() { not_yours(self, seen) } else { self.gone("unlock") })
    }

    pub(super) fn repair(&self, me: OwnerId) -> Result<()> {
        self.deed("repair", Deed::Repair { me: me.bits() }, None)?;
        self.note(|entry| entry.dead = 0)
    }

    /// Freezes the lock: no thread can lock it until some thread calls [`unlock_all`](Self::unlock_all), even after this node
    /// is gone. The present owner keeps the lock until it unlocks, dies or leaves. This call waits for that, until `deadline`.
    ///
    /// # Errors
    /// [`Error::Timeout`] names the node that still owns the lock; the lock is no longer frozen.
    /// [`LockError::Frozen`]: it was frozen already. [`LockError::Otherwise`]: a thread called `unlock_all` before this call
    /// returned.
    pub fn lock_all(&self, deadline: Instant) -> Result<()> {
        let Answer::Frozen { first } = self.deed("lock_all", Deed::Bar, Some(deadline))? else { return Err(odd(&self.name)) };
        if !first {
            return Err(fault("lock_all", &self.name, LockError::Frozen));
        }
        self.note(|entry| entry.frozen = true)?;
        let waited = match self.reach("lock_all")? {
            Locality::Near(key) => self.want(key, self.my_id(), None).wait_empty(deadline),
            Locality::Far(_) => self.poll_empty(deadline),
        };
        // If another thread has ended this freeze, `unlock_all` could end a later one that belongs to another caller.
        let is_over = waited.as_ref().is_err_and(|error| error.downcast_ref::<LockError>().is_some());
        if waited.is_err() && !is_over {
            let _ = self.unlock_all();
        }
        waited
    }

    /// Polls until the present owner has released the lock.
    fn poll_empty(&self, deadline: Instant) -> Result<()> {
        self.poll(POLL, deadline, || {
            let seen = self.seen()?;
            if !seen.is_frozen() {
                return Err(fault("lock_all", &self.name, LockError::Otherwise(seen.value())));
            }
            let late = |owner: OwnerId| Err(Error::Timeout { operation: "lock_all", node: Some(owner.node()) });
            Ok(seen.owner().map_or(Ok(()), late))
        })
    }

    /// Ends a freeze by [`lock_all`](Self::lock_all), whichever node began it.
    ///
    /// # Errors
    /// [`LockError::NotYours`]: the lock was not frozen, and nothing changed.
    pub fn unlock_all(&self) -> Result<()> {
        self.deed("unlock_all", Deed::Thaw, None)?;
        self.note(|entry| entry.frozen = false)
    }

    /// Ends this node's use of the lock, so that another node may [destroy](Self::destroy) it. Other handles on this node stay
    /// valid.
    ///
    /// # Errors
    /// As [`facts`](Self::facts).
    pub fn release(self) -> Result<()> {
        self.deed("release", Deed::Release, None)?;
        self.close("release")
    }

    /// Destroys the lock for all nodes. Waits, until `deadline`, until the other nodes that use it have
    /// [released](Self::release) it or died. Waiters, and callers with an old handle, get [`LockError::Destroyed`].
    ///
    /// # Errors
    /// [`LockError::InUse`] names the nodes that still use it at the deadline. [`LockError::Otherwise`]: another owner holds it.
    pub fn destroy(self, deadline: Instant) -> Result<()> {
        let (shared, me) = (self.shared(), self.my_id());
        let living = || -> Result<Vec<NodeId>> {
            Ok(shared.living_members(shared.check()?).into_iter().map(|member| member.id).collect())
        };
        let facts = self.poll(POLL, deadline, || {
            let (facts, living) = (self.facts()?, living()?);
            let is_other = |node: &NodeId| *node != self.node.id() && living.contains(node);
            let others: Vec<_> = facts.users.iter().copied().filter(is_other).collect();
            Ok(if others.is_empty() { Ok(facts) } else { Err(fault("destroy", &self.name, LockError::InUse(others))) })
        })?;
        if let Some(owner) = facts.seen.owner().filter(|owner| *owner != me)
            && living()?.contains(&owner.node())
        {
            return Err(fault("destroy", &self.name, LockError::Otherwise(Value::Owner(owner))));
        }
        match self.reach("destroy")? {
            Locality::Near(key) => match destroy(key, Some(me))? {
                Answer::Trouble(trouble) => Err(error_of(shared, "destroy", &self.name, trouble)),
                _ => Ok(()),
            },
            Locality::Far(_) => {
                self.deed("destroy", Deed::Destroy { me: me.bits() }, Some(world::now() + PATIENCE))?;
                self.close("destroy")
            }
        }
    }
}
