//! What can't be an atomic update is a compile error that says why, and what to write instead. The text file beside each case holds what the compiler
//! says of it: places in the case, messages, and notes. `DOORBELL_RECORD=1` writes those files anew.
//!
//! The compiler checks the cases against the build of the library that this program was linked with, so that nothing else is compiled.
//!
//! The messages of the macro are the same with every compiler. Those of refused types are in the compiler's own words, which differ from version to
//! version: `refused/rustc` names the version that they were recorded with.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// This one compiles.
const CONTROL: &str = "tests/refused/control.rs";

/// The compiler, and the builds of the library and of zerocopy that belong together.
struct Compiler {
    builds: PathBuf,
    externs: [PathBuf; 2],
}

impl Compiler {
    fn find() -> Self {
        let builds = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        let (libraries, derives) = (newest_first(&builds, "libdoorbell-"), newest_first(&builds, "libzerocopy-"));
        let pairs = libraries.iter().flat_map(|library| derives.iter().map(move |derive| [library.clone(), derive.clone()]));
        // A directory may hold builds with other features, and old ones. The newest that compiles the control has the sources of this program.
        let compilers = pairs.map(|externs| Self { builds: builds.clone(), externs });
        let found = compilers.into_iter().find(|compiler| compiler.check(Path::new(CONTROL)).status.success());
        found.unwrap_or_else(|| panic!("no library in {} compiles {CONTROL}: {libraries:?}, {derives:?}", builds.display()))
    }

    fn command() -> Command {
        Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
    }

    fn check(&self, case: &Path) -> Output {
        let [library, derive] = &self.externs;
        let mut command = Self::command();
        command.args(["--edition=2024", "--crate-type=bin", "--emit=metadata", "--error-format=json"]).arg(case);
        command.arg("--out-dir").arg(env!("CARGO_TARGET_TMPDIR"));
        command.arg("--extern").arg(format!("doorbell={}", library.display()));
        command.arg("--extern").arg(format!("zerocopy={}", derive.display()));
        command.arg("-L").arg(format!("dependency={}", self.builds.display()));
        command.output().expect("a compiler, as cases are compiled")
    }

    /// The messages for a case that does not compile.
    fn says(&self, case: &Path) -> String {
        let output = self.check(case);
        assert!(!output.status.success(), "{} compiles", case.display());
        let lines = String::from_utf8(output.stderr).unwrap();
        let errors = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|_| panic!("{lines}")));
        errors.filter(|error| error["level"] == "error").filter_map(|error| told(&error)).collect::<Vec<_>>().join("\n")
    }
}

/// Libraries whose names begin so.
fn newest_first(builds: &Path, name: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(builds).unwrap().map(|file| file.unwrap().path());
    let is_one = |path: &PathBuf| {
        path.file_name().unwrap().to_string_lossy().starts_with(name) && path.extension().is_some_and(|end| end == "rlib")
    };
    let mut found: Vec<_> = files.filter(is_one).collect();
    found.sort_by_key(|path| std::cmp::Reverse(fs::metadata(path).unwrap().modified().unwrap()));
    found
}

/// One error. None for those that count the others.
fn told(error: &Value) -> Option<String> {
    let text = |value: &Value| value["message"].as_str().unwrap().to_owned();
    let spans = error["spans"].as_array().unwrap();
    let primary = spans.iter().find(|span| span["is_primary"] == true)?;
    let code = error["code"]["code"].as_str().map_or(String::new(), |code| format!("[{code}]"));
    let at = ["line_start", "column_start", "column_end"].map(|name| primary[name].to_string());
    let [line, begin, end] = at;
    let mut told = format!("{line}:{begin}-{end} error{code}: {}\n", text(error));
    if let Some(label) = primary["label"].as_str() {
        told += &format!("    here: {label}\n");
    }
    for child in error["children"].as_array().unwrap() {
        // Those with a place in the library change with it, and so does the list of types that would do.
        let is_own = child["spans"].as_array().unwrap().is_empty() && !text(child).starts_with("the following other types");
        if is_own {
            told += &format!("    {}: {}\n", child["level"].as_str().unwrap(), text(child));
        }
    }
    Some(told)
}

/// The cases of a directory whose messages are not those recorded.
fn faults(compiler: &Compiler, directory: &str) -> Vec<String> {
    let files = fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
    let mut cases: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "rs")).collect();
    cases.sort();
    assert!(!cases.is_empty(), "no cases in {directory}");
    let mut faults = Vec::new();
    for case in cases {
        let (says, recorded) = (compiler.says(&case), case.with_extension("txt"));
        if std::env::var_os("DOORBELL_RECORD").is_some() {
            fs::write(&recorded, &says).unwrap();
        }
        let expected = fs::read_to_string(&recorded).unwrap_or_default();
        if says != expected {
            faults.push(format!("{}: the compiler says\n\n{says}and this is recorded\n\n{expected}", case.display()));
        }
    }
    faults
}

#[test]
fn what_cannot_work_says_so() {
    let compiler = Compiler::find();
    let mut found = faults(&compiler, "tests/refused/syntax");
    let version = Compiler::command().arg("--version").output().expect("a compiler, as cases are compiled");
    let (version, recorded) = (String::from_utf8_lossy(&version.stdout), include_str!("refused/rustc"));
    if version.trim() == recorded.trim() {
        found.extend(faults(&compiler, "tests/refused/types"));
    } else {
        println!("skipped: refused/types, which is recorded with {}, and this is {}", recorded.trim(), version.trim());
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
