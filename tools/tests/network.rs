//! The commands over the network, as a user runs them on one machine or on two.

mod as_usual;

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::UdpSocket;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

fn doorbell(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_doorbell"));
    as_usual::ignoring(&mut command, &[]);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("DOORBELL_")) {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(args: &[&str]) -> Output {
    doorbell(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn rows(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Tests that measure do so one after the other: on few processors, those that spin would wait for each other.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One line with a hint, and this exit code.
fn fails(output: &Output, code: i32, mention: &str) {
    let error = text(&output.stderr);
    let last = error.lines().last().unwrap_or_default();
    assert_eq!(output.status.code(), Some(code), "{mention}: {error}");
    assert!(last.starts_with("doorbell: error: ") && last.contains("; hint: ") && last.contains(mention), "{mention}: {error}");
    assert!(output.stdout.is_empty(), "{mention}");
}

fn interrupt(child: &Child) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), nix::sys::signal::Signal::SIGINT).unwrap();
}

/// A file that goes with this value.
struct File(PathBuf);

impl File {
    fn new(bytes: &[u8], mode: u32) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("doorbell-key-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&path).unwrap();
        file.write_all(bytes).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The half that listens, and its address. Dropped, it is gone.
struct Listener {
    child: Child,
    stderr: BufReader<ChildStderr>,
    address: String,
}

impl Listener {
    fn start(args: &[&str]) -> Self {
        let mut child = doorbell(&[args, &["--listen", "127.0.0.1:0"]].concat()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("doorbell: listening at ").expect(&line).to_owned();
        Self { child, stderr, address }
    }

    /// Its output.
    fn ended(mut self) -> (Option<i32>, String) {
        let mut error = String::new();
        self.stderr.read_to_string(&mut error).unwrap();
        (self.child.wait().unwrap().code(), error)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const SHORT: [&str; 4] = ["--iterations", "100", "--format", "json"];

#[test]
fn two_processes_of_a_machine_are_measured_over_udp() {
    let _turn = turn();
    let ways: [(&[&str], &str); 8] = [
        (&["latency", "--sizes", "0,8,5000,200kB", "--floor"], "floor_p50_ns"),
        (&["latency", "--sizes", "8", "--with-key", "--wait", "park"], "p50_ns"),
        (&["latency", "--sizes", "8", "--port", "plain", "--pairs", "2", "--shared"], "p50_ns"),
        (&["rate", "--sizes", "8", "--floor", "--with-key", "--port", "plain"], "floor_messages_per_s"),
        (&["rate", "--progress", "inline"], "messages_per_s"),
        (&["bandwidth", "--sizes", "8,300kB", "--port", "uring"], "gb_per_s"),
        (&["bandwidth", "--sizes", "300kB", "--floor", "--window", "3"], "floor_gb_per_s"),
        (&["bandwidth", "--sizes", "64KiB", "--both-ways", "--with-key", "--progress", "poller"], "gb_per_s"),
    ];
    for (way, metric) in ways {
        for row in rows(&run(&[way, &SHORT, &["--fabric", "udp"]].concat())) {
            assert_eq!((&row["fabric"], &row["key"]), (&"udp".into(), &way.contains(&"--with-key").into()), "{row}");
            let port = way.iter().skip_while(|word| **word != "--port").nth(1).unwrap_or(&"auto");
            assert_eq!(row["port"], **port);
            // Longer than a datagram, a message has no floor of its own.
            let has_floor = way.contains(&"--floor") && !(way[0] == "latency" && row["size_bytes"] == 200_000);
            assert_eq!(row[metric].as_f64().is_some_and(|metric| metric > 0.0), has_floor || !way.contains(&"--floor"), "{row}");
            assert_eq!(row["ratio"].is_number(), has_floor, "{row}");
        }
    }
    let table = run(&["latency", "--fabric", "udp", "--with-key", "--iterations", "100", "--sizes", "8"]);
    assert!(text(&table.stdout).contains("over udp with a key"), "{}", text(&table.stdout));
}

#[test]
fn puts_are_measured_over_udp_by_the_same_commands() {
    let _turn = turn();
    let ways: [&[&str]; 5] = [
        &["latency", "--with-key"],
        &["latency", "--progress", "poller", "--wait", "park"],
        &["rate", "--shared"],
        &["rate", "--progress", "inline", "--port", "plain"],
        &["rate", "--progress", "poller", "--with-key"],
    ];
    for way in ways {
        let found = rows(&run(&[way, &SHORT, &["--fabric", "udp", "--put", "--sizes", "8,4KiB,200000"]].concat()));
        assert_eq!(found.len(), 3, "{way:?}");
        for row in found {
            assert_eq!((&row["fabric"], &row["put"]), (&"udp".into(), &true.into()), "{row}");
            assert!(row["p50_ns"].as_f64().unwrap() > 0.0 && row["samples"].as_u64().unwrap() >= 100, "{row}");
        }
    }
}

#[test]
fn locks_are_measured_over_udp() {
    let _turn = turn();
    let lock = |more: &[&str]| run(&[&["lock", "--fabric", "udp", "--seconds", "1"], more].concat());
    let ways: [&[&str]; 3] = [
        &["--nodes", "3", "--with-key"],
        &["--nodes", "2", "--progress", "poller", "--wait", "park"],
        &["--pin", "0", "--progress", "inline", "--wait", "yield", "--port", "plain"],
    ];
    for (way, nodes) in ways.into_iter().zip([3, 2, 4]) {
        let found = rows(&lock(&[way, &["--format", "json"]].concat()));
        let word = |row: &Value, name: &str| row[name].as_str().unwrap().to_owned();
        let names: Vec<_> = found.iter().map(|row| (word(row, "section"), word(row, "what"))).collect();
        let expected = [("uncontended", "message"), ("uncontended", "lock"), ("uncontended", "unlock"), ("contended", "key")];
        assert_eq!(names, expected.map(|(section, what)| (section.to_owned(), what.to_owned())), "{way:?}");
        let port = if way.contains(&"plain") { "plain" } else { "auto" };
        for row in &found {
            assert_eq!((&row["fabric"], &row["key"]), (&"udp".into(), &way.contains(&"--with-key").into()), "{row}");
            assert_eq!((&row["port"], &row["ratio"]), (&port.into(), &Value::Null), "{row}");
            assert!(row["locks"].as_u64().unwrap() > 0, "{row}");
        }
        let metric = |row: &Value, name: &str| row[name].as_f64().unwrap();
        let (alone, contended) = (&found[..3], &found[3]);
        for row in alone {
            assert!(["min_ns", "p50_ns", "p99_ns", "max_ns"].map(|name| metric(row, name)).is_sorted(), "{row}");
            let round_trips = metric(row, "p50_ns") / metric(&alone[0], "p50_ns");
            assert!((metric(row, "round_trips") / round_trips - 1.0).abs() < 0.01, "{row}");
        }
        assert_eq!((metric(contended, "nodes"), &contended["round_trips"]), (f64::from(nodes), &Value::Null));
        assert!(metric(contended, "least") > 0.0, "{contended}");
    }
    let table = text(&lock(&["--nodes", "2", "--with-key"]).stdout);
    assert!(table.contains("over udp with a key") && table.contains("round trips") && table.contains("\nkey"), "{table}");
}

#[test]
fn two_halves_measure_with_each_other() {
    let _turn = turn();
    let key = File::new(&[7; 32], 0o600);
    let keyed = ["--key-file", key.path()];
    let ways: [(&[&str], &[&str]); 7] = [
        (&["latency", "--sizes", "8,100kB", "--untouched"], &[]),
        (&["latency", "--sizes", "8,4KiB", "--put"], &keyed),
        (&["rate", "--sizes", "8,4KiB", "--put", "--shared"], &[]),
        (&["latency", "--sizes", "8"], &keyed),
        (&["rate", "--sizes", "8,1000"], &keyed),
        (&["rate", "--sizes", "8,100", "--batch", "7"], &[]),
        (&["bandwidth", "--sizes", "64KiB", "--both-ways", "--window", "3"], &[]),
    ];
    for (way, key) in ways {
        let listener = Listener::start(&[&way[..1], key].concat());
        let found = rows(&run(&[way, &SHORT, key, &["--connect", &listener.address]].concat()));
        for row in &found {
            assert_eq!((&row["fabric"], &row["to"]), (&"udp".into(), &listener.address.as_str().into()), "{row}");
            assert_eq!((&row["key"], &row["hop_ns"]), (&(!key.is_empty()).into(), &Value::Null), "{row}");
            assert_eq!(row["batch"], if way.contains(&"--batch") { 7 } else { 1 }, "{row}");
            assert!(row["put"].as_bool().unwrap_or_default() == way.contains(&"--put"), "{row}");
            assert!(row["p50_ns"].as_f64().unwrap() > 0.0 && row["samples"].as_u64().unwrap() >= 100, "{row}");
        }
        assert_eq!(found.len(), way[2].split(',').count());
        assert_eq!(listener.ended(), (Some(0), String::new()));
    }
}

#[test]
fn a_half_that_keeps_listening_answers_one_after_the_other() {
    let _turn = turn();
    let listener = Listener::start(&["latency", "--keep"]);
    for _ in 0..2 {
        rows(&run(&[&["latency", "--sizes", "8", "--connect", &listener.address], &SHORT[..]].concat()));
    }
    // A mistake of another ends nothing.
    fails(&run(&["rate", "--connect", &listener.address]), 1, "`doorbell rate`");
    rows(&run(&[&["latency", "--sizes", "8", "--connect", &listener.address], &SHORT[..]].concat()));
    interrupt(&listener.child);
    let (code, error) = listener.ended();
    assert_eq!(code, Some(130), "{error}");
    assert!(error.starts_with("doorbell: warning: the half that listens is `doorbell latency`"), "{error}");
}

#[test]
fn halves_that_do_not_fit_say_so_on_both_sides() {
    let _turn = turn();
    let listener = Listener::start(&["rate"]);
    fails(&run(&["bandwidth", "--connect", &listener.address]), 1, "the one that connects `doorbell bandwidth`");
    let (code, error) = listener.ended();
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("the half that listens is `doorbell rate`"), "{error}");
}

#[test]
fn an_interrupted_half_ends_the_other() {
    let _turn = turn();
    let listener = Listener::start(&["latency"]);
    let endless = ["latency", "--sizes", "8", "--iterations", "1000000000", "--connect", &listener.address];
    let measuring = doorbell(&endless).spawn().unwrap();
    // Whatever it is doing by then: joining, agreeing, or measuring.
    std::thread::sleep(std::time::Duration::from_millis(500));
    interrupt(&measuring);
    let output = measuring.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    let (code, error) = listener.ended();
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("the other half is gone") && error.lines().count() == 1, "{error}");
}

#[test]
fn keys_that_do_not_fit_are_refused() {
    let _turn = turn();
    let [key, other] = [1, 2].map(|byte| File::new(&[byte; 32], 0o600));
    let listener = Listener::start(&["latency", "--key-file", key.path()]);
    let connect = ["latency", "--connect", &listener.address, "--iterations", "1"];
    fails(&run(&[&connect[..], &["--key-file", other.path()]].concat()), 1, "its domain has another key");
    fails(&run(&connect), 1, "its domain has a key, and this node was given none");
    fails(&run(&[&connect[..], &["--key-file", key.path(), "--domain", "another"]].concat()), 1, "it belongs to another domain");
    // From the environment it counts as well.
    let output = doorbell(&connect).env("DOORBELL_KEY_FILE", key.path()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    // The half that listens says whom it refused, and goes on.
    let (code, said) = listener.ended();
    assert!(code == Some(0) && said.lines().all(|line| line.contains("warning") && line.contains("refused")), "{said}");
    let listener = Listener::start(&["latency"]);
    fails(&run(&["latency", "--connect", &listener.address, "--key-file", key.path()]), 1, "its domain has no key");
}

#[test]
fn what_is_wrong_with_the_network_is_told() {
    fails(&run(&["latency", "--listen", "0.0.0.0:0"]), 2, "the domain has no key");
    fails(&run(&["rate", "--connect", "192.0.2.1:7000"]), 2, "the domain has no key");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    fails(&run(&["bandwidth", "--listen", &address]), 2, "is in use by another socket");
    drop(socket);
    fails(&run(&["latency", "--connect", &address]), 1, &format!("with --listen {address}"));
    let [open, short] = [File::new(&[1; 32], 0o644), File::new(&[1; 31], 0o600)];
    for way in [&["latency", "--fabric", "udp"][..], &["lock", "--fabric", "udp"], &["run", "-n", "1", "--listen", &address]] {
        let with = |path: &str| run(&[way, &["--key-file", path], if way[0] == "run" { &["--", "true"] } else { &[] }].concat());
        fails(&with("/no/such/key"), 2, "head -c 32 /dev/urandom");
        fails(&with(open.path()), 2, "other users have access to it");
        fails(&with(short.path()), 2, "it has 31 bytes");
    }
}

#[test]
fn what_makes_no_sense_over_the_network_is_refused() {
    let cases: [(&[&str], &str); 20] = [
        (&["latency", "--fabric", "udp", "--loan"], "nothing can be lent over UDP"),
        (&["bandwidth", "--fabric", "udp", "--buffers", "registered"], "--buffers: over UDP"),
        (&["bandwidth", "--fabric", "udp", "--floor", "--both-ways"], "no floor of both ways"),
        (&["latency", "--fabric", "tcp"], "it can be shm, udp"),
        (&["latency", "--fabric", "udp", "--port", "fast"], "'fast' is no kind of port"),
        (&["latency", "--fabric", "udp", "--with-key", "--key-file", "k"], "--key-file"),
        (&["latency", "--with-key"], "add --fabric udp"),
        (&["rate", "--key-file", "k"], "add --fabric udp"),
        (&["lock", "--with-key"], "add --fabric udp"),
        (&["lock", "--fabric", "udp", "--with-key", "--key-file", "k"], "--key-file"),
        (&["latency", "--port", "plain"], "add --fabric udp"),
        (&["latency", "--fabric", "shm", "--listen", "127.0.0.1:0"], "add --fabric udp"),
        (&["latency", "--listen", "here"], "'here' is no address with a port"),
        (&["latency", "--listen", "127.0.0.1:0", "--connect", "127.0.0.1:1"], "cannot be used with"),
        (&["latency", "--listen", "127.0.0.1:0", "--pairs", "2"], "cannot be used with"),
        (&["rate", "--connect", "127.0.0.1:1", "--floor"], "cannot be used with"),
        (&["bandwidth", "--connect", "127.0.0.1:1", "--keep"], "--keep"),
        (&["run", "-n", "1", "--key-file", "k", "--", "true"], "add --listen or --connect"),
        (&["run", "-n", "1", "--listen", "hostx:0", "--", "true"], "cannot connect to hostx:0"),
        (
            &["run", "-n", "1", "--listen", "127.0.0.1:7000", "--listen", "127.0.0.2:0", "--", "true"],
            "cannot connect to 127.0.0.2:0",
        ),
    ];
    for (args, mention) in cases {
        fails(&run(args), 2, mention);
    }
}

/// From now on the kernel refuses io_uring to this process and to all that it starts.
fn forbid_io_uring() -> std::io::Result<()> {
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_io_uring_setup as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: a local program with its length; the kernel copies it.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
    };
    if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
fn without_io_uring_one_line_says_so() {
    let _turn = turn();
    let said = |level: Option<&str>, port: &str| {
        let mut command = doorbell(&[&["latency", "--fabric", "udp", "--sizes", "8", "--port", port], &SHORT[..]].concat());
        command.envs(level.map(|level| ("DOORBELL_LOG", level)));
        // SAFETY: between fork and exec, two system calls.
        unsafe { command.pre_exec(forbid_io_uring) };
        let output = command.output().unwrap();
        assert_eq!(rows(&output).len(), 1);
        // All other warnings are about the figures.
        text(&output.stderr).lines().filter(|line| line.contains("io_uring")).map(str::to_owned).collect::<Vec<_>>()
    };
    let lines = said(None, "auto");
    let is_clear = |line: &str| line.starts_with("doorbell: warning: ") && line.contains("plain calls instead");
    assert!(matches!(&lines[..], [line] if is_clear(line)), "{lines:?}");
    assert!(matches!(&said(None, "calls")[..], [line] if is_clear(line)));
    // With --port plain, or with DOORBELL_LOG=off, there is no warning.
    assert_eq!((said(None, "plain"), said(Some("error"), "auto")), (Vec::new(), Vec::new()));
    // A port that must use io_uring is an error.
    let mut command = doorbell(&[&["latency", "--fabric", "udp", "--port", "uring"], &SHORT[..]].concat());
    // SAFETY: as above.
    unsafe { command.pre_exec(forbid_io_uring) };
    fails(&command.output().unwrap(), 2, "io_uring is forbidden to this process");
}

#[test]
fn the_ways_to_move_datagrams_are_compared() {
    let _turn = turn();
    let rows = rows(&run(&["ports", "--rounds", "1", "--sizes", "8,64KiB", "--format", "json"]));
    let found: Vec<_> = rows.iter().map(|row| (row["size_bytes"].as_u64().unwrap(), row["port"].as_str().unwrap())).collect();
    assert_eq!(found, [(8, "calls"), (8, "uring"), (64 << 10, "calls"), (64 << 10, "uring")]);
    for row in &rows {
        for figure in ["latency_ns", "messages_per_s", "gb_per_s", "busy_ns_per_byte"] {
            assert!(row[figure].as_f64().unwrap() > 0.0, "{row}");
        }
        assert_eq!(row["stream_ratio"].is_f64(), row["port"] == "uring", "{row}");
    }
}

#[test]
fn info_tells_about_io_uring() {
    let told = |form: &str, is_forbidden: bool| {
        let mut command = doorbell(&["info", "--format", form]);
        if is_forbidden {
            // SAFETY: between fork and exec, two system calls.
            unsafe { command.pre_exec(forbid_io_uring) };
        }
        let output = command.output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
        text(&output.stdout)
    };
    let facts: Value = serde_json::from_str(&told("json", true)).unwrap();
    assert_eq!((&facts["io_uring_port"], &facts["io_uring_files"]), (&false.into(), &false.into()));
    assert_eq!(facts["port_auto"], "plain");
    assert!(facts["io_uring_refused"].as_str().unwrap().contains("forbidden to this process"), "{facts}");
    let line = |table: &str| table.lines().find(|line| line.starts_with("io_uring")).expect("a line about it").to_owned();
    let without = line(&told("table", true));
    for part in ["cannot be had: io_uring is forbidden to this process", "ppoll and a second thread", "by plain calls"] {
        assert!(without.contains(part), "'{part}' is missing in {without}");
    }
    // Unhindered, it is as the system says.
    let mut room = [0_u8; 256];
    // SAFETY: room for `io_uring_params`, of 120 bytes; the descriptor is closed when this process ends.
    let can_be_had = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, room.as_mut_ptr()) } >= 0;
    let facts: Value = serde_json::from_str(&told("json", false)).unwrap();
    let refused = &facts["io_uring_refused"];
    if can_be_had {
        assert!(facts["port_auto"] == "calls" || facts["io_uring_port"] == false, "{facts}");
        assert!(facts["io_uring_files"] == true && !line(&told("table", false)).contains("cannot be had"), "{facts}");
    } else {
        assert!(facts["io_uring_port"] == false && facts["io_uring_files"] == false && refused.is_string(), "{facts}");
    }
}

#[test]
fn malformed_variables_of_a_network_are_refused() {
    let cases = [
        ("DOORBELL_LISTEN", "7000", "'7000' is no address with a port"),
        ("DOORBELL_CONNECT", "127.0.0.1:1,x", "'x' is no address with a port"),
        ("DOORBELL_SEEK", "", "'' is no address with a port"),
        ("DOORBELL_FABRIC", "tcp", "auto, shm or udp"),
        ("DOORBELL_PORT", "fast", "'fast' is no kind of port"),
        ("DOORBELL_LOG", "loud", "'loud' is no level"),
    ];
    for (name, value, mention) in cases {
        let output = doorbell(&["info"]).env(name, value).output().unwrap();
        fails(&output, 2, mention);
        assert!(text(&output.stderr).contains(name));
    }
}

/// An address that was free a moment ago.
fn free_address() -> String {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn nodes_of_two_runs_are_told_where_to_meet() {
    let key = File::new(&[1; 32], 0o600);
    let script = "echo $DOORBELL_DOMAIN ${DOORBELL_NODE-none}/$DOORBELL_NODES $DOORBELL_ROLE \
                  ${DOORBELL_LISTEN-none} ${DOORBELL_CONNECT-none} ${DOORBELL_KEY_FILE-none}";
    let told = |way: &[&str]| {
        let output = doorbell(&[&["run", "-n", "2"], way, &["--", "sh", "-c", script]].concat())
            .env("DOORBELL_SEEK", "127.0.0.1:1")
            .env("DOORBELL_NODE", "7")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let mut lines: Vec<_> = text(&output.stdout).lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    let (at, domain) = ("127.0.0.1:7000", "run-udp-7000");
    assert_eq!(
        told(&["--listen", at]),
        [format!("[0] {domain} 0/2 host {at} none none"), format!("[1] {domain} 1/2 accelerator none {at} none")]
    );
    // Others may be told a name; beside a wildcard they listen at it as well, so that other machines reach them.
    assert_eq!(
        told(&["--listen", "localhost:7000"]),
        [
            format!("[0] {domain} 0/2 host localhost:7000 none none"),
            format!("[1] {domain} 1/2 accelerator none localhost:7000 none")
        ]
    );
    assert_eq!(
        told(&["--listen", "[::]:7000"]),
        [format!("[0] {domain} 0/2 host [::]:7000 none none"), format!("[1] {domain} 1/2 accelerator [::]:0 {at} none")]
    );
    let path = key.path();
    // Runs with different keys have different domains; all machines of one run have the same.
    let keyed = |path| told(&["--connect", at, "--key-file", path])[0].split(' ').nth(1).unwrap().to_owned();
    let other = File::new(&[2; 32], 0o600);
    let (of_key, of_other) = (keyed(path), keyed(other.path()));
    assert!(of_key.starts_with("run-udp-7000-") && of_other.starts_with("run-udp-7000-") && of_key != of_other);
    assert_eq!(
        told(&["--connect", at, "--key-file", path, "--domain", "grid"]),
        [0, 1].map(|node| format!("[{node}] grid none/2 accelerator none {at} {path}"))
    );
}

/// The example `ring`, built for this test if nothing has built it.
fn ring() -> String {
    let directory = Path::new(env!("CARGO_BIN_EXE_doorbell")).parent().unwrap();
    let path = directory.join("examples/ring");
    if !path.exists() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "doorbell", "--example", "ring", "--target-dir"]);
        cargo.arg(directory.parent().unwrap());
        if directory.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success());
    }
    path.to_str().unwrap().to_owned()
}

#[test]
fn two_runs_make_one_domain() {
    let _turn = turn();
    let (ring, at, key) = (ring(), free_address(), File::new(&[3; 32], 0o600));
    // A ring needs ids without gaps; by the network alone, though it is one machine.
    let program = ["--key-file", key.path(), "--", "env", "DOORBELL_FABRIC=udp", "DOORBELL_NODES=2"];
    let listens = doorbell(&[&["run", "-n", "1", "--listen", &at], &program[..], &[&ring, "50"]].concat()).spawn().unwrap();
    let connects = run(&[&["run", "-n", "1", "--connect", &at], &program[..], &["DOORBELL_NODE=1", &ring, "50"]].concat());
    let listens = listens.wait_with_output().unwrap();
    assert_eq!(text(&connects.stdout), "[0] node 1 passed the token on 50 times\n", "{}", text(&connects.stderr));
    assert!(text(&listens.stdout).contains("the token went around 50 times"), "{}", text(&listens.stderr));
    assert!(listens.status.success() && connects.status.success());
}

#[test]
fn nodes_of_a_run_that_connects_are_given_their_ids() {
    let _turn = turn();
    let (ring, key) = (ring(), File::new(&[3; 32], 0o600));
    // As on two machines; and on one, where all four share memory but the ids still come from the network.
    for fabric in ["udp", "auto"] {
        let at = free_address();
        let fabric = format!("DOORBELL_FABRIC={fabric}");
        let program = ["--key-file", key.path(), "--", "env", &fabric, "DOORBELL_NODES=4", &ring, "50"];
        let listens = doorbell(&[&["run", "-n", "2", "--listen", &at], &program[..]].concat()).spawn().unwrap();
        let connects = run(&[&["run", "-n", "2", "--connect", &at], &program[..]].concat());
        let listens = listens.wait_with_output().unwrap();
        let lines = |output: &Output| {
            assert!(output.status.success() && output.stderr.is_empty(), "{fabric}: {}", text(&output.stderr));
            // Without the number in the run: which of two comes first is not certain.
            let mut lines: Vec<_> = text(&output.stdout).lines().map(|line| line[4..].to_owned()).collect();
            lines.sort_unstable();
            lines
        };
        // From the highest down, of sixteen.
        assert_eq!(lines(&connects), [14, 15].map(|node| format!("node {node} passed the token on 50 times")), "{fabric}");
        let told = lines(&listens);
        assert_eq!(told[0], "node 1 passed the token on 50 times", "{fabric}");
        assert!(told[1].starts_with("the token went around 50 times"), "{fabric}: {told:?}");
    }
}

#[test]
fn help_teaches_two_machines() {
    for command in ["latency", "rate", "bandwidth", "run"] {
        let help = text(&run(&[command, "--help"]).stdout);
        for way in ["--listen 10.0.0.1:7000 --key-file", "--connect 10.0.0.1:7000 --key-file"] {
            assert!(help.contains(way), "{command}: {help}");
        }
    }
}
