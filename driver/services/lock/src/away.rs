//! Locks of a registry elsewhere: how a node finds the coordinator, becomes it, and sends requests to it.

use super::fault::{PATIENCE, fault};
use super::home::{Done, perform};
use super::service::Locks;
use super::wait::Want;
use super::wire::{self, Answer, Ask, At, Deed, Entry, Home, Life, Tell, Trouble};
use doorbell_engine::drive::Shared;
use doorbell_engine::drive::poller::Progress;
use doorbell_engine::error::Error;
use doorbell_engine::error::LockFault;
use doorbell_engine::node::shared_of;
use doorbell_engine::sync::op::{Op, Outcome};
use doorbell_engine::turn::Engine;
use doorbell_engine::{Node, Result};
use doorbell_fabric::world;
use doorbell_fabric::{Incarnation, NodeId, Priority};
use doorbell_shm::domain::{OpenKey, Restored};
use doorbell_shm::error::ShmError;
use doorbell_shm::keys::{OwnerId, Resource};
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

/// Where the registry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// In the memory that this node shares.
    Here,
    /// Elsewhere, served by this coordinator.
    There(Home),
}

/// A lock whose registry was elsewhere when it was opened.
pub struct Away {
    pub name: String,
    at: Mutex<At>,
}

impl Away {
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
        loop {
            let answer = match find_coordinator(shared, deadline)? {
                Where::Here => self.do_here(shared, deed, deadline)?,
                Where::There(home) => {
                    let at = self.at();
                    let wants = match deed {
                        Deed::Lock { me } | Deed::Try { me } => Some((at.clone(), me)),
                        Deed::Set { new, .. } if new != 0 => Some((at.clone(), new)),
                        _ => None,
                    };
                    match letter(shared, operation, home.node(), &Ask::Deed { at: at.clone(), deed }, wants, deadline) {
                        Ok(Answer::NotHome) => {
                            not_home(shared, home);
                            continue;
                        }
                        Err(Error::PeerDied { .. } | Error::PeerLeft { .. } | Error::NoSuchNode { .. }) => {
                            not_home(shared, home);
                            continue;
                        }
                        answered => answered?,
                    }
                }
            };
            return match answer {
                Answer::Trouble(trouble @ (Trouble::Destroyed | Trouble::Unknown)) => {
                    shared.enter(shared.check()?, operation)?.service::<Locks>().mail.close(&self.name);
                    Err(error_of(shared, operation, &self.name, trouble))
                }
                Answer::Trouble(trouble) => Err(error_of(shared, operation, &self.name, trouble)),
                Answer::Withdrawn => Err(Error::Cancelled),
                answer => Ok(answer),
            };
        }
    }

    /// Executes the operation here, since the registry has moved to this node's group.
    fn do_here(&self, shared: &Shared, deed: Deed, deadline: Option<Instant>) -> Result<Answer> {
        let membership = shared.membership();
        let place = membership.find_key(&self.name);
        let Some(key) = place.and_then(|place| membership.key(place)) else { return Ok(Answer::Trouble(Trouble::Destroyed)) };
        if let Deed::Destroy { me } = deed {
            let held = key.destroy(OwnerId::from_bits(me), world::now() + PATIENCE)?;
            return Ok(held.map_or(Answer::Done, |owner| Answer::Trouble(Trouble::Otherwise(owner.bits()))));
        }
        let answer = match perform(key, (membership.id(), membership.incarnation()), deed) {
            Done::Answer(answer) => answer,
            Done::Wait => {
                let Deed::Lock { me } = deed else { return Err(Error::Cancelled) };
                let Some(me) = OwnerId::from_bits(me) else { return Err(Error::Cancelled) };
                let taken = Want { shared, key, name: &self.name, me, withdrawn: None }.wait(deadline)?;
                Answer::taken(key, taken.damaged)
            }
        };
        Ok(answer)
    }

    /// Changes this node's note of the lock, which a new coordinator would ask for.
    pub fn note(&self, shared: &Shared, note: impl FnOnce(&mut Entry)) -> Result<()> {
        shared.enter(shared.check()?, "lock")?.service::<Locks>().mail.note_of(&self.name, note);
        Ok(())
    }

    /// Unlocks, and waits for the reply. This node's note tells whether the caller owned the lock. A new coordinator that read
    /// this node's report after the note was removed may have released the lock already, so its `NotYours` is no error then.
    pub fn unlock(&self, shared: &Shared, me: OwnerId) -> Result<()> {
        let is_mine = {
            let mut engine = shared.enter(shared.check()?, "unlock")?;
            engine.service::<Locks>().mail.note_unlocked(&self.name, me.bits())
        };
        match self.do_deed(shared, "unlock", Deed::Unlock { me: me.bits() }, None) {
            Err(Error::Lock { why, .. }) if is_mine && matches!(*why, LockFault::NotYours(_)) => Ok(()),
            done => done.map(drop),
        }
    }

    /// Unlocks without waiting for a reply.
    pub fn give_up(&self, shared: &Shared, me: OwnerId) -> Result<()> {
        let me_now = shared.check()?;
        let mut engine = shared.enter(me_now, "unlock")?;
        if !engine.service::<Locks>().mail.note_unlocked(&self.name, me.bits()) {
            return Ok(());
        }
        if !engine.service::<Locks>().registry.belongs_here() {
            // If there is no coordinator now, the next one gets this node's report, in which this lock is missing.
            let locks = engine.service::<Locks>();
            let homes = locks.registry.may_be_home();
            for home in &homes {
                let (node, life) = home.node();
                locks.mail.tell(node, life, wire::encode(&Tell::Unlock { at: self.at(), me: me.bits() }));
            }
            if !homes.is_empty() {
                if shared.progress() != Progress::Poller {
                    engine.push(me_now);
                }
                drop(engine);
                shared.hand_over();
            }
            return Ok(());
        }
        drop(engine);
        self.do_here(shared, Deed::Unlock { me: me.bits() }, None).map(drop)
    }
}

