//! No import points in a direction that the picture of ARCHITECTURE.md does not have.

use doorbell_house::{Crates, Rooms, Source, faults};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How many files of one folder may import each other in a circle.
const MOST_IN_A_CIRCLE: usize = 6;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn picture() -> String {
    std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md")
}

#[test]
fn the_crates_depend_on_each_other_as_the_picture_says() {
    let cargo = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output();
    let cargo = cargo.expect("cargo");
    assert!(cargo.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&cargo.stderr));
    let faults =
        Crates::read(&picture()).expect("the picture").faults(&String::from_utf8(cargo.stdout).expect("text")).expect("metadata");
    assert!(faults.is_empty(), "dependencies that the picture in ARCHITECTURE.md does not have: {faults:#?}");
}

/// The crates of the driver: each name, its source folder, and its rooms.
fn driver() -> Vec<(String, PathBuf, Rooms)> {
    let engine = ("engine".to_owned(), root().join("driver/engine/src"), Rooms::read(&picture()).expect("the picture"));
    let services = std::fs::read_dir(root().join("driver/services")).expect("the services").map(|entry| {
        let folder = entry.expect("a service").path();
        (folder.file_name().expect("a name").to_string_lossy().into_owned(), folder.join("src"), Rooms::one())
    });
    services.chain([engine]).collect()
}

#[test]
fn the_rooms_of_the_driver_import_each_other_as_the_picture_says() {
    let found: BTreeSet<String> = driver()
        .into_iter()
        .flat_map(|(name, folder, rooms)| {
            let source = Source::read(&folder).expect("the driver's source");
            let found = faults(&rooms, &source, MOST_IN_A_CIRCLE).expect("each file has a room");
            found.into_iter().map(move |fault| format!("{name}: {fault}"))
        })
        .collect();
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("exceptions.txt");
    if std::env::var_os("DOORBELL_RECORD").is_some() {
        let text: String = found.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(&list, text).expect("the list of exceptions");
    }
    let listed = std::fs::read_to_string(&list).expect("the list of exceptions");
    let listed: BTreeSet<String> = listed.lines().map(str::to_owned).collect();
    let new: Vec<_> = found.difference(&listed).collect();
    assert!(new.is_empty(), "imports that the picture in ARCHITECTURE.md forbids; move the name down or pass it in: {new:#?}");
    let gone: Vec<_> = listed.difference(&found).collect();
    assert!(gone.is_empty(), "these exceptions are no longer needed; take them off {}: {gone:#?}", list.display());
}

/// Calls that reach the outside world past `doorbell_fabric::world`.
const DIRECT: [&str; 9] = [
    "Instant::now",
    "SystemTime::now",
    "UNIX_EPOCH.elapsed",
    ".elapsed()",
    "thread::sleep",
    "thread::yield_now",
    "thread::park",
    "thread::spawn",
    "thread::Builder",
];

/// Lines of a file that call the outside world past `doorbell_fabric::world`. Tests and models may.
fn direct_calls(text: &str) -> Vec<&str> {
    let lines = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]") && !line.starts_with("#[cfg(all(test"));
    let is_direct = |line: &&str| {
        let code = line.split("//").next().unwrap_or_default();
        !code.contains("tokio::") && !code.contains("loom::") && DIRECT.iter().any(|call| code.contains(call))
    };
    lines.filter(is_direct).collect()
}

#[test]
fn the_outside_world_comes_in_through_one_module() {
    fn visit(folder: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder of the driver") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            if path.is_dir() && name != "tests" {
                visit(&path, found);
            } else if name.ends_with(".rs") && name != "tests.rs" {
                let text = std::fs::read_to_string(&path).expect("text");
                found.extend(direct_calls(&text).iter().map(|line| format!("{}: {}", path.display(), line.trim())));
            }
        }
    }
    let mut found = Vec::new();
    driver().iter().for_each(|(_, folder, _)| visit(folder, &mut found));
    assert!(found.is_empty(), "these lines should call doorbell_fabric::world: {found:#?}");
    assert_eq!(
        direct_calls("let now = Instant::now();\n#[cfg(test)]\nmod tests { fn f() { Instant::now(); } }"),
        ["let now = Instant::now();"]
    );
}

fn sample(upper: &str, lower: &str) -> BTreeSet<String> {
    let rooms = Rooms::read("```rooms\nlower: low\nupper: up\n```\n").expect("rooms");
    let mut source = Source::default();
    for (module, text) in [("lib", "mod low; mod up;"), ("up", upper), ("low", lower)] {
        source.add(module, text).expect("Rust");
    }
    faults(&rooms, &source, MOST_IN_A_CIRCLE).expect("rooms for all")
}

#[test]
fn an_import_that_points_up_is_found_in_each_form() {
    let upper = "pub struct Name; pub use crate::low::Base;";
    assert_eq!(sample(upper, "pub struct Base;"), BTreeSet::new(), "an import that points down");
    for lower in [
        "use crate::up::Name;",
        "use crate::up::Name as Other;",
        "use super::up::{self, Name};",
        "use crate::up::*;",
        "fn f() { let _ = crate::up::Name; }",
        "fn f() -> Option<crate::up::Name> { None }",
        "fn f() { println!(\"{:?}\", crate::up::Name); }",
        "mod inner { use super::super::up::Name; }",
    ] {
        assert!(sample("pub struct Name;", lower).iter().any(|fault| fault.starts_with("low -> up")), "{lower}");
    }
    for lower in ["#[cfg(test)] mod tests { use crate::up::Name; }", "use std::fmt;", "mod up {} "] {
        assert_eq!(sample("pub struct Name;", lower), BTreeSet::new(), "{lower}");
    }
}

#[test]
fn a_re_export_leads_to_the_file_that_defines_the_name() {
    // `low` imports by way of `up`, which only passes on a name of `low`'s own room.
    assert_eq!(sample("pub use crate::low::Base;", "pub struct Base; fn f(_: crate::up::Base) {}"), BTreeSet::new());
}

#[test]
fn a_circle_across_folders_is_found() {
    let found = sample("use crate::low::Base; pub struct Name;", "use crate::up::Name; pub struct Base;");
    assert_eq!(found.len(), 1, "both lie in the root folder, so only the arrow counts: {found:?}");
    let mut source = Source::default();
    source.add("a/one", "use crate::b::two::Two; pub struct One;").expect("Rust");
    source.add("b/two", "use crate::a::one::One; pub struct Two;").expect("Rust");
    let rooms = Rooms::read("```rooms\nall: a b\n```\n").expect("rooms");
    let found = faults(&rooms, &source, MOST_IN_A_CIRCLE).expect("rooms for all");
    assert_eq!(found, BTreeSet::from(["circle of 2 files in a, b".to_owned()]));
}
