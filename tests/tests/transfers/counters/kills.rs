//! The counters of a process whose peer is killed at any point of a transfer.

use super::watch::{Release, Threads, Use};
use super::{End, Slot, counted};
use doorbell::dma::{Descriptor, InjectionFifo};
use doorbell::{CounterKey, KEY_BYTES, Key, Match, Node, NodeId, Peer, Progress, ReadWrite, Region};
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::{PATIENCE, soon, until};
use doorbell_tests::process::{Process, told, told_as};
use doorbell_tests::random::{Random, seed};
use doorbell_tests::{Turn, number, pattern};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::thread::{scope, yield_now};
use std::time::{Duration, Instant};

const SURVIVOR: NodeId = NodeId(0);
const VICTIM: NodeId = NodeId(1);
const SEED: u64 = 5;
const KEYS: u64 = 1 << 32;

/// What the victim does, and the places where it may die meanwhile.
const WORK: [(&str, &[&str]); 5] = [
    ("sends", &["meeting.opened", "meeting.claimed", "meeting.putting", "meeting.put", "lane.written", "lane.published"]),
    ("receives", &["meeting.claimed", "meeting.pulled", "meeting.finished", "meeting.revoked", "cma.copying", "cma.copied"]),
    ("puts", &["fifo.injected", "fifo.executed", "lane.published", "counter.lowered"]),
    ("is asked to put", &["fifo.executed", "lane.written", "lane.published", "counter.lowered"]),
    ("is put to", &["lane.blanked", "lane.published", "bell.claimed"]),
];
const PROGRESS: [&str; 3] = ["adaptive", "inline", "poller"];
const COPY: [&str; 4] = ["auto", "origin", "target", "both"];
const LENS: [usize; 6] = [1, 5000, 70_000, 300_000, 1 << 20, 3 << 20];

/// The role: one transfer after the other.
pub fn moves_until_killed() {
    let builder = Node::builder(told("DOMAIN")).id(VICTIM).progress(told_as("PROGRESS")).copy(told_as("COPY"));
    let (node, len) = (builder.join().unwrap(), told_as::<usize>("LEN"));
    let (peer, counter) = (until("the survivor", || node.peer(SURVIVOR).ok()), node.counter().unwrap());
    let [source, shelf] = [(); 2].map(|()| node.region::<u8>(len).unwrap());
    source.write(0, &pattern::bytes(len, SEED)).unwrap();
    node.send(SURVIVOR, KEYS, &[source.key().to_bytes(), shelf.key().to_bytes()].concat()).unwrap();
    let fifo = InjectionFifo::builder(&node).open().unwrap();
    for turn in 0_u64.. {
        counter.init(len as u64).unwrap();
        match told("WORK").as_str() {
            "sends" => {
                node.recv_until(Match::from(SURVIVOR), &mut [], soon()).unwrap();
                let sending = counter.start_send(&peer, turn, pattern::bytes(len, turn)).unwrap();
                counter.wait_until(soon()).unwrap();
                sending.wait().result.unwrap();
            }
            "receives" => {
                let receiving = counter.start_recv(Match::from(SURVIVOR), vec![0; len]).unwrap();
                counter.wait_until(soon()).unwrap();
                pattern::check(&receiving.wait().buffer.unwrap(), turn);
            }
            "puts" => {
                let mut keys = [0; KEY_BYTES + CounterKey::BYTES];
                node.recv_until(Match::from(SURVIVOR), &mut keys, soon()).unwrap();
                let target = Key::<u8, ReadWrite>::from_bytes(&keys[..KEY_BYTES]).unwrap();
                let arrived = CounterKey::from_bytes(&keys[KEY_BYTES..]).unwrap();
                let put = Descriptor::put(source.key(), target).unwrap();
                assert!(fifo.inject(&put.send_counter(counter.key()).receive_counter(arrived)).unwrap());
                counter.wait_until(soon()).unwrap();
                fifo.wait_until(soon()).unwrap();
            }
            // The survivor moves the bytes, or has this node's engine move them.
            _ => _ = node.recv_until(Match::from(SURVIVOR), &mut [], soon()).unwrap(),
        }
    }
}

