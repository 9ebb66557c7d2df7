//! What packages need before they can be published. `.ci/run packages` makes and builds them, which takes minutes.

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The packages that are for this repository alone.
const PRIVATE: [&str; 6] =
    ["doorbell-example-service", "doorbell-house", "doorbell-outsider", "doorbell-pages", "doorbell-plug-in", "doorbell-tests"];

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Whether `cargo publish` takes this package.
fn is_published(package: &Value) -> bool {
    package["publish"].is_null()
}

/// The faults of the packages, from the output of `cargo metadata --no-deps`.
fn faults(metadata: &Value) -> BTreeSet<String> {
    let packages: Vec<&Value> = metadata["packages"].as_array().into_iter().flatten().collect();
    let all: BTreeSet<&str> = packages.iter().map(|package| text(package, "name")).collect();
    let private: BTreeSet<&str> =
        packages.iter().filter(|package| !is_published(package)).map(|package| text(package, "name")).collect();
    let mut faults = BTreeSet::new();
    if private != BTreeSet::from(PRIVATE) {
        faults.insert(format!("private are {private:?}, and should be {PRIVATE:?}"));
    }
    for package in packages.iter().filter(|package| is_published(package)) {
        let name = text(package, "name");
        let folder = Path::new(text(package, "manifest_path")).parent().expect("a folder");
        for key in ["description", "license", "readme", "rust_version"] {
            if text(package, key).is_empty() {
                faults.insert(format!("{name}: no {key}"));
            }
        }
        for file in ["LICENSE-APACHE", "LICENSE-MIT", text(package, "readme")] {
            if !folder.join(file).is_file() {
                faults.insert(format!("{name}: there is no file {file}"));
            }
        }
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let (to, is_dev, any) = (text(dependency, "name"), dependency["kind"] == "dev", dependency["req"] == "*");
            if !is_dev && private.contains(to) {
                faults.insert(format!("{name} depends on {to}, which is not published"));
            }
            if !is_dev && any {
                faults.insert(format!("{name} depends on {to} without a version"));
            }
            // The registry would ask for these first, and they depend on this one.
            if is_dev && all.contains(to) && to != "doorbell-benches" && !any {
                faults.insert(format!("{name}: the tests depend on {to} with a version; give a path alone"));
            }
        }
    }
    faults
}

#[test]
fn packages_can_be_published() {
    let cargo = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .output()
        .expect("cargo");
    assert!(cargo.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&cargo.stderr));
    let metadata: Value = serde_json::from_slice(&cargo.stdout).expect("metadata");
    assert_eq!(faults(&metadata), BTreeSet::new());
}

#[test]
fn each_fault_of_a_package_is_found() {
    let metadata = serde_json::json!({ "packages": [
        { "name": "doorbell-tests", "publish": [] },
        {
            "name": "a", "publish": null, "manifest_path": "/none/Cargo.toml", "description": "", "license": "MIT", "readme": "no.md",
            "rust_version": "1.90",
            "dependencies": [
                { "name": "doorbell-tests", "kind": null, "req": "*" },
                { "name": "a", "kind": "dev", "req": "^0.1.0" },
            ],
        },
    ] });
    let faults = faults(&metadata);
    let expected = [
        "private are",
        "a: no description",
        "a: there is no file LICENSE-MIT",
        "a: there is no file no.md",
        "a depends on doorbell-tests, which",
        "a depends on doorbell-tests without",
        "a: the tests depend on a with",
    ];
    for start in expected {
        assert!(faults.iter().any(|fault| fault.starts_with(start)), "{start}: {faults:#?}");
    }
    assert_eq!(faults.len(), expected.len() + 1, "{faults:#?}");
}
