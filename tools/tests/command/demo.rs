use super::support::{Ended, doorbell, ended, eventually, nothing_is_left, processes, send};
use serde_json::Value;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

/// Plays to the end, and checks the lines that every story has.
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
        "[0, 0, 7, 11, 13, 0, 0, 0]: the same memory",
        "cannot read a key with a key of node 1: the key may only read",
        "cannot put with a key of node 1: its region was withdrawn",
        "all 32 KiB are there, the counter is at 0, its bit is 1",
        "request to send",
        "both counters reached zero once",
        "node 0 had all of it after",
        "on node 0's board: ",
        "remote-get    4 MiB",
        "packet        8 KiB",
        "node 2 has every byte, ",
        "'walk' is node 0's",
        // On crowded processors the target may fetch too late.
        "shm/get asked for, ",
        "udp/0/transfer taken (",
        "in the order in which they were sent, by either fabric",
        "both counters are 150000: no two nodes ever held the lock together",
        "tell them I was here",
        "after the kill: node 2 (3) died",
        "key.get()   =>  node 2 (3), thread ",
        "its own; inherited_from() says node 2 (3), thread ",
        "inherited_from() says nothing: the data is sound",
        "a new node 2 has joined: incarnation 4, where the dead one was incarnation 3",
        "half of each: median",
        "each node has the sum of all four vectors, and every one of its numbers is right",
        " % of the time of the sums was hidden behind the computing, on ",
        "Nothing of all this is left in /dev/shm",
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
    // Without a poller nothing moves while it sleeps.
    assert!(story.contains("node 2 has every byte, when node 1's application was awake again"), "{story}");
}

#[test]
fn poller() {
    let story = played("poller");
    assert_eq!(carried(&story, "the application's"), [0; 3], "{story}");
    assert!(carried(&story, "doorbell-poller").iter().all(|count| *count > 0), "{story}");
    assert!(story.contains("the poller of each node is its engine"), "{story}");
}

