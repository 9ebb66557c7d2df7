use super::support::{boards, domain, doorbell, ended, eventually, nothing_is_left, ring, send};
use doorbell::Lock;
use doorbell::collective::Team;
use doorbell::{Node, Resource};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// The nodes of a domain, as one look shows them.
fn looked(name: &str) -> Vec<Value> {
    let ended = ended(&["top", "--once", "--format", "json", "--interval", "150ms", "--domain", name]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert_eq!(ended.stdout.lines().count(), 1);
    let look: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert!(look["interval_s"].as_f64().unwrap() >= 0.15);
    assert_eq!((look["domains"].as_array().unwrap().len(), &look["domains"][0]["domain"]), (1, &name.into()));
    look["domains"][0]["nodes"].as_array().unwrap().clone()
}

#[test]
fn nodes_are_watched_at_work_and_stopped() {
    let name = domain("top");
    let args = ["run", "-n", "2", "--domain", &name, "--", ring(), "1000000000"];
    let mut child = doorbell(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("two nodes", || boards(&name) == 2);
    let works =
        |node: &Value| node["rates"]["messages_in"].as_f64().unwrap() > 0.0 && node["latency"]["samples"].as_u64() > Some(0);
    eventually("that both are seen at work", || looked(&name).iter().filter(|node| works(node)).count() == 2);
    let nodes = looked(&name);
    for (id, (node, role)) in nodes.iter().zip(["host", "accelerator"]).enumerate() {
        assert_eq!((&node["node"], &node["role"], &node["state"]), (&id.into(), &role.into(), &"alive".into()));
        let latency = &node["latency_of_all"];
        assert!(latency["p50_ns"].as_u64().unwrap() > 0 && latency["p99_ns"].as_u64() >= latency["p50_ns"].as_u64());
        assert!(node["metrics"]["fifo_high"].is_u64() && node["counters"].is_array(), "{node}");
    }

    let pids: Vec<u32> = nodes.iter().map(|node| node["pid"].as_u64().unwrap() as u32).collect();
    pids.iter().for_each(|pid| send(libc::SIGSTOP, *pid));
    eventually("that both are stopped", || looked(&name).iter().all(|node| node["state"] == "stopped"));
    for (stopped, before) in looked(&name).iter().zip(&nodes) {
        assert_eq!(stopped["rates"]["messages_in"], 0.0);
        assert!(stopped["metrics"]["messages_in"].as_u64() >= before["metrics"]["messages_in"].as_u64());
    }
    pids.iter().for_each(|pid| send(libc::SIGCONT, *pid));
    eventually("that they go on", || looked(&name).iter().all(works));

    // Without a terminal it looks once, also for people.
    let table = ended(&["top", "--domain", &name, "--interval", "50ms"]);
    assert_eq!(table.code, Some(0), "{}{}", table.stdout, table.stderr);
    assert!(table.stdout.starts_with("DOMAIN") && table.stdout.contains("P99"), "{}", table.stdout);
    // Two nodes, below them a link each way, and the domain as a whole.
    let lines: Vec<_> = table.stdout.lines().collect();
    assert_eq!((lines.len(), lines[3]), (8, "MODES"), "{}", table.stdout);
    assert!(lines[4].contains("OCCUPANCY") && lines[7].contains("2 nodes; 2 shm links, mean depth "), "{}", table.stdout);

    send(libc::SIGTERM, child.id());
    child.wait().unwrap();
    nothing_is_left(&name);
}

#[test]
fn keys_are_seen_at_who_holds_them_and_who_waits() {
    let name = domain("top-keys");
    let join = || Node::builder(&name).join().unwrap();
    let (holder, other) = (join(), join());
    let key = Lock::init(&holder, "frame", Resource::Unnamed).unwrap();
    let keys = || looked(&name).iter().map(|node| [node["holds"].clone(), node["waits_for"].clone()]).collect::<Vec<_>>();
    let nothing = || [json!([]), json!([])];
    assert_eq!(keys(), [nothing(), nothing()]);
    let guard = key.lock().unwrap();
    assert_eq!(keys(), [[json!([{ "key": "frame", "waiting": 0 }]), json!([])], nothing()]);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| Lock::find(&other, "frame").unwrap().lock().unwrap().unlock());
        let expected = [[json!([{ "key": "frame", "waiting": 1 }]), json!([])], [json!([]), json!(["frame"])]];
        eventually("that the other one waits", || keys() == expected);
        let table = ended(&["top", "--once", "--interval", "10ms", "--domain", &name]).stdout;
        assert!(table.contains("KEYS") && table.contains(" 1/0 ") && table.contains(" 0/1 "), "{table}");
        guard.unlock().unwrap();
        waiting.join().unwrap().unwrap();
    });
    assert_eq!(keys(), [nothing(), nothing()]);
}

