//! Hints to the processor about cache lines. None of them faults or changes memory, whatever the address; elsewhere than on
//! x86-64 they do nothing.

/// Asks for a line, to read it.
#[inline(always)]
pub fn prefetch(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
    }
    let _ = line;
}

/// Asks for a line, to write it.
#[inline(always)]
pub fn own(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags));
    }
    let _ = line;
}

/// Moves a line that was written to where another processor finds it sooner. Processors without the instruction take it for one
/// that does nothing.
#[inline(always)]
pub fn offer(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint.
    unsafe {
        std::arch::asm!("cldemote [{}]", in(reg) line, options(nostack, preserves_flags));
    }
    let _ = line;
}

/// The processor's clock, in ticks of a length that is not known; only for guesses about what is worth while.
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 processor has it.
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    0
}
