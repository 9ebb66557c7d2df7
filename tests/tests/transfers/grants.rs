//! Puts into every kind of receive, and receives that end while the origin is in the middle of a put.

use doorbell::mode::MovedBytes;
use doorbell::transfer::Side;
use doorbell::{CopySide, Error, Match, Metric, Node, NodeId, Operation, Priority, Progress, Received, Region, TransferReport};
use doorbell_tests::Turn;
use doorbell_tests::domain::Domain;
use doorbell_tests::pair::{mode, near_with};
use doorbell_tests::patience::{PATIENCE, briefly, eventually, finishes, soon, until};
use doorbell_tests::pattern;
use doorbell_tests::process::{Process, told_as};
use rustix::process::Signal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const LEN: usize = 2 << 20;
const REQUEST: u64 = 1 << 32;
const REPORT: u64 = 2 << 32;
const MODES: [&str; 3] = ["shm/put", "shm/get", "shm/both"];

/// A buffer in a region or in private memory, which tells when it is dropped.
struct Memory {
    bytes: Bytes,
    dropped: Arc<AtomicBool>,
}

enum Bytes {
    Private(Vec<u8>),
    Region(Region<u8>),
}

impl Memory {
    fn new(node: &Node, registered: bool, len: usize) -> Self {
        let bytes = if registered { Bytes::Region(node.region(len).unwrap()) } else { Bytes::Private(vec![0; len]) };
        Self { bytes, dropped: Arc::default() }
    }

    fn filled(node: &Node, registered: bool, len: usize, seed: u64) -> Self {
        let mut memory = Self::new(node, registered, len);
        pattern::fill(memory.as_mut(), seed);
        memory
    }
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Private(bytes) => bytes,
            // SAFETY: nobody has a key of this region, and it is not written while this is used.
            Bytes::Region(region) => unsafe { region.as_slice() },
        }
    }
}

impl AsMut<[u8]> for Memory {
    fn as_mut(&mut self) -> &mut [u8] {
        match &mut self.bytes {
            Bytes::Private(bytes) => bytes,
            // SAFETY: nobody has a key of this region, and there is one `Memory` of it.
            Bytes::Region(region) => unsafe { region.as_mut_slice() },
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::SeqCst);
    }
}

fn moved(report: &TransferReport) -> MovedBytes {
    MovedBytes { fifo: report.fifo.bytes, put: report.put.bytes, pulled: report.pulled.bytes }
}

fn reported(node: &Node, side: Side, tag: u64) -> TransferReport {
    let is_it = |report: &TransferReport| (report.side, report.tag) == (side, tag);
    until("a transfer is over", || node.transfers().unwrap().into_iter().rfind(is_it))
}

// ---- each kind of receive, each mode, each kind of memory

/// Sends the messages that it is asked for, and says afterwards what moved them.
pub fn sends_by_each_mode() {
    let node = doorbell::NodeBuilder::from_env().unwrap().join().unwrap();
    let (peer, asks) = (node.peer(NodeId(0)).unwrap(), Match::any());
    loop {
        let mut ask = [0; 16];
        let envelope = node.recv_until(asks, &mut ask, soon()).unwrap();
        if envelope.len == 0 {
            break;
        }
        let tag = envelope.tag - REQUEST;
        let bytes = Memory::filled(&node, ask[1] != 0, LEN, tag);
        let receipt = peer.send_as(tag, bytes.as_ref(), mode(MODES[usize::from(ask[0])])).unwrap();
        let report = moved(&reported(&node, Side::Origin, tag));
        assert_eq!(receipt.moved, Some(report), "{receipt}");
        let words: Vec<u8> = [report.fifo, report.put, report.pulled].iter().flat_map(|word| word.to_le_bytes()).collect();
        peer.send(REPORT + tag, &words).unwrap();
    }
    node.leave().unwrap();
}

/// Receives the message with this tag, and checks its bytes.
type Receive = fn(&Node, u64, bool);

fn check(envelope: doorbell::Envelope, bytes: &[u8], tag: u64) {
    assert_eq!((envelope.tag, envelope.len), (tag, LEN));
    pattern::check(bytes, tag);
}

