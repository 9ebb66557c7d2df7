//! The contents of messages.

use bytes::Bytes;

/// The message with this number. Two successive messages differ in every byte, so that a lost, doubled or moved byte shows.
pub fn pattern(number: u32, size: usize) -> Bytes {
    let first = number as usize % 251;
    let cycle: Vec<u8> = (0..251).map(|at| ((first + at) % 251) as u8).collect();
    cycle.iter().copied().cycle().take(size).collect()
}
