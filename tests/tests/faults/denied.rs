//! System calls that the kernel denies after a process has joined, as under a filter that a program installs: the node goes on, or an error says
//! what it can't do. It never hangs, and no panic and no signal ends it.
//!
//! The filter holds for a whole process and for good, so each case is a process of its own, which talks with this one before and after.

use doorbell::Reactor;
use doorbell::transfer::Side;
use doorbell::{CopySide, KEY_BYTES, Key, Match, Node, NodeBuilder, NodeId, ReadWrite, Region, Space};
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::{PATIENCE, running, soon};
use doorbell_tests::pattern;
use doorbell_tests::process::{Process, deny, told, told_as};
use doorbell_tests::{LOOPBACK, Turn};
use std::net::SocketAddr;
use std::sync::mpsc;

/// The calls that are denied, by their names.
const CALLS: [(&str, libc::c_long); 4] = [
    ("membarrier", libc::SYS_membarrier),
    ("io_uring_setup", libc::SYS_io_uring_setup),
    ("mmap", libc::SYS_mmap),
    ("process_vm_readv", libc::SYS_process_vm_readv),
];
/// Private memory of this length is fetched by `process_vm_readv` where the kernel lets it.
const LONG: usize = 3 << 20;
const ROUNDS: u64 = 300;
/// Regions of the honest node. The last is first used after the filter, so that it must be mapped then.
const REGIONS: usize = 2;

/// The tags of the messages between the two.
mod tag {
    pub const PING: u64 = 1;
    pub const PONG: u64 = 2;
    pub const LONG: u64 = 3;
    pub const KEYS: u64 = 4;
    pub const OTHER: u64 = 5;
    pub const DONE: u64 = 6;
}

fn builder(id: u16, networked: bool, at: Option<SocketAddr>) -> NodeBuilder {
    let builder = Node::builder(told_or_none("DOMAIN")).id(id).copy(CopySide::Both);
    match (networked, at) {
        (false, _) => builder,
        (true, None) => builder.listen(LOOPBACK),
        // What the two share is the network alone.
        (true, Some(at)) => builder.space(Space::heap()).connect(at),
    }
}

/// The environment names the denied call to the child.
fn told_or_none(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

/// Prints the error of an operation that was denied. `Some` if it went well all the same.
fn is_clear<T>(what: &str, result: doorbell::Result<T>) -> Option<T> {
    result
        .inspect_err(|error| {
            assert!(error.to_string().len() > 10, "{what}: {error:?}");
            eprintln!("{what}: {error}");
        })
        .ok()
}

/// Panics if an operation failed that needs no denied call. Only the mapping of memory has no substitute.
#[track_caller]
fn check(what: &str, done: bool, is_denied: bool) {
    assert!(done || is_denied && told("CALL") == "mmap", "{what} failed");
}

/// All operations of a node with another one, as far as they succeed.
fn talk(node: &Node, keys: &[Key<u8, ReadWrite>], number: u64, is_denied: bool) {
    let to = NodeId(0);
    let check = |what: &str, done: bool| check(what, done, is_denied);
    for round in 0..ROUNDS {
        node.send_until(to, tag::PING, &round.to_le_bytes(), soon()).unwrap();
        let mut back = [0; 8];
        node.recv_until(Match::from(to).tag(tag::PONG), &mut back, soon()).unwrap();
        assert_eq!(u64::from_le_bytes(back), round);
    }
    // From one private buffer to another, both ways.
    let seed = 10 * number;
    let sent = is_clear("a long send", node.send_until(to, tag::LONG, &pattern::bytes(LONG, seed), soon()));
    check("a long send", sent.is_some());
    let mut buf = vec![0; LONG];
    let long = Match::from(to).tag(tag::LONG);
    let received = is_clear("a long receive", node.recv_until(long, &mut buf, soon()));
    check("a long receive", received.is_some());
    if let Some(envelope) = received {
        assert_eq!(envelope.len, LONG);
        pattern::check(&buf, seed + 1);
        let reports = node.transfers().unwrap();
        let pulled = reports
            .iter()
            .rfind(|report| (report.side, report.tag) == (Side::Target, tag::LONG))
            .map(|report| report.pulled.bytes);
        assert!(!is_denied || told("CALL") != "process_vm_readv" || pulled == Some(0), "fetched by a call that is denied");
    }
    for key in keys {
        let bytes = pattern::bytes(key.len(), seed + 2);
        let put = is_clear("a put", node.put(&bytes, *key));
        check("a put", put.is_some());
        let mut got = vec![0; key.len()];
        let done = is_clear("a get", node.get(*key, &mut got)).is_some();
        check("a get", done);
        if done && put.is_some() {
            pattern::check(&got, seed + 2);
        }
    }
    // Memory of its own.
    let region = is_clear("a region", node.region::<u8>(1 << 20));
    check("a region", region.is_some());
    if let Some(region) = region {
        region.write(0, &[7; 100]).unwrap();
        let mut first = [0; 100];
        region.read(0, &mut first).unwrap();
        assert_eq!(first, [7; 100]);
    }
    let reactor = Reactor::new(node);
    check("a reactor", reactor.is_ok());
    if let Ok(mut reactor) = reactor {
        for _ in 0..10 {
            while reactor.turn() {}
            reactor.arm().unwrap();
            reactor.disarm().unwrap();
        }
    }
}

/// The process to which calls are denied.
pub fn is_denied() {
    let networked = told("FABRIC") == "udp";
    let at = networked.then(|| told_as("AT"));
    let node = builder(1, networked, at).join().unwrap();
    node.wait_for(2, soon()).unwrap();
    let mut keys = [0; REGIONS * KEY_BYTES];
    node.recv_until(Match::any().tag(tag::KEYS), &mut keys, soon()).unwrap();
    let keys: Vec<_> = keys.chunks(KEY_BYTES).map(|key| Key::from_bytes(key).unwrap()).collect();
    // A second thread that comes into the engine again and again, so that the baton goes from one to the other.
    let (stop, stopped) = mpsc::channel::<()>();
    let other = node.clone();
    let beside = running("another thread", move || {
        let mut sent = 0_u64;
        while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
            other.send_until(NodeId(0), tag::OTHER, &sent.to_le_bytes(), soon()).unwrap();
            sent += 1;
            let _ = other.stats().unwrap();
            std::thread::yield_now();
        }
        sent
    });
    talk(&node, &keys[..1], 0, false);
    let call = CALLS.iter().find(|(name, _)| *name == told("CALL")).unwrap().1;
    let errno = told_as("ERRNO");
    deny(call, errno).unwrap();
    // SAFETY: the filter answers before the kernel looks at what it is told.
    let result = unsafe { libc::syscall(call, 0, 0, 0, 0, 0, 0) };
    assert_eq!((result, std::io::Error::last_os_error().raw_os_error()), (-1, Some(errno)));
    talk(&node, &keys, 1, true);
    // Another life beside the first, under the filter from its beginning.
    let second = builder(2, networked, at).join();
    check("another node", second.is_ok(), true);
    if let Some(second) = is_clear("another node", second) {
        is_clear("its message", second.send_until(second.id(), 9, b"self", soon()));
        is_clear("leaving", second.leave());
    }
    stop.send(()).unwrap();
    let sent = beside.join();
    node.send_until(NodeId(0), tag::DONE, &sent.to_le_bytes(), soon()).unwrap();
    is_clear("leaving", node.leave());
}

