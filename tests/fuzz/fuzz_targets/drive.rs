//! The same programs as in `tests/tests/fuzz.rs`, made by a fuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|program: &[u8]| doorbell_tests::drive::drive(program));
