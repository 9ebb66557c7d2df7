//! Messages that share cells.

use super::*;

/// Pushes a message by the way of most messages. It is a reply if this thread has left a cell before.
fn reply(producer: &mut Producer<RawMemory>, tag: u64, sequence: u32, bytes: &[u8]) -> bool {
    // SAFETY: a slice.
    unsafe { producer.push_whole(tag, sequence, bytes.as_ptr(), bytes.len()) }
}

/// Pushes a message as `reply` does, but it is no reply.
fn push_whole(producer: &mut Producer<RawMemory>, tag: u64, sequence: u32, bytes: &[u8]) -> bool {
    producer.reply_to_nothing();
    reply(producer, tag, sequence, bytes)
}

fn ends(block: &Block) -> (Producer<RawMemory>, Consumer<RawMemory>) {
    let mut producer = Producer::claim(block.memory(), 1).unwrap();
    producer.stamp_not();
    (producer, Consumer::new(block.memory(), None))
}

#[test]
fn messages_share_a_cell_if_they_follow_each_other_and_have_room() {
    let block = Block::new(16, 16 << 10);
    // The lengths, tags and sequence numbers of messages, and the cells that they take.
    let same = |lens: &[usize]| lens.iter().enumerate().map(|(at, len)| (*len, 7, at as u32)).collect::<Vec<_>>();
    for (messages, cells) in [
        (same(&[8, 8, 8]), 1),
        (same(&[8; 7]), 2),
        (same(&[8; 8]), 3),
        (same(&[0, 0, 0, 0, 8]), 1),
        (same(&[0, 0, 0, 0, 0, 8]), 2),
        (same(&[3, 16]), 1),
        (same(&[16, 16]), 1),
        (same(&[16, 8, 1]), 2),
        (same(&[17, 1]), 1),
        (same(&[8, 24]), 1),
        (same(&[8, 25]), 2),
        (same(&[25, 0]), 2),
        (same(&[8, 56]), 2),
        (same(&[8, 40, 8]), 2),
        (same(&[56, 56, 8]), 3),
        (same(&[48, 16, 16, 16]), 3),
        (same(&[57, 56, 8]), 3),
        // Payloads in the data ring.
        (same(&[8, 100, 8]), 3),
        (same(&[100, 100, 100]), 3),
        (same(&[100, 100, 8, 8, 100, 8, 8]), 5),
        (same(&[100, 56, 100, SERIES_BYTES, SERIES_BYTES + 1, 100]), 6),
        (vec![(100, 7, 0), (100, 8, 1)], 2),
        (vec![(100, 7, 0), (100, 7, 2)], 2),
        (vec![(8, 7, 0), (8, 8, 1)], 2),
        (vec![(8, 7, 0), (8, 7, 2)], 2),
    ] {
        let (mut producer, mut consumer) = ends(&block);
        for (len, tag, sequence) in &messages {
            assert!(push_whole(&mut producer, *tag, *sequence, &message(*sequence, *len)));
        }
        assert_eq!(producer.pushed(), cells, "{messages:?}");
        for (len, tag, sequence) in &messages {
            assert!(consumer.is_ready());
            let (head, bytes) = pop(&mut consumer).unwrap();
            assert_eq!((head.tag, head.sequence, bytes), (*tag, *sequence, message(*sequence, *len)), "{messages:?}");
        }
        assert!(!consumer.is_ready() && pop(&mut consumer).is_none());
        consumer.reset();
    }
}

#[test]
fn a_detached_message_takes_the_first_word_of_its_cell() {
    for way in 0..3 {
        let block = Block::new(16, 16 << 10);
        let (mut producer, mut consumer) = ends(&block);
        for sequence in 0..5 {
            assert!(push_whole(&mut producer, 7, sequence, &message(sequence, 100)));
        }
        let tags: Vec<u64> = (0..5).map(|cell| block.memory().cell_word(cell, word::TAG).load(Ordering::Relaxed)).collect();
        assert_eq!(tags, [7, 0, 0, 0, 0]);
        let mut read = |tag, sequence: u32, payload: Payload<'_>| {
            assert_eq!((tag, payload.to_vec()), (7, message(sequence, 100)));
        };
        match way {
            0 => assert_eq!(consumer.read_series(None, 0, 9, |_| true, &mut read).0, 5),
            1 => (0..5).for_each(|next| {
                assert!(consumer.read_next(None, next, 100, |_| true, |tag, payload| read(tag, next, payload)).is_some());
            }),
            _ => (0..5).for_each(|next| assert_eq!(pop(&mut consumer).unwrap().1, message(next, 100))),
        }
        assert!(!consumer.is_ready());
        // One for which the buffer is too short, or that is not accepted, stays there.
        assert!(push_whole(&mut producer, 7, 5, &message(5, 100)));
        assert!(consumer.read_next(None, 5, 99, |_| true, |_, _| panic!()).is_none());
        assert!(consumer.read_next(None, 5, 100, |_| false, |_, _| panic!()).is_none());
        assert_eq!(consumer.read_series(None, 5, 9, |_| false, |_, _, _| panic!()).0, 0);
        assert_eq!(pop(&mut consumer).unwrap().1, message(5, 100));
    }
}

