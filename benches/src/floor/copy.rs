//! Copying in and copying out: the data in one place, and the word that announces it in another line.

use super::patience::{Patience, Stopped};
use super::ring::Line;
use crate::exchange::Carrier;
use crate::memory::Memory;
use crate::stream::Window;
use crate::touch::LINE;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// The most places of a stream.
const SLOTS_MAX: usize = 256;

/// A word on its own line.
#[repr(C, align(64))]
#[derive(Debug)]
struct Sequence(AtomicU64);

/// The control words of a channel. All zero is empty.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct ChannelControl {
    /// Bytes written by [`InOut`].
    written: Line,
    /// Messages copied out by [`Slots`].
    freed: Line,
    /// Chunks written by [`Chunks`].
    announced: Line,
    /// Chunks copied out by [`Chunks`].
    taken: Line,
    /// For each place of [`Slots`]: the number of its message, counted from 1 during the life of the mapping.
    sequence: [Sequence; SLOTS_MAX],
}

/// A channel in shared memory, for one direction.
#[derive(Clone, Copy, Debug)]
pub struct Channel<'m> {
    pub control: &'m ChannelControl,
    /// Bytes that two processes read and write in turns.
    pub data: *mut u8,
    pub bytes: usize,
    pub mapping: PhantomData<&'m [AtomicU64]>,
}

/// A channel with one place and at most one message in flight.
#[derive(Clone, Copy, Debug)]
pub struct InOut<'m> {
    out: Channel<'m>,
    back: Channel<'m>,
    /// The bytes sent.
    sent: u64,
    received: u64,
    /// The number of bytes to copy before they are announced.
    chunk: usize,
    patience: &'m Patience,
}

impl<'m> InOut<'m> {
    pub fn new(out: Channel<'m>, back: Channel<'m>, patience: &'m Patience) -> Self {
        Self { out, back, sent: 0, received: 0, chunk: usize::MAX, patience }
    }
}

impl Carrier for InOut<'_> {
    type Error = Stopped;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), Stopped> {
        assert!(message.len() <= self.out.bytes);
        let mut at = 0;
        // There is only one chunk. The C program that measures the same has this loop, which accounts for 5 ns of 70.
        for chunk in message.chunks(self.chunk) {
            // SAFETY: the channel has that many bytes. The other side answers every message before it gets another, so it does
            // not read them now.
            unsafe { ptr::copy_nonoverlapping(chunk.as_ptr(), self.out.data.add(at), chunk.len()) };
            at += chunk.len();
            self.sent += chunk.len() as u64;
            self.out.control.written.0.store(self.sent, Release);
        }
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [u8]) -> Result<(), Stopped> {
        assert!(into.len() <= self.back.bytes);
        let mut at = 0;
        for chunk in into.chunks_mut(self.chunk) {
            self.received += chunk.len() as u64;
            self.patience.until(|| self.back.control.written.0.load(Acquire) >= self.received)?;
            // SAFETY: the channel has that many bytes, and the other side does not write them before it has our answer.
            unsafe { ptr::copy_nonoverlapping(self.back.data.add(at), chunk.as_mut_ptr(), chunk.len()) };
            at += chunk.len();
        }
        Ok(())
    }
}

/// The most chunks of a message in flight.
const CHUNKS_MAX: u64 = 8;

/// Sends messages in chunks through a small ring that stays in the caches: one chunk is copied in while another is copied out.
#[derive(Clone, Copy, Debug)]
pub struct Chunks<'m> {
    out: Channel<'m>,
    back: Channel<'m>,
    /// The chunks sent.
    sent: u64,
    received: u64,
    chunk: usize,
    patience: &'m Patience,
}

impl<'m> Chunks<'m> {
    pub fn new(out: Channel<'m>, back: Channel<'m>, patience: &'m Patience) -> Self {
        Self { out, back, sent: 0, received: 0, chunk: LINE, patience }
    }

    /// The same channels with chunks of this length. Nothing is under way between two sections.
    pub fn of_bytes(self, chunk: usize) -> Self {
        assert!(chunk > 0 && CHUNKS_MAX as usize * chunk <= self.back.bytes.min(self.out.bytes));
        Self { chunk, ..self }
    }

    fn place(&self, chunk: u64) -> usize {
        (chunk % CHUNKS_MAX) as usize * self.chunk
    }
}

