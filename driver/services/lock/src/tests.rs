//! What peers that read nothing may cost, and what lying peers can't achieve.

use super::far::{Choice, Where, choose, find_coordinator, letter};
use super::guard::TryLock;
use super::home::Registry;
use super::key::Lock;
use super::mail::{Mail, Received, UNANSWERED_MAX};
use super::service::Locks;
use super::wire::{self, Ask, Home, Tell};
use doorbell_engine::kit::{Error, Incarnation, Node, NodeId, Payload, PeerId, Verdict, shared_of};
use doorbell_engine::links::FabricKind;
use doorbell_engine::{NodeBuilder, Space};
use doorbell_shm::domain::{JoinOptions, Membership, Restored};
use doorbell_shm::keys::{OwnerId, Resource, Value};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PEER: PeerId = PeerId { node: NodeId(5), incarnation: Incarnation(9) };
const OTHER: PeerId = PeerId { node: NodeId(6), incarnation: Incarnation(3) };
const ASK: u64 = 1 << 56;
const ANSWER: u64 = 2 << 56;
const TELL: u64 = 3 << 56;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

/// What a node that is alone knows of locks, and its queues of requests and replies.
struct Books {
    registry: Registry,
    mail: Mail,
}

impl Books {
    fn new(domain: &str) -> Self {
        let membership = Membership::join(JoinOptions::new(domain, Space::heap())).unwrap();
        Self { registry: Registry::new(Arc::new(membership), std::sync::Weak::new(), Arc::default()), mail: Mail::default() }
    }

    fn take(&mut self, from: PeerId, tag: u64, bytes: &[u8]) -> Verdict {
        self.mail.take(from, tag, Payload::private(bytes))
    }

    /// Handles what has arrived, as a node does that knows 120 others.
    fn deal(&mut self) {
        let others: Vec<PeerId> = (0..120).map(|node| (node, u32::from(node) + 77).into()).collect();
        while let Some(received) = self.mail.received.pop_front() {
            self.registry.deal(received, &mut self.mail, || others.clone()).unwrap();
        }
    }

    fn say(&mut self, from: PeerId, tell: &Tell) {
        assert_eq!(self.take(from, TELL, &wire::encode(tell)), Verdict::Taken);
        self.deal();
    }

    /// How many packets wait to leave for a node.
    fn letters(&self, to: PeerId) -> usize {
        self.mail.out.to(to).count()
    }
}

fn home(at: PeerId, term: u64) -> Home {
    Home { term, at }
}

#[test]
fn who_reads_no_answers_has_few_kept() {
    let mut books = Books::new("unread");
    let ask = wire::encode(&Ask::WhoIsHome);
    let mut refused = None;
    for id in 1..=200_000 {
        let verdict = books.take(PEER, ASK | id, &ask);
        if verdict != Verdict::Taken {
            refused.get_or_insert(verdict);
        }
        books.deal();
    }
    assert_eq!(books.letters(PEER), UNANSWERED_MAX);
    assert!(matches!(refused, Some(Verdict::Broken(_))), "{refused:?}");
    // Other nodes still get replies.
    assert_eq!(books.take(OTHER, ASK | 1, &ask), Verdict::Taken);
    books.deal();
    assert_eq!(books.letters(OTHER), 1);
}

/// A node that claims the greatest term of all, and dies, leaves terms for the others.
#[test]
fn no_claim_takes_all_terms_that_are_left() {
    let mut books = Books::new("terms");
    for (id, term) in [(1, wire::TERM_MAX), (2, wire::TERMS_AHEAD_MAX + 1)] {
        assert_eq!(books.take(PEER, ASK | id, &wire::encode(&Ask::Claim { term, from: 0 })), Verdict::Taken);
        books.deal();
        books.registry.learn_last(home(PEER, term));
        assert_eq!(books.registry.last, None, "{term}");
    }
    assert_eq!(books.take(PEER, ASK | 3, &wire::encode(&Ask::Claim { term: 7, from: 0 })), Verdict::Taken);
    books.deal();
    assert_eq!(books.registry.last, Some(home(PEER, 7)));
}

#[test]
fn who_reads_its_answers_has_any_number() {
    let mut books = Books::new("read");
    let ask = wire::encode(&Ask::WhoIsHome);
    for round in 0..100 {
        // As many requests at a time as an honest node sends.
        for id in 1..=UNANSWERED_MAX as u64 {
            assert_eq!(books.take(PEER, ASK | (round << 20 | id), &ask), Verdict::Taken);
        }
        books.deal();
        assert_eq!(books.letters(PEER), UNANSWERED_MAX);
        (0..UNANSWERED_MAX).for_each(|_| books.mail.send_first());
    }
}

