//! Through a lane or by a transfer: which is faster for a message.
//!
//! Through a lane, both processors copy every byte at the same time. Their loops keep many cache lines in flight, and one reads
//! what the other has just written, so it is still in a cache. The lane is therefore faster for a stream of messages, and mostly
//! for messages that were just written and are read at once. By a transfer, every byte is copied once, by the kernel if it lies in
//! private memory. That is faster where a buffer is written or read less often than it is sent, because it then stays in the caches of
//! both processors.
//!
//! So a sender tries both now and then for messages that go back and forth, and compares the times between its messages. From 1 MiB
//! on it relies on the kernel's toll, which is [measured]. Regions have no toll.
//!
//! [measured]: doorbell_shm::cma::toll

use super::{ALONE_MOST, IN_REGION_LEAST, RENDEZVOUS_BYTES};
use std::time::{Duration, Instant};

/// Picoseconds a byte that a lane takes between processors that share a cache. Where a lane takes longer, so does the kernel.
const LANE: u64 = 60;
/// From this length on, a message that is alone goes by the kernel if its toll is low. The two ways of shorter messages are compared.
pub(crate) const KERNEL_LEAST: usize = 1 << 20;
/// After several messages at once, this many take the usual way even if they come alone: alternating is slower than either way.
const STREAM: u32 = 64;
/// One of this many messages that would take the lane goes by the kernel, since the target may permit a put by now.
const ASK_AGAIN: u32 = 64;

/// The lengths whose ways are compared, in powers of two.
const CLASSES: usize = (KERNEL_LEAST.ilog2() - IN_REGION_LEAST.ilog2()) as usize;
/// The first messages of a phase do not count: they find lines where the other way left them.
const WARM: u32 = 10;
/// The messages of a phase that count.
const COUNTED: u32 = 10;
/// The phases of a comparison, which use the ways in turn. The other end of a conversation counts as many messages, so both are in the same
/// phase.
const PHASES: u32 = 4;
/// The messages until the first comparison. By then the lane has compared its own ways of copying.
const FIRST: u32 = 200;
/// The messages until the second comparison, for each message of the first one. Later there are four times as many each time...
const UNSETTLED: u32 = 4;
/// ...up to this number. Then at most one message in two hundred goes the slower way.
const SETTLED: u32 = 100;
/// After a longer pause, the messages are no conversation in which times could be compared.
const PAUSE: Duration = Duration::from_millis(1);

/// The knowledge about the ways to one target.
#[derive(Clone, Copy, Debug, Default)]
pub struct Way {
    /// For its latest request, the target did not let the origin put.
    pub refused: bool,
    /// The messages since the kernel was last chosen.
    lane: u32,
    /// The messages for which a stream is expected to continue.
    stream: u32,
    /// For private memory and for regions, by length.
    compared: [[Compared; CLASSES]; 2],
}

/// A message for which a way is chosen.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// It lies in a region.
    pub in_region: bool,
    /// Its length.
    pub len: usize,
    /// No other message is on its way to the same target.
    pub is_idle: bool,
    /// It takes the way that is chosen, and its time may be compared with those of others.
    pub compares: bool,
    /// The kernel's toll, in picoseconds a byte.
    pub toll: fn() -> u64,
    /// The present time.
    pub now: fn() -> Instant,
}

impl Way {
    /// Whether a transfer is the faster way for the next message.
    pub fn is_transfer(&mut self, choice: &Choice) -> bool {
        let Choice { in_region, len, is_idle, compares, toll, now } = *choice;
        let usual = in_region && len >= RENDEZVOUS_BYTES;
        // Both ends copy a longer message in a region, which the lane has no chance to beat.
        let decided = if in_region { ALONE_MOST as usize + 1 } else { KERNEL_LEAST };
        // A power of two is the longest of its class: in a region, the usual way changes above 32 KiB.
        let class = (len.max(IN_REGION_LEAST) - 1).ilog2() - (IN_REGION_LEAST - 1).ilog2();
        let compared = self.compared[usize::from(in_region)].get_mut(class as usize).filter(|_| compares && len < decided);
        if !is_idle {
            self.stream = STREAM;
            if let Some(compared) = compared {
                compared.interrupt();
            }
            return usual;
        }
        if self.stream > 0 {
            self.stream -= 1;
            return usual;
        }
        if len < decided {
            let can_be_transfer = in_region || len >= RENDEZVOUS_BYTES;
            return compared.filter(|_| can_be_transfer).is_some_and(|compared| compared.is_other(now())) != usual;
        }
        if in_region {
            return true;
        }
        // If both sides copy halves: (lane + toll) / 2 against lane. If one side copies all: lane + toll, but the other
        // processor is free meanwhile.
        let (toll, most) = (toll(), if self.refused { LANE / 2 } else { LANE });
        self.lane = self.lane.saturating_add(1);
        let is_kernel = toll <= most || (self.refused && toll <= LANE && self.lane >= ASK_AGAIN);
        if is_kernel {
            self.lane = 0;
        }
        is_kernel
    }
}