#[test]
fn a_message_is_appended_behind_one_that_was_read_and_not_behind_a_later_packet() {
    let block = Block::new(16, 16 << 10);
    let (mut producer, mut consumer) = ends(&block);
    assert!(push_whole(&mut producer, 7, 0, &[1; 8]));
    assert_eq!(pop(&mut consumer).unwrap().1, [1; 8]);
    assert!(push_whole(&mut producer, 7, 1, &[2; 8]));
    assert_eq!(producer.pushed(), 1);
    assert!(consumer.is_ready() && consumer.has_packet());
    assert_eq!(pop(&mut consumer).unwrap().1, [2; 8]);
    assert_eq!(push(&mut producer, PacketKind::GivenUp, 0, &[]), Push::Done);
    assert!(push_whole(&mut producer, 7, 2, &[3; 8]));
    assert_eq!(producer.pushed(), 3);
    assert_eq!(pop(&mut consumer).unwrap().0.kind, PacketKind::GivenUp);
    assert_eq!(pop(&mut consumer).unwrap().1, [3; 8]);
}

#[test]
fn a_reply_begins_in_a_cell_of_its_own_and_others_are_appended_to_it() {
    let block = Block::new(16, 16 << 10);
    let (mut producer, mut consumer) = ends(&block);
    for round in 0..20 {
        for number in 0..3 {
            assert!(reply(&mut producer, 7, 3 * round + number, &[number as u8; 8]));
            assert_eq!(producer.pushed(), u64::from(round) + 1);
        }
        for number in 0..3 {
            assert_eq!(pop(&mut consumer).unwrap().1, [number; 8]);
        }
        consumer.tell();
    }
    // Another thread receives, so the next message is no reply.
    assert!(reply(&mut producer, 7, 60, &[1; 8]));
    std::thread::scope(|scope| {
        scope.spawn(|| pop(&mut consumer).unwrap());
    });
    assert!(reply(&mut producer, 7, 61, &[2; 8]));
    assert_eq!(producer.pushed(), 21);
}

/// A packet may have left such a first word a lap before, if it had the position 0 modulo 2^32.
#[test]
fn behind_a_packet_without_a_run_no_message_continues_one() {
    for kind in [PacketKind::GivenUp, PacketKind::Whole] {
        let block = Block::new(16, 16 << 10);
        let (mut producer, mut consumer) = ends(&block);
        // By `read_next`, a message of more than 1 KiB begins no run.
        assert_eq!(push(&mut producer, kind, 0, &vec![1; if kind == PacketKind::Whole { 2000 } else { 0 }]), Push::Done);
        match kind {
            PacketKind::Whole => assert!(consumer.read_next(None, 0, 2000, |_| true, |_, _| {}).is_some()),
            _ => assert!(pop(&mut consumer).is_some()),
        }
        block.memory().cell_word(1, word::CHECK).store(check_word(0, CONTINUED, 8), Ordering::Relaxed);
        assert!(!consumer.is_ready() && matches!(consumer.peek(), Peek::Empty));
        assert!(consumer.read_next(None, 0, 2000, |_| true, |_, _| panic!()).is_none());
    }
}

