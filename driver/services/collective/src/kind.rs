//! The collective operations, without roots and lengths.

/// A collective operation. Its number is part of the packets between members.
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
    /// Whether each reader needs a different part of a member's input.
    pub fn divides(self) -> bool {
        matches!(self, Kind::Scatter | Kind::AllToAll | Kind::ReduceScatter)
    }

    /// Whether the inputs are combined.
    pub fn combines(self) -> bool {
        matches!(self, Kind::Reduce | Kind::AllReduce | Kind::Scan | Kind::ReduceScatter)
    }

    /// Whether the inputs of different members lie side by side in the output.
    pub fn collects(self) -> bool {
        matches!(self, Kind::Gather | Kind::AllGather | Kind::AllToAll)
    }

    /// Whether the output of member `to` depends on the input of member `from`, which may be the same member.
    pub fn gives(self, root: usize, from: usize, to: usize) -> bool {
        match self {
            Kind::Broadcast | Kind::Scatter => from == root,
            Kind::Gather | Kind::Reduce => to == root,
            Kind::Scan => from <= to,
            Kind::Barrier | Kind::AllGather | Kind::AllToAll | Kind::AllReduce | Kind::ReduceScatter => true,
        }
    }
}
