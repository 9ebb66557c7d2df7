//! Data communication modes: requested, honoured or refused, each with fabric, link and protocol.

use doorbell::mode::{Call, Fabric, Mode, ModeRequest, MovedBytes, Protocol, Reason, Receipt, Refusal, Thresholds};
use doorbell::transfer::Side;
use doorbell::{CopySide, Error, Match, Node, NodeId, Progress, Stored, TransferReport};
use doorbell_tests::pair::{Pair, mode, near, near_with, serving};
use doorbell_tests::patience::{eventually, finishes, running, soon, take_back, until};
use doorbell_tests::random::{Random, seed};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

pub fn used(words: &str) -> Mode {
    let ModeRequest { fabric: Some(fabric), link: Some(link), protocol: Some(protocol) } = mode(words) else { panic!("{words}") };
    Mode { fabric, link, protocol }
}

/// Messages of a sender arrive in the order in which they were sent, whole.
pub fn expect(node: &Node, tag: u64, bytes: &[u8]) {
    let mut buf = vec![0; bytes.len() + 1];
    let envelope = node.recv_until(Match::any(), &mut buf, soon()).unwrap();
    assert_eq!((envelope.tag, envelope.len), (tag, bytes.len()));
    assert!(buf[..envelope.len] == *bytes, "message {tag} is not as it was sent");
}

/// The bytes that both ends report for a message that went as a transfer. `None`: it went through a lane.
fn reported(a: &Node, b: &Node, tag: u64) -> Option<MovedBytes> {
    let of = |node: &Node, side: Side| {
        let reports = node.transfers().unwrap();
        reports.into_iter().rfind(|report| (report.side, report.tag) == (side, tag))
    };
    let there = of(b, Side::Target)?;
    let here = until("the origin's report", || of(a, Side::Origin));
    let moved =
        |report: &TransferReport| MovedBytes { fifo: report.fifo.bytes, put: report.put.bytes, pulled: report.pulled.bytes };
    assert_eq!(moved(&here), moved(&there), "{here:?}\n{there:?}");
    Some(moved(&there))
}

/// Sends a message to a receive that waits for it. Checks that the receipt agrees with the reports of both ends.
fn pass(a: &Node, b: &Node, tag: u64, bytes: &Arc<[u8]>, by: &str) -> Receipt {
    let (receiver, len) = (b.clone(), bytes.len());
    let receiving = running("a receive", move || {
        let mut buf = vec![0; len + 1];
        let envelope = receiver.recv(Match::any(), &mut buf).unwrap();
        (envelope, buf)
    });
    let receiving = receiving.started();
    let (sender, to, sent, request) = (a.clone(), b.id(), bytes.clone(), mode(by));
    let receipt = finishes("a send", move || sender.send_as(to, tag, &sent, request).unwrap());
    let (envelope, buf) = receiving.join();
    assert_eq!((envelope.tag, envelope.len), (tag, len));
    assert!(buf[..len] == bytes[..], "message {tag} is not as it was sent");
    let by_lane = MovedBytes { fifo: len as u64, put: 0, pulled: 0 };
    assert_eq!(receipt.moved, Some(reported(a, b, tag).unwrap_or(by_lane)), "{receipt}");
    assert_eq!(receipt.moved.and_then(|moved| moved.protocol()), Some(receipt.used.protocol), "{receipt}");
    receipt
}

