//! Sets of numbers that come in runs, such as the bytes that arrived or must be sent again.

/// A set of numbers, kept as disjoint half-open ranges in rising order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    ranges: Vec<(u64, u64)>,
}

impl RangeSet {
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The number of ranges.
    pub fn pieces(&self) -> usize {
        self.ranges.len()
    }

    /// The ranges, the lowest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().copied()
    }

    /// The highest range.
    #[inline]
    pub fn last(&self) -> Option<(u64, u64)> {
        self.ranges.last().copied()
    }

    /// The lowest range.
    pub fn first(&self) -> Option<(u64, u64)> {
        self.ranges.first().copied()
    }

    /// Whether all of `start..end` is in the set.
    pub fn covers(&self, start: u64, end: u64) -> bool {
        start >= end || self.index_of(start).is_some_and(|at| self.ranges[at].1 >= end)
    }

    fn index_of(&self, number: u64) -> Option<usize> {
        let at = self.ranges.partition_point(|range| range.1 <= number);
        (at < self.ranges.len() && self.ranges[at].0 <= number).then_some(at)
    }

    /// Adds `start..end`.
    #[inline]
    pub fn insert(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        // Nearly everything arrives in order.
        match self.ranges.last_mut() {
            None => return self.ranges.push((start, end)),
            Some(last) if start > last.1 => return self.ranges.push((start, end)),
            Some(last) if start >= last.0 => return last.1 = last.1.max(end),
            Some(_) => {}
        }
        let from = self.ranges.partition_point(|range| range.1 < start);
        let to = self.ranges.partition_point(|range| range.0 <= end);
        if from == to {
            self.ranges.insert(from, (start, end));
            return;
        }
        let joined = (start.min(self.ranges[from].0), end.max(self.ranges[to - 1].1));
        self.ranges[from] = joined;
        self.ranges.drain(from + 1..to);
    }

    /// Removes `start..end`.
    pub fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let mut at = self.ranges.partition_point(|range| range.1 <= start);
        while at < self.ranges.len() && self.ranges[at].0 < end {
            let (low, high) = self.ranges[at];
            match (low < start, high > end) {
                (true, true) => {
                    self.ranges[at].1 = start;
                    self.ranges.insert(at + 1, (end, high));
                    return;
                }
                (true, false) => {
                    self.ranges[at].1 = start;
                    at += 1;
                }
                (false, true) => {
                    self.ranges[at].0 = end;
                    return;
                }
                (false, false) => {
                    self.ranges.remove(at);
                }
            }
        }
    }

    /// Removes at most `len` numbers from the lowest range.
    pub fn take_front(&mut self, len: u64) -> Option<(u64, u64)> {
        let (start, end) = *self.ranges.first()?;
        let cut = end.min(start.saturating_add(len));
        self.remove(start, cut);
        Some((start, cut))
    }

    /// Calls `each` with the parts of `start..end` that are not in the set, then adds all of it.
    pub fn fill(&mut self, start: u64, end: u64, mut each: impl FnMut(u64, u64)) {
        self.gaps(start, end, &mut each);
        self.insert(start, end);
    }

    /// Calls `each` with the parts of `start..end` that are not in the set.
    pub fn gaps(&self, start: u64, end: u64, mut each: impl FnMut(u64, u64)) {
        let mut low = start;
        let first = self.ranges.partition_point(|range| range.1 <= start);
        for &(from, to) in &self.ranges[first..] {
            if from >= end {
                break;
            }
            if from > low {
                each(low, from);
            }
            low = low.max(to);
        }
        if low < end {
            each(low, end);
        }
    }
}

/// The bytes of one thing that is sent in pieces: those that were acknowledged, and those to be sent, perhaps again.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    pub acked: RangeSet,
    pub unsent: RangeSet,
}

impl Pieces {
    pub fn on_acked(&mut self, start: u64, end: u64) {
        self.acked.insert(start, end);
        if !self.unsent.is_empty() {
            self.unsent.remove(start, end);
        }
    }

    /// Sends what is not acknowledged of these bytes again. Returns their number.
    pub fn on_lost(&mut self, start: u64, end: u64) -> u64 {
        let mut bytes = 0;
        self.acked.gaps(start, end, |from, to| {
            self.unsent.insert(from, to);
            bytes += to - from;
        });
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64, u64),
        Remove(u64, u64),
        Take(u64),
        Fill(u64, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let range = || (0..60u64, 0..20u64);
        prop_oneof![
            range().prop_map(|(at, len)| Step::Insert(at, at + len)),
            range().prop_map(|(at, len)| Step::Remove(at, at + len)),
            (1..10u64).prop_map(Step::Take),
            range().prop_map(|(at, len)| Step::Fill(at, at + len)),
        ]
    }

    proptest! {
        #[test]
        fn it_is_a_set(steps in proptest::collection::vec(step(), 0..40)) {
            let mut set = RangeSet::default();
            let mut model = std::collections::BTreeSet::new();
            for step in steps {
                match step {
                    Step::Insert(from, to) => { set.insert(from, to); model.extend(from..to); }
                    Step::Remove(from, to) => { set.remove(from, to); model.retain(|n| !(from..to).contains(n)); }
                    Step::Take(len) => {
                        let taken = set.take_front(len);
                        prop_assert_eq!(taken.map(|range| range.0), model.first().copied());
                        if let Some((from, to)) = taken {
                            prop_assert!(to > from && to - from <= len);
                            for n in from..to { prop_assert!(model.remove(&n)); }
                        }
                    }
                    Step::Fill(from, to) => {
                        let mut new = Vec::new();
                        set.fill(from, to, |a, b| new.extend(a..b));
                        let expected: Vec<u64> = (from..to).filter(|n| !model.contains(n)).collect();
                        prop_assert_eq!(new, expected);
                        model.extend(from..to);
                    }
                }
                let flat: Vec<u64> = set.iter().flat_map(|(from, to)| from..to).collect();
                prop_assert_eq!(flat, model.iter().copied().collect::<Vec<_>>());
                let apart = set.iter().zip(set.iter().skip(1)).all(|(a, b)| a.1 < b.0);
                prop_assert!(apart && set.iter().all(|(from, to)| from < to));
                prop_assert_eq!(set.covers(10, 14), (10..14).all(|n| model.contains(&n)));
            }
        }
    }
}
