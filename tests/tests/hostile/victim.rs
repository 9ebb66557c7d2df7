//! The node that is attacked: it makes every kind of operation with the hostile node, and goes on talking with the honest one.

use crate::honest::{ECHO, LONGEST};
use crate::toll::{ENOUGH, LIMIT, ROUNDS_LEAST, STRETCH, Toll, median};
use crate::ways::{MADE, SHIFT};
use crate::{HANG, HONEST, HOSTILE, STILL, at};
use doorbell::{CounterKey, Error, Event, Key, Match, Node, NodeBuilder, NodeId, Progress, ReadWrite, Region};
use doorbell_tests::patience::take_back;
use doorbell_tests::pattern;
use doorbell_tests::random::Random;
use doorbell_tests::words::Words;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// Tags of messages from and to the hostile node.
pub const TAG: u64 = 2;
pub const KEY: u64 = 3;
pub const COUNTER: u64 = 4;

/// Ends the process when one call takes longer than any deadline allows.
#[derive(Default)]
struct Watchdog {
    since: AtomicU64,
    what: Mutex<&'static str>,
}

impl Watchdog {
    fn start() -> Arc<Self> {
        let dog = Arc::new(Self::default());
        let (watched, began) = (dog.clone(), Instant::now());
        dog.feed("to begin");
        std::thread::spawn(move || {
            let mut seen = (0, Instant::now());
            loop {
                std::thread::park_timeout(Duration::from_millis(200));
                let now = watched.since.load(SeqCst);
                if seen.0 != now {
                    seen = (now, Instant::now());
                } else if seen.1.elapsed() > HANG {
                    eprintln!("the victim hangs after {:?}: {}", began.elapsed(), watched.what.lock().unwrap());
                    std::process::abort();
                }
            }
        });
        dog
    }

    fn feed(&self, what: &'static str) {
        *self.what.lock().unwrap() = what;
        self.since.fetch_add(1, SeqCst);
    }
}

struct Victim {
    node: Node,
    words: Words,
    random: Random,
    dog: Arc<Watchdog>,
    /// What others sent of keys.
    key: Option<Key<u8, ReadWrite>>,
    counter: Option<CounterKey>,
    given: Region<u8>,
    secret: Region<u8>,
    private: Vec<u8>,
    echoes: u64,
    buf: Vec<u8>,
    /// The hostile node.
    foe: NodeId,
    /// Whether the hostile node truncated its files, so that their contents are lost.
    cut: bool,
    progress: Progress,
    /// Whether no node can send to it any more.
    severed: bool,
}

/// Ends the process at a panic in any thread.
pub fn panics_end_all() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        hook(panic);
        std::process::abort();
    }));
}

pub fn stand() {
    panics_end_all();
    let (way, seed) = crate::part();
    let words = Words::inherited();
    let random = Random::new(seed);
    let mut options = random.clone();
    let progress = *options.pick(&[Progress::Adaptive, Progress::Inline, Progress::Poller]);
    let node = builder(progress).join().unwrap();
    let (given, secret) = (node.region::<u8>(MIB).unwrap(), node.region::<u8>(MIB).unwrap());
    let private = pattern::bytes(MIB, seed);
    secret.write(0, &private).unwrap();
    words[at::PRIVATE].store(private.as_ptr().expose_provenance() as u64, SeqCst);
    words[at::PID].store(std::process::id().into(), SeqCst);
    let dog = Watchdog::start();
    let buf = vec![0; 2 * LONGEST];
    let foe = NodeId(if way == "impersonate" { MADE } else { HOSTILE });
    let cut = way == "truncate";
    let mut victim = Victim {
        node,
        words,
        random,
        dog,
        key: None,
        counter: None,
        given,
        secret,
        private,
        echoes: 0,
        buf,
        foe,
        cut,
        progress,
        severed: false,
    };
    victim.node.wait_for(2, Instant::now() + HANG).unwrap();
    victim.words[at::READY].fetch_add(1, SeqCst);
    // Until all are there.
    let patience = Instant::now() + HANG;
    while victim.words[at::BLOWS].load(SeqCst) == 0 {
        assert!(Instant::now() < patience, "no hostile node came");
        victim.turn(seed);
    }
    let span = Duration::from_secs(doorbell_tests::number("DOORBELL_HOSTILE_SECONDS", 1));
    let (began, mut toll) = (Instant::now(), Toll::default());
    // Longer if it is in doubt what the attack costs: then more is measured, and all of it counts.
    let is_doubtful = |toll: &Toll| toll.pairs() < ENOUGH || toll.ratio() > LIMIT;
    while began.elapsed() < span || !cut && is_doubtful(&toll) && began.elapsed() < 4 * span {
        // A victim that was cut off leaves and joins anew, so that its speed means nothing.
        let calm = if cut { None } else { victim.calm_stretch(&way, seed) };
        victim.attacked(true);
        let usual = Instant::now() + STRETCH * *victim.random.pick(&[1, 1, 1, 5]);
        while Instant::now() < usual {
            victim.turn(seed);
        }
        if let Some(calm) = calm
            && let Some(struck) = victim.stretch(true, &way, seed)
        {
            toll.add(struck, calm);
        }
    }
    toll.tell(&victim.words);
    victim.dog.feed("leave");
    let Victim { node, given, secret, .. } = victim;
    drop((given, secret));
    leave(node);
}

