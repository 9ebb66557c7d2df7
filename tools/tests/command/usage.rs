use super::support::{Ended, doorbell, ended, ring};
use std::process::Command;

/// Checks that the command was refused before it did anything, in one line with a hint.
fn is_refused(ended: &Ended, mention: &str) {
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{mention}: {}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    assert!(ended.stderr.starts_with("doorbell: error: ") && ended.stderr.contains("; hint: "), "{}", ended.stderr);
    assert!(ended.stderr.contains(mention), "'{mention}' is missing in: {}", ended.stderr);
}

#[test]
fn malformed_arguments() {
    let cases: [(&[&str], &str); 25] = [
        (&["rum"], "'rum'"),
        (&["demo", "now"], "'now'"),
        (&["demo", "--wait", "never"], "'never' is not a way of waiting: auto, spin, yield or park"),
        (&["run", "-n", "0", "--", "true"], "'0'"),
        (&["run", "-n", "1025", "--", "true"], "'1025'"),
        (&["run", "-n", "two", "--", "true"], "'two'"),
        (&["run", "--", "true"], "--nodes <N>"),
        (&["run", "-n", "2"], "<PROGRAM>"),
        (&["run", "-n", "2", "--role", "boss", "--", "true"], "'boss' is not a role"),
        (&["run", "-n", "2", "--domain", "a/b", "--", "true"], "'a/b' cannot name a domain"),
        (&["run", "-n", "2", "--bind", "0-x", "--", "true"], "'0-x' is no processor"),
        (&["run", "-n", "2", "--bind", "1023", "--", "true"], "processor 1023 is not there"),
        (&["run", "-n", "2", "--grace", "soon", "--", "true"], "it is not a time"),
        (&["run", "-n", "2", "--", "no-such-program"], "cannot start 'no-such-program'"),
        (&["ls", "a b"], "'a b' cannot name a domain"),
        (&["clean", "--everything"], "'--everything'"),
        (&["top", "--interval", "1ms"], "it is too short"),
        (&["top", "--domain", "a b"], "'a b' cannot name a domain"),
        (&["autopsy", "x"], "'x' is not a node id"),
        (&["autopsy", "1", "--last", "513"], "'513'"),
        (&["atomics", "--type", "u7"], "'u7'"),
        (&["atomics", "--threads", "1"], "'1'"),
        (&["tune", "--rounds", "0"], "'0'"),
        (&["ports", "--rounds", "0"], "'0'"),
        (&["tune", "--pin", "0,1023"], "processor 1023 is not there"),
    ];
    for (args, mention) in cases {
        is_refused(&ended(args), mention);
    }
}

#[test]
fn malformed_environment() {
    let cases = [
        ("DOORBELL_NODE", "x", "'x' is not a node id: a number from 0 to 1023"),
        ("DOORBELL_NODES", "0", "'0' is not a number of nodes"),
        ("DOORBELL_ROLE", "king", "'king' is not a role"),
        ("DOORBELL_PROGRESS", "", "'' is not a progress policy"),
        ("DOORBELL_WAIT", "never", "'never' is not a way of waiting"),
        ("DOORBELL_DOMAIN", "a.b", "'a.b' cannot name a domain"),
    ];
    for (name, value, mention) in cases {
        for args in
            [&["demo"][..], &["run", "-n", "1", "--", "true"], &["ls"], &["clean"], &["info"], &["latency", "--iterations", "1"]]
        {
            let ended: Ended = doorbell(args).env(name, value).output().unwrap().into();
            is_refused(&ended, mention);
            assert!(ended.stderr.contains(name), "{}", ended.stderr);
        }
    }
}

#[test]
fn programs_refuse_it_as_well() {
    let cases = [
        (&[("DOORBELL_DOMAIN", "d"), ("DOORBELL_NODE", "x")][..], "DOORBELL_NODE"),
        (&[("DOORBELL_DOMAIN", "d"), ("DOORBELL_WAIT", "never")], "DOORBELL_WAIT"),
        (&[], "DOORBELL_DOMAIN is not set"),
    ];
    for (variables, mention) in cases {
        let mut command = Command::new(ring());
        for name in ["DOORBELL_DOMAIN", "DOORBELL_NODE", "DOORBELL_NODES", "DOORBELL_WAIT", "DOORBELL_PROGRESS", "DOORBELL_ROLE"]
        {
            command.env_remove(name);
        }
        let ended: Ended = command.envs(variables.iter().copied()).output().unwrap().into();
        assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.lines().count()), (Some(2), "", 1), "{}", ended.stderr);
        assert!(ended.stderr.contains(mention), "{}", ended.stderr);
    }
}

#[test]
fn the_environment_counts_where_the_command_line_says_nothing() {
    let ended: Ended = doorbell(&["demo"]).env("DOORBELL_PROGRESS", "inline").output().unwrap().into();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("(--progress inline)"), "{}", ended.stdout);
}

/// Commands whose help has examples.
const TAUGHT: [&str; 17] = [
    "demo",
    "run",
    "ports",
    "lock",
    "collective",
    "device",
    "modes",
    "top",
    "serve",
    "ls",
    "autopsy",
    "clean",
    "tune",
    "info",
    "report",
    "man",
    "completions",
];

#[test]
fn help_teaches() {
    for command in TAUGHT {
        let help = ended(&[command, "--help"]);
        assert_eq!((help.code, help.stderr.as_str()), (Some(0), ""));
        assert!(help.stdout.contains(&format!("Examples:\n  doorbell {command}")), "{}", help.stdout);
    }
    let all = ended(&["--help"]).stdout;
    for command in TAUGHT.into_iter().chain(["latency", "rate"]) {
        assert!(all.lines().any(|line| line.trim_start().starts_with(command)), "{command} is missing in\n{all}");
    }
    for hidden in ["guard", "worker", "accelerator ", "reference"] {
        assert!(!all.lines().any(|line| line.trim_start().starts_with(hidden)), "{hidden} is shown in\n{all}");
    }
}
