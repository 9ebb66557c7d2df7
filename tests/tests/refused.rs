//! What can't be an atomic update is a compile error that says why, and what to write instead. `TRYBUILD=overwrite` writes the messages anew.
//!
//! What the macro says is the same with every compiler. What types are refused for, the compiler says, each version in its own words:
//! `refused/rustc` names the one that said what is recorded.

use std::process::Command;

#[test]
fn what_cannot_work_says_so() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/refused/syntax/*.rs");
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(&compiler).arg("--version").output().expect("a compiler, as cases are compiled");
    let (version, recorded) = (String::from_utf8_lossy(&version.stdout), include_str!("refused/rustc"));
    if version.trim() == recorded.trim() {
        cases.compile_fail("tests/refused/types/*.rs");
    } else {
        println!("skipped: refused/types, which is recorded with {}, and this is {}", recorded.trim(), version.trim());
    }
}
