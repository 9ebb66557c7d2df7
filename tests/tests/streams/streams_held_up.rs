//! A stream, task or runtime that is held up holds up no other: nodes that ask each other for more streams than fit, runtimes that nobody polls, threads that wait in a direction that another shuts
//! down, streams that are dropped where nobody can be told at once, tasks that always find something to do.

use doorbell::Listener;
use doorbell::Lock;
use doorbell::Reactor;
use doorbell::{Match, Node, NodeId, Resource, Stream, StreamBuilder};
use doorbell_tests::domain::Domain;
use doorbell_tests::pair::{far, near};
use doorbell_tests::patience::{PATIENCE, block_on, eventually, finishes, running, soon, until};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::time::timeout;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn connect([listens, connects]: &[Node; 2]) -> (Stream, Stream) {
    let listener = Listener::builder(listens, "held").bind().unwrap();
    let near = Stream::builder(connects, "held").to(listens.id()).connect().unwrap();
    (near, listener.accept().unwrap().0)
}

fn patiently(node: &Node, to: NodeId) -> StreamBuilder {
    Stream::builder(node, "bulk").to(to).patience(PATIENCE).buffer_bytes(4096)
}

/// Both nodes connect many streams at once, and both accept all.
fn in_bulk(nodes: [Node; 2]) {
    const MANY: usize = 700;
    let ids = [nodes[1].id(), nodes[0].id()];
    let (begin, end) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let sides = nodes.into_iter().zip(ids).map(|(node, other)| {
        let (begin, end) = (begin.clone(), end.clone());
        running("connecting in bulk", move || {
            runtime().block_on(async {
                let listener = Listener::builder(&node, "bulk").backlog(MANY).bind().unwrap();
                begin.wait();
                let accepted = tokio::spawn(async move {
                    let mut accepted = Vec::new();
                    while accepted.len() < MANY {
                        accepted.push(listener.accept_async().await.unwrap());
                    }
                    accepted
                });
                let asked: Vec<_> = (0..MANY)
                    .map(|_| {
                        let connector = patiently(&node, other);
                        tokio::spawn(async move { connector.connect_async().await })
                    })
                    .collect();
                let mut connected = Vec::new();
                for one in asked {
                    connected.push(one.await.unwrap().unwrap());
                }
                accepted.await.unwrap();
                // The streams that are dropped here send many notices at once, which must not hold up the end.
                tokio::task::spawn_blocking(move || end.wait()).await.unwrap();
            });
        })
    });
    sides.collect::<Vec<_>>().into_iter().for_each(|side| side.join());
}

#[test]
fn nodes_that_ask_each_other_for_many_answer_each_other() {
    in_bulk(near());
}

#[test]
fn so_they_do_over_a_network() {
    in_bulk(far());
}

/// A connector that gives up before it was accepted leaves nothing behind.
#[test]
fn who_gives_up_at_once_is_not_waited_for() {
    finishes("giving up", || {
        let nodes = near();
        let other = nodes[0].id();
        let listener = Listener::builder(&nodes[0], "bulk").backlog(10_000).bind().unwrap();
        runtime().block_on(async {
            for _ in 0..300 {
                let connector = patiently(&nodes[1], other);
                let _ = timeout(Duration::ZERO, connector.connect_async()).await;
            }
            let mut last = patiently(&nodes[1], other).connect_async().await.unwrap();
            last.write_u8(7).await.unwrap();
            // Of the others each that was accepted is at its end.
            loop {
                let (mut stream, _) = listener.accept_async().await.unwrap();
                if let Ok(byte) = stream.read_u8().await {
                    assert_eq!(byte, 7);
                    break;
                }
            }
        });
    });
}

