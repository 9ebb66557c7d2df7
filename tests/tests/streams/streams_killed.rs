//! Streams to another process: the errors of tasks and threads when it is killed, and tasks where io_uring is forbidden.

use super::streams_async::one_thread;
use doorbell::Listener;
use doorbell::{FabricKind, Node, NodeBuilder, Role, Stream};
use doorbell_tests::LOOPBACK;
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::{PATIENCE, eventually, finishes, running};
use doorbell_tests::process::{Process, forbid_io_uring, told};
use doorbell_tests::words::Words;
use std::io::ErrorKind;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Answers each byte that comes with the same, until it is killed; with `greedy` it reads nothing.
pub fn server() {
    if told("IO_URING") == "no" {
        forbid_io_uring().unwrap();
    }
    let words = Words::inherited();
    let builder = Node::builder(told("DOMAIN"));
    let node = if told("FABRIC") == "udp" {
        builder.fabric(FabricKind::Udp).role(Role::Host).listen(LOOPBACK).join().unwrap()
    } else {
        builder.join().unwrap()
    };
    let listener = Listener::builder(&node, "serve").bind().unwrap();
    words[0].store(node.address().map_or(1, |address| address.port().into()), SeqCst);
    one_thread().block_on(async {
        let mut kept = Vec::new();
        loop {
            let (mut stream, _) = listener.accept_async().await.unwrap();
            let mut what = [0];
            stream.read_exact(&mut what).await.unwrap();
            if what == *b"g" {
                kept.push(stream);
                continue;
            }
            tokio::spawn(async move {
                let mut byte = [0];
                while stream.read_exact(&mut byte).await.is_ok() && stream.write_all(&byte).await.is_ok() {}
            });
        }
    });
}

fn serve(domain: &str, fabric: &str, io_uring: &str) -> (Process, Node) {
    let words = Words::new(1);
    let server = Process::start("server").words(&words);
    let server = server.tell("DOMAIN", domain).tell("FABRIC", fabric).tell("IO_URING", io_uring).go();
    eventually("the server listens", || words[0].load(SeqCst) != 0);
    let builder: NodeBuilder = Node::builder(domain);
    let node = if fabric == "udp" {
        let address = ([127, 0, 0, 1], words[0].load(SeqCst) as u16);
        builder.fabric(FabricKind::Udp).role(Role::Accelerator).connect(address).join().unwrap()
    } else {
        builder.join().unwrap()
    };
    (server, node)
}

#[test]
fn a_killed_process_ends_what_waits_for_it() {
    for fabric in ["shm", "udp"] {
        let domain = Domain::new("tasks-kill");
        let (server, node) = serve(domain.name(), fabric, "yes");
        finishes("tasks whose server is killed", move || {
            one_thread().block_on(async {
                let connector = Stream::builder(&node, "serve");
                let (mut reads, mut writes) =
                    (connector.connect_async().await.unwrap(), connector.connect_async().await.unwrap());
                // One waits for an answer to what was answered before, the other for room.
                reads.write_all(b"ex").await.unwrap();
                assert_eq!(reads.read_u8().await.unwrap(), b'x');
                writes.write_all(b"g").await.unwrap();
                let blocked = tokio::spawn(async move {
                    loop {
                        if let Err(error) = writes.write_all(&[7; 4096]).await {
                            break error;
                        }
                    }
                });
                let waiting = tokio::spawn(async move { reads.read_u8().await });
                tokio::time::sleep(Duration::from_millis(20)).await;
                server.kill();
                assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::ConnectionReset);
                assert_eq!(blocked.await.unwrap().kind(), ErrorKind::ConnectionReset);
                assert!(connector.patience(Duration::from_millis(50)).connect_async().await.is_err());
            });
        });
    }
}

/// The errors of threads. In a module of its own, because `Read` and `Write` have methods of the same names as their async counterparts.
mod blocking {
    use super::{Domain, ErrorKind, running, serve};

    use doorbell::Stream;
    use std::io::{Read, Write};
    use std::time::Duration;

    #[test]
    fn a_killed_process_ends_what_threads_wait_for() {
        for fabric in ["shm", "udp"] {
            let domain = Domain::new("streams-kill");
            let (server, node) = serve(domain.name(), fabric, "yes");
            let mut reads = Stream::builder(&node, "serve").connect().unwrap();
            let mut writes = Stream::builder(&node, "serve").connect().unwrap();
            reads.write_all(b"ex").unwrap();
            reads.read_exact(&mut [0]).unwrap();
            writes.write_all(b"g").unwrap();
            let waiting = running("a thread reads", move || reads.read(&mut [0]).unwrap_err().kind());
            let blocked = running("a thread writes", move || {
                loop {
                    if let Err(error) = writes.write_all(&[7; 4096]) {
                        break error.kind();
                    }
                }
            });
            std::thread::sleep(Duration::from_millis(20));
            server.kill();
            assert_eq!((waiting.join(), blocked.join()), (ErrorKind::ConnectionReset, ErrorKind::ConnectionReset));
        }
    }
}

/// With sleeps in between, so that the descriptor has to wake the runtime.
#[test]
fn tasks_are_woken_where_io_uring_is_forbidden() {
    for fabric in ["shm", "udp"] {
        let domain = Domain::new("tasks-plain");
        let (server, node) = serve(domain.name(), fabric, "no");
        let node = finishes("tasks without io_uring", move || {
            one_thread().block_on(async {
                let mut stream = Stream::builder(&node, "serve").connect_async().await.unwrap();
                stream.write_all(b"e").await.unwrap();
                for _ in 0..20 {
                    stream.write_all(b"x").await.unwrap();
                    let answer = tokio::time::timeout(PATIENCE, stream.read_u8()).await.unwrap();
                    assert_eq!(answer.unwrap(), b'x');
                    tokio::time::sleep(Duration::from_millis(3)).await;
                }
            });
            node
        });
        drop(server);
        eventually("the server is known to be gone", || node.members().unwrap().len() == 1);
    }
}
