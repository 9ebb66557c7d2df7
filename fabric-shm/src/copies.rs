//! Copies into a lane and out of it.
//!
//! The other processor's caches hold the lines that a payload goes to. A lane tries several ways to copy it (`lane/ways.rs`).

/// A way to copy a payload.
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

/// Waits until all stores so far are visible.
fn settle_stores() {
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

/// The shortest copy for which a [`Choice`] is worth two looks at the clock.
pub const CHOICE_LEAST: usize = 16 << 10;

/// The ways of one thread's long copies into another process, by their length. A copy by the caches fetches the lines that the other
/// process has just read, slowly from a distant processor, and the lines that no cache holds, from memory. A streamed copy does not fetch
/// them.
#[derive(Debug, Default)]
pub struct Choice {
    classes: [Class; Self::CLASSES],
    /// The class of the last copy.
    last: usize,
}

impl Choice {
    /// Each class has lengths up to four times as long as the one before. The last class has no end.
    const CLASSES: usize = 5;

    /// Copies `len` bytes, which may overlap.
    ///
    /// # Safety
    /// As [`std::ptr::copy`].
    pub unsafe fn copy(&mut self, src: *const u8, dst: *mut u8, len: usize) {
        let index = (len.max(CHOICE_LEAST).ilog2() - CHOICE_LEAST.ilog2()) as usize / 2;
        let index = index.min(Self::CLASSES - 1);
        let class = &mut self.classes[index];
        if std::mem::replace(&mut self.last, index) != index {
            // The time from the last copy of this class includes others.
            class.ended = 0;
        }
        // SAFETY: caller.
        unsafe { class.copy(src, dst, len) }
    }
}

/// The way of copies of about one length. The thread tries each way now and then, and keeps to the fastest.
#[derive(Debug, Default)]
struct Class {
    /// The number of copies until the next comparison.
    left: u32,
    /// Copies of this comparison.
    tried: usize,
    /// When the last copy of this comparison ended, in ticks.
    ended: u64,
    /// The shortest time of each way: for 64 KiB, in ticks.
    times: [Time; Self::WAYS.len()],
    /// The index of the way in [`WAYS`](Self::WAYS).
    way: usize,
}

/// The shortest times of one way.
#[derive(Clone, Copy, Debug, Default)]
struct Time {
    /// Of a copy.
    copy: u64,
    /// From the end of the copy before to the end of a copy. In a conversation this includes what the other process does with the bytes.
    turn: u64,
}

impl Class {
    const WAYS: [Copying; 3] = [Copying::Library, Copying::Loop, Copying::Streamed];
    /// A comparison uses the ways in turn, twice. The first copy of each turn does not count.
    const TURN: usize = 3;
    const TRIED: usize = 2 * Self::WAYS.len() * Self::TURN;

    /// As [`Choice::copy`].
    ///
    /// # Safety
    /// As [`std::ptr::copy`].
    unsafe fn copy(&mut self, src: *const u8, dst: *mut u8, len: usize) {
        let began = if self.left == 0 { crate::hint::ticks() } else { 0 };
        // SAFETY: caller. Behind the head, the target begins with a cache line.
        unsafe {
            if src.addr().abs_diff(dst.addr()) < len {
                std::ptr::copy(src, dst, len);
            } else {
                let head = dst.align_offset(64).min(len);
                std::ptr::copy_nonoverlapping(src, dst, head);
                if Self::WAYS[self.way] == Copying::Streamed {
                    // The streamed bytes do not overtake earlier copies, whose order a flush promises.
                    settle_stores();
                }
                copy_by(Self::WAYS[self.way], src.add(head), dst.add(head), len - head);
            }
        }
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => self.compare(len, began, crate::hint::ticks()),
        }
    }

    /// Takes a copy into account that began and ended at these ticks.
    #[cold]
    fn compare(&mut self, len: usize, began: u64, ended: u64) {
        if self.tried == 0 {
            self.times = [Time { copy: u64::MAX, turn: u64::MAX }; Self::WAYS.len()];
        }
        let before = std::mem::replace(&mut self.ended, ended);
        // A time without a length: the thread has come to a processor whose clock is behind.
        if let (Some(copy @ 1..), Some(turn @ 1..)) = (ended.checked_sub(began), ended.checked_sub(before))
            && !self.tried.is_multiple_of(Self::TURN)
        {
            let each = |time: u64| time.saturating_mul(64 << 10).checked_div(len as u64).unwrap_or(u64::MAX);
            let least = &mut self.times[self.way];
            *least = Time { copy: each(copy).min(least.copy), turn: each(turn).min(least.turn) };
        }
        self.tried += 1;
        self.way = self.tried / Self::TURN % Self::WAYS.len();
        if self.tried == Self::TRIED {
            let [library, by_loop, streamed] = self.times;
            // A smaller difference may be chance.
            let is_less = |one: u64, other: u64| one.saturating_add(one / 16) < other;
            let (cached, best) = if is_less(by_loop.copy, library.copy) { (by_loop, 1) } else { (library, 0) };
            // The other process then reads from memory. In a conversation that shows in the turn. Otherwise the thread assumes that to read
            // there takes as long as to write there.
            let in_conversation = cached.turn.saturating_sub(cached.copy) > cached.copy / 2;
            let is_streamed = if in_conversation {
                streamed.copy < cached.copy && is_less(streamed.turn, cached.turn)
            } else {
                streamed.copy < cached.copy / 2
            };
            self.way = if is_streamed { 2 } else { best };
            (self.tried, self.left) = (0, 100 * Self::TRIED as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_way_is_found_and_found_again() {
        let (mut class, mut now) = (Class::default(), 1000);
        // The times of copies, and those from one end to the next beside them.
        for (copies, beside, fastest) in [
            ([100, 200, 300], [0; 3], 0),
            ([300, 280, 100], [0; 3], 2),
            // The answer to a streamed copy takes longer, or as long.
            ([300, 280, 150], [280, 280, 420], 1),
            ([300, 280, 150], [280, 280, 280], 2),
            // Nobody answers.
            ([300, 280, 150], [0; 3], 1),
            // A copy that takes longer is not chosen, whatever happens between copies.
            ([300, 280, 310], [900, 900, 0], 1),
            ([100, 99, 98], [0; 3], 0),
            ([110, 100, 200], [0; 3], 1),
        ] {
            // It begins with the way that it has.
            for tried in 0..Class::TRIED {
                // Now and then a copy is interrupted.
                let interrupted = if tried == 4 { 1 << 40 } else { 0 };
                let began = now + beside[class.way];
                now = began + interrupted + copies[class.way];
                class.compare(32 << 10, began, now);
            }
            assert_eq!(class.way, fastest, "{copies:?} {beside:?}");
            assert!(class.left >= 1000 && class.tried == 0);
        }
    }

    #[test]
    fn lengths_that_differ_much_have_ways_of_their_own() {
        let mut choice = Choice::default();
        let (source, mut target) = (vec![1_u8; 1 << 20], vec![0_u8; 1 << 20]);
        for len in [0, CHOICE_LEAST, 4 * CHOICE_LEAST - 1, 4 * CHOICE_LEAST, 1 << 20] {
            // SAFETY: both are long enough.
            unsafe { choice.copy(source.as_ptr(), target.as_mut_ptr(), len) };
        }
        assert_eq!(choice.classes.map(|class| class.tried), [3, 1, 0, 1, 0]);
        assert!(target == source);
    }

    #[test]
    fn a_choice_copies_every_byte_whatever_it_chooses() {
        let mut choice = Choice::default();
        let source: Vec<u8> = (0..70_000_u32).map(|i| ((i * 31) >> 3) as u8).collect();
        for number in 0..if cfg!(miri) { 4 } else { 3 * Class::TRIED } {
            let (at, len) = (number % 130, CHOICE_LEAST + number * 7);
            choice.classes[0].left = 0;
            let mut target = vec![0xee; len + at + 1];
            // SAFETY: both are long enough.
            unsafe { choice.copy(source[at..].as_ptr(), target[at..].as_mut_ptr(), len) };
            assert!(
                target[at..][..len] == source[at..][..len]
                    && target[at + len] == 0xee
                    && target[..at].iter().all(|byte| *byte == 0xee)
            );
            // To bytes that are a part of the source.
            let mut both = source.clone();
            // SAFETY: within the vector.
            unsafe { choice.copy(both.as_ptr(), both.as_mut_ptr().add(at), len) };
            assert!(both[at..][..len] == source[..len]);
        }
    }

    #[test]
    fn lines_of_others_are_not_requested() {
        assert_eq!(Copying::Owned.with(OWN_BYTES_AHEAD - 1), Copying::Loop);
        assert_eq!(Copying::Owned.with(OWN_BYTES_AHEAD), Copying::Owned);
        assert_eq!(Copying::Streamed.with(0), Copying::Streamed);
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
