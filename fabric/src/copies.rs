//! Ways to copy bytes that another processor's caches hold, or will hold.
//!
//! Which way is the fastest depends on the processors and their distance, so processes try several (`fabric-shm/src/lane/ways.rs`,
//! `fabric-shm/src/choice.rs`).

/// The receiver's knowledge of a copy out of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nothing.
    Nothing,
    /// The sender has [streamed](Copying::Streamed) it, so it lies in memory.
    Streamed,
    /// Its message is longer than half of the bulk ring. By default that half is at most as long as the sender's own cache.
    Long,
    /// The waiting receives have room for more bytes than the shared cache keeps until the program reads them.
    Spilled,
}

/// A way to copy bytes into memory that another process reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copying {
    /// As the C library copies: some KiB by the processor's string move, which requests many lines at once, and begins slowly.
    Library,
    /// By a loop of vector instructions.
    Loop,
    /// By the same loop, which also requests lines of the target for writing before it stores there. More of them are then on their way from
    /// the other processor's cache at once. A target shorter than 2 KiB, and a processor without AVX2, take [`Library`](Self::Library).
    Owned,
    /// Past this processor's caches, to memory. The target begins with a cache line.
    Streamed,
}

/// The shortest length for which the loop is worth a call.
const LOOP_LEAST: usize = 2048;

/// The shortest payload whose copy depends on [`Known`].
const KNOWN_LEAST: usize = 8 << 10;

/// How many bytes ahead of its stores [`Copying::Owned`] requests lines, also behind the target. In a bare loop between distant
/// processors, 1 and 4 KiB took as long.
const OWN_BYTES_AHEAD: usize = 2048;

impl Copying {
    /// This way, if lines may be requested in the `behind` bytes behind the target. Otherwise they belong to somebody else.
    #[inline(always)]
    pub fn with(self, behind: usize) -> Self {
        match self {
            Copying::Owned if behind < OWN_BYTES_AHEAD => Copying::Loop,
            way => way,
        }
    }
}

/// Copies `len` bytes this way.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`]. For [`Copying::Streamed`], `dst` is the start of a cache line.
#[inline(always)]
pub unsafe fn copy_by(way: Copying, src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: caller.
    unsafe {
        match way {
            // The two halves may overlap. For a line, a call takes longer than the copy.
            Copying::Library if (32..=64).contains(&len) => {
                std::ptr::copy_nonoverlapping(src, dst, 32);
                std::ptr::copy_nonoverlapping(src.add(len - 32), dst.add(len - 32), 32);
            }
            Copying::Library => std::ptr::copy_nonoverlapping(src, dst, len),
            Copying::Loop => copy(src, dst, len),
            Copying::Owned => by_loop::<OWN_BYTES_AHEAD>(src, dst, len),
            Copying::Streamed => stream(src, dst, len),
        }
    }
}

/// Copies `len` bytes by the loop, or if there are few by the C library.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
#[inline(always)]
pub unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: caller.
    unsafe { by_loop::<0>(src, dst, len) }
}

/// As [`copy`]. If `AHEAD` is not 0, the loop requests lines for writing `AHEAD` bytes before it stores there, so also `AHEAD` bytes behind
/// the target.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
#[inline(always)]
unsafe fn by_loop<const AHEAD: usize>(src: *const u8, dst: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= LOOP_LEAST && std::arch::is_x86_feature_detected!("avx2") && !cfg!(miri) {
        // SAFETY: caller; the processor has the feature.
        return unsafe { vectors::<AHEAD>(src, dst, len) };
    }
    // SAFETY: caller.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
}

/// Copies `len` bytes past this processor's caches. Stores that come later do not overtake them.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`]. `dst` is the start of a cache line.
#[inline(never)]
unsafe fn stream(src: *const u8, dst: *mut u8, len: usize) {
    debug_assert!(dst.addr().is_multiple_of(64));
    let whole = if cfg!(all(target_arch = "x86_64", not(miri))) { len & !63 } else { 0 };
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: caller. Each access is to one of `whole` bytes, and each store is aligned, as `dst` is.
    unsafe {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
        for line in (0..whole).step_by(64) {
            let (from, to) = (src.add(line).cast::<__m128i>(), dst.add(line).cast::<__m128i>());
            // Four loads before the stores, so that the bytes of a line come together.
            let first = _mm_loadu_si128(from);
            let second = _mm_loadu_si128(from.add(1));
            let third = _mm_loadu_si128(from.add(2));
            let fourth = _mm_loadu_si128(from.add(3));
            _mm_stream_si128(to, first);
            _mm_stream_si128(to.add(1), second);
            _mm_stream_si128(to.add(2), third);
            _mm_stream_si128(to.add(3), fourth);
        }
        // A later release store does not wait for such stores.
        settle_stores();
    }
    // SAFETY: the rest of the caller's bytes.
    unsafe { std::ptr::copy_nonoverlapping(src.add(whole), dst.add(whole), len - whole) }
}

