//! A node that keeps sending requests to the coordinator of the lock registry, and reads nothing. Every request is well-formed. The coordinator must keep
//! little for it, and go on serving an honest node that comes meanwhile.
//!
//! `DOORBELL_LETTERS` sets how many requests; a million is the long form.

use crate::{HANG, HONEST, HOSTILE, VICTIM};
use doorbell::Lock;
use doorbell::{FabricKind, Match, Node, NodeId, Resource, Space};
use doorbell_fabric::{PacketHead, PacketKind, Priority, Push};
use doorbell_shm::domain::{JoinOptions, Membership, PeerInbox};
use doorbell_shm::lane::{Producer, RawMemory};
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::{PATIENCE, eventually, soon};
use doorbell_tests::process::{Process, told};
use doorbell_tests::words::Words;
use doorbell_tests::{LOOPBACK, Turn, number};
use std::net::SocketAddr;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// The words that the processes share.
mod at {
    /// The port of the victim's network.
    pub const PORT: usize = 0;
    /// The honest and the hostile node are to end; if it is 2, the victim, too.
    pub const STOP: usize = 1;
    /// The honest node has met the victim.
    pub const MET: usize = 2;
    /// How often the honest node had the lock and got its message back.
    pub const ROUNDS: usize = 3;
    /// Requests that the hostile node sent, and its lives.
    pub const LETTERS: usize = 4;
    pub const LIVES: usize = 5;
    pub const COUNT: usize = 6;
}

/// A name of the greatest length, so that a reply with it is as long as possible.
const LOCK: &str = "a lock whose name has all forty letters.";
const TAG: u64 = 1;
/// Notices in one life before the requests that want a reply.
const TELLS: u64 = 20_000;
/// The kinds of requests, in the highest byte of the tag.
const ASK: u64 = 1 << 56;
const TELL: u64 = 3 << 56;

/// The memory that the victim may keep for a node that reads nothing.
const GROWTH_MOST: u64 = 8 << 20;
const THREADS_MOST: u64 = 4;

/// The role: has the registry, and sends back what the honest node sends.
pub fn victim() {
    let words = Words::inherited();
    let node = Node::builder(told("DOORBELL_DOMAIN")).id(VICTIM).listen(LOOPBACK).join().unwrap();
    let _lock = Lock::init(&node, LOCK, Resource::memory(u64::MAX - 1..u64::MAX)).unwrap();
    words[at::PORT].store(node.address().unwrap().port().into(), SeqCst);
    let mut buf = [0; 64];
    while words[at::STOP].load(SeqCst) < 2 {
        let brief = Instant::now() + Duration::from_millis(50);
        if let Ok(envelope) = node.recv_until(Match::from(NodeId(HONEST)).tag(TAG), &mut buf, brief) {
            node.send_until(NodeId(HONEST), TAG, &buf[..envelope.len], Instant::now() + HANG).unwrap();
        }
    }
    node.leave().unwrap();
}

/// The role: joins over the network, has the lock and talks with the victim, again and again.
pub fn honest() {
    let words = Words::inherited();
    let address: SocketAddr = ([127, 0, 0, 1], words[at::PORT].load(SeqCst) as u16).into();
    let builder = Node::builder(told("DOORBELL_DOMAIN")).space(Space::heap()).fabric(FabricKind::Udp);
    let node = builder.id(HONEST).connect(address).join().unwrap();
    node.wait_for(2, soon()).unwrap();
    words[at::MET].store(1, SeqCst);
    let lock = Lock::find(&node, LOCK).unwrap();
    let mut buf = [0; 64];
    while words[at::STOP].load(SeqCst) == 0 {
        let deadline = Instant::now() + HANG;
        let guard = lock.lock_until(deadline).unwrap();
        node.send_until(NodeId(VICTIM), TAG, b"a message", deadline).unwrap();
        let envelope = node.recv_until(Match::from(NodeId(VICTIM)).tag(TAG), &mut buf, deadline).unwrap();
        assert_eq!(&buf[..envelope.len], b"a message");
        guard.unlock().unwrap();
        words[at::ROUNDS].fetch_add(1, SeqCst);
    }
    node.leave().unwrap();
}

/// A member without an engine that fills the lane of requests by hand.
struct Writer {
    // Declared before what it points into.
    producer: Producer<RawMemory>,
    target: PeerInbox,
    _membership: Membership,
}

impl Writer {
    /// `None`: it can't join, or its former life's lane is not free yet.
    fn join(domain: &str) -> Option<Self> {
        let options = JoinOptions { id: Some(NodeId(HOSTILE)), ..JoinOptions::new(domain, Space::posix()) };
        let membership = Membership::join(options).ok()?;
        let target = membership.open_peer(NodeId(VICTIM)).ok()?;
        // SAFETY: mapped as long as `target`.
        let (first, full) = unsafe { target.pair().ok()?.rings(Priority::High) };
        let mut producer = Producer::claim(first, membership.incarnation().0)?;
        target.pair().ok()?.grow(membership.lanes().pair_bytes()).ok()?;
        producer.move_to(full);
        Some(Self { producer, target, _membership: membership })
    }

