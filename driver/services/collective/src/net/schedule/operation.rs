//! An operation, as one member sees it, and the steps that it becomes.

use super::algorithm::Algorithm;
use crate::kind::Kind;
use crate::net::place::{How, Place};

/// An operation, as one member sees it. All lengths are in elements.
///
/// The input of a reduce, an allreduce or a scan may lie in its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation<'a> {
    pub kind: Kind,
    /// The root, or 0 if the operation has none.
    pub root: usize,
    /// Elements of the vector of a broadcast, reduce, allreduce or scan.
    pub len: usize,
    /// Elements for each member: those that this member sends to it, or the length of its part in a reduce-scatter.
    pub sends: &'a [usize],
    /// Elements from each member: those that come from it to this member.
    pub receives: &'a [usize],
    /// Whether the order of the operands may be changed.
    pub commutative: bool,
}

impl Operation<'_> {
    pub const fn of(kind: Kind) -> Self {
        Self { kind, root: 0, len: 0, sends: &[], receives: &[], commutative: true }
    }

    /// Elements of one member's vector. For an allgather, those of all inputs.
    pub fn elements(&self) -> usize {
        match self.kind {
            Kind::AllToAll | Kind::ReduceScatter => self.sends.iter().sum(),
            Kind::AllGather => self.receives.iter().sum(),
            _ => self.len,
        }
    }

    /// Whether the root is a member, and the lists have a length for each member.
    pub(super) fn fits(&self, me: usize, members: usize) -> bool {
        let [sends, receives] = [self.sends, self.receives].map(|list| list.len() == members);
        let lists_fit = match self.kind {
            Kind::Gather | Kind::Scatter | Kind::AllToAll => sends && receives && self.sends.get(me) == self.receives.get(me),
            Kind::AllGather => receives,
            Kind::ReduceScatter => sends,
            _ => true,
        };
        me < members && self.root < members && lists_fit
    }
}

/// One thing that a member does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Sends a vector to another member.
    Send { to: usize, from: Place },
    /// Receives a vector from another member.
    Receive { from: usize, into: Place, how: How },
    /// Takes a vector from another place of the same member. An operand that is combined comes from the scratch.
    Local { from: Place, into: Place, how: How },
}

/// The steps of one member for one operation.
///
/// The steps of a round go on at the same time; the next round begins when all have ended. Local steps come first, in order. Received vectors are
/// combined last, in order, when everything else has ended. So a vector that is sent in a round is the one that was there before them, and the result does
/// not depend on which vector came first. A vector that is received in a round is neither sent nor combined in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    pub rounds: Vec<Vec<Step>>,
    /// Elements of the input.
    pub input: usize,
    /// Elements of the output.
    pub output: usize,
    /// Elements of scratch.
    pub scratch: usize,
    /// The algorithm of the leaders of boxes, if there are two levels.
    pub between: Option<Algorithm>,
}
