//! The ways in which a producer writes payloads of some KiB.
//!
//! Which way is the fastest depends on the processors, and on their distance:
//!
//! - In **short laps** the producer begins anew long before the end of the data ring. A conversation then uses a few KiB again and again,
//!   which stay in the first-level caches of both processors. There, short pieces are fast, too.
//! - In **whole laps**, and in one piece, it writes into lines that the other side's first-level cache no longer holds. In a stream, whose
//!   consumer lags behind, the pieces would be work for nothing.
//! - An **owned** payload of 8 KiB or more goes into whole laps, too, by a loop that requests lines for writing ahead. From distant
//!   processors each line makes a long journey, and more of them are on their way at once. Shorter ones go as in whole laps.
//! - A **streamed** payload goes past its caches to memory. This is the fastest way between processors that share no cache, where
//!   each line would make two journeys.
//!
//! So the producer tries all of them now and then, and compares the times between its messages.

use super::{PIECE_LEAST, data_room};
use doorbell_fabric::copies::Copying;

/// The bytes that a short lap uses: an eighth of a small first-level cache, which also holds both sides' own buffers.
pub(super) const SHORT: u64 = if cfg!(loom) { 64 } else { 4 << 10 };

/// The shortest payload for which the ways differ. Streams of shorter ones lose more by reports than conversations gain.
pub(super) const LEAST: usize = if cfg!(loom) { 64 } else { 2 << 10 };

/// The shortest payload that is written by a loop that requests lines ahead. Of a shorter one, most lines were requested when the message
/// before it was sent.
const OWNED_LEAST: usize = 8 << 10;

/// The number of messages until the next comparison, for each message of the last one: `UNSETTLED` after the first comparison, which finds
/// caches cold, and four times as many after each further one, up to `SETTLED`. Then less than one message in a hundred goes a slower way, and
/// the producer still finds out that a process has moved to another processor. The numbers do not depend on what was found, so that the two
/// lanes of a conversation compare at the same time.
const UNSETTLED: u32 = 4;
const SETTLED: u32 = 100;

/// The first bytes of a phase do not count, because the lines that they use are still where another way left them. Of short messages,
/// [`WARM_MOST`] do not count. In a stream, many messages wait in the ring when a phase begins. The consumer first reads those, so as many
/// bytes do not count, either.
const WARM: u64 = 64 << 10;
const WARM_MOST: u32 = 6;

/// The ring may fill during a phase. Then its time only shows how fast the producer writes, so the phase begins again, at most this
/// number of times: an application may send in bursts for ever.
const AGAIN_MOST: u8 = 3;

/// The first messages of a comparison belong to no phase. The consumer has not yet reported the messages before them, so the backlog is not
/// known.
const LEAD: u32 = 4;

/// The messages of a phase that count: at least this number, or two if they are long. In a stream, a phase also counts at least twice the
/// bytes that waited when it began.
const COUNTED: u32 = 8;
const COUNTED_BYTES: u64 = 1 << 20;

/// The phases of a comparison, which use the ways in turn. In a conversation the lane back counts as many messages, so both lanes are
/// in the same phase, and see the difference of both.
const PHASES: usize = 2 * Way::ALL.len();

/// A way to write payloads of some KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Short,
    Whole,
    Owned,
    Streamed,
}

impl Way {
    /// In order of preference: a later way is chosen only if it is clearly faster.
    const ALL: [Self; 4] = [Self::Short, Self::Whole, Self::Owned, Self::Streamed];
}

/// The way of one producer.
#[derive(Debug)]
pub(super) struct Ways {
    /// The offset behind which the next lap is due: the largest number where laps are whole.
    due: u64,
    /// The number of messages until something has to be done.
    left: u32,
    way: Way,
    /// The number of messages until the next comparison, for each message of the last one.
    settled: u32,
    /// The phase of a comparison, or [`PHASES`] between two.
    phase: usize,
    /// Messages of this comparison.
    compared: u32,
    /// Messages of this phase, and their bytes. Once it is warm, only those that count.
    sent: u32,
    bytes: u64,
    /// The bytes that waited in the ring when the phase began, or 0 for up to two messages.
    backlog: u64,
    /// How often this phase began again.
    again: u8,
    /// The time, in ticks, since which messages of this phase count.
    since: Option<u64>,
    /// The shortest time of each way: for 64 KiB, in ticks.
    times: [u64; Way::ALL.len()],
}

