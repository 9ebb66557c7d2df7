use super::as_usual::ignoring;
use super::support::eventually;
use super::support::{boards, domain, doorbell, nothing_is_left, processes, ring, send};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Stdio};

/// Starts nodes, and waits until each has said that it is ready.
fn started(name: &str, nodes: usize, options: &[&str], script: &str) -> (Child, BufReader<ChildStdout>) {
    started_ignoring(&[], name, nodes, options, script)
}

/// The same by a shell that has these signals ignored.
fn started_ignoring(
    ignored: &'static [i32],
    name: &str,
    nodes: usize,
    options: &[&str],
    script: &str,
) -> (Child, BufReader<ChildStdout>) {
    let (count, script) = (nodes.to_string(), format!("{script}; echo ready; while :; do sleep 0.02; done"));
    let args = [&["run", "-n", &count, "--domain", name], options, &["--", "sh", "-c", &script]].concat();
    let mut command = doorbell(&args);
    ignoring(&mut command, ignored);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    for _ in 0..nodes {
        assert!(line(&mut lines).ends_with("ready\n"));
    }
    (child, lines)
}

fn line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    line
}

#[test]
fn signals_reach_all_nodes() {
    let name = domain("signals");
    let (mut child, mut lines) = started(&name, 2, &[], "trap 'echo usr1' USR1; trap 'echo usr2' USR2; trap 'echo hup' HUP");
    for (signal, word) in [(libc::SIGUSR1, "usr1"), (libc::SIGUSR2, "usr2"), (libc::SIGHUP, "hup")] {
        send(signal, child.id());
        let mut answers = [line(&mut lines), line(&mut lines)];
        answers.sort_unstable();
        assert_eq!(answers, [format!("[0] {word}\n"), format!("[1] {word}\n")]);
    }
    send(libc::SIGINT, child.id());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    nothing_is_left(&name);
}

#[test]
fn what_was_ignored_stays_ignored() {
    let name = domain("ignored");
    let ignored = &[libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];
    let (mut child, mut lines) = started_ignoring(ignored, &name, 2, &[], "trap 'echo usr1' USR1");
    // The third INT would be the end at once, if one counted.
    for signal in [libc::SIGINT, libc::SIGINT, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1] {
        send(signal, child.id());
    }
    let mut answers = [line(&mut lines), line(&mut lines)];
    answers.sort_unstable();
    assert_eq!(answers, ["[0] usr1\n", "[1] usr1\n"]);
    send(libc::SIGTERM, child.id());
    assert_eq!(child.wait().unwrap().code(), Some(143));
    nothing_is_left(&name);
}

#[test]
fn nodes_decide_how_they_end() {
    let name = domain("orderly");
    let (mut child, mut lines) = started(&name, 2, &[], "trap 'echo tidied up; exit 0' TERM");
    send(libc::SIGTERM, child.id());
    let mut answers = [line(&mut lines), line(&mut lines)];
    answers.sort_unstable();
    assert_eq!(answers, ["[0] tidied up\n", "[1] tidied up\n"]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    nothing_is_left(&name);
}

#[test]
fn a_third_request_is_no_request_any_more() {
    let name = domain("deaf");
    let (mut child, mut lines) = started(&name, 2, &["--grace", "1000s"], "trap 'echo no' INT; trap 'echo never' TERM");
    for words in [["[0] no\n", "[1] no\n"], ["[0] never\n", "[1] never\n"]] {
        send(libc::SIGINT, child.id());
        for word in words {
            eventually("an answer", || line(&mut lines).len() == word.len());
        }
    }
    send(libc::SIGINT, child.id());
    assert_eq!(child.wait().unwrap().code(), Some(137));
    nothing_is_left(&name);
}

#[test]
fn killed_the_command_leaves_no_process_and_no_segment() {
    let name = domain("killed");
    let ring = format!("{} 1000000000", ring());
    // A child of each node, and a node below a shell: none of them is a child of the command.
    let (mut child, lines) = started(&name, 2, &[], &format!("sleep 1000 & {ring} & :"));
    eventually("two nodes", || boards(&name) == 2);
    assert!(processes(&name).len() >= 7, "two shells, two rings, two sleepers, a guard");
    send(libc::SIGKILL, child.id());
    child.wait().unwrap();
    nothing_is_left(&name);
    drop(lines);
}

#[test]
fn a_killed_node_ends_the_others() {
    let name = domain("node");
    let args = ["run", "-n", "3", "--domain", &name, "--", ring(), "1000000000"];
    let mut child = doorbell(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("three nodes", || boards(&name) == 3);
    let victim = processes("DOORBELL_NODE=2").into_iter().find(|process| processes(&name).contains(process)).unwrap();
    send(libc::SIGKILL, victim as u32);
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(137), "{stderr}");
    assert!(
        stderr.contains(&format!("node 2 (process {victim}) was ended by the signal SIGKILL, so the others were ended")),
        "{stderr}"
    );
    nothing_is_left(&name);
}
