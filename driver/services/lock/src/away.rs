//! Keys that are elsewhere: where the registry is, and what is asked of its home.

use super::Locks;
use super::home::{Done, perform};
use super::wait::Want;
use super::wire::{self, Answer, Ask, At, Deed, Entry, Home, Life, Tell, Trouble};
use super::{LockFault, PATIENCE, fault};
use doorbell_engine::drive::Shared;
use doorbell_engine::drive::poller::Progress;
use doorbell_engine::error::Error;
use doorbell_engine::node::shared_of;
use doorbell_engine::sync::op::{Op, Outcome};
use doorbell_engine::turn::Engine;
use doorbell_engine::{Node, Result};
use doorbell_fabric::{Incarnation, NodeId, Priority};
use doorbell_shm::domain::{OpenKey, Restored};
use doorbell_shm::error::ShmError;
use doorbell_shm::keys::{OwnerId, Resource};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long one waits before it asks again who is home.
const AGAIN: Duration = Duration::from_millis(2);
/// How long the baton is held at most while the registry is brought here.
const FOUNDING: Duration = Duration::from_millis(100);
/// How long a node may be known to others and not have been met.
const MEETING: Duration = Duration::from_secs(5);
/// How long somebody may take to say who is home.
const ANSWER: Duration = Duration::from_secs(2);

/// Where the registry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// In the memory that this node shares.
    Here,
    /// With this node.
    There(Home),
}

/// A key that was elsewhere when it was opened.
pub struct Away {
    pub name: String,
    at: Mutex<At>,
}

impl Away {
    /// A key as its home told of it.
    pub fn new(at: At) -> Self {
        Self { name: at.name.clone(), at: Mutex::new(at) }
    }

