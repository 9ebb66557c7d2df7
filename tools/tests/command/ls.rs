use super::support::{Ended, domain, doorbell, ended, eventually, kill, node, nothing_is_left, segments, send};
use doorbell::Lock;
use doorbell::{Node, Resource, Role};
use serde_json::{Value, json};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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
    eventually("metrics", || listed(&name)["nodes"][0]["metrics"]["messages_in"].as_u64().unwrap_or(0) > 0);
    let list = listed(&name);
    assert_eq!((&list["domain"], &list["layout"], &list["max_nodes"]), (&name.as_str().into(), &"ours".into(), &16.into()));
    for (id, (child, role)) in [(&first, "host"), (&second, "accelerator")].into_iter().enumerate() {
        let node = &list["nodes"][id];
        assert_eq!((&node["node"], &node["alive"], &node["role"]), (&id.into(), &true.into(), &role.into()));
        assert_eq!((&node["pid"], &node["incarnation"]), (&child.id().into(), &(id + 1).into()));
        assert!(node["bytes"].as_u64().unwrap() > 100 << 10);
    }

    // It would notice the death, and leave in good order.
    send(libc::SIGSTOP, first.id());
    let pid = second.id();
    kill(second);
    let table = ended(&["ls", &name]).stdout;
    let row = table.lines().find(|line| line.contains(&pid.to_string())).unwrap();
    assert!(row.contains("accelerator") && row.contains("dead"), "{table}");
    assert_eq!(listed(&name)["nodes"][1]["alive"], false);

    kill(first);
    let before = segments(&name);
    // The domain, its lock, and for each node an inbox, a board, and the lanes to it.
    assert_eq!(before.len(), 8, "{before:?}");
    let preview = ended(&["clean", "--dry-run", &name]);
    assert_eq!(preview.code, Some(0));
    assert!(preview.stdout.starts_with(&format!("would remove domain '{name}' (2 dead nodes, ")), "{}", preview.stdout);
    assert_eq!(segments(&name).len(), before.len(), "nothing was removed yet");
    let cleaned = ended(&["clean", &name]);
    assert_eq!((cleaned.code, cleaned.stderr.as_str()), (Some(0), ""));
    assert!(cleaned.stdout.contains("8 files removed, "), "{}", cleaned.stdout);
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
    for name in ["kernel", "processors", "memory", "membarrier", "futex", "io_uring", "layout", "defaults"] {
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

/// Tells the process that is to hold a key in which domain.
const HOLDER: &str = "TEST_HOLDS_A_KEY_IN";

/// Not a test: the process that the next one starts and kills.
#[test]
#[ignore = "a process of another test"]
fn holds_a_key() {
    let Some(name) = std::env::var_os(HOLDER) else { return };
    let node = Node::builder(name.to_str().unwrap()).role(Role::Accelerator).label("holder").join().unwrap();
    Lock::find(&node, "frame").unwrap().lock().unwrap().keep();
    loop {
        std::thread::park();
    }
}

#[test]
fn keys_are_seen_with_who_holds_them_and_who_died_with_them() {
    let name = domain("keys");
    let locks = || -> Value {
        let Ended { code, stdout, stderr } = ended(&["ls", "--locks", "--format", "json", &name]);
        assert_eq!((code, stderr.as_str()), (Some(0), ""));
        serde_json::from_str::<Value>(&stdout).unwrap()["locks"].take()
    };
    let row = || {
        let table = ended(&["ls", "--locks", &name]).stdout;
        table.lines().find(|line| line.contains("frame")).unwrap_or_else(|| panic!("{table}")).to_owned()
    };
    let node = Node::builder(&name).role(Role::Host).label("tester").join().unwrap();
    assert_eq!(listed(&name)["keys"], 0);
    assert!(ended(&["ls", "--locks", &name]).stdout.contains("no keys"));

    let key = Lock::init(&node, "frame", Resource::memory(0x100..0x1000)).unwrap();
    assert!(ended(&["ls", &name]).stdout.contains(&format!("'{name}' has 1 key in its lock registry")));
    assert_eq!(listed(&name)["keys"], 1);
    let free = locks();
    assert_eq!(
        (free[0]["key"].as_str(), free[0]["value"].as_str(), &free[0]["owner"]),
        (Some("frame"), Some("unlocked"), &Value::Null)
    );
    assert_eq!(free[0]["resource"], json!({ "kind": "memory", "start": 0x100, "end": 0x1000 }));
    assert_eq!((&free[0]["creator"]["node"], &free[0]["users"]), (&json!(0), &json!([0])));

    let guard = key.lock().unwrap();
    let said = row();
    for part in ["memory 0x100..0x1000", "node 0 (1), thread ", "host", "tester", "sound"] {
        assert!(said.contains(part), "'{part}' is missing in {said}");
    }
    let mut holder = Command::new(std::env::current_exe().unwrap());
    holder.args(["--ignored", "--exact", "ls::holds_a_key"]).env(HOLDER, &name).stdout(Stdio::null()).stderr(Stdio::null());
    let holder = holder.spawn().unwrap();
    eventually("that the other one waits", || locks()[0]["waiting"][0]["node"] == 1);
    assert_eq!((&locks()[0]["owner"]["node"], &locks()[0]["users"]), (&json!(0), &json!([0, 1])));
    guard.unlock().unwrap();
    eventually("that the other one has it", || locks()[0]["owner"]["node"] == 1);
    let owner = &locks()[0]["owner"];
    assert_eq!((&owner["label"], &owner["role"], &owner["alive"]), (&json!("holder"), &json!("accelerator"), &json!(true)));

    kill(holder);
    assert_eq!((&locks()[0]["owner"]["node"], &locks()[0]["owner"]["alive"]), (&json!(1), &json!(false)));
    assert!(row().contains("its owner is dead"), "{}", row());
    let mut guard = key.lock_until(Instant::now() + Duration::from_secs(20)).unwrap();
    let damaged = &locks()[0];
    assert_eq!(
        (&damaged["damaged"], &damaged["died_with_it"]["node"], &damaged["owner"]["node"]),
        (&json!(true), &json!(1), &json!(0))
    );
    assert!(row().contains("damaged: node 1 (2), thread ") && row().contains(" died with it"), "{}", row());
    guard.mark_repaired().unwrap();
    assert_eq!((&locks()[0]["damaged"], &locks()[0]["died_with_it"]), (&json!(false), &Value::Null));
    guard.unlock().unwrap();

    key.lock_all(Instant::now() + Duration::from_secs(20)).unwrap();
    assert_eq!((&locks()[0]["value"], &locks()[0]["frozen"]), (&json!("module"), &json!(true)));
    assert!(row().contains("locked by the module"), "{}", row());
    node.leave().unwrap();
    ended(&["clean", &name]);
    nothing_is_left(&name);
}

#[test]
fn links_and_modes_are_listed() {
    let name = domain("links");
    let join = || Node::builder(&name).join().unwrap();
    let (a, b) = (join(), join());
    for _ in 0..4 {
        a.send_as(b.id(), 1, &[1; 500], "shm".parse().unwrap()).unwrap();
    }
    assert!(a.send_as(b.id(), 1, b"no", "udp".parse().unwrap()).is_err());
    let seen = a.monitor().unwrap();
    let Ended { code, stdout, stderr } = ended(&["ls", "--modes", "--format", "json", &name]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let modes = &serde_json::from_str::<Value>(&stdout).unwrap()["modes"];
    let (node, link) = (&modes["nodes"][0], &modes["nodes"][0]["links"][0]);
    assert_eq!((&link["to"], &link["fabric"], &link["link"]), (&json!(1), &json!("shm"), &json!(0)));
    assert_eq!((&link["messages"], &link["bytes_sent"]), (&json!(4), &json!(2000)));
    assert_eq!((&link["bytes"], &link["occupancy_permille"]), (&json!(seen.links[0].bytes), &json!(seen.links[0].occupancy)));
    assert_eq!(node["requests"], json!({ "shm": 4, "udp": 1, "none": 0 }));
    assert_eq!(
        (&node["honoured"], &node["refused"]["unavailable"], &node["modes"][0]["messages"]),
        (&json!(4), &json!(1), &json!(4))
    );
    assert_eq!((&modes["domain"]["nodes"], &modes["domain"]["links"]["shm"]["links"]), (&json!(2), &json!(1)));
    let table = ended(&["ls", "--modes", &name]).stdout;
    assert!(table.contains("OCCUPANCY") && table.contains("node 0: asked for shm 4, udp 1; as asked or usual 4"), "{table}");
    assert!(table.contains(&format!("'{name}': 2 nodes; 1 shm link, mean depth ")), "{table}");
    assert_eq!(ended(&["ls", "--modes", "--locks"]).code, Some(2));
}

#[test]
fn injection_fifos_are_listed_with_what_is_left_in_them() {
    use doorbell::dma::{Descriptor, InjectionFifo};
    let name = domain("fifos");
    let node = Node::builder(&name).progress(doorbell::Progress::Inline).join().unwrap();
    let region = node.region::<u8>(100).unwrap();
    let fifo = InjectionFifo::builder(&node).name("halo").priority(doorbell::Priority::Low).open().unwrap();
    let put = Descriptor::put(region.key().range(..40), region.key().at(50)).unwrap();
    // No call of the node executes them before they are looked at.
    assert_eq!(fifo.inject_all(&[put, put]).unwrap(), 2);
    let table = ended(&["ls", &name, "--fifos"]).stdout;
    let row: Vec<&str> = table.lines().find(|line| line.contains("halo")).unwrap().split_whitespace().collect();
    assert_eq!(row[3..9], ["halo", "low", "program", "2", "2", "0"], "{table}");
    assert!(table.contains("direct-put of 40 B to node 0"), "{table}");
    let autopsy = ended(&["autopsy", "0", "--domain", &name]).stdout;
    assert!(autopsy.contains("'halo', low: 2 of 2 descriptors left"), "{autopsy}");
    fifo.wait().unwrap();
    let json: Value = serde_json::from_str(&ended(&["ls", &name, "--fifos", "--format", "json"]).stdout).unwrap();
    let fifos = json["fifos"][0]["fifos"].as_array().unwrap();
    let halo = fifos.iter().find(|fifo| fifo["name"] == "halo").unwrap();
    assert_eq!((&halo["executed"], &halo["bytes"], &halo["pending"]), (&json!(2), &json!(80), &json!([])));
    drop(fifo);
    node.leave().unwrap();
}
