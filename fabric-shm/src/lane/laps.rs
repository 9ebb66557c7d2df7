//! How a producer uses the data ring: in whole laps or in short ones.
//!
//! A producer may begin a new lap before the end of the ring. A conversation then uses a few KiB again and again, which stay in the
//! first-level caches of both processors, and there shorter pieces are faster, too. On other processors all this is slower, because
//! they write faster into lines that the other side's cache no longer holds. So the producer tries both ways now and then, and
//! compares the times between its messages.

use super::{PIECE_LEAST, PIECES_LEAST, data_room};

/// The bytes that a short lap uses: a quarter of a small first-level cache, which also holds both sides' own buffers.
pub(super) const SHORT: u64 = if cfg!(loom) { 64 } else { 8 << 10 };

/// A payload of this length has pieces of [`PIECE_LONG`] bytes. A shorter one has shorter pieces, or in whole laps none.
const LONG: usize = if cfg!(loom) { PIECES_LEAST } else { 8 << 10 };
const PIECE_LONG: usize = if cfg!(loom) { 64 } else { 2 << 10 };

/// The shortest payload for which the laps matter. Streams of shorter ones lose more by reports than conversations gain.
pub(super) const LEAST: usize = if cfg!(loom) { 64 } else { 2 << 10 };

/// Messages between two comparisons. A comparison uses the slower way for less than one in a hundred.
const SETTLED: u32 = 16 << 10;

/// The first messages of a phase do not count, because the lines that they use are still where the other way left them.
const WARM: usize = 8;

/// The messages of a phase that count.
const COUNTED: usize = 15;

/// The phases of a comparison, which alternate between the two ways. In a conversation the lane back counts as many messages, so both
/// lanes are in the same phase, and see the difference of both.
const PHASES: u32 = 8;

/// The laps of one producer.
#[derive(Debug)]
pub(super) struct Laps {
    /// The offset behind which the next lap is due: the largest number where laps are whole.
    due: u64,
    /// The number of messages until something has to be done.
    left: u32,
    is_short: bool,
    /// The phase of a comparison, or [`PHASES`] between two.
    phase: u32,
    /// Messages of this phase.
    sent: usize,
    /// The time of the last message, in ticks.
    sent_at: u64,
    times: [u64; COUNTED],
    /// The times of whole laps and of short ones.
    sums: [u64; 2],
}

impl Laps {
    /// The laps of a ring of that many bytes.
    pub fn of(bytes: u64) -> Self {
        let laps = Self {
            due: u64::MAX,
            left: 0,
            is_short: false,
            phase: PHASES,
            sent: 0,
            sent_at: 0,
            times: [0; COUNTED],
            sums: [0; 2],
        };
        // A small ring has no shorter laps.
        if bytes < 4 * SHORT { laps } else { Self { due: SHORT, left: 1, is_short: true, ..laps } }
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
        self.is_short
    }

