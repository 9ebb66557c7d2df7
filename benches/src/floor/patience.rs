//! The waiting of the floor: it spins.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The number of looks between two checks of the stop flag.
const LOOKS: u32 = 1 << 14;
/// The same on crowded processors, where every look of one process takes time from another.
const LOOKS_CROWDED: u32 = 64;

/// Spins until told to stop. Yields in between if the processors are known to be crowded.
#[derive(Clone, Debug)]
pub struct Patience {
    stop: Arc<AtomicBool>,
    crowded: bool,
}

/// The wait ended because the process was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
#[error("the measurement was stopped")]
pub struct Stopped;

impl Patience {
    /// Waits until `stop` becomes true. `crowded`: there are more processes than processors, so yield to the others.
    pub fn new(stop: Arc<AtomicBool>, crowded: bool) -> Self {
        Self { stop, crowded }
    }

    /// Whether the process was told to stop.
    #[inline(always)]
    pub fn stopped(&self) -> bool {
        // Relaxed: the flag announces no other data.
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether there are more processes than processors.
    pub fn crowded(&self) -> bool {
        self.crowded
    }

    /// Polls until `ready` returns true.
    ///
    /// # Errors
    /// It was told to stop.
    #[inline(always)]
    pub fn until(&self, mut ready: impl FnMut() -> bool) -> Result<(), Stopped> {
        loop {
            // The loop holds nothing but the look, not even a pause. Code between two looks changed a hop by up to half in either
            // direction, and the floor must be the same everywhere.
            for _ in 0..self.looks() {
                if ready() {
                    return Ok(());
                }
            }
            self.tire()?;
        }
    }

    #[inline(always)]
    fn looks(&self) -> u32 {
        if self.crowded { LOOKS_CROWDED } else { LOOKS }
    }

    /// Polls until `ready` returns true, or gives up: `gives_up` is asked now and then. Returns whether it was ready. Yields in between,
    /// because the process for which it waits may need this processor.
    ///
    /// # Errors
    /// It was told to stop.
    #[inline(always)]
    pub fn until_or(&self, mut ready: impl FnMut() -> bool, gives_up: impl Fn() -> bool) -> Result<bool, Stopped> {
        loop {
            // As above.
            for _ in 0..self.looks() {
                if ready() {
                    return Ok(true);
                }
            }
            self.tire()?;
            std::thread::yield_now();
            if gives_up() {
                return Ok(false);
            }
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