#[test]
fn its_timeline_shows_chunks_of_both_ends_at_both_nodes() {
    let path = std::env::temp_dir().join(format!("doorbell-trace-{}.json", std::process::id()));
    let ended = ended(&["demo", "--trace", path.to_str().unwrap()]);
    let text = std::fs::read(&path).unwrap_or_default();
    let _ = std::fs::remove_file(&path);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{}", ended.stdout);
    assert!(ended.stdout.contains("open it in https://ui.perfetto.dev"), "{}", ended.stdout);
    let trace: Value = serde_json::from_slice(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert!(events.iter().all(|event| event["pid"].is_u64() && event["ts"].is_number() && event["ph"].is_string()));

    let rows: Vec<_> = events.iter().filter(|event| event["name"] == "process_name").collect();
    let row = |node: u16| {
        let named = |event: &&&Value| event["args"]["name"].as_str().unwrap().starts_with(&format!("node {node}, incarnation "));
        rows.iter().find(named).expect("a row for each node")["pid"].as_u64().unwrap()
    };
    assert_eq!(rows.len(), 4, "node 2 lived twice: {rows:?}");
    for (node, other) in [(0, 1), (1, 0)] {
        let slices = || events.iter().filter(|event| event["ph"] == "X" && event["pid"] == row(node));
        for event in slices() {
            assert!(event["dur"].as_f64().unwrap() > 0.0 && event["args"]["bytes"].as_u64().unwrap() > 0, "{event}");
        }
        let of = |end: &str, origin: u16, target: u16| {
            let way = format!("{origin}->{target} ");
            slices().any(|event| event["args"]["end"] == end && event["args"]["transfer"].as_str().unwrap().starts_with(&way))
        };
        // Its packets come from the first end. From the last end come its puts, or the pulls of the target.
        assert!(of("first end", node, other), "node {node}: {:?}", slices().collect::<Vec<_>>());
        assert!(of("last end", node, other) || of("last end", other, node), "node {node}: {:?}", slices().collect::<Vec<_>>());
    }
    // The application of node 1 sleeps while its message goes, so its poller has a track.
    let is_poller = |event: &&Value| event["name"] == "thread_name" && event["args"]["name"] == "doorbell-poller";
    assert!(events.iter().filter(is_poller).any(|event| event["pid"] == row(1)));

    // Each descriptor that the story lists is in the track of its FIFO, with its counters.
    let told: Vec<Told> = ended.stdout.lines().filter_map(Told::read).collect();
    assert_eq!(
        told.iter().map(|told| told.kind).collect::<Vec<_>>(),
        [&["remote-get"; 4][..], &["direct-put", "packet"]].concat()
    );
    let track = |node: u16, name: &str| {
        let is_it = |event: &&Value| event["name"] == "thread_name" && event["args"]["name"] == name && event["pid"] == row(node);
        events.iter().find(is_it).unwrap_or_else(|| panic!("no track '{name}'"))["tid"].clone()
    };
    let walk = events.iter().filter_map(|event| event["args"]["name"].as_str()).find(|name| name.contains("'walk'")).unwrap();
    let executed = |node: u16, track: &Value, told: &Told, kind: &str, named: &str| {
        let is_it = |event: &&Value| {
            let args = &event["args"];
            (event["ph"] == "X" && event["pid"] == row(node) && event["tid"] == *track)
                && (event["name"] == format!("{kind} {}", told.bytes) && args["fifo"] == named && args["priority"] == "high")
                && (args["send_counter"] == told.counters[0] && args["receive_counter"] == told.counters[1])
        };
        events.iter().filter(is_it).count()
    };
    let (walk, gets) = (track(0, walk), track(1, "FIFO 0 'remote gets' (high)"));
    for each in &told {
        let alike = told.iter().filter(|other| (other.kind, &other.bytes) == (each.kind, &each.bytes)).count();
        assert_eq!(executed(0, &walk, each, each.kind, "walk"), alike, "{each:?}");
        // The put of a remote get is executed by the other node, which lowers the same counters.
        let puts = if each.kind == "remote-get" { alike } else { 0 };
        assert_eq!(executed(1, &gets, each, "direct-put", "remote gets"), puts, "{each:?}");
    }
    // The same of the long messages that node 0 sends. Its puts begin with a rendezvous; on a busy machine its packets may carry all.
    let puts = |event: &Value| {
        let args = &event["args"];
        args["end"] == "last end"
            && args["transfer"].as_str().is_some_and(|name| name.starts_with("0->"))
            && event["pid"] == row(0)
    };
    let mut messages = vec![(track(0, "FIFO 2 'messages' (normal)"), "rts ")];
    if events.iter().any(puts) {
        messages.push((track(0, "FIFO 1 'messages' (high)"), "rendezvous "));
    }
    for (track, kind) in &messages {
        let is_it = |event: &&Value| {
            (event["ph"] == "X" && event["tid"] == *track && event["pid"] == row(0))
                && event["name"].as_str().is_some_and(|name| name.starts_with(kind))
        };
        assert!(events.iter().any(|event| is_it(&event)), "no {kind} in {track}");
    }
    // The slices of a track never overlap.
    let mut slices: Vec<_> = events.iter().filter(|event| event["cat"] == "descriptor").collect();
    let key = |event: &Value| (event["pid"].as_u64(), event["tid"].as_u64());
    let begin = |event: &Value| event["ts"].as_f64().unwrap();
    slices.sort_by(|a, b| key(a).cmp(&key(b)).then(begin(a).total_cmp(&begin(b))));
    let is_before = |a: &Value, b: &Value| begin(a) + a["dur"].as_f64().unwrap() <= begin(b) + 1e-3;
    assert!(slices.windows(2).all(|pair| key(pair[0]) != key(pair[1]) || is_before(pair[0], pair[1])), "{slices:?}");
    // The counters of both other nodes fall to zero.
    for (node, counter, total) in [(1, told[0].counters[0], 16_u64 << 20), (2, told[0].counters[1], (16 << 20) + (264 << 10))] {
        let name = format!("counter {counter}");
        // Node 2 lived twice, and the first one has the row that `row` finds.
        let is_its = |event: &&Value| event["ph"] == "C" && event["name"] == name && event["pid"] == row(node);
        let values = events.iter().filter(is_its).map(|event| event["args"]["bytes left"].as_u64().unwrap());
        let values: Vec<u64> = values.skip_while(|value| *value != total).collect();
        let end = values.iter().position(|value| *value == 0).unwrap_or_else(|| panic!("node {node}: no zero in {values:?}"));
        let fall = &values[..=end];
        assert!(fall.len() > 10 && fall.is_sorted_by(|a, b| a > b), "node {node}: {fall:?}");
    }
}

/// A descriptor as the story lists it.
#[derive(Debug)]
struct Told<'a> {
    kind: &'a str,
    bytes: String,
    /// The indices of the send counter and of the receive counter.
    counters: [u64; 2],
}

impl<'a> Told<'a> {
    /// Reads a row like `remote-get  4 MiB  1  2  0 of node 1  0 of node 2`.
    fn read(line: &'a str) -> Option<Self> {
        let words: Vec<_> = line.split_whitespace().collect();
        let [kind, count, unit, _, _, send, "of", "node", _, receive, "of", "node", _] = words[..] else { return None };
        Some(Self { kind, bytes: format!("{count} {unit}"), counters: [send.parse().ok()?, receive.parse().ok()?] })
    }
}

#[test]
fn a_timeline_that_cannot_be_written_is_refused_at_once() {
    let ended = ended(&["demo", "--trace", "/no/such/place/out.json"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""));
    assert!(ended.stderr.contains("--trace: cannot write /no/such/place/out.json"), "{}", ended.stderr);
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
