//! The listening side of streams.

use super::check_service;
use super::end::End;
use super::handle::Stream;
use super::table::{Backlog, Streams};
use doorbell_engine::kit::{Begun, Error, Node, NodeId, Op, Token, shared_of};
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

/// The options of a new listener. Made by [`Listener::builder`]; nothing happens before [`bind`](Self::bind).
#[derive(Clone, Debug)]
#[must_use = "nothing happens before bind()"]
pub struct ListenerBuilder {
    node: Node,
    service: String,
    backlog: usize,
}

impl ListenerBuilder {
    /// Sets how many streams of one node may wait to be accepted [default: 128]. More are refused
    /// ([`ConnectionRefused`](io::ErrorKind::ConnectionRefused)). Each node is counted by itself, so no node can keep others out.
    pub fn backlog(mut self, most: usize) -> Self {
        self.backlog = most.max(1);
        self
    }

    /// Starts to listen. Takes the engine's baton; not meant for a fast path.
    ///
    /// # Errors
    /// The name is empty or longer than 255 bytes; this node listens for it already ([`AddrInUse`](io::ErrorKind::AddrInUse));
    /// the node has left.
    pub fn bind(self) -> io::Result<Listener> {
        let Self { node, service, backlog } = self;
        check_service(&service)?;
        let shared = shared_of(&node);
        let me = shared.check()?;
        let backlog = Backlog::new(backlog);
        let context = (shared.membership_arc(), shared.regions().clone());
        let mut engine = shared.enter(me, "listen")?;
        // A listener that was dropped inside a callback keeps its name until the engine's next turn.
        engine.push(me);
        if !engine.service::<Streams>().listen(service.as_bytes(), &backlog, context) {
            let what = format!("node {} listens for '{service}' already", node.id());
            return Err(io::Error::new(io::ErrorKind::AddrInUse, what));
        }
        drop(engine);
        let begun = Begun::new(shared);
        Ok(Listener { node, service, backlog, _begun: begun })
    }
}

/// A service that this node offers. `Send` and `Sync`: several threads may accept. Dropping it ends the service; accepted
/// streams stay open.
pub struct Listener {
    /// Keeps the node from leaving while the listener exists.
    node: Node,
    service: String,
    backlog: Arc<Backlog>,
    /// Makes some thread answer connecting nodes even while no thread accepts.
    _begun: Begun,
}

impl Listener {
    /// Prepares to offer a service of this name, which has 1 to 255 bytes. Other nodes may offer a service of the same name.
    pub fn builder(node: &Node, service: &str) -> ListenerBuilder {
        ListenerBuilder { node: node.clone(), service: service.to_owned(), backlog: 128 }
    }

    /// The name of the service.
    pub fn service(&self) -> &str {
        &self.service
    }

    /// Accepts the next stream, and returns it with the node it comes from. Waits without limit, and drives the node's engine
    /// meanwhile.
    ///
    /// # Errors
    /// The node has left, or the process is a forked child.
    pub fn accept(&self) -> io::Result<(Stream, NodeId)> {
        self.accept_at_most(None)
    }

    /// As [`accept`](Self::accept), but fails with [`TimedOut`](io::ErrorKind::TimedOut) at `deadline`.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn accept_until(&self, deadline: Instant) -> io::Result<(Stream, NodeId)> {
        self.accept_at_most(Some(deadline))
    }

    /// As [`accept`](Self::accept), for tasks of any executor. Dropping the future loses no stream.
    ///
    /// # Errors
    /// The node has left, or the process is a forked child.
    pub async fn accept_async(&self) -> io::Result<(Stream, NodeId)> {
        let mut waits = None;
        std::future::poll_fn(|context| self.poll_accept(context, &mut waits)).await
    }

    fn poll_accept(&self, context: &mut Context<'_>, waits: &mut Option<(Begun, Arc<Op>)>) -> Poll<io::Result<(Stream, NodeId)>> {
        #[cfg(feature = "tokio")]
        let _ = crate::reactor::tokio::attend(shared_of(&self.node));
        loop {
            shared_of(&self.node).check()?;
            let (_, op) = waits.insert((Begun::new(shared_of(&self.node)), self.backlog.wait_for()));
            if let Some(end) = self.backlog.next() {
                return Poll::Ready(Ok(self.accepted(end)));
            }
            if !shared_of(&self.node).poll_op(op, context) {
                return Poll::Pending;
            }
        }
    }

    fn accepted(&self, end: Arc<End>) -> (Stream, NodeId) {
        let peer = end.peer.node;
        let stream = Stream::new(&self.node, end);
        stream.widen();
        (stream, peer)
    }

    fn accept_at_most(&self, deadline: Option<Instant>) -> io::Result<(Stream, NodeId)> {
        let mut is_late = false;
        loop {
            let me = shared_of(&self.node).check()?;
            let op = self.backlog.wait_for();
            if let Some(end) = self.backlog.next() {
                return Ok(self.accepted(end));
            }
            if is_late {
                return Err(Error::Timeout { operation: "accept a stream", node: None }.into());
            }
            is_late = !shared_of(&self.node).drive(me, &op, deadline, |_| false)? && !op.is_done();
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if doorbell_shm::space::forked() {
            return;
        }
        let me = Token::current();
        let service = std::mem::take(&mut self.service);
        shared_of(&self.node).have_done(me, move |engine| engine.service::<Streams>().unlisten(service.as_bytes()));
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("service", &self.service).finish_non_exhaustive()
    }
}