/// Sends a request and waits for the reply. `want` names the lock that the request would take, and for which owner.
pub(super) fn letter(
    shared: &Shared,
    operation: &'static str,
    (node, life): (NodeId, Incarnation),
    ask: &Ask,
    want: Option<(At, u64)>,
    deadline: Option<Instant>,
) -> Result<Answer> {
    let me = shared.check()?;
    let bytes = wire::encode(ask);
    let wants = want.as_ref().map(|(at, owner)| (at.name.clone(), *owner));
    let op = loop {
        let mut engine = shared.enter(me, operation)?;
        // Leaving sets this flag first and then fails the operations that were begun. A request begun after that would never end.
        shared.check()?;
        // Fails here if the node can't be reached.
        engine.reach(me, (node, life).into(), Priority::High)?;
        if let Some(op) = engine.service::<Locks>().mail.ask(node, life, &bytes, wants.clone()) {
            if shared.progress() != Progress::Poller {
                engine.push(me);
            }
            break op;
        }
        drop(engine);
        // Too many requests to this node are unanswered. If it never answers, its death is noticed soon.
        let now = world::now();
        if deadline.is_some_and(|deadline| now >= deadline) {
            return Err(Error::Timeout { operation, node: Some(node) });
        }
        shared.drive(me, &Op::new(), Some(now + AGAIN), |_| false)?;
    };
    shared.hand_over();
    let driven = shared.drive(me, &op, deadline, |_| false);
    match op.take() {
        Some(Outcome::Answered(bytes)) => return wire::decode(&bytes).ok_or(Error::Damaged { node }),
        Some(Outcome::Failed(error)) => return Err(error),
        _ => {}
    }
    let mut engine = shared.enter(me, operation)?;
    // The reply may have arrived between the end of the wait and the baton.
    if let Some(Outcome::Answered(bytes)) = op.take() {
        return wire::decode(&bytes).ok_or(Error::Damaged { node });
    }
    if let Some((node, life, id)) = engine.service::<Locks>().mail.withdraw(&op) {
        engine.service::<Locks>().mail.tell(node, life, wire::encode(&Tell::Withdraw { id, want }));
        engine.push(me);
    }
    Err(driven.err().unwrap_or(Error::Timeout { operation, node: Some(node) }))
}

/// Sends a reply from a thread outside the engine.
pub(super) fn send_answer(shared: &Shared, node: NodeId, life: Incarnation, id: u64, answer: &Answer) {
    let Ok(me) = shared.check() else { return };
    if let Ok(mut engine) = shared.enter(me, "answer") {
        engine.service::<Locks>().mail.answer(node, life, id, wire::encode(answer));
        engine.push(me);
    }
    shared.hand_over();
}