#[test]
fn each_mode_that_is_requested_is_honoured_by_the_bytes() {
    // The machine may keep one of the two threads from running while the other has nothing to wait for.
    const ATTEMPTS: u64 = 200;
    let pair = Pair::new();
    let [a, b] = pair.nodes();
    let long: Vec<u8> = (0..2 << 20_u32).map(|at| (at * 7 + at / 251) as u8).collect();
    let modes =
        ["shm/0/transfer", "shm/0/put", "shm/0/get", "shm/0/both", "udp/0/transfer", "udp/0/put", "udp/1/transfer", "udp/1/put"];
    let mut tag = 0;
    for len in [1, 40, 4096, 40_000, 2 << 20] {
        let bytes: Arc<[u8]> = long[..len].into();
        for words in modes {
            // Memory FIFO has moved what is short before a session, or both ends, begin.
            let may_be_late = len < 1 << 20 && (words.starts_with("udp") || words == "shm/0/both");
            let mut attempt = 0;
            loop {
                (tag, attempt) = (tag + 1, attempt + 1);
                let receipt = pass(&a, &b, tag, &bytes, words);
                assert_eq!((receipt.decided, receipt.requested), (used(words), mode(words)), "{receipt}");
                assert_eq!((receipt.to, receipt.call, receipt.len), (b.id(), Call::Send, len as u64));
                let is_either = used(words).protocol == Protocol::Both && receipt.used.protocol != Protocol::Transfer;
                if receipt.used == used(words) || is_either {
                    assert_eq!(receipt.reason, Reason::Requested, "{receipt}");
                    break;
                }
                assert_eq!(receipt.used.protocol, Protocol::Transfer, "{receipt}");
                assert!(matches!(receipt.reason, Reason::Unavailable(_)), "{receipt}");
                if may_be_late {
                    break;
                }
                assert!(attempt < ATTEMPTS, "never as asked: {receipt}");
            }
        }
    }
}

#[test]
fn a_receipt_says_that_the_target_did_not_let_the_origin_put() {
    // Such a target grants no put.
    let [a, b] = near_with(|id, builder| if id == 1 { builder.copy(CopySide::Target) } else { builder });
    let bytes = vec![5; 600_000];
    type Receiver = fn(&Node, Vec<u8>) -> Vec<u8>;
    let receives: [Receiver; 2] = [
        |node, mut buf| {
            node.recv_until(Match::any(), &mut buf, soon()).unwrap();
            buf
        },
        |node, buf| {
            let request = node.start_recv(Match::any(), buf).unwrap();
            request.wait_until(soon()).unwrap_or_else(|_| panic!("a receive does not end")).buffer.unwrap()
        },
    ];
    for (number, receive) in (1..).zip(receives) {
        let receiver = b.clone();
        let receiving = running("a receive", move || receive(&receiver, vec![0; 600_000])).started();
        let (sender, sent) = (a.clone(), bytes.clone());
        let receipt = finishes("a send", move || sender.send_as(NodeId(1), number, &sent, mode("shm/put")).unwrap());
        assert!(receiving.join() == bytes);
        let all_by_fifo = MovedBytes { fifo: 600_000, put: 0, pulled: 0 };
        assert_eq!((receipt.moved, reported(&a, &b, number)), (Some(all_by_fifo), Some(all_by_fifo)), "{receipt}");
        assert_eq!((receipt.decided, receipt.used), (used("shm/0/put"), used("shm/0/transfer")));
        assert!(matches!(receipt.reason, Reason::Unavailable(why) if why.contains("put")), "{receipt}");
        // The counts are of what happened, too.
        let counts = a.monitor().unwrap().counts;
        assert_eq!((counts.honoured(), counts.refused(Refusal::Unavailable)), (0, number));
        let by = |protocol| counts.messages(Fabric::Shm, protocol);
        assert_eq!((by(Protocol::Put), by(Protocol::Transfer)), (0, number));
    }
}

#[test]
fn a_receipt_says_that_the_target_fetched_nothing_in_time() {
    let [a, b] = near_with(|_, builder| builder.progress(Progress::Inline));
    let bytes = vec![6; 40_000];
    let request = a.peer(b.id()).unwrap().start_send_as(1, bytes.clone(), mode("shm/get")).unwrap();
    let begun = request.receipt().unwrap();
    assert_eq!((begun.used, begun.moved, begun.reason), (used("shm/0/get"), None, Reason::Requested), "{begun}");
    // Nobody turns the target.
    eventually("the message is in the lane", || request.test());
    let receipt = request.receipt().unwrap();
    assert_eq!(receipt.moved, Some(MovedBytes { fifo: 40_000, put: 0, pulled: 0 }), "{receipt}");
    assert_eq!(receipt.used, used("shm/0/transfer"), "{receipt}");
    assert!(matches!(receipt.reason, Reason::Unavailable(why) if why.contains("fetch")), "{receipt}");
    expect(&b, 1, &bytes);
    request.wait().result.unwrap();
}

