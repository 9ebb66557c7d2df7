//! Who sends what to whom, in which order: pure functions of the operation, the ranks and the lengths.
//!
//! All lengths and places are in elements.
//!
//! A step of one member and its counterpart at the other belong to rounds of the same number, before empty rounds are left out. So no
//! member ever waits in a circle, even if nothing is kept between them: those who are in the lowest round can always go on.

use crate::topology::Tree;
use std::ops::Range;

/// Broadcasts and reductions of more bytes go in segments, so that members pass on one while the next is on its way.
const SEGMENT_BYTES: usize = 64 << 10;
/// At most so many segments: beyond that they grow.
const SEGMENTS_MAX: usize = 1024;
/// An allreduce of as many bytes goes round the ring.
const RING_REDUCE_BYTES: usize = 64 << 10;
/// An allgather of more bytes in all goes round the ring.
const DOUBLING_GATHER_BYTES: usize = 32 << 10;
/// An alltoall or reduce-scatter of up to so many bytes of one member goes at once.
const DIRECT_BYTES: usize = 16 << 10;

/// Where elements lie, in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// What the caller gives.
    Input(Range<usize>),
    /// What the caller gets.
    Output(Range<usize>),
    /// Memory of the run.
    Scratch(Range<usize>),
}

/// One thing that a member does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Sends what lies there.
    Send {
        /// To which rank.
        to: usize,
        /// What.
        from: Place,
    },
    /// Stores what comes.
    Receive {
        /// From which rank.
        from: usize,
        /// Where to.
        into: Place,
    },
    /// Combines with what comes: `received ⊕ into` if `left`, else `into ⊕ received`.
    Fold {
        /// From which rank.
        from: usize,
        /// With what, and where the result goes.
        into: Place,
        /// Whether what comes stands on the left.
        left: bool,
    },
    /// Copies within the member.
    Copy {
        /// What.
        from: Place,
        /// Where to.
        into: Place,
    },
    /// Combines within the member: `into ⊕ from`.
    Combine {
        /// With what: in the scratch.
        from: Place,
        /// Where the result goes: in the output.
        into: Place,
    },
}

/// What one member does for one operation.
///
/// Each round is a list of steps that go on at the same time; the next begins when all have ended. Within a round copies and local combinations
/// come first, in order. Folds come last, in order, when all else has ended: what is sent in a round is what was there before
/// them, and the result does not depend on what came first. What is received in a round is neither sent nor folded in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Steps by round.
    pub rounds: Vec<Vec<Step>>,
    /// Elements of the input.
    pub input: usize,
    /// Elements of the output.
    pub output: usize,
    /// Elements of scratch.
    pub scratch: usize,
}

/// An operation, as one member sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// All wait for all.
    Barrier,
    /// `len` elements of the root's output go to everybody's output. There is no input.
    Broadcast {
        /// Who has them.
        root: usize,
        /// How many.
        len: usize,
    },
    /// All inputs are combined in the root's output; others have no output. The root's input may lie where its output does.
    Reduce {
        /// Who gets the result.
        root: usize,
        /// Elements of each input.
        len: usize,
        /// Whether the order of operands means nothing.
        commutative: bool,
    },
    /// All inputs are combined in everybody's output, which may lie where the input does.
    AllReduce {
        /// Elements of each input.
        len: usize,
        /// Whether the order of operands means nothing.
        commutative: bool,
    },
    /// The inputs of the ranks up to the own one are combined in the output, which may lie where the input does.
    Scan {
        /// Elements of each input.
        len: usize,
    },
    /// All inputs, by rank, in the root's output; others have no output.
    Gather {
        /// Who gets them.
        root: usize,
        /// Elements of each member's input. Others than the root need only know their own.
        counts: &'a [usize],
    },
    /// The root's input, a block for each rank, in everybody's output; others have no input.
    Scatter {
        /// Who has it.
        root: usize,
        /// Elements of each member's block. Others than the root need only know their own.
        counts: &'a [usize],
    },
    /// All inputs, by rank, in everybody's output.
    AllGather {
        /// Elements of each member's input, the same list at all.
        counts: &'a [usize],
    },
    /// Each member's input, a block for each rank, in the outputs, a block from each rank.
    AllToAll {
        /// Elements of the blocks for each.
        sends: &'a [usize],
        /// Elements of the blocks from each.
        receives: &'a [usize],
    },
    /// All inputs are combined, and each member gets a block of the result.
    ReduceScatter {
        /// Elements of each member's block, the same list at all.
        counts: &'a [usize],
        /// Whether the order of operands means nothing.
        commutative: bool,
    },
}

/// Operations without their lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Barrier,
    Broadcast,
    Reduce,
    AllReduce,
    Scan,
    Gather,
    Scatter,
    AllGather,
    AllToAll,
    ReduceScatter,
}

