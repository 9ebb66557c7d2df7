//! Members that join, leave and die, and the effect on operations.

use doorbell::{Completion, Error, Event, Match, Node, NodeId, Progress, Role};
use doorbell_tests::in_place::{read, read_by};
use doorbell_tests::patience::{briefly, eventually, finishes, running, soon, until};
use doorbell_tests::world::{BLOCKING, World};
use std::time::{Duration, Instant};

pub fn nodes_wait_for_each_other(world: &World) {
    let a = world.builder(0).role(Role::Host).label("first").join().unwrap();
    assert!(matches!(a.wait_for(2, briefly()), Err(Error::Timeout { operation: "wait_for", .. })));
    let waiter = a.clone();
    let waiting = running("wait_for", move || waiter.wait_for(2, soon()).unwrap());
    let waiting = waiting.started();
    let b = world.builder(1).role(Role::Accelerator).label("second").join().unwrap();
    let members = waiting.join();
    let facts: Vec<_> =
        members.iter().map(|member| (member.id, member.incarnation, member.role, member.label.as_str())).collect();
    let expected = [(a.id(), a.incarnation(), Role::Host, "first"), (b.id(), b.incarnation(), Role::Accelerator, "second")];
    assert_eq!(facts, expected);
    let ids = |members: &[doorbell::Member]| members.iter().map(|member| (member.id, member.incarnation)).collect::<Vec<_>>();
    assert_eq!(ids(&members), ids(&b.members().unwrap()));
    assert_eq!((a.role(), b.role(), a.domain(), a.max_nodes()), (Role::Host, Role::Accelerator, world.domain().name(), 8));
    if world.is_networked() {
        return;
    }
    // A node that asks for no id gets the lowest free one.
    let c = Node::builder(world.domain().name()).space(world.domain().space().clone()).join().unwrap();
    assert_eq!(c.id(), NodeId(2));
}

pub fn a_node_is_known_as_soon_as_it_has_joined(world: &World) {
    let [a, b, c] = world.nodes();
    // Nobody has looked around yet. None of these may say that there is no such node.
    let request = a.start_recv(Match::from(b.id()), [0; 8]).unwrap();
    let other = a.start_recv(Match::from(c.id()).tag(1), [0; 8]).unwrap();
    assert!(!request.test() && !other.test());
    let late = a.recv_until(Match::from(c.id()), &mut [0; 8], briefly());
    assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
    assert_eq!(b.try_recv(Match::from(c.id()), &mut [0; 8]).unwrap(), None);
    let late = read_by(&c, Match::from(a.id()), briefly(), |_, _| ());
    assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
    // And so for the next life of an id, as soon as the end of the former was told.
    let id = c.id();
    c.leave().unwrap();
    assert!(matches!(other.wait_until(soon()).map(|completion| completion.result.unwrap_err()), Ok(Error::PeerLeft { .. })));
    let c = world.node(2);
    let late = a.recv_until(Match::from(id), &mut [0; 8], briefly());
    assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
    c.send_until(b.id(), 1, b"new", soon()).unwrap();
    assert_eq!(b.recv_until(Match::from(id), &mut [0; 8], soon()).unwrap().len, 3);
}

/// The next event about another node.
#[track_caller]
fn event(node: &Node) -> Event {
    loop {
        let event = node.event(soon()).unwrap();
        if event.node() != node.id() {
            return event;
        }
    }
}

pub fn comings_and_goings_are_told(world: &World) {
    let a = world.node(0);
    let b = world.node(1);
    let joined = |node: &Node| Event::Joined { node: node.id(), incarnation: node.incarnation() };
    assert_eq!(event(&a), joined(&b));
    assert_eq!(event(&b), joined(&a));
    let (id, incarnation) = (b.id(), b.incarnation());
    b.leave().unwrap();
    assert_eq!(event(&a), Event::Left { node: id, incarnation });
    assert!(matches!(a.event(briefly()), Err(Error::Timeout { operation: "event", .. })));
    let b = world.node(1);
    assert_ne!(b.incarnation(), incarnation);
    assert_eq!(event(&a), joined(&b));
    let (id, incarnation) = (b.id(), b.incarnation());
    b.abandon();
    assert_eq!(event(&a), Event::Died { node: id, incarnation });
    assert_eq!(a.try_event().unwrap(), None);
}

