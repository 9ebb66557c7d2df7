//! The lane under loom: every interleaving and every allowed reordering of a few packets.

use super::consumer::run::Behind;
use super::*;
use doorbell_fabric::copies::Copying;
use doorbell_fabric::sync::{AtomicU64, Ordering};
use doorbell_fabric::{PacketHead, PacketKind, Push};
use std::sync::Arc;

/// Lane memory that loom observes.
struct LoomMemory {
    words: Vec<AtomicU64>,
    controls: Arc<Vec<AtomicU64>>,
    data: Vec<loom::cell::UnsafeCell<u8>>,
}

impl LoomMemory {
    /// A lane of a few cells and bytes.
    fn new(cells: usize, data_bytes: usize) -> Self {
        Self {
            words: (0..cells * word::COUNT).map(|_| AtomicU64::new(0)).collect(),
            controls: Arc::new((0..=Control::Bulk as usize).map(|_| AtomicU64::new(0)).collect()),
            // One observed byte stands for a whole cache line. That is enough to detect two sides that touch it at once.
            data: (0..data_bytes / 64).map(|_| loom::cell::UnsafeCell::new(0)).collect(),
        }
    }

    /// A larger ring of the same lane.
    fn larger(&self, cells: usize, data_bytes: usize) -> Self {
        Self { controls: self.controls.clone(), ..Self::new(cells, data_bytes) }
    }
}