#[test]
fn who_says_again_and_again_that_it_is_home_is_answered_once() {
    let mut books = Books::new("heralds");
    // More locks than one packet has room for.
    (0..20).for_each(|key| books.mail.note(&format!("key {key}"), None, Some(1)));
    for round in 0..100_000 {
        books.say(PEER, &Tell::Here { term: round % 2 + 1 });
        books.say(PEER, &Tell::Here { term: round + 1 });
    }
    assert_eq!(books.letters(PEER), 20_usize.div_ceil(wire::ENTRIES_MAX));
}

#[test]
fn letters_that_nobody_has_dealt_with_stay_in_the_lane() {
    let mut books = Books::new("heap");
    let tell = wire::encode(&Tell::Abandon { term: 1 });
    let verdicts: Vec<_> = (0..100_000).map(|_| books.take(PEER, TELL, &tell)).collect();
    assert!(books.mail.received.len() <= 1024, "{} are kept", books.mail.received.len());
    assert_eq!(verdicts.last(), Some(&Verdict::Refused));
    assert_eq!(books.take(OTHER, TELL, &tell), Verdict::Taken);
    books.deal();
    assert_eq!(books.take(PEER, TELL, &tell), Verdict::Taken);
}

#[test]
fn an_answer_to_a_letter_that_has_not_left_is_a_guess() {
    let mut books = Books::new("guesses");
    let ask = wire::encode(&Ask::BeHome);
    for (id, has_left) in [(1, true), (2, false)] {
        assert!(books.mail.ask(PEER, &ask, None).is_some());
        if has_left {
            books.mail.send_first();
        }
        let verdict = books.take(PEER, ANSWER | id, &[]);
        assert_eq!(verdict == Verdict::Taken, has_left, "{verdict:?}");
    }
}

#[test]
fn what_was_just_said_and_has_not_left_is_not_said_again() {
    let mut books = Books::new("again");
    let say = |books: &mut Books, term| books.mail.tell(PEER, &Tell::Abandon { term });
    (0..1000).for_each(|_| say(&mut books, 1));
    assert_eq!(books.letters(PEER), 1);
    say(&mut books, 2);
    say(&mut books, 1);
    books.mail.send_first();
    assert_eq!(books.letters(PEER), 2);
    (0..2).for_each(|_| books.mail.send_first());
    say(&mut books, 1);
    assert_eq!(books.letters(PEER), 1, "the first has left");
}

/// A coordinator that took over announces itself before others know that the former one is dead. What the former one granted
/// comes first.
#[test]
fn a_new_home_is_told_what_this_node_has_once_the_former_one_is_gone() {
    let mut books = Books::new("heirs");
    books.registry.adopt(home(PEER, 1), &mut books.mail);
    books.say(OTHER, &Tell::Here { term: 1 });
    assert_eq!(books.registry.known, Some(home(PEER, 1)));
    assert_eq!(books.letters(OTHER), 0);
    books.registry.gone(PEER, &mut books.mail);
    assert_eq!(books.registry.known, None, "nobody else said so");
    assert_eq!(books.letters(OTHER), 1);
    // It also gets the notices of later unlocks.
    assert_eq!(books.registry.may_be_home(), [home(OTHER, 1)]);
}

/// A coordinator may leave while a thread here still asks the others whether it is one.
#[test]
fn the_report_of_a_home_that_leaves_before_it_is_believed_counts_once_it_is() {
    let mut books = Books::new("early");
    books.registry.adopt(home(PEER, 3), &mut books.mail);
    let farewell = Tell::Farewell { left: Vec::new(), more: false };
    books.say(OTHER, &farewell);
    books.registry.gone(PEER, &mut books.mail);
    books.registry.adopt(home(OTHER, 3), &mut books.mail);
    assert_eq!(books.registry.left_by(home(OTHER, 3)), None, "it has not announced itself");
    let mut books = Books::new("early");
    books.registry.adopt(home(PEER, 3), &mut books.mail);
    books.say(OTHER, &Tell::Here { term: 3 });
    books.say(OTHER, &farewell);
    assert_eq!(books.registry.left_by(home(PEER, 3)), None, "only the coordinator's own report counts");
    books.registry.gone(PEER, &mut books.mail);
    books.registry.adopt(home(OTHER, 3), &mut books.mail);
    assert_eq!(books.registry.left_by(home(OTHER, 3)), Some(Vec::new()));
    // A node that announces itself does not displace that.
    books.say(PEER, &Tell::Here { term: 3 });
    books.say(PEER, &farewell);
    assert_eq!(books.registry.left_by(home(OTHER, 3)), Some(Vec::new()));
}

