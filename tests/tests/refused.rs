//! What can't be an atomic update is a compile error that says why, and what to write instead. `TRYBUILD=overwrite` writes the messages anew.

#[test]
fn what_cannot_work_says_so() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/refused/syntax/*.rs");
    cases.compile_fail("tests/refused/types/*.rs");
}
