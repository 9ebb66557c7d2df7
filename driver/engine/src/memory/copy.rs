//! Copies between private memory and memory that others may write at the same time.
//!
//! A single aligned element of four or eight bytes takes one store or load, so a reader never sees half of a counter or a flag.
//! All else is the C library's copy. Under Miri everything is relaxed atomics, because Miri would rightly report a race if two
//! nodes of one process did not order their accesses.

use doorbell_fabric::sync::{Ordering, fence};
use doorbell_shm::choice::{CHOICE_LEAST, Choice};

/// Copies into shared memory.
///
/// # Safety
/// `src` is the start of `len` readable, initialised bytes, and `dst` of `len` writable ones of shared memory.
#[inline(always)]
pub unsafe fn inward(src: *const u8, dst: *mut u8, len: usize) {
    #[cfg(miri)]
    for at in 0..len {
        // SAFETY: caller.
        unsafe { std::sync::atomic::AtomicU8::from_ptr(dst.add(at)).store(src.add(at).read(), Ordering::Relaxed) };
    }
    #[cfg(not(miri))]
    // SAFETY: caller; alignment is checked.
    unsafe {
        match len {
            8 if dst.cast::<u64>().is_aligned() => {
                std::sync::atomic::AtomicU64::from_ptr(dst.cast()).store(src.cast::<u64>().read_unaligned(), Ordering::Relaxed);
            }
            4 if dst.cast::<u32>().is_aligned() => {
                std::sync::atomic::AtomicU32::from_ptr(dst.cast()).store(src.cast::<u32>().read_unaligned(), Ordering::Relaxed);
            }
            // The two may be parts of one region.
            _ => std::ptr::copy(src, dst, len),
        }
    }
}

/// Copies out of shared memory. Later reads see values at least as new: see [`crate::Peer::flush`].
///
/// # Safety
/// `src` is the start of `len` readable bytes of shared memory, and `dst` of `len` writable ones.
#[inline(always)]
pub unsafe fn out(src: *const u8, dst: *mut u8, len: usize) {
    #[cfg(miri)]
    for at in 0..len {
        // SAFETY: caller.
        unsafe { dst.add(at).write(std::sync::atomic::AtomicU8::from_ptr(src.cast_mut().add(at)).load(Ordering::Relaxed)) };
    }
    #[cfg(not(miri))]
    // SAFETY: caller; alignment is checked, and the loads write nothing.
    unsafe {
        match len {
            8 if src.cast::<u64>().is_aligned() => {
                let word = std::sync::atomic::AtomicU64::from_ptr(src.cast_mut().cast()).load(Ordering::Relaxed);
                dst.cast::<u64>().write_unaligned(word);
            }
            4 if src.cast::<u32>().is_aligned() => {
                let word = std::sync::atomic::AtomicU32::from_ptr(src.cast_mut().cast()).load(Ordering::Relaxed);
                dst.cast::<u32>().write_unaligned(word);
            }
            _ => std::ptr::copy(src, dst, len),
        }
    }
    fence(Ordering::Acquire);
}

/// As [`inward`]; `ways` chooses how, if the bytes are many.
///
/// # Safety
/// As [`inward`].
#[inline(always)]
pub unsafe fn inward_by(ways: &mut Choice, src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: caller.
    unsafe { if len < CHOICE_LEAST || cfg!(miri) { inward(src, dst, len) } else { ways.copy(src, dst, len) } }
}

/// As [`out`]; `ways` chooses how, if the bytes are many.
///
/// # Safety
/// As [`out`].
#[inline(always)]
pub unsafe fn out_by(ways: &mut Choice, src: *const u8, dst: *mut u8, len: usize) {
    if len < CHOICE_LEAST || cfg!(miri) {
        // SAFETY: caller.
        return unsafe { out(src, dst, len) };
    }
    // SAFETY: caller.
    unsafe { ways.copy(src, dst, len) };
    fence(Ordering::Acquire);
}
