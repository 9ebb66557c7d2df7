//! Two levels: within each box to its leader, among the leaders, and within each box again. Each part is a flat schedule of fewer members.
//!
//! Long vectors go in segments, so that boxes combine one while leaders are at the one before. Parts overlap then: each begins so many rounds later as the part before
//! takes for one segment at most, whoever is in it, and rounds have the same numbers at all members. Where parts don't overlap each begins at a member when the one
//! before has ended there. In both cases those who are in the lowest round of the first part can always go on.

use super::plan::{Blocks, segments};
use super::{Algorithm, Boxes, Operation, Place, Schedule, Step, choose};
use crate::topology::Tree;
use std::ops::Range;

/// A schedule in the making.
struct Levels<'a> {
    me: usize,
    element: usize,
    /// The members of the own box, and who speaks for it.
    near: &'a [usize],
    leader: usize,
    leaders: Vec<usize>,
    /// Members of the largest box.
    largest: usize,
    /// By which algorithm the leaders go.
    between: Algorithm,
    schedule: Schedule,
}

/// Where a part begins.
#[derive(Clone, Copy)]
struct At {
    round: usize,
    scratch: usize,
}

/// By which algorithm the leaders carry out their part of it.
pub(super) fn between(operation: &Operation<'_>, boxes: &Boxes, element: usize) -> Algorithm {
    let (bytes, commutative) = match *operation {
        Operation::Broadcast { len, .. } => (len * element, true),
        Operation::Reduce { len, commutative, .. } | Operation::AllReduce { len, commutative } => (len * element, commutative),
        Operation::AllGather { counts } => (counts.iter().sum::<usize>() * element, true),
        _ => (0, true),
    };
    choose(operation.kind(), &Boxes::alone(boxes.ranks().len()), bytes, commutative)
}

/// What member `me` does for an operation that goes by two levels.
pub(super) fn schedule(operation: &Operation<'_>, me: usize, boxes: &Boxes, element: usize) -> Option<Schedule> {
    let leaders = boxes.leaders(operation.root());
    let (near, leader) = (&boxes.ranks()[boxes.of(me)][..], leaders[boxes.of(me)]);
    let between = between(operation, boxes, element);
    let largest = boxes.ranks().iter().map(Vec::len).max()?;
    let mut levels = Levels { me, element, near, leader, leaders, largest, between, schedule: Schedule::default() };
    match *operation {
        Operation::Barrier => levels.barrier()?,
        Operation::Broadcast { root, len } => levels.broadcast(root, len)?,
        Operation::Reduce { root, len, commutative } => levels.reduce(root, len, commutative)?,
        Operation::AllReduce { len, commutative } => levels.allreduce(len, commutative)?,
        Operation::AllGather { counts } => levels.allgather(boxes, counts)?,
        _ => return None,
    }
    levels.schedule.between = Some(between);
    Some(levels.schedule)
}

