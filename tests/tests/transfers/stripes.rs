//! A long message that goes by several links of a network at once, a part of it by each.

use doorbell::mode::{Decision, Fabric, Links, Mode, ModeRequest, MovedBytes, Policy, Protocol, Question, Reason, Thresholds};
use doorbell::transfer::{Descriptor, TransferReport};
use doorbell::{
    Completion, Error, Event, FabricKind, Match, Metric, Node, NodeBuilder, NodeId, Operation, Progress, Space, testing,
};
use doorbell_fabric::{Incarnation, Link, PacketHead, PacketKind, Payload, Priority, Push, Role, Sink, Verdict};
use doorbell_tests::LOOPBACK;
use doorbell_tests::pair::{Pair, mode};
use doorbell_tests::patience::{PATIENCE, eventually, soon, take_back, until};
use doorbell_tests::pattern;
use doorbell_tests::random::{Random, seed};
use doorbell_udp::fabric::{About, BytesOut, Change};
use doorbell_udp::port::relay::{Badness, Relay};
use doorbell_udp::protocol::TransferId;
use doorbell_udp::{UdpFabric, UdpLink, UdpOptions};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Puts over a network go by these links, too. A call that requests a mode gets that mode.
#[derive(Debug)]
struct Beside(Links);

impl Policy for Beside {
    fn choose(&self, question: &mut Question<'_>) -> Decision {
        let first = &question.links[0];
        let usual = || Decision::new(first.mode(first.advice).unwrap(), Reason::Unavailable("there is no such link"));
        question.honoured().unwrap_or_else(usual).also_by(self.0)
    }
}

/// A random link, with parts of the message by any others.
#[derive(Debug)]
struct Lots(Mutex<Random>);

impl Policy for Lots {
    fn choose(&self, question: &mut Question<'_>) -> Decision {
        let mut random = self.0.lock().unwrap();
        let modes = question.links.iter().flat_map(|link| Protocol::ALL.map(|protocol| link.mode(protocol)));
        let modes: Vec<_> = modes.flatten().collect();
        // Also links that are not there.
        let beside = (0..6).filter(|_| random.chance(50)).collect();
        Decision::new(*random.pick(&modes), Reason::Requested).also_by(beside)
    }
}

fn all(links: u8) -> Links {
    (0..links).collect()
}

/// The reports of origin and target of a message. The origin has its report once the target has acknowledged the end.
fn reports(nodes: &[Node; 2], number: u64) -> [TransferReport; 2] {
    let report = |node: &Node| node.transfers().unwrap().into_iter().rev().find(|report| report.tag == number);
    nodes.each_ref().map(|node| until("a report", || report(node)))
}

/// How many sessions put a part of a message.
fn parts(report: &TransferReport) -> u64 {
    report.of(Descriptor::DirectPut).map_or(0, |put| put.moved.chunks)
}

/// Sends a numbered message to a receive that waits for it. Returns how it went.
fn pass([a, b]: &[Node; 2], number: u64, len: usize, by: ModeRequest) -> doorbell::mode::Receipt {
    let received = b.start_recv(Match::any(), vec![0; len + 1]).unwrap();
    std::thread::scope(|threads| {
        // Turned by a thread that waits, as well as by the pollers.
        let receiver = threads.spawn(|| received.wait());
        let receipt = a.peer(b.id()).unwrap().send_as(number, &pattern::bytes(len, number), by).unwrap();
        let done = receiver.join().unwrap();
        let envelope = done.result.unwrap();
        assert_eq!((envelope.tag, envelope.len), (number, len));
        pattern::check(&done.buffer.unwrap()[..len], number);
        receipt
    })
}

/// The nodes of a pair, near or far.
fn nodes(pair: &Pair, near: bool, change: impl Fn(NodeBuilder) -> NodeBuilder) -> [Node; 2] {
    let [a, b] = [0, 1].map(|id| if near { pair.builder(id) } else { pair.builder(id).space(Space::heap()) });
    pair.join(change(a), b)
}

fn bytes_by_link(node: &Node) -> Vec<u64> {
    let links = node.monitor().unwrap().links;
    links.iter().filter(|link| link.fabric == Fabric::Udp).map(|link| link.bytes_sent).collect()
}

