//! One message at a time: its bytes, its envelope, its order.

use doorbell::{Error, Match, Priority, Progress};
use doorbell_tests::in_place::{read, read_by};
use doorbell_tests::patience::{finishes, soon, until};
use doorbell_tests::pattern;
use doorbell_tests::steps::Steps;
use doorbell_tests::world::World;
use std::io::IoSlice;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

/// Lengths around every boundary: a word, a cell, a packet, a quarter of the data ring, the longest `try_send`.
const LENGTHS: [usize; 30] = [
    0, 1, 7, 8, 9, 39, 40, 41, 63, 64, 65, 127, 1000, 1024, 2047, 2048, 2049, 4095, 4096, 4097, 8192, 16383, 16385, 32767, 32768,
    32769, 65535, 65536, 100_000, 131_073,
];

pub fn every_length_arrives_intact(world: &World) {
    const UNTOUCHED: u8 = 0xee;
    let [a, b] = world.nodes();
    thread::scope(|scope| {
        let (from, to) = (a.id(), b.id());
        scope.spawn(move || {
            let peer = a.peer(to).unwrap();
            for (tag, len) in LENGTHS.into_iter().enumerate() {
                peer.send_until(tag as u64, &pattern::bytes(len, tag as u64), soon()).unwrap();
            }
        });
        for (tag, len) in LENGTHS.into_iter().enumerate() {
            let mut buf = vec![UNTOUCHED; len + 64];
            let envelope = b.recv_until(Match::from(from), &mut buf, soon()).unwrap();
            assert_eq!((envelope.source, envelope.tag, envelope.len), (from, tag as u64, len));
            assert_eq!((envelope.sequence, envelope.priority), (tag as u32, Priority::Normal));
            pattern::check(&buf[..len], tag as u64);
            assert!(buf[len..].iter().all(|byte| *byte == UNTOUCHED), "bytes beyond a message of {len} were written");
        }
    });
}

pub fn messages_of_several_mib_arrive_intact(world: &World) {
    let [a, b] = world.nodes();
    thread::scope(|scope| {
        let (from, to) = (a.id(), b.id());
        scope.spawn(move || {
            for (tag, len) in [(1 << 20) + 3, 3 << 20].into_iter().enumerate() {
                a.send_until(to, tag as u64, &pattern::bytes(len, tag as u64), soon()).unwrap();
            }
        });
        // The first into a buffer, the second by way of the pool.
        let mut buf = vec![0; 2 << 20];
        let envelope = b.recv_until(Match::from(from), &mut buf, soon()).unwrap();
        assert_eq!(envelope.len, (1 << 20) + 3);
        pattern::check(&buf[..envelope.len], 0);
        b.recv_with_until(Match::any(), soon(), |envelope, payload| {
            assert_eq!((envelope.len, payload.len()), (3 << 20, 3 << 20));
            pattern::check(&payload.to_vec(), 1);
        })
        .unwrap();
    });
}

pub fn a_message_does_not_overtake_the_one_before_it(world: &World) {
    // Long and short ones by turns, so that one look finds the end of one and the beginning of the next.
    let [a, b] = world.nodes();
    let (from, to) = (a.id(), b.id());
    let [sends, receives] = ["sends", "receives"].map(Steps::of);
    thread::scope(|scope| {
        let sends = sends.clone();
        scope.spawn(move || {
            for number in 0..200_u64 {
                let bytes = pattern::bytes([40_000, 3000, 8][number as usize % 3], number);
                sends.step(|| a.send_until(to, number, &bytes, soon()).unwrap());
            }
        });
        let mut buf = vec![0; 40_000];
        for number in 0..200 {
            let envelope = receives.step(|| match number % 4 {
                0 => read_by(&b, Match::any(), soon(), |envelope, _| *envelope).unwrap(),
                _ => b.recv_until(Match::from(from), &mut buf, soon()).unwrap(),
            });
            assert_eq!((envelope.tag, envelope.sequence), (number, number as u32), "a message overtook another");
        }
    });
    sends.check();
    receives.check();
}

