//! The lock registry, as a node of the domain uses it.

use super::Membership;
use crate::error::ShmError;
use crate::keys::{Circle, Look, Taken, Waiter};
use crate::keys::{KeyFacts, KeyRef, LockWords, OwnerId, Resource, Seen, Slot, Waiting};
use crate::layout::{HEADER_BYTES, SegmentHeader, SegmentKind};
use crate::space::{fork_word, forked};
use doorbell_fabric::{Incarnation, NodeId};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// A key of the registry in this node's domain segment, looked up.
#[derive(Clone, Copy)]
pub struct Key<'a> {
    membership: &'a Membership,
    slot: &'a Slot,
    /// 0 in a forked child.
    alive: &'static AtomicU32,
    key: KeyRef,
}

/// The same, for as long as one likes: it keeps the domain segment mapped.
#[derive(Clone)]
pub struct OpenKey {
    membership: Arc<Membership>,
    slot: NonNull<Slot>,
    alive: &'static AtomicU32,
    key: KeyRef,
}

// SAFETY: the slot consists of atomics, and is mapped as long as the membership that is held beside it.
unsafe impl Send for OpenKey {}
// SAFETY: as above.
unsafe impl Sync for OpenKey {}

impl OpenKey {
    /// The key in this place; `None` if it was destroyed.
    pub fn new(membership: Arc<Membership>, key: KeyRef) -> Option<Self> {
        let slot = NonNull::from(membership.key(key)?.slot);
        Some(Self { membership, slot, alive: fork_word(), key })
    }

    /// To do something with it.
    #[inline(always)]
    pub fn get(&self) -> Key<'_> {
        // SAFETY: a slot of the domain segment of this membership, which keeps it mapped.
        Key { membership: &self.membership, slot: unsafe { self.slot.as_ref() }, alive: self.alive, key: self.key }
    }
}

impl Membership {
    /// Makes a key. Blocks on the domain's lock file, until the deadline.
    ///
    /// # Errors
    /// [`ShmError::Key`]: there is one of that name, it is no name, or the registry is full.
    pub fn init_key(&self, name: &str, resource: Resource, deadline: Instant) -> Result<KeyRef, ShmError> {
        self.init_key_for((self.id(), self.incarnation()), name, resource, deadline)
    }

    /// The same on behalf of a node that shares no memory with this one.
    ///
    /// # Errors
    /// As [`init_key`](Self::init_key).
    pub fn init_key_for(
        &self,
        creator: (NodeId, Incarnation),
        name: &str,
        resource: Resource,
        deadline: Instant,
    ) -> Result<KeyRef, ShmError> {
        const OPERATION: &str = "make a key";
        self.check_key_call(OPERATION)?;
        let _lock = self.space().lock(OPERATION, self.names(), deadline)?;
        let made = self.directory().keys().init(name, resource, creator);
        made.map_err(|fault| ShmError::Key { domain: self.domain().to_owned(), fault })
    }

    fn check_key_call(&self, operation: &'static str) -> Result<(), ShmError> {
        if forked() {
            return Err(ShmError::Forked { operation });
        }
        if self.has_left() {
            return Err(ShmError::Left { operation, domain: self.domain().to_owned() });
        }
        Ok(())
    }

    /// The key of this name.
    pub fn find_key(&self, name: &str) -> Option<KeyRef> {
        self.directory().keys().find(name)
    }

    /// All keys of the registry in this node's domain segment.
    pub fn keys(&self) -> Vec<KeyFacts> {
        self.directory().keys().all()
    }

    /// Where the registry of this node's domain segment is, if it is here: how often it has moved, and its home.
    pub fn seat(&self) -> Option<(u64, Option<(NodeId, Incarnation)>)> {
        let keys = self.directory().keys();
        Some((keys.seat().term()?, keys.seat().home()))
    }

    /// Is home instead of a life of a node that has ended. False if another was faster.
    pub fn take_home(&self, was: Option<(NodeId, Incarnation)>) -> bool {
        self.directory().keys().seat().take(was, (self.id(), self.incarnation()))
    }

