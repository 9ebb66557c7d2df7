//! Processes that share a lock. One of them is killed, again and again: while it holds the lock, waits for it or gives it up, at random moments and at
//! chosen instructions.
//!
//! Every time: two processes never hold the lock at once; if the dead process held it, the next owner is told which node left it; and
//! all others go on getting it. Most heirs have it within some looks after the owner's death, beside what a round of all nodes takes on this machine.
//!
//! `DOORBELL_KILLS` says how many die, `DOORBELL_SEED` seeds the choices.

use doorbell::{FabricKind, Lock, Node, NodeBuilder, OwnerId, Resource};
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::{eventually, running, soon};
use doorbell_tests::process::{Process, told, told_as};
use doorbell_tests::random::{Random, seed};
use doorbell_tests::words::{Words, now};
use doorbell_tests::{Turn, number};
use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

const NODES: usize = 4;
/// Addresses that the lives of one place have in turn.
const TURNS: usize = 8;
/// The silence after which a node on the network counts as dead. A busy machine may keep a living process silent for half a second.
const DEAD_AFTER: Duration = Duration::from_secs(1);
/// The time in which a waiter that shares memory with the owner finds out that it died, as docs/locks.md says: some looks, one every 25 ms.
const FOUND_OUT: Duration = Duration::from_millis(100);

/// The shared words. A word names an owner as node 32 | life 32, with one added to the node's number, so that 0 is no owner.
mod at {
    /// Not zero when all are to leave.
    pub const STOP: usize = 0;
    /// The data that the lock guards: the first word is one more than the second while they are being changed.
    pub const PAIR: [usize; 2] = [1, 2];
    /// The owner, as it says itself.
    pub const WITNESS: usize = 3;
    const BLOCK: usize = 8;
    /// The incarnation of the process in a place, once it has joined.
    pub fn incarnation(node: usize) -> usize {
        BLOCK * (node + 1)
    }
    /// The life there that is about to be killed, or was.
    pub fn condemned(node: usize) -> usize {
        incarnation(node) + 1
    }
    /// What it is doing: one of the numbers below.
    pub fn doing(node: usize) -> usize {
        incarnation(node) + 2
    }
    /// How often it had the key.
    pub fn uses(node: usize) -> usize {
        incarnation(node) + 3
    }
    /// The incarnation there from which another node inherited the lock, and when.
    pub fn inherited(node: usize) -> (usize, usize) {
        (incarnation(node) + 4, incarnation(node) + 5)
    }
    pub const COUNT: usize = BLOCK * (super::NODES + 1);
}

/// How the processes reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ground {
    /// All share memory.
    Shm,
    /// None does.
    Udp,
    /// Those with even numbers do; the others are each alone.
    Mixed,
}

impl Ground {
    /// With the addresses that the parent passed.
    fn builder(self, domain: &str, me: usize) -> NodeBuilder {
        let number = |name: &str| if self.has_network() { told_as(name) } else { 0 };
        self.builder_at(domain, me, number("PORT"), number("TURN"))
    }

    /// With these addresses.
    fn builder_at(self, domain: &str, me: usize, base: u16, turn: u16) -> NodeBuilder {
        let builder = Node::builder(domain).id(me as u16);
        let fabric = match self {
            Ground::Shm => return builder,
            Ground::Mixed if me.is_multiple_of(2) => FabricKind::Auto,
            Ground::Udp | Ground::Mixed => FabricKind::Udp,
        };
        // The kernel may take seconds to give the address of a killed process back.
        let address = |node: usize, turn: usize| ([127, 0, 0, 1], base + (TURNS * node + turn) as u16);
        let own = address(me, turn.into());
        let builder = builder.fabric(fabric).dead_after(DEAD_AFTER).listen(own);
        let others = (0..NODES).filter(|node| *node != me).flat_map(|node| (0..TURNS).map(move |turn| address(node, turn)));
        others.fold(builder, NodeBuilder::seek)
    }

    fn has_network(self) -> bool {
        self != Ground::Shm
    }
}

