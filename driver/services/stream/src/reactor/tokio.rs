//! Streams in tokio (feature `tokio`).
//!
//! [`Stream`] and `&Stream` implement [`AsyncRead`] and [`AsyncWrite`], so code that is generic over these takes a stream in
//! place of a socket. The first stream that waits starts a task in its runtime. This task drives the node with a [`Reactor`]
//! from then on. It polls for a little while after there was something to do, and then lets the runtime sleep on one
//! descriptor. It wakes all futures of this crate, whatever they wait for.
//!
//! ```
//! use doorbell::{Listener, Node, Space, Stream};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! # let space = Space::heap();
//! # let (server, client) = (Node::builder("t").space(space.clone()).join()?, Node::builder("t").space(space).join()?);
//! let listener = Listener::builder(&server, "echo").bind()?;
//! tokio::spawn(async move {
//!     let (mut stream, _peer) = listener.accept_async().await?;
//!     let (mut reads, mut writes) = tokio::io::split(&mut stream);
//!     tokio::io::copy(&mut reads, &mut writes).await
//! });
//!
//! let mut stream = Stream::builder(&client, "echo").connect_async().await?;
//! stream.write_all(b"hello").await?;
//! let mut answer = [0; 5];
//! stream.read_exact(&mut answer).await?;
//! assert_eq!(&answer, b"hello");
//! # Ok(())
//! # }
//! ```

use super::Reactor;
use crate::Stream;
use doorbell_engine::kit::{Node, Progress, Shared, Step, Token, Wait, shared_of};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::task::coop::poll_proceed;

impl Reactor {
    /// Has the present runtime drive this node, if no reactor does yet. Streams and the calls that end in `_async` do this by
    /// themselves. Call it for futures that are used without them, such as those of [`start_recv`](Node::start_recv), which the
    /// node's poller would otherwise drive and wake.
    ///
    /// # Errors
    /// The caller is no task of a tokio runtime with I/O and time enabled. Else as [`Reactor::new`], but another reactor is no
    /// error.
    pub fn attend(node: &Node) -> io::Result<()> {
        attend(shared_of(node))
    }
}

/// Starts the task that drives the node, if there is none. Costs one load if there is one.
#[inline]
pub(crate) fn attend(shared: &Arc<Shared>) -> io::Result<()> {
    if shared.reactor().is_there() || shared.progress() == Progress::Poller { Ok(()) } else { start(shared) }
}

#[cold]
fn start(shared: &Arc<Shared>) -> io::Result<()> {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        let what = "there is no tokio runtime here to drive the node; make this call within one";
        return Err(io::Error::new(io::ErrorKind::NotConnected, what));
    };
    let mut reactor = match Reactor::of(shared) {
        Ok(reactor) => reactor,
        // Another task was faster.
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => return Ok(()),
        Err(error) => return Err(error),
    };
    // Done here, so that the caller gets the error. A runtime without I/O or time panics, and there is no way to ask it first.
    let parts = std::panic::catch_unwind(AssertUnwindSafe(|| {
        // `run` needs the runtime's time.
        drop(tokio::time::sleep(Duration::ZERO));
        Ok::<_, io::Error>((watch(reactor.as_fd().try_clone_to_owned()?)?, Alarm::new()?))
    }));
    let Ok(parts) = parts else {
        let what = "this tokio runtime has I/O or time disabled, so it can't drive the node; build it with Builder::enable_all()";
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    };
    let (descriptor, alarm) = parts?;
    runtime.spawn(async move {
        let Err(error) = run(&mut reactor, &descriptor, &alarm).await else { return };
        tracing::error!(%error, "the runtime can't wait for the node; it polls the node for a second, and then starts again");
        // Not at once: the waiting tasks start the next reactor as soon as this one is gone.
        let until = tokio::time::Instant::now() + BACK_OFF;
        while !reactor.is_over() && tokio::time::Instant::now() < until {
            reactor.turn();
            tokio::time::sleep(LOOK).await;
        }
    });
    Ok(())
}

/// How long a task looks at intervals after the runtime could not wait for the node, and the interval.
const BACK_OFF: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(1);

fn watch(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is open as long as its owner, which becomes part of the result.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE)? })
}