fn builder(progress: Progress) -> NodeBuilder {
    let builder = NodeBuilder::from_env().unwrap().id(crate::VICTIM).progress(progress).pool_bytes(8 * MIB);
    builder.copy(doorbell::CopySide::Both).max_nodes(8)
}

/// Leaves. A node that keeps the domain's lock can only prevent that files are removed.
pub fn leave(node: Node) {
    match node.leave() {
        Ok(()) => {}
        Err(Error::Shm(error)) => println!("left, but {error}"),
        Err(error) => panic!("leave: {error}"),
    }
}

impl Victim {
    fn turn(&mut self, seed: u64) {
        self.talk();
        for _ in 0..4 {
            self.deal(5000);
        }
        self.listen();
        if self.random.chance(10) {
            self.look(seed);
        }
        if self.severed {
            self.join_anew();
        }
    }

    /// Joins as a new incarnation. The hostile node may truncate files meanwhile, so several attempts may be needed.
    fn join_anew(&mut self) {
        self.dog.feed("join anew");
        let Ok(node) = builder(self.progress).patience(Duration::from_millis(500)).join() else { return };
        let former = std::mem::replace(&mut self.node, node);
        self.severed = false;
        if let (Ok(given), Ok(secret)) = (self.node.region::<u8>(MIB), self.node.region::<u8>(MIB)) {
            (self.given, self.secret) = (given, secret);
        }
        // After its regions: it has been dead to the others since it was cut off.
        leave(former);
    }

    /// Checks that memory to which no node has a key is unchanged.
    fn look(&mut self, seed: u64) {
        self.dog.feed("look at memory");
        pattern::check(&self.private, seed);
        if !self.cut {
            let mut copy = vec![0; self.secret.len()];
            self.secret.read(0, &mut copy).unwrap();
            pattern::check(&copy, seed);
        }
    }

    /// There and back with the honest node.
    fn talk(&mut self) {
        let len = match self.random.below(8) {
            0..4 => 8 + self.random.below(100),
            4 | 5 => 8 + self.random.below(5000),
            6 => 8 + self.random.below(40 << 10),
            _ => 8 + self.random.below(LONGEST - 8),
        };
        self.echo(len);
    }

    /// Blows are struck from now on, or not.
    fn attacked(&self, attacked: bool) -> u64 {
        let phase = self.words[at::PHASE].load(SeqCst) & !STILL | if attacked { 0 } else { STILL };
        self.words[at::PHASE].store(phase, SeqCst);
        phase
    }

    /// A stretch without blows, in an incarnation that was not attacked yet. After damage to the directory a new incarnation would find no peer, so there
    /// the stretch belongs to the same one.
    fn calm_stretch(&mut self, way: &str, seed: u64) -> Option<u64> {
        self.attacked(false);
        if !matches!(way, "directory" | "bitflips") {
            self.dog.feed("live anew");
            leave(self.node.clone());
            let progress = self.progress;
            self.node = builder(progress).join().unwrap();
            (self.given, self.secret) = (self.node.region(MIB).unwrap(), self.node.region(MIB).unwrap());
            self.secret.write(0, &self.private).unwrap();
            self.words[at::PHASE].fetch_add(2, SeqCst);
        }
        self.stretch(false, way, seed)
    }

