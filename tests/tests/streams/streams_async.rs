//! Streams and other calls as tasks use them: on runtimes with one thread and with several, without a runtime, over both fabrics. Futures that are
//! dropped lose nothing.

use doorbell::Listener;
use doorbell::Lock;
use doorbell::Reactor;
use doorbell::{Match, Node, Resource, Stream};
use doorbell_tests::pair::{far, near, near_with};
use doorbell_tests::patience::{PATIENCE, block_on, finishes, running, soon, take_back, until};
use doorbell_tests::pattern::{bytes, check};
use doorbell_tests::process::{Process, forbid_io_uring};
use doorbell_tests::random::{Random, seed};
use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind, IoSlice};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

pub fn one_thread() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn threads() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

async fn pair(nodes: &[Node; 2]) -> (Stream, Stream) {
    let listener = Listener::builder(&nodes[0], "tasks").bind().unwrap();
    let (connector, accepting) = (Stream::builder(&nodes[1], "tasks"), listener.accept_async());
    let (near, far) = tokio::join!(connector.connect_async(), accepting);
    (near.unwrap(), far.unwrap().0)
}

/// Runs a test on each kind of runtime, over each fabric; fails if it does not end.
macro_rules! everywhere {
    ($($test:ident)*) => {
        mod near_one_thread { $(#[test] fn $test() { super::run(super::one_thread, super::near, super::$test) })* }
        mod near_threads { $(#[test] fn $test() { super::run(super::threads, super::near, super::$test) })* }
        mod far_one_thread { $(#[test] fn $test() { super::run(super::one_thread, super::far, super::$test) })* }
        mod far_threads { $(#[test] fn $test() { super::run(super::threads, super::far, super::$test) })* }
    };
}

fn run<F: Future<Output = ()> + 'static>(runtime: fn() -> Runtime, nodes: fn() -> [Node; 2], test: fn([Node; 2]) -> F) {
    finishes("tasks", move || runtime().block_on(test(nodes())));
}

everywhere! {
    bytes_come_in_order_both_ways
    many_streams_at_once
    each_direction_ends_by_itself
    a_node_that_leaves_ends_what_waits
    several_tasks_accept
    who_gives_up_connecting_leaves_nobody_waiting
    messages_and_keys
    threads_and_tasks_share_a_node
}

async fn sends(mut to: impl AsyncWriteExt + Unpin, data: Vec<u8>, seed: u64) {
    let mut random = Random::new(seed);
    let mut rest = &data[..];
    while !rest.is_empty() {
        let piece = (1 + random.below(50_000)).min(rest.len());
        to.write_all(&rest[..piece]).await.unwrap();
        rest = &rest[piece..];
    }
    to.shutdown().await.unwrap();
}

async fn bytes_come_in_order_both_ways(nodes: [Node; 2]) {
    let (one, other) = pair(&nodes).await;
    let tasks = [(one, 1), (other, 2)].map(|(stream, seed)| {
        let stream = Arc::new(stream);
        let writes = stream.clone();
        tokio::spawn(async move { sends(&mut &*writes, bytes(1 << 20, seed), seed).await });
        tokio::spawn(async move {
            let mut got = Vec::new();
            (&mut &*stream).read_to_end(&mut got).await.unwrap();
            (got, 3 - seed)
        })
    });
    for task in tasks {
        let (got, seed) = task.await.unwrap();
        assert_eq!(got.len(), 1 << 20);
        check(&got, seed);
    }
}

async fn many_streams_at_once(nodes: [Node; 2]) {
    const MANY: usize = 200;
    let listener = Listener::builder(&nodes[0], "many").backlog(MANY).bind().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept_async().await.unwrap();
            tokio::spawn(async move {
                let (mut reads, mut writes) = tokio::io::split(stream);
                tokio::io::copy(&mut reads, &mut writes).await
            });
        }
    });
    let clients: Vec<_> = (0..MANY)
        .map(|at| {
            let connector = Stream::builder(&nodes[1], "many");
            tokio::spawn(async move {
                let mut stream = connector.connect_async().await.unwrap();
                for round in 0..5 {
                    let data = bytes(1 + at * 7, round);
                    stream.write_all(&data).await.unwrap();
                    let mut answer = vec![0; data.len()];
                    stream.read_exact(&mut answer).await.unwrap();
                    assert_eq!(answer, data);
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
}

async fn each_direction_ends_by_itself(nodes: [Node; 2]) {
    let (mut one, mut other) = pair(&nodes).await;
    one.write_all(b"question").await.unwrap();
    one.shutdown().await.unwrap();
    let mut text = String::new();
    other.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "question");
    other.write_all(b"answer").await.unwrap();
    drop(other);
    text.clear();
    one.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "answer");
    assert_eq!(one.write(b"more").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
    let (one, mut other) = pair(&nodes).await;
    drop(one);
    // It may take a moment until that is known.
    let error = loop {
        match other.write(b"lost").await {
            Ok(_) => tokio::task::yield_now().await,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

async fn a_node_that_leaves_ends_what_waits(nodes: [Node; 2]) {
    let (mut one, mut other) = pair(&nodes).await;
    let [near, far] = nodes;
    // This one accepted, the other connected.
    let waits = tokio::spawn(async move { one.read(&mut [0; 8]).await });
    let goes = tokio::spawn(async move { other.read(&mut [0; 8]).await });
    tokio::task::yield_now().await;
    tokio::task::spawn_blocking(move || near.leave()).await.unwrap().unwrap();
    // Its own end is told so; the other reads the end.
    assert_eq!(goes.await.unwrap().unwrap_err().kind(), ErrorKind::NotConnected);
    assert_eq!(waits.await.unwrap().unwrap(), 0);
    drop(far);
}

async fn several_tasks_accept(nodes: [Node; 2]) {
    let listener = Arc::new(Listener::builder(&nodes[0], "crowd").bind().unwrap());
    // One that gives up must not take what another waits for.
    let mut gives_up = Some(Box::pin(listener.accept_async()));
    assert!(poll_fn(|context| Poll::Ready(gives_up.as_mut().unwrap().as_mut().poll(context).is_pending())).await);
    let tasks: Vec<_> = (0..3)
        .map(|_| {
            let listener = listener.clone();
            tokio::spawn(async move { listener.accept_async().await.map(|(stream, _)| stream) })
        })
        .collect();
    tokio::task::yield_now().await;
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(Stream::builder(&nodes[1], "crowd").connect_async().await.unwrap());
        gives_up = None;
    }
    drop(gives_up);
    for task in tasks {
        task.await.unwrap().unwrap();
    }
}

async fn who_gives_up_connecting_leaves_nobody_waiting(nodes: [Node; 2]) {
    // So that they have met.
    drop(pair(&nodes).await);
    let listener = Listener::builder(&nodes[0], "given up").bind().unwrap();
    let connector = Stream::builder(&nodes[1], "given up");
    let mut connecting = Box::pin(connector.connect_async());
    // It has asked, and was most likely not answered.
    poll_fn(|context| Poll::Ready(connecting.as_mut().poll(context).is_pending())).await;
    drop(connecting);
    let (mut accepted, _) = listener.accept_async().await.unwrap();
    assert_eq!(accepted.read(&mut [0; 8]).await.unwrap(), 0);
}

async fn messages_and_keys(nodes: [Node; 2]) {
    Reactor::attend(&nodes[0]).unwrap();
    Reactor::attend(&nodes[1]).unwrap();
    let [one, other] = &nodes;
    let peer = one.peer(other.id()).unwrap();
    for len in [0, 64, 100_000, 3 << 20] {
        let receive = other.start_recv(Match::any(), vec![0; 4 << 20]).unwrap();
        let (sent, received) = tokio::join!(peer.start_send(7, bytes(len, 3)).unwrap(), receive);
        sent.result.unwrap();
        received.result.unwrap();
        assert_eq!(received.buffer.unwrap()[..len], bytes(len, 3));
    }
    let region = other.region::<u64>(1 << 18).unwrap();
    let (sent, put) = one.put_async(vec![5_u64; 1 << 18], region.key()).await;
    put.unwrap();
    let (got, result) = one.get_async(region.read_key(), vec![0_u64; 1 << 18]).await;
    result.unwrap();
    assert_eq!(got, sent);
    let [one, other] = nodes;
    // These wait for the other node, which this very thread may have to drive.
    let making = tokio::task::spawn_blocking(move || {
        let key = Lock::init(&one, "tasks", Resource::Unnamed).unwrap();
        let other_key = Lock::find(&other, "tasks").unwrap();
        (key, other_key)
    });
    let (key, other_key) = making.await.unwrap();
    let guard = key.lock_async().await.unwrap();
    let waits = tokio::spawn(async move { other_key.lock_async().await.map(drop) });
    let given_up = key.clone();
    assert!(tokio::time::timeout(Duration::from_millis(20), given_up.lock_async()).await.is_err());
    drop(guard);
    waits.await.unwrap().unwrap();
    key.lock_async().await.unwrap().unlock().unwrap();
}

async fn threads_and_tasks_share_a_node(nodes: [Node; 2]) {
    let (one, other) = pair(&nodes).await;
    let [near, far] = nodes;
    let threads = [(near, far.id()), (far.clone(), near_id(&one))].map(|(node, peer)| {
        running("a thread beside tasks", move || {
            for tag in 0..300 {
                node.send(peer, tag, &[1; 64]).unwrap();
                node.recv_until(Match::from(peer).tag(tag), &mut [0; 64], soon()).unwrap();
            }
            node
        })
    });
    let (reads, writes) = (Arc::new(other), one);
    let task = tokio::spawn(async move {
        let mut got = Vec::new();
        (&mut &*reads).read_to_end(&mut got).await.unwrap();
        got
    });
    sends(writes, bytes(1 << 20, 9), 9).await;
    check(&task.await.unwrap(), 9);
    tokio::task::spawn_blocking(move || threads.map(|thread| thread.join())).await.unwrap();
}

/// Slices that go at once keep their order, though room comes up between two of them: the reader reads all the while.
#[test]
fn slices_come_in_order() {
    let nodes = near();
    let (one, other) = one_thread().block_on(pair(&nodes));
    let data = Arc::new(bytes(16 << 20, 1));
    let written = data.clone();
    let writing = running("a task writes slices", move || {
        let (mut rest, mut context) = (&written[..], Context::from_waker(Waker::noop()));
        while !rest.is_empty() {
            let slices: Vec<_> = rest.chunks(5000).take(64).map(IoSlice::new).collect();
            if let Poll::Ready(put) = one.poll_write_vectored(&mut context, &slices) {
                rest = &rest[put.unwrap()..];
            }
        }
    });
    let (mut got, mut piece, mut context) = (Vec::new(), [0; 20_000], Context::from_waker(Waker::noop()));
    while got.len() < data.len() {
        if let Poll::Ready(len) = other.poll_read(&mut context, &mut piece) {
            got.extend_from_slice(&piece[..len.unwrap()]);
        }
    }
    assert!(got == *data);
    writing.join();
}

/// The node that accepted.
fn near_id(connected: &Stream) -> doorbell::NodeId {
    connected.peer()
}

/// An event loop that waits only for the descriptor hears of each message.
fn the_descriptor_tells([listens, sends]: [Node; 2]) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    listens.wait_for(2, soon()).unwrap();
    let mut reactor = Reactor::new(&listens).unwrap();
    let (armed, is_armed) = std::sync::mpsc::channel();
    let to = listens.id();
    let sending = running("sends when somebody sleeps", move || {
        while let Ok(tag) = is_armed.recv() {
            sends.send_until(to, tag, b"wake up", soon()).unwrap();
        }
    });
    for tag in 0..20 {
        let receive = listens.start_recv(Match::any().tag(tag), vec![0; 64]).unwrap();
        let mut asked = Some(tag);
        while !receive.test() {
            if reactor.turn() || reactor.arm().unwrap().is_none() {
                continue;
            }
            if let Some(tag) = asked.take() {
                armed.send(tag).unwrap();
            }
            let patience = Timespec::try_from(PATIENCE).unwrap();
            let told = poll(&mut [PollFd::new(&reactor, PollFlags::IN)], Some(&patience)).unwrap();
            assert_eq!(told, 1, "the descriptor did not tell of message {tag}");
            reactor.disarm().unwrap();
        }
        assert_eq!(&receive.wait().buffer.unwrap()[..7], b"wake up");
    }
    drop(armed);
    sending.join();
}

#[test]
fn the_descriptor_tells_of_what_arrives() {
    the_descriptor_tells(near());
    the_descriptor_tells(far());
}

/// The role: the same where io_uring is forbidden.
pub fn plain_descriptor() {
    forbid_io_uring().unwrap();
    the_descriptor_tells_of_what_arrives();
}

#[test]
fn the_descriptor_tells_where_io_uring_is_forbidden() {
    Process::start("plain descriptor").go().end_well(2 * PATIENCE);
}

/// Every progress policy with every wait policy.
#[test]
fn every_policy_will_do() {
    use doorbell::{Progress, Wait};
    for progress in [Progress::Inline, Progress::Poller, Progress::Adaptive] {
        for wait in [Wait::Auto, Wait::Spin, Wait::Yield, Wait::Park] {
            for runtime in [one_thread, threads] {
                finishes("tasks under a policy", move || {
                    let nodes = near_with(|_, builder| builder.progress(progress).wait(wait));
                    runtime().block_on(bytes_come_in_order_both_ways(nodes));
                });
            }
        }
    }
}

/// After a runtime ends, the node's own thread and the next runtime drive its streams.
#[test]
fn a_runtime_that_ends_leaves_the_node_as_it_was() {
    for nodes in [near(), far()] {
        let first = one_thread();
        let (one, other) = first.block_on(pair(&nodes));
        first
            .block_on(async { assert!(tokio::time::timeout(Duration::from_millis(5), (&one).read(&mut [0; 8])).await.is_err()) });
        drop(first);
        // Without a runtime.
        let reading = running("a task without a runtime", move || {
            let mut buffer = [0; 5];
            let got = block_on(poll_fn(|context| one.poll_read(context, &mut buffer))).unwrap();
            assert_eq!(&buffer[..got], b"hello");
            one
        });
        assert_eq!(block_on(poll_fn(|context| other.poll_write(context, b"hello"))).unwrap(), 5);
        let one = reading.join();
        threads().block_on(async {
            (&other).write_all(b"again").await.unwrap();
            let mut buffer = [0; 5];
            (&one).read_exact(&mut buffer).await.unwrap();
            assert_eq!(&buffer, b"again");
        });
    }
}

/// A task that is polled at random, woken or not, and dropped in between.
struct Steps<'a> {
    random: &'a mut Random,
}

impl Steps<'_> {
    /// Polls a future some times, and drops it if it is not ready by then.
    fn some<F: Future>(&mut self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..1 + self.random.below(3) {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return Some(output);
            }
        }
        None
    }
}

/// Futures are dropped at random: the bytes of a stream and the messages of a node all come, each once and in order.
#[test]
fn futures_that_are_dropped_lose_nothing() {
    let seed = seed();
    println!("DOORBELL_SEED={seed}");
    for (round, inline) in [(0, true), (1, false), (2, true)] {
        let progress = if inline { doorbell::Progress::Inline } else { doorbell::Progress::Adaptive };
        let [a, b] = near_with(|_, builder| builder.progress(progress));
        let mut random = Random::new(seed.wrapping_add(round));
        let mut steps = Steps { random: &mut random };
        let listener = Listener::builder(&a, "seeded").bind().unwrap();
        let connector = Stream::builder(&b, "seeded");
        let connecting = running("connects", move || connector.connect().unwrap());
        let (accepted, _) = until("somebody connects", || steps.some(listener.accept_async())).unwrap();
        let connected = connecting.join();
        let peer = b.peer(a.id()).unwrap();
        let data = bytes(300_000, seed);
        let (mut written, mut read, mut sent, mut received) = (0, Vec::new(), 0_u64, 0_u64);
        let mut idle = 0;
        while read.len() < data.len() || received < 2000 {
            let before = (written, read.len(), sent, received);
            match steps.random.below(4) {
                0 if written < data.len() => {
                    let piece = (1 + steps.random.below(9000)).min(data.len() - written);
                    let bytes = &data[written..written + piece];
                    written += steps.some(poll_fn(|context| connected.poll_write(context, bytes))).map_or(0, io::Result::unwrap);
                }
                1 => {
                    let mut buffer = vec![0; 1 + steps.random.below(9000)];
                    let got = steps.some(poll_fn(|context| accepted.poll_read(context, &mut buffer)));
                    read.extend_from_slice(&buffer[..got.map_or(0, io::Result::unwrap)]);
                }
                2 if sent < 2000 => {
                    // Whether a message that was dropped went is known from its request.
                    let request = peer.start_send(sent, bytes(steps.random.below(2000), sent)).unwrap();
                    if steps.random.chance(50) {
                        request.test();
                    }
                    sent += u64::from(take_back(request).is_err());
                }
                3 => {
                    let request = a.start_recv(Match::any(), vec![0; 2000]).unwrap();
                    if let Some(done) = steps.some(request) {
                        let envelope = done.result.unwrap();
                        assert_eq!(envelope.tag, received, "a message was lost, or came twice");
                        check(&done.buffer.unwrap()[..envelope.len], received);
                        received += 1;
                    }
                }
                _ => {}
            }
            idle = if before == (written, read.len(), sent, received) { idle + 1 } else { 0 };
            assert!(idle < 10_000_000, "nothing goes on: {before:?}");
        }
        assert_eq!(read, data);
    }
}
