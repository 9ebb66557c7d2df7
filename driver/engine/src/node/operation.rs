//! Operations in progress, which no thread has to wait for.

use super::Node;
use crate::Result;
use crate::drive::Shared;
use crate::drive::poller::Progress;
use crate::error::{Certainty, Error};
use crate::mode::Receipt;
use crate::sync::baton::Token;
use crate::sync::op::{Op, Outcome};
use crate::transfer::kept::Keepsake;
use crate::turn::Engine;
use doorbell_fabric::NodeId;
use std::fmt;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

/// An operation in progress: a send or a receive with its buffer, an update of a cell, a collective. `T` is its result.
///
/// It advances while any thread of the node waits, while the poller runs, and inside [`test`](Self::test). It is also a future.
/// Dropping it cancels it. If it is a receive that already had a message, the next receive gets that message. If another node may
/// still write to its buffer, the engine keeps the buffer ([`Error::BufferKept`]). Forgetting it is sound: its buffer is leaked.
///
/// ```
/// # use doorbell::{Match, Node, Space};
/// # fn main() -> Result<(), doorbell::Error> {
/// # let space = Space::heap();
/// # let a = Node::builder("operations").space(space.clone()).join()?;
/// # let b = Node::builder("operations").space(space).join()?;
/// let receive = b.start_recv(Match::any(), vec![0; 64])?;
/// a.peer(b.id())?.start_send(3, b"later".to_vec())?.wait().result?;
/// let completion = receive.wait();
/// let envelope = completion.result?;
/// assert_eq!(&completion.buffer.unwrap()[..envelope.len], b"later");
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping an operation cancels it"]
pub struct Operation<T>(State<T>);

enum State<T> {
    /// It took place when it was started.
    Over(T),
    /// The same, but dropping it gives something back.
    Had(Had<T>),
    UnderWay(UnderWay<T>),
    Taken,
}

/// An operation that took place when it was started. It has no `Op`, and changes only one reference count: each change takes a locked
/// instruction, which waits until all bytes of the message are in the caches. It does not keep its node joined.
struct Had<T> {
    shared: Arc<Shared>,
    /// The work and its outcome, until the result is taken.
    end: Option<(Box<dyn Work<T>>, Outcome)>,
}

impl<T> Had<T> {
    fn take(&mut self) -> T {
        let (work, outcome) = self.end.take().expect(TAKEN);
        work.finish(outcome)
    }
}

impl<T> Drop for Had<T> {
    fn drop(&mut self) {
        if let Some((work, outcome)) = self.end.take() {
            work.discard(&self.shared, Some(outcome));
        }
    }
}

struct UnderWay<T> {
    node: Node,
    op: Arc<Op>,
    /// From `Box::leak`, until it is taken. The engine may keep an address within it, and a `Box` would claim unique access.
    work: Option<NonNull<dyn Work<T>>>,
}

// SAFETY: nothing else owns the work, which is `Send`. The engine reaches its bytes from other threads, but no longer does so
// when the work is taken.
unsafe impl<T> Send for UnderWay<T> {}

/// Drops the work of an operation.
pub type Dropper = unsafe fn(NonNull<()>);

/// What an operation owns, and how it ends.
pub trait Work<T>: Send {
    /// What a wait for it does, for errors.
    fn operation(&self) -> &'static str;

    /// Called before a thread waits.
    ///
    /// # Errors
    /// Why this thread may not wait.
    fn before_wait(&self, _me: Token, _op: &Op, _deadline: Option<Instant>) -> Result<()> {
        Ok(())
    }

    /// Withdraws an operation that has not ended. After this call the engine does not use what the work owns. True if the
    /// operation did not take place and never will.
    fn withdraw(&self, node: &Shared, op: &Arc<Op>) -> bool;

    /// Makes the result from the outcome, or from the failure because of which no thread waits for the outcome.
    fn finish(self: Box<Self>, outcome: Outcome) -> T;

    /// The result where the engine keeps what the work owns, because of this error, and how the engine drops the work later.
    fn leave(&self, _error: Error) -> Option<(T, Dropper)> {
        None
    }

    /// The operation was dropped, after it was withdrawn or had ended.
    fn discard(self: Box<Self>, _node: &Shared, _outcome: Option<Outcome>) {}
}

/// An operation that took place at once.
pub fn over<T>(result: T) -> Operation<T> {
    Operation(State::Over(result))
}

