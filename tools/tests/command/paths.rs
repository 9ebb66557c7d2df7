//! Every path that the command takes, with every kind of file at it: a clear line or the right thing, no wait, and nothing lost.

use super::support::{Ended, domain, doorbell, send};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// A command that takes longer hangs. The longest one, a full `tune` that measures for seconds, takes ten times as long on a machine that is busy
/// with builds; a command that opens a FIFO and waits for its other end never ends.
const PATIENCE: Duration = Duration::from_secs(300);

/// The kind of file at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Regular,
    Fifo,
    Directory,
    /// A symbolic link to a regular file.
    Link,
    /// A symbolic link that leads nowhere.
    Dangling,
    Absent,
}

const KINDS: [Kind; 6] = [Kind::Regular, Kind::Fifo, Kind::Directory, Kind::Link, Kind::Dangling, Kind::Absent];

/// The outcome.
#[derive(Clone, Copy, Debug)]
enum Comes {
    /// Exit code 0, and everything stays as it was but for an output.
    Done,
    /// A first line; interrupted, exit code 0.
    Serves,
    /// One line of error that mentions this.
    Refused(&'static str),
    /// Not tried, since it takes seconds: another row takes the path in the same way.
    Untried,
}
use Comes::{Done, Refused, Serves, Untried};

/// A path that the command takes.
struct Row {
    /// `@` is the path, and `~` the same for the I/O node of domain `$`, which serves `^`. `%` is a domain of its own.
    args: &'static str,
    /// A variable of the environment that is the path.
    variable: Option<&'static str>,
    /// The content of a regular file.
    holds: &'static [u8],
    /// The content, if the path is an output.
    output: Option<Written>,
    /// In the order of [`KINDS`].
    comes: [Comes; 6],
}

/// Which file is written, beside the path, and whether it is right.
#[derive(Clone, Copy)]
struct Written(fn(Kind) -> &'static str, fn(&[u8]) -> bool);

const LOAD: &[u8] = br#"{"name": "n", "phases": [{"name": "p", "messages": 10, "sizes": 64}]}"#;
const KEY: &[u8] = &[7; 32];
const FILE: &[u8] = b"the file of the I/O node";

fn is_json(bytes: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(bytes).is_ok()
}

fn is_page(bytes: &[u8]) -> bool {
    bytes.starts_with(b"<!DOCTYPE html>") && bytes.ends_with(b"</html>\n")
}

fn is_file(bytes: &[u8]) -> bool {
    bytes == FILE
}

/// A path that is written: a link stays, and its target is replaced.
fn place(kind: Kind) -> &'static str {
    match kind {
        Kind::Link => "target",
        _ => "x",
    }
}

/// A path to which a file is copied, or in which it gets its own name.
fn copy(kind: Kind) -> &'static str {
    match kind {
        Kind::Link => "target",
        Kind::Directory => "x/f",
        Kind::Dangling => "nowhere",
        _ => "x",
    }
}

const fn row(args: &'static str, comes: [Comes; 6]) -> Row {
    Row { args, variable: None, holds: b"precious", output: None, comes }
}

const NOT_READ: Comes = Refused("no regular file");
const NO_FILE: Comes = Refused("No such file");

/// A file that is read.
const fn reads(args: &'static str, holds: &'static [u8]) -> Row {
    Row { holds, ..row(args, [Done, NOT_READ, NOT_READ, Done, NO_FILE, NO_FILE]) }
}

/// A file that is read by a command that then serves.
const fn serves(args: &'static str) -> Row {
    Row { comes: [Serves, NOT_READ, NOT_READ, Serves, NO_FILE, NO_FILE], ..reads(args, KEY) }
}

const FIFO: Comes = Refused("no regular file but a FIFO");

/// A file that is written.
const fn writes(args: &'static str, is_right: fn(&[u8]) -> bool) -> Row {
    let comes = [Done, FIFO, Refused("no regular file but a directory"), Done, Refused("leads nowhere"), Done];
    Row { output: Some(Written(place, is_right)), ..row(args, comes) }
}

/// A copy that is written.
const fn copies(args: &'static str, fifo: Comes, dangling: Comes) -> Row {
    Row { output: Some(Written(copy, is_file)), ..row(args, [Done, fifo, Done, Done, dangling, Done]) }
}

/// A directory that is used.
const fn uses(args: &'static str, comes: Comes) -> Row {
    let none = Refused("Not a directory");
    row(args, [none, none, comes, none, NO_FILE, NO_FILE])
}

