//! How a program's threads reach a service that the program installed.

use super::Node;
use crate::Result;
use crate::error::Error;
use crate::message::service::Class;
use std::fmt;
use std::marker::PhantomData;
use std::time::Instant;

const OPERATION: &str = "wait for a service";

/// A handle to a service of type `S` in a node, for the program's threads. Clones are handles to the same service. All calls
/// are thread-safe.
///
/// A node has the services that were passed to [`NodeBuilder::service`](super::NodeBuilder::service). A service runs in turns
/// of the node's engine. A call enters the engine, so its closure must be short, must not call the node, and must not wait.
/// Within a callback of the engine a call returns [`Error::Reentrant`].
pub struct ServiceHandle<S> {
    node: Node,
    _service: PhantomData<fn() -> S>,
}

impl<S: Class> ServiceHandle<S> {
    /// A handle to the service of this type in a node.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the node has no such service. [`Error::Closed`], [`Error::Forked`], [`Error::Reentrant`].
    pub fn open(node: &Node) -> Result<Self> {
        let handle = Self { node: node.clone(), _service: PhantomData };
        handle.call(|_| ())?;
        Ok(handle)
    }

    /// The node that has the service.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Calls the service, and then gives it a turn in which it can send. Never waits.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Forked`], [`Error::Reentrant`].
    pub fn call<T>(&self, act: impl FnOnce(&mut S) -> T) -> Result<T> {
        self.node.shared().call(OPERATION, act)
    }

    /// Waits until `ready` returns a value. `ready` is called at once, and again after each change of the service. Between
    /// these calls the thread turns the engine or sleeps.
    ///
    /// # Errors
    /// [`Error::Closed`]: the node left. [`Error::Forked`], [`Error::Reentrant`].
    pub fn wait<T>(&self, ready: impl FnMut(&mut S) -> Option<T>) -> Result<T> {
        self.wait_for(None, ready)
    }

    /// As [`wait`](Self::wait), until `deadline` at most.
    ///
    /// # Errors
    /// As [`wait`](Self::wait); [`Error::Timeout`].
    pub fn wait_until<T>(&self, deadline: Instant, ready: impl FnMut(&mut S) -> Option<T>) -> Result<T> {
        self.wait_for(Some(deadline), ready)
    }

    fn wait_for<T>(&self, deadline: Option<Instant>, ready: impl FnMut(&mut S) -> Option<T>) -> Result<T> {
        let found = self.node.shared().wait_for_service(OPERATION, deadline, ready)?;
        found.ok_or(Error::Timeout { operation: OPERATION, node: None })
    }
}

impl<S> Clone for ServiceHandle<S> {
    fn clone(&self) -> Self {
        Self { node: self.node.clone(), _service: PhantomData }
    }
}

impl<S> fmt::Debug for ServiceHandle<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceHandle").field("node", &self.node).finish_non_exhaustive()
    }
}