const RECEIVES: [(&str, Receive); 6] = [
    ("start_recv", |node, tag, registered| {
        let receive = node.start_recv(Match::any().tag(tag), Memory::new(node, registered, LEN)).unwrap();
        let done = receive.wait_until(soon()).unwrap_or_else(|_| panic!("a receive does not end"));
        check(done.result.unwrap(), done.buffer.unwrap().as_ref(), tag);
    }),
    ("recv", |node, tag, registered| {
        let (node, mut memory) = (node.clone(), Memory::new(node, registered, LEN));
        finishes("a receive", move || {
            check(node.recv(Match::any().tag(tag), memory.as_mut()).unwrap(), memory.as_ref(), tag);
        });
    }),
    ("recv_until", |node, tag, registered| {
        let mut memory = Memory::new(node, registered, LEN);
        check(node.recv_until(Match::any().tag(tag), memory.as_mut(), soon()).unwrap(), memory.as_ref(), tag);
    }),
    ("try_recv", |node, tag, registered| {
        let mut memory = Memory::new(node, registered, LEN);
        let envelope = until("a message", || node.try_recv(Match::any().tag(tag), memory.as_mut()).unwrap());
        check(envelope, memory.as_ref(), tag);
    }),
    ("recv_with", |node, tag, _| {
        let node = node.clone();
        let read = |envelope: &doorbell::Envelope, payload: doorbell::Payload<'_>| (*envelope, payload.to_vec());
        let (envelope, bytes) = finishes("a receive", move || node.recv_with(Match::any().tag(tag), read).unwrap());
        check(envelope, &bytes, tag);
    }),
    ("recv_with_until", |node, tag, _| {
        let read = |envelope: &doorbell::Envelope, payload: doorbell::Payload<'_>| (*envelope, payload.to_vec());
        let (envelope, bytes) = node.recv_with_until(Match::any().tag(tag), soon(), read).unwrap();
        check(envelope, &bytes, tag);
    }),
];

/// Whether what moved a message is what its mode says.
fn is_by(mode: &str, by: MovedBytes) -> bool {
    let len = LEN as u64;
    match mode {
        "shm/put" => by == MovedBytes { fifo: 0, put: len, pulled: 0 },
        "shm/get" => by == MovedBytes { fifo: 0, put: 0, pulled: len },
        _ => by.put > 0 && by.pulled > 0,
    }
}

#[test]
fn each_kind_of_receive_gets_its_bytes_by_the_mode_that_was_asked_for() {
    let _turn = Turn::take();
    let domain = Domain::new("each-receive");
    let node = Node::builder(domain.name()).id(0).join().unwrap();
    let start = Process::start("sends by each mode").tell("DOORBELL_DOMAIN", domain.name()).tell("DOORBELL_NODE", "1");
    let process = start.go();
    node.wait_for(2, soon()).unwrap();
    let peer = node.peer(NodeId(1)).unwrap();
    let mut tag = 0;
    for (kind, receive) in RECEIVES {
        for (number, words) in (0..).zip(MODES) {
            for registered in [false, true] {
                let mut seen = MovedBytes::default();
                // A busy machine may keep one end from running while the other moves a message.
                eventually(&format!("{kind}, {words}, registered {registered}: as asked"), || {
                    tag += 1;
                    peer.send(REQUEST + tag, &[number, registered.into()]).unwrap();
                    receive(&node, tag, registered);
                    let by = moved(&reported(&node, Side::Target, tag));
                    assert_eq!(by.fifo + by.put + by.pulled, LEN as u64);
                    let mut there = [0; 24];
                    node.recv_until(Match::any().tag(REPORT + tag), &mut there, soon()).unwrap();
                    let here: Vec<u8> = [by.fifo, by.put, by.pulled].iter().flat_map(|word| word.to_le_bytes()).collect();
                    assert_eq!(there[..], here, "{kind}, {words}: the two ends report different bytes");
                    // No byte goes by a way that was not asked for, but memory FIFO.
                    assert!(words != "shm/put" || by.pulled == 0, "{kind}, {words}: {by:?}");
                    assert!(words != "shm/get" || by.put == 0, "{kind}, {words}: {by:?}");
                    // With both, either end may be the only one that runs.
                    let MovedBytes { fifo, put, pulled } = seen;
                    seen = MovedBytes { fifo: fifo + by.fifo, put: put + by.put, pulled: pulled + by.pulled };
                    is_by(words, if words == "shm/both" { seen } else { by })
                });
            }
        }
    }
    peer.send(REQUEST, b"").unwrap();
    process.end_well(PATIENCE);
    node.leave().unwrap();
}

