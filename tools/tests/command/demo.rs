use super::support::{Ended, doorbell, ended, eventually, nothing_is_left, processes, send};
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

/// Plays to the end, and looks for what every telling has.
fn played(progress: &str) -> String {
    let child = doorbell(&["demo", "--progress", progress]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let domain = format!("demo-{}", child.id());
    let Ended { code, stdout, stderr } = child.wait_with_output().unwrap().into();
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    for told in [
        "accelerator",
        "1000 values, all of them right",
        "=>  blue  of node",
        "then: no room for a message to node 1",
        "none was lost",
        "tell them I was here",
        "after the kill: node 2 (3) died",
        "a new node 2 has joined: incarnation 4, where the dead one was incarnation 3",
        "half of each: median",
        "Left in /dev/shm of all this: nothing",
    ] {
        assert!(stdout.contains(told), "'{told}' is missing in\n{stdout}");
    }
    nothing_is_left(&domain);
    stdout
}

/// Of the thread in the table, how many messages it carried, for each node.
fn carried(story: &str, thread: &str) -> Vec<u64> {
    let rows = story.lines().filter(|line| line.contains(thread) && !line.contains(':'));
    rows.map(|line| line.split_whitespace().skip_while(|word| !thread.ends_with(word)).nth(2).unwrap().parse().unwrap()).collect()
}

#[test]
fn adaptive() {
    let story = played("adaptive");
    assert!(carried(&story, "the application's").iter().all(|count| *count > 0), "{story}");
    assert_eq!(carried(&story, "doorbell-poller"), [0; 3], "{story}");
    assert!(story.contains("node 0 slept "), "{story}");
}

#[test]
fn inline() {
    let story = played("inline");
    assert!(carried(&story, "the application's").iter().all(|count| *count > 0), "{story}");
    assert!(carried(&story, "doorbell-poller").is_empty(), "{story}");
}

#[test]
fn poller() {
    let story = played("poller");
    assert_eq!(carried(&story, "the application's"), [0; 3], "{story}");
    assert!(carried(&story, "doorbell-poller").iter().all(|count| *count > 0), "{story}");
    assert!(story.contains("the poller of each node is its engine"), "{story}");
}

fn begun() -> (Child, String) {
    let child = doorbell(&["demo"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let domain = format!("demo-{}", child.id());
    eventually("that accelerators have started", || processes(&domain).len() >= 2);
    (child, domain)
}

#[test]
fn a_signal_ends_it_in_order() {
    for (signal, pause) in [(libc::SIGINT, 0), (libc::SIGTERM, 150), (libc::SIGHUP, 400)] {
        let (mut child, domain) = begun();
        thread::sleep(Duration::from_millis(pause));
        send(signal, child.id());
        assert_eq!(child.wait().unwrap().code(), Some(128 + signal));
        nothing_is_left(&domain);
    }
}

#[test]
fn killed_it_leaves_nothing_either() {
    for pause in [0, 100, 500] {
        let (mut child, domain) = begun();
        thread::sleep(Duration::from_millis(pause));
        send(libc::SIGKILL, child.id());
        child.wait().unwrap();
        nothing_is_left(&domain);
    }
}

#[test]
fn its_options_are_checked() {
    let ended = ended(&["demo", "--progress", "magic"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("'magic' is not a progress policy: inline, poller or adaptive"), "{}", ended.stderr);
}