    /// Says that this node serves a life of a node that shares no memory with it, and knows when it ends; or that this has ended.
    pub fn serve(&self, node: NodeId, life: Incarnation, is_served: bool) {
        let seat = self.directory().keys().seat();
        if is_served {
            // Of those with whom memory is shared that memory tells.
            if self.directory().incarnation(node) != Some(life) {
                seat.serve(node, life);
            }
        } else if seat.serves(node, life) {
            seat.serve(node, Incarnation(0));
        }
    }

    /// Whether the home of the registry lives, and others can reach it.
    pub fn is_home_living(&self) -> bool {
        let home = self.directory().keys().seat().home();
        let member = home.and_then(|(node, life)| self.member(node).filter(|member| member.incarnation == life));
        member.is_some_and(|member| member.networked && self.is_living(member.id, member.incarnation))
    }

    /// Whether another node lives that could be home.
    pub fn has_other_heir(&self) -> bool {
        let members = self.members();
        let mut others = members.iter().filter(|member| member.id != self.id());
        others.any(|member| member.networked && self.is_living(member.id, member.incarnation))
    }

    /// Whether a node lives that could be home.
    fn has_heir(&self) -> bool {
        let members = self.members();
        members.iter().any(|member| member.networked && self.is_living(member.id, member.incarnation))
    }

    /// The lives of nodes that the home serves.
    pub fn served(&self) -> Vec<(NodeId, Incarnation)> {
        self.directory().keys().seat().all_served(self.max_nodes())
    }

    /// Brings the registry here, with this node as its home if it has a network, and with what is known of its keys. False if it is here already, or
    /// there is no room for a key that somebody has. Blocks on the domain's lock file, until the deadline.
    ///
    /// # Errors
    /// As [`init_key`](Self::init_key).
    pub fn found_registry(&self, term: u64, known: &[Restored], deadline: Instant) -> Result<bool, ShmError> {
        const OPERATION: &str = "bring the lock registry here";
        self.check_key_call(OPERATION)?;
        let _lock = self.space().lock(OPERATION, self.names(), deadline)?;
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
            if key.barred {
                slot.words.bar();
            }
        }
        if self.me().networked {
            keys.seat().take(keys.seat().home(), (self.id(), self.incarnation()));
        }
        keys.seat().set_term(term);
        Ok(true)
    }

    /// A key by its place; `None` if it was destroyed.
    #[inline(always)]
    pub fn key(&self, key: KeyRef) -> Option<Key<'_>> {
        let slot = self.directory().keys().slot(key.slot)?;
        slot.is_current(key.generation).then_some(Key { membership: self, slot, alive: fork_word(), key })
    }

    /// Whether a life of a node lives, as the system says, or the home of the registry vouches for it. Some system calls. Where the system does
    /// not answer it lives.
    pub fn is_living(&self, node: NodeId, life: Incarnation) -> bool {
        if (node, life) == (self.id(), self.incarnation()) {
            return !self.has_left();
        }
        if self.directory().incarnation(node) != Some(life) {
            // Who is served over a network lives as long as somebody is there to notice when it does not.
            let seat = self.directory().keys().seat();
            return seat.serves(node, life) && (self.is_home_living() || self.has_heir());
        }
        let file = match self.space().open(&self.names().inbox(node)) {
            Ok(Some(file)) => file,
            // It is dead and was swept in part, or has left.
            Ok(None) => return false,
            Err(_) => return true,
        };
        let Ok(true) = file.is_held() else { return file.is_held().is_err() };
        // A successor may have taken the name since the directory was read.
        let Ok(header) = file.map_read(0, HEADER_BYTES) else { return true };
        // SAFETY: page-aligned, and mapped for its length.
        let facts = unsafe { SegmentHeader::check(header.ptr(), header.len(), file.len() as usize, SegmentKind::Inbox) };
        facts.is_ok_and(|facts| facts.incarnation == life.0)
    }

    /// The circle that a wait closes, if it does and came last to it. Enters it among those who wait.
    pub fn circle(&self, waiter: &mut Waiter<'_>) -> Option<Circle> {
        let keys = self.directory().keys();
        let circle = keys.waits().circle(waiter.enter()?, |slot| keys.seen(slot))?;
        // What a dead one holds is inherited by who waits for it, which opens the circle.
        circle.iter().all(|waiting| self.is_living(waiting.who.node(), waiting.who.life())).then_some(circle)
    }

    /// The name of the key that somebody waits for.
    pub fn name_of(&self, waiting: &Waiting) -> Option<String> {
        Some(self.directory().keys().facts(waiting.slot as u16)?.name)
    }
}

