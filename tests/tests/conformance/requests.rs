//! Nonblocking operations, their ends, and taking them back.

use doorbell::{Completion, Envelope, Error, Match, Node, Operation, Payload, Progress};
use doorbell_tests::patience::{block_on, briefly, eventually, soon, take_back, until};
use doorbell_tests::pattern;
use doorbell_tests::world::{BLOCKING, World};
use std::time::Instant;

/// Longer than a lane, so that it is not sent before its target reads.
const LONG: usize = 1 << 20;

/// Two nodes. The second has a pool too small for a long message, so that a send to it stays queued until it receives.
fn nodes(world: &World) -> [Node; 2] {
    world.nodes_with_pool(64 << 10)
}

#[track_caller]
fn waited<B, R>(request: Operation<Completion<B, R>>) -> Completion<B, R> {
    request.wait_until(soon()).unwrap_or_else(|_| panic!("a request does not end"))
}

pub fn requests_end_by_testing(world: &World) {
    let [a, b] = nodes(world);
    let receive = b.start_recv(Match::any(), vec![0; LONG]).unwrap();
    assert!(!receive.test());
    let send = a.start_send(b.id(), 1, pattern::bytes(LONG, 3)).unwrap();
    eventually("both requests end", || send.test() & receive.test());
    assert!(matches!(waited(send).result, Ok(())));
    let completion = waited(receive);
    let Ok(envelope) = completion.result else { panic!("{:?}", completion.result) };
    assert_eq!((envelope.tag, envelope.len, envelope.source), (1, LONG, a.id()));
    pattern::check(&completion.buffer.unwrap(), 3);
}

pub fn requests_end_by_waiting(world: &World) {
    let [a, b] = nodes(world);
    let receives: Vec<_> = (0..8).map(|tag| b.start_recv(Match::any().tag(tag), vec![0; 4000]).unwrap()).collect();
    let peer = a.peer(b.id()).unwrap();
    let sends: Vec<_> = (0..8).map(|tag| peer.start_send(tag, pattern::bytes(4000, tag)).unwrap()).collect();
    if world.progress == Progress::Inline {
        // Then sends advance in calls of their node only.
        eventually("all sends end", || sends.iter().all(|send| send.test()));
    }
    // In another order than that in which they were begun.
    for (tag, receive) in receives.into_iter().enumerate().rev() {
        let completion = waited(receive);
        assert!(matches!(completion.result, Ok(envelope) if envelope.tag == tag as u64));
        pattern::check(&completion.buffer.unwrap(), tag as u64);
    }
    for send in sends {
        let completion = send.wait();
        assert!(matches!(completion.result, Ok(())));
        assert_eq!(completion.buffer.len(), 4000);
    }
}

pub fn requests_are_futures(world: &World) {
    let [a, b] = nodes(world);
    let (first, second) = (b.start_recv(Match::any(), vec![0; 8]).unwrap(), b.start_recv(Match::any(), vec![0; 8]).unwrap());
    let to = b.id();
    let sender = std::thread::spawn(move || {
        for tag in 1..3 {
            let completion = block_on(a.start_send(to, tag, tag.to_le_bytes()).unwrap());
            assert!(matches!(completion.result, Ok(())));
        }
        a
    });
    let (first, second) = block_on(async { (first.await, second.await) });
    for (tag, completion) in [(1_u64, first), (2, second)] {
        assert!(matches!(completion.result, Ok(envelope) if envelope.tag == tag), "{:?}", completion.result);
        assert_eq!(completion.buffer.unwrap(), tag.to_le_bytes());
    }
    // One that ended before it is polled.
    let a = sender.join().unwrap();
    let done = b.start_recv(Match::any(), [0; 8]).unwrap();
    a.send_until(b.id(), 3, b"", soon()).unwrap();
    eventually("the request ends", || done.test());
    assert!(matches!(block_on(done).result, Ok(envelope) if envelope.tag == 3));
}

pub fn a_request_that_is_not_ready_comes_back(world: &World) {
    let [a, b] = nodes(world);
    let receive = b.start_recv(Match::any(), [0; 8]).unwrap();
    let receive = receive.wait_until(briefly()).map(|completion| completion.result).unwrap_err();
    let receive = receive.wait_until(Instant::now()).map(|completion| completion.result).unwrap_err();
    a.send_until(b.id(), 1, b"now", soon()).unwrap();
    let completion = waited(receive);
    assert!(matches!(completion.result, Ok(envelope) if envelope.len == 3));
}

