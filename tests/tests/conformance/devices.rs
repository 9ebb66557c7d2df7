//! Devices: a message to a thread id reaches that thread over every fabric.

use doorbell::DeviceSender;
use doorbell::{Device, DeviceError, DeviceThread, Error, Node, NodeId};
use doorbell_tests::patience::{eventually, finishes, running, soon};
use doorbell_tests::pattern;
use doorbell_tests::turning::turning;
use doorbell_tests::world::World;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest message of most of these devices, at least.
const LONG: usize = 30_000;

fn device(node: &Node) -> Device {
    Device::builder(node, "net").threads(8).message_max(LONG).attach().unwrap()
}

/// Lengths at boundaries, and random ones.
fn length(seed: u64) -> usize {
    const CLEAR: [usize; 10] = [0, 1, 8, 31, 32, 33, 64, 65, 4096, LONG];
    let mixed = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as usize;
    if mixed.is_multiple_of(3) { CLEAR[mixed / 3 % CLEAR.len()] } else { mixed % 3000 }
}

fn fault<T: std::fmt::Debug>(result: Result<T, Error>) -> DeviceError {
    let error = result.unwrap_err();
    *error.downcast_ref().unwrap_or_else(|| panic!("{error}"))
}

/// Receives until all senders have said that they are done. Checks that the messages of each are intact and in order.
fn receive_all(mut thread: DeviceThread, senders: &[NodeId]) -> u64 {
    let mut buf = vec![0; LONG];
    let mut next = [0_u64; 16];
    let (mut through, mut messages) = (0, 0);
    while through < senders.len() {
        let envelope = thread.receive_until(&mut buf, soon()).unwrap();
        assert!(senders.contains(&envelope.source) && envelope.thread == thread.id(), "{envelope:?}");
        let expected = &mut next[envelope.source.index()];
        if envelope.tag == u64::MAX {
            through += 1;
            continue;
        }
        assert_eq!(envelope.tag, *expected, "out of order: {envelope:?}");
        let seed = envelope.tag << 8 | u64::from(envelope.thread);
        assert_eq!(envelope.len, length(seed));
        pattern::check(&buf[..envelope.len], seed);
        *expected += 1;
        messages += 1;
    }
    messages
}