/// The same for a producer that copies it.
#[derive(Clone, Copy)]
struct Leaked(&'static Arc<LoomMemory>);

impl LaneMemory for Arc<LoomMemory> {
    fn cell_word(&self, cell: usize, word: usize) -> &AtomicU64 {
        &self.words[cell * word::COUNT + word]
    }

    fn control(&self, control: Control) -> &AtomicU64 {
        &self.controls[control as usize]
    }

    fn cell_count(&self) -> usize {
        self.words.len() / word::COUNT
    }

    fn data_bytes(&self) -> usize {
        self.data.len() * 64
    }

    unsafe fn write_data(&self, offset: usize, src: *const u8, len: usize, _way: Copying) {
        for line in 0..len.div_ceil(64) {
            // SAFETY: readable (caller).
            self.data[offset / 64 + line].with_mut(|byte| unsafe { *byte = *src.add(line * 64) });
        }
    }

    unsafe fn read_data(&self, offset: usize, dst: *mut u8, len: usize) {
        for line in 0..len.div_ceil(64) {
            // SAFETY: writable (caller).
            self.data[offset / 64 + line].with(|byte| unsafe { *dst.add(line * 64) = *byte });
        }
    }
}

impl LaneMemory for Leaked {
    fn cell_word(&self, cell: usize, word: usize) -> &AtomicU64 {
        self.0.cell_word(cell, word)
    }

    fn control(&self, control: Control) -> &AtomicU64 {
        self.0.control(control)
    }

    fn cell_count(&self) -> usize {
        self.0.cell_count()
    }

    fn data_bytes(&self) -> usize {
        self.0.data_bytes()
    }

    unsafe fn write_data(&self, offset: usize, src: *const u8, len: usize, way: Copying) {
        // SAFETY: caller.
        unsafe { self.0.write_data(offset, src, len, way) };
    }

    unsafe fn read_data(&self, offset: usize, dst: *mut u8, len: usize) {
        // SAFETY: caller.
        unsafe { self.0.read_data(offset, dst, len) };
    }
}

fn exchange(cells: usize, data_bytes: usize, lens: &'static [usize]) {
    loom::model(move || {
        let memory = Arc::new(LoomMemory::new(cells, data_bytes));
        let mut producer = Producer::claim(memory.clone(), 1).unwrap();
        let mut consumer = Consumer::new(memory, None);
        let sender = loom::thread::spawn(move || {
            for (sequence, len) in lens.iter().enumerate() {
                let bytes = [sequence as u8 + 1; 64];
                let head = PacketHead {
                    kind: PacketKind::Whole,
                    tag: 100 + sequence as u64,
                    sequence: sequence as u32,
                    total: *len as u64,
                };
                // SAFETY: 64 readable bytes, at least `len`.
                while unsafe { producer.push(&head, bytes.as_ptr(), *len) } != Push::Done {
                    loom::thread::yield_now();
                }
            }
        });
        for (sequence, len) in lens.iter().enumerate() {
            let seen = loop {
                match consumer.peek() {
                    Peek::Packet(seen) => break seen,
                    Peek::Empty | Peek::Opened(_) => loom::thread::yield_now(),
                    Peek::Moved => panic!("there is no larger ring"),
                    Peek::Damaged(what) => panic!("{what}"),
                }
            };
            let mut bytes = [0; 64];
            // SAFETY: from the latest peek; 64 bytes are enough.
            unsafe { consumer.copy_out(&seen, bytes.as_mut_ptr()) };
            assert_eq!((seen.head.sequence, seen.head.tag, seen.len), (sequence as u32, 100 + sequence as u64, *len));
            assert_eq!(bytes[0], sequence as u8 + 1);
            let _ = consumer.take(&seen);
            consumer.tell();
        }
        sender.join().unwrap();
    });
}

/// Small packets. Two of four cells may be full.
#[test]
fn small_packets_arrive_whole() {
    exchange(4, 128, &[8, 8, 8]);
}

/// Packets through the data ring, which is overwritten once.
#[test]
fn data_packets_arrive_whole() {
    exchange(4, 128, &[64, 64, 64]);
}

/// The same in short laps: where a packet was read in time, the next one lies there, too.
#[test]
fn packets_of_short_laps_arrive_whole() {
    exchange(4, 256, &[64, 64, 64]);
}

/// Three messages of a series, of which two are a bundle.
#[test]
fn bundles_arrive_whole() {
    loom::model(|| {
        let memory = Arc::new(LoomMemory::new(4, 256));
        let mut producer = Producer::claim(Leaked(Box::leak(Box::new(memory.clone()))), 1).unwrap();
        let mut consumer = Consumer::new(memory, None);
        let sender = loom::thread::spawn(move || {
            let bytes = [[1; 64], [2; 64], [3; 64]];
            let messages = [(7, &bytes[0][..]), (7, &bytes[1]), (7, &bytes[2])];
            assert_eq!(producer.push_series(0, &messages[..]), (2, 128));
            let head = PacketHead { kind: PacketKind::Whole, tag: 7, sequence: 2, total: 64 };
            // SAFETY: an array of 64 bytes.
            assert_eq!(unsafe { producer.push(&head, bytes[2].as_ptr(), 64) }, Push::Done);
        });
        let mut taken = 0_u8;
        let mut take = |consumer: &mut Consumer<_>| {
            while let Peek::Packet(seen) = consumer.peek() {
                let mut bytes = [0; 64];
                // SAFETY: from the latest peek; 64 bytes are enough.
                unsafe { consumer.copy_out(&seen, bytes.as_mut_ptr()) };
                taken += 1;
                assert_eq!((seen.len, seen.head.tag, seen.head.sequence, bytes[0]), (64, 7, u32::from(taken) - 1, taken));
                let _ = consumer.take(&seen);
            }
            taken
        };
        take(&mut consumer);
        sender.join().unwrap();
        assert_eq!(take(&mut consumer), 3);
    });
}

/// Takes what is there of messages of these tags and lengths.
fn take_run(consumer: &mut Consumer<Arc<LoomMemory>>, messages: &[(u64, usize)], taken: &mut u32) {
    loop {
        // Both ways to look.
        let behind = consumer.look_behind();
        let Peek::Packet(seen) = consumer.peek() else { return assert!(matches!(behind, Behind::Other(_))) };
        match behind {
            Behind::Appended(len) => assert_eq!((seen.place, seen.len), (Place::Appended, len)),
            Behind::Continued(len) => assert_eq!((seen.place, seen.len), (Place::Continued, len)),
            Behind::Detached(len) => assert!(matches!(seen.place, Place::Detached(_)) && seen.len == len),
            Behind::Other(_) => {}
        }
        let mut words = [0_u64; 8];
        // SAFETY: from the latest peek; 64 bytes are enough.
        unsafe { consumer.copy_out(&seen, words.as_mut_ptr().cast()) };
        let (tag, len) = messages[*taken as usize];
        assert_eq!((seen.len, seen.head.tag, seen.head.sequence), (len, tag, *taken));
        *taken += 1;
        // Of the data ring, this memory has the first byte of each line.
        assert_eq!((words[0], words[1]), (u64::from(*taken), if len == 16 { u64::from(*taken) } else { 0 }));
        let _ = consumer.take(&seen);
    }
}

/// Messages of these tags and lengths, which take so many cells.
fn run(messages: &'static [(u64, usize)], cells: u64) {
    loom::model(move || {
        let memory = Arc::new(LoomMemory::new(4, 256));
        // Left there by an earlier producer: the same message as the one that is appended.
        memory.cell_word(0, word::PAYLOAD + 1).store(check_word(1, APPENDED, messages[1].1), Ordering::Relaxed);
        let mut producer = Producer::claim(Leaked(Box::leak(Box::new(memory.clone()))), 1).unwrap();
        let mut consumer = Consumer::new(memory, None);
        let sender = loom::thread::spawn(move || {
            for (sequence, (tag, len)) in messages.iter().enumerate() {
                let words = [sequence as u64 + 1; 8];
                // SAFETY: an array of 64 bytes.
                assert!(unsafe { producer.push_whole(*tag, sequence as u32, words.as_ptr().cast(), *len) });
            }
            assert_eq!(producer.pushed(), cells);
        });
        let mut taken = 0;
        take_run(&mut consumer, messages, &mut taken);
        sender.join().unwrap();
        take_run(&mut consumer, messages, &mut taken);
        assert_eq!(taken, messages.len() as u32);
    });
}

/// Two messages in one cell, and one of another tag in the next.
#[test]
fn a_run_that_ends_arrives_whole() {
    run(&[(7, 8), (7, 8), (8, 8)], 2);
}

/// Two messages in one cell, where there is no room for the third.
#[test]
fn a_run_that_is_continued_arrives_whole() {
    run(&[(7, 8), (7, 8), (7, 16)], 2);
}

/// Two messages whose payloads lie in the data ring.
#[test]
fn a_run_of_detached_messages_arrives_whole() {
    run(&[(7, 64), (7, 64)], 2);
}

/// A payload in three pieces, which the consumer copies while they are written.
#[test]
fn pieces_arrive_whole() {
    loom::model(|| {
        let memory = Arc::new(LoomMemory::new(4, 256));
        let mut producer = Producer::claim(memory.clone(), 1).unwrap();
        let mut consumer = Consumer::new(memory, None);
        let sender = loom::thread::spawn(move || {
            let mut bytes = [1; PIECES_LEAST];
            (bytes[64], bytes[128]) = (2, 3);
            let head = PacketHead { kind: PacketKind::Whole, tag: 7, sequence: 0, total: PIECES_LEAST as u64 };
            // SAFETY: as many readable bytes.
            assert_eq!(unsafe { producer.push(&head, bytes.as_ptr(), PIECES_LEAST) }, Push::Done);
        });
        let mut bytes = [0; PIECES_LEAST];
        if let Some(opened) = consumer.watch(1, true, || ()).and_then(|first| consumer.opened(first)) {
            assert_eq!((opened.len, opened.tag, opened.sequence), (PIECES_LEAST, 7, 0));
            if consumer.copy_opened(&opened, &mut bytes, 2) {
                assert_eq!((bytes[0], bytes[64], bytes[128]), (1, 2, 3));
                sender.join().unwrap();
                return;
            }
        }
        sender.join().unwrap();
        // The packet is there by now, whatever was copied before.
        let Peek::Packet(seen) = consumer.peek() else { panic!("no packet") };
        // SAFETY: from the latest peek; the array has as many bytes.
        unsafe { consumer.copy_out(&seen, bytes.as_mut_ptr()) };
        assert_eq!((seen.len, bytes[0], bytes[64], bytes[128]), (PIECES_LEAST, 1, 2, 3));
    });
}

/// A lane whose data ring is full moves to a larger one, with packets before and behind that.
#[test]
fn packets_arrive_whole_over_a_move() {
    loom::model(|| {
        let memory = Arc::new(LoomMemory::new(4, 64));
        let larger = Arc::new(memory.larger(8, 256));
        // Left there by an earlier producer: the cell of the packet behind the move.
        larger.cell_word(2, word::CHECK).store(check_word(3, PacketKind::Whole as u8, 8), Ordering::Relaxed);
        let mut producer = Producer::claim(memory.clone(), 1).unwrap();
        let mut consumer = Consumer::new(memory, Some(larger.clone()));
        let push = |producer: &mut Producer<_>, sequence: u32| {
            let bytes = [sequence as u8 + 1; 64];
            let head = PacketHead { kind: PacketKind::Whole, tag: 0, sequence, total: 64 };
            // SAFETY: 64 readable bytes.
            unsafe { producer.push(&head, bytes.as_ptr(), 64) }
        };
        let sender = loom::thread::spawn(move || {
            assert_eq!(push(&mut producer, 0), Push::Done);
            // The first ring is full, unless the consumer has been quick.
            if push(&mut producer, 1) != Push::Done {
                assert!(producer.move_to(larger));
                assert_eq!(push(&mut producer, 1), Push::Done);
            }
        });
        for sequence in 0..2 {
            let seen = loop {
                match consumer.peek() {
                    Peek::Packet(seen) => break seen,
                    Peek::Moved => consumer.follow(),
                    Peek::Empty | Peek::Opened(_) => loom::thread::yield_now(),
                    Peek::Damaged(what) => panic!("{what}"),
                }
            };
            let mut bytes = [0; 64];
            // SAFETY: from the latest peek; 64 bytes are enough.
            unsafe { consumer.copy_out(&seen, bytes.as_mut_ptr()) };
            assert_eq!((seen.head.sequence, seen.len, bytes[0]), (sequence, 64, sequence as u8 + 1));
            let _ = consumer.take(&seen);
            consumer.tell();
        }
        sender.join().unwrap();
    });
}
