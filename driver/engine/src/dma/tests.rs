use super::*;
use crate::error::{Error, KeyFault};
use crate::{Counter, Key, Node, Priority, Progress, ReadWrite, Region, Space};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

fn nodes<const N: usize>(domain: &str) -> [Node; N] {
    let space = Space::heap();
    std::array::from_fn(|_| Node::builder(domain).space(space.clone()).progress(Progress::Inline).join().unwrap())
}

fn filled(node: &Node, len: usize, seed: u8) -> Region<u8> {
    let region = node.region(len).unwrap();
    region.write(0, &(0..len).map(|at| (at as u8).wrapping_mul(31) ^ seed).collect::<Vec<_>>()).unwrap();
    region
}

fn bytes(region: &Region<u8>) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes).unwrap();
    bytes
}

fn counter(node: &Node, bytes: u64) -> Counter {
    let counter = node.counter().unwrap();
    counter.init(bytes).unwrap();
    counter
}

#[test]
#[cfg_attr(miri, ignore = "too many bytes for Miri")]
fn a_put_lowers_both_counters_and_moves_the_bytes() {
    let [a, b] = nodes("puts");
    for len in [1, 8, 4096, 300_000] {
        let (source, target) = (filled(&a, len, 1), filled(&b, len, 2));
        let (sent, arrived) = (counter(&a, len as u64 + 5), counter(&b, len as u64));
        let fifo = InjectionFifo::builder(&a).name("puts").open().unwrap();
        let put = Descriptor::put(source.key(), target.key()).unwrap();
        assert!(fifo.inject(&put.send_counter(sent.key()).receive_counter(arrived.key())).unwrap());
        assert_eq!((fifo.depth(), sent.value(), bytes(&target)), (1, len as u64 + 5, bytes(&filled(&b, len, 2))));
        fifo.wait_until(soon()).unwrap();
        arrived.wait_until(soon()).unwrap();
        assert_eq!((sent.value(), bytes(&target)), (5, bytes(&source)));
        assert!(fifo.next_fault().is_none());
    }
}

#[test]
fn a_put_into_the_node_itself_moves_the_bytes() {
    let [a] = nodes("itself");
    let (source, target, arrived) = (filled(&a, 100, 1), filled(&a, 100, 2), counter(&a, 100));
    let fifo = InjectionFifo::builder(&a).open().unwrap();
    fifo.inject(&Descriptor::put(source.key(), target.key()).unwrap().receive_counter(arrived.key())).unwrap();
    arrived.wait_until(soon()).unwrap();
    assert_eq!(bytes(&target), bytes(&source));
}

#[test]
#[cfg_attr(miri, ignore = "too many bytes for Miri")]
fn one_node_has_another_put_into_a_third() {
    let [a, b, c] = nodes("three");
    let (at_b, at_c) = (filled(&b, 200_000, 1), filled(&c, 200_000, 2));
    let (sent, arrived) = (counter(&b, 200_000), counter(&c, 200_000));
    let put = Descriptor::put(at_b.read_key(), at_c.key()).unwrap();
    let get = Descriptor::remote_get(b.remote_get_fifo(), put.send_counter(sent.key()).receive_counter(arrived.key())).unwrap();
    let fifo = InjectionFifo::builder(&a).open().unwrap();
    fifo.inject(&get).unwrap();
    fifo.wait_until(soon()).unwrap();
    sent.wait_until(soon()).unwrap();
    arrived.wait_until(soon()).unwrap();
    assert_eq!(bytes(&at_c), bytes(&at_b));
    // A FIFO of the program's own takes them as well, and no thread of that program may inject there.
    let own = InjectionFifo::builder(&b).for_peers().priority(Priority::Low).open().unwrap();
    let at_b = filled(&b, 1000, 3);
    let put = Descriptor::put(at_b.key(), at_c.key()).unwrap();
    assert!(matches!(own.inject(&put), Err(Error::Invalid { .. })));
    arrived.init(1000).unwrap();
    fifo.inject(&Descriptor::remote_get(own.key(), put.receive_counter(arrived.key())).unwrap()).unwrap();
    fifo.wait_until(soon()).unwrap();
    own.wait_until(soon()).unwrap();
    b.stats().unwrap();
    while arrived.value() > 0 {
        b.poll_once();
        arrived.wait_until(Instant::now() + Duration::from_millis(1)).ok();
    }
    assert_eq!(bytes(&at_c)[..1000], bytes(&at_b)[..]);
}

