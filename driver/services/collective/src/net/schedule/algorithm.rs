//! The algorithms, and which one an operation goes by.

use super::boxes::Boxes;
use crate::kind::Kind;

/// An allreduce of at least this many bytes goes round the ring.
const RING_REDUCE_BYTES: usize = 64 << 10;
/// An allgather of more bytes in all goes round the ring.
const DOUBLING_GATHER_BYTES: usize = 32 << 10;
/// An alltoall or reduce-scatter of up to this many bytes of one member goes at once.
const DIRECT_BYTES: usize = 16 << 10;

/// How an operation goes where some members share no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// Up or down a tree.
    Tree,
    /// Round a ring: each member sends to the next one.
    Ring,
    /// Between members at distances that double.
    Doubling,
    /// Each member with each other member in turn.
    Pairwise,
    /// Notices spread to distances that double.
    Dissemination,
    /// Everything at once, directly from each sender to each receiver.
    Direct,
    /// In two levels: within each box, by shared memory, to its leader; among the leaders of all boxes; and within each box again.
    Hierarchical,
}

impl Algorithm {
    /// All algorithms, by number.
    pub const ALL: [Self; 7] =
        [Self::Tree, Self::Ring, Self::Doubling, Self::Pairwise, Self::Dissemination, Self::Direct, Self::Hierarchical];

    /// The name, in lower case.
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

    /// Whether an operation can go by it. Only an algorithm that keeps the order of ranks will do where operands can't be exchanged.
    pub fn carries(self, kind: Kind, commutative: bool, boxes: &Boxes) -> bool {
        match kind {
            _ if self == Self::Hierarchical => has_levels(kind, boxes, commutative),
            Kind::Barrier => self == Self::Dissemination,
            Kind::Broadcast | Kind::Reduce => matches!(self, Self::Tree | Self::Direct),
            Kind::AllReduce if commutative => matches!(self, Self::Doubling | Self::Ring),
            Kind::AllReduce | Kind::Scan => self == Self::Doubling,
            Kind::AllGather => matches!(self, Self::Doubling | Self::Ring),
            Kind::Gather | Kind::Scatter => self == Self::Direct,
            Kind::ReduceScatter if commutative => matches!(self, Self::Direct | Self::Pairwise | Self::Ring),
            Kind::AllToAll | Kind::ReduceScatter => matches!(self, Self::Direct | Self::Pairwise),
        }
    }
}

/// The algorithm of an operation among the members of these boxes, unless the program asks for another one.
///
/// `bytes` are those of one member's vector: for an allgather those of all inputs, for an alltoall those of all parts of a member's input, for a
/// reduce-scatter those of its whole input. They must be the same at all members. Where they are not, as in an alltoall with counts, they are `usize::MAX`.
pub fn choose(kind: Kind, boxes: &Boxes, bytes: usize, commutative: bool) -> Algorithm {
    let members = boxes.members();
    match kind {
        // A ring of boxes in order sends no more between boxes than their leaders would, and does everything at once.
        Kind::AllGather if bytes > DOUBLING_GATHER_BYTES => Algorithm::Ring,
        _ if has_levels(kind, boxes, commutative) => Algorithm::Hierarchical,
        Kind::Barrier => Algorithm::Dissemination,
        Kind::Broadcast | Kind::Reduce => Algorithm::Tree,
        // Each of two members sends half, twice: as many bytes as the whole once, and one more way.
        Kind::AllReduce if commutative && bytes >= RING_REDUCE_BYTES && members > 2 => Algorithm::Ring,
        Kind::AllReduce | Kind::Scan => Algorithm::Doubling,
        Kind::Gather | Kind::Scatter => Algorithm::Direct,
        Kind::AllGather => Algorithm::Doubling,
        Kind::AllToAll | Kind::ReduceScatter if bytes <= DIRECT_BYTES => Algorithm::Direct,
        Kind::ReduceScatter if commutative => Algorithm::Ring,
        Kind::AllToAll | Kind::ReduceScatter => Algorithm::Pairwise,
    }
}

/// Whether an operation can go in two levels. A result that depends on the order of ranks needs boxes in order.
fn has_levels(kind: Kind, boxes: &Boxes, commutative: bool) -> bool {
    let may = match kind {
        Kind::Barrier | Kind::Broadcast => true,
        Kind::Reduce | Kind::AllReduce => commutative || boxes.are_in_order(),
        Kind::AllGather => boxes.are_in_order(),
        _ => false,
    };
    may && boxes.have_two_levels()
}
