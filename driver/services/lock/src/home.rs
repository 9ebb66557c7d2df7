//! The home: what a node does with keys for those that share no memory with it; and what it knows of keys that are elsewhere.
//!
//! The registry of a domain is in one group of nodes that share memory; the others ask its home. It comes into being with the first key: whoever wants
//! one and finds that nobody knows a home has the lowest of all nodes it knows *claim* it. Who claims it asks all others what they
//! know of keys, and each agrees unless it knows of a home that lives. So it moves when its last node dies: the keys are put together again from
//! what the living know, with those of them that are held. A key of which nobody living says that it is held may have been held by the dead: its
//! next owner is told so.
//!
//! A node goes to no home because that one says that it is home: it asks all others (`away.rs`). So a peer that lies can't be a second home beside one that lives.

use super::away::{answer_waiting, find_coordinator, init_for, send_answer};
use super::mail::{Mail, Received};
use super::share::{Arrived, Offers};
use super::wait::Want;
use super::wire::{self, Answer, Ask, At, Deed, Entry, Facts, Home, Life, Tell, Trouble};
use super::{LockFault, PATIENCE};
use doorbell_engine::drive::Shared;
use doorbell_engine::error::Error;
use doorbell_engine::sync::pool::{Clerks, Customer};
use doorbell_fabric::{Incarnation, NodeId};
use doorbell_shm::domain::{Key, Membership, OpenKey};
use doorbell_shm::keys::{OwnerId, Resource, Seen, waiting};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long a node that may be home has to become it, until another may try.
const AGREED: Duration = Duration::from_secs(5);

/// What a node knows of keys, behind its baton.
pub struct Registry {
    membership: Arc<Membership>,
    shared: Weak<Shared>,
    clerks: Arc<Clerks>,
    /// Where the registry is, if it is not here: as all others were asked.
    known: Option<Home>,
    /// Who asked last whether it may be home, and was not refused; and when. It may still fail.
    agreed: Option<(Home, Instant)>,
    /// Who said that it is home now, and whether it was told since what this node has. Each life says so once.
    heralds: Vec<(Home, bool)>,
    /// Whether a thread sees to it that there is a home, as another node asked for. One is enough.
    is_seeking: Arc<AtomicBool>,
    /// It has become home instead of another.
    succeeded: bool,
    /// This node asks the others whether it may be home.
    pub claiming: bool,
    /// Where it was last, if it ever was elsewhere; and before that.
    last: Option<Home>,
    before: Option<Home>,
    /// What a home said when it left.
    farewell: Option<Farewell>,
    /// Who waits here for a key, over the network.
    waiting: Vec<Waiting>,
    /// What others say that they have, as far as they have said it.
    holding: Vec<((NodeId, Incarnation), Vec<String>)>,
    /// Keys that others offer.
    pub offers: Offers,
}

/// What a home said when it left.
struct Farewell {
    home: Home,
    left: Vec<Entry>,
    whole: bool,
}

/// A thread sees to it that there is a home, until this is dropped: also if none could be had.
struct Seeking(Arc<AtomicBool>);

impl Seeking {
    /// `None`: one does already.
    fn begin(is_seeking: &Arc<AtomicBool>) -> Option<Self> {
        (!is_seeking.swap(true, Ordering::AcqRel)).then(|| Self(is_seeking.clone()))
    }
}

impl Drop for Seeking {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

struct Waiting {
    node: NodeId,
    life: Incarnation,
    id: u64,
    key: OpenKey,
    withdrawn: Arc<AtomicBool>,
}

impl Waiting {
    /// Nobody wants it any more.
    fn withdraw(self) {
        self.withdrawn.store(true, Ordering::Release);
        self.key.get().words().wake_all();
    }
}

/// What was done with a key, or that it has to wait.
pub enum Done {
    Answer(Answer),
    Wait,
}

impl Registry {
    /// Of a node that knows nothing yet.
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

