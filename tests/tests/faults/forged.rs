//! Packets that no correct node sends, and the harm that they must not do to their receiver.

use doorbell::Listener;
use doorbell::{Error, Event, Incarnation, Match, Metric, Node, NodeId, Operation, Payload, Priority, Progress, Received, Space};
use doorbell_fabric::copies::Copying;
use doorbell_fabric::{Fabric, PacketHead, PacketKind, Push, Sink, Verdict};
use doorbell_shm::domain::{JoinOptions, Membership, PeerInbox};
use doorbell_shm::fabric::ShmFabric;
use doorbell_shm::lane::{LaneMemory, Producer, RawMemory};
use doorbell_shm::layout::{MEETINGS_OFFSET, RINGS_OFFSET};
use doorbell_tests::patience::{eventually, running, soon, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const CHUNK: u64 = 16 << 10;

/// A member that has no engine, and fills its lane by hand.
struct Forger {
    // Declared before what it points into.
    producer: Producer<RawMemory>,
    sequence: u32,
    target: PeerInbox,
    membership: Membership,
}

/// The rings of a lane to `target`, the first one and the full one.
fn ring(target: &PeerInbox, priority: Priority) -> (RawMemory, RawMemory) {
    // SAFETY: mapped as long as `target`, which outlives the producers of each test.
    unsafe { target.pair().unwrap().rings(priority) }
}

impl Forger {
    fn join(name: &str, space: &Space) -> Self {
        Self::join_as(1, name, space)
    }

    fn join_as(id: u16, name: &str, space: &Space) -> Self {
        Self::join_at(Priority::Normal, id, name, space)
    }

    fn join_at(priority: Priority, id: u16, name: &str, space: &Space) -> Self {
        let options = JoinOptions { id: Some(NodeId(id)), ..JoinOptions::new(name, space.clone()) };
        let membership = Membership::join(options).unwrap();
        let target = membership.open_peer(NodeId(0)).unwrap();
        let mut producer = Producer::claim(ring(&target, priority).0, membership.incarnation().0).unwrap();
        // What it forges does not fit into the first ring.
        target.pair().unwrap().grow(membership.lanes().pair_bytes()).unwrap();
        assert!(producer.move_to(ring(&target, priority).1));
        Self { producer, sequence: 0, target, membership }
    }

    /// False if there is no room.
    fn push(&mut self, kind: PacketKind, tag: u64, total: u64, bytes: &[u8]) -> bool {
        let head = PacketHead { kind, tag, sequence: self.sequence, total };
        // SAFETY: a slice, shorter than a packet may be.
        let done = unsafe { self.producer.push(&head, bytes.as_ptr(), bytes.len()) } == Push::Done;
        self.sequence += u32::from(done && matches!(kind, PacketKind::Rts | PacketKind::Whole));
        done
    }

    fn meeting(&self, slot: u64) -> &AtomicU64 {
        // SAFETY: within the lanes, which are that long, aligned.
        unsafe { &*self.target.pair().unwrap().ptr().add(MEETINGS_OFFSET + slot as usize * 128).cast() }
    }

    /// The rendezvous block of the victim's transfer to this node.
    fn own_meeting(&self, slot: usize) -> &AtomicU64 {
        let pair = self.membership.pair_from(NodeId(0)).unwrap();
        pair.grow(RINGS_OFFSET).unwrap();
        // SAFETY: within the lanes, which the membership keeps, aligned.
        unsafe { &*pair.ptr().add(MEETINGS_OFFSET + slot * 128).cast() }
    }

    /// Announces a message of `len` bytes with an open rendezvous block.
    fn announce(&mut self, slot: u64, generation: u64, len: u64) -> bool {
        self.announce_as(5, 0, slot, generation, len)
    }

    /// The same, with these bits in the first word of the descriptor.
    fn announce_as(&mut self, tag: u64, flags: u64, slot: u64, generation: u64, len: u64) -> bool {
        self.meeting(slot).store(generation << 50, Ordering::Release);
        let ticket = slot | generation << 16 | flags;
        let words: Vec<u8> = [ticket, CHUNK, 0, 0].iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
        self.push(PacketKind::Rts, tag, len, &words)
    }
}

fn victim(name: &str, space: &Space) -> Node {
    Node::builder(name).space(space.clone()).id(0).progress(Progress::Inline).join().unwrap()
}

fn damaged(node: &Node) -> Option<&'static str> {
    all_damaged(node).pop().map(|(node, reason)| {
        assert_eq!(node, 1);
        reason
    })
}