#[test]
fn collectives_are_seen_at_each_node() {
    let name = domain("top-team");
    let nodes = [0, 1].map(|id| Node::builder(&name).id(id).join().unwrap());
    let ids = nodes.each_ref().map(Node::id);
    let member = |node: &Node| {
        let team = Team::builder(node).members(&ids).channels(1).form().unwrap();
        (0..7).for_each(|_| team.barrier().unwrap());
        node.metrics().unwrap();
    };
    let member = &member;
    thread::scope(|scope| nodes.iter().for_each(|node| drop(scope.spawn(move || member(node)))));
    for node in looked(&name) {
        let metric = |word: &str| node["metrics"][word].as_u64().unwrap();
        assert_eq!((metric("collectives"), metric("turns_synchronised")), (7, 7), "{node}");
        assert_eq!(metric("turns_acquired") + metric("turns_queued"), 7, "{node}");
        assert_eq!(node["rates"]["collectives"], 0.0, "{node}");
    }
    let table = ended(&["top", "--once", "--interval", "10ms", "--domain", &name]).stdout;
    assert!(table.contains("COLL/S") && table.contains(" 0%"), "{table}");
}

#[test]
fn a_domain_that_is_not_there_is_not_watched_once() {
    let name = domain("untop");
    let missing = ended(&["top", "--once", "--interval", "10ms", "--domain", &name]);
    assert_eq!((missing.code, missing.stdout.as_str()), (Some(1), ""));
    assert!(missing.stderr.starts_with(&format!("doorbell: error: there is no domain '{name}'; hint: ")), "{}", missing.stderr);
}

/// The screen on a terminal of its own, once it is drawn: the process, the other end of that terminal, and the output.
fn on_a_terminal() -> (Child, File, Receiver<u8>) {
    let (mut master, mut slave) = (0, 0);
    let size = libc::winsize { ws_row: 24, ws_col: 160, ws_xpixel: 0, ws_ypixel: 0 };
    let none = std::ptr::null_mut();
    // SAFETY: two live integers and a live size; the rest may be null.
    assert_eq!(unsafe { libc::openpty(&mut master, &mut slave, none, none.cast(), &size) }, 0, "a terminal");
    // The command must not have the other end of its own terminal.
    for fd in [master, slave] {
        // SAFETY: changes a flag of a descriptor just made.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) }, 0);
    }
    // SAFETY: the descriptors were just made, and nothing else uses them.
    let (master, slave) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
    let mut command = doorbell(&["top", "--interval", "50ms"]);
    command.stdin(slave.try_clone().unwrap()).stdout(slave.try_clone().unwrap()).stderr(slave).env("TERM", "xterm");
    // SAFETY: two system calls; no allocation, no lock. The terminal becomes that of a session of its own.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            libc::ioctl(0, libc::TIOCSCTTY, 0);
            Ok(())
        })
    };
    let child = command.spawn().unwrap();
    let (mut from, (to, bytes)) = (master.try_clone().unwrap(), channel());
    thread::spawn(move || {
        let mut byte = [0];
        while from.read(&mut byte).is_ok_and(|count| count == 1) && to.send(byte[0]).is_ok() {}
    });
    until(&bytes, "q quit");
    (child, master, bytes)
}

/// Waits until this was written.
fn until(bytes: &Receiver<u8>, mark: &str) {
    let mut all = Vec::new();
    while !all.ends_with(mark.as_bytes()) {
        match bytes.recv_timeout(Duration::from_secs(20)) {
            Ok(byte) => all.push(byte),
            Err(error) => panic!("{error} before '{mark}': {}", String::from_utf8_lossy(&all)),
        }
    }
}

#[test]
fn the_screen_gives_the_terminal_back_and_ends_with_it() {
    const LEAVES_SCREEN: &str = "\x1b[?1049l";
    let (mut child, _terminal, bytes) = on_a_terminal();
    send(libc::SIGTERM, child.id());
    until(&bytes, LEAVES_SCREEN);
    until(&bytes, "interrupted");
    assert_eq!(child.wait().unwrap().code(), Some(143));

    let (mut child, mut terminal, bytes) = on_a_terminal();
    terminal.write_all(b"ssrpjkq").unwrap();
    until(&bytes, LEAVES_SCREEN);
    assert_eq!(child.wait().unwrap().code(), Some(0));

    let (mut child, terminal, bytes) = on_a_terminal();
    // The reader ends at the next byte, and with it the last handle to the other end.
    drop((terminal, bytes));
    eventually("that it ends with its terminal", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(129));
}