fn rows() -> Vec<Row> {
    let (file, fifo, directory) =
        (Refused("a regular file is there"), Refused("a FIFO is there"), Refused("a directory is there"));
    let link = Refused("a symbolic link is there");
    let (special, gone) = (Refused("only regular files"), Refused("os error 2"));
    let (not_made, no_directory) = (Refused("cannot write"), Refused("cannot make the directory"));
    let other = Refused("a file is there that is no page");
    // These take seconds.
    let slow = |row: Row| {
        let [_, fifo, directory, link, dangling, _] = row.comes;
        Row { comes: [Untried, fifo, directory, link, dangling, Untried], ..row }
    };
    vec![
        row("bridge --unix @ --to x --domain %", [file, fifo, directory, link, link, Serves]),
        row("bridge --from x --unix @ --domain %", [file, fifo, directory, file, Serves, Serves]),
        serves("bridge --from x --tcp 127.0.0.1:9 --listen 127.0.0.1:0 --key-file @ --domain %"),
        uses("io serve @ --domain %", Serves),
        serves("io serve ^ --listen 127.0.0.1:0 --key-file @ --domain %"),
        uses("io bench --dir @ --iterations 1 --rounds 1 --file 4KiB --sizes 4KiB", Done),
        reads("io cp @ io:copied --domain $", b"precious"),
        copies("io cp io:f @ --domain $", FIFO, Refused("leads nowhere")),
        copies("io cp io:f @ --verify --sync --domain $", FIFO, Refused("leads nowhere")),
        // There a path is as for any program that opens it.
        copies("io cp ^/f io:~ --domain $", special, Done),
        row("io cat io:~ --domain $", [Done, special, Refused("a directory"), Done, gone, gone]),
        row("io ls io:~ --domain $", [Done, Done, Done, Done, gone, gone]),
        reads("modes @ --scale 0.001 --rounds 1 --only shm/0/transfer", LOAD),
        writes("modes --generate 5 --save @ --scale 0.001 --rounds 1 --only shm/0/transfer", is_json),
        writes("modes --generate 5 --report @ --scale 0.001 --rounds 1 --only shm/0/transfer", is_page),
        row(
            "report --quick @",
            [other, FIFO, Refused("no regular file but a directory"), other, Refused("leads nowhere"), Untried],
        ),
        slow(writes("report --quick --force @", is_page)),
        slow(writes("demo --trace @", is_json)),
        slow(Row { variable: Some("DOORBELL_TUNE"), ..writes("tune --rounds 1", is_json) }),
        Row {
            variable: Some("XDG_CACHE_HOME"),
            ..row("tune --rounds 1", [not_made, not_made, Untried, not_made, not_made, Untried])
        },
        row("man @", [no_directory, no_directory, Untried, no_directory, no_directory, Untried]),
        uses("ls --space @", Done),
        Row { variable: Some("DOORBELL_SPACE"), ..uses("ls", Done) },
        row("run -n 1 -- @", [Refused("cannot start"); 6]),
        reads("run --config @ --domain % -- true", b"nodes = 1\n"),
        reads("run -n 1 --listen 127.0.0.1:7 --key-file @ -- true", KEY),
        reads("latency --fabric udp --key-file @ --sizes 8 --iterations 10", KEY),
        slow(reads("lock --fabric udp --nodes 2 --seconds 1 --key-file @", KEY)),
        Row { variable: Some("DOORBELL_KEY_FILE"), ..reads("latency --fabric udp --sizes 8 --iterations 10", KEY) },
    ]
}

/// A directory that goes with the value, and the I/O node that serves it.
struct Served {
    child: Child,
    root: PathBuf,
    domain: String,
}

impl Served {
    fn start() -> Self {
        let domain = domain("paths");
        let root = std::env::temp_dir().join(&domain);
        fs::create_dir(&root).unwrap();
        fs::write(root.join("f"), FILE).unwrap();
        let mut child =
            doorbell(&["io", "serve", root.to_str().unwrap(), "--domain", &domain]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("serves"), "{line}");
        Self { child, root, domain }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        send(libc::SIGINT, self.child.id());
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Everything in a directory: the kind of each file, its rights, and its content or target.
fn seen(directory: &Path) -> BTreeMap<PathBuf, (String, Vec<u8>)> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let (path, facts) = (entry.path(), entry.metadata().unwrap());
        let kind = facts.file_type();
        let holds = match kind {
            _ if kind.is_file() => fs::read(&path).unwrap(),
            _ if kind.is_symlink() => fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes(),
            _ if kind.is_dir() => {
                all.extend(seen(&path));
                Vec::new()
            }
            _ => Vec::new(),
        };
        all.insert(path, (format!("{kind:?} {:o}", facts.permissions().mode()), holds));
    }
    all
}

