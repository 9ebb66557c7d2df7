//! DMA counters: bytes still to move, and notifications when none are left.
//!
//! A program sets a [`Counter`] to a number of bytes, and gives it to operations, which lower it as their bytes move:
//! [`Counter::start_send`], [`start_recv`](Counter::start_recv), [`put`](Counter::put), [`get`](Counter::get), and
//! [descriptors](crate::dma). Threads of this node may lower it themselves ([`Counter::lower`]), and other nodes that have its
//! key ([`Node::notify`], [`Node::put_notify`]). The call that brings a counter to zero sets its bit in the **counter status register**
//! ([`Node::counter_status`]), wakes the threads that wait, and triggers its **interrupt**, an eventfd. All of that happens
//! once for each use.
//!
//! The count is private memory of this node. The board shows a copy that is never read back, so writing to the board completes
//! nothing.

mod counted;
mod notify;

pub use crate::board::CounterKey;

use crate::Result;
use crate::board::{CounterFile, eventfd};
use crate::drive::Shared;
use crate::error::Error;
use crate::node::Node;
use crate::sync::baton::Token;
use crate::sync::op::Outcome;
use doorbell_shm::board::Use;
pub use doorbell_shm::board::{COUNTER_BYTES_MAX, COUNTERS, Lowered, Status};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// One of a node's DMA counters. [`Node::counter`] takes it, and dropping it returns it. Thread-safe. It keeps the node
/// attached.
///
/// ```
/// # use doorbell::{Node, Space};
/// # fn main() -> Result<(), doorbell::Error> {
/// # let node = Node::builder("counters").space(Space::heap()).join()?;
/// let counter = node.counter()?;
/// counter.init(96)?;
/// std::thread::scope(|scope| {
///     for share in [32, 64] {
///         let counter = &counter;
///         scope.spawn(move || counter.lower(share));
///     }
/// });
/// counter.wait()?;
/// assert_eq!((counter.value(), node.counter_status()[0] & 1), (0, 1));
/// # Ok(())
/// # }
/// ```
#[must_use = "a counter that is dropped is given back"]
pub struct Counter {
    node: Node,
    index: usize,
    interrupt: OnceLock<Arc<OwnedFd>>,
}

impl Counter {
    pub(crate) fn take(node: Node) -> Result<Self> {
        node.shared().check()?;
        let index = node.shared().monitor().counters.take().ok_or_else(|| Error::Invalid {
            what: format!("all {COUNTERS} DMA counters of this node are in use; drop those whose transfers are over"),
        })?;
        Ok(Self { node, index, interrupt: OnceLock::new() })
    }

    fn shared(&self) -> &Shared {
        self.node.shared()
    }

    fn file(&self) -> &CounterFile {
        &self.shared().monitor().counters
    }

    /// The counter's number, from 0 to 255. It is also the number of its bit in the status register.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Begins a use in which `bytes` bytes are to be moved. Clears its bit in the status register and takes its interrupt back.
    /// Keys of earlier uses lower nothing any more. With no bytes the counter is at zero at once. Threads that already wait go
    /// on waiting, for this use.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than [`COUNTER_BYTES_MAX`] bytes; [`Error::Forked`], [`Error::Closed`].
    pub fn init(&self, bytes: u64) -> Result<()> {
        let me = self.shared().check()?;
        if self.file().set(self.index, bytes).is_none() {
            return Err(Error::Invalid { what: format!("a DMA counter counts up to {COUNTER_BYTES_MAX} bytes, not {bytes}") });
        }
        if bytes == 0 {
            self.shared().wake_parked(me);
        }
        Ok(())
    }

    /// The bytes still to move. A thread that reads zero sees all that was written before the counter was lowered to zero.
    pub fn value(&self) -> u64 {
        self.file().register().value(self.index)
    }

    /// Whether no bytes are left to move. A new counter is at zero.
    pub fn is_zero(&self) -> bool {
        self.value() == 0
    }

    /// Lowers the counter by `bytes` bytes that were moved, and tells whether that brought it to zero. Only one call of each
    /// use does. The counter never goes below zero. Does not wait; wakes the threads that wait for zero.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Closed`].
    pub fn lower(&self, bytes: u64) -> Result<Lowered> {
        let me = self.shared().check()?;
        Ok(self.shared().lower_counter(me, |file| file.lower(self.index, Use::Of(file.generation(self.index)), bytes)))
    }

    /// Waits until the counter is at zero. The thread turns the node's engine meanwhile.
    ///
    /// # Errors
    /// [`Error::Closed`] if the node leaves; [`Error::Reentrant`] from within a callback; [`Error::Forked`].
    pub fn wait(&self) -> Result<()> {
        self.wait_at_most(None)
    }

