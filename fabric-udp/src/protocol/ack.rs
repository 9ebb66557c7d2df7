//! The packet numbers that arrived, and the time at which to acknowledge them.

use super::time::{Nanos, Time};

/// The most ranges remembered. A number below all of them counts as seen.
const RANGES_MAX: usize = 256;

/// The packet numbers that arrived in one session, and the acknowledgement that is owed for them.
pub(crate) struct Received {
    /// Half-open ranges in rising order.
    ranges: Vec<(u64, u64)>,
    /// Every number below counts as seen.
    floor: u64,
    largest_at: Time,
    /// Datagrams that want an acknowledgement and have none.
    owed: u32,
    /// The acknowledgement must not wait for more datagrams.
    at_once: bool,
    deadline: Time,
}

impl Received {
    pub fn new() -> Self {
        Self { ranges: Vec::new(), floor: 0, largest_at: Time::ZERO, owed: 0, at_once: false, deadline: Time::NEVER }
    }

    /// Whether the number is new.
    #[inline]
    pub fn is_new(&self, number: u64) -> bool {
        if let Some(last) = self.ranges.last()
            && number >= last.0
        {
            return number >= last.1;
        }
        if number < self.floor {
            return false;
        }
        let at = self.ranges.partition_point(|range| range.1 <= number);
        self.ranges.get(at).is_none_or(|range| number < range.0)
    }

    /// The highest number seen.
    #[inline]
    pub fn largest(&self) -> Option<u64> {
        self.ranges.last().map(|range| range.1 - 1)
    }

    /// Records a new number. `wants_answer`: the datagram held more than acknowledgements.
    #[inline]
    pub fn insert(&mut self, number: u64, now: Time, wants_answer: bool, every: u32, delay: Nanos) {
        let in_order = match self.ranges.last_mut() {
            Some(last) if number == last.1 => {
                last.1 += 1;
                self.largest_at = now;
                true
            }
            _ => {
                self.insert_apart(number, now);
                false
            }
        };
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

    #[cold]
    fn insert_apart(&mut self, number: u64, now: Time) {
        if self.ranges.last().is_none_or(|last| number > last.1) {
            self.largest_at = now;
            self.ranges.push((number, number + 1));
        } else {
            let at = self.ranges.partition_point(|range| range.1 < number);
            let joins_low = self.ranges[at].1 == number;
            let joins_high = if joins_low {
                self.ranges.get(at + 1).is_some_and(|r| r.0 == number + 1)
            } else {
                self.ranges[at].0 == number + 1
            };
            match (joins_low, joins_high) {
                (true, true) => {
                    self.ranges[at].1 = self.ranges[at + 1].1;
                    self.ranges.remove(at + 1);
                }
                (true, false) => self.ranges[at].1 = number + 1,
                (false, true) => self.ranges[at].0 = number,
                (false, false) => self.ranges.insert(at, (number, number + 1)),
            }
        }
        if self.ranges.len() > RANGES_MAX {
            self.floor = self.ranges.remove(0).1;
        }
    }

    /// Whether an acknowledgement is owed.
    #[inline]
    pub fn is_owed(&self) -> bool {
        self.owed > 0
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
        let delay = u32::try_from(now - self.largest_at).unwrap_or(u32::MAX);
        (delay, self.ranges.iter().rev().map(|&(from, to)| (from, to - 1)))
    }

    /// The other end knows about every number up to `number`, so lower ranges need not be repeated. They stay marked as seen.
    pub fn forget_below(&mut self, number: u64) {
        // The range that holds the number stays whole, which costs nothing.
        let gone = self.ranges.partition_point(|range| range.1 <= number);
        if gone > 0 {
            self.floor = self.ranges[gone - 1].1;
            self.ranges.drain(..gone);
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
                prop_assert!(received.ranges.len() <= RANGES_MAX);
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
        assert!(!received.is_owed());
        received.insert(5, Time::ZERO, true, 2, 100);
        assert!(received.is_due(Time::ZERO), "a gap");
    }
}
