//! A node's access to the lock registry of its domain.

use super::{Member, Membership};
use crate::error::ShmError;
use crate::keys::{Deadlock, Look, Taken, Waiter};
use crate::keys::{KeyRef, LockFacts, LockWords, OwnerId, Resource, Seen, Slot, Waiting};
use crate::layout::{HEADER_BYTES, SegmentHeader, SegmentKind};
use crate::space::fork_word;
use doorbell_fabric::{Incarnation, NodeId};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// A lock of the registry in this node's domain segment.
#[derive(Clone, Copy)]
pub struct Key<'a> {
    membership: &'a Membership,
    slot: &'a Slot,
    /// The word is 0 in a forked child.
    alive: &'static AtomicU32,
    key: KeyRef,
}

/// A lock without a lifetime: it keeps the domain segment mapped.
#[derive(Clone)]
pub struct OpenKey {
    membership: Arc<Membership>,
    slot: NonNull<Slot>,
    alive: &'static AtomicU32,
    key: KeyRef,
}

// SAFETY: the slot consists of atomics, and the membership held beside it keeps it mapped.
unsafe impl Send for OpenKey {}
// SAFETY: as above.
unsafe impl Sync for OpenKey {}

impl OpenKey {
    /// The lock at this place, or `None` if it was destroyed.
    pub fn new(membership: Arc<Membership>, key: KeyRef) -> Option<Self> {
        let slot = NonNull::from(membership.key(key)?.slot);
        Some(Self { membership, slot, alive: fork_word(), key })
    }

    /// Borrows the lock to use it.
    #[inline(always)]
    pub fn get(&self) -> Key<'_> {
        // SAFETY: a slot of the domain segment of this membership, which keeps it mapped.
        Key { membership: &self.membership, slot: unsafe { self.slot.as_ref() }, alive: self.alive, key: self.key }
    }
}

impl Membership {
    /// Creates a lock. Blocks on the domain's lock file until the deadline.
    ///
    /// # Errors
    /// [`ShmError::Key`]: the name is taken or invalid, or the registry is full.
    pub fn init_key(&self, name: &str, resource: Resource, deadline: Instant) -> Result<KeyRef, ShmError> {
        self.init_key_for((self.id(), self.incarnation()), name, resource, deadline)
    }

    /// Creates a lock on behalf of a node that shares no memory with this one.
    ///
    /// # Errors
    /// The same as for [`init_key`](Self::init_key).
    pub fn init_key_for(
        &self,
        creator: (NodeId, Incarnation),
        name: &str,
        resource: Resource,
        deadline: Instant,
    ) -> Result<KeyRef, ShmError> {
        const OPERATION: &str = "create a lock in";
        let _lock = self.lock_domain(OPERATION, "create a lock", deadline)?;
        let made = self.directory().keys().init(name, resource, creator);
        made.map_err(|fault| ShmError::Key { domain: self.domain().to_owned(), fault })
    }

    /// The lock with this name.
    pub fn find_key(&self, name: &str) -> Option<KeyRef> {
        self.directory().keys().find(name)
    }

    /// All locks of the registry in this node's domain segment.
    pub fn keys(&self) -> Vec<LockFacts> {
        self.directory().keys().all()
    }

    /// If this node's domain segment holds the registry: its term (how often it has moved) and its coordinator.
    pub fn seat(&self) -> Option<(u64, Option<(NodeId, Incarnation)>)> {
        let keys = self.directory().keys();
        Some((keys.seat().term()?, keys.seat().home()))
    }

    /// Makes this node the coordinator in place of a dead incarnation. Returns false if another node was faster.
    pub fn take_home(&self, was: Option<(NodeId, Incarnation)>) -> bool {
        self.directory().keys().seat().take(was, (self.id(), self.incarnation()))
    }

    /// Records whether this node serves an incarnation of a node that shares no memory with it, and will notice its end.
    pub fn serve(&self, node: NodeId, incarnation: Incarnation, is_served: bool) {
        let seat = self.directory().keys().seat();
        if is_served {
            // Shared memory itself tells about the nodes that share it.
            if self.directory().incarnation(node) != Some(incarnation) {
                seat.serve(node, incarnation);
            }
        } else if seat.serves(node, incarnation) {
            seat.serve(node, Incarnation(0));
        }
    }

    /// Whether the coordinator of the registry lives and other nodes can reach it.
    pub fn is_home_living(&self) -> bool {
        let home = self.directory().keys().seat().home();
        let member = home.and_then(|(node, incarnation)| self.member(node).filter(|member| member.incarnation == incarnation));
        member.is_some_and(|member| self.is_heir(&member))
    }

