//! A domain that another build of Doorbell made.

use super::serve::Server;
use super::space::Directory;
use super::support::{domain, ended, eventually, kill, node, nothing_is_left, segments};
use doorbell::{Node, Space};
use doorbell_shm::layout::{LAYOUT_HASH, LAYOUT_VERSION};
use serde_json::Value;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Where the layout hash is in the header of every segment.
const HASH_OFFSET: u64 = 16;

/// Writes the layout of another build into all segments of a domain.
fn make_other(name: &str) {
    let mut changed = 0;
    for file in segments(name) {
        let file = OpenOptions::new().read(true).write(true).open(Path::new("/dev/shm").join(file)).unwrap();
        let mut hash = [0; 8];
        if file.read_exact_at(&mut hash, HASH_OFFSET).is_ok() && u64::from_le_bytes(hash) == LAYOUT_HASH {
            file.write_all_at(&(!LAYOUT_HASH).to_le_bytes(), HASH_OFFSET).unwrap();
            changed += 1;
        }
    }
    assert_eq!(changed, 3, "the directory, an inbox, and a board");
}

#[test]
fn a_domain_of_another_build_is_told_and_left_alone() {
    let name = domain("layouts");
    let old = node(&name, 0, 2);
    make_other(&name);
    let (theirs, ours) = (format!("{LAYOUT_VERSION}/{:016x}", !LAYOUT_HASH), format!("{LAYOUT_VERSION}/{LAYOUT_HASH:016x}"));
    let remark = format!("'{name}' has another layout ({theirs}, here {ours}): another build of Doorbell made it");

    let listed = ended(&["ls", &name]).stdout;
    assert!(listed.contains(" alive ") && listed.contains(&remark), "{listed}");
    let object: Value = serde_json::from_str(&ended(&["ls", &name, "--format", "json"]).stdout).unwrap();
    assert_eq!((&object["layout"], &object["nodes"][0]["alive"]), (&"other".into(), &true.into()));
    let top = ended(&["top", "--once", "--interval", "20ms", "--domain", &name]).stdout;
    assert!(top.contains(" alive ") && top.contains(&remark), "{top}");
    let server = Server::start(&name);
    eventually("that the page says it", || server.get("/", "*/*").1.contains(&remark));
    let metrics = server.get("/metrics", "*/*").1;
    assert!(metrics.contains(&format!("doorbell_domain_info{{domain=\"{name}\",layout=\"other\"}} 1")), "{metrics}");
    drop(server);
    let autopsy = ended(&["autopsy", "0", "--domain", &name]);
    assert_eq!(autopsy.code, Some(1));
    assert!(autopsy.stderr.contains("another build of Doorbell may have made it"), "{}", autopsy.stderr);

    let refused = ended(&["io", "serve", "/", "--domain", &name]);
    assert_eq!((refused.code, refused.stdout.as_str(), refused.stderr.lines().count()), (Some(2), "", 1), "{}", refused.stderr);
    let said = format!(
        "doorbell: error: cannot join domain '{name}': its layout is {theirs}, this program has {ours}, and 1 of its nodes live; \
         use one build for all nodes, or another domain name, or another directory (DOORBELL_SPACE); hint: "
    );
    assert!(refused.stderr.starts_with(&said), "{}", refused.stderr);
    assert!(refused.stderr.ends_with("; see errors.md#shm-other-layout\n"), "{}", refused.stderr);

    // Both builds work at the same time: under another name, or in another directory.
    let (beside, directory) = (domain("layouts-beside"), Directory::make("layouts-space"));
    let other_name = Node::builder(&beside).join().unwrap();
    let other_place = Node::builder(&name).space(Space::posix_at(directory.name())).join().unwrap();
    let all = ended(&["ls"]).stdout;
    assert!([&name, &beside].iter().all(|name| all.lines().any(|line| line.starts_with(*name))), "{all}");
    let there = ended(&["ls", &name, "--space", directory.name()]).stdout;
    assert!(there.contains(" alive ") && !there.contains("another layout"), "{there}");
    other_name.leave().unwrap();
    other_place.leave().unwrap();

    let before = segments(&name);
    assert_eq!(ended(&["clean", "--force", &name]).stdout, "nothing to remove\n");
    kill(old);
    let preview = ended(&["clean", "--dry-run", &name]).stdout;
    assert_eq!(preview, format!("would keep domain '{name}': another build made it; --force removes it\n"));
    let kept = ended(&["clean", &name]);
    assert_eq!((kept.code, kept.stdout.as_str()), (Some(1), "nothing to remove\n"));
    assert!(kept.stderr.contains(&format!("it has another layout ({theirs})")), "{}", kept.stderr);
    assert_eq!(segments(&name).len(), before.len());
    assert_eq!(ended(&["clean", "--force", &name]).code, Some(0));
    nothing_is_left(&name);
    nothing_is_left(&beside);
}