/// Cancels a request that must not have ended.
#[track_caller]
fn taken_back<B, R>(request: Operation<Completion<B, R>>) -> B {
    take_back(request).unwrap_or_else(|_| panic!("it had ended"))
}

pub fn a_receive_is_cancelled_before_its_message(world: &World) {
    let [a, b] = nodes(world);
    let (first, second) = (b.start_recv(Match::any(), [7; 8]).unwrap(), b.start_recv(Match::any(), [7; 8]).unwrap());
    assert_eq!(taken_back(first), Some([7; 8]));
    a.send_until(b.id(), 1, b"one", soon()).unwrap();
    a.send_until(b.id(), 2, b"two", soon()).unwrap();
    assert!(matches!(waited(second).result, Ok(envelope) if envelope.tag == 1));
    assert_eq!(b.recv_until(Match::any(), &mut [0; 8], soon()).unwrap().tag, 2);
}

pub fn a_receive_is_cancelled_in_the_middle_of_its_message(world: &World) {
    let [a, b] = nodes(world);
    let receive = b.start_recv(Match::any(), vec![0; 8 << 20]).unwrap();
    let send = a.start_send(b.id(), 1, pattern::bytes(8 << 20, 5)).unwrap();
    for _ in 0..20 {
        // Some of it arrives.
        let _ = (a.progress().unwrap(), b.progress().unwrap());
    }
    match take_back(receive) {
        // What had arrived is kept, the rest follows, and the next receive gets it whole.
        Ok(buffer) => {
            assert_eq!(buffer.unwrap().len(), 8 << 20);
            let receive = b.start_recv(Match::any(), vec![0; 8 << 20]).unwrap();
            eventually("both requests end", || send.test() & receive.test());
            let completion = waited(receive);
            assert!(matches!(completion.result, Ok(envelope) if envelope.len == 8 << 20));
            pattern::check(&completion.buffer.unwrap(), 5);
        }
        // Pollers on both sides may have been faster; on a network there are some under every policy.
        Err(completion) => {
            assert!(world.progress != Progress::Inline || world.is_networked());
            pattern::check(&completion.buffer.unwrap(), 5);
        }
    }
}

pub fn a_receive_is_cancelled_after_its_message(world: &World) {
    let [a, b] = nodes(world);
    let receive = b.start_recv(Match::any(), [0; 8]).unwrap();
    a.send_until(b.id(), 1, b"came", soon()).unwrap();
    eventually("the receive ends", || receive.test());
    let completion = take_back(receive).unwrap_err();
    assert!(matches!(completion.result, Ok(envelope) if envelope.tag == 1));
    assert_eq!(&completion.buffer.unwrap()[..4], b"came");
}

pub fn a_receive_that_is_dropped_gives_its_message_to_the_next(world: &World) {
    let [a, b] = nodes(world);
    // After these, the thread receives by the shortest path.
    for _ in 0..200 {
        a.send_until(b.id(), 0, b"", soon()).unwrap();
        b.recv_until(Match::any(), &mut [], soon()).unwrap();
    }
    for outside in [true, false] {
        for tag in 1..4 {
            a.send_until(b.id(), tag, &tag.to_le_bytes(), soon()).unwrap();
        }
        let receive = b.start_recv(Match::any(), [0; 8]).unwrap();
        eventually("the receive ends", || receive.test());
        let left: &[u64] = if outside {
            drop(receive);
            &[1, 2, 3]
        } else {
            // Within a reader, the engine is out of reach.
            let mut receive = Some(receive);
            let read = |envelope: &Envelope, _: Payload<'_>| {
                assert_eq!(envelope.tag, 2);
                receive = None;
            };
            assert_eq!(b.recv_many_until(Match::any(), 1, soon(), read).unwrap(), 1);
            &[1, 3]
        };
        for &tag in left {
            let mut bytes = [0; 8];
            let envelope = b.recv_until(Match::any(), &mut bytes, soon()).unwrap();
            assert_eq!((envelope.tag, u64::from_le_bytes(bytes)), (tag, tag));
        }
    }
}

