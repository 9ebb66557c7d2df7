//! Copies of much between the memory of one process and what lies in the cache of another processor.

use crate::hint;

/// From so many bytes on it is worth while.
const FROM: usize = 16 << 10;

/// Copies bytes that another processor's cache has, or is to have next. From some ten KiB on in two streams at a time, of pages that follow each other, with the
/// lines of the target owned ahead: more lines are on their way at once than with the C library's copy, and large copies take two thirds of its time.
///
/// # Safety
/// `src` is the start of `len` readable bytes, and `dst` of `len` writable ones; the two do not overlap.
#[inline]
pub unsafe fn far_copy(src: *const u8, dst: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= FROM && std::is_x86_feature_detected!("avx512f") {
        let whole = len - len % wide::WINDOW;
        // SAFETY: the processor has it; whole windows of what the caller says, and the rest of it.
        unsafe {
            wide::copy(src, dst, whole);
            std::ptr::copy_nonoverlapping(src.add(whole), dst.add(whole), len - whole);
        }
        return;
    }
    // SAFETY: caller.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) };
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod wide {
    use super::hint;
    use std::arch::x86_64::{_mm512_loadu_si512, _mm512_storeu_si512};

    const PAGE: usize = 4096;
    /// One page for each stream.
    pub const WINDOW: usize = 2 * PAGE;
    const LINE: usize = 64;

    /// # Safety
    /// The processor has AVX-512. `src` and `dst` are the starts of `len` bytes, a multiple of [`WINDOW`], readable and writable, that do not overlap.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
        for window in (0..len).step_by(WINDOW) {
            for at in (window..window + PAGE).step_by(2 * LINE) {
                for line in [at, at + LINE] {
                    // The first stream asks for what the second one writes soon, and that for the next window.
                    hint::own(dst.wrapping_add(line + PAGE));
                    hint::own(dst.wrapping_add(line + 2 * PAGE));
                    // SAFETY: both streams' lines lie within the window, which lies within the caller's bytes; no alignment is needed.
                    unsafe {
                        let first = _mm512_loadu_si512(src.add(line).cast());
                        let second = _mm512_loadu_si512(src.add(line + PAGE).cast());
                        _mm512_storeu_si512(dst.add(line).cast(), first);
                        _mm512_storeu_si512(dst.add(line + PAGE).cast(), second);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::far_copy;

    #[test]
    fn all_bytes_arrive_and_no_others_change() {
        for len in [0, 1, 63, 4096, 16 << 10, (16 << 10) + 1, (24 << 10) - 1, (40 << 10) + 17] {
            for at in [0, 1, 24] {
                let src: Vec<u8> = (0..len + at).map(|byte| (byte % 251) as u8).collect();
                let mut dst = vec![255; len + 50];
                // SAFETY: both are as long as that, and two allocations.
                unsafe { far_copy(src.as_ptr().add(at), dst.as_mut_ptr().add(at), len) };
                assert!(
                    dst[at..at + len] == src[at..] && dst[..at].iter().chain(&dst[at + len..]).all(|byte| *byte == 255),
                    "{len} at {at}"
                );
            }
        }
    }
}