/// How a node goes.
type Way = fn(Node);

fn leave(node: Node) {
    node.leave().unwrap();
}

fn die(node: Node) {
    node.abandon();
}

/// Whether an error says that this incarnation of this node left or died.
fn names(error: &Error, node: NodeId, incarnation: doorbell::Incarnation, died: bool) -> bool {
    match *error {
        Error::PeerDied { node: n, incarnation: gone } => died && (n, gone) == (node, incarnation),
        Error::PeerLeft { node: n, incarnation: gone } => !died && (n, gone) == (node, incarnation),
        _ => false,
    }
}

fn delivered_before(world: &World, go: Way, died: bool) {
    let [a, b] = world.nodes();
    let (id, incarnation) = (b.id(), b.incarnation());
    // The receiver knows the sender, and looks at nothing before the sender is gone.
    let to_b = a.peer(id).unwrap();
    for number in 0..20_u64 {
        b.send_until(a.id(), number, &vec![number as u8; 100 * number as usize], soon()).unwrap();
    }
    // On a network the last of them may wait for others to go with, until the next call.
    b.progress().unwrap();
    go(b);
    let mut buf = vec![0; 4000];
    for number in 0..20 {
        let envelope = a.recv_until(Match::from(id), &mut buf, soon()).unwrap();
        assert_eq!((envelope.tag, envelope.len, envelope.incarnation), (number, 100 * number as usize, incarnation));
        assert!(buf[..envelope.len].iter().all(|byte| *byte == number as u8));
    }
    let error = a.recv_until(Match::from(id), &mut buf, soon()).unwrap_err();
    assert!(names(&error, id, incarnation, died) && error.node() == Some(id), "{error:?}");
    let error = to_b.send_until(1, b"", soon()).unwrap_err();
    assert!(names(&error, id, incarnation, died), "{error:?}");
}

pub fn what_was_sent_before_leaving_is_delivered_first(world: &World) {
    delivered_before(world, leave, false);
}

pub fn what_was_sent_before_dying_is_delivered_first(world: &World) {
    delivered_before(world, die, true);
}

pub fn what_a_short_life_sent_is_delivered(world: &World) {
    // They join, send, and are gone before the receiver has looked at all.
    let a = world.node(0);
    for (id, go) in [(1, leave as Way), (2, die as Way)] {
        let b = world.node(id);
        b.send_until(a.id(), id as u64, b"result", soon()).unwrap();
        go(b);
    }
    for id in 1..=2 {
        let deadline = Instant::now() + Duration::from_secs(2);
        let envelope = a.recv_until(Match::any().tag(id), &mut [0; 8], deadline);
        assert_eq!(envelope.map(|envelope| envelope.source.0 as u64).ok(), Some(id), "a message that was sent is lost");
    }
}

pub fn pending_operations_end_when_their_node_is_gone(world: &World) {
    for (go, died) in [(leave as Way, false), (die as Way, true)] {
        let a = world.narrow(0).join().unwrap();
        let b = world.narrow(1).join().unwrap();
        let (id, incarnation) = (b.id(), b.incarnation());
        let bound = a.start_recv(Match::from(id), vec![0; 8]).unwrap();
        let free = a.start_recv(Match::any().tag(77), vec![0; 8]).unwrap();
        let peer = a.peer(id).unwrap();
        let send = peer.start_send(1, vec![0; BLOCKING]).unwrap();
        let behind = a.start_send(id, 2, vec![0; 8]).unwrap();
        let waits = {
            let node = a.clone();
            let receiver =
                running("a receive from a node that goes", move || node.recv(Match::from(id).tag(3), &mut [0; 8]).unwrap_err());
            let (node, in_place) = (a.clone(), Match::from(id).tag(4));
            let reader = running("recv_with from a node that goes", move || read(&node, in_place, |_, _| ()).unwrap_err());
            let node = a.clone();
            let sender = running("a send to a node that goes", move || node.send(id, 5, &[0; 5000]).unwrap_err());
            [receiver, reader, sender].map(|running| running.started())
        };
        std::thread::sleep(Duration::from_millis(2));
        go(b);
        for waiting in waits {
            let error = waiting.join();
            assert!(names(&error, id, incarnation, died), "{error:?}");
        }
        let ended = |error: doorbell::Error| {
            assert!(names(&error, id, incarnation, died), "{error:?}");
        };
        let Ok(Completion { buffer, result }) = bound.wait_until(soon()) else {
            panic!("a receive bound to the node does not end")
        };
        assert_eq!(buffer.unwrap().len(), 8);
        ended(result.unwrap_err());
        ended(send.wait_until(soon()).unwrap_or_else(|_| panic!("a send to the node does not end")).result.unwrap_err());
        ended(behind.wait_until(soon()).unwrap_or_else(|_| panic!("a queued send to the node does not end")).result.unwrap_err());
        // Nothing else is disturbed.
        assert!(!free.test());
        a.send_until(a.id(), 77, b"mine", soon()).unwrap();
        assert!(matches!(free.wait().result, Ok(envelope) if envelope.source == a.id()));
    }
}

