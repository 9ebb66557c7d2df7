//! Two levels: within each box to its leader, among the leaders, and within each box again. Each part is a flat schedule of fewer members.
//!
//! A part begins at a member when its part before has ended, so nobody waits in a circle: those who are in the first part, and in the lowest round of it, can
//! always go on.

use super::plan::Blocks;
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
    /// By which algorithm the leaders go.
    between: Algorithm,
    schedule: Schedule,
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
    let mut levels = Levels { me, element, near, leader, leaders, between, schedule: Schedule::default() };
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
    /// Appends a part of some members, this one among them. `place` says what the part's input and output are.
    fn part(
        &mut self,
        operation: &Operation<'_>,
        members: &[usize],
        algorithm: Algorithm,
        place: impl Fn(Place) -> Place,
    ) -> Option<()> {
        let me = members.iter().position(|rank| *rank == self.me)?;
        let part = operation.schedule(me, &Boxes::alone(members.len()), self.element, algorithm)?;
        let scratch = self.schedule.scratch;
        self.schedule.scratch += part.scratch;
        let place = |old: Place| match old {
            Place::Scratch(range) => Place::Scratch(shifted(range, scratch)),
            other => place(other),
        };
        for round in part.rounds {
            let steps = round.into_iter().map(|step| match step {
                Step::Send { to, from } => Step::Send { to: members[to], from: place(from) },
                Step::Receive { from, into } => Step::Receive { from: members[from], into: place(into) },
                Step::Fold { from, into, left } => Step::Fold { from: members[from], into: place(into), left },
                Step::Copy { from, into } => Step::Copy { from: place(from), into: place(into) },
                Step::Combine { from, into } => Step::Combine { from: place(from), into: place(into) },
            });
            let is_needed = |step: &Step| !matches!(step, Step::Copy { from, into } if from == into);
            self.schedule.rounds.push(steps.filter(is_needed).collect());
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
    fn spread(&mut self, len: usize) -> Option<()> {
        let root = Self::place_of(self.near, self.leader)?;
        self.part(&Operation::Broadcast { root, len }, self.near, Algorithm::Tree, |place| place)
    }

    /// Combines what the box has at its leader. Says where that has it.
    fn collect(&mut self, len: usize, commutative: bool, into: impl Fn(Range<usize>) -> Place) -> Option<bool> {
        if self.near.len() == 1 {
            return Some(false);
        }
        let root = Self::place_of(self.near, self.leader)?;
        let operation = Operation::Reduce { root, len, commutative };
        self.part(&operation, self.near, Algorithm::Tree, |place| match place {
            Place::Output(range) => into(range),
            other => other,
        })?;
        Some(true)
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
            None => self.part(&Operation::Barrier, &self.leaders.clone(), self.between, |place| place)?,
        }
        self.schedule.rounds.push(down);
        Some(())
    }

    fn broadcast(&mut self, root: usize, len: usize) -> Option<()> {
        self.schedule.output = len;
        if self.is_leader() {
            let leaders = self.leaders.clone();
            let root = Self::place_of(&leaders, root)?;
            self.part(&Operation::Broadcast { root, len }, &leaders, self.between, |place| place)?;
        }
        self.spread(len)
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
        let is_collected = self.collect(len, commutative, sum)?;
        if !self.is_leader() {
            return Some(());
        }
        let leaders = self.leaders.clone();
        let root = Self::place_of(&leaders, root)?;
        self.part(&Operation::Reduce { root, len, commutative }, &leaders, self.between, |place| match place {
            Place::Input(range) if is_collected => sum(range),
            other => other,
        })
    }

    fn allreduce(&mut self, len: usize, commutative: bool) -> Option<()> {
        (self.schedule.input, self.schedule.output) = (len, len);
        let is_collected = self.collect(len, commutative, Place::Output)?;
        if self.is_leader() {
            let leaders = self.leaders.clone();
            self.part(&Operation::AllReduce { len, commutative }, &leaders, self.between, |place| match place {
                Place::Input(range) if is_collected => Place::Output(range),
                other => other,
            })?;
        }
        self.spread(len)
    }

    /// Of boxes in order: what a box has lies together.
    fn allgather(&mut self, boxes: &Boxes, counts: &[usize]) -> Option<()> {
        let blocks = Blocks::of(counts);
        (self.schedule.input, self.schedule.output) = (counts[self.me], blocks.total());
        let start = blocks.at(self.near[0]).start;
        let own: Vec<usize> = self.near.iter().map(|rank| counts[*rank]).collect();
        self.part(&Operation::Gather { root: 0, counts: &own }, self.near, Algorithm::Direct, |place| match place {
            Place::Output(range) => Place::Output(shifted(range, start)),
            other => other,
        })?;
        if self.is_leader() {
            let by_box: Vec<usize> = boxes.ranks().iter().map(|ranks| ranks.iter().map(|rank| counts[*rank]).sum()).collect();
            let leaders = self.leaders.clone();
            self.part(&Operation::AllGather { counts: &by_box }, &leaders, self.between, |place| match place {
                Place::Input(range) => Place::Output(shifted(range, start)),
                other => other,
            })?;
        }
        self.spread(blocks.total())
    }
}

fn shifted(range: Range<usize>, by: usize) -> Range<usize> {
    range.start + by..range.end + by
}
