//! Servers in processes of their own: clients that are killed, servers that are killed or stop, and a network that loses and reorders.

use doorbell::io::{IoClient, IoServer};
use doorbell::{FabricKind, Node, NodeId, Role};
use doorbell_tests::domain::Domain;
use doorbell_tests::files::{Pair, Room, as_it_is};
use doorbell_tests::patience::{PATIENCE, eventually, running};
use doorbell_tests::pattern::bytes;
use doorbell_tests::process::{Process, told};
use doorbell_tests::random::Random;
use doorbell_tests::words::Words;
use doorbell_tests::{Turn, number};
use doorbell_udp::port::relay::{Badness, Relay};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// The words in which a server of another process shows its state.
mod at {
    pub const READY: usize = 0;
    pub const STOP: usize = 1;
    pub const CLIENTS: usize = 2;
    pub const DESCRIPTORS: usize = 3;
    pub const STAGING: usize = 4;
    pub const PORT: usize = 5;
    pub const ROUNDS: usize = 6;
    pub const COUNT: usize = 7;
}

pub fn serves() {
    let words = Words::inherited();
    let builder = Node::builder(told("DOMAIN")).role(Role::Io).id(0);
    let builder = match std::env::var("LISTEN") {
        Ok(address) => builder.fabric(FabricKind::Udp).listen(address.parse::<SocketAddr>().unwrap()),
        Err(_) => builder,
    };
    let node = builder.join().unwrap();
    let server = IoServer::builder(&node, told("DIRECTORY")).start().unwrap();
    words[at::PORT].store(node.address().map_or(0, |address| address.port().into()), SeqCst);
    words[at::READY].store(1, SeqCst);
    while words[at::STOP].load(SeqCst) == 0 {
        let counts = server.counts();
        words[at::CLIENTS].store(counts.clients, SeqCst);
        words[at::DESCRIPTORS].store(counts.descriptors, SeqCst);
        words[at::STAGING].store(counts.staging_bytes, SeqCst);
        std::thread::sleep(Duration::from_millis(1));
    }
    server.stop().unwrap();
    node.leave().unwrap();
}

pub fn is_killed() {
    let words = Words::inherited();
    let node = Node::builder(told("DOMAIN")).join().unwrap();
    let client = IoClient::connect(&node, NodeId(0)).unwrap();
    let data = bytes(600_000, 3);
    let mut files = Vec::new();
    for round in 0.. {
        let file = client.options().read(true).write(true).create(true).open(format!("of-{}", round % 9)).unwrap();
        file.write_all_at(&data, 0).unwrap();
        let mut read = vec![0; 4096];
        file.read_exact_at(&mut read, 4096 * (round % 100)).unwrap();
        files.push(file);
        files.truncate(5);
        words[at::ROUNDS].fetch_add(1, SeqCst);
    }
}

/// The number of files of this directory that a process has open.
fn open_in(pid: u32, directory: &Path) -> usize {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let targets = links.filter_map(|link| fs::read_link(link.path()).ok());
    targets.filter(|target| target.starts_with(directory) && target != directory).count()
}

#[test]
fn clients_that_are_killed_leave_nothing_open() {
    let _turn = Turn::take();
    let (domain, room, words) = (Domain::new("io-kills"), Room::in_memory(), Words::new(at::COUNT));
    let served = room.served();
    let tell = |role| Process::start(role).words(&words).tell("DOMAIN", domain.name());
    let server = tell("serves").tell("DIRECTORY", &served).go();
    eventually("the server", || words[at::READY].load(SeqCst) == 1);
    let mut random = Random::new(number("DOORBELL_SEED", 1));
    for _ in 0..number("DOORBELL_KILLS", 12) {
        let clients = [tell("is killed").go(), tell("is killed").go()];
        let before = words[at::ROUNDS].load(SeqCst);
        let rounds = 1 + random.below(40) as u64;
        eventually("some rounds", || {
            assert!(!clients.iter().any(|client| client.ended_by(Instant::now())), "it ended by itself");
            words[at::ROUNDS].load(SeqCst) >= before + rounds
        });
        clients.iter().for_each(Process::kill);
        drop(clients);
    }
    eventually("all is given back", || {
        let of = |at: usize| words[at].load(SeqCst);
        (of(at::CLIENTS), of(at::DESCRIPTORS), of(at::STAGING)) == (0, 0, 0)
    });
    assert_eq!(open_in(server.pid(), &served), 0);
    // The next client is served, and the count shows that its file is open.
    let node = Node::builder(domain.name()).join().unwrap();
    let client = IoClient::connect(&node, NodeId(0)).unwrap();
    let file = client.create("last").unwrap();
    assert_eq!(open_in(server.pid(), &served), 1);
    drop((file, client));
    node.leave().unwrap();
    words[at::STOP].store(1, SeqCst);
    server.end_well(PATIENCE);
}

