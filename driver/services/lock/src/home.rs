//! The coordinator: the node that serves locks to nodes that share no memory with the lock registry.
//!
//! The registry of a domain lies in one shared-memory group of nodes; the other nodes ask its coordinator. The coordinator is
//! chosen when the first lock is created. A node that finds none asks the node with the lowest id to *claim* the registry. The
//! claiming node asks all others what they know of locks, and each agrees unless it knows a living coordinator. When the last
//! node of the group dies, the registry moves in the same way: the living nodes report the locks they know and hold, and the
//! registry is rebuilt from that. If no living node reports that it holds a lock, the dead may have held it, and the next owner
//! is told so.
//!
//! A node does not believe a peer that calls itself coordinator: it asks all others (`away.rs`). So a lying peer can't be a
//! second coordinator beside a living one.

use super::error::{LockError, PATIENCE};
use super::far::{answer_waiting, find_coordinator, init_for, send_answer};
use super::mail::{Mail, Received};
use super::wait::Want;
use super::wire::{self, Answer, Ask, At, Deed, ENTRIES_MAX, Entry, Facts, Home, Tell, Trouble};
use doorbell_engine::kit::{BlockingPool, Customer, PeerId, Shared, world};
use doorbell_shm::domain::{Key, Membership, OpenKey};
use doorbell_shm::error::ShmError;
use doorbell_shm::keys::{KEYS_MAX, LockFacts, OwnerId, Resource, Seen, waiting};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long an agreed node has to become coordinator before another may try.
const AGREED: Duration = Duration::from_secs(5);

/// What a node serves and knows of locks. Only the holder of the baton uses it.
pub struct Registry {
    membership: Arc<Membership>,
    me: PeerId,
    shared: Weak<Shared>,
    blocking: Arc<BlockingPool>,
    /// The coordinator, if the registry is elsewhere: found by asking all others.
    pub known: Option<Home>,
    /// The node that this node last agreed to as coordinator, and when. That node may still fail to become it.
    agreed: Option<(Home, Instant)>,
    /// Nodes that announced themselves as coordinator, and whether each was told since then what this node holds.
    heralds: Vec<(Home, bool)>,
    /// A thread that looks for a coordinator because another node asked for one has this. One thread is enough.
    seeking: Weak<()>,
    /// This node took over from a dead coordinator, and has not announced it yet.
    pub succeeded: bool,
    /// This node is claiming the registry.
    pub claiming: bool,
    /// The present or last coordinator elsewhere that this node knew of; `before` is the one before that. The next one's term is
    /// greater.
    pub last: Option<Home>,
    before: Option<Home>,
    /// The last report of a leaving coordinator: the locks that were held, damaged or frozen, and whether that is all.
    farewell: Option<(PeerId, Vec<Entry>, bool)>,
    /// Nodes that wait here for a lock, over the network.
    waiting: Vec<Waiting>,
    /// The locks that nodes say they hold, while their reports are incomplete.
    holding: BTreeMap<PeerId, Vec<String>>,
    /// Locks that others offer, and that are not accepted yet.
    pub offers: VecDeque<Arrived>,
}

/// An offer that has arrived.
pub struct Arrived {
    pub from: PeerId,
    /// The number by which it is answered.
    pub id: u64,
    pub name: String,
    pub with: Vec<u8>,
}

/// A node's wait for a lock, on a pool thread here.
pub struct Waiting {
    peer: PeerId,
    id: u64,
    key: OpenKey,
    withdrawn: Arc<AtomicBool>,
}

impl Waiting {
    /// Ends a wait: the lock is no longer wanted.
    fn withdraw(self) {
        self.withdrawn.store(true, Ordering::Release);
        self.key.get().words().wake_all();
    }
}

/// Cuts a list that has no room in one packet. Each notice says whether more follow; there is at least one.
fn in_parts<T: Clone>(all: &[T], tell: impl Fn(Vec<T>, bool) -> Tell) -> Vec<Tell> {
    let parts = all.len().div_ceil(ENTRIES_MAX).max(1);
    let part = |at: usize| all.iter().skip(at * ENTRIES_MAX).take(ENTRIES_MAX).cloned().collect();
    (0..parts).map(|at| tell(part(at), at + 1 < parts)).collect()
}