// ---- an origin that is stopped after it claimed a chunk, and before it wrote it

const LONG: usize = 4 << 20;

/// Sends a long message until the target lets it put in time, and stops in the middle of that.
pub fn stops_in_a_put() {
    let node = doorbell::NodeBuilder::from_env().unwrap().progress(Progress::Inline).join().unwrap();
    let bytes = Memory::filled(&node, told_as::<u8>("REGISTERED") != 0, LONG, 1);
    let peer = node.peer(NodeId(0)).unwrap();
    while peer.send_as(1, bytes.as_ref(), mode("shm/put")).unwrap().moved.unwrap().put == 0 {}
    node.send_until(NodeId(0), 2, b"goes on", soon()).unwrap();
    node.leave().unwrap();
}

struct Stopped {
    domain: Domain,
    node: Node,
    process: Process,
    registered: bool,
}

/// A target, and an origin that stops itself before it writes its third run of chunks.
fn stopped(registered: bool, progress: Progress) -> Stopped {
    let domain = Domain::new("in-mid-put");
    let node = Node::builder(domain.name()).id(0).progress(progress).pool_bytes(4 * LONG).join().unwrap();
    let start = Process::start("stops in a put").tell("DOORBELL_DOMAIN", domain.name()).tell("DOORBELL_NODE", "1");
    let start = start.tell("REGISTERED", u8::from(registered).to_string());
    let process = start.tell("DOORBELL_FAULT", "meeting.putting:3:stop").go();
    Stopped { domain, node, process, registered }
}

impl Stopped {
    /// An operation that receives when the origin has stopped, and whether its buffer was dropped.
    #[track_caller]
    fn receive(&self) -> (Operation<Received<Memory>>, Arc<AtomicBool>) {
        let begin = || {
            let memory = Memory::new(&self.node, self.registered, LONG);
            let dropped = memory.dropped.clone();
            (self.node.start_recv(Match::from(NodeId(1)), memory).unwrap(), dropped)
        };
        let mut receiving = begin();
        eventually("the origin stops", || {
            // A message that was not asked for in time comes by memory FIFO, and the origin sends another one.
            if receiving.0.test() {
                receiving = begin();
            }
            self.process.stops_by(Instant::now())
        });
        assert!(!receiving.0.test());
        receiving
    }

    /// The origin continues, and the message is not lost: the next receive gets it.
    fn goes_on(self, returned: &mut [Memory]) {
        let Self { domain, node, process, .. } = self;
        assert!(process.stops_by(Instant::now()), "the receive ended because the origin went on");
        returned.iter_mut().for_each(|memory| memory.as_mut().fill(0xa5));
        process.signal(Signal::CONT);
        let mut next = vec![0; LONG];
        let envelope = node.recv_until(Match::any(), &mut next, soon()).unwrap();
        assert_eq!((envelope.tag, envelope.len), (1, LONG));
        pattern::check(&next, 1);
        assert_eq!(node.recv_until(Match::any(), &mut next, soon()).unwrap().tag, 2);
        process.end_well(PATIENCE);
        // A part of it was put before the stop.
        let report = reported(&node, Side::Target, 1);
        assert!(report.put.bytes > 0 && report.put.bytes + report.fifo.bytes == LONG as u64, "{report:?}");
        assert!(returned.iter().all(|memory| memory.as_ref().iter().all(|byte| *byte == 0xa5)), "written after it came back");
        node.leave().unwrap();
        drop(domain);
    }
}

/// Both kinds of memory, under both ways to turn the engine.
fn each_way() -> impl Iterator<Item = (bool, Progress)> {
    [false, true].into_iter().flat_map(|registered| [Progress::Inline, Progress::Adaptive].map(|progress| (registered, progress)))
}