#[test]
#[cfg_attr(miri, ignore = "too many bytes for Miri")]
fn packets_arrive_in_order_and_a_full_fifo_holds_back_its_sender_alone() {
    let [a, b, c] = nodes("packets");
    let packets = ReceptionFifo::builder(&b).number(3).capacity(20_000).open().unwrap();
    assert!(matches!(ReceptionFifo::builder(&b).number(3).open(), Err(Error::Invalid { .. })));
    let (source, arrived) = (filled(&a, 10_000, 1), counter(&b, 100_000));
    let fifo = InjectionFifo::builder(&a).open().unwrap();
    for tag in 0..10 {
        let packet = Descriptor::packet(source.key(), packets.key(), tag).unwrap().receive_counter(arrived.key());
        assert!(fifo.inject(&packet).unwrap());
    }
    // One fits the FIFO. The others stay in the lane, and keep nobody else's packets out.
    for _ in 0..100 {
        a.poll_once();
        b.poll_once();
    }
    assert_eq!((packets.depth(), arrived.value()), (1, 90_000));
    let mut seen = 0_u64;
    let empty = filled(&c, 1, 1);
    let other = InjectionFifo::builder(&c).open().unwrap();
    other.inject(&Descriptor::packet(empty.key().range(..0), packets.key(), 77).unwrap()).unwrap();
    other.wait_until(soon()).unwrap();
    let mut others = 0;
    while seen < 100_000 || others == 0 {
        a.poll_once();
        let got = packets.wait_until(soon(), |envelope, at, payload| (*envelope, at, payload.to_vec())).unwrap();
        let (envelope, at, payload) = got;
        if envelope.source == c.id() {
            assert_eq!((envelope.tag, envelope.len, payload.len()), (77, 0, 0));
            others += 1;
            continue;
        }
        assert_eq!((envelope.source, envelope.tag, at, envelope.len), (a.id(), seen / 10_000, seen % 10_000, 10_000));
        assert_eq!(payload, bytes(&source)[at as usize..][..payload.len()]);
        seen += payload.len() as u64;
    }
    fifo.wait_until(soon()).unwrap();
    assert_eq!((others, arrived.value(), packets.poll(|_, _, _| ()).unwrap()), (1, 0, None));
}

#[test]
fn a_request_to_send_comes_back_as_a_remote_get() {
    let [a, b] = nodes("rts");
    let requests = ReceptionFifo::builder(&b).open().unwrap();
    let (source, target) = (filled(&a, 5000, 1), filled(&b, 6000, 2));
    let (sent, arrived) = (counter(&a, 5000), counter(&b, 5000));
    // The storage location is that of the target; here any place of the source stands for it.
    let put = Descriptor::put(source.key(), source.key()).unwrap().send_counter(sent.key());
    let request = a.region::<u8>(Descriptor::BYTES).unwrap();
    request.write(0, &put.to_bytes()).unwrap();
    let fifo = InjectionFifo::builder(&a).open().unwrap();
    fifo.inject(&Descriptor::packet(request.key(), requests.key(), 9).unwrap()).unwrap();
    fifo.wait_until(soon()).unwrap();
    let put = requests.wait_until(soon(), |_, _, payload| Descriptor::from_bytes(&payload.to_vec())).unwrap().unwrap();
    assert!(matches!(put.into_target(target.key().range(..4999)), Err(Error::Key { why: KeyFault::OutOfRange, .. })));
    let put = put.into_target(target.key().at(1000)).unwrap().receive_counter(arrived.key());
    let back = InjectionFifo::builder(&b).open().unwrap();
    back.inject(&Descriptor::remote_get(a.remote_get_fifo(), put).unwrap()).unwrap();
    back.wait_until(soon()).unwrap();
    sent.wait_until(soon()).unwrap();
    arrived.wait_until(soon()).unwrap();
    assert_eq!(bytes(&target)[1000..], bytes(&source)[..]);
}

#[test]
fn a_descriptor_from_a_message_needs_the_keys_of_its_source_and_counter() {
    let [a, b] = nodes("unchecked");
    let (source, target, sent) = (filled(&a, 100, 1), filled(&b, 100, 2), counter(&a, 100));
    let fifo = InjectionFifo::builder(&a).open().unwrap();
    let good = Descriptor::put(source.key(), target.key()).unwrap().send_counter(sent.key()).to_bytes();
    // The secrets of the source and of the counter.
    for at in [72, 80] {
        let mut forged = good;
        forged[at] ^= 1;
        let forged = Descriptor::from_bytes(&forged).unwrap();
        assert!(matches!(fifo.inject(&forged), Err(Error::Key { why: KeyFault::Forged, .. })), "{at}");
    }
    assert!(fifo.inject(&Descriptor::from_bytes(&good).unwrap()).unwrap());
    fifo.wait_until(soon()).unwrap();
    assert_eq!((bytes(&target), sent.value()), (bytes(&source), 0));
}

