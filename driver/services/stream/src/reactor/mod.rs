//! The reactor: drives a node from an event loop, which waits for one descriptor.
//!
//! Futures of this crate work under any executor without it: the node's poller thread drives, and wakes them. With a reactor the event loop drives by itself, and what
//! arrives wakes it without going through another thread. With the feature `tokio` the streams start one where they are used (see its module `tokio`).

#[cfg(feature = "tokio")]
pub mod tokio;

use doorbell_engine::Node;
use doorbell_engine::drive::{Shared, TURNS_MAX};
use doorbell_engine::node::shared_of;
use doorbell_engine::sync::baton::Token;
use doorbell_engine::sync::op::Op;
use doorbell_udp::port::Port;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Drives a node from an event loop: turn it; when there is nothing to do [`arm`](Self::arm) it and wait until its descriptor is readable.
///
/// There is one for a node at most. While there is, it drives in place of the node's poller, and threads that wait in calls of this node sleep until it wakes them. `Send`:
/// it may go from thread to thread. Dropped, the node is driven as before; and so it is while this is not turned, though something waits for a second: the
/// node's poller drives until it turns again. (A node with [`Progress::Inline`](doorbell_engine::Progress::Inline) that has no network has none.) Another reactor may be begun
/// meanwhile, and this one is of no use then.
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
/// assert_eq!(&receive.wait().buffer[..5], b"hello");
/// # sender.join().unwrap()?;
/// # Ok(())
/// # }
/// ```
pub struct Reactor {
    shared: Arc<Shared>,
    /// Never done: what the engine takes this reactor for when it sleeps.
    idle: Arc<Op>,
    /// Where there is no network.
    bell: Option<Box<dyn Port>>,
    /// Of its own: the node may close its sockets before this is dropped.
    descriptor: OwnedFd,
    armed: bool,
    /// Which of its node's reactors it is.
    number: u32,
}

/// The number of a reactor whose place another has taken.
const REPLACED: u32 = 0;

impl Reactor {
    /// Begins to drive a node from an event loop.
    ///
    /// # Errors
    /// [`ResourceBusy`](io::ErrorKind::ResourceBusy): another reactor does. [`Unsupported`](io::ErrorKind::Unsupported): the node has a thread that
    /// drives always ([`Progress::Poller`](doorbell_engine::Progress::Poller)). The node has left, or the system has no descriptor for it.
    pub fn new(node: &Node) -> io::Result<Self> {
        Self::of(shared_of(node))
    }

    fn of(shared: &Arc<Shared>) -> io::Result<Self> {
        shared.check()?;
        if shared.progress() == doorbell_engine::Progress::Poller {
            let what = "this node has a thread that drives always; join with another Progress to drive it from an event loop";
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        let number = shared.attach_reactor().ok_or_else(busy)?;
        // Now that whoever slept there is awake, and has let go of the port.
        let mut bell = None;
        let descriptor = shared.with_port(&mut bell, |port| port.descriptor().try_clone_to_owned());
        if descriptor.is_err() {
            shared.detach_reactor(number);
        }
        Ok(Self { shared: shared.clone(), idle: Op::new(), bell, descriptor: descriptor?, armed: false, number })
    }

    /// Does what there is to do, some hundred messages at most, and says whether there was something. Never waits; wakes the tasks and threads whose operations
    /// ended.
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

    /// Says that nobody will look until the descriptor is readable, and for how long that may be at most. `None`: there is something to do, so
    /// [`turn`](Self::turn) again. Some microseconds, of which the event loop should spare itself most by turning a little longer.
    ///
    /// # Errors
    /// The node has left, the system can't wait, or another reactor drives the node ([`ResourceBusy`](io::ErrorKind::ResourceBusy)).
    pub fn arm(&mut self) -> io::Result<Option<Duration>> {
        self.disarm()?;
        let me = self.shared.check()?;
        // Before the last look: who begins something after that finds it so, and ends the sleep.
        self.shared.reactor().fall_asleep();
        let marked = self.shared.reactor().mark();
        let most = self.shared.watch(me, &self.idle, &mut self.bell);
        self.armed = matches!(most, Ok(Some(_)));
        // Who can't fence everybody sleeps no longer than that.
        let was_barrier = matches!(most, Ok(Some(most)) if most > Duration::from_millis(1));
        let found = self.shared.reactor().look_last(marked, was_barrier);
        let most = most?;
        if found || !self.armed || !self.shared.reactor().is_asleep() || !self.shared.reactor().is(self.number) {
            self.disarm()?;
            return Ok(None);
        }
        Ok(most)
    }

    /// Ends what [`arm`](Self::arm) began; after the descriptor was readable, the time was over, or the event loop has other news. As does [`turn`](Self::turn).
    ///
    /// # Errors
    /// The system can't wait any more, or another reactor drives the node.
    pub fn disarm(&mut self) -> io::Result<()> {
        self.come_back()?;
        self.end_sleep()
    }

    /// Says that this one turns. If others drove meanwhile it drives again from now on.
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

/// For the reactor of a runtime of tokio.
#[cfg(feature = "tokio")]
impl Reactor {
    /// Looks for something to do for about a microsecond. True as soon as there is.
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

    /// Whom to wake when there is something to do, of which the descriptor does not tell. Without, the descriptor tells of that as well.
    pub(crate) fn set_waker(&self, waker: &std::task::Waker) {
        self.shared.reactor().set_waker(waker);
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Asks whether the peers live.
    pub(crate) fn check_peers(&self) {
        self.shared.check_peers(Token::current());
    }

    /// That the node has left, or another reactor drives it.
    pub(crate) fn is_over(&self) -> bool {
        self.shared.usable().is_err() || self.number == REPLACED
    }
}

fn busy() -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, "another reactor drives this node; there is one at most")
}

/// Looks at streams in a spin of the lanes.
#[cfg(feature = "tokio")]
const SPINS: u32 = 8;

impl AsFd for Reactor {
    /// Readable when there is something to do after [`arm`](Reactor::arm); sometimes when there is not. Always the same one. Nothing can be read there.
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
