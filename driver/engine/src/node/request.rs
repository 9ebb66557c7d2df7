//! Nonblocking operations that own their buffers.

use super::Node;
use super::receive::received;
use crate::Result;
use crate::drive::poller::Progress;
use crate::error::Error;
use crate::message::outbound::Outbound;
use crate::message::receive::RecvOp;
use crate::message::{Match, Message};
use crate::mode::{ModeRequest, Receipt};
use crate::sync::baton::Token;
use crate::sync::op::{Op, Outcome};
use doorbell_fabric::{Envelope, Incarnation};
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

/// A pending send or receive, and its buffer.
///
/// It advances while any thread of the node waits, while the poller runs, and inside [`test`](Self::test). Dropping a request
/// cancels it. If it had already received a message, the next receive gets that message. Forgetting a request is sound: its
/// buffer is leaked. A request is also a future.
///
/// ```
/// # use doorbell::{Done, Match, Node, Space};
/// # fn main() -> Result<(), doorbell::Error> {
/// # let space = Space::heap();
/// # let a = Node::builder("requests").space(space.clone()).join()?;
/// # let b = Node::builder("requests").space(space).join()?;
/// let receive = b.start_recv(Match::any(), vec![0; 64])?;
/// a.peer(b.id())?.start_send(3, b"later".to_vec())?.wait().result?;
/// let completion = receive.wait();
/// let Done::Received(envelope) = completion.result? else { unreachable!() };
/// assert_eq!(&completion.buffer[..envelope.len], b"later");
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping a request cancels it"]
pub struct Request<B> {
    /// From `Box::leak`. The engine keeps an address within the buffer, and a `Box` would claim unique access to it.
    buffer: Option<NonNull<B>>,
    /// The bytes of a receive's buffer.
    bytes: *const u8,
    capacity: usize,
    op: Arc<Op>,
    node: Node,
    /// The send queue, for a send.
    outbound: Option<Arc<Outbound>>,
}

// SAFETY: the buffer moves with the request. The engine reaches its bytes from other threads, but no longer uses them when the
// request gives the buffer back.
unsafe impl<B: Send> Send for Request<B> {}

/// How a request ended, and its buffer.
#[derive(Debug)]
pub struct Completion<B> {
    /// The buffer.
    pub buffer: B,
    /// How it ended.
    pub result: Result<Done>,
}

/// The outcome of a completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// A send: the message is in its target's lane, or all its bytes have been moved.
    Sent,
    /// A receive: the message is in the buffer.
    Received(Envelope),
}

impl<B> Request<B> {
    pub(super) fn send(
        node: Node,
        outbound: Arc<Outbound>,
        life: Option<Incarnation>,
        tag: u64,
        buffer: B,
        asks: Option<ModeRequest>,
    ) -> Result<Self>
    where
        B: AsRef<[u8]>,
    {
        let me = node.shared.check()?;
        let raw = Keep::new(buffer);
        // SAFETY: the box is held by `raw`, then by the request, which gives it back only when the op is over or removed.
        let op = unsafe { node.shared.start_send(me, &outbound, life, tag, raw.0.as_ref().as_ref(), asks) }?;
        node.shared.began();
        Ok(Self { buffer: Some(raw.into_inner()), bytes: std::ptr::null(), capacity: 0, op, node, outbound: Some(outbound) })
    }

    pub(super) fn recv(node: Node, accepts: Match, buffer: B) -> Result<Self>
    where
        B: AsMut<[u8]>,
    {
        let me = node.shared.check()?;
        let mut raw = Keep::new(buffer);
        let op = Op::new();
        // SAFETY: no other code has the box.
        let bytes: &mut [u8] = unsafe { raw.0.as_mut() }.as_mut();
        let capacity = bytes.len();
        // SAFETY: the box is held by `raw`, then by the request, which gives it back only when the op is over or removed.
        let bytes = bytes.as_mut_ptr();
        // SAFETY: as above.
        let receive = unsafe { RecvOp::new(accepts, bytes, capacity, op.clone()) };
        node.shared.post_recv(me, receive)?;
        node.shared.began();
        Ok(Self { buffer: Some(raw.into_inner()), bytes, capacity, op, node, outbound: None })
    }

    /// The receipt of the message: the chosen mode as soon as it is decided, and the outcome once the request has ended. `None`
    /// unless the call [requested](crate::Peer::start_send_as) a mode or the node has a policy.
    pub fn receipt(&self) -> Option<Receipt> {
        self.op.receipt()
    }

    /// Whether the request has ended. Turns the engine once, so that a loop of tests makes progress. Never waits.
    pub fn test(&self) -> bool {
        if !self.op.is_done()
            && let Ok(me) = self.node.shared.check()
            && self.node.shared.progress() != Progress::Poller
        {
            self.node.shared.turn(me);
        }
        self.op.is_done()
    }