/// Sends the reply at the end of a wait. False if the waiting node is gone.
pub(super) fn answer_waiting(shared: &Shared, node: NodeId, life: Incarnation, id: u64, answer: &Answer) -> bool {
    let Ok(me) = shared.check() else { return false };
    let Ok(mut engine) = shared.enter(me, "answer") else { return false };
    let is_wanted = engine.service::<Locks>().registry.end_wait(node, life, id);
    if is_wanted {
        engine.service::<Locks>().mail.answer(node, life, id, wire::encode(answer));
        engine.push(me);
    }
    drop(engine);
    shared.hand_over();
    is_wanted
}

/// Where the registry is. Searches for the coordinator if it is unknown.
pub(super) fn find_coordinator(shared: &Shared, deadline: Option<Instant>) -> Result<Where> {
    if shared.membership().seat().is_some() {
        return Ok(Where::Here);
    }
    if !shared.has_network() {
        // Nodes with a network find the registry in this group.
        shared.membership().found_registry(1, &[], world::now() + PATIENCE)?;
        return Ok(Where::Here);
    }
    let began = world::now();
    loop {
        let me = shared.check()?;
        if let Some(home) = shared.enter(me, "find the coordinator of the lock registry")?.service::<Locks>().registry.known() {
            return Ok(Where::There(home));
        }
        if let Some(found) = find_home(shared, deadline, world::since(began) < MEETING)? {
            return Ok(found);
        }
        if deadline.is_some_and(|deadline| world::now() >= deadline) {
            return Err(Error::Timeout { operation: "find the coordinator of the lock registry", node: None });
        }
        world::sleep(AGAIN);
    }
}

/// Records that the registry is not where it was thought to be.
fn not_home(shared: &Shared, home: Home) {
    if let Ok(me) = shared.check()
        && let Ok(mut engine) = shared.enter(me, "lock")
    {
        engine.service::<Locks>().forget(home);
    }
}

/// All other nodes that have a network. Nodes without one know no more than the memory they share says.
fn others(shared: &Shared) -> Result<Vec<(NodeId, Incarnation)>> {
    let members = shared.living_members(shared.check()?);
    let others = members.iter().filter(|member| member.networked && member.id != shared.membership().id());
    Ok(others.map(|member| (member.id, member.incarnation)).collect())
}

/// Asks all other nodes for the coordinator; has the lowest node claim the registry if none knows one. `None`: search again.
fn find_home(shared: &Shared, deadline: Option<Instant>, patient: bool) -> Result<Option<Where>> {
    const OPERATION: &str = "find the coordinator of the lock registry";
    let others = others(shared)?;
    let patience = || {
        let soon = world::now() + ANSWER;
        Some(deadline.map_or(soon, |deadline| deadline.min(soon)))
    };
    if others.is_empty() && shared.is_settling() {
        // Nodes that this one was told to contact had no time to answer yet.
        return Ok(None);
    }
    let mut said = Vec::new();
    let mut unmet = false;
    let me = (shared.membership().id(), shared.membership().incarnation());
    for &node in &others {
        match letter(shared, OPERATION, node, &Ask::WhoIsHome, None, patience()) {
            Ok(Answer::Home { home, knows }) => {
                // This node knows better than others whether it is coordinator itself.
                said.push(((node.0.0, node.1.0), home.filter(|home| home.node() != me)));
                unmet |= knows.iter().any(|&(id, life)| id != me.0.0 && !others.contains(&(NodeId(id), Incarnation(life))));
            }
            Ok(_) => {}
            Err(error @ (Error::Closed | Error::Forked | Error::Reentrant { .. })) => return Err(error),
            // The caller's deadline came before this node had its full time to answer. It may be the coordinator, and another
            // node's claim must not be believed in its place.
            Err(Error::Timeout { .. }) if deadline.is_some_and(|deadline| world::now() >= deadline) => {
                return Err(Error::Timeout { operation: OPERATION, node: None });
            }
            // A node that is gone or silent is no coordinator that could be reached.
            Err(_) => {}
        }
    }
    let mut engine = shared.enter(shared.check()?, OPERATION)?;
    engine.glance();
    match choose(&said, |(node, life)| engine.fabric().live(NodeId(node)) == Some(Incarnation(life))) {
        Choice::Nobody => {}
        Choice::Unclear => return Ok(None),
        Choice::Home(home) => {
            engine.service::<Locks>().adopt(home);
            return Ok(Some(Where::There(home)));
        }
    }
    let is_about_to_be = engine.service::<Locks>().registry.agreed_to().is_some();
    drop(engine);
    if is_about_to_be || unmet && patient {
        // A node that this one has not met lives, or did a moment ago, and may hold locks.
        return Ok(None);
    }
    match others.iter().map(|(node, _)| *node).min() {
        Some(lowest) if lowest < me.0 => {
            if let Some(&node) = others.iter().find(|(node, _)| *node == lowest) {
                let _ = letter(shared, OPERATION, node, &Ask::BeHome, None, patience());
            }
            Ok(None)
        }
        _ => Ok(claim(shared, &others, deadline)?.then_some(Where::Here)),
    }
}

