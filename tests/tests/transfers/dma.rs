//! The DMA engine between processes: a node has another put into a third, counters are seen to fall from outside, and a process
//! that overwrites a board spoils descriptors and nothing else.

use doorbell::dma::{Descriptor, InjectionFifo, ReceptionFifo};
use doorbell::{CounterKey, KEY_BYTES, Key, Match, Metric, Node, NodeId, Progress, ReadOnly, ReadWrite};
use doorbell_shm::board::{BoardCopy, RecordKind};
use doorbell_shm::domain::list_domains;
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::{PATIENCE, eventually, soon, until};
use doorbell_tests::process::{Process, told};
use doorbell_tests::random::{Random, seed};
use doorbell_tests::words::Words;
use doorbell_tests::{Turn, pattern};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::SeqCst;

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const C: NodeId = NodeId(2);
const BYTES: usize = 64 << 20;
const KEYS: u64 = 1;
const DONE: u64 = 2;

fn join(domain: &str, id: NodeId, progress: Progress) -> Node {
    Node::builder(domain).id(id).progress(progress).join().unwrap()
}

/// The role: gives away the keys of a full region and of a counter, and sleeps until it is killed.
pub fn has_the_bytes() {
    let node = join(&told("DOMAIN"), B, Progress::Poller);
    let (region, sent) = (node.region::<u8>(BYTES).unwrap(), node.counter().unwrap());
    region.write(0, &pattern::bytes(BYTES, 7)).unwrap();
    sent.init(BYTES as u64).unwrap();
    node.send(A, KEYS, &[&region.read_key().to_bytes()[..], &sent.key().to_bytes()].concat()).unwrap();
    loop {
        std::thread::park();
    }
}

/// The role: gives away the keys of an empty region and of a counter, and waits for the bytes.
pub fn wants_the_bytes() {
    let node = join(&told("DOMAIN"), C, Progress::Poller);
    let (region, arrived) = (node.region::<u8>(BYTES).unwrap(), node.counter().unwrap());
    arrived.init(BYTES as u64).unwrap();
    node.send(A, KEYS, &[&region.key().to_bytes()[..], &arrived.key().to_bytes()].concat()).unwrap();
    arrived.wait_until(soon()).unwrap();
    let mut bytes = vec![0; BYTES];
    region.read(0, &mut bytes).unwrap();
    pattern::check(&bytes, 7);
    node.send(A, DONE, b"").unwrap();
    // The board shows the counter until somebody has looked at it.
    node.recv_until(Match::from(A), &mut [], soon()).unwrap();
    node.leave().unwrap();
}

fn board(domain: &Domain, id: NodeId) -> BoardCopy {
    let status = list_domains(domain.space()).unwrap().into_iter().find(|status| status.name == domain.name()).unwrap();
    status.nodes.into_iter().find(|node| node.id == id).and_then(|node| node.board).unwrap()
}

/// What the kernel says of the main thread of a process: its state, and how often it ran.
fn main_thread(pid: u32) -> (String, Vec<String>) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/status")).unwrap();
    let field = |name: &str| status.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    (field("State:"), vec![field("voluntary_ctxt_switches:"), field("nonvoluntary_ctxt_switches:")])
}

/// The two keys of a message.
fn keys(node: &Node, from: NodeId) -> ([u8; KEY_BYTES], CounterKey) {
    let mut bytes = [0; KEY_BYTES + CounterKey::BYTES];
    until("a process that joins", || node.peer(from).ok());
    node.recv_until(Match::from(from).tag(KEYS), &mut bytes, soon()).unwrap();
    let (key, counter) = bytes.split_at(KEY_BYTES);
    (key.try_into().unwrap(), CounterKey::from_bytes(counter).unwrap())
}