fn send_some(node: Node, threads: &[u32], count: u64) {
    let sender = DeviceSender::open(&node, "net").unwrap();
    let mut next = vec![0_u64; threads.len()];
    for message in 0..count {
        let at = (message.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as usize % threads.len();
        let seed = next[at] << 8 | u64::from(threads[at]);
        sender.send_until(threads[at], next[at], &pattern::bytes(length(seed), seed), soon()).unwrap();
        next[at] += 1;
    }
    threads.iter().for_each(|thread| sender.send_until(*thread, u64::MAX, &[], soon()).unwrap());
    sender.flush_until(soon()).unwrap();
}

pub fn what_is_sent_to_a_thread_reaches_that_thread(world: &World) {
    const THREADS: [u32; 3] = [5, u32::MAX, 0];
    let nodes: [Node; 3] = world.nodes();
    let device = device(&nodes[0]);
    let _turning = turning(&nodes[0]);
    let senders = nodes.each_ref().map(Node::id);
    let threads = THREADS.map(|id| {
        let thread = device.thread(id).unwrap();
        running("a thread receives", move || receive_all(thread, &senders))
    });
    let sending = nodes.clone().map(|node| running("a node sends", move || send_some(node, &THREADS, 200)));
    sending.into_iter().for_each(|sending| sending.join());
    let received: u64 = threads.into_iter().map(|thread| thread.join()).sum();
    assert_eq!(received, 600);
    let counts = device.counts();
    assert_eq!((counts.received, counts.dropped, counts.broken), (609, 0, 0));
}

pub fn a_message_that_does_not_fit_is_not_lost(world: &World) {
    let [a, b]: [Node; 2] = world.nodes();
    let device = device(&a);
    let _turning = turning(&a);
    let mut thread = device.thread(1).unwrap();
    let sending = running("a node sends", move || {
        let sender = DeviceSender::open(&b, "net").unwrap();
        assert!(sender.message_max() >= LONG);
        let max = sender.message_max();
        assert_eq!(fault(sender.send(1, 0, &vec![0; max + 1])), DeviceError::TooLong { len: max + 1, max });
        sender.send_vectored(1, 7, &[&pattern::bytes(max, 3)]).unwrap();
        sender.send_until(1, 8, &[1, 2, 3], soon()).unwrap();
        sender.flush_until(soon()).unwrap();
        max
    });
    let mut short = vec![0; 100];
    for _ in 0..2 {
        let DeviceError::TooSmall { len, capacity: 100 } = fault(thread.receive_until(&mut short, soon())) else {
            panic!("a message in a short buffer")
        };
        assert_eq!(len, device.message_max());
    }
    let mut whole = vec![0; device.message_max()];
    assert_eq!(thread.receive_until(&mut whole, soon()).unwrap().tag, 7);
    pattern::check(&whole, 3);
    assert_eq!(thread.receive_until(&mut short, soon()).unwrap().tag, 8);
    assert_eq!(short[..3], [1, 2, 3]);
    assert_eq!(sending.join(), whole.len());
    let none = thread.receive_until(&mut short, Instant::now() + Duration::from_millis(1));
    assert!(matches!(none, Err(Error::Timeout { .. })), "{none:?}");
    assert_eq!(thread.try_receive(&mut short).unwrap(), None);
}

pub fn a_sender_waits_for_room_in_a_device(world: &World) {
    let [a, b]: [Node; 2] = world.nodes();
    let device = device(&a);
    let _turning = turning(&a);
    let mut thread = device.thread(1).unwrap();
    let full = Arc::new(AtomicBool::new(false));
    let noticed = full.clone();
    let sending = running("a node sends", move || {
        let sender = DeviceSender::open(&b, "net").unwrap();
        let (bytes, mut sent) = (vec![9; 10_000], 0_u64);
        // Much more than any lane has room for.
        while sent < 1000 {
            match sender.try_send(1, sent, &bytes).unwrap() {
                true => sent += 1,
                false if noticed.load(Ordering::Acquire) => {
                    sender.send_until(1, sent, &bytes, soon()).unwrap();
                    sent += 1;
                }
                false => {
                    let late = sender.send_until(1, sent, &bytes, Instant::now() + Duration::from_millis(20));
                    match late {
                        Ok(()) => sent += 1,
                        Err(Error::Timeout { .. }) => noticed.store(true, Ordering::Release),
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        }
        sender.flush_until(soon()).unwrap();
    });
    let mut buf = vec![0; 10_000];
    eventually("the device is full", || full.load(Ordering::Acquire));
    for tag in 0..1000 {
        assert_eq!(thread.receive_until(&mut buf, soon()).unwrap().tag, tag);
    }
    sending.join();
}

pub fn a_device_that_is_not_there_is_told(world: &World) {
    let [a, b]: [Node; 2] = world.nodes();
    let thread = turning(&a);
    let other = b.clone();
    assert_eq!(fault(finishes("to_device", move || DeviceSender::open(&other, "nothing"))), DeviceError::Absent);
    drop(thread);
    // It is there while somebody is attached.
    let device = Device::builder(&a, "short").attach().unwrap();
    let taken = device.thread(1).unwrap();
    let DeviceError::Taken { thread: 1, owner } = fault(device.thread(1)) else { panic!("an id that is taken") };
    assert_eq!(owner.node(), a.id());
    drop(taken);
    assert!(device.thread(1).is_ok());
    drop(device);
    assert_eq!(fault(DeviceSender::open(&a, "short")), DeviceError::Absent);
}

pub fn what_was_sent_before_a_thread_came_is_there(world: &World) {
    let [a, b]: [Node; 2] = world.nodes();
    let device = device(&a);
    let _turning = turning(&a);
    let mut other = device.thread(2).unwrap();
    let sending = running("a node sends", move || {
        let sender = DeviceSender::open(&b, "net").unwrap();
        for tag in 0..10 {
            sender.send_until(1, tag, b"early", soon()).unwrap();
        }
        sender.send_until(2, 0, b"behind them", soon()).unwrap();
        sender.flush_until(soon()).unwrap();
    });
    let mut buf = [0; 16];
    // Those before it go to the storage, as nobody is their thread.
    assert_eq!(other.receive_until(&mut buf, soon()).unwrap().len, 11);
    let mut thread = device.thread(1).unwrap();
    for tag in 0..10 {
        assert_eq!(thread.receive_until(&mut buf, soon()).unwrap().tag, tag);
    }
    sending.join();
}
