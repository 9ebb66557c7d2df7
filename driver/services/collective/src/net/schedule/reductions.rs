//! Operations that combine vectors.

use super::plan::{Blocks, Plan};
use super::{Place, Step};
use crate::topology::Tree;

impl Plan {
    pub(super) fn reduce(&mut self, root: usize, len: usize) -> Option<()> {
        let tree = Tree::new(self.members, root).ok()?;
        // Rounds below: what comes from a child was sent one round after the child had it.
        let first = tree.height() - tree.depth(self.me)?;
        self.schedule.input = len;
        let (segments, size) = self.segments(len);
        if self.me == root {
            self.schedule.output = len;
        } else if !tree.is_leaf(self.me) {
            // One segment is sent while the next is combined.
            self.schedule.scratch = len.min(2 * size);
        }
        for segment in 0..segments {
            let range = segment * size..len.min((segment + 1) * size);
            let input = Place::Input(range.clone());
            let slot = segment % 2 * size;
            let sum = if self.me == root { Place::Output(range) } else { Place::Scratch(slot..slot + range.len()) };
            if tree.is_leaf(self.me) {
                match tree.parent(self.me) {
                    Some(parent) => self.send(first + segment, parent, input),
                    None => self.copy(0, input, sum),
                }
                continue;
            }
            let round = first + segment - 1;
            self.copy(round, input, sum.clone());
            for child in tree.children(self.me) {
                self.fold(round, child, sum.clone(), false);
            }
            if let Some(parent) = tree.parent(self.me) {
                self.send(round + 1, parent, sum);
            }
        }
        Some(())
    }

    /// Each takes in the ranks that follow its own, twice as many each time; the first has all in the end.
    pub(super) fn reduce_in_order(&mut self, root: usize, len: usize) {
        self.schedule.input = len;
        let sum = if self.me == root {
            self.schedule.output = len;
            Place::Output(0..len)
        } else {
            Place::Scratch(0..len)
        };
        let last = self.distances().count();
        // The root's output is for the result of the first; what the root itself passes on before lies there until then.
        let mut held = Place::Input(0..len);
        for (round, distance) in self.distances() {
            if self.me % (2 * distance) == distance {
                self.send(round, self.me - distance, held.clone());
                break;
            }
            if self.me + distance < self.members {
                if held != sum {
                    self.copy(round, held, sum.clone());
                    held = sum.clone();
                }
                self.fold(round, self.me + distance, sum.clone(), false);
            }
        }
        if let Place::Scratch(range) = &held {
            self.schedule.scratch = range.end;
        }
        match (self.me, root) {
            (0, 0) if held != sum => self.copy(last, held, sum),
            (0, 0) => (),
            (0, _) => self.send(last, root, held),
            (me, root) if me == root => self.receive(last, 0, sum),
            _ => (),
        }
    }

    pub(super) fn reduce_directly(&mut self, root: usize, len: usize) {
        self.schedule.input = len;
        if self.me != root {
            return self.send(0, root, Place::Input(0..len));
        }
        self.schedule.output = len;
        self.fold_all(Place::Input(0..len), len);
    }

    /// Combines the own input with what all others send, in the order of ranks.
    pub(super) fn fold_all(&mut self, input: Place, len: usize) {
        let output = Place::Output(0..len);
        self.copy(0, input, output.clone());
        for rank in (0..self.me).rev() {
            self.fold(0, rank, output.clone(), true);
        }
        for rank in self.me + 1..self.members {
            self.fold(0, rank, output.clone(), false);
        }
    }

    pub(super) fn allreduce(&mut self, len: usize) {
        (self.schedule.input, self.schedule.output) = (len, len);
        let sum = Place::Output(0..len);
        self.copy(0, Place::Input(0..len), sum.clone());
        let power = 1 << self.members.ilog2();
        // The first ranks go in pairs of neighbours, of which one speaks for both.
        let extra = self.members - power;
        let in_pair = self.me < 2 * extra;
        let last = 1 + power.ilog2() as usize;
        if in_pair && self.me % 2 == 1 {
            self.send(0, self.me - 1, sum.clone());
            return self.receive(last, self.me - 1, sum);
        }
        if in_pair {
            self.fold(0, self.me + 1, sum.clone(), false);
        }
        let place = if in_pair { self.me / 2 } else { self.me - extra };
        for bit in 0..power.ilog2() as usize {
            let other = place ^ 1 << bit;
            let rank = if other < extra { 2 * other } else { other + extra };
            self.send(1 + bit, rank, sum.clone());
            self.fold(1 + bit, rank, sum.clone(), other < place);
        }
        if in_pair {
            self.send(last, self.me + 1, sum);
        }
    }

