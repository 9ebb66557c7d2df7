//! Updates that were started, and which no thread waits for yet.

use super::code::AtomicRequest;
use doorbell_engine::node::Shared;
use doorbell_engine::node::operation::Work;
use doorbell_engine::sync::baton::Token;
use doorbell_engine::sync::op::{Op, Outcome};
use doorbell_engine::{Error, Result};
use std::sync::Arc;

/// An update that another node's engine performs.
pub(super) struct Update<V> {
    pub request: AtomicRequest,
    /// Makes the caller's result from the old value.
    pub of: fn(&AtomicRequest, &[u8; 16]) -> V,
}

impl<V> Work<Result<V>> for Update<V> {
    fn operation(&self) -> &'static str {
        "wait for an update of a cell"
    }

    fn withdraw(&self, node: &Shared, op: &Arc<Op>) -> bool {
        !doorbell_shm::space::forked() && node.take_back(Token::current(), op)
    }

    fn finish(self: Box<Self>, outcome: Outcome) -> Result<V> {
        match outcome {
            Outcome::Updated(old) => Ok((self.of)(&self.request, &old)),
            Outcome::Failed(error) => Err(error),
            _ => Err(Error::Cancelled),
        }
    }
}
