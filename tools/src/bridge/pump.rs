//! One direction of a connection.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that are taken at a time.
const PIECE: usize = 64 << 10;
/// Pieces after which others have their turn.
const PIECES: usize = 16;

thread_local! {
    /// Into which all connections read: what is idle needs no memory, and what is busy finds it in the cache.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; PIECE]);
}

/// Carries bytes from one side to the other until there are no more, and then says so there.
#[derive(Debug, Default)]
pub struct Pump {
    /// What was taken and found no room yet, from `at` on.
    rest: Vec<u8>,
    at: usize,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Carries,
    /// Nobody reads any more what is carried: it is taken and let go, so that whoever writes goes on.
    Discards,
    Ends,
    Over,
}

/// Which side failed, and how.
#[derive(Debug)]
pub enum Broken {
    /// Where bytes come from.
    From(io::Error),
    /// Where they go.
    To(io::Error),
}

impl Pump {
    /// Whether nobody reads any more what is carried.
    pub fn discards(&self) -> bool {
        self.stage == Stage::Discards
    }

    /// Carries what can be carried now; ready when this direction has ended. Adds to `count` what the other side took. Where `may_discard`
    /// a target that reads no more ends nothing: what comes is let go.
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
                        // It has ended there already.
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

    /// One piece, or the rest of one.
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
