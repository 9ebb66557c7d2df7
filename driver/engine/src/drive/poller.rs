//! The poller: the thread that turns the engine when nobody else does.
//!
//! `Inline` has none, but on a network, where somebody has to answer. `Adaptive` turns only while nonblocking operations are pending and no
//! thread of the application has turned the engine for a millisecond; on a network, whenever no thread has. `Poller` turns always, and
//! nobody else does. Who has nothing to do sleeps long, as a node that is idle for hours should cost nothing: until a datagram comes or a
//! timer of the network is due, an operation begins, or the thread that drives leaves the helm.

use crate::drive::Shared;
use crate::sync::baton::Token;
use crate::sync::wait::{Gear, Step, Wait};
use doorbell_fabric::sync::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use doorbell_fabric::world;
use doorbell_shm::doorbell::{futex_wait, futex_wake};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Who turns the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Progress {
    /// The threads that call, and nobody else. Nonblocking operations advance inside calls only.
    Inline,
    /// A thread of the node, and nobody else: the application's threads only hand over and wait.
    Poller,
    /// The threads that wait; and a thread of the node when nobody waits and something is pending.
    #[default]
    Adaptive,
}

impl Progress {
    const WORDS: [(Progress, &str); 3] =
        [(Progress::Inline, "inline"), (Progress::Poller, "poller"), (Progress::Adaptive, "adaptive")];
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Self::WORDS.iter().find(|(progress, _)| progress == self).map_or("", |(_, word)| word);
        f.pad(word)
    }
}

impl FromStr for Progress {
    type Err = doorbell_fabric::ParseIdError;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let expected = "a progress policy: inline, poller or adaptive";
        let found = Self::WORDS.iter().find(|(_, known)| *known == word);
        found.map(|(progress, _)| *progress).ok_or_else(|| doorbell_fabric::ParseIdError { word: word.into(), expected })
    }
}

/// How long the adaptive poller leaves an engine alone that somebody else turned.
const LEAVE_ALONE: Duration = Duration::from_millis(1);
/// ... and packets that wait for others to be sent with, if perhaps none follow.
const LEAVE_GATHERED: Duration = Duration::from_micros(100);
/// How long the adaptive poller sleeps on a bell that perhaps nobody rings.
const UNRUNG: Duration = Duration::from_millis(10);
/// Turns with work after which the adaptive poller lets others have the processor.
const YIELD_TURNS: u32 = 8;
/// How long it sleeps when nothing is pending, or a thread of the application has the helm; whoever changes that wakes it.
pub const NOTHING_PENDING: Duration = Duration::from_secs(1);

/// How often it looks whether an event loop that does not sleep still turns its reactor.
const STALLED: Duration = Duration::from_millis(250);

/// Why it sleeps: nothing is pending, or a thread of the application has the helm.
const IDLE: u32 = 1;
const BESIDE_HELM: u32 = 2;

/// What the application's threads and the poller share.
#[derive(Default)]
pub struct PollerWord {
    /// Why the poller sleeps, if not on the bell: zero if it does not, or soon looks again.
    asleep: AtomicU32,
    /// The poller sleeps on the bell for long, as nothing is pending: it may have to be woken though nobody would ring.
    dozing: AtomicBool,
    stop: AtomicBool,
    /// Nonblocking operations that have not ended.
    pending: AtomicUsize,
    /// Something could not be sent that nobody waits for. Until the poller finds nothing to do.
    left: AtomicBool,
    /// There is a reactor, which drives in the poller's place.
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

