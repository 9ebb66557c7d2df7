//! Payloads that are copied while they are written.

use super::*;
use doorbell_fabric::sync::{AtomicU64, Ordering};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Bytes of a piece in the tests that write pieces by hand, and pieces of a window.
const PIECE: usize = 2048;
const WINDOW: usize = 4;

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

    unsafe fn write_data(&self, offset: usize, src: *const u8, len: usize) {
        // SAFETY: caller.
        unsafe { self.raw.write_data(offset, src, len) };
    }

    unsafe fn read_data(&self, offset: usize, dst: *mut u8, len: usize) {
        // SAFETY: caller.
        unsafe { self.raw.read_data(offset, dst, len) };
    }
}

fn set(memory: RawMemory, index: usize, value: u64) {
    memory.cell_word(0, index).store(value, Ordering::Release);
}

/// Writes a piece at this place of the ring.
fn write(memory: RawMemory, bytes: &[u8], number: usize, at: usize) {
    let piece = &bytes[number * PIECE..][..PIECE];
    // SAFETY: a slice; the ring is longer.
    unsafe { memory.write_data(at * PIECE, piece.as_ptr(), PIECE) };
}

/// Publishes the first packet.
fn publish(memory: RawMemory, len: usize) {
    set(memory, word::CHECK, check_word(1, PacketKind::Whole as u8, len));
}

/// A lane whose first packet has `len` bytes, and of which one piece is written.
fn opened(block: &Block, len: usize) -> (RawMemory, Vec<u8>) {
    let (memory, bytes) = (block.memory(), message(0, len));
    write(memory, &bytes, 0, 0);
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
    write(memory, &bytes, 1, 1);
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
        write(memory, &bytes, number, number);
    }
    publish(memory, len);
    assert_eq!(pop(&mut consumer).unwrap().1, bytes);
}

#[test]
fn forged_words_copy_no_more_than_the_payload_has() {
    let (block, len) = (Block::new(16, 64 << 10), 16 << 10);
    let (memory, _) = opened(&block, len);
    let mut into = vec![0xee; len];
    // More pieces than there are, each in the window, and a packet of another length.
    set(memory, word::WRITTEN, u64::MAX);
    set(memory, word::MAP, u64::MAX);
    let steps = Rc::new(RefCell::new(VecDeque::from([Box::new(move |memory| publish(memory, len + 64)) as Step])));
    assert!(!copy(&mut Consumer::new(Stepping { raw: memory, steps }, None), &mut into));

    // A packet whose tag changes while it is copied.
    let (memory, bytes) = opened(&block, len);
    (1..len / PIECE).for_each(|number| write(memory, &bytes, number, number));
    let steps = |tag| {
        let step = move |memory| {
            set(memory, word::TAG, tag);
            publish(memory, len);
        };
        Rc::new(RefCell::new(VecDeque::from([Box::new(|_| ()) as Step, Box::new(step)])))
    };
    set(memory, word::MAP, 0);
    let mut consumer = Consumer::new(Stepping { raw: memory, steps: steps(1) }, None);
    assert!(!copy(&mut consumer, &mut into));
    assert!(consumer.watch(1, true, || ()).is_some_and(FirstWord::is_whole), "it is examined anew");
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
    let lens = [(8, 0), (PIECES_LEAST - 1, 0), (PIECES_LEAST, 1 << 10), (12 << 10, PIECE), (64 << 10, PIECE)];
    for (cell, (len, piece)) in lens.into_iter().enumerate() {
        assert_eq!(push(&mut producer, PacketKind::Whole, cell as u32, &message(0, len)), Push::Done);
        let load = |index| memory.cell_word(cell, index).load(Ordering::Relaxed) as usize;
        if piece > 0 {
            assert_eq!((load(word::PIECE), load(word::WRITTEN)), (piece, len / piece - 1), "{len} bytes");
        }
        assert_eq!(load(word::MAP), 0, "{len} bytes: nobody copies");
    }
}

/// A consumer that claims to have copied everything gets the last pieces in the window. Only it can be harmed by that.
#[test]
fn later_pieces_lie_in_the_window_while_the_consumer_copies() {
    let (block, len) = (Block::new(16, 64 << 10), 16 << 10);
    let (memory, bytes) = (block.memory(), message(2, len));
    let mut producer = Producer::claim(memory, 1).unwrap();
    assert_eq!(push(&mut producer, PacketKind::Whole, 0, b"with a time stamp"), Push::Done);
    let mut consumer = Consumer::new(memory, None);
    pop(&mut consumer).unwrap();
    memory.control(Control::Copied).store(2 << 8 | 60, Ordering::Relaxed);
    assert_eq!(push(&mut producer, PacketKind::Whole, 1, &bytes), Push::Done);
    assert_eq!(memory.cell_word(1, word::MAP).load(Ordering::Relaxed), 0xf0);
    let found = pop(&mut consumer).unwrap().1;
    assert!(found[..WINDOW * PIECE] == bytes[WINDOW * PIECE..] && found[WINDOW * PIECE..].iter().all(|byte| *byte == 0));
    // What it said of another packet does not count.
    assert_eq!(push(&mut producer, PacketKind::Whole, 2, &bytes), Push::Done);
    assert_eq!(pop(&mut consumer).unwrap().1, bytes);
}