impl Kind {
    /// All, by number.
    pub const ALL: [Self; 10] = [
        Self::Barrier,
        Self::Broadcast,
        Self::Reduce,
        Self::AllReduce,
        Self::Scan,
        Self::Gather,
        Self::Scatter,
        Self::AllGather,
        Self::AllToAll,
        Self::ReduceScatter,
    ];

    /// In lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::AllReduce => "allreduce",
            Self::Scan => "scan",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllGather => "allgather",
            Self::AllToAll => "alltoall",
            Self::ReduceScatter => "reduce-scatter",
        }
    }
}

/// How an operation is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Up or down a tree.
    Tree,
    /// Round a ring, each member to the next.
    Ring,
    /// With members at distances that double.
    Doubling,
    /// With each member in turn.
    Pairwise,
    /// News spread to distances that double.
    Dissemination,
    /// Everything at once, between those whom it concerns.
    Direct,
}

impl Algorithm {
    /// All, by number.
    pub const ALL: [Self; 6] = [Self::Tree, Self::Ring, Self::Doubling, Self::Pairwise, Self::Dissemination, Self::Direct];

    /// In lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tree => "tree",
            Self::Ring => "ring",
            Self::Doubling => "doubling",
            Self::Pairwise => "pairwise",
            Self::Dissemination => "dissemination",
            Self::Direct => "direct",
        }
    }
}

/// By which algorithm an operation goes among `members`, unless something else is asked for.
///
/// `bytes` are those of one member's vector: for an allgather those of all inputs, for an alltoall those of all blocks of a member's
/// input, for a reduce-scatter those of its whole input. They must be the same at all members; where they are not, as in an alltoall with
/// counts, say `usize::MAX`.
pub fn choose(kind: Kind, members: usize, bytes: usize, commutative: bool) -> Algorithm {
    match kind {
        Kind::Barrier => Algorithm::Dissemination,
        Kind::Broadcast | Kind::Reduce => Algorithm::Tree,
        // Of two each sends half, twice: as many bytes as the whole once, and one more way.
        Kind::AllReduce if commutative && bytes >= RING_REDUCE_BYTES && members > 2 => Algorithm::Ring,
        Kind::AllReduce | Kind::Scan => Algorithm::Doubling,
        Kind::Gather | Kind::Scatter => Algorithm::Direct,
        Kind::AllGather if bytes > DOUBLING_GATHER_BYTES => Algorithm::Ring,
        Kind::AllGather => Algorithm::Doubling,
        Kind::AllToAll | Kind::ReduceScatter if bytes <= DIRECT_BYTES => Algorithm::Direct,
        Kind::ReduceScatter if commutative => Algorithm::Ring,
        Kind::AllToAll | Kind::ReduceScatter => Algorithm::Pairwise,
    }
}

