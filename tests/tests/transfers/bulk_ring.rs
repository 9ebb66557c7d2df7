//! Long messages between processes that can't read each other's memory: through a ring of the sender's own.

use doorbell::{Error, Match, Node, NodeBuilder, NodeId, Progress};
use doorbell_tests::domain::Domain;
use doorbell_tests::pair::near_with;
use doorbell_tests::patience::{PATIENCE, eventually, running, soon};
use doorbell_tests::pattern;
use doorbell_tests::process::{Process, told_as};

/// Lengths of messages: shorter than a packet, of several, of more than a ring.
const LENGTHS: [usize; 7] = [64 << 10, 100, 9000, 1 << 20, (33 << 10) + 7, 3 << 20, 300_001];
const MESSAGES: u64 = 70;

/// Starts the sender, and waits until it has joined.
fn start(domain: &Domain, node: &Node, messages: u64) -> Process {
    let start = Process::start("sends long messages").tell("DOORBELL_DOMAIN", domain.name()).tell("DOORBELL_NODE", "1");
    let start = start.tell("DOORBELL_CMA", "off").tell("MESSAGES", messages.to_string());
    let process = start.go();
    node.wait_for(2, soon()).unwrap();
    process
}

fn length(number: u64) -> usize {
    LENGTHS[number as usize % LENGTHS.len()]
}

/// The role: sends the given number of messages, and waits for a reply to each.
pub fn sends_long_messages() {
    let node = NodeBuilder::from_env().unwrap().join().unwrap();
    let mut buf = vec![0; 4 << 20];
    for number in 0..told_as("MESSAGES") {
        node.send(NodeId(0), number, &pattern::bytes(length(number), number)).unwrap();
        if number.is_multiple_of(3) {
            let envelope = node.recv(Match::any().tag(number), &mut buf).unwrap();
            pattern::check(&buf[..envelope.len], number);
        }
    }
    node.recv(Match::any().tag(u64::MAX), &mut buf).unwrap();
    node.leave().unwrap();
}

fn receive(node: &Node, number: u64, buf: &mut [u8]) -> Result<(), Error> {
    let envelope = node.recv_until(Match::from(NodeId(1)).tag(number), buf, soon())?;
    assert_eq!(envelope.len, length(number));
    pattern::check(&buf[..envelope.len], number);
    if number.is_multiple_of(3) {
        node.send_until(NodeId(1), number, &buf[..envelope.len], soon())?;
    }
    Ok(())
}

/// Regions of this node that have a name.
fn regions(domain: &Domain, node: u16) -> usize {
    let name = format!("{}.{node}.r", domain.prefix());
    domain.files().iter().filter(|file| file.contains(&name)).count()
}

#[test]
fn long_messages_go_through_a_ring_that_their_sender_makes_and_takes_away() {
    let domain = Domain::new("bulk");
    let node = Node::builder(domain.name()).id(0).join().unwrap();
    let process = start(&domain, &node, MESSAGES);
    let mut buf = vec![0; 4 << 20];
    for number in 0..MESSAGES {
        receive(&node, number, &mut buf).unwrap();
    }
    assert_eq!(regions(&domain, 1), 1, "{:?}", domain.files());
    // A stream is slower through a mapping that can only be read.
    let (maps, name) = (std::fs::read_to_string("/proc/self/maps").unwrap(), format!("{}.1.r", domain.prefix()));
    assert!(maps.lines().any(|line| line.contains(&name) && line.contains(" rw-s ")), "{maps}");
    node.send(NodeId(1), u64::MAX, b"").unwrap();
    process.end_well(PATIENCE);
    assert_eq!(regions(&domain, 1), 0, "{:?}", domain.files());
    node.leave().unwrap();
    domain.assert_empty();
}

#[test]
fn a_sender_killed_amid_long_messages_is_told_of_and_its_successor_heard() {
    let domain = Domain::new("bulk-killed");
    let node = Node::builder(domain.name()).id(0).join().unwrap();
    let mut buf = vec![0; 4 << 20];
    for round in 0..8 {
        let process = start(&domain, &node, u64::MAX);
        // At another place in the ring each time.
        let before = 5 + 3 * round;
        for number in 0..before {
            receive(&node, number, &mut buf).unwrap();
        }
        process.kill();
        let end = (before..).find_map(|number| receive(&node, number, &mut buf).err()).unwrap();
        assert!(matches!(end, Error::PeerDied { node: NodeId(1), .. }), "{end}");
    }
    let process = start(&domain, &node, 20);
    for number in 0..20 {
        receive(&node, number, &mut buf).unwrap();
    }
    node.send(NodeId(1), u64::MAX, b"").unwrap();
    process.end_well(PATIENCE);
    eventually("nothing is left of them", || regions(&domain, 1) == 0);
    node.leave().unwrap();
    domain.assert_empty();
}