    pub(super) fn allreduce_round(&mut self, len: usize) {
        (self.schedule.input, self.schedule.output) = (len, len);
        let blocks = Blocks::even(len, self.members);
        self.copy(0, Place::Input(0..len), Place::Output(0..len));
        let (next, last) = (self.after(1), self.before(1));
        for round in 0..self.members - 1 {
            self.send(round, next, Place::Output(blocks.at(self.before(round))));
            self.fold(round, last, Place::Output(blocks.at(self.before(round + 1))), false);
        }
        let rounds = self.members - 1;
        for round in 0..rounds {
            self.send(rounds + round, next, Place::Output(blocks.at(self.before(round + rounds))));
            self.receive(rounds + round, last, Place::Output(blocks.at(self.before(round))));
        }
    }

    pub(super) fn scan(&mut self, len: usize) {
        (self.schedule.input, self.schedule.output) = (len, len);
        let sum = Place::Output(0..len);
        self.copy(0, Place::Input(0..len), sum.clone());
        for (round, distance) in self.distances() {
            if self.me + distance < self.members {
                self.send(round, self.me + distance, sum.clone());
            }
            if self.me >= distance {
                self.fold(round, self.me - distance, sum.clone(), true);
            }
        }
    }

    pub(super) fn reduce_scatter_round(&mut self, counts: &[usize]) {
        let blocks = Blocks::of(counts);
        let len = counts[self.me];
        (self.schedule.input, self.schedule.output) = (blocks.total(), len);
        if self.members == 1 {
            return self.copy(0, Place::Input(0..len), Place::Output(0..len));
        }
        // One block is sent while the next is combined.
        let largest = counts.iter().copied().max().unwrap_or(0);
        self.schedule.scratch = if self.members > 2 { 2 * largest } else { 0 };
        let mut held = Place::Input(blocks.at(self.before(1)));
        for round in 0..self.members - 1 {
            let block = blocks.at(self.before(round + 2));
            let slot = round % 2 * largest;
            let is_last = round + 2 == self.members;
            let sum = if is_last { Place::Output(0..len) } else { Place::Scratch(slot..slot + block.len()) };
            self.send(round, self.after(1), held);
            self.copy(round, Place::Input(block), sum.clone());
            self.fold(round, self.before(1), sum.clone(), false);
            held = sum;
        }
    }

    /// What comes from lower ranks is put before the own, in falling order; then what comes from higher ones is put together, in falling
    /// order, too, and goes behind it: the order of ranks is kept.
    pub(super) fn reduce_scatter_by_pairs(&mut self, counts: &[usize]) {
        let blocks = Blocks::of(counts);
        let len = counts[self.me];
        (self.schedule.input, self.schedule.output) = (blocks.total(), len);
        self.copy(0, Place::Input(blocks.at(self.me)), Place::Output(0..len));
        for distance in 1..self.members {
            let (to, from) = (self.after(distance), self.before(distance));
            self.send(distance - 1, to, Place::Input(blocks.at(to)));
            if from < self.me {
                self.fold(distance - 1, from, Place::Output(0..len), true);
            } else if from == self.members - 1 {
                self.receive(distance - 1, from, Place::Scratch(0..len));
            } else {
                self.fold(distance - 1, from, Place::Scratch(0..len), true);
            }
        }
        if self.me < self.members - 1 && len > 0 {
            self.schedule.scratch = len;
            self.add(self.members - 1, Step::Combine { from: Place::Scratch(0..len), into: Place::Output(0..len) });
        }
    }

    pub(super) fn reduce_scatter_directly(&mut self, counts: &[usize]) {
        let blocks = Blocks::of(counts);
        (self.schedule.input, self.schedule.output) = (blocks.total(), counts[self.me]);
        for distance in 1..self.members {
            let rank = self.after(distance);
            self.send(0, rank, Place::Input(blocks.at(rank)));
        }
        self.fold_all(Place::Input(blocks.at(self.me)), counts[self.me]);
    }
}