/// Both ends go on in turns. The copy may stop behind each of the pieces, and the message is whole all the same.
#[test]
fn a_copy_that_stops_is_put_together_once_its_message_is_published() {
    let (block, len) = (Block::new(16, 64 << 10), 16 << 10);
    let count = len / PIECE;
    for stops_at in (1..=count).step_by(if cfg!(miri) { 4 } else { 1 }) {
        let (memory, bytes) = opened(&block, len);
        set(memory, word::MAP, 0);
        let mut map = 0_u64;
        let mut place = |number: usize, seen: usize| {
            let in_window = number >= WINDOW && seen + WINDOW > number;
            map |= u64::from(in_window) << number;
            (map, if in_window { number % WINDOW } else { number })
        };
        let mut steps: VecDeque<Step> = VecDeque::from([Box::new(|_| ()) as Step]);
        for number in 1..stops_at {
            // The consumer has announced all that it copied, but for its first look.
            let (bytes, (map, at)) = (bytes.clone(), place(number, if number > 1 { number } else { 0 }));
            steps.push_back(Box::new(move |memory| {
                write(memory, &bytes, number, at);
                set(memory, word::MAP, map);
                set(memory, word::WRITTEN, number as u64 + 1);
            }));
        }
        let stepping = Stepping { raw: memory, steps: Rc::new(RefCell::new(steps)) };
        let mut consumer = Consumer::new(stepping, None);
        let mut into = vec![0; len];
        assert!(!copy(&mut consumer, &mut into));
        assert_eq!(into[..stops_at * PIECE], bytes[..stops_at * PIECE]);
        // The producer still sees all announcements.
        let copied = memory.control(Control::Copied).swap(0, Ordering::Relaxed);
        assert_eq!(copied, if stops_at > 1 { 1 << 8 | stops_at as u64 } else { 0 });
        for number in stops_at..count {
            let (map, at) = place(number, copied as u8 as usize);
            write(memory, &bytes, number, at);
            set(memory, word::MAP, map);
        }
        publish(memory, len);
        if copied > 0 {
            assert!(consumer.has_packet() && consumer.is_ready() && matches!(consumer.peek(), Peek::Kept));
            consumer.settle();
        }
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
            if matches!(consumer.peek(), Peek::Kept) {
                consumer.settle();
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

/// A producer that publishes another packet in place of the one that it opened damages only its own message.
#[test]
fn kept_pieces_do_not_get_into_another_message() {
    let (block, len) = (Block::new(16, 64 << 10), 16 << 10);
    for other in if cfg!(miri) { vec![len] } else { vec![8, SERIES_BYTES, len] } {
        let (memory, bytes) = opened(&block, len);
        let steps: [Step; 2] = [Box::new(|_| ()), Box::new(|memory| set(memory, word::WRITTEN, 3))];
        let steps = Rc::new(RefCell::new(VecDeque::from(steps)));
        let mut consumer = Consumer::new(Stepping { raw: memory, steps }, None);
        assert!(!copy(&mut consumer, &mut vec![0; len]));
        assert_ne!(memory.control(Control::Copied).load(Ordering::Relaxed), 0, "it has announced that it copies");
        set(memory, word::CHECK, check_word(1, PacketKind::Whole as u8, other));
        if matches!(consumer.peek(), Peek::Kept) {
            consumer.settle();
        }
        let Peek::Packet(seen) = consumer.peek() else { panic!("no packet of {other} bytes") };
        let _ = consumer.take(&seen);
        // The next message has the length of the first one, and none of its bytes.
        let next = message(9, len);
        // SAFETY: a slice; the ring is longer.
        unsafe { memory.write_data(0, next.as_ptr(), len) };
        let cell = |index, value| memory.cell_word(1, index).store(value, Ordering::Release);
        cell(word::PLACE, 0);
        cell(word::SEQUENCE, 0);
        cell(word::CHECK, check_word(2, PacketKind::Whole as u8, len));
        let Peek::Packet(seen) = consumer.peek() else { panic!("no packet behind one of {other} bytes") };
        let mut into = vec![0; len];
        // SAFETY: from the latest peek; the vector is long enough.
        unsafe { consumer.copy_out(&seen, into.as_mut_ptr()) };
        assert!(into == next && bytes != next);
        memory.cell_word(1, word::CHECK).store(0, Ordering::Relaxed);
    }
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
