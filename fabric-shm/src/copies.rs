//! Copies into a lane, by the faster method for the distance between two processors.
//!
//! The consumer's cache holds the lines that a payload of some KiB goes to. Between processors that share a cache, a loop of
//! vector stores is faster. Between other processors the C library's copy is faster: for these lengths it uses the processor's
//! string move, which requests more lines at once. A piece that the other end waits for is always copied by the loop: the string move
//! begins too slowly.

/// The distance between two processors, measured by the time that a cache line takes from one to the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Distance {
    /// They share a cache, or the distance is unknown.
    #[default]
    Near,
    /// They do not share a cache.
    Far,
}

/// Nanoseconds, including the clock reading, below which a load hit the processor's own cache.
const OWN_NS: u128 = 45;
/// Nanoseconds, including the clock reading, above which a line came from a distant processor.
const FAR_NS: u128 = 170;

impl Distance {
    /// The distance that follows from loading a line that the other side wrote. A load that hits this processor's cache tells
    /// nothing.
    pub fn measured(nanoseconds: u128) -> Option<Distance> {
        match nanoseconds {
            0..OWN_NS => None,
            OWN_NS..FAR_NS => Some(Distance::Near),
            _ => Some(Distance::Far),
        }
    }
}

/// The lengths for which the method matters.
const LENGTHS: std::ops::RangeInclusive<usize> = 2048..=6144;

/// Copies `len` bytes.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
#[inline(always)]
pub unsafe fn copy(src: *const u8, dst: *mut u8, len: usize, distance: Distance) {
    #[cfg(target_arch = "x86_64")]
    if distance == Distance::Near && LENGTHS.contains(&len) && std::arch::is_x86_feature_detected!("avx2") && !cfg!(miri) {
        // SAFETY: caller; the processor has the feature.
        return unsafe { vectors(src, dst, len) };
    }
    let _ = distance;
    // SAFETY: caller.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
}

/// Copies a piece of a payload, while the other end copies the one before or behind it.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
#[inline]
pub unsafe fn copy_piece(src: *const u8, dst: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && !cfg!(miri) {
        // SAFETY: caller; the processor has the feature.
        return unsafe { vectors(src, dst, len) };
    }
    // SAFETY: caller.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn vectors(src: *const u8, dst: *mut u8, len: usize) {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_storeu_si256};
    let mut at = 0;
    while at + 128 <= len {
        // SAFETY: `at + 128 <= len` bytes are readable at `src` and writable at `dst` (caller); the accesses are unaligned.
        unsafe {
            let from = src.add(at).cast::<__m256i>();
            let to = dst.add(at).cast::<__m256i>();
            let four = [
                _mm256_loadu_si256(from),
                _mm256_loadu_si256(from.add(1)),
                _mm256_loadu_si256(from.add(2)),
                _mm256_loadu_si256(from.add(3)),
            ];
            _mm256_storeu_si256(to, four[0]);
            _mm256_storeu_si256(to.add(1), four[1]);
            _mm256_storeu_si256(to.add(2), four[2]);
            _mm256_storeu_si256(to.add(3), four[3]);
        }
        at += 128;
    }
    // SAFETY: the rest of the caller's bytes.
    unsafe { std::ptr::copy_nonoverlapping(src.add(at), dst.add(at), len - at) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_copies_every_byte_and_no_more() {
        let source: Vec<u8> = (0..20_000_u32).map(|i| ((i * 31) >> 3) as u8).collect();
        for round in 0..if cfg!(miri) { 10 } else { 600 } {
            let len = 2040 + round * 7 % 4200;
            for distance in [Distance::Near, Distance::Far] {
                let mut target = vec![0xee; len + 1];
                // SAFETY: both buffers are long enough.
                unsafe { copy(source[round..].as_ptr(), target.as_mut_ptr(), len, distance) };
                assert_eq!(target[..len], source[round..round + len]);
                assert_eq!(target[len], 0xee);
            }
        }
    }

    #[test]
    fn a_hit_says_nothing_of_the_distance() {
        assert_eq!(Distance::measured(20), None);
        assert_eq!(Distance::measured(90), Some(Distance::Near));
        assert_eq!(Distance::measured(270), Some(Distance::Far));
    }
}
