//! The lane under loom: every interleaving and every allowed reordering of a few packets.

use super::*;
use doorbell_fabric::{PacketHead, PacketKind, Push};
use std::sync::Arc;

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
