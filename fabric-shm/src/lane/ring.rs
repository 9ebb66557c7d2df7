//! A ring of bytes, as its two ends see it.
//!
//! Each payload lies in one piece at an offset that the producer chooses. The consumer takes it wherever it lies, and reports how many
//! bytes it has read in all. So the producer alone knows which bytes are free. It fills the ring in **laps**, each from the ring's start
//! on, and may end a lap early. If it meets bytes of the lap before that are unread, it goes on behind them.

use super::data_room;
use doorbell_fabric::LinkDown;

/// The consumer reports its progress at least once for this many bytes.
const TOLD_WITHIN: u64 = 128 << 10;

/// The producer's side of a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filled {
    pub bytes: u64,
    /// The bytes that were written, in whole lines.
    pub tail: u64,
    /// How many of them were read, when the consumer's report was last seen.
    pub head_seen: u64,
    lap: Lap,
    /// The lap before.
    before: Lap,
    /// `tail` when this lap began.
    began: u64,
    /// The lap may go on up to this offset, as far as the consumer's report tells. So most payloads need one comparison.
    free: u64,
}

/// One way through a ring, from its start on. It has one gap at most: where it met the lap before.
#[derive(Clone, Copy, Debug, Default)]
struct Lap {
    /// Where it ends so far.
    end: u64,
    /// The bytes behind the gap.
    run: u64,
    /// Where the gap begins: 0 if there is none. `run` then counts from the ring's start.
    gap: u64,
}

impl Lap {
    /// Where its last `unread` bytes begin.
    #[inline(always)]
    fn unread_from(self, unread: u64) -> u64 {
        if unread <= self.run { self.end - unread } else { (self.gap + self.run).saturating_sub(unread) }
    }
}

impl Filled {
    pub fn new(bytes: usize) -> Self {
        let bytes = bytes as u64;
        Self { bytes, tail: 0, head_seen: 0, lap: Lap::default(), before: Lap::default(), began: 0, free: bytes }
    }

    /// Goes on in another ring, of that many bytes, which nobody uses.
    pub fn go_on_in(&mut self, bytes: usize) {
        let Self { tail, head_seen, .. } = *self;
        *self = Self { tail, head_seen, began: tail, ..Self::new(bytes) };
    }

    /// Where the lap ends so far.
    #[inline(always)]
    pub fn end(&self) -> u64 {
        self.lap.end
    }

    /// The offset up to which the lap may go on, as far as is known.
    #[inline(always)]
    pub fn free(&self) -> u64 {
        self.free
    }

    /// The offset for the next `len` bytes. `None` if there is no known room.
    #[inline(always)]
    pub fn place(&self, len: usize) -> Option<u64> {
        let end = self.lap.end;
        if end + data_room(len) <= self.free { Some(end) } else { self.other_place(len) }
    }

    /// The offset up to which the lap may go on: see `free`.
    fn limit(&self) -> u64 {
        let unread = self.began.saturating_sub(self.head_seen);
        if unread == 0 || self.lap.end >= self.before.end { self.bytes } else { self.before.unread_from(unread) }
    }

    #[cold]
    fn other_place(&self, len: usize) -> Option<u64> {
        let (room, end) = (data_room(len), self.lap.end);
        let unread = self.began.saturating_sub(self.head_seen);
        if unread == 0 {
            return self.next_lap_takes(len).then_some(0);
        }
        if end + room <= self.before.unread_from(unread) {
            return Some(end);
        }
        let behind = end.max(self.before.end);
        (behind + room <= self.bytes).then_some(behind)
    }

    /// Whether a lap can begin now with `len` bytes: the lap before is read, and so is what lies there.
    fn next_lap_takes(&self, len: usize) -> bool {
        let unread = self.tail - self.head_seen;
        let free = if unread == 0 { self.bytes } else { self.lap.unread_from(unread) };
        self.began <= self.head_seen && data_room(len) <= free
    }

    /// Whether the lap can end before the ring does, and the next begin with `len` bytes. At most `unread` bytes may be unread:
    /// where the consumer lags behind, the lap goes on.
    pub fn may_end_lap(&self, len: usize, unread: u64) -> bool {
        self.lap.end > 0 && self.tail - self.head_seen <= unread && self.next_lap_takes(len)
    }

    /// Records that `len` bytes were written at a [place](Self::place), or at the start of a lap.
    #[inline(always)]
    pub fn fill(&mut self, place: u64, len: usize) {
        let room = data_room(len);
        if place != self.lap.end {
            self.leave(place);
        }
        (self.lap.end, self.lap.run) = (place + room, self.lap.run + room);
        self.tail += room;
    }

