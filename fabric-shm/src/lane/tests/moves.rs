//! Lanes that begin in a small ring and go on in the full one.

use super::*;

#[test]
fn a_lane_goes_on_in_its_full_ring_with_nothing_lost_and_the_next_begins_small() {
    let block = Block::new(64, 16 << 10);
    let mut consumer = Consumer::new(block.first(), Some(block.memory()));
    for incarnation in 1..=if cfg!(miri) { 2 } else { 3 } {
        let mut producer = Producer::claim(block.first(), incarnation).unwrap();
        let (mut sent, mut read, mut moved) = (0, 0, false);
        while read < if cfg!(miri) { 60 } else { 500 } {
            let len = [8, 200, 40, 1000, 64][sent as usize % 5];
            match push(&mut producer, PacketKind::Whole, sent, &message(sent, len)) {
                Push::Done => sent += 1,
                Push::Full if !moved => {
                    assert!(producer.move_to(block.memory()));
                    moved = true;
                }
                // The consumer is behind by a ring.
                _ => {
                    let (head, bytes) = followed(&mut consumer).expect("the ring is full");
                    assert_eq!((head.sequence, bytes.len()), (read, [8, 200, 40, 1000, 64][read as usize % 5]));
                    assert_eq!(bytes, message(read, bytes.len()));
                    read += 1;
                }
            }
        }
        while followed(&mut consumer).is_some() {}
        assert!(moved && producer.data_bytes() == 16 << 10);
        consumer.reset();
    }
}

#[test]
fn a_lane_moves_once_and_only_where_it_can() {
    let block = Block::new(64, 16 << 10);
    let mut producer = Producer::claim(block.first(), 1).unwrap();
    let mut alone = Consumer::new(block.first(), None);
    assert!(producer.move_to(block.memory()));
    assert!(matches!(alone.peek(), Peek::Damaged(_)), "this end knows no larger ring");
    alone.follow();
    assert_eq!(alone.taken(), 0);
    let mut consumer = Consumer::new(block.first(), Some(block.memory()));
    assert!(matches!(consumer.peek(), Peek::Moved));
    consumer.follow();
    assert!(matches!(consumer.peek(), Peek::Empty));
    // A producer that breaks the rules says it again in the full ring.
    let word = block.memory();
    word.cell_word(1, word::CHECK).store(check_word(2, MOVED, 0), doorbell_fabric::sync::Ordering::Release);
    assert!(matches!(consumer.peek(), Peek::Damaged(_)));
}

#[test]
fn a_message_that_was_given_up_behind_a_move_is_skipped() {
    for parts_before in 1..4 {
        let block = Block::new(64, 16 << 10);
        let mut producer = Producer::claim(block.first(), 1).unwrap();
        let mut consumer = Consumer::new(block.first(), Some(block.memory()));
        for part in 0..4 {
            let kind = if part == 0 { PacketKind::First } else { PacketKind::Next };
            if part == parts_before {
                assert!(producer.move_to(block.memory()));
            }
            assert_eq!(push_of(&mut producer, kind, 0, &[part; 100], 1000), Push::Done);
            assert!(!consumer.skip_given_up(), "the rest may still come");
        }
        assert_eq!(push_of(&mut producer, PacketKind::GivenUp, 0, &[], 0), Push::Done);
        assert!(consumer.skip_given_up());
        let Peek::Packet(seen) = consumer.peek() else { panic!("what gave it up comes next") };
        assert_eq!(seen.head.kind, PacketKind::GivenUp);
    }
}

#[test]
fn a_full_first_ring_has_a_cell_for_the_move_and_the_full_ring_one_for_giving_up() {
    // As few cells as a domain can have.
    let block = Block::new(16, 16 << 10);
    let mut producer = Producer::claim(block.first(), 1).unwrap();
    let mut sequence = 0;
    while push_of(&mut producer, PacketKind::First, sequence, b"part", 1000) == Push::Done {
        sequence += 1;
    }
    assert!(sequence > 2 && producer.move_to(block.memory()));
    assert_eq!(push_of(&mut producer, PacketKind::GivenUp, sequence, &[], 0), Push::Done);
}
