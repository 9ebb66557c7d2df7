//! Where processes wait for each other between two sections.

use super::patience::{Patience, Stopped};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Duration;

/// Looks before a waiting process begins to sleep: a few milliseconds, more than it takes the other side to sort its samples.
const LOOKS: u32 = 1 << 20;
/// The same where every look of one process is a look less for another.
const LOOKS_CROWDED: u32 = 64;

/// A barrier in shared memory.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Gate {
    arrived: AtomicU64,
    opened: AtomicU64,
}

impl Gate {
    /// Waits until all `parties` processes are here.
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
            // Nothing is timed here, and whoever the others wait for may need this processor.
            if look > looks {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        Ok(())
    }
}
