//! The collectives of a team that wait for their results.

use super::kind::Kind;
use super::lengths::{Counts, Lengths};
use super::reduction::Reduction;
use super::team::Team;
use super::value::Value;
use super::what::What;
use doorbell_engine::Result;
use doorbell_engine::error::Error;
use doorbell_fabric::world;
use std::time::Instant;

impl Team {
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.builder.patience.map(|patience| world::now() + patience)
    }

    fn run(&self, operation: &'static str, what: What) -> Result<()> {
        let deadline = self.deadline();
        self.core.run(operation, deadline, what)
    }

    fn check_root(&self, root: usize) -> Result<()> {
        if root < self.len() {
            return Ok(());
        }
        Err(Error::Invalid { what: format!("rank {root} is none of a team of {}", self.len()) })
    }

    /// An operation whose input and output are the same vector.
    pub(super) fn in_place<T: Value>(&self, kind: Kind, root: usize, xs: &mut [T]) -> Result<What> {
        self.check_root(root)?;
        Ok(What::in_place(kind, root, xs))
    }

    /// An operation from one vector to another.
    fn between<T: Value>(&self, kind: Kind, root: usize, vectors: (&[T], &mut [T]), lengths: Lengths) -> Result<What> {
        self.check_root(root)?;
        What::between(kind, root, vectors, lengths, (self.rank(), self.len()))
    }

    /// Bytes for each member, from the numbers of elements. None, if this member is not the root that has them.
    fn bytes<T>(&self, counts: Option<&[usize]>) -> Result<Counts> {
        let Some(counts) = counts else { return Ok(Counts::Each(0)) };
        if counts.len() != self.len() {
            let what = format!("there are {} counts for a team of {}; one for each member is needed", counts.len(), self.len());
            return Err(Error::Invalid { what });
        }
        let bytes = |count: &usize| count.checked_mul(size_of::<T>()).filter(|bytes| *bytes < 1 << 48);
        let bytes = counts.iter().map(bytes).collect::<Option<_>>();
        bytes.map(Counts::List).ok_or_else(|| Error::Invalid { what: "a count of elements is beyond all memory".into() })
    }

    /// Waits until all members have called it.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn barrier(&self) -> Result<()> {
        self.run("barrier", What::barrier())
    }

    /// Copies the root's vector to all members.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn broadcast<T: Value>(&self, root: usize, xs: &mut [T]) -> Result<()> {
        self.run("broadcast", self.in_place(Kind::Broadcast, root, xs)?)
    }

    /// Combines the vectors of all members, in the order of ranks, into the root's vector. The others' vectors stay as they are.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn reduce<T: Value, R: Reduction<T>>(&self, root: usize, reduction: R, xs: &mut [T]) -> Result<()> {
        self.run("reduce", self.in_place(Kind::Reduce, root, xs)?.combined(reduction)?)
    }

    /// Combines the vectors of all members, in the order of ranks, into the vector of each.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn allreduce<T: Value, R: Reduction<T>>(&self, reduction: R, xs: &mut [T]) -> Result<()> {
        self.run("allreduce", self.in_place(Kind::AllReduce, 0, xs)?.combined(reduction)?)
    }

    /// Combines the vectors of the ranks up to each member's own, in their order, into its own vector.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn scan<T: Value, R: Reduction<T>>(&self, reduction: R, xs: &mut [T]) -> Result<()> {
        self.run("scan", self.in_place(Kind::Scan, 0, xs)?.combined(reduction)?)
    }

    /// Gives the root the vectors of all members, one after the other in the order of ranks. Only the root needs `all`, which is as long as all of them.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn gather<T: Value>(&self, root: usize, mine: &[T], all: Option<&mut [T]>) -> Result<()> {
        let vectors = (mine, all.unwrap_or_default());
        self.run("gather", self.between(Kind::Gather, root, vectors, Lengths::each(size_of_val(mine)))?)
    }

    /// As [`gather`](Self::gather), of vectors of different lengths. The root says how many elements it gets from each member.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn gather_v<T: Value>(&self, root: usize, mine: &[T], all: Option<(&mut [T], &[usize])>) -> Result<()> {
        let (all, counts) = all.filter(|_| root == self.rank()).unzip();
        let lengths = Lengths::varying(Counts::Each(size_of_val(mine)), self.bytes::<T>(counts)?);
        self.run("gather_v", self.between(Kind::Gather, root, (mine, all.unwrap_or_default()), lengths)?)
    }

    /// Gives each member its part of the root's vector, in the order of ranks. Only the root needs `all`, which is as long as all parts.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn scatter<T: Value>(&self, root: usize, all: Option<&[T]>, mine: &mut [T]) -> Result<()> {
        let lengths = Lengths::each(size_of_val(mine));
        self.run("scatter", self.between(Kind::Scatter, root, (all.unwrap_or_default(), mine), lengths)?)
    }

    /// As [`scatter`](Self::scatter), in parts of different lengths. The root says how many elements each member gets.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn scatter_v<T: Value>(&self, root: usize, all: Option<(&[T], &[usize])>, mine: &mut [T]) -> Result<()> {
        let (all, counts) = all.filter(|_| root == self.rank()).unzip();
        let lengths = Lengths::varying(self.bytes::<T>(counts)?, Counts::Each(size_of_val(mine)));
        self.run("scatter_v", self.between(Kind::Scatter, root, (all.unwrap_or_default(), mine), lengths)?)
    }

    /// Gives all members the vectors of all, one after the other in the order of ranks.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn allgather<T: Value>(&self, mine: &[T], all: &mut [T]) -> Result<()> {
        let lengths = Lengths::each(size_of_val(mine));
        self.run("allgather", self.between(Kind::AllGather, 0, (mine, all), lengths)?)
    }

    /// As [`allgather`](Self::allgather), of vectors of different lengths. All members say how many elements each has.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn allgather_v<T: Value>(&self, mine: &[T], all: &mut [T], counts: &[usize]) -> Result<()> {
        let lengths = Lengths::varying(Counts::Each(size_of_val(mine)), self.bytes::<T>(Some(counts))?);
        self.run("allgather_v", self.between(Kind::AllGather, 0, (mine, all), lengths)?)
    }

    /// Gives each member its part of each member's vector: the part of `from` at the place of its rank goes to the place of the sender's rank in its `into`.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn alltoall<T: Value>(&self, from: &[T], into: &mut [T]) -> Result<()> {
        let lengths = Lengths::each(from.len() / self.len() * size_of::<T>());
        self.run("alltoall", self.between(Kind::AllToAll, 0, (from, into), lengths)?)
    }

    /// As [`alltoall`](Self::alltoall), in parts of different lengths: `send` and `get` say how many elements go to each member, and how many come from each.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn alltoall_v<T: Value>(&self, from: &[T], send: &[usize], into: &mut [T], get: &[usize]) -> Result<()> {
        let lengths = Lengths::varying(self.bytes::<T>(Some(send))?, self.bytes::<T>(Some(get))?);
        self.run("alltoall_v", self.between(Kind::AllToAll, 0, (from, into), lengths)?)
    }

    /// Combines the vectors of all members, in the order of ranks, and gives each member the part at the place of its rank.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn reduce_scatter<T: Value, R: Reduction<T>>(&self, reduction: R, all: &[T], mine: &mut [T]) -> Result<()> {
        let lengths = Lengths::each(size_of_val(mine));
        self.run("reduce_scatter", self.between(Kind::ReduceScatter, 0, (all, mine), lengths)?.combined(reduction)?)
    }

    /// As [`reduce_scatter`](Self::reduce_scatter), in parts of different lengths. All members say how many elements each gets.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn reduce_scatter_v<T: Value, R: Reduction<T>>(
        &self,
        reduction: R,
        all: &[T],
        counts: &[usize],
        mine: &mut [T],
    ) -> Result<()> {
        let lengths = Lengths::varying(self.bytes::<T>(Some(counts))?, Counts::Each(size_of_val(mine)));
        self.run("reduce_scatter_v", self.between(Kind::ReduceScatter, 0, (all, mine), lengths)?.combined(reduction)?)
    }
}
