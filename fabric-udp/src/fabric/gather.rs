//! Decides when packets wait for others so that they share one datagram.
//!
//! A system call for each small packet would cost more than all other work on it. A packet that comes alone, and the first
//! packets of a series, are sent at once. Packets are gathered only if their sender pushes one after another without doing
//! anything else in between.

use crate::protocol::Time;

/// A push belongs to a series if it comes within this many nanoseconds of the previous one.
const CLOSE: u64 = 2_000;
/// The number of packets of a series that are sent at once.
const AT_ONCE: u32 = 4;
/// The approximate limit of gathered bytes.
const MOST: usize = 32 << 10;
/// The longest that a packet waits while others follow, and the longest after the last one, in nanoseconds.
const FOLLOWED: u64 = 20_000;
const ALONE: u64 = 100_000;
/// The approximate overhead of a packet.
const HEAD: usize = 28;

/// Packets that were not sent yet because others may follow.
#[derive(Default)]
pub(super) struct Gather {
    /// The number of pushes that closely followed another.
    series: u32,
    last: Time,
    /// The number of waiting packets, their bytes, and the time since the first waits.
    count: u32,
    bytes: usize,
    since: Time,
    /// Whether the first of them was held.
    holds: bool,
}

impl Gather {
    /// Whether a packet that was just pushed should wait.
    #[inline]
    pub fn keeps(&mut self, now: Time, len: usize) -> bool {
        self.series = if now - self.last < CLOSE { self.series.saturating_add(1) } else { 0 };
        self.last = now;
        if self.series < AT_ONCE {
            return false;
        }
        if self.count == 0 {
            (self.since, self.holds) = (now, false);
        }
        self.count += 1;
        self.bytes += len + HEAD;
        self.bytes < MOST && now - self.since < FOLLOWED
    }

    /// Records a waiting packet whose sender will say when to send it.
    #[inline]
    pub fn hold(&mut self, now: Time, len: usize) {
        if self.count == 0 {
            (self.since, self.holds) = (now, true);
        }
        self.count += 1;
        self.bytes += len + HEAD;
        self.last = now;
    }

    /// Whether only one packet waits.
    #[inline]
    pub fn is_new(&self) -> bool {
        self.count == 1
    }

    /// The time since held packets wait. All packets of one burst share it.
    #[inline]
    pub fn held_since(&self) -> Option<Time> {
        (self.count > 0 && self.holds).then_some(self.since)
    }

    /// Records that no packet waits any more.
    #[inline]
    pub fn empty(&mut self) {
        (self.count, self.bytes) = (0, 0);
    }

    /// Records the end of a push that was sent at once, so that the time in the kernel does not count as a pause.
    #[inline]
    pub fn sent(&mut self, now: Time) {
        self.last = now;
    }

    /// The latest time at which the waiting packets must be sent.
    pub fn due(&self) -> Option<Time> {
        (self.count > 0).then_some(self.since + ALONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(1_000_000 + nanos)
    }

    #[test]
    fn packets_that_come_apart_do_not_wait() {
        let mut gather = Gather::default();
        for n in 0..100 {
            assert!(!gather.keeps(at(n * 5_000), 8));
            gather.empty();
            gather.sent(at(n * 5_000 + 2_500));
        }
    }

    #[test]
    fn a_series_is_gathered_and_never_for_long() {
        let mut gather = Gather::default();
        let (mut sent, mut now) = (0, 0);
        for n in 0..10_000 {
            now += 100;
            if gather.keeps(at(now), 8) {
                assert_eq!(gather.is_new(), gather.count == 1);
                assert!(gather.due().unwrap() <= at(now + ALONE));
            } else {
                sent += 1;
                gather.empty();
                assert!(gather.due().is_none());
                now += 2_500;
                gather.sent(at(now));
            }
            assert!(n > 3 || sent == n + 1, "the first ones go at once");
        }
        assert!((30..100).contains(&sent), "{sent} sends");
        // After a pause the first packets are sent at once again.
        assert!(!gather.keeps(at(now + 100_000), 8));
    }

    #[test]
    fn what_is_held_is_due_all_the_same() {
        let mut gather = Gather::default();
        gather.hold(at(0), 8);
        gather.hold(at(50_000), 8);
        assert!(gather.due().unwrap() <= at(ALONE));
        gather.empty();
        assert!(gather.due().is_none());
        assert!(gather.held_since().is_none());
    }

    #[test]
    fn the_time_since_others_wait_is_no_clock_for_what_is_held() {
        let mut gather = Gather::default();
        gather.hold(at(0), 8);
        assert_eq!(gather.held_since(), Some(at(0)));
        gather.empty();
        let mut now = 0;
        while !gather.keeps(at(now), 8) {
            now += 100;
        }
        assert_eq!(gather.held_since(), None);
        gather.hold(at(now + 50_000), 8);
        assert_eq!(gather.held_since(), None);
    }

    #[test]
    fn large_packets_fill_what_is_gathered() {
        let mut gather = Gather::default();
        let kept = (0..1000).filter(|n| {
            let keeps = gather.keeps(at(n * 100), 16 << 10);
            if !keeps {
                gather.empty();
            }
            keeps
        });
        assert!(kept.count() < 500);
    }
}
