//! Reading and writing a stream from a thread.

use super::end::{Pipe, Side};
use super::handle::{Half, Stream, lock, lost};
use doorbell_engine::kit::{Error, Moment, Progress, Token, world};
use doorbell_fabric::sync::{Reach, heavy_barrier};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often the thread looks at the pipe before it checks whether to wait on.
const LOOKS: u32 = 16;
/// How many of those checks pass before it turns the engine.
const TURN_EVERY: u32 = 16;
/// The longest sleep, if a wake-up may be missed, and if none can be.
const SLEEP_UNSURE: Duration = Duration::from_millis(1);
const SLEEP: Duration = Duration::from_millis(50);

impl Stream {
    /// Tries until `attempt` succeeds or fails.
    fn until<T: Half>(
        &self,
        side: Side,
        half: &mut T,
        mut attempt: impl FnMut(&Self, Token, &mut T) -> Option<io::Result<usize>>,
    ) -> io::Result<usize> {
        let me = self.begin("read or write a stream")?;
        if let Some(done) = attempt(self, me, half) {
            return done;
        }
        if self.nonblocking.load(Ordering::Relaxed) {
            // A thread that never waits has to drive the engine here.
            if self.shared.progress() != Progress::Poller {
                self.shared.turn(me);
            }
            return attempt(self, me, half).unwrap_or_else(|| Err(ErrorKind::WouldBlock.into()));
        }
        self.end.waits_at(side, half.at());
        let backoff = self.shared.backoff(self.deadline(side));
        self.shared.wait_for(me, backoff, TURN_EVERY, |moment| {
            match moment {
                Moment::Look => {
                    for _ in 0..LOOKS {
                        if self.end.has_news(side)
                            && let Some(done) = attempt(self, me, half)
                        {
                            return Ok(Some(done));
                        }
                        std::hint::spin_loop();
                    }
                    return Ok(attempt(self, me, half));
                }
                Moment::Check => self.shared.check_long_wait(me)?,
                Moment::Sleep(most) => {
                    let op = self.end.wait_for(side);
                    self.end.mark(side);
                    // Without barriers the other side may miss the mark.
                    let is_sure = !self.end.carrier.is_near() || heavy_barrier(Reach::Machine);
                    let most = most.min(if is_sure { SLEEP } else { SLEEP_UNSURE });
                    // The other thread sets the mark first and then ends this operation, so at least one of the two is seen here.
                    if !self.end.has_news(side) && lost(self.end.state(), side).is_none() && !self.is_over(side) {
                        self.shared.drive(me, &op, Some(world::now() + most), |_| false)?;
                    }
                }
                Moment::Expired => {
                    let operation = if side == Side::Read { "read from a stream" } else { "write to a stream" };
                    return Err(Error::Timeout { operation, node: Some(self.end.peer.node) });
                }
            }
            Ok(None)
        })?
    }

    fn read_some(&self, into: &mut [u8]) -> io::Result<usize> {
        self.until(Side::Read, &mut *lock(&self.reads), |this, me, half| this.try_read(me, half, into))
    }

    fn write_some(&self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        self.until(Side::Write, &mut *lock(&self.writes), |this, me, half| this.try_write_vectored(me, half, from))
    }
}

impl Read for &Stream {
    #[inline]
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.read_some(into)
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut done = 0;
        for part in into.iter_mut().filter(|part| !part.is_empty()) {
            // Only the first buffer may wait.
            let got = if done == 0 {
                self.read_some(part)?
            } else {
                let me = self.shared.check()?;
                match self.try_read(me, &mut lock(&self.reads), part) {
                    Some(Ok(got)) => got,
                    _ => break,
                }
            };
            done += got;
            if got < part.len() {
                break;
            }
        }
        Ok(done)
    }
}

impl Write for &Stream {
    #[inline]
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.write_some(&[IoSlice::new(from)])
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write_some(from)
    }

    /// Does nothing: writes are not buffered here.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    #[inline]
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (&*self).read(into)
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(into)
    }
}

impl Write for Stream {
    #[inline]
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        (&*self).write(from)
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
