//! Two levels: within each box to its leader, among the leaders, and within each box again. Each part is a flat schedule of fewer members.
//!
//! Long vectors go in segments, so that boxes combine one segment while leaders are at the one before. The parts overlap then: each begins as many rounds
//! after the part before as that one takes for one segment at most, at any member, and rounds have the same numbers at all members. Parts that don't
//! overlap begin at a member when the part before has ended there. In both cases the members in the lowest round of the first part can always go on.

use super::algorithm::{Algorithm, choose};
use super::boxes::Boxes;
use super::operation::{Operation, Schedule, Step};
use super::plan::{Blocks, segment_size, segments};
use crate::kind::Kind;
use crate::net::place::{How, Place, Region};
use crate::topology::Tree;
use std::ops::Range;

/// A schedule in the making.
struct Levels<'a> {
    me: usize,
    element: usize,
    /// The members of the own box, and its leader.
    near: &'a [usize],
    leader: usize,
    leaders: &'a [usize],
    /// Members of the largest box.
    largest: usize,
    /// The algorithm of the leaders.
    between: Algorithm,
    schedule: Schedule,
}

/// Where a part begins, and where the memory of its members lies in that of the whole.
#[derive(Clone, Copy)]
struct At {
    round: usize,
    scratch: usize,
    input: (Region, usize),
    output: (Region, usize),
}

impl At {
    /// A part whose vectors begin at this element of the input and output.
    fn new(round: usize, from: usize) -> Self {
        Self { round, scratch: 0, input: (Region::Input, from), output: (Region::Output, from) }
    }

    fn place(&self, part: Place) -> Place {
        let (region, from) = match part.region {
            Region::Input => self.input,
            Region::Output => self.output,
            region => (region, self.scratch),
        };
        Place { region, range: part.range.start + from..part.range.end + from }
    }
}

/// What member `me` does for an operation that goes in two levels.
pub(super) fn schedule(operation: &Operation<'_>, me: usize, boxes: &Boxes, element: usize) -> Option<Schedule> {
    let root = matches!(operation.kind, Kind::Broadcast | Kind::Reduce).then_some(operation.root);
    let leaders = boxes.leaders(root);
    let (near, leader) = (&boxes.ranks()[boxes.of(me)][..], leaders[boxes.of(me)]);
    let alone = Boxes::alone(leaders.len());
    let between = choose(operation.kind, &alone, operation.elements() * element, operation.commutative);
    let largest = boxes.ranks().iter().map(Vec::len).max()?;
    let mut levels = Levels { me, element, near, leader, leaders: &leaders, largest, between, schedule: Schedule::default() };
    match operation.kind {
        Kind::Barrier => levels.barrier()?,
        Kind::Broadcast => levels.broadcast(operation)?,
        Kind::Reduce => levels.reduce(operation)?,
        Kind::AllReduce => levels.allreduce(operation)?,
        Kind::AllGather => levels.allgather(boxes, operation.receives)?,
        _ => return None,
    }
    levels.schedule.between = Some(between);
    Some(levels.schedule)
}

fn place_of(members: &[usize], rank: usize) -> Option<usize> {
    members.iter().position(|member| *member == rank)
}

