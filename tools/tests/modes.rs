//! `doorbell modes` as a user runs it. No time is asserted, only forms, and that all came.

mod as_usual;

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn run(args: &[&str]) -> Output {
    run_with_leftovers(args).0
}

/// The output, and the segments of its domain that are left afterwards.
fn run_with_leftovers(args: &[&str]) -> (Output, Vec<String>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_doorbell"));
    as_usual::ignoring(&mut command, &[]);
    command.arg("modes").args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let domain = format!("modes-{}", child.id());
    let output = child.wait_with_output().unwrap();
    let names = std::fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    (output, names.filter(|name| name.split('.').nth(2) == Some(&domain)).collect())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A file that goes with the value.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("doorbell-modes-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn mistakes_get_one_line_with_a_hint() {
    let unknown = File::new("unknown.json", "{\"name\": \"n\",\n \"phases\": [{\"name\": \"p\", \"massages\": 1}]}");
    let nonsense = File::new("nonsense.json", "messages: many");
    let short = File::new("short.json", r#"{"name": "n", "phases": [{"name": "p", "messages": 1, "sizes": 8}]}"#);
    let cases: [(&[&str], &str); 9] = [
        (&[unknown.path()], "unknown.json, line 2, column 36: unknown field `massages`, expected one of"),
        (&[nonsense.path()], "nonsense.json, line 1, column 1: expected value"),
        (&[short.path()], "phase 'p': a size is 8"),
        (&["/no/such/load.json"], "cannot read the load /no/such/load.json"),
        (&["--scale", "0"], "it is no factor from 0.0001 to 1000"),
        (&["--pin", "0,1023"], "processor 1023 is not there"),
        (&["--save", "x.json"], "--generate"),
        (&["--report", "/no/such/place/page.html"], "cannot write /no/such/place/page.html"),
        (&["--only", "tcp"], "it can be policy, shm/0/transfer"),
    ];
    for (args, mention) in cases {
        let output = run(args);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.starts_with("doorbell: error: ") && error.lines().count() == 1 && error.contains("hint: "), "{error}");
        assert!(error.contains(mention), "'{mention}' is missing in {error}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn all_of_a_load_arrives_by_every_mode_and_the_page_shows_it() {
    let page = File::new("page.html", "");
    let (output, left) = run_with_leftovers(&["--scale", "0.02", "--rounds", "1", "--format", "json", "--report", page.path()]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let objects: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |what: &'static str, load: &'static str| {
        objects.iter().filter(move |object| object["what"] == what && object["load"] == load)
    };
    let html = std::fs::read_to_string(page.path()).unwrap();
    assert!(
        html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>\n") && !html.contains("http:") && !html.contains("https:")
    );
    for (load, messages, phases) in [("bursts", 3600, 3), ("mixed", 360, 3), ("bulk", 44, 3)] {
        let ways: Vec<_> = of("way", load).map(|way| way["way"].as_str().unwrap()).collect();
        assert_eq!(ways[0], "policy thresholds");
        let missing: Vec<_> = of("missing", load).map(|way| way["way"].as_str().unwrap()).collect();
        assert_eq!(ways.len() + missing.len(), 7, "{ways:?} {missing:?}");
        for always in ["shm/0/transfer", "udp/0/transfer", "udp/0/put"] {
            assert!(ways.contains(&always), "{ways:?}");
        }
        for way in of("way", load) {
            let used: u64 = way["used"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
            assert_eq!((way["messages"].as_u64(), used), (Some(messages), messages), "{way}");
            assert!(way["p50_ns"].as_f64() <= way["p99_ns"].as_f64() && way["total_ns"].as_f64() > Some(0.0), "{way}");
        }
        assert_eq!(of("phase", load).count(), phases * ways.len());
        for phase in of("phase", load) {
            assert!(html.contains(phase["phase"].as_str().unwrap()), "{phase}");
        }
        let verdict = of("verdict", load).next().unwrap();
        assert!(verdict["total"]["ratio"].is_number() && verdict["p99"]["ratio"].is_number(), "{verdict}");
        let timeline = of("timeline", load).next().unwrap();
        let spans = timeline["timeline"]["spans"].as_array().unwrap();
        let counted = spans.iter().flat_map(|span| span["modes"].as_array().unwrap()).flat_map(|link| link.as_array().unwrap());
        let counted: u64 = counted.map(|count| count.as_u64().unwrap()).sum();
        // The background is asked about, too; and of all that is queued again and again.
        assert!(counted >= messages && spans.len() <= 128, "{counted}");
    }
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_load_by_chance_is_kept_and_is_the_same_again() {
    let kept = File::new("kept.json", "");
    let args = ["--generate", "5", "--save", kept.path(), "--scale", "0.01", "--rounds", "1", "--only", "policy,shm/0/transfer"];
    let output = run(&args);
    assert_eq!((output.status.code(), text(&output.stderr).lines().next()), (Some(0), Some("the load of seed 5")));
    let table = text(&output.stdout);
    assert!(table.starts_with("random-5: ") && table.contains("policy's total / best of one mode (shm/0/transfer)"), "{table}");
    let again = run(&[kept.path(), "--scale", "0.01", "--rounds", "1", "--only", "shm/0/transfer", "--format", "json"]);
    let first: Value = serde_json::from_str(text(&again.stdout).lines().next().unwrap()).unwrap();
    assert_eq!((&first["load"], &first["way"]), (&"random-5".into(), &"shm/0/transfer".into()));
}

#[test]
fn a_goal_that_cannot_be_met_is_a_failure_with_check() {
    // Under a policy that does as asked, by the only mode that it stands beside: its p99 is no half of that.
    let load =
        File::new("one.json", r#"{"name": "one", "phases": [{"name": "p", "messages": 2000, "sizes": 64, "every_us": 50}]}"#);
    let args = [load.path(), "--policy", "asked", "--only", "policy,shm/0/transfer", "--rounds", "3", "--check"];
    let output = run(&args);
    let error = text(&output.stderr);
    let met = text(&output.stdout).matches(": met\n").count();
    assert_eq!(output.status.code(), Some(if met == 2 { 0 } else { 1 }), "{error}");
    assert_eq!(error.contains("goals were not met: one: "), met < 2, "{error}");
}
