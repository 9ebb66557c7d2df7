//! The poller: the thread that turns the engine when no other thread does.
//!
//! With `Inline` there is none, except on a network, where peers need answers. With `Adaptive` it turns only while nonblocking
//! operations are pending and no thread of the application has turned the engine for a millisecond; on a network, whenever no
//! thread has. If threads turned it all the time before, the poller looks more rarely, and may
//! notice eight milliseconds later. With `Poller` it turns always, and no other thread does. A poller without work sleeps long, because an
//! idle node should cost nothing. It then wakes when a datagram comes, when a timer of the network is due, when an operation begins while none is pending, or when
//! the parking leader leaves.

use crate::drive::Shared;
use crate::sync::baton::Token;
use crate::sync::wait::{Backoff, Step, Wait};
use doorbell_fabric::sync::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use doorbell_fabric::{ParseIdError, world};
use doorbell_shm::doorbell::{futex_wait, futex_wake};
use std::sync::Arc;
use std::time::Duration;
use strum::EnumString;

/// Which thread turns the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, strum::Display, EnumString)]
#[strum(serialize_all = "lowercase", parse_err_ty = ParseIdError, parse_err_fn = unknown_progress)]
pub enum Progress {
    /// Only threads that call the node. Nonblocking operations advance only inside calls.
    Inline,
    /// Only a thread of the node. The application's threads hand over their operations and wait.
    Poller,
    /// The threads that wait; and a thread of the node while no thread waits and something is pending.
    #[default]
    Adaptive,
}

fn unknown_progress(word: &str) -> ParseIdError {
    ParseIdError { word: word.into(), expected: "a progress policy: inline, poller or adaptive" }
}

/// How long the adaptive poller leaves an engine alone after another thread turned it.
const LEAVE_ALONE: Duration = Duration::from_millis(1);
/// ... at most, where others turn it all the time. Each look takes the processor from them, for some 10 µs.
const LEAVE_ALONE_MOST: Duration = Duration::from_millis(4);
/// Others turn it all the time if they make this number of turns in a millisecond. A thread that waits makes hundreds.
const BUSY_TURNS: u64 = 64;
/// How long it leaves gathered packets alone, which wait for others to be sent with, in case none follow.
const LEAVE_GATHERED: Duration = Duration::from_micros(100);
/// How long the adaptive poller sleeps on a bell that might not be rung.
const UNRUNG: Duration = Duration::from_millis(10);
/// After this many turns with work, the adaptive poller yields the processor.
const YIELD_TURNS: u32 = 8;
/// How long it sleeps when nothing is pending, or a thread of the application has the helm. A thread that changes this wakes
/// it.
pub const NOTHING_PENDING: Duration = Duration::from_secs(1);

/// How long the poller of `Progress::Poller` spins before it yields for the first time. A yield takes some tenth of that, and the
/// poller sees nothing meanwhile.
const SPIN_MOST: Duration = Duration::from_micros(5);
/// Looks of that poller between two looks at the clock, which take as long as a look.
const LOOKS_PER_CLOCK: u32 = 4;
/// How often it checks whether an awake event loop still turns its reactor.
const STALLED: Duration = Duration::from_millis(250);

/// Why it sleeps: nothing is pending, a thread of the application has the helm, or threads turn the engine all the time.
const IDLE: u32 = 1;
const BESIDE_HELM: u32 = 2;
const BESIDE_OTHERS: u32 = 3;

const AWAKE: u32 = 0;
const DOZES: u32 = 1;
const SLEEPS: u32 = 2;

/// The state shared by the application's threads and the poller.
#[derive(Default)]
pub struct PollerWord {
    /// Why the poller sleeps, if not on the bell. Zero if it does not sleep, or pauses, or was woken.
    asleep: AtomicU32,
    /// How the poller sleeps on the bell: [`AWAKE`], [`DOZES`] for a short time, or [`SLEEPS`] for long, because nothing is pending. It
    /// may have to be woken without a ring.
    dozing: AtomicU32,
    stop: AtomicBool,
    /// The number of pending nonblocking operations.
    pending: AtomicUsize,
    /// Something could not be sent, and no thread waits for it. Set until the poller finds nothing to do.
    left: AtomicBool,
    /// A reactor turns the engine in the poller's place.
    relieved: AtomicBool,
    /// How often packets began to be gathered.
    gathered: AtomicUsize,
}

