//! Several messages by one call: their bytes, their order, their number.

use doorbell::{Error, Match};
use doorbell_tests::patience::{briefly, eventually, finishes, running, soon};
use doorbell_tests::pattern;
use doorbell_tests::world::World;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// In their cell, in the data ring, in several packets, and by both ends.
const LENGTHS: [usize; 6] = [8, 64, 0, 3000, 40_000, 150_000];

/// `count` messages, numbered by their tags.
fn messages(count: u64, len: impl Fn(u64) -> usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| pattern::bytes(len(number), number)).collect()
}

fn numbered(messages: &[Vec<u8>]) -> Vec<(u64, &[u8])> {
    messages.iter().enumerate().map(|(number, bytes)| (number as u64, &bytes[..])).collect()
}

pub fn a_series_arrives_whole_and_in_order(world: &World) {
    const COUNT: u64 = 240;
    let [a, b] = world.nodes();
    let (node, to) = (a.clone(), b.id());
    let sending = running("a series", move || {
        let all = messages(COUNT, |number| LENGTHS[number as usize / 5 % LENGTHS.len()]);
        let peer = node.peer(to).unwrap();
        numbered(&all).chunks(7).for_each(|some| peer.send_many(some).unwrap());
    });
    let mut next = 0;
    while next < COUNT {
        let (limit, before) = (1 + next as usize % 9, next);
        let taken = b.recv_many_until(Match::from(a.id()), limit, soon(), |envelope, payload| {
            let len = LENGTHS[next as usize / 5 % LENGTHS.len()];
            assert_eq!((envelope.tag, envelope.sequence), (next, next as u32), "a message overtook another");
            assert_eq!((envelope.len, payload.len()), (len, len));
            pattern::check(&payload.to_vec(), next);
            next += 1;
        });
        assert_eq!(taken.unwrap() as u64, next - before);
        assert!((1..=limit as u64).contains(&(next - before)), "{limit} at most, {} taken", next - before);
    }
    sending.join();
    assert_eq!(b.try_recv_many(Match::any(), 10, |envelope, _| panic!("{envelope:?}")).unwrap(), 0);
    let stats = b.stats().unwrap();
    assert_eq!(stats.messages_in, COUNT);
}

pub fn a_conversation_reads_one_message_at_a_time(world: &World) {
    const TURNS: u64 = 200;
    let [a, b] = world.nodes();
    let (node, from) = (b.clone(), a.id());
    // Both sides wait for nearly every message. Some carry a time stamp.
    let take = |node: &doorbell::Node, from, number: u64| {
        let mut seen = 0;
        let taken = node.recv_many_until(Match::from(from), 1, soon(), |envelope, payload| {
            assert_eq!((envelope.tag, envelope.len), (number, LENGTHS[number as usize % 4]));
            pattern::check(&payload.to_vec(), number);
            seen += 1;
        });
        assert_eq!((taken.unwrap(), seen), (1, 1));
    };
    let answers = running("the other side", move || {
        let back = node.peer(from).unwrap();
        for number in 0..TURNS {
            take(&node, from, number);
            back.send(number, &pattern::bytes(LENGTHS[number as usize % 4], number)).unwrap();
        }
    });
    let peer = a.peer(b.id()).unwrap();
    for number in 0..TURNS {
        peer.send(number, &pattern::bytes(LENGTHS[number as usize % 4], number)).unwrap();
        take(&a, b.id(), number);
    }
    answers.join();
    assert_eq!([&a, &b].map(|node| node.stats().unwrap().messages_in), [TURNS; 2]);
}