#[test]
fn a_server_that_is_killed_fails_its_clients_by_name() {
    let _turn = Turn::take();
    let (domain, room, words) = (Domain::new("io-server"), Room::in_memory(), Words::new(at::COUNT));
    let tell = Process::start("serves").words(&words).tell("DOMAIN", domain.name());
    let server = tell.tell("DIRECTORY", room.served()).go();
    eventually("the server", || words[at::READY].load(SeqCst) == 1);
    let node = Node::builder(domain.name()).join().unwrap();
    let client = IoClient::connect(&node, NodeId(0)).unwrap();
    let file = client.create("f").unwrap();
    file.write_all_at(&bytes(MIB, 1), 0).unwrap();
    server.kill();
    server.end(PATIENCE);
    for _ in 0..3 {
        let error = file.read_at(&mut vec![0; MIB], 0).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::NotConnected), "{error:?}");
    }
    drop((file, client));
    let error = IoClient::connect(&node, NodeId(0)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::NotFound), "{error:?}");
    node.leave().unwrap();
    doorbell_shm::domain::clean(domain.space(), Some(domain.name()), false).unwrap();
}

/// The node lives on, and clients are in the middle of their calls.
#[test]
fn a_server_that_stops_fails_its_clients_and_another_may_serve() {
    for over_udp in [false, true] {
        let room = Room::in_memory();
        fs::write(room.served().join("f"), bytes(1 << 20, 3)).unwrap();
        let Pair { server, io, compute, room, .. } =
            if over_udp { Pair::over_udp(room, as_it_is) } else { Pair::new(room, as_it_is) };
        let clients = [4096, 1 << 20].map(|len| {
            let (compute, server) = (compute.clone(), io.id());
            let (told, tell) = std::sync::mpsc::channel();
            let reading = running("a client of a server that stops", move || {
                let client = IoClient::connect(&compute, server).unwrap();
                let file = client.open("f").unwrap();
                let mut buf = vec![0; len];
                told.send(()).unwrap();
                let error = loop {
                    if let Err(error) = file.read_at(&mut buf, 0) {
                        break error;
                    }
                };
                // From then on, at once.
                let again = file.read_at(&mut buf, 0).unwrap_err();
                (error, again, client)
            });
            tell.recv_timeout(PATIENCE).unwrap();
            reading
        });
        server.stop().unwrap();
        let ended = clients.map(|client| client.join());
        let server = IoServer::builder(&io, room.served()).start().unwrap();
        for (error, again, client) in ended {
            assert_eq!((error.kind(), again.kind()), (ErrorKind::NotConnected, ErrorKind::NotConnected), "{error}; {again}");
            assert_eq!(client.open("f").unwrap_err().kind(), ErrorKind::NotConnected);
        }
        let mut text = Vec::new();
        IoClient::connect(&compute, io.id()).unwrap().open("f").unwrap().read_to_end(&mut text).unwrap();
        assert_eq!(text, bytes(1 << 20, 3));
        server.stop().unwrap();
    }
}

#[test]
fn a_network_that_loses_and_reorders_copies_files_intact() {
    let _turn = Turn::take();
    let (room, words) = (Room::in_memory(), Words::new(at::COUNT));
    let tell = Process::start("serves").words(&words).tell("DOMAIN", "io-relay");
    let server = tell.tell("DIRECTORY", room.served()).tell("LISTEN", "127.0.0.1:0").go();
    eventually("the server", || words[at::READY].load(SeqCst) == 1);
    let badness = Badness { loss: 0.05, reordering: 0.05, duplication: 0.01, ..Badness::NONE };
    let home = SocketAddr::from(([127, 0, 0, 1], words[at::PORT].load(SeqCst) as u16));
    let relay = Relay::start(None, home, [badness; 2], number("DOORBELL_SEED", 1)).unwrap();
    // With an id: a node asks for one from another port, and the relay knows only one port.
    let node = Node::builder("io-relay").fabric(FabricKind::Udp).id(1).connect(relay.front(0)).join().unwrap();
    let client = IoClient::connect(&node, NodeId(0)).unwrap();
    let data = bytes(number("DOORBELL_NETWORK_MIB", 16) as usize * MIB, 5);
    let mut file = client.create("copy").unwrap();
    for piece in data.chunks(MIB) {
        file.write_all(piece).unwrap();
    }
    file.close().unwrap();
    assert!(fs::read(room.served().join("copy")).unwrap() == data);
    let (file, mut read) = (client.open("copy").unwrap(), vec![0; data.len()]);
    for (at, piece) in (0..).step_by(MIB).zip(read.chunks_mut(MIB)) {
        file.read_exact_at(piece, at).unwrap();
    }
    assert!(read == data);
    for relayed in relay.relayed() {
        assert!(relayed.lost > 0 && relayed.reordered > 0, "{relayed:?}");
    }
    drop((file, client));
    node.leave().unwrap();
    words[at::STOP].store(1, SeqCst);
    server.end_well(PATIENCE);
}
