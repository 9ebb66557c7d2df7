//! The reactor: it drives a node from an event loop that waits for one descriptor.
//!
//! Futures of this crate work under any executor without a reactor: the node's poller thread drives the engine and wakes them.
//! With a reactor the event loop drives the engine itself, so an arrival wakes it without the detour through another thread.
//! With the feature `tokio`, streams start a reactor by themselves (see the module `tokio`).

#[cfg(feature = "tokio")]
pub mod tokio;

use doorbell_engine::drive::TURNS_MAX;
use doorbell_engine::kit::{Node, Op, Progress, Shared, Token, shared_of};
use doorbell_engine::links::AnyPort;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Drives a node from an event loop: call [`turn`](Self::turn); when there is nothing to do, call [`arm`](Self::arm) and wait
/// until the descriptor is readable.
///
/// A node has at most one reactor. While it exists, it drives the engine in place of the node's poller, and threads that wait
/// in calls of this node sleep until it wakes them. `Send`: it may move from thread to thread. When it is dropped, the node is
/// driven as before. If it is not turned for a second while an operation waits, the node's poller drives until it turns again.
/// (A node with [`Progress::Inline`] and without a network has no poller.) Another reactor
/// may take over in that time; then this one is useless.
///
/// ```
/// use doorbell::{Match, Node, Reactor, Space};
/// use rustix::event::{PollFd, PollFlags, Timespec, poll};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let space = Space::heap();
/// # let (a, b) = (Node::builder("loop").space(space.clone()).join()?, Node::builder("loop").space(space).join()?);
/// let mut reactor = Reactor::new(&b)?;
/// let receive = b.start_recv(Match::any(), vec![0; 64])?;
/// # let sender = std::thread::spawn({ let id = b.id(); move || a.send(id, 1, b"hello").map(|()| a) });
/// while !receive.test() {
///     if reactor.turn() {
///         continue;
///     }
///     if let Some(most) = reactor.arm()? {
///         // Here an event loop waits for other descriptors, too.
///         poll(&mut [PollFd::new(&reactor, PollFlags::IN)], Some(&Timespec::try_from(most)?))?;
///         reactor.disarm()?;
///     }
/// }
/// assert_eq!(&receive.wait().buffer.unwrap()[..5], b"hello");
/// # sender.join().unwrap()?;
/// # Ok(())
/// # }
/// ```
pub struct Reactor {
    shared: Arc<Shared>,
    /// An operation that is never done. The engine takes the sleeping reactor for a thread that waits for it.
    idle: Arc<Op>,
    /// The bell of a node without a network.
    bell: Option<Box<AnyPort>>,
    /// A duplicate, since the node may close its sockets before this is dropped.
    descriptor: OwnedFd,
    armed: bool,
    /// The number of this reactor among those of its node.
    number: u32,
}

/// The number of a reactor that another one has replaced.
const REPLACED: u32 = 0;

impl Reactor {
    /// Begins to drive a node from an event loop.
    ///
    /// # Errors
    /// [`ResourceBusy`](io::ErrorKind::ResourceBusy): another reactor drives the node.
    /// [`Unsupported`](io::ErrorKind::Unsupported): the node has a thread that always drives
    /// ([`Progress::Poller`]). The node has left, or the system has no descriptor left.
    pub fn new(node: &Node) -> io::Result<Self> {
        Self::of(shared_of(node))
    }