#[test]
#[cfg_attr(miri, ignore = "too many bytes for Miri")]
fn a_descriptor_that_waits_holds_up_no_other() {
    let [a, b, c] = nodes("stuck");
    let (source, at_b, at_c) = (filled(&a, 8, 1), filled(&b, 8, 2), filled(&c, 8, 3));
    let packets = ReceptionFifo::builder(&b).number(1).capacity(1).open().unwrap();
    let fifo = InjectionFifo::builder(&a).open().unwrap();
    // As many packets as fill the lane of a node that takes none.
    let packet = Descriptor::packet(source.key(), packets.key(), 1).unwrap();
    let mut sent = 0;
    while fifo.depth() < InjectionFifo::SLOTS - 8 {
        assert!(sent < 10_000, "the lane does not fill");
        sent += usize::from(fifo.inject(&packet).unwrap());
        if sent % 8 == 0 {
            a.poll_once();
        }
    }
    let put = Descriptor::put(source.key(), at_c.key()).unwrap();
    for round in 0..3 * InjectionFifo::SLOTS {
        at_c.fill(0).unwrap();
        while !fifo.inject(&put).unwrap() {
            a.poll_once();
        }
        a.poll_once();
        assert_eq!(bytes(&at_c), bytes(&source), "round {round}");
    }
    assert!(fifo.depth() > 0 && bytes(&at_b) == bytes(&filled(&b, 8, 2)));
    while sent > 0 {
        a.poll_once();
        sent -= usize::from(packets.poll(|_, _, _| ()).unwrap().is_some());
    }
    fifo.wait_until(soon()).unwrap();
    assert!(fifo.next_fault().is_none());
}

#[test]
fn a_bad_descriptor_is_an_error_of_its_own() {
    let [a, b] = nodes("faults");
    let (source, target) = (filled(&a, 100, 1), filled(&b, 100, 2));
    let fifo = InjectionFifo::builder(&a).open().unwrap();
    let with = |change: &dyn Fn(&mut crate::memory::key::Place)| {
        let mut place = target.key().place;
        change(&mut place);
        Descriptor::put(source.key(), Key::<u8, ReadWrite>::new(place)).unwrap()
    };
    let gone = filled(&a, 100, 3);
    let stale = Descriptor::put(gone.key(), target.key()).unwrap();
    drop(gone);
    let bad = [
        (with(&|place| place.secret ^= 1), KeyFault::Forged),
        (with(&|place| place.offset = 1), KeyFault::OutOfRange),
        (with(&|place| place.offset = u64::MAX), KeyFault::OutOfRange),
        (with(&|place| place.number += 1), KeyFault::Stale),
        (with(&|place| place.incarnation.0 += 1), KeyFault::Stale),
        (stale, KeyFault::Stale),
    ];
    let good = Descriptor::put(source.key(), target.key()).unwrap();
    // Twice: from the first good one on, the engine remembers both regions.
    for (descriptor, expected) in bad.into_iter().chain(bad) {
        let at = fifo.position();
        target.fill(0).unwrap();
        assert_eq!(fifo.inject_all(&[descriptor, good]).unwrap(), 2);
        fifo.wait_until(soon()).unwrap();
        match fifo.next_fault() {
            Some((position, Error::Key { why, .. })) => assert_eq!((position, why), (at, expected)),
            other => panic!("{expected:?}: {other:?}"),
        }
        assert!(fifo.next_fault().is_none());
        assert_eq!(bytes(&target), bytes(&source), "{expected:?}");
    }
    let unknown = with(&|place| place.node.0 = 9);
    fifo.inject(&unknown).unwrap();
    fifo.wait_until(soon()).unwrap();
    assert!(matches!(fifo.next_fault(), Some((_, Error::NoSuchNode { .. } | Error::PeerDied { .. }))));
    let (key, of_a) = (target.key(), source.key());
    drop(target);
    fifo.inject(&good).unwrap();
    fifo.wait_until(soon()).unwrap();
    assert!(matches!(fifo.next_fault(), Some((_, Error::Key { why: KeyFault::Stale, .. }))), "withdrawn");
    // The source is another node's.
    assert!(matches!(fifo.inject(&Descriptor::put(key, of_a).unwrap()), Err(Error::Key { .. })));
}