impl Levels<'_> {
    /// Adds a part of some members, this one among them. `place` says what the part's input and output are.
    fn part(
        &mut self,
        operation: &Operation<'_>,
        members: &[usize],
        algorithm: Algorithm,
        at: At,
        place: impl Fn(Place) -> Place,
    ) -> Option<()> {
        let me = members.iter().position(|rank| *rank == self.me)?;
        let part = operation.flat(me, members.len(), self.element, algorithm)?;
        let At { round: first, scratch } = at;
        self.schedule.scratch = self.schedule.scratch.max(scratch + part.scratch);
        let rounds = &mut self.schedule.rounds;
        rounds.resize_with(rounds.len().max(first + part.rounds.len()), Vec::new);
        let place = |old: Place| match old {
            Place::Scratch(range) => Place::Scratch(shifted(range, scratch)),
            other => place(other),
        };
        for (round, steps) in rounds[first..].iter_mut().zip(part.rounds) {
            let steps = steps.into_iter().map(|step| match step {
                Step::Send { to, from } => Step::Send { to: members[to], from: place(from) },
                Step::Receive { from, into } => Step::Receive { from: members[from], into: place(into) },
                Step::Fold { from, into, left } => Step::Fold { from: members[from], into: place(into), left },
                Step::Copy { from, into } => Step::Copy { from: place(from), into: place(into) },
                Step::Combine { from, into } => Step::Combine { from: place(from), into: place(into) },
            });
            let is_needed = |step: &Step| !matches!(step, Step::Copy { from, into } if from == into);
            round.extend(steps.filter(is_needed));
        }
        Some(())
    }

    fn is_leader(&self) -> bool {
        self.me == self.leader
    }

    fn place_of(members: &[usize], rank: usize) -> Option<usize> {
        members.iter().position(|member| *member == rank)
    }

    /// What the leader has in its output goes to all of its box.
    fn spread(&mut self, range: Range<usize>, round: usize) -> Option<()> {
        let root = Self::place_of(self.near, self.leader)?;
        let operation = Operation::Broadcast { root, len: range.len() };
        self.part(&operation, self.near, Algorithm::Tree, At { round, scratch: 0 }, |place| moved(place, 0, range.start))
    }

    /// Combines what the box has of `range` at its leader, which has it there. False if the leader is alone: nothing is moved then.
    fn collect(&mut self, range: Range<usize>, commutative: bool, at: At, into: impl Fn(Range<usize>) -> Place) -> Option<bool> {
        if self.near.len() == 1 {
            return Some(false);
        }
        let root = Self::place_of(self.near, self.leader)?;
        let operation = Operation::Reduce { root, len: range.len(), commutative };
        self.part(&operation, self.near, Algorithm::Tree, at, |place| match moved(place, range.start, range.start) {
            Place::Output(range) => into(range),
            other => other,
        })?;
        Some(true)
    }

    /// Behind all that there is.
    fn end(&self) -> At {
        At { round: self.schedule.rounds.len(), scratch: self.schedule.scratch }
    }

    /// In how many rounds one segment goes up or down a tree of so many members, or to double distances and from there to the root, or from one to its neighbour and
    /// back before and after that.
    fn height(members: usize) -> usize {
        members.next_power_of_two().ilog2() as usize + 2
    }

    fn barrier(&mut self) -> Option<()> {
        let root = Self::place_of(self.near, self.leader)?;
        let tree = Tree::new(self.near.len(), root).ok()?;
        let me = Self::place_of(self.near, self.me)?;
        let nothing = || Place::Scratch(0..0);
        let children = || tree.children(me).map(|child| self.near[child]);
        let parent = tree.parent(me).map(|parent| self.near[parent]);
        let up = children().map(|from| Step::Receive { from, into: nothing() }).collect();
        let down: Vec<Step> = children().map(|to| Step::Send { to, from: nothing() }).collect();
        self.schedule.rounds.push(up);
        match parent {
            Some(parent) => {
                self.schedule.rounds.push(vec![Step::Send { to: parent, from: nothing() }]);
                self.schedule.rounds.push(vec![Step::Receive { from: parent, into: nothing() }]);
            }
            None => self.part(&Operation::Barrier, &self.leaders.clone(), self.between, self.end(), |place| place)?,
        }
        self.schedule.rounds.push(down);
        Some(())
    }

    fn broadcast(&mut self, root: usize, len: usize) -> Option<()> {
        self.schedule.output = len;
        let height = Self::height(self.leaders.len());
        if self.is_leader() {
            let leaders = self.leaders.clone();
            let root = Self::place_of(&leaders, root)?;
            let start = At { round: 0, scratch: 0 };
            self.part(&Operation::Broadcast { root, len }, &leaders, self.between, start, |place| place)?;
        }
        self.spread(0..len, height)
    }

    fn reduce(&mut self, root: usize, len: usize, commutative: bool) -> Option<()> {
        self.schedule.input = len;
        let is_root = self.me == root;
        if is_root {
            self.schedule.output = len;
        } else if self.is_leader() && self.near.len() > 1 {
            self.schedule.scratch = len;
        }
        let sum = |range| if is_root { Place::Output(range) } else { Place::Scratch(range) };
        let start = At { round: 0, ..self.end() };
        let is_collected = self.collect(0..len, commutative, start, sum)?;
        if !self.is_leader() {
            return Some(());
        }
        let leaders = self.leaders.clone();
        let root = Self::place_of(&leaders, root)?;
        let at = At { round: Self::height(self.largest), ..self.end() };
        self.part(&Operation::Reduce { root, len, commutative }, &leaders, self.between, at, |place| match place {
            Place::Input(range) if is_collected => sum(range),
            other => other,
        })
    }

    fn allreduce(&mut self, len: usize, commutative: bool) -> Option<()> {
        (self.schedule.input, self.schedule.output) = (len, len);
        let (many, size) = segments(len, self.element);
        // What of one is too long for a segment of its parts takes some more rounds in these.
        let pieces = segments(size, self.element).0;
        let up = Self::height(self.largest) + pieces;
        let across = match self.between {
            Algorithm::Ring => 2 * self.leaders.len(),
            _ => Self::height(self.leaders.len()),
        };
        for segment in 0..many {
            let range = segment * size..len.min((segment + 1) * size);
            // As many at most are on their way up at once.
            let at = At { round: segment, scratch: segment % up * size };
            let is_collected = self.collect(range.clone(), commutative, at, Place::Output)?;
            if self.is_leader() {
                let leaders = self.leaders.clone();
                let operation = Operation::AllReduce { len: range.len(), commutative };
                let at = At { round: segment + up, scratch: 0 };
                self.part(&operation, &leaders, self.between, at, |place| match moved(place, range.start, range.start) {
                    Place::Input(range) if is_collected => Place::Output(range),
                    other => other,
                })?;
            }
            self.spread(range, segment + up + across)?;
        }
        Some(())
    }

    /// Of boxes in order: what a box has lies together.
    fn allgather(&mut self, boxes: &Boxes, counts: &[usize]) -> Option<()> {
        let blocks = Blocks::of(counts);
        (self.schedule.input, self.schedule.output) = (counts[self.me], blocks.total());
        let start = blocks.at(self.near[0]).start;
        let own: Vec<usize> = self.near.iter().map(|rank| counts[*rank]).collect();
        let gather = Operation::Gather { root: 0, counts: &own };
        self.part(&gather, self.near, Algorithm::Direct, self.end(), |place| moved(place, 0, start))?;
        if self.is_leader() {
            let by_box: Vec<usize> = boxes.ranks().iter().map(|ranks| ranks.iter().map(|rank| counts[*rank]).sum()).collect();
            let leaders = self.leaders.clone();
            self.part(&Operation::AllGather { counts: &by_box }, &leaders, self.between, self.end(), |place| match place {
                Place::Input(range) => Place::Output(shifted(range, start)),
                other => other,
            })?;
        }
        self.spread(0..blocks.total(), self.end().round)
    }
}

/// Further on in the input and output.
fn moved(place: Place, input: usize, output: usize) -> Place {
    match place {
        Place::Input(range) => Place::Input(shifted(range, input)),
        Place::Output(range) => Place::Output(shifted(range, output)),
        scratch => scratch,
    }
}

fn shifted(range: Range<usize>, by: usize) -> Range<usize> {
    range.start + by..range.end + by
}