    /// Another living node that could become the coordinator.
    pub fn other_heir(&self) -> Option<(NodeId, Incarnation)> {
        let heir = self.members().into_iter().find(|member| member.id != self.id() && self.is_heir(member));
        heir.map(|member| (member.id, member.incarnation))
    }

    /// Whether a node lives and could become the coordinator.
    fn is_heir(&self, member: &Member) -> bool {
        member.networked && self.is_living(member.id, member.incarnation)
    }

    /// The incarnations that the coordinator serves.
    pub fn served(&self) -> Vec<(NodeId, Incarnation)> {
        self.directory().keys().seat().all_served(self.max_nodes())
    }

    /// Moves the registry into this node's domain segment, with the known state of its locks. This node becomes the coordinator
    /// if it has a network. Returns false if the registry is here already, or if there is no room for a lock that is held. Blocks
    /// on the domain's lock file until the deadline.
    ///
    /// # Errors
    /// The same as for [`init_key`](Self::init_key).
    pub fn found_registry(&self, term: u64, known: &[Restored], deadline: Instant) -> Result<bool, ShmError> {
        const OPERATION: &str = "move the lock registry into";
        let _lock = self.lock_domain(OPERATION, "move the lock registry", deadline)?;
        let keys = self.directory().keys();
        if keys.seat().term().is_some() {
            return Ok(false);
        }
        let (held, free): (Vec<_>, Vec<_>) = known.iter().partition(|key| key.owner.is_some());
        for key in held.into_iter().chain(free) {
            let me = (self.id(), self.incarnation());
            let place = keys.find(&key.name).or_else(|| keys.init(&key.name, key.resource, me).ok());
            let Some(slot) = place.and_then(|place| keys.slot(place.slot)) else {
                if key.owner.is_some() {
                    return Ok(false);
                }
                continue;
            };
            if let Some(owner) = key.owner {
                let _ = slot.words.set(None, Some(owner));
                slot.set_user(owner.node(), true);
            }
            if let Some(dead) = key.dead {
                slot.set_dead(dead);
                slot.words.damage();
            }
            if key.frozen {
                slot.words.freeze();
            }
        }
        if self.me().networked {
            keys.seat().take(keys.seat().home(), (self.id(), self.incarnation()));
        }
        keys.seat().set_term(term);
        Ok(true)
    }

    /// The lock at this place, or `None` if it was destroyed.
    #[inline(always)]
    pub fn key(&self, key: KeyRef) -> Option<Key<'_>> {
        let slot = self.directory().keys().slot(key.slot)?;
        slot.is_current(key.generation).then_some(Key { membership: self, slot, alive: fork_word(), key })
    }

    /// Whether an incarnation of a node lives, according to the system or to the coordinator that serves it. Makes some system
    /// calls. If the system does not answer, the node counts as alive.
    pub fn is_living(&self, node: NodeId, incarnation: Incarnation) -> bool {
        if (node, incarnation) == (self.id(), self.incarnation()) {
            return !self.has_left();
        }
        if self.directory().incarnation(node) != Some(incarnation) {
            // A node that is served over a network counts as alive as long as a coordinator or a possible successor can notice
            // its death.
            let seat = self.directory().keys().seat();
            return seat.serves(node, incarnation)
                && (self.is_home_living() || self.members().iter().any(|member| self.is_heir(member)));
        }
        let file = match self.space().open(&self.names().inbox(node)) {
            Ok(Some(file)) => file,
            // The node is dead and its files were removed in part, or it has left.
            Ok(None) => return false,
            Err(_) => return true,
        };
        let Ok(true) = file.is_held() else { return file.is_held().is_err() };
        // A successor may have taken the name since the directory was read.
        let Ok(header) = file.map_read(0, HEADER_BYTES) else { return true };
        // SAFETY: page-aligned, and mapped for its length.
        let facts = unsafe { SegmentHeader::check(header.ptr(), header.len(), file.len() as usize, SegmentKind::Inbox) };
        facts.is_ok_and(|facts| facts.incarnation == incarnation.0)
    }

    /// Enters the waiter in the list of waiters, and returns the deadlock that it completes, if any. Only the last waiter of a
    /// deadlock completes it.
    pub fn circle(&self, waiter: &mut Waiter<'_>) -> Option<Deadlock> {
        let keys = self.directory().keys();
        let circle = keys.waits().circle(waiter.enter()?, |slot| keys.seen(slot))?;
        // The waiter for a dead owner's lock inherits it, which breaks the cycle. So only a cycle of living owners is a deadlock.
        circle.iter().all(|waiting| self.is_living(waiting.who.node(), waiting.who.incarnation())).then_some(circle)
    }

    /// The name of the lock that a waiter waits for.
    pub fn name_of(&self, waiting: &Waiting) -> Option<String> {
        Some(self.directory().keys().facts(waiting.slot as u16)?.name)
    }
}

