//! The timed loops: back and forth, and one way. The floor and the driver use the same code.

use crate::clock::ticks;
use crate::memory::Memory;
use crate::touch;
use std::io;

/// A carrier of messages between two processes, from the viewpoint of one of them.
pub trait Carrier {
    /// Why a call failed.
    type Error;
    /// Sends a message.
    fn send(&mut self, message: &[u8]) -> Result<(), Self::Error>;
    /// Waits for the next message and copies it out. Messages have the length of `into`.
    fn receive(&mut self, into: &mut [u8]) -> Result<(), Self::Error>;
}

/// The side that a process plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Sends first and holds the clock.
    Ping,
    /// Answers.
    Pong,
}

/// The source and the target of messages.
#[derive(Debug)]
pub struct Buffers {
    source: Memory,
    target: Memory,
}

impl Buffers {
    /// The buffers of one process.
    pub fn new(source: Memory, target: Memory) -> Self {
        Self { source, target }
    }

    /// Private buffers for messages of up to `bytes`.
    ///
    /// # Errors
    /// The system has no such memory.
    pub fn private(bytes: usize) -> io::Result<Self> {
        Ok(Self::new(Memory::private(bytes)?, Memory::private(bytes)?))
    }
}

/// A series of messages of one size that both sides agreed on.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// The length of a message.
    pub bytes: usize,
    /// Round trips, or messages one way, before the clock starts.
    pub warmup: usize,
    /// Round trips, or messages one way, that are timed.
    pub count: usize,
    /// Whether every line is written before it is sent, and read after it was received.
    pub touched: bool,
}

/// The part of a process in a section.
#[derive(Debug)]
pub enum Part<'a> {
    /// Sends, waits for the answer, and adds the ticks of each round trip to the samples.
    Ping(&'a mut Vec<u64>),
    /// Receives, and answers.
    Pong,
    /// Sends one message after another.
    Pour,
    /// Receives one message after another.
    Drain,
}

/// Plays a part in a section, and returns the carrier in its new state.
///
/// # Errors
/// Those of the carrier.
pub fn play<C: Carrier>(carrier: C, part: Part<'_>, section: Section, buffers: &mut Buffers) -> Result<C, C::Error> {
    match (part, section.touched) {
        (Part::Ping(samples), true) => ping::<C, true>(carrier, section, buffers, samples),
        (Part::Ping(samples), false) => ping::<C, false>(carrier, section, buffers, samples),
        (Part::Pong, true) => pong::<C, true>(carrier, section, buffers),
        (Part::Pong, false) => pong::<C, false>(carrier, section, buffers),
        (Part::Pour, true) => pour::<C, true>(carrier, section, buffers),
        (Part::Pour, false) => pour::<C, false>(carrier, section, buffers),
        (Part::Drain, true) => drain::<C, true>(carrier, section, buffers),
        (Part::Drain, false) => drain::<C, false>(carrier, section, buffers),
    }
}

// The loops move their carrier into a local variable, so that it can live in registers. A position kept in memory costs one more
// store for each message, and the processor has room for only so many stores.

#[inline(never)]
fn ping<C: Carrier, const TOUCHED: bool>(
    carrier: C,
    section: Section,
    buffers: &mut Buffers,
    samples: &mut Vec<u64>,
) -> Result<C, C::Error> {
    let mut carrier = carrier;
    let (source, target) = (&mut buffers.source[..section.bytes], &mut buffers.target[..section.bytes]);
    let before = samples.len();
    // There is only one loop: with two, the compiler would make a function of the body, and the carrier would leave the
    // registers.
    samples.resize(before + section.warmup + section.count, 0);
    for (i, sample) in samples[before..].iter_mut().enumerate() {
        let start = ticks();
        if TOUCHED {
            touch::write(source, i as u64);
        }
        carrier.send(source)?;
        carrier.receive(target)?;
        if TOUCHED {
            touch::read(target);
        }
        *sample = ticks() - start;
    }
    samples.drain(before..before + section.warmup);
    Ok(carrier)
}

#[inline(never)]
fn pong<C: Carrier, const TOUCHED: bool>(carrier: C, section: Section, buffers: &mut Buffers) -> Result<C, C::Error> {
    let mut carrier = carrier;
    let (source, target) = (&mut buffers.source[..section.bytes], &mut buffers.target[..section.bytes]);
    for i in 0..section.warmup + section.count {
        carrier.receive(target)?;
        if TOUCHED {
            touch::read(target);
            touch::write(source, i as u64);
        }
        carrier.send(source)?;
    }
    Ok(carrier)
}

#[inline(never)]
fn pour<C: Carrier, const TOUCHED: bool>(carrier: C, section: Section, buffers: &mut Buffers) -> Result<C, C::Error> {
    let mut carrier = carrier;
    let source = &mut buffers.source[..section.bytes];
    for i in 0..section.warmup + section.count {
        if TOUCHED {
            touch::write(source, i as u64);
        }
        carrier.send(source)?;
    }
    Ok(carrier)
}

#[inline(never)]
fn drain<C: Carrier, const TOUCHED: bool>(carrier: C, section: Section, buffers: &mut Buffers) -> Result<C, C::Error> {
    let mut carrier = carrier;
    let target = &mut buffers.target[..section.bytes];
    for _ in 0..section.warmup + section.count {
        carrier.receive(target)?;
        if TOUCHED {
            touch::read(target);
        }
    }
    Ok(carrier)
}