pub fn a_death_is_noticed_under_traffic(world: &World) {
    if world.progress == Progress::Inline {
        // A node learns of the death at its next call: see comings_and_goings_are_told.
        return;
    }
    let [a, b, dying] = world.nodes();
    let (id, incarnation) = (dying.id(), dying.incarnation());
    let pending = a.start_recv(Match::from(id), vec![0; 8]).unwrap();
    let partner = b.clone();
    let (to_a, to_b) = (a.id(), b.id());
    let echo = running("an echo", move || {
        while partner.recv_until(Match::from(to_a), &mut [0; 8], soon()).unwrap().tag != 0 {
            partner.send_until(to_a, 1, b"pong", soon()).unwrap();
        }
    });
    dying.abandon();
    // The receiver is never idle for long, and asks for nothing but its next message.
    let deadline = Instant::now() + Duration::from_secs(2);
    while !pending.is_done_already() && Instant::now() < deadline {
        a.send_until(to_b, 1, b"ping", soon()).unwrap();
        a.recv_until(Match::from(to_b), &mut [0; 8], soon()).unwrap();
    }
    a.send_until(to_b, 0, b"stop", soon()).unwrap();
    echo.join();
    let ended = pending.wait_until(Instant::now()).map(|completion| completion.result.unwrap_err());
    let Ok(error) = ended else { panic!("under traffic from others, the death of a node is not noticed within 2 s") };
    assert!(names(&error, id, incarnation, true), "{error:?}");
}

/// Whether a request has ended, without turning an engine.
trait DoneAlready {
    fn is_done_already(&self) -> bool;
}

impl<T> DoneAlready for doorbell::Operation<T> {
    fn is_done_already(&self) -> bool {
        // `test` turns the engine once, which asks nobody whether he lives.
        self.test()
    }
}

pub fn a_peer_leads_to_one_life(world: &World) {
    let [a, b] = world.nodes();
    let (id, incarnation) = (b.id(), b.incarnation());
    let old = a.peer(id).unwrap();
    assert_eq!((old.id(), old.incarnation()), (id, incarnation));
    old.send_until(1, b"to the first", soon()).unwrap();
    b.leave().unwrap();
    let b = world.node(1);
    // What still goes to the old life is lost with it, and says so soon; none of it reaches the new one.
    let error = until("a peer of an old life fails", || old.send_until(2, b"old", soon()).err());
    assert!(names(&error, id, incarnation, false), "{error:?}");
    let error = old.recv_until(Match::any(), &mut [0; 8], soon()).unwrap_err();
    assert!(names(&error, id, incarnation, false), "{error:?}");
    let error = old.start_send(3, [0; 8]).map(drop).unwrap_err();
    assert!(names(&error, id, incarnation, false), "{error:?}");
    let new = until("a peer of the new life", || a.peer(id).ok());
    assert_eq!(new.incarnation(), b.incarnation());
    new.send_until(4, b"to the second", soon()).unwrap();
    let envelope = b.recv_until(Match::any(), &mut [0; 16], soon()).unwrap();
    assert_eq!((envelope.tag, envelope.sequence), (4, 0));
    // A receive of the old peer takes nothing from the new life.
    b.send_until(a.id(), 5, b"from the second", soon()).unwrap();
    assert!(old.recv_until(Match::any(), &mut [0; 16], soon()).is_err());
    assert_eq!(new.recv_until(Match::any(), &mut [0; 16], soon()).unwrap().tag, 5);
}

