//! Updates in progress, which no thread waits for yet.

use super::code::AtomicRequest;
use doorbell_engine::drive::poller::Progress;
use doorbell_engine::node::shared_of;
use doorbell_engine::sync::baton::Token;
use doorbell_engine::sync::op::{Op, Outcome};
use doorbell_engine::{Certainty, Error, Node, Result};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

/// An update in progress; see [`RemoteCell::start`](super::RemoteCell::start).
///
/// It advances while any thread of the node waits, while the poller runs, and inside [`test`](Self::test). It is also a future,
/// which panics if it is polled again after it was ready. Dropping it cancels the update if it was not sent yet, except inside
/// a callback of `recv_with`. An update that was sent takes place, and its result is lost.
#[must_use = "an update that is dropped may or may not take place"]
pub struct Pending<V>(State<V>);

const READY: &str = "an update gives its result once, and it was taken";

enum State<V> {
    /// It took place, with this value; `None` after the value was taken.
    Over(Option<V>),
    UnderWay(UnderWay<V>),
}

/// Makes the caller's result from the old value.
pub(super) type Of<V> = fn(&AtomicRequest, &[u8; 16]) -> V;

struct UnderWay<V> {
    node: Node,
    op: Arc<Op>,
    request: AtomicRequest,
    of: Of<V>,
}

impl<V> UnderWay<V> {
    /// The result of an update that has ended.
    fn result(&mut self) -> Result<V> {
        match self.op.take() {
            Some(Outcome::Updated(old)) => Ok((self.of)(&self.request, &old)),
            Some(Outcome::Failed(error)) => Err(error),
            _ => panic!("{READY}"),
        }
    }

    /// Cancels the update. True if it was not sent, and never will be.
    fn take_back(&self) -> bool {
        !self.op.is_done() && !doorbell_shm::space::forked() && shared_of(&self.node).take_back(Token::current(), &self.op)
    }

    /// The error when the wait ends early although the update may be on its way.
    fn abandon(&mut self, error: Error) -> Result<V> {
        let is_back = self.take_back();
        if self.op.is_done() {
            return self.result();
        }
        let is_certain = is_back || error.certainty() == Certainty::Unknown;
        Err(if is_certain { error } else { Error::Abandoned { operation: "wait for an update of a cell" } })
    }
}

impl<V> Drop for UnderWay<V> {
    fn drop(&mut self) {
        shared_of(&self.node).poller().ended();
        self.take_back();
    }
}

impl<V> Pending<V> {
    /// An update that took place at once.
    pub(super) fn over(value: V) -> Self {
        Self(State::Over(Some(value)))
    }

    pub(super) fn under_way(node: Node, op: Arc<Op>, request: AtomicRequest, of: Of<V>) -> Self {
        shared_of(&node).began();
        Self(State::UnderWay(UnderWay { node, op, request, of }))
    }

    /// Whether the update has ended. Turns the engine once, so that a loop of tests makes progress. Never blocks.
    pub fn test(&self) -> bool {
        let State::UnderWay(UnderWay { node, op, .. }) = &self.0 else { return true };
        if !op.is_done()
            && let Ok(me) = shared_of(node).check()
            && shared_of(node).progress() != Progress::Poller
        {
            shared_of(node).turn(me);
        }
        op.is_done()
    }

    /// Waits until the update has ended. Drives the node's engine meanwhile.
    ///
    /// # Errors
    /// As an update that waits; see [`RemoteCell`](super::RemoteCell). [`Error::Abandoned`] where waiting is impossible, as
    /// inside `recv_with`: the update may take place nevertheless.
    ///
    /// # Panics
    /// If its result was taken before, by polling it.
    pub fn wait(mut self) -> Result<V> {
        match self.drive(None) {
            Ok(_) => self.result(),
            Err(error) => self.abandon(error),
        }
    }

    /// As [`wait`](Self::wait), until `deadline` at most. After that it returns itself as the error, still in progress.
    pub fn wait_by(mut self, deadline: Instant) -> std::result::Result<Result<V>, Self> {
        match self.drive(Some(deadline)) {
            Ok(true) => Ok(self.result()),
            Ok(false) => Err(self),
            Err(error) => Ok(self.abandon(error)),
        }
    }

    fn abandon(&mut self, error: Error) -> Result<V> {
        match &mut self.0 {
            State::Over(_) => Err(error),
            State::UnderWay(under_way) => under_way.abandon(error),
        }
    }

    fn drive(&self, deadline: Option<Instant>) -> Result<bool> {
        match &self.0 {
            State::UnderWay(UnderWay { node, op, .. }) if !op.is_done() => {
                shared_of(node).drive(shared_of(node).check()?, op, deadline, |_| false)
            }
            _ => Ok(true),
        }
    }

    fn result(&mut self) -> Result<V> {
        match &mut self.0 {
            State::Over(value) => Ok(value.take().expect(READY)),
            State::UnderWay(under_way) => under_way.result(),
        }
    }
}

/// A future that ends with the update. The thread that drives the engine wakes its task. Under `Progress::Inline` only calls of
/// this node drive, so every poll turns the engine and asks to be polled again.
impl<V: Unpin> Future for Pending<V> {
    type Output = Result<V>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<V>> {
        if let State::UnderWay(UnderWay { node, op, .. }) = &self.0
            && !shared_of(node).poll_op(op, context)
        {
            return Poll::Pending;
        }
        Poll::Ready(self.result())
    }
}

impl<V> fmt::Debug for Pending<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_over = match &self.0 {
            State::Over(_) => true,
            State::UnderWay(under_way) => under_way.op.is_done(),
        };
        f.debug_struct("Pending").field("is_over", &is_over).finish()
    }
}
