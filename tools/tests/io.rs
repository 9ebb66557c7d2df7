//! `doorbell io`, as a user runs it.

mod as_usual;

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

fn doorbell(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_doorbell"));
    as_usual::ignoring(&mut command, &[]);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("DOORBELL_")) {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
fn done(output: Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// One line with a hint, and this exit code.
#[track_caller]
fn fails(output: &Output, code: i32, mention: &str) {
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert!(error.lines().count() == 1 && error.contains("; hint: ") && error.contains(mention), "{mention}: {error}");
}

/// A server, and its directory.
struct Served {
    child: Child,
    stdout: BufReader<ChildStdout>,
    directory: PathBuf,
    domain: String,
    said: String,
}

impl Served {
    fn start(what: &str, options: &[&str]) -> Self {
        let domain = format!("io-{what}-{}", std::process::id());
        let directory = Path::new("/dev/shm").join(&domain);
        fs::create_dir_all(directory.join("served")).unwrap();
        let served = directory.join("served");
        let mut args = vec!["io", "serve", served.to_str().unwrap(), "--domain", &domain];
        args.extend(options);
        let mut child = doorbell(&args).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        stdout.read_line(&mut said).unwrap();
        Self { child, stdout, directory, domain, said }
    }

    fn run(&self, args: &[&str]) -> Output {
        doorbell(args).args(["--domain", &self.domain]).output().unwrap()
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).to_str().unwrap().to_owned()
    }

    /// Its output when it is interrupted.
    fn end(mut self) -> String {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id() as i32), nix::sys::signal::Signal::SIGINT).unwrap();
        let mut said = String::new();
        self.stdout.read_to_string(&mut said).unwrap();
        assert!(self.child.wait().unwrap().success());
        said
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // One that was ended in good order left nothing.
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
            let _ = doorbell(&["clean", &self.domain]).output();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

#[test]
fn a_directory_is_served_and_used() {
    let served = Served::start("use", &[]);
    assert!(served.said.starts_with("node 0 of domain") && served.said.contains("interrupt it"), "{}", served.said);
    let data: Vec<u8> = (0..3_000_001_u32).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 24) as u8).collect();
    let (source, back) = (served.path("source"), served.path("back"));
    fs::write(&source, &data).unwrap();
    let said = done(served.run(&["io", "cp", &source, "io:", "--verify"]));
    assert!(said.contains("verified (XXH3 ") && said.contains("2.9 MiB"), "{said}");
    assert!(fs::read(served.path("served/source")).unwrap() == data);
    assert_eq!(done(served.run(&["io", "cp", "0:source", &back, "--verify", "--quiet"])), "");
    assert!(fs::read(&back).unwrap() == data);
    let whole = served.run(&["io", "cat", "io:source"]);
    assert!(whole.status.success() && whole.stdout == data);
    symlink("/etc/passwd", served.path("served/link")).unwrap();
    let listed = done(served.run(&["io", "ls", "--format", "json"]));
    let rows: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let seen: Vec<_> = rows.iter().map(|row| (row["name"].as_str().unwrap(), row["kind"].as_str().unwrap())).collect();
    assert_eq!(seen, [("link", "link"), ("source", "file")]);
    assert_eq!(rows[1]["bytes"], data.len());
    fails(&served.run(&["io", "cat", "io:link"]), 1, "cannot leave it");
    fails(&served.run(&["io", "cat", "io:nothing"]), 1, "os error 2");
    fails(&served.run(&["io", "cp", &source, "io:../x"]), 1, "os error 18");
    fails(&served.run(&["io", "cp", &source, &back]), 2, "io:PATH");
    fails(&served.run(&["io", "cat", &source]), 2, "file of this machine");
    fails(&served.run(&["io", "cat", "7:source"]), 1, "7");
    let ls = |form| done(doorbell(&["ls", &served.domain, "--devices", "--format", form]).output().unwrap());
    let seen: Value = serde_json::from_str(&ls("json")).unwrap();
    let device = &seen["devices"][0];
    assert_eq!((device["device"].as_str(), device["threads"][0]["receiver"]["node"].as_u64()), (Some("io.0"), Some(0)));
    assert!(device["received"].as_u64() > Some(10) && ls("table").contains("io.0"), "{seen}");
    let said = served.end();
    assert!(said.contains("requests done") && said.contains("0 clients lost"), "{said}");
}