/// The runtime that drives the node is no longer polled, while another runtime and a thread use the node.
fn not_polled(nodes: [Node; 2]) {
    finishes("a runtime that is not polled", move || {
        let [listens, connects] = &nodes;
        let listener = Listener::builder(listens, "held").bind().unwrap();
        let idle = runtime();
        let (mut here, mut there) = idle.block_on(async {
            let connector = Stream::builder(connects, "held").to(listens.id());
            let (here, there) = tokio::join!(connector.connect_async(), listener.accept_async());
            (here.unwrap(), there.unwrap().0)
        });
        let reads = running("reading in another runtime", move || {
            runtime().block_on(async {
                let mut buffer = [0; 5];
                for round in 0..3 {
                    AsyncReadExt::read_exact(&mut here, &mut buffer).await.unwrap();
                    assert_eq!(&buffer, b"hello", "{round}");
                }
                here
            })
        })
        .started();
        for _ in 0..3 {
            Write::write_all(&mut there, b"hello").unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut here = reads.join();
        // A thread beside both.
        let (reads, mut writes) = (
            running("reading in a thread", move || {
                let mut buffer = [0; 5];
                Read::read_exact(&mut here, &mut buffer).map(|()| buffer).unwrap()
            }),
            there,
        );
        Write::write_all(&mut writes, b"again").unwrap();
        assert_eq!(&reads.join(), b"again");
        // The first comes back.
        idle.block_on(async {
            let connector = Stream::builder(connects, "held").to(listens.id());
            let (here, there) = tokio::join!(connector.connect_async(), listener.accept_async());
            let (mut here, mut there) = (here.unwrap(), there.unwrap().0);
            AsyncWriteExt::write_all(&mut here, b"x").await.unwrap();
            assert_eq!(there.read_u8().await.unwrap(), b'x');
        });
    });
}

#[test]
fn a_runtime_that_is_not_polled_stops_no_other() {
    not_polled(near());
}

#[test]
fn nor_over_a_network() {
    not_polled(far());
}

/// An event loop that was late drives again when it comes back.
#[test]
fn a_reactor_that_was_late_drives_again() {
    finishes("a late reactor", || {
        let [one, other] = near();
        let mut reactor = Reactor::new(&one).unwrap();
        assert_eq!(Reactor::new(&one).unwrap_err().kind(), ErrorKind::ResourceBusy);
        while reactor.turn() {}
        let slept = reactor.arm().unwrap().is_some();
        let receive = one.start_recv(Match::any(), vec![0; 8]).unwrap();
        let waits = running("waiting for nobody", move || block_on(receive).result.map(drop)).started();
        std::thread::sleep(Duration::from_millis(20));
        other.send(one.id(), 1, b"late").unwrap();
        // Nobody turns it; the poller does.
        waits.join().unwrap();
        let taken = until("another may be begun", || Reactor::new(&one).ok());
        assert_eq!(reactor.arm().unwrap_err().kind(), ErrorKind::ResourceBusy, "{slept}");
        assert!(!reactor.turn());
        drop(taken);
        // Its turn again.
        let receive = one.start_recv(Match::any(), vec![0; 8]).unwrap();
        other.send(one.id(), 1, b"again").unwrap();
        eventually("it drives", || {
            reactor.turn();
            receive.test()
        });
        assert_eq!(Reactor::new(&one).unwrap_err().kind(), ErrorKind::ResourceBusy);
        drop(reactor);
        drop(Reactor::new(&one).unwrap());
    });
}

/// A thread waits in one direction, and another thread shuts that direction down.
fn shut_down(nodes: [Node; 2]) {
    finishes("shutting down", move || {
        for how in [Shutdown::Read, Shutdown::Both] {
            let (near, far) = connect(&nodes);
            let near = Arc::new(near);
            let reads = {
                let near = near.clone();
                running("reading", move || Read::read(&mut &*near, &mut [0; 8])).started()
            };
            std::thread::sleep(Duration::from_millis(60));
            near.close(how).unwrap();
            assert_eq!(reads.join().unwrap(), 0);
            drop(far);
        }
        let (near, _far) = connect(&nodes);
        let near = Arc::new(near);
        let writes = {
            let near = near.clone();
            running("writing", move || Write::write_all(&mut &*near, &vec![1; 4 << 20])).started()
        };
        std::thread::sleep(Duration::from_millis(60));
        near.close(Shutdown::Write).unwrap();
        assert_eq!(writes.join().unwrap_err().kind(), ErrorKind::BrokenPipe);
        // Beside one that does not wait: nothing follows the end, which would be against the rules.
        for _ in 0..100 {
            let (near, mut far) = connect(&nodes);
            let near = Arc::new(near);
            let writes = {
                let near = near.clone();
                running("writing", move || while Write::write(&mut &*near, &[1; 100]).is_ok() {})
            };
            let reads = running("reading to the end", move || Read::read_to_end(&mut far, &mut Vec::new()));
            near.close(Shutdown::Write).unwrap();
            writes.join();
            reads.join().unwrap();
        }
        nodes[1].send(nodes[0].id(), 1, b"well").unwrap();
        assert_eq!(nodes[0].recv_until(Match::any(), &mut [0; 8], soon()).unwrap().len, 4);
    });
}

#[test]
fn who_shuts_a_direction_down_waits_for_nobody() {
    shut_down(near());
}

#[test]
fn nor_does_who_is_far() {
    shut_down(far());
}

/// A task waits, too.
#[test]
fn a_task_is_told_that_its_direction_was_shut_down() {
    finishes("a task's direction", || {
        let nodes = near();
        let (near, _far) = connect(&nodes);
        let near = Arc::new(near);
        runtime().block_on(async {
            let reads = {
                let near = near.clone();
                tokio::spawn(async move { AsyncReadExt::read(&mut &*near, &mut [0; 8]).await })
            };
            tokio::task::yield_now().await;
            near.close(Shutdown::Read).unwrap();
            assert_eq!(reads.await.unwrap().unwrap(), 0);
        });
    });
}

/// A stream is dropped where the engine is being turned.
fn dropped_within(nodes: [Node; 2]) {
    finishes("a stream dropped within the engine", move || {
        let (near, far) = connect(&nodes);
        let [receives, sends] = nodes;
        let reads = running("reading its end", move || {
            runtime().block_on(async move {
                let mut near = near;
                let end = AsyncReadExt::read(&mut near, &mut [0; 8]).await.unwrap();
                // So that it must have been woken: nothing else was about to look.
                (end, near)
            })
        })
        .started();
        let waiting = receives.start_recv(Match::any().tag(2), vec![0; 8]).unwrap();
        sends.send(receives.id(), 2, b"back").unwrap();
        sends.send(receives.id(), 1, b"drop").unwrap();
        eventually("both have come", || waiting.test());
        let mut dropped = Some((far, waiting));
        receives.recv_with(Match::any().tag(1), |_, _| drop(dropped.take())).unwrap();
        assert_eq!(reads.join().0, 0);
        // What the request had was given back.
        let mut buffer = [0; 8];
        assert_eq!(receives.recv_until(Match::any().tag(2), &mut buffer, soon()).unwrap().len, 4);
    });
}

#[test]
fn a_stream_that_is_dropped_within_the_engine_ends() {
    dropped_within(near());
}

#[test]
fn and_over_a_network() {
    dropped_within(far());
}

/// A runtime without I/O can't drive: an error says so, and nothing else fails.
#[test]
fn a_runtime_without_io_is_told_so() {
    finishes("a runtime without I/O", || {
        let nodes = near();
        let (mut near, mut far) = connect(&nodes);
        let poor = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let error = poor.block_on(near.read_u8()).unwrap_err();
        assert!(error.to_string().contains("enable_all"), "{error}");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        Write::write_all(&mut far, b"x").unwrap();
        assert_eq!(runtime().block_on(near.read_u8()).unwrap(), b'x');
    });
}

/// A task that always finds more to read lets others run.
#[test]
fn a_busy_stream_lets_other_tasks_run() {
    finishes("a busy stream", || {
        let nodes = near();
        let (mut near, mut far) = connect(&nodes);
        let ended = Arc::new(AtomicBool::new(false));
        let writes = {
            let ended = ended.clone();
            running("writing", move || while !ended.load(SeqCst) && Write::write_all(&mut far, &[7; 32 << 10]).is_ok() {})
        };
        runtime().block_on(async {
            let (read, others) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
            let reads = {
                let (read, others) = (read.clone(), others.clone());
                tokio::spawn(async move {
                    // Until another had its turn a hundred times, or never.
                    while others.load(SeqCst) < 100 {
                        near.read_u8().await.unwrap();
                        assert!(read.fetch_add(1, SeqCst) < 50_000_000, "no other task ran");
                    }
                    near
                })
            };
            while others.fetch_add(1, SeqCst) < 100 {
                tokio::task::yield_now().await;
            }
            drop(reads.await.unwrap());
            // A task that does nothing but read lets another in once in so many bytes.
            assert!(read.load(SeqCst) < 1_000_000, "{} bytes between a hundred turns of another task", read.load(SeqCst));
        });
        ended.store(true, SeqCst);
        writes.join();
    });
}

/// Many tasks wait for one lock. Its owner needs a thread of the node before it gives the lock up.
#[test]
fn whoever_has_a_key_is_served_however_many_wait_for_it() {
    finishes("tasks that wait for a key", || {
        let [node, other] = near();
        let tasks = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        tasks.block_on(async move {
            let key = Lock::init(&node, "held", Resource::Unnamed).unwrap();
            let region = node.region::<u8>(4 << 20).unwrap();
            let guard = key.lock_async().await.unwrap();
            let held = Arc::new(AtomicBool::new(true));
            let waiting: Vec<_> = (0..600)
                .map(|number| {
                    // Handles of their own, too.
                    let key = if number % 2 == 0 { key.clone() } else { Lock::find(&node, "held").unwrap() };
                    let held = held.clone();
                    tokio::spawn(async move {
                        let guard = key.lock_async().await.unwrap();
                        assert!(!held.swap(true, SeqCst));
                        held.store(false, SeqCst);
                        drop(guard);
                    })
                })
                .collect();
            // Some go, wherever they are in the line.
            waiting.iter().step_by(7).for_each(|one| one.abort());
            let (_, got) = node.get_async(region.key(), vec![0; 4 << 20]).await;
            got.unwrap();
            let mut all = 0;
            for one in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
                let name = std::fs::read_to_string(one.path().join("comm")).unwrap_or_default();
                all += u32::from(name.starts_with("doorbell-clerk"));
            }
            // Other tests of this process have such threads, too.
            assert!(all < 100, "{all} threads wait for one key");
            held.store(false, SeqCst);
            guard.unlock().unwrap();
            for one in waiting {
                match one.await {
                    Ok(()) => {}
                    Err(error) => assert!(error.is_cancelled(), "{error}"),
                }
            }
            // Others have the key after them.
            let theirs = Lock::find(&other, "held").unwrap();
            tokio::task::spawn_blocking(move || drop(theirs.lock_until(soon()).unwrap())).await.unwrap();
            // A lock that is destroyed ends the waits for it.
            let guard = key.lock_async().await.unwrap();
            let waits = {
                let key = key.clone();
                tokio::spawn(async move { key.lock_async().await.map(drop) })
            };
            tokio::task::yield_now().await;
            guard.unlock().unwrap();
            let _ = waits.await.unwrap();
        });
    });
}

