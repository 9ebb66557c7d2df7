//! Payloads that are copied while they are written.

use super::*;
use doorbell_fabric::copies::Copying;
use doorbell_fabric::sync::{AtomicU64, Ordering};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Bytes of a piece in the tests that write pieces by hand.
const PIECE: usize = 2048;

/// Memory of a lane whose producer does its next step whenever the consumer looks how much is written.
#[derive(Clone)]
struct Stepping {
    raw: RawMemory,
    steps: Rc<RefCell<VecDeque<Step>>>,
}

type Step = Box<dyn FnOnce(RawMemory)>;

impl LaneMemory for Stepping {
    fn cell_word(&self, cell: usize, index: usize) -> &AtomicU64 {
        let step = if index == word::WRITTEN { self.steps.borrow_mut().pop_front() } else { None };
        step.into_iter().for_each(|step| step(self.raw));
        self.raw.cell_word(cell, index)
    }

    fn control(&self, control: Control) -> &AtomicU64 {
        self.raw.control(control)
    }

    fn cell_count(&self) -> usize {
        self.raw.cell_count()
    }

    fn data_bytes(&self) -> usize {
        self.raw.data_bytes()
    }

    unsafe fn write_data(&self, offset: usize, src: *const u8, len: usize, way: Copying) {
        // SAFETY: caller.
        unsafe { self.raw.write_data(offset, src, len, way) };
    }

    unsafe fn read_data(&self, offset: usize, dst: *mut u8, len: usize) {
        // SAFETY: caller.
        unsafe { self.raw.read_data(offset, dst, len) };
    }
}

fn set(memory: RawMemory, index: usize, value: u64) {
    memory.cell_word(0, index).store(value, Ordering::Release);
}

/// Writes a piece.
fn write(memory: RawMemory, bytes: &[u8], number: usize) {
    let piece = &bytes[number * PIECE..][..PIECE];
    // SAFETY: a slice; the ring is longer.
    unsafe { memory.write_data(number * PIECE, piece.as_ptr(), PIECE, Copying::Loop) };
}

/// Publishes the first packet.
fn publish(memory: RawMemory, len: usize) {
    set(memory, word::CHECK, check_word(1, PacketKind::Whole as u8, len));
}

/// A lane whose first packet has `len` bytes, and of which one piece is written.
fn opened(block: &Block, len: usize) -> (RawMemory, Vec<u8>) {
    let (memory, bytes) = (block.memory(), message(0, len));
    write(memory, &bytes, 0);
    set(memory, word::PIECE, PIECE as u64);
    set(memory, word::WRITTEN, 1);
    set(memory, word::CHECK, check_word(1, OPENED, len));
    (memory, bytes)
}

/// Copies the first packet, which is opened. Returns whether it was published meanwhile.
fn copy<M: LaneMemory + Clone>(consumer: &mut Consumer<M>, into: &mut [u8]) -> bool {
    let Some(first) = consumer.watch(1, true, || ()) else { return false };
    assert_eq!(first.payload_bytes(), into.len());
    consumer.opened(first).is_some_and(|opened| consumer.copy_opened(&opened, into, 3))
}

#[test]
fn an_opened_packet_is_none_and_is_copied_as_far_as_it_is_written() {
    let (block, len) = (Block::new(16, 64 << 10), 16 << 10);
    let (memory, bytes) = opened(&block, len);
    write(memory, &bytes, 1);
    set(memory, word::WRITTEN, 2);
    let mut consumer = Consumer::new(memory, None);
    assert!(matches!(consumer.peek(), Peek::Opened(_)) && !consumer.is_ready() && !consumer.has_packet() && consumer.is_opened());
    let mut into = vec![0xee; len];
    assert!(!copy(&mut consumer, &mut into), "it is not published");
    assert!(into[..2 * PIECE] == bytes[..2 * PIECE] && into[2 * PIECE..].iter().all(|byte| *byte == 0xee));
    into.fill(0xee);
    assert!(!copy(&mut consumer, &mut into) && into[0] == 0xee, "a stopped sender is not waited for twice");
    assert!(consumer.watch(3, true, || ()).is_none() && !consumer.is_opened());
    for number in 2..len / PIECE {
        write(memory, &bytes, number);
    }
    publish(memory, len);
    assert_eq!(pop(&mut consumer).unwrap().1, bytes);
}

#[test]
fn forged_words_copy_no_more_than_the_payload_has() {
    let (block, len) = (Block::new(16, 64 << 10), 16 << 10);
    let (memory, _) = opened(&block, len);
    let mut into = vec![0xee; len];
    // More pieces than there are, and a packet of another length.
    set(memory, word::WRITTEN, u64::MAX);
    let steps = Rc::new(RefCell::new(VecDeque::from([Box::new(move |memory| publish(memory, len + 64)) as Step])));
    assert!(!copy(&mut Consumer::new(Stepping { raw: memory, steps }, None), &mut into));

    // A packet whose tag changes while it is copied.
    let (memory, bytes) = opened(&block, len);
    (1..len / PIECE).for_each(|number| write(memory, &bytes, number));
    let steps = |tag| {
        let step = move |memory| {
            set(memory, word::TAG, tag);
            publish(memory, len);
        };
        Rc::new(RefCell::new(VecDeque::from([Box::new(|_| ()) as Step, Box::new(step)])))
    };
    let mut consumer = Consumer::new(Stepping { raw: memory, steps: steps(1) }, None);
    assert!(!copy(&mut consumer, &mut into));
    assert!(consumer.watch(1, true, || ()).is_some_and(|first| !first.is_opened()), "it is examined anew");
    set(memory, word::CHECK, check_word(1, OPENED, len));
    assert!(!copy(&mut consumer, &mut into), "a producer that changes its mind is not waited for twice");
    let (memory, bytes) = opened(&block, len);
    let mut consumer = Consumer::new(Stepping { raw: memory, steps: steps(1) }, None);
    assert!(copy(&mut consumer, &mut into) && into == bytes, "the tag is as before");

    // Lengths of pieces that no producer states.
    for piece in [0, 64, PIECE as u64 + 1, u64::MAX] {
        let (memory, _) = opened(&block, len);
        set(memory, word::PIECE, piece);
        assert!(!copy(&mut Consumer::new(memory, None), &mut into), "{piece}");
    }
    // No producer opens a packet whose payload lies in the cell.
    set(memory, word::CHECK, check_word(1, OPENED, 8));
    assert!(!copy(&mut Consumer::new(memory, None), &mut [0; 8]));
}

