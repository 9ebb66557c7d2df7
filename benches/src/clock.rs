//! The processor's time stamps, and their conversion to nanoseconds.

use std::time::{Duration, Instant};

/// The processor's time stamp. Only differences within one process have a meaning.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn ticks() -> u64 {
    let mut processor = 0;
    // SAFETY: writes only the local integer it is given.
    unsafe { std::arch::x86_64::__rdtscp(&mut processor) }
}

/// The processor's time stamp. Only differences within one process have a meaning.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub fn ticks() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// The length of a tick.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Nanoseconds in a tick.
    pub ns_per_tick: f64,
}

impl Clock {
    /// Compares the ticks with the system's monotonic clock for some 50 ms.
    pub fn calibrate() -> Self {
        let (ticks, instant) = reading();
        std::thread::sleep(Duration::from_millis(50));
        let (later_ticks, later) = reading();
        Self { ns_per_tick: (later - instant).as_nanos() as f64 / (later_ticks - ticks).max(1) as f64 }
    }

    /// The nanoseconds of this many ticks.
    pub fn ns(self, ticks: f64) -> f64 {
        ticks * self.ns_per_tick
    }
}

/// Both clocks at one moment. Takes the tightest of several tries, because an interruption may come in between.
fn reading() -> (u64, Instant) {
    let tries = (0..32).map(|_| {
        let before = ticks();
        let instant = Instant::now();
        let width = ticks() - before;
        (width, before + width / 2, instant)
    });
    let (_, ticks, instant) = tries.min_by_key(|(width, ..)| *width).expect("there were 32 tries");
    (ticks, instant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calibration_agrees_with_the_system_clock() {
        let clock = Clock::calibrate();
        let (ticks, instant) = reading();
        std::thread::sleep(Duration::from_millis(20));
        let (later_ticks, later) = reading();
        let ratio = clock.ns((later_ticks - ticks) as f64) / (later - instant).as_nanos() as f64;
        assert!((0.99..1.01).contains(&ratio), "the clocks differ by a factor of {ratio}");
    }
}