#[test]
fn a_node_has_another_put_into_a_third_while_its_program_sleeps() {
    let _turn = Turn::take();
    let domain = Domain::new("walk");
    let node = join(domain.name(), A, Progress::Inline);
    let start = |role: &str| Process::start(role).tell("DOMAIN", domain.name()).go();
    let (b, c) = (start("has the bytes"), start("wants the bytes"));
    let (source, sent) = keys(&node, B);
    let (target, arrived) = keys(&node, C);
    let (source, target) =
        (Key::<u8, ReadOnly>::from_bytes(&source).unwrap(), Key::<u8, ReadWrite>::from_bytes(&target).unwrap());
    // Its main thread is the only one of its program.
    eventually("the program of B sleeps", || main_thread(b.pid()).0.contains("S (sleeping)"));
    let slept = main_thread(b.pid());

    let put = Descriptor::put(source, target).unwrap().send_counter(sent).receive_counter(arrived);
    let fifo = InjectionFifo::builder(&node).name("walk").open().unwrap();
    let gets = node.peer(B).unwrap().remote_get_fifo();
    assert!(fifo.inject(&Descriptor::remote_get(gets, put).unwrap()).unwrap());
    fifo.wait_until(soon()).unwrap();
    node.recv_until(Match::from(C).tag(DONE), &mut [], soon()).unwrap();

    for id in [B, C] {
        let board = board(&domain, id);
        let [counter] = board.board().counters()[..] else { panic!("node {id} has other counters") };
        assert_eq!((counter.value, counter.size, counter.zero), (0, BYTES as u64, true), "node {id}");
    }
    eventually("each counter came to zero once, as the boards show", || {
        [B, C].map(|id| board(&domain, id).board().metrics()[Metric::CounterZeros]) == [1, 1]
    });
    let fifos = board(&domain, B).board().fifos();
    assert_eq!((fifos[0].injected, fifos[0].executed, fifos[0].bytes), (1, 1, BYTES as u64), "the FIFO of remote gets");
    assert_eq!(main_thread(b.pid()), slept, "the program of B ran");
    node.send(C, DONE, b"").unwrap();
    c.end_well(PATIENCE);
    b.kill();
    assert!(b.ended_by(soon()));
    // What a killed node had in its FIFOs is still there.
    assert_eq!(board(&domain, B).board().fifos()[0].injected, 1);
    drop(b);
    drop(fifo);
    node.leave().unwrap();
    doorbell_shm::domain::clean(domain.space(), Some(domain.name()), true).unwrap();
}

/// The role: overwrites the FIFOs and counters on the board of node A, as fast as it can.
pub fn overwrites_a_board() {
    use doorbell_shm::layout::{BOARD_BYTES, COUNTER_STATUS_OFFSET, COUNTERS_OFFSET, FIFO_BYTES};
    let (words, mut random) = (Words::inherited(), Random::new(seed()));
    let board: File = OpenOptions::new().read(true).write(true).open(told("BOARD")).unwrap();
    // Those that the program opened: 4 to 6.
    let fifos = BOARD_BYTES + 4 * FIFO_BYTES..BOARD_BYTES + 7 * FIFO_BYTES;
    while words[0].load(SeqCst) == 0 {
        let at = match random.below(8) {
            0 => COUNTER_STATUS_OFFSET,
            1 => COUNTERS_OFFSET + 16 * random.below(4),
            _ => fifos.start + 8 * random.below(fifos.len() / 8),
        };
        // Half of the blows copy a descriptor from elsewhere in the ring.
        let mut word = [0; 64];
        if random.chance(50) {
            let from = fifos.start + 128 + 64 * random.below(64);
            board.read_exact_at(&mut word, from as u64).unwrap();
            board.write_all_at(&word, (fifos.start + 128 + 64 * random.below(64)) as u64).unwrap();
        } else {
            board.write_all_at(&random.next().to_le_bytes(), at as u64).unwrap();
        }
        words[1].fetch_add(1, SeqCst);
    }
}

