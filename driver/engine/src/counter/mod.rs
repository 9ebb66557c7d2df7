//! DMA counters: bytes still to move, and who is told when there are none.
//!
//! A program sets a [`Counter`] to a number of bytes, and lowers it as they move: threads of this node with [`Counter::lower`], other nodes
//! with [`Node::notify`] and [`Node::put_notify`]. Nothing else lowers a counter: sends, receives, puts and gets by themselves count
//! nothing here. The call that brings a counter to zero sets its bit in the **counter status register** ([`Node::counter_status`]),
//! wakes the threads that wait, and triggers its **interrupt**, an eventfd. All of that happens once for each use.
//!
//! The count is private memory of this node. Its board shows a copy, which nobody reads back: nothing that others write there
//! completes anything.

mod notify;

pub use crate::board::CounterKey;

use crate::Result;
use crate::board::{CounterFile, eventfd};
use crate::drive::Shared;
use crate::error::Error;
use crate::node::Node;
use crate::sync::baton::Token;
use crate::sync::op::Outcome;
pub use doorbell_shm::board::{COUNTER_BYTES_MAX, COUNTERS, Lowered, Status};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// One of a node's DMA counters: taken with [`Node::counter`], given back when dropped. Thread-safe; keeps the node attached.
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

    /// Which one it is: the number of its bit in the status register, from 0 to 255.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Begins a use: so many bytes are to be moved. Its bit in the status register is cleared, its interrupt taken back, and
    /// keys of earlier uses lower nothing any more. With no bytes it is at zero at once. Threads that wait go on waiting, for this
    /// use.
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

    /// Bytes still to move. Who reads zero sees all that was written before it was lowered to that.
    pub fn value(&self) -> u64 {
        self.file().register().value(self.index)
    }

    /// Whether nothing is left to move. A new counter is at zero.
    pub fn is_zero(&self) -> bool {
        self.value() == 0
    }

    /// Lowers it by bytes that were moved, and says whether that brought it to zero: true of one call for each use. It never goes
    /// below zero. Does not wait; wakes those who do.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Closed`].
    pub fn lower(&self, bytes: u64) -> Result<Lowered> {
        let me = self.shared().check()?;
        Ok(self.shared().lower_counter(me, |file| file.lower(self.index, file.generation(self.index), bytes)))
    }

    /// Waits until it is at zero, and drives the node's engine meanwhile.
    ///
    /// # Errors
    /// [`Error::Closed`] if the node is left; [`Error::Reentrant`] from within a callback; [`Error::Forked`].
    pub fn wait(&self) -> Result<()> {
        self.wait_until(None)
    }

    /// Waits until it is at zero, until `deadline` at most.
    ///
    /// # Errors
    /// [`Error::Timeout`]; otherwise as [`wait`](Self::wait).
    pub fn wait_by(&self, deadline: Instant) -> Result<()> {
        self.wait_until(Some(deadline))
    }

    fn wait_until(&self, deadline: Option<Instant>) -> Result<()> {
        self.shared().check()?;
        let Some(op) = self.file().watch(self.index) else { return Ok(()) };
        // Checked once more: a node that was left meanwhile has told those who watched before.
        let driven = self.shared().check().and_then(|me| self.shared().drive(me, &op, deadline, |_| false));
        self.file().unwatch(self.index, &op);
        match op.take() {
            Some(Outcome::Failed(error)) => Err(error),
            Some(_) => Ok(()),
            None => Err(driven.err().unwrap_or(Error::Timeout { operation: "wait for a counter", node: None })),
        }
    }

    /// The interrupt: a descriptor that becomes readable when the counter reaches zero, for `poll` and the like, until
    /// [`init`](Self::init) begins another use. Made by the first call. It is an eventfd: reading it takes the interrupt back.
    ///
    /// Somebody has to drive for it to come: with `Progress::Adaptive` and `Poller` the poller does from now on, with `Inline` only
    /// calls of this node do.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the process has no descriptor left; [`Error::Forked`], [`Error::Closed`].
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

    /// What names this use of the counter to others: plain data that may travel in a message, so that a peer can say what it
    /// moved. It is good until the next [`init`](Self::init). A node that was not given it can't lower the counter.
    pub fn key(&self) -> CounterKey {
        let (node, incarnation) = (self.node.id(), self.node.incarnation());
        CounterKey { node, incarnation, index: self.index as u16, secret: self.file().secret(self.index) }
    }

    /// Clears its bit in the status register, whether or not the counter is at zero.
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
    /// Takes a free DMA counter. It is at zero.
    ///
    /// # Errors
    /// [`Error::Invalid`] if all 256 are in use; [`Error::Forked`], [`Error::Closed`].
    pub fn counter(&self) -> Result<Counter> {
        Counter::take(self.clone())
    }

    /// The counter status register: bit `index % 64` of word `index / 64` is set if that counter has reached zero and nobody has
    /// cleared it since. Four loads; for programs that poll many transfers at once. Does not drive the engine.
    pub fn counter_status(&self) -> Status {
        self.shared().monitor().counters.register().status()
    }

    /// Clears those bits of the status register that are set in `mask`.
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
    /// Lowers a counter from outside of the engine; at zero, also wakes a thread that waits for that on the bell.
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