fn make(kind: Kind, directory: &Path, holds: &[u8]) {
    let path = directory.join("x");
    let file = |name: &str| {
        let file = directory.join(name);
        fs::write(&file, holds).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    };
    match kind {
        Kind::Regular => file("x"),
        Kind::Fifo => mkfifo(&path, Mode::from_bits_truncate(0o600)).unwrap(),
        Kind::Directory => {
            fs::create_dir(&path).unwrap();
            file("x/inside");
        }
        Kind::Link => {
            file("target");
            symlink("target", &path).unwrap();
        }
        Kind::Dangling => symlink("nowhere", &path).unwrap(),
        Kind::Absent => {}
    }
}

/// Runs it to its end, or as far as its first line if it serves. None if it does not come to that.
fn run(mut command: Command, serves: bool) -> Option<Ended> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut out, mut err) = (BufReader::new(child.stdout.take().unwrap()), child.stderr.take().unwrap());
    let (tell, told) = channel();
    let stdout = thread::spawn(move || {
        let mut text = String::new();
        out.read_line(&mut text).unwrap();
        let _ = tell.send(());
        out.read_to_string(&mut text).unwrap();
        text
    });
    let stderr = thread::spawn(move || {
        let mut text = String::new();
        err.read_to_string(&mut text).unwrap();
        text
    });
    let deadline = Instant::now() + PATIENCE;
    if serves && told.recv_timeout(PATIENCE).is_ok() {
        // One that was refused has ended, and is not waited for yet.
        send(libc::SIGINT, child.id());
    }
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() > deadline => {
                child.kill().unwrap();
                child.wait().unwrap();
                return None;
            }
            None => thread::sleep(Duration::from_millis(2)),
        }
    };
    Some(Ended { code: status.code(), stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() })
}

/// The fault with one kind of file at one path, if there is one.
fn wrong(row: &Row, kind: Kind, comes: Comes, served: &Served, directory: &Path) -> Option<String> {
    fs::create_dir(directory).unwrap();
    make(kind, directory, row.holds);
    let before = seen(directory);
    let path = directory.join("x");
    let within = path.strip_prefix(&served.root).unwrap().to_str().unwrap();
    let own = domain("path");
    let words = row.args.split(' ').map(|word| {
        let word = word.replace('@', path.to_str().unwrap()).replace('~', within).replace('^', served.root.to_str().unwrap());
        word.replace('%', &own).replace('$', &served.domain)
    });
    let words: Vec<String> = words.collect();
    let mut command = doorbell(&words.iter().map(String::as_str).collect::<Vec<_>>());
    if let Some(name) = row.variable {
        command.env(name, &path);
    }
    let Some(ended) = run(command, matches!(comes, Serves)) else {
        let _ = doorbell(&["clean", &own]).output();
        return Some(format!("it does not end within {PATIENCE:?}"));
    };
    let said = format!("exit code {:?}: {}", ended.code, ended.stderr);
    let mut after = seen(directory);
    match comes {
        Refused(mention) => {
            let is_one_line = ended.stderr.starts_with("doorbell: error: ") && ended.stderr.lines().count() == 1;
            if !matches!(ended.code, Some(1 | 2))
                || !is_one_line
                || !ended.stderr.contains(mention)
                || !ended.stderr.contains("; hint: ")
            {
                return Some(format!("'{mention}' is expected: {said}"));
            }
        }
        _ if ended.code != Some(0) => return Some(said),
        _ => {
            if let Some(Written(place, is_right)) = row.output {
                let output = directory.join(place(kind));
                let Some((rights, holds)) = after.remove(&output) else { return Some("nothing was written".into()) };
                if !is_right(&holds) {
                    return Some(format!("{} bytes were written, which are not right", holds.len()));
                }
                // A file keeps its rights when it is replaced.
                match before.get(&output) {
                    Some((former, old)) if *former == rights => drop(after.insert(output.clone(), (rights, old.clone()))),
                    Some((former, _)) => return Some(format!("{rights} instead of {former}")),
                    None => {}
                }
                after.retain(|path, _| before.contains_key(path) || !output.starts_with(path));
            }
        }
    }
    (after != before).then(|| format!("what was there has changed; {said}: {after:?}"))
}

#[test]
fn every_path_meets_every_kind_of_file() {
    let served = Served::start();
    let mut faults = Vec::new();
    for (number, row) in rows().iter().enumerate() {
        for (kind, comes) in KINDS.into_iter().zip(row.comes) {
            if matches!(comes, Untried) {
                continue;
            }
            let directory = served.root.join(format!("{number}-{kind:?}"));
            let fault = wrong(row, kind, comes, &served, &directory);
            faults.extend(fault.map(|fault| format!("{}, {kind:?}: {fault}", row.args)));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
