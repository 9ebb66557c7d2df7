//! The packet numbers that arrived, and the time at which to acknowledge them.

use super::ranges::RangeSet;
use super::time::{Nanos, Time};

/// The most ranges remembered. A number below all of them counts as seen.
const RANGES_MAX: usize = 256;

/// The packet numbers that arrived in one session, and the acknowledgement that is owed for them.
#[derive(Default)]
pub(crate) struct Received {
    ranges: RangeSet,
    /// Every number below counts as seen.
    floor: u64,
    largest_at: Time,
    /// Datagrams that want an acknowledgement and have none.
    owed: u32,
    /// The acknowledgement must not wait for more datagrams.
    at_once: bool,
    deadline: Time,
    /// When this end last sent an acknowledgement.
    answered_at: Time,
}

impl Received {
    pub fn new() -> Self {
        Self { deadline: Time::NEVER, ..Self::default() }
    }

    /// Whether the number is new.
    #[inline]
    pub fn is_new(&self, number: u64) -> bool {
        match self.ranges.last() {
            Some((from, to)) if number >= from => number >= to,
            _ => number >= self.floor && !self.ranges.covers(number, number + 1),
        }
    }

    /// The highest number seen.
    #[inline]
    pub fn largest(&self) -> Option<u64> {
        self.ranges.last().map(|(_, to)| to - 1)
    }

    /// Records a new number. `wants_answer`: the datagram held more than acknowledgements.
    #[inline]
    pub fn insert(&mut self, number: u64, now: Time, wants_answer: bool, every: u32, delay: Nanos) {
        let next = self.ranges.last().map(|(_, to)| to);
        let in_order = next == Some(number);
        if next.is_none_or(|next| number >= next) {
            self.largest_at = now;
        }
        self.ranges.insert(number, number + 1);
        if self.ranges.pieces() > RANGES_MAX
            && let Some((_, to)) = self.ranges.take_front(u64::MAX)
        {
            self.floor = to;
        }
        if wants_answer {
            self.owed += 1;
            // A peer that waits for a gap to close should learn of it at once, and so should a sender that had given up a number.
            if self.owed >= every || !in_order {
                self.at_once = true;
            } else if self.owed == 1 {
                self.deadline = now + delay;
            }
        }
    }

    /// Whether an acknowledgement should go along with a datagram that is sent anyway. In a fast conversation not every datagram has
    /// one, because writing and reading it delays a short message.
    #[inline]
    pub fn goes_along(&self, now: Time, every: u32, delay: Nanos) -> bool {
        self.owed > 0 && (2 * self.owed >= every || now - self.answered_at >= delay / 4)
    }

    /// Whether the acknowledgement must go now.
    #[inline]
    pub fn is_due(&self, now: Time) -> bool {
        self.at_once || self.deadline <= now
    }

    /// The latest time for the acknowledgement.
    #[inline]
    pub fn deadline(&self) -> Time {
        if self.at_once { Time::ZERO } else { self.deadline }
    }

    /// The content of an acknowledgement: its delay, and the ranges, both ends included, the highest first. It is then no longer
    /// owed.
    #[inline]
    pub fn answer(&mut self, now: Time) -> (u32, impl Iterator<Item = (u64, u64)> + '_) {
        self.owed = 0;
        self.at_once = false;
        self.deadline = Time::NEVER;
        self.answered_at = now;
        let delay = u32::try_from(now - self.largest_at).unwrap_or(u32::MAX);
        (delay, self.ranges.iter().rev().map(|(from, to)| (from, to - 1)))
    }

    /// The other end knows about every number up to `number`, so lower ranges need not be repeated. They stay marked as seen.
    pub fn forget_below(&mut self, number: u64) {
        // The range that holds the number stays whole, which costs nothing.
        while let Some((from, to)) = self.ranges.first().filter(|(_, to)| *to <= number) {
            self.ranges.remove(from, to);
            self.floor = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_number_is_new_once(numbers in proptest::collection::vec(0..300u64, 0..600)) {
            let mut received = Received::new();
            let mut seen = std::collections::BTreeSet::new();
            for number in numbers {
                prop_assert_eq!(received.is_new(number), seen.insert(number));
                if received.is_new(number) {
                    received.insert(number, Time::ZERO, true, 2, 1);
                }
            }
            let told: Vec<u64> = received.answer(Time::ZERO).1.flat_map(|(low, high)| (low..=high).rev()).collect();
            prop_assert!(told.iter().eq(seen.iter().rev()));
        }

        #[test]
        fn memory_is_bounded_and_nothing_is_new_twice(numbers in proptest::collection::vec(0..100_000u64, 0..2000)) {
            let mut received = Received::new();
            let mut seen = std::collections::BTreeSet::new();
            for number in numbers {
                if received.is_new(number) {
                    prop_assert!(seen.insert(number));
                    received.insert(number, Time::ZERO, true, 2, 1);
                }
                prop_assert!(received.ranges.pieces() <= RANGES_MAX);
            }
        }
    }

    #[test]
    fn an_answer_goes_at_once_behind_a_gap_or_after_two() {
        let mut received = Received::new();
        received.insert(0, Time::ZERO, true, 2, 100);
        let _ = received.answer(Time::ZERO);
        received.insert(1, Time::ZERO, true, 2, 100);
        assert!(!received.is_due(Time::ZERO) && received.is_due(Time::from_nanos(100)));
        received.insert(2, Time::ZERO, true, 2, 100);
        assert!(received.is_due(Time::ZERO));
        let _ = received.answer(Time::ZERO);
        received.insert(3, Time::ZERO, false, 2, 100);
        assert!(!received.goes_along(Time::from_nanos(1000), 2, 100));
        received.insert(5, Time::ZERO, true, 2, 100);
        assert!(received.is_due(Time::ZERO), "a gap");
    }

    #[test]
    fn in_a_fast_conversation_an_answer_goes_along_with_some_datagrams() {
        let along = |every: u32, pause: u64| {
            let mut received = Received::new();
            let mut goes = |number: u64| {
                let now = Time::from_nanos(1_000_000 + number * pause);
                received.insert(number, now, true, every, 1000);
                let goes = received.goes_along(now, every, 1000);
                if goes {
                    let _ = received.answer(now);
                }
                goes
            };
            (1..=80).filter(|number| goes(*number)).count()
        };
        // The first datagram gets one, because the last acknowledgement is long ago.
        assert_eq!(along(8, 10), 1 + 79 / 4);
        assert_eq!((along(8, 300), along(2, 10)), (80, 80));
    }
}
