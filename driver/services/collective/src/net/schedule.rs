//! Who sends what to whom, in which order: pure functions of the operation, the ranks and the lengths.
//!
//! All lengths and places are in elements.
//!
//! A step of one member and its counterpart at the other belong to rounds of the same number, before empty rounds are left out. So no
//! member ever waits in a circle, even if nothing is kept between them: those who are in the lowest round can always go on.

mod boxes;
mod hierarchical;
mod moves;
mod plan;
mod reductions;

pub use boxes::Boxes;
use plan::Plan;
use std::ops::Range;

/// Broadcasts and reductions of more bytes go in segments, so that members pass on one while the next is on its way.
const SEGMENT_BYTES: usize = 64 << 10;
/// At most so many segments: beyond that they grow. Few in tests, so that they do.
const SEGMENTS_MAX: usize = if cfg!(test) { 4 } else { 1024 };
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
    /// By which algorithm leaders of boxes go, where there are two levels.
    pub between: Option<Algorithm>,
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

/// How an operation goes where some members share no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
    /// By two levels: within each box, by shared memory, to its leader; among the leaders of all boxes; and within each box again.
    Hierarchical,
}

impl Algorithm {
    /// All, by number.
    pub const ALL: [Self; 7] =
        [Self::Tree, Self::Ring, Self::Doubling, Self::Pairwise, Self::Dissemination, Self::Direct, Self::Hierarchical];

    /// In lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tree => "tree",
            Self::Ring => "ring",
            Self::Doubling => "doubling",
            Self::Pairwise => "pairwise",
            Self::Dissemination => "dissemination",
            Self::Direct => "direct",
            Self::Hierarchical => "hierarchical",
        }
    }
}

/// By which algorithm an operation goes among the members of these boxes, unless something else is asked for.
///
/// `bytes` are those of one member's vector: for an allgather those of all inputs, for an alltoall those of all blocks of a member's
/// input, for a reduce-scatter those of its whole input. They must be the same at all members; where they are not, as in an alltoall with
/// counts, say `usize::MAX`.
pub fn choose(kind: Kind, boxes: &Boxes, bytes: usize, commutative: bool) -> Algorithm {
    let members = boxes.members();
    match kind {
        // A ring of boxes in order sends no more between boxes than their leaders would, and does all at once.
        Kind::AllGather if bytes > DOUBLING_GATHER_BYTES => Algorithm::Ring,
        _ if has_levels(kind, boxes, commutative) => Algorithm::Hierarchical,
        Kind::Barrier => Algorithm::Dissemination,
        Kind::Broadcast | Kind::Reduce => Algorithm::Tree,
        // Of two each sends half, twice: as many bytes as the whole once, and one more way.
        Kind::AllReduce if commutative && bytes >= RING_REDUCE_BYTES && members > 2 => Algorithm::Ring,
        Kind::AllReduce | Kind::Scan => Algorithm::Doubling,
        Kind::Gather | Kind::Scatter => Algorithm::Direct,
        Kind::AllGather => Algorithm::Doubling,
        Kind::AllToAll | Kind::ReduceScatter if bytes <= DIRECT_BYTES => Algorithm::Direct,
        Kind::ReduceScatter if commutative => Algorithm::Ring,
        Kind::AllToAll | Kind::ReduceScatter => Algorithm::Pairwise,
    }
}

/// Whether an operation can go by two levels: what depends on the order of ranks only where boxes are in order.
fn has_levels(kind: Kind, boxes: &Boxes, commutative: bool) -> bool {
    let may = match kind {
        Kind::Barrier | Kind::Broadcast => true,
        Kind::Reduce | Kind::AllReduce => commutative || boxes.are_in_order(),
        Kind::AllGather => boxes.are_in_order(),
        _ => false,
    };
    may && boxes.have_two_levels()
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
    pub fn goes_by(&self, algorithm: Algorithm, boxes: &Boxes) -> bool {
        use Algorithm::{Direct, Dissemination, Doubling, Hierarchical, Pairwise, Ring, Tree};
        if algorithm == Hierarchical {
            let commutative =
                !matches!(self, Self::Reduce { commutative: false, .. } | Self::AllReduce { commutative: false, .. });
            return has_levels(self.kind(), boxes, commutative);
        }
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

    /// What member `me` of these boxes does, with elements of so many bytes. `None` if it can't be done by this algorithm, or ranks or counts
    /// don't fit the number of members.
    pub fn schedule(&self, me: usize, boxes: &Boxes, element: usize, algorithm: Algorithm) -> Option<Schedule> {
        let members = boxes.members();
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
        if me >= members || self.root().is_some_and(|root| root >= members) || !counts_fit || !self.goes_by(algorithm, boxes) {
            return None;
        }
        let mut schedule = if algorithm == Algorithm::Hierarchical {
            hierarchical::schedule(self, me, boxes, element)?
        } else {
            self.flat(me, members, element, algorithm)?
        };
        schedule.rounds.retain(|round| !round.is_empty());
        Some(schedule)
    }

    /// By an algorithm that does not ask who shares memory.
    fn flat(&self, me: usize, members: usize, element: usize, algorithm: Algorithm) -> Option<Schedule> {
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

#[cfg(test)]
mod tests;