pub fn order_is_kept_for_each_sender_and_priority(world: &World) {
    const EACH: usize = 300;
    let [target, one, two] = world.nodes();
    let to = target.id();
    thread::scope(|scope| {
        for sender in [&one, &two] {
            for priority in Priority::ALL {
                scope.spawn(move || {
                    let peer = sender.peer_with_priority(to, priority).unwrap();
                    for number in 0..EACH {
                        // Some in their cell, some in the data ring, some in several packets.
                        let len = [8, 100, 5000][number % 3] + number % 7;
                        let mut bytes = pattern::bytes(len, number as u64);
                        bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
                        peer.send_until(priority as u64, &bytes, soon()).unwrap();
                    }
                });
            }
        }
        let mut next = [[0_u32; 3]; 3];
        let mut buf = vec![0; 8192];
        for _ in 0..2 * 3 * EACH {
            let envelope = target.recv_until(Match::any(), &mut buf, soon()).unwrap();
            assert_eq!(envelope.tag, envelope.priority as u64);
            let next = &mut next[envelope.source.index()][envelope.priority.index()];
            let number = u64::from_le_bytes(buf[..8].try_into().unwrap());
            assert_eq!((number, envelope.sequence), (*next as u64, *next), "{envelope:?}");
            *next += 1;
        }
    });
    assert_eq!(target.try_recv(Match::any(), &mut []).unwrap(), None);
}

pub fn urgent_messages_do_not_wait_behind_others(world: &World) {
    // The normal lane is full, and nobody reads it; the high lane still takes messages, and they can be received alone.
    let [a, b] = world.nodes_with_pool(4 << 10);
    let (normal, high) = (a.peer(b.id()).unwrap(), a.peer_with_priority(b.id(), Priority::High).unwrap());
    let fill = normal.start_send(1, vec![1; 1 << 20]).unwrap();
    for number in 0..10_u64 {
        high.send_until(2, &number.to_le_bytes(), soon()).unwrap();
        let mut buf = [0; 8];
        let envelope = b.recv_until(Match::any().tag(2), &mut buf, soon()).unwrap();
        assert_eq!((envelope.priority, u64::from_le_bytes(buf)), (Priority::High, number));
    }
    assert!(!fill.test());
}

pub fn pieces_become_one_message(world: &World) {
    let [a, b] = world.nodes();
    let whole = pattern::bytes(10_000, 1);
    let pieces = [&whole[..0], &whole[..1], &whole[1..4000], &whole[4000..4000], &whole[4000..]].map(IoSlice::new);
    a.peer(b.id()).unwrap().send_vectored(1, &pieces).unwrap();
    a.send_vectored(b.id(), 2, &pieces[1..2]).unwrap();
    a.send_vectored(b.id(), 3, &[]).unwrap();
    let mut buf = vec![0; 10_000];
    let receive =
        |buf: &mut Vec<u8>| b.recv_until(Match::from(a.id()), buf, soon()).map(|envelope| (envelope.tag, envelope.len)).unwrap();
    assert_eq!(receive(&mut buf), (1, 10_000));
    pattern::check(&buf, 1);
    assert_eq!(receive(&mut buf), (2, 1));
    assert_eq!(buf[0], whole[0]);
    assert_eq!(receive(&mut buf), (3, 0));
}

pub fn a_message_is_read_in_place(world: &World) {
    let [a, b] = world.nodes();
    for len in [0, 24, 2000, 50_000] {
        a.send_until(b.id(), len as u64, &pattern::bytes(len, 9), soon()).unwrap();
        let answer = read_by(&b, Match::from(a.id()), soon(), |envelope, payload| {
            assert_eq!((envelope.tag, envelope.len, payload.len()), (len as u64, len, len));
            pattern::check(&payload.to_vec(), 9);
            "read"
        });
        assert_eq!(answer.unwrap(), "read");
    }
    let late = read_by(&b, Match::any(), doorbell_tests::patience::briefly(), |_, _| ());
    assert!(matches!(late, Err(Error::Timeout { operation: "recv_with", node: None })), "{late:?}");
    // The form without a deadline, while the message is still to come.
    let (node, from) = (b.clone(), a.id());
    let reading =
        doorbell_tests::patience::running("recv_with", move || read(&node, Match::from(from), |_, payload| payload.to_vec()));
    let reading = reading.started();
    a.send_until(b.id(), 1, b"late", soon()).unwrap();
    assert_eq!(reading.join().unwrap(), b"late");
}