impl Registry {
    /// The state of a node that knows of no lock yet.
    pub fn new(membership: Arc<Membership>, shared: Weak<Shared>, blocking: Arc<BlockingPool>) -> Self {
        Self {
            me: (&*membership).into(),
            membership,
            shared,
            blocking,
            known: None,
            agreed: None,
            heralds: Vec::new(),
            seeking: Weak::new(),
            claiming: false,
            last: None,
            before: None,
            succeeded: false,
            waiting: Vec::new(),
            holding: BTreeMap::new(),
            farewell: None,
            offers: VecDeque::new(),
        }
    }

    /// The coordinator, as far as this node knows. If the registry is here and its coordinator is dead, this node takes over.
    pub fn whereabouts(&mut self) -> Option<Home> {
        let Some((term, was)) = self.membership.seat() else { return self.known };
        // In a group without a network nobody asks this, and no coordinator is needed.
        if !self.membership.is_home_living() && self.membership.take_home(was) {
            self.succeeded = true;
        }
        Some(Home { term, at: self.membership.seat()?.1?.into() })
    }

    /// Takes `home` as the coordinator, which is elsewhere, and tells it which locks this node holds. It frees the others that
    /// the former coordinator had granted to this node: the grant or this node's notice of the unlock was lost with that
    /// coordinator.
    pub fn adopt(&mut self, home: Home, mail: &mut Mail) {
        if self.known == Some(home) || home.term > wire::TERM_MAX || self.belongs_here() {
            return;
        }
        (self.known, self.last, self.agreed) = (Some(home), Some(home), None);
        self.report(home, mail);
    }

    /// Tells a coordinator which locks this node holds.
    fn report(&mut self, home: Home, mail: &mut Mail) {
        self.heralds.iter_mut().filter(|(herald, _)| herald.at == home.at).for_each(|(_, is_told)| *is_told = true);
        let letters = in_parts(&mail.held(home.at), |names, more| Tell::Holding { names, more });
        letters.iter().for_each(|letter| mail.tell(home.at, letter));
    }

    /// Takes over what another node knows of the last coordinator.
    pub fn learn_last(&mut self, last: Home) {
        if self.may_follow(last.term) && self.last.is_none_or(|mine| mine.term < last.term) {
            self.last = Some(last);
        }
    }

    /// Whether this term may follow the last one that this node knows. A peer that named the highest term would leave none for
    /// honest nodes.
    fn may_follow(&self, term: u64) -> bool {
        term <= self.last.map_or(0, |last| last.term).saturating_add(wire::TERMS_AHEAD_MAX).min(wire::TERM_MAX)
    }

    /// Whether the registry is in the memory that this node shares.
    pub fn belongs_here(&self) -> bool {
        self.membership.seat().is_some()
    }

    /// The registry is not where it was thought to be. Nodes that announced themselves meanwhile now get this node's report.
    pub fn forget(&mut self, home: Home, mail: &mut Mail) {
        if self.known != Some(home) {
            return;
        }
        self.known = None;
        let waiting: Vec<_> = self.heralds.iter().filter(|(_, is_told)| !is_told).map(|(herald, _)| *herald).collect();
        waiting.into_iter().for_each(|herald| self.report(herald, mail));
    }

    /// The nodes to tell when this node unlocks: the coordinator, or, while it is unknown, all that may be it.
    pub fn may_be_home(&self) -> Vec<Home> {
        if let Some(home) = self.known {
            return vec![home];
        }
        let heralds = self.heralds.iter().map(|(herald, _)| *herald);
        let agreed = self.agreed.map(|(home, _)| home);
        heralds.chain(agreed.filter(|home| !self.heralds.iter().any(|(herald, _)| herald.at == home.at))).collect()
    }

