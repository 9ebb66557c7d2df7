//! Through a lane or by a transfer: which is faster for a message.
//!
//! Through a lane, both processors copy every byte at the same time. Their loops keep many cache lines in flight, and one reads
//! what the other has just written, so it is still in a cache. The lane is therefore faster for a stream of messages, and mostly
//! for messages that were just written and are read at once. By a transfer, every byte is copied once, by the kernel if it lies in
//! private memory. That is faster where a buffer is written or read less often than it is sent, because it then stays in the caches of
//! both processors.
//!
//! So a sender tries both now and then for messages that go back and forth, and compares the times between its messages. Until there is a
//! clear result, it takes the *usual* way. For private memory from 1 MiB on, the usual way depends on the kernel's toll, which is [measured].
//! Regions have no toll.
//!
//! [measured]: doorbell_shm::cma::toll

use super::{ALONE_MOST, IN_REGION_LEAST, RENDEZVOUS_BYTES};
use std::time::{Duration, Instant};

/// Picoseconds a byte that a lane takes between processors that share a cache. Where a lane takes longer, so does the kernel.
const LANE: u64 = 60;
/// From this length on, the kernel is the usual way of a message that is alone, if its toll is low.
pub(crate) const KERNEL_LEAST: usize = 1 << 20;
/// After several messages at once, this many take the usual way even if they come alone: alternating is slower than either way.
const STREAM: u32 = 64;
/// The most messages that follow one through the lane unasked: then asking takes little of their time.
pub(crate) const STREAK: u32 = 16;
/// One of this many messages that would take the lane goes by the kernel, since the target may permit a put by now.
const ASK_AGAIN: u32 = 64;

/// The lengths whose ways are compared, in powers of two. The last class has no end.
const CLASSES: usize = (CLASS_LAST.ilog2() - IN_REGION_LEAST.ilog2()) as usize + 1;
const CLASS_LAST: usize = 4 << 20;
/// The phases of a comparison, which use the ways in turn. The other end of a conversation counts as many messages, so both are in the same
/// phase.
const PHASES: u32 = 4;
/// The messages until the second comparison, for each message of the first one. Later there are four times as many each time...
const UNSETTLED: u32 = 4;
/// ...up to this number. Then at most one message in two hundred goes the slower way.
const SETTLED: u32 = 100;
/// After a pause longer than this, and a nanosecond for each byte, the messages are no conversation in which times could be compared.
const PAUSE: Duration = Duration::from_millis(1);

/// The numbers of messages in a comparison.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Messages until the first comparison. By then the lane has compared its own ways of copying.
    first: u32,
    /// Messages of a phase that do not count: they find lines where the other way left them.
    warm: u32,
    /// Messages of a phase that count.
    counted: u32,
}

impl Pace {
    /// The pace of short messages.
    const SHORT: Self = Self { first: 200, warm: 10, counted: 10 };
    /// The pace of long ones. A few of them fill all caches.
    const LONG: Self = Self { first: 40, warm: 2, counted: 4 };

    fn of(len: usize) -> Self {
        if len < KERNEL_LEAST { Self::SHORT } else { Self::LONG }
    }