/// Brings the registry to this node, if all others agree.
fn claim(shared: &Shared, others: &[(NodeId, Incarnation)], deadline: Option<Instant>) -> Result<bool> {
    const OPERATION: &str = "become the coordinator of the lock registry";
    let me = shared.check()?;
    let (last, left, mut entries) = {
        let mut engine = shared.enter(me, OPERATION)?;
        if engine.service::<Locks>().registry.claiming {
            // Another thread of this node is claiming it.
            return Ok(false);
        }
        engine.service::<Locks>().registry.claiming = true;
        let last = engine.service::<Locks>().registry.last();
        let left = last.and_then(|last| engine.service::<Locks>().registry.left_by(last));
        (last, left, engine.service::<Locks>().mail.opened.clone())
    };
    let term = last.map_or(1, |last| last.term + 1);
    let agreed = agreed(shared, others, term, &mut entries, deadline);
    let abandon = |engine: &mut Engine| {
        let letter = wire::encode(&Tell::Abandon { term });
        others.iter().for_each(|(node, life)| engine.service::<Locks>().mail.tell(*node, *life, letter.clone()));
        engine.push(me);
    };
    let mut engine = shared.enter(me, OPERATION)?;
    let is_still = std::mem::take(&mut engine.service::<Locks>().registry.claiming);
    if !matches!(agreed, Ok(true)) || !is_still {
        abandon(&mut engine);
        return agreed.map(|_| false);
    }
    let me_too = (shared.membership().id(), shared.membership().incarnation());
    let lives = |owner: OwnerId| [me_too].iter().chain(others).any(|node| *node == (owner.node(), owner.life()));
    let known = unite(&entries, last, left.as_deref(), lives);
    let deadline = world::now() + FOUNDING;
    match shared.membership().found_registry(term, &known, deadline) {
        Ok(true) => {}
        Ok(false) if shared.membership().seat().is_some() => return Ok(true),
        Ok(false) => {
            abandon(&mut engine);
            return Ok(false);
        }
        Err(error) => {
            abandon(&mut engine);
            return if matches!(error, ShmError::LockTimeout { .. }) { Ok(false) } else { Err(error.into()) };
        }
    }
    for owner in known.iter().filter_map(|key| key.owner) {
        shared.membership().serve(owner.node(), owner.life(), true);
    }
    engine.service::<Locks>().announce(term);
    engine.push(me);
    tracing::debug!(term, locks = known.len(), "this node coordinates the lock registry");
    Ok(true)
}

