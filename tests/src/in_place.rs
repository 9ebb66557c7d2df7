//! Receives in place. A closure that is passed to [`Node::recv_with`] compiles the whole path of a receive anew. These functions do so once for all
//! closures of a test program.

use doorbell::{Envelope, Match, Node, Payload, Result};
use std::time::Instant;

/// As [`Node::recv_with`].
///
/// # Errors
/// Those of [`Node::recv_with`].
pub fn read<R>(node: &Node, accepts: Match, read: impl FnOnce(&Envelope, Payload<'_>) -> R) -> Result<R> {
    once(read, |read| node.recv_with(accepts, read))
}

/// As [`Node::recv_with_until`].
///
/// # Errors
/// Those of [`Node::recv_with_until`].
pub fn read_by<R>(node: &Node, accepts: Match, deadline: Instant, read: impl FnOnce(&Envelope, Payload<'_>) -> R) -> Result<R> {
    once(read, |read| node.recv_with_until(accepts, deadline, read))
}

type Read<'a> = &'a mut dyn FnMut(&Envelope, Payload<'_>);

fn once<R>(read: impl FnOnce(&Envelope, Payload<'_>) -> R, receive: impl FnOnce(Read<'_>) -> Result<()>) -> Result<R> {
    let (mut read, mut value) = (Some(read), None);
    receive(&mut |envelope, payload| value = read.take().map(|read| read(envelope, payload)))?;
    Ok(value.expect("a message was read"))
}