#[test]
fn a_detached_message_without_room_or_at_the_beginning_of_a_lap_leaves_the_run_as_it_is() {
    let block = Block::new(16, 16 << 10);
    let (mut producer, mut consumer) = ends(&block);
    assert!(push_whole(&mut producer, 7, 0, &message(0, 8)));
    // The first payload of the lap: a packet tells its place.
    assert!(push_whole(&mut producer, 7, 1, &message(1, 100)));
    assert_eq!(block.memory().cell_word(1, word::TAG).load(Ordering::Relaxed), 7);
    producer.limit(64);
    // Neither detached nor in a packet of its own.
    assert!(!push_whole(&mut producer, 7, 2, &message(2, 100)));
    assert_eq!(producer.pushed(), 2);
    producer.limit(usize::MAX);
    assert!(push_whole(&mut producer, 7, 2, &message(2, 100)));
    for sequence in 0..3 {
        assert_eq!(pop(&mut consumer).unwrap().1, message(sequence, [8, 100, 100][sequence as usize]));
    }
}

/// The sender appends a message, and then continues the run in the next cell.
#[test]
fn a_watch_sees_an_appended_message_before_the_next_cell() {
    let block = Block::new(16, 16 << 10);
    let (mut producer, mut consumer) = ends(&block);
    assert!(push_whole(&mut producer, 7, 0, &message(0, 8)));
    pop(&mut consumer).unwrap();
    for (sequence, len) in [(1, 8), (2, 48), (3, 100), (4, 100)] {
        assert!(push_whole(&mut producer, 7, sequence, &message(sequence, len)));
    }
    for (sequence, len) in [(1, 8), (2, 48), (3, 100), (4, 100)] {
        let mut read = Vec::new();
        let seen = consumer.watch(1, false, || ());
        assert!(
            seen.is_some() && consumer.read_next(seen, sequence, 900, |_| true, |_, payload| read = payload.to_vec()).is_some()
        );
        assert_eq!(read, message(sequence, len));
    }
    assert!(consumer.watch(1, false, || ()).is_none());
}

/// The place of a detached payload comes from its reader alone, and its length from the sender.
#[test]
fn a_forged_detached_message_stays_inside_the_ring() {
    let block = Block::new(32, 16 << 10);
    let (mut producer, mut consumer) = ends(&block);
    for sequence in 0..16 {
        assert!(push_whole(&mut producer, 7, sequence, &message(sequence, if sequence < 15 { 1024 } else { 960 })));
        pop(&mut consumer).unwrap();
    }
    let forge = |consumer: &Consumer<RawMemory>, len| {
        let (cell, position) = (consumer.taken() as usize % 32, consumer.taken() + 1);
        let check = crate::lane::check_word(position, crate::lane::CONTINUED, len);
        block.memory().cell_word(cell, word::CHECK).store(check, Ordering::Relaxed);
    };
    // A line of the ring is left.
    for len in [65, 1024, 1025, (1 << 24) - 1] {
        forge(&consumer, len);
        assert!(consumer.read_next(None, 16, usize::MAX, |_| true, |_, _| panic!()).is_none());
        assert_eq!(consumer.read_series(None, 16, 9, |_| true, |_, _, _| panic!()).0, 0);
        assert!(matches!(consumer.peek(), Peek::Damaged(_)), "{len}");
    }
    forge(&consumer, 64);
    assert!(consumer.read_next(None, 16, 64, |_| true, |_, payload| assert_eq!(payload.len(), 64)).is_some());
}

/// A payload may look like the first word of an appended message, and lie where one is expected in the next lap.
#[test]
fn leftovers_are_no_messages() {
    for (same_tag, short) in [(false, 8), (true, 8), (false, 64), (true, 64)] {
        let block = Block::new(16, 16 << 10);
        let (mut producer, mut consumer) = ends(&block);
        let count = if cfg!(miri) { 90 } else { 300 };
        for sequence in 0..count {
            // Of a message in the same cell in the next lap.
            let words = [crate::lane::check_word(producer.pushed() + 17, crate::lane::APPENDED, short); 8];
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let is_long = sequence > 0 && producer.pushed() / 16 % 2 == 0;
            let len = if !is_long {
                short
            } else if same_tag {
                56
            } else {
                40
            };
            let tag = if same_tag { 7 } else { u64::from(sequence) };
            assert!(push_whole(&mut producer, tag, sequence, &bytes[..len]));
            assert_eq!(pop(&mut consumer).unwrap().1, bytes[..len]);
            assert!(!consumer.is_ready() && pop(&mut consumer).is_none(), "{sequence}");
            consumer.tell();
        }
        assert!(producer.pushed() > u64::from(count) / 3);
    }
}

