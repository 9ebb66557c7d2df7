//! The backoff of a wait: spin, yield, park.
//!
//! A thread spins for half a microsecond, or as long as its caller says, and then yields. If yields really switch to another thread, the processors are
//! crowded: the next waits spin for only a quarter of a microsecond, and then yield until the awaited thing has happened. If
//! yields do not switch, the thread spins on for some 30 µs, with a yield whenever the wait has doubled, because a yield takes
//! a third of a microsecond without a look. After a wait that parked and lasted less than a millisecond, the next ones spin on for
//! twice as long as it lasted, for a millisecond at most, with a yield every 30 µs. Then the thread parks. All waits use this policy.

use doorbell_fabric::{ParseIdError, world};
use std::cell::Cell;
use std::time::{Duration, Instant};
use strum::EnumString;

/// How a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, strum::Display, EnumString)]
#[strum(serialize_all = "lowercase", parse_err_ty = ParseIdError, parse_err_fn = unknown_wait)]
pub enum Wait {
    /// Spin, yield, park, with a memory of how crowded the processors are.
    #[default]
    Auto,
    /// Never gives the processor away, and makes no system call while messages come within a second of each other. So it may
    /// notice a death a second late. For threads with a processor of their own.
    Spin,
    /// Yields the processor after every look, and never sleeps.
    Yield,
    /// Sleeps at once.
    Park,
}

fn unknown_wait(word: &str) -> ParseIdError {
    ParseIdError { word: word.into(), expected: "a way of waiting: auto, spin, yield or park" }
}

const SPIN: Duration = Duration::from_nanos(500);
const SPIN_CROWDED: Duration = Duration::from_nanos(250);
/// For a node on a network: a look is a system call, and an answer takes some microseconds.
const SPIN_NETWORK: Duration = Duration::from_micros(5);
/// A longer yield may have switched to another thread. On a virtual machine some yields take longer although no other thread ran.
const SLOW: Duration = Duration::from_nanos(500);
/// Two slow yields within this time show whether yields switch.
const SOON: Duration = Duration::from_micros(100);
const SPIN_ON: Duration = Duration::from_micros(30);
const YIELD_MOST: Duration = Duration::from_millis(1);
/// The number of waits for which a switch is remembered.
const MEMORY: u32 = 256;
/// The longest sleep, in case a wake-up is lost. Also how often a waiting thread checks that its peers live.
pub const PARK_MOST: Duration = Duration::from_millis(50);
/// The longest sleep if all other nodes are reached by the network, which wakes the sleeper when one of them must be checked.
const PARK_NETWORK: Duration = Duration::from_secs(1);
/// How often a thread that does not park checks that its peers live.
pub const CHECK_EVERY: Duration = Duration::from_millis(25);
/// How often a spinning thread does so. It should make no system calls, so it checks only when an exchange has stopped, even
/// with a slow peer that lacks a processor.
const CHECK_EVERY_SPINNING: Duration = Duration::from_secs(1);

thread_local! {
    static CROWDED: Cell<u32> = const { Cell::new(0) };
    /// The count of switches after the latest slow yield that asked for it, and the time.
    static SWITCHES: Cell<Option<(u64, Instant)>> = const { Cell::new(None) };
    /// How long the next wait spins before it parks, unless yields switch.
    static SPIN_NEXT: Cell<Duration> = const { Cell::new(SPIN_ON) };
}

/// The next step of a waiting thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Look again.
    Again,
    /// Look again, and check that the peers live.
    Check,
    /// Sleep, for this long at most.
    Park(Duration),
    /// The deadline has passed.
    Expired,
}

/// The backoff of one wait: decides what to do after each look that found nothing.
pub struct Backoff {
    wait: Wait,
    deadline: Option<Instant>,
    began: Option<Instant>,
    checked: Option<Instant>,
    /// How long it spins at first.
    spin: Duration,
    /// How long it yields at most where processors are crowded.
    yields: Duration,
    /// How long it sleeps at most.
    park: Duration,
    /// The waiting time at which it yields next.
    yield_at: Duration,
    yielding: bool,
    crowded: bool,
    slept: bool,
    /// Where processors are crowded it sleeps at once, and does not yield.
    gives_way: bool,
}

impl Backoff {
    /// A wait that begins now.
    #[inline(always)]
    pub fn new(wait: Wait, deadline: Option<Instant>) -> Self {
        let (spin, yield_at) = (SPIN, SPIN);
        Self {
            wait,
            deadline,
            began: None,
            checked: None,
            spin,
            yields: YIELD_MOST,
            park: PARK_MOST,
            yield_at,
            yielding: false,
            crowded: false,
            slept: false,
            gives_way: false,
        }
    }