impl Carrier for Chunks<'_> {
    type Error = Stopped;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), Stopped> {
        for chunk in message.chunks(self.chunk) {
            self.patience.until(|| self.sent - self.out.control.taken.0.load(Acquire) < CHUNKS_MAX)?;
            // SAFETY: within the channel (`of_bytes` checked all places), and the receiver has finished with the former content.
            unsafe { ptr::copy_nonoverlapping(chunk.as_ptr(), self.out.data.add(self.place(self.sent)), chunk.len()) };
            self.sent += 1;
            self.out.control.announced.0.store(self.sent, Release);
        }
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [u8]) -> Result<(), Stopped> {
        for chunk in into.chunks_mut(self.chunk) {
            self.patience.until(|| self.back.control.announced.0.load(Acquire) > self.received)?;
            // SAFETY: within the channel (`of_bytes` checked all places), and the sender does not write there until told that the
            // place is free.
            unsafe { ptr::copy_nonoverlapping(self.back.data.add(self.place(self.received)), chunk.as_mut_ptr(), chunk.len()) };
            self.received += 1;
            self.back.control.taken.0.store(self.received, Release);
        }
        Ok(())
    }
}

/// A ring of places for streams of messages of one size.
#[derive(Clone, Copy, Debug)]
pub struct Slots<'m> {
    out: Channel<'m>,
    back: Channel<'m>,
    /// A power of two.
    slots: u64,
    stride: usize,
    sent: u64,
    received: u64,
    freed: u64,
    patience: &'m Patience,
}

impl<'m> Slots<'m> {
    pub fn new(out: Channel<'m>, back: Channel<'m>, patience: &'m Patience) -> Self {
        Self { out, back, slots: 1, stride: LINE, sent: 0, received: 0, freed: 0, patience }
    }

    /// The number of places for messages of `bytes`, and their distance: enough that the sides do not wait for each other, few
    /// enough that they stay in the caches.
    fn plan(bytes: usize) -> (usize, usize) {
        let slots = if bytes <= 4096 {
            SLOTS_MAX
        } else if bytes <= 65536 {
            16
        } else {
            4
        };
        (slots, bytes.next_multiple_of(LINE))
    }

    /// The bytes that the places need for messages of up to `bytes`.
    pub fn room(bytes: usize) -> usize {
        // Shorter messages have more places, and may need more room than the longest.
        let sizes = [4096, 65536, bytes].map(|size| Self::plan(size.min(bytes)));
        sizes.into_iter().map(|(slots, stride)| slots * stride).max().unwrap_or(0)
    }

    /// The same channels with places for messages of `bytes`. Nothing is under way between two sections.
    pub fn laid_out_for(self, bytes: usize) -> Self {
        let (slots, stride) = Self::plan(bytes);
        assert!(slots * stride <= self.back.bytes.min(self.out.bytes));
        Self { slots: slots as u64, stride, freed: self.sent, ..self }
    }
}

impl Carrier for Slots<'_> {
    type Error = Stopped;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), Stopped> {
        assert!(message.len() <= self.stride);
        if self.sent - self.freed >= self.slots {
            self.patience.until(|| {
                self.freed = self.out.control.freed.0.load(Acquire);
                self.sent - self.freed < self.slots
            })?;
        }
        let place = (self.sent & (self.slots - 1)) as usize;
        // SAFETY: within the channel (`laid_out_for` checked all places), and the receiver has finished with the former content.
        unsafe { ptr::copy_nonoverlapping(message.as_ptr(), self.out.data.add(place * self.stride), message.len()) };
        self.sent += 1;
        self.out.control.sequence[place].0.store(self.sent, Release);
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [u8]) -> Result<(), Stopped> {
        assert!(into.len() <= self.stride);
        let place = (self.received & (self.slots - 1)) as usize;
        self.received += 1;
        self.patience.until(|| self.back.control.sequence[place].0.load(Acquire) == self.received)?;
        // SAFETY: within the channel (`laid_out_for` checked all places), and the sender does not write there until told that the
        // place is free.
        unsafe { ptr::copy_nonoverlapping(self.back.data.add(place * self.stride), into.as_mut_ptr(), into.len()) };
        if self.received.is_multiple_of((self.slots / 4).max(1)) {
            self.back.control.freed.0.store(self.received, Release);
        }
        Ok(())
    }
}

/// Copies in when a send starts, and copies out when a receive finishes: nothing stays under way in a buffer.
impl Window for Slots<'_> {
    type Error = Stopped;
    type Sent = Memory;
    type Received = Memory;

    #[inline(always)]
    fn start_send(&mut self, message: Memory) -> Result<Memory, Stopped> {
        self.send(message.as_ref())?;
        Ok(message)
    }

    #[inline(always)]
    fn finish_send(&mut self, message: Memory) -> Result<Memory, Stopped> {
        Ok(message)
    }

    #[inline(always)]
    fn start_receive(&mut self, into: Memory) -> Result<Memory, Stopped> {
        Ok(into)
    }

    #[inline(always)]
    fn finish_receive(&mut self, mut into: Memory) -> Result<Memory, Stopped> {
        self.receive(into.as_mut())?;
        Ok(into)
    }
}