    #[cold]
    fn leave(&mut self, place: u64) {
        if place == 0 {
            (self.before, self.began) = (self.lap, self.tail);
            self.lap = Lap::default();
        } else {
            self.lap = Lap { gap: self.lap.end, ..Lap::default() };
        }
        self.lap.end = place;
        self.free = self.limit();
    }

    /// Whether `len` bytes surely fit, in packets of `packet` bytes.
    pub fn fits(&self, len: usize, packet: usize) -> bool {
        if packet >= len {
            return self.place(len).is_some();
        }
        let (unread, end) = (self.began.saturating_sub(self.head_seen), self.lap.end);
        // The free bytes before and behind what is unread.
        let parts = if unread == 0 {
            [self.bytes - end, self.lap.unread_from(self.tail - self.head_seen)]
        } else if end < self.before.end {
            [self.before.unread_from(unread).saturating_sub(end), self.bytes - self.before.end]
        } else {
            [self.bytes - end, 0]
        };
        // An early end of the lap only changes which part is used first.
        let packets: u64 = parts.iter().map(|part| part / data_room(packet)).sum();
        packets >= len.div_ceil(packet) as u64
    }

    /// Takes the consumer's report. It is compared as a distance, so a forged one looks like a full or an empty ring at worst, or is
    /// detected.
    pub fn see(&mut self, head: u64) -> Result<(), LinkDown> {
        if head.wrapping_sub(self.head_seen) > self.tail - self.head_seen {
            return Err(LinkDown::Damaged);
        }
        self.head_seen = head;
        self.free = self.limit();
        Ok(())
    }
}

/// The consumer's side of a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drained {
    bytes: u64,
    /// The bytes after which a report is due.
    told_within: u64,
    /// The bytes that were read.
    pub head: u64,
    /// How many of them were reported.
    pub told: u64,
    /// The offset behind the last payload.
    end: u64,
}

impl Drained {
    pub fn new(bytes: usize) -> Self {
        let bytes = bytes as u64;
        Self { bytes, told_within: (bytes / 4).min(TOLD_WITHIN), head: 0, told: 0, end: 0 }
    }

    /// Goes on in another ring, of that many bytes.
    pub fn go_on_in(&mut self, bytes: usize) {
        let Self { head, told, .. } = *self;
        *self = Self { head, told, ..Self::new(bytes) };
    }

    /// The offset behind the last payload.
    #[inline(always)]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Where the next payload is likely to be.
    #[inline(always)]
    #[cfg_attr(loom, allow(dead_code))]
    pub fn expected(&self) -> u64 {
        self.end & (self.bytes - 1)
    }

    /// Whether `len` bytes at an offset, which another process wrote, lie in the ring.
    #[inline(always)]
    pub fn holds(&self, place: u64, len: usize) -> bool {
        place.is_multiple_of(64) && place <= self.bytes && len as u64 <= self.bytes - place
    }

