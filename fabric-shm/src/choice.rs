//! Chooses a way for long copies into memory of another process, or out of it.

use doorbell_fabric::copies::{Copying, copy_by, settle_stores};
use doorbell_fabric::hint;

/// The shortest copy for which a [`Choice`] is worth two looks at the clock.
pub const CHOICE_LEAST: usize = 16 << 10;

/// The ways of one thread's long copies in one direction, by their length. A copy by the caches fetches the lines of its target: slowly from
/// a distant processor if that has just read them, and from memory if no cache holds them. A streamed copy does not fetch them.
#[derive(Debug, Default)]
pub struct Choice {
    classes: [Class; Self::CLASSES],
    /// The class of the last copy.
    last: usize,
}

impl Choice {
    /// Each class has lengths up to four times as long as the one before. The last class has no end.
    const CLASSES: usize = 5;

    /// A choice that begins its comparisons after as many copies as another one takes for them. Two that copy in turns then never
    /// compare at the same time, when each would measure what the other one tries.
    pub fn later() -> Self {
        let class = || Class { left: Class::TRIED as u32, ..Class::default() };
        Self { classes: std::array::from_fn(|_| class()), last: 0 }
    }

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
    /// From the end of the copy before to the end of a copy. In a conversation this includes what the other process does with the bytes, or
    /// this one with those that it copied from there.
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
        let began = if self.left == 0 { hint::ticks() } else { 0 };
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
            None => self.compare(len, began, hint::ticks()),
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
            // Streamed bytes are then read from memory. In a conversation that shows in the turn. Otherwise the thread assumes that to read
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
    fn two_that_copy_in_turns_compare_at_different_times() {
        let (mut puts, mut gets) = (Choice::default(), Choice::later());
        let (source, mut target) = (vec![1_u8; CHOICE_LEAST], vec![0_u8; CHOICE_LEAST]);
        for _ in 0..Class::TRIED * if cfg!(miri) { 3 } else { 230 } {
            assert!(puts.classes[0].left > 0 || gets.classes[0].left > 0);
            for choice in [&mut puts, &mut gets] {
                // SAFETY: both are long enough.
                unsafe { choice.copy(source.as_ptr(), target.as_mut_ptr(), CHOICE_LEAST) };
            }
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
}
