//! The collectives of a team that are started, and go on in the background.

use super::core::{Core, check_outside};
use super::kind::Kind;
use super::reduction::Reduction;
use super::state::{Kept, result_of};
use super::team::Team;
use super::value::Value;
use super::what::What;
use doorbell_engine::node::Shared;
use doorbell_engine::node::operation::{Work, begin};
use doorbell_engine::sync::baton::Token;
use doorbell_engine::sync::op::{Op, Outcome};
use doorbell_engine::{Error, Operation, Result};
use std::convert::identity;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

impl Team {
    /// Begins a [`barrier`](Self::barrier).
    ///
    /// # Errors
    /// See [`Team`].
    pub fn start_barrier(&self) -> Result<Operation<Result<()>>> {
        self.start(false, Vec::new(), |_: Vec<()>| (), |_| Ok(What::barrier()))
    }

    /// Begins a [`broadcast`](Self::broadcast).
    ///
    /// # Errors
    /// See [`Team`].
    pub fn start_broadcast<T: Value>(&self, root: usize, xs: Vec<T>) -> Result<Operation<Result<Vec<T>>>> {
        self.start(false, xs, identity, |xs| self.in_place(Kind::Broadcast, root, xs))
    }

    /// Begins a [`reduce`](Self::reduce).
    ///
    /// # Errors
    /// See [`Team`].
    pub fn start_reduce<T: Value, R: Reduction<T>>(
        &self,
        root: usize,
        reduction: R,
        xs: Vec<T>,
    ) -> Result<Operation<Result<Vec<T>>>> {
        self.start(false, xs, identity, |xs| self.in_place(Kind::Reduce, root, xs)?.combined(reduction))
    }

    /// Begins an [`allreduce`](Self::allreduce).
    ///
    /// # Errors
    /// See [`Team`].
    pub fn start_allreduce<T: Value, R: Reduction<T>>(&self, reduction: R, xs: Vec<T>) -> Result<Operation<Result<Vec<T>>>> {
        self.start(false, xs, identity, |xs| self.in_place(Kind::AllReduce, 0, xs)?.combined(reduction))
    }

    /// Begins several collectives that go through one channel, with one synchronisation point behind the last. All members make the same batch.
    ///
    /// Call nothing else of the team before the batch is dropped.
    pub fn batch(&self) -> Batch<'_> {
        Batch { team: self }
    }

    /// Begins an operation on a vector, which is kept until the operation is over. `open` says that more may come in the same batch.
    fn start<T: Send + 'static, V: 'static>(
        &self,
        open: bool,
        mut xs: Vec<T>,
        give: fn(Vec<T>) -> V,
        make: impl FnOnce(&mut [T]) -> Result<What>,
    ) -> Result<Operation<Result<V>>> {
        let what = make(&mut xs)?;
        let kept = Arc::new(Mutex::new(xs));
        let clone: Kept = Box::new(kept.clone());
        let op = self.core.start(open, Some(clone), what)?;
        begin(self.builder.node.clone(), Running { core: self.core.clone(), xs: kept, give }, |_, _| Ok(op))
    }
}

/// A collective in progress. It goes on without its handle, as the other members need this member's part.
struct Running<T, V> {
    core: Arc<Core>,
    /// The vector that it works on.
    xs: Arc<Mutex<Vec<T>>>,
    give: fn(Vec<T>) -> V,
}

impl<T: Send, V> Work<Result<V>> for Running<T, V> {
    fn operation(&self) -> &'static str {
        "wait for a collective"
    }

    fn before_wait(&self, me: Token, op: &Op, deadline: Option<Instant>) -> Result<()> {
        check_outside(self.operation())?;
        self.core.look_for(me, op, deadline);
        Ok(())
    }

    fn withdraw(&self, _node: &Shared, _op: &Arc<Op>) -> bool {
        false
    }

    fn finish(self: Box<Self>, outcome: Outcome) -> Result<V> {
        result_of(Some(outcome))?;
        // The task dropped its half before it told the end (state::tell).
        let xs = Arc::into_inner(self.xs).ok_or(Error::Cancelled)?;
        Ok((self.give)(xs.into_inner().unwrap_or_else(PoisonError::into_inner)))
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
    pub fn broadcast<T: Value>(&self, root: usize, xs: Vec<T>) -> Result<Operation<Result<Vec<T>>>> {
        self.team.start(true, xs, identity, |xs| self.team.in_place(Kind::Broadcast, root, xs))
    }

    /// As [`Team::start_reduce`].
    ///
    /// # Errors
    /// See [`Team`].
    pub fn reduce<T: Value, R: Reduction<T>>(&self, root: usize, reduction: R, xs: Vec<T>) -> Result<Operation<Result<Vec<T>>>> {
        self.team.start(true, xs, identity, |xs| self.team.in_place(Kind::Reduce, root, xs)?.combined(reduction))
    }

    /// As [`Team::start_allreduce`].
    ///
    /// # Errors
    /// See [`Team`].
    pub fn allreduce<T: Value, R: Reduction<T>>(&self, reduction: R, xs: Vec<T>) -> Result<Operation<Result<Vec<T>>>> {
        self.team.start(true, xs, identity, |xs| self.team.in_place(Kind::AllReduce, 0, xs)?.combined(reduction))
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.team.core.close_batch();
    }
}