pub fn what_is_queued_does_not_reach_the_next_life(world: &World) {
    let a = world.narrow(0).join().unwrap();
    let b = world.narrow(1).join().unwrap();
    let (id, incarnation) = (b.id(), b.incarnation());
    // One message is half in the lane, the others wait behind it.
    let queued: Vec<_> = [BLOCKING, 8, 8].map(|len| a.start_send(id, 1, vec![1; len]).unwrap()).into();
    b.leave().unwrap();
    let b = world.narrow(1).join().unwrap();
    let new = until("a peer of the new life", || a.peer(id).ok());
    new.send_until(2, b"new", soon()).unwrap();
    let envelope = b.recv_until(Match::any(), &mut [0; 8], soon()).unwrap();
    assert_eq!((envelope.tag, envelope.len, envelope.sequence), (2, 3, 0));
    for request in queued {
        let Ok(completion) = request.wait_until(soon()) else { panic!("a send to a life that ended does not end") };
        let error = completion.result.unwrap_err();
        assert!(names(&error, id, incarnation, false), "{error:?}");
    }
    assert_eq!(b.try_recv(Match::any(), &mut [0; 8]).unwrap(), None);
    while let Some(event) = b.try_event().unwrap() {
        assert!(!matches!(event, Event::Damaged { .. }), "{event}");
    }
}

pub fn ids_are_used_again(world: &World) {
    let a = world.node(0);
    let mut lives = vec![a.incarnation()];
    for round in 0..6_u64 {
        let b = world.node(1);
        lives.push(b.incarnation());
        // Both directions, with more than fits into cells, so that what an earlier life left in the lane would show. The lane
        // is free when its reader has seen the end of the earlier life, so both have to go on.
        let send = b.start_send(a.id(), round, vec![round as u8; 3000]).unwrap();
        let mut buf = [0; 4000];
        let envelope = until("a message of the new life", || {
            send.test();
            a.try_recv(Match::any(), &mut buf).unwrap()
        });
        assert_eq!((envelope.tag, envelope.sequence, envelope.incarnation), (round, 0, b.incarnation()));
        assert!(buf[..3000].iter().all(|byte| *byte == round as u8));
        a.send_until(b.id(), round, &buf[..3000], soon()).unwrap();
        let envelope = b.recv_until(Match::any(), &mut buf, soon()).unwrap();
        assert_eq!((envelope.tag, envelope.sequence, envelope.source), (round, 0, a.id()));
        if round % 2 == 0 { leave(b) } else { die(b) }
    }
    lives.sort_unstable();
    lives.dedup();
    assert_eq!(lives.len(), 7, "an incarnation was used twice");
}

pub fn a_node_that_left_is_closed(world: &World) {
    let [a, b] = world.nodes();
    let (peer, clone) = (a.peer(b.id()).unwrap(), a.clone());
    let (receive, send) = (a.start_recv(Match::any(), [0; 8]).unwrap(), peer.start_send(1, vec![0; 4 << 20]).unwrap());
    a.leave().unwrap();
    let mut buf = [0; 8];
    let results = [
        clone.send(b.id(), 1, b""),
        clone.try_send(b.id(), 1, b""),
        peer.send(1, b""),
        peer.send_vectored(1, &[]),
        clone.recv(Match::any(), &mut buf).map(drop),
        clone.try_recv(Match::any(), &mut buf).map(drop),
        read(&clone, Match::any(), |_, _| ()),
        peer.recv(Match::any(), &mut buf).map(drop),
        clone.start_recv(Match::any(), [0; 8]).map(drop),
        peer.start_send(1, [0; 8]).map(drop),
        clone.probe(Match::any()).map(drop),
        clone.peer(b.id()).map(drop),
        clone.members().map(drop),
        clone.wait_for(1, soon()).map(drop),
        clone.try_event().map(drop),
        clone.event(soon()).map(drop),
        clone.progress().map(drop),
        clone.stats().map(drop),
    ];
    for (index, result) in results.into_iter().enumerate() {
        assert!(matches!(result, Err(Error::Closed)), "call {index} of a node that left: {result:?}");
    }
    let completion = receive.wait();
    assert!(matches!(completion.result, Err(Error::Closed)), "{:?}", completion.result);
    // A poller on the other side may have taken the long message before.
    let completion = send.wait();
    assert!(matches!(completion.result, Err(Error::Closed) | Ok(())), "{:?}", completion.result);
    assert_eq!(completion.buffer.len(), 4 << 20);
    // Twice is once.
    clone.leave().unwrap();
}

