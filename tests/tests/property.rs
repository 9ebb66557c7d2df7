//! Random programs against a simple model.
//!
//! Some nodes, in the heap, all driven by one thread, do what a random program says: they begin to send and to receive, try
//! both, cancel, turn their engines, leave, die, and join again. Faulty lanes make every interleaving of packets and looks
//! possible. At the end everything that can still arrive does, and then this must hold:
//!
//! - Every message arrives as it was sent, at the life of the node that it was sent to, once.
//! - A message that was neither cancelled nor refused arrives, unless its target is gone; one that was cancelled or refused does
//!   not.
//! - Messages of one pair of lives and priority are numbered in order, without gaps but for long ones that were cancelled, and of those that a receive accepts it gets the first
//!   that no receive begun before it has got.
//! - No receive waits while one begun after it gets a message that it accepts too.

use doorbell::{
    Completion, Envelope, Error, Faults, LaneGeometry, Match, Node, NodeId, Operation, Peer, Priority, Received, Space,
};
use doorbell_tests::patience::take_back;
use doorbell_tests::pattern;
use proptest::collection;
use proptest::prelude::*;
use std::collections::BTreeMap;

const NODES: usize = 3;
/// Messages up to this long always come in one part.
const ONE_PART: usize = 2000;
/// Longer ones may be moved from both ends.
const ONE_PACKET: usize = 32 << 10;
/// Bytes of a lane. Half of them can be sent at once.
const LANE_BYTES: usize = 16 << 10;

/// One step of a program. A number that is out of range is reduced into it.
#[derive(Clone, Debug)]
enum Step {
    Send { from: usize, to: usize, priority: Priority, tag: u64, len: usize, now: bool },
    Receive { node: usize, accepts: Accepts, capacity: usize, now: bool },
    CancelSend(usize),
    CancelReceive(usize),
    Turn(usize),
    Probe(usize),
    Restart { node: usize, dies: bool },
}

/// What a receive accepts, for the model.
#[derive(Clone, Copy, Debug)]
struct Accepts {
    from: Option<usize>,
    tag: Option<u64>,
}

impl Accepts {
    fn to_match(self) -> Match {
        let accepts = self.from.map_or(Match::any(), |from| Match::from(NodeId(from as u16)));
        self.tag.map_or(accepts, |tag| accepts.tag(tag))
    }

    fn takes(self, from: usize, tag: u64) -> bool {
        self.from.is_none_or(|wanted| wanted == from) && self.tag.is_none_or(|wanted| wanted == tag)
    }

    fn accepts(self, envelope: &Envelope) -> bool {
        self.takes(envelope.source.index(), envelope.tag)
    }
}

/// A step. Of a hundred or so, `restarts` are the end of one life and the beginning of the next.
fn step(restarts: u32, longest: usize) -> impl Strategy<Value = Step> {
    let node = || 0..NODES;
    let tag = || 0..3_u64;
    let priority = prop_oneof![4 => Just(Priority::Normal), 1 => Just(Priority::High)];
    // In their cell, in the data ring, in parts, longer than the lane.
    let any_len = || prop_oneof![4 => 0..60_usize, 2 => 60..2100_usize, 2 => 2100..9000_usize, 1 => 9000..60_000_usize];
    let len = move || any_len().prop_map(move |len| len.min(longest));
    let accepts = (proptest::option::of(node()), proptest::option::of(tag())).prop_map(|(from, tag)| Accepts { from, tag });
    let send = (node(), node(), priority, tag(), len(), any::<bool>());
    prop_oneof![
        30 => send.prop_map(|(from, to, priority, tag, len, now)| Step::Send { from, to, priority, tag, len, now }),
        30 => (node(), accepts, len(), any::<bool>()).prop_map(|(node, accepts, capacity, now)| Step::Receive { node, accepts, capacity, now }),
        5 => any::<usize>().prop_map(Step::CancelSend),
        5 => any::<usize>().prop_map(Step::CancelReceive),
        30 => node().prop_map(Step::Turn),
        5 => node().prop_map(Step::Probe),
        restarts => (node(), any::<bool>()).prop_map(|(node, dies)| Step::Restart { node, dies }),
    ]
}