fn all_damaged(node: &Node) -> Vec<(u16, &'static str)> {
    let events = std::iter::from_fn(|| node.try_event().unwrap());
    let damaged = |event| if let Event::Damaged { node, reason } = event { Some((node.0, reason)) } else { None };
    events.filter_map(damaged).collect()
}

/// Every part of a message without a receive takes memory of its own.
#[test]
fn a_message_in_crumbs_is_not_kept() {
    // Crumbs that end a chunk: no more of them than there are chunks. Others: they begin where a chunk does, or where the last one ended.
    for (at, expected) in [(3 * CHUNK, "more chunks than the message has"), (CHUNK - 1, "a chunk in pieces that are too small")] {
        let space = Space::heap();
        let node = victim("crumbs", &space);
        let mut forger = Forger::join("crumbs", &space);
        assert!(forger.announce(0, 1, 3 * CHUNK + 1));
        for _ in 0..5 {
            assert!(forger.push(PacketKind::Chunk, 1 << 16, at, &[1]));
        }
        let reason = until("it is found out", || {
            node.progress().unwrap();
            damaged(&node)
        });
        assert_eq!(reason, expected);
        assert_eq!(node.stats().unwrap().pooled, 0);
    }
}

/// A peer that is allowed to put, claims a chunk, and never says that it has let go.
#[test]
fn a_peer_keeps_no_more_buffers_than_it_has_slots() {
    const ASKS_TO_PUT: u64 = 1 << 39;
    const SLOTS: u64 = 2;
    struct Buffer(Vec<u8>, Arc<AtomicU64>);
    impl AsMut<[u8]> for Buffer {
        fn as_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }
    }
    impl Drop for Buffer {
        fn drop(&mut self) {
            self.1.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let space = Space::heap();
    let node = victim("keeps", &space);
    let mut forger = Forger::join("keeps", &space);
    let living = Arc::new(AtomicU64::new(0));
    for round in 0..6 {
        let (slot, generation) = (round % SLOTS, 1 + round);
        living.fetch_add(1, Ordering::SeqCst);
        let receive = node.start_recv(Match::any().tag(round), Buffer(vec![0; 3 * CHUNK as usize], living.clone())).unwrap();
        assert!(forger.announce_as(round, ASKS_TO_PUT, slot, generation, 3 * CHUNK));
        let gets = || node.metrics().unwrap()[Metric::RemoteGets];
        let before = gets();
        eventually("it is granted", || {
            node.progress().unwrap();
            gets() > before
        });
        forger.meeting(slot).fetch_add(1 << 24, Ordering::AcqRel);
        let done = receive.cancel();
        let is_kept = matches!(done.result, Err(Error::BufferKept { node: NodeId(1) })) && done.buffer.is_none();
        assert!(is_kept, "round {round}: {:?}", done.result);
        eventually("the former buffer is freed", || living.load(Ordering::SeqCst) <= SLOTS);
        assert_eq!(living.load(Ordering::SeqCst), SLOTS.min(1 + round));
    }
    // It dies, and its buffers are freed.
    forger.membership.abandon();
    eventually("all are freed", || {
        node.progress().unwrap();
        let _ = node.try_event().unwrap();
        living.load(Ordering::SeqCst) == 0
    });
}

/// One slot, one transfer: a peer that names its slot anew for each has as many under way as it has slots.
#[test]
fn a_peer_has_no_more_transfers_under_way_than_slots() {
    let space = Space::heap();
    let node = victim("slots", &space);
    let mut forger = Forger::join("slots", &space);
    for round in 0..500 {
        while !forger.announce(round % 2, 1 + round, 1) {
            node.progress().unwrap();
        }
    }
    while node.progress().unwrap() > 0 {}
    assert!(node.stats().unwrap().pooled <= 2, "{:?}", node.stats());
    // Over before it came.
    forger.announce(7, 3, 1);
    forger.meeting(7).store(0, Ordering::Release);
    node.progress().unwrap();
    assert!(node.stats().unwrap().pooled <= 2);
    assert!(node.probe(Match::any().tag(6)).unwrap().is_none());
}

/// One broken rule ends all lanes of its sender.
#[test]
fn a_peer_that_broke_the_rules_is_read_no_further_in_any_lane() {
    let space = Space::heap();
    let node = victim("lanes", &space);
    let mut forger = Forger::join("lanes", &space);
    let mut other = Producer::claim(ring(&forger.target, Priority::High).0, forger.membership.incarnation().0).unwrap();
    assert!(forger.push(PacketKind::Next, 0, 8, &[0; 8]));
    until("it is found out", || {
        node.progress().unwrap();
        damaged(&node)
    });
    let head = PacketHead { kind: PacketKind::Whole, tag: 5, sequence: 0, total: 1 };
    // SAFETY: a slice.
    assert_eq!(unsafe { other.push(&head, [1].as_ptr(), 1) }, Push::Done);
    (0..100).for_each(|_| _ = node.progress().unwrap());
    assert_eq!(node.stats().unwrap().messages_in, 0);
}

/// Its streams end, too, though it lives on: a reader that waits for bytes gets an error.
#[test]
fn streams_with_a_peer_that_broke_the_rules_end() {
    use std::io::Read;
    let space = Space::heap();
    let node = victim("streams", &space);
    let mut forger = Forger::join_at(Priority::High, 1, "streams", &space);
    let listener = Listener::builder(&node, "forged").bind().unwrap();
    // Asks for a stream without common memory, and then says what nobody says.
    let ask = [&[0_u8; 16][..], &(256_u64 << 10).to_le_bytes(), b"forged"].concat();
    assert!(forger.push(PacketKind::Stream, 1 << 56 | 1, ask.len() as u64, &ask));
    let (mut stream, _) = listener.accept_until(soon()).unwrap();
    let reading = running("a stream's reader", move || stream.read(&mut [0; 8])).started();
    assert!(forger.push(PacketKind::Stream, u64::MAX, 0, &[]));
    reading.join().unwrap_err();
    assert_eq!(node.members().unwrap().len(), 2);
}

/// A node that broke the rules may never read on, so sends that wait for that must fail.
#[test]
fn what_is_on_its_way_to_a_peer_that_broke_the_rules_fails() {
    let space = Space::heap();
    let node = victim("queued", &space);
    let mut forger = Forger::join("queued", &space);
    let receive = node.start_recv(Match::from(NodeId(1)), [0; 8]).unwrap();
    let transfers: Vec<_> = (0..3).map(|tag| node.start_send(NodeId(1), tag, vec![1; 1 << 20]).unwrap()).collect();
    // More than the lane holds.
    let queued: Vec<_> = (0..200).map(|tag| node.start_send(NodeId(1), tag, vec![1; 16 << 10]).unwrap()).collect();
    (0..100).for_each(|_| _ = node.progress().unwrap());
    assert!(!queued[199].test() && transfers.iter().all(|transfer| !transfer.test()));
    assert!(forger.push(PacketKind::Next, 0, 8, &[0; 8]));
    until("it is found out", || {
        node.progress().unwrap();
        damaged(&node)
    });
    let is_named = |error: &Error| matches!(error, Error::Damaged { node: NodeId(1) });
    assert!(receive.wait().result.is_err_and(|error| is_named(&error)));
    for transfer in transfers {
        assert!(transfer.test(), "a transfer goes on");
        assert!(transfer.wait().result.is_err_and(|error| is_named(&error)));
    }
    let ended: Vec<_> = queued.into_iter().map(|send| (send.test(), send.wait_until(std::time::Instant::now()))).collect();
    assert!(ended.iter().all(|(done, _)| *done), "a send is queued still");
    let failed = |send: &doorbell::Completion<_>| send.result.as_ref().is_err_and(is_named);
    assert!(ended.last().is_some_and(|(_, send)| send.as_ref().is_ok_and(failed)));
    assert!(node.send(NodeId(1), 1, &[1]).is_err_and(|error| is_named(&error)));
    assert!(node.start_send(NodeId(1), 1, vec![1; 1 << 20]).is_err_and(|error| is_named(&error)));
    assert!(node.recv(Match::from(NodeId(1)), &mut [0; 8]).is_err_and(|error| is_named(&error)));
}

/// Two forgers in one look at the lanes, and two in one step of the transfers: both are reported.
#[test]
fn two_peers_that_break_the_rules_at_once_are_both_named() {
    for by_lane in [true, false] {
        let space = Space::heap();
        let node = victim("both", &space);
        let mut forgers = [1, 2].map(|id| Forger::join_as(id, "both", &space));
        let _sends = if by_lane {
            // So that both lanes are looked at every time.
            for forger in &mut forgers {
                assert!(forger.push(PacketKind::Whole, 5, 8, &[0; 8]));
                eventually("it comes", || node.progress().is_ok_and(|work| work > 0));
            }
            assert!(forgers.iter_mut().all(|forger| forger.push(PacketKind::Next, 0, 8, &[0; 8])));
            None
        } else {
            let sends = [1, 2].map(|id| node.start_send(NodeId(id), 1, vec![1; 1 << 20]).unwrap());
            for forger in &forgers {
                assert_ne!(forger.own_meeting(0).load(Ordering::Relaxed), 0);
                forger.own_meeting(0).store(0, Ordering::Relaxed);
            }
            Some(sends)
        };
        let mut named = Vec::new();
        eventually("both are found out", || {
            node.progress().unwrap();
            named.extend(all_damaged(&node).into_iter().map(|(node, _)| node));
            named.contains(&1) && named.contains(&2)
        });
    }
}

/// Its lanes are damaged for what it did elsewhere. Those that it never claimed may be the next life's by the time it is gone: what that
/// one published there is heard, and those that it had are free.
#[test]
fn a_successor_is_heard_in_the_lanes_that_its_forerunner_did_not_have() {
    let space = Space::heap();
    let node = victim("heirs", &space);
    let mut forger = Forger::join("heirs", &space);
    assert!(forger.push(PacketKind::Next, 0, 8, &[0; 8]));
    until("it is found out", || {
        node.progress().unwrap();
        damaged(&node)
    });
    drop(forger);
    // Before the victim has looked.
    let mut heir = Forger::join_at(Priority::High, 1, "heirs", &space);
    assert!(heir.push(PacketKind::Whole, 5, 1, &[9]));
    let mut buf = [0];
    let got = node.recv_until(Match::from(NodeId(1)).tag(5), &mut buf, doorbell_tests::patience::soon()).unwrap();
    assert_eq!((got.incarnation, got.priority, buf), (heir.membership.incarnation(), Priority::High, [9]));
    assert!(Producer::claim(ring(&heir.target, Priority::Normal).0, heir.membership.incarnation().0).is_some());
    assert!(all_damaged(&node).is_empty());
}

/// A third node clears the announcement of lanes, and the node that made them dies before its target has looked. Its message arrives, and
/// its successor's, too.
#[test]
fn lanes_whose_announcement_was_cleared_are_found_and_freed() {
    let space = Space::heap();
    let node = victim("announced", &space);
    let mut first = Forger::join("announced", &space);
    assert!(first.push(PacketKind::Whole, 5, 1, &[1]));
    // SAFETY: a word of the header page, which any member maps.
    let callers = unsafe { &*first.target.header().add(doorbell_shm::layout::CALLERS_OFFSET).cast::<AtomicU64>() };
    assert_eq!(callers.swap(0, Ordering::AcqRel), 1 << 1);
    first.membership.abandon();
    let second = Node::builder("announced").space(space.clone()).id(1).progress(Progress::Inline).join().unwrap();
    let incarnation = first.membership.incarnation();
    let sender = std::thread::spawn({
        let (second, soon) = (second.clone(), doorbell_tests::patience::soon());
        move || second.send_until(NodeId(0), 5, &[2], soon)
    });
    for (number, from) in [(1, incarnation), (2, second.incarnation())] {
        let mut buf = [0];
        let got = node.recv_until(Match::from(NodeId(1)).tag(5), &mut buf, doorbell_tests::patience::soon()).unwrap();
        assert_eq!((got.incarnation, buf), (from, [number]));
    }
    sender.join().unwrap().unwrap();
}

/// A buffer that the test can look into.
struct Glass(*mut [u8]);

// SAFETY: the bytes are leaked, and only one thread uses them.
unsafe impl Send for Glass {}

impl Glass {
    fn new(len: usize) -> Self {
        Self(Box::leak(vec![0; len].into_boxed_slice()))
    }
}

impl AsMut<[u8]> for Glass {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: leaked, and only the owner of this value writes.
        unsafe { &mut *self.0 }
    }
}