impl Operation<'_> {
    /// Without its lengths.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Barrier => Kind::Barrier,
            Self::Broadcast { .. } => Kind::Broadcast,
            Self::Reduce { .. } => Kind::Reduce,
            Self::AllReduce { .. } => Kind::AllReduce,
            Self::Scan { .. } => Kind::Scan,
            Self::Gather { .. } => Kind::Gather,
            Self::Scatter { .. } => Kind::Scatter,
            Self::AllGather { .. } => Kind::AllGather,
            Self::AllToAll { .. } => Kind::AllToAll,
            Self::ReduceScatter { .. } => Kind::ReduceScatter,
        }
    }

    /// The root, where there is one.
    pub const fn root(&self) -> Option<usize> {
        match self {
            Self::Broadcast { root, .. } | Self::Reduce { root, .. } | Self::Gather { root, .. } | Self::Scatter { root, .. } => {
                Some(*root)
            }
            _ => None,
        }
    }

    /// Whether it can be carried out so: only what keeps the order of ranks will do where the operands can't be exchanged.
    pub const fn goes_by(&self, algorithm: Algorithm) -> bool {
        use Algorithm::{Direct, Dissemination, Doubling, Pairwise, Ring, Tree};
        matches!(
            (self, algorithm),
            (Self::Barrier, Dissemination)
                | (Self::Broadcast { .. } | Self::Reduce { .. }, Tree | Direct)
                | (Self::AllReduce { .. } | Self::Scan { .. } | Self::AllGather { .. }, Doubling)
                | (Self::AllReduce { commutative: true, .. } | Self::AllGather { .. }, Ring)
                | (Self::Gather { .. } | Self::Scatter { .. }, Direct)
                | (Self::AllToAll { .. } | Self::ReduceScatter { .. }, Direct | Pairwise)
                | (Self::ReduceScatter { commutative: true, .. }, Ring)
        )
    }

    /// What member `me` of `members` does, with elements of so many bytes. `None` if it can't be done by this algorithm, or ranks or counts
    /// don't fit the number of members.
    pub fn schedule(&self, me: usize, members: usize, element: usize, algorithm: Algorithm) -> Option<Schedule> {
        let counts_fit = match self {
            Self::Gather { counts, .. }
            | Self::Scatter { counts, .. }
            | Self::AllGather { counts }
            | Self::ReduceScatter { counts, .. } => counts.len() == members,
            Self::AllToAll { sends, receives } => {
                sends.len() == members && receives.len() == members && sends.get(me) == receives.get(me)
            }
            _ => true,
        };
        if me >= members || self.root().is_some_and(|root| root >= members) || !counts_fit || !self.goes_by(algorithm) {
            return None;
        }
        let mut plan = Plan { me, members, element, schedule: Schedule::default() };
        match *self {
            Self::Barrier => plan.barrier(),
            Self::Broadcast { root, len } if algorithm == Algorithm::Tree => plan.broadcast(root, len)?,
            Self::Broadcast { root, len } => plan.broadcast_directly(root, len),
            Self::Reduce { root, len, .. } if algorithm == Algorithm::Direct => plan.reduce_directly(root, len),
            Self::Reduce { root, len, commutative: true } => plan.reduce(root, len)?,
            Self::Reduce { root, len, commutative: false } => plan.reduce_in_order(root, len),
            Self::AllReduce { len, .. } if algorithm == Algorithm::Ring => plan.allreduce_round(len),
            Self::AllReduce { len, .. } => plan.allreduce(len),
            Self::Scan { len } => plan.scan(len),
            Self::Gather { root, counts } => plan.gather(root, counts),
            Self::Scatter { root, counts } => plan.scatter(root, counts),
            Self::AllGather { counts } if algorithm == Algorithm::Ring => plan.allgather_round(counts),
            Self::AllGather { counts } => plan.allgather(counts),
            Self::AllToAll { sends, receives } => plan.alltoall(sends, receives, algorithm == Algorithm::Direct),
            Self::ReduceScatter { counts, .. } if algorithm == Algorithm::Ring => plan.reduce_scatter_round(counts),
            Self::ReduceScatter { counts, .. } if algorithm == Algorithm::Pairwise => plan.reduce_scatter_by_pairs(counts),
            Self::ReduceScatter { counts, .. } => plan.reduce_scatter_directly(counts),
        }
        plan.schedule.rounds.retain(|round| !round.is_empty());
        Some(plan.schedule)
    }
}

impl Place {
    /// Which elements.
    pub fn range(&self) -> Range<usize> {
        let (Self::Input(range) | Self::Output(range) | Self::Scratch(range)) = self;
        range.clone()
    }