    /// Talks with the honest node for a while, in which blows are struck or not. How long the median round took in nanoseconds; `None`
    /// if the hostile node did not do its part.
    fn stretch(&mut self, attacked: bool, way: &str, seed: u64) -> Option<u64> {
        let phase = self.attacked(attacked);
        let patience = Instant::now() + 10 * STRETCH;
        while self.words[at::HEARD].load(SeqCst) != phase {
            if Instant::now() > patience {
                return None;
            }
            self.turn(seed);
        }
        // Every fourth is answered by a loan.
        while !self.echoes.is_multiple_of(4) {
            self.echo(8);
        }
        let (end, blows) = (Instant::now() + STRETCH, self.words[at::BLOWS].load(SeqCst));
        let mut rounds = Vec::new();
        while Instant::now() < end || rounds.len() < ROUNDS_LEAST {
            // So that blows hit something.
            self.deal(200);
            self.listen();
            let began = Instant::now();
            [8, 5000, 50_000, 100].into_iter().for_each(|len| self.echo(len));
            rounds.push(began.elapsed().as_nanos() as u64);
        }
        // A lock is kept for longer than a stretch.
        let has_struck = self.words[at::BLOWS].load(SeqCst) != blows || attacked && way == "locks";
        (has_struck == attacked).then(|| median(rounds))
    }

    /// A message of that length, and back.
    fn echo(&mut self, len: usize) {
        let mut message = worked_out(len, self.echoes);
        message[..8].copy_from_slice(&self.echoes.to_le_bytes());
        self.dog.feed("send to the honest node");
        let patience = if self.cut { Duration::from_millis(200) } else { HANG };
        let deadline = Instant::now() + patience;
        match self.node.send_until(NodeId(HONEST), ECHO, &message, deadline) {
            Ok(()) => {}
            Err(error) if self.cut => return self.excuse(&error),
            Err(error) => panic!("send to the honest node: {error}"),
        }
        self.dog.feed("receive from the honest node");
        let envelope = match self.node.recv_until(Match::from(NodeId(HONEST)).tag(ECHO), &mut self.buf, deadline) {
            Ok(envelope) => envelope,
            Err(error) if self.cut => return self.excuse(&error),
            Err(error) => panic!("receive from the honest node: {error}"),
        };
        if !self.cut {
            assert_eq!(envelope.source, NodeId(HONEST));
            assert_eq!(envelope.len, len, "echo {}", self.echoes);
            assert!(self.buf[..len] == message, "echo {} is not what was sent", self.echoes);
        }
        self.echoes += 1;
        self.words[at::ECHOES].fetch_add(1, SeqCst);
    }

    /// Whether an error may happen in talks with others after files were truncated.
    fn excuse(&mut self, error: &Error) {
        self.severed |= matches!(error, Error::Severed { .. });
        assert!(!matches!(error, Error::Closed | Error::Forked | Error::Reentrant { .. }), "{error}");
        self.words[at::ECHOES].fetch_add(1, SeqCst);
    }