pub fn leaving_ends_what_waits(world: &World) {
    // At once, while they spin or yield, and when they sleep.
    for pause in [0, 200, 5000] {
        let [a, b] = world.narrow_nodes();
        let id = b.id();
        let block = a.start_send(id, 1, vec![0; BLOCKING]).unwrap();
        let wait = |what: &str, call: fn(&Node, NodeId) -> doorbell::Result<()>| {
            let node = a.clone();
            running(what, move || call(&node, id)).started()
        };
        let waiting = [
            wait("recv of a node that left", |node, _| node.recv(Match::any().tag(8), &mut [0; 8]).map(drop)),
            wait("recv from a peer of a node that left", |node, id| node.recv(Match::from(id).tag(8), &mut [0; 8]).map(drop)),
            wait("recv_with of a node that left", |node, _| read(node, Match::any().tag(8), |_, _| ())),
            wait("send of a node that left", |node, id| node.send(id, 1, &[0; 5000])),
            wait("wait_for of a node that left", |node, _| node.wait_for(5, soon()).map(drop)),
            wait("wait of a node that left", |node, _| node.start_recv(Match::any().tag(8), [0; 8])?.wait().result.map(drop)),
        ];
        std::thread::sleep(Duration::from_micros(pause));
        let leaver = a.clone();
        finishes("leave", move || leaver.leave().unwrap());
        for waiting in waiting {
            let result = waiting.join();
            assert!(matches!(result, Err(Error::Closed)), "{result:?}");
        }
        assert!(matches!(block.wait().result, Err(Error::Closed)));
    }
}

pub fn nodes_that_are_not_there_have_names(world: &World) {
    let a = world.node(0);
    for absent in [NodeId(1), NodeId(7), NodeId(8), NodeId(1023), NodeId(u16::MAX)] {
        let results = [
            a.peer(absent).map(drop),
            a.send(absent, 1, b""),
            a.try_send(absent, 1, b""),
            a.send_until(absent, 1, &[0; 5000], soon()),
            a.start_send(absent, 1, [0; 8]).map(drop),
            a.recv(Match::from(absent), &mut [0; 8]).map(drop),
            a.try_recv(Match::from(absent), &mut [0; 8]).map(drop),
            read(&a, Match::from(absent), |_, _| ()),
            a.start_recv(Match::from(absent), [0; 8]).and_then(|request| request.wait().result.map(drop)),
        ];
        for (index, result) in results.into_iter().enumerate() {
            assert!(
                matches!(result, Err(Error::NoSuchNode { node }) if node == absent),
                "call {index} for {absent:?}: {result:?}"
            );
        }
    }
}

pub fn the_dead_are_no_members(world: &World) {
    let [a, b] = world.nodes();
    let ids = |node: &Node| node.members().unwrap().iter().map(|member| member.id).collect::<Vec<_>>();
    assert_eq!(ids(&a), [NodeId(0), NodeId(1)]);
    b.abandon();
    eventually("the news", || matches!(a.event(soon()).unwrap(), Event::Died { .. }));
    assert_eq!(ids(&a), [NodeId(0)]);
    assert!(matches!(a.wait_for(2, briefly()), Err(Error::Timeout { .. })), "a dead node is waited for no more");
}

pub fn leaving_from_within_a_reader_does_not_hang(world: &World) {
    let [a, b] = world.nodes();
    a.send_until(b.id(), 1, b"read", soon()).unwrap();
    let node = b.clone();
    let left = finishes("leaving from within recv_with", move || {
        read_by(&node, Match::any(), soon(), |_, _| node.clone().leave()).unwrap()
    });
    match left {
        // The message was read from private memory.
        Ok(()) => assert!(matches!(b.try_recv(Match::any(), &mut [0; 8]), Err(Error::Closed))),
        Err(Error::Reentrant { .. }) => {
            a.send_until(b.id(), 2, b"on", soon()).unwrap();
            assert_eq!(b.recv_until(Match::any(), &mut [0; 8], soon()).unwrap().tag, 2);
            b.leave().unwrap();
        }
        Err(error) => panic!("{error}"),
    }
    let error = a.recv_until(Match::from(NodeId(1)), &mut [0; 8], soon()).unwrap_err();
    assert!(matches!(error, Error::PeerLeft { .. }), "{error}");
}
