//! Bytes whose corruption shows.

use crate::random::Random;
use std::sync::OnceLock;

/// The length of the table from which all patterns come. A pattern repeats after it. The length is a prime number, so a part that moved by a
/// power of two shows. Patterns of different seeds begin at different places of the table: compare them at the same position only.
const TABLE: usize = 65_521;

/// Pseudo-random bytes, worked out once. Tests are not optimised, but copies and comparisons of a table are fast.
fn table() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let mut random = Random::new(0);
        std::iter::repeat_with(|| random.next() as u8).take(TABLE).collect()
    })
}

/// The parts of the table that make up `len` bytes.
fn parts(len: usize, seed: u64) -> impl Iterator<Item = &'static [u8]> {
    let start = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % TABLE;
    let first = std::iter::once(&table()[start..]);
    let mut left = len;
    first.chain(std::iter::repeat(table())).map_while(move |part| {
        let part = &part[..part.len().min(left)];
        left -= part.len();
        (!part.is_empty()).then_some(part)
    })
}

/// Fills a buffer with bytes that depend on `seed` and on their position.
pub fn fill(buf: &mut [u8], seed: u64) {
    let (len, mut at) = (buf.len(), 0);
    for part in parts(len, seed) {
        buf[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
}

/// A message of `len` such bytes.
pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(&mut bytes, seed);
    bytes
}

/// The position of the first byte that differs from what [`fill`] writes.
pub fn fault(buf: &[u8], seed: u64) -> Option<usize> {
    let mut at = 0;
    for part in parts(buf.len(), seed) {
        let found = &buf[at..at + part.len()];
        if found != part {
            return found.iter().zip(part).position(|(found, expected)| found != expected).map(|more| at + more);
        }
        at += part.len();
    }
    None
}

/// Panics unless these are the bytes that [`fill`] writes.
#[track_caller]
pub fn check(buf: &[u8], seed: u64) {
    if let Some(at) = fault(buf, seed) {
        panic!("byte {at} of {} is wrong (pattern {seed:#x})", buf.len());
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_wrong_byte_is_found() {
        for len in [1003, 3 * super::TABLE + 7] {
            let mut bytes = super::bytes(len, 5);
            super::check(&bytes, 5);
            assert!(super::fault(&bytes, 6).is_some());
            bytes[len - 2] ^= 1;
            assert_eq!(super::fault(&bytes, 5), Some(len - 2));
        }
        assert!(super::bytes(0, 5).is_empty());
    }
}