/// The survivor's part of one transfer.
struct Part<'a> {
    node: &'a Node,
    peer: &'a Peer,
    work: &'a str,
    turn: u64,
    len: usize,
    /// What the victim puts into the region, or the survivor's engine out of it.
    own: &'a Region<u8>,
    theirs: &'a [Key<u8, ReadWrite>; 2],
}

impl Part<'_> {
    /// Runs until the transfer is over. `look` runs meanwhile.
    fn run(&self, of: &Use, mut look: impl FnMut()) -> End {
        let deadline = soon();
        let mut wait = || {
            look();
            assert!(Instant::now() < deadline, "a transfer does not end");
            yield_now();
        };
        match self.work {
            "sends" => {
                if self.peer.send(self.turn, b"").is_err() {
                    return End::Unknown;
                }
                let mut receiving = Slot::from(of.counter.start_recv(Match::from(VICTIM), vec![0; self.len]));
                let end = |done: doorbell::Received<Vec<u8>>| {
                    if done.result.is_ok() {
                        pattern::check(&done.buffer.unwrap(), self.turn);
                    }
                    End::of(&done.result.map(drop))
                };
                while !receiving.look(end) {
                    wait();
                }
                receiving.over.unwrap()
            }
            "receives" => {
                let mut sending = Slot::from(of.counter.start_send(self.peer, self.turn, pattern::bytes(self.len, self.turn)));
                while !sending.look(|done| End::of(&done.result)) {
                    wait();
                }
                sending.over.unwrap()
            }
            "puts" => {
                let keys = [&self.own.key().to_bytes()[..], &of.counter.key().to_bytes()].concat();
                if self.peer.send(self.turn, &keys).is_err() {
                    return End::Unknown;
                }
                // No operation of this node waits for it, so nothing but the death of the peer ends this.
                while !of.counter.is_zero() {
                    wait();
                    self.node.progress().unwrap();
                    if self.node.try_recv(Match::from(VICTIM), &mut []).is_err() {
                        return End::Unknown;
                    }
                }
                End::Done
            }
            _ => self.inject(of, wait),
        }
    }

    fn inject(&self, of: &Use, mut wait: impl FnMut()) -> End {
        let fifo = InjectionFifo::builder(self.node).open().unwrap();
        let [source, shelf] = self.theirs;
        let moves = if self.work == "is put to" {
            Descriptor::put(self.own.key(), *shelf).unwrap().send_counter(of.counter.key())
        } else {
            let put = Descriptor::put(*source, self.own.key()).unwrap().receive_counter(of.counter.key());
            Descriptor::remote_get(self.peer.remote_get_fifo(), put).unwrap()
        };
        assert!(fifo.inject(&moves).unwrap());
        // One that has no fault comes to its end.
        while fifo.depth() > 0 || !of.counter.is_zero() {
            wait();
            self.node.progress().unwrap();
            if fifo.next_fault().is_some() {
                return End::Unknown;
            }
        }
        End::Done
    }
}

/// What the counter says has arrived is in place: a put begins at the first byte.
fn check_prefix(own: &Region<u8>, left: u64) {
    let mut bytes = vec![0; own.len() - left as usize];
    own.read(0, &mut bytes).unwrap();
    pattern::check(&bytes, SEED);
}

