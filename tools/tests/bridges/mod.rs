//! Bridges as processes, and sockets that do not wait for ever.

use super::as_usual;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The timeout of every step.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn doorbell(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_doorbell"));
    as_usual::ignoring(&mut command, &[]);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("DOORBELL_")) {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// One line with a hint, and this exit code.
#[track_caller]
pub fn fails(output: &Output, code: i32, mention: &str) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert!(error.lines().count() == 1 && error.contains("; hint: ") && error.contains(mention), "{mention}: {error}");
}

/// A name that no other test has.
pub fn domain(what: &str) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("bridge-{what}-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// A directory that is removed when this is dropped.
pub struct Directory(PathBuf);

pub fn directory(what: &str) -> Directory {
    let path = std::env::temp_dir().join(domain(what));
    fs::create_dir_all(&path).unwrap();
    Directory(path)
}

impl Directory {
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn fixed(count: usize) -> Value {
    count.into()
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The next connection, which has to come within the timeout.
pub fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).unwrap();
    let mut accepted = None;
    eventually("a connection", || {
        accepted = listener.accept().ok();
        accepted.is_some()
    });
    let (stream, _) = accepted.unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Waits until this is so; fails if it does not come true.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} does not come true");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Runs it in a thread of its own.
pub fn finishes<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    thread::Builder::new().name(what.into()).spawn(run).unwrap()
}

/// A process that ends with its test, as do its segments.
pub struct Process(Child, Option<String>);

impl Process {
    pub fn spawn(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap(), None)
    }

    /// A bridge of a domain, that is heard.
    pub fn heard(args: &[&str], domain: &str) -> Self {
        Self(doorbell(&["bridge"]).args(args).args(["--domain", domain]).spawn().unwrap(), Some(domain.to_owned()))
    }

    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    /// The output of a process that ends by itself.
    pub fn ended(mut self) -> Output {
        eventually("that the process ends", || self.has_ended());
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        self.0.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
        self.0.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
        Output { status: self.0.wait().unwrap(), stdout, stderr }
    }

    pub fn first_line(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line
    }

    pub fn send(&self, signal: i32) {
        // SAFETY: touches no memory; the process is a child that was not waited for, so its number is its own.
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, signal) }, 0);
    }

    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that ended in good order left nothing.
        if !matches!(self.0.try_wait(), Ok(Some(_))) {
            self.kill();
            let _ = self.1.take().map(|domain| doorbell(&["clean", &domain]).output());
        }
    }
}

/// By which fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Shm,
    Udp,
}

impl Way {
    /// Of the first bridge, and of both.
    pub fn options(self) -> [Vec<&'static str>; 2] {
        match self {
            Way::Shm => [vec![], vec!["--fabric", "shm"]],
            Way::Udp => [vec!["--listen", "127.0.0.1:0"], vec!["--fabric", "udp"]],
        }
    }

    /// How many words tell the second where the first is.
    pub fn words(self) -> usize {
        if self == Way::Udp { 2 } else { 0 }
    }
}

/// A bridge that runs.
pub struct Bridge {
    process: Process,
    stdout: BufReader<ChildStdout>,
    stderr: (Arc<Mutex<String>>, JoinHandle<()>),
    /// Its first line.
    pub said: Value,
}

impl Bridge {
    /// Starts one, and waits until it carries.
    pub fn start(args: &[&str]) -> Self {
        let mut command = doorbell(&["bridge", "--format", "json"]);
        let mut child = command.args(args).env("DOORBELL_LOG", "debug").spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let domain = args.iter().skip_while(|arg| **arg != "--domain").nth(1);
        let process = Process(child, domain.map(|domain| (*domain).to_owned()));
        let said = Arc::new(Mutex::new(String::new()));
        let keeps = said.clone();
        let stderr = thread::spawn(move || {
            let mut line = String::new();
            while lines.read_line(&mut line).unwrap() > 0 {
                keeps.lock().unwrap().push_str(&std::mem::take(&mut line));
            }
        });
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        if line.is_empty() {
            stderr.join().unwrap();
            panic!("bridge {args:?}: {}", said.lock().unwrap());
        }
        Self { process, stdout, stderr: (said, stderr), said: serde_json::from_str(&line).unwrap() }
    }

    /// Its stderr so far.
    pub fn said_on_stderr(&self) -> String {
        self.stderr.0.lock().unwrap().clone()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.said["from"].as_str().unwrap().parse().unwrap()
    }

    /// How others find it over the network.
    pub fn connect(&self) -> [String; 2] {
        ["--connect".into(), self.said["address"].as_str().unwrap_or_default().into()]
    }

    pub fn send(&self, signal: i32) {
        self.process.send(signal);
    }

    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Its last line and its stderr, once it has ended well.
    pub fn ended(mut self) -> (Value, String) {
        let mut said = String::new();
        self.stdout.read_to_string(&mut said).unwrap();
        let (stderr, reading) = self.stderr;
        reading.join().unwrap();
        let stderr = stderr.lock().unwrap().clone();
        let status = self.process.0.wait().unwrap();
        assert!(status.success(), "{status}: {stderr}");
        (serde_json::from_str(said.trim()).unwrap_or_else(|error| panic!("{error}: {said}")), stderr)
    }
}

/// Two of them, from a TCP port that clients connect to as far as a server.
pub struct Pair {
    pub from: Bridge,
    pub to: Bridge,
    way: Way,
    domain: String,
    listen: String,
}

impl Pair {
    pub fn start(what: &str, way: Way, target: &str, from: &[&str], to: &[&str]) -> Self {
        let domain = domain(what);
        let from = Self::from(way, &domain, "127.0.0.1:0", target, from);
        let listen = from.connect()[1].clone();
        let to = Self::to(way, &domain, &listen, "127.0.0.1:0", to);
        Self { from, to, way, domain, listen }
    }

    fn from(way: Way, domain: &str, listen: &str, target: &str, more: &[&str]) -> Bridge {
        let at = ["--listen", listen];
        let [_, fabric] = way.options();
        Bridge::start(
            &[&["--from", "service", "--tcp", target, "--domain", domain], &at[..way.words()], &fabric[..], more].concat(),
        )
    }

    fn to(way: Way, domain: &str, first: &str, at: &str, more: &[&str]) -> Bridge {
        let connect = ["--connect", first];
        let [_, fabric] = way.options();
        Bridge::start(
            &[&["--tcp", at, "--to", "service", "--domain", domain], &connect[..way.words()], &fabric[..], more].concat(),
        )
    }

    /// Another one at the server's side, in place of one that was killed.
    pub fn restart_from(&mut self, target: &str) {
        self.from = Self::from(self.way, &self.domain, &self.listen, target, &[]);
    }

    /// Another one at the clients' side.
    pub fn restart_to(&mut self) {
        self.to = Self::to(self.way, &self.domain, &self.listen, "127.0.0.1:0", &[]);
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.to.address()
    }

    /// Interrupts both bridges. Returns the last lines of the server's and of the clients' side; nothing is left of them.
    pub fn end(self) -> [Value; 2] {
        self.end_saying().0
    }

    /// The same, with the stderr of the server's side.
    pub fn end_saying(self) -> ([Value; 2], String) {
        let Self { from, to, domain, .. } = self;
        to.send(libc::SIGINT);
        let (clients, _) = to.ended();
        from.send(libc::SIGTERM);
        let (server, stderr) = from.ended();
        let left: Vec<_> = fs::read_dir("/dev/shm").unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert!(!left.iter().any(|name| name.to_string_lossy().contains(&domain)), "{left:?}");
        ([server, clients], stderr)
    }
}