/// The honest node: answers, and fills and reads the bytes of its regions.
fn answer(node: &Node, regions: &[Region<u8>]) {
    let to = NodeId(1);
    let keys: Vec<u8> = regions.iter().flat_map(|region| region.key().to_bytes()).collect();
    node.send_until(to, tag::KEYS, &keys, soon()).unwrap();
    let (mut others, mut long, mut buf) = (0_u64, 0, vec![0; LONG]);
    loop {
        let envelope = node.recv_until(Match::from(to), &mut buf, soon()).unwrap();
        let word = || u64::from_le_bytes(buf[..8].try_into().unwrap());
        match envelope.tag {
            tag::PING => node.send_until(to, tag::PONG, &buf[..8], soon()).unwrap(),
            tag::LONG => {
                assert_eq!(envelope.len, LONG);
                pattern::check(&buf, 10 * long);
                node.send_until(to, tag::LONG, &pattern::bytes(LONG, 10 * long + 1), soon()).unwrap();
                long += 1;
            }
            tag::OTHER => {
                assert_eq!(word(), others);
                others += 1;
            }
            tag::DONE => {
                assert_eq!((word(), long), (others, 2), "not all of it came");
                return;
            }
            other => panic!("tag {other}"),
        }
    }
}

fn denied(call: &str, errno: i32) {
    let _turn = Turn::take();
    for fabric in ["shm", "udp"] {
        let domain = Domain::new("denied");
        let networked = fabric == "udp";
        let mut own = Node::builder(domain.name()).id(0).copy(CopySide::Both);
        if networked {
            own = own.listen(LOOPBACK);
        }
        let node = own.join().unwrap();
        let regions = [(); REGIONS].map(|()| node.region::<u8>(100_000).unwrap());
        let mut child = Process::start("is denied").tell("DOMAIN", domain.name()).tell("FABRIC", fabric);
        child = child.tell("CALL", call).tell("ERRNO", errno.to_string());
        if networked {
            child = child.tell("AT", node.addresses()[0].to_string());
        }
        let child = child.go();
        node.wait_for(2, soon()).unwrap();
        let honest = node.clone();
        running("the honest node", move || answer(&honest, &regions)).join();
        child.end_well(PATIENCE);
        node.leave().unwrap();
        domain.assert_empty();
    }
}

#[test]
fn membarrier() {
    denied("membarrier", libc::EPERM);
    denied("membarrier", libc::ENOMEM);
}

#[test]
fn io_uring_setup() {
    denied("io_uring_setup", libc::EPERM);
    denied("io_uring_setup", libc::ENOMEM);
}

#[test]
fn mmap() {
    denied("mmap", libc::EPERM);
    denied("mmap", libc::ENOMEM);
}

#[test]
fn process_vm_readv() {
    denied("process_vm_readv", libc::EPERM);
    denied("process_vm_readv", libc::ENOMEM);
}