/// Ends a sleep that nothing else ended. It is a timer of the kernel: setting a timer of the runtime would wake the runtime,
/// and its steps are coarse.
struct Alarm(AsyncFd<OwnedFd>);

impl Alarm {
    fn new() -> io::Result<Self> {
        Ok(Self(watch(timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?)?))
    }

    /// Lets the alarm go off once after this time, and forgets any earlier alarm.
    fn set(&self, after: Duration) -> io::Result<()> {
        // Zero would disarm the timer.
        let it_value = Timespec::try_from(after.max(Duration::from_nanos(1))).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        let once = Itimerspec { it_interval: Timespec::default(), it_value };
        // Cleared before the timer is set, since that may go off at once.
        if let Poll::Ready(ready) = self.0.poll_read_ready(&mut Context::from_waker(Waker::noop())) {
            ready?.clear_ready();
        }
        timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_read_ready(context).map_ok(|mut ready| ready.clear_ready())
    }
}

/// Drives until the node leaves.
async fn run(reactor: &mut Reactor, descriptor: &AsyncFd<OwnedFd>, alarm: &Alarm) -> io::Result<()> {
    let shared = reactor.shared.clone();
    // Only if polling ends by itself.
    let is_one_of_many = shared.wait() == Wait::Auto
        && tokio::runtime::Handle::current().runtime_flavor() == tokio::runtime::RuntimeFlavor::MultiThread;
    let mut backoff = shared.backoff(None);
    while !reactor.is_over() {
        if reactor.turn() || reactor.spin() {
            backoff.awake();
            tokio::task::yield_now().await;
            continue;
        }
        match backoff.step() {
            // In a multi-threaded runtime other tasks have threads of their own, and rescheduling this task would wake one of
            // those threads.
            Step::Again | Step::Expired if is_one_of_many => {}
            Step::Again | Step::Expired => tokio::task::yield_now().await,
            Step::Check => {
                shared.check_peers(Token::current());
                tokio::task::yield_now().await;
            }
            Step::Park(_) => {
                let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
                // Without it the descriptor becomes readable when a thread of this process gives the reactor something to do.
                shared.reactor().set_waker(&waker);
                match reactor.arm() {
                    Err(_) if reactor.is_over() => break,
                    Err(error) => return Err(error),
                    Ok(None) => tokio::task::yield_now().await,
                    Ok(Some(most)) => {
                        alarm.set(most)?;
                        let in_vain = poll_fn(|context| {
                            if let Poll::Ready(ready) = descriptor.poll_read_ready(context) {
                                ready?.clear_ready();
                                return Poll::Ready(io::Result::Ok(false));
                            }
                            if !shared.reactor().is_asleep() {
                                return Poll::Ready(Ok(false));
                            }
                            alarm.poll(context).map_ok(|()| true)
                        })
                        .await?;
                        reactor.disarm()?;
                        if in_vain { backoff.slept() } else { backoff.awake() }
                    }
                }
            }
        }
    }
    Ok(())
}

/// Lets the other tasks of the runtime run now and then, the reactor among them, if a task always finds something to do.
fn within_budget<T>(
    stream: &Stream,
    context: &mut Context<'_>,
    attempt: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<T>>,
) -> Poll<io::Result<T>> {
    attend(&stream.shared)?;
    let budget = ready!(poll_proceed(context));
    let done = attempt(context);
    if done.is_ready() {
        budget.made_progress();
    }
    done
}

impl AsyncRead for &Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let stream: &Stream = *self;
        within_budget(stream, context, |context| {
            stream.poll_read(context, into.initialize_unfilled()).map_ok(|bytes| into.advance(bytes))
        })
    }
}

impl AsyncWrite for &Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let stream: &Stream = *self;
        within_budget(stream, context, |context| stream.poll_write(context, from))
    }

    fn poll_write_vectored(self: Pin<&mut Self>, context: &mut Context<'_>, from: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let stream: &Stream = *self;
        within_budget(stream, context, |context| stream.poll_write_vectored(context, from))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.close(std::net::Shutdown::Write))
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        AsyncRead::poll_read(pin!(&*self), context, into)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(pin!(&*self), context, from)
    }

    fn poll_write_vectored(self: Pin<&mut Self>, context: &mut Context<'_>, from: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write_vectored(pin!(&*self), context, from)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_shutdown(pin!(&*self), context)
    }
}