/// The consumer has reported a cell in which a message is still unread. The producer fills the lane, and uses even the place that is kept for
/// giving up a message.
#[test]
fn a_full_lane_leaves_the_cell_of_an_unread_message_alone() {
    let block = Block::new(16, 16 << 10);
    let (mut producer, mut consumer) = ends(&block);
    // It has no bytes, so the next one begins where each other packet writes something.
    assert!(push_whole(&mut producer, 7, 0, &[]));
    pop(&mut consumer).unwrap();
    consumer.tell();
    assert!(push_whole(&mut producer, 7, 1, &[2; 8]));
    assert_eq!(push_of(&mut producer, PacketKind::First, 2, b"part", 1000), Push::Done);
    while push_of(&mut producer, PacketKind::Next, 2, b"part", 1000) == Push::Done {}
    assert_eq!(push(&mut producer, PacketKind::GivenUp, 2, &[]), Push::Done);
    assert_eq!(pop(&mut consumer).unwrap().1, [2; 8]);
    assert_eq!(pop(&mut consumer).unwrap().0.kind, PacketKind::First);
}

#[test]
fn a_reader_that_panics_leaves_an_appended_message() {
    for by_series in [false, true] {
        let block = Block::new(16, 16 << 10);
        let (mut producer, mut consumer) = ends(&block);
        for sequence in 0..3 {
            assert!(push_whole(&mut producer, 7, sequence, &message(sequence, 8)));
        }
        pop(&mut consumer).unwrap();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let read = |sequence, payload: Payload<'_>| {
                assert_eq!(payload.to_vec(), message(sequence, 8));
                if sequence == u32::from(by_series) + 1 {
                    std::panic::resume_unwind(Box::new(()));
                }
            };
            if by_series {
                _ = consumer.read_series(None, 1, 9, |_| true, |_, sequence, payload| read(sequence, payload));
            } else {
                consumer.read_next(None, 1, 9, |_| true, |_, payload| read(1, payload));
            }
        }));
        assert!(panicked.is_err());
        assert_eq!(pop(&mut consumer).unwrap().0.sequence, u32::from(by_series) + 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 256 }, failure_persistence: None, ..Default::default() })]

    /// Compares a lane with a plain queue, in all ways to read.
    #[test]
    fn a_lane_of_short_messages_is_a_queue(
        steps in prop::collection::vec((0..7_u8, 0..7_usize, 0..20_u64), 1..if cfg!(miri) { 60 } else { 1000 }),
    ) {
        let block = Block::new(16, 16 << 10);
        let (mut producer, mut consumer) = ends(&block);
        let mut model = std::collections::VecDeque::new();
        let (mut sent, mut read) = (0, 0);
        for (what, len, tag) in steps {
            let (len, tag) = ([8, 8, 0, 13, 50, 64, 900][len], tag / 19);
            let mut got = Vec::new();
            let first = model.front().map(|(tag, _)| *tag);
            match what {
                0..=2 => {
                    let bytes = message(sent, len);
                    let head = PacketHead { kind: PacketKind::Whole, tag, sequence: sent, total: len as u64 };
                    let push = if what == 0 { reply } else { push_whole };
                    // SAFETY: slices.
                    let pushed = push(&mut producer, tag, sent, &bytes)
                        || unsafe { producer.push(&head, bytes.as_ptr(), len) } == Push::Done;
                    prop_assert!(pushed || !model.is_empty(), "full while empty");
                    if pushed {
                        model.push_back((tag, bytes));
                        sent += 1;
                    }
                }
                6 => {
                    let bytes = [message(sent, len), message(sent + 1, len)];
                    let (count, _) = producer.push_series(sent, &[(tag, &bytes[0][..]), (tag, &bytes[1][..])][..]);
                    prop_assert!(count == 2 || count == 0);
                    model.extend(bytes.into_iter().take(count).map(|bytes| (tag, bytes)));
                    sent += count as u32;
                }
                3 => got.extend(pop(&mut consumer).map(|(head, bytes)| (head.tag, head.sequence, bytes))),
                4 => {
                    let seen = (len % 2 == 0).then(|| consumer.watch(1, false, || ())).flatten();
                    consumer.read_next(seen, read, 900, |_| true, |tag, payload| got.push((tag, read, payload.to_vec())));
                    // It reads no bundle.
                    if got.is_empty() {
                        got.extend(pop(&mut consumer).map(|(head, bytes)| (head.tag, head.sequence, bytes)));
                    }
                }
                _ => {
                    let wanted = |tag| Some(tag) == first;
                    let seen = (len % 2 == 0).then(|| consumer.watch(1, false, || ())).flatten();
                    let (count, _) = consumer.read_series(seen, read, 1 + tag + len as u64 / 8, wanted, |tag, sequence, payload| {
                        got.push((tag, sequence, payload.to_vec()));
                    });
                    prop_assert_eq!(count, got.len() as u64);
                    prop_assert!(count > 0 || model.is_empty());
                }
            }
            prop_assert!(what < 3 || what == 6 || !got.is_empty() || model.is_empty());
            for got in got {
                let (tag, bytes) = model.pop_front().unwrap();
                prop_assert_eq!(got, (tag, read, bytes));
                read += 1;
            }
        }
    }

    /// However the words of cells change while a run is read, no message lies outside them or outside the data ring.
    #[test]
    fn forged_runs_stay_inside(
        words in prop::collection::vec((prop::array::uniform8(any::<u64>()), prop_oneof![0..70_usize, 900..20_000_usize]), 1..12),
        first in prop_oneof![0..57_usize, 57..2000_usize],
        by_series in any::<bool>(),
    ) {
        let block = Block::new(16, 16 << 10);
        let (mut producer, mut consumer) = ends(&block);
        prop_assert!(push_whole(&mut producer, 7, 0, &vec![1; first]));
        pop(&mut consumer).unwrap();
        let mut sequence = 1;
        for (words, len) in words {
            let seen = consumer.watch(1, false, || ());
            for (index, value) in words.into_iter().enumerate() {
                let value = match index {
                    word::CHECK => crate::lane::check_word(consumer.taken() + 1, crate::lane::CONTINUED + (value % 2) as u8, len),
                    _ if value % 4 == 0 => value,
                    _ => crate::lane::check_word(consumer.taken(), crate::lane::APPENDED, len),
                };
                for cell in 0..16 {
                    block.memory().cell_word(cell, index).store(value, Ordering::Relaxed);
                }
            }
            let mut lens = Vec::new();
            if by_series {
                let count = consumer.read_series(seen, sequence, 9, |_| true, |_, _, payload| lens.push(payload.to_vec().len())).0;
                prop_assert_eq!(count, lens.len() as u64);
            } else {
                // A cell has at most seven more messages, and each cell states the same position.
                while let Peek::Packet(seen) = consumer.peek() {
                    prop_assert_eq!(seen.head.sequence, sequence + lens.len() as u32);
                    // SAFETY: from the latest peek.
                    lens.push(unsafe { consumer.payload(&seen) }.to_vec().len());
                    let _ = consumer.take(&seen);
                    prop_assert!(lens.len() <= 20, "messages without end");
                }
            }
            prop_assert!(lens.iter().all(|len| *len <= SERIES_BYTES));
            sequence += lens.len() as u32;
        }
    }
}

