//! Reading and writing a stream from a task.

#[cfg(feature = "tokio")]
use super::end::State;
use super::handle::{Half, Stream, lock};
use doorbell_engine::kit::Token;
use doorbell_engine::sync::reactor::{Pipe, Side};
use doorbell_fabric::sync::{Reach, heavy_barrier};
use std::io::{self, IoSlice};
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

/// These calls work with any executor. If several tasks poll the same direction, only the last one is woken. A woken task may
/// find nothing to do. If a thread waits for the same direction, polling blocks until that thread's call has ended.
impl Stream {
    /// As [`read`](std::io::Read::read), but instead of waiting it has the task woken when another try is worth while. Bytes
    /// are not lost if the task does not try again.
    pub fn poll_read(&self, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll(Side::Read, context, &mut *lock(&self.reads), |this, me, half| this.try_read(me, half, into))
    }

    /// As [`write`](std::io::Write::write), but instead of waiting it has the task woken when another try is worth while. Bytes
    /// reported as written go to the other side even if the task ends.
    pub fn poll_write(&self, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        self.poll(Side::Write, context, &mut *lock(&self.writes), |this, me, half| this.try_write(me, half, from))
    }

    /// As [`poll_write`](Self::poll_write), for several pieces in a row.
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
        if self.end.carrier.is_near() && !self.shared.reactor().look_at(&self.end, side) {
            self.end.mark(side);
            // Without barriers the writer may miss the mark, so the task has to look again itself.
            if !heavy_barrier(Reach::Machine) {
                context.waker().wake_by_ref();
            }
        }
        // Looks again, since bytes may have come before the waker or the mark was set.
        if let Some(done) = attempt(self, me, half) {
            self.settle(side);
            return Poll::Ready(done);
        }
        self.shared.wake_driver_of(context);
        Poll::Pending
    }

    /// Whether the other side has answered. If not, the task is woken when it does.
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
