//! Batches of small messages: the loops of the Rust peers. `c/loops.h` has the same loops.

use crate::transport::{BATCH, Result};
use doorbell_benches::exchange::{Section, Side};
use doorbell_benches::memory::Memory;
use doorbell_benches::touch;

/// A carrier of batches, from the viewpoint of one of two processes.
pub trait Batches {
    /// Whether messages are written where they lie until they are received. Otherwise they are written into private memory.
    const IN_PLACE: bool;

    /// Sends messages of this length. `write` writes each of them where it is sent from.
    ///
    /// # Errors
    /// Those of the peer.
    fn send(&mut self, bytes: usize, count: usize, write: impl FnMut(&mut [u8])) -> Result<()>;

    /// Waits for a message, and passes up to `limit` that are there to `read`. Returns their number.
    ///
    /// # Errors
    /// Those of the peer.
    fn receive(&mut self, limit: usize, read: impl FnMut(&[u8])) -> Result<usize>;
}

/// Pours or drains the messages of a section. A message that is not touched is copied if it is sent from where it lies, because it
/// comes from somewhere.
///
/// # Errors
/// Those of the carrier, or a message of another length.
pub fn play<B: Batches>(batches: &mut B, side: Side, section: Section) -> Result<()> {
    match (side, section.touched) {
        (Side::Ping, true) => pour::<B, true>(batches, section),
        (Side::Ping, false) => pour::<B, false>(batches, section),
        (Side::Pong, true) => drain::<B, true>(batches, section),
        (Side::Pong, false) => drain::<B, false>(batches, section),
    }
}

#[inline(never)]
fn pour<B: Batches, const TOUCHED: bool>(batches: &mut B, section: Section) -> Result<()> {
    let source = Memory::private(section.bytes)?;
    let mut left = section.warmup + section.count;
    let mut value = 0;
    while left > 0 {
        let count = left.min(BATCH);
        batches.send(section.bytes, count, |message| {
            value += 1;
            if TOUCHED {
                touch::write(message, value);
            } else if B::IN_PLACE {
                message.copy_from_slice(&source);
            }
        })?;
        left -= count;
    }
    Ok(())
}

#[inline(never)]
fn drain<B: Batches, const TOUCHED: bool>(batches: &mut B, section: Section) -> Result<()> {
    let mut left = section.warmup + section.count;
    let mut is_wrong = false;
    while left > 0 {
        left -= batches.receive(left.min(BATCH), |message| {
            is_wrong |= message.len() != section.bytes;
            if TOUCHED {
                touch::read(message);
            }
        })?;
        if is_wrong {
            return Err("a message of another length came".into());
        }
    }
    Ok(())
}