#[test]
fn a_process_that_overwrites_a_board_spoils_descriptors_and_nothing_else() {
    let _turn = Turn::take();
    let domain = Domain::new("forged");
    let [a, b] = [A, B].map(|id| join(domain.name(), id, Progress::Inline));
    let words = Words::new(2);
    let path = format!("/dev/shm/{}.{}.board", domain.prefix(), A.0);
    let hostile = Process::start("overwrites a board").words(&words).tell("BOARD", path).go();
    const SLOTS: usize = 64;
    const LEN: usize = 1000;
    let (source, target) = (a.region::<u8>(SLOTS * LEN).unwrap(), b.region::<u8>(SLOTS * LEN).unwrap());
    source.write(0, &pattern::bytes(SLOTS * LEN, 3)).unwrap();
    let expected = pattern::bytes(SLOTS * LEN, 3);
    let packets = ReceptionFifo::builder(&b).number(1).open().unwrap();
    let fifos: [InjectionFifo; 3] = std::array::from_fn(|_| InjectionFifo::builder(&a).open().unwrap());
    let sent = a.counter().unwrap();
    let mut spoilt = 0;
    eventually("blows fall", || words[1].load(SeqCst) > 0);
    for round in 0..5000 {
        // More rounds if no blow has hit yet, which is rare.
        if round >= 150 && spoilt > 0 {
            break;
        }
        sent.init((SLOTS * LEN) as u64).unwrap();
        target.fill(0).unwrap();
        let fifo = &fifos[round % 3];
        for slot in 0..SLOTS {
            let (from, to) = (source.key().range(slot * LEN..(slot + 1) * LEN), target.key().range(slot * LEN..(slot + 1) * LEN));
            let put = Descriptor::put(from, to).unwrap().send_counter(sent.key());
            while !fifo.inject(&put).unwrap() {
                fifo.wait_until(soon()).unwrap();
            }
        }
        fifo.wait_until(soon()).unwrap();
        let faults = std::iter::from_fn(|| fifo.next_fault()).count();
        spoilt += faults;
        // As many bytes are missing as descriptors were spoilt, and each that was executed moved what it was to move.
        assert_eq!(sent.value(), (faults * LEN) as u64, "round {round}");
        let mut found = vec![0; SLOTS * LEN];
        target.read(0, &mut found).unwrap();
        let whole = (0..SLOTS).filter(|slot| found[slot * LEN..][..LEN] == expected[slot * LEN..][..LEN]).count();
        let empty = (0..SLOTS).filter(|slot| found[slot * LEN..][..LEN].iter().all(|byte| *byte == 0)).count();
        assert_eq!((whole, empty), (SLOTS - faults, faults), "round {round}");
        // A node whose board is whole is not disturbed.
        if round % 50 == 0 {
            let honest = InjectionFifo::builder(&b).open().unwrap();
            let there = a.region::<u8>(LEN).unwrap();
            honest.inject(&Descriptor::put(target.key().range(..LEN), there.key()).unwrap()).unwrap();
            honest.wait_until(soon()).unwrap();
            assert!(honest.next_fault().is_none());
        }
    }
    assert_eq!(packets.depth(), 0, "nobody sent a packet");
    println!("{spoilt} descriptors were spoilt by {} blows", words[1].load(SeqCst));
    assert!(spoilt > 0, "no blow hit");
    words[0].store(1, SeqCst);
    hostile.end_well(PATIENCE);
}

/// The words of the two ends: how often each interrupt fired, and that the counter is to be given back.
const FIRED: [usize; 2] = [0, 1];
const SEEN: usize = 2;

/// Waits for a counter, and tells how often its interrupt fired.
fn wait_for(node: &Node, counter: &doorbell::Counter, words: &Words, at: usize) {
    let interrupt = counter.interrupt().unwrap();
    counter.wait_until(soon()).unwrap();
    assert_eq!(node.counter_status()[0], 1 << counter.index());
    let mut fired = [0; 8];
    rustix::io::read(interrupt, &mut fired).unwrap();
    words[at].store(u64::from_ne_bytes(fired), SeqCst);
    eventually("somebody has seen the board", || words[SEEN].load(SeqCst) > 0);
}

