//! Whole nodes in one thread and in virtual time: what they do depends on the seed alone.

use doorbell::{Error, Match, Node, NodeId, Progress, ReadWrite, Space};
use doorbell_fabric::world::{self, Simulation};
use std::time::{Duration, Instant};

/// Two nodes that only calls turn.
fn pair() -> (Node, Node) {
    let space = Space::heap();
    let join = |id| Node::builder("virtual").id(id).space(space.clone()).progress(Progress::Inline).join().unwrap();
    (join(0), join(1))
}

#[test]
fn an_hour_of_waiting_takes_no_time() {
    let began = Instant::now();
    let world = world::simulate(1);
    let (a, b) = pair();
    let deadline = world::now() + Duration::from_secs(3600);
    let waited = b.recv_until(Match::any(), &mut [0; 8], deadline);
    assert!(matches!(waited, Err(Error::Timeout { .. })), "{waited:?}");
    assert!(world.passed() >= Duration::from_secs(3600), "{:?}", world.passed());
    // A message that came meanwhile is there at once.
    a.send(b.id(), 7, b"late").unwrap();
    let before = world.passed();
    let mut buf = [0; 8];
    assert_eq!(b.recv_until(Match::any(), &mut buf, world::now() + Duration::from_secs(3600)).unwrap().tag, 7);
    assert!(world.passed() - before < Duration::from_secs(1), "{:?}", world.passed() - before);
    drop((a, b, world));
    // Far below the hour, however slow the machine.
    assert!(began.elapsed() < Duration::from_secs(600), "{:?}", began.elapsed());
}

/// Two nodes do by turns what a seed says: what became of each step, and how much time passed.
fn story(seed: u64) -> (Vec<String>, Duration) {
    let world: Simulation = world::simulate(seed);
    let (a, b) = pair();
    let nodes = [&a, &b];
    let region = b.region::<u64>(64).unwrap();
    let key: doorbell::Key<u64, ReadWrite> = region.key();
    let mut said = Vec::new();
    for step in 0..400_u64 {
        let random = world::random();
        let (node, other) = (nodes[random as usize % 2], nodes[(random as usize + 1) % 2].id());
        let text = match random / 2 % 5 {
            0 | 1 => {
                let bytes = vec![step as u8; (world::random() % 3000) as usize];
                format!("{:?}", node.try_send(other, step, &bytes).map_err(|error| error.to_string()))
            }
            2 => {
                let mut buf = vec![0; 4096];
                let got = node.try_recv(Match::any(), &mut buf).map_err(|error| error.to_string());
                format!("{:?}", got.map(|got| got.map(|envelope| (envelope.tag, envelope.len, buf[0]))))
            }
            3 => {
                let deadline = world::now() + Duration::from_millis(world::random() % 100);
                let got = node.recv_until(Match::any(), &mut vec![0; 4096], deadline).map_err(|error| error.to_string());
                format!("{:?} after {:?}", got.map(|envelope| envelope.tag), world.passed())
            }
            _ => {
                a.put(&[random], key.at(step as usize % 64)).unwrap();
                let mut back = [0];
                b.get(key.at(step as usize % 64), &mut back).unwrap();
                format!("{}", back[0] == random)
            }
        };
        said.push(text);
    }
    let left: Vec<NodeId> = nodes.iter().map(|node| node.id()).collect();
    assert_eq!(left, [NodeId(0), NodeId(1)]);
    (said, world.passed())
}

#[test]
fn a_story_is_the_same_each_time() {
    let first = story(42);
    assert_eq!(first, story(42));
    assert_ne!(first.0, story(43).0);
    let received = first.0.iter().filter(|text| text.starts_with("Ok(Some(")).count();
    assert!(received > 10, "{received} messages were received");
}