/// An operation that took place at once, and whose work says what follows if the result is dropped.
pub fn had<T>(shared: Arc<Shared>, work: Box<dyn Work<T>>, outcome: Outcome) -> Operation<T> {
    Operation(State::Had(Had { shared, end: Some((work, outcome)) }))
}

/// Begins an operation. `start` gets the work at the address that it keeps until the operation ends.
///
/// # Errors
/// Those of `start`.
pub fn begin<T, W: Work<T> + 'static>(
    node: Node,
    work: W,
    start: impl FnOnce(&Node, &mut W) -> Result<Arc<Op>>,
) -> Result<Operation<T>> {
    let mut work = NonNull::from(Box::leak(Box::new(work)));
    // SAFETY: it was just allocated, and nothing else has its address.
    match start(&node, unsafe { work.as_mut() }) {
        Ok(op) => {
            if op.is_done() {
                node.shared().poller().began_and_over();
            } else {
                node.shared().began();
            }
            Ok(Operation(State::UnderWay(UnderWay { node, op, work: Some(work) })))
        }
        Err(error) => {
            // SAFETY: from `Box::leak` above. An operation that did not start keeps no address of it.
            drop(unsafe { Box::from_raw(work.as_ptr()) });
            Err(error)
        }
    }
}

const TAKEN: &str = "an operation gives its result once, and it was taken by polling it";

impl<T> UnderWay<T> {
    fn work(&self) -> &dyn Work<T> {
        let work = self.work.unwrap_or_else(|| unreachable!("the work is there until the operation is consumed"));
        // SAFETY: from `Box::leak`, and not taken. Nothing has a unique reference: the engine's addresses are raw.
        unsafe { work.as_ref() }
    }

    fn take(&mut self) -> Option<Box<dyn Work<T>>> {
        // SAFETY: from `Box::leak`, taken once. The operation has ended or was withdrawn, so the engine uses no address in it.
        self.work.take().map(|work| unsafe { Box::from_raw(work.as_ptr()) })
    }

    fn test(&self) -> bool {
        if !self.op.is_done()
            && let Ok(me) = self.node.shared().check()
            && self.node.shared().progress() != Progress::Poller
        {
            self.node.shared().turn(me);
        }
        self.op.is_done()
    }

    fn drive(&self, deadline: Option<Instant>) -> Result<bool> {
        if self.op.is_done() {
            return Ok(true);
        }
        let me = self.node.shared().check()?;
        self.work().before_wait(me, &self.op, deadline)?;
        self.node.shared().drive(me, &self.op, deadline, |_| false)
    }

    fn withdraw(&self) -> bool {
        !self.op.is_done() && self.work().withdraw(self.node.shared(), &self.op)
    }

    /// The result of an operation that has ended.
    fn finish(&mut self) -> T {
        let outcome = self.op.take().unwrap_or(Outcome::Failed(Error::Cancelled));
        self.end(outcome)
    }

    fn end(&mut self, outcome: Outcome) -> T {
        if let Outcome::Failed(Error::BufferKept { node }) = outcome
            && let Some(result) = self.leave(node)
        {
            return result;
        }
        self.take().expect(TAKEN).finish(outcome)
    }

    /// Leaves the work to the engine, because node `node` may still write to its buffer.
    #[cold]
    fn leave(&mut self, node: NodeId) -> Option<T> {
        let (result, drop) = self.work().leave(Error::BufferKept { node })?;
        let work = self.work.take()?;
        let pool = self.node.shared().copiers().clone();
        // Never dropped here: the buffer is freed by the engine alone, or not at all.
        // SAFETY: from `Box::leak`, and taken. It is `Send`.
        let keepsake = ManuallyDrop::new(unsafe { Keepsake::new(work.cast(), drop, pool) });
        let op = self.op.clone();
        if !doorbell_shm::space::forked() {
            let keep = move |engine: &mut Engine| engine.keep(&op, ManuallyDrop::into_inner(keepsake));
            self.node.shared().have_done(Token::current(), keep);
        }
        Some(result)
    }

    /// The result when no thread waits any longer, because of `error`.
    #[cold]
    fn give_up(&mut self, error: Error) -> T {
        let is_over = self.op.is_done();
        let is_certain = self.withdraw() || error.certainty() == Certainty::Unknown;
        let error = match self.op.take() {
            // The withdrawal itself cancelled the operation, and does not know why.
            Some(Outcome::Failed(Error::Cancelled)) if !is_over => error,
            Some(outcome) => return self.end(outcome),
            None if is_certain => error,
            None => Error::Abandoned { operation: self.work().operation() },
        };
        self.take().expect(TAKEN).finish(Outcome::Failed(error))
    }
}