pub fn a_reader_that_panics_does_not_harm_the_node(world: &World) {
    let [a, b] = world.nodes();
    a.send_until(b.id(), 1, b"one", soon()).unwrap();
    let panic = catch_unwind(AssertUnwindSafe(|| {
        read_by(&b, Match::any(), soon(), |_, _| std::panic::resume_unwind(Box::new("on purpose")))
    }));
    let panic = panic.map(|result: doorbell::Result<()>| result).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"on purpose"));
    // In parts, by both ends, and on loan.
    let (node, to) = (a.clone(), b.id());
    let sending = doorbell_tests::patience::running("long messages", move || {
        let peer = node.peer(to).unwrap();
        for len in [40_000, 300_000] {
            peer.send(3, &pattern::bytes(len, 3)).unwrap();
        }
        node.loan_bytes(1000).unwrap().send(&peer, 3).unwrap();
    });
    for _ in 0..3 {
        let panic = catch_unwind(AssertUnwindSafe(|| {
            read_by(&b, Match::any().tag(3), soon(), |_, _| std::panic::resume_unwind(Box::new("on purpose")))
        }));
        assert!(panic.map(|result: doorbell::Result<()>| result).is_err());
    }
    sending.join();
    assert_eq!(b.probe(Match::any().tag(3)).unwrap(), None, "a message came again");
    a.send_until(b.id(), 2, b"two", soon()).unwrap();
    let mut buf = [0; 8];
    assert_eq!(b.recv_until(Match::any().tag(2), &mut buf, soon()).unwrap().len, 3);
}

pub fn calls_from_within_a_reader_are_told_apart(world: &World) {
    let [a, b] = world.nodes();
    a.send_until(b.id(), 1, b"outer", soon()).unwrap();
    let (node, to) = (b.clone(), a.id());
    let inside = finishes("calls from within recv_with", move || {
        read_by(&node, Match::any(), soon(), |_, _| {
            let mut buf = [0; 8];
            let results = [
                node.try_recv(Match::any(), &mut buf).map(drop),
                node.recv_until(Match::any(), &mut buf, doorbell_tests::patience::briefly()).map(drop),
                read_by(&node, Match::any(), doorbell_tests::patience::briefly(), |_, _| ()),
                node.probe(Match::any()).map(drop),
                node.try_event().map(drop),
                node.stats().map(drop),
                node.progress().map(drop),
                node.send_until(to, 1, &[0; 5000], doorbell_tests::patience::briefly()),
                node.start_recv(Match::any(), [0; 8]).map(drop),
            ];
            results.map(|result| match result {
                Err(Error::Reentrant { .. }) => true,
                // The message was read from private memory, where other calls do no harm.
                Ok(()) | Err(Error::Timeout { .. }) => false,
                Err(other) => panic!("{other}"),
            })
        })
        .unwrap()
    });
    assert!(inside.iter().all(|reentrant| *reentrant == inside[0]), "{inside:?}");
    if world.progress == Progress::Inline && !world.is_faulty() && !world.is_networked() {
        assert!(inside[0], "the message was read in its lane, so this thread has the engine");
    }
    // Nothing of it is left behind: both directions work.
    b.send_until(a.id(), 2, b"after", soon()).unwrap();
    until("what was sent afterwards", || a.try_recv(Match::any().tag(2), &mut [0; 8]).unwrap());
    a.send_until(b.id(), 3, b"after", soon()).unwrap();
    assert_eq!(b.recv_until(Match::any(), &mut [0; 8], soon()).unwrap().tag, 3);
}

pub fn a_truncated_message_is_in_the_error(world: &World) {
    let [a, b] = world.nodes();
    for len in [10, 1000, 20_000] {
        a.send_until(b.id(), 1, &pattern::bytes(len, 4), soon()).unwrap();
        a.send_until(b.id(), 2, b"next", soon()).unwrap();
        let mut buf = vec![0; len - 1];
        let Err(Error::Truncated { message, capacity }) = b.recv_until(Match::any().tag(1), &mut buf, soon()) else {
            panic!("a message of {len} bytes in a buffer of {}", len - 1)
        };
        assert_eq!((capacity, message.envelope.len, message.bytes.len()), (len - 1, len, len));
        pattern::check(&message.bytes, 4);
        // Exactly that message, and once.
        assert_eq!(b.recv_until(Match::any(), &mut buf, soon()).unwrap().tag, 2);
        assert_eq!(b.try_recv(Match::any(), &mut buf).unwrap(), None);
    }
    // A request, too.
    let request = b.start_recv(Match::any(), vec![0; 3]).unwrap();
    a.send_until(b.id(), 3, b"four", soon()).unwrap();
    let completion = request.wait();
    assert!(matches!(completion.result, Err(Error::Truncated { message, capacity: 3 }) if message.bytes == b"four"));
    assert_eq!(completion.buffer.unwrap(), [0; 3]);
}