pub fn a_series_is_received_in_any_way(world: &World) {
    const COUNT: u64 = 400;
    let [a, b] = world.nodes();
    let (node, to) = (a.clone(), b.id());
    // Runs of one tag and one length, and others.
    let len = |number: u64| [8, 64, 24 + number as usize % 50][number as usize / 40 % 3];
    let sending = running("a series", move || {
        let all = messages(COUNT, len);
        let tagged: Vec<(u64, &[u8])> = all.iter().zip(0..).map(|(bytes, number)| (number / 20, &bytes[..])).collect();
        let peer = node.peer(to).unwrap();
        tagged.chunks(50).for_each(|some| peer.send_many(some).unwrap());
    });
    let mut next = 0;
    let mut check = |envelope: &doorbell::Envelope, bytes: &[u8]| {
        assert_eq!((envelope.tag, envelope.sequence, bytes.len()), (next / 20, next as u32, len(next)));
        pattern::check(bytes, next);
        next += 1;
        next
    };
    let (from, mut buf, mut last) = (Match::from(a.id()), [0; 100], 0);
    while last < COUNT {
        match last % 11 {
            0 | 1 => b
                .recv_many_until(from, 3, soon(), |envelope, payload| last = check(envelope, &payload.to_vec()))
                .map(drop)
                .unwrap(),
            2 => b.recv_with_until(from, soon(), |envelope, payload| last = check(envelope, &payload.to_vec())).unwrap(),
            3 => {
                let received = b.start_recv(from, vec![0; 100]).unwrap().wait();
                let envelope = received.result.unwrap();
                last = check(&envelope, &received.buffer.unwrap()[..envelope.len]);
            }
            4 => {
                let Err(Error::Truncated { message, .. }) = b.recv_until(from, &mut [0; 3], soon()) else { panic!("it fits") };
                last = check(&message.envelope, &message.bytes);
            }
            _ => {
                let envelope = b.recv_until(from, &mut buf, soon()).unwrap();
                last = check(&envelope, &buf[..envelope.len]);
            }
        }
    }
    sending.join();
    assert_eq!(b.stats().unwrap().messages_in, COUNT);
}

pub fn a_series_of_one_tag_leaves_the_others(world: &World) {
    let [a, b] = world.nodes();
    let all: Vec<[u8; 2]> = (0..60).map(|number| [number % 3, number]).collect();
    let tagged: Vec<(u64, &[u8])> = all.iter().map(|bytes| (u64::from(bytes[0]), &bytes[..])).collect();
    a.peer(b.id()).unwrap().send_many(&tagged).unwrap();
    for tag in [1, 0, 2] {
        let mut numbers = Vec::new();
        while numbers.len() < 20 {
            let mut some = |_: &doorbell::Envelope, payload: doorbell::Payload<'_>| numbers.push(payload.to_vec()[1]);
            b.recv_many_until(Match::any().tag(tag), 8, soon(), &mut some).unwrap();
        }
        let expected: Vec<u8> = (0..60).filter(|number| u64::from(number % 3) == tag).collect();
        assert_eq!(numbers, expected, "tag {tag}");
    }
    let none = b.recv_many_until(Match::any(), 8, briefly(), |envelope, _| panic!("{envelope:?}"));
    assert!(matches!(none, Err(Error::Timeout { operation: "recv_many", node: None })), "{none:?}");
    assert_eq!(b.recv_many(Match::any(), 0, |envelope, _| panic!("{envelope:?}")).unwrap(), 0);
}

pub fn a_series_without_room_says_how_far_it_came(world: &World) {
    const COUNT: u64 = 3000;
    let [a, b] = world.nodes();
    assert_eq!(a.peer(b.id()).unwrap().send_many_until(&[(0, b"first"), (1, b"second")], soon()).unwrap(), 2);
    let mut first = 0;
    while first < 2 {
        first += b.peer(a.id()).unwrap().recv_many_until(Match::any(), 9, soon(), |_, _| ()).unwrap();
    }
    let all = messages(COUNT, |number| [8, 1000][number as usize % 2]);
    let (numbered, peer) = (numbered(&all), a.peer(b.id()).unwrap());
    let (mut sent, mut next) = (0, 0);
    eventually("all messages", || {
        sent += peer.try_send_many(&numbered[sent..]).unwrap();
        let mut most = 0;
        let taken = b.try_recv_many(Match::any(), 100, |envelope, payload| {
            assert_eq!((envelope.tag, payload.to_vec() == all[next as usize]), (next, true));
            (next, most) = (next + 1, most + 1);
        });
        assert_eq!((taken.unwrap(), most <= 100), (most, true));
        // Some worlds send only in a turn.
        a.progress().unwrap();
        next == COUNT
    });
    assert_eq!(sent as u64, COUNT);
}