/// As [`stream`], to any place. An ordinary store to a line that no cache holds would first read it from memory.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
unsafe fn past_caches(src: *const u8, dst: *mut u8, len: usize) {
    let head = (dst.addr().wrapping_neg() % 64).min(len);
    // SAFETY: caller. The rest begins with a line.
    unsafe {
        std::ptr::copy_nonoverlapping(src, dst, head);
        stream(src.add(head), dst.add(head), len - head);
    }
}

/// Waits until all [streamed](Copying::Streamed) stores so far are visible. Only x86-64 has such stores.
pub fn settle_stores() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 processor has this instruction.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn vectors<const AHEAD: usize>(src: *const u8, dst: *mut u8, len: usize) {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_storeu_si256};
    let mut at = 0;
    while at + 128 <= len {
        if AHEAD > 0 {
            crate::hint::own(dst.wrapping_add(at + AHEAD));
            crate::hint::own(dst.wrapping_add(at + AHEAD + 64));
        }
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

/// Copies `len` bytes out of a lane.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
#[inline(always)]
pub unsafe fn out(known: Known, src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: caller.
    unsafe {
        match known {
            Known::Streamed if len >= KNOWN_LEAST => parts(src, dst, len),
            // The string move of the C library was slow where source and target do not fit into the caches. The sender's copies slowed down, too.
            Known::Long if len >= KNOWN_LEAST => copy(src, dst, len),
            Known::Spilled if len >= KNOWN_LEAST => past_caches(src, dst, len),
            _ => std::ptr::copy_nonoverlapping(src, dst, len),
        }
    }
}

/// Copies four parts at the same time, a line of each in turn. The processor prefetches each of them, so more lines are on their way than in a
/// copy from the first byte to the last.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`]. `len` is at least [`KNOWN_LEAST`].
#[inline(never)]
unsafe fn parts(src: *const u8, dst: *mut u8, len: usize) {
    const PARTS: usize = 4;
    let mut part = (len / PARTS) & !63;
    if part.is_multiple_of(4096) {
        // The parts would use the same few places of a first-level cache.
        part -= 64;
    }
    for line in (0..part).step_by(64) {
        for at in (0..PARTS).map(|number| number * part + line) {
            // SAFETY: `at + 64 <= PARTS * part <= len`. Arrays of bytes need no alignment.
            unsafe { dst.add(at).cast::<[u8; 64]>().write(src.add(at).cast::<[u8; 64]>().read()) };
        }
    }
    let done = PARTS * part;
    // SAFETY: the rest of the caller's bytes.
    unsafe { std::ptr::copy_nonoverlapping(src.add(done), dst.add(done), len - done) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_others_are_not_requested() {
        assert_eq!(Copying::Owned.with(OWN_BYTES_AHEAD - 1), Copying::Loop);
        assert_eq!(Copying::Owned.with(OWN_BYTES_AHEAD), Copying::Owned);
        assert_eq!(Copying::Streamed.with(0), Copying::Streamed);
    }

    #[test]
    fn a_copy_past_the_caches_begins_and_ends_anywhere() {
        let source: Vec<u8> = (0..9000_u32).map(|i| ((i * 31) >> 3) as u8).collect();
        for offset in 0..64 {
            for len in [64, 65, 127, 128, 300, KNOWN_LEAST, KNOWN_LEAST + 63].into_iter().take(if cfg!(miri) { 3 } else { 7 }) {
                let mut target = vec![0xee; len + 192];
                let from = (target.as_ptr().addr().wrapping_neg() % 64) + offset;
                // SAFETY: both buffers are long enough.
                unsafe { past_caches(source[7..].as_ptr(), target[from..].as_mut_ptr(), len) };
                assert!(target[from..from + len] == source[7..7 + len], "{offset} {len}");
                assert!(target[..from].iter().chain(&target[from + len..]).all(|byte| *byte == 0xee), "{offset} {len}");
            }
        }
    }

    #[test]
    fn every_way_copies_every_byte_and_no_more() {
        #[repr(align(64))]
        struct Lines([u8; 8192]);
        let source: Vec<u8> = (0..20_000_u32).map(|i| ((i * 31) >> 3) as u8).collect();
        for round in 0..if cfg!(miri) { 7 } else { 600 } {
            for len in [round, 2040 + round * 7 % 4200] {
                for way in [Copying::Library, Copying::Loop, Copying::Owned, Copying::Streamed] {
                    let mut target = Lines([0xee; 8192]);
                    // SAFETY: both buffers are long enough, and the target is aligned.
                    unsafe { copy_by(way, source[round..].as_ptr(), target.0.as_mut_ptr(), len) };
                    assert_eq!(target.0[..len], source[round..round + len]);
                    assert!(target.0[len..] == [0xee; 8192][len..]);
                }
            }
        }
    }
}
