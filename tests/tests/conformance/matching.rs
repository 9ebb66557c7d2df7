//! Matching of receives and messages.

use doorbell::{Completion, Envelope, Error, Match, Node, Operation, Received};
use doorbell_tests::patience::{PATIENCE, briefly, soon, take_back, until};
use doorbell_tests::world::World;
use std::time::{Duration, Instant};

/// Receives a message that must come soon, and returns its tag.
#[track_caller]
fn tag(node: &Node, accepts: Match) -> u64 {
    node.recv_until(accepts, &mut [0; 64], soon()).unwrap().tag
}

#[track_caller]
fn nothing(node: &Node, accepts: Match) {
    assert_eq!(node.try_recv(accepts, &mut [0; 64]).unwrap(), None);
}

pub fn tags_and_masks_select(world: &World) {
    let [a, b] = world.nodes();
    for tag in [0x11, 0x12, 0x21, 0, u64::MAX, 0x22] {
        a.send_until(b.id(), tag, b"", soon()).unwrap();
    }
    until("all messages arrive", || b.probe(Match::any().tag(0x22)).unwrap());
    assert_eq!(tag(&b, Match::any().tag(0x21)), 0x21);
    nothing(&b, Match::any().tag(0x21));
    assert_eq!(tag(&b, Match::any().tag(u64::MAX)), u64::MAX);
    assert_eq!(tag(&b, Match::any().tag_mask(0x02, 0x0f)), 0x12);
    assert_eq!(tag(&b, Match::any().tag_mask(0xf2, 0x0f)), 0x22);
    nothing(&b, Match::any().tag_mask(0x02, 0x0f));
    assert_eq!(tag(&b, Match::any().tag(0)), 0);
    assert_eq!(tag(&b, Match::any()), 0x11);
    nothing(&b, Match::any());
}

pub fn sources_select(world: &World) {
    let [target, one, two] = world.nodes();
    for tag in [1, 2] {
        for sender in [&one, &two] {
            sender.send_until(target.id(), 10 * sender.id().0 as u64 + tag, b"", soon()).unwrap();
        }
    }
    assert_eq!(tag(&target, Match::from(two.id())), 21);
    assert_eq!(tag(&target, Match::any().source(two.id()).tag(22)), 22);
    assert_eq!(tag(&target, Match::any().incarnation(one.id(), one.incarnation())), 11);
    // As a peer sees it.
    let peer = target.peer(one.id()).unwrap();
    assert_eq!(peer.recv_until(Match::any(), &mut [0; 8], soon()).unwrap().tag, 12);
    assert_eq!(peer.try_recv(Match::any(), &mut [0; 8]).unwrap(), None);
    let late = peer.recv_until(Match::any(), &mut [0; 8], briefly());
    assert!(matches!(late, Err(Error::Timeout { operation: "recv", node }) if node == Some(one.id())), "{late:?}");
}

pub fn unexpected_messages_wait_in_order(world: &World) {
    let [a, b] = world.nodes();
    for round in 0..4_u64 {
        for tag in [1, 2] {
            a.send_until(b.id(), tag, &round.to_le_bytes(), soon()).unwrap();
        }
    }
    let mut buf = [0; 8];
    // Those with tag 2 first, so that the others have to wait; and each kind in its order.
    for tag in [2, 1] {
        for round in 0..4_u64 {
            let envelope = b.recv_until(Match::any().tag(tag), &mut buf, soon()).unwrap();
            assert_eq!((envelope.tag, u64::from_le_bytes(buf)), (tag, round));
            assert_eq!(envelope.sequence as u64, 2 * round + tag - 1);
        }
    }
    // A receive that is begun when its message waits already.
    a.send_until(b.id(), 3, b"waits", soon()).unwrap();
    until("the message arrives", || b.probe(Match::any().tag(3)).unwrap());
    let request = b.start_recv(Match::any(), [0; 8]).unwrap();
    assert!(request.test(), "a receive whose message waits ends at once");
    assert_eq!(received(request).tag, 3);
}

/// The envelope of a receive that must get a message soon.
#[track_caller]
fn received<B>(request: Operation<Completion<B, Envelope>>) -> Envelope {
    match request.wait_until(soon()) {
        Ok(completion) => completion.result.unwrap(),
        Err(_) => panic!("a receive got nothing in {PATIENCE:?}"),
    }
}