impl<'a> Key<'a> {
    /// Its place.
    pub fn place(&self) -> KeyRef {
        self.key
    }

    /// The words that are locked.
    #[inline(always)]
    pub fn words(&self) -> &'a LockWords {
        &self.slot.words
    }

    /// Whether this process is a forked child, whose keys are its parent's. One load.
    #[inline(always)]
    pub fn is_forked(&self) -> bool {
        !cfg!(miri) && self.alive.load(Ordering::Relaxed) == 0
    }

    /// Takes the key if it is free, sound and nobody's turn: the shortest way. If not, nothing was done.
    #[inline(always)]
    pub fn take_free(&self, me: OwnerId) -> bool {
        if self.slot.words.take_free(me) {
            if self.is_current() {
                return true;
            }
            // It was destroyed, and its words are another key's.
            let _ = self.slot.words.release(me);
        }
        false
    }

    /// Gives up a key that was locked and is marked in no way: the shortest way. If not, nothing was done.
    #[inline(always)]
    pub fn release_unmarked(&self, me: OwnerId) -> bool {
        !self.is_forked() && self.is_current() && self.slot.words.release_unmarked(me)
    }

    /// Whether it was not destroyed meanwhile.
    #[inline(always)]
    pub fn is_current(&self) -> bool {
        self.slot.is_current(self.key.generation)
    }

    /// What is known of it; `None` if it was destroyed.
    pub fn facts(&self) -> Option<KeyFacts> {
        self.membership.directory().keys().facts(self.key.slot).filter(|facts| facts.key == self.key)
    }

    /// The owner that died and left the resource damaged.
    pub fn dead(&self) -> Option<OwnerId> {
        self.slot.dead()
    }

    /// Comes to the end of the line of those who wait for it.
    pub fn wait(&self, me: OwnerId) -> Waiter<'a> {
        Waiter::new(&self.slot.words, self.membership.directory().keys().waits(), self.key.slot as usize, me)
    }

    /// Takes the key of an owner whose life has ended, for one who waits. Says who died, before anybody else can come in.
    pub fn inherit(&self, waiter: &mut Waiter<'_>, seen: Seen) -> Look {
        let Some(dead) = seen.owner() else { return Look::Not(seen) };
        if seen.is_barred() {
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

    /// Lets nobody have the key of an owner whose life has ended: it stays free, or barred, and damaged. False if it changed meanwhile.
    pub fn bury(&self, seen: Seen) -> bool {
        let Some(dead) = seen.owner() else { return false };
        self.slot.set_dead(dead);
        self.slot.words.let_go_dead(seen)
    }

    /// Says that a node uses it, or does not any more.
    pub fn set_user(&self, node: NodeId, uses: bool) {
        self.slot.set_user(node, uses);
    }

    /// Ends it, unless somebody else has it who lives: says who. Blocks on the domain's lock file, until the deadline. Who waits for it is told.
    ///
    /// # Errors
    /// [`ShmError::LockTimeout`], [`ShmError::Left`], [`ShmError::Forked`].
    pub fn destroy(&self, me: Option<OwnerId>, deadline: Instant) -> Result<Option<OwnerId>, ShmError> {
        const OPERATION: &str = "destroy a key";
        self.membership.check_key_call(OPERATION)?;
        let _lock = self.membership.space().lock(OPERATION, self.membership.names(), deadline)?;
        if !self.is_current() {
            return Ok(None);
        }
        // From here on nobody comes in.
        let (seen, first) = self.slot.words.bar();
        let lives = |owner: &OwnerId| Some(*owner) != me && self.membership.is_living(owner.node(), owner.life());
        if let Some(owner) = seen.owner().filter(lives) {
            if first {
                self.slot.words.unbar();
            }
            return Ok(Some(owner));
        }
        self.slot.destroy(self.key.generation);
        Ok(None)
    }
}

/// What is known of a key when the registry comes to another group of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Its name.
    pub name: String,
    /// What it guards.
    pub resource: Resource,
    /// Who has it, of those that live.
    pub owner: Option<OwnerId>,
    /// Who died with it, or may have.
    pub dead: Option<OwnerId>,
    /// Whether the module locked it.
    pub barred: bool,
}