/// The number of an incarnation, counted over all nodes.
type Life = usize;
/// All messages of one order.
type Way = (Life, Life, usize);

enum Sending {
    Pending(Operation<Completion<Vec<u8>>>),
    Sent,
    /// Certainly not sent.
    Not,
}

struct Send {
    way: Way,
    tag: u64,
    len: usize,
    state: Sending,
}

struct Receive {
    incarnation: Life,
    accepts: Accepts,
    pending: Option<Operation<Received<Vec<u8>>>>,
    /// Ended without a message: cancelled, or its node is gone, or nothing was there.
    ended: bool,
    got: Option<Envelope>,
}

struct Run {
    space: Space,
    seed: u64,
    nodes: Vec<(Life, Node)>,
    /// Lives by incarnation.
    by_incarnation: BTreeMap<u32, Life>,
    /// Ids by life.
    by_life: Vec<usize>,
    /// In the order in which they were begun.
    sends: Vec<Send>,
    receives: Vec<Receive>,
    peers: BTreeMap<Way, Peer>,
    /// Bytes of what arrived, by what its envelope said, and the life it arrived at.
    arrived: BTreeMap<Way, Vec<(Envelope, usize, Vec<u8>)>>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut run = Self {
            space: Space::heap(),
            seed,
            nodes: Vec::new(),
            by_incarnation: BTreeMap::new(),
            by_life: Vec::new(),
            sends: Vec::new(),
            receives: Vec::new(),
            peers: BTreeMap::new(),
            arrived: BTreeMap::new(),
        };
        for id in 0..NODES {
            let node = run.join(id);
            run.nodes.push(node);
        }
        run
    }

    fn join(&mut self, id: usize) -> (Life, Node) {
        let incarnation = self.by_life.len();
        self.by_life.push(id);
        // Small lanes and pools, so that they are full, go round and are refused often.
        let lanes = LaneGeometry { cells: [16; 3], data_bytes: [LANE_BYTES as u32; 3] };
        let builder = Node::builder("property").space(self.space.clone()).id(id as u16).lanes(lanes).max_nodes(NODES);
        let builder = builder.progress(doorbell::Progress::Inline).pool_bytes(12 << 10);
        let node = builder.faults(Faults::new(self.seed + incarnation as u64, 20, 20)).join().unwrap();
        self.by_incarnation.insert(node.incarnation().0, incarnation);
        (incarnation, node)
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Send { from, to, priority, tag, len, now } => self.send(from, to, priority, tag, len, now),
            Step::Receive { node, accepts, capacity, now: true } => self.receive_now(node, accepts, capacity),
            Step::Receive { node, accepts, capacity, now: false } => {
                let (incarnation, node) = &self.nodes[node];
                let request = node.start_recv(accepts.to_match(), vec![0; capacity]).unwrap();
                let receive = Receive { incarnation: *incarnation, accepts, pending: Some(request), ended: false, got: None };
                self.receives.push(receive);
            }
            Step::CancelSend(which) => {
                let pending: Vec<_> =
                    (0..self.sends.len()).filter(|at| matches!(self.sends[*at].state, Sending::Pending(_))).collect();
                if let Some(&at) = pending.get(which % pending.len().max(1)) {
                    self.end_send(at, |request| take_back(request).err().map(|completion| completion.result));
                }
            }
            Step::CancelReceive(which) => {
                let pending: Vec<_> = (0..self.receives.len()).filter(|at| self.receives[*at].pending.is_some()).collect();
                if let Some(&at) = pending.get(which % pending.len().max(1)) {
                    self.end_receive(at);
                }
            }
            Step::Turn(node) => {
                self.nodes[node].1.progress().unwrap();
            }
            Step::Probe(node) => {
                let (incarnation, node) = &self.nodes[node];
                let (incarnation, found) = (*incarnation, node.probe(Match::any()).unwrap());
                self.settle(incarnation);
                if let Some(envelope) = found {
                    // No receive that waits accepts it, or it would have taken it.
                    let wants = |receive: &Receive| {
                        let waits = receive.incarnation == incarnation && receive.pending.is_some() && !self.may_be_held(receive);
                        waits && receive.accepts.accepts(&envelope)
                    };
                    assert!(!self.receives.iter().any(wants), "{envelope:?} waits, and so does a receive that accepts it");
                }
            }
            Step::Restart { node, dies } => self.restart(node, dies),
        }
    }

    fn send(&mut self, from: usize, to: usize, priority: Priority, tag: u64, len: usize, now: bool) {
        let (from_life, node) = &self.nodes[from];
        let to_life = self.nodes[to].0;
        let way = (*from_life, to_life, priority.index());
        if !self.peers.contains_key(&way) {
            match node.peer_with_priority(NodeId(to as u16), priority) {
                Ok(peer) => {
                    assert_eq!(self.by_incarnation[&peer.incarnation().0], to_life, "a new peer leads to an old life");
                    self.peers.insert(way, peer);
                }
                // What the life before had sent was not all read: its successor is not to be seen yet.
                Err(Error::PeerDied { .. } | Error::PeerLeft { .. }) => return,
                Err(error) => panic!("{error}"),
            }
        }
        let peer = &self.peers[&way];
        let number = self.sends.len() as u64;
        let bytes = pattern::bytes(len, number);
        let state = if now && len <= LANE_BYTES / 2 {
            match peer.try_send(tag, &bytes) {
                Ok(()) => Sending::Sent,
                // Invalid: longer than what these small lanes take at once.
                Err(Error::Full { .. } | Error::Invalid { .. }) => Sending::Not,
                Err(error) => panic!("{error}"),
            }
        } else {
            Sending::Pending(peer.start_send(tag, bytes).unwrap())
        };
        self.sends.push(Send { way, tag, len, state });
    }

    fn receive_now(&mut self, node: usize, accepts: Accepts, capacity: usize) {
        let mut buf = vec![0; capacity];
        let incarnation = self.nodes[node].0;
        let result = self.nodes[node].1.try_recv(accepts.to_match(), &mut buf);
        // Before this one, whatever was begun before it.
        self.settle(incarnation);
        let got = match result {
            Ok(None) => None,
            Ok(Some(envelope)) => Some(self.arrive(incarnation, envelope, buf)),
            Err(Error::Truncated { message, .. }) => Some(self.arrive(incarnation, message.envelope, message.bytes)),
            Err(Error::PeerDied { .. } | Error::PeerLeft { .. }) => None,
            Err(error) => panic!("{error}"),
        };
        self.receives.push(Receive { incarnation, accepts, pending: None, ended: got.is_none(), got });
    }

    fn arrive(&mut self, at: Life, envelope: Envelope, bytes: Vec<u8>) -> Envelope {
        let from = self.by_incarnation[&envelope.incarnation.0];
        let way = (from, at, envelope.priority.index());
        self.arrived.entry(way).or_default().push((envelope, self.receives.len(), bytes));
        envelope
    }

    /// Whether a receive may have taken the first part of a message that comes in several, and so takes no other.
    fn may_be_held(&self, receive: &Receive) -> bool {
        let takes = |send: &Send| receive.accepts.takes(self.by_life[send.way.0], send.tag);
        self.sends.iter().any(|send| send.way.1 == receive.incarnation && send.len > ONE_PART && takes(send))
    }

    /// Takes note of what has ended for one node. Turns its engine if something is pending.
    fn settle(&mut self, incarnation: Life) {
        for at in 0..self.sends.len() {
            if matches!(&self.sends[at], Send { way, state: Sending::Pending(request), .. } if way.0 == incarnation && request.test())
            {
                self.end_send(at, |request| Some(request.wait().result));
            }
        }
        for at in 0..self.receives.len() {
            if matches!(&self.receives[at], Receive { incarnation: of, pending: Some(request), .. } if *of == incarnation && request.test())
            {
                self.end_receive(at);
            }
        }
    }

    fn end_send(&mut self, at: usize, end: impl FnOnce(Operation<Completion<Vec<u8>>>) -> Option<doorbell::Result<()>>) {
        let send = &mut self.sends[at].state;
        *send = match std::mem::replace(send, Sending::Not) {
            Sending::Pending(request) => match end(request) {
                Some(Ok(())) => Sending::Sent,
                None | Some(Err(Error::PeerDied { .. } | Error::PeerLeft { .. } | Error::Closed)) => Sending::Not,
                Some(other) => panic!("{other:?}"),
            },
            ended => ended,
        };
    }

    /// Takes a receive back, or what it got.
    fn end_receive(&mut self, at: usize) {
        let Some(request) = self.receives[at].pending.take() else { return };
        let incarnation = self.receives[at].incarnation;
        let got = match take_back(request) {
            Ok(_) => None,
            Err(completion) => match completion.result {
                Ok(envelope) => Some(self.arrive(incarnation, envelope, completion.buffer.unwrap())),
                Err(Error::Truncated { message, .. }) => Some(self.arrive(incarnation, message.envelope, message.bytes)),
                Err(Error::PeerDied { .. } | Error::PeerLeft { .. } | Error::Closed) => None,
                other => panic!("{other:?}"),
            },
        };
        self.receives[at].got = got;
        self.receives[at].ended = got.is_none();
    }

    fn restart(&mut self, id: usize, dies: bool) {
        let (incarnation, node) = self.nodes[id].clone();
        self.peers.retain(|way, _| way.0 != incarnation && way.1 != incarnation);
        if dies {
            node.abandon()
        } else {
            node.leave().unwrap()
        }
        for at in 0..self.sends.len() {
            if self.sends[at].way.0 == incarnation {
                self.end_send(at, |request| Some(request.wait().result));
            }
        }
        for at in 0..self.receives.len() {
            if self.receives[at].incarnation == incarnation {
                self.end_receive(at);
            }
        }
        self.nodes[id] = self.join(id);
    }

    /// Lets everything arrive that can.
    fn finish(&mut self) {
        for _ in 0..20_000 {
            for node in 0..NODES {
                self.nodes[node].1.progress().unwrap();
                self.settle(self.nodes[node].0);
            }
            // Receives that are begun last take what nobody else wants.
            for node in 0..NODES {
                self.receive_now(node, Accepts { from: None, tag: None }, 60_000);
            }
            let pending = self.sends.iter().any(|send| matches!(send.state, Sending::Pending(_)));
            let living: Vec<Life> = self.nodes.iter().map(|(incarnation, _)| *incarnation).collect();
            let expected =
                self.sends.iter().filter(|send| matches!(send.state, Sending::Sent) && living.contains(&send.way.1)).count();
            let arrived: usize = self.arrived.iter().filter(|(way, _)| living.contains(&way.1)).map(|(_, list)| list.len()).sum();
            if !pending && arrived >= expected {
                return;
            }
        }
        panic!("something does not arrive, or does not end: {}", self.what_is_missing());
    }

    fn what_is_missing(&self) -> String {
        let pending = self.sends.iter().filter(|send| matches!(send.state, Sending::Pending(_))).map(|send| (send.way, send.len));
        let ways: BTreeMap<Way, (usize, usize)> = self.sends.iter().fold(BTreeMap::new(), |mut ways, send| {
            let way = ways.entry(send.way).or_insert((0, self.arrived.get(&send.way).map_or(0, Vec::len)));
            way.0 += usize::from(matches!(send.state, Sending::Sent));
            ways
        });
        format!("pending {:?}; sent and arrived {ways:?}; living {:?}", pending.collect::<Vec<_>>(), self.nodes)
    }

    fn check(&mut self) {
        let living: Vec<Life> = self.nodes.iter().map(|(incarnation, _)| *incarnation).collect();
        let mut sent: BTreeMap<Way, Vec<usize>> = BTreeMap::new();
        // A transfer that was cancelled may have used its place in the order.
        let mut gaps: BTreeMap<Way, usize> = BTreeMap::new();
        for (number, send) in self.sends.iter().enumerate() {
            if matches!(send.state, Sending::Sent) {
                sent.entry(send.way).or_default().push(number);
            } else if send.len > ONE_PACKET {
                *gaps.entry(send.way).or_default() += 1;
            }
        }
        for (way, list) in &mut self.arrived {
            list.sort_by_key(|(envelope, ..)| envelope.sequence);
            let sent = sent.get(way).map_or(&[][..], Vec::as_slice);
            let gaps = gaps.get(way).copied().unwrap_or(0);
            // A life that ended has not received all that was sent to it, but what it has are the messages it was sent.
            assert!(list.len() <= sent.len(), "{way:?}: {} messages arrived of {} that were sent", list.len(), sent.len());
            for (envelope, _, bytes) in list.iter() {
                let last = envelope.sequence as usize;
                let is_it = |number: &usize| {
                    let send = &self.sends[*number];
                    (envelope.tag, envelope.len) == (send.tag, send.len)
                        && bytes[..envelope.len] == pattern::bytes(send.len, *number as u64)
                };
                let candidates = &sent[last.saturating_sub(gaps).min(sent.len())..(last + 1).min(sent.len())];
                assert!(candidates.iter().any(is_it), "{way:?}: {envelope:?} was not sent");
            }
            if living.contains(&way.1) {
                let numbers: Vec<_> = list.iter().map(|(envelope, ..)| envelope.sequence as usize).collect();
                let is_whole = numbers.len() == sent.len() && numbers.last().is_none_or(|last| *last < sent.len() + gaps);
                let is_in_order = numbers.windows(2).all(|pair| pair[0] < pair[1]);
                assert!(is_whole && is_in_order, "{way:?}: {numbers:?} arrived of {}", sent.len());
            }
        }
        for (way, sent) in &sent {
            let arrived = self.arrived.get(way).map_or(0, Vec::len);
            assert!(!living.contains(&way.1) || arrived == sent.len(), "{way:?}: {arrived} messages arrived of {}", sent.len());
        }
        self.check_order();
    }

    /// Checks that each receive got the message that the model says.
    fn check_order(&self) {
        let same_way = |a: &Envelope, b: &Envelope| (a.incarnation, a.priority) == (b.incarnation, b.priority);
        for (late_at, late) in self.receives.iter().enumerate() {
            let Some(got) = late.got else { continue };
            for (early_at, early) in self.receives.iter().enumerate().filter(|(_, other)| other.incarnation == late.incarnation) {
                if early_at == late_at {
                    continue;
                }
                match early.got {
                    // The other got a message that came before, on the same way: it must have been begun before, or this one did not
                    // want that message.
                    Some(other) if same_way(&other, &got) && other.sequence < got.sequence => {
                        assert!(
                            early_at < late_at || !late.accepts.accepts(&other) || self.may_be_held(late),
                            "receive {late_at} got {got:?} though {other:?}, which receive {early_at} got, came before"
                        );
                    }
                    None if early_at < late_at && !early.ended && !self.may_be_held(early) => {
                        assert!(
                            !early.accepts.accepts(&got),
                            "receive {late_at} got {got:?}, which receive {early_at} has been waiting for"
                        );
                    }
                    _ => {}
                }
            }
        }
    }
}

fn run(seed: u64, program: Vec<Step>) {
    let mut run = Run::new(seed);
    for step in program {
        run.step(step);
    }
    run.finish();
    run.check();
}

fn cases(otherwise: u32) -> ProptestConfig {
    let cases = doorbell_tests::number("DOORBELL_CASES", otherwise as u64) as u32;
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 2000, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn short_messages_go_where_the_model_says(seed in any::<u32>(), program in collection::vec(step(0, ONE_PART), 1..120)) {
        run(seed as u64, program);
    }

    #[test]
    fn long_messages_go_where_the_model_says(seed in any::<u32>(), program in collection::vec(step(0, usize::MAX), 1..120)) {
        run(seed as u64, program);
    }

    #[test]
    fn lives_come_and_go_and_nothing_is_mixed_up(seed in any::<u32>(), program in collection::vec(step(6, usize::MAX), 1..120)) {
        run(seed as u64, program);
    }
}
