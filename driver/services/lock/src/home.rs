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

use super::away::{answer_waiting, find_coordinator, init_for, send_answer};
use super::fault::PATIENCE;
use super::mail::{Mail, Received};
use super::offers::{Arrived, Offers};
use super::seeking::Seeking;
use super::wait::Want;
use super::wire::{self, Answer, Ask, At, Deed, Entry, Facts, Home, Life, Tell, Trouble};
use doorbell_engine::drive::Shared;
use doorbell_engine::error::Error;
use doorbell_engine::error::LockFault;
use doorbell_engine::sync::pool::{Clerks, Customer};
use doorbell_fabric::world;
use doorbell_fabric::{Incarnation, NodeId};
use doorbell_shm::domain::{Key, Membership, OpenKey};
use doorbell_shm::keys::{OwnerId, Resource, Seen, waiting};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long an agreed node has to become coordinator before another may try.
const AGREED: Duration = Duration::from_secs(5);

/// What a node serves and knows of locks. Only the holder of the baton uses it.
pub struct Registry {
    membership: Arc<Membership>,
    shared: Weak<Shared>,
    clerks: Arc<Clerks>,
    /// The coordinator, if the registry is elsewhere: found by asking all others.
    known: Option<Home>,
    /// The node that this node last agreed to as coordinator, and when. That node may still fail to become it.
    agreed: Option<(Home, Instant)>,
    /// Nodes that announced themselves as coordinator, and whether each was told since then what this node holds.
    heralds: Vec<(Home, bool)>,
    /// Whether a thread is looking for a coordinator because another node asked for one. One thread is enough.
    is_seeking: Arc<AtomicBool>,
    /// This node took over from a dead coordinator.
    succeeded: bool,
    /// This node is claiming the registry.
    pub claiming: bool,
    /// The last coordinator elsewhere that this node knew of; `before` is the one before that.
    last: Option<Home>,
    before: Option<Home>,
    /// What the former coordinator said when it left.
    farewell: Option<Farewell>,
    /// Nodes that wait here for a lock, over the network.
    waiting: Vec<Waiting>,
    /// The locks that nodes say they hold, while their reports are incomplete.
    holding: Vec<((NodeId, Incarnation), Vec<String>)>,
    /// Locks that others offer.
    pub offers: Offers,
}

/// The locks that a leaving coordinator reported as held, damaged or frozen.
struct Farewell {
    home: Home,
    left: Vec<Entry>,
    whole: bool,
}

struct Waiting {
    node: NodeId,
    life: Incarnation,
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

/// The answer of an operation on a lock, or that it has to wait.
pub enum Done {
    Answer(Answer),
    Wait,
}

impl Registry {
    /// The state of a node that knows of no lock yet.
    pub fn new(membership: Arc<Membership>, shared: Weak<Shared>, clerks: Arc<Clerks>) -> Self {
        Self {
            membership,
            shared,
            clerks,
            known: None,
            agreed: None,
            heralds: Vec::new(),
            is_seeking: Arc::default(),
            claiming: false,
            last: None,
            before: None,
            succeeded: false,
            waiting: Vec::new(),
            holding: Vec::new(),
            farewell: None,
            offers: Offers::default(),
        }
    }

    fn me(&self) -> (NodeId, Incarnation) {
        (self.membership.id(), self.membership.incarnation())
    }

    /// The coordinator, as far as this node knows. If the registry is here and its coordinator is dead, this node takes over.
    pub fn whereabouts(&mut self) -> Option<Home> {
        let Some((term, was)) = self.membership.seat() else { return self.known };
        // In a group without a network nobody asks this, and no coordinator is needed.
        if !self.membership.is_home_living() && self.membership.take_home(was) {
            self.succeeded = true;
        }
        let (node, life) = self.membership.seat()?.1?;
        Some(Home { term, at: (node.0, life.0) })
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
        let (node, life) = home.node();
        let held: Vec<_> = mail.held(node, life).collect();
        let mut letters = held.chunks(wire::ENTRIES_MAX).peekable();
        if letters.peek().is_none() {
            mail.tell(node, life, wire::encode(&Tell::Holding { names: Vec::new(), more: false }));
        }
        while let Some(names) = letters.next() {
            let more = letters.peek().is_some();
            mail.tell(node, life, wire::encode(&Tell::Holding { names: names.to_vec(), more }));
        }
    }