/// A coordinator that leaves names its heir. If that one dies before it announces itself, it is the one that died with its locks.
#[test]
fn a_home_that_leaves_names_the_node_that_follows_it() {
    let mut books = Books::new("heir");
    books.registry.adopt(home(PEER, 3), &mut books.mail);
    books.say(OTHER, &Tell::Heir { at: OTHER });
    assert_eq!(books.registry.last, Some(home(PEER, 3)), "only the coordinator itself names its heir");
    books.say(PEER, &Tell::Heir { at: OTHER });
    assert_eq!((books.registry.known, books.registry.last), (Some(home(PEER, 3)), Some(home(OTHER, 3))));
    books.registry.gone(PEER, &mut books.mail);
    books.say(OTHER, &Tell::Farewell { left: Vec::new(), more: false });
    assert_eq!(books.registry.left_by(home(OTHER, 3)), Some(Vec::new()), "the heir may be the next to leave");
}

#[test]
fn the_home_is_where_most_say_that_live_and_do_not_deny_it() {
    let at = |node: u16| PeerId::from((node, 1));
    let [a, b] = [1, 2].map(|node| Some(Home { term: 1, at: at(node) }));
    let liar = Some(Home { term: 99, at: at(2) });
    let dead = Some(Home { term: 1, at: at(9) });
    for (said, expected) in [
        (vec![], Choice::Nobody),
        (vec![(1, None), (2, None)], Choice::Nobody),
        (vec![(1, a), (2, None)], Choice::Home(a.unwrap())),
        (vec![(3, a), (2, a)], Choice::Home(a.unwrap())),
        // What others say neither makes a node coordinator nor raises its term.
        (vec![(1, None), (2, a)], Choice::Nobody),
        (vec![(1, a), (2, Some(Home { term: 99, at: at(1) }))], Choice::Home(a.unwrap())),
        (vec![(1, a), (2, Some(Home { term: 1, at: at(3) })), (3, a)], Choice::Home(a.unwrap())),
        // If two nodes claim it, the one that other nodes name, too.
        (vec![(1, a), (2, liar)], Choice::Unclear),
        (vec![(1, a), (2, liar), (3, a)], Choice::Home(a.unwrap())),
        (vec![(2, liar), (3, a)], Choice::Unclear),
        (vec![(1, a), (2, b), (3, b), (4, b)], Choice::Home(b.unwrap())),
        // A coordinator that does not live.
        (vec![(1, None), (2, dead)], Choice::Unclear),
        (vec![(1, a), (2, dead), (3, dead)], Choice::Home(a.unwrap())),
    ] {
        let said: Vec<_> = said.into_iter().map(|(who, home)| (at(who), home)).collect();
        assert_eq!(choose(&said, |peer| peer.node != NodeId(9)), expected, "{said:?}");
    }
}

// ---- nodes over a network

fn far(domain: &str) -> NodeBuilder {
    Node::builder(domain).fabric(FabricKind::Udp).space(Space::heap())
}

/// Nodes that have met and share no memory.
fn met<const N: usize>(domain: &str) -> [Node; N] {
    let first = far(domain).id(0).listen(([127, 0, 0, 1], 0)).join().unwrap();
    let address = first.address().unwrap();
    let nodes = std::array::from_fn(|id| match id {
        0 => first.clone(),
        id => far(domain).id(id as u16).connect(address).join().unwrap(),
    });
    nodes.iter().for_each(|node| _ = node.wait_for(N, soon()).unwrap());
    nodes
}

fn incarnation(node: &Node) -> PeerId {
    shared_of(node).membership().into()
}

/// Sends notices that no honest node sends, and waits until they were handled.
fn lie(from: &Node, to: &Node, tells: &[Tell]) {
    let shared = shared_of(from);
    let me = shared.check().unwrap();
    for tell in tells {
        let mut engine = shared.enter(me, "lie").unwrap();
        engine.service::<Locks>().mail.tell(incarnation(to), tell);
        engine.push(me);
    }
    // Packets are handled in their order.
    letter(shared, "lie", incarnation(to), &Ask::WhoIsHome, None, Some(soon())).unwrap();
}

