//! A peer that knows the layout and means harm. A process joins as an ordinary node, maps by itself whatever it can open, and writes
//! there, in one way after another. Its victim talks with an honest third node meanwhile: that traffic must stay whole and in order,
//! operations of the victim with the hostile node must end by their deadline, and memory to which no node has a key must stay as it was.
//!
//! That traffic must keep two thirds of its speed. Stretches of time in which blows are struck alternate with stretches in
//! which none are; each pair gives a ratio, and their median counts.
//!
//! `DOORBELL_HOSTILE_SECONDS` says how long each way takes, `DOORBELL_HOSTILE_SEED` seeds the choices: a failure prints its seed.

mod beside;
mod exhaust;
mod foe;
mod honest;
mod letters;
mod pair;
mod toll;
mod victim;
mod ways;

use doorbell_tests::domain::Domain;
use doorbell_tests::patience::{PATIENCE, eventually};
use doorbell_tests::process::{Process, told};
use doorbell_tests::random::seed_of;
use doorbell_tests::words::Words;
use doorbell_tests::{Turn, number};
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

doorbell_tests::roles! {
    "victim" => victim::stand,
    "honest" => honest::echo,
    "hostile" => foe::attack,
    "letters-victim" => letters::victim,
    "letters-honest" => letters::honest,
    "letters-hostile" => letters::hostile,
    "pair: serve" => pair::serve,
    "pair: flood" => exhaust::flood,
}

/// The ids of the nodes.
pub(crate) const VICTIM: u16 = 0;
pub(crate) const HONEST: u16 = 1;
pub(crate) const HOSTILE: u16 = 2;

/// The words that the processes share.
pub(crate) mod at {
    /// The hostile and the honest node are to end.
    pub const STOP: usize = 0;
    /// The address of a pattern in the victim's private memory. The hostile node knows it, and must not reach it.
    pub const PRIVATE: usize = 1;
    /// The victim's process.
    pub const PID: usize = 2;
    /// Messages that went to the honest node and back.
    pub const ECHOES: usize = 3;
    /// Operations of the victim with the hostile node that ended, and those of them that ended well.
    pub const OPERATIONS: usize = 4;
    pub const SUCCESSES: usize = 5;
    /// Lives of the hostile node, and blows it struck.
    pub const LIVES: usize = 6;
    pub const BLOWS: usize = 7;
    /// How often the victim was told that the hostile node broke the rules.
    pub const DAMAGED: usize = 8;
    /// How many of the victim and the honest node have found the other.
    pub const READY: usize = 9;
    /// The phase, and which one the hostile node last heard of.
    pub const PHASE: usize = 10;
    pub const HEARD: usize = 11;
    /// The cost of the attack: the ratio in thousandths, from how many pairs of stretches, and the nanoseconds that the honest node's
    /// messages took while it was attacked and while it was not.
    pub const RATIO: usize = 12;
    pub const PAIRS: usize = 13;
    pub const STRUCK: usize = 14;
    pub const CALM: usize = 15;
    pub const COUNT: usize = 16;
}

/// A bit of the phase: no blow is struck for now. The rest is the number of the victim's life.
pub(crate) const STILL: u64 = 1;

/// The longest wait of a node that is no hang.
pub(crate) const HANG: Duration = Duration::from_secs(20);

fn start(role: &str, domain: &Domain, words: &Words, way: &str, seed: u64) -> Process {
    let seconds = number("DOORBELL_HOSTILE_SECONDS", 1).to_string();
    let start = Process::start(role).tell("DOORBELL_DOMAIN", domain.name()).words(words);
    start.tell("HOSTILE_WAY", way).tell("DOORBELL_HOSTILE_SECONDS", seconds).tell("DOORBELL_HOSTILE_SEED", seed.to_string()).go()
}

/// The way of attack that this process takes part in, and its seed.
pub(crate) fn part() -> (String, u64) {
    (told("HOSTILE_WAY"), number("DOORBELL_HOSTILE_SEED", 0))
}

/// One way of attack, from the first node's joining to the last one's leaving.
fn attack_by(way: &str) {
    let _turn = Turn::take();
    let seed = seed_of("DOORBELL_HOSTILE_SEED");
    println!("{way}: DOORBELL_HOSTILE_SEED={seed}");
    let domain = Domain::new("hostile");
    let words = Words::new(at::COUNT);
    let victim = start("victim", &domain, &words, way, seed);
    let honest = start("honest", &domain, &words, way, seed);
    eventually("the two find each other", || words[at::READY].load(SeqCst) == 2);
    let mut lives = 0;
    let mut hostile: Option<Process> = None;
    let deadline = Instant::now() + Duration::from_secs(number("DOORBELL_HOSTILE_SECONDS", 1)) + 3 * HANG;
    // What it does to itself may end it; then there is another.
    while !victim.ended_by(Instant::now() + Duration::from_millis(20)) {
        assert!(Instant::now() < deadline, "the victim does not end: {way}, DOORBELL_HOSTILE_SEED={seed}");
        if hostile.as_ref().is_none_or(|hostile| hostile.ended_by(Instant::now())) {
            hostile = Some(start("hostile", &domain, &words, way, seed.wrapping_add(lives << 32)));
            lives += 1;
        }
    }
    let status = victim.end(PATIENCE);
    words[at::STOP].store(1, SeqCst);
    let honest = honest.end(PATIENCE);
    drop(hostile);
    let count = |word: usize| words[word].load(SeqCst);
    println!(
        "{way}: {} blows in {} lives; {} echoes; {} operations with the hostile node, of which {} succeeded; damaged {} times",
        count(at::BLOWS),
        count(at::LIVES),
        count(at::ECHOES),
        count(at::OPERATIONS),
        count(at::SUCCESSES),
        count(at::DAMAGED),
    );
    println!("{way}: {}", toll::told(&words));
    if let Err(error) = doorbell_shm::domain::clean(domain.space(), Some(domain.name()), true) {
        println!("{way}: {error}");
    }
    for (name, status) in [("victim", status), ("honest node", honest)] {
        let signal = status.signal().and_then(|number| nix::sys::signal::Signal::try_from(number).ok());
        assert!(status.success(), "{way}: the {name} ended by {status} ({signal:?}); DOORBELL_HOSTILE_SEED={seed}");
    }
    assert!(count(at::BLOWS) > 0 && count(at::OPERATIONS) > 0 && count(at::ECHOES) > 0, "{way}: nothing happened; seed {seed}");
    // How long something takes under a sanitizer says nothing: it makes allocations dear, and copies not.
    assert!(
        cfg!(sanitized) || count(at::PAIRS) < toll::ENOUGH as u64 || count(at::RATIO) <= toll::LIMIT,
        "{way}: the honest node's messages took too much longer under attack: {}; DOORBELL_HOSTILE_SEED={seed}",
        toll::told(&words)
    );
    domain.assert_empty();
}

macro_rules! ways {
    ($($way:ident),+ $(,)?) => { $(#[test] fn $way() { attack_by(stringify!($way)); })+ };
}

ways! {
    replay, indices, envelopes, descriptors, keys, meetings, loans, doorbells, directory, impersonate, bitflips, truncate, extend, locks,
    flood, services,
}
