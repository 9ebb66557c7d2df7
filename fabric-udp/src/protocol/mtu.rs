//! Finds the largest possible datagram: probes upward, and notices when large datagrams no longer get through.

use super::time::{MILLI, Nanos, Time};

/// A size that every path carries.
pub(crate) const MTU_FLOOR: usize = 1200;
/// Sizes that paths are likely to have, in bytes of UDP payload: loopback, jumbo frames (IPv4, IPv6), Ethernet (IPv4, IPv6),
/// tunnels.
const STEPS: [usize; 8] = [65_507, 16_000, 8_972, 8_952, 4_000, 1_472, 1_452, 1_392];
/// The number of lost probes of one size after which it counts as too large.
const TRIES: u8 = 3;
/// The number of large datagrams lost in a row, none of that size having arrived, that indicates a black hole.
const SUSPICION_MAX: u32 = 8;
/// The pause before the next search, after a search and after a black hole.
const AGAIN: Nanos = 600_000 * MILLI;
const AGAIN_AFTER_HOLE: Nanos = 5_000 * MILLI;

/// The search for the path's MTU.
#[derive(Default)]
pub(crate) struct PathMtu {
    current: usize,
    /// A size that neither end nor link exceeds.
    ceiling: usize,
    /// A size that is known, or believed, not to get through.
    too_large: usize,
    /// Whether a probe is under way.
    under_way: bool,
    tries: u8,
    next: Time,
    search: bool,
    suspicion: u32,
    /// The size of the largest datagram that is suspected to have been too large, and the lowest number of such datagrams.
    suspect: usize,
    suspect_from: u64,
    /// That number, and the size until then, if datagrams are small because of a black hole.
    before_fall: Option<(u64, usize)>,
    /// Number and size of datagrams above the floor that are known to have arrived: the latest, and the latest of the largest.
    arrived: [(u64, usize); 2],
}

impl PathMtu {
    /// Begins with datagrams of `start` bytes. With `search`, larger ones up to `ceiling` are tried.
    pub fn new(start: usize, ceiling: usize, search: bool) -> Self {
        Self { current: start.min(ceiling), ceiling, too_large: ceiling + 1, search, ..Self::default() }
    }

    /// The size of the largest datagram to send.
    #[inline]
    pub fn current(&self) -> usize {
        self.current
    }

    fn candidate(&self) -> Option<usize> {
        let fits = |size: &usize| *size > self.current && *size < self.too_large;
        std::iter::once(self.ceiling).chain(STEPS).filter(fits).max()
    }

    /// The size of a probe that is due now.
    #[inline]
    pub fn probe(&mut self, now: Time) -> Option<usize> {
        if !self.search || self.under_way || now < self.next {
            return None;
        }
        let candidate = self.candidate();
        if candidate.is_none() {
            self.too_large = self.ceiling + 1;
            self.tries = 0;
            self.next = if self.candidate().is_some() { now + AGAIN } else { Time::NEVER };
        }
        candidate
    }

    /// The time of the next probe.
    #[inline]
    pub fn deadline(&self) -> Time {
        if self.search && !self.under_way { self.next } else { Time::NEVER }
    }

    pub fn on_probe_sent(&mut self) {
        self.under_way = true;
    }

    /// Records that a probe arrived. Returns whether that changed anything.
    pub fn on_probe_acked(&mut self, size: usize) -> bool {
        self.under_way = false;
        self.tries = 0;
        let larger = size > self.current && size <= self.ceiling;
        if larger {
            self.current = size;
        }
        larger
    }

    pub fn on_probe_lost(&mut self, size: usize) {
        self.under_way = false;
        self.tries += 1;
        if self.tries >= TRIES {
            self.tries = 0;
            self.too_large = self.too_large.min(size);
        }
    }

    /// The fate of a probe will not be known.
    pub fn forget_probe(&mut self) {
        self.under_way = false;
    }

    /// The local link refused a datagram of this size.
    pub fn on_refused(&mut self, size: usize) {
        self.under_way = false;
        self.too_large = self.too_large.min(size);
        self.current = self.current.min(MTU_FLOOR.max(size.saturating_sub(1)).min(self.ceiling));
    }

    /// Records that the datagram of this number and size, above the floor, arrived. Returns whether datagrams are larger from now on.
    #[inline]
    pub fn on_large_acked(&mut self, number: u64, size: usize) -> bool {
        // A datagram smaller than the lost ones tells nothing about them.
        if size >= self.suspect {
            (self.suspicion, self.suspect) = (0, 0);
        }
        let [latest, largest] = &mut self.arrived;
        *latest = (*latest).max((number, size));
        if size >= largest.1 {
            *largest = (number, size);
        }
        self.before_fall.is_some() && self.was_no_hole(number, size)
    }

    /// One of the datagrams that seemed to fall into a black hole was only late. Returns whether datagrams are larger from now on.
    #[cold]
    fn was_no_hole(&mut self, number: u64, size: usize) -> bool {
        let Some((_, before)) = self.before_fall.filter(|(from, _)| number >= *from && size > self.current) else { return false };
        self.before_fall.take_if(|_| size >= before);
        // Only what arrived is known to get through.
        let proven = size.min(before).min(self.ceiling).min(self.too_large.saturating_sub(1));
        let is_larger = proven > self.current;
        self.current = self.current.max(proven);
        is_larger
    }

