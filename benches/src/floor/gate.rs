//! A barrier at which processes wait for each other between two sections.

use super::patience::{Patience, Stopped};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Duration;

/// The number of looks before a waiting process sleeps: a few milliseconds, which is more than the other side needs to sort its
/// samples.
const LOOKS: u32 = 1 << 20;
/// The same on crowded processors, where every look of one process takes time from another.
const LOOKS_CROWDED: u32 = 64;

/// A barrier in shared memory.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Gate {
    arrived: AtomicU64,
    opened: AtomicU64,
    /// A number that one process leaves for all others; 0 before.
    note: AtomicU64,
}

impl Gate {
    /// Leaves a number other than 0 for all processes.
    pub fn leave_note(&self, note: u64) {
        self.note.store(note, Release);
    }

    /// Waits for that number.
    ///
    /// # Errors
    /// It was told to stop.
    pub fn read_note(&self, patience: &Patience) -> Result<u64, Stopped> {
        loop {
            match self.note.load(Acquire) {
                0 if patience.stopped() => return Err(Stopped),
                0 => std::thread::sleep(Duration::from_micros(200)),
                note => return Ok(note),
            }
        }
    }

    /// Waits until all `parties` processes have arrived.
    ///
    /// # Errors
    /// It was told to stop.
    pub fn pass(&self, parties: usize, patience: &Patience) -> Result<(), Stopped> {
        let before = self.opened.load(Acquire);
        if self.arrived.fetch_add(1, AcqRel) + 1 == parties as u64 {
            self.arrived.store(0, Relaxed);
            self.opened.store(before + 1, Release);
            return Ok(());
        }
        let looks = if patience.crowded() { LOOKS_CROWDED } else { LOOKS };
        for look in 0.. {
            if self.opened.load(Acquire) != before {
                break;
            }
            if patience.stopped() {
                return Err(Stopped);
            }
            // Nothing is timed here, and an awaited process may need this processor.
            if look > looks {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        Ok(())
    }
}