impl<T> Drop for UnderWay<T> {
    fn drop(&mut self) {
        self.node.shared().poller().ended();
        if self.work.is_some() {
            self.withdraw();
            let outcome = self.op.take();
            if let Some(Outcome::Failed(Error::BufferKept { node })) = outcome
                && self.leave(node).is_some()
            {
                return;
            }
            if let Some(work) = self.take() {
                work.discard(self.node.shared(), outcome);
            }
        }
    }
}

impl<T> Operation<T> {
    /// The receipt of a message: the chosen mode as soon as it is decided, and the outcome once the operation has ended. `None`
    /// unless the call [requested](crate::Peer::start_send_as) a mode or the node has a policy.
    pub fn receipt(&self) -> Option<Receipt> {
        let State::UnderWay(under_way) = &self.0 else { return None };
        under_way.op.receipt()
    }

    /// Whether the operation has ended. Turns the engine once, so that a loop of tests makes progress. Never waits.
    pub fn test(&self) -> bool {
        match &self.0 {
            State::Over(_) | State::Had(_) | State::Taken => true,
            State::UnderWay(under_way) => under_way.test(),
        }
    }

    /// Waits until the operation has ended, and drives the node's engine meanwhile.
    ///
    /// Where waiting is impossible, as inside a callback of `recv_with`, it cancels the operation, and the result says why.
    ///
    /// # Panics
    /// If its result was taken before, by polling it.
    pub fn wait(self) -> T {
        match self.0 {
            State::Over(result) => result,
            State::Had(mut had) => had.take(),
            State::UnderWay(mut under_way) => match under_way.drive(None) {
                Ok(_) => under_way.finish(),
                Err(error) => under_way.give_up(error),
            },
            State::Taken => panic!("{TAKEN}"),
        }
    }

    /// Waits until the operation has ended, until `deadline` at most. After the deadline it returns the operation, which is
    /// still in progress.
    ///
    /// # Errors
    /// The operation, if it has not ended.
    ///
    /// # Panics
    /// As [`wait`](Self::wait).
    pub fn wait_until(self, deadline: Instant) -> std::result::Result<T, Self> {
        match self.0 {
            State::UnderWay(mut under_way) => match under_way.drive(Some(deadline)) {
                Ok(true) => Ok(under_way.finish()),
                Ok(false) => Err(Self(State::UnderWay(under_way))),
                Err(error) => Ok(under_way.give_up(error)),
            },
            over => Ok(Self(over).wait()),
        }
    }

    /// Cancels the operation, and returns how it ended. [`Error::Cancelled`]: it did not take place and never will.
    /// [`Error::Abandoned`]: it may take place, as a collective does, which needs each member's part. Otherwise it had ended
    /// already, with this result.
    ///
    /// # Panics
    /// As [`wait`](Self::wait).
    pub fn cancel(self) -> T {
        match self.0 {
            State::Over(result) => result,
            State::Had(mut had) => had.take(),
            State::UnderWay(mut under_way) => under_way.give_up(Error::Cancelled),
            State::Taken => panic!("{TAKEN}"),
        }
    }
}

impl<T> Unpin for Operation<T> {}

/// Ready when the operation has ended. The thread that turns the engine wakes the task. Under `Progress::Inline` only calls of
/// this node turn the engine, so each poll turns it and asks to be polled again.
impl<T> Future for Operation<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        if let State::UnderWay(under_way) = &self.0
            && !under_way.node.shared().poll_op(&under_way.op, context)
        {
            return Poll::Pending;
        }
        match std::mem::replace(&mut self.0, State::Taken) {
            State::Over(result) => Poll::Ready(result),
            State::Had(mut had) => Poll::Ready(had.take()),
            State::UnderWay(mut under_way) => Poll::Ready(under_way.finish()),
            State::Taken => panic!("{TAKEN}"),
        }
    }
}

impl<T> fmt::Debug for Operation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_over = match &self.0 {
            State::Over(_) | State::Had(_) | State::Taken => true,
            State::UnderWay(under_way) => under_way.op.is_done(),
        };
        f.debug_struct("Operation").field("is_over", &is_over).finish()
    }
}
