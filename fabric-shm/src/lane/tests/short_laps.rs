//! Conversations that use the same few KiB of the data ring again and again.

use super::*;
use doorbell_fabric::sync::Ordering;

/// The length of each message.
const LEN: usize = 2048;

/// Sends a message. Returns where it lies in the data ring.
fn send(producer: &mut Producer<RawMemory>, memory: RawMemory, sequence: u32) -> Option<u64> {
    let pushed = push(producer, PacketKind::Whole, sequence, &message(sequence, LEN));
    let cell = sequence as usize & (memory.cell_count() - 1);
    (pushed == Push::Done).then(|| memory.cell_word(cell, word::PLACE).load(Ordering::Relaxed) & !63)
}

// Miri would take a minute for its bytes, and watches other tests that fill a ring.
#[test]
#[cfg_attr(miri, ignore)]
fn a_conversation_stays_in_a_few_kib_and_a_burst_has_the_whole_ring() {
    let block = Block::new(256, 256 << 10);
    let memory = block.memory();
    let mut producer = Producer::claim(memory, 1).unwrap();
    producer.set_ways(Ways::always_short());
    let mut consumer = Consumer::new(memory, None);
    let mut places = Vec::new();
    for sequence in 0..20 {
        places.push(send(&mut producer, memory, sequence).unwrap());
        assert_eq!(pop(&mut consumer).unwrap().1, message(sequence, LEN));
    }
    assert!(places.iter().all(|place| *place < 8 << 10), "{places:?}");
    let burst = (20..).take_while(|sequence| send(&mut producer, memory, *sequence).is_some()).count();
    assert!(burst * LEN > 240 << 10, "{burst}");
    for sequence in 20..20 + burst as u32 {
        assert_eq!(pop(&mut consumer).unwrap().1, message(sequence, LEN));
    }
    // The longest packet, after everything was read.
    let long = message(1000, 64 << 10);
    assert_eq!(push(&mut producer, PacketKind::Whole, 1000, &long), Push::Done);
    assert_eq!(pop(&mut consumer).unwrap().1, long);
}

#[test]
fn a_lane_that_was_read_has_room_for_half_a_ring_in_packets() {
    for data_bytes in [16 << 10, 32 << 10, 256 << 10_usize] {
        let block = Block::new(256, data_bytes as u32);
        let mut producer = Producer::claim(block.memory(), 1).unwrap();
        let mut consumer = Consumer::new(block.memory(), None);
        for sequence in 0..if cfg!(miri) { 10 } else { 500 } {
            let len = [100, 3000, 1000, 4000][sequence as usize % 4];
            assert_eq!(push(&mut producer, PacketKind::Whole, sequence, &message(sequence, len)), Push::Done);
            pop(&mut consumer).unwrap();
            assert!(producer.has_room(data_bytes / 2, packet_bytes(data_bytes).min(16 << 10)), "{data_bytes} {sequence}");
        }
    }
}