    /// Records that `len` bytes at `place`, which the ring [holds](Self::holds), were read. Returns whether to report that to the
    /// producer: after a quarter of the ring (128 KiB of a large one), and after the first payload of a lap or behind a gap. Without
    /// these last two reports a producer could find no room in a ring that is read.
    #[inline(always)]
    pub fn take(&mut self, place: u64, len: usize) -> bool {
        let expected = std::mem::replace(&mut self.end, place + data_room(len));
        self.head += data_room(len);
        place != expected || self.head - self.told >= self.told_within
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const BYTES: usize = 64 << 10;

    /// Both ends, and what was written and not read: offsets, lengths, and whether it lies directly behind what was written before.
    struct Both {
        filled: Filled,
        drained: Drained,
        unread: VecDeque<(u64, usize, bool)>,
        /// The same in the ring before, once the producer has moved.
        old: VecDeque<(u64, usize, bool)>,
        has_moved: bool,
    }

    impl Both {
        fn new() -> Self {
            let (unread, old) = (VecDeque::new(), VecDeque::new());
            Self { filled: Filled::new(BYTES), drained: Drained::new(BYTES), unread, old, has_moved: false }
        }

        fn write(&mut self, len: usize, ends_lap: bool) -> bool {
            let early = ends_lap && self.filled.may_end_lap(len, u64::MAX);
            let place = if early { Some(0) } else { self.filled.place(len) };
            let Some(place) = place else { return false };
            assert!(self.drained.holds(place, len));
            for (other, bytes, _) in &self.unread {
                let overlaps = place < other + data_room(*bytes) && *other < place + data_room(len);
                assert!(!overlaps, "{len} bytes at {place}, and {bytes} unread ones at {other}");
            }
            let is_behind = place == self.filled.end() && place > 0;
            self.filled.fill(place, len);
            self.unread.push_back((place, len, is_behind));
            true
        }

        /// The consumer still reads the old ring, where nothing is written any more.
        fn go_on_in_another(&mut self) {
            if !std::mem::replace(&mut self.has_moved, true) {
                self.filled.go_on_in(BYTES);
                self.old = std::mem::take(&mut self.unread);
                self.follow();
            }
        }

        fn follow(&mut self) {
            if self.old.is_empty() {
                self.drained.go_on_in(BYTES);
            }
        }

        fn read(&mut self) {
            let (next, is_old) = match self.old.pop_front() {
                Some(next) => (Some(next), true),
                None => (self.unread.pop_front(), false),
            };
            if let Some((place, len, is_behind)) = next {
                // So a detached message needs no place.
                assert!(!is_behind || self.drained.end() == place, "{place} behind {}", self.drained.end());
                if self.drained.take(place, len) {
                    self.drained.told = self.drained.head;
                }
            }
            if is_old {
                self.follow();
            }
        }

        fn read_and_report(&mut self) {
            self.read();
            self.drained.told = self.drained.head;
        }

        fn go(&mut self, step: Step) {
            match step {
                Step::Write(len, ends_lap) => _ = self.write(len, ends_lap),
                Step::Read => self.read(),
                Step::ReadAndReport => self.read_and_report(),
                Step::Look => self.look(),
                Step::Move => self.go_on_in_another(),
            }
        }

        fn look(&mut self) {
            self.filled.see(self.drained.told).unwrap();
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write(usize, bool),
        Read,
        ReadAndReport,
        Look,
        Move,
    }

    fn step() -> impl Strategy<Value = Step> {
        let len = prop_oneof![4 => 1..3000_usize, 1 => 1..=BYTES / 4];
        prop_oneof![
            8 => (len, any::<bool>()).prop_map(|(len, ends_lap)| Step::Write(len, ends_lap)),
            5 => Just(Step::Read),
            2 => Just(Step::ReadAndReport),
            4 => Just(Step::Look),
            1 => Just(Step::Move),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 2000 }, failure_persistence: None, ..Default::default() })]

        #[test]
        fn unread_bytes_are_never_written_over(steps in proptest::collection::vec(step(), 0..300)) {
            let mut both = Both::new();
            for step in steps {
                both.go(step);
                prop_assert!(both.has_moved || both.filled.tail - both.filled.head_seen <= BYTES as u64);
            }
            // The longest packet finds room once all is read, however little of that was reported.
            while !both.old.is_empty() || !both.unread.is_empty() {
                both.read();
            }
            both.look();
            prop_assert!(both.write(BYTES / 4, false));
        }

        #[test]
        fn what_fits_finds_room(steps in proptest::collection::vec(step(), 0..100), len in 1..BYTES, ends in any::<u64>()) {
            let mut both = Both::new();
            for step in steps {
                both.go(step);
            }
            let packet = 2048;
            if both.filled.fits(len, packet) {
                for (number, at) in (0..len).step_by(packet).enumerate() {
                    prop_assert!(both.write(packet.min(len - at), ends >> (number % 64) & 1 == 1));
                }
            }
        }
    }

    #[test]
    fn a_conversation_stays_in_a_short_lap_and_a_burst_has_the_whole_ring() {
        let mut both = Both::new();
        for _ in 0..100 {
            assert!(both.write(2048, both.filled.end() >= 8192));
            both.look();
            both.read_and_report();
        }
        assert!(both.unread.is_empty() && both.filled.end() <= 8192);
        let burst = (0..).take_while(|_| both.write(2048, false)).count();
        assert!(burst >= BYTES / 2048 - 8, "{burst}");
    }

    #[test]
    fn forged_places_are_in_the_ring_or_refused() {
        let drained = Drained::new(BYTES);
        for (place, len) in [(1, 8), (BYTES as u64, 1), (BYTES as u64 - 64, 65), (u64::MAX - 63, 64), (0, BYTES + 1)] {
            assert!(!drained.holds(place, len), "{place} {len}");
        }
        assert!(drained.holds(BYTES as u64 - 64, 64) && drained.holds(0, BYTES));
    }
}