/// A packet that a sender writes by hand: the words of its cell, and the payload.
struct Written<'a> {
    bytes: &'a [u8],
    tag: u64,
    sequence: u32,
    place: u64,
    piece: u64,
    is_published: bool,
}

impl<'a> Written<'a> {
    /// All pieces of the next message, without its end.
    fn opened(forger: &Forger, bytes: &'a [u8]) -> Self {
        Self { bytes, tag: 7, sequence: forger.sequence, place: 0, piece: 2048, is_published: false }
    }
}

impl Forger {
    /// Writes the next packet.
    fn write(&self, written: &Written<'_>) {
        let &Written { bytes, tag, sequence, place, piece, is_published } = written;
        let (memory, position) = (ring(&self.target, Priority::Normal).1, self.producer.pushed());
        let word = |index| memory.cell_word(position as usize & (memory.cell_count() - 1), index);
        // SAFETY: a slice that is shorter than the ring, of which nothing else is used.
        unsafe { memory.write_data(0, bytes.as_ptr(), bytes.len(), Copying::Library) };
        let count = (bytes.len() as u64).div_ceil(2048);
        // Tag, sequence number, place, bytes of a piece, pieces, map.
        for (index, value) in [(1, tag), (2, sequence.into()), (3, place), (4, piece), (5, count), (6, 0)] {
            word(index).store(value, Ordering::Relaxed);
        }
        let kind = if is_published { PacketKind::Whole as u64 } else { 0 };
        word(0).store((position + 1) | (kind << 32) | ((bytes.len() as u64) << 40), Ordering::Release);
    }