/// The comparison of the usual way with the other one.
#[derive(Clone, Copy, Debug)]
struct Compared {
    /// The other way is chosen.
    other: bool,
    /// The number of messages until the next comparison.
    left: u32,
    /// The same, for each message of the last comparison.
    settled: u32,
    /// The messages of this comparison.
    sent: u32,
    /// When the last message of it was sent.
    last: Option<Instant>,
    /// When the first message that counts in this phase was sent.
    since: Option<Instant>,
    /// The shortest time of a phase of each way.
    times: [Option<Duration>; 2],
}

impl Default for Compared {
    fn default() -> Self {
        Self { other: false, left: FIRST, settled: 0, sent: 0, last: None, since: None, times: [None; 2] }
    }
}

impl Compared {
    /// Leaves everything as it is until the next comparison: this one has an end, or has become impossible.
    fn end(&mut self) {
        self.settled = (4 * self.settled).clamp(UNSETTLED, SETTLED);
        self.left = self.settled * PHASES * (WARM + COUNTED);
        (self.sent, self.last, self.since, self.times) = (0, None, None, [None; 2]);
    }

    /// The messages are no conversation at present.
    fn interrupt(&mut self) {
        if self.left == 0 {
            self.end();
        }
    }

    /// Whether the next message takes the other way.
    fn is_other(&mut self, now: Instant) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return self.other;
        }
        if self.last.replace(now).is_some_and(|last| now.saturating_duration_since(last) > PAUSE) {
            self.interrupt();
            return self.other;
        }
        let phase = |sent: u32| sent / (WARM + COUNTED);
        if self.sent.is_multiple_of(WARM + COUNTED)
            && let (Some(since), Some(before)) = (self.since.take(), phase(self.sent).checked_sub(1))
        {
            let (time, shortest) = (now.saturating_duration_since(since), &mut self.times[before as usize % 2]);
            *shortest = Some(shortest.map_or(time, |shortest| shortest.min(time)));
        }
        if phase(self.sent) == PHASES {
            // A smaller difference may be chance.
            self.other = matches!(self.times, [Some(usual), Some(other)] if other < usual - usual / 16);
            self.end();
            return self.other;
        }
        if self.sent % (WARM + COUNTED) == WARM {
            self.since = Some(now);
        }
        self.sent += 1;
        phase(self.sent - 1) % 2 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const COMPARISON: u32 = PHASES * (WARM + COUNTED);

    thread_local! {
        /// The time of a test, in nanoseconds.
        static PASSED: Cell<u64> = const { Cell::new(0) };
    }

    fn now() -> Instant {
        static BEGAN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
        *BEGAN + Duration::from_nanos(PASSED.get())
    }

    fn choice(len: usize, is_idle: bool, toll: fn() -> u64) -> Choice {
        Choice { in_region: false, len, is_idle, compares: true, toll, now }
    }

    #[test]
    fn a_cheap_kernel_is_chosen_and_a_dear_one_is_not() {
        let mut way = Way::default();
        assert!([(|| 30) as fn() -> u64, || 60].into_iter().all(|toll| way.is_transfer(&choice(KERNEL_LEAST, true, toll))));
        assert!(!way.is_transfer(&choice(KERNEL_LEAST, true, || 61)));
    }

    #[test]
    fn one_of_several_takes_the_usual_way() {
        let mut way = Way::default();
        assert!(!way.is_transfer(&choice(1 << 30, false, || 0)));
        assert_eq!((0..100).filter(|_| way.is_transfer(&choice(1 << 30, true, || 0))).count() as u32, 100 - STREAM);
        assert!(way.is_transfer(&Choice { in_region: true, ..choice(RENDEZVOUS_BYTES, false, || 0) }));
        assert!(!way.is_transfer(&Choice { in_region: true, ..choice(RENDEZVOUS_BYTES - 1, false, || 0) }));
    }

    #[test]
    fn a_target_that_does_the_work_alone_is_asked_again_now_and_then() {
        let mut way = Way { refused: true, ..Way::default() };
        assert!(way.is_transfer(&choice(KERNEL_LEAST, true, || 30)));
        let kernel = (0..10 * ASK_AGAIN).filter(|_| way.is_transfer(&choice(KERNEL_LEAST, true, || 50))).count();
        assert_eq!(kernel, 10);
        assert!((0..10 * ASK_AGAIN).all(|_| !way.is_transfer(&choice(KERNEL_LEAST, true, || 120))));
    }

    /// A conversation of messages that take these times, by the lane and by a transfer. Returns how many were transfers.
    fn converse(way: &mut Way, choice: &Choice, messages: u32, times: [u64; 2]) -> u32 {
        let mut transfers = 0;
        for _ in 0..messages {
            let is_transfer = way.is_transfer(choice);
            PASSED.set(PASSED.get() + times[usize::from(is_transfer)]);
            transfers += u32::from(is_transfer);
        }
        transfers
    }

    #[test]
    #[cfg_attr(miri, ignore = "too slow")]
    fn the_faster_way_is_found_and_found_again_for_each_length_and_memory() {
        let mut way = Way::default();
        for (in_region, len) in [
            (false, RENDEZVOUS_BYTES),
            (false, 64 << 10),
            (false, KERNEL_LEAST - 1),
            (true, IN_REGION_LEAST),
            (true, RENDEZVOUS_BYTES),
            (true, ALONE_MOST as usize),
        ] {
            let choice = Choice { in_region, ..choice(len, true, || 0) };
            for times in [[100, 90], [90, 100], [90, 80]] {
                converse(&mut way, &choice, 2 * (SETTLED + 1) * COMPARISON, times);
                let transfers = converse(&mut way, &choice, 1000, times);
                let slower = if times[0] < times[1] { transfers } else { 1000 - transfers };
                assert!(slower <= COMPARISON / 2, "{choice:?} {times:?}: {slower}");
            }
        }
        // Neighbours in length learn for themselves.
        let [short, longer] =
            [RENDEZVOUS_BYTES - 1, RENDEZVOUS_BYTES].map(|len| Choice { in_region: true, ..choice(len, true, || 0) });
        for (choice, times) in [(short, [100, 50]), (longer, [50, 100])] {
            converse(&mut way, &choice, 2 * (SETTLED + 1) * COMPARISON, times);
        }
        assert!(converse(&mut way, &short, 100, [100, 100]) > 50 && converse(&mut way, &longer, 100, [100, 100]) < 50);
        // What does not compare takes the usual way, and so do private messages up to 32 KiB and long ones in regions.
        for (in_region, len, compares) in [
            (false, 64 << 10, false),
            (true, 64 << 10, false),
            (false, IN_REGION_LEAST, true),
            (true, ALONE_MOST as usize + 1, true),
        ] {
            let choice = Choice { in_region, compares, ..choice(len, true, || 0) };
            let times = if in_region { [50, 100] } else { [100, 50] };
            assert_eq!(converse(&mut way, &choice, 1000, times), if in_region { 1000 } else { 0 });
        }
    }

    #[test]
    fn a_small_difference_changes_nothing() {
        for (in_region, times) in [(false, [100, 97]), (true, [97, 100])] {
            let choice = Choice { in_region, ..choice(100_000, true, || 0) };
            let transfers = converse(&mut Way::default(), &choice, 1000, times);
            let other = if in_region { 1000 - transfers } else { transfers };
            assert!(other <= 3 * COMPARISON / 2, "{choice:?}: {other}");
        }
    }

    /// A result stays in use where times can no longer be compared.
    #[test]
    #[cfg_attr(miri, ignore = "too slow")]
    fn pauses_and_streams_end_a_comparison_without_a_result() {
        let choice = choice(100_000, true, || 0);
        let mut way = Way::default();
        // Bursts of 20, which is less than a comparison takes.
        let transfers = (0..1000).map(|_| {
            PASSED.set(PASSED.get() + 2 * PAUSE.as_nanos() as u64);
            converse(&mut way, &choice, 20, [1000, 10])
        });
        assert!(transfers.sum::<u32>() <= 20_000 / SETTLED);
        converse(&mut way, &choice, 2 * (SETTLED + 1) * COMPARISON, [1000, 10]);
        let slow = 2 * PAUSE.as_nanos() as u64;
        assert!(converse(&mut way, &choice, 10_000, [slow, slow]) > 9_900);
        way.is_transfer(&Choice { is_idle: false, ..choice });
        assert!(converse(&mut way, &choice, STREAM, [1000, 10]) == 0 && converse(&mut way, &choice, 1000, [1000, 10]) > 900);
    }
}