/// A deadlock of tasks is not detected, because each call is an owner of its own (docs/locks.md). The call that reaches its timeout lets the other go on.
#[test]
fn tasks_that_wait_for_each_others_keys_wait_until_one_gives_up() {
    finishes("a circle of tasks", || {
        let [node, _other] = near();
        let tasks = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        tasks.block_on(async move {
            let [one, two] = ["one", "two"].map(|name| Lock::init(&node, name, Resource::Unnamed).unwrap());
            let (mine, theirs) = (one.lock_async().await.unwrap(), two.lock_async().await.unwrap());
            let waits = tokio::spawn(async move {
                let guard = one.lock_async().await.unwrap();
                drop((guard, theirs));
            });
            assert!(timeout(Duration::from_millis(50), two.lock_async()).await.is_err());
            assert!(!waits.is_finished());
            drop(mine);
            waits.await.unwrap();
            two.lock_async().await.unwrap().unlock().unwrap();
        });
    });
}

/// A buffer that panics in the thread that copies for a task.
struct Panics(Vec<u8>, AtomicU32);

impl AsRef<[u8]> for Panics {
    fn as_ref(&self) -> &[u8] {
        assert!(self.1.fetch_add(1, SeqCst) == 0, "as it is meant to");
        &self.0
    }
}

