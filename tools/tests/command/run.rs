use super::support::{domain, doorbell, ended, example, nothing_is_left, ring, segments, sorted};
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

#[test]
fn every_node_is_told_its_place() {
    let name = domain("place");
    let script = "echo $DOORBELL_DOMAIN $DOORBELL_NODE/$DOORBELL_NODES $DOORBELL_ROLE $DOORBELL_PROGRESS $DOORBELL_WAIT";
    let ended = ended(&[
        "run",
        "-n",
        "3",
        "--domain",
        &name,
        "--role",
        "host,io",
        "--progress",
        "inline",
        "--wait",
        "park",
        "--",
        "sh",
        "-c",
        script,
    ]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    let expected =
        ["host", "io", "io"].iter().enumerate().map(|(node, role)| format!("[{node}] {name} {node}/3 {role} inline park"));
    assert_eq!(sorted(&ended.stdout), expected.collect::<Vec<_>>());
}

#[test]
fn by_default_the_first_is_host_and_the_domain_is_its_own() {
    let script = "echo $DOORBELL_NODE $DOORBELL_ROLE; echo ${DOORBELL_PROGRESS-none}${DOORBELL_WAIT-none} $DOORBELL_DOMAIN >&2";
    let ended = ended(&["run", "-n", "3", "--", "sh", "-c", script]);
    assert_eq!(ended.code, Some(0));
    assert_eq!(sorted(&ended.stdout), ["[0] 0 host", "[1] 1 accelerator", "[2] 2 accelerator"]);
    assert_eq!(ended.stderr.lines().count(), 3);
    assert!(ended.stderr.lines().all(|line| line.contains("nonenone run-")), "{}", ended.stderr);
}

#[test]
fn nodes_are_bound_in_turn() {
    let script = "grep Cpus_allowed_list /proc/self/status";
    let ended = ended(&["run", "-n", "3", "--bind", "0", "--", "sh", "-c", script]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.lines().all(|line| line.ends_with("\t0")), "{}", ended.stdout);
}

#[test]
fn lines_stay_whole_and_the_last_one_comes_too() {
    let script = "i=0; while [ $i -lt 300 ]; do printf 'left %s ' $i; printf 'right\\n'; i=$((i+1)); done; printf unfinished; printf err >&2";
    let ended = ended(&["run", "-n", "3", "--", "sh", "-c", script]);
    assert_eq!(ended.code, Some(0));
    for node in 0..3 {
        let mark = format!("[{node}] ");
        let own: Vec<_> = ended.stdout.lines().filter_map(|line| line.strip_prefix(&mark)).collect();
        let expected: Vec<_> = (0..300).map(|i| format!("left {i} right")).chain(["unfinished".into()]).collect();
        assert_eq!(own, expected, "node {node}");
    }
    assert_eq!(ended.stdout.lines().count(), 3 * 301);
    assert_eq!(sorted(&ended.stderr), ["[0] err", "[1] err", "[2] err"]);
}

#[test]
fn without_prefix_output_is_as_it_is() {
    let ended = ended(&["run", "-n", "2", "--no-prefix", "--", "sh", "-c", "echo out; echo err >&2"]);
    assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (Some(0), "out\nout\n", "err\nerr\n"));
}

#[test]
fn input_goes_to_the_first_node() {
    let mut child = doorbell(&["run", "-n", "2", "--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"one\ntwo\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"[0] one\n[0] two\n"[..]));
}

