//! Programs made of bytes: those that were kept, and some that are random. `tests/fuzz` has them made by a fuzzer.

use doorbell_tests::drive::drive;
use doorbell_tests::number;
use doorbell_tests::random::{Random, seed};
use std::path::Path;

#[test]
fn programs_that_were_kept_do_no_harm() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/drive");
    let mut files: Vec<_> = std::fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort_unstable();
    assert!(!files.is_empty());
    for file in files {
        println!("{}", file.display());
        drive(&std::fs::read(file).unwrap());
    }
}

/// `DOORBELL_PROGRAMS` says how many, `DOORBELL_SEED` which.
#[test]
fn random_programs_do_no_harm() {
    let (seed, programs) = (seed(), number("DOORBELL_PROGRAMS", 300));
    for program in 0..programs {
        // Printed before, as what goes wrong may leave no time afterwards.
        println!("to see this again: DOORBELL_SEED={} DOORBELL_PROGRAMS=1", seed.wrapping_add(program));
        let mut random = Random::new(seed.wrapping_add(program));
        let len = random.below(3000);
        let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        drive(&bytes);
    }
}
