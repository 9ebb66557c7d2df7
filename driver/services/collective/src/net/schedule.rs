//! The messages between members, and their order: pure functions of the operation, the ranks and the lengths.
//!
//! All lengths and places are in elements.
//!
//! A step of one member and its counterpart at the other member belong to rounds of the same number, before empty rounds are left out. So members never
//! wait for each other in a circle, even if nothing is kept between them: a member in the lowest round can always go on.

mod algorithm;
mod boxes;
mod hierarchical;
mod moves;
mod operation;
mod plan;
mod reductions;

pub use algorithm::{Algorithm, choose};
pub use boxes::Boxes;
pub use operation::{Operation, Schedule, Step};

use crate::kind::Kind;
use plan::Plan;

impl Operation<'_> {
    /// What member `me` of these boxes does, with elements of this many bytes. `None` if the algorithm cannot do it, or ranks or counts don't fit the
    /// number of members.
    pub fn schedule(&self, me: usize, boxes: &Boxes, element: usize, algorithm: Algorithm) -> Option<Schedule> {
        let members = boxes.members();
        if !self.fits(me, members) || !algorithm.carries(self.kind, self.commutative, boxes) {
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

    /// A schedule by an algorithm that does not ask which members share memory.
    fn flat(&self, me: usize, members: usize, element: usize, algorithm: Algorithm) -> Option<Schedule> {
        let mut plan = Plan { operation: *self, me, members, element, schedule: Schedule::default() };
        match (self.kind, algorithm) {
            (Kind::Barrier, _) => plan.barrier(),
            (Kind::Broadcast, Algorithm::Tree) => plan.broadcast()?,
            (Kind::Broadcast, _) => plan.broadcast_directly(),
            (Kind::Reduce, Algorithm::Direct) => plan.reduce_directly(),
            (Kind::Reduce, _) if self.commutative => plan.reduce()?,
            (Kind::Reduce, _) => plan.reduce_in_order(),
            (Kind::AllReduce, Algorithm::Ring) => plan.allreduce_round(),
            (Kind::AllReduce, _) => plan.allreduce(),
            (Kind::Scan, _) => plan.scan(),
            (Kind::AllGather, Algorithm::Ring) => plan.allgather_round(),
            (Kind::AllGather, _) => plan.allgather(),
            (Kind::Gather | Kind::Scatter | Kind::AllToAll, _) => plan.alltoall(algorithm == Algorithm::Direct),
            (Kind::ReduceScatter, Algorithm::Ring) => plan.reduce_scatter_round(),
            (Kind::ReduceScatter, Algorithm::Pairwise) => plan.reduce_scatter_by_pairs(),
            (Kind::ReduceScatter, _) => plan.reduce_scatter_directly(),
        }
        Some(plan.schedule)
    }
}

#[cfg(test)]
mod tests;
