//! Locks of a registry elsewhere: how a node finds the coordinator, becomes it, and sends requests to it.

use super::error::{LockError, PATIENCE, fault, odd};
use super::home::{destroy, perform};
use super::service::{Locks, locks};
use super::wait::Want;
use super::wire::{self, Answer, Ask, At, Deed, Entry, Home, Tell, Trouble};
use doorbell_engine::kit::{Error, Locality, Node, Op, Outcome, PeerId, Priority, Progress};
use doorbell_engine::kit::{Result, Shared, Token, shared_of, world};
use doorbell_shm::domain::{OpenKey, Restored};
use doorbell_shm::error::ShmError;
use doorbell_shm::keys::{KEYS_MAX, NAME_BYTES, OwnerId, Resource};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The pause before the search for the coordinator goes on.
const AGAIN: Duration = Duration::from_millis(2);
/// How long the baton may be held while the registry is set up here.
const FOUNDING: Duration = Duration::from_millis(100);
/// How long other nodes may know a node that this one has not met.
const MEETING: Duration = Duration::from_secs(5);
/// How long a node may take to say which node is coordinator.
const ANSWER: Duration = Duration::from_secs(2);

/// Where the registry is: in the memory that this node shares, or elsewhere, served by this coordinator.
pub type Where = Locality<(), Home>;

const FIND: &str = "find the coordinator of the lock registry";
const CLAIM: &str = "become the coordinator of the lock registry";

/// A lock whose registry was elsewhere when it was opened.
pub struct FarKey {
    pub name: String,
    at: Mutex<At>,
}

impl FarKey {
    /// A lock as its coordinator described it.
    pub fn new(at: At) -> Self {
        Self { name: at.name.clone(), at: Mutex::new(at) }
    }