    /// Where it was found.
    pub fn at(&self) -> At {
        self.at.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Does something with it, wherever it is now. Waits for the answer, and where need be for a new home.
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

    /// The registry has come here since.
    fn do_here(&self, shared: &Shared, deed: Deed, deadline: Option<Instant>) -> Result<Answer> {
        let membership = shared.membership();
        let place = membership.find_key(&self.name);
        let Some(key) = place.and_then(|place| membership.key(place)) else { return Ok(Answer::Trouble(Trouble::Destroyed)) };
        if let Deed::Destroy { me } = deed {
            let held = key.destroy(OwnerId::from_bits(me), Instant::now() + PATIENCE)?;
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

    /// Notes something of it, for the next home.
    pub fn note(&self, shared: &Shared, note: impl FnOnce(&mut Entry)) -> Result<()> {
        shared.enter(shared.check()?, "lock")?.service::<Locks>().mail.note_of(&self.name, note);
        Ok(())
    }

    /// Gives a key up. What this node notes tells whether it is the caller's; a new home that was told that this node has it no more may have let it
    /// go before it is asked to.
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

    /// Gives a key up without waiting for an answer.
    pub fn give_up(&self, shared: &Shared, me: OwnerId) -> Result<()> {
        let me_now = shared.check()?;
        let mut engine = shared.enter(me_now, "unlock")?;
        if !engine.service::<Locks>().mail.note_unlocked(&self.name, me.bits()) {
            return Ok(());
        }
        if !engine.service::<Locks>().registry.belongs_here() {
            // If there is no home now, whoever is next is told what this node has, and this is not among it.
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

/// Asks a node, and waits for its answer. With the key that the letter wants to take, if so, and for which owner.
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
        // Leaving closes the flag first, and ends what was begun then.
        shared.check()?;
        // If it can't be reached, that is said now.
        engine.reach(me, (node, life).into(), Priority::High)?;
        if let Some(op) = engine.service::<Locks>().mail.ask(node, life, &bytes, wants.clone()) {
            if shared.progress() != Progress::Poller {
                engine.push(me);
            }
            break op;
        }
        drop(engine);
        // It has not answered very many; if it never does, its death is noticed soon.
        let now = Instant::now();
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
    // It may have come just now.
    if let Some(Outcome::Answered(bytes)) = op.take() {
        return wire::decode(&bytes).ok_or(Error::Damaged { node });
    }
    if let Some((node, life, id)) = engine.service::<Locks>().mail.withdraw(&op) {
        engine.service::<Locks>().mail.tell(node, life, wire::encode(&Tell::Withdraw { id, want }));
        engine.push(me);
    }
    Err(driven.err().unwrap_or(Error::Timeout { operation, node: Some(node) }))
}

/// Answers a letter from another thread than the engine's.
pub(super) fn send_answer(shared: &Shared, node: NodeId, life: Incarnation, id: u64, answer: &Answer) {
    let Ok(me) = shared.check() else { return };
    if let Ok(mut engine) = shared.enter(me, "answer") {
        engine.service::<Locks>().mail.answer(node, life, id, wire::encode(answer));
        engine.push(me);
    }
    shared.hand_over();
}

/// The same at the end of a wait. False if nobody is to be told.
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

/// Where the registry is; finds out if this is not known.
pub(super) fn find_coordinator(shared: &Shared, deadline: Option<Instant>) -> Result<Where> {
    if shared.membership().seat().is_some() {
        return Ok(Where::Here);
    }
    if !shared.has_network() {
        // Those that have a network find it here.
        shared.membership().found_registry(1, &[], Instant::now() + PATIENCE)?;
        return Ok(Where::Here);
    }
    let began = Instant::now();
    loop {
        let me = shared.check()?;
        if let Some(home) = shared.enter(me, "find the home of the lock registry")?.service::<Locks>().registry.known() {
            return Ok(Where::There(home));
        }
        if let Some(found) = find_home(shared, deadline, began.elapsed() < MEETING)? {
            return Ok(found);
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(Error::Timeout { operation: "find the home of the lock registry", node: None });
        }
        std::thread::sleep(AGAIN);
    }
}

/// The registry is not where it was thought to be.
fn not_home(shared: &Shared, home: Home) {
    if let Ok(me) = shared.check()
        && let Ok(mut engine) = shared.enter(me, "lock")
    {
        engine.service::<Locks>().forget(home);
    }
}

/// All others that may know of the registry: those with a network. Of those that have none, their memory says all they know.
fn others(shared: &Shared) -> Result<Vec<(NodeId, Incarnation)>> {
    let members = shared.living_members(shared.check()?);
    let others = members.iter().filter(|member| member.networked && member.id != shared.membership().id());
    Ok(others.map(|member| (member.id, member.incarnation)).collect())
}

/// Asks all others; has the lowest node claim it if nobody knows one. `None`: ask again.
fn find_home(shared: &Shared, deadline: Option<Instant>, patient: bool) -> Result<Option<Where>> {
    const OPERATION: &str = "find the home of the lock registry";
    let others = others(shared)?;
    let patience = || {
        let soon = Instant::now() + ANSWER;
        Some(deadline.map_or(soon, |deadline| deadline.min(soon)))
    };
    if others.is_empty() && shared.is_settling() {
        // Those that it was told to seek had no time to answer.
        return Ok(None);
    }
    let mut said = Vec::new();
    let mut unmet = false;
    let me = (shared.membership().id(), shared.membership().incarnation());
    for &node in &others {
        match letter(shared, OPERATION, node, &Ask::WhoIsHome, None, patience()) {
            Ok(Answer::Home { home, knows }) => {
                // Of this node it is known better here.
                said.push(((node.0.0, node.1.0), home.filter(|home| home.node() != me)));
                unmet |= knows.iter().any(|&(id, life)| id != me.0.0 && !others.contains(&(NodeId(id), Incarnation(life))));
            }
            Ok(_) => {}
            Err(error @ (Error::Closed | Error::Forked | Error::Reentrant { .. })) => return Err(error),
            // It is gone, or does not answer: then it is home of nothing that could be reached.
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
        // Somebody lives, or did a moment ago, who may have keys and whom this node has not met.
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

/// Brings the registry here, if all others agree.
fn claim(shared: &Shared, others: &[(NodeId, Incarnation)], deadline: Option<Instant>) -> Result<bool> {
    const OPERATION: &str = "be the home of the lock registry";
    let me = shared.check()?;
    let (last, left, mut entries) = {
        let mut engine = shared.enter(me, OPERATION)?;
        if engine.service::<Locks>().registry.claiming {
            // Another thread of this node does.
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
    let deadline = Instant::now() + FOUNDING;
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
    tracing::debug!(term, keys = known.len(), "this node is the home of the lock registry");
    Ok(true)
}

/// Asks all others whether this node may be home, and for what they know of keys.
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
            match letter(shared, "be the home of the lock registry", node, &Ask::Claim { term, from }, None, deadline) {
                Ok(Answer::Agreed { entries: mut known, more }) => {
                    from += known.len() as u32;
                    let goes_on = more && !known.is_empty() && (from as usize) < doorbell_shm::keys::KEYS_MAX;
                    // Nobody speaks for another.
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
                            .enter(shared.check()?, "be the home of the lock registry")?
                            .service::<Locks>()
                            .registry
                            .learn_last(last);
                    }
                    return Ok(false);
                }
                Ok(_) => return Ok(false),
                // Whoever is gone has nothing.
                Err(Error::PeerDied { .. } | Error::PeerLeft { .. } | Error::NoSuchNode { .. }) => break,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(true)
}

/// Makes a key for another node.
pub(super) fn init_for(shared: &Shared, creator: (NodeId, Incarnation), name: &str, resource: Resource) -> Answer {
    let membership = shared.membership();
    match membership.init_key_for(creator, name, resource, Instant::now() + PATIENCE) {
        Ok(place) => match membership.key(place) {
            Some(key) => Answer::key(key, membership.seat().map_or(0, |(term, _)| term), name, creator.0),
            None => Answer::Trouble(Trouble::Destroyed),
        },
        Err(ShmError::Key { fault, .. }) => Answer::Trouble((&fault).into()),
        Err(error) => Answer::Trouble(Trouble::other(&error)),
    }
}

/// What is told of trouble at home.
pub(super) fn error_of(shared: &Shared, operation: &'static str, name: &str, trouble: Trouble) -> Error {
    match trouble.fault(name) {
        Ok(why) => fault(operation, name, why),
        Err(fault) => ShmError::Key { domain: shared.membership().domain().to_owned(), fault }.into(),
    }
}

/// Where the registry is, by what others say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// Nobody knows of it.
    Nobody,
    /// With this node.
    Home(Home),
    /// It is too early to tell.
    Unclear,
}

/// Finds the home in what each node said. A home lives, and does not deny that it is home. If there are several, the nodes have not heard of an end yet, or
/// have met too late, or one lies: then it is the one that more nodes name than any other. There may be none: nobody gets a key then that another may have.
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
            // It knows best itself how often it moved.
            let of =
                |(who, home): &(Life, Option<Home>)| home.filter(|home| home.at == first).map(|home| (*who == first, home.term));
            let term = said.iter().filter_map(of).max().map_or(1, |(_, term)| term);
            Choice::Home(Home { term, at: first })
        }
        // Who told of it has not noticed its end yet, or this node has not met it.
        [] => Choice::Unclear,
    }
}

/// What several nodes know of the same keys, and what the former home said if it left. If it died nobody knows who of those that died with it had a key.
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
            // Whoever lives has said what it has.
            Some(left) => key.dead = key.dead.or(of(left).filter(|owner| !lives(*owner))),
            None if key.owner.is_none() => {
                key.dead = key.dead.or(last.map(|last| OwnerId::thread(last.node().0, last.node().1, 0)));
            }
            None => {}
        }
    }
    known
}

/// A key as it was opened.
#[derive(Clone)]
pub enum Opened {
    /// In the memory that this node shares.
    Here(OpenKey),
    /// Elsewhere.
    Away(Arc<Away>),
}

/// Makes or finds a key, wherever the registry is.
pub(super) fn open_key(node: &Node, operation: &'static str, name: &str, make: Option<Resource>) -> Result<Opened> {
    let shared = shared_of(node);
    shared.check()?;
    let deadline = Some(Instant::now() + PATIENCE);
    loop {
        let home = match find_coordinator(shared, deadline)? {
            Where::There(home) => home,
            Where::Here => {
                let membership = shared.membership_arc();
                let place = match make {
                    Some(resource) => membership.init_key(name, resource, Instant::now() + PATIENCE)?,
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
