//! A device that is fed from the network by the process that holds its port, and the messages under way when that process dies.

use doorbell::Device;
use doorbell::DeviceSender;
use doorbell::{DeviceError, FabricKind, Match, Node, NodeId};
use doorbell_shm::domain::clean;
use doorbell_tests::Turn;
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::{PATIENCE, eventually, soon, until};
use doorbell_tests::process::{Process, told};
use doorbell_tests::words::Words;
use doorbell_tests::{LOOPBACK, number, pattern};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const LONG: usize = 20_000;
const END: u64 = u64::MAX;

fn length(tag: u64) -> usize {
    if tag.is_multiple_of(7) { (tag as usize * 37) % LONG } else { tag as usize % 100 }
}

/// The role: receives as one thread until a message ends it. Its word holds the tag that it expects next, from which a successor with that thread id goes on.
pub fn receive() {
    let words = Words::inherited();
    let thread = number("THREAD", 0);
    let next = &words[thread as usize];
    let node = Node::builder(told("DOMAIN")).connect(told("ADDRESS")).join().unwrap();
    let device = Device::builder(&node, "net").message_max(10 * LONG).senders(3).attach().unwrap();
    let mut receiver = device.thread(thread as u32).unwrap();
    node.send_until(NodeId(0), thread, &[], soon()).unwrap();
    let mut buf = vec![0; LONG];
    loop {
        let envelope = receiver.receive_until(&mut buf, soon()).unwrap();
        if envelope.tag == END {
            break;
        }
        let expected = next.load(SeqCst);
        // The receiver that died may have received one message that it did not record.
        assert!(
            envelope.tag == expected || envelope.tag == expected + 1 && words[8 + thread as usize].load(SeqCst) == 1,
            "{envelope:?}, not {expected}"
        );
        assert_eq!(envelope.len, length(envelope.tag));
        pattern::check(&buf[..envelope.len], envelope.tag);
        words[8 + thread as usize].store(0, SeqCst);
        next.store(envelope.tag + 1, SeqCst);
    }
    drop(receiver);
    drop(device);
    node.leave().unwrap();
}

fn receiver(domain: &Domain, node: &Node, words: &Words, thread: u64) -> Process {
    let start = Process::start("device network: receiver").tell("DOMAIN", domain.name()).tell("THREAD", thread.to_string());
    let process = start.tell("ADDRESS", node.address().unwrap().to_string()).words(words).go();
    node.recv_until(Match::any().tag(thread), &mut [], soon()).unwrap();
    process
}

#[test]
fn another_feeds_a_device_when_the_one_that_did_dies() {
    let _turn = Turn::take();
    for round in 0..number("DOORBELL_KILLS", 4) {
        let domain = Domain::new("device-port");
        let builder = Node::builder(domain.name()).id(0).fabric(FabricKind::Udp).dead_after(Duration::from_secs(1));
        let node = builder.listen(LOOPBACK).join().unwrap();
        let words = Words::new(16);
        // The first takes the port with the first question. In every other round the one that does not hold it dies.
        let first = receiver(&domain, &node, &words, 1);
        let sender = DeviceSender::open(&node, "net").unwrap();
        let second = receiver(&domain, &node, &words, 2);
        let mortal = if round.is_multiple_of(2) { 1 } else { 2 };
        let count = 600;
        let kill_at = 100 + (round * 97) % 400;
        let mut heir = None;
        for tag in 0..count {
            // A device keeps 63 headers for a thread that does not fetch; behind more of them the lane would wait, until they are dropped.
            if !(kill_at..kill_at + 6).contains(&tag) {
                let few = || words[1..3].iter().all(|next| next.load(SeqCst) + 30 >= tag);
                eventually("few are under way", few);
            }
            if tag == kill_at {
                eventually("some arrive", || words[mortal].load(SeqCst) > 20);
                if mortal == 1 { first.kill() } else { second.kill() }
            }
            for thread in [1, 2] {
                sender.send_until(thread, tag, &pattern::bytes(length(tag), tag), soon()).unwrap();
            }
            if tag == kill_at + 5 {
                // Another comes in its place before its storage is full, and the lane has to wait for it.
                words[8 + mortal].store(1, SeqCst);
                heir = Some(receiver(&domain, &node, &words, mortal as u64));
            }
        }
        for thread in [1, 2] {
            sender.send_until(thread, END, &[], soon()).unwrap();
        }
        sender.flush_until(soon()).unwrap();
        eventually("all arrived", || [1, 2].iter().all(|thread| words[*thread].load(SeqCst) == count));
        drop(sender);
        // It removes its files after the others have heard that it left.
        heir.unwrap().end_well(PATIENCE);
        drop((first, second));
        eventually("all have left", || node.members().unwrap().len() == 1);
        node.leave().unwrap();
        clean(domain.space(), Some(domain.name()), false).unwrap();
        domain.assert_empty();
    }
}

#[test]
fn a_sender_is_told_when_nobody_feeds_a_device_any_more() {
    let _turn = Turn::take();
    let domain = Domain::new("device-gone");
    let builder = Node::builder(domain.name()).id(0).fabric(FabricKind::Udp).dead_after(Duration::from_secs(1));
    let node = builder.listen(LOOPBACK).join().unwrap();
    let words = Words::new(16);
    let receiver = receiver(&domain, &node, &words, 1);
    let sender = DeviceSender::open(&node, "net").unwrap();
    sender.send(1, 0, &[]).unwrap();
    sender.flush_until(soon()).unwrap();
    receiver.kill();
    let error = until("an error", || sender.send_until(1, 1, &[0], soon()).err());
    assert_eq!(error.downcast_ref(), Some(&DeviceError::Absent), "{error}");
    drop(sender);
    node.leave().unwrap();
    clean(domain.space(), Some(domain.name()), false).unwrap();
    domain.assert_empty();
}
