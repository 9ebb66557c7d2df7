//! Operations that combine nothing.

use super::operation::Step;
use super::plan::{Blocks, Plan, segments};
use crate::net::place::{How, Place};
use crate::topology::Tree;
use std::ops::Range;

impl Plan<'_> {
    pub(super) fn barrier(&mut self) {
        for (round, distance) in self.distances() {
            self.add(round, Step::Send { to: self.after(distance), from: Place::scratch(0..0) });
            let (from, into, how) = (self.before(distance), Place::scratch(0..0), How::Store);
            self.add(round, Step::Receive { from, into, how });
        }
    }

    pub(super) fn broadcast(&mut self) -> Option<()> {
        let tree = Tree::new(self.members, self.operation.root).ok()?;
        let depth = tree.depth(self.me)?;
        let len = self.operation.len;
        self.schedule.output = len;
        for (segment, range) in segments(len, self.element) {
            if let Some(parent) = tree.parent(self.me) {
                self.receive(segment + depth - 1, parent, Place::output(range.clone()), How::Store);
            }
            for child in tree.children(self.me) {
                self.send(segment + depth, child, Place::output(range.clone()));
            }
        }
        Some(())
    }

    pub(super) fn broadcast_directly(&mut self) {
        let (root, len) = (self.operation.root, self.operation.len);
        self.schedule.output = len;
        if self.me != root {
            return self.receive(0, root, Place::output(0..len), How::Store);
        }
        for distance in 1..self.members {
            self.send(0, self.after(distance), Place::output(0..len));
        }
    }

    /// Also gathers and scatters, which are an alltoall in which most parts are empty.
    pub(super) fn alltoall(&mut self, at_once: bool) {
        let (out, coming) = (Blocks::of(self.operation.sends), Blocks::of(self.operation.receives));
        (self.schedule.input, self.schedule.output) = (out.total(), coming.total());
        self.local(0, Place::input(out.at(self.me)), Place::output(coming.at(self.me)), How::Store);
        for distance in 1..self.members {
            let round = if at_once { 0 } else { distance - 1 };
            let (to, from) = (self.after(distance), self.before(distance));
            self.send(round, to, Place::input(out.at(to)));
            self.receive(round, from, Place::output(coming.at(from)), How::Store);
        }
    }

    pub(super) fn allgather_round(&mut self) {
        let blocks = self.own_block();
        self.ring(0, &blocks, 0, How::Store);
    }

    /// Blocks of the output go once round the ring, from round `first` on. Each member begins with the block `behind` its own one by this distance.
    pub(super) fn ring(&mut self, first: usize, blocks: &Blocks, behind: usize, how: How) {
        for at in 0..self.members - 1 {
            self.send(first + at, self.after(1), Place::output(blocks.at(self.before(at + behind))));
            self.receive(first + at, self.before(1), Place::output(blocks.at(self.before(at + behind + 1))), how);
        }
    }

    /// Each member has the blocks from its own one on, twice as many after each round.
    pub(super) fn allgather(&mut self) {
        let blocks = self.own_block();
        for (round, distance) in self.distances() {
            let many = distance.min(self.members - distance);
            let (to, from) = (self.before(distance), self.after(distance));
            for range in self.round_the_end(self.me, many) {
                self.send(round, to, Place::output(blocks.span(range)));
            }
            for range in self.round_the_end(from, many) {
                self.receive(round, from, Place::output(blocks.span(range)), How::Store);
            }
        }
    }

    fn own_block(&mut self) -> Blocks {
        let blocks = Blocks::of(self.operation.receives);
        let len = self.operation.receives[self.me];
        (self.schedule.input, self.schedule.output) = (len, blocks.total());
        self.local(0, Place::input(0..len), Place::output(blocks.at(self.me)), How::Store);
        blocks
    }

    /// This many blocks from `first` on, where the first comes after the last: in one piece or two.
    fn round_the_end(&self, first: usize, many: usize) -> [Range<usize>; 2] {
        let end = first + many;
        [first..end.min(self.members), 0..end.saturating_sub(self.members)]
    }
}