impl PollerWord {
    /// A nonblocking operation began.
    pub fn began(&self) {
        self.pending.fetch_add(1, Ordering::SeqCst);
        if !self.relieved.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// A nonblocking operation began, and was over at once.
    pub fn began_and_over(&self) {
        self.pending.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that something could not be sent, and that no thread waits for it.
    pub fn left_over(&self) {
        self.left.store(true, Ordering::SeqCst);
        if !self.relieved.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Sets whether a reactor turns the engine in the poller's place.
    pub fn relieve(&self, relieved: bool) {
        self.relieved.store(relieved, Ordering::SeqCst);
        self.wake();
    }

    /// A nonblocking operation ended.
    pub fn ended(&self) {
        self.pending.fetch_sub(1, Ordering::Relaxed);
    }

    /// Notes that packets begin to be gathered, which perhaps no further call sends.
    pub fn gathering(&self) {
        self.gathered.fetch_add(1, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) == BESIDE_OTHERS {
            self.wake();
        }
    }

    /// Tells the poller to end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Whether the poller was told to end.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// A thread of the application left the helm.
    pub fn helm_is_left(&self) {
        if self.asleep.load(Ordering::SeqCst) == BESIDE_HELM {
            self.wake();
        }
    }

    fn wake(&self) {
        if self.asleep.load(Ordering::SeqCst) != 0 && self.asleep.swap(0, Ordering::SeqCst) != 0 {
            futex_wake(&self.asleep);
        }
    }

    fn sleep_until_pending(&self) {
        self.sleep_while(IDLE, NOTHING_PENDING, || !self.is_needed());
    }

    /// Leaves an engine alone that others turn all the time, until there is something that the poller has to do soon. Returns whether
    /// there is.
    fn sleep_beside_others(&self, most: Duration, gathered: usize) -> bool {
        let is_quiet = || !self.is_needed() && self.gathered.load(Ordering::SeqCst) == gathered;
        self.sleep_while(BESIDE_OTHERS, most, is_quiet);
        !is_quiet()
    }

    fn sleep_while_relieved(&self, most: Duration) {
        self.sleep_while(IDLE, most, || self.relieved.load(Ordering::SeqCst));
    }

    /// Pauses for a little while.
    pub fn pause(&self, most: Duration) {
        futex_wait(&self.asleep, 0, most);
    }

    /// Sleeps while a thread of the application has the helm, and until it [leaves](Self::helm_is_left) it.
    pub fn sleep_beside(&self, has_helm: impl FnOnce() -> bool) {
        self.sleep_while(BESIDE_HELM, NOTHING_PENDING, has_helm);
    }

    fn sleep_while(&self, why: u32, most: Duration, is_so: impl FnOnce() -> bool) {
        // First asleep, then a look at the reason: a waking thread does this in the opposite order.
        self.asleep.store(why, Ordering::SeqCst);
        if is_so() && !self.stop.load(Ordering::SeqCst) {
            futex_wait(&self.asleep, why, most);
        }
        self.asleep.store(0, Ordering::SeqCst);
    }

    /// Whether a nonblocking operation is pending.
    pub fn is_needed(&self) -> bool {
        self.pending.load(Ordering::SeqCst) != 0 || self.left.load(Ordering::SeqCst)
    }

    /// How long the adaptive poller may sleep on a bell that it armed: long if nothing is pending, because from now on a new
    /// operation ends the sleep. A thread that looks by itself disarms the bell, and does not tell when it ceases to look, so a
    /// pending nonblocking operation must not wait for that.
    pub fn doze(&self, timeout: Duration) -> Duration {
        // First the sleep, then the look for operations: a thread that begins one does this in the opposite order.
        self.dozing.store(SLEEPS, Ordering::SeqCst);
        if !self.is_needed() {
            return timeout;
        }
        self.dozing.store(DOZES, Ordering::SeqCst);
        timeout.min(UNRUNG)
    }

    /// Whether it sleeps on the bell for long, because nothing was pending.
    pub fn sleeps(&self) -> bool {
        self.dozing.load(Ordering::SeqCst) == SLEEPS
    }

    /// Ends a sleep on the bell: called after it, or by a thread that has to end it. Returns whether it was going on.
    pub fn rouse(&self) -> bool {
        self.dozing.load(Ordering::SeqCst) != AWAKE && self.dozing.swap(AWAKE, Ordering::SeqCst) != AWAKE
    }
}

/// The result of a turn of the poller.
#[derive(Default)]
pub struct Turned {
    /// The amount of work done.
    pub work: usize,
    /// The work is a sign of more to come.
    pub is_news: bool,
    /// A put or get of another node is half answered.
    pub serves: bool,
}

/// Whether others turned the engine all the time, if they made so many turns while the poller left it alone.
fn is_busy(turns: u64, alone: Duration) -> bool {
    u128::from(turns) >= u128::from(BUSY_TURNS) * alone.as_millis()
}

/// Runs the poller until it is told to stop.
pub fn run(shared: Arc<Shared>) {
    let me = Token::current();
    let word = shared.poller();
    let (mut seen, mut gathered) = (shared.turns(), 0);
    // In adaptive mode no thread depends on the poller's speed, so it goes to sleep at once.
    let wait = if shared.progress() == Progress::Poller { shared.wait() } else { Wait::Park };
    let mut backoff = Backoff::new(wait, None).spinning_for(SPIN_MOST);
    // ... except while a put or get of another node is half answered, because that node waits for each part of it.
    let mut hasty = Backoff::new(Wait::Auto, None);
    let (mut driven, mut alone) = (0_u32, LEAVE_ALONE);
    while !word.stopped() {
        if shared.progress() != Progress::Poller {
            if word.relieved.load(Ordering::SeqCst) {
                let generation = shared.reactor().generation();
                word.sleep_while_relieved(if shared.reactor().is_asleep() { NOTHING_PENDING } else { STALLED });
                if shared.reactor().generation() == generation && word.relieved.load(Ordering::SeqCst) && !word.stopped() {
                    shared.stand_in(me, generation);
                }
                continue;
            }
            if !word.is_needed() && !shared.has_network() {
                word.sleep_until_pending();
                continue;
            }
            let turns = shared.turns();
            let gathering = word.gathered.load(Ordering::Relaxed);
            if turns != seen || gathering != gathered {
                let is_gathering = gathering != gathered;
                let is_busy = is_busy(turns.wrapping_sub(seen), alone);
                (seen, gathered) = (turns, gathering);
                if is_gathering {
                    alone = LEAVE_ALONE;
                    word.pause(LEAVE_GATHERED);
                } else if word.is_needed() || !is_busy {
                    alone = LEAVE_ALONE;
                    word.pause(alone);
                } else {
                    alone = (2 * alone).min(LEAVE_ALONE_MOST);
                    if word.sleep_beside_others(alone, gathering) {
                        // Brief operations that follow one another do not wake it each time.
                        alone = LEAVE_ALONE;
                        word.pause(if word.is_needed() { LEAVE_ALONE } else { LEAVE_GATHERED });
                    }
                }
                continue;
            }
            alone = LEAVE_ALONE;
        }
        // On a network, a look is a system call.
        let looks = if backoff.spins() && !shared.has_network() { LOOKS_PER_CLOCK } else { 1 };
        let mut turned = Turned::default();
        for _ in 0..looks {
            turned = shared.turn_poller(me);
            if turned.work > 0 {
                break;
            }
        }
        let Turned { work, is_news, serves } = turned;
        seen = shared.turns();
        if word.left.load(Ordering::Relaxed) {
            // Before the look: work left over after the look sets it again.
            word.left.store(false, Ordering::SeqCst);
            if shared.has_left_over(me) {
                word.left.store(true, Ordering::SeqCst);
            }
        }
        if work > 0 {
            if is_news {
                backoff.awake();
            }
            hasty.awake();
            driven = driven.wrapping_add(1);
            if shared.progress() != Progress::Poller && driven.is_multiple_of(YIELD_TURNS) {
                // A thread of the application may be waiting for this processor, to turn the engine itself.
                world::yield_now();
            }
            continue;
        }
        match if serves { hasty.step() } else { backoff.step() } {
            Step::Again | Step::Expired => {}
            Step::Check => shared.check_peers(me),
            Step::Park(timeout) => {
                // If others turned the engine meanwhile, they are left alone.
                seen = shared.park_poller(me, timeout);
                backoff.slept();
                hasty.slept();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_poller_beside_others_wakes_for_what_it_has_to_do_soon() {
        const LONG: Duration = Duration::from_secs(60);
        for wake in [PollerWord::began, PollerWord::left_over, PollerWord::gathering, PollerWord::stop] {
            let (word, began) = (PollerWord::default(), Instant::now());
            std::thread::scope(|scope| {
                scope.spawn(|| word.sleep_beside_others(LONG, 0));
                while word.asleep.load(Ordering::SeqCst) != BESIDE_OTHERS && began.elapsed() < LONG {
                    std::thread::yield_now();
                }
                wake(&word);
            });
            word.sleep_beside_others(LONG, 0);
            assert!(began.elapsed() < LONG / 2);
        }
    }

    #[test]
    fn gathered_packets_end_no_other_sleep() {
        let word = PollerWord::default();
        for why in [IDLE, BESIDE_HELM] {
            word.asleep.store(why, Ordering::SeqCst);
            word.gathering();
            assert_eq!(word.asleep.load(Ordering::SeqCst), why);
        }
    }

    #[test]
    fn few_turns_do_not_keep_the_poller_away() {
        for alone in [LEAVE_ALONE, 2 * LEAVE_ALONE, LEAVE_ALONE_MOST] {
            assert!(!is_busy(1, alone) && is_busy(1000, alone), "{alone:?}");
        }
    }
}
