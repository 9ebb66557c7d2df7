//! A peer that keeps the rules and exhausts: it makes very many requests and reads no reply. Its victim keeps little
//! memory and few threads for it, and has places left for an honest node, which joins and talks meanwhile.
//!
//! `DOORBELL_EXHAUST` says how many packets a flood has at least, such as a million.

use crate::foe::Raw;
use crate::pair::{self, Pair, at, by_network, inbox};
use crate::{HANG, HOSTILE, VICTIM, ways};
use doorbell::{DeviceSender, FabricKind, Node, NodeBuilder, NodeId, Progress, Stream};
use doorbell_fabric::{Incarnation, Link, PacketHead, PacketKind, Payload, Priority, Push, Role, Sink, Verdict};
use doorbell_shm::lane::{Producer, RawMemory};
use doorbell_tests::patience::soon;
use doorbell_tests::process::told;
use doorbell_tests::words::Words;
use doorbell_tests::{Turn, number};
use doorbell_udp::fabric::{About, UdpFabric, UdpLink, UdpOptions};
use std::io::Write;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How much more memory the victim may hold than before, in KiB, and how many more threads.
const MORE_KIB: u64 = 8 << 10;
const MORE_THREADS: u64 = 4;

/// Streams of one node that wait to be accepted.
const BACKLOG: u64 = 128;

/// The fabric of a flood.
enum Way {
    Near { _node: Node, header: Raw, _block: Raw, producers: Box<[Option<Producer<RawMemory>>; 3]>, incarnation: u32 },
    Network { fabric: Arc<Mutex<UdpFabric>>, links: Vec<UdpLink> },
}

/// It reads nothing.
struct Deaf;

impl Sink for Deaf {
    fn packet(&mut self, _: NodeId, _: Incarnation, _: Priority, _: &PacketHead, _: Payload<'_>) -> Verdict {
        Verdict::Refused
    }

    fn damaged(&mut self, _: NodeId, _: Priority, _: &'static str) {}
}

impl Way {
    fn near() -> Self {
        // Nobody turns its engine.
        let node = NodeBuilder::from_env().unwrap().id(HOSTILE).max_nodes(8).progress(Progress::Inline).join().unwrap();
        node.wait_for(2, soon()).unwrap();
        let [header, block] = inbox(&node).unwrap();
        let incarnation = node.incarnation().0;
        Self::Near { _node: node, header, _block: block, producers: Box::new([None, None, None]), incarnation }
    }

    fn by_network(words: &Words) -> Self {
        let about = About { role: Role::Host, pid: std::process::id(), label: "hostile".into(), nonce: 0 };
        let port = words[at::PORT].load(SeqCst) as u16;
        let options = UdpOptions { connect: vec![([127, 0, 0, 1], port).into()], ..UdpOptions::default() };
        let incarnation = Incarnation(std::process::id());
        let (mut fabric, port) =
            UdpFabric::open(&told("DOORBELL_DOMAIN"), (NodeId(HOSTILE), incarnation), about, 8, &options, soon()).unwrap();
        // As long as the fabric.
        std::mem::forget(port);
        let mut other = None;
        while let Some(change) = fabric.next_change() {
            if let doorbell_udp::fabric::Change::Met(node, incarnation) = change {
                fabric.accept(node);
                other = Some((node, incarnation));
            }
        }
        let (node, incarnation) = other.expect("the other one");
        let fabric = Arc::new(Mutex::new(fabric));
        let links = Priority::ALL.iter().map(|priority| UdpLink::new(&fabric, node, incarnation, *priority).unwrap()).collect();
        Self::Network { fabric, links }
    }