#[test]
fn a_buffer_that_panics_comes_back() {
    finishes("a buffer that panics", || {
        let [node, other] = near();
        let region = other.region::<u8>(4 << 20).unwrap();
        runtime().block_on(async {
            let (buffer, put) = node.put_async(Panics(vec![1; 4 << 20], 0.into()), region.key()).await;
            assert!(put.is_err());
            assert_eq!(buffer.0.len(), 4 << 20);
        });
    });
}

/// Bytes in `/dev/shm` of a domain.
fn bytes_of(domain: &Domain) -> u64 {
    let sizes = domain.files().into_iter().filter_map(|name| std::fs::metadata(format!("/dev/shm/{name}")).ok());
    sizes.map(|file| file.len()).sum()
}

/// The memory of streams comes back, however they ended.
#[test]
fn memory_of_streams_comes_back() {
    finishes("memory", || {
        let domain = Domain::new("held");
        let join = || Node::builder(domain.name()).join().unwrap();
        let nodes = [join(), join()];
        let [listens, connects] = &nodes;
        let to = || Stream::builder(connects, "held").to(listens.id());
        drop(connect(&nodes));
        let before = bytes_of(&domain);
        for _ in 0..80 {
            // A listener is dropped before anybody accepted.
            let listener = Listener::builder(listens, "held").bind().unwrap();
            let stream = to().connect().unwrap();
            drop(listener);
            eventually("its end", || matches!(Read::read(&mut &stream, &mut [0; 8]), Ok(0) | Err(_)));
        }
        for _ in 0..40 {
            // No listener offers it, and the connector may give up before it hears that.
            let kind = to().patience(Duration::from_millis(1)).connect().unwrap_err().kind();
            assert!(matches!(kind, ErrorKind::ConnectionRefused | ErrorKind::TimedOut), "{kind}");
        }
        let listener = Listener::builder(listens, "held").bind().unwrap();
        let many: Vec<_> = (0..100).map(|_| (to().connect().unwrap(), listener.accept().unwrap())).collect();
        assert!(bytes_of(&domain) > before + (8 << 20));
        drop(many);
        // Large rings take what they need, and no more.
        let large = to().buffer_bytes(8 << 20).connect().unwrap();
        assert!(bytes_of(&domain) < before + (20 << 20), "{} bytes more", bytes_of(&domain) - before);
        drop((large, listener.accept().unwrap()));
        assert!(bytes_of(&domain) <= before + (3 << 20), "{} bytes more than at first", bytes_of(&domain) - before);
        drop(listener);
        drop(nodes);
        assert!(domain.files().is_empty());
    });
}