#[test]
fn a_put_waits_for_nobody_whatever_transfers_stand_in_a_queue() {
    let [a, b] = near_with(|id, builder| {
        let builder = builder.progress(Progress::Inline);
        let policy = Thresholds::new().transfers_high(0).transfers_low(0).stalled_after(Duration::ZERO);
        if id == 0 { builder.policy(policy) } else { builder }
    });
    let region = b.region::<u8>(100_000).unwrap();
    // The target is asked, and nobody turns it: the transfer stays as it is.
    let transfer = a.peer(b.id()).unwrap().start_send_as(1, vec![1; 100_000], mode("shm/both")).unwrap();
    let (node, key) = (a.clone(), region.key());
    let receipt = finishes("a put", move || {
        let receipt = node.peer(key.node()).unwrap().put_as(&[7; 100_000], key, ModeRequest::default()).unwrap();
        node.put(&[8; 10], key).unwrap();
        receipt
    });
    assert_eq!((receipt.used, receipt.moved.unwrap().put), (used("shm/0/put"), 100_000), "{receipt}");
    let all = all_of(&region);
    assert!(all[..10] == [8; 10] && all[10..].iter().all(|byte| *byte == 7));
    let (node, key) = (a.clone(), region.read_key());
    let got = finishes("a get", move || {
        let mut into = [0; 20];
        node.get(key, &mut into).unwrap();
        into
    });
    assert!(got[..10] == [8; 10] && got[10..] == [7; 10]);
    drop(transfer);
}

#[test]
fn a_put_that_is_refused_counts_as_no_mode() {
    let [a, b] = near();
    let region = b.region::<u32>(100).unwrap();
    let peer = a.peer(b.id()).unwrap();
    let _server = serving(&b);
    peer.put_as(&[1; 100], region.key(), mode("shm/put")).unwrap();
    let gone = b.region::<u32>(100).unwrap();
    let key = gone.key();
    gone.withdraw().unwrap();
    for words in ["shm/put", "shm/transfer", "any"] {
        let wrong = peer.put_as(&[2; 100], key, mode(words));
        assert!(matches!(wrong, Err(Error::Key { .. })), "{words}: {wrong:?}");
    }
    assert!(matches!(peer.put_as(&[3; 100], region.key(), mode("udp")), Err(Error::Invalid { .. })));
    let counts = a.monitor().unwrap().counts;
    let by = |protocol| counts.messages(Fabric::Shm, protocol);
    assert_eq!((counts.honoured(), by(Protocol::Put), by(Protocol::Transfer)), (1, 1, 0));
    // Of those, one asked for what this pair has not.
    assert_eq!(Refusal::ALL.iter().map(|refusal| counts.refused(*refusal)).sum::<u64>(), 1);
    assert_eq!(all_of(&region), [1; 100]);
}

