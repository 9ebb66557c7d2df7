//! What no node of ours sends, and what it must not cost whoever gets it.

use doorbell::{Event, Match, Node, NodeId, Priority, Progress, Space};
use doorbell_fabric::{PacketHead, PacketKind, Push};
use doorbell_shm::domain::{JoinOptions, Membership, PeerInbox};
use doorbell_shm::lane::{Producer, RawMemory};
use doorbell_shm::layout::MEETINGS_OFFSET;
use doorbell_tests::patience::until;
use std::sync::atomic::{AtomicU64, Ordering};

const CHUNK: u64 = 16 << 10;

/// A member that has no engine, and fills its lane by hand.
struct Forger {
    // Declared before what it points into.
    producer: Producer<RawMemory>,
    sequence: u32,
    target: PeerInbox,
    _membership: Membership,
}

impl Forger {
    fn join(name: &str, space: &Space) -> Self {
        let options = JoinOptions { id: Some(NodeId(1)), ..JoinOptions::new(name, space.clone()) };
        let membership = Membership::join(options).unwrap();
        let target = membership.open_peer(NodeId(0)).unwrap();
        // SAFETY: a whole block, mapped as long as `target`.
        let memory = unsafe { RawMemory::new(target.block().0, membership.lanes().lane(Priority::Normal)) };
        Self {
            producer: Producer::claim(memory, membership.incarnation().0).unwrap(),
            sequence: 0,
            target,
            _membership: membership,
        }
    }

    /// False if there is no room.
    fn push(&mut self, kind: PacketKind, tag: u64, total: u64, bytes: &[u8]) -> bool {
        let head = PacketHead { kind, tag, sequence: self.sequence, total };
        // SAFETY: a slice, shorter than a packet may be.
        let done = unsafe { self.producer.push(&head, bytes.as_ptr(), bytes.len()) } == Push::Done;
        self.sequence += u32::from(done && kind == PacketKind::Rts);
        done
    }

    fn meeting(&self, slot: u64) -> &AtomicU64 {
        // SAFETY: within the block, aligned.
        unsafe { &*self.target.block().0.add(MEETINGS_OFFSET + slot as usize * 128).cast() }
    }

    /// Announces a message of `len` bytes. The meeting is open.
    fn announce(&mut self, slot: u64, generation: u64, len: u64) -> bool {
        self.meeting(slot).store(generation << 50, Ordering::Release);
        let ticket = slot | generation << 16;
        let words: Vec<u8> = [ticket, CHUNK, 0, 0].iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
        self.push(PacketKind::Rts, 5, len, &words)
    }
}

fn victim(name: &str, space: &Space) -> Node {
    Node::builder(name).space(space.clone()).id(0).progress(Progress::Inline).join().unwrap()
}

fn damaged(node: &Node) -> Option<&'static str> {
    std::iter::from_fn(|| node.try_event().unwrap()).find_map(|event| match event {
        Event::Damaged { node, reason } => {
            assert_eq!(node, NodeId(1));
            Some(reason)
        }
        _ => None,
    })
}

/// Every part of a message that nobody has asked for takes memory of its own.
#[test]
fn a_message_in_crumbs_is_not_kept() {
    let space = Space::heap();
    let node = victim("crumbs", &space);
    let mut forger = Forger::join("crumbs", &space);
    assert!(forger.announce(0, 1, 4 * CHUNK));
    // Crumbs that end a chunk: no more of them than there are chunks.
    for _ in 0..5 {
        assert!(forger.push(PacketKind::Chunk, 1 << 16, CHUNK - 1, &[1]));
    }
    let reason = until("it is found out", || {
        node.progress().unwrap();
        damaged(&node)
    });
    assert_eq!(reason, "more chunks than the message has");
    assert_eq!(node.stats().unwrap().pooled, 0);
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

/// What it does wrong in one place ends what it sends in all others.
#[test]
fn a_peer_that_broke_the_rules_is_read_no_further_in_any_lane() {
    let space = Space::heap();
    let node = victim("lanes", &space);
    let mut forger = Forger::join("lanes", &space);
    // SAFETY: as in `join`.
    let memory = unsafe { RawMemory::new(forger.target.block().0, forger._membership.lanes().lane(Priority::High)) };
    let mut other = Producer::claim(memory, forger._membership.incarnation().0).unwrap();
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