    /// Something could not be sent that nobody waits for.
    pub fn left_over(&self) {
        self.left.store(true, Ordering::SeqCst);
        if !self.relieved.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// There is a reactor from now on, or none any more.
    pub fn relieve(&self, relieved: bool) {
        self.relieved.store(relieved, Ordering::SeqCst);
        self.wake();
    }

    /// A nonblocking operation ended.
    pub fn ended(&self) {
        self.pending.fetch_sub(1, Ordering::Relaxed);
    }

    /// Packets begin to be gathered, and nobody may come who sends them.
    pub fn gathering(&self) {
        self.gathered.fetch_add(1, Ordering::Relaxed);
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

    fn sleep_while_relieved(&self, most: Duration) {
        self.sleep_while(IDLE, most, || self.relieved.load(Ordering::SeqCst));
    }

    /// A little while.
    pub fn pause(&self, most: Duration) {
        futex_wait(&self.asleep, 0, most);
    }

    /// Sleeps while a thread of the application has the helm, and until it [leaves](Self::helm_is_left) it.
    pub fn sleep_beside(&self, has_helm: impl FnOnce() -> bool) {
        self.sleep_while(BESIDE_HELM, NOTHING_PENDING, has_helm);
    }

    fn sleep_while(&self, why: u32, most: Duration, is_so: impl FnOnce() -> bool) {
        // Asleep, then a look at what it sleeps for: whoever wakes it does it the other way round.
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

    /// How long the adaptive poller may sleep on a bell that it armed: long if nothing is pending, and from here on whoever begins something
    /// ends the sleep. A thread of the application that looks by itself lets no sender ring, and does not say when it ceases to look: who
    /// waits for a nonblocking operation must not wait for that.
    pub fn doze(&self, timeout: Duration) -> Duration {
        self.dozing.store(true, Ordering::SeqCst);
        if self.is_needed() { timeout.min(UNRUNG) } else { timeout }
    }

    /// After the sleep; or for who has to end it. Whether it was going on.
    pub fn rouse(&self) -> bool {
        self.dozing.load(Ordering::SeqCst) && self.dozing.swap(false, Ordering::SeqCst)
    }
}

/// What a turn of the poller came to.
#[derive(Default)]
pub struct Turned {
    /// The amount of work done.
    pub work: usize,
    /// It is a sign of more to come.
    pub is_news: bool,
    /// A put or get of another node is half answered.
    pub serves: bool,
}

/// The poller's life: until it is told to stop.
pub fn run(shared: Arc<Shared>) {
    let me = Token::current();
    let word = shared.poller();
    let (mut seen, mut gathered) = (shared.turns(), 0);
    // In adaptive mode nobody waits for the poller's speed, so it goes to sleep at once.
    let wait = if shared.progress() == Progress::Poller { shared.wait() } else { Wait::Park };
    let mut gear = Gear::new(wait, None);
    // ... but where a put or get of another node is half answered, that node waits for each part of it.
    let mut hasty = Gear::new(Wait::Auto, None);
    let mut driven = 0_u32;
    while !word.stopped() {
        if shared.progress() != Progress::Poller {
            if word.relieved.load(Ordering::SeqCst) {
                let life = shared.reactor().life();
                word.sleep_while_relieved(if shared.reactor().is_asleep() { NOTHING_PENDING } else { STALLED });
                if shared.reactor().life() == life && word.relieved.load(Ordering::SeqCst) && !word.stopped() {
                    shared.stand_in(me, life);
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
                let leave_alone = if gathering != gathered { LEAVE_GATHERED } else { LEAVE_ALONE };
                (seen, gathered) = (turns, gathering);
                word.pause(leave_alone);
                continue;
            }
        }
        let Turned { work, is_news, serves } = shared.turn_poller(me);
        seen = shared.turns();
        if word.left.load(Ordering::Relaxed) {
            // Before the look: what is left after it says so again.
            word.left.store(false, Ordering::SeqCst);
            if shared.has_left_over(me) {
                word.left.store(true, Ordering::SeqCst);
            }
        }
        if work > 0 {
            if is_news {
                gear.awake();
            }
            hasty.awake();
            driven = driven.wrapping_add(1);
            if shared.progress() != Progress::Poller && driven.is_multiple_of(YIELD_TURNS) {
                // A thread of the application may be waiting for this very processor, to drive by itself.
                world::yield_now();
            }
            continue;
        }
        match if serves { hasty.step() } else { gear.step() } {
            Step::Again | Step::Expired => {}
            Step::Check => shared.check_peers(me),
            Step::Park(timeout) => {
                // If others turned the engine meanwhile, they are left alone.
                seen = shared.park_poller(me, timeout);
                gear.slept();
                hasty.slept();
            }
        }
    }
}