    /// The place where the lock was found.
    pub fn at(&self) -> At {
        self.at.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Executes an operation on the lock, wherever the registry is now. Waits for the reply, and for a new coordinator if need
    /// be.
    pub fn do_deed(&self, shared: &Shared, operation: &'static str, deed: Deed, deadline: Option<Instant>) -> Result<Answer> {
        let at = self.at();
        let wants = match deed {
            Deed::Lock { me } | Deed::Try { me } => Some((at.clone(), me)),
            Deed::Set { new, .. } if new != 0 => Some((at.clone(), new)),
            _ => None,
        };
        let answer = match ask_home(shared, operation, &Ask::Deed { at, deed }, wants, deadline)? {
            Locality::Near(()) => self.do_near(shared, deed, deadline)?,
            Locality::Far(answer) => answer,
        };
        match answer {
            Answer::Trouble(trouble) => {
                if matches!(trouble, Trouble::Destroyed | Trouble::Unknown) {
                    locks(shared, operation, |locks| locks.mail.close(&self.name))?;
                }
                Err(error_of(shared, operation, &self.name, trouble))
            }
            Answer::Withdrawn => Err(Error::Cancelled),
            answer => Ok(answer),
        }
    }

    /// Executes the operation here, since the registry has moved to this node's group.
    fn do_near(&self, shared: &Shared, deed: Deed, deadline: Option<Instant>) -> Result<Answer> {
        let membership = shared.membership();
        let place = membership.find_key(&self.name);
        let Some(key) = place.and_then(|place| membership.key(place)) else { return Ok(Answer::Trouble(Trouble::Destroyed)) };
        if let Deed::Destroy { me } = deed {
            return Ok(destroy(key, OwnerId::from_bits(me))?);
        }
        perform(key, membership.into(), deed).or_else(|me| {
            let taken = Want { shared, key, name: &self.name, me, withdrawn: None }.wait(deadline)?;
            Ok(Answer::taken(key, taken.damaged))
        })
    }

    /// Changes this node's note of the lock, which a new coordinator would ask for.
    pub fn note(&self, shared: &Shared, note: impl FnOnce(&mut Entry)) -> Result<()> {
        locks(shared, "lock", |locks| locks.mail.entry(&self.name).map(note)).map(drop)
    }

    /// Unlocks, and waits for the reply. This node's note tells whether the caller owned the lock. A new coordinator that read
    /// this node's report after the note was removed may have released the lock already, so its `NotYours` is no error then.
    pub fn unlock(&self, shared: &Shared, me: OwnerId) -> Result<()> {
        let is_mine = locks(shared, "unlock", |locks| locks.mail.note_unlocked(&self.name, me.bits()))?;
        match self.do_deed(shared, "unlock", Deed::Unlock { me: me.bits() }, None) {
            Err(error) if is_mine && matches!(error.downcast_ref(), Some(LockError::NotYours(_))) => Ok(()),
            done => done.map(drop),
        }
    }

    /// Unlocks without waiting for a reply.
    pub fn give_up(&self, shared: &Shared, me: OwnerId) -> Result<()> {
        let is_near = locks(shared, "unlock", |locks| {
            // Without the note this node does not own the lock, and another handle of the same owner may.
            let is_mine = locks.mail.note_unlocked(&self.name, me.bits());
            if !is_mine || locks.registry.belongs_here() {
                return is_mine;
            }
            // If there is no coordinator now, the next one gets this node's report, in which this lock is missing.
            let tell = Tell::Unlock { at: self.at(), me: me.bits() };
            locks.registry.may_be_home().iter().for_each(|home| locks.mail.tell(home.at, &tell));
            false
        })?;
        if is_near { self.do_near(shared, Deed::Unlock { me: me.bits() }, None).map(drop) } else { Ok(()) }
    }
}

/// Asks the coordinator, and the next one if that is gone. Near: the registry is in the memory that this node shares.
fn ask_home(
    shared: &Shared,
    operation: &'static str,
    ask: &Ask,
    wants: Option<(At, u64)>,
    deadline: Option<Instant>,
) -> Result<Locality<(), Answer>> {
    loop {
        let Locality::Far(home) = find_coordinator(shared, deadline)? else { return Ok(Locality::Near(())) };
        match letter(shared, operation, home.at, ask, wants.clone(), deadline) {
            Ok(Answer::NotHome) | Err(Error::PeerDied { .. } | Error::PeerLeft { .. } | Error::NoSuchNode { .. }) => {
                locks(shared, operation, |locks| locks.forget(home))?;
            }
            answer => return answer.map(Locality::Far),
        }
    }
}

/// Begins a request to a node, if it can be reached. `None`: too many requests to it are unanswered.
pub(super) fn begin(
    shared: &Shared,
    me: Token,
    operation: &'static str,
    peer: PeerId,
    ask: &Ask,
    wants: Option<(String, u64)>,
) -> Result<Option<Arc<Op>>> {
    let mut engine = shared.enter(me, operation)?;
    // Leaving sets this flag first and then fails the operations that were begun. A request begun after that would never end.
    shared.check()?;
    engine.reach(me, peer, Priority::High)?;
    let op = engine.service::<Locks>().mail.ask(peer, &wire::encode(ask), wants);
    if shared.progress() != Progress::Poller {
        engine.push(me);
    }
    drop(engine);
    shared.hand_over();
    Ok(op)
}

/// Sends a request and waits for the reply. `want` names the lock that the request would take, and for which owner.
pub(super) fn letter(
    shared: &Shared,
    operation: &'static str,
    peer: PeerId,
    ask: &Ask,
    want: Option<(At, u64)>,
    deadline: Option<Instant>,
) -> Result<Answer> {
    let me = shared.check()?;
    let node = peer.node;
    let timeout = || Error::Timeout { operation, node: Some(node) };
    let wants = want.as_ref().map(|(at, owner)| (at.name.clone(), *owner));
    let op = loop {
        if let Some(op) = begin(shared, me, operation, peer, ask, wants.clone())? {
            break op;
        }
        // If this node never answers, its death is noticed soon.
        let now = world::now();
        if deadline.is_some_and(|deadline| now >= deadline) {
            return Err(timeout());
        }
        shared.pause(me, now + AGAIN)?;
    };
    let driven = shared.drive(me, &op, deadline, |_| false);
    let mut answer = op.take();
    if answer.is_none() {
        let mut engine = shared.enter(me, operation)?;
        // The reply may have arrived between the end of the wait and the baton.
        answer = op.take();
        let mail = &mut engine.service::<Locks>().mail;
        if let Some((peer, id)) = mail.withdraw(&op) {
            mail.tell(peer, &Tell::Withdraw { id, want });
            engine.push(me);
        }
    }
    match answer {
        Some(Outcome::Answered(bytes)) => wire::decode(&bytes).ok_or(Error::Damaged { node }),
        Some(Outcome::Failed(error)) => Err(error),
        _ => Err(driven.err().unwrap_or_else(timeout)),
    }
}

/// Sends a reply from a thread outside the engine.
pub(super) fn send_answer(shared: &Shared, peer: PeerId, id: u64, answer: &Answer) {
    let _ = locks(shared, "answer", |locks| locks.mail.answer(peer, id, answer));
}

/// Sends the reply at the end of a wait. False if the waiting node is gone.
pub(super) fn answer_waiting(shared: &Shared, peer: PeerId, id: u64, answer: &Answer) -> bool {
    let sent = locks(shared, "answer", |locks| {
        let waiting = locks.registry.end_wait(peer, id);
        waiting.map(|_| locks.mail.answer(peer, id, answer)).is_some()
    });
    sent.unwrap_or(false)
}

/// Where the registry is. Searches for the coordinator if it is unknown.
pub(super) fn find_coordinator(shared: &Shared, deadline: Option<Instant>) -> Result<Where> {
    if shared.membership().seat().is_some() {
        return Ok(Where::Near(()));
    }
    if !shared.has_network() {
        // Nodes with a network find the registry in this group.
        shared.membership().found_registry(1, &[], world::now() + PATIENCE)?;
        return Ok(Where::Near(()));
    }
    let began = world::now();
    loop {
        if let Some(home) = locks(shared, FIND, |locks| locks.registry.known)? {
            return Ok(Where::Far(home));
        }
        if let Some(found) = find_home(shared, deadline, world::since(began) < MEETING)? {
            return Ok(found);
        }
        if deadline.is_some_and(|deadline| world::now() >= deadline) {
            return Err(Error::Timeout { operation: FIND, node: None });
        }
        world::sleep(AGAIN);
    }
}

/// All other nodes that have a network. Nodes without one know no more than the memory they share says.
fn others(shared: &Shared) -> Result<Vec<PeerId>> {
    let members = shared.living_members(shared.check()?);
    let others = members.iter().filter(|member| member.networked && member.id != shared.membership().id());
    Ok(others.map(|member| (member.id, member.incarnation).into()).collect())
}

/// Asks all other nodes for the coordinator; has the lowest node claim the registry if none knows one. `None`: search again.
fn find_home(shared: &Shared, deadline: Option<Instant>, patient: bool) -> Result<Option<Where>> {
    let others = others(shared)?;
    let ask = |peer: PeerId, ask: Ask| {
        let soon = world::now() + ANSWER;
        letter(shared, FIND, peer, &ask, None, Some(deadline.map_or(soon, |deadline| deadline.min(soon))))
    };
    if others.is_empty() && shared.is_settling() {
        // Nodes that this one was told to contact had no time to answer yet.
        return Ok(None);
    }
    let mut said = Vec::new();
    let mut unmet = false;
    let me = PeerId::from(shared.membership());
    for &peer in &others {
        match ask(peer, Ask::WhoIsHome) {
            Ok(Answer::Home { home, knows }) => {
                // This node knows better than others whether it is coordinator itself.
                said.push((peer, home.filter(|home| home.at != me)));
                unmet |= knows.iter().any(|other| other.node != me.node && !others.contains(other));
            }
            Err(error @ (Error::Closed | Error::Forked | Error::Reentrant { .. })) => return Err(error),
            // It may be the coordinator, and had no time to say so. Another node's word must not count in its place.
            Err(Error::Timeout { .. }) if deadline.is_some_and(|deadline| world::now() >= deadline) => return Ok(None),
            // A node that is gone or silent is no coordinator that could be reached.
            Ok(_) | Err(_) => {}
        }
    }
    let mut engine = shared.enter(shared.check()?, FIND)?;
    engine.refresh_peers();
    match choose(&said, |peer| engine.fabric().live(peer.node) == Some(peer.incarnation)) {
        Choice::Nobody => {}
        Choice::Unclear => return Ok(None),
        Choice::Home(home) => {
            engine.service::<Locks>().adopt(home);
            return Ok(Some(Where::Far(home)));
        }
    }
    let is_about_to_be = engine.service::<Locks>().registry.agreed_to().is_some();
    drop(engine);
    if is_about_to_be || unmet && patient {
        // A node that this one has not met lives, or did a moment ago, and may hold locks.
        return Ok(None);
    }
    match others.iter().min() {
        Some(lowest) if lowest.node < me.node => {
            let _ = ask(*lowest, Ask::BeHome);
            Ok(None)
        }
        _ => Ok(claim(shared, &others, deadline)?.then_some(Where::Near(()))),
    }
}

/// Brings the registry to this node, if all others agree.
fn claim(shared: &Shared, others: &[PeerId], deadline: Option<Instant>) -> Result<bool> {
    let begun = locks(shared, CLAIM, |locks| {
        let registry = &mut locks.registry;
        // Another thread of this node may be claiming it.
        let is_free = !std::mem::replace(&mut registry.claiming, true);
        let left = registry.last.and_then(|last| registry.left_by(last));
        is_free.then(|| (registry.last, left, locks.mail.opened.clone()))
    });
    let Some((last, left, mut entries)) = begun? else { return Ok(false) };
    let term = last.map_or(1, |last| last.term + 1);
    let agreed = agreed(shared, others, term, &mut entries, deadline);
    let me = shared.check()?;
    let mut engine = shared.enter(me, CLAIM)?;
    let is_still = std::mem::take(&mut engine.service::<Locks>().registry.claiming);
    let founded = if matches!(agreed, Ok(true)) && is_still {
        let own = PeerId::from(shared.membership());
        let lives = |owner: OwnerId| own == owner.into() || others.contains(&owner.into());
        let known = unite(&entries, last, left.as_deref(), lives);
        match shared.membership().found_registry(term, &known, world::now() + FOUNDING) {
            Ok(true) => {
                for owner in known.iter().filter_map(|key| key.owner) {
                    shared.membership().serve(owner.node(), owner.incarnation(), true);
                }
                engine.service::<Locks>().announces = Some(term);
                engine.push(me);
                tracing::debug!(term, locks = known.len(), "this node coordinates the lock registry");
                return Ok(true);
            }
            Ok(false) if shared.membership().seat().is_some() => return Ok(true),
            Ok(false) | Err(ShmError::LockTimeout { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    } else {
        agreed.map(|_| false)
    };
    others.iter().for_each(|peer| engine.service::<Locks>().mail.tell(*peer, &Tell::Abandon { term }));
    engine.push(me);
    founded
}

/// Asks all others whether this node may be coordinator, and what they know of locks.
fn agreed(shared: &Shared, others: &[PeerId], term: u64, entries: &mut Vec<Entry>, deadline: Option<Instant>) -> Result<bool> {
    for &peer in others {
        let mut from = 0;
        loop {
            match letter(shared, CLAIM, peer, &Ask::Claim { term, from }, None, deadline) {
                Ok(Answer::Agreed { entries: mut known, more }) => {
                    from += known.len() as u32;
                    let goes_on = more && !known.is_empty() && (from as usize) < KEYS_MAX;
                    // A node may report only locks that it owns itself.
                    known.retain(|entry| OwnerId::from_bits(entry.owner).is_none_or(|owner| PeerId::from(owner) == peer));
                    entries.extend(known);
                    if !goes_on {
                        break;
                    }
                }
                Ok(Answer::Disagreed { last: Some(last), .. }) => {
                    locks(shared, CLAIM, |locks| locks.registry.learn_last(last))?;
                    return Ok(false);
                }
                Ok(_) => return Ok(false),
                // A node that is gone owns nothing.
                Err(Error::PeerDied { .. } | Error::PeerLeft { .. } | Error::NoSuchNode { .. }) => break,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(true)
}

/// Creates a lock for another node.
pub(super) fn init_for(shared: &Shared, creator: PeerId, name: &str, resource: Resource) -> Answer {
    let membership = shared.membership();
    match membership.init_key_for(creator.into(), name, resource, world::now() + PATIENCE) {
        Ok(place) => match membership.key(place) {
            Some(key) => Answer::key(key, membership.seat().map_or(0, |(term, _)| term), name, creator.node),
            None => Answer::Trouble(Trouble::Destroyed),
        },
        Err(ShmError::Key { fault, .. }) => Answer::Trouble((&fault).into()),
        Err(error) => Answer::Trouble(Trouble::other(&error)),
    }
}

/// The caller's error for a failure that the coordinator reported.
pub(super) fn error_of(shared: &Shared, operation: &'static str, name: &str, trouble: Trouble) -> Error {
    match trouble.fault(name) {
        Ok(why) => fault(operation, name, why),
        Err(fault) => ShmError::Key { domain: shared.membership().domain().to_owned(), fault }.into(),
    }
}

/// What the answers of the other nodes say about the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// No node knows a coordinator.
    Nobody,
    /// This node is coordinator.
    Home(Home),
    /// The answers do not settle it yet.
    Unclear,
}

/// Finds the coordinator in the answers of all nodes. A coordinator must live, and must not deny that it is one. If several are
/// named, some nodes have not noticed an end yet, have met too late, or lie: then the one that most nodes name wins. A tie
/// gives no result, so that no two owners get the same lock.
pub(super) fn choose(said: &[(PeerId, Option<Home>)], mut lives: impl FnMut(PeerId) -> bool) -> Choice {
    let denies = |at: PeerId| said.iter().any(|(who, home)| *who == at && home.is_none_or(|home| home.at != at));
    let named: Vec<Home> = said.iter().filter_map(|(_, home)| *home).filter(|home| !denies(home.at)).collect();
    let votes = |at: PeerId| named.iter().filter(|home| home.at == at).count();
    let mut homes: Vec<PeerId> = named.iter().map(|home| home.at).filter(|at| lives(*at)).collect();
    homes.sort_unstable_by_key(|at| (std::cmp::Reverse(votes(*at)), *at));
    homes.dedup();
    match *homes {
        [] if named.is_empty() => Choice::Nobody,
        [first, second, ..] if votes(first) == votes(second) => Choice::Unclear,
        [first, ..] => {
            // The coordinator itself knows best how often the registry has moved.
            let terms = said.iter().filter_map(|(who, home)| home.filter(|home| home.at == first).map(|home| (*who, home.term)));
            let term = terms.max_by_key(|(who, term)| (*who == first, *term)).map_or(1, |(_, term)| term);
            Choice::Home(Home { term, at: first })
        }
        // The nodes that named it have not noticed its end yet, or this node has not met it.
        [] => Choice::Unclear,
    }
}

/// Joins what several nodes know of the same locks with the last report of the former coordinator. If that one died without a
/// report, a lock that no living node owns counts as held by the dead.
fn unite(entries: &[Entry], last: Option<Home>, left: Option<&[Entry]>, lives: impl Fn(OwnerId) -> bool) -> Vec<Restored> {
    let mut known: Vec<Restored> = Vec::new();
    for entry in entries.iter().chain(left.unwrap_or_default()) {
        let at = known.iter().position(|key| key.name == entry.name).unwrap_or_else(|| {
            let (owner, dead, frozen) = (None, None, false);
            known.push(Restored { name: entry.name.clone(), resource: Resource::Unnamed, owner, dead, frozen });
            known.len() - 1
        });
        let key = &mut known[at];
        if key.resource == Resource::Unnamed {
            key.resource = Resource::from_words(entry.resource);
        }
        key.dead = key.dead.or(OwnerId::from_bits(entry.dead));
        key.frozen |= entry.frozen;
    }
    for key in &mut known {
        let of = |entries: &[Entry]| {
            let its = entries.iter().filter(|entry| entry.name == key.name);
            its.filter_map(|entry| OwnerId::from_bits(entry.owner)).next()
        };
        key.owner = of(entries);
        key.dead = key.dead.or(match left {
            // A living owner has reported its locks itself.
            Some(left) => of(left).filter(|owner| !lives(*owner)),
            None if key.owner.is_none() => last.map(|last| OwnerId::thread(last.at.node, last.at.incarnation, 0)),
            None => None,
        });
    }
    known
}

/// Where a lock was when it was opened.
pub type Opened = Locality<OpenKey, Arc<FarKey>>;

/// Creates a lock, or finds it if `make` is `None`, wherever the registry is.
pub(super) fn open_key(node: &Node, operation: &'static str, name: &str, make: Option<Resource>) -> Result<Opened> {
    let shared = shared_of(node);
    shared.check()?;
    let ask = match make {
        Some(resource) => Ask::Init { name: name.to_owned(), resource: resource.to_words() },
        None => Ask::Find { name: name.to_owned() },
    };
    let deadline = Some(world::now() + PATIENCE);
    if name.len() > NAME_BYTES {
        let trouble = if make.is_some() { Trouble::Name } else { Trouble::Unknown };
        return Err(error_of(shared, operation, name, trouble));
    }
    match ask_home(shared, operation, &ask, None, deadline)? {
        Locality::Near(()) => {
            let membership = shared.membership_arc();
            let place = match make {
                Some(resource) => membership.init_key(name, resource, world::now() + PATIENCE)?,
                None => membership.find_key(name).ok_or_else(|| fault(operation, name, LockError::Unknown))?,
            };
            let key = OpenKey::new(membership, place).ok_or_else(|| fault(operation, name, LockError::Destroyed))?;
            key.get().set_user(node.id(), true);
            Ok(Opened::Near(key))
        }
        Locality::Far(Answer::Key { at, resource }) => {
            locks(shared, operation, |locks| locks.mail.note(name, Some(resource), None))?;
            Ok(Opened::Far(Arc::new(FarKey::new(At { name: name.to_owned(), ..at }))))
        }
        Locality::Far(Answer::Trouble(trouble)) => Err(error_of(shared, operation, name, trouble)),
        Locality::Far(_) => Err(odd(name)),
    }
}
