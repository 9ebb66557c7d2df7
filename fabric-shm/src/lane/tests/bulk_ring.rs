//! Payloads in the sender's bulk ring.

use super::*;
use std::ops::Range;

#[test]
// Miri is too slow for half a million single bytes.
#[cfg_attr(miri, ignore)]
fn long_payloads_go_to_the_bulk_ring_once_both_ends_have_it() {
    let block = Block::new(16, 64 << 10);
    let mut room = bulk_room(256 << 10);
    let mut producer = Producer::claim(block.memory(), 1).unwrap();
    let mut consumer = Consumer::new(block.memory(), None);
    assert_eq!(consumer.offered(), None);
    // SAFETY: the vector outlives both ends.
    unsafe { producer.offer_bulk(bulk(&mut room), 6) };
    let long = message(1, BULK_LEAST);
    // The producer must not use the ring before the consumer has it.
    let mut sequence = 0;
    while consumer.offered().is_none() {
        assert_eq!(push(&mut producer, PacketKind::Whole, sequence, &long), Push::Done);
        assert_eq!(pop(&mut consumer).unwrap().1, long);
        sequence += 1;
    }
    assert!(room.iter().all(|line| line.0 == [0; 64]));
    assert_eq!(consumer.offered(), Some(6));
    // SAFETY: the vector outlives both ends.
    unsafe { consumer.answer(Some(bulk(&mut room))) };
    assert_eq!(consumer.offered(), None);
    // More than the ring holds, so that it wraps several times, with short messages in between.
    for number in 0..200_u32 {
        let len = [BULK_LEAST, 16 << 10, 7, BULK_LEAST + 13, 100][number as usize % 5];
        let sent = message(sequence, len);
        assert_eq!(push(&mut producer, PacketKind::Whole, sequence, &sent), Push::Done, "{number}");
        assert_eq!(pop(&mut consumer).unwrap().1, sent, "{number}");
        sequence += 1;
    }
    assert!(room.iter().filter(|line| line.0 != [0; 64]).count() > room.len() / 2);
    // Push as much as there is room for; everything arrives in order.
    let mut sent = Vec::new();
    loop {
        let next = message(sequence, 16 << 10);
        match push(&mut producer, PacketKind::Whole, sequence, &next) {
            Push::Done => sent.push(next),
            push => break assert_eq!(push, Push::Full),
        }
        sequence += 1;
    }
    // The messages exceed the data ring.
    assert!(sent.len() > 4, "{}", sent.len());
    for expected in sent {
        assert_eq!(pop(&mut consumer).unwrap().1, expected);
    }
    assert!(pop(&mut consumer).is_none());
    // A chunk of a transfer uses the data ring only.
    let (before, chunk) = (room.clone(), message(sequence + 1, 16 << 10));
    assert_eq!(push(&mut producer, PacketKind::Chunk, sequence, &chunk), Push::Done);
    assert_eq!(pop(&mut consumer).unwrap().1, chunk);
    assert!(room == before);
}

#[test]
fn a_bulk_ring_that_is_declined_or_was_another_lifes_is_not_used() {
    let block = Block::new(16, 64 << 10);
    let mut room = bulk_room(64 << 10);
    for answered in [false, true] {
        let mut producer = Producer::claim(block.memory(), 1).unwrap();
        let mut consumer = Consumer::new(block.memory(), None);
        // SAFETY: the vector outlives both ends.
        unsafe { producer.offer_bulk(bulk(&mut room), 0) };
        let long = message(1, BULK_LEAST);
        for sequence in 0..24 {
            assert_eq!(push(&mut producer, PacketKind::Whole, sequence, &long), Push::Done);
            assert_eq!(pop(&mut consumer).unwrap().1, long);
            if answered && consumer.offered().is_some() {
                // SAFETY: there is no memory.
                unsafe { consumer.answer(None) };
            }
            assert!(!answered || sequence < 20 || consumer.offered().is_none());
        }
        assert!(room.iter().all(|line| line.0 == [0; 64]));
        consumer.reset();
    }
    let mut next = Consumer::new(block.memory(), None);
    let _ = next.tell();
    assert_eq!(next.offered(), None);
}

