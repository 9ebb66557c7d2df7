//! Spreads a window over a round trip, in bursts that are worth a system call.

use super::time::{MILLI, Nanos, Time};

/// The largest burst, which is one run of datagrams.
const BURST_MAX: u64 = 64 * 1024;
/// A burst may always have this many datagrams, even if they are longer than that together. After it the engine takes a turn, and the burst should be worth one.
const DATAGRAMS_MOST: u64 = 8;

/// A token bucket of bytes. It fills at five quarters of the window in a round trip. The last datagram may take more than there
/// is.
pub(crate) struct Pacer {
    tokens: i64,
    filled: Time,
}

impl Pacer {
    pub fn new(now: Time) -> Self {
        Self { tokens: BURST_MAX as i64, filled: now }
    }

    /// The time at which the next datagram may go. `window` bytes may be under way in one round trip.
    #[inline]
    pub fn ready_at(&mut self, now: Time, mtu: usize, window: u64, round_trip: Nanos) -> Time {
        if self.tokens > 0 {
            return now;
        }
        self.refill(now, mtu as u64, window, round_trip)
    }

    #[cold]
    fn refill(&mut self, now: Time, mtu: u64, window: u64, round_trip: Nanos) -> Time {
        let per_round = u128::from(window) * 5 / 4;
        let within = |nanos: Nanos| (per_round * u128::from(nanos) / u128::from(round_trip.max(1))) as u64;
        // A slow path gets a millisecond's worth in a burst, or ten datagrams.
        let most = BURST_MAX.max(DATAGRAMS_MOST * mtu);
        let burst = within(MILLI).clamp((10 * mtu).min(BURST_MAX), most) as i64;
        let new = within((now - self.filled).min(1000 * MILLI)).min(1 << 40) as i64;
        self.tokens = (self.tokens + new).min(burst);
        self.filled = now;
        if self.tokens > 0 {
            return now;
        }
        // Wait for several datagrams and not for one, or each would cost a call.
        let missing = (burst / 2 - self.tokens) as u128;
        now + (missing * u128::from(round_trip.max(1)) / per_round.max(1)) as u64 + 1
    }

    #[inline]
    pub fn spend(&mut self, size: usize) {
        self.tokens -= size as i64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept() {
        // 1 MB in 10 ms is 100 MB/s; five quarters of that in 100 ms are 12.5 MB.
        let (mut now, mut sent) = (Time::ZERO, 0);
        let mut pacer = Pacer::new(now);
        while now < Time::ZERO + 100 * MILLI {
            now = pacer.ready_at(now, 1400, 1_000_000, 10 * MILLI);
            if pacer.tokens > 0 {
                pacer.spend(1400);
                sent += 1400;
            }
        }
        assert!((12_300_000..12_800_000).contains(&sent), "{sent}");
    }
}