    fn of(shared: &Arc<Shared>) -> io::Result<Self> {
        shared.check()?;
        if shared.progress() == Progress::Poller {
            let what = "this node has a thread that always drives it; join with another Progress to drive it from an event loop";
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        let number = shared.attach_reactor().ok_or_else(busy)?;
        // The thread that slept on the port is awake now, and has released it.
        let mut bell = None;
        let descriptor = shared.with_port(&mut bell, |port| port.descriptor().try_clone_to_owned());
        if descriptor.is_err() {
            shared.detach_reactor(number);
        }
        Ok(Self { shared: shared.clone(), idle: Op::new(), bell, descriptor: descriptor?, armed: false, number })
    }

    /// Does what there is to do, at most some hundred messages, and returns whether there was something. Never waits. Wakes the
    /// tasks and threads whose operations ended.
    pub fn turn(&mut self) -> bool {
        if self.come_back().is_err() {
            return false;
        }
        let _ = self.end_sleep();
        let me = Token::current();
        let mut has_news = self.shared.reactor().look();
        let Ok(mut engine) = self.shared.enter(me, "turn the reactor") else { return has_news };
        for _ in 0..TURNS_MAX {
            let work = engine.turn(me, false);
            if work == 0 {
                break;
            }
            has_news |= engine.is_news(work);
        }
        has_news
    }

    /// Prepares a sleep until the descriptor is readable, and returns the longest time to sleep. `None`: there is something to
    /// do, so call [`turn`](Self::turn) again. Costs some microseconds, so an event loop should first call `turn` for a little
    /// longer.
    ///
    /// # Errors
    /// The node has left, the system can't wait, or another reactor drives the node
    /// ([`ResourceBusy`](io::ErrorKind::ResourceBusy)).
    pub fn arm(&mut self) -> io::Result<Option<Duration>> {
        self.disarm()?;
        let me = self.shared.check()?;
        // Before the last look: a thread that begins an operation after it sees this mark, and ends the sleep.
        self.shared.reactor().fall_asleep();
        let marked = self.shared.reactor().mark();
        let most = self.shared.watch(me, &self.idle, &mut self.bell);
        self.armed = matches!(most, Ok(Some(_)));
        // Without a barrier for all processes, the sleep is never longer than that.
        let was_barrier = matches!(most, Ok(Some(most)) if most > Duration::from_millis(1));
        let found = self.shared.reactor().look_last(marked, was_barrier);
        let most = most?;
        if found || !self.armed || !self.shared.reactor().is_asleep() || !self.shared.reactor().is(self.number) {
            self.disarm()?;
            return Ok(None);
        }
        Ok(most)
    }

    /// Ends the sleep that [`arm`](Self::arm) prepared. Call it when the descriptor is readable, the time is over, or the event
    /// loop has other work. [`turn`](Self::turn) does the same.
    ///
    /// # Errors
    /// The system can't wait any more, or another reactor drives the node.
    pub fn disarm(&mut self) -> io::Result<()> {
        self.come_back()?;
        self.end_sleep()
    }

    /// Records that this reactor turns. If another thread drove meanwhile, this reactor drives again.
    fn come_back(&mut self) -> io::Result<()> {
        if self.shared.reactor().turned(self.number) {
            return Ok(());
        }
        self.number = self.shared.attach_reactor().unwrap_or(REPLACED);
        if self.number == REPLACED {
            return Err(busy());
        }
        if std::mem::take(&mut self.armed) {
            self.shared.with_port(&mut self.bell, |port| port.unwatch())?;
        }
        Ok(())
    }

    fn end_sleep(&mut self) -> io::Result<()> {
        self.shared.reactor().wake_up();
        if std::mem::take(&mut self.armed) && !self.shared.is_closed() {
            let me = Token::current();
            self.shared.leave_watch(me, &self.idle, &mut self.bell)?;
            self.shared.check_peers(me);
        }
        Ok(())
    }
}

/// For the reactor of a tokio runtime.
#[cfg(feature = "tokio")]
impl Reactor {
    /// Looks for something to do for about a microsecond. Returns true as soon as there is something.
    pub(crate) fn spin(&mut self) -> bool {
        for _ in 0..SPINS {
            if self.shared.reactor().look()
                || self
                    .shared
                    .enter(Token::current(), "spin")
                    .is_ok_and(|engine| engine.spin(doorbell_engine::drive::SPIN_ROUNDS / SPINS))
            {
                return true;
            }
        }
        false
    }

    /// Whether the node has left, or another reactor drives it.
    pub(crate) fn is_over(&self) -> bool {
        self.shared.usable().is_err() || self.number == REPLACED
    }
}

fn busy() -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, "another reactor drives this node; a node has at most one")
}

/// How often a spin over the lanes looks at the streams.
#[cfg(feature = "tokio")]
const SPINS: u32 = 8;

impl AsFd for Reactor {
    /// Readable after [`arm`](Reactor::arm) when there is something to do, and sometimes when there is not. The descriptor
    /// never changes. Do not read from it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        if doorbell_shm::space::forked() {
            return;
        }
        if self.shared.reactor().turned(self.number) {
            let _ = self.end_sleep();
            self.shared.detach_reactor(self.number);
        }
    }
}

impl std::fmt::Debug for Reactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reactor").field("armed", &self.armed).finish_non_exhaustive()
    }
}