pub fn a_send_is_cancelled_before_it_is_in_the_lane(world: &World) {
    let [a, b] = world.narrow_nodes();
    // The first blocks the lane; the second waits behind it.
    let first = a.start_send(b.id(), 1, vec![1; BLOCKING]).unwrap();
    let second = a.start_send(b.id(), 2, vec![2; 8]).unwrap();
    let third = a.start_send(b.id(), 3, vec![3; 8]).unwrap();
    assert!(!second.test());
    assert_eq!(taken_back(second), [2; 8]);
    assert_eq!(taken_back(first).len(), BLOCKING);
    // Neither arrives, and nobody misses them.
    let envelope = until("the third arrives", || {
        third.test();
        b.try_recv(Match::any(), &mut [0; 8]).unwrap()
    });
    assert_eq!((envelope.tag, envelope.sequence), (3, 0));
    assert!(matches!(waited(third).result, Ok(())));
    a.send_until(b.id(), 4, b"", soon()).unwrap();
    let envelope = b.recv_until(Match::any(), &mut [0; 8], soon()).unwrap();
    assert_eq!((envelope.tag, envelope.sequence), (4, 1));
}

pub fn a_send_is_cancelled_after_it_is_in_the_lane(world: &World) {
    let [a, b] = nodes(world);
    let send = a.start_send(b.id(), 1, *b"gone out").unwrap();
    eventually("the send ends", || send.test());
    let completion = take_back(send).unwrap_err();
    assert!(matches!(completion.result, Ok(())));
    assert_eq!(&completion.buffer, b"gone out");
    assert_eq!(b.recv_until(Match::any(), &mut [0; 8], soon()).unwrap().len, 8);
}

pub fn dropping_a_request_cancels_it(world: &World) {
    let [a, b] = nodes(world);
    drop(a.start_send(b.id(), 1, vec![1; LONG]).unwrap());
    drop(b.start_recv(Match::any(), [0; 8]).unwrap());
    a.send_until(b.id(), 2, b"", soon()).unwrap();
    assert_eq!(b.recv_until(Match::any(), &mut [0; 8], soon()).unwrap().tag, 2);
    assert_eq!(b.try_recv(Match::any(), &mut [0; 8]).unwrap(), None);
}

pub fn forgetting_a_request_is_sound(world: &World) {
    let [a, b] = nodes(world);
    std::mem::forget(b.start_recv(Match::any(), vec![0; 8]).unwrap());
    std::mem::forget(a.start_send(b.id(), 1, vec![1; 8]).unwrap());
    // The forgotten receive gets the forgotten message, into memory that nobody frees; what follows is as always.
    a.send_until(b.id(), 2, b"two", soon()).unwrap();
    assert_eq!(b.recv_until(Match::any(), &mut [0; 8], soon()).unwrap().tag, 2);
    std::mem::forget(b.start_recv(Match::any(), vec![0; 8]).unwrap());
    // Forgotten requests keep their nodes, so these have to be told to leave.
    a.leave().unwrap();
    b.leave().unwrap();
}

pub fn too_many_queued_sends_are_refused(world: &World) {
    let [a, b] = nodes(world);
    let block = a.start_send(b.id(), 0, vec![0; LONG]).unwrap();
    let mut queued = Vec::new();
    let error = loop {
        match a.start_send(b.id(), 1, (queued.len() as u64).to_le_bytes()) {
            Ok(request) => queued.push(request),
            Err(error) => break error,
        }
        // A lane of a session holds some ten thousand so short ones.
        assert!(queued.len() <= 200_000, "the queue has no end");
    };
    assert!(matches!(error, Error::Full { node } if node == b.id()), "{error:?}");
    taken_back(block);
    // All that were queued arrive, in order; some may be in the lane already.
    let mut buf = [0; 8];
    for number in 0..queued.len() as u64 {
        let envelope = until("a queued message", || {
            a.progress().unwrap();
            b.try_recv(Match::any(), &mut buf).unwrap()
        });
        assert_eq!((envelope.tag, u64::from_le_bytes(buf)), (1, number));
    }
    assert!(queued.iter().all(Operation::test));
}

pub fn requests_advance_while_nobody_waits(world: &World) {
    if world.progress == Progress::Inline {
        return;
    }
    let [a, b] = nodes(world);
    let receive = b.start_recv(Match::any(), vec![0; LONG]).unwrap();
    let send = a.start_send(b.id(), 1, pattern::bytes(LONG, 6)).unwrap();
    // No call of either node but those that look at figures: the pollers carry it.
    eventually("the pollers carry the message", || {
        std::thread::sleep(std::time::Duration::from_millis(1));
        b.stats().unwrap().messages_in == 1
    });
    assert_eq!(b.stats().unwrap().by_poller, 1);
    pattern::check(&waited(receive).buffer.unwrap(), 6);
    assert!(matches!(waited(send).result, Ok(())));
}