    /// Records that a lap began.
    #[inline]
    pub fn began(&mut self) {
        if self.is_short {
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
        len >= LEAST && self.is_short && place <= (2 * SHORT).max(len as u64)
    }

    /// The length of the pieces in which a payload of [`PIECES_LEAST`] bytes or more is written, or its own.
    #[inline]
    pub fn piece_bytes(&self, len: usize) -> usize {
        match self.is_short {
            true if len < LONG => PIECE_LEAST,
            true => PIECE_LONG,
            false if len < LONG => len,
            // The journeys of the cell cost more here.
            false => (len / 8).next_multiple_of(64).max(PIECE_LONG),
        }
    }

    /// The most bytes whose lines are worth owning ahead: about as many as arrive while a reply is under way.
    #[inline(always)]
    pub fn own_ahead_most(&self) -> usize {
        if self.is_short { 2048 } else { 4096 }
    }

    /// Counts a message of `len` bytes. `ticks` tells the time.
    #[inline(always)]
    pub fn count(&mut self, len: usize, ticks: impl FnOnce() -> u64) {
        if len >= LEAST && self.left > 0 {
            self.left -= 1;
            if self.left == 0 {
                self.compare(ticks());
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn compare(&mut self, now: u64) {
        self.left = 1;
        // The clocks of two processors may differ.
        let time = now.saturating_sub(std::mem::replace(&mut self.sent_at, now));
        if self.phase == PHASES {
            (self.phase, self.sent, self.sums) = (0, 0, [0; 2]);
            return;
        }
        if let Some(at) = self.sent.checked_sub(WARM) {
            self.times[at] = time;
        }
        self.sent += 1;
        if self.sent < WARM + COUNTED {
            return;
        }
        // The median: now and then a message waits for something else.
        self.times.sort_unstable();
        self.sums[usize::from(self.is_short)] = self.sums[usize::from(self.is_short)].saturating_add(self.times[COUNTED / 2]);
        (self.phase, self.sent) = (self.phase + 1, 0);
        if self.phase == PHASES {
            let [whole, short] = self.sums;
            self.left = SETTLED;
            // Short laps also leave more of the cache to the program. A smaller difference may be chance.
            self.choose(short <= whole + whole / 16);
        } else {
            self.choose(!self.is_short);
        }
    }

    fn choose(&mut self, is_short: bool) {
        self.is_short = is_short;
        self.due = if is_short { SHORT } else { u64::MAX };
    }

    /// Short laps without comparisons.
    #[cfg(all(test, not(loom)))]
    pub fn always_short() -> Self {
        Self { left: 0, ..Self::of(4 * SHORT) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const BYTES: u64 = 4 * SHORT;

    /// Sends messages until a comparison is over, each of which takes a time that depends on the way. Returns how many.
    fn compare(laps: &mut Laps, mut time: impl FnMut(bool, u32) -> u64) -> u32 {
        let mut now = 0;
        for sent in 0.. {
            let was_settled = laps.phase == PHASES;
            now += time(laps.is_short, sent);
            laps.count(LEAST, || now);
            if !was_settled && laps.phase == PHASES {
                return sent;
            }
        }
        0
    }

    #[test]
    fn the_faster_way_is_found_and_found_again() {
        let mut laps = Laps::of(BYTES);
        let sent = compare(&mut laps, |is_short, _| if is_short { 100 } else { 130 });
        assert!(laps.is_short && sent <= PHASES * (WARM + COUNTED) as u32 + 1, "{sent}");
        let sent = compare(&mut laps, |is_short, _| if is_short { 130 } else { 100 });
        assert!(!laps.is_short && sent >= SETTLED, "{sent}");
        assert!(!laps.is_due(1 << 40, 1 << 14));
        compare(&mut laps, |is_short, _| if is_short { 90 } else { 100 });
        assert!(laps.is_short && laps.is_due(64, 1 << 14));
    }

    #[test]
    fn a_message_that_waits_for_long_does_not_count() {
        let mut laps = Laps::of(BYTES);
        compare(&mut laps, |is_short, sent| if sent % 5 == 0 && is_short { 1 << 30 } else { 100 + u64::from(!is_short) });
        assert!(laps.is_short);
    }

    #[test]
    fn a_small_ring_and_short_payloads_have_nothing_to_compare() {
        let mut laps = Laps::of(BYTES - 1);
        for _ in 0..3 * SETTLED {
            laps.count(LEAST, || unreachable!());
        }
        assert!(!laps.is_due(1 << 40, LEAST));
        Laps::of(BYTES).count(LEAST - 1, || unreachable!());
    }

    #[test]
    fn attempts_become_rarer_while_the_consumer_lags() {
        let (mut laps, mut attempts) = (Laps::of(1 << 18), 0);
        for end in (0..1 << 18).step_by(LEAST) {
            if laps.is_due(end, LEAST) {
                laps.could_not_begin(end);
                attempts += 1;
            }
        }
        assert!((3..=24).contains(&attempts), "{attempts}");
    }
}
