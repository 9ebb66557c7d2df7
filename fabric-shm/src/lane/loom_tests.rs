//! The lane under loom: every interleaving and every allowed reordering of a few packets.

use super::*;
use crate::copies::Distance;
use doorbell_fabric::sync::AtomicU64;
use doorbell_fabric::{PacketHead, PacketKind, Push};
use std::sync::Arc;

/// Lane memory that loom observes.
struct LoomMemory {
    words: Vec<AtomicU64>,
    controls: Vec<AtomicU64>,
    data: Vec<loom::cell::UnsafeCell<u8>>,
}

impl LoomMemory {
    /// A lane of a few cells and bytes.
    fn new(cells: usize, data_bytes: usize) -> Self {
        Self {
            words: (0..cells * word::COUNT).map(|_| AtomicU64::new(0)).collect(),
            controls: (0..=Control::Bulk as usize).map(|_| AtomicU64::new(0)).collect(),
            // One observed byte stands for a whole cache line. That is enough to detect two sides that touch it at once.
            data: (0..data_bytes / 64).map(|_| loom::cell::UnsafeCell::new(0)).collect(),
        }
    }
}

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

    unsafe fn write_data(&self, offset: usize, src: *const u8, len: usize, _distance: Distance) {
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

fn exchange(lens: &'static [usize]) {
    loom::model(move || {
        let memory = Arc::new(LoomMemory::new(2, 128));
        let mut producer = Producer::claim(memory.clone(), 1).unwrap();
        let mut consumer = Consumer::new(memory);
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
                    Peek::Empty => loom::thread::yield_now(),
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

/// Small packets, one and a half laps of two cells.
#[test]
fn small_packets_arrive_whole() {
    exchange(&[8, 8, 8]);
}

/// Packets through the data ring, which is overwritten once.
#[test]
fn data_packets_arrive_whole() {
    exchange(&[64, 64, 64]);
}
