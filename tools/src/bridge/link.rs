//! A connection: a socket on one side, and a stream on the other.

use super::{Broken, Connection, Pump, Tally, cut};
use doorbell::Stream;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// How long a client may go on sending to a reader that is gone, after it has received everything.
const LINGER: Duration = Duration::from_secs(1);

/// Both sides. If it is dropped before both have ended, both are cut off.
#[derive(Debug)]
pub struct Link {
    socket: Connection,
    /// `None` once it is aborted.
    stream: Option<Stream>,
    is_whole: bool,
}

/// Which side failed, and how.
#[derive(Debug)]
pub enum Trouble {
    Socket(io::Error),
    Stream(io::Error),
}

impl Link {
    pub fn new(socket: Connection, stream: Stream) -> Self {
        Self { socket, stream: Some(stream), is_whole: false }
    }

    /// Carries both directions until both have ended.
    pub async fn carry(mut self, tally: &Tally) -> Result<(), Trouble> {
        let Self { socket, stream: Some(stream), .. } = &mut self else { return Ok(()) };
        let (mut reads, mut writes) = socket.split();
        let (mut there, mut back) = (Pump::default(), Pump::default());
        let mut late = pin!(None::<tokio::time::Sleep>);
        poll_fn(|context| {
            let sent = there.poll(context, &mut reads, &*stream, &tally.to_streams, true).map_err(|broken| match broken {
                Broken::From(error) => Trouble::Socket(error),
                Broken::To(error) => Trouble::Stream(error),
            })?;
            let received =
                back.poll(context, &*stream, &mut writes, &tally.to_sockets, false).map_err(|broken| match broken {
                    Broken::From(error) => Trouble::Stream(error),
                    Broken::To(error) => Trouble::Socket(error),
                })?;
            if received.is_ready() && sent.is_pending() && there.discards() {
                if late.is_none() {
                    late.set(Some(tokio::time::sleep(LINGER)));
                }
                let is_late = late.as_mut().as_pin_mut().is_some_and(|late| late.poll(context).is_ready());
                return if is_late { Poll::Ready(Err(Trouble::Stream(io::ErrorKind::BrokenPipe.into()))) } else { Poll::Pending };
            }
            if sent.is_ready() && received.is_ready() { Poll::Ready(Ok(())) } else { Poll::Pending }
        })
        .await?;
        self.is_whole = true;
        Ok(())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if !self.is_whole {
            cut(&self.socket);
            self.stream.take().into_iter().for_each(Stream::abort);
        }
    }
}
