//! The ways in which a producer writes payloads of some KiB.
//!
//! Which way is the fastest depends on the processors, and on their distance:
//!
//! - In **short laps** the producer begins anew long before the end of the data ring. A conversation then uses a few KiB again and again,
//!   which stay in the first-level caches of both processors. There, short pieces are fast, too.
//! - In **whole laps** it writes into lines that the other side's first-level cache no longer holds.
//! - A **streamed** payload goes past its caches to memory. This is the fastest way between processors that share no cache, where
//!   each line would make two journeys.
//!
//! So the producer tries all of them now and then, and compares the times between its messages.

use super::{PIECE_LEAST, PIECES_LEAST, data_room};

/// The bytes that a short lap uses: a quarter of a small first-level cache, which also holds both sides' own buffers.
pub(super) const SHORT: u64 = if cfg!(loom) { 64 } else { 8 << 10 };

/// A payload of this length has pieces of [`PIECE_LONG`] bytes. A shorter one has shorter pieces, or in whole laps none.
const LONG: usize = if cfg!(loom) { PIECES_LEAST } else { 8 << 10 };
const PIECE_LONG: usize = if cfg!(loom) { 64 } else { 2 << 10 };

/// The shortest payload for which the ways differ. Streams of shorter ones lose more by reports than conversations gain.
pub(super) const LEAST: usize = if cfg!(loom) { 64 } else { 2 << 10 };

/// Messages between two comparisons: fewer if each has more than [`SETTLED_LESS`] bytes. A comparison uses the slower ways for one in a
/// hundred, and soon finds that the operating system has moved a process to another processor.
const SETTLED: u32 = 8 << 10;
const SETTLED_LESS: usize = 256 << 10;

/// The first messages of a phase do not count, because the lines that they use are still where another way left them: those within so
/// many bytes, but at most [`WARM_MOST`].
const WARM: usize = 64 << 10;
const WARM_MOST: usize = 6;

/// The messages of a phase that count.
const COUNTED: usize = 5;

/// The phases of a comparison, which use the ways in turn. In a conversation the lane back counts as many messages, so both lanes are
/// in the same phase, and see the difference of both.
const PHASES: usize = 2 * Way::ALL.len();

/// A way to write payloads of some KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Short,
    Whole,
    Streamed,
}

impl Way {
    /// The first of them leave the most of the caches to the program.
    const ALL: [Self; 3] = [Self::Short, Self::Whole, Self::Streamed];
}

/// The way of one producer.
#[derive(Debug)]
pub(super) struct Ways {
    /// The offset behind which the next lap is due: the largest number where laps are whole.
    due: u64,
    /// The number of messages until something has to be done.
    left: u32,
    way: Way,
    /// The phase of a comparison, or [`PHASES`] between two.
    phase: usize,
    /// Messages of this phase.
    sent: usize,
    /// The time of the last message, in ticks.
    sent_at: u64,
    times: [u64; COUNTED],
    /// The times of each way.
    sums: [u64; Way::ALL.len()],
}

impl Ways {
    /// Those into a ring of that many bytes.
    pub fn of(bytes: u64) -> Self {
        let ways = Self {
            due: u64::MAX,
            left: 0,
            way: Way::Whole,
            phase: PHASES,
            sent: 0,
            sent_at: 0,
            times: [0; COUNTED],
            sums: [0; Way::ALL.len()],
        };
        // A small ring has no shorter laps, and few payloads for which it matters.
        if bytes < 4 * SHORT { ways } else { Self { due: SHORT, left: 1, way: Way::Short, ..ways } }
    }

    /// Whether the next `len` bytes should begin a lap, where this one has come to `end`.
    #[inline(always)]
    pub fn is_due(&self, end: u64, len: usize) -> bool {
        len >= LEAST && end > 0 && end + len as u64 > self.due
    }

    /// Whether the producer should wait a little for the consumer where a lap is due and cannot begin. It should not where the lap has
    /// only one message, which the consumer reads now: the next one then lies behind it.
    pub fn is_patient(&self, end: u64, len: usize) -> bool {
        end > data_room(len)
    }

    /// Whether the consumer's progress in a payload shows where its next pieces lie.
    pub fn has_window(&self) -> bool {
        self.way == Way::Short
    }

    /// Whether a payload of this length is streamed.
    #[inline(always)]
    pub fn streams(&self, len: usize) -> bool {
        len >= LEAST && self.way == Way::Streamed
    }

    /// Records that a lap began.
    #[inline]
    pub fn began(&mut self) {
        if self.way == Way::Short {
            self.due = SHORT;
        }
    }

    /// Records that no lap could begin when one was due: the consumer lags behind. The longer the lap is by now, the later the next
    /// attempt, since each reads a line that the consumer writes.
    pub fn could_not_begin(&mut self, end: u64) {
        self.due = end + end.max(SHORT) / 4;
    }

    /// Whether the consumer should report at once that it has read `len` bytes at this place: in a short lap they are needed
    /// again soon. A lap grows long where the consumer lags behind, and reports would only wake the producer too often.
    #[inline(always)]
    pub fn wants_report(&self, place: u64, len: usize) -> bool {
        len >= LEAST && self.way == Way::Short && place <= (2 * SHORT).max(len as u64)
    }

