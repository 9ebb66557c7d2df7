//! Time in the protocol: nanoseconds since a moment that its caller chose.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A length of time in nanoseconds.
pub(crate) type Nanos = u64;

/// One microsecond.
pub(crate) const MICRO: Nanos = 1_000;
/// One millisecond.
pub(crate) const MILLI: Nanos = 1_000_000;

/// A moment: nanoseconds on a clock that never goes back. Its start does not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The start of the clock.
    pub const ZERO: Time = Time(0);
    /// Later than every event.
    pub const NEVER: Time = Time(u64::MAX);

    /// The moment `nanos` after the clock's start.
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// Nanoseconds since the clock's start.
    pub const fn nanos(self) -> u64 {
        self.0
    }
}

impl Add<Nanos> for Time {
    type Output = Time;

    fn add(self, span: Nanos) -> Time {
        Time(self.0.saturating_add(span))
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, span: Duration) -> Time {
        self + nanos(span)
    }
}

impl Sub for Time {
    type Output = Nanos;

    /// The time since `earlier`; zero if `earlier` is later.
    fn sub(self, earlier: Time) -> Nanos {
        self.0.saturating_sub(earlier.0)
    }
}

/// A duration in nanoseconds; 584 years at most.
pub(crate) fn nanos(span: Duration) -> Nanos {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
