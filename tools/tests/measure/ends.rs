//! However a measurement ends, nothing stays: no process, no shared memory.

use super::{doorbell, eventually, leftovers, text};
use std::path::Path;
use std::process::{Child, Output};
use std::time::Duration;

/// The processes that one process started.
fn children(parent: u32) -> Vec<u32> {
    let is_child = |pid: &u32| {
        let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).unwrap_or_default();
        let after_name = stat.rsplit(") ").next().unwrap_or_default();
        let mut words = after_name.split(' ');
        words.next() != Some("Z") && words.next() == Some(&parent.to_string())
    };
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    processes.filter(is_child).collect()
}

fn signal(pid: u32, signal: i32) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), nix::sys::signal::Signal::try_from(signal).unwrap()).unwrap();
}

/// A command that would run for hours. A test that fails kills it, and its workers end with it.
struct Endless(Option<Child>);

impl Endless {
    fn id(&self) -> u32 {
        self.0.as_ref().expect("it runs").id()
    }

    /// Waits for its end, after a signal to it or to one of its workers.
    fn wait_with_output(mut self) -> std::io::Result<Output> {
        self.0.take().expect("it runs").wait_with_output()
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        if let Some(command) = &mut self.0 {
            let _ = command.kill();
            let _ = command.wait();
        }
    }
}

/// A measurement that would take hours, and its two workers: the one that measures first.
fn endless(domain: &str, more: &[&str]) -> (Endless, Vec<u32>) {
    endless_of(&["latency", "--sizes", "8", "--iterations", "1000000000", "--domain", domain], domain, (2, 2), more)
}

/// One of locks, and its four workers.
fn endless_locks(domain: &str, more: &[&str]) -> (Endless, Vec<u32>) {
    // Over UDP they share no memory.
    let inboxes = if more.contains(&"udp") { 0 } else { 4 };
    endless_of(&["lock", "--seconds", "3600", "--domain", domain], domain, (4, inboxes), more)
}

fn endless_of(args: &[&str], domain: &str, (count, shared): (usize, usize), more: &[&str]) -> (Endless, Vec<u32>) {
    let command = Endless(Some(doorbell(&[args, more].concat()).spawn().unwrap()));
    let inboxes = || leftovers(domain).iter().filter(|name| name.ends_with(".inbox")).count();
    eventually("all workers joined", || children(command.id()).len() == count && inboxes() == shared);
    // On to the first messages.
    std::thread::sleep(Duration::from_millis(300));
    let mut workers = children(command.id());
    workers.sort_by_key(|pid| {
        let order = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("cmdline")).unwrap();
        !order.contains("\"node\":0,")
    });
    (command, workers)
}

#[test]
fn however_a_measurement_of_threads_that_receive_ends_nothing_stays() {
    let ways = [("sender", 9, Some(1)), ("receiver", 9, Some(1)), ("interrupt", 2, Some(130)), ("command", 9, None)];
    for (way, signal_sent, code) in ways {
        let domain = format!("devices-{way}-{}", std::process::id());
        let args = ["device", "--mode", "dual", "--count", "1000000000", "--domain", &domain];
        // Of three processes and four threads.
        let (command, workers) = endless_of(&args, &domain, (3, 7), &[]);
        let victim = match way {
            "sender" => workers[0],
            "receiver" => workers[1],
            _ => command.id(),
        };
        signal(victim, signal_sent);
        let output = command.wait_with_output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), code, "{way}: {error}");
        if code == Some(1) {
            let role = if way == "sender" { "the process that sends" } else { "a process of which threads receive" };
            assert!(error.contains(role) && error.contains("killed by signal 9"), "{error}");
        }
        eventually("nothing is left", || leftovers(&domain).is_empty());
        eventually("the workers are gone", || workers.iter().all(|pid| !Path::new("/proc").join(pid.to_string()).exists()));
    }
}

#[test]
fn a_killed_worker_is_named_and_nothing_stays() {
    for (victim, role) in [(0, "sends and measures"), (1, "answers")] {
        let domain = format!("killed-worker-{victim}-{}", std::process::id());
        let (command, workers) = endless(&domain, &["--floor"]);
        signal(workers[victim], 9);
        let output = command.wait_with_output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(role) && error.contains("killed by signal 9"), "{error}");
        assert_eq!(leftovers(&domain), Vec::<String>::new());
    }
}

#[test]
fn however_a_measurement_of_locks_ends_nothing_stays() {
    measurement_of_locks_ends("shm");
}

#[test]
fn however_a_measurement_of_locks_over_udp_ends_nothing_stays() {
    measurement_of_locks_ends("udp");
}

fn measurement_of_locks_ends(fabric: &str) {
    // A worker, the command by a signal, and the command with no time to do anything about it.
    let ways = [("worker", 9, Some(1)), ("interrupt", 2, Some(130)), ("command", 9, None)];
    for (way, signal_sent, code) in ways {
        let domain = format!("locks-{fabric}-{way}-{}", std::process::id());
        let (command, workers) = endless_locks(&domain, &["--fabric", fabric]);
        signal(if way == "worker" { workers[1] } else { command.id() }, signal_sent);
        let output = command.wait_with_output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), code, "{error}");
        if way == "worker" {
            assert!(error.contains("one of the processes that lock") && error.contains("killed by signal 9"), "{error}");
        }
        eventually("nothing is left", || leftovers(&domain).is_empty());
        eventually("the workers are gone", || workers.iter().all(|pid| !Path::new("/proc").join(pid.to_string()).exists()));
    }
}

#[test]
fn however_a_measurement_of_collectives_ends_nothing_stays() {
    for (way, signal_sent, code) in [("worker", 9, Some(1)), ("interrupt", 2, Some(130)), ("command", 9, None)] {
        let domain = format!("collectives-{way}-{}", std::process::id());
        let args = ["collective", "--floor", "--iterations", "1000000000", "--domain", &domain];
        let (command, workers) = endless_of(&args, &domain, (4, 4), &[]);
        signal(if way == "worker" { workers[1] } else { command.id() }, signal_sent);
        let output = command.wait_with_output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), code, "{error}");
        if way == "worker" {
            assert!(error.contains("one of the processes of the team") && error.contains("killed by signal 9"), "{error}");
        }
        eventually("nothing is left", || leftovers(&domain).is_empty());
        eventually("the workers are gone", || workers.iter().all(|pid| !Path::new("/proc").join(pid.to_string()).exists()));
    }
}

#[test]
fn an_interrupt_ends_it_and_nothing_stays() {
    for (way, more) in [&["--floor"][..], &["--wait", "park"], &["--shared", "--pairs", "1"], &["--put"]].into_iter().enumerate()
    {
        let domain = format!("interrupted-{way}-{}", std::process::id());
        let (command, workers) = endless(&domain, more);
        signal(command.id(), 2);
        let output = command.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
        assert_eq!(leftovers(&domain), Vec::<String>::new());
        eventually("the workers are gone", || workers.iter().all(|pid| !Path::new("/proc").join(pid.to_string()).exists()));
    }
}

#[test]
fn a_killed_command_takes_its_workers_along() {
    let domain = format!("killed-command-{}", std::process::id());
    let (command, workers) = endless(&domain, &["--floor"]);
    drop(command);
    eventually("nothing is left", || leftovers(&domain).is_empty());
    eventually("the workers are gone", || workers.iter().all(|pid| !Path::new("/proc").join(pid.to_string()).exists()));
}