#[test]
fn a_policy_has_parts_go_by_any_links() {
    for (links, near, high) in [(2, false, false), (3, false, true), (3, true, false), (4, true, true)] {
        let pair = Pair::with_links(links);
        let nodes = nodes(&pair, near, |builder| builder.policy(Beside(all(4))).fifo_from_high(high));
        let mut number = 0;
        let chunk = 16 << 10;
        // Few chunks, so that some links have none; ends of chunks; and so many that the lane does not take them all before the answer.
        let short = [1, chunk, chunk + 1, 2 * chunk, 3 * chunk - 1, 300_000];
        let long = [(4 << 20) - 1, 8 << 20, (8 << 20) + 1, 9_000_001];
        for (len, by) in short.into_iter().chain(long).flat_map(|len| (0..links).map(move |by| (len, by))) {
            number += 1;
            let words = format!("udp/{by}/put");
            let receipt = pass(&nodes, number, len, mode(&words));
            assert_eq!((receipt.used.link, receipt.beside), (by, all(links).without(by)), "{receipt}");
            let written = format!("udp/{by}+{}/{}", receipt.beside, receipt.used.protocol);
            assert!(receipt.decided.protocol == Protocol::Put && receipt.to_string().contains(&written), "{receipt}");
            let [sent, received] = reports(&nodes, number);
            let moved = MovedBytes { fifo: received.fifo.bytes, put: received.put.bytes, pulled: 0 };
            assert_eq!((receipt.moved, moved.protocol()), (Some(moved), Some(receipt.used.protocol)), "{receipt}");
            assert_eq!(received.fifo.bytes + received.put.bytes, len as u64, "{received:?}");
            assert_eq!(sent.fifo.bytes + sent.put.bytes, len as u64, "{sent:?}");
            assert_eq!(sent.put.bytes, received.put.bytes);
            if len >= 8 << 20 {
                assert_eq!(parts(&sent), u64::from(links), "{sent:?}");
            }
        }
        // Each link carried about as much, whichever the message was asked to go by.
        let carried = bytes_by_link(&nodes[0]);
        let (least, most) = (carried.iter().min().unwrap(), carried.iter().max().unwrap());
        assert!(carried.len() == usize::from(links) && 2 * least > *most, "{carried:?}");
    }
}

#[test]
fn the_policy_that_there_is_divides_long_messages() {
    for near in [false, true] {
        let pair = Pair::with_links(3);
        let nodes = nodes(&pair, near, |builder| builder.policy(Thresholds::new()));
        // A request for the fabric leaves the link open.
        let by = if near { "udp" } else { "any" };
        let cases = [(100, by, 0), (1 << 19, by, 0), (8 << 20, by, 3), (8 << 20, "udp/1", 0), (8 << 20, "udp/transfer", 0)];
        for (number, (len, by, parts_expected)) in (0..).zip(cases) {
            let receipt = pass(&nodes, number, len, mode(by));
            let beside = if parts_expected > 0 { all(3).without(receipt.used.link) } else { Links::NONE };
            assert_eq!((receipt.used.fabric, receipt.beside), (Fabric::Udp, beside), "{len} {by}: {receipt}");
            if parts_expected > 0 {
                assert_eq!(parts(&reports(&nodes, number)[0]), parts_expected);
            }
        }
    }
}

#[test]
fn a_decision_is_shown_with_all_its_links() {
    let pair = Pair::with_links(3);
    #[derive(Debug)]
    struct Refuses;
    impl Policy for Refuses {
        fn choose(&self, question: &mut Question<'_>) -> Decision {
            if question.len < 1 << 20 {
                return Beside(Links::NONE).choose(question);
            }
            let mode = Mode { fabric: Fabric::Udp, link: 1, protocol: Protocol::Put };
            Decision::new(mode, Reason::AllBusy).also_by(Links::NONE.with(1).with(2).with(3))
        }
    }
    let nodes = nodes(&pair, false, |builder| builder.policy(Refuses));
    let receipt = pass(&nodes, 1, 1 << 20, mode("any"));
    assert_eq!(receipt.beside, Links::NONE.with(2), "{receipt}");
    let decisions = nodes[0].monitor().unwrap().decisions;
    let shown = decisions.last().unwrap().receipt;
    assert_eq!((shown.decided, shown.beside, shown.reason), (receipt.decided, receipt.beside, receipt.reason));
}

