//! Touching: a real program writes every cache line that it sends, and reads every cache line that it receives.
//!
//! A loop that sends the same bytes again and again and never reads what arrived measures messages that nobody needs. The
//! measurements of the floor and of the driver both use these two functions.

use std::hint::black_box;

/// The size of a cache line.
pub const LINE: usize = 64;

/// The bytes of a message in the first of the lines that it occupies.
#[inline(always)]
fn first_line(message: &[u8]) -> usize {
    (LINE - message.as_ptr().addr() % LINE).min(message.len())
}

/// Writes a word into every line that a message about to be sent occupies, wherever in a line it begins.
#[inline(always)]
pub fn write(message: &mut [u8], value: u64) {
    let (first, rest) = message.split_at_mut(first_line(message));
    for line in std::iter::once(first).chain(rest.chunks_mut(LINE)) {
        match line.first_chunk_mut::<8>() {
            Some(word) => *word = value.to_ne_bytes(),
            None => line.iter_mut().take(1).for_each(|byte| *byte = value as u8),
        }
    }
}

/// Reads a word from every line that a message that arrived occupies.
#[inline(always)]
pub fn read(message: &[u8]) {
    let (first, rest) = message.split_at(first_line(message));
    let lines = std::iter::once(first).chain(rest.chunks(LINE));
    let sum = lines.fold(0_u64, |sum, line| {
        sum.wrapping_add(match line.first_chunk::<8>() {
            Some(word) => u64::from_ne_bytes(*word),
            None => line.first().map_or(0, |byte| u64::from(*byte)),
        })
    });
    black_box(sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_written() {
        let mut memory = vec![0_u8; 3 * LINE + 4096];
        let start = memory.as_ptr().align_offset(LINE);
        for (at, len) in [0, 8, 32, 63].into_iter().flat_map(|at| [0, 1, 7, 8, 63, 64, 65, 72, 4096].map(|len| (at, len))) {
            memory.fill(0);
            let message = &mut memory[start + at..][..len];
            write(message, u64::MAX);
            read(message);
            let written = |line: &[u8]| line.contains(&0xff);
            let lines = memory[start..].chunks(LINE).filter(|line| written(line)).count();
            assert_eq!(lines, if len == 0 { 0 } else { (at + len).div_ceil(LINE) }, "{len} bytes at {at}");
        }
    }
}