    /// False if there is no room for as long as an honest node never leaves it: then it is read no further.
    fn send(&mut self, tag: u64, bytes: &[u8]) -> bool {
        let head = PacketHead { kind: PacketKind::Letter, tag, sequence: 0, total: bytes.len() as u64 };
        let cut_off = Instant::now() + Duration::from_millis(300);
        // SAFETY: a slice, shorter than a packet may be.
        while unsafe { self.producer.push(&head, bytes.as_ptr(), bytes.len()) } != Push::Done {
            if Instant::now() >= cut_off {
                return false;
            }
            self.target.ring();
            std::thread::yield_now();
        }
        true
    }
}

/// A number as requests encode it.
fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// A request that wants a reply (docs/wire.md). Most answers are as long as the lock's name.
fn ask(number: u64) -> Vec<u8> {
    let mut bytes = match number % 1024 {
        0..32 => return vec![1],
        32..64 => return vec![2],
        // The home makes one lock of a node after the other, so these few are slow.
        64 => vec![4],
        _ => vec![5],
    };
    bytes.push(LOCK.len() as u8);
    bytes.extend(LOCK.as_bytes());
    if bytes[0] == 4 {
        // To make it anew: the resource.
        bytes.extend([0; 4]);
    }
    bytes
}

/// A notice, which wants none.
fn tell(number: u64) -> Vec<u8> {
    let mut bytes;
    match number % 4 {
        // It is home now; not after all.
        0 => bytes = vec![5],
        1 => bytes = vec![1],
        // It has nothing, but there is more.
        2 => return vec![3, 0, 1],
        // It does not want the answer of this number.
        _ => {
            bytes = vec![2];
            put(&mut bytes, number);
            bytes.push(0);
            return bytes;
        }
    }
    put(&mut bytes, 1 + number);
    bytes
}

/// The role: sends requests, in one life after another if it is cut off.
pub fn hostile() {
    let (words, domain) = (Words::inherited(), told("DOORBELL_DOMAIN"));
    let letters = number("DOORBELL_LETTERS", 200_000);
    let mut sent = 0;
    while sent < letters && words[at::STOP].load(SeqCst) == 0 {
        let Some(mut writer) = Writer::join(&domain) else {
            std::thread::yield_now();
            continue;
        };
        words[at::LIVES].fetch_add(1, SeqCst);
        for number in 0..letters - sent {
            let is_sent = if number < TELLS { writer.send(TELL, &tell(number)) } else { writer.send(ASK | number, &ask(number)) };
            if !is_sent || words[at::STOP].load(SeqCst) != 0 {
                break;
            }
            sent += 1;
            words[at::LETTERS].store(sent, SeqCst);
        }
    }
}

/// The resident memory of a process, and its threads.
fn status(pid: u32) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name} in {status}"));
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    (of("VmRSS:") << 10, of("Threads:"))
}

#[test]
fn a_node_that_sends_letters_and_reads_none_costs_its_home_little() {
    let _turn = Turn::take();
    let domain = Domain::new("letters");
    let words = Words::new(at::COUNT);
    let start = |role: &str| Process::start(role).tell("DOORBELL_DOMAIN", domain.name()).words(&words).go();
    let count = |word: usize| words[word].load(SeqCst);
    let victim = start("letters-victim");
    eventually("the victim's address", || count(at::PORT) != 0);
    // One that came and went, so that what the first of all costs is not counted.
    let honest = start("letters-honest");
    eventually("an honest node that has the lock", || count(at::ROUNDS) > 0);
    words[at::STOP].store(1, SeqCst);
    honest.end_well(PATIENCE);
    words[at::STOP].store(0, SeqCst);
    let (memory, threads) = status(victim.pid());
    words[at::MET].store(0, SeqCst);
    words[at::ROUNDS].store(0, SeqCst);

    let hostile = start("letters-hostile");
    eventually("letters under way", || count(at::LETTERS) > 1000);
    let honest = start("letters-honest");
    let (mut memory_most, mut threads_most) = (memory, threads);
    let hang = Instant::now() + PATIENCE + Duration::from_millis(number("DOORBELL_LETTERS", 200_000) / 4);
    while !hostile.ended_by(Instant::now() + Duration::from_millis(20)) {
        let (memory_now, threads_now) = status(victim.pid());
        (memory_most, threads_most) = (memory_most.max(memory_now), threads_most.max(threads_now));
        assert!(Instant::now() < hang, "{} letters were sent and no more", count(at::LETTERS));
        assert!(!victim.ended_by(Instant::now()) && !honest.ended_by(Instant::now()), "an honest node ended");
    }
    hostile.end_well(PATIENCE);
    eventually("the honest node being served", || count(at::MET) == 1 && count(at::ROUNDS) >= 20);
    let grown = memory_most.saturating_sub(memory);
    println!(
        "{} letters in {} lives; the victim grew by {} KiB and from {threads} to {threads_most} threads; {} rounds of the honest node",
        count(at::LETTERS),
        count(at::LIVES),
        grown >> 10,
        count(at::ROUNDS),
    );
    words[at::STOP].store(1, SeqCst);
    honest.end_well(PATIENCE);
    words[at::STOP].store(2, SeqCst);
    victim.end_well(PATIENCE);
    doorbell_shm::domain::clean(domain.space(), Some(domain.name()), true).unwrap();
    // A sanitizer keeps freed memory for a while, so what a process holds says nothing there.
    assert!(cfg!(sanitized) || grown <= GROWTH_MOST, "the victim grew by {} KiB", grown >> 10);
    assert!(threads_most <= threads + THREADS_MOST, "the victim had {threads} threads, and then {threads_most}");
    domain.assert_empty();
}