    /// Records that a datagram that was no probe was lost. Returns whether datagrams are smaller from now on.
    pub fn on_lost(&mut self, now: Time, number: u64, size: usize) -> bool {
        // A later datagram of this size arrived, so this loss has another cause.
        let excused = self.arrived.iter().any(|(later, large)| number < *later && size <= *large);
        if size <= MTU_FLOOR || self.current <= MTU_FLOOR || excused {
            return false;
        }
        self.suspect_from = if self.suspicion == 0 { number } else { self.suspect_from.min(number) };
        self.suspicion += 1;
        self.suspect = self.suspect.max(size);
        if self.suspicion < SUSPICION_MAX {
            return false;
        }
        (self.suspicion, self.suspect, self.arrived) = (0, 0, [(0, 0); 2]);
        self.before_fall = Some((self.suspect_from, self.current));
        self.current = MTU_FLOOR.min(self.ceiling);
        self.too_large = self.ceiling + 1;
        self.search = true;
        self.next = now + AGAIN_AFTER_HOLE;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(mtu: &mut PathMtu, path: usize) -> usize {
        let mut probes = 0;
        while let Some(size) = mtu.probe(Time::ZERO) {
            probes += 1;
            mtu.on_probe_sent();
            assert!(mtu.probe(Time::ZERO).is_none(), "one at a time");
            if size <= path {
                mtu.on_probe_acked(size);
            } else {
                mtu.on_probe_lost(size);
            }
        }
        probes
    }

    #[test]
    fn it_finds_usual_paths() {
        for (path, found) in [(65_507, 65_507), (8_972, 8_972), (1_472, 1_472), (1_400, 1_392), (1_200, 1_200)] {
            let mut mtu = PathMtu::new(MTU_FLOOR, 65_507, true);
            let probes = search(&mut mtu, path);
            assert!(mtu.current() == found && probes <= 24, "{path}: {} after {probes}", mtu.current());
        }
    }

    #[test]
    fn smaller_datagrams_do_not_hide_a_black_hole() {
        let mut mtu = PathMtu::new(9_000, 9_000, false);
        mtu.on_large_acked(100, 9_000);
        let fell = (0..100).position(|round| {
            let number = 200 + 2 * round;
            mtu.on_large_acked(number + 1, 1_300);
            mtu.on_lost(Time::ZERO, number, 9_000)
        });
        assert_eq!(fell, Some(SUSPICION_MAX as usize - 1));
        let mut mtu = PathMtu::new(9_000, 9_000, false);
        for round in 0..100 {
            mtu.on_large_acked(2 * round + 1, if round % 2 == 0 { 1_300 } else { 9_000 });
            assert!(!mtu.on_lost(Time::ZERO, 2 * round, 1_300), "a later datagram of that size arrived");
        }
    }

    #[test]
    fn datagrams_that_were_only_late_were_in_no_black_hole() {
        for late in [99, 100, 107] {
            let mut mtu = PathMtu::new(65_507, 65_507, false);
            let fell: Vec<_> = (100..108).map(|number| mtu.on_lost(Time::ZERO, number, 65_507)).collect();
            assert!(fell[7] && mtu.current() == MTU_FLOOR);
            let was_suspected = late >= 100;
            assert_eq!(mtu.on_large_acked(late, 65_507), was_suspected, "{late}");
            assert_eq!(mtu.current(), if was_suspected { 65_507 } else { MTU_FLOOR });
            // Only the first acknowledgement changes the size.
            assert!(!mtu.on_large_acked(late, 65_507));
        }
        // A smaller one proves only its own size, and a larger one still counts.
        let mut mtu = PathMtu::new(65_507, 65_507, false);
        (100..108).for_each(|number| _ = mtu.on_lost(Time::ZERO, number, 65_507));
        assert!(mtu.on_large_acked(101, 1_300) && mtu.current() == 1_300);
        assert!(mtu.on_large_acked(102, 65_507) && mtu.current() == 65_507);
        // So does a probe.
        let mut mtu = PathMtu::new(9_000, 9_000, false);
        (100..108).for_each(|number| _ = mtu.on_lost(Time::ZERO, number, 9_000));
        mtu.on_large_acked(300, 1_472);
        mtu.on_probe_acked(1_472);
        assert_eq!(mtu.current(), 1_472);
        // Meanwhile the local link refused such datagrams.
        let mut mtu = PathMtu::new(65_507, 65_507, false);
        (100..108).for_each(|number| _ = mtu.on_lost(Time::ZERO, number, 65_507));
        mtu.on_refused(9_000);
        mtu.on_large_acked(100, 65_507);
        assert_eq!(mtu.current(), 8_999);
    }

    #[test]
    fn a_black_hole_makes_them_small_until_the_next_search() {
        let mut mtu = PathMtu::new(9_000, 9_000, false);
        mtu.on_large_acked(100, 9_000);
        for number in 0..100 {
            assert!(!mtu.on_lost(Time::ZERO, number, 9_000), "a later datagram arrived");
        }
        let fell: Vec<bool> = (101..).map(|number| mtu.on_lost(Time::ZERO, number, 9_000)).take(SUSPICION_MAX as usize).collect();
        assert_eq!(fell.iter().position(|fell| *fell), Some(SUSPICION_MAX as usize - 1));
        assert_eq!(mtu.current(), MTU_FLOOR);
        assert!(mtu.probe(Time::ZERO).is_none());
        assert_eq!(mtu.probe(Time::ZERO + AGAIN_AFTER_HOLE), Some(9_000));
    }
}