    /// Sends a packet, however long that takes. False if the test is over.
    fn push(&mut self, words: &Words, priority: Priority, kind: PacketKind, tag: u64, bytes: &[u8]) -> bool {
        let head = PacketHead { kind, tag, sequence: 0, total: bytes.len() as u64 };
        loop {
            let pushed = match self {
                Self::Near { header, _block: block, producers, incarnation, .. } => {
                    let producer = producers[priority.index()].get_or_insert_with(|| {
                        let lanes = doorbell::LaneGeometry::default();
                        // SAFETY: the lanes are mapped whole for as long as their producers.
                        let [first, full] = [lanes.first_lane(priority), lanes.lane(priority)]
                            .map(|place| unsafe { RawMemory::new(block.ptr(), place) });
                        let mut producer = Producer::claim(first, *incarnation).expect("its own lane");
                        // What it sends does not fit into the first ring.
                        assert!(producer.move_to(full));
                        producer
                    });
                    // SAFETY: a slice, shorter than a packet.
                    let pushed = unsafe { producer.push(&head, bytes.as_ptr(), bytes.len()) };
                    ways::wake_up(header);
                    pushed
                }
                Self::Network { fabric, links } => {
                    // Packets are acknowledged, but nothing is taken.
                    let mut held = fabric.lock().unwrap();
                    held.poll(&mut Deaf, 64);
                    // Else nothing is taken in; the honest node is met, too.
                    while held.next_change().is_some() {}
                    drop(held);
                    // SAFETY: a slice, shorter than a packet.
                    unsafe { links[priority.index()].push(&head, bytes.as_ptr(), bytes.len()) }
                }
            };
            match pushed {
                Push::Done => {
                    words[at::SENT].fetch_add(1, SeqCst);
                    return words[crate::at::STOP].load(SeqCst) == 0;
                }
                Push::Full if words[crate::at::STOP].load(SeqCst) == 0 => std::thread::yield_now(),
                _ => return false,
            }
        }
    }
}

fn tag(kind: u64, number: u64) -> u64 {
    kind << 56 | number & 0xffff_ffff
}

fn bytes(words: &[u64], rest: &[u8]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).chain(rest.iter().copied()).collect()
}

