//! Descriptors that a program injects: direct puts, packets, remote gets, and descriptors that fail.

use doorbell::dma::{Descriptor, FifoKey, InjectionFifo, ReceptionFifo};
use doorbell::{Counter, Error, Key, KeyFault, Node, Priority, ReadWrite};
use doorbell_tests::patience::eventually;
use doorbell_tests::pattern;
use doorbell_tests::world::World;

/// Turns the engines of nodes until something is so.
#[track_caller]
fn turn_until(what: &str, nodes: &[&Node], mut is_so: impl FnMut() -> bool) {
    eventually(what, || {
        for node in nodes {
            node.progress().unwrap();
        }
        is_so()
    });
}

fn counter(node: &Node, bytes: usize) -> Counter {
    let counter = node.counter().unwrap();
    counter.init(bytes as u64).unwrap();
    counter
}

pub fn injected_puts_of_every_length_arrive_and_are_counted(world: &World) {
    let [a, b] = world.nodes();
    let (source, target) = (a.region::<u8>(300_000).unwrap(), b.region::<u8>(300_000).unwrap());
    for (round, priority) in Priority::ALL.into_iter().enumerate() {
        let fifo = InjectionFifo::builder(&a).name("puts").priority(priority).open().unwrap();
        for len in [1, 8, 9, 1000, 4096, 65_537, 299_000] {
            source.write(0, &pattern::bytes(len, len as u64)).unwrap();
            let at = round + len % 900;
            let (sent, arrived) = (counter(&a, len), counter(&b, len));
            let put = Descriptor::put(source.key().range(..len), target.key().at(at)).unwrap();
            assert!(fifo.inject(&put.send_counter(sent.key()).receive_counter(arrived.key())).unwrap());
            turn_until("both counters come to zero", &[&a, &b], || sent.is_zero() && arrived.is_zero());
            turn_until("the FIFO is empty", &[&a, &b], || fifo.depth() == 0);
            let mut got = vec![0; len];
            target.read(at, &mut got).unwrap();
            pattern::check(&got, len as u64);
            assert!(fifo.next_fault().is_none());
        }
    }
}

pub fn packets_of_descriptors_arrive_in_order(world: &World) {
    let [a, b] = world.nodes();
    let packets = ReceptionFifo::builder(&b).number(4).open().unwrap();
    let (source, fifo) = (a.region::<u8>(50_000).unwrap(), InjectionFifo::builder(&a).open().unwrap());
    source.write(0, &pattern::bytes(50_000, 3)).unwrap();
    let lengths = [0, 1, 40, 5000, 50_000, 8];
    let arrived = counter(&b, lengths.iter().sum());
    for (tag, len) in (0..).zip(lengths) {
        let packet = Descriptor::packet(source.key().range(..len), packets.key(), tag).unwrap();
        assert!(fifo.inject(&packet.receive_counter(arrived.key())).unwrap());
    }
    for (tag, len) in (0..).zip(lengths) {
        let mut whole = Vec::new();
        loop {
            let mut packet = None;
            turn_until("a packet", &[&a, &b], || {
                packet = packets.poll(|envelope, at, payload| (*envelope, at, payload.to_vec())).unwrap();
                packet.is_some()
            });
            let (envelope, at, payload) = packet.unwrap();
            assert_eq!((envelope.source, envelope.tag, envelope.len, at), (a.id(), tag, len, whole.len() as u64));
            whole.extend(payload);
            if whole.len() == len {
                break;
            }
        }
        assert_eq!(pattern::fault(&whole, 3), None);
    }
    assert!(arrived.is_zero() && fifo.next_fault().is_none());
}