#[test]
fn a_peer_says_what_is_wrong_with_a_remote_get_or_a_packet() {
    let [a, b] = nodes("refusals");
    let (here, there) = (filled(&a, 100, 1), filled(&b, 100, 2));
    let fifo = InjectionFifo::builder(&a).open().unwrap();
    let mut key = there.key();
    key.place.secret ^= 1;
    let forged = Descriptor::remote_get(b.remote_get_fifo(), Descriptor::put(key, here.key()).unwrap()).unwrap();
    let good = Descriptor::put(there.key(), here.key()).unwrap();
    let nowhere = Descriptor::remote_get(FifoKey { number: 77, ..b.remote_get_fifo() }, good).unwrap();
    let packet = Descriptor::packet(here.key(), FifoKey { number: 5, ..b.remote_get_fifo() }, 1).unwrap();
    let mut wrong = here.key();
    wrong.place.secret ^= 1;
    let late = Descriptor::remote_get(b.remote_get_fifo(), Descriptor::put(there.key(), wrong).unwrap()).unwrap();
    for descriptor in [forged, nowhere, packet, late] {
        let at = fifo.position();
        fifo.inject(&descriptor).unwrap();
        fifo.wait_until(soon()).unwrap();
        let fault = loop {
            b.poll_once();
            a.poll_once();
            if let Some(fault) = fifo.next_fault() {
                break fault;
            }
        };
        assert_eq!(fault.0, at, "{fault:?}");
    }
    assert_eq!(bytes(&here), bytes(&filled(&a, 100, 1)));
    assert!(Descriptor::remote_get(a.remote_get_fifo(), good).is_err());
}

#[test]
#[cfg_attr(miri, ignore = "too many bytes for Miri")]
fn a_fifo_takes_so_many_descriptors_and_finishes_them_after_it_was_dropped() {
    let [a, b] = nodes("full");
    let (source, target, arrived) = (filled(&a, 8, 1), filled(&b, 8, 2), counter(&b, 8 * InjectionFifo::SLOTS as u64));
    let put = Descriptor::put(source.key(), target.key()).unwrap().receive_counter(arrived.key());
    let fifo = InjectionFifo::builder(&a).open().unwrap();
    assert_eq!(fifo.inject_all(&[put; 100]).unwrap(), InjectionFifo::SLOTS);
    assert!(!fifo.inject(&put).unwrap());
    drop(fifo);
    while arrived.value() > 0 {
        a.poll_once();
        b.poll_once();
    }
    // Its number is free, and all of them can be open at once.
    let mut open = Vec::new();
    while let Ok(fifo) = InjectionFifo::builder(&a).open() {
        open.push(fifo);
    }
    assert_eq!(open.len(), 28);
    assert!(matches!(InjectionFifo::builder(&a).name("a name that is too long").open(), Err(Error::Invalid { .. })));
}

impl Node {
    /// One turn of the engine.
    fn poll_once(&self) {
        let me = self.shared().check().unwrap();
        self.shared().turn(me);
    }
}

mod overwritten {
    use super::*;
    use doorbell_shm::layout::{BOARD_BYTES, FIFO_BYTES};
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Writes into the injection FIFOs of a node as another process might.
    fn scribble(node: &Node) {
        let board = node.shared().membership().board();
        for at in (BOARD_BYTES..BOARD_BYTES + 32 * FIFO_BYTES).step_by(8) {
            // SAFETY: within the board, and aligned.
            unsafe { &*board.ptr().add(at).cast::<AtomicU64>() }.fetch_xor(0x1111, Ordering::Relaxed);
        }
    }

    #[test]
    fn descriptors_that_another_process_overwrote_are_not_executed() {
        let [a, b] = nodes("overwritten");
        let (source, target, sent) = (filled(&a, 100, 1), filled(&b, 100, 2), counter(&a, 100));
        let fifo = InjectionFifo::builder(&a).open().unwrap();
        let put = Descriptor::put(source.key(), target.key()).unwrap().send_counter(sent.key());
        fifo.inject_all(&[put, put]).unwrap();
        scribble(&a);
        fifo.wait_until(soon()).unwrap();
        assert_eq!((sent.value(), bytes(&target)), (100, bytes(&filled(&b, 100, 2))));
        assert!(matches!(fifo.next_fault(), Some((0, Error::Invalid { .. }))));
        assert!(matches!(fifo.next_fault(), Some((1, Error::Invalid { .. }))));
        fifo.inject(&put).unwrap();
        sent.wait_until(soon()).unwrap();
        assert_eq!(bytes(&target), bytes(&source));
    }

