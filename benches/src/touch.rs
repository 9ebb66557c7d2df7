//! Touching: a real program writes every cache line that it sends, and reads every cache line that it receives.
//!
//! A loop that sends the same bytes again and again and never reads what arrived measures messages that nobody needs. The
//! measurements of the floor and of the driver both use these two functions.

use std::hint::black_box;

/// The size of a cache line.
pub const LINE: usize = 64;

/// How many bytes of a message lie in its first line.
#[inline(always)]
fn in_line(message: &[u8]) -> usize {
    (LINE - message.as_ptr().addr() % LINE).min(message.len())
}

/// Writes a word, or a byte where there is less, into every line that a message about to be sent occupies.
#[inline(always)]
pub fn write(message: &mut [u8], value: u64) {
    let mut rest = message;
    while !rest.is_empty() {
        let (line, others) = rest.split_at_mut(in_line(rest));
        match line.first_chunk_mut::<8>() {
            Some(word) => *word = value.to_ne_bytes(),
            None => line[0] = value as u8,
        }
        rest = others;
    }
}

/// Reads a word, or a byte where there is less, from every line of a message that arrived.
#[inline(always)]
pub fn read(message: &[u8]) {
    black_box(sum(message));
}

#[inline(always)]
fn sum(message: &[u8]) -> u64 {
    let (mut rest, mut sum) = (message, 0_u64);
    while !rest.is_empty() {
        let (line, others) = rest.split_at(in_line(rest));
        sum = sum.wrapping_add(line.first_chunk::<8>().map_or_else(|| u64::from(line[0]), |word| u64::from_ne_bytes(*word)));
        rest = others;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_written_and_read() {
        let mut memory = vec![0_u8; 3 * LINE + 4096];
        let start = memory.as_ptr().align_offset(LINE);
        for (at, len) in [0, 8, 32, 60].into_iter().flat_map(|at| [0, 1, 7, 8, 63, 64, 65, 72, 4096].map(|len| (at, len))) {
            memory.fill(0);
            let message = &mut memory[start + at..][..len];
            write(message, 1);
            let lines = if len == 0 { 0 } else { (at + len).div_ceil(LINE) };
            assert_eq!(sum(message), lines as u64, "{len} bytes at {at}");
            let written = memory[start..].chunks(LINE).filter(|line| line.contains(&1)).count();
            assert_eq!(written, lines, "{len} bytes at {at}");
        }
    }
}