#[test]
fn order_and_bytes_are_kept_whatever_is_divided_and_taken_back() {
    const MESSAGES: u64 = 400;
    for (near, progress) in [(false, Progress::Adaptive), (true, Progress::Adaptive), (true, Progress::Inline)] {
        let (pair, seed) = (Pair::with_links(3), seed());
        println!("DOORBELL_SEED={seed}, {progress}");
        let lots = || Lots(Mutex::new(Random::new(seed)));
        let builders = [0, 1].map(|id| {
            let builder = pair.builder(id).progress(progress).fifo_from_high(seed & 1 != 0);
            if near { builder } else { builder.space(Space::heap()) }
        });
        let [a, b] = builders;
        let [a, b] = pair.join(a.policy(lots()), b);
        let peer = a.peer(b.id()).unwrap();
        std::thread::scope(|threads| {
            let receiver = threads.spawn(|| {
                let mut random = Random::new(seed + 1);
                let (mut next, mut missed, mut buf) = (0, Vec::new(), vec![0; 3_000_000]);
                while next < MESSAGES {
                    if random.below(20) == 0 {
                        std::thread::sleep(Duration::from_micros(random.below(2000) as u64));
                    }
                    let envelope = if random.chance(30) {
                        // One that is cancelled while its message comes leaves it to the next.
                        let request = b.start_recv(Match::any(), std::mem::take(&mut buf)).unwrap();
                        std::thread::sleep(Duration::from_micros(random.below(500) as u64));
                        match take_back(request) {
                            Ok(back) => {
                                buf = back.unwrap();
                                continue;
                            }
                            Err(done) => {
                                buf = done.buffer.unwrap();
                                done.result.unwrap()
                            }
                        }
                    } else {
                        b.recv_until(Match::any(), &mut buf, soon()).unwrap()
                    };
                    assert!(envelope.tag >= next, "message {} after {}", envelope.tag, next - 1);
                    pattern::check(&buf[..envelope.len], envelope.tag);
                    missed.extend(next..envelope.tag);
                    next = envelope.tag + 1;
                }
                missed
            });
            let mut random = Random::new(seed);
            let (mut under_way, mut taken_back) = (VecDeque::new(), Vec::new());
            for number in 0..MESSAGES {
                let most = *random.pick(&[8, 4096, 300_000, 3_000_000]);
                let bytes = pattern::bytes(random.below(most), number);
                match random.below(3) {
                    0 => peer.send(number, &bytes).unwrap(),
                    _ => under_way.push_back((number, peer.start_send(number, bytes).unwrap())),
                }
                if number + 1 < MESSAGES
                    && random.below(5) == 0
                    && let Some((number, request)) = under_way.pop_back()
                {
                    std::thread::sleep(Duration::from_micros(random.below(300) as u64));
                    if take_back(request).is_ok() {
                        taken_back.push(number);
                    }
                }
                if under_way.len() > 8 {
                    let (number, request) = under_way.pop_front().unwrap();
                    request.wait().result.unwrap_or_else(|error| panic!("message {number}: {error}"));
                }
            }
            for (_, request) in under_way {
                request.wait().result.unwrap();
            }
            taken_back.sort_unstable();
            println!("{} taken back", taken_back.len());
            assert_eq!(receiver.join().unwrap(), taken_back);
        });
    }
}

const LONG: usize = 64 << 20;

type Sent = Operation<Completion<Vec<u8>>>;
type Received = Operation<doorbell::Received<Vec<u8>>>;

/// Begins to send a long message to a receive that waits, and comes back as soon as every link has its part.
fn under_way([a, b]: &[Node; 2], links: u64) -> (Sent, Received) {
    let received = b.start_recv(Match::from(a.id()), vec![0; LONG]).unwrap();
    let put = || a.metrics().unwrap()[Metric::DirectPuts];
    let before = put();
    let sent = a.peer(b.id()).unwrap().start_send_as(1, pattern::bytes(LONG, 1), mode("udp/put")).unwrap();
    eventually("all parts", || put() >= before + links);
    (sent, received)
}