#[test]
fn an_operation_that_is_cancelled_leaves_its_buffer_to_the_engine_until_the_origin_goes_on() {
    let _turn = Turn::take();
    for (registered, progress) in each_way() {
        for is_dropped in [false, true] {
            let case = stopped(registered, progress);
            let (receive, dropped) = case.receive();
            if is_dropped {
                finishes("a drop", move || drop(receive));
            } else {
                let done = finishes("a cancel", move || receive.cancel());
                let error = done.result.unwrap_err();
                assert!(matches!(error, Error::BufferKept { node: NodeId(1) }) && done.buffer.is_none(), "{error:?}");
                assert_eq!(error.node(), Some(NodeId(1)));
            }
            assert!(!dropped.load(Ordering::SeqCst), "the buffer is freed while the origin may write to it");
            case.goes_on(&mut []);
            eventually("the buffer is freed", || dropped.load(Ordering::SeqCst));
        }
    }
}

#[test]
fn the_kept_buffer_of_an_origin_that_is_killed_is_freed() {
    let _turn = Turn::take();
    for (registered, progress) in each_way() {
        let case = stopped(registered, progress);
        let (receive, dropped) = case.receive();
        let done = finishes("a cancel", move || receive.cancel());
        assert!(matches!(done.result, Err(Error::BufferKept { .. })) && done.buffer.is_none());
        assert!(!dropped.load(Ordering::SeqCst));
        case.process.kill();
        let error = case.node.recv_until(Match::from(NodeId(1)), &mut [0; 8], soon()).unwrap_err();
        assert!(matches!(error, Error::PeerDied { .. }), "{error:?}");
        eventually("the buffer is freed", || {
            case.node.progress().unwrap();
            dropped.load(Ordering::SeqCst)
        });
        case.node.leave().unwrap();
    }
}

#[test]
fn a_buffer_with_a_deadline_comes_back_while_the_origin_stands_still() {
    let _turn = Turn::take();
    for (registered, progress) in each_way() {
        for in_place in [false, true] {
            let case = stopped(registered, progress);
            let mut memory = Memory::new(&case.node, case.registered, LONG);
            // The deadline may pass before the origin has stopped, and a message that was not asked for in time comes whole.
            eventually("the origin stops", || {
                let got = if in_place {
                    case.node.recv_with_until(Match::any(), briefly(), |_, _| ())
                } else {
                    case.node.recv_until(Match::any(), memory.as_mut(), briefly()).map(drop)
                };
                assert!(matches!(got, Ok(()) | Err(Error::Timeout { .. })), "{got:?}");
                case.process.stops_by(Instant::now())
            });
            case.goes_on(&mut [memory]);
        }
    }
}

#[test]
fn a_node_leaves_while_an_origin_stands_still_in_a_put() {
    let _turn = Turn::take();
    for registered in [false, true] {
        let case = stopped(registered, Progress::Adaptive);
        let (receive, dropped) = case.receive();
        let node = case.node.clone();
        finishes("a node leaves", move || node.leave().unwrap());
        let done = receive.wait();
        assert!(matches!(done.result, Err(Error::BufferKept { .. })) && done.buffer.is_none(), "{:?}", done.result);
        drop(case.node);
        // The origin may write there for as long as its process lives.
        assert!(!dropped.load(Ordering::SeqCst));
        case.process.kill();
        assert!(case.process.ended_by(soon()));
        // Removes what the killed process left.
        Node::builder(case.domain.name()).join().unwrap().leave().unwrap();
    }
}

// ---- in one process: what a callback cancels

/// Two nodes; the first one puts only when it is turned.
fn slow_origin() -> [Node; 2] {
    near_with(|_, builder| builder.progress(Progress::Inline))
}