/// On a machine whose shared cache has up to 64 MiB, the waiting buffers fill half of it, and the messages are stored past it.
#[test]
fn long_messages_into_many_waiting_buffers_arrive_whole() {
    const LEN: usize = (4 << 20) + 13;
    const WAITING: u64 = 8;
    let domain = Domain::new("bulk-waiting");
    let [a, b] = [0, 1].map(|id| Node::builder(domain.name()).id(id).join().unwrap());
    let receives = Vec::from_iter((0..WAITING).map(|_| b.start_recv(Match::any().tag(7), vec![0; LEN + 1]).unwrap()));
    let sender = {
        let (a, to) = (a.clone(), b.id());
        running("the sender", move || {
            let send = |number| a.start_send(to, 7, pattern::bytes(LEN, number)).unwrap();
            let sends = Vec::from_iter((0..WAITING).map(send));
            sends.into_iter().for_each(|send| send.wait().result.unwrap());
        })
    };
    for (number, receive) in (0..).zip(receives) {
        let received = receive.wait_until(soon()).unwrap_or_else(|_| panic!("message {number} does not come"));
        assert_eq!(received.result.unwrap().len, LEN);
        let bytes = received.buffer.unwrap();
        pattern::check(&bytes[..LEN], number);
        assert_eq!(bytes[LEN], 0);
    }
    sender.join();
    [a, b].into_iter().for_each(|node| node.leave().unwrap());
    domain.assert_empty();
}

/// A receive that finds its message in the pool turns no engine. A turn would bring the next messages there, where nobody waits for them.
#[test]
fn receives_from_the_pool_leave_other_messages_in_the_lane() {
    let [a, b] = near_with(|_, builder| builder.progress(Progress::Inline));
    let send = |number| a.send_until(b.id(), 1, &[number; 9000], soon()).unwrap();
    (0..2).for_each(send);
    eventually("two messages in the pool", || {
        b.probe(Match::any().tag(9)).unwrap();
        b.stats().unwrap().pooled == 2
    });
    (2..4).for_each(send);
    for number in 0..4 {
        let receive = b.start_recv(Match::any(), vec![9; 9000]).unwrap().wait_until(soon());
        let received = receive.unwrap_or_else(|_| panic!("message {number} does not come"));
        assert_eq!((received.result.unwrap().len, received.buffer.unwrap()), (9000, vec![number; 9000]));
    }
    assert_eq!(b.stats().unwrap().unexpected, 2);
}

/// A callback holds the engine, so a send from there makes no ring, and goes on without one.
#[test]
fn messages_of_8_kib_get_a_ring_and_a_callback_may_send_them() {
    let domain = Domain::new("bulk-short");
    let join = |id| Node::builder(domain.name()).id(id).join().unwrap();
    let (a, b) = (join(0), join(1));
    // Opens the lane back, and lets it grow.
    for number in 0..2 {
        b.send(a.id(), number, &[1; 5000]).unwrap();
        a.recv(Match::any().tag(number), &mut [0; 5000]).unwrap();
    }
    let mut buf = vec![0; 16 << 10];
    for number in 10..20 {
        a.send(b.id(), number, &pattern::bytes(8 << 10, number)).unwrap();
        let answered = b.recv_with(Match::any().tag(number), |envelope, payload| {
            pattern::check(&payload.to_vec(), number);
            b.send(envelope.source, number, &pattern::bytes(16 << 10, number))
        });
        answered.unwrap().unwrap();
        let envelope = a.recv_until(Match::any().tag(number), &mut buf, soon()).unwrap();
        pattern::check(&buf[..envelope.len], number);
    }
    assert_eq!((regions(&domain, 0), regions(&domain, 1)), (1, 0), "{:?}", domain.files());
    for number in 20..23 {
        b.send(a.id(), number, &buf).unwrap();
        a.recv_until(Match::any().tag(number), &mut buf, soon()).unwrap();
    }
    assert_eq!(regions(&domain, 1), 1, "{:?}", domain.files());
    a.leave().unwrap();
    b.leave().unwrap();
    domain.assert_empty();
}

/// A process that has left may keep its mapping, and write there.
#[test]
fn a_ring_is_not_used_again_for_another_target() {
    let domain = Domain::new("bulk-again");
    let join = |id| Node::builder(domain.name()).id(id).join().unwrap();
    // Each target needs the place of the one before.
    let a = Node::builder(domain.name()).id(0).bulk_bytes(256 << 10).join().unwrap();
    let mut buf = vec![0; 16 << 10];
    let mut ring_of_next = || {
        let b = join(1);
        for number in 0..5 {
            let sent = a.start_send(b.id(), number, pattern::bytes(16 << 10, number)).unwrap();
            b.recv_until(Match::any().tag(number), &mut buf, soon()).unwrap();
            pattern::check(&buf, number);
            sent.wait().result.unwrap();
        }
        b.leave().unwrap();
        eventually("its end is noticed", || a.peer(NodeId(1)).is_err());
        let name = format!("{}.0.r", domain.prefix());
        domain.files().into_iter().filter(|file| file.contains(&name)).collect::<Vec<_>>()
    };
    let rings = [(); 3].map(|()| ring_of_next());
    assert!(rings.iter().all(|rings| rings.len() == 1) && rings[0] != rings[1] && rings[1] != rings[2], "{rings:?}");
    a.leave().unwrap();
    domain.assert_empty();
}
