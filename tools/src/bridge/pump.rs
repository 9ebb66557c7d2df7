//! One direction of a connection.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of one read.
const PIECE: usize = 64 << 10;
/// Pieces after which other connections get their turn.
const PIECES: usize = 16;

thread_local! {
    /// The buffer into which all connections read. Idle connections need no buffer, and busy ones find this one in the cache.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; PIECE]);
}

/// Carries bytes from one side to the other until the first ends, and then ends the other.
#[derive(Debug, Default)]
pub struct Pump {
    /// Bytes from `at` on that were read and not written yet.
    rest: Vec<u8>,
    at: usize,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Carries,
    /// The reader is gone. The pump discards all bytes, so that the writer can go on.
    Discards,
    Ends,
    Over,
}

/// Which side failed, and how.
#[derive(Debug)]
pub enum Broken {
    /// The side that bytes come from.
    From(io::Error),
    /// The side that bytes go to.
    To(io::Error),
}

impl Pump {
    /// Whether the reader is gone and bytes are discarded.
    pub fn discards(&self) -> bool {
        self.stage == Stage::Discards
    }

    /// Carries the bytes that can be carried now. Ready when this direction has ended. Adds the written bytes to `count`. With `may_discard` a
    /// reader that is gone does not end the direction: further bytes are discarded.
    pub fn poll(
        &mut self,
        context: &mut Context<'_>,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        count: &AtomicU64,
        may_discard: bool,
    ) -> Poll<Result<(), Broken>> {
        for _ in 0..PIECES {
            match self.stage {
                Stage::Carries => match ready!(self.carry(context, &mut from, &mut to, count)) {
                    Err(Broken::To(error)) if may_discard && error.kind() == ErrorKind::BrokenPipe => {
                        (self.rest, self.stage) = (Vec::new(), Stage::Discards);
                    }
                    done => done?,
                },
                Stage::Discards => {
                    let taken = SCRATCH.with_borrow_mut(|piece| {
                        let mut piece = ReadBuf::new(piece);
                        Pin::new(&mut from).poll_read(context, &mut piece).map_ok(|()| piece.filled().len())
                    });
                    if ready!(taken).map_err(Broken::From)? == 0 {
                        self.stage = Stage::Over;
                    }
                }
                Stage::Ends => {
                    match ready!(Pin::new(&mut to).poll_shutdown(context)) {
                        // A side that is not connected has ended already.
                        Err(error) if error.kind() != ErrorKind::NotConnected => return Poll::Ready(Err(Broken::To(error))),
                        _ => self.stage = Stage::Over,
                    }
                }
                Stage::Over => return Poll::Ready(Ok(())),
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Carries one piece, or the rest of one.
    fn carry(
        &mut self,
        context: &mut Context<'_>,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
        count: &AtomicU64,
    ) -> Poll<Result<(), Broken>> {
        while self.at < self.rest.len() {
            self.at += ready!(write(context, to, &self.rest[self.at..], count))?;
        }
        self.rest.clear();
        self.at = 0;
        SCRATCH.with_borrow_mut(|piece| {
            let mut piece = ReadBuf::new(piece);
            ready!(Pin::new(from).poll_read(context, &mut piece)).map_err(Broken::From)?;
            let mut left = piece.filled();
            if left.is_empty() {
                self.stage = Stage::Ends;
            }
            while !left.is_empty() {
                match write(context, to, left, count) {
                    Poll::Ready(put) => left = &left[put?..],
                    Poll::Pending => {
                        self.rest.extend_from_slice(left);
                        return Poll::Pending;
                    }
                }
            }
            Poll::Ready(Ok(()))
        })
    }
}

fn write(
    context: &mut Context<'_>,
    to: &mut (impl AsyncWrite + Unpin),
    from: &[u8],
    count: &AtomicU64,
) -> Poll<Result<usize, Broken>> {
    let put = match ready!(Pin::new(to).poll_write(context, from)) {
        Ok(0) => Err(ErrorKind::WriteZero.into()),
        put => put,
    }
    .map_err(Broken::To)?;
    count.fetch_add(put as u64, Ordering::Relaxed);
    Poll::Ready(Ok(put))
}