    fn publish(&self, bytes: &[u8]) {
        self.write(&Written { is_published: true, ..Written::opened(self, bytes) });
    }
}

/// A node, a peer, and the receive of a message of 16 KiB from it.
struct Opened {
    node: Node,
    forger: Forger,
    bytes: Vec<u8>,
    /// The buffer of the receive.
    inside: *mut [u8],
    receive: Option<Operation<Received<Glass>>>,
}

impl Opened {
    fn new(capacity: usize) -> Self {
        let space = Space::heap();
        let node = victim("opened", &space);
        let forger = Forger::join("opened", &space);
        let glass = Glass::new(capacity);
        let inside = glass.0;
        let receive = node.start_recv(Match::from(NodeId(1)).tag(7), glass).unwrap();
        // The node has looked at the lane.
        node.progress().unwrap();
        let bytes = (0..16 << 10_u32).map(|i| (i >> 6) as u8 | 1).collect();
        Self { node, forger, bytes, inside, receive: Some(receive) }
    }

    /// Lets the node look at the lane often, and returns the contents of the buffer. The receive is not over.
    fn found(&mut self) -> Vec<u8> {
        (0..1000).for_each(|_| _ = self.node.progress().unwrap());
        let Err(receive) = self.receive.take().unwrap().wait_until(Instant::now()) else { panic!("nothing is published") };
        self.receive = Some(receive);
        self.look()
    }