pub fn receives_match_in_the_order_in_which_they_were_begun(world: &World) {
    let [a, b] = world.nodes();
    let start = |accepts: Match| b.start_recv(accepts, vec![0; 8]).unwrap();
    // Messages go to the receives that were begun first, even if a later one says more exactly what it wants.
    let any = [start(Match::any()), start(Match::any())];
    let exact = start(Match::from(a.id()).tag(1));
    for tag in [1, 2, 1] {
        a.send_until(b.id(), tag, b"", soon()).unwrap();
    }
    let sequence = |request| received(request).sequence;
    assert_eq!(any.map(sequence), [0, 1]);
    assert_eq!(sequence(exact), 2);
    // And the other way round.
    let exact = start(Match::any().tag(7));
    let any = start(Match::any());
    for tag in [5, 7] {
        a.send_until(b.id(), tag, b"", soon()).unwrap();
    }
    assert_eq!(received(exact).tag, 7);
    assert_eq!(received(any).tag, 5);
}

/// Begins a send that is too long for its lane, turns both engines so that its first part arrives, and takes it back. False
/// if all of it went through meanwhile, as it may where pollers carry it.
fn begin_and_give_up(from: &Node, to: &Node, tag: u64) -> bool {
    let long = from.start_send(to.id(), tag, vec![1; LONG]).unwrap();
    for _ in 0..8 {
        let _ = (to.progress().unwrap(), from.progress().unwrap());
    }
    match take_back(long) {
        Ok(buffer) => {
            assert_eq!(buffer.len(), LONG);
            true
        }
        Err(completion) => {
            assert!(matches!(completion.result, Ok(())), "{:?}", completion.result);
            false
        }
    }
}

/// Longer than what both engines carry in [`begin_and_give_up`] if no other thread turns them.
const LONG: usize = 8 << 20;

pub fn a_message_that_was_given_up_leaves_the_receives_in_order(world: &World) {
    let [a, b] = world.nodes();
    let exact = b.start_recv(Match::any().tag(2), vec![0; 8]).unwrap();
    let any = receive_that_was_given_up(&a, &b);
    // The second receive took what the sender then gave up. Now the first is still the first.
    for len in [2, 1] {
        a.send_until(b.id(), 2, &[0; 8][..len], soon()).unwrap();
    }
    assert_eq!(received(exact).len, 2);
    assert_eq!(received(any).len, 1);
}

/// A receive from any node, whose message was given up.
fn receive_that_was_given_up(from: &Node, to: &Node) -> Operation<Received<Vec<u8>>> {
    until("a message is given up in time", || {
        let any = to.start_recv(Match::any(), vec![0; LONG]).unwrap();
        if begin_and_give_up(from, to, 1) {
            return Some(any);
        }
        assert_eq!(received(any).len, LONG);
        None
    })
}

pub fn a_message_that_was_given_up_does_not_keep_a_receive(world: &World) {
    let [target, faithless, faithful] = world.nodes();
    // One node begins a message and gives it up, and says nothing more; then another sends.
    let any = receive_that_was_given_up(&faithless, &target);
    faithful.send_until(target.id(), 2, b"whole", soon()).unwrap();
    let Ok(completion) = any.wait_until(Instant::now() + Duration::from_secs(5)) else {
        panic!("a receive waits for the rest of a message that was given up, and does not take another one")
    };
    let Ok(envelope) = completion.result else { panic!("{:?}", completion.result) };
    assert_eq!((envelope.source, envelope.tag), (faithful.id(), 2));
}

pub fn try_and_deadline_forms_do_not_wait(world: &World) {
    let [a, b] = world.nodes();
    let mut buf = [0; 8];
    assert_eq!(b.try_recv(Match::any(), &mut buf).unwrap(), None);
    assert_eq!(b.try_recv(Match::from(a.id()), &mut buf).unwrap(), None);
    for accepts in [Match::any(), Match::from(a.id()).tag(1)] {
        let began = Instant::now();
        let error = b.recv_until(accepts, &mut buf, briefly()).unwrap_err();
        assert!(matches!(error, Error::Timeout { operation: "recv", node } if node == accepts.bound_to()), "{error:?}");
        assert!(error.is_retryable() && began.elapsed() >= Duration::from_millis(20));
        // A deadline that has passed.
        assert!(matches!(b.recv_until(accepts, &mut buf, began), Err(Error::Timeout { .. })));
    }
    // A message that is there is taken, however late the call is.
    a.send_until(b.id(), 1, b"here", soon()).unwrap();
    until("the message arrives", || b.probe(Match::any()).unwrap());
    assert_eq!(b.recv_until(Match::any(), &mut buf, Instant::now()).unwrap().len, 4);
    // A receive that timed out takes nothing later.
    a.send_until(b.id(), 2, b"late", soon()).unwrap();
    assert_eq!(tag(&b, Match::any()), 2);
    assert_eq!(until("a try that finds", || try_after_send(&a, &b)), 3);
}

fn try_after_send(a: &Node, b: &Node) -> Option<u64> {
    if b.probe(Match::any()).unwrap().is_none() {
        a.send_until(b.id(), 3, b"", soon()).unwrap();
    }
    b.try_recv(Match::any(), &mut [0; 8]).unwrap().map(|envelope| envelope.tag)
}