    /// Waits until the request has ended.
    pub fn wait(self) -> Completion<B> {
        match self.drive(None) {
            Ok(_) => self.complete(),
            Err(error) => self.give_up(error),
        }
    }

    /// Waits until the request has ended, until `deadline` at most. After the deadline it returns the request, which is still
    /// pending.
    pub fn wait_by(self, deadline: Instant) -> std::result::Result<Completion<B>, Request<B>> {
        match self.drive(Some(deadline)) {
            Ok(true) => Ok(self.complete()),
            Ok(false) => Err(self),
            Err(error) => Ok(self.give_up(error)),
        }
    }

    /// Cancels the request. `Ok` has the buffer: the operation did not take place, and will not. `Err` has the completion of a
    /// request that had already ended.
    pub fn cancel(self) -> std::result::Result<B, Completion<B>> {
        self.withdraw();
        if self.op.is_done() {
            return Err(self.complete());
        }
        Ok(self.into_buffer())
    }

    fn drive(&self, deadline: Option<Instant>) -> Result<bool> {
        if self.op.is_done() {
            return Ok(true);
        }
        let me = self.node.shared.check()?;
        self.node.shared.drive(me, &self.op, deadline, |_| false)
    }

    /// Ends a request whose wait could not begin: the node has left, or this process is a fork.
    fn give_up(self, error: Error) -> Completion<B> {
        self.withdraw();
        if self.op.is_done() {
            return self.complete();
        }
        Completion { buffer: self.into_buffer(), result: Err(error) }
    }

    /// Withdraws the operation, unless it has ended. After this call the engine does not use the buffer.
    fn withdraw(&self) {
        if self.op.is_done() || doorbell_shm::space::forked() {
            return;
        }
        let me = Token::current();
        match &self.outbound {
            Some(outbound) => self.node.shared.withdraw_send(me, outbound, &self.op),
            None => self.node.shared.withdraw_recv(me, &self.op),
        };
    }

    /// Returns a received message that the caller dropped: the next receive gets it.
    fn give_back(&self) {
        if self.outbound.is_some() || doorbell_shm::space::forked() {
            return;
        }
        let message = match self.op.take() {
            Some(Outcome::Received(envelope)) => {
                // SAFETY: `recv` gave the buffer this length. The engine has filled it and no longer touches it.
                let bytes = unsafe { std::slice::from_raw_parts(self.bytes, envelope.len.min(self.capacity)) };
                Message { envelope, bytes: bytes.to_vec() }
            }
            Some(Outcome::Truncated(message)) => *message,
            _ => return,
        };
        self.node.shared.have_done(Token::current(), |engine| engine.give_back(message));
    }

    fn complete(self) -> Completion<B> {
        let result = self.result();
        Completion { buffer: self.into_buffer(), result }
    }

    fn result(&self) -> Result<Done> {
        match self.op.take() {
            Some(Outcome::Sent) => Ok(Done::Sent),
            Some(outcome) => received(outcome, self.capacity).map(Done::Received),
            None => Err(Error::Cancelled),
        }
    }

    /// The caller must know that the op is over or removed.
    fn into_buffer(mut self) -> B {
        let buffer = self.buffer.take().unwrap_or_else(|| unreachable!("a request has its buffer until it is consumed"));
        // SAFETY: from Box::leak in Keep::new; taken once.
        *unsafe { Box::from_raw(buffer.as_ptr()) }
    }
}

impl<B> Drop for Request<B> {
    fn drop(&mut self) {
        self.node.shared.poller().ended();
        if let Some(buffer) = self.buffer.take() {
            self.withdraw();
            self.give_back();
            // SAFETY: from Box::leak in Keep::new; taken once; the engine no longer uses it.
            drop(unsafe { Box::from_raw(buffer.as_ptr()) });
        }
    }
}

/// Ready when the request has ended. The thread that turns the engine wakes the task. Under `Progress::Inline` only calls of
/// this node turn the engine, so each poll turns it and asks to be polled again.
impl<B: Unpin> Future for Request<B> {
    type Output = Completion<B>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Completion<B>> {
        if !self.node.shared.poll_op(&self.op, context) {
            return Poll::Pending;
        }
        // The future was polled after it was ready; any answer is allowed.
        let Some(buffer) = self.buffer.take() else { return Poll::Pending };
        // SAFETY: from Box::leak in Keep::new; taken once; the op is over.
        let buffer = *unsafe { Box::from_raw(buffer.as_ptr()) };
        Poll::Ready(Completion { buffer, result: self.result() })
    }
}

/// Frees a boxed buffer if making its request fails.
struct Keep<B>(NonNull<B>);

impl<B> Keep<B> {
    fn new(buffer: B) -> Self {
        Self(NonNull::from(Box::leak(Box::new(buffer))))
    }

    fn into_inner(self) -> NonNull<B> {
        std::mem::ManuallyDrop::new(self).0
    }
}

impl<B> Drop for Keep<B> {
    fn drop(&mut self) {
        // SAFETY: from Box::leak in `new`; no other code has it.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