#[test]
fn a_conversation_owns_no_lines_ahead_and_prefetches_those_of_the_answer() {
    let (there, back) = (Block::new(16, 64 << 10), Block::new(16, 64 << 10));
    let (mut producer, mut consumer) = (Producer::claim(there.memory(), 1).unwrap(), Consumer::new(back.memory(), None));
    let mut other = Producer::claim(back.memory(), 1).unwrap();
    let send = |producer: &mut Producer<RawMemory>, sequence, len| {
        let bytes = message(sequence, len);
        // SAFETY: a slice. One with a time stamp goes by the longer way.
        let is_pushed = unsafe { producer.push_whole(0, sequence, bytes.as_ptr(), len) };
        assert!(is_pushed || push(producer, PacketKind::Whole, sequence, &bytes) == Push::Done);
    };
    for (sequence, len) in [(0, 200), (1, 64), (2, 512), (3, 600), (4, 2048)] {
        // Two in a row: the second is no reply.
        send(&mut producer, 2 * sequence, len);
        assert_eq!(producer.is_worth_owning(len), sequence == 0 || len >= 2048, "{len}");
        send(&mut producer, 2 * sequence + 1, len);
        assert!(producer.is_worth_owning(len));
        send(&mut other, sequence, len);
        assert_eq!(pop(&mut consumer).unwrap().1, message(sequence, len));
        // This thread has not sent since.
        assert_eq!(consumer.expected_len(), if len == 64 { 64 } else { 0 }, "{len}");
        send(&mut other, 100 + sequence, 8);
        assert_eq!(consumer.expected_len(), if len <= 512 { len } else { 0 }, "{len}");
        assert_eq!(pop(&mut consumer).unwrap().1, message(100 + sequence, 8));
    }
}