/// A producer that compares its ways has to know how far the consumer lags behind.
#[test]
fn each_message_of_a_comparison_is_reported_at_once() {
    let block = Block::new(16, 64 << 10);
    let mut room = bulk_room(256 << 10);
    let mut producer = Producer::claim(block.memory(), 1).unwrap();
    let mut consumer = Consumer::new(block.memory(), None);
    let ring = bulk(&mut room);
    // SAFETY: the vector outlives both ends.
    unsafe { producer.offer_bulk(ring, 0) };
    let _ = consumer.tell();
    assert_eq!(consumer.offered(), Some(0));
    // SAFETY: as above.
    unsafe { consumer.answer(Some(ring)) };
    let mut in_bulk = 0;
    for sequence in 0..40 {
        let sent = message(sequence, BULK_LEAST);
        assert_eq!(push(&mut producer, PacketKind::Whole, sequence, &sent), Push::Done);
        assert_eq!(pop(&mut consumer).unwrap().1, sent);
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        in_bulk += load(block.memory().cell_word(sequence as usize % 16, word::PLACE)) & 1;
        assert_eq!(load(block.memory().control(Control::BulkHead)), in_bulk * BULK_LEAST as u64);
    }
    assert!(in_bulk > 1, "{in_bulk}");
}

#[test]
fn forged_places_in_a_bulk_ring_are_found_out() {
    let block = Block::new(16, 64 << 10);
    let mut room = bulk_room(64 << 10);
    let sent = message(0, 16 << 10);
    for with_ring in [false, true] {
        for place in [1, 3, 5, 7, 9, 64 + 1, (64 << 10) + 1, (56 << 10) + 65, u64::MAX, u64::MAX - 62, 1 << 63 | 1, 33] {
            let mut producer = Producer::claim(block.memory(), 1).unwrap();
            let mut consumer = Consumer::new(block.memory(), None);
            if with_ring {
                // SAFETY: the vector outlives the consumer.
                unsafe { consumer.answer(Some(bulk(&mut room))) };
            }
            assert_eq!(push(&mut producer, PacketKind::Whole, 0, &sent), Push::Done);
            block.memory().cell_word(0, word::PLACE).store(place, std::sync::atomic::Ordering::Relaxed);
            // The second bit only asks for a report, and the third only says how to copy.
            let is_right = with_ring && [1, 3, 5, 7, 65].contains(&place);
            match consumer.peek() {
                Peek::Packet(seen) => {
                    // SAFETY: from the latest peek.
                    let bytes = unsafe { consumer.payload(&seen) }.to_vec();
                    assert!(is_right && bytes == vec![0; sent.len()]);
                }
                Peek::Damaged(_) => assert!(!is_right, "{place}"),
                Peek::Empty | Peek::Opened(_) | Peek::Moved => panic!("nothing at {place}"),
            }
            consumer.reset();
        }
    }
}

#[test]
fn a_consumer_that_says_it_read_what_was_not_written_is_found_out() {
    let block = Block::new(16, 64 << 10);
    let mut room = bulk_room(64 << 10);
    let mut producer = Producer::claim(block.memory(), 1).unwrap();
    // SAFETY: the vector outlives the producer.
    unsafe { producer.offer_bulk(bulk(&mut room), 3) };
    let control = |control, value| block.memory().control(control).store(value, std::sync::atomic::Ordering::Relaxed);
    control(Control::BulkTaken, 4);
    control(Control::BulkHead, 1 << 20);
    let end =
        (0..100).find_map(|sequence| match push(&mut producer, PacketKind::Whole, sequence, &message(sequence, 16 << 10)) {
            Push::Done => None,
            end => Some(end),
        });
    // The data ring is full first, and that makes the producer look at the consumer's words. Then the bulk ring counts as taken
    // although nothing can have been read from it.
    let end =
        if end == Some(Push::Full) { push(&mut producer, PacketKind::Whole, 100, &message(0, 16 << 10)) } else { end.unwrap() };
    assert!(matches!(end, Push::Down(_)), "{end:?}");
}