    /// One operation with the hostile node, for that many microseconds at most.
    fn deal(&mut self, most: usize) {
        let soon = Instant::now() + Duration::from_micros(self.random.below(most) as u64);
        let from = Match::from(self.foe);
        self.buf[..64].fill(0);
        let len = match self.random.below(4) {
            0 => self.random.below(64),
            1 => self.random.below(20 << 10),
            _ => self.random.below(LONGEST),
        };
        let (what, result): (&'static str, Result<(), Error>) = match self.random.below(16) {
            0 | 1 => self.during("send", |v| v.node.send_until(v.foe, TAG, &v.private[..len], soon)),
            2 => self.during("try_send", |v| v.node.try_send(v.foe, TAG, &v.private[..len.min(10_000)])),
            3 => self.during("start_send", |v| {
                let request = v.node.start_send(v.foe, TAG, v.private[..len].to_vec())?;
                match request.wait_until(soon) {
                    Ok(completion) => completion.result.map(drop),
                    Err(request) => take_back(request).map_or_else(|completion| completion.result.map(drop), |_| Ok(())),
                }
            }),
            4 | 5 => self.during("receive", |v| v.node.recv_until(from.tag(TAG), &mut v.buf[..len], soon).map(drop)),
            6 => self
                .during("receive from anybody", |v| v.node.recv_until(Match::any().tag(TAG), &mut v.buf[..len], soon).map(drop)),
            7 => self.during("start_recv", |v| {
                let request = v.node.start_recv(from.tag(TAG), vec![0; len])?;
                match request.wait_until(soon) {
                    Ok(completion) => completion.result.map(drop),
                    Err(request) => take_back(request).map_or_else(|completion| completion.result.map(drop), |_| Ok(())),
                }
            }),
            8 => self.during("receive in place", |v| {
                v.node.recv_with_until(from.tag(TAG), soon, |_, payload| drop(payload.to_vec())).map(drop)
            }),
            9 => self.during("take", |v| v.node.take_until::<[u8]>(from, soon).map(|taken| drop(taken.to_vec()))),
            10 => self.during("take a number", |v| v.node.take_until::<u32>(from, soon).map(|taken| _ = taken.read())),
            11 => self.during("lend", |v| {
                let mut loan = v.node.loan_bytes(len.max(1))?;
                loan[0] = 1;
                loan.share().send_until(v.foe, TAG, soon)
            }),
            12 => self.during("receive a key", |v| {
                let mut key = [0; doorbell::KEY_BYTES];
                v.node.recv_until(from.tag(KEY), &mut key, soon)?;
                v.key = Key::from_bytes(&key).ok();
                Ok(())
            }),
            13 => self.during("put", |v| {
                let Some(key) = v.key else { return Ok(()) };
                v.node.put(&v.private[..len.min(key.len())], key)
            }),
            14 => self.during("get", |v| {
                let Some(key) = v.key else { return Ok(()) };
                let len = len.min(key.len());
                v.node.get(key, &mut v.buf[..len])
            }),
            _ => self.during("give keys and count", |v| {
                let counter = v.node.counter()?;
                counter.init(1 + len as u64)?;
                v.node.send_until(v.foe, KEY, &v.given.key().to_bytes(), soon)?;
                v.node.send_until(v.foe, COUNTER, &counter.key().to_bytes(), soon)?;
                if let Some(key) = v.counter {
                    v.node.notify_until(key, 1, soon)?;
                }
                let mut key = [0; CounterKey::BYTES];
                v.node.recv_until(from.tag(COUNTER), &mut key, soon)?;
                v.counter = CounterKey::from_bytes(&key);
                counter.wait_until(soon)
            }),
        };
        assert!(self.buf[..64] != self.private[SHIFT..][..64], "{what}: a peer had this node read its own memory");
        self.words[at::OPERATIONS].fetch_add(1, SeqCst);
        match result {
            Ok(()) => drop(self.words[at::SUCCESSES].fetch_add(1, SeqCst)),
            Err(error) => {
                // Keys and counters may name any node: then the error does, too.
                let named = error.node().is_none_or(|node| node == self.foe || matches!(error, Error::Key { .. }));
                assert!(named || what == "put" || what == "get" || what == "give keys and count" || self.cut, "{what}: {error}");
                assert!(!matches!(error, Error::Closed | Error::Forked | Error::Reentrant { .. }), "{what}: {error}");
            }
        }
    }

    fn during<T>(&mut self, what: &'static str, run: impl FnOnce(&mut Self) -> T) -> (&'static str, T) {
        self.dog.feed(what);
        (what, run(self))
    }

    /// Checks that only the node that broke the rules is reported.
    fn listen(&mut self) {
        self.dog.feed("listen");
        // Bounded: a node that comes and goes all the time makes events all the time.
        for _ in 0..100 {
            let Some(event) = self.node.try_event().unwrap() else { break };
            if let Event::Damaged { node, reason } = event {
                assert!(node == self.foe || node == NodeId(HOSTILE) || self.cut, "{event}");
                if self.words[at::DAMAGED].fetch_add(1, SeqCst) < 5 {
                    println!("node {node}: {reason}");
                }
            }
        }
    }
}

/// Bytes that the program computes word by word, as an honest program does some work for each message. With copies alone, a round would be
/// much shorter, and the limit of the toll, a ratio, would need another value.
fn worked_out(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for chunk in bytes.chunks_mut(8) {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
    bytes
}
