//! The base of the tests that use Doorbell as its users do.
//!
//! 1. [`world`]: nodes of one process over any fabric and policy, for the conformance suite.
//! 2. [`pair`]: two nodes, near or far, or with several links between them.
//! 3. [`domain`]: a domain name of its own for every test, which fails if files of the domain are left.
//! 4. [`process`]: other processes: the test binary started again with a role to play.
//! 5. [`words`]: words that several processes share outside Doorbell, to compare results.
//! 6. [`drive`]: programs made of bytes, for fuzzing.
//! 7. [`files`]: a directory, and an I/O node that serves it.
//! 8. [`in_place`]: receives in place that compile once.
//! 9. [`turning`]: threads that only turn an engine.
//! 10. [`random`], [`pattern`], [`patience`], [`steps`]: seeded numbers, bytes whose corruption shows, deadlines, and steps none of which may stall.
//!
//! Environment: `DOORBELL_SEED` seeds everything that is random (failures print it); `DOORBELL_KILLS`,
//! `DOORBELL_PINGPONGS`, `DOORBELL_REPEATS`, `DOORBELL_BULK_MIB`, `DOORBELL_NETWORK_MIB`, `DOORBELL_PROGRAMS` and
//! `DOORBELL_HOSTILE_SECONDS` make some tests longer. `DOORBELL_LETTERS` is the number of requests that a node sends which reads none.
//! `DOORBELL_STORM_SECONDS` is the length of the storm over a device.
//! `DOORBELL_CASES` is the number of cases of a property test.
//! The hostile peer has a seed of its own, `DOORBELL_HOSTILE_SEED`; `DOORBELL_EXHAUST` is the number of packets of its floods.

pub mod domain;
pub mod drive;
pub mod files;
pub mod in_place;
pub mod pair;
pub mod patience;
pub mod pattern;
pub mod process;
pub mod random;
pub mod steps;
pub mod turning;
pub mod words;
pub mod world;

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Any free port of the loopback interface.
pub const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The right to use the whole machine. A test that starts several processes holds it; others wait for their turn, in this
/// process and in every other one of this checkout.
pub struct Turn {
    _lock: Option<File>,
}

impl Turn {
    /// Waits for the turn.
    pub fn take() -> Self {
        // A lock on the crate's directory needs no file of its own.
        let lock = File::open(env!("CARGO_MANIFEST_DIR")).ok().filter(|directory| directory.lock().is_ok());
        Self { _lock: lock }
    }
}

/// A number from the environment, or `otherwise`.
pub fn number(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(word) => word.parse().unwrap_or_else(|_| panic!("{name}={word} is not a number")),
        Err(_) => otherwise,
    }
}

/// The number of processors that this process may use.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}