#[test]
fn without_an_engine_nothing_is_put_or_pulled() {
    // The origin has none: neither a message nor a put goes as a put by the network.
    let pair = Pair::new();
    let [a, b] = pair.join(pair.builder(0).engine(false), pair.builder(1));
    let bytes: Arc<[u8]> = vec![9; 2 << 20].into();
    for (tag, words) in (1..).zip(["udp", "any"]) {
        let receipt = pass(&a, &b, tag, &bytes, words);
        assert_eq!(receipt.moved.unwrap().put, 0, "{receipt}");
    }
    let peer = a.peer(b.id()).unwrap();
    let refused = peer.send_as(3, &bytes, mode("udp/put"));
    assert!(matches!(&refused, Err(Error::Invalid { what }) if what.contains("udp/0/transfer")), "{refused:?}");
    let region = b.region::<u8>(1000).unwrap();
    let server = serving(&b);
    let receipt = peer.put_as(&[4; 1000], region.key(), mode("udp")).unwrap();
    assert_eq!((receipt.used, receipt.moved.unwrap().fifo), (used("udp/0/transfer"), 1000), "{receipt}");
    assert!(matches!(receipt.reason, Reason::Unavailable(why) if why.contains("engine")), "{receipt}");
    assert_eq!(all_of(&region), [4; 1000]);
    drop(server);
    // The target has none: it fetches nothing.
    let [a, b] = near_with(|id, builder| builder.engine(id == 0));
    for (tag, words) in (1..).zip(["shm/both", "shm/get"]) {
        let receipt = pass(&a, &b, tag, &bytes, words);
        assert_eq!(receipt.moved.unwrap().pulled, 0, "{receipt}");
    }
}

/// Message `number` of so many bytes, eight at least.
fn numbered(number: u64, len: usize) -> Vec<u8> {
    number.to_le_bytes().into_iter().chain((8..len).map(|at| (at as u64 * 31 + number) as u8)).collect()
}

#[test]
fn any_modes_in_any_order_keep_the_order() {
    const MESSAGES: u64 = 1500;
    let modes =
        ["any", "shm/transfer", "shm/put", "shm/get", "shm/both", "udp/0/transfer", "udp/0/put", "udp/1/transfer", "udp/1/put"];
    for progress in [Progress::Adaptive, Progress::Inline, Progress::Poller] {
        let pair = Pair::new();
        let [a, b] = pair.join(pair.builder(0).progress(progress), pair.builder(1).progress(progress));
        let (peer, seed) = (a.peer(b.id()).unwrap(), seed());
        println!("DOORBELL_SEED={seed}, {progress}");
        std::thread::scope(|threads| {
            let receiver = threads.spawn(|| {
                let mut random = Random::new(seed + 1);
                let (mut next, mut missed) = (0, Vec::new());
                while next < MESSAGES {
                    // Now and then what arrives waits for a moment.
                    if random.below(50) == 0 {
                        std::thread::sleep(Duration::from_micros(random.below(2000) as u64));
                    }
                    let mut buf = vec![0; 300_000];
                    let len = b.recv_until(Match::any(), &mut buf, soon()).unwrap().len;
                    let number = u64::from_le_bytes(buf[..8].try_into().unwrap());
                    assert!(number >= next, "message {number} after {}", next - 1);
                    assert!(buf[..len] == numbered(number, len), "message {number} of {len} bytes is not as it was sent");
                    missed.extend(next..number);
                    next = number + 1;
                }
                missed
            });
            let mut random = Random::new(seed);
            let (mut under_way, mut taken_back) = (VecDeque::new(), Vec::new());
            for number in 0..MESSAGES {
                let most = *random.pick(&[8, 100, 4096, 40_000, 300_000]);
                let (bytes, by) = (numbered(number, 8 + random.below(most - 7)), mode(random.pick::<&str>(&modes)));
                match random.below(4) {
                    0 => drop(peer.send_as(number, &bytes, by).unwrap()),
                    1 => peer.send(number, &bytes).unwrap(),
                    _ => under_way.push_back((number, peer.start_send_as(number, bytes, by).unwrap())),
                }
                if number + 1 < MESSAGES
                    && random.below(8) == 0
                    && let Some((number, request)) = under_way.pop_back()
                    && take_back(request).is_ok()
                {
                    taken_back.push(number);
                }
                if under_way.len() > 20 {
                    let (number, request) = under_way.pop_front().unwrap();
                    request.wait().result.unwrap_or_else(|error| panic!("message {number}: {error}"));
                }
            }
            for (_, request) in under_way {
                request.wait().result.unwrap();
            }
            taken_back.sort_unstable();
            assert_eq!(receiver.join().unwrap(), taken_back);
        });
    }
}