    /// The messages of a phase.
    fn phase(&self) -> u32 {
        self.warm + self.counted
    }
}

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
        let Choice { in_region, len, is_idle, compares, now, .. } = *choice;
        let usual = in_region && len >= RENDEZVOUS_BYTES;
        // Both ends copy a longer message in a region, which the lane has no chance to beat. A shorter private one never is a transfer.
        let can_compare = if in_region { len <= ALONE_MOST as usize } else { len >= RENDEZVOUS_BYTES };
        let compared = &mut self.compared[usize::from(in_region)][Self::class(in_region, len)];
        if !is_idle {
            self.stream = STREAM;
            compared.interrupt(Pace::of(len));
            return usual;
        }
        if self.stream > 0 {
            self.stream -= 1;
            return usual;
        }
        if !(compares && can_compare) {
            return usual || self.is_usually_kernel(choice);
        }
        match compared.is_transfer(len, now()) {
            Some(is_transfer) => is_transfer,
            None => usual || self.is_usually_kernel(choice),
        }
    }

    /// The number of private messages of about `len` bytes that may follow without a call of [`is_transfer`](Self::is_transfer), which would
    /// say no. Those that did are to be [counted](Self::count).
    pub fn streak(&mut self, len: usize) -> u32 {
        self.streak_left(len).map_or(0, |left| STREAK.min(*left))
    }

    /// Counts messages of a streak as if `is_transfer` had been called for each.
    pub fn count(&mut self, len: usize, messages: u32) {
        if let Some(left) = self.streak_left(len) {
            *left = left.saturating_sub(messages);
        }
    }

    /// What counts messages of a streak, if there can be one.
    fn streak_left(&mut self, len: usize) -> Option<&mut u32> {
        if self.stream > 0 {
            return Some(&mut self.stream);
        }
        let compared = &mut self.compared[0][Self::class(false, len)];
        compared.left.as_mut().filter(|_| compared.is_transfer != Some(true))
    }

    /// The class of a length. A power of two is the longest of its class in a region, where the usual way changes above 32 KiB, and the
    /// shortest of its class in private memory, where it changes at 1 MiB.
    fn class(in_region: bool, len: usize) -> usize {
        let bits = |len: usize| if in_region { (len - 1).ilog2() } else { len.ilog2() };
        let class = (bits(len.max(IN_REGION_LEAST)) - bits(IN_REGION_LEAST)) as usize;
        class.min(CLASSES - 1)
    }

    /// Whether a private message that is alone usually goes by the kernel, because its toll is low.
    fn is_usually_kernel(&mut self, choice: &Choice) -> bool {
        if choice.in_region || choice.len < KERNEL_LEAST {
            return false;
        }
        // If both sides copy halves: (lane + toll) / 2 against lane. If one side copies all: lane + toll, but the other
        // processor is free meanwhile.
        let (toll, most) = ((choice.toll)(), if self.refused { LANE / 2 } else { LANE });
        self.lane = self.lane.saturating_add(1);
        let is_kernel = toll <= most || (self.refused && toll <= LANE && self.lane >= ASK_AGAIN);
        if is_kernel {
            self.lane = 0;
        }
        is_kernel
    }
}

/// The comparison of the lane with a transfer.
#[derive(Clone, Copy, Debug, Default)]
struct Compared {
    /// The way that was faster, or `None` if there was no clear difference.
    is_transfer: Option<bool>,
    /// The number of messages until the next comparison, once it is known.
    left: Option<u32>,
    /// The same, for each message of the last comparison.
    settled: u32,
    /// The messages of this comparison.
    sent: u32,
    /// When the last message of it was sent.
    last: Option<Instant>,
    /// When the first message that counts in this phase was sent, and the bytes of those that count.
    since: Option<Instant>,
    bytes: u64,
    /// The shortest time of each way, in nanoseconds for a GiB, the lane first.
    times: [Option<u64>; 2],
}

impl Compared {
    /// Leaves everything as it is until the next comparison: this one has an end, or has become impossible.
    fn end(&mut self, pace: Pace) {
        self.settled = (4 * self.settled).clamp(UNSETTLED, SETTLED);
        self.left = Some(self.settled * PHASES * pace.phase());
        (self.sent, self.last, self.since, self.times) = (0, None, None, [None; 2]);
    }

    /// The messages are no conversation at present.
    fn interrupt(&mut self, pace: Pace) {
        if self.left == Some(0) {
            self.end(pace);
        }
    }