    fn look(&self) -> Vec<u8> {
        // SAFETY: leaked; nobody writes meanwhile.
        unsafe { (*self.inside).to_vec() }
    }

    fn result(&mut self) -> doorbell::Result<doorbell::Envelope> {
        let Ok(received) = self.receive.take().unwrap().wait_until(soon()) else { panic!("the receive does not end") };
        received.result
    }
}

/// The sender writes all pieces of a message, and is slow with its end.
#[test]
fn a_message_that_is_still_written_goes_to_its_buffer_and_is_none_before_its_end() {
    let mut opened = Opened::new(16 << 10);
    opened.forger.write(&Written::opened(&opened.forger, &opened.bytes));
    assert!(opened.found() == opened.bytes, "all pieces are copied");
    assert!(opened.node.try_recv(Match::any(), &mut []).unwrap().is_none());
    // The node has given up, and reads the payload again when it is published.
    let other: Vec<u8> = opened.bytes.iter().map(|byte| !byte).collect();
    opened.forger.publish(&other);
    let envelope = opened.result().unwrap();
    assert_eq!((envelope.tag, envelope.len), (7, other.len()));
    assert!(opened.look() == other);
}

#[test]
fn a_message_that_is_still_written_goes_to_no_other_buffer() {
    let blank = vec![0; 16 << 10];
    type Change = fn(&mut Written<'_>);
    let wrong: [Change; 5] = [
        |written| written.tag = 8,
        |written| written.sequence += 1,
        |written| written.piece = 0,
        |written| written.piece = 64,
        |written| written.place = 1 << 30,
    ];
    for (number, change) in wrong.into_iter().enumerate() {
        let mut opened = Opened::new(16 << 10);
        let mut written = Written::opened(&opened.forger, &opened.bytes);
        change(&mut written);
        opened.forger.write(&written);
        assert!(opened.found() == blank, "{number}");
        // A thread that waits sleeps all the same.
        let parks = |node: &Node| node.metrics().unwrap()[Metric::Parks];
        let before = parks(&opened.node);
        until("the waiting thread sleeps", || {
            let waited = opened.node.recv_until(Match::any().tag(9), &mut [], Instant::now() + Duration::from_millis(20));
            assert!(matches!(waited, Err(Error::Timeout { .. })), "{number}");
            (parks(&opened.node) > before).then_some(())
        });
    }
    // Too long.
    let mut opened = Opened::new((16 << 10) - 1);
    opened.forger.write(&Written::opened(&opened.forger, &opened.bytes));
    assert!(opened.found() == blank[1..]);
    opened.forger.publish(&opened.bytes);
    let bytes = opened.bytes.clone();
    assert!(matches!(opened.result(), Err(Error::Truncated { message, .. }) if message.bytes == bytes));
    // Withdrawn.
    let mut opened = Opened::new(16 << 10);
    opened.receive = None;
    opened.forger.write(&Written::opened(&opened.forger, &opened.bytes));
    (0..1000).for_each(|_| _ = opened.node.progress().unwrap());
    assert!(opened.look() == blank);
    opened.forger.publish(&opened.bytes);
    let mut buf = blank.clone();
    opened.node.recv_until(Match::any(), &mut buf, soon()).unwrap();
    assert!(buf == opened.bytes && opened.look() == blank);
}

/// A thread that receives without a posted buffer, in the turn of the engine.
#[test]
fn a_message_that_is_still_written_goes_to_the_buffer_of_a_waiting_thread() {
    let mut opened = Opened::new(1);
    let withdrawn = opened.receive.take();
    drop(withdrawn);
    opened.forger.write(&Written::opened(&opened.forger, &opened.bytes));
    let mut buf = vec![0; opened.bytes.len()];
    for _ in 0..1000 {
        assert!(opened.node.try_recv(Match::any().tag(7), &mut buf).unwrap().is_none());
    }
    assert!(buf == opened.bytes, "all pieces are copied");
    opened.forger.publish(&opened.bytes);
    buf.fill(0);
    opened.node.recv_until(Match::any().tag(7), &mut buf, soon()).unwrap();
    assert!(buf == opened.bytes);
}

#[test]
fn a_receive_ends_with_its_sender_who_wrote_only_a_part() {
    let mut opened = Opened::new(16 << 10);
    opened.forger.write(&Written::opened(&opened.forger, &opened.bytes));
    assert!(opened.found() == opened.bytes);
    opened.forger.membership.abandon();
    assert!(matches!(opened.result(), Err(Error::PeerDied { .. } | Error::PeerLeft { .. })));
}

/// A receiver that has a buffer, and whose sender publishes the message while it looks for that buffer.
struct Reader<'a> {
    forger: &'a Forger,
    bytes: &'a [u8],
    buffer: Vec<u8>,
    events: Vec<&'static str>,
}