/// Makes a node the coordinator of a registry of its own, with a lock that is free.
fn usurp(node: &Node, term: u64) {
    let key = Restored { name: "key".into(), resource: Resource::Unnamed, owner: None, dead: None, frozen: false };
    assert!(shared_of(node).membership().found_registry(term, &[key], soon()).unwrap());
}

#[track_caller]
fn assert_held_by(key: &Lock, owner: OwnerId) {
    match key.try_lock().unwrap() {
        TryLock::Busy(value) => assert_eq!(value, Value::Owner(owner)),
        TryLock::Locked(_) => panic!("the lock was granted twice"),
    }
}

#[test]
fn a_key_is_not_granted_twice_as_a_peer_says_that_it_is_home() {
    let [home, honest, hostile] = met::<3>("usurped");
    let key = Lock::init(&home, "key", Resource::Unnamed).unwrap();
    let theirs = Lock::find(&honest, "key").unwrap();
    usurp(&hostile, 99);
    let guard = key.lock_until(soon()).unwrap();
    for term in [1, 2, 99, wire::TERMS_AHEAD_MAX, wire::TERM_MAX] {
        lie(&hostile, &honest, &[Tell::Here { term }]);
        assert_held_by(&theirs, guard.owner());
        // As if the coordinator had given up its role.
        lie(&hostile, &honest, &[Tell::Abandon { term: 1 }, Tell::Abandon { term }, Tell::Here { term }]);
        assert_held_by(&theirs, guard.owner());
    }
    assert_held_by(&Lock::find(&honest, "key").unwrap(), guard.owner());
    guard.unlock().unwrap();
    let guard = theirs.lock_until(soon()).unwrap();
    assert_held_by(&key, guard.owner());
}

/// A node that has just joined knows neither claimant. It gets the lock from neither until it can tell which one the others name.
#[test]
fn a_key_is_not_granted_twice_to_one_that_has_just_come() {
    let [home, hostile] = met::<2>("lied-to");
    let key = Lock::init(&home, "key", Resource::Unnamed).unwrap();
    usurp(&hostile, 99);
    let guard = key.lock_until(soon()).unwrap();
    let join = |id| {
        let node = far("lied-to").id(id).connect(home.address().unwrap()).join().unwrap();
        node.wait_for(1 + usize::from(id), soon()).unwrap();
        node
    };
    let honest = join(2);
    lie(&hostile, &honest, &[Tell::Here { term: 99 }]);
    let claim = Ask::Claim { term: 100, from: 0 };
    letter(shared_of(&hostile), "lie", incarnation(&honest), &claim, None, Some(soon())).unwrap();
    lie(&hostile, &honest, &[Tell::Here { term: 100 }]);
    // If the hostile node's answer comes too late on a busy machine, the true coordinator is found.
    match find_coordinator(shared_of(&honest), Some(Instant::now() + Duration::from_millis(100))) {
        Err(Error::Timeout { .. }) => {}
        Ok(Where::Far(found)) => assert_eq!(found.at, incarnation(&home)),
        found => panic!("{found:?}"),
    }
    hostile.leave().unwrap();
    let theirs = Lock::find(&honest, "key").unwrap();
    assert_held_by(&theirs, guard.owner());
    guard.unlock().unwrap();
    assert!(theirs.lock_until(soon()).unwrap().inherited_from().is_none());
    // When two nodes name the same coordinator, a third believes them.
    let hostile = join(1);
    usurp(&hostile, 99);
    assert_held_by(&Lock::find(&join(3), "key").unwrap(), {
        let guard = key.lock_until(soon()).unwrap();
        guard.keep()
    });
}

#[test]
fn being_asked_to_be_home_takes_one_thread() {
    let node = far("asked").id(0).listen(([127, 0, 0, 1], 0)).join().unwrap();
    let shared = shared_of(&node);
    // A thread that looks for the coordinator needs this baton.
    let mut engine = shared.enter(shared.check().unwrap(), "test").unwrap();
    let mut mail = Mail::default();
    for id in 1..=300 {
        let received = Received { from: PEER, id: Some(id), bytes: wire::encode(&Ask::BeHome) };
        engine.service::<Locks>().registry.deal(received, &mut mail, Vec::new).unwrap();
    }
    assert_eq!(mail.out.len(), 300);
    assert_eq!(shared.kept::<super::task::Tasks>().blocking.threads(), 1);
    drop(engine);
    // And again, when that is over.
    while shared.membership().seat().is_none() {
        std::thread::yield_now();
    }
}