pub fn chunks_arrive_as_messages_of_their_own(world: &World) {
    let [a, b] = world.nodes();
    let peer = a.peer(b.id()).unwrap();
    // Each call gets a length whose bundle is one copy, one whose bundle is written message by message, and one without bundles.
    for (number, (len, count)) in
        [(8, 100), (64, 100), (1016, 40), (1, 100), (13, 100), (900, 40), (3000, 20), (150_000, 3), (5000, 20)]
            .into_iter()
            .enumerate()
    {
        // The last one is shorter, unless its length is 1.
        let bytes = pattern::bytes(len * count + len / 2, len as u64);
        let sent = number % 3;
        let (node, to, all) = (a.clone(), b.id(), bytes.clone());
        let sending = running("chunks", move || {
            let peer = node.peer(to).unwrap();
            match sent {
                0 => peer.send_chunks(len as u64, len, &all).unwrap(),
                1 => assert_eq!(peer.send_chunks_until(len as u64, len, &all, soon()).unwrap(), all.chunks(len).len()),
                _ => {
                    let mut rest = &all[..];
                    while !rest.is_empty() {
                        let sent = peer.try_send_chunks(len as u64, len, rest).unwrap();
                        rest = &rest[(sent * len).min(rest.len())..];
                        // Some worlds send only in a turn.
                        node.progress().unwrap();
                    }
                }
            }
        });
        let mut expected = bytes.chunks(len);
        while expected.len() > 0 {
            let read = |envelope: &doorbell::Envelope, payload: doorbell::Payload<'_>| {
                assert_eq!((envelope.tag, envelope.len), (len as u64, payload.len()));
                assert!(expected.next().unwrap() == payload.to_vec(), "{len}");
            };
            b.recv_many_until(Match::from(a.id()), 50, soon(), read).unwrap();
        }
        sending.join();
    }
    // No bytes are no message, and no length is no answer.
    peer.send_chunks(1, 8, &[]).unwrap();
    let none = [
        peer.send_chunks(1, 0, b"bytes").map(|()| 0),
        peer.send_chunks_until(1, 0, &[], soon()),
        peer.try_send_chunks(1, 0, &[]),
    ];
    assert!(none.iter().all(|none| matches!(none, Err(Error::Invalid { .. }))), "{none:?}");
    assert_eq!(b.try_recv_many(Match::any(), 1, |envelope, _| panic!("{envelope:?}")).unwrap(), 0);
}

pub fn a_series_whose_reader_panics_goes_on(world: &World) {
    let [a, b] = world.nodes();
    let all = messages(20, |_| 8);
    let peer = a.peer(b.id()).unwrap();
    peer.send_many(&numbered(&all)).unwrap();
    let mut seen = Vec::new();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        while seen.len() < 20 {
            let read = |envelope: &doorbell::Envelope, _: doorbell::Payload<'_>| {
                if envelope.tag == 5 {
                    std::panic::resume_unwind(Box::new("on purpose"));
                }
                seen.push(envelope.tag);
            };
            b.recv_many_until(Match::any(), 20, soon(), read).unwrap();
        }
    }));
    assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"on purpose"));
    let mut rest = Vec::new();
    while rest.last() != Some(&19) {
        b.recv_many_until(Match::any(), 20, soon(), |envelope, _| rest.push(envelope.tag)).unwrap();
    }
    // A message that was read from private memory is lost with the panic. One that was read in its lane comes again.
    rest.retain(|tag| *tag != 5);
    assert_eq!((seen, rest), ((0..5).collect(), (6..20).collect::<Vec<_>>()));
}

pub fn calls_from_within_a_series_are_told_apart(world: &World) {
    let [a, b] = world.nodes();
    let (node, peer, back) = (b.clone(), a.peer(b.id()).unwrap(), b.peer(a.id()).unwrap());
    peer.send_many(&[(1, b"one"), (2, b"two")]).unwrap();
    let answers = finishes("calls from within recv_many", move || {
        let mut answers = Vec::new();
        while answers.len() < 2 {
            let call = |_: &doorbell::Envelope, _: doorbell::Payload<'_>| {
                let inner = node.try_recv_many(Match::any().tag(9), 1, |_, _| ());
                answers.push((
                    inner,
                    back.send_until(3, &[0; 5000], briefly())
                        .is_err_and(|error| !matches!(error, Error::Reentrant { .. } | Error::Timeout { .. })),
                ));
            };
            node.recv_many_until(Match::any(), 2, soon(), call).unwrap();
        }
        answers
    });
    for (inner, other) in answers {
        assert!(matches!(inner, Ok(0) | Err(Error::Reentrant { .. })) && !other, "{inner:?}");
    }
    peer.send(4, b"after").unwrap();
    assert_eq!(b.recv_many_until(Match::any().tag(4), 5, soon(), |_, _| ()).unwrap(), 1);
}