    /// Whether the next message is a transfer. `None`: it takes the usual way.
    fn is_transfer(&mut self, len: usize, now: Instant) -> Option<bool> {
        let pace = Pace::of(len);
        let left = self.left.get_or_insert(pace.first);
        if *left > 0 {
            *left -= 1;
            return self.is_transfer;
        }
        let pause = PAUSE + Duration::from_nanos(len as u64);
        if self.last.replace(now).is_some_and(|last| now.saturating_duration_since(last) > pause) {
            self.interrupt(pace);
            return self.is_transfer;
        }
        let phase = |sent: u32| sent / pace.phase();
        if self.sent.is_multiple_of(pace.phase())
            && let (Some(since), Some(before)) = (self.since.take(), phase(self.sent).checked_sub(1))
        {
            let time = now.saturating_duration_since(since).as_nanos() << 30;
            let time = u64::try_from(time / u128::from(self.bytes.max(1))).unwrap_or(u64::MAX);
            let shortest = &mut self.times[before as usize % 2];
            *shortest = Some(shortest.map_or(time, |shortest| shortest.min(time)));
        }
        if phase(self.sent) >= PHASES {
            // A smaller difference may be chance.
            self.is_transfer = match self.times {
                [Some(lane), Some(transfer)] if transfer < lane - lane / 16 => Some(true),
                [Some(lane), Some(transfer)] if lane < transfer - transfer / 16 => Some(false),
                _ => None,
            };
            self.end(pace);
            return self.is_transfer;
        }
        if self.sent % pace.phase() == pace.warm {
            (self.since, self.bytes) = (Some(now), 0);
        }
        self.bytes += len as u64;
        self.sent += 1;
        Some(phase(self.sent - 1) % 2 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const COMPARISON: u32 = PHASES * (Pace::SHORT.warm + Pace::SHORT.counted);

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
        let mut is_transfer =
            |toll: fn() -> u64| way.is_transfer(&Choice { compares: false, ..choice(KERNEL_LEAST, true, toll) });
        assert!(is_transfer(|| 30));
        assert_eq!((0..10 * ASK_AGAIN).filter(|_| is_transfer(|| 50)).count(), 10);
        assert!((0..10 * ASK_AGAIN).all(|_| !is_transfer(|| 120)));
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
            (false, KERNEL_LEAST),
            (false, 1 << 30),
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
    fn messages_that_follow_unasked_count_as_if_they_had_asked() {
        let choice = choice(64 << 10, true, || 0);
        // Two ways that are as fast, and a lane that is faster.
        for (times, most) in [([100, 100], STREAK), ([80, 100], STREAK), ([80, 100], 3), ([80, 100], 0)] {
            let (mut way, mut other) = (Way::default(), Way::default());
            let (mut unasked, mut followed) = (0, 0);
            for _ in 0..20_000 {
                let is_transfer = other.is_transfer(&choice);
                if unasked > 0 {
                    assert!(!is_transfer);
                    (unasked, followed) = (unasked - 1, followed + 1);
                } else {
                    way.count(choice.len, std::mem::take(&mut followed));
                    assert_eq!(way.is_transfer(&choice), is_transfer);
                    // Not all of them may come.
                    unasked = if is_transfer { 0 } else { way.streak(choice.len).min(most) };
                }
                PASSED.set(PASSED.get() + times[usize::from(is_transfer)]);
            }
        }
        let mut way = Way::default();
        assert!(!way.is_transfer(&Choice { is_idle: false, ..choice }));
        assert_eq!(way.streak(choice.len), STREAK);
        way.count(choice.len, STREAM);
        assert_eq!((way.stream, way.streak(choice.len)), (0, 0));
        way.compared[0][Way::class(false, choice.len)].left = Some(3);
        assert_eq!(way.streak(choice.len), 3);
        way.compared[0][Way::class(false, choice.len)].is_transfer = Some(true);
        assert_eq!(way.streak(choice.len), 0);
    }

    #[test]
    fn a_small_difference_changes_nothing() {
        for (in_region, len, times) in [(false, 100_000, [100, 97]), (true, 100_000, [97, 100]), (false, KERNEL_LEAST, [97, 100])]
        {
            let choice = Choice { in_region, ..choice(len, true, || 0) };
            let transfers = converse(&mut Way::default(), &choice, 1000, times);
            let other = if in_region || len == KERNEL_LEAST { 1000 - transfers } else { transfers };
            assert!(other <= 3 * COMPARISON / 2, "{choice:?}: {other}");
        }
    }

    /// Long messages are compared early, and a few of them are enough.
    #[test]
    fn a_few_long_messages_are_a_comparison() {
        let (mut way, choice) = (Way::default(), choice(KERNEL_LEAST, true, || 0));
        let ways: Vec<bool> = (0..70)
            .map(|_| {
                let is_transfer = way.is_transfer(&choice);
                PASSED.set(PASSED.get() + if is_transfer { 200 } else { 100 });
                is_transfer
            })
            .collect();
        assert!(ways[..40].iter().all(|is_transfer| *is_transfer));
        assert_eq!(ways[40..64].iter().filter(|is_transfer| **is_transfer).count(), 12);
        assert!(ways[64..].iter().all(|is_transfer| !is_transfer));
    }

    /// The time of a message counts by its length.
    #[test]
    fn messages_of_different_lengths_are_compared_fairly() {
        let mut way = Way::default();
        for number in 0..400_u64 {
            let len = 8 << (20 + number % 5);
            let is_transfer = way.is_transfer(&choice(len, true, || 0));
            PASSED.set(PASSED.get() + (len as u64 >> 10) * if is_transfer { 10 } else { 8 });
        }
        assert!(!(0..20).any(|_| way.is_transfer(&choice(64 << 20, true, || 0))));
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
