//! Touching: a real program writes every cache line that it sends, and reads every cache line that it receives.
//!
//! A loop that sends the same bytes again and again and never reads what arrived measures messages that nobody needs. The
//! measurements of the floor and of the driver both use these two functions.

use std::hint::black_box;

/// The size of a cache line.
pub const LINE: usize = 64;

/// Writes a word into every line of a message about to be sent.
#[inline(always)]
pub fn write(message: &mut [u8], value: u64) {
    for line in message.chunks_mut(LINE) {
        match line.first_chunk_mut::<8>() {
            Some(word) => *word = value.to_ne_bytes(),
            None => line[0] = value as u8,
        }
    }
}

/// Reads a word from every line of a message that arrived.
#[inline(always)]
pub fn read(message: &[u8]) {
    let sum = message.chunks(LINE).fold(0_u64, |sum, line| {
        sum.wrapping_add(line.first_chunk::<8>().map_or(u64::from(line[0]), |word| u64::from_ne_bytes(*word)))
    });
    black_box(sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_written() {
        for len in [0, 1, 7, 8, 63, 64, 65, 72, 4096] {
            let mut message = vec![0_u8; len];
            write(&mut message, u64::MAX);
            assert!(message.chunks(LINE).all(|line| line[0] == 0xff), "a line of {len} bytes was not written");
            read(&message);
        }
    }
}
