//! Who listens.

use super::check_service;
use super::end::End;
use super::handle::Stream;
use super::table::{Backlog, Streams};
use doorbell_engine::drive::Begun;
use doorbell_engine::error::Error;
use doorbell_engine::node::shared_of;
use doorbell_engine::sync::baton::Token;
use doorbell_engine::sync::op::Op;
use doorbell_engine::{Node, NodeId};
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

/// How a service is offered. Made by [`Listener::builder`]; nothing happens before [`bind`](Self::bind).
#[derive(Clone, Debug)]
#[must_use = "nothing happens before bind()"]
pub struct ListenerBuilder {
    node: Node,
    service: String,
    backlog: usize,
}

impl ListenerBuilder {
    /// How many of one node may wait to be accepted [default: 128]; more are refused ([`ConnectionRefused`](io::ErrorKind::ConnectionRefused)). Those of other
    /// nodes don't count, so no node can keep others out.
    pub fn backlog(mut self, most: usize) -> Self {
        self.backlog = most.max(1);
        self
    }

    /// Listens from now on. Control path.
    ///
    /// # Errors
    /// The name is empty or longer than 255 bytes; this node listens for it already ([`AddrInUse`](io::ErrorKind::AddrInUse)); the node has left.
    pub fn bind(self) -> io::Result<Listener> {
        let Self { node, service, backlog } = self;
        check_service(&service)?;
        let shared = shared_of(&node);
        let me = shared.check()?;
        let backlog = Backlog::new(backlog);
        let context = (shared.membership_arc(), shared.regions().clone());
        let mut engine = shared.enter(me, "listen")?;
        // A listener that was dropped within the engine has its name until then.
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

/// A service that this node offers. `Send` and `Sync`: several threads may accept. Dropped, it is offered no more; streams that were accepted stay.
pub struct Listener {
    /// Which does not leave as long as somebody listens.
    node: Node,
    service: String,
    backlog: Arc<Backlog>,
    /// Somebody has to answer connectors, whether or not a thread is about to accept.
    _begun: Begun,
}

impl Listener {
    /// Prepares to offer a service of this name: 1 to 255 bytes. Another node may offer one of the same name.
    pub fn builder(node: &Node, service: &str) -> ListenerBuilder {
        ListenerBuilder { node: node.clone(), service: service.to_owned(), backlog: 128 }
    }

    /// What it is called.
    pub fn service(&self) -> &str {
        &self.service
    }

    /// The next stream, and from which node; waits for one without limit, and drives the node's engine.
    ///
    /// # Errors
    /// The node has left, or this is a forked child.
    pub fn accept(&self) -> io::Result<(Stream, NodeId)> {
        self.accept_until(None)
    }

    /// As [`accept`](Self::accept), until `deadline` at most: then [`TimedOut`](io::ErrorKind::TimedOut).
    ///
    /// # Errors
    /// As `accept`.
    pub fn accept_by(&self, deadline: Instant) -> io::Result<(Stream, NodeId)> {
        self.accept_until(Some(deadline))
    }

    /// The next stream, and from which node, for executors of any kind. Dropping the future loses none.
    ///
    /// # Errors
    /// The node has left, or this is a forked child.
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
        let peer = end.peer.0;
        let stream = Stream::new(&self.node, end);
        stream.widen();
        (stream, peer)
    }

    fn accept_until(&self, deadline: Option<Instant>) -> io::Result<(Stream, NodeId)> {
        loop {
            let me = shared_of(&self.node).check()?;
            if let Some(end) = self.backlog.next() {
                return Ok(self.accepted(end));
            }
            let op = self.backlog.wait_for();
            if !self.backlog.is_empty() {
                continue;
            }
            if !shared_of(&self.node).drive(me, &op, deadline, |_| false)? && !op.is_done() && self.backlog.is_empty() {
                return Err(Error::Timeout { operation: "accept a stream", node: None }.into());
            }
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