impl FromStr for Ground {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let found = [Ground::Shm, Ground::Udp, Ground::Mixed].into_iter().find(|ground| format!("{ground:?}") == word);
        found.ok_or_else(|| format!("no ground is called {word}"))
    }
}

/// It does not want the lock, or has just had it: only the registry knows whether it is free again.
const OUT: u64 = 0;
/// It wants the lock. It may have it already.
const WAITS: u64 = 1;
/// It has the lock and knows it.
const IN: u64 = 2;
const DOINGS: [u64; 3] = [OUT, WAITS, IN];

/// The fault points at which a process dies, each with how often it may pass before, and whether it has the lock there.
const FAULTS: [(&str, usize, bool); 3] = [("key.taken", 200, true), ("key.released", 200, false), ("key.inherited", 1, true)];

/// Progress and wait policies: one for each life, at random.
const WAYS: [(&str, &str); 6] =
    [("adaptive", "auto"), ("inline", "auto"), ("poller", "auto"), ("adaptive", "park"), ("inline", "yield"), ("poller", "park")];

fn who(node: usize, incarnation: u64) -> u64 {
    (node as u64 + 1) << 32 | incarnation
}

/// The role: takes the lock again and again, and checks each time that no other node has it.
pub fn own() {
    let me: usize = told_as("ME");
    let words = Words::inherited();
    let ground: Ground = told_as("GROUND");
    let builder = ground.builder(&told("DOMAIN"), me);
    let node = builder.progress(told_as("PROGRESS")).wait(told_as("WAIT")).join().unwrap();
    if ground.has_network() {
        // Nodes that have not met have registries of their own.
        node.wait_for(NODES - 1, soon()).unwrap();
    }
    let key = Lock::open(&node, "key", Resource::Unnamed).unwrap();
    let incarnation = u64::from(node.incarnation().0);
    let mut random = Random::new(incarnation);
    words[at::incarnation(me)].store(incarnation, SeqCst);
    while words[at::STOP].load(SeqCst) == 0 {
        use_it(&words, &key, me, who(me, incarnation), &mut random);
        words[at::uses(me)].fetch_add(1, SeqCst);
        match random.below(8) {
            0 => std::thread::sleep(Duration::from_micros(random.below(500) as u64)),
            1 | 2 => spin(random.below(50)),
            _ => {}
        }
    }
    node.leave().unwrap();
}