impl Sink for Reader<'_> {
    fn packet(&mut self, _: NodeId, _: Incarnation, _: Priority, _: &PacketHead, _: Payload<'_>) -> Verdict {
        self.events.push("packet");
        Verdict::Taken
    }

    fn buffer_for(&mut self, source: NodeId, _: Incarnation, _: Priority, head: &PacketHead) -> Option<&mut [u8]> {
        assert_eq!((source, head.tag, head.total), (NodeId(1), 7, self.bytes.len() as u64));
        self.events.push("buffer");
        self.forger.publish(self.bytes);
        Some(&mut self.buffer)
    }

    fn copied(&mut self, _: NodeId, _: Incarnation, _: Priority, head: &PacketHead) -> bool {
        assert_eq!(head.tag, 7);
        self.events.push("copied");
        true
    }

    fn damaged(&mut self, _: NodeId, _: Priority, reason: &'static str) {
        panic!("{reason}");
    }
}

/// The fabric hands over such a message once, and then the next packet.
#[test]
fn a_message_that_is_copied_while_it_is_written_is_taken_once() {
    let space = Space::heap();
    let options = JoinOptions { id: Some(NodeId(0)), ..JoinOptions::new("reader", space.clone()) };
    let mut fabric = ShmFabric::new(Arc::new(Membership::join(options).unwrap()), None);
    let forger = Forger::join("reader", &space);
    let bytes: Vec<u8> = (0..16 << 10_u32).map(|i| (i >> 7) as u8).collect();
    let mut reader = Reader { forger: &forger, bytes: &bytes, buffer: vec![0xee; bytes.len() + 1], events: Vec::new() };
    // The packet by which the forger moved to the larger ring makes the lane known.
    fabric.poll(&mut reader, 64);
    forger.write(&Written::opened(&forger, &bytes));
    until("it is taken", || {
        while fabric.next_change().is_some() {}
        (fabric.poll(&mut reader, 64) > 0).then_some(())
    });
    assert_eq!(reader.events, ["buffer", "copied"]);
    assert!(reader.buffer[..bytes.len()] == bytes && reader.buffer[bytes.len()] == 0xee);
    (0..1000).for_each(|_| assert_eq!(fabric.poll(&mut reader, 64), 0));
}
