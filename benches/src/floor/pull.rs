//! One copy by the kernel: the receiver takes a message directly from the sender's memory.

use super::mapping::PairMemory;
use super::patience::{Patience, Stopped};
use super::ring::{Line, Ring};
use crate::exchange::{Carrier, Side};
use crate::memory::Memory;
use crate::stream::Window;
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::io::IoSliceMut;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// The words of one process for the other. All zero is the initial state.
#[repr(C)]
#[derive(Debug)]
pub struct PullWords {
    process: Line,
    /// The address of a word that holds the process's own number.
    address: Line,
    /// The result of reading the other's word: see [`READ`] and [`REFUSED`].
    verdict: Line,
    /// The number of messages taken from the other.
    pulled: Line,
}

const READ: u64 = 1;
/// The number of the error is added to this.
const REFUSED: u64 = 2;

/// Why a message was not pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PullError {
    /// It was told to stop.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The kernel's error.
    #[error("process_vm_readv(2) failed in the middle of a measurement: {0}")]
    Refused(#[from] Errno),
}

/// One side of a pull.
#[derive(Clone, Copy, Debug)]
pub struct Pull<'m> {
    mine: &'m PullWords,
    theirs: &'m PullWords,
    sent: u64,
    received: u64,
    patience: &'m Patience,
}

impl<'m> Pull<'m> {
    /// Each side must be created once during the life of a mapping.
    pub fn new(memory: &PairMemory<'m>, side: Side, patience: &'m Patience) -> Self {
        let [ping, pong] = &memory.words.pull;
        let (mine, theirs) = if side == Side::Ping { (ping, pong) } else { (pong, ping) };
        Self { mine, theirs, sent: 0, received: 0, patience }
    }

    /// Whether each process may read the other's memory, and if not, why. Both call this at once and get the same answer.
    pub fn probe(&self) -> Result<Option<Errno>, Stopped> {
        let Self { mine, theirs, patience, .. } = self;
        let own = u64::from(std::process::id());
        let word = AtomicU64::new(own);
        mine.address.0.store(&raw const word as u64, Relaxed);
        mine.process.0.store(own, Release);
        patience.until(|| theirs.process.0.load(Acquire) != 0)?;
        let mut found = [0; 8];
        let verdict = match self.read(&mut found, theirs.address.0.load(Relaxed) as usize) {
            // In another namespace the number may denote another process.
            Ok(()) if u64::from_ne_bytes(found) != theirs.process.0.load(Relaxed) => REFUSED + Errno::ESRCH as u64,
            Ok(()) => READ,
            Err(error) => REFUSED + error as u64,
        };
        mine.verdict.0.store(verdict, Release);
        // Once its verdict is there, the other process has finished with our word.
        patience.until(|| theirs.verdict.0.load(Acquire) != 0)?;
        let worst = verdict.max(theirs.verdict.0.load(Acquire));
        Ok(worst.checked_sub(REFUSED).map(|number| Errno::from_raw(number as i32)))
    }

    fn read(&self, into: &mut [u8], address: usize) -> Result<(), Errno> {
        let process = Pid::from_raw(self.theirs.process.0.load(Relaxed) as i32);
        let mut done = 0;
        // The kernel moves at most 2 GiB at once.
        while done < into.len() {
            let left = &mut into[done..];
            let from = RemoteIoVec { base: address + done, len: left.len() };
            match process_vm_readv(process, &mut [IoSliceMut::new(left)], &[from])? {
                0 => return Err(Errno::EFAULT),
                read => done += read,
            }
        }
        Ok(())
    }
}

/// Pulling, together with the ring that tells where messages lie.
#[derive(Debug)]
pub struct Pulling<'a, 'm> {
    pub pull: &'a mut Pull<'m>,
    pub ring: Ring<'m, 1>,
}

impl Window for Pulling<'_, '_> {
    type Error = PullError;
    /// The message and its number.
    type Sent = (Memory, u64);
    type Received = Memory;

    #[inline(always)]
    fn start_send(&mut self, message: Memory) -> Result<(Memory, u64), PullError> {
        self.ring.send(&(message.as_ref().as_ptr() as u64).to_ne_bytes())?;
        self.pull.sent += 1;
        Ok((message, self.pull.sent))
    }

    #[inline(always)]
    fn finish_send(&mut self, (message, number): (Memory, u64)) -> Result<Memory, PullError> {
        self.pull.patience.until(|| self.pull.theirs.pulled.0.load(Acquire) >= number)?;
        Ok(message)
    }

    #[inline(always)]
    fn start_receive(&mut self, into: Memory) -> Result<Memory, PullError> {
        Ok(into)
    }

    #[inline(always)]
    fn finish_receive(&mut self, mut into: Memory) -> Result<Memory, PullError> {
        let mut address = [0; 8];
        self.ring.receive(&mut address)?;
        self.pull.read(into.as_mut(), u64::from_ne_bytes(address) as usize)?;
        self.pull.received += 1;
        self.pull.mine.pulled.0.store(self.pull.received, Release);
        Ok(into)
    }
}