pub fn a_remote_get_has_its_target_put_to_any_node(world: &World) {
    let [a, b, c] = world.nodes();
    let fifo = InjectionFifo::builder(&a).open().unwrap();
    for (len, to) in [(100, &a), (70_000, &c), (8, &a), (200_000, &c)] {
        let (source, target) = (b.region::<u8>(len).unwrap(), to.region::<u8>(len).unwrap());
        source.write(0, &pattern::bytes(len, 5)).unwrap();
        let (sent, arrived) = (counter(&b, len), counter(to, len));
        let put = Descriptor::put(source.read_key(), target.key()).unwrap().send_counter(sent.key());
        let get = Descriptor::remote_get(b.remote_get_fifo(), put.receive_counter(arrived.key())).unwrap();
        assert!(fifo.inject(&get).unwrap());
        turn_until("both counters come to zero", &[&a, &b, &c], || sent.is_zero() && arrived.is_zero());
        let mut got = vec![0; len];
        target.read(0, &mut got).unwrap();
        pattern::check(&got, 5);
    }
    turn_until("the FIFO is empty", &[&a, &b, &c], || fifo.depth() == 0);
    assert!(fifo.next_fault().is_none());
}

pub fn a_descriptor_that_fails_leaves_the_others_alone(world: &World) {
    let [a, b] = world.nodes();
    let (source, target) = (a.region::<u8>(100).unwrap(), b.region::<u8>(100).unwrap());
    source.write(0, &pattern::bytes(100, 1)).unwrap();
    let fifo = InjectionFifo::builder(&a).open().unwrap();
    let gone = b.region::<u8>(100).unwrap();
    let stale = Descriptor::put(source.key(), gone.key()).unwrap();
    drop(gone);
    let mut bytes = target.key().to_bytes();
    bytes[24..32].copy_from_slice(&1000_u64.to_le_bytes());
    let long = Key::<u8, ReadWrite>::from_bytes(&bytes).map(|key| Descriptor::put(source.key(), key.at(50)));
    assert!(long.is_err(), "a key that was changed is not taken");
    let nowhere = Descriptor::packet(source.key(), FifoKey { number: 9, ..b.remote_get_fifo() }, 1).unwrap();
    let good = Descriptor::put(source.key(), target.key()).unwrap();
    for bad in [stale, nowhere] {
        target.fill(0).unwrap();
        let at = fifo.position();
        assert_eq!(fifo.inject_all(&[bad, good]).unwrap(), 2);
        turn_until("the FIFO is empty", &[&a, &b], || fifo.depth() == 0);
        let mut fault = None;
        turn_until("a fault", &[&a, &b], || {
            fault = fault.take().or_else(|| fifo.next_fault());
            fault.is_some()
        });
        match fault.unwrap() {
            (position, Error::Key { why: KeyFault::Stale, .. } | Error::Invalid { .. }) => assert_eq!(position, at),
            other => panic!("{other:?}"),
        }
        let mut got = vec![0; 100];
        turn_until("the good put", &[&a, &b], || {
            target.read(0, &mut got).unwrap();
            pattern::fault(&got, 1).is_none()
        });
        assert!(fifo.next_fault().is_none());
    }
}

pub fn descriptors_for_a_node_that_is_gone_fail_by_name(world: &World) {
    let [a, b, c] = world.nodes();
    let (source, at_b, at_c) = (a.region::<u8>(8).unwrap(), b.region::<u8>(8).unwrap(), c.region::<u8>(8).unwrap());
    let fifo = InjectionFifo::builder(&a).open().unwrap();
    let [dead, good] = [&at_b, &at_c].map(|region| Descriptor::put(source.key(), region.key()).unwrap());
    let id = b.id();
    b.leave().unwrap();
    drop(at_b);
    assert_eq!(fifo.inject_all(&[dead, good]).unwrap(), 2);
    turn_until("the FIFO is empty", &[&a, &c], || fifo.depth() == 0);
    match fifo.next_fault() {
        Some((
            0,
            Error::PeerLeft { node, .. }
            | Error::PeerDied { node, .. }
            | Error::NoSuchNode { node }
            | Error::Key { node: Some(node), .. },
        )) => assert_eq!(node, id),
        other => panic!("{other:?}"),
    }
    assert!(fifo.next_fault().is_none());
}