    /// Where the registry is, as far as this node knows; itself where it is here and nobody else serves it.
    pub fn whereabouts(&mut self) -> Option<Home> {
        let Some((term, was)) = self.membership.seat() else { return self.known };
        // A node that only shares memory is never asked this, and is no home.
        if !self.membership.is_home_living() && self.membership.take_home(was) {
            self.succeeded = true;
        }
        let (node, life) = self.membership.seat()?.1?;
        Some(Home { term, at: (node.0, life.0) })
    }

    /// The registry is elsewhere. A home that was another before is told what this node has: what the former one gave it in its last moments and
    /// could not say any more, or was given back in vain, is free.
    pub fn adopt(&mut self, home: Home, mail: &mut Mail) {
        if self.known == Some(home) || home.term > wire::TERM_MAX || self.belongs_here() {
            return;
        }
        (self.known, self.last, self.agreed) = (Some(home), Some(home), None);
        self.report(home, mail);
    }

    /// Tells a home what this node has.
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

    /// Where it is or was last, as far as this node was told: the term of the next home is greater.
    pub fn last(&self) -> Option<Home> {
        self.last
    }

    /// Another node knows more of where it was.
    pub fn learn_last(&mut self, last: Home) {
        if self.may_follow(last.term) && self.last.is_none_or(|mine| mine.term < last.term) {
            self.last = Some(last);
        }
    }

    /// Whether this term may follow the last one that this node knows. A peer that names the last term of all would leave none for honest nodes.
    fn may_follow(&self, term: u64) -> bool {
        term <= self.last.map_or(0, |last| last.term).saturating_add(wire::TERMS_AHEAD_MAX).min(wire::TERM_MAX)
    }

    /// Where it is, if it is elsewhere.
    pub fn known(&self) -> Option<Home> {
        self.known
    }

    /// Whether this node could be asked by others for keys.
    pub fn belongs_here(&self) -> bool {
        self.membership.seat().is_some()
    }

    /// It is not where it was thought to be. Others may have said meanwhile that they are home.
    pub fn forget(&mut self, home: Home, mail: &mut Mail) {
        if self.known != Some(home) {
            return;
        }
        self.known = None;
        let waiting: Vec<_> = self.heralds.iter().filter(|(_, is_told)| !is_told).map(|(herald, _)| *herald).collect();
        waiting.into_iter().for_each(|herald| self.report(herald, mail));
    }

    /// Whom to tell that this node gives a key up: the home, or while that is not known those who may be.
    pub fn may_be_home(&self) -> Vec<Home> {
        if let Some(home) = self.known {
            return vec![home];
        }
        let heralds = self.heralds.iter().map(|(herald, _)| *herald);
        let agreed = self.agreed.map(|(home, _)| home);
        heralds.chain(agreed.filter(|home| !self.heralds.iter().any(|(herald, _)| herald.at == home.at))).collect()
    }

    /// A node says that it is home now. It is told what this node has, for what it was told before, or a former home was in vain, is free; but not before
    /// the former home is gone, which may still grant a key until then.
    fn hear_herald(&mut self, home: Home, mail: &mut Mail) {
        // No life is home of two terms: the term stays with its group.
        if home.term > wire::TERM_MAX || self.belongs_here() || self.heralds.iter().any(|(herald, _)| herald.at == home.at) {
            return;
        }
        self.heralds.push((home, false));
        if self.known.is_none_or(|known| known.at == home.at) {
            self.report(home, mail);
        }
    }

    /// Deals with a letter.
    pub fn deal(&mut self, received: Received, mail: &mut Mail, others: impl Fn() -> Vec<Life>) -> Result<(), &'static str> {
        let Received { node, life, id, bytes } = received;
        let Some(id) = id else {
            let tell: Tell = wire::decode(&bytes).ok_or("a letter that says nothing")?;
            self.hear(node, life, tell, mail);
            return Ok(());
        };
        let ask: Ask = wire::decode(&bytes).ok_or("a letter that asks nothing")?;
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
                    // It got it, and does not want it any more.
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