#[test]
fn a_copy_spoils_nothing_that_is_there() {
    let served = Served::start("spoil", &["--other-file-systems"]);
    let data = vec![7_u8; 2_500_000];
    let (source, inside) = (served.path("source"), served.path("served/f"));
    fs::write(&source, &data).unwrap();
    fs::write(&inside, vec![9; 3_000_000]).unwrap();
    // A source that cannot be copied leaves the target as it is.
    let directory = served.path("served");
    fails(&served.run(&["io", "cp", "/dev/null", "io:f"]), 2, "no regular file");
    fails(&served.run(&["io", "cp", &directory, "io:f"]), 2, "no regular file");
    fails(&served.run(&["io", "cp", "io:.", &source]), 2, "no regular file");
    fails(&served.run(&["io", "cp", "io:nothing", &source]), 1, "os error 2");
    fails(&served.run(&["io", "cp", "/nothing-here", "io:f"]), 1, "the path is right");
    assert!(fs::read(&inside).unwrap().len() == 3_000_000 && fs::read(&source).unwrap() == data);
    // A longer one is cut.
    done(served.run(&["io", "cp", &source, "io:f", "--verify", "--sync", "--patience", "60"]));
    assert!(fs::read(&inside).unwrap() == data);
    // The very same file.
    done(served.run(&["io", "cp", &inside, "io:f", "--verify"]));
    assert!(fs::read(&inside).unwrap() == data);
    served.end();
}

#[test]
fn what_is_served_to_read_only_stays_as_it_is() {
    let served = Served::start("fixed", &["--read-only", "--engine", "plain"]);
    assert!(served.said.contains("to read only") && served.said.contains("plain calls"), "{}", served.said);
    let source = served.path("source");
    fs::write(&source, b"x").unwrap();
    fails(&served.run(&["io", "cp", &source, "io:y"]), 1, "read only");
    served.end();
}

#[test]
fn nobody_serves() {
    fails(&doorbell(&["io", "ls", "--domain", "io-nobody"]).output().unwrap(), 1, "doorbell io serve");
    fails(&doorbell(&["io", "serve", "/nothing-here", "--domain", "io-nowhere"]).output().unwrap(), 2, "No such file");
    fails(&doorbell(&["io", "serve", "/proc", "--domain", "io-nowhere"]).output().unwrap(), 2, "a file system of the kernel");
    fails(&doorbell(&["io", "ls", "--patience", "0"]).output().unwrap(), 2, "--patience");
}

#[test]
fn a_measurement_has_the_same_names_in_every_form() {
    let args =
        ["io", "bench", "--iterations", "20", "--rounds", "2", "--file", "1MiB", "--sizes", "4KiB,64KiB", "--op", "read,write"];
    let run = |form: &str| done(doorbell(&args).args(["--format", form]).output().unwrap());
    let json = run("json");
    let rows: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 4);
    for row in &rows {
        let of = |name: &str| row[name].as_f64().unwrap();
        assert!(of("calls") == 40.0 && of("ratio") > 0.0, "{row}");
        assert!((of("ratio") - of("p50_ns") / of("local_p50_ns")).abs() < 0.01, "{row}");
    }
    let csv = run("csv");
    let names: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    assert_eq!(csv.lines().count(), 5);
    assert!(names.len() == rows[0].as_object().unwrap().len() && names.iter().all(|name| rows[0].get(name).is_some()));
    assert!(run("table").contains("ratio"));
}