    /// Waits until the counter is at zero, until `deadline` at most.
    ///
    /// # Errors
    /// [`Error::Timeout`]; otherwise as [`wait`](Self::wait).
    pub fn wait_until(&self, deadline: Instant) -> Result<()> {
        self.wait_at_most(Some(deadline))
    }

    fn wait_at_most(&self, deadline: Option<Instant>) -> Result<()> {
        self.shared().check()?;
        let Some(op) = self.file().watch(self.index) else { return Ok(()) };
        // Check once more: a node that has left meanwhile notified only the operations registered before.
        let driven = self.shared().check().and_then(|me| self.shared().drive(me, &op, deadline, |_| false));
        self.file().unwatch(self.index, &op);
        match op.take() {
            Some(Outcome::Failed(error)) => Err(error),
            Some(_) => Ok(()),
            None => Err(driven.err().unwrap_or(Error::Timeout { operation: "wait for a counter", node: None })),
        }
    }

    /// The interrupt: a descriptor for `poll` and similar calls. It is readable from the moment the counter reaches zero until
    /// [`init`](Self::init) begins another use. The first call makes it. It is an eventfd, and reading it takes the interrupt
    /// back.
    ///
    /// The interrupt comes only if a thread turns the engine. With `Progress::Adaptive` and `Poller` the poller does so from
    /// now on; with `Inline` only calls of this node do.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the process has no free descriptor; [`Error::Forked`], [`Error::Closed`].
    pub fn interrupt(&self) -> Result<BorrowedFd<'_>> {
        self.shared().check()?;
        if let Some(fd) = self.interrupt.get() {
            return Ok(fd.as_fd());
        }
        let made = eventfd().map_err(|error| Error::Invalid {
            what: format!(
                "could not make an eventfd for the interrupt of a DMA counter ({error}); raise the limit of open files"
            ),
        })?;
        let made = Arc::new(made);
        if self.interrupt.set(made.clone()).is_ok() {
            self.file().interrupt(self.index, made);
            self.shared().began();
        }
        self.interrupt.get().map(|fd| fd.as_fd()).ok_or(Error::Closed)
    }

    /// A key that names this use of the counter to other nodes. It is plain data and may travel in a message, so that a peer
    /// can report the bytes it moved. It is valid until the next [`init`](Self::init). A node without the key can't lower the
    /// counter.
    pub fn key(&self) -> CounterKey {
        let (node, incarnation) = (self.node.id(), self.node.incarnation());
        CounterKey { node, incarnation, index: self.index as u16, secret: self.file().secret(self.index) }
    }

    /// Clears the counter's bit in the status register, whether or not the counter is at zero.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Closed`].
    pub fn clear(&self) -> Result<()> {
        let mut mask = Status::default();
        mask[self.index / 64] = 1 << (self.index % 64);
        self.node.clear_counter_status(mask)
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        if doorbell_shm::space::forked() {
            return;
        }
        if self.interrupt.get().is_some() {
            self.shared().poller().ended();
        }
        self.file().give_back(self.index);
    }
}

impl std::fmt::Debug for Counter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counter").field("index", &self.index).field("value", &self.value()).finish_non_exhaustive()
    }
}

impl Node {
    /// Takes a free DMA counter. The counter is at zero. Never waits.
    ///
    /// # Errors
    /// [`Error::Invalid`] if all 256 are in use; [`Error::Forked`], [`Error::Closed`].
    pub fn counter(&self) -> Result<Counter> {
        Counter::take(self.clone())
    }

    /// The counter status register. Bit `index % 64` of word `index / 64` is set once that counter has reached zero, until it
    /// is cleared. Takes four loads; for programs that poll many transfers at once. Does not turn the engine.
    pub fn counter_status(&self) -> Status {
        self.shared().monitor().counters.register().status()
    }

    /// Clears the bits of the status register that are set in `mask`.
    ///
    /// ```
    /// # use doorbell::{Node, Space};
    /// # fn main() -> Result<(), doorbell::Error> {
    /// # let node = Node::builder("register").space(Space::heap()).join()?;
    /// let counter = node.counter()?;
    /// counter.init(0)?;
    /// let done = node.counter_status();
    /// assert_eq!(done, [1, 0, 0, 0]);
    /// node.clear_counter_status(done)?;
    /// assert_eq!(node.counter_status(), [0; 4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Closed`].
    pub fn clear_counter_status(&self, mask: Status) -> Result<()> {
        self.shared().check()?;
        self.shared().monitor().counters.register().clear(&mask);
        Ok(())
    }
}

impl Shared {
    /// Lowers a counter from outside the engine. At zero it also wakes a waiting thread that sleeps on the bell.
    pub(crate) fn lower_counter(&self, me: Token, lower: impl FnOnce(&CounterFile) -> Lowered) -> Lowered {
        let lowered = lower(&self.monitor().counters);
        if lowered.reached_zero() {
            self.wake_parked(me);
        }
        lowered
    }
}

#[cfg(test)]
mod tests;