#[test]
fn a_message_is_taken_back_while_its_parts_are_under_way() {
    for near in [false, true] {
        let pair = Pair::with_links(3);
        let nodes = nodes(&pair, near, |builder| builder.policy(Beside(all(3))));
        let mut taken_back = 0;
        for round in 0..6 {
            let (sent, received) = under_way(&nodes, 3);
            let by_link = |link: u8| move |shown: &&doorbell::mode::LinkShown| (shown.fabric, shown.link) == (Fabric::Udp, link);
            let links = nodes[0].monitor().unwrap().links;
            let transfers: Vec<_> = (0..3).map(|link| links.iter().find(by_link(link)).unwrap().transfers).collect();
            assert!(transfers == [1; 3] || sent.test(), "{transfers:?}");
            std::thread::sleep(Duration::from_micros(300 * round));
            let is_back = match take_back(sent) {
                Ok(bytes) => {
                    pattern::check(&bytes, 1);
                    nodes[0].send(nodes[1].id(), 2, b"instead").unwrap();
                    true
                }
                Err(done) => done.result.is_err(),
            };
            taken_back += u32::from(is_back);
            let done = received.wait();
            let envelope = done.result.unwrap();
            assert_eq!((envelope.tag, envelope.len), if is_back { (2, 7) } else { (1, LONG) });
            if is_back {
                assert_eq!(&done.buffer.unwrap()[..7], b"instead");
            } else {
                pattern::check(&done.buffer.unwrap(), 1);
            }
        }
        println!("{taken_back} of 6 taken back");
        assert_eq!(pass(&nodes, 3, 8 << 20, mode("udp/put")).beside.len(), 2);
    }
}

#[test]
fn a_receive_is_taken_back_while_its_parts_are_under_way() {
    let pair = Pair::with_links(2);
    let nodes = nodes(&pair, false, |builder| builder.policy(Beside(all(2))));
    let (sent, received) = under_way(&nodes, 2);
    let cancelled = take_back(received);
    // The message goes to another receive, all of it.
    let mut buf = vec![0; LONG];
    if cancelled.is_ok() {
        let envelope = nodes[1].recv_until(Match::any(), &mut buf, soon()).unwrap();
        assert_eq!((envelope.tag, envelope.len), (1, LONG));
    } else if let Err(done) = cancelled {
        buf = done.buffer.unwrap();
    }
    pattern::check(&buf, 1);
    sent.wait().result.unwrap();
}

#[test]
fn whoever_dies_in_the_middle_takes_all_parts_along() {
    for (near, victim) in [(false, 0), (false, 1), (true, 0), (true, 1)] {
        let pair = Pair::with_links(2);
        let change = |builder: NodeBuilder| builder.policy(Beside(all(2))).dead_after(Duration::from_millis(400));
        let nodes = nodes(&pair, near, change);
        let (sent, received) = under_way(&nodes, 2);
        testing::kill(&nodes[victim]);
        let sent = sent.wait_until(soon()).expect("it ends").result;
        let received = received.wait_until(soon()).expect("it ends").result.map(drop);
        let (of_victim, other) = if victim == 0 { (sent, received) } else { (received, sent) };
        let is_dead = |error: &Error| matches!(error, Error::PeerDied { .. } | Error::Damaged { .. });
        assert!(of_victim.is_ok() || matches!(of_victim, Err(Error::Closed)), "{of_victim:?}");
        assert!(other.is_ok() || other.as_ref().is_err_and(is_dead), "near: {near}, {victim} died: {other:?}");
    }
}

#[test]
fn the_parts_of_a_link_that_is_cut_go_on_by_another_path() {
    const DEAD_AFTER: Duration = Duration::from_secs(8);
    const COUNT: u64 = 24;
    let builder = |node: u8| {
        let builder = Node::builder(format!("stripes-{}", std::process::id())).fabric(FabricKind::Udp).id(u16::from(node));
        let at = |link: u8| SocketAddr::from(([127, 99, node, link], 0));
        builder.listen(at(1)).listen(at(2)).dead_after(DEAD_AFTER).policy(Beside(all(2)))
    };
    let home = builder(0).join().unwrap();
    let relay = Relay::start(None, home.address().unwrap(), [Badness::NONE; 2], 1).unwrap();
    let away = builder(1).connect(relay.front(0)).join().unwrap();
    let deadline = Instant::now() + PATIENCE;
    home.wait_for(2, deadline).unwrap();
    eventually("both links", || {
        let is_open = away.send_as(home.id(), 9, b"", mode("udp/1")).unwrap().used.link == 1;
        home.recv_until(Match::any().tag(9), &mut [], soon()).unwrap();
        is_open
    });
    let came = AtomicU64::new(0);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut divided = 0;
            for seed in 0..COUNT {
                let receipt = away.send_as(NodeId(0), seed, &pattern::bytes(8 << 20, seed), mode("udp/put")).unwrap();
                divided += receipt.beside.len();
            }
            assert_eq!(divided, COUNT as usize);
        });
        threads.spawn(|| {
            eventually("some messages", || came.load(SeqCst) >= COUNT / 4);
            relay.black_hole(true);
        });
        let mut buf = vec![0; 8 << 20];
        for seed in 0..COUNT {
            let envelope = home.recv_until(Match::from(NodeId(1)), &mut buf, deadline).unwrap();
            assert_eq!((envelope.tag, envelope.len), (seed, buf.len()));
            pattern::check(&buf, seed);
            came.fetch_add(1, SeqCst);
        }
    });
    let relayed = relay.relayed();
    assert!(relayed[0].lost + relayed[1].lost > 0, "cut in the middle: {relayed:?}");
}

