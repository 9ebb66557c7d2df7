//! Large messages that do not end as they began: taken back, forgotten, or left by one of their ends.

use super::transfers::{LONGEST, MIB, pushed, pushed_or_ended, report, reports_agree, sent_bytes, waited};
use doorbell::transfer::Side;
use doorbell::{CopySide, Error, Event, Match, Node, Priority, TransferReport};
use doorbell_tests::in_place::read_by;
use doorbell_tests::patience::{briefly, eventually, running, soon, take_back, until};
use doorbell_tests::pattern;
use doorbell_tests::random::Random;
use doorbell_tests::turning::turning;
use doorbell_tests::world::{Ground, World};

/// Checks that this message arrives next.
#[track_caller]
fn next_is(from: &Node, to: &Node, tag: u64) {
    let (sender, target) = (from.clone(), to.id());
    let sending = running("a send", move || sender.send_until(target, tag, &pattern::bytes(70_000, tag), soon()).unwrap());
    let mut buf = vec![0; 70_000];
    let envelope = to.recv_until(Match::from(from.id()), &mut buf, soon()).unwrap();
    assert_eq!((envelope.tag, envelope.len), (tag, 70_000), "something else arrived");
    pattern::check(&buf, tag);
    sending.join();
    assert_eq!(to.try_recv(Match::any(), &mut buf).unwrap(), None);
    while let Some(event) = to.try_event().unwrap() {
        assert!(!matches!(event, Event::Damaged { .. }), "{event}");
    }
}

/// Only the sender could continue the large message, and it does something else. Receives get the messages of others.
pub fn a_large_message_that_does_not_come_holds_up_nobody_else(world: &World) {
    let [a, c] = [0, 2].map(|id| world.builder(id).join().unwrap());
    let b = world.builder(1).copy(CopySide::Origin).join().unwrap();
    let send = c.start_send(b.id(), 1, pattern::bytes(LONGEST, 1)).unwrap();
    until("the long message is announced", || {
        c.progress().unwrap();
        b.probe(Match::any().tag(1)).unwrap()
    });
    a.send_until(b.id(), 2, &pattern::bytes(100, 2), soon()).unwrap();
    let mut buf = vec![0; LONGEST];
    let mut tags = Vec::new();
    while !tags.contains(&2) {
        let envelope = until("a message", || b.recv_until(Match::any(), &mut buf, briefly()).ok());
        pattern::check(&buf[..envelope.len], envelope.tag);
        tags.push(envelope.tag);
    }
    if tags == [2] {
        let sending = running("a send", move || waited(send).result.unwrap());
        assert_eq!(b.recv_until(Match::any(), &mut buf, soon()).unwrap().tag, 1);
        sending.join();
        pattern::check(&buf, 1);
    }
}

pub fn a_large_send_is_taken_back_in_the_middle(world: &World) {
    // The target takes no long message that it did not ask for, so the send can't end.
    let [a, b] = world.nodes_with_pool(64 << 10);
    for (round, drops) in [false, true, false].into_iter().enumerate() {
        let before = sent_bytes(&a);
        let send = a.start_send(b.id(), 1, pattern::bytes(LONGEST, 3)).unwrap();
        pushed(&a, before, 1);
        if drops {
            drop(send);
        } else {
            let buffer = take_back(send).unwrap_or_else(|completion| panic!("it had ended: {:?}", completion.result));
            pattern::check(&buffer, 3);
        }
        next_is(&a, &b, 10 + round as u64);
    }
    let given_up = until("three reports", || {
        // Over a network the target's answer may come a moment later, and an inline target answers only in a call.
        b.progress().unwrap();
        let given_up: Vec<_> = a.transfers().unwrap().into_iter().filter(|report| report.tag == 1).collect();
        (given_up.len() >= 3).then_some(given_up)
    });
    assert_eq!(given_up.len(), 3, "{given_up:?}");
    assert!(given_up.iter().all(|report| report.zeroes == 0 && report.fifo.bytes > 0), "{given_up:?}");
    // A receive that was waiting for it takes the next one.
    let receive = b.start_recv(Match::from(a.id()), vec![0; LONGEST]).unwrap();
    let send = a.start_send(b.id(), 1, pattern::bytes(LONGEST, 3)).unwrap();
    let delivered = match take_back(send) {
        Ok(buffer) => {
            pattern::check(&buffer, 3);
            false
        }
        Err(_) => true,
    };
    let sending = (!delivered).then(|| {
        let (sender, to) = (a.clone(), b.id());
        running("a send", move || sender.send_until(to, 2, &pattern::bytes(100_000, 2), soon()).unwrap())
    });
    let completion = waited(receive);
    sending.into_iter().for_each(|sending| sending.join());
    let envelope = completion.result.unwrap();
    assert_eq!(envelope.tag, if delivered { 1 } else { 2 });
    pattern::check(&completion.buffer.unwrap()[..envelope.len], if delivered { 3 } else { 2 });
}