/// The role of the hostile node.
pub fn flood() {
    let (what, words) = (crate::part().0, Words::inherited());
    if matches!(what.as_str(), "senders" | "writers") {
        return by_library(&what, &words);
    }
    let mut way = if by_network() { Way::by_network(&words) } else { Way::near() };
    let began = Instant::now();
    for number in 1_u64.. {
        let is_on = match what.as_str() {
            // A stream is asked for, and written to; what was accepted is read by nobody.
            "streams" => {
                let offer = bytes(&[0, 0, 256 << 10], pair::SERVICE.as_bytes());
                // The numbers of the other ends are the first that there are. Each may be told so much before it is accepted.
                let (end, is_first) = (number % BACKLOG + 1, number < 8 * BACKLOG);
                way.push(&words, Priority::High, PacketKind::Stream, tag(1, number), &offer)
                    && (!is_first || way.push(&words, Priority::High, PacketKind::Stream, tag(5, end), &[7; 1000]))
            }
            // A device is opened, and a message sent to an id that nobody has.
            "devices" => {
                let thread = 100 + number % 1000;
                way.push(&words, Priority::Low, PacketKind::Device, tag(1, number), pair::DEVICE.as_bytes())
                    && way.push(
                        &words,
                        Priority::Low,
                        PacketKind::Device,
                        tag(4, number),
                        &bytes(&[1, thread << 32 | 8, number], &[1; 8]),
                    )
            }
            other => panic!("nothing is called {other}"),
        };
        if !is_on || began.elapsed() > 6 * HANG {
            break;
        }
    }
    // It stays until it is killed: what was kept for it is looked at.
    while words[crate::at::STOP].load(SeqCst) == 0 && began.elapsed() < 6 * HANG {
        if let Way::Network { fabric, .. } = &way {
            fabric.lock().unwrap().poll(&mut Deaf, 64);
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// A flood by the library: as many senders to the device as it gets, none of which is dropped, with messages to ids that no thread has; or as many
/// streams, with as many bytes as each takes.
fn by_library(what: &str, words: &Words) {
    let builder = NodeBuilder::from_env().unwrap().id(HOSTILE).max_nodes(8);
    let port = words[at::PORT].load(SeqCst) as u16;
    let builder = if by_network() { builder.fabric(FabricKind::Udp).connect(([127, 0, 0, 1], port)) } else { builder };
    let node = builder.join().unwrap();
    let (mut senders, mut streams): (Vec<DeviceSender>, Vec<Stream>) = Default::default();
    let connector = Stream::builder(&node, pair::SERVICE).to(NodeId(VICTIM)).patience(Duration::from_millis(100));
    let (began, mut number, mut is_full) = (Instant::now(), 0_u32, false);
    while words[crate::at::STOP].load(SeqCst) == 0 && began.elapsed() < 6 * HANG {
        if what == "senders" {
            senders.extend(DeviceSender::open(&node, pair::DEVICE));
        } else if !is_full {
            let made = connector.connect();
            is_full = made.is_err();
            made.iter().for_each(|stream| stream.set_nonblocking(true));
            streams.extend(made);
        }
        for sender in &senders {
            number += 1;
            let _ = sender.try_send(100 + number % 1000, 0, &[1; 1000]);
        }
        for stream in &mut streams {
            let _ = stream.write(&[7; 64 << 10]);
        }
        words[at::SENT].fetch_add(1, SeqCst);
    }
}

fn is_flooded(what: &str, network: bool, at_least: u64) {
    let _turn = Turn::take();
    let least = number("DOORBELL_EXHAUST", at_least);
    let pair = Pair::new(network);
    // Once without anybody else, so that what is kept for an honest node is there.
    let before = {
        let node = pair.join();
        let mut stream = pair::connect(&node);
        pair::accepts(&node);
        let sender = DeviceSender::open(&node, pair::DEVICE).unwrap();
        (0..20).for_each(|round| pair::talk(&node, &mut stream, &sender, round));
        pair::refuses(&node);
        drop((stream, sender));
        node.leave().unwrap();
        pair::held_by(pair.server.pid())
    };
    let foe = pair.foe("pair: flood", what, 0);
    let (mut most, mut honest) = (before, None);
    let looks = |most: &mut [u64; 2]| {
        let now = pair::held_by(pair.server.pid());
        *most = [most[0].max(now[0]), most[1].max(now[1])];
    };
    let mut rounds = 0;
    let deadline = Instant::now() + 3 * HANG + Duration::from_micros(100 * least);
    while pair.words[at::SENT].load(SeqCst) < least || rounds < 100 {
        assert!(Instant::now() < deadline, "{} packets, {rounds} rounds", pair.words[at::SENT].load(SeqCst));
        assert!(!foe.ended_by(Instant::now()), "the hostile node ended by itself");
        looks(&mut most);
        if honest.is_none() && pair.words[at::SENT].load(SeqCst) >= least / 4 {
            let node = pair.join();
            // Its places are there though nobody accepts what the hostile one asked for.
            let sender = DeviceSender::open(&node, pair::DEVICE).unwrap();
            let stream = pair::connect(&node);
            looks(&mut most);
            pair::accepts(&node);
            honest = Some((node, stream, sender));
        }
        match &mut honest {
            Some((node, stream, sender)) if rounds < 100 => {
                pair::talk(node, stream, sender, rounds);
                rounds += 1;
            }
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    looks(&mut most);
    let sent = pair.words[at::SENT].load(SeqCst);
    let more = [0, 1].map(|which: usize| most[which] - before[which]);
    println!("{what}: {sent} packets; {} KiB more than {}, {} threads more than {}", more[0], before[0], more[1], before[1]);
    let (node, stream, sender) = honest.unwrap();
    drop((stream, sender));
    foe.kill();
    drop(foe);
    pair.end(node);
    // A sanitizer keeps freed memory for a while, so what a process holds says nothing there.
    assert!(cfg!(sanitized) || more[0] <= MORE_KIB, "{what}: {} KiB more after {sent} packets, {MORE_KIB} may be", more[0]);
    assert!(more[1] <= MORE_THREADS, "{what}: {} threads more after {sent} packets", more[1]);
}

#[test]
fn streams_that_nobody_reads_cost_little_over_shared_memory() {
    is_flooded("streams", false, 20_000);
}

#[test]
fn streams_that_nobody_reads_cost_little_over_the_network() {
    is_flooded("streams", true, 20_000);
}

#[test]
fn questions_about_a_device_cost_little_over_shared_memory() {
    is_flooded("devices", false, 20_000);
}

#[test]
fn senders_to_a_device_that_nobody_closes_cost_little_over_the_network() {
    is_flooded("devices", true, 20_000);
}

#[test]
fn a_node_that_opens_all_senders_it_can_leaves_lanes_for_others() {
    is_flooded("senders", false, 1000);
}

#[test]
fn bytes_of_streams_that_nobody_accepts_cost_little_over_the_network() {
    is_flooded("writers", true, 200);
}
