//! Beginning and withdrawing puts, gets and updates of this node's threads.

use super::asked::Ask;
use super::update::Update;
use super::wire::Request;
use super::{Remote, priority_of};
use crate::error::Error;
use crate::sync::baton::Token;
use crate::sync::op::Op;
use crate::turn::Engine;
use doorbell_fabric::{NodeId, PRIORITIES, Priority};
use std::sync::Arc;

/// No more updates are begun while this many puts, gets and updates wait to be sent.
const WAITING_MAX: usize = 1024;
/// The most updates that wait to be sent together.
const TOGETHER: usize = 32;

/// How to carry out a put or get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessBy {
    /// The name of the operation for errors.
    pub operation: &'static str,
    /// Whether it is a put.
    pub writes: bool,
    /// The link of the send queue that carries it.
    pub by: u8,
    /// Whether the target fetches the bytes of a put.
    pub pulls: bool,
}

impl Engine {
    /// Begins a put or get in a node that shares no memory with this one. It ends with [`take_back`](Self::take_back) at the
    /// latest.
    ///
    /// # Safety
    /// As [`Ask::new`].
    pub(crate) unsafe fn begin_access(
        &mut self,
        me: Token,
        how: AccessBy,
        node: NodeId,
        request: Request,
        ptr: *mut u8,
    ) -> Result<Arc<Op>, Error> {
        let priority = priority_of(request.bytes as usize);
        let lane = node.index() * PRIORITIES + priority.index();
        // If the node can't be reached, the error is returned now.
        self.reach(me, (node, request.incarnation).into(), priority)?;
        let op = Op::new();
        let remote = self.service::<Remote>();
        let pulls = how.pulls.then(|| remote.local.place(ptr, request.bytes as usize));
        // SAFETY: caller.
        let ask = unsafe { Ask::new(lane, how.operation, how.writes, request, ptr, op.clone()) };
        remote.ask(ask.routed(how.by, pulls));
        Ok(op)
    }

    /// Begins an update of a cell in a node that shares no memory with this one.
    pub(crate) fn begin_update(
        &mut self,
        me: Token,
        operation: &'static str,
        node: NodeId,
        request: Request,
        update: Update,
    ) -> Result<Arc<Op>, Error> {
        let lane = node.index() * PRIORITIES + Priority::High.index();
        self.reach(me, (node, request.incarnation).into(), Priority::High)?;
        let op = Op::new();
        self.service::<Remote>().ask(Ask::update(lane, operation, request, update, op.clone()));
        Ok(op)
    }

    /// Keeps the update that was begun last, although no thread waits for it.
    ///
    /// # Errors
    /// [`Error::Full`] if too many wait: the update was withdrawn.
    pub fn keep_update(&mut self, node: NodeId) -> Result<(), Error> {
        let waiting = self.service::<Remote>().waiting();
        if waiting.len() > WAITING_MAX {
            waiting.pop_back();
            return Err(Error::Full { node });
        }
        Ok(())
    }

    /// Sends an update that was kept, unless it can wait to go out with others. It waits only while an answer is expected,
    /// because the answer wakes a thread that sends it.
    pub fn push_update(&mut self, me: Token, node: NodeId) {
        let remote = self.service::<Remote>();
        if remote.is_idle() || remote.waiting().len() >= TOGETHER && !remote.is_full(node) {
            self.push(me);
        }
    }

    /// Withdraws a put, get or update. After this call its bytes are not touched. True if it was not begun.
    pub(crate) fn take_back(&mut self, op: &Arc<Op>) -> bool {
        self.service::<Remote>().remove(op)
    }
}
