//! Doorbell as its users meet it: what the tests of this crate stand on.
//!
//! 1. [`world`]: nodes of one process over any fabric and policy, for the conformance suite.
//! 2. [`pair`]: two nodes with several links between them, for the tests of modes.
//! 3. [`domain`]: a domain name of its own for every test, and the proof that nothing of it is left.
//! 4. [`process`]: other processes, made by starting the test binary anew with a role to play.
//! 5. [`words`]: words that several processes share beside Doorbell, to compare notes.
//! 6. [`drive`]: programs made of bytes, for fuzzing.
//! 7. [`files`]: a directory, and an I/O node that serves it.
//! 8. [`random`], [`pattern`], [`patience`], [`steps`]: seeded numbers, bytes that tell when they are wrong, deadlines, and steps of which none may stall.
//!
//! Environment: `DOORBELL_SEED` seeds everything that is random (failures print it); `DOORBELL_KILLS`,
//! `DOORBELL_PINGPONGS`, `DOORBELL_REPEATS`, `DOORBELL_BULK_MIB`, `DOORBELL_NETWORK_MIB`, `DOORBELL_PROGRAMS` and
//! `DOORBELL_HOSTILE_SECONDS` make the long forms of some tests. `DOORBELL_LETTERS` says how many letters a node sends that reads none.
//! `DOORBELL_STORM_SECONDS` says for how long the storm over a device goes on.
//! `DOORBELL_CASES` says of how many cases the tests of properties are.
//! The hostile peer has a seed of its own, `DOORBELL_HOSTILE_SEED`; `DOORBELL_EXHAUST` says how many packets its floods have.

pub mod domain;
pub mod drive;
pub mod files;
pub mod pair;
pub mod patience;
pub mod pattern;
pub mod process;
pub mod random;
pub mod steps;
pub mod words;
pub mod world;

use std::fs::File;

/// Held by a test that needs the machine for itself, as it starts several processes; others wait for their turn, in this
/// process and in any other of this checkout.
pub struct Turn {
    _lock: Option<File>,
}

impl Turn {
    /// Waits for the turn.
    pub fn take() -> Self {
        // The lock is on the crate's directory: nothing has to be made, and nothing is left.
        let lock = File::open(env!("CARGO_MANIFEST_DIR")).ok().filter(|directory| directory.lock().is_ok());
        Self { _lock: lock }
    }
}

/// A number from the environment, or this one.
pub fn number(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(word) => word.parse().unwrap_or_else(|_| panic!("{name}={word} is not a number")),
        Err(_) => otherwise,
    }
}

/// How many processors this process may use.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}
