//! The collectives of a team that are started, and go on in the background.

use super::kind::Kind;
use super::pending::Collective;
use super::reduction::Reduction;
use super::state::Kept;
use super::team::Team;
use super::value::Value;
use super::what::What;
use doorbell_engine::Result;
use std::sync::{Arc, Mutex};

impl Team {
    /// Begins a [`barrier`](Self::barrier).
    ///
    /// # Errors
    /// See [`Team`].
    pub fn start_barrier(&self) -> Result<Collective<()>> {
        self.start(false, Vec::new(), |_| Ok(What::barrier()))
    }

    /// Begins a [`broadcast`](Self::broadcast).
    ///
    /// # Errors
    /// See [`Team`].
    pub fn start_broadcast<T: Value>(&self, root: usize, xs: Vec<T>) -> Result<Collective<T>> {
        self.start(false, xs, |xs| self.in_place(Kind::Broadcast, root, xs))
    }

    /// Begins a [`reduce`](Self::reduce).
    ///
    /// # Errors
    /// See [`Team`].
    pub fn start_reduce<T: Value, R: Reduction<T>>(&self, root: usize, reduction: R, xs: Vec<T>) -> Result<Collective<T>> {
        self.start(false, xs, |xs| self.in_place(Kind::Reduce, root, xs)?.combined(reduction))
    }

    /// Begins an [`allreduce`](Self::allreduce).
    ///
    /// # Errors
    /// See [`Team`].
    pub fn start_allreduce<T: Value, R: Reduction<T>>(&self, reduction: R, xs: Vec<T>) -> Result<Collective<T>> {
        self.start(false, xs, |xs| self.in_place(Kind::AllReduce, 0, xs)?.combined(reduction))
    }

    /// Begins several collectives that go through one channel, with one synchronisation point behind the last. All members make the same batch.
    ///
    /// Call nothing else of the team before the batch is dropped.
    pub fn batch(&self) -> Batch<'_> {
        Batch { team: self }
    }

    /// Begins an operation on a vector, which is kept until the operation is over. `open` says that more may come in the same batch.
    fn start<T: Send + 'static>(
        &self,
        open: bool,
        mut xs: Vec<T>,
        make: impl FnOnce(&mut [T]) -> Result<What>,
    ) -> Result<Collective<T>> {
        let what = make(&mut xs)?;
        let kept = Arc::new(Mutex::new(xs));
        let clone: Kept = Box::new(kept.clone());
        let op = self.core.start(open, Some(clone), what)?;
        Ok(Collective::new(self.builder.node.clone(), self.core.clone(), op, kept))
    }
}

/// Several collectives with one synchronisation point: see [`Team::batch`].
#[derive(Debug)]
pub struct Batch<'a> {
    team: &'a Team,
}

impl Batch<'_> {
    /// As [`Team::start_broadcast`].
    ///
    /// # Errors
    /// See [`Team`].
    pub fn broadcast<T: Value>(&self, root: usize, xs: Vec<T>) -> Result<Collective<T>> {
        self.team.start(true, xs, |xs| self.team.in_place(Kind::Broadcast, root, xs))
    }

    /// As [`Team::start_reduce`].
    ///
    /// # Errors
    /// See [`Team`].
    pub fn reduce<T: Value, R: Reduction<T>>(&self, root: usize, reduction: R, xs: Vec<T>) -> Result<Collective<T>> {
        self.team.start(true, xs, |xs| self.team.in_place(Kind::Reduce, root, xs)?.combined(reduction))
    }

    /// As [`Team::start_allreduce`].
    ///
    /// # Errors
    /// See [`Team`].
    pub fn allreduce<T: Value, R: Reduction<T>>(&self, reduction: R, xs: Vec<T>) -> Result<Collective<T>> {
        self.team.start(true, xs, |xs| self.team.in_place(Kind::AllReduce, 0, xs)?.combined(reduction))
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.team.core.close_batch();
    }
}