    /// Handles the announcement of a new coordinator. It gets this node's report only after the former coordinator is gone,
    /// since that one may grant a lock until then. What the report does not name is free.
    fn hear_herald(&mut self, home: Home, mail: &mut Mail) {
        // An incarnation announces itself once: the term stays with its shared-memory group.
        if home.term > wire::TERM_MAX || self.belongs_here() || self.heralds.iter().any(|(herald, _)| herald.at == home.at) {
            return;
        }
        self.heralds.push((home, false));
        if self.known.is_none_or(|known| known.at == home.at) {
            self.report(home, mail);
        }
    }

    /// Handles a request or a notice. An error says which rule the sender broke.
    pub fn deal(&mut self, received: Received, mail: &mut Mail, others: impl Fn() -> Vec<PeerId>) -> Result<(), &'static str> {
        let Received { from, id, bytes } = received;
        let Some(id) = id else {
            let tell = wire::decode(&bytes).ok_or("a lock notice that cannot be decoded")?;
            self.hear(from, tell, mail);
            return Ok(());
        };
        let ask = wire::decode(&bytes).ok_or("a lock request that cannot be decoded")?;
        let answer = if ask == Ask::WhoIsHome {
            let mut knows = others();
            knows.truncate(wire::KNOWS_MAX);
            Some(Answer::Home { home: self.whereabouts(), knows })
        } else {
            self.reply(from, id, ask, mail)
        };
        if let Some(answer) = answer {
            mail.answer(from, id, &answer);
        }
        Ok(())
    }

    fn hear(&mut self, from: PeerId, tell: Tell, mail: &mut Mail) {
        match tell {
            Tell::Unlock { at, me } => {
                if let (Some(me), Ok(key)) = (own(from, me), self.key(&at)) {
                    let _ = key.get().words().release(me);
                }
            }
            Tell::Holding { names, more } => self.hear_holding(from, names, more),
            Tell::Farewell { left, more } => self.hear_farewell(from, left, more),
            Tell::Heir { at } => {
                // If the heir dies before it announces itself, it is the one from which others inherit.
                if let Some(last) = self.last.as_mut().filter(|last| last.at == from) {
                    last.at = at;
                }
            }
            Tell::Here { term } => self.hear_herald(Home { term, at: from }, mail),
            Tell::Abandon { term } => {
                let home = Home { term, at: from };
                self.forget(home, mail);
                self.agreed = self.agreed.filter(|(agreed, _)| *agreed != home);
                if self.last == Some(home) {
                    self.last = self.before;
                }
            }
            Tell::Withdraw { id, want } => {
                if let Some(wait) = self.end_wait(from, id) {
                    wait.withdraw();
                    mail.answer(from, id, &Answer::Withdrawn);
                } else if let Some((at, me)) = want {
                    // The node got the lock, and no longer wants it.
                    self.hear(from, Tell::Unlock { at, me }, mail);
                }
            }
        }
    }

    /// Keeps a part of a last report. It may be that of a node that has announced itself, while a thread of this node still asks the
    /// others whether it is coordinator.
    fn hear_farewell(&mut self, who: PeerId, left: Vec<Entry>, more: bool) {
        let is_last = |at: PeerId| self.last.is_some_and(|last| last.at == at);
        let is_announced = self.heralds.iter().any(|(herald, _)| herald.at == who);
        // No other node displaces the last coordinator's report.
        if !is_last(who) && (!is_announced || self.farewell.as_ref().is_some_and(|(of, ..)| is_last(*of))) {
            return;
        }
        let farewell = self.farewell.take().filter(|(of, ..)| *of == who);
        let (_, all, is_whole) = self.farewell.insert(farewell.unwrap_or((who, Vec::new(), false)));
        if all.len() < KEYS_MAX {
            all.extend(left);
            *is_whole = !more;
        }
    }

    /// The former coordinator's last report, if it left and the report is complete.
    pub fn left_by(&self, home: Home) -> Option<Vec<Entry>> {
        self.farewell.as_ref().filter(|(of, _, is_whole)| *of == home.at && *is_whole).map(|(_, left, _)| left.clone())
    }

    /// The notices to send when this node leaves, if it is coordinator: its heir, or what it leaves if it is the last node of its
    /// group.
    pub fn farewell(&self) -> Vec<Tell> {
        if !self.is_home() {
            return Vec::new();
        }
        if let Some(heir) = self.membership.other_heir() {
            return vec![Tell::Heir { at: heir.into() }];
        }
        let entry = |facts: LockFacts| Entry {
            name: facts.name,
            resource: facts.resource.to_words(),
            owner: facts.seen.owner().map_or(0, OwnerId::bits),
            dead: facts.dead.map_or(0, OwnerId::bits),
            frozen: facts.seen.is_frozen(),
        };
        let entries = self.membership.keys().into_iter().map(entry);
        let left: Vec<_> = entries.filter(|entry| entry.owner != 0 || entry.dead != 0 || entry.frozen).collect();
        in_parts(&left, |left, more| Tell::Farewell { left, more })
    }

    /// Whether the registry is here, and this node its coordinator.
    fn is_home(&self) -> bool {
        self.membership.seat().is_some_and(|(_, home)| home == Some(self.me.into()))
    }

    fn hear_holding(&mut self, who: PeerId, names: Vec<String>, more: bool) {
        let said = self.holding.entry(who).or_default();
        said.extend(names);
        if more && said.len() < KEYS_MAX {
            return;
        }
        let held = self.holding.remove(&who).unwrap_or_default();
        for facts in self.membership.keys() {
            if let Some(owner) = facts.seen.owner().filter(|owner| PeerId::from(*owner) == who)
                && !held.contains(&facts.name)
                && let Some(key) = self.membership.key(facts.key)
            {
                let _ = key.words().release(owner);
            }
        }
    }

    fn reply(&mut self, from: PeerId, id: u64, ask: Ask, mail: &Mail) -> Option<Answer> {
        match ask {
            Ask::Offer { name, with, .. } => {
                self.offers.push_back(Arrived { from, id, name, with });
                return None;
            }
            Ask::BeHome => {
                if self.seeking.strong_count() == 0 {
                    let seeking = Arc::new(());
                    self.seeking = Arc::downgrade(&seeking);
                    self.submit(Customer::Own, move |shared| {
                        let _seeking = seeking;
                        if let Err(error) = find_coordinator(shared, Some(world::now() + PATIENCE)) {
                            tracing::debug!(%error, "another node asked this one to coordinate the lock registry, but no coordinator was found");
                        }
                    });
                }
                return Some(Answer::Done);
            }
            Ask::Claim { term, from: number } => return Some(self.agree(from, term, number as usize, &mail.opened)),
            _ => {}
        }
        if self.whereabouts().is_none_or(|home| home.at != self.me) {
            return Some(Answer::NotHome);
        }
        // The coordinator has to know whether the asking node lives. This node watches it for the whole group.
        self.membership.serve(from.node, from.incarnation, true);
        let chores = Customer::Chores(from.node, from.incarnation);
        match ask {
            Ask::Init { name, resource } => {
                // Other nodes may hold the domain's lock file for a while.
                self.submit(chores, move |shared| {
                    send_answer(shared, from, id, &init_for(shared, from, &name, Resource::from_words(resource)));
                });
                None
            }
            Ask::Find { name } => Some(match self.membership.find_key(&name).and_then(|place| self.membership.key(place)) {
                Some(key) => Answer::key(key, self.term().unwrap_or(0), &name, from.node),
                None => Answer::Trouble(Trouble::Unknown),
            }),
            Ask::Deed { at, deed } => {
                let key = match self.key(&at) {
                    Ok(key) => key,
                    Err(fault) => return Some(Answer::Trouble((&fault).into())),
                };
                if let Deed::Destroy { me } = deed {
                    self.submit(chores, move |shared| {
                        let answer =
                            destroy(key.get(), own(from, me)).unwrap_or_else(|error| Answer::Trouble(Trouble::other(&error)));
                        send_answer(shared, from, id, &answer);
                    });
                    return None;
                }
                match perform(key.get(), from, deed) {
                    Ok(answer) => Some(answer),
                    Err(me) => {
                        self.wait(from, id, key, at.name, me);
                        None
                    }
                }
            }
            _ => Some(Answer::NotHome),
        }
    }

    /// Lets a pool thread wait for a lock on behalf of a node.
    fn wait(&mut self, peer: PeerId, id: u64, key: OpenKey, name: String, me: OwnerId) {
        let withdrawn = Arc::new(AtomicBool::new(false));
        self.waiting.push(Waiting { peer, id, key: key.clone(), withdrawn: withdrawn.clone() });
        self.submit(Customer::Waits(peer.node, peer.incarnation), move |shared| {
            // The job may have waited for a free thread until its node was gone.
            if withdrawn.load(Ordering::Acquire) {
                return;
            }
            let taken = Want { shared, key: key.get(), name: &name, me, withdrawn: Some(&withdrawn) }.wait(None);
            let answer = match &taken {
                Ok(taken) => Answer::taken(key.get(), taken.damaged),
                Err(error) => error.downcast_ref::<LockError>().map_or(Answer::Withdrawn, |why| Answer::Trouble(why.into())),
            };
            let is_wanted = answer_waiting(shared, peer, id, &answer);
            if taken.is_ok() && !is_wanted {
                // The node is gone.
                let _ = key.get().words().release(me);
            }
        });
    }

    /// Takes a wait out. `None` if its node is gone, so that the lock has to be given back.
    pub fn end_wait(&mut self, peer: PeerId, id: u64) -> Option<Waiting> {
        let at = self.waiting.iter().position(|waiting| (waiting.peer, waiting.id) == (peer, id))?;
        Some(self.waiting.swap_remove(at))
    }

    fn submit(&self, customer: Customer, job: impl FnOnce(&Shared) + Send + 'static) {
        let Some(shared) = self.shared.upgrade() else { return };
        self.blocking.submit_for(customer, Box::new(move || job(&shared)));
    }

    /// The term of the registry, if it is here.
    pub fn term(&self) -> Option<u64> {
        self.membership.seat().map(|(term, _)| term)
    }

    fn key(&self, at: &At) -> Result<OpenKey, LockError> {
        let place = if Some(at.term) == self.term() { Some(at.place()) } else { self.membership.find_key(&at.name) };
        place.and_then(|place| OpenKey::new(self.membership.clone(), place)).ok_or(LockError::Destroyed)
    }

    /// The node that this node agreed to as coordinator, for as long as the agreement lasts.
    pub fn agreed_to(&self) -> Option<Home> {
        self.agreed.filter(|(_, when)| world::since(*when) < AGREED).map(|(home, _)| home)
    }

    /// Answers a node that wants to be coordinator.
    fn agree(&mut self, who: PeerId, term: u64, from: usize, opened: &[Entry]) -> Answer {
        // `gone` has already dropped coordinators that died.
        let home = self.whereabouts().filter(|home| home.at != who);
        let is_promised = self.agreed_to().is_some_and(|agreed| agreed.at != who) || self.claiming && self.me.node < who.node;
        let is_late = self.last.is_some_and(|last| last.at != who && last.term >= term);
        if home.is_some() || is_promised || is_late || term == 0 || !self.may_follow(term) {
            return Answer::Disagreed { home, last: self.last };
        }
        self.claiming = false;
        let home = Home { term, at: who };
        if self.last != Some(home) {
            self.before = self.last;
        }
        (self.agreed, self.last) = (Some((home, world::now())), Some(home));
        let entries: Vec<_> = opened.iter().skip(from).take(ENTRIES_MAX).cloned().collect();
        let more = opened.len() > from + entries.len();
        Answer::Agreed { entries, more }
    }

    /// Ignores an incarnation that broke the rules, and ends all work for it. It keeps the locks it holds while it lives.
    pub fn shun(&mut self, peer: PeerId) {
        self.offers.retain(|offer| offer.from != peer);
        self.holding.remove(&peer);
        self.waiting.extract_if(.., |waiting| waiting.peer == peer).for_each(Waiting::withdraw);
        self.heralds.retain(|(herald, _)| herald.at != peer);
        self.agreed = self.agreed.filter(|(agreed, _)| agreed.at != peer);
    }

    /// Handles the end of an incarnation.
    pub fn gone(&mut self, peer: PeerId, mail: &mut Mail) {
        self.shun(peer);
        if let Some(home) = self.known.filter(|home| home.at == peer) {
            self.forget(home, mail);
        }
        let home = self.membership.seat().and_then(|(_, home)| home).map(PeerId::from);
        if home == Some(peer) && self.membership.me().networked {
            self.whereabouts();
        } else if self.is_home() {
            self.bury(peer);
        }
    }

    /// Releases the locks of a node that was served over the network, as those of a dead owner.
    fn bury(&self, PeerId { node, incarnation }: PeerId) {
        self.membership.serve(node, incarnation, false);
        for facts in self.membership.keys() {
            let Some(key) = self.membership.key(facts.key) else { continue };
            if facts.seen.owner().is_some_and(|owner| (owner.node(), owner.incarnation()) == (node, incarnation)) {
                key.bury(facts.seen);
            }
            if !self.membership.is_living(node, incarnation) && facts.users.contains(&node) {
                key.set_user(node, false);
            }
        }
    }

    /// After a takeover: releases the locks of nodes that the former coordinator served and that are gone.
    pub fn bury_absent(&self, is_live: impl Fn(PeerId) -> bool) {
        let served = self.membership.served().into_iter().map(PeerId::from);
        served.filter(|peer| !is_live(*peer)).for_each(|peer| self.bury(peer));
    }
}

