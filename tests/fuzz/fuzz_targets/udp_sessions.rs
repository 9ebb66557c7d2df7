//! The same programs as in `fabric-udp/src/protocol/tests/programs.rs`, made by a fuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|program: &[u8]| doorbell_udp::protocol::sim::programs::sessions(program));