impl Ways {
    /// Those into a ring of that many bytes.
    pub fn of(bytes: u64) -> Self {
        let ways = Self {
            due: u64::MAX,
            left: 0,
            way: Way::Whole,
            settled: 0,
            phase: PHASES,
            compared: 0,
            sent: 0,
            bytes: 0,
            backlog: 0,
            again: 0,
            since: None,
            times: [0; Way::ALL.len()],
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

    /// How a payload of this length is copied, or its pieces.
    #[inline(always)]
    pub fn copying(&self, len: usize) -> Copying {
        match self.way {
            Way::Short if len >= LEAST => Copying::Loop,
            Way::Owned if len >= OWNED_LEAST => Copying::Owned,
            Way::Streamed if len >= LEAST => Copying::Streamed,
            _ => Copying::Library,
        }
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
    /// again soon. A lap grows long where the consumer lags behind, and reports would only wake the producer too often. During a comparison
    /// the producer has to know how far the consumer lags behind.
    #[inline(always)]
    pub fn wants_report(&self, in_bulk: bool, place: u64, len: usize) -> bool {
        let in_short_lap = || !in_bulk && self.way == Way::Short && place <= (2 * SHORT).max(len as u64);
        len >= LEAST && (self.phase != PHASES || in_short_lap())
    }

    /// The length of the pieces in which a payload of [`PIECES_LEAST`](super::PIECES_LEAST) bytes or more is written, or its own.
    #[inline]
    pub fn piece_bytes(&self, len: usize) -> usize {
        match self.way {
            Way::Short => PIECE_LEAST,
            // For a consumer that lags behind, pieces would only be more work. After a streamed piece, the producer would wait for memory.
            Way::Whole | Way::Owned | Way::Streamed => len,
        }
    }

    /// The most bytes whose lines are worth owning ahead: about as many as arrive while a reply is under way.
    #[inline(always)]
    pub fn own_ahead_most(&self) -> usize {
        if self.way == Way::Short { 2048 } else { 4096 }
    }

    /// Counts a message of `len` bytes. True if it is to be [compared](Self::compare).
    #[inline(always)]
    #[must_use]
    pub fn count(&mut self, len: usize) -> bool {
        if len < LEAST || self.left == 0 {
            return false;
        }
        self.left -= 1;
        self.left == 0
    }

    /// Whether [`compare`](Self::compare) needs to know the backlog, because with this message a phase begins or may end.
    pub fn needs_backlog(&self, len: usize) -> bool {
        self.begins_phase() || (self.since.is_some() && self.is_enough(self.sent + 1, self.bytes + len as u64))
    }

    fn begins_phase(&self) -> bool {
        self.sent == 0 && self.since.is_none() && self.compared >= LEAD && self.phase != PHASES
    }

    /// Whether so many messages that count are enough.
    fn is_enough(&self, sent: u32, bytes: u64) -> bool {
        (sent >= COUNTED || (sent >= 2 && bytes >= COUNTED_BYTES)) && bytes >= 2 * self.backlog
    }

    /// Takes a message into account that was sent `now`. `backlog`: the bytes that wait in the ring, or 0 for up to two messages.
    pub fn compare(&mut self, len: usize, backlog: u64, now: u64) {
        self.left = 1;
        if self.phase == PHASES {
            (self.phase, self.compared, self.times) = (0, 0, [u64::MAX; Way::ALL.len()]);
            return self.choose(Way::ALL[0]);
        }
        if self.compared < LEAD {
            self.compared += 1;
            return;
        }
        if self.begins_phase() {
            self.backlog = backlog;
        }
        (self.compared, self.sent, self.bytes) = (self.compared.saturating_add(1), self.sent + 1, self.bytes + len as u64);
        let Some(since) = self.since else {
            if self.bytes >= WARM.max(self.backlog) || (self.backlog == 0 && self.sent >= WARM_MOST) {
                (self.sent, self.bytes, self.since) = (0, 0, Some(now));
            }
            return;
        };
        if !self.is_enough(self.sent, self.bytes) {
            return;
        }
        if backlog > 2 * self.backlog && self.again < AGAIN_MOST {
            (self.sent, self.bytes, self.since) = (0, 0, None);
            self.again += 1;
            return;
        }
        // Not if this processor's clock is behind that of the one before.
        if let Some(time @ 1..) = now.checked_sub(since) {
            // The shortest time: now and then a message waits for something else.
            let least = &mut self.times[self.phase % Way::ALL.len()];
            *least = (*least).min(time.saturating_mul(64 << 10) / self.bytes);
        }
        self.phase += 1;
        if self.phase < PHASES {
            return self.choose(Way::ALL[self.phase % Way::ALL.len()]);
        }
        let least = self.times.into_iter().min().unwrap_or(0);
        // A smaller difference may be chance.
        let best = self.times.into_iter().position(|time| time <= least.saturating_add(least / 16)).unwrap_or(0);
        self.settled = (4 * self.settled).clamp(UNSETTLED, SETTLED);
        self.left = self.compared.saturating_mul(self.settled);
        self.choose(Way::ALL[best]);
    }

    fn choose(&mut self, way: Way) {
        (self.way, self.sent, self.bytes, self.again, self.since) = (way, 0, 0, 0, None);
        self.due = if way == Way::Short { SHORT } else { u64::MAX };
    }

    /// Short laps without comparisons.
    #[cfg(all(test, not(loom)))]
    pub fn always_short() -> Self {
        Self { left: 0, ..Self::of(4 * SHORT) }
    }

    /// Streamed payloads, and owned ones, without comparisons.
    #[cfg(all(test, not(loom)))]
    pub fn always_streamed_and_owned() -> [Self; 2] {
        [Way::Streamed, Way::Owned].map(|way| Self { way, ..Self::of(0) })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const BYTES: u64 = 4 * SHORT;

    /// Sends messages until a comparison is over, each of which takes a time that depends on the way. Returns how many.
    fn compare(ways: &mut Ways, backlog: u64, mut time: impl FnMut(Way, u32) -> u64) -> u32 {
        let mut now = 0;
        for sent in 0.. {
            let was_settled = ways.phase == PHASES;
            now += time(ways.way, sent);
            if ways.count(LEAST) {
                ways.compare(LEAST, backlog, now);
            }
            if !was_settled && ways.phase == PHASES {
                return sent;
            }
        }
        0
    }

    #[test]
    fn the_fastest_way_is_found_and_found_again() {
        let mut ways = Ways::of(BYTES);
        let sent = compare(&mut ways, 0, |way, _| [100, 130, 160, 150][way as usize]);
        assert!(ways.way == Way::Short && sent <= PHASES as u32 * (WARM_MOST + COUNTED) + LEAD + 1, "{sent}");
        // Comparisons become rarer.
        for times in [UNSETTLED, 4 * UNSETTLED, 16 * UNSETTLED, SETTLED, SETTLED] {
            let sent = compare(&mut ways, 0, |way, _| [100, 130, 160, 150][way as usize]);
            let (least, most) =
                (times * PHASES as u32 * COUNTED, (times + 1) * (PHASES as u32 * (WARM_MOST + COUNTED) + LEAD + 1));
            assert!(ways.way == Way::Short && (least..=most).contains(&sent), "{sent} after {times}");
        }
        let sent = compare(&mut ways, 0, |way, _| [130, 100, 160, 150][way as usize]);
        assert!(ways.way == Way::Whole && sent >= SETTLED * PHASES as u32 * COUNTED, "{sent}");
        assert!(
            !ways.is_due(1 << 40, 1 << 14) && ways.copying(1 << 14) == Copying::Library && ways.piece_bytes(1 << 14) == 1 << 14
        );
        compare(&mut ways, 0, |way, _| [200, 180, 160, 100][way as usize]);
        assert!(ways.copying(LEAST) == Copying::Streamed && ways.copying(LEAST - 1) == Copying::Library);
        assert!(!ways.is_due(1 << 40, 1 << 14));
        compare(&mut ways, 0, |way, _| [200, 180, 100, 160][way as usize]);
        assert!(ways.copying(OWNED_LEAST) == Copying::Owned && ways.copying(OWNED_LEAST - 1) == Copying::Library);
        assert!(!ways.is_due(1 << 40, 1 << 14) && ways.piece_bytes(1 << 14) == 1 << 14);
        compare(&mut ways, 0, |way, _| [90, 100, 110, 85][way as usize]);
        assert!(ways.way == Way::Short && ways.is_due(64, 1 << 14));
    }

    #[test]
    fn a_message_that_waits_for_long_does_not_count() {
        let mut ways = Ways::of(BYTES);
        compare(&mut ways, 0, |way, sent| if sent == 10 && way == Way::Short { 1 << 30 } else { 100 + 10 * way as u64 });
        assert!(ways.way == Way::Short);
    }

    /// Each message waits until the one that was written 100 messages before is read, which takes a time that depends on the way.
    #[test]
    fn the_fastest_way_is_found_in_a_stream_that_fills_the_ring() {
        let (mut ways, mut waiting) = (Ways::of(BYTES), std::collections::VecDeque::from([Way::Short; 100]));
        let mut time = |way, sent: u32| {
            waiting.push_back(way);
            let read = waiting.pop_front().unwrap() as usize;
            // The consumer tells its progress for 25 messages together.
            if sent.is_multiple_of(25) { 25 * [200, 180, 160, 100][read] } else { 1 }
        };
        compare(&mut ways, 100 * LEAST as u64, &mut time);
        assert!(ways.way == Way::Streamed, "{ways:?}");
    }

    /// A ring of 32 messages, which is empty at first. The producer writes one way faster than its consumer reads what came this way.
    #[test]
    #[cfg_attr(miri, ignore = "too slow")]
    fn a_way_that_only_fills_the_ring_faster_is_not_chosen() {
        const WRITE: [u64; 4] = [110, 100, 110, 60];
        const READ: [u64; 4] = [80, 80, 80, 150];
        let mut ways = Ways::of(BYTES);
        // When the consumer is done with each message that may still be in the ring.
        let (mut now, mut done, mut read, mut checks) = (0, std::collections::VecDeque::new(), 0, 0);
        for sent in 0..20_000 {
            if sent > 10_000 && ways.phase == PHASES {
                assert_eq!(ways.way, Way::Whole);
                checks += 1;
            }
            if done.len() == 32 {
                now = now.max(done.pop_front().unwrap());
            }
            now += WRITE[ways.way as usize];
            read = now.max(read) + READ[ways.way as usize];
            done.push_back(read);
            if ways.count(LEAST) {
                done.retain(|done| *done > now);
                let backlog = if done.len() > 2 { (done.len() * LEAST) as u64 } else { 0 };
                ways.compare(LEAST, backlog, now);
            }
        }
        assert!(checks > 5000, "{checks}");
    }

    /// The ring is empty at the beginning of each phase, and full at its end.
    #[test]
    fn a_comparison_ends_even_if_an_application_sends_in_bursts() {
        let (mut ways, mut now) = (Ways::of(BYTES), 0);
        let mut sent = 0;
        while ways.settled == 0 {
            (now, sent) = (now + 100, sent + 1);
            if ways.count(LEAST) {
                ways.compare(LEAST, if ways.begins_phase() { 0 } else { 1 << 20 }, now);
            }
            assert!(sent <= PHASES as u32 * (u32::from(AGAIN_MOST) + 1) * (WARM_MOST + COUNTED) + 2 * LEAD);
        }
    }

    #[test]
    fn long_messages_are_not_compared_for_long() {
        let (mut ways, mut now) = (Ways::of(BYTES), 0);
        for len in [1 << 20, 1 << 31, 1 << 40] {
            let mut sent = 0;
            while ways.phase != PHASES || ways.left < UNSETTLED {
                now += 1000 * (1 + ways.way as u64);
                sent += 1;
                if ways.count(len) {
                    ways.compare(len, 0, now);
                }
            }
            assert!(sent <= 3 * PHASES + LEAD as usize + 1 && ways.way == Way::Short, "{sent} {ways:?}");
            ways.left = 1;
        }
    }

    #[test]
    fn a_small_ring_and_short_payloads_have_nothing_to_compare() {
        let mut ways = Ways::of(BYTES - 1);
        for _ in 0..3 {
            assert!(!ways.count(LEAST));
        }
        assert!(!ways.is_due(1 << 40, LEAST));
        assert!(!Ways::of(BYTES).count(LEAST - 1));
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
