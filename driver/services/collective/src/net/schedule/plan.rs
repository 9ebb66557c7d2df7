//! A schedule in the making, and blocks of vectors.

use super::{Place, SEGMENT_BYTES, SEGMENTS_MAX, Schedule, Step};
use std::ops::Range;

/// Blocks one behind the other, by rank.
pub(super) struct Blocks(Vec<usize>);

impl Blocks {
    pub fn of(counts: &[usize]) -> Self {
        let ends = counts.iter().scan(0, |end, count| {
            *end += count;
            Some(*end)
        });
        Self(std::iter::once(0).chain(ends).collect())
    }

    /// `len` elements in as many blocks, which differ by one element at most.
    pub fn even(len: usize, blocks: usize) -> Self {
        let (each, more) = (len / blocks, len % blocks);
        Self((0..=blocks).map(|block| block * each + block.min(more)).collect())
    }

    pub fn at(&self, block: usize) -> Range<usize> {
        self.0[block]..self.0[block + 1]
    }

    /// All of these blocks.
    pub fn span(&self, blocks: Range<usize>) -> Range<usize> {
        self.0[blocks.start]..self.0[blocks.end]
    }

    pub fn total(&self) -> usize {
        *self.0.last().unwrap_or(&0)
    }
}

/// `len` elements in segments: how many, and of how many elements.
pub(super) fn segments(len: usize, element: usize) -> (usize, usize) {
    let size = (SEGMENT_BYTES / element.max(1)).max(len.div_ceil(SEGMENTS_MAX)).max(1);
    (len.div_ceil(size), size)
}

/// A schedule in the making. Rounds are numbered alike at all members.
pub(super) struct Plan {
    pub me: usize,
    pub members: usize,
    pub element: usize,
    pub schedule: Schedule,
}

impl Plan {
    pub fn add(&mut self, round: usize, step: Step) {
        let rounds = &mut self.schedule.rounds;
        if rounds.len() <= round {
            rounds.resize_with(round + 1, Vec::new);
        }
        rounds[round].push(step);
    }

    /// Nothing is said of no elements: both sides know how many there are.
    pub fn send(&mut self, round: usize, to: usize, from: Place) {
        if !from.is_empty() {
            self.add(round, Step::Send { to, from });
        }
    }

    pub fn receive(&mut self, round: usize, from: usize, into: Place) {
        if !into.is_empty() {
            self.add(round, Step::Receive { from, into });
        }
    }

    pub fn fold(&mut self, round: usize, from: usize, into: Place, left: bool) {
        if !into.is_empty() {
            self.add(round, Step::Fold { from, into, left });
        }
    }

    pub fn copy(&mut self, round: usize, from: Place, into: Place) {
        if !into.is_empty() {
            self.add(round, Step::Copy { from, into });
        }
    }

    /// The rank that many places further round the ring.
    pub fn after(&self, distance: usize) -> usize {
        (self.me + distance) % self.members
    }

    pub fn before(&self, distance: usize) -> usize {
        (self.me + self.members - distance % self.members) % self.members
    }

    /// 1, 2, 4 and so on, as long as they are less than the number of members, with their round.
    pub fn distances(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let members = self.members;
        (0..usize::BITS as usize).map(|round| (round, 1 << round)).take_while(move |(_, distance)| *distance < members)
    }

    pub fn segments(&self, len: usize) -> (usize, usize) {
        segments(len, self.element)
    }
}
