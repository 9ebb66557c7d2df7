//! Starts the command, and looks for its remains.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The command with these arguments, and without the variables of Doorbell in its environment.
pub fn doorbell(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_doorbell"));
    super::as_usual::ignoring(&mut command, &[]);
    command.args(args).env("NO_COLOR", "1");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("DOORBELL_")) {
        command.env_remove(name);
    }
    command
}

/// The output of a command.
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

/// Runs the command to its end.
pub fn ended(args: &[&str]) -> Ended {
    doorbell(args).output().expect("the command starts").into()
}

/// The lines of a text in a certain order.
pub fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

/// A name that no other test has.
pub fn domain(what: &str) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("test-{what}-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// The files in shared memory whose names hold this.
pub fn segments(part: &str) -> Vec<String> {
    let names = fs::read_dir("/dev/shm").expect("there is shared memory").flatten();
    names.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| name.contains(part)).collect()
}

/// How many nodes of a domain have joined: each has a board.
pub fn boards(domain: &str) -> usize {
    segments(domain).iter().filter(|name| name.ends_with(".board")).count()
}

/// The living processes that have this in their environment or among their arguments.
pub fn processes(part: &str) -> Vec<i32> {
    let numbers = fs::read_dir("/proc").expect("there is /proc").flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let has = |number: &i32, file: &str| {
        let text = fs::read(format!("/proc/{number}/{file}")).unwrap_or_default();
        text.windows(part.len()).any(|window| window == part.as_bytes())
    };
    numbers.filter(|number| *number != std::process::id() as i32 && (has(number, "environ") || has(number, "cmdline"))).collect()
}

/// Waits until this is so; fails if it does not come true.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} does not come true");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Fails unless neither processes nor segments of this domain are left, or will be in a moment.
pub fn nothing_is_left(domain: &str) {
    eventually(&format!("that no process of {domain} is left"), || processes(domain).is_empty());
    eventually(&format!("that no segment of {domain} is left"), || segments(domain).is_empty());
}

/// Sends a signal to a process that a test started.
pub fn send(signal: i32, process: u32) {
    // SAFETY: touches no memory; the process is a child that was not waited for, so its number is its own.
    assert_eq!(unsafe { libc::kill(process as i32, signal) }, 0);
}

/// The path of the example `ring`, as a word of a command line.
pub fn ring() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| example("ring"))
}

/// The path of an example of the library.
pub fn example(name: &str) -> String {
    let directory = PathBuf::from(env!("CARGO_BIN_EXE_doorbell")).parent().expect("a directory").to_owned();
    let path = directory.join("examples").join(name);
    // A test of the whole workspace has built it already.
    if !path.exists() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "doorbell", "--example", name, "--target-dir"]);
        cargo.arg(directory.parent().expect("a directory"));
        if directory.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().expect("cargo starts").success());
    }
    path.to_str().expect("text").to_owned()
}

/// A node that stays until it is killed: it waits for a second one, or passes a token on for ever.
pub fn node(name: &str, id: u16, nodes: u16) -> Child {
    let mut command = Command::new(ring());
    command.arg("1000000000").env("DOORBELL_DOMAIN", name).env("DOORBELL_NODES", nodes.to_string());
    command.env("DOORBELL_NODE", id.to_string()).env("DOORBELL_ROLE", if id == 0 { "host" } else { "accelerator" });
    let child = command.env("DOORBELL_WAIT", "park").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("that the node is there", || segments(&format!("{name}.{id}.board")).len() == 1);
    child
}

/// Kills a node that a test started.
pub fn kill(mut child: Child) {
    send(libc::SIGKILL, child.id());
    child.wait().unwrap();
}