    /// The length of the pieces in which a payload of [`PIECES_LEAST`] bytes or more is written, or its own.
    #[inline]
    pub fn piece_bytes(&self, len: usize) -> usize {
        match self.way {
            Way::Short if len < LONG => PIECE_LEAST,
            Way::Short => PIECE_LONG,
            Way::Whole if len < LONG => len,
            // The journeys of the cell cost more here.
            Way::Whole => (len / 8).next_multiple_of(64).max(PIECE_LONG),
            // After each piece, the producer would wait until memory has it.
            Way::Streamed => len,
        }
    }

    /// The most bytes whose lines are worth owning ahead: about as many as arrive while a reply is under way.
    #[inline(always)]
    pub fn own_ahead_most(&self) -> usize {
        if self.way == Way::Short { 2048 } else { 4096 }
    }

    /// Counts a message of `len` bytes. `ticks` tells the time.
    #[inline(always)]
    pub fn count(&mut self, len: usize, ticks: impl FnOnce() -> u64) {
        if len >= LEAST && self.left > 0 {
            self.left -= 1;
            if self.left == 0 {
                self.compare(len, ticks());
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn compare(&mut self, len: usize, now: u64) {
        self.left = 1;
        // The clocks of two processors may differ.
        let time = now.saturating_sub(std::mem::replace(&mut self.sent_at, now));
        if self.phase == PHASES {
            (self.phase, self.sums) = (0, [0; Way::ALL.len()]);
            self.choose(Way::ALL[0]);
            return;
        }
        let warm = (WARM / len).clamp(1, WARM_MOST);
        if let Some(at) = self.sent.checked_sub(warm).filter(|at| *at < COUNTED) {
            self.times[at] = time;
        }
        self.sent += 1;
        if self.sent < warm + COUNTED {
            return;
        }
        // The median: now and then a message waits for something else.
        self.times.sort_unstable();
        let sum = &mut self.sums[self.phase % Way::ALL.len()];
        *sum = sum.saturating_add(self.times[COUNTED / 2]);
        self.phase += 1;
        if self.phase < PHASES {
            return self.choose(Way::ALL[self.phase % Way::ALL.len()]);
        }
        // Of long messages, fewer come in the time for which a distance stays.
        self.left = SETTLED / (1 + len / SETTLED_LESS) as u32;
        let least = self.sums.into_iter().min().unwrap_or(0);
        // A smaller difference may be chance.
        let best = self.sums.into_iter().position(|sum| sum <= least.saturating_add(least / 16)).unwrap_or(0);
        self.choose(Way::ALL[best]);
    }

    fn choose(&mut self, way: Way) {
        (self.way, self.sent) = (way, 0);
        self.due = if way == Way::Short { SHORT } else { u64::MAX };
    }

    /// Short laps without comparisons.
    #[cfg(all(test, not(loom)))]
    pub fn always_short() -> Self {
        Self { left: 0, ..Self::of(4 * SHORT) }
    }

    /// Streamed payloads without comparisons.
    #[cfg(all(test, not(loom)))]
    pub fn always_streamed() -> Self {
        Self { way: Way::Streamed, ..Self::of(0) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const BYTES: u64 = 4 * SHORT;

    /// Sends messages until a comparison is over, each of which takes a time that depends on the way. Returns how many.
    fn compare(ways: &mut Ways, mut time: impl FnMut(Way, u32) -> u64) -> u32 {
        let mut now = 0;
        for sent in 0.. {
            let was_settled = ways.phase == PHASES;
            now += time(ways.way, sent);
            ways.count(LEAST, || now);
            if !was_settled && ways.phase == PHASES {
                return sent;
            }
        }
        0
    }

    #[test]
    fn the_fastest_way_is_found_and_found_again() {
        let mut ways = Ways::of(BYTES);
        let sent = compare(&mut ways, |way, _| [100, 130, 150][way as usize]);
        assert!(ways.way == Way::Short && sent <= (PHASES * (WARM_MOST + COUNTED)) as u32 + 1, "{sent}");
        let sent = compare(&mut ways, |way, _| [130, 100, 150][way as usize]);
        assert!(ways.way == Way::Whole && sent >= SETTLED, "{sent}");
        assert!(!ways.is_due(1 << 40, 1 << 14) && !ways.streams(1 << 14));
        compare(&mut ways, |way, _| [200, 180, 100][way as usize]);
        assert!(ways.streams(LEAST) && !ways.streams(LEAST - 1) && !ways.is_due(1 << 40, 1 << 14));
        compare(&mut ways, |way, _| [90, 100, 85][way as usize]);
        assert!(ways.way == Way::Short && ways.is_due(64, 1 << 14));
    }

    #[test]
    fn a_message_that_waits_for_long_does_not_count() {
        let mut ways = Ways::of(BYTES);
        compare(&mut ways, |way, sent| if sent % 5 == 0 && way == Way::Short { 1 << 30 } else { 100 + way as u64 });
        assert!(ways.way == Way::Short);
    }

    #[test]
    fn a_small_ring_and_short_payloads_have_nothing_to_compare() {
        let mut ways = Ways::of(BYTES - 1);
        for _ in 0..3 * SETTLED {
            ways.count(LEAST, || unreachable!());
        }
        assert!(!ways.is_due(1 << 40, LEAST));
        Ways::of(BYTES).count(LEAST - 1, || unreachable!());
    }

    #[test]
    fn attempts_become_rarer_while_the_consumer_lags() {
        let (mut ways, mut attempts) = (Ways::of(1 << 18), 0);
        for end in (0..1 << 18).step_by(LEAST) {
            if ways.is_due(end, LEAST) {
                ways.could_not_begin(end);
                attempts += 1;
            }
        }
        assert!((3..=24).contains(&attempts), "{attempts}");
    }
}