fn both(id: NodeId) -> Node {
    Node::builder(told("DOMAIN")).id(id).progress(Progress::Poller).copy(doorbell::CopySide::Both).join().unwrap()
}

/// The role: sends a message, and counts its bytes as they leave.
pub fn counts_its_send() {
    let (node, words) = (both(A), Words::inherited());
    let peer = until("the target joins", || node.peer(B).ok());
    let counter = node.counter().unwrap();
    counter.init(BYTES as u64).unwrap();
    let sending = counter.start_send(&peer, 1, pattern::bytes(BYTES, 9)).unwrap();
    wait_for(&node, &counter, &words, FIRED[0]);
    sending.wait().result.unwrap();
    node.leave().unwrap();
}

/// The role: receives it, and counts the bytes as they arrive.
pub fn counts_its_receive() {
    let (node, words) = (both(B), Words::inherited());
    let counter = node.counter().unwrap();
    counter.init(BYTES as u64).unwrap();
    let receiving = counter.start_recv(Match::any().tag(1), vec![0; BYTES]).unwrap();
    wait_for(&node, &counter, &words, FIRED[1]);
    pattern::check(&receiving.wait().buffer.unwrap(), 9);
    node.leave().unwrap();
}

#[test]
fn another_process_sees_both_counters_of_a_message_fall() {
    let _turn = Turn::take();
    let (domain, words) = (Domain::new("falls"), Words::new(3));
    // Slow enough to be watched.
    let start = |role: &str| {
        let process = Process::start(role).words(&words).tell("DOMAIN", domain.name());
        process.tell("DOORBELL_FAULT", "meeting.claimed:all:delay=1").go()
    };
    let (target, origin) = (start("counts its receive"), start("counts its send"));
    let shown = |id: NodeId| -> Option<(u64, BoardCopy)> {
        let status = list_domains(domain.space()).ok()?.into_iter().find(|status| status.name == domain.name())?;
        let board = status.nodes.into_iter().find(|node| node.id == id)?.board?;
        let [counter] = board.board().counters()[..] else { return None };
        Some((counter.value, board))
    };
    let (mut values, mut halfway) = ([Vec::new(), Vec::new()], 0);
    let is_over = || FIRED.iter().all(|at| words[*at].load(SeqCst) > 0);
    until("both counters come to zero", || {
        let [(left, at_origin), (missing, _)] = shown(A).zip(shown(B)).map(|(a, b)| [a, b])?;
        for (values, value) in values.iter_mut().zip([left, missing]) {
            // A new counter is zero until its process sets it.
            if values.is_empty() && value == 0 {
                continue;
            }
            assert!(values.last().is_none_or(|last| value <= *last), "a counter rose from {:?} to {value}", values.last());
            values.push(value);
        }
        let records = at_origin.board().records();
        let has = |kind: RecordKind| records.iter().any(|recorded| recorded.record.kind == kind);
        let is_halfway = [left, missing].iter().all(|value| (1..BYTES as u64).contains(value));
        halfway += u32::from(is_halfway && has(RecordKind::MemoryFifo) && has(RecordKind::DirectPut));
        is_over().then_some(())
    });
    assert!(halfway > 0, "both counters were never seen on their way while memory FIFO and direct put had moved bytes");
    for (id, fired) in [A, B].into_iter().zip(FIRED) {
        let (value, board) = shown(id).unwrap();
        assert_eq!((value, board.board().counter_status()[0], words[fired].load(SeqCst)), (0, 1, 1), "node {id}");
    }
    for values in &mut values {
        values.dedup();
        assert!(values.len() > 10, "only {} values were seen", values.len());
    }
    words[SEEN].store(1, SeqCst);
    origin.end_well(PATIENCE);
    target.end_well(PATIENCE);
}
