//! Processes that are stopped or killed in the middle of long transfers. Their keys become stale, and they no longer write; the operations of their
//! peers fail with an error that names them.

use doorbell::{CopySide, Error, Key, Match, Node, NodeId, ReadWrite};
use doorbell_tests::Turn;
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::{PATIENCE, eventually, running, soon, until};
use doorbell_tests::pattern;
use doorbell_tests::process::Process;
use doorbell_tests::words::Words;
use rustix::process::Signal;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const MIB: usize = 1 << 20;
const LONG: usize = 64 * MIB;
const ROUNDS: usize = 24;

/// The shared words.
mod at {
    /// Puts that succeeded, and keys that were refused.
    pub const PUTS: usize = 0;
    pub const REFUSED: usize = 1;
    pub const COUNT: usize = 2;
}

fn start(role: &str, domain: &Domain, words: &Words) -> Process {
    Process::start(role).tell("DOORBELL_DOMAIN", domain.name()).tell("DOORBELL_NODE", "1").words(words).go()
}

fn join() -> Node {
    doorbell::NodeBuilder::from_env().unwrap().copy(CopySide::Both).join().unwrap()
}

/// A random moment within this time.
fn a_moment(round: usize, most: Duration) {
    let until = std::time::Instant::now() + most.mul_f64((round as f64 * 0.618_034).fract());
    while std::time::Instant::now() < until {
        std::hint::spin_loop();
    }
}

pub fn puts_until_it_is_refused() {
    let (node, words) = (join(), Words::inherited());
    let bytes = vec![0xee; MIB];
    let mut key = [0; doorbell::KEY_BYTES];
    while node.recv_until(Match::from(NodeId(0)), &mut key, soon()).unwrap().tag == 1 {
        let key = Key::<u8, ReadWrite>::from_bytes(&key).unwrap();
        while node.put(&bytes, key.at(0)).is_ok() {
            words[at::PUTS].fetch_add(1, SeqCst);
        }
        words[at::REFUSED].fetch_add(1, SeqCst);
    }
    node.leave().unwrap();
}

/// Its owner drops a region while a peer that holds its key stands still, perhaps between the check of the key and the last byte.
#[test]
fn nothing_lands_in_memory_that_was_given_back_under_a_stopped_peer() {
    let _turn = Turn::take();
    let domain = Domain::new("dropped");
    let words = Words::new(at::COUNT);
    let node = Node::builder(domain.name()).id(0).join().unwrap();
    let process = start("puts until it is refused", &domain, &words);
    node.wait_for(2, soon()).unwrap();
    for round in 0..ROUNDS {
        let before = words[at::PUTS].load(SeqCst);
        let region = node.region::<u8>(MIB).unwrap();
        node.send_until(NodeId(1), 1, &region.key().to_bytes(), soon()).unwrap();
        eventually("it is put to", || words[at::PUTS].load(SeqCst) > before + 1);
        a_moment(round, Duration::from_micros(200));
        process.signal(Signal::STOP);
        drop(region);
        // As likely as not in the same place.
        let next = node.region::<u8>(MIB).unwrap();
        let mut private = vec![0xa5_u8; MIB];
        next.write(0, &private).unwrap();
        process.signal(Signal::CONT);
        eventually("its key is refused", || words[at::REFUSED].load(SeqCst) > round as u64);
        assert!(private.iter().all(|byte| *byte == 0xa5), "round {round}: private memory was written");
        next.read(0, &mut private).unwrap();
        assert!(private.iter().all(|byte| *byte == 0xa5), "round {round}: another region was written");
    }
    node.send_until(NodeId(1), 2, &[], soon()).unwrap();
    process.end_well(PATIENCE);
    node.leave().unwrap();
}

pub fn sends_much() {
    let node = join();
    let bytes = pattern::bytes(LONG, 1);
    while node.send(NodeId(0), 1, &bytes).is_ok() {}
}

/// The origin is killed in the middle, and the receive that had taken its message ends by name; its next life's message is whole.
#[test]
fn a_receive_ends_when_its_origin_is_killed_in_the_middle() {
    let _turn = Turn::take();
    let domain = Domain::new("origins");
    let words = Words::new(at::COUNT);
    let node = Node::builder(domain.name()).id(0).copy(CopySide::Both).join().unwrap();
    let region = node.region::<u8>(LONG).unwrap();
    // SAFETY: nobody has a key of this region, and origins write only while a receive of this thread waits.
    let registered = unsafe { region.as_mut_slice() };
    let mut private = vec![0; LONG];
    for round in 0..ROUNDS {
        let process = start("sends much", &domain, &words);
        let buf = if round % 2 == 0 { &mut private[..] } else { &mut registered[..] };
        // The first is whole, whatever became of those of earlier lives.
        until("it has come", || match node.recv(Match::from(NodeId(1)), buf) {
            Ok(_) => Some(()),
            Err(Error::NoSuchNode { .. } | Error::PeerDied { .. }) => None,
            Err(error) => panic!("{error}"),
        });
        pattern::check(buf, 1);
        let pid = process.pid();
        let killer = running("a killer", move || {
            a_moment(round, Duration::from_millis(20));
            // SAFETY: a child of this process that is not waited for before this ends.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        });
        let error = loop {
            match node.recv(Match::from(NodeId(1)), buf) {
                Ok(_) => pattern::check(buf, 1),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::PeerDied { node, .. } if node == NodeId(1)), "{error:?}");
        killer.join();
        assert!(process.ended_by(soon()));
    }
    node.leave().unwrap();
}

pub fn receives_much() {
    let node = join();
    let mut buf = vec![0; LONG];
    while node.recv(Match::from(NodeId(0)), &mut buf).is_ok() {}
}

#[test]
fn a_send_ends_when_its_target_is_killed_in_the_middle() {
    let _turn = Turn::take();
    let domain = Domain::new("targets");
    let words = Words::new(at::COUNT);
    let node = Node::builder(domain.name()).id(0).copy(CopySide::Both).join().unwrap();
    let bytes = pattern::bytes(LONG, 2);
    for round in 0..ROUNDS {
        let process = start("receives much", &domain, &words);
        until("it takes one", || match node.send(NodeId(1), 1, &bytes) {
            Ok(()) => Some(()),
            Err(Error::NoSuchNode { .. } | Error::PeerDied { .. }) => None,
            Err(error) => panic!("{error}"),
        });
        let pid = process.pid();
        let killer = running("a killer", move || {
            a_moment(round, Duration::from_millis(20));
            // SAFETY: a child of this process that is not waited for before this ends.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        });
        let error = loop {
            if let Err(error) = node.send(NodeId(1), 1, &bytes) {
                break error;
            }
        };
        assert!(matches!(error, Error::PeerDied { node, .. } if node == NodeId(1)), "{error:?}");
        killer.join();
        assert!(process.ended_by(soon()));
    }
    node.leave().unwrap();
}
