//! Hints to the processor about cache lines. A hint never faults and never changes memory, whatever the address. On other
//! processors than x86-64 the hints do nothing.

/// Requests a line for reading.
#[inline(always)]
pub fn prefetch(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
    }
    let _ = line;
}

/// Requests a line for writing.
#[inline(always)]
pub fn own(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags));
    }
    let _ = line;
}

/// Whether the processor does something when it is [offered](offer) a line.
pub fn can_offer() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        // Asked once: in a virtual machine the question takes microseconds.
        static ANSWER: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| {
            // SAFETY: every x86-64 processor has this instruction. Newer compilers know that.
            #[allow(unused_unsafe)]
            let (leaves, seven) = unsafe { (__cpuid(0).eax, __cpuid_count(7, 0)) };
            // This bit stands for `cldemote`.
            leaves >= 7 && seven.ecx & 1 << 25 != 0
        });
        *ANSWER
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    false
}

/// Moves a written line to a cache level where another processor finds it sooner. Processors without the instruction execute it
/// as a no-op.
#[inline(always)]
pub fn offer(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint.
    unsafe {
        std::arch::asm!("cldemote [{}]", in(reg) line, options(nostack, preserves_flags));
    }
    let _ = line;
}

/// Whether [`ticks`] counts. Otherwise it is always 0.
pub const HAS_TICKS: bool = cfg!(all(target_arch = "x86_64", not(any(miri, loom))));

/// The processor's time-stamp counter. The length of a tick is unknown, so it serves only for estimates.
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    // SAFETY: every x86-64 processor has this instruction.
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom)))))]
    0
}
