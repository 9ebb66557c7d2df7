use super::support::{Ended, domain, doorbell, ended, eventually, kill, node, nothing_is_left, segments};
use serde_json::Value;
use std::process::Stdio;

fn listed(name: &str) -> Value {
    let Ended { code, stdout, stderr } = ended(&["ls", "--format", "json", name]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert_eq!(stdout.lines().count(), 1);
    serde_json::from_str(&stdout).unwrap()
}

#[test]
fn nodes_are_seen_alive_and_dead_and_are_cleaned_up_after() {
    let name = domain("seen");
    let first = node(&name, 0, 2);
    let second = node(&name, 1, 2);
    eventually("figures", || listed(&name)["nodes"][0]["figures"]["messages_in"].as_u64().unwrap_or(0) > 0);
    let list = listed(&name);
    assert_eq!((&list["domain"], &list["layout"], &list["max_nodes"]), (&name.as_str().into(), &"ours".into(), &16.into()));
    for (id, (child, role)) in [(&first, "host"), (&second, "accelerator")].into_iter().enumerate() {
        let node = &list["nodes"][id];
        assert_eq!((&node["node"], &node["alive"], &node["role"]), (&id.into(), &true.into(), &role.into()));
        assert_eq!((&node["pid"], &node["incarnation"]), (&child.id().into(), &(id + 1).into()));
        assert!(node["bytes"].as_u64().unwrap() > 1 << 20);
    }

    let pid = second.id();
    kill(second);
    let table = ended(&["ls", &name]).stdout;
    let row = table.lines().find(|line| line.contains(&pid.to_string())).unwrap();
    assert!(row.contains("accelerator") && row.contains("dead"), "{table}");
    assert_eq!(listed(&name)["nodes"][1]["alive"], false);

    kill(first);
    let before = segments(&name);
    assert_eq!(before.len(), 6, "{before:?}");
    let preview = ended(&["clean", "--dry-run", &name]);
    assert_eq!(preview.code, Some(0));
    assert!(preview.stdout.starts_with(&format!("would remove domain '{name}' (2 dead nodes, ")), "{}", preview.stdout);
    assert_eq!(segments(&name).len(), before.len(), "nothing was removed yet");
    let cleaned = ended(&["clean", &name]);
    assert_eq!((cleaned.code, cleaned.stderr.as_str()), (Some(0), ""));
    assert!(cleaned.stdout.contains("6 files removed, "), "{}", cleaned.stdout);
    nothing_is_left(&name);
    assert_eq!(ended(&["clean", &name]).stdout, "nothing to remove\n");
}

#[test]
fn the_living_are_left_alone() {
    let name = domain("living");
    let (living, dead) = (node(&name, 0, 3), node(&name, 1, 3));
    kill(dead);
    let preview = ended(&["clean", "--dry-run", &name]).stdout;
    assert!(preview.starts_with(&format!("would remove node 1 of domain '{name}' (dead, ")), "{preview}");
    let cleaned = ended(&["clean", "--force", &name]);
    assert_eq!(cleaned.code, Some(0), "{}", cleaned.stderr);
    assert!(cleaned.stdout.contains("2 files removed"), "{}", cleaned.stdout);
    let list = listed(&name);
    assert_eq!((list["nodes"].as_array().unwrap().len(), &list["nodes"][0]["alive"]), (1, &true.into()));
    assert_eq!(ended(&["clean", &name]).stdout, "nothing to remove\n");
    kill(living);
    assert_eq!(ended(&["clean", &name]).code, Some(0));
    nothing_is_left(&name);
}

#[test]
fn a_domain_that_is_not_there() {
    let name = domain("absent");
    let missing = ended(&["ls", &name]);
    assert_eq!((missing.code, missing.stdout.as_str()), (Some(1), ""));
    assert_eq!(
        missing.stderr,
        format!("doorbell: error: there is no domain '{name}'; hint: `doorbell ls` shows all of this user's\n")
    );
    assert_eq!(ended(&["clean", &name]).stdout, "nothing to remove\n");
    assert_eq!(ended(&["clean", "--dry-run", &name]).stdout, "nothing to remove\n");
}

#[test]
fn facts_about_the_machine() {
    let Ended { code, stdout, stderr } = ended(&["info", "--format", "json"]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let facts: Value = serde_json::from_str(&stdout).unwrap();
    assert!(facts["producers_fence"].is_boolean() && facts["futex"].is_boolean());
    assert!(facts["shm_bytes"].as_u64().unwrap() >= facts["shm_free_bytes"].as_u64().unwrap());
    assert!(!facts["processors"].as_array().unwrap().is_empty());
    let table = ended(&["info"]).stdout;
    for name in ["kernel", "processors", "memory", "membarrier", "futex", "layout", "defaults"] {
        assert!(table.lines().any(|line| line.starts_with(name)), "{name} is missing in\n{table}");
    }
}

#[test]
fn who_closed_the_pipe_has_seen_enough() {
    for args in [&["info"][..], &["ls"], &["ls", "--format", "json"], &["clean", "--dry-run"], &["--help"]] {
        let mut child = doorbell(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let ended = Ended::from(child.wait_with_output().unwrap());
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{args:?}");
    }
}