/// Bytes that are unmapped when they are dropped, so that a later access is a fault.
struct Pages(*mut u8, usize);

// SAFETY: a mapping of its own.
unsafe impl Send for Pages {}

impl Pages {
    fn new(len: usize, seed: u64) -> Self {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let ptr = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        assert_ne!(ptr, libc::MAP_FAILED);
        let mut pages = Self(ptr.cast(), len);
        pattern::fill(pages.as_mut(), seed);
        pages
    }
}

impl AsRef<[u8]> for Pages {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: mapped as long as this lives.
        unsafe { std::slice::from_raw_parts(self.0, self.1) }
    }
}

impl AsMut<[u8]> for Pages {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped as long as this lives.
        unsafe { std::slice::from_raw_parts_mut(self.0, self.1) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

pub fn memory_of_a_send_that_was_taken_back_is_not_read(world: &World) {
    let [a, b] = world.nodes();
    let (receiver, from) = (b.clone(), a.id());
    // Copies whatever comes, until the last one.
    let receiving = running("receives", move || {
        let mut buf = vec![0; LONGEST];
        loop {
            let envelope = receiver.recv_until(Match::from(from), &mut buf, soon()).unwrap();
            pattern::check(&buf[..envelope.len], 9);
            if envelope.tag == 2 {
                return;
            }
        }
    });
    let mut random = Random::new(3);
    let mut taken_back = 0;
    for _ in 0..60 {
        let send = a.start_send(b.id(), 1, Pages::new(MIB / 2, 9)).unwrap();
        for _ in 0..random.below(12) {
            std::thread::yield_now();
            a.progress().unwrap();
        }
        taken_back += usize::from(take_back(send).map(drop).is_ok());
    }
    a.send_until(b.id(), 2, &pattern::bytes(100_000, 9), soon()).unwrap();
    receiving.join();
    println!("{taken_back} of 60 were taken back");
    while let Some(event) = b.try_event().unwrap() {
        assert!(!matches!(event, Event::Damaged { .. }), "{event}");
    }
}

pub fn a_slot_that_is_used_again_does_not_harm_its_new_message(world: &World) {
    let [a, b] = world.nodes();
    let urgent = a.peer_with_priority(b.id(), Priority::High).unwrap();
    for round in 0..5 {
        // Its RTS may still be in its lane when that of the next one, which overtakes it, is seen.
        let late = a.start_send(b.id(), 1, pattern::bytes(MIB, 1)).unwrap();
        let taken_back = take_back(late).is_ok();
        let send = urgent.start_send(2, pattern::bytes(MIB, round)).unwrap();
        let mut receive = Some(b.start_recv(Match::any().tag(2), vec![0; MIB]).unwrap());
        eventually("the urgent message arrives", || {
            send.test();
            receive.as_ref().unwrap().test()
        });
        pattern::check(&waited(receive.take().unwrap()).buffer.unwrap(), round);
        waited(send).result.unwrap();
        let mut buf = vec![0; MIB];
        if !taken_back {
            assert_eq!(b.recv_until(Match::any(), &mut buf, soon()).unwrap().tag, 1);
        }
        assert_eq!(b.try_recv(Match::any(), &mut buf).unwrap(), None);
    }
}

pub fn a_refused_message_that_was_given_up_harms_no_other(world: &World) {
    // The pool takes no long message, so that what announces it stays in its lane.
    let [a, b] = world.nodes_with_pool(64 << 10);
    let urgent = a.peer_with_priority(b.id(), Priority::High).unwrap();
    for round in 0..12 {
        let late = a.start_send(b.id(), 1, pattern::bytes(MIB, 1)).unwrap();
        for _ in 0..20 * (round % 4) {
            a.progress().unwrap();
            b.progress().unwrap();
        }
        let taken_back = take_back(late).is_ok();
        for _ in 0..round % 3 {
            b.progress().unwrap();
        }
        let sends = [
            urgent.start_send(2, pattern::bytes(MIB, round)).unwrap(),
            a.start_send(b.id(), 1, pattern::bytes(100, round)).unwrap(),
        ];
        let receives = [2, 1].map(|tag| b.start_recv(Match::any().tag(tag), vec![0; MIB]).unwrap());
        eventually("both arrive", || {
            sends.iter().for_each(|send| _ = send.test());
            receives.iter().all(doorbell::Operation::test)
        });
        let [long, other] = receives.map(waited);
        pattern::check(&long.buffer.unwrap(), round);
        let envelope = other.result.unwrap();
        if taken_back {
            assert_eq!(envelope.len, 100);
            pattern::check(&other.buffer.unwrap()[..100], round);
        } else {
            assert_eq!(envelope.len, MIB, "round {round}");
            assert_eq!(b.recv_until(Match::any().tag(1), &mut [0; 100], soon()).unwrap().len, 100);
        }
        for send in sends {
            waited(send).result.unwrap();
        }
        assert_eq!(b.try_recv(Match::any(), &mut vec![0; MIB]).unwrap(), None);
    }
}

/// Other threads look at a message while its sender takes it back.
pub fn a_large_send_is_taken_back_beside_other_threads(world: &World) {
    // The target takes no long message that it did not ask for, so none of the sends can end as sent.
    let [a, b] = world.nodes_with_pool(64 << 10);
    next_is(&a, &b, 0);
    let threads = [&a, &a, &b].map(turning);
    let mut bytes = pattern::bytes(LONGEST, 1);
    for tag in 1..=30 {
        let send = a.start_send(b.id(), tag, bytes).unwrap();
        bytes = take_back(send).unwrap_or_else(|completion| {
            panic!("message {tag} was never delivered, and its send ended with {:?}", completion.result);
        });
        b.progress().unwrap();
    }
    drop(threads);
    next_is(&a, &b, 0);
}

pub fn a_large_receive_that_is_taken_back_loses_nothing(world: &World) {
    let a = world.builder(0).copy(CopySide::Origin).join().unwrap();
    let b = world.node(1);
    for round in 0..4 {
        let seed = 20 + round;
        let before = sent_bytes(&a);
        let send = a.start_send(b.id(), round, pattern::bytes(LONGEST, seed)).unwrap();
        let mut buf = vec![0; LONGEST];
        let mut got = None;
        if round == 0 {
            // A deadline that passes in mid-transfer: the origin of an inline world does not move meanwhile.
            pushed(&a, before, 1);
            match b.recv_until(Match::any(), &mut buf, briefly()) {
                Ok(envelope) => got = Some(envelope),
                Err(error) => assert!(matches!(error, Error::Timeout { .. }), "{error:?}"),
            }
        } else {
            let receive = b.start_recv(Match::any(), vec![0; LONGEST]).unwrap();
            pushed(&a, before, 1);
            b.progress().unwrap();
            if round == 1 {
                match take_back(receive) {
                    Ok(buffer) => buffer.unwrap().fill(0xee),
                    Err(completion) => {
                        got = Some(completion.result.unwrap());
                        buf = completion.buffer.unwrap();
                    }
                }
            } else if round == 2 {
                if receive.test() {
                    let completion = waited(receive);
                    got = Some(completion.result.unwrap());
                    buf = completion.buffer.unwrap();
                } else {
                    drop(receive);
                    // A poller may have delivered it before that: then it is gone with the buffer.
                    got = until("the message, or its end", || match b.try_recv(Match::any(), &mut buf).unwrap() {
                        None if (0..100).any(|_| send.test()) => {
                            eventually("it is over at its target, too", || {
                                b.progress().unwrap();
                                let is_its = |report: &TransferReport| (report.side, report.tag) == (Side::Target, round);
                                b.transfers().unwrap().iter().any(is_its)
                            });
                            Some(b.try_recv(Match::any(), &mut buf).unwrap())
                        }
                        None => None,
                        some => Some(some),
                    });
                    if got.is_none() {
                        continue;
                    }
                }
            } else {
                // A forgotten receive keeps its memory, and the message.
                std::mem::forget(receive);
                eventually("the send ends", || {
                    b.progress().unwrap();
                    send.test()
                });
                next_is(&a, &b, 30);
                continue;
            }
        }
        // The next receive gets it whole.
        let sending = running("a send", move || waited(send).result.map(drop).unwrap());
        let envelope = match got {
            Some(envelope) => envelope,
            None => b.recv_until(Match::any(), &mut buf, soon()).unwrap(),
        };
        sending.join();
        assert_eq!((envelope.tag, envelope.len), (round, LONGEST));
        pattern::check(&buf, seed);
        reports_agree(&a, &b, round, LONGEST);
    }
    // Forgotten requests keep their nodes.
    a.leave().unwrap();
    b.leave().unwrap();
}

pub fn large_requests_end_within_a_reader(world: &World) {
    let a = world.builder(0).copy(CopySide::Origin).join().unwrap();
    let b = world.node(1);
    // A receive, in the middle of its message: what had arrived is gone with its buffer, and nothing is written there.
    let receive = b.start_recv(Match::any().tag(1), Pages::new(LONGEST, 0)).unwrap();
    let send = a.start_send(b.id(), 1, pattern::bytes(LONGEST, 5)).unwrap();
    pushed(&a, 0, 1);
    let urgent = a.peer_with_priority(b.id(), Priority::High).unwrap();
    urgent.send_until(2, b"now", soon()).unwrap();
    read_by(&b, Match::any().tag(2), soon(), |_, _| drop(receive)).unwrap();
    eventually("the send ends", || {
        b.progress().unwrap();
        send.test()
    });
    drop(waited(send));
    let mut buf = vec![0; LONGEST];
    while let Some(envelope) = b.try_recv(Match::any(), &mut buf).unwrap() {
        assert_eq!(envelope.tag, 1);
        pattern::check(&buf, 5);
    }
    next_is(&a, &b, 3);
    // A send, in the middle of its message: not delivered, or it had ended.
    let send = a.start_send(b.id(), 4, Pages::new(LONGEST, 6)).unwrap();
    b.send_until(a.id(), 5, b"now", soon()).unwrap();
    let completion = read_by(&a, Match::any().tag(5), soon(), |_, _| take_back(send)).unwrap();
    let sent = completion.err().is_some_and(|completion| match completion.result {
        Ok(_) => true,
        Err(error) => {
            assert!(matches!(error, Error::Cancelled), "{error:?}");
            false
        }
    });
    if sent {
        let envelope = b.recv_until(Match::any(), &mut buf, soon()).unwrap();
        assert_eq!(envelope.tag, 4);
        pattern::check(&buf, 6);
    }
    next_is(&a, &b, 6);
}

pub fn a_forgotten_large_send_is_sound(world: &World) {
    let [a, b] = world.nodes();
    std::mem::forget(a.start_send(b.id(), 1, pattern::bytes(LONGEST, 8)).unwrap());
    let (receiver, driver) = (b.clone(), a.clone());
    let receiving = running("a receive", move || {
        let mut buf = vec![0; LONGEST];
        receiver.recv_until(Match::any(), &mut buf, soon()).unwrap();
        buf
    });
    report(&driver, Side::Origin, 1);
    pattern::check(&receiving.join(), 8);
    reports_agree(&a, &b, 1, LONGEST);
    drop(driver);
    a.leave().unwrap();
    b.leave().unwrap();
}

/// Waits until a node knows the present incarnation of another.
#[track_caller]
fn meets(node: &Node, other: &Node) {
    until("the news", || {
        node.progress().unwrap();
        node.peer(other.id()).ok().filter(|peer| peer.incarnation() == other.incarnation()).map(drop)
    });
}

/// The node at one side goes in mid-transfer, and a new incarnation follows.
fn one_end_goes(world: &World, side: Side, how: fn(Node), died: bool) {
    let [a, b] = world.nodes();
    for round in 0..3 {
        let goes = world.node(2);
        [&a, &b].into_iter().for_each(|node| meets(node, &goes));
        let (stays, sink) = if round == 1 { (&b, Match::any()) } else { (&a, Match::from(goes.id())) };
        let (incarnation, id) = (goes.incarnation(), goes.id());
        let gone = |error: &Error| match error {
            Error::PeerDied { node, incarnation: gone } => died && (*node, *gone) == (id, incarnation),
            Error::PeerLeft { node, incarnation: gone } => !died && (*node, *gone) == (id, incarnation),
            _ => false,
        };
        if side == Side::Origin {
            let receive = stays.start_recv(sink.tag(1), vec![0; LONGEST]).unwrap();
            let send = goes.start_send(stays.id(), 1, pattern::bytes(LONGEST, 1)).unwrap();
            pushed_or_ended(&goes, 0, &send);
            stays.progress().unwrap();
            how(goes);
            if round == 1 {
                // It is bound to nobody: a message of somebody else ends it, unless a poller was faster than the end.
                let (sender, to) = (a.clone(), stays.id());
                let sending = running("a send", move || sender.send_until(to, 1, &pattern::bytes(LONGEST, 2), soon()).unwrap());
                let completion = waited(receive);
                let envelope = completion.result.unwrap();
                pattern::check(&completion.buffer.unwrap(), if envelope.source == a.id() { 2 } else { 1 });
                if envelope.source != a.id() {
                    stays.recv_until(Match::from(a.id()), &mut vec![0; LONGEST], soon()).unwrap();
                }
                sending.join();
            } else {
                let completion = waited(receive);
                match completion.result {
                    Ok(_) => pattern::check(&completion.buffer.unwrap(), 1),
                    Err(error) => assert!(gone(&error), "{error:?}"),
                }
            }
            drop(send);
        } else {
            let receive = goes.start_recv(Match::any(), vec![0; LONGEST]).unwrap();
            let send = stays.start_send(goes.id(), 1, pattern::bytes(LONGEST, 1)).unwrap();
            goes.progress().unwrap();
            how(goes);
            let completion = waited(send);
            if let Err(error) = completion.result {
                assert!(gone(&error), "{error:?}");
            }
            pattern::check(&completion.buffer, 1);
            drop(receive);
        }
        // A new life under the same id, in both directions.
        let heir = world.node(2);
        assert_ne!(heir.incarnation(), incarnation);
        [&a, &b].into_iter().for_each(|node| meets(node, &heir));
        for (from, to) in [(&heir, stays), (stays, &heir)] {
            let (sender, target) = (from.clone(), to.id());
            let sending = running("a send", move || sender.send_until(target, 9, &pattern::bytes(LONGEST, 4), soon()).unwrap());
            let mut buf = vec![0; LONGEST];
            let envelope = to.recv_until(Match::from(from.id()).tag(9), &mut buf, soon()).unwrap();
            assert_eq!((envelope.len, envelope.incarnation), (LONGEST, from.incarnation()));
            pattern::check(&buf, 4);
            sending.join();
        }
        while let Some(event) = stays.try_event().unwrap() {
            assert!(!matches!(event, Event::Damaged { .. }), "{event}");
        }
        heir.leave().unwrap();
    }
}

pub fn the_origin_of_a_large_message_leaves(world: &World) {
    one_end_goes(world, Side::Origin, |node| node.leave().unwrap(), false);
}

pub fn the_target_of_a_large_message_leaves(world: &World) {
    one_end_goes(world, Side::Target, |node| node.leave().unwrap(), false);
}

pub fn the_origin_of_a_large_message_dies(world: &World) {
    if world.ground != Ground::Posix {
        one_end_goes(world, Side::Origin, Node::abandon, true);
    }
}

pub fn the_target_of_a_large_message_dies(world: &World) {
    if world.ground != Ground::Posix {
        one_end_goes(world, Side::Target, Node::abandon, true);
    }
}
