//! Sends and receives that own their buffers.

use super::operation::{Dropper, Operation, Work, begin, had, over};
use super::receive::received;
use super::send::{Patience, ToSend};
use super::{Node, Shared};
use crate::message::outbound::Outbound;
use crate::message::receive::{Holder, RecvOp};
use crate::message::{Match, Message};
use crate::mode::ModeRequest;
use crate::sync::baton::Token;
use crate::sync::op::{Op, Outcome};
use crate::{Error, Result};
use doorbell_fabric::{Envelope, Incarnation};
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::Arc;

/// How a send or a receive ended, and its buffer.
#[derive(Debug)]
pub struct Completion<B, R = ()> {
    /// The buffer. Of a receive, an `Option`: see [`Received`].
    pub buffer: B,
    /// How it ended. A send without an error: the message is in its target's lane, or all its bytes have been moved. A receive
    /// without an error: the envelope of the message that is in the buffer.
    pub result: Result<R>,
}

/// How a receive ended, and its buffer: `None` if the result is [`Error::BufferKept`](crate::Error::BufferKept).
pub type Received<B> = Completion<Option<B>, Envelope>;

/// A send. The engine reads the buffer meanwhile.
struct Sending<B> {
    buffer: UnsafeCell<B>,
    outbound: Arc<Outbound>,
}

/// A receive. The engine writes to the buffer meanwhile.
struct Receiving<B> {
    buffer: UnsafeCell<B>,
    /// The length of the buffer in bytes.
    capacity: usize,
}

/// Sends at once if that takes no waiting, as most sends of some KiB do, or begins to send.
///
/// A send that is over at once makes no `Op` and changes no reference count. Each of these takes a locked instruction, which waits
/// until all bytes of the message have left the processor. Only a send that is counted brings its `Op`.
#[inline]
pub(crate) fn send_or_begin<B: AsRef<[u8]> + Send + 'static>(
    node: &Node,
    outbound: &Arc<Outbound>,
    incarnation: Option<Incarnation>,
    tag: u64,
    buffer: B,
    counted: Option<Arc<Op>>,
) -> Result<Operation<Completion<B>>> {
    let (me, len) = (node.shared.check()?, buffer.as_ref().len());
    if node.shared.send_now(me, outbound, incarnation, tag, buffer.as_ref(), Patience::Forever)? {
        if let Some(op) = counted {
            op.moved(len as u64);
        }
        return Ok(over(Completion { buffer, result: Ok(()) }));
    }
    send(node.clone(), outbound.clone(), incarnation, tag, buffer, None, counted.unwrap_or_default())
}

/// Begins to send, after [`Shared::send_now`] did not, or with a requested mode.
pub(crate) fn send<B: AsRef<[u8]> + Send + 'static>(
    node: Node,
    outbound: Arc<Outbound>,
    incarnation: Option<Incarnation>,
    tag: u64,
    buffer: B,
    asks: Option<ModeRequest>,
    op: Arc<Op>,
) -> Result<Operation<Completion<B>>> {
    let me = node.shared.check()?;
    begin(node, Sending { buffer: UnsafeCell::new(buffer), outbound }, |node, work| {
        // SAFETY: the work is at its address until the op is over or removed.
        unsafe {
            let bytes = (*work.buffer.get()).as_ref();
            node.shared.start_send(me, ToSend { outbound: &work.outbound, incarnation, tag, bytes }, asks, op)
        }
    })
}

/// Receives at once if the message is the first in the lane that was busy last, and nothing else is pending in the node. Otherwise begins
/// to receive.
#[inline]
pub(crate) fn receive_or_begin<B: AsMut<[u8]> + Send + 'static>(
    node: &Node,
    accepts: Match,
    mut buffer: B,
) -> Result<Operation<Received<B>>> {
    let bytes = buffer.as_mut();
    let capacity = bytes.len();
    match node.shared.receive_now(&accepts, bytes) {
        Some(envelope) => {
            let work = Box::new(Receiving { buffer: UnsafeCell::new(buffer), capacity });
            Ok(had(node.shared.clone(), work, Outcome::Received(envelope)))
        }
        None => receive(node.clone(), accepts, buffer, Op::new()),
    }
}

/// Begins to receive.
pub(crate) fn receive<B: AsMut<[u8]> + Send + 'static>(
    node: Node,
    accepts: Match,
    buffer: B,
    op: Arc<Op>,
) -> Result<Operation<Received<B>>> {
    let me = node.shared.check()?;
    begin(node, Receiving { buffer: UnsafeCell::new(buffer), capacity: 0 }, |node, work| {
        let bytes = work.buffer.get_mut().as_mut();
        work.capacity = bytes.len();
        // SAFETY: the work is at its address until the op is over or removed.
        let receive = unsafe { RecvOp::new(accepts, bytes.as_mut_ptr(), bytes.len(), op.clone()) };
        node.shared.post_recv(me, RecvOp { holder: Holder::Operation, ..receive })?;
        Ok(op)
    })
}

impl<B: Send> Work<Completion<B>> for Sending<B> {
    fn operation(&self) -> &'static str {
        "wait for a send"
    }

    fn withdraw(&self, node: &Shared, op: &Arc<Op>) -> bool {
        if !doorbell_shm::space::forked() {
            node.withdraw_send(Token::current(), &self.outbound, op);
        }
        true
    }

    fn finish(self: Box<Self>, outcome: Outcome) -> Completion<B> {
        let result = match outcome {
            Outcome::Failed(error) => Err(error),
            _ => Ok(()),
        };
        Completion { buffer: self.buffer.into_inner(), result }
    }
}

impl<B: AsMut<[u8]> + Send> Work<Received<B>> for Receiving<B> {
    fn operation(&self) -> &'static str {
        "wait for a receive"
    }

    fn withdraw(&self, node: &Shared, op: &Arc<Op>) -> bool {
        if !doorbell_shm::space::forked() {
            node.withdraw_recv(Token::current(), op);
        }
        true
    }

    fn finish(self: Box<Self>, outcome: Outcome) -> Received<B> {
        let result = received(outcome, self.capacity);
        Completion { buffer: Some(self.buffer.into_inner()), result }
    }

    fn leave(&self, error: Error) -> Option<(Received<B>, Dropper)> {
        /// Drops a receive.
        ///
        /// # Safety
        /// `work` is from `Box::leak` of a `Receiving<B>`, and nothing uses it any more.
        unsafe fn discard<B>(work: NonNull<()>) {
            // SAFETY: caller.
            drop(unsafe { Box::from_raw(work.cast::<Receiving<B>>().as_ptr()) });
        }
        Some((Completion { buffer: None, result: Err(error) }, discard::<B>))
    }

    /// The next receive gets the message that this one had.
    fn discard(mut self: Box<Self>, node: &Shared, outcome: Option<Outcome>) {
        let message = match outcome {
            Some(Outcome::Received(envelope)) => {
                let bytes = self.buffer.get_mut().as_mut();
                // A buffer can show fewer bytes than before.
                let len = envelope.len.min(bytes.len());
                Message { envelope: Envelope { len, ..envelope }, bytes: bytes[..len].to_vec() }
            }
            Some(Outcome::Truncated(message)) => *message,
            _ => return,
        };
        if !doorbell_shm::space::forked() {
            node.have_done(Token::current(), |engine| engine.give_back(message));
        }
    }
}