/// Both ends of a lane with a bulk ring, of which a conversation uses a quarter.
fn ends_with_a_lap(block: &Block, room: &mut [Line]) -> (Producer<RawMemory>, Consumer<RawMemory>) {
    let (mut producer, mut consumer) = (Producer::claim(block.memory(), 1).unwrap(), Consumer::new(block.memory(), None));
    let lap = size_of_val(room) / 4;
    let ring = bulk(room).with_lap(lap);
    // SAFETY: the vector outlives both ends.
    unsafe { producer.offer_bulk(ring, 0) };
    // It reads the offer when it tells its progress.
    let _ = consumer.tell();
    assert_eq!(consumer.offered(), Some(0));
    // SAFETY: as above.
    unsafe { consumer.answer(Some(ring)) };
    producer.set_ways(Ways::of(0));
    // So much never fits, so the producer looks at the consumer's words, and finds the answer there.
    assert!(!producer.has_room(1 << 20, 16 << 10));
    (producer, consumer)
}

/// How far into the ring the first packet reaches.
fn reach(consumer: &Consumer<RawMemory>) -> u64 {
    let Peek::Packet(seen) = consumer.peek() else { panic!("a packet waits") };
    let Place::Bulk { at: place, .. } = seen.place else { panic!("it lies in the bulk ring, not at {:?}", seen.place) };
    place + seen.len as u64
}

/// Messages of `len` bytes, each of which the consumer reads after the next one is written. Returns how far into the ring they reach.
fn stream(producer: &mut Producer<RawMemory>, consumer: &mut Consumer<RawMemory>, numbers: Range<u32>, len: usize) -> u64 {
    let (first, mut reached) = (numbers.start, 0);
    for sequence in numbers {
        assert_eq!(push(producer, PacketKind::Whole, sequence, &message(sequence, len)), Push::Done);
        if sequence > first {
            reached = reach(consumer).max(reached);
            assert_eq!(pop(consumer).unwrap().1, message(sequence - 1, len));
        }
    }
    reached
}

