//! Four processes under traffic; one of them is killed, again and again, at a random moment or at a chosen instruction.
//!
//! Every time: no survivor hangs; each is told who died, and that within a tenth of a second as a rule; each has received all
//! that the dead had sent it, in order, before its operations with the dead fail by name; and a new process takes the dead
//! one's place. `DOORBELL_KILLS` says how often, `DOORBELL_SEED` seeds the choices.

use doorbell::{Envelope, Error, Event, Incarnation, Match, Node, NodeId, Peer};
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::soon;
use doorbell_tests::process::{Process, told};
use doorbell_tests::random::Random;
use doorbell_tests::words::{Words, now};
use doorbell_tests::{Turn, number};
use std::collections::HashMap;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

const NODES: usize = 4;
/// Where a process is killed that is told to die at an instruction: between claim and publish, and around them.
const PLACES: [&str; 8] = [
    "lane.written",
    "lane.published",
    "lane.claimed",
    "bell.claimed",
    "lane.blanked",
    "lane.written",
    "lane.published",
    "lane.written",
];

doorbell_tests::roles! { "worker" => work }

/// The shared words. Counts carry the life they belong to in their upper half.
mod at {
    use super::NODES;
    pub const STOP: usize = 0;
    /// The incarnation of the process in a place, once it has joined.
    pub fn life(node: usize) -> usize {
        8 + node
    }
    /// What `from` has sent to `to`: the incarnation of `to`, and how many.
    pub fn sent(from: usize, to: usize) -> usize {
        16 + from * NODES + to
    }
    /// What `to` has received from `from`: the incarnation of `from`, and how many.
    pub fn received(to: usize, from: usize) -> usize {
        48 + to * NODES + from
    }
    /// Which life of `dead` `node` was last told of as dead, and when.
    pub fn told(node: usize, dead: usize) -> (usize, usize) {
        (80 + node * NODES + dead, 112 + node * NODES + dead)
    }
    /// Which life of `dead` `node` has done with: all received, operations failed.
    pub fn done(node: usize, dead: usize) -> usize {
        144 + node * NODES + dead
    }
    pub const COUNT: usize = 176;
}

fn count_of(life: Incarnation, count: u32) -> u64 {
    (life.0 as u64) << 32 | count as u64
}

// ---- the processes that are killed

struct Worker {
    me: usize,
    node: Node,
    words: Words,
    peers: HashMap<usize, (Peer, u32)>,
    expected: HashMap<(NodeId, Incarnation), u32>,
}

fn work() {
    let me: usize = told("ME").parse().unwrap();
    let words = Words::inherited();
    let node = Node::builder(told("DOMAIN")).id(me as u16).join().unwrap();
    words[at::life(me)].store(node.incarnation().0 as u64, SeqCst);
    let mut worker = Worker { me, node, words, peers: HashMap::new(), expected: HashMap::new() };
    while worker.words[at::STOP].load(SeqCst) == 0 {
        worker.events();
        worker.send();
        worker.receive();
    }
    worker.node.leave().unwrap();
}

impl Worker {
    fn events(&mut self) {
        while let Some(event) = self.node.try_event().unwrap() {
            match event {
                Event::Joined { node, .. } if node.index() != self.me => {
                    // It may be gone again by now; then that is the next event.
                    if let Ok(peer) = self.node.peer(node) {
                        self.peers.insert(node.index(), (peer, 0));
                    }
                }
                Event::Died { node, incarnation } => self.bury(node, incarnation),
                Event::Damaged { node, reason } => panic!("node {node}: {reason}"),
                _ => {}
            }
        }
    }

    fn bury(&mut self, node: NodeId, life: Incarnation) {
        let (which, when) = at::told(self.me, node.index());
        self.words[when].store(now(), SeqCst);
        self.words[which].store(life.0 as u64, SeqCst);
        // Everything it had published comes first, then the error that names it.
        let mut buf = [0; 256];
        loop {
            match self.node.recv_by(Match::any().life(node, life), &mut buf, soon()) {
                Ok(envelope) => self.check(&envelope, &buf),
                Err(Error::PeerDied { node: dead, incarnation }) if (dead, incarnation) == (node, life) => break,
                Err(error) => panic!("receiving from dead node {node} ({life:?}): {error}"),
            }
        }
        if let Some((peer, _)) = self.peers.get(&node.index())
            && peer.incarnation() == life
        {
            match peer.send_by(0, b"too late", soon()) {
                Err(Error::PeerDied { node: dead, incarnation }) if (dead, incarnation) == (node, life) => {}
                other => panic!("sending to dead node {node} ({life:?}): {other:?}"),
            }
            self.peers.remove(&node.index());
        }
        self.words[at::done(self.me, node.index())].store(life.0 as u64, SeqCst);
    }

