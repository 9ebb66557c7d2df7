//! Streams in tokio (feature `tokio`).
//!
//! [`Stream`] is [`AsyncRead`] and [`AsyncWrite`], and so is `&Stream`: what is generic over these takes it in place of a socket. The first that waits starts a task in the
//! runtime that it runs in, which drives the node with a [`Reactor`] from then on: it looks for a little while after there was something to do, and then lets
//! the runtime sleep on one descriptor. All futures of this crate are woken by it, whatever they wait for.
//!
//! ```
//! use doorbell::{Node, Space};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! # let space = Space::heap();
//! # let (server, client) = (Node::builder("t").space(space.clone()).join()?, Node::builder("t").space(space).join()?);
//! let listener = server.listener("echo").bind()?;
//! tokio::spawn(async move {
//!     let (mut stream, _peer) = listener.accept_async().await?;
//!     let (mut reads, mut writes) = tokio::io::split(&mut stream);
//!     tokio::io::copy(&mut reads, &mut writes).await
//! });
//!
//! let mut stream = client.connector("echo").connect_async().await?;
//! stream.write_all(b"hello").await?;
//! let mut answer = [0; 5];
//! stream.read_exact(&mut answer).await?;
//! assert_eq!(&answer, b"hello");
//! # Ok(())
//! # }
//! ```

use super::Reactor;
use crate::engine::wait::Step;
use crate::node::Shared;
use crate::{Node, Stream};
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

impl Node {
    /// Has the present runtime drive this node, if nobody does. Streams and the calls that end in `_async` do it by themselves; call it for futures that are used
    /// without them, as those of [`start_recv`](Node::start_recv), which otherwise the node's poller drives and wakes.
    ///
    /// # Errors
    /// This is no task of a tokio runtime with its I/O and time enabled. As [`Node::reactor`], but for another reactor.
    pub fn attend(&self) -> io::Result<()> {
        attend(self.shared())
    }
}

/// Starts the task that drives the node, if nobody does. A load, once it is there.
#[inline]
pub(crate) fn attend(shared: &Arc<Shared>) -> io::Result<()> {
    if shared.reactor().is_there() || shared.progress() == crate::Progress::Poller { Ok(()) } else { start(shared) }
}

#[cold]
fn start(shared: &Arc<Shared>) -> io::Result<()> {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        let what = "this is no task of a tokio runtime, so nothing can drive the node; call it within one";
        return Err(io::Error::new(io::ErrorKind::NotConnected, what));
    };
    match Reactor::new(shared) {
        Ok(reactor) => {
            runtime.spawn(async move {
                if let Err(error) = run(reactor).await {
                    tracing::error!(%error, "the runtime can't drive the node any more; its poller does");
                }
            });
            Ok(())
        }
        // Another task was faster.
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(()),
        Err(error) => Err(error),
    }
}

/// Drives until the node leaves.
async fn run(mut reactor: Reactor) -> io::Result<()> {
    // SAFETY: the descriptor is open as long as what owns it, which goes into the answer.
    let descriptor = unsafe { AsyncFd::register_with_interest(reactor.as_fd().try_clone_to_owned()?, Interest::READABLE)? };
    let mut sleep = pin!(tokio::time::sleep(Duration::ZERO));
    let shared = reactor.shared().clone();
    // Only where it comes to an end by itself.
    let is_one_of_many = shared.wait() == crate::Wait::Auto
        && tokio::runtime::Handle::current().runtime_flavor() == tokio::runtime::RuntimeFlavor::MultiThread;
    let mut gear = shared.gear(None);
    while !reactor.is_over() {
        if reactor.turn() || reactor.spin() {
            gear.awake();
            tokio::task::yield_now().await;
            continue;
        }
        match gear.step() {
            // Where others have threads of their own nobody waits for this one; and to be scheduled anew would wake one of them.
            Step::Again | Step::Expired if is_one_of_many => {}
            Step::Again | Step::Expired => tokio::task::yield_now().await,
            Step::Check => {
                reactor.check_peers();
                tokio::task::yield_now().await;
            }
            Step::Park(_) => {
                let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
                reactor.set_waker(&waker);
                match reactor.arm() {
                    Err(_) if reactor.is_over() => break,
                    Err(error) => return Err(error),
                    Ok(None) => tokio::task::yield_now().await,
                    Ok(Some(most)) => {
                        sleep.as_mut().reset(tokio::time::Instant::now() + most);
                        let in_vain = poll_fn(|context| {
                            if let Poll::Ready(ready) = descriptor.poll_read_ready(context) {
                                ready?.clear_ready();
                                return Poll::Ready(io::Result::Ok(false));
                            }
                            if !shared.reactor().is_asleep() {
                                return Poll::Ready(Ok(false));
                            }
                            sleep.as_mut().poll(context).map(|()| Ok(true))
                        })
                        .await?;
                        reactor.disarm()?;
                        if in_vain { gear.slept() } else { gear.awake() }
                    }
                }
            }
        }
    }
    Ok(())
}

impl AsyncRead for &Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        attend(self.shared())?;
        let stream: &Stream = *self;
        stream.poll_read(context, into.initialize_unfilled()).map_ok(|bytes| into.advance(bytes))
    }
}

impl AsyncWrite for &Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        attend(self.shared())?;
        let stream: &Stream = *self;
        stream.poll_write(context, from)
    }

    fn poll_write_vectored(self: Pin<&mut Self>, context: &mut Context<'_>, from: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        attend(self.shared())?;
        let stream: &Stream = *self;
        stream.poll_write_vectored(context, from)
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
