//! How much shared memory a domain takes: as `du --apparent-size` counts it, the lengths of its files.

use doorbell::{Match, Node, NodeId, Progress};
use doorbell_shm::layout::board_bytes;
use doorbell_tests::Turn;
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::{eventually, soon};
use doorbell_tests::process::{Process, told, told_as};
use doorbell_tests::words::Words;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const NODES: u16 = 64;
/// Nodes of one process: each has two descriptors for each other node of the domain.
const OF_A_PROCESS: u16 = 4;
const MIB: u64 = 1 << 20;

/// Words: how many processes came to the end of each step, and the step that may begin.
const STEP: usize = 7;

/// Everything of some nodes: they join, exchange small messages with all others, and leave. One pair talks more.
pub fn exchanges() {
    let (words, first) = (Words::inherited(), told_as::<u16>("FIRST"));
    let name = told("DOMAIN");
    let join = |id| Node::builder(&name).max_nodes(NODES.into()).id(id).progress(Progress::Inline).join().unwrap();
    let nodes: Vec<Node> = (first..first + OF_A_PROCESS).map(join).collect();
    let done = |step: usize| {
        words[step].fetch_add(1, SeqCst);
        eventually("the next step", || words[STEP].load(SeqCst) > step as u64);
    };
    nodes.iter().for_each(|node| _ = node.wait_for(NODES.into(), soon()).unwrap());
    done(0);

    let others = |node: &Node| (0..NODES).map(NodeId).filter(|other| *other != node.id()).collect::<Vec<_>>();
    let lengths = [8, 40, 41, 100, 256];
    for (node, len) in nodes.iter().flat_map(|node| lengths.map(|len| (node, len))) {
        others(node).into_iter().for_each(|to| node.send(to, len as u64, &vec![len as u8; len]).unwrap());
    }
    for (node, len) in nodes.iter().flat_map(|node| lengths.map(|len| (node, len))) {
        for from in others(node) {
            let mut buf = vec![0; len];
            assert_eq!(node.recv_until(Match::from(from).tag(len as u64), &mut buf, soon()).unwrap().len, len);
            assert!(buf.iter().all(|byte| *byte == len as u8));
        }
    }
    done(1);

    if first == 0 {
        // As many as the full ring holds, for this thread turns one engine at a time.
        (0..50).for_each(|_| nodes[0].send(NodeId(1), 1, &[1; 1000]).unwrap());
        (0..50).for_each(|_| _ = nodes[1].take_until::<[u8]>(Match::from(NodeId(0)).tag(1), soon()).unwrap());
    }
    done(2);
    nodes.into_iter().for_each(|node| node.leave().unwrap());
}

#[test]
fn a_pair_takes_memory_once_it_talks_and_then_as_much_as_it_needs() {
    let _turn = Turn::take();
    let (domain, words) = (Domain::new("room"), Words::new(STEP + 1));
    let processes = NODES / OF_A_PROCESS;
    let start = |number: u16| {
        let start = Process::start("exchanges").words(&words).tell("DOMAIN", domain.name());
        start.tell("FIRST", (number * OF_A_PROCESS).to_string()).go()
    };
    let running: Vec<Process> = (0..processes).map(start).collect();
    // The bytes of all files of the domain when all processes have come that far.
    let taken = |step: usize| -> u64 {
        eventually("all are there", || words[step].load(SeqCst) == u64::from(processes));
        let files = std::fs::read_dir("/dev/shm").unwrap().flatten();
        let files = files.filter(|file| file.file_name().to_string_lossy().starts_with(&domain.prefix()));
        let sum = files.map(|file| file.metadata().unwrap().len()).sum();
        words[STEP].store(step as u64 + 1, SeqCst);
        sum
    };
    let pairs = u64::from(NODES) * u64::from(NODES - 1);
    let [silent, small, grown] = [0, 1, 2].map(taken);
    println!("{NODES} nodes: {silent} bytes silent, {small} after small messages, {grown} when one pair had much to say");
    let boards = u64::from(NODES) * board_bytes(32) as u64;
    assert!((silent - boards) / pairs <= 256, "{silent}");
    assert!(small <= 64 * MIB, "{small}");
    // One pair has grown, and no other.
    assert!(grown > small && grown - small < MIB, "{grown} after {small}");
    running.into_iter().for_each(|process| process.end_well(Duration::from_secs(60)));
    domain.assert_empty();
}