#[test]
fn a_request_may_name_parts_of_a_mode() {
    let pair = Pair::new();
    let [a, b] = pair.nodes();
    let peer = a.peer(b.id()).unwrap();
    let cases = [
        ("any", "shm/0/transfer", Reason::Default),
        ("shm", "shm/0/transfer", Reason::Requested),
        ("udp", "udp/0/transfer", Reason::Requested),
        ("1", "udp/1/transfer", Reason::Requested),
        ("put", "shm/0/put", Reason::Requested),
        ("udp/put", "udp/0/put", Reason::Requested),
    ];
    for (tag, (asked, expected, reason)) in cases.into_iter().enumerate() {
        // A machine that keeps one end from running makes it late.
        eventually(&format!("{asked} is honoured"), || {
            let request = peer.start_send_as(tag as u64, vec![1; 100], mode(asked)).unwrap();
            expect(&b, tag as u64, &[1; 100]);
            eventually("it is sent", || request.test());
            let receipt = until("a receipt", || request.receipt());
            request.wait().result.unwrap();
            assert_eq!(receipt.decided, used(expected), "{asked}");
            let is_put = used(expected) == used("shm/0/put");
            let put = MovedBytes { fifo: 0, put: 100, pulled: 0 };
            receipt.reason == reason && receipt.used == used(expected) && (!is_put || receipt.moved == Some(put))
        });
    }
}

#[test]
fn what_cannot_be_is_an_error_with_what_can() {
    let [a, b] = near();
    let peer = a.peer(b.id()).unwrap();
    for words in ["udp", "shm/1", "udp/3/put"] {
        let Err(Error::Invalid { what }) = peer.send_as(1, b"no", mode(words)) else { panic!("{words} is honoured") };
        assert!(what.contains(words) && what.contains("shm/0/transfer"), "{what}");
    }
    // Nothing of it was sent.
    peer.send(2, b"yes").unwrap();
    expect(&b, 2, b"yes");
}

#[test]
fn each_call_has_its_default_mode() {
    let [a, b] = near();
    let peer = a.peer(b.id()).unwrap();
    let region = b.region::<u64>(16).unwrap();
    let sent = peer.send_as(1, b"x", ModeRequest::default()).unwrap();
    let put = peer.put_as(&[1, 2], region.key(), ModeRequest::default()).unwrap();
    let got = peer.get_as(region.key(), &mut [0; 2], ModeRequest::default()).unwrap();
    let protocol = |receipt: Receipt| (receipt.call, receipt.used.protocol, receipt.requested.protocol, receipt.reason);
    assert_eq!(protocol(sent), (Call::Send, Protocol::Transfer, Some(Protocol::Transfer), Reason::Default));
    assert_eq!(protocol(put), (Call::Put, Protocol::Put, Some(Protocol::Put), Reason::Default));
    assert_eq!(protocol(got), (Call::Get, Protocol::Get, Some(Protocol::Get), Reason::Default));
    b.recv(Match::any(), &mut [0; 1]).unwrap();
}

#[test]
fn the_default_fabric_and_link_of_each_call_can_be_set() {
    let pair = Pair::new();
    let a = pair.builder(0).default_mode(Call::Send, mode("udp/1")).default_mode(Call::Put, mode("udp"));
    let [a, b] = pair.join(a, pair.builder(1));
    let (peer, region) = (a.peer(b.id()).unwrap(), b.region::<u8>(100).unwrap());
    // A call that asks for nothing, and says nothing of it.
    peer.send(1, b"by the second link").unwrap();
    expect(&b, 1, b"by the second link");
    assert_eq!(peer.send_as(2, b"x", mode("any")).unwrap().used, used("udp/1/transfer"));
    assert_eq!(peer.send_as(3, b"y", mode("shm/0")).unwrap().used, used("shm/0/transfer"));
    expect(&b, 2, b"x");
    expect(&b, 3, b"y");
    let server = serving(&b);
    assert_eq!(peer.put_as(&[7; 100], region.key(), mode("any")).unwrap().used, used("udp/0/put"));
    peer.put(&[8; 50], region.key()).unwrap();
    drop(server);
    let mut all = [0; 100];
    region.read(0, &mut all).unwrap();
    assert!(all[..50] == [8; 50] && all[50..] == [7; 50]);
}