    fn send(&mut self) {
        for (to, (peer, sent)) in &mut self.peers {
            let mut message = [0; 200];
            let len = [16, 40, 41, 200][*sent as usize % 4];
            message[..4].copy_from_slice(&sent.to_ne_bytes());
            message[4..8].copy_from_slice(&peer.incarnation().0.to_ne_bytes());
            message[8..len].fill(*sent as u8);
            match peer.try_send(*sent as u64, &message[..len]) {
                Ok(()) => {
                    *sent += 1;
                    self.words[at::sent(self.me, *to)].store(count_of(peer.incarnation(), *sent), SeqCst);
                }
                Err(Error::Full { .. } | Error::PeerDied { .. } | Error::PeerLeft { .. }) => {}
                Err(error) => panic!("sending to node {to}: {error}"),
            }
        }
    }

    fn receive(&mut self) {
        let mut buf = [0; 256];
        for _ in 0..8 {
            match self.node.recv_by(Match::any(), &mut buf, Instant::now() + Duration::from_millis(1)) {
                Ok(envelope) => self.check(&envelope, &buf),
                Err(Error::Timeout { .. }) => return,
                Err(error) => panic!("receiving: {error}"),
            }
        }
    }

    /// A message is the next of its life, meant for this life, and whole.
    fn check(&mut self, envelope: &Envelope, buf: &[u8; 256]) {
        let expected = self.expected.entry((envelope.source, envelope.incarnation)).or_default();
        let number = u32::from_ne_bytes(buf[..4].try_into().unwrap());
        assert_eq!(number, *expected, "node {} lost or repeated a message of {envelope:?}", self.me);
        assert_eq!(u32::from_ne_bytes(buf[4..8].try_into().unwrap()), self.node.incarnation().0, "meant for another life");
        assert_eq!((envelope.tag, envelope.len), (number as u64, [16, 40, 41, 200][number as usize % 4]));
        assert!(buf[8..envelope.len].iter().all(|byte| *byte == number as u8), "a torn message: {envelope:?}");
        *expected += 1;
        self.words[at::received(self.me, envelope.source.index())].store(count_of(envelope.incarnation, *expected), SeqCst);
    }
}

// ---- the process that kills them

struct Storm<'a> {
    domain: &'a Domain,
    words: &'a Words,
    workers: Vec<Process>,
}

