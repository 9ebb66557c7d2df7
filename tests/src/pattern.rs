//! Bytes whose corruption shows.

/// Fills a buffer with bytes that depend on `seed` and on their position.
pub fn fill(buf: &mut [u8], seed: u64) {
    let mut words = Words::new(seed);
    for chunk in buf.chunks_mut(8) {
        chunk.copy_from_slice(&words.next().to_le_bytes()[..chunk.len()]);
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
    let mut words = Words::new(seed);
    for (index, chunk) in buf.chunks(8).enumerate() {
        let expected = words.next().to_le_bytes();
        if chunk != &expected[..chunk.len()] {
            let at = chunk.iter().zip(expected).position(|(found, expected)| *found != expected);
            return Some(index * 8 + at.unwrap_or(0));
        }
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

struct Words(u64);

impl Words {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_wrong_byte_is_found() {
        let mut bytes = super::bytes(1003, 5);
        super::check(&bytes, 5);
        assert!(super::fault(&bytes, 6).is_some());
        bytes[1001] ^= 1;
        assert_eq!(super::fault(&bytes, 5), Some(1001));
    }
}
