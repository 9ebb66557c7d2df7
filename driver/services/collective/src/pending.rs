//! Collectives that were started and go on in the background.

use super::core::{Core, check_outside};
use super::state::result_of;
use super::value::Value;
use doorbell_engine::drive::poller::Progress;
use doorbell_engine::node::shared_of;
use doorbell_engine::sync::op::Op;
use doorbell_engine::{Error, Node, Result};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

/// A collective under way: see [`Team::start_allreduce`](super::Team::start_allreduce).
///
/// It goes on while any thread of the node waits, while the poller runs, and inside [`test`](Self::test). It is also a future. If it is dropped it goes on, as the
/// others need this member's part; only the result is lost.
#[must_use = "the result of a collective is in the vector that comes back"]
pub struct Collective<T> {
    node: Node,
    core: Arc<Core>,
    op: Arc<Op>,
    /// The vector that it works on, until the vector was given back.
    xs: Option<Arc<Mutex<Vec<T>>>>,
}

impl<T: Send + 'static> Collective<T> {
    pub(super) fn new(node: Node, core: Arc<Core>, op: Arc<Op>, xs: Arc<Mutex<Vec<T>>>) -> Self {
        Self { node, core, op, xs: Some(xs) }
    }

    /// Whether it has ended. Turns the engine once, so that a loop of tests makes progress.
    pub fn test(&self) -> bool {
        let shared = shared_of(&self.node);
        if !self.op.is_done()
            && let Ok(me) = shared.check()
            && shared.progress() != Progress::Poller
        {
            shared.turn(me);
        }
        self.op.is_done()
    }

    /// Waits until it has ended, and gives the vector back with the result.
    ///
    /// # Errors
    /// See [`Team`](super::Team). After an error the vector is lost.
    pub fn wait(mut self) -> Result<Vec<T>> {
        self.drive(None).and_then(|_| self.result())
    }

    /// Waits until it has ended, until `deadline` at most. After the deadline it comes back and is still under way.
    pub fn wait_by(mut self, deadline: Instant) -> std::result::Result<Result<Vec<T>>, Self> {
        match self.drive(Some(deadline)) {
            Ok(true) => Ok(self.result()),
            Ok(false) => Err(self),
            Err(error) => Ok(Err(error)),
        }
    }

    fn drive(&self, deadline: Option<Instant>) -> Result<bool> {
        if self.op.is_done() {
            return Ok(true);
        }
        let shared = shared_of(&self.node);
        let me = shared.check()?;
        check_outside("wait for a collective")?;
        self.core.look_for(me, &self.op, deadline);
        if self.op.is_done() { Ok(true) } else { shared.drive(me, &self.op, deadline, |_| false) }
    }

    fn result(&mut self) -> Result<Vec<T>> {
        result_of(&self.op)?;
        // The task dropped its half before it told the end (state::tell).
        let xs = self.xs.take().and_then(|xs| Arc::try_unwrap(xs).ok());
        xs.map(|xs| xs.into_inner().unwrap_or_else(PoisonError::into_inner)).ok_or(Error::Cancelled)
    }
}

/// A future that ends when the collective does. Under `Progress::Inline` every poll turns the engine and asks to be polled again.
impl<T: Value + Unpin> Future for Collective<T> {
    type Output = Result<Vec<T>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Vec<T>>> {
        if !shared_of(&self.node).poll_op(&self.op, context) {
            return Poll::Pending;
        }
        Poll::Ready(self.result())
    }
}

impl<T> fmt::Debug for Collective<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collective").field("is_over", &self.op.is_done()).finish()
    }
}
