//! Programs made of bytes: the recorded ones, and some random ones. `tests/fuzz` has a fuzzer make more.

use crate::protocol::sim::Dice;
use crate::protocol::sim::programs::{datagrams, sessions};
use std::path::Path;

fn kept(corpus: &str, run: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus").join(corpus);
    let mut files: Vec<_> = std::fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort_unstable();
    assert!(!files.is_empty());
    for file in files {
        println!("{}", file.display());
        run(&std::fs::read(file).unwrap());
    }
}

/// Runs random programs. `DOORBELL_PROGRAMS` sets how many, and `DOORBELL_SEED` which.
fn random(run: fn(&[u8])) {
    let number = |name, default| std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default);
    let seed: u64 = number("DOORBELL_SEED", 1);
    for program in 0..number("DOORBELL_PROGRAMS", 300) {
        // Printed first, since a failure may leave no time afterwards.
        println!("to see this again: DOORBELL_SEED={} DOORBELL_PROGRAMS=1", seed.wrapping_add(program));
        let mut dice = Dice::new(seed.wrapping_add(program));
        let bytes: Vec<u8> = (0..dice.below(600)).map(|_| dice.number() as u8).collect();
        run(&bytes);
    }
}

#[test]
fn kept_programs_of_datagrams_do_no_harm() {
    kept("udp_datagrams", datagrams);
}

#[test]
fn kept_programs_of_sessions_come_to_their_end() {
    kept("udp_sessions", sessions);
}

#[test]
fn random_programs_of_datagrams_do_no_harm() {
    random(datagrams);
}

#[test]
fn random_programs_of_sessions_come_to_their_end() {
    random(sessions);
}