// ---- one that speaks the protocol, and says what no node of ours does

/// Node 1 without an engine, with three links.
struct Forger {
    fabric: Arc<Mutex<UdpFabric>>,
    incarnation: Incarnation,
    sequence: u32,
    heard: Heard,
}

#[derive(Default)]
struct Heard {
    packets: VecDeque<(PacketHead, Vec<u8>)>,
}

impl Sink for Heard {
    fn packet(&mut self, _: NodeId, _: Incarnation, _: Priority, head: &PacketHead, payload: Payload<'_>) -> Verdict {
        self.packets.push_back((*head, payload.to_vec()));
        Verdict::Taken
    }

    fn damaged(&mut self, _: NodeId, _: Priority, _: &'static str) {}
}

/// A message of zeroes.
struct Zeroes;

impl BytesOut for Zeroes {
    fn lend(&self, _: u64, len: usize, to: &mut dyn FnMut(&[u8])) -> bool {
        to(&vec![0; len]);
        true
    }

    fn has(&self) -> bool {
        true
    }

    fn ended(&self, _: bool) {}
}

impl Forger {
    /// The victim, node 0, with two links, and one that it knows.
    fn meet() -> (Node, Self) {
        let name = "forged-stripes";
        let victim = Node::builder(name).fabric(FabricKind::Udp).id(0).policy(Beside(all(4)));
        let victim = victim.listen(LOOPBACK).listen(LOOPBACK).join().unwrap();
        let about = About { role: Role::Host, pid: 1, label: "forger".into(), nonce: 0 };
        let options = UdpOptions { listen: vec![LOOPBACK; 3], connect: vec![victim.address().unwrap()], ..UdpOptions::default() };
        let (me, deadline) = ((NodeId(1), Incarnation(77)), Instant::now() + PATIENCE);
        let (fabric, _) = UdpFabric::open(name, me, about, victim.max_nodes(), &options, deadline).unwrap();
        let fabric = Arc::new(Mutex::new(fabric));
        let mut forger = Self { fabric, incarnation: victim.incarnation(), sequence: 0, heard: Heard::default() };
        eventually("two links", || {
            forger.turn();
            let strands = forger.fabric.lock().unwrap().strands(NodeId(0), forger.incarnation);
            let knows = victim.peer(NodeId(1)).is_ok()
                && victim.send_as(NodeId(1), 9, b"", mode("udp/1")).is_ok_and(|sent| sent.used.link == 1);
            strands == 2 && knows
        });
        (victim, forger)
    }

    fn turn(&mut self) {
        let mut fabric = self.fabric.lock().unwrap();
        fabric.poll(&mut self.heard, 64);
        while let Some(change) = fabric.next_change() {
            if let Change::Met(node, _) = change {
                fabric.accept(node);
            }
        }
    }

    /// The next packet of this kind.
    fn hear(&mut self, kind: PacketKind) -> (PacketHead, Vec<u64>) {
        until("a packet", || {
            self.turn();
            let (head, payload) = self.heard.packets.pop_front()?;
            let words = payload.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
            (head.kind == kind).then_some((head, words))
        })
    }

    fn push(&mut self, kind: PacketKind, tag: u64, total: u64, words: &[u64]) {
        let priority = if kind == PacketKind::Control { Priority::High } else { Priority::Normal };
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let head = PacketHead { kind, tag, sequence: self.sequence, total };
        self.sequence += u32::from(kind == PacketKind::Rts);
        let mut link = UdpLink::new(&self.fabric, NodeId(0), self.incarnation, priority).unwrap();
        // SAFETY: a slice.
        assert_eq!(unsafe { link.push(&head, bytes.as_ptr(), bytes.len()) }, Push::Done);
    }

