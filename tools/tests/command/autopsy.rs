use super::support::{domain, ended, eventually, kill, node, nothing_is_left, send};
use serde_json::Value;

fn examined(name: &str, id: &str) -> Value {
    let ended = ended(&["autopsy", id, "--domain", name, "--format", "json"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    serde_json::from_str(&ended.stdout).unwrap()
}

fn kinds(examined: &Value) -> Vec<&str> {
    examined["records"].as_array().unwrap().iter().map(|record| record["kind"].as_str().unwrap()).collect()
}

#[test]
fn a_killed_node_says_what_it_did_last() {
    let name = domain("autopsy");
    let (first, second) = (node(&name, 0, 2), node(&name, 1, 2));
    eventually("that they talk", || examined(&name, "1")["metrics"]["messages_in"].as_u64().unwrap() > 0);
    let living = examined(&name, "1");
    assert_eq!((&living["state"], &living["pid"], &living["node"]), (&"alive".into(), &second.id().into(), &1.into()));

    // One is stopped, so that it does not end when the other dies; it is seen all the same.
    send(libc::SIGSTOP, first.id());
    eventually("that it is stopped", || examined(&name, "0")["state"] == "stopped");
    let pid = second.id();
    kill(second);
    let dead = examined(&name, "1");
    assert_eq!((&dead["state"], &dead["role"], &dead["pid"]), (&"dead".into(), &"accelerator".into(), &pid.into()));
    assert!(dead["metrics"]["messages_in"].as_u64() >= living["metrics"]["messages_in"].as_u64());
    assert!(kinds(&dead).iter().filter(|kind| **kind == "joined").count() >= 2, "itself and the other: {dead}");
    let numbers: Vec<_> = dead["records"].as_array().unwrap().iter().map(|record| record["number"].as_u64().unwrap()).collect();
    assert!(numbers.is_sorted() && numbers[0] == 1, "{numbers:?}");
    let table = ended(&["autopsy", "1", "--domain", &name, "--last", "1"]).stdout;
    assert!(table.starts_with(&format!("node 1 of domain '{name}', life ")) && table.contains(": dead, accelerator"), "{table}");
    assert_eq!(table.lines().filter(|line| line.contains("joined")).count(), 1, "{table}");

    assert!(kinds(&examined(&name, "0")).contains(&"joined"));
    kill(first);
    assert_eq!(ended(&["clean", &name]).code, Some(0));
    nothing_is_left(&name);
}

#[test]
fn a_death_is_noted_by_those_who_live() {
    let name = domain("survivor");
    // They wait for a third, and so for each other.
    let (first, second) = (node(&name, 0, 3), node(&name, 1, 3));
    eventually("that they met", || kinds(&examined(&name, "0")).iter().filter(|kind| **kind == "joined").count() >= 3);
    kill(second);
    let noted = |record: &Value| record["kind"] == "peer-died" && record["peer"] == 1 && record["incarnation"].is_u64();
    eventually("that the death is noted", || examined(&name, "0")["records"].as_array().unwrap().iter().any(noted));
    kill(first);
    assert_eq!(ended(&["clean", &name]).code, Some(0));
    nothing_is_left(&name);
}

#[test]
fn a_node_that_is_not_there() {
    let name = domain("nobody");
    let missing = ended(&["autopsy", "3", "--domain", &name]);
    assert_eq!((missing.code, missing.stdout.as_str()), (Some(1), ""));
    assert!(missing.stderr.contains(&format!("nothing is left of a node 3 of a domain '{name}'; hint: ")), "{}", missing.stderr);
}