    /// For a wait for a thread that may have lost its processor, perhaps to this thread: yielding again and again would stand
    /// in its way.
    pub fn giving_way(mut self) -> Self {
        self.gives_way = true;
        self
    }

    /// For a wait beside others that may be as long: where processors are crowded it yields for `most`, and then sleeps.
    pub fn yielding_for(mut self, most: Duration) -> Self {
        self.yields = most;
        self
    }

    /// Sets whether the node is on a network. There it spins for longer, and sleeps for longer if the thread that arms the bell
    /// permits it.
    #[inline(always)]
    pub fn on_network(mut self, on_network: bool) -> Self {
        if on_network {
            (self.spin, self.park) = (SPIN_NETWORK, PARK_NETWORK);
        }
        self
    }

    /// For a wait for an immediate answer, which takes about `most`: spins for that long first.
    pub fn spinning_for(mut self, most: Duration) -> Self {
        self.spin = self.spin.max(most);
        self
    }

    /// Something happened. More may follow, so begin with spinning again.
    pub fn awake(&mut self) {
        self.began = None;
        self.yielding = false;
        self.slept = false;
    }

    /// Whether it spins, so that several looks in a row disturb no other thread.
    pub fn spins(&self) -> bool {
        match self.wait {
            Wait::Spin => true,
            Wait::Auto => !self.yielding && !self.crowded && !self.slept,
            Wait::Yield | Wait::Park => false,
        }
    }

    /// Called after a sleep. If nothing happened in it, the next step is another sleep: an idle node must not spin at every
    /// timeout.
    pub fn slept(&mut self) {
        self.slept = true;
    }

    /// As [`slept`](Self::slept), after each sleep. If the wait was short, the next ones are likely to be as short, and spin for longer: to
    /// sleep and to be woken takes many microseconds.
    pub fn woke(&mut self) {
        if let Some(began) = self.began
            && self.spins()
            && self.wait == Wait::Auto
        {
            let lasted = world::since(began);
            SPIN_NEXT.set(if lasted < YIELD_MOST { (2 * lasted).clamp(SPIN_ON, YIELD_MOST) } else { SPIN_ON });
        }
        self.slept();
    }

    /// Whether it is time to check that the peers live. If so, counts as checked. For use after a sleep, which may have been
    /// short.
    pub fn check_due(&mut self) -> bool {
        let now = world::now();
        let due = self.checked.is_none_or(|checked| now - checked >= CHECK_EVERY);
        if due {
            self.checked = Some(now);
        }
        due
    }

    /// The next step after a look that found nothing.
    pub fn step(&mut self) -> Step {
        let now = world::now();
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            // The length of a wait in vain says nothing about the next one.
            SPIN_NEXT.set(SPIN_ON);
            return Step::Expired;
        }
        let began = match self.began {
            Some(began) => began,
            None => {
                let crowded = CROWDED.get();
                self.crowded = crowded > 0;
                self.yield_at = if self.crowded { SPIN_CROWDED } else { self.spin };
                CROWDED.set(crowded.saturating_sub(1));
                self.checked.get_or_insert(now);
                *self.began.insert(now)
            }
        };
        let step = match self.wait {
            Wait::Spin => Step::Again,
            Wait::Yield => {
                world::yield_now();
                Step::Again
            }
            Wait::Park => Step::Park(self.park_at_most(now)),
            Wait::Auto => self.auto(now, now - began),
        };
        let check_every = if self.wait == Wait::Spin { CHECK_EVERY_SPINNING } else { CHECK_EVERY };
        match step {
            Step::Again if self.checked.is_some_and(|checked| now - checked >= check_every) => {
                self.checked = Some(now);
                Step::Check
            }
            step => step,
        }
    }

    fn auto(&mut self, now: Instant, waited: Duration) -> Step {
        let most = if self.yielding || self.crowded { self.yields } else { SPIN_NEXT.get() };
        if self.slept || waited >= most {
            return Step::Park(self.park_at_most(now));
        }
        if waited < self.yield_at {
            return Step::Again;
        }
        if self.gives_way && (self.yielding || self.crowded) {
            return Step::Park(self.park_at_most(now));
        }
        world::yield_now();
        if world::since(now) > SLOW && is_crowded(now) {
            self.yielding = true;
        }
        if !self.yielding && !self.crowded {
            self.yield_at = waited + waited.min(SPIN_ON);
        }
        Step::Again
    }

    fn park_at_most(&self, now: Instant) -> Duration {
        self.deadline.map_or(self.park, |deadline| self.park.min(deadline - now))
    }
}

