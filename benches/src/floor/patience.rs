//! How the floor waits: it spins.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Looks between two glances at the flag that says stop.
const LOOKS: u32 = 1 << 14;
/// The same where every look of one process is a look less for another.
const LOOKS_CROWDED: u32 = 64;

/// Spinning, unless the processors are known to be crowded, and only until told to stop.
#[derive(Clone, Debug)]
pub struct Patience {
    stop: Arc<AtomicBool>,
    crowded: bool,
}

/// The wait was given up because the process was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the measurement was stopped")]
pub struct Stopped;

impl Patience {
    /// Waits until `stop` becomes true. `crowded`: there are more processes than processors, so let the others run.
    pub fn new(stop: Arc<AtomicBool>, crowded: bool) -> Self {
        Self { stop, crowded }
    }

    /// Whether it is time to stop.
    #[inline(always)]
    pub fn stopped(&self) -> bool {
        // Relaxed: nothing is read that the flag would announce.
        self.stop.load(Ordering::Relaxed)
    }

    /// More processes than processors.
    pub fn crowded(&self) -> bool {
        self.crowded
    }

    /// Looks until it is so.
    ///
    /// # Errors
    /// It was told to stop.
    #[inline(always)]
    pub fn until(&self, mut ready: impl FnMut() -> bool) -> Result<(), Stopped> {
        loop {
            // Nothing but the look belongs in this loop, not even a pause: what stands between two looks was seen to change a
            // hop by half, in either direction, and the floor has to be the same everywhere.
            for _ in 0..if self.crowded { LOOKS_CROWDED } else { LOOKS } {
                if ready() {
                    return Ok(());
                }
            }
            self.tire()?;
        }
    }

    #[cold]
    fn tire(&self) -> Result<(), Stopped> {
        if self.crowded {
            std::thread::yield_now();
        }
        if self.stopped() { Err(Stopped) } else { Ok(()) }
    }
}