    fn control(&mut self, words: &[u64]) {
        self.push(PacketKind::Control, 0, 8 * words.len() as u64, words);
    }
}

fn is_damaged(node: &Node) -> Option<&'static str> {
    std::iter::from_fn(|| node.try_event().unwrap()).find_map(|event| match event {
        Event::Damaged { reason, .. } => Some(reason),
        _ => None,
    })
}

/// Of the first word of a remote get: one that names the transfer in these links, too.
const REMOTE_GET: u64 = 1 << 32;
const NAMES: u32 = 41;

#[test]
fn a_remote_get_by_a_link_that_was_not_offered_is_a_breach() {
    // The link of the RTS a second time, and links that there are not.
    for (names, beside) in [(0b0001, &[5_u64][..]), (0b0100, &[5]), (0b1010, &[5, 6])] {
        let (victim, mut forger) = Forger::meet();
        let sent = victim.peer(NodeId(1)).unwrap().start_send_as(1, vec![1; 8 << 20], mode("udp/0/put")).unwrap();
        let (_, rts) = forger.hear(PacketKind::Rts);
        assert_eq!(rts[0] >> 32, 1 | 0b10 << 3, "by link 0, with link 1 offered");
        let ticket = rts[0] & 0xffff_ffff;
        forger.control(&[&[ticket | REMOTE_GET | names << NAMES, 3, 7], beside].concat());
        let error = sent.wait_until(soon()).expect("it ends").result.unwrap_err();
        assert!(matches!(error, Error::Damaged { node: NodeId(1) }), "{error}");
        assert_eq!(is_damaged(&victim), Some("a remote get with a link that was not offered"));
    }
}

#[test]
fn a_second_remote_get_changes_nothing() {
    let (victim, mut forger) = Forger::meet();
    let sent = victim.peer(NodeId(1)).unwrap().start_send_as(1, vec![1; 8 << 20], mode("udp/0/put")).unwrap();
    let ticket = forger.hear(PacketKind::Rts).1[0] & 0xffff_ffff;
    for (names, beside) in [(0b10, &[3_u64][..]), (0b10, &[4]), (0b1000, &[5]), (0, &[])] {
        forger.control(&[&[ticket | REMOTE_GET | names << NAMES, 3, 7], beside].concat());
    }
    eventually("both parts", || {
        forger.turn();
        victim.metrics().unwrap()[Metric::DirectPuts] == 2
    });
    // It has it all, it says.
    forger.control(&[ticket | 3 << 32, 0, 0]);
    eventually("its end", || {
        forger.turn();
        sent.test()
    });
    sent.wait().result.unwrap();
    assert_eq!(is_damaged(&victim), None);
    let report = until("a report", || {
        forger.turn();
        victim.transfers().unwrap().pop()
    });
    assert_eq!(parts(&report), 2, "{report:?}");
}

#[test]
fn bytes_that_come_by_two_links_are_no_message_of_twice_the_length() {
    const LEN: u64 = 1 << 20;
    let (victim, mut forger) = Forger::meet();
    let received = victim.start_recv(Match::from(NodeId(1)), vec![9; LEN as usize]).unwrap();
    // By link 0, with links 1 to 3 offered, of which the victim has one.
    forger.push(PacketKind::Rts, 1, LEN, &[5 << 16 | (1 | 0b1110 << 3) << 32, 64 << 10, 0, 0]);
    let (_, get) = forger.hear(PacketKind::Control);
    assert_eq!((get[0], get[1], get.len()), (5 << 16 | REMOTE_GET | 0b10 << NAMES, 3, 4), "{get:x?}");
    for (link, name) in [(0, get[2]), (1, get[3])] {
        let link = UdpLink::by(&forger.fabric, NodeId(0), forger.incarnation, link, Priority::Normal).unwrap();
        assert_eq!(link.begin_transfer(TransferId(name), 0..LEN, LEN, Arc::new(Zeroes)), Some(true));
    }
    let ended = until("its end", || {
        forger.turn();
        // A part that is old harms only the forger; more bytes than the whole break the rules.
        is_damaged(&victim).map(Err).or_else(|| received.test().then_some(Ok(())))
    });
    println!("{ended:?}");
    // Others are not in the way.
    assert!(ended.is_err() || victim.members().unwrap().iter().any(|member| member.id == NodeId(1)));
}