    /// How many elements.
    pub fn len(&self) -> usize {
        self.range().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Blocks one behind the other, by rank.
struct Blocks(Vec<usize>);

impl Blocks {
    fn of(counts: &[usize]) -> Self {
        let ends = counts.iter().scan(0, |end, count| {
            *end += count;
            Some(*end)
        });
        Self(std::iter::once(0).chain(ends).collect())
    }

    /// `len` elements in as many blocks, which differ by one element at most.
    fn even(len: usize, blocks: usize) -> Self {
        let (each, more) = (len / blocks, len % blocks);
        Self((0..=blocks).map(|block| block * each + block.min(more)).collect())
    }

    fn at(&self, block: usize) -> Range<usize> {
        self.0[block]..self.0[block + 1]
    }

    /// All of these blocks.
    fn span(&self, blocks: Range<usize>) -> Range<usize> {
        self.0[blocks.start]..self.0[blocks.end]
    }

    fn total(&self) -> usize {
        *self.0.last().unwrap_or(&0)
    }
}

/// A schedule in the making. Rounds are numbered alike at all members.
struct Plan {
    me: usize,
    members: usize,
    element: usize,
    schedule: Schedule,
}

impl Plan {
    fn add(&mut self, round: usize, step: Step) {
        let rounds = &mut self.schedule.rounds;
        if rounds.len() <= round {
            rounds.resize_with(round + 1, Vec::new);
        }
        rounds[round].push(step);
    }

    /// Nothing is said of no elements: both sides know how many there are.
    fn send(&mut self, round: usize, to: usize, from: Place) {
        if !from.is_empty() {
            self.add(round, Step::Send { to, from });
        }
    }

    fn receive(&mut self, round: usize, from: usize, into: Place) {
        if !into.is_empty() {
            self.add(round, Step::Receive { from, into });
        }
    }

    fn fold(&mut self, round: usize, from: usize, into: Place, left: bool) {
        if !into.is_empty() {
            self.add(round, Step::Fold { from, into, left });
        }
    }

    fn copy(&mut self, round: usize, from: Place, into: Place) {
        if !into.is_empty() {
            self.add(round, Step::Copy { from, into });
        }
    }

    /// The rank that many places further round the ring.
    fn after(&self, distance: usize) -> usize {
        (self.me + distance) % self.members
    }

    fn before(&self, distance: usize) -> usize {
        (self.me + self.members - distance % self.members) % self.members
    }

    /// 1, 2, 4 and so on, as long as they are less than the number of members, with their round.
    fn distances(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let members = self.members;
        (0..usize::BITS as usize).map(|round| (round, 1 << round)).take_while(move |(_, distance)| *distance < members)
    }

    /// `len` elements in segments: how many, and of how many elements.
    fn segments(&self, len: usize) -> (usize, usize) {
        let size = (SEGMENT_BYTES / self.element.max(1)).max(len.div_ceil(SEGMENTS_MAX)).max(1);
        (len.div_ceil(size), size)
    }

    fn barrier(&mut self) {
        for (round, distance) in self.distances() {
            self.add(round, Step::Send { to: self.after(distance), from: Place::Scratch(0..0) });
            self.add(round, Step::Receive { from: self.before(distance), into: Place::Scratch(0..0) });
        }
    }

    fn broadcast(&mut self, root: usize, len: usize) -> Option<()> {
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

    fn broadcast_directly(&mut self, root: usize, len: usize) {
        self.schedule.output = len;
        if self.me != root {
            return self.receive(0, root, Place::Output(0..len));
        }
        for distance in 1..self.members {
            self.send(0, self.after(distance), Place::Output(0..len));
        }
    }

    fn reduce(&mut self, root: usize, len: usize) -> Option<()> {
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
    fn reduce_in_order(&mut self, root: usize, len: usize) {
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

    fn reduce_directly(&mut self, root: usize, len: usize) {
        self.schedule.input = len;
        if self.me != root {
            return self.send(0, root, Place::Input(0..len));
        }
        self.schedule.output = len;
        self.fold_all(Place::Input(0..len), len);
    }

    /// Combines the own input with what all others send, in the order of ranks.
    fn fold_all(&mut self, input: Place, len: usize) {
        let output = Place::Output(0..len);
        self.copy(0, input, output.clone());
        for rank in (0..self.me).rev() {
            self.fold(0, rank, output.clone(), true);
        }
        for rank in self.me + 1..self.members {
            self.fold(0, rank, output.clone(), false);
        }
    }

    fn allreduce(&mut self, len: usize) {
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

    fn allreduce_round(&mut self, len: usize) {
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

    fn scan(&mut self, len: usize) {
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

    fn gather(&mut self, root: usize, counts: &[usize]) {
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

    fn scatter(&mut self, root: usize, counts: &[usize]) {
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

    fn allgather_round(&mut self, counts: &[usize]) {
        let blocks = self.own_block(counts);
        for round in 0..self.members - 1 {
            self.send(round, self.after(1), Place::Output(blocks.at(self.before(round))));
            self.receive(round, self.before(1), Place::Output(blocks.at(self.before(round + 1))));
        }
    }

    /// Each has the blocks from its own on, twice as many each time.
    fn allgather(&mut self, counts: &[usize]) {
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

    fn own_block(&mut self, counts: &[usize]) -> Blocks {
        let blocks = Blocks::of(counts);
        (self.schedule.input, self.schedule.output) = (counts[self.me], blocks.total());
        self.copy(0, Place::Input(0..counts[self.me]), Place::Output(blocks.at(self.me)));
        blocks
    }

    /// So many blocks from `first` on, where the first comes after the last: in one piece or two.
    fn round_the_end(&self, first: usize, many: usize) -> [Range<usize>; 2] {
        let end = first + many;
        [first..end.min(self.members), 0..end.saturating_sub(self.members)]
    }

    fn alltoall(&mut self, sends: &[usize], receives: &[usize], at_once: bool) {
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

    fn reduce_scatter_round(&mut self, counts: &[usize]) {
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
    fn reduce_scatter_by_pairs(&mut self, counts: &[usize]) {
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

    fn reduce_scatter_directly(&mut self, counts: &[usize]) {
        let blocks = Blocks::of(counts);
        (self.schedule.input, self.schedule.output) = (blocks.total(), counts[self.me]);
        for distance in 1..self.members {
            let rank = self.after(distance);
            self.send(0, rank, Place::Input(blocks.at(rank)));
        }
        self.fold_all(Place::Input(blocks.at(self.me)), counts[self.me]);
    }
}

#[cfg(test)]
mod tests;