    /// The present or last coordinator that this node knows of. The next one's term is greater.
    pub fn last(&self) -> Option<Home> {
        self.last
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

    /// The coordinator, if it is elsewhere and known.
    pub fn known(&self) -> Option<Home> {
        self.known
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
    pub fn deal(&mut self, received: Received, mail: &mut Mail, others: impl Fn() -> Vec<Life>) -> Result<(), &'static str> {
        let Received { node, life, id, bytes } = received;
        let Some(id) = id else {
            let tell: Tell = wire::decode(&bytes).ok_or("a lock notice that cannot be decoded")?;
            self.hear(node, life, tell, mail);
            return Ok(());
        };
        let ask: Ask = wire::decode(&bytes).ok_or("a lock request that cannot be decoded")?;
        if ask == Ask::WhoIsHome {
            let mut knows = others();
            knows.truncate(wire::KNOWS_MAX);
            let answer = Answer::Home { home: self.whereabouts(), knows };
            mail.answer(node, life, id, wire::encode(&answer));
            return Ok(());
        }
        if let Some(answer) = self.reply(node, life, id, ask, mail) {
            mail.answer(node, life, id, wire::encode(&answer));
        }
        Ok(())
    }

    fn hear(&mut self, node: NodeId, life: Incarnation, tell: Tell, mail: &mut Mail) {
        match tell {
            Tell::Unlock { at, me } => {
                let me = OwnerId::from_bits(me).filter(|me| (me.node(), me.life()) == (node, life));
                if let (Some(me), Ok(key)) = (me, self.key(&at)) {
                    let _ = key.get().words().release(me);
                }
            }
            Tell::Holding { names, more } => self.hear_holding((node, life), names, more),
            Tell::Farewell { left, more } => self.hear_farewell((node, life), left, more),
            Tell::Here { term } => self.hear_herald(Home { term, at: (node.0, life.0) }, mail),
            Tell::Abandon { term } => {
                let home = Home { term, at: (node.0, life.0) };
                self.forget(home, mail);
                self.agreed = self.agreed.filter(|(agreed, _)| *agreed != home);
                if self.last == Some(home) {
                    self.last = self.before;
                }
            }
            Tell::Withdraw { id, want } => {
                let wait = self.waiting.iter().position(|waiting| (waiting.node, waiting.life, waiting.id) == (node, life, id));
                if let Some(wait) = wait {
                    self.waiting.swap_remove(wait).withdraw();
                    mail.answer(node, life, id, wire::encode(&Answer::Withdrawn));
                } else if let Some((at, me)) = want {
                    // The node got the lock, and no longer wants it.
                    self.hear(node, life, Tell::Unlock { at, me }, mail);
                }
            }
        }
    }

    fn hear_farewell(&mut self, who: (NodeId, Incarnation), left: Vec<Entry>, more: bool) {
        let Some(home) = self.last.filter(|home| home.node() == who) else { return };
        if self.farewell.as_ref().is_none_or(|farewell| farewell.home != home) {
            self.farewell = Some(Farewell { home, left: Vec::new(), whole: false });
        }
        if let Some(farewell) = &mut self.farewell
            && farewell.left.len() < doorbell_shm::keys::KEYS_MAX
        {
            farewell.left.extend(left);
            farewell.whole = !more;
        }
    }

    /// The former coordinator's last report, if it left and the report is complete.
    pub fn left_by(&self, home: Home) -> Option<Vec<Entry>> {
        self.farewell.as_ref().filter(|farewell| farewell.home == home && farewell.whole).map(|farewell| farewell.left.clone())
    }

    /// The notices to send when this node leaves, if it is coordinator and the last node of its group.
    pub fn farewell(&self) -> Vec<Tell> {
        let is_home = self.membership.seat().is_some_and(|(_, home)| home == Some(self.me()));
        if !is_home || self.membership.has_other_heir() {
            return Vec::new();
        }
        let entry = |facts: doorbell_shm::keys::KeyFacts| Entry {
            name: facts.name,
            resource: facts.resource.to_words(),
            owner: facts.seen.owner().map_or(0, OwnerId::bits),
            dead: facts.dead.map_or(0, OwnerId::bits),
            barred: facts.seen.is_barred(),
        };
        let entries = self.membership.keys().into_iter().map(entry);
        let left: Vec<_> = entries.filter(|entry| entry.owner != 0 || entry.dead != 0 || entry.barred).collect();
        let parts = left.len().div_ceil(wire::ENTRIES_MAX).max(1);
        let part = |at: usize| left.iter().skip(at * wire::ENTRIES_MAX).take(wire::ENTRIES_MAX).cloned().collect();
        (0..parts).map(|at| Tell::Farewell { left: part(at), more: at + 1 < parts }).collect()
    }

    fn hear_holding(&mut self, who: (NodeId, Incarnation), names: Vec<String>, more: bool) {
        let at = self.holding.iter().position(|(node, _)| *node == who).unwrap_or_else(|| {
            self.holding.push((who, Vec::new()));
            self.holding.len() - 1
        });
        let said = &mut self.holding[at].1;
        said.extend(names);
        if more && said.len() < doorbell_shm::keys::KEYS_MAX {
            return;
        }
        let (_, held) = self.holding.swap_remove(at);
        for facts in self.membership.keys() {
            let owner = facts.seen.owner().filter(|owner| (owner.node(), owner.life()) == who);
            if let Some(owner) = owner
                && !held.contains(&facts.name)
                && let Some(key) = self.membership.key(facts.key)
            {
                let _ = key.words().release(owner);
            }
        }
    }

    fn reply(&mut self, node: NodeId, life: Incarnation, id: u64, ask: Ask, mail: &Mail) -> Option<Answer> {
        match ask {
            Ask::Offer { name, with, .. } => {
                self.offers.push(Arrived { node, life, id, name, with });
                return None;
            }
            Ask::BeHome => {
                if let Some(seeking) = Seeking::begin(&self.is_seeking) {
                    self.submit(Customer::Own, move |shared| {
                        let _seeking = seeking;
                        if let Err(error) = find_coordinator(shared, Some(world::now() + PATIENCE)) {
                            tracing::debug!(%error, "another node asked this one to coordinate the lock registry, but no coordinator was found");
                        }
                    });
                }
                return Some(Answer::Done);
            }
            Ask::Claim { term, from } => return Some(self.agree((node, life), term, from, &mail.opened)),
            _ => {}
        }
        if !matches!(self.whereabouts(), Some(home) if home.node() == self.me()) {
            return Some(Answer::NotHome);
        }
        // The coordinator has to know whether the asking node lives. This node watches it for the whole group.
        self.membership.serve(node, life, true);
        match ask {
            Ask::Init { name, resource } => {
                // Other nodes may hold the domain's lock file for a while.
                self.submit(Customer::Chores(node, life), move |shared| {
                    let answer = init_for(shared, (node, life), &name, Resource::from_words(resource));
                    send_answer(shared, node, life, id, &answer);
                });
                None
            }
            Ask::Find { name } => Some(match self.membership.find_key(&name).and_then(|place| self.membership.key(place)) {
                Some(key) => Answer::key(key, self.term().unwrap_or(0), &name, node),
                None => Answer::Trouble(Trouble::Unknown),
            }),
            Ask::Deed { at, deed: Deed::Destroy { me } } => {
                let me = OwnerId::from_bits(me).filter(|me| (me.node(), me.life()) == (node, life));
                let key = match self.key(&at) {
                    Ok(key) => key,
                    Err(fault) => return Some(Answer::Trouble((&fault).into())),
                };
                self.submit(Customer::Chores(node, life), move |shared| {
                    let answer = match key.get().destroy(me, world::now() + PATIENCE) {
                        Ok(None) => Answer::Done,
                        Ok(Some(owner)) => Answer::Trouble(Trouble::Otherwise(owner.bits())),
                        Err(error) => Answer::Trouble(Trouble::other(&error)),
                    };
                    send_answer(shared, node, life, id, &answer);
                });
                None
            }
            Ask::Deed { at, deed } => {
                let key = match self.key(&at) {
                    Ok(key) => key,
                    Err(fault) => return Some(Answer::Trouble((&fault).into())),
                };
                match perform(key.get(), (node, life), deed) {
                    Done::Answer(answer) => Some(answer),
                    Done::Wait => {
                        self.wait((node, life), id, key, at.name, deed);
                        None
                    }
                }
            }
            _ => Some(Answer::NotHome),
        }
    }

    /// Lets a pool thread wait for a lock on behalf of a node.
    fn wait(&mut self, (node, life): (NodeId, Incarnation), id: u64, key: OpenKey, name: String, deed: Deed) {
        let Deed::Lock { me } = deed else { return };
        let Some(me) = OwnerId::from_bits(me) else { return };
        let withdrawn = Arc::new(AtomicBool::new(false));
        self.waiting.push(Waiting { node, life, id, key: key.clone(), withdrawn: withdrawn.clone() });
        self.submit(Customer::Waits(node, life), move |shared| {
            // The job may have waited for a free thread until its node was gone.
            if withdrawn.load(Ordering::Acquire) {
                return;
            }
            let want = Want { shared, key: key.get(), name: &name, me, withdrawn: Some(&withdrawn) };
            let taken = want.wait(None);
            let answer = match &taken {
                Ok(taken) => Answer::taken(key.get(), taken.damaged),
                Err(Error::Lock { why, .. }) => Answer::Trouble((&**why).into()),
                Err(_) => Answer::Withdrawn,
            };
            let is_wanted = answer_waiting(shared, node, life, id, &answer);
            if taken.is_ok() && !is_wanted {
                // The node is gone.
                let _ = key.get().words().release(me);
            }
        });
    }

    /// Ends a wait. False if its node is gone, so that the lock has to be given back.
    pub fn end_wait(&mut self, node: NodeId, life: Incarnation, id: u64) -> bool {
        let at = self.waiting.iter().position(|waiting| (waiting.node, waiting.life, waiting.id) == (node, life, id));
        at.map(|at| self.waiting.swap_remove(at)).is_some()
    }

    fn submit(&self, customer: Customer, job: impl FnOnce(&Shared) + Send + 'static) {
        let Some(shared) = self.shared.upgrade() else { return };
        self.clerks.submit_for(customer, Box::new(move || job(&shared)));
    }

    /// The term of the registry, if it is here.
    pub fn term(&self) -> Option<u64> {
        self.membership.seat().map(|(term, _)| term)
    }

    fn key(&self, at: &At) -> Result<OpenKey, LockFault> {
        let place = if Some(at.term) == self.term() { Some(at.place()) } else { self.membership.find_key(&at.name) };
        place.and_then(|place| OpenKey::new(self.membership.clone(), place)).ok_or(LockFault::Destroyed)
    }

    /// The node that this node agreed to as coordinator, for as long as the agreement lasts.
    pub fn agreed_to(&self) -> Option<Home> {
        self.agreed.filter(|(_, when)| world::since(*when) < AGREED).map(|(home, _)| home)
    }

    /// Answers a node that wants to be coordinator.
    fn agree(&mut self, who: (NodeId, Incarnation), term: u64, from: u32, opened: &[Entry]) -> Answer {
        // `gone` has already dropped coordinators that died.
        if let Some(home) = self.whereabouts().filter(|home| home.node() != who) {
            return Answer::Disagreed { home: Some(home), last: self.last };
        }
        if self.agreed_to().is_some_and(|agreed| agreed.node() != who) || self.claiming && self.me().0 < who.0 {
            return Answer::Disagreed { home: None, last: self.last };
        }
        if term == 0 || !self.may_follow(term) || self.last.is_some_and(|last| last.node() != who && last.term >= term) {
            return Answer::Disagreed { home: None, last: self.last };
        }
        self.claiming = false;
        let home = Home { term, at: (who.0.0, who.1.0) };
        if self.last != Some(home) {
            self.before = self.last;
        }
        (self.agreed, self.last) = (Some((home, world::now())), Some(home));
        let from = from as usize;
        let entries: Vec<_> = opened.iter().skip(from).take(wire::ENTRIES_MAX).cloned().collect();
        let more = opened.len() > from + entries.len();
        Answer::Agreed { entries, more }
    }

    /// Ignores an incarnation that broke the rules, and ends all work for it. It keeps the locks it holds while it lives.
    pub fn shun(&mut self, node: NodeId, life: Incarnation) {
        self.offers.forget(node, life);
        self.holding.retain(|(who, _)| *who != (node, life));
        for waiting in self.waiting.extract_if(.., |waiting| (waiting.node, waiting.life) == (node, life)) {
            waiting.withdraw();
        }
        self.heralds.retain(|(herald, _)| herald.node() != (node, life));
        self.agreed = self.agreed.filter(|(agreed, _)| agreed.node() != (node, life));
    }

    /// Handles the end of an incarnation.
    pub fn gone(&mut self, node: NodeId, life: Incarnation, mail: &mut Mail) {
        self.shun(node, life);
        if let Some(home) = self.known.filter(|home| home.node() == (node, life)) {
            self.forget(home, mail);
        }
        let Some((_, home)) = self.membership.seat() else { return };
        if home == Some((node, life)) && self.membership.me().networked {
            self.whereabouts();
        } else if home == Some(self.me()) {
            self.bury(node, life);
        }
    }

    /// Releases the locks of a node that was served over the network, as those of a dead owner.
    fn bury(&self, node: NodeId, life: Incarnation) {
        self.membership.serve(node, life, false);
        for facts in self.membership.keys() {
            let Some(key) = self.membership.key(facts.key) else { continue };
            if facts.seen.owner().is_some_and(|owner| (owner.node(), owner.life()) == (node, life)) {
                key.bury(facts.seen);
            }
            if !self.membership.is_living(node, life) && facts.users.contains(&node) {
                key.set_user(node, false);
            }
        }
    }

    /// Whether this node took over as coordinator since the last call.
    pub fn has_succeeded(&mut self) -> bool {
        std::mem::take(&mut self.succeeded)
    }

    /// Whether this node took over as coordinator and [`has_succeeded`](Self::has_succeeded) has not reported it yet.
    pub fn succeeded(&self) -> bool {
        self.succeeded
    }

    /// After a takeover: releases the locks of nodes that the former coordinator served and that are gone.
    pub fn bury_absent(&self, is_live: impl Fn(NodeId, Incarnation) -> bool) {
        for (node, life) in self.membership.served() {
            if !is_live(node, life) {
                self.bury(node, life);
            }
        }
    }
}

/// Executes an operation on a lock for an incarnation of a node, which may name only itself as owner.
pub fn perform(key: Key<'_>, (node, life): (NodeId, Incarnation), deed: Deed) -> Done {
    let own = |bits: u64| OwnerId::from_bits(bits).filter(|id| (id.node(), id.life()) == (node, life));
    let not_yours = |seen: Seen| Answer::Trouble(Trouble::NotYours(seen.bits()));
    let words = key.words();
    let foreign = || Answer::Trouble(Trouble::NotYours(words.get().bits()));
    Done::Answer(match deed {
        Deed::Get => Answer::Seen(words.get().bits()),
        Deed::Facts => match key.facts() {
            Some(facts) => Answer::Facts(Facts::new(&facts)),
            None => Answer::Trouble(Trouble::Destroyed),
        },
        Deed::Set { expected, new } => match (own(expected), own(new)) {
            (None, _) if expected != 0 => foreign(),
            (_, None) if new != 0 => foreign(),
            (expected, new) => match words.set(expected, new) {
                Ok(()) if new.is_some() => Answer::taken(key, words.get().is_damaged()),
                Ok(()) => Answer::Done,
                Err(seen) => Answer::Trouble(Trouble::Otherwise(seen.bits())),
            },
        },
        Deed::Try { me } | Deed::Lock { me } => {
            let Some(me) = own(me) else { return Done::Answer(foreign()) };
            match waiting::try_take(words, me) {
                Ok(taken) => Answer::taken(key, taken.damaged),
                Err(_) if matches!(deed, Deed::Lock { .. }) => return Done::Wait,
                Err(seen) => Answer::Busy(seen.bits()),
            }
        }
        Deed::Unlock { me } => match own(me).map(|me| words.release(me)) {
            Some(Ok(())) => Answer::Done,
            Some(Err(seen)) => not_yours(seen),
            None => foreign(),
        },
        Deed::Repair { me } => match own(me).map(|me| words.repair(me)) {
            Some(Ok(())) => Answer::Done,
            Some(Err(seen)) => not_yours(seen),
            None => foreign(),
        },
        Deed::Bar => Answer::Barred { first: words.bar().1 },
        Deed::Unbar if words.unbar() => Answer::Done,
        Deed::Unbar => not_yours(words.get()),
        Deed::Release => {
            key.set_user(node, false);
            Answer::Done
        }
        Deed::Destroy { .. } => Answer::Trouble(Trouble::Destroyed),
    })
}