/// The owner with these bits, if it belongs to this incarnation of a node.
fn own(peer: PeerId, bits: u64) -> Option<OwnerId> {
    OwnerId::from_bits(bits).filter(|owner| PeerId::from(*owner) == peer)
}

/// Destroys a lock, if no other owner holds it.
pub fn destroy(key: Key<'_>, me: Option<OwnerId>) -> Result<Answer, ShmError> {
    let held = key.destroy(me, world::now() + PATIENCE)?;
    Ok(held.map_or(Answer::Done, |owner| Answer::Trouble(Trouble::Otherwise(owner.bits()))))
}

/// Executes an operation on a lock for an incarnation of a node, which may name only itself as owner. An error means that this
/// owner has to wait for the lock.
pub fn perform(key: Key<'_>, peer: PeerId, deed: Deed) -> Result<Answer, OwnerId> {
    let not_yours = |seen: Seen| Answer::Trouble(Trouble::NotYours(seen.bits()));
    let words = key.words();
    let foreign = || not_yours(words.get());
    let done = |done: Option<Result<(), Seen>>| match done {
        Some(Ok(())) => Answer::Done,
        Some(Err(seen)) => not_yours(seen),
        None => foreign(),
    };
    Ok(match deed {
        Deed::Get => Answer::Seen(words.get().bits()),
        Deed::Facts => match key.facts() {
            Some(facts) => Answer::Facts(Facts::new(&facts)),
            None => Answer::Trouble(Trouble::Destroyed),
        },
        Deed::Set { expected, new } => match (own(peer, expected), own(peer, new)) {
            (None, _) if expected != 0 => foreign(),
            (_, None) if new != 0 => foreign(),
            (expected, new) => match words.set(expected, new) {
                Ok(()) if new.is_some() => Answer::taken(key, words.get().is_damaged()),
                Ok(()) => Answer::Done,
                Err(seen) => Answer::Trouble(Trouble::Otherwise(seen.bits())),
            },
        },
        Deed::Try { me } | Deed::Lock { me } => {
            let Some(me) = own(peer, me) else { return Ok(foreign()) };
            match waiting::try_take(words, me) {
                Ok(taken) => Answer::taken(key, taken.damaged),
                Err(_) if matches!(deed, Deed::Lock { .. }) => return Err(me),
                Err(seen) => Answer::Busy(seen.bits()),
            }
        }
        Deed::Unlock { me } => done(own(peer, me).map(|me| words.release(me))),
        Deed::Repair { me } => done(own(peer, me).map(|me| words.repair(me))),
        Deed::Bar => Answer::Frozen { first: words.freeze().1 },
        Deed::Thaw if words.thaw() => Answer::Done,
        Deed::Thaw => foreign(),
        Deed::Release => {
            key.set_user(peer.node, false);
            Answer::Done
        }
        Deed::Destroy { .. } => Answer::Trouble(Trouble::Destroyed),
    })
}