/// Whether yields of this thread switch to another one. A thread calls it after a slow yield that began `then`. It asks the system, unless
/// it learned lately that they do.
#[cold]
fn is_crowded(then: Instant) -> bool {
    if CROWDED.get() <= MEMORY / 2 {
        let now = world::switches();
        let before = SWITCHES.replace(now.map(|count| (count, world::now())));
        // Between two yields that are further apart, another thread may have taken the processor by force.
        let is_new = |(count, at): (u64, Instant)| now > Some(count) && then.saturating_duration_since(at) < SOON;
        // A system that does not tell may have switched.
        if now.is_some() && !before.is_some_and(is_new) {
            return false;
        }
        CROWDED.set(MEMORY);
    }
    true
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// In a simulated world each yield is slow, and there is no other thread.
    #[test]
    fn slow_yields_alone_are_no_crowd() {
        let _world = world::simulate(1);
        let mut auto = Backoff::new(Wait::Auto, None);
        while !matches!(auto.step(), Step::Park(_)) {
            assert!(auto.spins());
        }
        assert_eq!(CROWDED.get(), 0);
    }

    /// How long a wait that begins now spins before it parks.
    fn spins_for(world: &world::Simulation) -> Duration {
        let (before, mut auto) = (world.passed(), Backoff::new(Wait::Auto, None));
        while !matches!(auto.step(), Step::Park(_)) {}
        world.passed() - before
    }

    #[test]
    fn after_a_short_wait_that_slept_the_next_ones_spin_for_longer() {
        let world = world::simulate(1);
        let wait = |sleep: Duration| {
            let mut auto = Backoff::new(Wait::Auto, None);
            while !matches!(auto.step(), Step::Park(_)) {}
            world.advance(sleep);
            auto.woke();
            spins_for(&world)
        };
        let usual = wait(Duration::from_millis(10));
        assert!(usual < 2 * SPIN_ON, "{usual:?}");
        let longer = wait(Duration::from_micros(200));
        assert!((Duration::from_micros(400)..Duration::from_micros(600)).contains(&longer), "{longer:?}");
        // The next one lasts for long although it spun.
        let again = wait(Duration::from_millis(10));
        assert!(again < 2 * SPIN_ON, "{again:?}");
        wait(Duration::from_micros(200));
        assert_eq!(Backoff::new(Wait::Auto, Some(world::now())).step(), Step::Expired);
        let in_vain = spins_for(&world);
        assert!(in_vain < 2 * SPIN_ON, "{in_vain:?}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "under Miri a wait may park before its first yield")]
    fn a_thread_that_shares_its_processor_notices() {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
        let all = sched_getaffinity(None).unwrap();
        let mut one = CpuSet::new();
        one.set((0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap());
        let over = AtomicBool::new(false);
        let share = |work: &dyn Fn() -> bool| {
            sched_setaffinity(None, &one).unwrap();
            let end = Instant::now() + Duration::from_secs(20);
            while !work() {
                assert!(Instant::now() < end, "it did not notice");
            }
        };
        let waits = || {
            let mut auto = Backoff::new(Wait::Auto, None);
            while !matches!(auto.step(), Step::Park(_)) {}
            CROWDED.get() > 0
        };
        std::thread::scope(|scope| {
            scope.spawn(|| share(&|| over.load(Ordering::Relaxed)));
            let notices = scope.spawn(|| share(&waits));
            let noticed = notices.join();
            over.store(true, Ordering::Relaxed);
            noticed.unwrap();
        });
    }

    #[test]
    fn words_and_ways_agree() {
        for (wait, word) in [(Wait::Auto, "auto"), (Wait::Spin, "spin"), (Wait::Yield, "yield"), (Wait::Park, "park")] {
            assert_eq!(word.parse::<Wait>().unwrap(), wait);
            assert_eq!(wait.to_string(), word);
        }
        assert!("sleep".parse::<Wait>().unwrap_err().to_string().contains("auto, spin, yield or park"));
    }

    #[test]
    fn each_way_takes_its_steps() {
        assert!(matches!(Backoff::new(Wait::Park, None).step(), Step::Park(PARK_MOST)));
        let mut spin = Backoff::new(Wait::Spin, None);
        assert!((0..1000).all(|_| matches!(spin.step(), Step::Again | Step::Check)));
        let mut auto = Backoff::new(Wait::Auto, None);
        assert_eq!(auto.step(), Step::Again);
        while !matches!(auto.step(), Step::Park(_)) {}
        let past = Instant::now();
        assert_eq!(Backoff::new(Wait::Spin, Some(past)).step(), Step::Expired);
    }
}
