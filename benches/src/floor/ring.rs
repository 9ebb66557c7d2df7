//! The bare ring slot: a cache line with a sequence word and up to six words of payload.

use super::patience::{Patience, Stopped};
use crate::exchange::Carrier;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Words of payload beside the sequence word. One word stays free for the other data that a real slot needs.
pub const WORDS_MAX: usize = 6;
/// Slots of a ring.
const SLOTS: usize = 1024;
/// The receiver reports its progress once in this many messages.
const STRIDE: u64 = 64;

#[repr(C, align(64))]
#[derive(Debug)]
struct Slot {
    sequence: AtomicU64,
    words: [AtomicU64; 7],
}

/// A word on its own line, together with the line that the processor prefetches along with it.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Line(pub AtomicU64);

/// A ring in shared memory, for one direction. All zero is empty.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct RingMemory {
    slots: [Slot; SLOTS],
    freed: Line,
}

/// Both rings of one process with their positions, as a carrier of messages of `WORDS` words.
#[derive(Clone, Copy, Debug)]
pub struct Ring<'m, const WORDS: usize> {
    out: &'m RingMemory,
    back: &'m RingMemory,
    sent: u64,
    received: u64,
    /// The receiver's position when the sender last read it.
    freed: u64,
    patience: &'m Patience,
}

impl<'m> Ring<'m, 0> {
    pub fn new(out: &'m RingMemory, back: &'m RingMemory, patience: &'m Patience) -> Self {
        Self { out, back, sent: 0, received: 0, freed: 0, patience }
    }
}

impl<'m, const WORDS: usize> Ring<'m, WORDS> {
    /// The same rings for messages of another length.
    pub fn of_words<const OTHER: usize>(self) -> Ring<'m, OTHER> {
        const { assert!(OTHER <= WORDS_MAX) };
        let Self { out, back, sent, received, freed, patience } = self;
        Ring { out, back, sent, received, freed, patience }
    }
}

impl<const WORDS: usize> Carrier for Ring<'_, WORDS> {
    type Error = Stopped;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), Stopped> {
        if self.sent - self.freed >= SLOTS as u64 {
            self.patience.until(|| {
                self.freed = self.out.freed.0.load(Acquire);
                self.sent - self.freed < SLOTS as u64
            })?;
        }
        let slot = &self.out.slots[self.sent as usize % SLOTS];
        let words: &[[u8; 8]; WORDS] = message.as_chunks().0.try_into().expect("the section determines the number of words");
        for (to, from) in slot.words.iter().zip(words) {
            to.store(u64::from_ne_bytes(*from), Relaxed);
        }
        self.sent += 1;
        slot.sequence.store(self.sent, Release);
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [u8]) -> Result<(), Stopped> {
        let slot = &self.back.slots[self.received as usize % SLOTS];
        self.received += 1;
        self.patience.until(|| slot.sequence.load(Acquire) == self.received)?;
        let words: &mut [[u8; 8]; WORDS] = into.as_chunks_mut().0.try_into().expect("the section determines the number of words");
        for (to, from) in words.iter_mut().zip(&slot.words) {
            *to = from.load(Relaxed).to_ne_bytes();
        }
        if self.received.is_multiple_of(STRIDE) {
            self.back.freed.0.store(self.received, Release);
        }
        Ok(())
    }
}