    #[test]
    fn the_put_of_a_remote_get_is_nothing_without_its_head() {
        let [a, b] = nodes("headless");
        // The two regions have one number.
        let (own, there) = (filled(&a, 100, 1), filled(&b, 100, 2));
        let (target, sent) = (filled(&b, 100, 3), counter(&b, 100));
        assert_eq!(own.key().number(), there.key().number());
        let fifo = InjectionFifo::builder(&a).open().unwrap();
        let put = Descriptor::put(there.key(), target.key()).unwrap().send_counter(sent.key());
        fifo.inject(&Descriptor::remote_get(b.remote_get_fifo(), put).unwrap()).unwrap();
        let at = BOARD_BYTES + usize::from(fifo.key().number) * FIFO_BYTES + 128 + 8;
        // SAFETY: the second word of the first slot.
        unsafe { &*a.shared().membership().board().ptr().add(at).cast::<AtomicU64>() }.fetch_xor(1 << 40, Ordering::Relaxed);
        fifo.wait_until(soon()).unwrap();
        for position in 0..2 {
            assert!(matches!(fifo.next_fault(), Some((at, Error::Invalid { .. })) if at == position));
        }
        for _ in 0..10 {
            a.poll_once();
            b.poll_once();
        }
        assert_eq!((bytes(&target), sent.value()), (bytes(&filled(&b, 100, 3)), 100));
    }
}

#[test]
fn with_a_poller_it_copies_what_threads_put_and_get() {
    let space = Space::heap();
    let a = Node::builder("handed").space(space.clone()).progress(Progress::Poller).join().unwrap();
    let b = Node::builder("handed").space(space).progress(Progress::Inline).join().unwrap();
    let region = b.region::<u64>(1000).unwrap();
    let peer = a.peer(b.id()).unwrap();
    let numbers: Vec<u64> = (0..1000).collect();
    peer.put(&numbers, region.key()).unwrap();
    a.put(&[7], region.key().at(3)).unwrap();
    let (mut all, mut one) = (vec![0; 1000], [0]);
    peer.get(region.read_key(), &mut all).unwrap();
    a.get(region.key().at(3), &mut one).unwrap();
    assert_eq!((&all[..3], one, &all[4..]), (&numbers[..3], [7], &numbers[4..]));
    // Keys are checked before, by the calling thread.
    assert!(matches!(peer.put(&numbers, region.key().at(1)), Err(Error::Key { why: KeyFault::OutOfRange, .. })));
    a.leave().unwrap();
    assert!(matches!(peer.put(&numbers, region.key()), Err(Error::Closed)));
}

#[test]
#[cfg_attr(miri, ignore = "too many bytes for Miri")]
fn messages_and_remote_gets_have_their_fifos() {
    let [a, b] = nodes("their-fifos");
    let fifo = InjectionFifo::builder(&b).open().unwrap();
    let (at_a, at_b) = (filled(&a, 1000, 1), filled(&b, 1000, 2));
    let peer = a.peer(b.id()).unwrap();
    // More direct puts than the FIFO has slots, each of a message that is moved from both ends.
    for round in 0..150_u8 {
        let message = vec![round; 100_000];
        let receiving = b.start_recv(crate::Match::any(), vec![0; 100_000]).unwrap();
        let sending = peer.start_send_as(1, message, "shm/put".parse().unwrap()).unwrap();
        while !(sending.test() & receiving.test()) {}
        sending.wait().result.unwrap();
        assert!(receiving.wait().buffer.unwrap().iter().all(|byte| *byte == round));
        if round % 50 == 49 {
            at_b.fill(0).unwrap();
            let put = Descriptor::put(at_a.read_key(), at_b.key()).unwrap();
            fifo.inject(&Descriptor::remote_get(a.remote_get_fifo(), put).unwrap()).unwrap();
            while bytes(&at_b) != bytes(&at_a) {
                a.poll_once();
                b.poll_once();
            }
        }
    }
    let fifos = a.shared().monitor().home().board().fifos();
    // The memory FIFO may have moved some messages before the remote get came.
    assert!(fifos.iter().all(|fifo| fifo.faults == 0 && fifo.pending.is_empty()));
    assert_eq!((fifos[0].injected, fifos[2].injected), (3, 150));
    assert!((100..=150).contains(&fifos[1].injected) && fifos[1].bytes > 0, "{}", fifos[1].injected);
}
