//! Operations that combine nothing.

use super::plan::{Blocks, Plan};
use super::{Place, Step};
use crate::topology::Tree;
use std::ops::Range;

impl Plan {
    pub(super) fn barrier(&mut self) {
        for (round, distance) in self.distances() {
            self.add(round, Step::Send { to: self.after(distance), from: Place::Scratch(0..0) });
            self.add(round, Step::Receive { from: self.before(distance), into: Place::Scratch(0..0) });
        }
    }

    pub(super) fn broadcast(&mut self, root: usize, len: usize) -> Option<()> {
        let tree = Tree::new(self.members, root).ok()?;
        let depth = tree.depth(self.me)?;
        self.schedule.output = len;
        let (segments, size) = self.segments(len);
        for segment in 0..segments {
            let range = segment * size..len.min((segment + 1) * size);
            if let Some(parent) = tree.parent(self.me) {
                self.receive(segment + depth - 1, parent, Place::Output(range.clone()));
            }
            for child in tree.children(self.me) {
                self.send(segment + depth, child, Place::Output(range.clone()));
            }
        }
        Some(())
    }

    pub(super) fn broadcast_directly(&mut self, root: usize, len: usize) {
        self.schedule.output = len;
        if self.me != root {
            return self.receive(0, root, Place::Output(0..len));
        }
        for distance in 1..self.members {
            self.send(0, self.after(distance), Place::Output(0..len));
        }
    }

    pub(super) fn gather(&mut self, root: usize, counts: &[usize]) {
        let len = counts[self.me];
        self.schedule.input = len;
        if self.me != root {
            return self.send(0, root, Place::Input(0..len));
        }
        let blocks = Blocks::of(counts);
        self.schedule.output = blocks.total();
        self.copy(0, Place::Input(0..len), Place::Output(blocks.at(root)));
        for distance in 1..self.members {
            let rank = self.after(distance);
            self.receive(0, rank, Place::Output(blocks.at(rank)));
        }
    }

    pub(super) fn scatter(&mut self, root: usize, counts: &[usize]) {
        let len = counts[self.me];
        self.schedule.output = len;
        if self.me != root {
            return self.receive(0, root, Place::Output(0..len));
        }
        let blocks = Blocks::of(counts);
        self.schedule.input = blocks.total();
        self.copy(0, Place::Input(blocks.at(root)), Place::Output(0..len));
        for distance in 1..self.members {
            let rank = self.after(distance);
            self.send(0, rank, Place::Input(blocks.at(rank)));
        }
    }

    pub(super) fn allgather_round(&mut self, counts: &[usize]) {
        let blocks = self.own_block(counts);
        for round in 0..self.members - 1 {
            self.send(round, self.after(1), Place::Output(blocks.at(self.before(round))));
            self.receive(round, self.before(1), Place::Output(blocks.at(self.before(round + 1))));
        }
    }

    /// Each has the blocks from its own on, twice as many each time.
    pub(super) fn allgather(&mut self, counts: &[usize]) {
        let blocks = self.own_block(counts);
        for (round, distance) in self.distances() {
            let many = distance.min(self.members - distance);
            let (to, from) = (self.before(distance), self.after(distance));
            for range in self.round_the_end(self.me, many) {
                self.send(round, to, Place::Output(blocks.span(range)));
            }
            for range in self.round_the_end(from, many) {
                self.receive(round, from, Place::Output(blocks.span(range)));
            }
        }
    }

    pub(super) fn own_block(&mut self, counts: &[usize]) -> Blocks {
        let blocks = Blocks::of(counts);
        (self.schedule.input, self.schedule.output) = (counts[self.me], blocks.total());
        self.copy(0, Place::Input(0..counts[self.me]), Place::Output(blocks.at(self.me)));
        blocks
    }

    /// So many blocks from `first` on, where the first comes after the last: in one piece or two.
    pub(super) fn round_the_end(&self, first: usize, many: usize) -> [Range<usize>; 2] {
        let end = first + many;
        [first..end.min(self.members), 0..end.saturating_sub(self.members)]
    }

    pub(super) fn alltoall(&mut self, sends: &[usize], receives: &[usize], at_once: bool) {
        let (out, coming) = (Blocks::of(sends), Blocks::of(receives));
        (self.schedule.input, self.schedule.output) = (out.total(), coming.total());
        self.copy(0, Place::Input(out.at(self.me)), Place::Output(coming.at(self.me)));
        for distance in 1..self.members {
            let round = if at_once { 0 } else { distance - 1 };
            let (to, from) = (self.after(distance), self.before(distance));
            self.send(round, to, Place::Input(out.at(to)));
            self.receive(round, from, Place::Output(coming.at(from)));
        }
    }
}