/// Asks all others whether this node may be coordinator, and what they know of locks.
fn agreed(
    shared: &Shared,
    others: &[(NodeId, Incarnation)],
    term: u64,
    entries: &mut Vec<Entry>,
    deadline: Option<Instant>,
) -> Result<bool> {
    for &node in others {
        let mut from = 0;
        loop {
            match letter(shared, "become the coordinator of the lock registry", node, &Ask::Claim { term, from }, None, deadline)
            {
                Ok(Answer::Agreed { entries: mut known, more }) => {
                    from += known.len() as u32;
                    let goes_on = more && !known.is_empty() && (from as usize) < doorbell_shm::keys::KEYS_MAX;
                    // A node may report only locks that it owns itself.
                    known.retain(|entry| {
                        let owner = OwnerId::from_bits(entry.owner);
                        owner.is_none_or(|owner| (owner.node(), owner.life()) == node)
                    });
                    entries.extend(known);
                    if !goes_on {
                        break;
                    }
                }
                Ok(Answer::Disagreed { last, .. }) => {
                    if let Some(last) = last {
                        shared
                            .enter(shared.check()?, "become the coordinator of the lock registry")?
                            .service::<Locks>()
                            .registry
                            .learn_last(last);
                    }
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
pub(super) fn init_for(shared: &Shared, creator: (NodeId, Incarnation), name: &str, resource: Resource) -> Answer {
    let membership = shared.membership();
    match membership.init_key_for(creator, name, resource, world::now() + PATIENCE) {
        Ok(place) => match membership.key(place) {
            Some(key) => Answer::key(key, membership.seat().map_or(0, |(term, _)| term), name, creator.0),
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
pub(super) fn choose(said: &[(Life, Option<Home>)], mut lives: impl FnMut(Life) -> bool) -> Choice {
    let denies = |at: Life| said.iter().any(|(who, home)| *who == at && home.is_none_or(|home| home.at != at));
    let named: Vec<Home> = said.iter().filter_map(|(_, home)| *home).filter(|home| !denies(home.at)).collect();
    let votes = |at: Life| named.iter().filter(|home| home.at == at).count();
    let mut homes: Vec<Life> = named.iter().map(|home| home.at).filter(|at| lives(*at)).collect();
    homes.sort_unstable_by_key(|at| (std::cmp::Reverse(votes(*at)), *at));
    homes.dedup();
    match *homes {
        [] if named.is_empty() => Choice::Nobody,
        [first, second, ..] if votes(first) == votes(second) => Choice::Unclear,
        [first, ..] => {
            // The coordinator itself knows best how often the registry has moved.
            let of =
                |(who, home): &(Life, Option<Home>)| home.filter(|home| home.at == first).map(|home| (*who == first, home.term));
            let term = said.iter().filter_map(of).max().map_or(1, |(_, term)| term);
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
            let (owner, dead, barred) = (None, None, false);
            known.push(Restored { name: entry.name.clone(), resource: Resource::Unnamed, owner, dead, barred });
            known.len() - 1
        });
        let key = &mut known[at];
        if key.resource == Resource::Unnamed {
            key.resource = Resource::from_words(entry.resource);
        }
        key.dead = key.dead.or(OwnerId::from_bits(entry.dead));
        key.barred |= entry.barred;
    }
    for key in &mut known {
        let of = |entries: &[Entry]| {
            let mut owners =
                entries.iter().filter(|entry| entry.name == key.name).filter_map(|entry| OwnerId::from_bits(entry.owner));
            owners.next()
        };
        key.owner = of(entries);
        match left {
            // A living owner has reported its locks itself.
            Some(left) => key.dead = key.dead.or(of(left).filter(|owner| !lives(*owner))),
            None if key.owner.is_none() => {
                key.dead = key.dead.or(last.map(|last| OwnerId::thread(last.node().0, last.node().1, 0)));
            }
            None => {}
        }
    }
    known
}

/// Where a lock was when it was opened.
#[derive(Clone)]
pub enum Opened {
    /// In the memory that this node shares.
    Here(OpenKey),
    /// Elsewhere.
    Away(Arc<Away>),
}

/// Creates a lock, or finds it if `make` is `None`, wherever the registry is.
pub(super) fn open_key(node: &Node, operation: &'static str, name: &str, make: Option<Resource>) -> Result<Opened> {
    let shared = shared_of(node);
    shared.check()?;
    let deadline = Some(world::now() + PATIENCE);
    loop {
        let home = match find_coordinator(shared, deadline)? {
            Where::There(home) => home,
            Where::Here => {
                let membership = shared.membership_arc();
                let place = match make {
                    Some(resource) => membership.init_key(name, resource, world::now() + PATIENCE)?,
                    None => membership.find_key(name).ok_or_else(|| fault(operation, name, LockFault::Unknown))?,
                };
                let key = OpenKey::new(membership, place).ok_or_else(|| fault(operation, name, LockFault::Destroyed))?;
                let _ = Answer::key(key.get(), 0, name, node.id());
                return Ok(Opened::Here(key));
            }
        };
        if name.len() > doorbell_shm::keys::NAME_BYTES {
            return Err(error_of(shared, operation, name, Trouble::Name));
        }
        let ask = match make {
            Some(resource) => Ask::Init { name: name.to_owned(), resource: resource.to_words() },
            None => Ask::Find { name: name.to_owned() },
        };
        match letter(shared, operation, home.node(), &ask, None, deadline) {
            Ok(Answer::Key { at, resource }) => {
                let me = shared.check()?;
                shared.enter(me, operation)?.service::<Locks>().mail.note(name, Some(resource), None);
                return Ok(Opened::Away(Arc::new(Away::new(At { name: name.to_owned(), ..at }))));
            }
            Ok(Answer::Trouble(trouble)) => return Err(error_of(shared, operation, name, trouble)),
            Ok(Answer::NotHome) | Err(Error::PeerDied { .. } | Error::PeerLeft { .. } | Error::NoSuchNode { .. }) => {
                not_home(shared, home);
            }
            Ok(_) => return Err(Error::Damaged { node: home.node().0 }),
            Err(error) => return Err(error),
        }
    }
}