pub fn a_node_sends_to_itself(world: &World) {
    let node = world.node(0);
    let me = node.peer(node.id()).unwrap();
    let mut buf = vec![0; 64 << 10];
    for len in [0, 8, 3000, 64 << 10] {
        me.send_until(1, &pattern::bytes(len, 2), soon()).unwrap();
        let envelope = node.recv_until(Match::from(node.id()), &mut buf, soon()).unwrap();
        assert_eq!((envelope.source, envelope.len), (node.id(), len));
        pattern::check(&buf[..len], 2);
    }
}

pub fn probing_takes_nothing(world: &World) {
    let [a, b] = world.nodes();
    assert_eq!(b.probe(Match::any()).unwrap(), None);
    a.send_until(b.id(), 5, b"first", soon()).unwrap();
    a.send_until(b.id(), 6, &[1; 10_000], soon()).unwrap();
    let second = until("a probe that finds", || b.probe(Match::any().tag(6)).unwrap());
    assert_eq!((second.source, second.len, second.sequence), (a.id(), 10_000, 1));
    let first = b.probe(Match::any()).unwrap().unwrap();
    assert_eq!((first.tag, first.len), (5, 5));
    assert_eq!(b.probe(Match::any().tag(7)).unwrap(), None);
    let mut buf = vec![0; 10_000];
    assert_eq!(b.recv_until(Match::any(), &mut buf, soon()).unwrap(), first);
    assert_eq!(b.recv_until(Match::any(), &mut buf, soon()).unwrap(), second);
    assert_eq!(b.probe(Match::any()).unwrap(), None);
}

pub fn parameters_out_of_range_are_refused(world: &World) {
    let [a, b] = world.nodes();
    let long = a.try_send(b.id(), 1, &vec![0; (64 << 10) + 1]).unwrap_err();
    assert!(matches!(long, Error::Invalid { .. }) && !long.is_retryable(), "{long:?}");
    assert!(long.to_string().contains("65536") && long.to_string().contains("65537"), "{long}");
    assert!(matches!(world.builder(8).join(), Err(Error::Shm(_))), "the domain has places for 8");
    if world.is_networked() {
        // The node with that id has the address, too. A port waits seconds for an address, so only some worlds try.
        if world.progress == Progress::Poller {
            assert!(matches!(world.builder(0).join(), Err(Error::Udp(_) | Error::Shm(_))));
        }
    } else {
        let taken = world.builder(0).join().unwrap_err();
        assert!(taken.to_string().contains("node 0") && taken.to_string().contains(world.domain().name()), "{taken}");
    }
}

pub fn figures_agree_with_what_happened(world: &World) {
    let [a, b] = world.nodes();
    let lengths = [0, 10, 500, 9000];
    for len in lengths {
        a.send_until(b.id(), 1, &vec![0; len], soon()).unwrap();
    }
    let bytes = lengths.iter().sum::<usize>() as u64;
    let arrived = until("all messages arrive", || {
        b.probe(Match::any().tag(99)).unwrap();
        Some(b.stats().unwrap()).filter(|stats| stats.messages_in == 4)
    });
    assert_eq!((arrived.bytes_in, arrived.unexpected, arrived.pooled), (bytes, 4, 4));
    assert!(arrived.pooled_bytes >= bytes as usize && arrived.pooled_bytes_most >= arrived.pooled_bytes);
    let sent = until("the sender's figures", || Some(a.stats().unwrap()).filter(|stats| stats.messages_out == 4));
    assert_eq!((sent.bytes_out, sent.messages_in), (bytes, 0));
    for _ in lengths {
        b.recv_until(Match::any(), &mut vec![0; 9000], soon()).unwrap();
    }
    let end = b.stats().unwrap();
    assert_eq!((end.pooled, end.pooled_bytes, end.messages_in, end.messages_out), (0, 0, 4, 0));
    match world.progress {
        Progress::Poller => assert_eq!(end.by_poller, 4),
        // On a network somebody has to answer while nobody calls.
        Progress::Inline => assert!(end.by_poller == 0 || world.is_networked()),
        Progress::Adaptive => {}
    }
}