impl Storm<'_> {
    fn start(domain: &Domain, words: &Words, place: usize, fault: Option<String>) -> Process {
        words[at::life(place)].store(0, SeqCst);
        let mut start = Process::start("worker").words(words).tell("DOMAIN", domain.name()).tell("ME", place.to_string());
        if let Some(fault) = fault {
            start = start.tell("DOORBELL_FAULT", fault);
        }
        start.go()
    }

    fn until(&self, what: &str, place: usize, mut ready: impl FnMut() -> bool) {
        let deadline = soon();
        while !ready() {
            assert!(Instant::now() < deadline, "node {place}: {what} did not come about");
            std::thread::yield_now();
        }
    }

    /// Every pair of living places has exchanged something.
    fn traffic_flows(&self) {
        for to in 0..NODES {
            for from in (0..NODES).filter(|from| *from != to) {
                self.until("traffic", to, || {
                    let life = self.words[at::life(from)].load(SeqCst);
                    life != 0 && self.words[at::received(to, from)].load(SeqCst) >> 32 == life
                });
            }
        }
    }

    /// Kills, or waits for the death of, the process in a place. Returns how long each survivor took to be told.
    fn one_death(&mut self, victim: usize, random: &mut Random, chosen: bool) -> Vec<u64> {
        let life = if chosen {
            // The next process in this place dies by itself, at a chosen instruction.
            self.replace(victim, random, true);
            let by_itself = self.workers[victim].ended_by(Instant::now() + Duration::from_millis(1500));
            let life = self.words[at::life(victim)].load(SeqCst);
            if !by_itself {
                self.workers[victim].kill();
            }
            life
        } else {
            self.traffic_flows();
            let moment = Instant::now() + Duration::from_micros(random.below(20_000) as u64);
            while Instant::now() < moment {
                std::thread::yield_now();
            }
            self.workers[victim].kill();
            self.words[at::life(victim)].load(SeqCst)
        };
        assert!(self.workers[victim].ended_by(soon()), "SIGKILL did not end node {victim}");
        let ended = now();
        let mut delays = Vec::new();
        // Life 0: it died while joining, and nobody can have known it.
        for survivor in (0..NODES).filter(|survivor| *survivor != victim && life != 0) {
            let (which, when) = at::told(survivor, victim);
            self.until("the news of a death", survivor, || self.words[which].load(SeqCst) == life);
            delays.push(self.words[when].load(SeqCst).saturating_sub(ended));
            self.until("the end of a death", survivor, || self.words[at::done(survivor, victim)].load(SeqCst) == life);
            let sent = self.words[at::sent(victim, survivor)].load(SeqCst);
            if sent >> 32 == self.words[at::life(survivor)].load(SeqCst) {
                let received = self.words[at::received(survivor, victim)].load(SeqCst);
                let received = if received >> 32 == life { received & 0xffff_ffff } else { 0 };
                assert!(
                    received >= sent & 0xffff_ffff,
                    "node {survivor} got {received} of {} that node {victim} had sent",
                    sent as u32
                );
            }
        }
        delays
    }

    /// Starts a process in a place whose former one has ended or is ended now.
    fn replace(&mut self, place: usize, random: &mut Random, with_fault: bool) {
        self.workers[place].kill();
        assert!(self.workers[place].ended_by(soon()));
        for other in 0..NODES {
            self.words[at::sent(place, other)].store(0, SeqCst);
        }
        let fault = with_fault.then(|| {
            let name = *random.pick(&PLACES);
            format!("{name}:{}", 1 + random.below(if name == "lane.claimed" { 3 } else { 300 }))
        });
        self.workers[place] = Storm::start(self.domain, self.words, place, fault);
        if !with_fault {
            self.until("joining", place, || self.words[at::life(place)].load(SeqCst) != 0);
        }
    }
}

#[test]
fn survivors_go_on() {
    let _turn = Turn::take();
    let kills = number("DOORBELL_KILLS", 40);
    let seed = number("DOORBELL_SEED", std::process::id() as u64);
    println!("kill storm: DOORBELL_SEED={seed} DOORBELL_KILLS={kills}");
    let domain = Domain::new("storm");
    let words = Words::new(at::COUNT);
    let mut random = Random::new(seed);
    let workers = (0..NODES).map(|place| Storm::start(&domain, &words, place, None)).collect();
    let mut storm = Storm { domain: &domain, words: &words, workers };
    let mut delays = Vec::new();
    for kill in 0..kills {
        let victim = random.below(NODES);
        // Half of them at a random moment, half at a chosen instruction.
        delays.extend(storm.one_death(victim, &mut random, kill % 2 == 1));
        storm.replace(victim, &mut random, false);
    }
    storm.traffic_flows();
    words[at::STOP].store(1, SeqCst);
    for worker in storm.workers.drain(..) {
        worker.end_well(Duration::from_secs(20));
    }
    doorbell_shm::domain::clean(domain.space(), Some(domain.name()), true).unwrap();
    delays.sort_unstable();
    let late = delays.iter().filter(|delay| **delay > 100_000_000).count();
    let (median, most) = (delays[delays.len() / 2], delays[delays.len() - 1]);
    println!(
        "{kills} deaths, {} tellings: median {:.1} ms, longest {:.1} ms, {late} after 100 ms",
        delays.len(),
        median as f64 / 1e6,
        most as f64 / 1e6
    );
    assert!(late * 20 <= delays.len(), "{late} of {} survivors were told later than 100 ms after the death", delays.len());
}