#[test]
fn a_long_payload_is_announced_piece_by_piece() {
    let block = Block::new(16, 256 << 10);
    let memory = block.memory();
    let mut producer = Producer::claim(memory, 1).unwrap();
    // Behind the first packet, which has a time stamp.
    let lens = [(8, 0), (PIECES_LEAST - 1, 0), (PIECES_LEAST, PIECE), (12 << 10, PIECE), (64 << 10, PIECE)];
    for (cell, (len, piece)) in lens.into_iter().enumerate() {
        assert_eq!(push(&mut producer, PacketKind::Whole, cell as u32, &message(0, len)), Push::Done);
        let load = |index| memory.cell_word(cell, index).load(Ordering::Relaxed) as usize;
        if piece > 0 {
            assert_eq!((load(word::PIECE), load(word::WRITTEN)), (piece, len / piece - 1), "{len} bytes");
        }
    }
}

/// Both ends go on in turns. The copy may stop behind each of the pieces, and the message is whole all the same.
#[test]
fn a_copy_that_stops_harms_no_message() {
    let (block, len) = (Block::new(16, 64 << 10), 16 << 10);
    let count = len / PIECE;
    for stops_at in (1..=count).step_by(if cfg!(miri) { 4 } else { 1 }) {
        let (memory, bytes) = opened(&block, len);
        let mut steps: VecDeque<Step> = VecDeque::from([Box::new(|_| ()) as Step]);
        for number in 1..stops_at {
            let bytes = bytes.clone();
            steps.push_back(Box::new(move |memory| {
                write(memory, &bytes, number);
                set(memory, word::WRITTEN, number as u64 + 1);
            }));
        }
        let stepping = Stepping { raw: memory, steps: Rc::new(RefCell::new(steps)) };
        let mut consumer = Consumer::new(stepping, None);
        let mut into = vec![0; len];
        assert!(!copy(&mut consumer, &mut into));
        assert_eq!(into[..stops_at * PIECE], bytes[..stops_at * PIECE]);
        (stops_at..count).for_each(|number| write(memory, &bytes, number));
        publish(memory, len);
        let Peek::Packet(seen) = consumer.peek() else { panic!("no packet, stopped at {stops_at}") };
        into.fill(0);
        // SAFETY: from the latest peek; the vector is long enough.
        unsafe { consumer.copy_out(&seen, into.as_mut_ptr()) };
        assert!(into == bytes, "stopped at {stops_at}");
    }
}

#[test]
fn a_payload_is_right_if_it_is_copied_while_it_is_written() {
    let block = Block::new(16, 256 << 10);
    let (memory, count) = (block.memory(), if cfg!(miri) { 4 } else { 3000 });
    let lens = [PIECES_LEAST, PIECES_LEAST + 1, 32 << 10, 33_333, 64 << 10];
    let mut producer = Producer::claim(memory, 1).unwrap();
    producer.set_ways(Ways::always_short());
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
        // Few looks end in the middle of a message.
        let looks = [1, 20, 1000][sequence as usize % 3];
        loop {
            let Some(first) = consumer.watch(100, true, std::thread::yield_now) else { continue };
            if let Some(opened) = consumer.opened(first)
                && consumer.copy_opened(&opened, &mut into[..len], looks)
            {
                let _ = consumer.take_from(opened.place, len);
                break;
            }
            if let Some((_, bytes)) = pop(&mut consumer) {
                into[..len].copy_from_slice(&bytes);
                break;
            }
        }
        assert!(into[..len] == message(sequence, len), "message {sequence}");
    }
    sender.join().unwrap();
}

/// A producer may write each piece as late as it likes, and holds its consumer for a bounded time.
#[test]
fn late_pieces_take_a_bounded_time() {
    let (block, len) = (Block::new(16, 256 << 10), 64 << 10);
    let (memory, _) = opened(&block, len);
    const LOOKS: u32 = 30;
    // One piece just before the looks for it have run out.
    let late = |number: u64| {
        let step = move |memory| set(memory, word::WRITTEN, number);
        (1..LOOKS).map(|_| Box::new(|_| ()) as Step).chain([Box::new(step) as Step])
    };
    let steps: VecDeque<Step> = (2..=32).flat_map(late).collect();
    let (steps, all) = (Rc::new(RefCell::new(steps)), 31 * LOOKS as usize);
    let mut consumer = Consumer::new(Stepping { raw: memory, steps: steps.clone() }, None);
    let opened = consumer.opened(consumer.watch(1, true, || ()).unwrap()).unwrap();
    assert!(!consumer.copy_opened(&opened, &mut vec![0; len], LOOKS));
    let looks = all - steps.borrow().len();
    assert!((LOOKS as usize..4 * LOOKS as usize).contains(&looks), "{looks}");
}
