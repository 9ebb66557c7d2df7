//! A process that is killed while it injects descriptors, while its engine executes them, and while it counts.
//!
//! Every time: the puts of the survivors go on, what the dead process put is whole or not there, and its place is free for the next.

use doorbell::dma::{Descriptor, FifoKey, InjectionFifo, ReceptionFifo};
use doorbell::{CounterKey, Event, KEY_BYTES, Key, Match, Node, NodeId, Progress, ReadWrite, Region};
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::{soon, until};
use doorbell_tests::pattern;
use doorbell_tests::process::{Process, told};
use doorbell_tests::random::{Random, seed};
use doorbell_tests::{Turn, number};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;

const SURVIVOR: NodeId = NodeId(0);
const OTHER: NodeId = NodeId(1);
const VICTIM: NodeId = NodeId(2);
/// Where it dies, and how often it may come by before.
const FAULTS: [(&str, usize); 4] =
    [("fifo.written", 300), ("fifo.injected", 300), ("fifo.executed", 300), ("counter.lowered", 100)];
const PROGRESS: [&str; 3] = ["adaptive", "inline", "poller"];
const SLOTS: usize = 16;
const LEN: usize = 3000;
const PACKETS: u16 = 5;

/// The role: puts, sends packets and has the survivors put, until it is killed.
pub fn inject() {
    let node = Node::builder(told("DOMAIN")).id(VICTIM).progress(told("PROGRESS").parse().unwrap()).join().unwrap();
    let mut keys = [0; 2 * KEY_BYTES + CounterKey::BYTES + FifoKey::BYTES];
    node.send(SURVIVOR, 1, b"").unwrap();
    node.recv_until(Match::from(SURVIVOR), &mut keys, soon()).unwrap();
    let (there, rest) = keys.split_at(KEY_BYTES);
    let (shelf, rest) = rest.split_at(KEY_BYTES);
    let (counter, packets) = rest.split_at(CounterKey::BYTES);
    let there = Key::<u8, ReadWrite>::from_bytes(there).unwrap();
    let shelf = Key::<u8, ReadWrite>::from_bytes(shelf).unwrap();
    let (counter, packets) = (CounterKey::from_bytes(counter).unwrap(), FifoKey::from_bytes(packets.try_into().unwrap()));
    let (source, back) = (node.region::<u8>(LEN).unwrap(), node.region::<u8>(LEN).unwrap());
    source.write(0, &pattern::bytes(LEN, 5)).unwrap();
    let (fifo, sent) = (InjectionFifo::builder(&node).name("victim").open().unwrap(), node.counter().unwrap());
    let gets = node.peer(SURVIVOR).unwrap().remote_get_fifo();
    for turn in 0.. {
        sent.init(LEN as u64).unwrap();
        let slot = turn % SLOTS * LEN;
        let put = Descriptor::put(source.key(), there.range(slot..slot + LEN)).unwrap();
        let get = Descriptor::put(shelf.range(..LEN), back.key()).unwrap();
        let all = [
            put.send_counter(sent.key()).receive_counter(counter),
            Descriptor::packet(source.key(), packets, turn as u64).unwrap(),
            Descriptor::remote_get(gets, get).unwrap(),
        ];
        let mut left = &all[..];
        while !left.is_empty() {
            left = &left[fifo.inject_all(left).unwrap()..];
            fifo.wait_until(soon()).unwrap();
        }
        sent.wait_until(soon()).unwrap();
        assert!(fifo.next_fault().is_none());
    }
}

/// A put between the survivors.
fn put(fifo: &InjectionFifo, source: &Region<u8>, target: &Region<u8>, seed: u64) {
    source.write(0, &pattern::bytes(LEN, seed)).unwrap();
    assert!(fifo.inject(&Descriptor::put(source.key(), target.key()).unwrap()).unwrap());
    fifo.wait_until(soon()).unwrap();
    assert!(fifo.next_fault().is_none());
    let mut bytes = vec![0; LEN];
    target.read(0, &mut bytes).unwrap();
    pattern::check(&bytes, seed);
}

#[test]
fn those_who_inject_die_and_nobody_else_is_disturbed() {
    let _turn = Turn::take();
    let (kills, seed) = (number("DOORBELL_KILLS", 30) as usize, seed());
    println!("dma: DOORBELL_SEED={seed} DOORBELL_KILLS={kills}");
    let domain = Domain::new("injected");
    let mut random = Random::new(seed);
    let join = |id, progress| Node::builder(domain.name()).id(id).progress(progress).join().unwrap();
    let (node, other) = (join(SURVIVOR, Progress::Adaptive), join(OTHER, Progress::Adaptive));
    let (there, shelf) = (node.region::<u8>(SLOTS * LEN).unwrap(), node.region::<u8>(LEN).unwrap());
    let packets = ReceptionFifo::builder(&node).number(PACKETS).open().unwrap();
    let (source, target) = (node.region::<u8>(LEN).unwrap(), other.region::<u8>(LEN).unwrap());
    let fifo = InjectionFifo::builder(&node).name("survivor").open().unwrap();
    let arrived = node.counter().unwrap();
    let (mut died, mut seen) = (BTreeMap::<&str, usize>::new(), 0);
    for kill in 0..kills {
        there.fill(0).unwrap();
        arrived.init(u64::from(u32::MAX)).unwrap();
        let (place, most) = *random.pick(&FAULTS);
        let fault = format!("{place}:{}", 1 + random.below(most));
        let process = Process::start("injector").tell("DOMAIN", domain.name()).tell("DOORBELL_FAULT", &fault);
        let process = process.tell("PROGRESS", *random.pick(&PROGRESS)).go();
        until("a process that joins", || node.peer(VICTIM).ok());
        node.recv_until(Match::from(VICTIM), &mut [], soon()).unwrap();
        let keys = [&there.key().to_bytes()[..], &shelf.key().to_bytes(), &arrived.key().to_bytes(), &packets.key().to_bytes()];
        node.send(VICTIM, 1, &keys.concat()).unwrap();
        let mut turn = 0;
        until("a death at a fault point", || {
            put(&fifo, &source, &target, turn);
            turn += 1;
            while let Some(is_whole) = packets.poll(|_, _, payload| pattern::fault(&payload.to_vec(), 5).is_none()).unwrap() {
                assert!(is_whole, "kill {kill}, {fault}: a packet is not whole");
                seen += 1;
            }
            match node.try_event().unwrap() {
                Some(Event::Died { node, .. }) => {
                    assert_eq!(node, VICTIM);
                    Some(())
                }
                Some(event @ Event::Damaged { .. }) => panic!("kill {kill}, {fault}: {event}"),
                _ => None,
            }
        });
        let status = process.end(std::time::Duration::from_secs(10));
        assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "kill {kill}, {fault}: it failed instead");
        *died.entry(place).or_default() += 1;
        // Each place was put whole, or in part by the put during which it died, or not at all.
        let mut bytes = vec![0; SLOTS * LEN];
        there.read(0, &mut bytes).unwrap();
        let is_odd = |slot: &&[u8]| pattern::fault(slot, 5).is_some() && slot.iter().any(|byte| *byte != 0);
        assert!(bytes.chunks(LEN).filter(is_odd).count() <= 1, "kill {kill}, {fault}");
        put(&fifo, &source, &target, u64::MAX);
    }
    println!("{died:?}, {seen} packets");
    assert!(seen > 0 && died.len() > kills.min(20) / 10);
    drop((fifo, packets));
    other.leave().unwrap();
    node.leave().unwrap();
    doorbell_shm::domain::clean(domain.space(), Some(domain.name()), true).unwrap();
    domain.assert_empty();
}
