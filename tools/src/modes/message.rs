//! Messages of a load: what the writer stamps on a buffer, and what the reader checks.

use super::load::Place as Where;
use super::{LEAST, mix};
use crate::experiment::Trouble;
use crate::measure::buffer;
use doorbell::Node;
use doorbell_benches::Memory;

/// Bytes of a word.
const WORD: usize = 8;
/// Words of the head of a message.
const HEAD: usize = LEAST / WORD;
/// The distance of words that depend on the message. The words between them depend on their place alone.
const STAMPED: usize = 64;
/// The reader compares every word of each message whose number is a multiple of this.
const WHOLE_EVERY: u64 = 16;
/// A buffer, and the length of the message in it.
pub struct Slot {
    memory: Memory,
    len: usize,
}

impl AsRef<[u8]> for Slot {
    fn as_ref(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

/// Buffers for messages of `bytes` bytes.
pub fn slots(node: &Node, place: Where, bytes: usize, count: usize) -> Result<Vec<Slot>, Trouble> {
    let slot = |_| {
        let mut memory = buffer(node, place == Where::Region, bytes)?;
        for (place, word) in memory.as_chunks_mut().0.iter_mut().enumerate() {
            *word = placed(place).to_ne_bytes();
        }
        Ok(Slot { memory, len: bytes })
    };
    (0..count).map(slot).collect()
}

/// The word of a place.
fn placed(place: usize) -> u64 {
    (place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn is_stamped(place: usize) -> bool {
    place % STAMPED == HEAD
}

/// Makes the message with this number in a buffer.
pub fn stamp(slot: &mut Slot, len: usize, number: u64, due: u64) {
    slot.len = len;
    let words = slot.memory[..len].as_chunks_mut().0;
    let of_message = mix(number);
    for (word, number) in words.iter_mut().zip([number, due, len as u64, mix(number ^ due ^ len as u64)]) {
        *word = number.to_ne_bytes();
    }
    for place in (HEAD..words.len()).step_by(STAMPED) {
        words[place] = (placed(place) ^ of_message).to_ne_bytes();
    }
}

/// When the message was due, if it is the expected one and whole.
pub fn check(bytes: &[u8], expected: u64) -> Result<u64, String> {
    let words = bytes.as_chunks().0;
    let word = |place: usize| words.get(place).copied().map_or(0, u64::from_ne_bytes);
    let (number, due, len) = (word(0), word(1), word(2));
    if word(3) != mix(number ^ due ^ len) {
        return Err(format!("message {expected} of {} bytes does not begin like a message", bytes.len()));
    }
    if number != expected || len != bytes.len() as u64 {
        let kind = if number < expected { "came again or too late" } else { "came too early, or those before it are lost" };
        return Err(format!("message {number} of {len} bytes {kind}: {expected} was to come; {} bytes came", bytes.len()));
    }
    let of_message = mix(number);
    let is_whole = number.is_multiple_of(WHOLE_EVERY);
    let step = if is_whole { 1 } else { STAMPED };
    for place in (HEAD..words.len()).step_by(step) {
        let right = if is_stamped(place) { placed(place) ^ of_message } else { placed(place) };
        if word(place) != right {
            return Err(format!("message {number} of {len} bytes is not what was sent, from byte {} on", place * WORD));
        }
    }
    Ok(due)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: u64, len: usize) -> Vec<u8> {
        let mut memory = Memory::private(len).unwrap();
        for (place, word) in memory.as_chunks_mut().0.iter_mut().enumerate() {
            *word = placed(place).to_ne_bytes();
        }
        let mut slot = Slot { memory, len };
        stamp(&mut slot, len, number, 17);
        slot.as_ref().to_vec()
    }

    #[test]
    fn a_message_that_is_another_or_not_whole_is_found() {
        for len in [LEAST, LEAST + 1, 40, 1000, 65_536] {
            assert_eq!(check(&message(16, len), 16), Ok(17), "{len}");
            assert!(check(&message(16, len), 17).unwrap_err().contains("came again or too late"));
            assert!(check(&message(16, len), 15).unwrap_err().contains("came too early"));
            assert!(check(&message(16, len)[..LEAST - 1], 16).is_err());
        }
        let mut long = message(16, 65_536);
        long[65_535] ^= 1;
        assert!(check(&long, 16).unwrap_err().contains("from byte 65528 on"));
        // The rest is of the message before it, in the same buffer.
        let mut mixed = message(17, 65_536);
        mixed[8192..].copy_from_slice(&message(16, 65_536)[8192..]);
        assert!(check(&mixed, 17).unwrap_err().contains("from byte 8224 on"));
    }
}
