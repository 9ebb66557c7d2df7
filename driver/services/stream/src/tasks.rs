//! A stream, as a task reads and writes it.

use super::end::Carrier;
#[cfg(feature = "tokio")]
use super::end::State;
use super::handle::{Half, Stream, lock};
use doorbell_engine::sync::baton::Token;
use doorbell_engine::sync::reactor::{Pipe, Side};
use doorbell_fabric::sync::{Reach, heavy_barrier};
use std::io::{self, IoSlice};
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

/// For executors of any kind. Of several tasks that poll the same direction the last is woken. Who is woken need not find anything. A task that polls a direction for which a
/// thread waits is stopped until that has its answer.
impl Stream {
    /// As [`read`](std::io::Read::read), but where that waits the task is woken when it is worth another try. Loses nothing if it is not tried again.
    pub fn poll_read(&self, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll(Side::Read, context, &mut *lock(&self.reads), |this, me, half| this.try_read(me, half, into))
    }

    /// As [`write`](std::io::Write::write), but where that waits the task is woken when it is worth another try. What it says is written goes to the other side,
    /// whatever becomes of the task.
    pub fn poll_write(&self, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        self.poll(Side::Write, context, &mut *lock(&self.writes), |this, me, half| this.try_write(me, half, from))
    }

    /// As [`poll_write`](Self::poll_write), of several pieces in a row.
    pub fn poll_write_vectored(&self, context: &mut Context<'_>, from: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.poll(Side::Write, context, &mut *lock(&self.writes), |this, me, half| this.try_write_vectored(me, half, from))
    }

    fn poll<T: Half>(
        &self,
        side: Side,
        context: &mut Context<'_>,
        half: &mut T,
        mut attempt: impl FnMut(&Self, Token, &mut T) -> Option<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let me = self.begin("read or write a stream")?;
        if let Some(done) = attempt(self, me, half) {
            self.settle(side);
            return Poll::Ready(done);
        }
        self.end.set_waker(side, context.waker());
        if !self.awaited[side as usize].swap(true, Ordering::Relaxed) {
            self.shared.began();
        }
        self.end.waits_at(side, half.at());
        if matches!(self.end.carrier, Carrier::Near(_)) && !self.shared.reactor().look_at(&self.end, side) {
            self.end.mark(side);
            // Where barriers don't reach: somebody has to look.
            if !heavy_barrier(Reach::Machine) {
                context.waker().wake_by_ref();
            }
        }
        // What happened before the waker was there, or the mark.
        if let Some(done) = attempt(self, me, half) {
            self.settle(side);
            return Poll::Ready(done);
        }
        self.shared.wake_driver_of(context);
        Poll::Pending
    }

    /// Whether the other side has answered; if not, the task is woken when it does.
    #[cfg(feature = "tokio")]
    pub(super) fn poll_answered(&self, context: &mut Context<'_>) -> Poll<()> {
        self.end.set_waker(Side::Read, context.waker());
        if self.end.state() != State::Opening {
            return Poll::Ready(());
        }
        self.shared.wake_driver_of(context);
        Poll::Pending
    }
}
