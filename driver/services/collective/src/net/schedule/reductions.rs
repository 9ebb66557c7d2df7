//! Operations that combine vectors.

use super::plan::{Blocks, Plan, segment_size, segments};
use crate::net::place::{How, Place, Region};
use crate::topology::Tree;

impl Plan<'_> {
    pub(super) fn reduce(&mut self) -> Option<()> {
        let (root, len) = (self.operation.root, self.operation.len);
        let tree = Tree::new(self.members, root).ok()?;
        // Rounds below: a segment of a child was sent one round after the child had it.
        let first = tree.height() - tree.depth(self.me)?;
        self.schedule.input = len;
        let size = segment_size(len, self.element);
        if self.me == root {
            self.schedule.output = len;
        } else if !tree.is_leaf(self.me) {
            // One segment is sent while the next is combined.
            self.schedule.scratch = len.min(2 * size);
        }
        for (segment, range) in segments(len, self.element) {
            let input = Place::input(range.clone());
            let slot = segment % 2 * size;
            let sum = if self.me == root { Place::output(range) } else { Place::scratch(slot..slot + range.len()) };
            if tree.is_leaf(self.me) {
                match tree.parent(self.me) {
                    Some(parent) => self.send(first + segment, parent, input),
                    None => self.local(0, input, sum, How::Store),
                }
                continue;
            }
            let round = first + segment - 1;
            self.local(round, input, sum.clone(), How::Store);
            for child in tree.children(self.me) {
                self.receive(round, child, sum.clone(), How::After);
            }
            if let Some(parent) = tree.parent(self.me) {
                self.send(round + 1, parent, sum);
            }
        }
        Some(())
    }

    /// Each member takes in the ranks that follow its own, twice as many in each round. In the end the first member has all.
    pub(super) fn reduce_in_order(&mut self) {
        let (root, len) = (self.operation.root, self.operation.len);
        self.schedule.input = len;
        let sum = if self.me == root {
            self.schedule.output = len;
            Place::output(0..len)
        } else {
            Place::scratch(0..len)
        };
        let last = self.distances().count();
        // The root's output is for the first member's result. Until it comes, the sum that the root itself passes on lies there.
        let mut held = Place::input(0..len);
        for (round, distance) in self.distances() {
            if self.me % (2 * distance) == distance {
                self.send(round, self.me - distance, held.clone());
                break;
            }
            if self.me + distance < self.members {
                if held != sum {
                    self.local(round, held, sum.clone(), How::Store);
                    held = sum.clone();
                }
                self.receive(round, self.me + distance, sum.clone(), How::After);
            }
        }
        if held.region == Region::Scratch {
            self.schedule.scratch = len;
        }
        match (self.me, root) {
            (0, 0) if held != sum => self.local(last, held, sum, How::Store),
            (0, 0) => (),
            (0, _) => self.send(last, root, held),
            (me, root) if me == root => self.receive(last, 0, sum, How::Store),
            _ => (),
        }
    }

    pub(super) fn reduce_directly(&mut self) {
        let (root, len) = (self.operation.root, self.operation.len);
        self.schedule.input = len;
        if self.me != root {
            return self.send(0, root, Place::input(0..len));
        }
        self.schedule.output = len;
        self.combine_all(Place::input(0..len));
    }

    /// Combines the own vector with those that all others send, in the order of ranks.
    fn combine_all(&mut self, input: Place) {
        let output = Place::output(0..input.len());
        self.local(0, input, output.clone(), How::Store);
        for rank in (0..self.me).rev() {
            self.receive(0, rank, output.clone(), How::Before);
        }
        for rank in self.me + 1..self.members {
            self.receive(0, rank, output.clone(), How::After);
        }
    }

    pub(super) fn allreduce(&mut self) {
        let (input, sum) = self.whole();
        self.local(0, input, sum.clone(), How::Store);
        let power = 1 << self.members.ilog2();
        // The first ranks go in pairs of neighbours, of which one speaks for both.
        let extra = self.members - power;
        let in_pair = self.me < 2 * extra;
        let last = 1 + power.ilog2() as usize;
        if in_pair && self.me % 2 == 1 {
            self.send(0, self.me - 1, sum.clone());
            return self.receive(last, self.me - 1, sum, How::Store);
        }
        if in_pair {
            self.receive(0, self.me + 1, sum.clone(), How::After);
        }
        let place = if in_pair { self.me / 2 } else { self.me - extra };
        for bit in 0..power.ilog2() as usize {
            let other = place ^ 1 << bit;
            let rank = if other < extra { 2 * other } else { other + extra };
            self.send(1 + bit, rank, sum.clone());
            self.receive(1 + bit, rank, sum.clone(), if other < place { How::Before } else { How::After });
        }
        if in_pair {
            self.send(last, self.me + 1, sum);
        }
    }

    pub(super) fn allreduce_round(&mut self) {
        let (input, output) = self.whole();
        let blocks = Blocks::even(input.len(), self.members);
        self.local(0, input, output, How::Store);
        let rounds = self.members - 1;
        self.ring(0, &blocks, 0, How::After);
        self.ring(rounds, &blocks, rounds, How::Store);
    }

    pub(super) fn scan(&mut self) {
        let (input, sum) = self.whole();
        self.local(0, input, sum.clone(), How::Store);
        for (round, distance) in self.distances() {
            if self.me + distance < self.members {
                self.send(round, self.me + distance, sum.clone());
            }
            if self.me >= distance {
                self.receive(round, self.me - distance, sum.clone(), How::Before);
            }
        }
    }

    /// The blocks of a reduce-scatter, and the length of the own one.
    fn scattered(&mut self) -> (Blocks, usize) {
        let (blocks, len) = (Blocks::of(self.operation.sends), self.operation.sends[self.me]);
        (self.schedule.input, self.schedule.output) = (blocks.total(), len);
        (blocks, len)
    }

    pub(super) fn reduce_scatter_round(&mut self) {
        let (blocks, len) = self.scattered();
        if self.members == 1 {
            return self.local(0, Place::input(0..len), Place::output(0..len), How::Store);
        }
        // One block is sent while the next is combined.
        let largest = self.operation.sends.iter().copied().max().unwrap_or(0);
        self.schedule.scratch = if self.members > 2 { 2 * largest } else { 0 };
        let mut held = Place::input(blocks.at(self.before(1)));
        for round in 0..self.members - 1 {
            let block = blocks.at(self.before(round + 2));
            let slot = round % 2 * largest;
            let is_last = round + 2 == self.members;
            let sum = if is_last { Place::output(0..len) } else { Place::scratch(slot..slot + block.len()) };
            self.send(round, self.after(1), held);
            self.local(round, Place::input(block), sum.clone(), How::Store);
            self.receive(round, self.before(1), sum.clone(), How::After);
            held = sum;
        }
    }

    /// To keep the order of ranks, vectors of lower ranks are put before the own one, in falling order. Those of higher ranks are put together, also in
    /// falling order, and go behind it.
    pub(super) fn reduce_scatter_by_pairs(&mut self) {
        let (blocks, len) = self.scattered();
        self.local(0, Place::input(blocks.at(self.me)), Place::output(0..len), How::Store);
        let (lower, higher) = (Place::output(0..len), Place::scratch(0..len));
        for distance in 1..self.members {
            let (to, from) = (self.after(distance), self.before(distance));
            self.send(distance - 1, to, Place::input(blocks.at(to)));
            let into = if from < self.me { &lower } else { &higher };
            let how = if from == self.members - 1 { How::Store } else { How::Before };
            self.receive(distance - 1, from, into.clone(), how);
        }
        if self.me < self.members - 1 && len > 0 {
            self.schedule.scratch = len;
            self.local(self.members - 1, higher, lower, How::After);
        }
    }

    pub(super) fn reduce_scatter_directly(&mut self) {
        let (blocks, _) = self.scattered();
        for distance in 1..self.members {
            let rank = self.after(distance);
            self.send(0, rank, Place::input(blocks.at(rank)));
        }
        self.combine_all(Place::input(blocks.at(self.me)));
    }
}