#[test]
#[cfg_attr(miri, ignore = "too slow")]
fn a_conversation_uses_the_first_lap_of_a_bulk_ring_and_a_stream_all_of_it() {
    for len in [16 << 10, 8 << 10, 12_000] {
        let (block, mut room) = (Block::new(64, 64 << 10), bulk_room(256 << 10));
        let (mut producer, mut consumer) = ends_with_a_lap(&block, &mut room);
        let mut reached = 0;
        for sequence in 0..60 {
            assert_eq!(push(&mut producer, PacketKind::Whole, sequence, &message(sequence, len)), Push::Done);
            reached = reach(&consumer).max(reached);
            assert_eq!(pop(&mut consumer).unwrap().1, message(sequence, len));
        }
        assert!((48 << 10..=64 << 10).contains(&reached), "a conversation of {len} bytes reaches {reached}");
        reached = stream(&mut producer, &mut consumer, 60..160, len);
        assert!(reached > 224 << 10, "a stream of {len} bytes reaches {reached}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "too slow")]
fn a_message_longer_than_a_lap_begins_laps_while_it_is_read() {
    let (block, mut room) = (Block::new(64, 64 << 10), bulk_room(256 << 10));
    let (mut producer, mut consumer) = ends_with_a_lap(&block, &mut room);
    const PARTS: u32 = 20;
    let mut reached = 0;
    for sequence in 0..5 {
        for part in 0..=PARTS {
            let kind = if part == 0 { PacketKind::First } else { PacketKind::Next };
            let total = u64::from(PARTS) * BULK_LEAST as u64;
            if part < PARTS {
                assert_eq!(push_of(&mut producer, kind, sequence, &message(part, BULK_LEAST), total), Push::Done);
            }
            // The consumer is a part behind.
            if part > 0 {
                reached = reach(&consumer).max(reached);
                assert_eq!(pop(&mut consumer).unwrap().1, message(part - 1, BULK_LEAST));
            }
        }
    }
    assert!(reached <= 128 << 10, "it reaches {reached}");
}

#[test]
fn the_packets_of_a_message_longer_than_half_the_bulk_ring_are_known_as_long() {
    let (block, mut room) = (Block::new(64, 64 << 10), bulk_room(64 << 10));
    let (mut producer, mut consumer) = ends_with_a_lap(&block, &mut room);
    let mut known = |sequence, kind, total: usize| {
        assert_eq!(push_of(&mut producer, kind, sequence, &message(sequence, BULK_LEAST), total as u64), Push::Done);
        let Peek::Packet(seen) = consumer.peek() else { panic!("a packet waits") };
        // SAFETY: from the latest peek, and nothing is taken yet.
        let known = unsafe { consumer.payload(&seen) }.known();
        assert_eq!(pop(&mut consumer).unwrap().1, message(sequence, BULK_LEAST));
        known
    };
    for (sequence, total, expected) in
        [(0, 32 << 10, Known::Nothing), (1, (32 << 10) + 1, Known::Long), (2, 9000, Known::Nothing)]
    {
        for kind in [PacketKind::First, PacketKind::Next, PacketKind::Next] {
            assert_eq!(known(sequence, kind, total), expected, "{kind:?} of {total} bytes");
        }
    }
    // A whole message is not a part of the one before.
    assert_eq!(known(3, PacketKind::First, 1 << 20), Known::Long);
    assert_eq!(known(4, PacketKind::Whole, BULK_LEAST), Known::Nothing);
}

#[test]
fn a_long_message_of_a_thread_that_has_received_since_its_last_one_is_no_stream() {
    let (block, mut room) = (Block::new(64, 64 << 10), bulk_room(64 << 10));
    let (mut producer, mut consumer) = ends_with_a_lap(&block, &mut room);
    for sequence in 0..3 {
        for kind in [PacketKind::First, PacketKind::Next] {
            assert_eq!(push_of(&mut producer, kind, sequence, &message(sequence, BULK_LEAST), 2 * BULK_LEAST as u64), Push::Done);
            assert!(producer.is_stream());
        }
        for _ in 0..2 {
            assert_eq!(pop(&mut consumer).unwrap().1, message(sequence, BULK_LEAST));
        }
        assert!(!producer.is_stream());
    }
}

#[test]
#[cfg_attr(miri, ignore = "too slow")]
fn a_conversation_of_mixed_lengths_uses_the_first_lap_of_a_bulk_ring() {
    let (block, mut room) = (Block::new(64, 64 << 10), bulk_room(1 << 20));
    let (mut producer, mut consumer) = ends_with_a_lap(&block, &mut room);
    let mut reached = 0;
    for sequence in 0..300 {
        // Long ones follow short ones at many places of the ring.
        let len = BULK_LEAST + sequence as usize * 7919 % (24 << 10);
        assert_eq!(push(&mut producer, PacketKind::Whole, sequence, &message(sequence, len)), Push::Done);
        reached = reach(&consumer).max(reached);
        assert_eq!(pop(&mut consumer).unwrap().1, message(sequence, len));
    }
    assert!((224 << 10..=256 << 10).contains(&reached), "it reaches {reached}");
}

#[test]
#[cfg_attr(miri, ignore = "too slow")]
fn a_long_message_that_was_given_up_leaves_a_stream_the_whole_bulk_ring() {
    let (block, mut room) = (Block::new(64, 64 << 10), bulk_room(256 << 10));
    let (mut producer, mut consumer) = ends_with_a_lap(&block, &mut room);
    let part = message(0, BULK_LEAST);
    assert_eq!(push_of(&mut producer, PacketKind::First, 0, &part, 20 * part.len() as u64), Push::Done);
    assert_eq!(pop(&mut consumer).unwrap().1, part);
    assert_eq!(push_of(&mut producer, PacketKind::GivenUp, 0, &[], 0), Push::Done);
    assert_eq!(pop(&mut consumer).unwrap().0.kind, PacketKind::GivenUp);
    let reached = stream(&mut producer, &mut consumer, 0..60, BULK_LEAST);
    assert!(reached > 224 << 10, "it reaches {reached}");
}
