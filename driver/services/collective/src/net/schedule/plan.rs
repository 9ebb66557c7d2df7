//! A schedule in the making, and how vectors are divided.

use super::operation::{Operation, Schedule, Step};
use crate::net::place::{How, Place};
use std::ops::Range;

/// Longer broadcasts and reductions go in segments of this many bytes, so that a member passes on one segment while the next is on its way.
const SEGMENT_BYTES: usize = 64 << 10;
/// The most segments: of longer vectors the segments grow. In tests there are few, so that segments do grow.
const SEGMENTS_MAX: usize = if cfg!(test) { 4 } else { 1024 };

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

    /// `len` elements in this many blocks, whose lengths differ by at most one element.
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

/// The size of the segments of `len` elements.
pub(super) fn segment_size(len: usize, element: usize) -> usize {
    (SEGMENT_BYTES / element.max(1)).max(len.div_ceil(SEGMENTS_MAX)).max(1)
}

/// The segments of `len` elements, with their numbers.
pub(super) fn segments(len: usize, element: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let size = segment_size(len, element);
    (0..len.div_ceil(size)).map(move |segment| (segment, segment * size..len.min((segment + 1) * size)))
}

/// A schedule in the making. All members number the rounds alike.
pub(super) struct Plan<'a> {
    pub operation: Operation<'a>,
    pub me: usize,
    pub members: usize,
    /// Bytes of an element.
    pub element: usize,
    pub schedule: Schedule,
}

impl Plan<'_> {
    pub fn add(&mut self, round: usize, step: Step) {
        let rounds = &mut self.schedule.rounds;
        if rounds.len() <= round {
            rounds.resize_with(round + 1, Vec::new);
        }
        rounds[round].push(step);
    }

    /// Empty vectors are not sent: both sides know how many elements there are.
    pub fn send(&mut self, round: usize, to: usize, from: Place) {
        if !from.is_empty() {
            self.add(round, Step::Send { to, from });
        }
    }

    pub fn receive(&mut self, round: usize, from: usize, into: Place, how: How) {
        if !into.is_empty() {
            self.add(round, Step::Receive { from, into, how });
        }
    }

    pub fn local(&mut self, round: usize, from: Place, into: Place, how: How) {
        if !into.is_empty() {
            self.add(round, Step::Local { from, into, how });
        }
    }

    /// The rank at this distance further round the ring.
    pub fn after(&self, distance: usize) -> usize {
        (self.me + distance) % self.members
    }

    pub fn before(&self, distance: usize) -> usize {
        (self.me + self.members - distance % self.members) % self.members
    }

    /// 1, 2, 4 and so on, below the number of members, with their rounds.
    pub fn distances(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let members = self.members;
        (0..usize::BITS as usize).map(|round| (round, 1 << round)).take_while(move |(_, distance)| *distance < members)
    }

    /// The whole vector of each member is in its input and its output.
    pub fn whole(&mut self) -> (Place, Place) {
        let len = self.operation.len;
        (self.schedule.input, self.schedule.output) = (len, len);
        (Place::input(0..len), Place::output(0..len))
    }
}
