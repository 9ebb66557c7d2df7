//! Puts, gets and updates of this node's threads, begun and taken back.

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

/// Puts, gets and updates that wait to be sent, at which no more updates are begun.
const WAITING_MAX: usize = 1024;
/// Updates that wait for each other at most.
const TOGETHER: usize = 32;

/// How a put or get is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessBy {
    /// What it is called.
    pub operation: &'static str,
    /// Whether it is a put.
    pub writes: bool,
    /// By which link of the way.
    pub by: u8,
    /// Whether the target fetches what is put.
    pub pulls: bool,
}

impl Engine {
    /// Begins a put or get at a node that shares no memory with this one. Ended by [`take_back`](Self::take_back) at the latest.
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
        // If it can't be reached, that is said now.
        self.reach(me, (node, request.incarnation).into(), priority)?;
        let op = Op::new();
        let remote = self.service::<Remote>();
        let pulls = how.pulls.then(|| remote.local.place(ptr, request.bytes as usize));
        // SAFETY: caller.
        let ask = unsafe { Ask::new(lane, how.operation, how.writes, request, ptr, op.clone()) };
        remote.ask(ask.routed(how.by, pulls));
        Ok(op)
    }

    /// Begins an update of a cell at a node that shares no memory with this one.
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

    /// Keeps the update that was begun last, though nobody waits for it.
    ///
    /// # Errors
    /// [`Error::Full`] if so many wait that it was taken back.
    pub fn keep_update(&mut self, node: NodeId) -> Result<(), Error> {
        let waiting = self.service::<Remote>().waiting();
        if waiting.len() > WAITING_MAX {
            waiting.pop_back();
            return Err(Error::Full { node });
        }
        Ok(())
    }

    /// Sends an update that was kept; or lets it wait for others, if an answer is to come that will wake somebody who sends it.
    pub fn push_update(&mut self, me: Token, node: NodeId) {
        let remote = self.service::<Remote>();
        if remote.is_idle() || remote.waiting().len() >= TOGETHER && !remote.is_full(node) {
            self.push(me);
        }
    }

    /// Takes a put, get or update back: its bytes are not touched any more.
    /// True if it was not begun.
    pub(crate) fn take_back(&mut self, op: &Arc<Op>) -> bool {
        self.service::<Remote>().remove(op)
    }
}