    /// What the former home said of its keys, if it left and said it all.
    pub fn left_by(&self, home: Home) -> Option<Vec<Entry>> {
        self.farewell.as_ref().filter(|farewell| farewell.home == home && farewell.whole).map(|farewell| farewell.left.clone())
    }

    /// This node leaves: what the others are to be told, if it is home and the last of its group.
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
                        if let Err(error) = find_coordinator(shared, Some(Instant::now() + PATIENCE)) {
                            tracing::debug!(%error, "asked to be the home of the lock registry, in vain");
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
        // From here on others can tell whether it lives: this node does.
        self.membership.serve(node, life, true);
        match ask {
            Ask::Init { name, resource } => {
                // The domain's lock file may be held by others for a while.
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
                    let answer = match key.get().destroy(me, Instant::now() + PATIENCE) {
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

    /// Has a clerk wait for a key on behalf of a node.
    fn wait(&mut self, (node, life): (NodeId, Incarnation), id: u64, key: OpenKey, name: String, deed: Deed) {
        let Deed::Lock { me } = deed else { return };
        let Some(me) = OwnerId::from_bits(me) else { return };
        let withdrawn = Arc::new(AtomicBool::new(false));
        self.waiting.push(Waiting { node, life, id, key: key.clone(), withdrawn: withdrawn.clone() });
        self.submit(Customer::Waits(node, life), move |shared| {
            // It may have had to wait for a thread until its node was gone.
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
                // Its node is gone.
                let _ = key.get().words().release(me);
            }
        });
    }

    /// A wait is over. False if its node is gone, and nobody is to be told.
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

    /// The node that is about to be home, as this node agreed to not long ago.
    pub fn agreed_to(&self) -> Option<Home> {
        self.agreed.filter(|(_, when)| when.elapsed() < AGREED).map(|(home, _)| home)
    }

    /// Another node wants to be home.
    fn agree(&mut self, who: (NodeId, Incarnation), term: u64, from: u32, opened: &[Entry]) -> Answer {
        // Of those that died `gone` has told.
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
        (self.agreed, self.last) = (Some((home, Instant::now())), Some(home));
        let from = from as usize;
        let entries: Vec<_> = opened.iter().skip(from).take(wire::ENTRIES_MAX).cloned().collect();
        let more = opened.len() > from + entries.len();
        Answer::Agreed { entries, more }
    }

    /// A life of a node broke the rules, and is heard no more: nothing is done for it any longer. What it has stays its own while it lives.
    pub fn shun(&mut self, node: NodeId, life: Incarnation) {
        self.offers.forget(node, life);
        self.holding.retain(|(who, _)| *who != (node, life));
        for waiting in self.waiting.extract_if(.., |waiting| (waiting.node, waiting.life) == (node, life)) {
            waiting.withdraw();
        }
        self.heralds.retain(|(herald, _)| herald.node() != (node, life));
        self.agreed = self.agreed.filter(|(agreed, _)| agreed.node() != (node, life));
    }

    /// A life of a node has ended.
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

    /// Lets go of what a node had that was served over the network.
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

    /// Whether it has become home instead of another since this was asked last.
    pub fn has_succeeded(&mut self) -> bool {
        std::mem::take(&mut self.succeeded)
    }

    /// Whether it has become home instead of another, and nobody asked yet.
    pub fn succeeded(&self) -> bool {
        self.succeeded
    }

    /// This node has become home: those whom the former one served and that are gone are let go.
    pub fn bury_absent(&self, is_live: impl Fn(NodeId, Incarnation) -> bool) {
        for (node, life) in self.membership.served() {
            if !is_live(node, life) {
                self.bury(node, life);
            }
        }
    }
}

/// Does something with a key for a life of a node; what it says of owners has to be its own.
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