fn all_of<T: doorbell::Plain + Default + Clone>(region: &doorbell::Region<T>) -> Vec<T> {
    let mut all = vec![T::default(); region.len()];
    region.read(0, &mut all).unwrap();
    all
}

#[test]
fn puts_and_gets_go_by_each_mode() {
    let pair = Pair::new();
    let [a, b] = pair.nodes();
    let (peer, region) = (a.peer(b.id()).unwrap(), b.region::<u32>(200_000).unwrap());
    let _server = serving(&b);
    for len in [1, 3, 1000, 5000, 200_000] {
        for (round, words) in ["shm/0/put", "shm/0/transfer", "shm/0/get", "udp/0/put", "udp/1/put"].into_iter().enumerate() {
            let bytes: Vec<u32> = (0..len as u32).map(|at| at * 31 + round as u32 + len as u32).collect();
            let receipt = peer.put_as(&bytes, region.key(), mode(words)).unwrap();
            assert_eq!((receipt.used, receipt.len), (used(words), 4 * len as u64), "{words}");
            let mut all = vec![0; len];
            region.read(0, &mut all).unwrap();
            assert!(all == bytes, "{words}, {len} elements");
        }
        let all = all_of(&region);
        for words in ["shm/0/get", "shm/0/transfer", "udp/0/get", "udp/1/get"] {
            let mut into = vec![0; len];
            let receipt = peer.get_as(region.read_key(), &mut into, mode(words)).unwrap();
            assert!(receipt.used == used(words) && into == all[..len], "{words}, {len} elements");
        }
    }
    let wrong = peer.put_as(&[1; 10], region.key().at(199_995), mode("shm/transfer"));
    assert!(matches!(wrong, Err(Error::Key { .. })), "{wrong:?}");
}

#[test]
fn a_message_names_where_it_is_stored_over_both_fabrics() {
    let pair = Pair::new();
    let [a, b] = pair.nodes();
    let (peer, region) = (a.peer(b.id()).unwrap(), b.region::<u16>(1000).unwrap());
    for (tag, words) in ["shm/put", "shm/transfer", "shm/get", "udp/0", "udp/1"].into_iter().enumerate() {
        let elements: Vec<u16> = (0..100).map(|at| at * 3 + tag as u16).collect();
        let server = serving(&b);
        peer.send_as(50, b"before", mode("shm")).unwrap();
        let receipt = peer.send_stored(tag as u64, &elements, region.key().at(100 * tag), mode(words)).unwrap();
        assert!(mode(words).allows(receipt.used), "{receipt}");
        drop(server);
        expect(&b, 50, b"before");
        let mut buf = [0; Stored::BYTES];
        let envelope = b.recv_until(Match::any(), &mut buf, soon()).unwrap();
        let range = region.range_of(&Stored::from_bytes(&buf[..envelope.len]).unwrap()).unwrap();
        assert_eq!((envelope.tag, &range), (tag as u64, &(100 * tag..100 * tag + 100)));
        assert_eq!(all_of(&region)[range], elements);
    }
    // A message that is not of this kind, or of another region, means nothing.
    let other = b.region::<u16>(1000).unwrap();
    peer.send_stored(9, &[1], region.key().at(999), mode("any")).unwrap();
    let mut buf = [0; Stored::BYTES];
    b.recv_until(Match::any(), &mut buf, soon()).unwrap();
    let stored = Stored::from_bytes(&buf).unwrap();
    assert_eq!((region.range_of(&stored), other.range_of(&stored)), (Some(999..1000), None));
    buf[8..16].fill(0xff);
    assert_eq!(region.range_of(&Stored::from_bytes(&buf).unwrap()), None);
}