impl Levels<'_> {
    /// Adds a part of some members, this one among them.
    fn part(&mut self, operation: &Operation<'_>, members: &[usize], algorithm: Algorithm, at: At) -> Option<()> {
        let part = operation.flat(place_of(members, self.me)?, members.len(), self.element, algorithm)?;
        self.schedule.scratch = self.schedule.scratch.max(at.scratch + part.scratch);
        let rounds = &mut self.schedule.rounds;
        rounds.resize_with(rounds.len().max(at.round + part.rounds.len()), Vec::new);
        for (round, steps) in rounds[at.round..].iter_mut().zip(part.rounds) {
            let steps = steps.into_iter().map(|step| match step {
                Step::Send { to, from } => Step::Send { to: members[to], from: at.place(from) },
                Step::Receive { from, into, how } => Step::Receive { from: members[from], into: at.place(into), how },
                Step::Local { from, into, how } => Step::Local { from: at.place(from), into: at.place(into), how },
            });
            let is_needed = |step: &Step| !matches!(step, Step::Local { from, into, .. } if from == into);
            round.extend(steps.filter(is_needed));
        }
        Some(())
    }

    /// Adds the part of the leaders, if this member is one. `root` is that of the whole operation.
    fn among_leaders(&mut self, operation: Operation<'_>, root: usize, at: At) -> Option<()> {
        if self.me != self.leader {
            return Some(());
        }
        let root = place_of(self.leaders, root).unwrap_or(0);
        self.part(&Operation { root, ..operation }, self.leaders, self.between, at)
    }

    /// A part of the output goes from the leader to all of its box.
    fn spread(&mut self, range: Range<usize>, round: usize) -> Option<()> {
        let root = place_of(self.near, self.leader)?;
        let operation = Operation { root, len: range.len(), ..Operation::of(Kind::Broadcast) };
        self.part(&operation, self.near, Algorithm::Tree, At::new(round, range.start))
    }

    /// Combines the vectors of the box at its leader. Returns where the leader has the result: where they were, if the leader is alone.
    fn collect(&mut self, len: usize, commutative: bool, at: At) -> Option<(Region, usize)> {
        if self.near.len() == 1 {
            return Some(at.input);
        }
        let root = place_of(self.near, self.leader)?;
        let operation = Operation { root, len, commutative, ..Operation::of(Kind::Reduce) };
        self.part(&operation, self.near, Algorithm::Tree, at)?;
        Some(at.output)
    }

    /// The round after all rounds so far.
    fn end(&self) -> usize {
        self.schedule.rounds.len()
    }

    /// In how many rounds one segment goes up or down a tree of this many members. Also to doubling distances and from there to the root, or from one member
    /// to its neighbour and back before and after that.
    fn height(members: usize) -> usize {
        members.next_power_of_two().ilog2() as usize + 2
    }

    fn barrier(&mut self) -> Option<()> {
        let tree = Tree::new(self.near.len(), place_of(self.near, self.leader)?).ok()?;
        let me = place_of(self.near, self.me)?;
        let nothing = || Place::scratch(0..0);
        let send = |to: usize| Step::Send { to: self.near[to], from: nothing() };
        let receive = |from: usize| Step::Receive { from: self.near[from], into: nothing(), how: How::Store };
        let up = tree.children(me).map(receive).collect();
        let down = tree.children(me).map(send).collect();
        let parent = tree.parent(me).map(|parent| [vec![send(parent)], vec![receive(parent)]]);
        self.schedule.rounds.push(up);
        match parent {
            Some(steps) => self.schedule.rounds.extend(steps),
            None => self.among_leaders(Operation::of(Kind::Barrier), 0, At::new(self.end(), 0))?,
        }
        self.schedule.rounds.push(down);
        Some(())
    }

    fn broadcast(&mut self, operation: &Operation<'_>) -> Option<()> {
        self.schedule.output = operation.len;
        self.among_leaders(*operation, operation.root, At::new(0, 0))?;
        self.spread(0..operation.len, Self::height(self.leaders.len()))
    }

    fn reduce(&mut self, operation: &Operation<'_>) -> Option<()> {
        let Operation { root, len, commutative, .. } = *operation;
        self.schedule.input = len;
        let is_root = self.me == root;
        if is_root {
            self.schedule.output = len;
        } else if self.me == self.leader && self.near.len() > 1 {
            self.schedule.scratch = len;
        }
        let sum = (if is_root { Region::Output } else { Region::Scratch }, 0);
        let scratch = self.schedule.scratch;
        let input = self.collect(len, commutative, At { scratch, output: sum, ..At::new(0, 0) })?;
        let scratch = self.schedule.scratch;
        self.among_leaders(*operation, root, At { scratch, input, ..At::new(Self::height(self.largest), 0) })
    }

    fn allreduce(&mut self, operation: &Operation<'_>) -> Option<()> {
        let Operation { len, commutative, .. } = *operation;
        (self.schedule.input, self.schedule.output) = (len, len);
        let size = segment_size(len, self.element);
        // A part may cut a segment into pieces of its own, which take some more rounds.
        let pieces = segments(size, self.element).count();
        let up = Self::height(self.largest) + pieces;
        let across = match self.between {
            Algorithm::Ring => 2 * self.leaders.len(),
            _ => Self::height(self.leaders.len()),
        };
        for (segment, range) in segments(len, self.element) {
            // At most `up` segments are on their way up at once.
            let at = At { scratch: segment % up * size, ..At::new(segment, range.start) };
            let input = self.collect(range.len(), commutative, at)?;
            let at = At { input, ..At::new(segment + up, range.start) };
            self.among_leaders(Operation { len: range.len(), ..*operation }, 0, at)?;
            self.spread(range, segment + up + across)?;
        }
        Some(())
    }

    /// Boxes are in order, so the vectors of one box lie together.
    fn allgather(&mut self, boxes: &Boxes, counts: &[usize]) -> Option<()> {
        let blocks = Blocks::of(counts);
        (self.schedule.input, self.schedule.output) = (counts[self.me], blocks.total());
        let start = blocks.at(self.near[0]).start;
        let own: Vec<usize> = self.near.iter().map(|rank| counts[*rank]).collect();
        let mut sends = vec![0; own.len()];
        sends[0] = counts[self.me];
        let none = vec![0; own.len()];
        let receives = if self.me == self.leader { &own } else { &none };
        let gather = Operation { sends: &sends, receives, ..Operation::of(Kind::Gather) };
        let at = At { output: (Region::Output, start), ..At::new(0, 0) };
        self.part(&gather, self.near, Algorithm::Direct, at)?;
        let by_box: Vec<usize> = boxes.ranks().iter().map(|ranks| ranks.iter().map(|rank| counts[*rank]).sum()).collect();
        let among = Operation { receives: &by_box, ..Operation::of(Kind::AllGather) };
        self.among_leaders(among, 0, At { input: (Region::Output, start), ..At::new(self.end(), 0) })?;
        self.spread(0..blocks.total(), self.end())
    }
}