fn spin(micros: usize) {
    let end = Instant::now() + Duration::from_micros(micros as u64);
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

fn use_it(words: &Words, key: &Lock, me: usize, my_word: u64, random: &mut Random) {
    words[at::doing(me)].store(WAITS, SeqCst);
    let mut guard = match random.below(8) {
        // Attempts until one comes off.
        0 => loop {
            match key.lock_until(Instant::now() + Duration::from_micros(random.below(2000) as u64)) {
                Ok(guard) => break guard,
                Err(doorbell::Error::Timeout { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        },
        1 => key.lock_every(Duration::from_micros(50), soon()).unwrap(),
        _ => key.lock().unwrap(),
    };
    let before = words[at::WITNESS].swap(my_word, SeqCst);
    let inherited = guard.inherited_from();
    if let Some(dead) = inherited {
        tell(words, dead);
    }
    words[at::doing(me)].store(IN, SeqCst);
    // Only a dead one may have been in, and only if that was said.
    if before != 0 {
        let (node, incarnation) = ((before >> 32) as usize - 1, before as u32 as u64);
        assert!(inherited.is_some(), "node {me}: node {node} was in, and died, and nobody said so");
        assert!(
            words[at::condemned(node)].load(SeqCst) >= incarnation,
            "node {me}: node {node} ({incarnation}) was in, and lives"
        );
    }
    let [first, second] = at::PAIR.map(|word| &words[word]);
    let (one, other) = (first.load(SeqCst), second.load(SeqCst));
    if inherited.is_some() {
        assert!(one == other || one == other + 1, "node {me}: {one}, {other}");
        second.store(one, SeqCst);
        // Now and then the next one has to be told, too.
        if random.below(4) > 0 {
            guard.mark_repaired().unwrap();
        }
    } else {
        assert_eq!(one, other, "node {me}: what was left in the middle of a change was called sound");
    }
    first.store(one + 1, SeqCst);
    match random.below(16) {
        0 => std::thread::sleep(Duration::from_micros(random.below(300) as u64)),
        1..4 => std::thread::yield_now(),
        _ => spin(random.below(20)),
    }
    second.store(one + 1, SeqCst);
    words[at::doing(me)].store(OUT, SeqCst);
    assert_eq!(words[at::WITNESS].swap(0, SeqCst), my_word, "node {me}: somebody else was let in");
    guard.unlock().unwrap();
}

/// Whether another node was told that this one died with the lock.
fn tell(words: &Words, dead: OwnerId) {
    let (which, when) = at::inherited(dead.node().index());
    let incarnation = u64::from(dead.incarnation().0);
    assert!(words[at::condemned(dead.node().index())].load(SeqCst) >= incarnation, "inherited from {dead}, which lives");
    if words[which].load(SeqCst) != incarnation {
        words[when].store(now(), SeqCst);
        words[which].store(incarnation, SeqCst);
    }
}

struct Storm<'a> {
    ground: Ground,
    port: u16,
    starts: usize,
    domain: &'a Domain,
    words: &'a Words,
    random: Random,
    owners: Vec<Process>,
    /// From the kernel's notice of a death to the moment at which the next owner was told; from the call of `kill`.
    delays: [Vec<u64>; 2],
    /// How long it took until every node had had the lock, in rounds without a death.
    calm: Vec<Duration>,
    /// How many died, by what they were doing or by the fault point.
    deaths: BTreeMap<&'static str, usize>,
}

impl Storm<'_> {
    fn word(&self, at: usize) -> u64 {
        self.words[at].load(SeqCst)
    }

    fn start(&mut self, place: usize, fault: Option<String>) -> Process {
        self.words[at::incarnation(place)].store(0, SeqCst);
        self.words[at::doing(place)].store(OUT, SeqCst);
        let (progress, wait) = *self.random.pick(&WAYS);
        let start = Process::start("owner").words(self.words).tell("DOMAIN", self.domain.name()).tell("ME", place.to_string());
        self.starts += 1;
        let start = start.tell("GROUND", format!("{:?}", self.ground)).tell("PORT", self.port.to_string());
        let start = start.tell("TURN", (self.starts % TURNS).to_string());
        let start = start.tell("PROGRESS", progress).tell("WAIT", wait);
        match fault {
            Some(fault) => start.tell("DOORBELL_FAULT", fault).go(),
            None => start.go(),
        }
    }

    #[track_caller]
    fn until(&self, what: &str, except: Option<usize>, mut ready: impl FnMut() -> bool) {
        let deadline = soon();
        while !ready() {
            for (place, owner) in self.owners.iter().enumerate().filter(|(place, _)| Some(*place) != except) {
                assert!(!owner.ended_by(Instant::now()), "node {place} ended before {what}");
            }
            let doing: Vec<_> = (0..NODES).map(|node| self.word(at::doing(node))).collect();
            assert!(Instant::now() < deadline, "{what} did not come about; in is {:#x}, doing {doing:?}", self.word(at::WITNESS));
            std::thread::yield_now();
        }
    }

    /// Every node, except one, gets the lock again.
    fn all_go_on(&self, except: Option<usize>) {
        for place in (0..NODES).filter(|place| Some(*place) != except) {
            let before = self.word(at::uses(place));
            self.until(&format!("node {place} getting the key"), except, || self.word(at::uses(place)) > before + 1);
        }
    }

    /// One process dies at a random moment, or when it has just begun to do something.
    fn kill(&mut self, victim: usize) {
        let moment = Instant::now() + Duration::from_micros(self.random.below(5000) as u64);
        let doing = *self.random.pick(&DOINGS);
        let in_time = Instant::now() + Duration::from_millis(50);
        while Instant::now() < moment {
            std::thread::yield_now();
        }
        while self.word(at::doing(victim)) != doing && Instant::now() < in_time {
            std::hint::spin_loop();
        }
        spin(self.random.below(20));
        self.condemn(victim);
        let killed = now();
        self.owners[victim].kill();
        self.after_death(victim, killed, None);
    }

    /// One process is replaced by one that dies by itself, at a chosen instruction.
    fn kill_at_a_place(&mut self, victim: usize) {
        let (name, most, is_in) = *self.random.pick(&FAULTS);
        let fault = format!("{name}:{}:kill", 1 + self.random.below(most));
        self.condemn(victim);
        let killed = now();
        self.owners[victim].kill();
        self.after_death(victim, killed, None);
        // It may die before it has said which life it is.
        self.words[at::condemned(victim)].store(u64::MAX, SeqCst);
        self.owners[victim] = self.start(victim, Some(fault));
        if name == "key.inherited" {
            // This node inherits from the one that dies now, if it is the next waiter.
            let witness = (victim + 1) % NODES;
            self.until("a life", Some(victim), || self.word(at::incarnation(victim)) != 0);
            let in_time = Instant::now() + Duration::from_millis(50);
            while self.word(at::doing(witness)) != IN && Instant::now() < in_time {
                std::hint::spin_loop();
            }
            self.condemn(witness);
            self.owners[witness].kill();
            assert!(self.owners[witness].ended_by(soon()));
            let met = self.owners[victim].ended_by(Instant::now() + Duration::from_millis(200));
            self.owners[witness] = self.start(witness, None);
            self.end_at_a_place(victim, met.then_some((name, is_in)));
        } else {
            let met = self.owners[victim].ended_by(Instant::now() + Duration::from_millis(300));
            self.end_at_a_place(victim, met.then_some((name, is_in)));
        }
    }

    fn end_at_a_place(&mut self, victim: usize, met: Option<(&'static str, bool)>) {
        let killed = now();
        if met.is_none() {
            self.owners[victim].kill();
        }
        self.after_death(victim, killed, met);
        self.words[at::condemned(victim)].store(self.word(at::incarnation(victim)), SeqCst);
    }

    /// It is about to be killed: from now on others may find it dead.
    fn condemn(&self, victim: usize) {
        self.words[at::condemned(victim)].store(self.word(at::incarnation(victim)), SeqCst);
    }

    /// Checks what must happen after a death: at a fault point, with or without the lock, or at a random moment.
    fn after_death(&mut self, victim: usize, killed: u64, place: Option<(&'static str, bool)>) {
        assert!(self.owners[victim].ended_by(soon()), "SIGKILL did not end node {victim}");
        let ended = now();
        let (incarnation, doing) = (self.word(at::incarnation(victim)), self.word(at::doing(victim)));
        let what = match (place, doing) {
            (Some((place, _)), _) => place,
            (None, IN) => "in",
            (None, WAITS) => "waiting",
            (None, _) => "out",
        };
        *self.deaths.entry(what).or_default() += 1;
        if place.is_some_and(|(_, is_in)| is_in) || doing == IN {
            let (which, when) = at::inherited(victim);
            self.until(&format!("an heir of node {victim} ({incarnation}), killed {what}"), Some(victim), || {
                self.word(which) == incarnation
            });
            let when = self.word(when);
            // One that died by itself did so before this process looked.
            if place.is_none() {
                for (delays, since) in self.delays.iter_mut().zip([ended, killed]) {
                    delays.push(when.saturating_sub(since));
                }
            }
        }
        self.all_go_on(Some(victim));
    }
}

#[test]
fn a_key_survives_its_owners() {
    storm(Ground::Shm, 18);
}

/// The coordinator of the registry is one of them, and dies as often as the others.
#[test]
fn a_key_survives_its_owners_on_a_network() {
    storm(Ground::Udp, 8);
}

#[test]
fn a_key_survives_its_owners_where_some_share_memory() {
    storm(Ground::Mixed, 8);
}

fn storm(ground: Ground, kills: usize) {
    let _turn = Turn::take();
    let (kills, seed) = (number("DOORBELL_KILLS", kills as u64) as usize, seed());
    println!("lock storm, {ground:?}: DOORBELL_SEED={seed} DOORBELL_KILLS={kills}");
    // Of each process of its own.
    let port = 24_000 + (std::process::id() % 128) as u16 * (TURNS * NODES) as u16;
    let domain = Domain::new("locks");
    let words = Words::new(at::COUNT);
    let (domain, words, random) = (&domain, &words, Random::new(seed));
    let mut storm = Storm {
        ground,
        port,
        starts: 0,
        domain,
        words,
        random,
        owners: Vec::new(),
        delays: [const { Vec::new() }; 2],
        calm: Vec::new(),
        deaths: BTreeMap::new(),
    };
    for place in 0..NODES {
        let owner = storm.start(place, None);
        storm.owners.push(owner);
    }
    for kill in 0..kills {
        storm.all_go_on(None);
        // Once more, now that the last one has joined.
        let began = Instant::now();
        storm.all_go_on(None);
        storm.calm.push(began.elapsed());
        let victim = storm.random.below(NODES);
        if kill % 4 == 3 {
            storm.kill_at_a_place(victim);
        } else {
            storm.kill(victim);
        }
        storm.owners[victim] = storm.start(victim, None);
    }
    storm.all_go_on(None);
    // One is killed at the end, so that the others leave beside its remains.
    storm.condemn(0);
    storm.owners.remove(0).kill();
    words[at::STOP].store(1, SeqCst);
    storm.owners.drain(..).for_each(|owner| owner.end_well(Duration::from_secs(30)));
    doorbell_shm::domain::clean(domain.space(), Some(domain.name()), true).unwrap();
    domain.assert_empty();
    let uses = storm.word(at::PAIR[0]);
    println!("the key was had {uses} times; died: {:?}", storm.deaths);
    for (delays, since) in storm.delays.iter_mut().zip(["the kernel's notice", "the call of kill"]) {
        delays.sort_unstable();
        let Some(last) = delays.len().checked_sub(1) else { continue };
        let at = |percent: usize| delays[last * percent / 100] as f64 / 1e6;
        let late = delays.iter().filter(|delay| **delay > 100_000_000).count();
        println!(
            "told from {since} on: {} heirs; median {:.1} ms, 90 % {:.1} ms, 99 % {:.1} ms, longest {:.1} ms, {late} after 100 ms",
            delays.len(),
            at(50),
            at(90),
            at(99),
            at(100)
        );
    }
    let [told, _] = storm.delays;
    // A few may all have lost their home with the owner, or their processor.
    if told.len() >= 5 {
        check_delays(ground, told.into_iter().map(Duration::from_nanos).collect(), storm.calm);
    }
}

/// Half of the waiters for a lock whose owner dies get it soon, compared with rounds in which no node dies.
fn check_delays(ground: Ground, mut delays: Vec<Duration>, mut calm: Vec<Duration>) {
    let median = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2]
    };
    let (delay, calm) = (median(&mut delays), median(&mut calm));
    let most = if ground.has_network() { 2 * DEAD_AFTER } else { Duration::ZERO } + 2 * FOUND_OUT + 4 * calm;
    println!("{ground:?}: heirs had the key after {delay:.1?}, where {most:.1?} would do; while nobody died it took {calm:.1?}");
    assert!(delay <= most, "{ground:?}: half of the heirs waited {delay:.1?} and more; {most:.1?} would do");
}

/// The role: takes the lock and gives it up when the test says so, or dies with it.
pub fn hold() {
    let words = Words::inherited();
    let ground: Ground = told_as("GROUND");
    let node = ground.builder(&told("DOMAIN"), 1).join().unwrap();
    node.wait_for(2, soon()).unwrap();
    let key = Lock::open(&node, "key", Resource::Unnamed).unwrap();
    let mut guard = None;
    loop {
        let has_to = words[at::doing(0)].load(SeqCst);
        match (has_to, guard.take()) {
            (IN, None) => guard = Some(key.lock_until(soon()).unwrap()),
            // The waiter has it from here on.
            (OUT, Some(_)) => {}
            (_, same) => guard = same,
        }
        words[at::doing(1)].store(has_to, SeqCst);
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// One process has the lock, and this one waits for it. It gets it soon after the other gives it up, and not much later if the other dies.
fn heirs(ground: Ground, rounds: usize) {
    let _turn = Turn::take();
    let port = 24_000 + (std::process::id() % 128) as u16 * (TURNS * NODES) as u16;
    let (domain, words) = (Domain::new("heirs"), Words::new(at::COUNT));
    let node = ground.builder_at(domain.name(), 0, port, 0).join().unwrap();
    let (mut delays, mut calm) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let done = |word: u64| eventually("the other process", || words[at::doing(1)].load(SeqCst) == word);
        words[at::doing(1)].store(WAITS, SeqCst);
        words[at::doing(0)].store(OUT, SeqCst);
        let start = Process::start("holder").words(&words).tell("DOMAIN", domain.name()).tell("GROUND", format!("{ground:?}"));
        let holder = start.tell("PORT", port.to_string()).tell("TURN", (1 + round % (TURNS - 1)).to_string()).go();
        node.wait_for(2, soon()).unwrap();
        let key = Lock::open(&node, "key", Resource::Unnamed).unwrap();
        for dies in [false, true] {
            words[at::doing(0)].store(IN, SeqCst);
            done(IN);
            let waits = key.clone();
            let waiter = running("a wait for a key", move || {
                let mut guard = waits.lock_until(soon()).unwrap();
                let (at, inherited) = (now(), guard.inherited_from().is_some());
                guard.mark_repaired().unwrap();
                (at, inherited)
            });
            eventually("a wait", || !key.facts().unwrap().waiting.is_empty());
            let began = if dies {
                holder.kill();
                assert!(holder.ended_by(soon()), "SIGKILL did not end it");
                now()
            } else {
                let began = now();
                words[at::doing(0)].store(OUT, SeqCst);
                began
            };
            let (at, inherited) = waiter.join();
            if !dies {
                done(OUT);
            }
            assert_eq!(inherited, dies);
            let times = if dies { &mut delays } else { &mut calm };
            times.push(Duration::from_nanos(at.saturating_sub(began)));
        }
    }
    drop(node);
    doorbell_shm::domain::clean(domain.space(), Some(domain.name()), true).unwrap();
    check_delays(ground, delays, calm);
    domain.assert_empty();
}

#[test]
fn a_dead_owners_key_goes_on_soon() {
    heirs(Ground::Shm, 7);
}

#[test]
fn a_dead_owners_key_goes_on_soon_on_a_network() {
    heirs(Ground::Udp, 5);
}

/// The role: makes a lock, and dies at a fault point.
pub fn make() {
    let node = Node::builder(told("DOMAIN")).join().unwrap();
    let _ = Lock::init(&node, "key", Resource::Id(1));
}

#[test]
fn a_key_is_made_anew_whose_maker_died() {
    let _turn = Turn::take();
    let domain = Domain::new("made");
    let node = Node::builder(domain.name()).join().unwrap();
    for round in 0..3 {
        let maker = Process::start("maker").tell("DOMAIN", domain.name()).tell("DOORBELL_FAULT", "key.made:1:kill").go();
        assert!(!maker.end(Duration::from_secs(30)).success(), "it was to die");
        assert!(Lock::find(&node, "key").is_err(), "half a key was found");
        let key = Lock::init(&node, "key", Resource::Id(2)).unwrap();
        let facts = key.facts().unwrap();
        assert_eq!((facts.key.slot, facts.resource, facts.creator.0), (0, Resource::Id(2), node.id()), "round {round}");
        assert_eq!(key.lock_until(soon()).unwrap().inherited_from(), None);
        key.destroy(soon()).unwrap();
    }
    doorbell_shm::domain::clean(domain.space(), Some(domain.name()), true).unwrap();
    node.leave().unwrap();
}