#[test]
fn the_name_of_a_node_selects_the_fabric() {
    let pair = Pair::new();
    let [a, b] = pair.nodes();
    let names = [
        ("1".to_owned(), Fabric::Shm, None),
        ("shm:1".into(), Fabric::Shm, Some(Fabric::Shm)),
        (b.address().unwrap().to_string(), Fabric::Udp, Some(Fabric::Udp)),
        (b.addresses()[1].to_string(), Fabric::Udp, Some(Fabric::Udp)),
    ];
    for (name, used, requested) in names {
        let (peer, mode) = a.peer_named(name.parse().unwrap()).unwrap();
        let receipt = peer.send_as(1, b"x", mode).unwrap();
        assert_eq!((peer.id(), receipt.used.fabric, receipt.requested.fabric), (b.id(), used, requested), "{name}");
        expect(&b, 1, b"x");
    }
    let nobody = a.peer_named("127.0.0.1:9".parse().unwrap());
    assert!(matches!(&nobody, Err(Error::Invalid { what }) if what.contains("127.0.0.1:9")), "{nobody:?}");
}

#[test]
fn a_host_without_an_engine_asks_for_a_remote_get() {
    let [host, accelerator] = near_with(|id, builder| builder.engine(id == 1));
    let peer = host.peer(accelerator.id()).unwrap();
    let region = accelerator.region::<u8>(1 << 20).unwrap();
    let bytes: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
    let server = serving(&accelerator);
    let receipt = peer.put_as(&bytes, region.key(), ModeRequest::default()).unwrap();
    assert_eq!((receipt.used, receipt.requested.protocol), (used("shm/0/get"), Some(Protocol::Put)));
    assert!(matches!(receipt.reason, Reason::Unavailable(why) if why.contains("engine")), "{receipt}");
    // And so does the call that says nothing of modes.
    peer.put(&bytes[..1000], region.key().at(10)).unwrap();
    let all = all_of(&region);
    assert!(all[10..1010] == bytes[..1000] && all[1010..] == bytes[1010..]);
    let refused = peer.put_as(&bytes, region.key(), mode("put"));
    assert!(matches!(&refused, Err(Error::Invalid { what }) if what.contains("shm/0/get")), "{refused:?}");
    drop(server);
    // A long message: the accelerator fetches all of it.
    std::thread::scope(|threads| {
        let receiver = threads.spawn(|| expect(&accelerator, 5, &bytes));
        let receipt = peer.send_as(5, &bytes, mode("get")).unwrap();
        assert_eq!(receipt.used, used("shm/0/get"));
        receiver.join().unwrap();
    });
    let report = accelerator.transfers().unwrap().pop().unwrap();
    assert_eq!((report.pulled.bytes, report.put.bytes, report.fifo.bytes), (1 << 20, 0, 0), "{report:?}");
}

#[test]
fn a_neighbour_that_stands_still_is_not_given_up() {
    let pair = Pair::new();
    let silence = Duration::from_millis(200);
    let [a, b] = pair.join(pair.builder(0).dead_after(silence), pair.builder(1).dead_after(silence).progress(Progress::Inline));
    let peer = a.peer(b.id()).unwrap();
    for number in 0..10 {
        peer.send_as(number, &[number as u8; 100], mode(if number % 2 == 0 { "udp" } else { "shm" })).unwrap();
    }
    // Several times as long as a node on the network alone may be silent.
    std::thread::sleep(6 * silence);
    for number in 0..10 {
        expect(&b, number, &[number as u8; 100]);
    }
    assert!(a.members().unwrap().iter().any(|member| member.id == NodeId(1)));
}