#[test]
fn a_receive_that_no_origin_writes_to_comes_back_and_its_message_goes_on() {
    let [a, b] = slow_origin();
    let sent = a.peer(b.id()).unwrap().start_send_as(1, pattern::bytes(LEN, 7), mode("shm/put")).unwrap();
    let receive = b.start_recv(Match::any(), vec![0; LEN]).unwrap();
    eventually("it is granted", || {
        b.progress().unwrap();
        b.metrics().unwrap()[Metric::RemoteGets] == 1
    });
    let done = receive.cancel();
    assert!(matches!(done.result, Err(Error::Cancelled)), "{:?}", done.result);
    let mut returned = done.buffer.unwrap();
    returned.fill(0xa5);
    let mut next = vec![0; LEN];
    let receive = b.start_recv(Match::any(), std::mem::take(&mut next)).unwrap();
    drop(receive);
    let mut next = vec![0; LEN];
    let envelope = std::thread::scope(|threads| {
        let receiver = threads.spawn(|| b.recv_until(Match::any(), &mut next, soon()).unwrap());
        let sent = sent.wait_until(soon()).unwrap_or_else(|_| panic!("a send does not end"));
        sent.result.unwrap();
        receiver.join().unwrap()
    });
    assert_eq!((envelope.tag, envelope.len), (1, LEN));
    pattern::check(&next, 7);
    let by = moved(&reported(&b, Side::Target, 1));
    assert_eq!(by, MovedBytes { fifo: LEN as u64, put: 0, pulled: 0 });
    assert!(returned.iter().all(|byte| *byte == 0xa5));
}

#[test]
fn a_receive_that_is_cancelled_within_a_callback_leaves_its_buffer_to_the_engine() {
    let [a, b] = slow_origin();
    let sent = a.peer(b.id()).unwrap().start_send_as(1, vec![7; LEN], mode("shm/put")).unwrap();
    let memory = Memory::new(&b, false, LEN);
    let dropped = memory.dropped.clone();
    let receive = b.start_recv(Match::any().tag(1), memory).unwrap();
    eventually("it is granted", || {
        b.progress().unwrap();
        b.metrics().unwrap()[Metric::RemoteGets] == 1
    });
    a.peer_with_priority(b.id(), Priority::High).unwrap().send(2, b"now").unwrap();
    let done = b.recv_with_until(Match::any().tag(2), soon(), |_, _| receive.cancel()).unwrap();
    assert!(matches!(done.result, Err(Error::BufferKept { node: NodeId(0) })) && done.buffer.is_none(), "{:?}", done.result);
    eventually("the buffer is freed", || {
        b.progress().unwrap();
        a.progress().unwrap();
        dropped.load(Ordering::SeqCst)
    });
    drop(sent);
    b.send(a.id(), 3, b"goes on").unwrap();
    a.recv_until(Match::any(), &mut [0; 8], soon()).unwrap();
}

#[test]
fn a_message_that_nobody_asked_for_yet_is_moved_by_its_mode_too() {
    // Its poller turns the target always.
    let [a, b] = near_with(|_, builder| builder.progress(Progress::Poller));
    let peer = a.peer(b.id()).unwrap();
    let mut tag = 0;
    for words in ["shm/put", "shm/get"] {
        // The machine may keep the target from running until the origin takes the memory FIFO.
        eventually(&format!("{words} as asked"), || {
            tag += 1;
            let sent = peer.start_send_as(tag, pattern::bytes(LEN, tag), mode(words)).unwrap();
            eventually("it is in the pool", || sent.test());
            let by = sent.receipt().unwrap().moved.unwrap();
            sent.wait().result.unwrap();
            let mut buf = vec![0; LEN];
            check(b.recv_until(Match::any(), &mut buf, soon()).unwrap(), &buf, tag);
            is_by(words, by)
        });
    }
}

#[test]
fn a_target_that_wants_to_copy_alone_grants_nothing() {
    let [a, b] = near_with(|id, builder| if id == 1 { builder.copy(CopySide::Target) } else { builder });
    let bytes = pattern::bytes(LEN, 3);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let receipt = a.send_as(b.id(), 1, &bytes, mode("shm/put")).unwrap();
            assert_eq!(receipt.moved.unwrap().put, 0, "{receipt}");
        });
        let mut buf = vec![0; LEN];
        b.recv_until(Match::any(), &mut buf, soon()).unwrap();
        pattern::check(&buf, 3);
    });
}
