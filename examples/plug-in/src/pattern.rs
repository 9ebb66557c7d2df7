//! What messages consist of.

use bytes::Bytes;

/// The message of this number: of two neighbours no byte is the same, so whatever is lost, doubled or moved shows.
pub fn pattern(number: u32, size: usize) -> Bytes {
    let first = number as usize % 251;
    let cycle: Vec<u8> = (0..251).map(|at| ((first + at) % 251) as u8).collect();
    cycle.iter().copied().cycle().take(size).collect()
}