impl<'a> Key<'a> {
    /// Its place in the registry.
    pub fn place(&self) -> KeyRef {
        self.key
    }

    /// The lock words.
    #[inline(always)]
    pub fn words(&self) -> &'a LockWords {
        &self.slot.words
    }

    /// Whether this process is a forked child, whose locks belong to its parent. One load.
    #[inline(always)]
    pub fn is_forked(&self) -> bool {
        !cfg!(miri) && self.alive.load(Ordering::Relaxed) == 0
    }

    /// The fast path: takes the lock if it is free and sound, and no waiter is due. Otherwise changes nothing.
    #[inline(always)]
    pub fn take_free(&self, me: OwnerId) -> bool {
        if self.slot.words.take_free(me) {
            if self.is_current() {
                return true;
            }
            // The lock was destroyed, and its words belong to another lock now.
            let _ = self.slot.words.release(me);
        }
        false
    }

    /// The fast path: releases a lock that carries no marks. Otherwise changes nothing.
    #[inline(always)]
    pub fn release_unmarked(&self, me: OwnerId) -> bool {
        !self.is_forked() && self.is_current() && self.slot.words.release_unmarked(me)
    }

    /// Whether the lock still exists.
    #[inline(always)]
    pub fn is_current(&self) -> bool {
        self.slot.is_current(self.key.generation)
    }

    /// The state of the lock, or `None` if it was destroyed.
    pub fn facts(&self) -> Option<LockFacts> {
        self.membership.directory().keys().facts(self.key.slot).filter(|facts| facts.key == self.key)
    }

    /// The owner that died and left the resource damaged.
    pub fn dead(&self) -> Option<OwnerId> {
        self.slot.dead()
    }

    /// Joins the end of the waiting line.
    pub fn wait(&self, me: OwnerId) -> Waiter<'a> {
        Waiter::new(&self.slot.words, self.membership.directory().keys().waits(), self.key.slot as usize, me)
    }

    /// Takes the lock of a dead owner for a waiter. Records the dead owner before any other thread can take the lock.
    pub fn inherit(&self, waiter: &mut Waiter<'_>, seen: Seen) -> Look {
        let Some(dead) = seen.owner() else { return Look::Not(seen) };
        if seen.is_frozen() {
            self.bury(seen);
            return Look::Not(self.slot.words.get());
        }
        if !waiter.take_from_dead(seen) {
            return Look::Not(self.slot.words.get());
        }
        fault_point!("key.inherited");
        self.slot.set_dead(dead);
        Look::Taken(Taken { damaged: true })
    }

    /// Takes the lock away from a dead owner without giving it to another. It stays free or frozen, and damaged. Returns false
    /// if it changed meanwhile.
    pub fn bury(&self, seen: Seen) -> bool {
        let Some(dead) = seen.owner() else { return false };
        self.slot.set_dead(dead);
        self.slot.words.let_go_dead(seen)
    }

    /// Records whether a node uses the lock.
    pub fn set_user(&self, node: NodeId, uses: bool) {
        self.slot.set_user(node, uses);
    }

    /// Destroys the lock, unless another living owner holds it; then returns that owner. Blocks on the domain's lock file until
    /// the deadline. Waiters are told.
    ///
    /// # Errors
    /// [`ShmError::LockTimeout`], [`ShmError::Left`], [`ShmError::Forked`].
    pub fn destroy(&self, me: Option<OwnerId>, deadline: Instant) -> Result<Option<OwnerId>, ShmError> {
        const OPERATION: &str = "destroy a lock of";
        let _lock = self.membership.lock_domain(OPERATION, "destroy a lock", deadline)?;
        if !self.is_current() {
            return Ok(None);
        }
        // From here on no thread can take the lock.
        let (seen, first) = self.slot.words.freeze();
        let lives = |owner: &OwnerId| Some(*owner) != me && self.membership.is_living(owner.node(), owner.incarnation());
        if let Some(owner) = seen.owner().filter(lives) {
            if first {
                self.slot.words.thaw();
            }
            return Ok(Some(owner));
        }
        self.slot.destroy(self.key.generation);
        Ok(None)
    }
}

/// The known state of a lock when the registry moves to another shared-memory group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Its name.
    pub name: String,
    /// The resource that it guards.
    pub resource: Resource,
    /// Its living owner.
    pub owner: Option<OwnerId>,
    /// The owner that died, or may have died, while holding it.
    pub dead: Option<OwnerId>,
    /// Whether its module froze it.
    pub frozen: bool,
}
