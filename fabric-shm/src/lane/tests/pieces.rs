//! Payloads that are copied while they are written.

use super::*;
use doorbell_fabric::sync::Ordering;

#[test]
fn an_opened_packet_is_none_and_is_copied_as_far_as_it_is_written() {
    let len = 16 << 10;
    let block = Block::new(16, 64 << 10);
    let (memory, bytes) = (block.memory(), message(0, len));
    let _producer = Producer::claim(memory, 1).unwrap();
    let mut consumer = Consumer::new(memory, None);
    let set = |index, value| memory.cell_word(0, index).store(value, Ordering::Release);
    // SAFETY: a slice that is shorter than the ring.
    unsafe { memory.write_data(0, bytes.as_ptr(), len, Default::default()) };
    set(word::WRITTEN, 4096);
    set(word::CHECK, check_word(1, OPENED, len));
    assert!(matches!(consumer.peek(), Peek::Empty) && !consumer.is_ready() && !consumer.has_packet());
    let first = consumer.watch(1, true, || ()).unwrap();
    assert!(first.is_opened() && !first.is_whole() && first.payload_bytes() == len);
    let place = consumer.place(len, false).unwrap();
    let copy = |consumer: &mut Consumer<RawMemory>, into: &mut [u8]| {
        assert_eq!(into.len(), len);
        // SAFETY: the first packet's place; the slice has as many bytes.
        unsafe { consumer.copy_opened(place, len, into.as_mut_ptr(), 3) }
    };
    let mut into = vec![0xee; len];
    assert!(!copy(&mut consumer, &mut into), "it is not published");
    assert!(into[..4096] == bytes[..4096] && into[4096..].iter().all(|byte| *byte == 0xee));
    into.fill(0xee);
    assert!(!copy(&mut consumer, &mut into) && into[0] == 0xee, "a stopped sender is not waited for twice");

    // Forged numbers: more bytes than the payload has, and a packet of another length.
    consumer.reset();
    set(word::WRITTEN, u64::MAX);
    set(word::CHECK, check_word(1, PacketKind::Whole as u8, len + 64));
    assert!(!copy(&mut consumer, &mut into) && into == bytes);

    consumer.reset();
    set(word::CHECK, check_word(1, PacketKind::Whole as u8, len));
    into.fill(0xee);
    assert!(copy(&mut consumer, &mut into) && into == bytes);
    assert_eq!(pop(&mut consumer).unwrap().1, bytes);

    // Nobody opens what lies in its cell, so such a packet cannot pass off what is in the buffer as a message.
    consumer.reset();
    set(word::CHECK, check_word(1, PacketKind::Whole as u8, 8));
    // SAFETY: the vector is long enough.
    assert!(!unsafe { consumer.copy_opened(Place::Inline, 8, into.as_mut_ptr(), 3) });
}

#[test]
fn a_long_payload_is_announced_piece_by_piece() {
    let block = Block::new(16, 256 << 10);
    let memory = block.memory();
    let mut producer = Producer::claim(memory, 1).unwrap();
    // Behind the first packet, which has a time stamp.
    for (cell, len) in [(0, 8), (1, PIECES_LEAST - 1), (2, PIECES_LEAST), (3, 64 << 10)] {
        assert_eq!(push(&mut producer, PacketKind::Whole, cell as u32, &message(0, len)), Push::Done);
        let announced = memory.cell_word(cell, word::WRITTEN).load(Ordering::Relaxed) as usize;
        let all_but_one = len.div_ceil(piece_bytes(len)).saturating_sub(1) * piece_bytes(len);
        assert_eq!(announced, if len < PIECES_LEAST { 0 } else { all_but_one }, "{len} bytes");
    }
}

#[test]
fn a_payload_is_right_if_it_is_copied_while_it_is_written() {
    let block = Block::new(16, 256 << 10);
    let (memory, count) = (block.memory(), if cfg!(miri) { 3 } else { 2000 });
    let lens = [PIECES_LEAST, PIECES_LEAST + 1, 32 << 10, 33_333, 64 << 10];
    let mut producer = Producer::claim(memory, 1).unwrap();
    let mut consumer = Consumer::new(memory, None);
    let sender = std::thread::spawn(move || {
        for sequence in 0..count {
            let bytes = message(sequence, lens[sequence as usize % lens.len()]);
            while push(&mut producer, PacketKind::Whole, sequence, &bytes) != Push::Done {
                std::thread::yield_now();
            }
        }
    });
    let mut into = vec![0; 64 << 10];
    for sequence in 0..count {
        let len = lens[sequence as usize % lens.len()];
        let taken = loop {
            let Some(first) = consumer.watch(100, true, std::thread::yield_now) else { continue };
            let place = consumer.place(len, false).unwrap();
            // SAFETY: the first packet's place; the vector is long enough.
            if first.is_opened() && unsafe { consumer.copy_opened(place, len, into.as_mut_ptr(), 1000) } {
                break consumer.take_from(place, len);
            }
            if let Some((_, bytes)) = pop(&mut consumer) {
                into[..len].copy_from_slice(&bytes);
                break false;
            }
        };
        let _ = taken;
        assert!(into[..len] == message(sequence, len), "message {sequence}");
    }
    sender.join().unwrap();
}