#[test]
fn a_counter_is_in_order_when_the_peer_is_killed() {
    let _turn = Turn::take();
    let (kills, seed) = (number("DOORBELL_KILLS", 10), seed());
    println!("counters: DOORBELL_SEED={seed} DOORBELL_KILLS={kills}");
    let (domain, mut random) = (Domain::new("counted"), Random::new(seed));
    let mut died = BTreeMap::<&str, [usize; 3]>::new();
    for kill in 0..kills {
        let (work, places) = WORK[kill as usize % WORK.len()];
        let len = *random.pick(&LENS);
        let mut fault = format!("{}:{}", random.pick(places), 1 + random.below(60));
        if random.chance(50) {
            // Slow enough to be killed in the middle.
            fault += ",meeting.claimed:all:delay=1";
        }
        let copy = [*random.pick(&COPY), *random.pick(&COPY)];
        let progress = [*random.pick(&PROGRESS), *random.pick(&PROGRESS)];
        // At the latest in this transfer, when the counter has fallen so far.
        let (last, percent) = (random.below(8) as u64, random.below(101) as u64);
        let words =
            format!("kill {kill}: the victim {work} {len} bytes, {fault}, or {last} at {percent}%, {copy:?}, {progress:?}");
        println!("{words}");
        let builder = Node::builder(domain.name()).id(SURVIVOR).copy(copy[0].parse().unwrap());
        let node = builder.progress(progress[0].parse::<Progress>().unwrap()).join().unwrap();
        let process = Process::start("moves until killed").tell("DOMAIN", domain.name()).tell("DOORBELL_FAULT", &fault);
        let process = process.tell("COPY", copy[1]).tell("PROGRESS", progress[1]).tell("LEN", len.to_string());
        let process = process.tell("WORK", work).go();
        let own = node.region::<u8>(len).unwrap();
        let mut keys = [0; 2 * KEY_BYTES];
        let begun = until("a process that joins", || {
            let peer = node.peer(VICTIM);
            // It may die before it has joined.
            let is_over = process.ended_by(Instant::now());
            peer.ok().map(Some).or(is_over.then_some(None))
        });
        let begun = begun.filter(|_| node.recv_until(Match::from(VICTIM).tag(KEYS), &mut keys, soon()).is_ok());
        let Some(peer) = begun else {
            process.kill();
            node.leave().unwrap();
            continue;
        };
        let (source, shelf) = keys.split_at(KEY_BYTES);
        let theirs = [source, shelf].map(|key| Key::from_bytes(key).unwrap());
        let count = died.entry(work).or_default();
        for turn in 0.. {
            if work == "is put to" {
                own.write(0, &pattern::bytes(len, turn)).unwrap();
            } else {
                own.fill(0).unwrap();
            }
            // A message is given up in the middle, and its bytes do not count.
            let of = Use::begin(&node, len as u64, work == "sends");
            let part = Part { node: &node, peer: &peer, work, turn, len, own: &own, theirs: &theirs };
            let comes = matches!(work, "puts" | "is asked to put");
            let end = scope(|scope| {
                let _release = Release(&of);
                let at_zero = || {
                    if comes {
                        check_prefix(&own, 0);
                    }
                };
                let threads = of.observe(scope, Duration::from_micros(1 + random.below(3000) as u64), at_zero);
                let end = part.run(&of, || {
                    if turn >= last && of.fell_to(percent) {
                        process.kill();
                    }
                });
                if comes {
                    check_prefix(&own, of.counter.value());
                }
                let (least, most) = counted(&[len], &[end]);
                let value = of.counter.value();
                count[1] += usize::from(value > 0 && value < len as u64);
                count[2] += usize::from(end == End::Done);
                of.end(least, most);
                Threads::join(threads);
                end
            });
            if end != End::Done {
                break;
            }
            if turn >= last {
                process.kill();
            }
        }
        count[0] += 1;
        assert_eq!(process.end(PATIENCE).signal(), Some(Signal::KILL.as_raw()), "{words}: it failed instead");
        drop((own, peer));
        node.leave().unwrap();
    }
    println!("killed, killed in the middle, transfers before: {died:?}");
    doorbell_shm::domain::clean(domain.space(), Some(domain.name()), true).unwrap();
    domain.assert_empty();
}