#[test]
fn the_exit_code_is_that_of_the_first_that_fails() {
    let name = domain("codes");
    for (script, code) in [
        ("true", 0),
        ("exit 7", 7),
        ("[ $DOORBELL_NODE = 0 ] && exit 3; exec sleep 1000", 3),
        ("[ $DOORBELL_NODE = 1 ] && kill -KILL $$; exec sleep 1000", 137),
        ("[ $DOORBELL_NODE = 1 ] && kill -SEGV $$; exec sleep 1000", 139),
    ] {
        let start = Instant::now();
        let ended = ended(&["run", "-n", "2", "--domain", &name, "--", "sh", "-c", script]);
        assert_eq!(ended.code, Some(code), "{script}: {}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), usize::from(code != 0), "{script}: {}", ended.stderr);
        assert!(code == 0 || ended.stderr.contains("the others were ended; hint: "), "{}", ended.stderr);
        assert!(start.elapsed() < Duration::from_secs(100), "the sleepers were waited for");
        nothing_is_left(&name);
    }
}

#[test]
fn who_does_not_end_is_killed_with_all_it_started() {
    let name = domain("stubborn");
    let script = "trap '' TERM; if [ $DOORBELL_NODE = 1 ]; then sleep 0.2; exit 4; fi; sleep 1000 & while :; do sleep 1000; done";
    let ended = ended(&["run", "-n", "3", "--domain", &name, "--grace", "300ms", "--", "sh", "-c", script]);
    assert_eq!(ended.code, Some(4), "{}", ended.stderr);
    nothing_is_left(&name);
}

#[test]
fn what_a_node_leaves_running_is_ended() {
    let name = domain("orphans");
    let ended = ended(&["run", "-n", "2", "--domain", &name, "--", "sh", "-c", "sleep 1000 & echo gone"]);
    assert_eq!((ended.code, sorted(&ended.stdout)), (Some(0), vec!["[0] gone", "[1] gone"]));
    nothing_is_left(&name);
}

#[test]
fn who_reads_no_further_ends_it() {
    let name = domain("closed");
    let mut child = doorbell(&["run", "-n", "2", "--domain", &name, "--", "sh", "-c", "while :; do echo x; done"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(141));
    nothing_is_left(&name);
}

#[test]
fn a_ring_of_nodes_goes_around_and_leaves_nothing() {
    for progress in ["inline", "poller", "adaptive"] {
        let name = domain("ring");
        let ended = ended(&["run", "-n", "4", "--domain", &name, "--progress", progress, "--", ring(), "50"]);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{}", ended.stdout);
        assert!(ended.stdout.contains("[0] the token went around 50 times"), "{}", ended.stdout);
        assert!(ended.stdout.contains("[3] node 3 passed the token on 50 times"), "{}", ended.stdout);
        assert!(segments(&name).is_empty());
    }
}

#[test]
fn a_domain_whose_places_are_taken_is_refused() {
    let name = domain("taken");
    let again = format!("{} run -n 1 --domain {name} -- true", env!("CARGO_BIN_EXE_doorbell"));
    // Node 1 tries it when node 0 has joined, and has to fail.
    let wait = format!("until [ -e /dev/shm/doorbell.*.{name}.0.board ]; do sleep 0.01; done");
    let script = format!("if [ $DOORBELL_NODE = 1 ]; then {wait}; {again}; exit $?; fi; exec {} 1", ring());
    let ended = ended(&["run", "-n", "2", "--domain", &name, "--", "sh", "-c", &script]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    let expected = format!("[1] doorbell: error: node 0 of domain '{name}' lives already; hint: ");
    assert!(ended.stderr.lines().any(|line| line.starts_with(&expected)), "{}", ended.stderr);
    nothing_is_left(&name);
}

#[test]
fn what_dead_nodes_leave_is_kept_if_that_is_asked_for() {
    for keep in [true, false] {
        let name = domain("kept");
        let wait = format!("until [ -e /dev/shm/doorbell.*.{name}.0.board ]; do sleep 0.01; done");
        let script = format!("if [ $DOORBELL_NODE = 1 ]; then {wait}; exit 3; fi; exec {} 1", ring());
        let mut args = vec!["run", "-n", "2", "--domain", &name, "--", "sh", "-c", &script];
        if keep {
            args.insert(1, "--keep");
        }
        let run = ended(&args);
        assert_eq!((run.code, run.stderr.contains("is kept: see `doorbell autopsy")), (Some(3), keep), "{}", run.stderr);
        let autopsy = ended(&["autopsy", "0", "--domain", &name]);
        assert_eq!(autopsy.code == Some(0), keep, "{}", autopsy.stderr);
        assert_eq!(ended(&["clean", &name]).code, Some(0));
        nothing_is_left(&name);
    }
}

#[test]
fn eight_nodes_exchange_their_halos() {
    let ended = ended(&["run", "-n", "8", "--", &example("halo"), "6"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{}", ended.stdout);
    assert!(ended.stdout.contains("all 2×2×2 blocks are as one process alone has them"), "{}", ended.stdout);
    for rank in 0..8 {
        assert!(ended.stdout.contains(&format!("[{rank}] node {rank} at (")), "{}", ended.stdout);
    }
}

#[test]
fn workers_find_the_parameters() {
    let ended = ended(&["run", "-n", "4", "--", &example("parameter_server"), "150"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{}", ended.stdout);
    let worst = ended.stdout.split("further than ").nth(1).and_then(|rest| rest.split(' ').next());
    let worst: f64 = worst.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{}", ended.stdout));
    assert!(worst < 1e-3, "{}", ended.stdout);
}

#[test]
fn frames_come_through_a_pipeline() {
    let ended = ended(&["run", "-n", "4", "--", &example("pipeline"), "40"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{}", ended.stdout);
    assert!(ended.stdout.contains("40 frames of 1 MiB through 3 stages"), "{}", ended.stdout);
    for node in 1..4 {
        assert!(ended.stdout.contains(&format!("node {node}: 40 frames")), "{}", ended.stdout);
    }
}

#[test]
fn halos_want_a_torus() {
    let ended = ended(&["run", "-n", "2", "--", &example("halo")]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("2 nodes are no torus with two or more along each axis"), "{}", ended.stderr);
}
